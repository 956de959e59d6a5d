/* Saving, loading and copying what the sparse layer has learnt and decided; lists as a file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/sparse_internal.h"

static void list_state(const DsvSparse *s, DsvStateList *list)
{
    const DsvSparseRecord *r = &s->record;
    int64_t blocks = s->shape.blocks, heads = s->shape.heads;
    const DsvStateItem items[] = {
        {"dispatch.sparse", DSV_I32, 1, {blocks}, false, r->sparse},
        {"dispatch.changes", DSV_I64, 1, {blocks}, false, r->changes},
        {"dispatch.break_even", DSV_F64, 1, {1}, false, r->break_even},
        {"profile.captured", DSV_F64, 1, {blocks}, false, r->captured},
        {"profile.listed", DSV_F64, 1, {blocks}, false, r->listed},
        {"profile.share90", DSV_F64, 1, {blocks}, false, r->share90},
        {"profile.head_captured", DSV_F32, 2, {blocks, heads}, false, r->head_captured},
        {"profile.head_share90", DSV_F32, 2, {blocks, heads}, false, r->head_share90},
        {"profile.head_listed", DSV_F32, 2, {blocks, heads}, false, r->head_listed},
        {"lists.missed", DSV_F64, 1, {blocks}, false, r->missed},
        {"lists.density", DSV_F64, 1, {blocks}, false, r->density},
        {"lists.estimated_mass", DSV_F64, 1, {blocks}, false, r->estimated_mass},
    };
    list->count = 0;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        dsvi_state_add(list, items[i]);
    dsvi_selector_state(s->selector, list);
}

/* What a file must agree with: written as metadata, compared as text. */
enum { TRAITS = 5, TRAIT_BYTES = 32 };

typedef struct Traits {
    char text[TRAITS][TRAIT_BYTES];
    const char *pair[TRAITS][2];
} Traits;

static void describe(const DsvSparse *s, Traits *traits)
{
    static const char *const name[TRAITS] = {"selector", "rank", "blocks", "heads", "head_dim"};
    const int64_t number[TRAITS] = {
        0, s->selector ? s->selector->features.features : 0, s->shape.blocks, s->shape.heads,
        s->shape.head_dim,
    };
    for (int i = 0; i < TRAITS; i++) {
        snprintf(traits->text[i], TRAIT_BYTES, "%" PRId64, number[i]);
        traits->pair[i][0] = name[i];
        traits->pair[i][1] = traits->text[i];
    }
    snprintf(traits->text[0], TRAIT_BYTES, "%s", s->selector ? s->selector->type->name : "none");
}

DsvStatus dsvi_sparse_save(DsvSparse *s, const char *path)
{
    DsvStateList list = {.count = 0};
    Traits traits;
    describe(s, &traits);
    if (s->selector)
        list_state(s, &list);
    return dsvi_state_write(s->backend->device, &list, path, (const char *const (*)[2])traits.pair, TRAITS);
}

static DsvStatus compare(const DsvSafetensors *file, const Traits *wanted)
{
    for (int i = 0; i < TRAITS; i++) {
        const char *found = dsvi_safetensors_metadata(file, wanted->pair[i][0]);
        if (!found || strcmp(found, wanted->pair[i][1]) != 0)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: sparse state is for %s %s, wanted %s",
                             dsvi_safetensors_path(file), wanted->pair[i][0], found ? found : "(unknown)",
                             wanted->pair[i][1]);
    }
    return DSV_OK;
}

/* A run may turn sparse attention on or off when it resumes: then there is nothing to take over. */
static bool nothing_to_load(DsvSparse *s, const DsvSafetensors *file)
{
    const char *selector = dsvi_safetensors_metadata(file, "selector");
    return !s->selector || (selector && strcmp(selector, "none") == 0);
}

/* A resumed run decides as it would have, whatever it has measured just now. */
static void say_break_even(const DsvSparse *s)
{
    char line[160];
    snprintf(line, sizeof line, "attention over lists goes by what the run's first start has measured: it "
             "pays up to density %.2f", s->record.break_even[0]);
    if (s->knows_cost && s->log)
        s->log(s->log_context, line);
}

