/* Creates and frees a sparse layer: checks its options and shape, and puts it into the state before the first
 * step. Several layers may share one selector. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cp/cp_limits.h"
#include "sparse/order.h"
#include "sparse/sparse_internal.h"

/* Fails if every parallel plan divides the tokens among more ranks than attention over lists
 * without a tail supports. */
static DsvStatus check_ranks(const DsviCp *cp)
{
    DsviCpLimits part;
    int64_t fewest = INT64_MAX;
    for (int64_t i = 0; dsvi_cp_limits(cp, i, &part); i++)
        fewest = part.sequence_ranks < fewest ? part.sequence_ranks : fewest;
    if (fewest <= DSVI_SPAN_PARTS_MAX)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "sparse.enabled is true and %lld ranks divide the tokens of a clip "
                     "in every plan there may be, expected at most %d",
                     (long long)fewest, DSVI_SPAN_PARTS_MAX);
}

static DsvStatus sparse_check(const DsvConfig *settings, const DsviSparseShape *shape)
{
    int64_t tokens = shape->grid[0] * shape->grid[1] * shape->grid[2];
    if (shape->tokens != tokens || tokens < 1)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "sparse attention: %lld tokens do not make a grid of %lld x %lld x "
                         "%lld",
                         (long long)shape->tokens, (long long)shape->grid[0], (long long)shape->grid[1],
                         (long long)shape->grid[2]);
    if (shape->head_dim < 32 || shape->head_dim > DSVI_HEAD_DIM_MAX || shape->head_dim % 2)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "sparse attention: head size is %lld, expected an even number from 32 "
                         "to %d",
                         (long long)shape->head_dim, DSVI_HEAD_DIM_MAX);
    if (settings->sparse_group % settings->sparse_chunk)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.chunk, %lld, does not divide sparse.group, %lld",
                         (long long)settings->sparse_chunk, (long long)settings->sparse_group);
    if (settings->sparse_grain % settings->sparse_key_chunk)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.key_chunk, %lld, does not divide sparse.grain, %lld",
                         (long long)settings->sparse_key_chunk, (long long)settings->sparse_grain);
    if (settings->sparse_key_chunk > 1 && strcmp(settings->sparse_selector, "projection") != 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.key_chunk is %lld and sparse.selector is %s, expected sparse.key_chunk=1 or "
                         "sparse.selector=projection",
                         (long long)settings->sparse_key_chunk, settings->sparse_selector);
    if (settings->sparse_enabled && shape->cp && !dsvi_sparse_has_tail(settings))
        DSVI_TRY(check_ranks(shape->cp));
    DSVI_TRY(dsvi_sparse_check_tail(settings, shape->cp));
    if (settings->sparse_time_choices && shape->cp)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.time_choices is true and %lld ranks share a clip, expected 1",
                         (long long)dsvi_cp_ranks(shape->cp));
    if (settings->sparse_time_choices && settings->sparse_offload_lists)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.time_choices is true and so is sparse.offload_lists: choices "
                                      "are timed over lists that stay on the device");
    bool counts = settings->sparse_target_density > 0, topk = strcmp(settings->sparse_rule, "topk") == 0;
    if (settings->sparse_enabled && !counts && (topk || settings->sparse_target_mass <= 0))
        return DSVI_FAIL(DSV_E_USAGE,
                         "sparse.target_density is 0 and %s: nothing says how many keys lists may have, "
                         "expected sparse.target_density above 0%s",
                         topk ? "sparse.rule is topk" : "so is sparse.target_mass",
                         topk ? "" : " or sparse.target_mass above 0");
    return DSV_OK;
}

void dsvi_sparse_forget_measured(DsviSparse *s)
{
    DsviSparseRecord *r = &s->record;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        r->sparse[block] = 0;
        r->reason[block] = 0;
        r->changes[block] = 0;
        r->captured[block] = r->listed[block] = r->share90[block] = r->estimated_mass[block] = NAN;
        r->missed[block] = r->error[block] = NAN;
        r->density[block] = 1;
    }
    for (int64_t i = 0; i < s->shape.blocks * s->shape.heads; i++)
        r->head_captured[i] = r->head_share90[i] = r->head_listed[i] = r->head_error[i] = NAN;
    r->measured_step[0] = 0;
    r->finishing[0] = 0;
}

void dsvi_sparse_restart(DsviSparse *s)
{
    dsvi_sparse_forget_measured(s);
    s->record.break_even[0] = 1;
    if (s->selector && !s->borrows)
        dsvi_selector_forget(s->selector);
}

/* Sizes the lists, and gives them the shape and capacity of the first forward pass: the guard may decide
 * about a layer that other ranks have used and this rank has not. */
static void init_lists(DsviSparse *s)
{
    dsvi_sparse_size_lists(s);
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        DsviSparseView view = dsvi_sparse_view(s, block);
        dsvi_sparse_shape_lists(s, &view, &s->block[block].lists);
        s->block[block].lists.capacity = s->spans_max;
    }
}

double dsvi_sparse_list_density(const DsvConfig *settings, int64_t tokens)
{
    double target = settings->sparse_target_density;
    return target > 0 ? fmin(1, fmax(target, (double)settings->sparse_min_keys / (double)tokens)) : target;
}

