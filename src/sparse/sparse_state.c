/* Saves, loads and copies what the sparse layer has learned and decided. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "sparse/sparse_internal.h"

/* name of the stored running means of the output error, which files of earlier versions lack */
#define ERROR_ITEM "profile.error"

/* `selector`: the selector's state is part of the list. */
static void list_state(const DsviSparse *s, bool selector, DsviStateList *list)
{
    const DsviSparseRecord *r = &s->record;
    int64_t blocks = s->shape.blocks, heads = s->shape.heads;
    const DsviStateItem items[] = {
        {"dispatch.sparse", DSVI_I32, 1, {blocks}, false, r->sparse},
        {"dispatch.changes", DSVI_I64, 1, {blocks}, false, r->changes},
        {"dispatch.break_even", DSVI_F64, 1, {1}, false, r->break_even},
        {"profile.captured", DSVI_F64, 1, {blocks}, false, r->captured},
        {"profile.listed", DSVI_F64, 1, {blocks}, false, r->listed},
        {"profile.share90", DSVI_F64, 1, {blocks}, false, r->share90},
        {"profile.head_captured", DSVI_F32, 2, {blocks, heads}, false, r->head_captured},
        {"profile.head_share90", DSVI_F32, 2, {blocks, heads}, false, r->head_share90},
        {"profile.head_listed", DSVI_F32, 2, {blocks, heads}, false, r->head_listed},
        {"lists.missed", DSVI_F64, 1, {blocks}, false, r->missed},
        {"lists.density", DSVI_F64, 1, {blocks}, false, r->density},
        {"lists.estimated_mass", DSVI_F64, 1, {blocks}, false, r->estimated_mass},
    };
    list->count = 0;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        dsvi_state_add(list, items[i]);
    dsvi_state_add_new(list, (DsviStateItem){"profile.step", DSVI_I64, 1, {1}, false, r->measured_step});
    dsvi_state_add_new(list, (DsviStateItem){"dispatch.finishing", DSVI_I32, 1, {1}, false, r->finishing});
    dsvi_state_add_new(list, (DsviStateItem){"dispatch.reason", DSVI_I32, 1, {blocks}, false, r->reason});
    dsvi_state_add_new(list, (DsviStateItem){ERROR_ITEM, DSVI_F64, 1, {blocks}, false, r->error});
    dsvi_state_add_new(
        list, (DsviStateItem){"profile.head_error", DSVI_F32, 2, {blocks, heads}, false, r->head_error});
    if (selector)
        dsvi_selector_state(s->selector, list);
}

/* Name and text of the rule that makes the lists, which a state file has as metadata since lists have a tail.
 * Measurements and decisions hold for this rule only. */
enum { RULE_BYTES = 96 };
#define RULE_KEY "rule"

static void describe_rule(const DsviSparse *s, char text[RULE_BYTES])
{
    snprintf(text, RULE_BYTES, "sparse.order=%s sparse.grain=%" PRId64 " sparse.tail=%s",
             s->settings.sparse_order, s->settings.sparse_grain, s->settings.sparse_tail);
}

/* Name and text of how many keys lists may hold, which newer state files have as metadata. Lists that hold
 * more or fewer keys need new measurements. */
#define LENGTHS_KEY "lengths"

static void describe_lengths(const DsviSparse *s, char text[RULE_BYTES])
{
    snprintf(text, RULE_BYTES, "sparse.target_density=%.9g sparse.target_mass=%.9g",
             s->settings.sparse_target_density, s->settings.sparse_target_mass);
}

/* Name and text of the sizes of groups and of the tail's means, which newer state files have as metadata. The
 * cost and the error of attention depend on both. */
#define SHAPE_KEY "shape"

static void describe_shape(const DsviSparse *s, char text[RULE_BYTES])
{
    snprintf(text, RULE_BYTES,
             "sparse.group=%" PRId64 " sparse.tail_chunk=%" PRId64 " sparse.tail_run=%" PRId64,
             s->settings.sparse_group, s->tail.chunk, s->tail.run);
}

/* Name and text of the guard's bounds, which newer state files have as metadata. Decisions hold for them. */
#define BOUNDS_KEY "bounds"

static void describe_bounds(const DsviSparse *s, char text[RULE_BYTES])
{
    bool tail = s->tail.chunk > 0;
    const DsvConfig *settings = &s->settings;
    snprintf(text, RULE_BYTES, "sparse.%s=%.9g sparse.%s=%.9g", tail ? "max_error" : "min_mass",
             tail ? settings->sparse_max_error : settings->sparse_min_mass,
             tail ? "max_head_error" : "min_head_mass",
             tail ? settings->sparse_max_head_error : settings->sparse_min_head_mass);
}