static DsvStatus restored(DsvSparse *s)
{
    for (int64_t block = 0; block < s->shape.blocks; block++)
        s->record.sparse[block] = s->record.sparse[block] != 0;
    return dsvi_selector_restored(s->selector);
}

DsvStatus dsvi_sparse_load(DsvSparse *s, const char *path)
{
    DsvStatus status = DSV_OK;
    DsvSafetensors *file = NULL;
    DsvStateList list;
    Traits traits;
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(path, &file), done);
    if (nothing_to_load(s, file))
        goto done;
    describe(s, &traits);
    list_state(s, &list);
    DSVI_TRY_GOTO(status, compare(file, &traits), done);
    DSVI_TRY_GOTO(status, dsvi_state_read(s->backend->device, &list, file), done);
    DSVI_TRY_GOTO(status, restored(s), done);
    say_break_even(s);
done:
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_sparse_spread(DsvSparse *s)
{
    DsvStateList list;
    if (!s->selector || dsvi_comm_size(s->comm) == 1)
        return DSV_OK;
    list_state(s, &list);
    DSVI_TRY(dsvi_state_spread(s->backend->device, s->comm, &list));
    return restored(s);
}

DsvStatus dsvi_sparse_copy(DsvSparse *to, const DsvSparse *from)
{
    DsvStateList target, source;
    Traits wanted, found;
    if (!to->selector || !from->selector)
        return DSV_OK;
    describe(to, &wanted);
    describe(from, &found);
    for (int i = 0; i < TRAITS; i++)
        DSVI_ASSERT(strcmp(wanted.text[i], found.text[i]) == 0);
    list_state(to, &target);
    list_state(from, &source);
    DSVI_TRY(dsvi_state_copy(to->backend->device, &target, &source));
    return restored(to);
}

/* The lists on the host: shape, offsets, runs. */
static DsvStatus write_lists(DsvDevice *device, const DsvLists *lists, int64_t *offsets, int32_t **runs,
                             const char *path)
{
    int64_t count = dsvi_lists_count(lists);
    const int64_t shape[6] = {lists->batch, lists->heads, lists->queries, lists->keys, lists->group,
                              lists->grain};
    size_t offset_bytes = (size_t)(count + 1) * sizeof *offsets;
    DSVI_TRY(device->download(device->stream, offsets, lists->offsets, offset_bytes));
    DSVI_TRY(device->sync(device->stream));
    size_t bytes = (size_t)offsets[count] * sizeof **runs;
    *runs = malloc(bytes);
    if (!*runs)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %zu bytes of lists", path, bytes);
    DSVI_TRY(device->download(device->stream, *runs, lists->runs, bytes));
    DSVI_TRY(device->sync(device->stream));
    const DsvStoredTensor tensors[3] = {
        {.name = "offsets", .dtype = DSV_I64, .ndim = 1, .shape = {count + 1}, .count = count + 1,
         .bytes = offset_bytes, .data = offsets},
        {.name = "runs", .dtype = DSV_I32, .ndim = 1, .shape = {offsets[count]}, .count = offsets[count],
         .bytes = bytes, .data = *runs},
        {.name = "shape", .dtype = DSV_I64, .ndim = 1, .shape = {6}, .count = 6, .bytes = sizeof shape,
         .data = shape},
    };
    const char *const about[1][2] = {{"shape", "batch, heads, queries, keys, group, grain"}};
    return dsvi_safetensors_write(path, tensors, 3, about, 1);
}

DsvStatus dsvi_sparse_dump_lists(DsvSparse *s, int64_t block, const char *path)
{
    const DsvLists *lists = dsvi_sparse_lists(s, block);
    int32_t *runs = NULL;
    if (!lists)
        return DSVI_FAIL(DSV_E_USAGE, "%s: block %" PRId64 " has no lists to write: it ran dense, or they "
                         "lie there no longer", path, block);
    int64_t *offsets = malloc((size_t)(dsvi_lists_count(lists) + 1) * sizeof *offsets);
    if (!offsets)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the offsets of lists", path);
    DsvStatus status = write_lists(s->backend->device, lists, offsets, &runs, path);
    free(offsets);
    free(runs);
    return status;
}