double dsvi_sparse_expected_work(const DsvConfig *settings, int64_t tokens)
{
    DsviSparseTail tail = dsvi_sparse_tail_of(settings);
    double lists = dsvi_sparse_list_density(settings, tokens);
    bool exact = settings->sparse_target_mass <= 0 && strcmp(settings->sparse_rule, "threshold") == 0;
    if (!settings->sparse_enabled || (exact && lists > settings->sparse_max_density))
        return 1;
    if (lists <= 0 || lists > settings->sparse_max_density)
        lists = settings->sparse_max_density;
    return fmin(1, lists + (tail.chunk > 0 ? 1 / (double)(tail.chunk * tail.run) : 0));
}

double dsvi_sparse_feature_bytes(const DsvConfig *settings, int64_t head_dim)
{
    bool pooled = strcmp(settings->sparse_selector, "pooled") == 0;
    int64_t features = pooled ? head_dim : settings->sparse_rank;
    return (double)features * sizeof(float) /
           (double)(pooled ? settings->sparse_grain : settings->sparse_key_chunk);
}

/* Raises sparse.target_density to sparse.min_keys, and sparse.list_memory to what these lists need. */
static void allow_min_keys(DsviSparse *s)
{
    DsvConfig *settings = &s->settings;
    char line[320], dense[96] = "";
    double density = dsvi_sparse_list_density(settings, s->shape.tokens), keys = (double)s->shape.tokens;
    if (density <= settings->sparse_target_density)
        return;
    if (density > settings->sparse_max_density)
        snprintf(dense, sizeof dense,
                 "; blocks whose lists hold more than sparse.max_density, %g, stay dense",
                 settings->sparse_max_density);
    snprintf(line, sizeof line,
             "lists may hold %.0f of the %.0f keys, a fraction of %.3g: sparse.min_keys allows more than "
             "sparse.target_density, %g%s",
             density * keys, keys, density, settings->sparse_target_density, dense);
    settings->sparse_target_density = density;
    settings->sparse_list_memory = fmin(
        1,
        fmax(settings->sparse_list_memory, DSVI_SPARSE_SLACK * fmin(density, settings->sparse_max_density)));
    if (settings->sparse_enabled)
        dsvi_sparse_log_line(s, line);
}

DsvStatus dsvi_sparse_create(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                             DsviSparseLog *log, void *log_context, DsviSparse **out)
{
    DsvStatus status;
    DsviSparse *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for sparse attention");
    s->backend = backend;
    s->settings = *settings;
    s->shape = *shape;
    s->acc = shape->act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    s->log = log;
    s->log_context = log_context;
    s->tail = dsvi_sparse_tail_of(settings);
    if (shape->cp && dsvi_cp_ranks(shape->cp) > 1)
        s->cp = shape->cp;
    s->shape.cp = s->cp;
    s->samples = settings->sparse_profile_samples < shape->tokens ? settings->sparse_profile_samples
                                                                  : shape->tokens;
    s->listed_block = s->room_block = s->scored_block = -1;
    s->resident[0] = s->resident[1] = s->arriving = -1;
    s->predictor_loss = NAN;
    DSVI_TRY_GOTO(status, sparse_check(settings, shape), fail);
    allow_min_keys(s);
    DSVI_TRY_GOTO(status, dsvi_sparse_allocate_host(s), fail);
    DSVI_TRY_GOTO(status, dsvi_order_make(settings->sparse_order, shape->grid, s->order), fail);
    if (settings->sparse_enabled)
        DSVI_TRY_GOTO(status, dsvi_selector_create(backend, &s->settings, &s->shape, &s->selector), fail);
    dsvi_sparse_restart(s);
    if (s->selector)
        init_lists(s);
    if (s->cp) /* context-parallel ranks decide together; dsvi_sparse_set_comm may add other ranks later */
        dsvi_sparse_set_comm(s, dsvi_cp_group_host(dsvi_cp_group(s->cp)),
                             dsvi_cp_group_device(dsvi_cp_group(s->cp)));
    *out = s;
    return DSV_OK;
fail:
    dsvi_sparse_free(&s);
    return status;
}

void dsvi_sparse_free(DsviSparse **sparse)
{
    DsviSparse *s = *sparse;
    if (!s)
        return;
    if (s->host_spans) /* the caller may free host_spans next: pending copies must not use this memory any
                        * more */
        s->backend->device->sync(s->backend->device->copies);
    if (!s->borrows)
        dsvi_selector_free(&s->selector);
    if (s->host_memory)
        s->backend->device->host_free(s->backend->device, s->host_memory);
    free(s);
    *sparse = NULL;
}

DsvStatus dsvi_sparse_share(DsviSparse *s, const DsviSparse *owner)
{
    if (!s->selector)
        return DSV_OK;
    if (!dsvi_selector_is_shared(s->selector) && strcmp(s->settings.sparse_selector, "predictor") == 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "sparse.selector is predictor, which learns from clips of one size, "
                         "and data.buckets has several: expected another selector");
    if (!dsvi_selector_is_shared(s->selector))
        return DSV_OK;
    dsvi_selector_free(&s->selector);
    dsvi_selector_reserve(owner->selector, &s->shape);
    s->selector = owner->selector;
    s->borrows = true;
    return DSV_OK;
}