/* Properties (selector, sizes) in which a state file must agree with the layer that loads it; stored in the
 * file as text metadata, as are texts in which the file may differ. */
enum { SELECTOR, RANK, BLOCKS, HEADS, HEAD_DIM, TRAITS };
enum { RULE, LENGTHS, SHAPE, BOUNDS, MAY_DIFFER }; /* the texts in which the file may differ */
enum { PAIRS = TRAITS + MAY_DIFFER, TRAIT_BYTES = 32 };

typedef struct Traits {
    char text[TRAITS][TRAIT_BYTES], may_differ[MAY_DIFFER][RULE_BYTES];
    const char *pair[PAIRS][2];
} Traits;

static void sparse_state_describe(const DsviSparse *s, Traits *traits)
{
    static const char *const name[TRAITS] = {"selector", "rank", "blocks", "heads", "head_dim"};
    const int64_t number[TRAITS] = {
        [RANK] = s->selector ? s->selector->features.features : 0,
        [BLOCKS] = s->shape.blocks,
        [HEADS] = s->shape.heads,
        [HEAD_DIM] = s->shape.head_dim,
    };
    for (int i = 0; i < TRAITS; i++) {
        snprintf(traits->text[i], TRAIT_BYTES, "%" PRId64, number[i]);
        traits->pair[i][0] = name[i];
        traits->pair[i][1] = traits->text[i];
    }
    snprintf(traits->text[SELECTOR], TRAIT_BYTES, "%s", s->selector ? s->selector->type->name : "none");
    static const char *const key[MAY_DIFFER] = {RULE_KEY, LENGTHS_KEY, SHAPE_KEY, BOUNDS_KEY};
    describe_rule(s, traits->may_differ[RULE]);
    describe_lengths(s, traits->may_differ[LENGTHS]);
    describe_shape(s, traits->may_differ[SHAPE]);
    describe_bounds(s, traits->may_differ[BOUNDS]);
    for (int i = 0; i < MAY_DIFFER; i++) {
        traits->pair[TRAITS + i][0] = key[i];
        traits->pair[TRAITS + i][1] = traits->may_differ[i];
    }
}

DsvStatus dsvi_sparse_save(DsviSparse *s, const char *path)
{
    DsviStateList list = {.count = 0};
    Traits traits;
    sparse_state_describe(s, &traits);
    if (s->selector)
        list_state(s, !s->borrows, &list);
    return dsvi_state_write(s->backend->device, &list, path, (const char *const(*)[2])traits.pair, PAIRS);
}

static DsvStatus sparse_state_compare(const DsviSafetensors *file, const Traits *expected)
{
    for (int i = 0; i < TRAITS; i++) {
        const char *found = dsvi_safetensors_metadata(file, expected->pair[i][0]);
        bool option = i == SELECTOR || i == RANK; /* the others are sizes of the model */
        if (found && option && strcmp(found, expected->pair[i][1]) != 0)
            return DSVI_FAIL(DSV_E_USAGE, "sparse.%s is %s, expected %s, with which %s was written",
                             expected->pair[i][0], expected->pair[i][1], found, dsvi_safetensors_path(file));
        if (!found || strcmp(found, expected->pair[i][1]) != 0)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: sparse state is for %s %s, expected %s",
                             dsvi_safetensors_path(file), expected->pair[i][0], found ? found : "(unknown)",
                             expected->pair[i][1]);
    }
    return DSV_OK;
}

/* Returns whether the file or the layer has no sparse state: a resumed run may have another value of
 * sparse.enabled than the run that wrote the file. */
static bool nothing_to_load(const DsviSparse *s, const DsviSafetensors *file)
{
    const char *selector = dsvi_safetensors_metadata(file, "selector");
    return !s->selector || (selector && strcmp(selector, "none") == 0);
}

/* Logs that a resumed run uses the break-even density of its first start, not the one measured just now,
 * so that the run decides which blocks are sparse as it would have without the interruption. */
static void log_break_even(const DsviSparse *s)
{
    char line[160];
    snprintf(line, sizeof line,
             "lists count as faster than dense attention up to density %.2f, which the run's first start has "
             "measured",
             s->record.break_even[0]);
    if (s->has_cost && s->log)
        s->log(s->log_context, line);
}

static void log_finish(const DsviSparse *s)
{
    char line[160];
    snprintf(line, sizeof line,
             "the checkpoint is from the dense finish of its training, in which all blocks attend densely "
             "(sparse.dense_finish=%g)",
             s->settings.sparse_dense_finish);
    if (s->record.finishing[0])
        dsvi_sparse_log_line(s, line);
}

static DsvStatus sparse_state_restored(DsviSparse *s)
{
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->record.sparse[block] = s->record.sparse[block] != 0;
    s->record.finishing[0] = s->record.finishing[0] != 0 && s->settings.sparse_dense_finish > 0;
    return s->borrows ? DSV_OK : dsvi_selector_restored(s->selector);
}

/* Returns whether the file has another text than the layer. Files of earlier versions lack some texts. */
static bool differs(const DsviSafetensors *file, const Traits *own, int which)
{
    const char *found = dsvi_safetensors_metadata(file, own->pair[TRAITS + which][0]);
    return found && strcmp(found, own->may_differ[which]) != 0;
}

/* If the file was written with lists of another rule, forgets its measurements and decisions, and keeps what
 * the selector has learned. */
static void forget_other_rule(DsviSparse *s, const DsviSafetensors *file, const Traits *own)
{
    char line[DSVI_PATH_MAX + 320];
    if (!differs(file, own, RULE))
        return;
    dsvi_sparse_forget_measured(s);
    snprintf(line, sizeof line,
             "%s: measurements and decisions about blocks are not used, because they are of lists with "
             "%.96s, and these have %s: all blocks begin dense",
             dsvi_safetensors_path(file), dsvi_safetensors_metadata(file, RULE_KEY), own->may_differ[RULE]);
    dsvi_sparse_log_line(s, line);
}

/* Marks the file's measurements as due for replacement if they are of lists that may hold more or fewer keys,
 * or have groups or a tail of other sizes, if the guard's bounds differ, or if the file does not say.
 * Decisions hold until then. */
static void measure_other_lists(DsviSparse *s, const DsviSafetensors *file, const Traits *own)
{
    for (int which = LENGTHS; which < MAY_DIFFER; which++)
        if (!dsvi_safetensors_metadata(file, own->pair[TRAITS + which][0]) || differs(file, own, which))
            s->record.measured_step[0] = -1;
}

/* Marks the output errors as not measured: the file that was loaded lacks them. */
static void forget_errors(DsviSparse *s)
{
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->record.error[block] = NAN;
    for (int64_t i = 0; i < s->shape.blocks * s->shape.heads; i++)
        s->record.head_error[i] = NAN;
}

DsvStatus dsvi_sparse_check_file(const DsviSparse *s, const char *path)
{
    DsviSafetensors *file;
    Traits traits;
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    sparse_state_describe(s, &traits);
    DsvStatus status = nothing_to_load(s, file)
                           ? DSVI_FAIL(DSV_E_NOT_FOUND,
                                       "%s: no sparse state, because the run that wrote the file had "
                                       "sparse.enabled=false",
                                       path)
                           : sparse_state_compare(file, &traits);
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_sparse_load(DsviSparse *s, const char *path)
{
    DsvStatus status = DSV_OK;
    DsviSafetensors *file = NULL;
    DsviStateList list;
    Traits traits;
    double measured_now = s->record.break_even[0];
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(path, &file), done);
    if (nothing_to_load(s, file))
        goto done;
    sparse_state_describe(s, &traits);
    list_state(s, !s->borrows, &list);
    DSVI_TRY_GOTO(status, sparse_state_compare(file, &traits), done);
    DSVI_TRY_GOTO(status, dsvi_state_read(s->backend->device, &list, file), done);
    if (!dsvi_safetensors_find(file, ERROR_ITEM))
        forget_errors(s);
    forget_other_rule(s, file, &traits);
    measure_other_lists(s, file, &traits);
    DSVI_TRY_GOTO(status, sparse_state_restored(s), done);
    if (differs(file, &traits, RULE) || differs(file, &traits, SHAPE))
        s->record.break_even[0] = measured_now; /* attention of other cost */
    else
        log_break_even(s);
    log_finish(s);
done:
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_sparse_broadcast(DsviSparse *s)
{
    DsviStateList list;
    if (!s->selector || dsvi_comm_size(s->comm) == 1)
        return DSV_OK;
    list_state(s, !s->borrows, &list);
    DSVI_TRY(dsvi_state_broadcast(s->backend->device, s->comm, &list));
    return sparse_state_restored(s);
}

DsvStatus dsvi_sparse_copy(DsviSparse *to, const DsviSparse *from)
{
    DsviStateList target, source;
    Traits expected, found;
    if (!to->selector || !from->selector)
        return DSV_OK;
    sparse_state_describe(to, &expected);
    sparse_state_describe(from, &found);
    for (int i = 0; i < TRAITS; i++)
        DSVI_ASSERT(strcmp(expected.text[i], found.text[i]) == 0);
    list_state(to, true, &target);
    list_state(from, true, &source);
    DSVI_TRY(dsvi_state_copy(to->backend->device, &target, &source));
    return sparse_state_restored(to);
}
