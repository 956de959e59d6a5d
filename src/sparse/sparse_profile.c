/* Measures what fraction of attention the key lists really hold, and how much attention over lists and tail
 * differs from exact attention, on sampled queries of each block; and updates running means of both over
 * measuring steps. */
#include <math.h>

#include "sparse/sparse_internal.h"

#define SHARE_OF_MASS 0.9 /* share90: fraction of keys that holds this fraction of a query's attention */
#define MISSED_MIN 1e-4   /* smallest (1 - estimated mass) that is reliable enough to divide by */

static int64_t results_of_block(const DsviSparse *s)
{
    return s->shape.batch * s->shape.heads * s->samples;
}

static DsviProfileArgs sparse_profile_args(const DsviSparse *s, const DsviSparseView *view, int64_t block,
                                           double scale, const DsviSparseScored *scored)
{
    const DsviSparseShape *shape = &s->shape;
    return (DsviProfileArgs){
        .batch = shape->batch,
        .heads = view->heads,
        .queries = view->queries,
        .keys = shape->tokens,
        .head_dim = shape->head_dim,
        .scale = scale,
        .mass = SHARE_OF_MASS,
        .act = shape->act,
        .q = scored->q,
        .k = scored->k,
        .samples = s->samples,
        .sample = s->sample + block * s->samples,
        .captured = s->captured + block * results_of_block(s),
        .share90 = s->share90 + block * results_of_block(s),
        .listed = s->listed + block * results_of_block(s),
        .workspace = s->workspace,
        .workspace_bytes = s->workspace_bytes,
    };
}

static DsviAttentionErrorArgs output_error_args(const DsviSparse *s, int64_t block,
                                                const DsviProfileArgs *profile, DsviHeads v)
{
    return (DsviAttentionErrorArgs){
        .batch = profile->batch,
        .heads = profile->heads,
        .queries = profile->queries,
        .keys = profile->keys,
        .head_dim = profile->head_dim,
        .scale = profile->scale,
        .act = profile->act,
        .q = profile->q,
        .k = profile->k,
        .v = v,
        .lists = profile->lists,
        .chunk = s->tail.chunk,
        .run = s->tail.run,
        .samples = profile->samples,
        .sample = profile->sample,
        .error = s->error + block * results_of_block(s),
        .norm = s->norm + block * results_of_block(s),
        .workspace = s->workspace,
        .workspace_bytes = s->workspace_bytes,
    };
}

size_t dsvi_sparse_profile_workspace(const DsviSparse *s, const DsviSparseView *view)
{
    const DsviSparseScored nothing = {0};
    DsviProfileArgs args = sparse_profile_args(s, view, 0, 1, &nothing);
    DsviLists lists = {.capacity = s->spans_max};
    dsvi_sparse_shape_lists(s, view, &lists);
    args.lists = &lists;
    DsviAttentionErrorArgs error = output_error_args(s, 0, &args, (DsviHeads){0});
    size_t mass = DSVI_OP_WORKSPACE(s->backend->ops.profile, s->backend->device->stream, &args);
    size_t output = DSVI_OP_WORKSPACE(s->backend->ops.attention_error, s->backend->device->stream, &error);
    return (view->divided && s->tail.chunk == 0) || mass > output ? mass : output;
}

/* Draws from all tokens the queries on which the block's lists are compared with exact attention, and
 * keeps the queries whose attention this rank computes. */
static void draw_samples(DsviSparse *s, int64_t block)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    int32_t *sample = s->host_sample + block * s->samples;
    dsvi_draw_queries((uint64_t)s->settings.seed, s->step, block, DSVI_DRAW_PROFILE, s->shape.tokens,
                      s->samples, sample);
    s->block[block].sample_count = dsvi_keep_queries(&view, s->samples, sample);
}

DsvStatus dsvi_sparse_profile_begin(DsviSparse *s)
{
    DsviDevice *device = s->backend->device;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        draw_samples(s, block);
    return device->upload(device->stream, s->sample, s->host_sample,
                          (size_t)(s->shape.blocks * s->samples) * sizeof(int32_t));
}

DsvStatus dsvi_sparse_profile_pass(DsviSparse *s, int64_t block, double scale, const DsviSparseScored *scored)
{
    DsviSparseBlock *b = &s->block[block];
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviProfileArgs args = sparse_profile_args(s, &view, block, scale, scored);
    args.lists = b->fit ? &b->lists : NULL;
    args.samples = b->sample_count;
    b->measured = true;
    b->measured_fit = b->fit;
    b->measured_density = s->record.density[block];
    b->measured_mass = s->record.estimated_mass[block];
    b->measured_error = scored->v.data && b->fit;
    if (args.samples == 0)
        return DSV_OK;
    DsviAttentionErrorArgs error = output_error_args(s, block, &args, scored->v);
    DSVI_TRY(s->backend->ops.profile.run(s->backend->device->stream, &args));
    return b->measured_error ? s->backend->ops.attention_error.run(s->backend->device->stream, &error)
                             : DSV_OK;
}

static double blend(double old, double sample, double weight_of_old)
{
    return isnan(old) ? sample : weight_of_old * old + (1 - weight_of_old) * sample;
}

/* Returns the weight of the old value in running means. */
static double weight_of_old(const DsviSparse *s)
{
    return s->record.measured_step[0] < 0 ? 0 : s->settings.sparse_profile_ema;
}

/* Writes to `means` (N) this rank's part of one measured quantity of a block, from `results` (B, N_local,
 * samples). The part is scaled so that the later mean over ranks (sparse_share.c) is the mean over all
 * samples, also if context-parallel ranks measured different heads or queries. */
static void head_means(const DsviSparse *s, int64_t block, const float *results, double *means)
{
    DsviSparseView view = dsvi_sparse_view(s, block);
    int64_t count = s->block[block].sample_count, ranks = s->cp ? dsvi_cp_ranks(s->cp) : 1;
    for (int64_t h = 0; h < s->shape.heads; h++)
        means[h] = 0;
    for (int64_t h = 0; h < view.heads; h++) {
        double sum = 0;
        for (int64_t b = 0; b < s->shape.batch; b++)
            for (int64_t i = 0; i < count; i++)
                sum += results[(b * view.heads + h) * count + i];
        means[view.head ? view.head[h] : h] = (double)ranks * sum / (double)(s->shape.batch * s->samples);
    }
}

static void update_head_means(const DsviSparse *s, const double *sample, float *heads)
{
    for (int64_t h = 0; h < s->shape.heads; h++)
        heads[h] = (float)blend(heads[h], sample[h], weight_of_old(s));
}

/* Updates the running means of one measured quantity of a block with a new measurement `sample` (N), one
 * value per head: the running means `heads` of the heads, and *block from the mean of the heads. Returns
 * the mean of the heads. */
static double update_means(const DsviSparse *s, const double *sample, float *heads, double *block)
{
    double weight = weight_of_old(s), mean = 0;
    update_head_means(s, sample, heads);
    for (int64_t h = 0; h < s->shape.heads; h++)
        mean += sample[h] / (double)s->shape.heads;
    *block = blend(*block, mean, weight);
    return mean;
}

/* Updates the running mean of how much more of the attention the block's lists missed than the selector
 * estimated. */
static void update_missed(const DsviSparse *s, int64_t block, double captured)
{
    double *missed = &s->record.missed[block], estimated = 1 - s->block[block].measured_mass;
    if (estimated > MISSED_MIN)
        *missed = blend(*missed, (1 - captured) / estimated, weight_of_old(s));
}

/* Updates the running means of the block's output error. */
static void update_error(const DsviSparse *s, int64_t block)
{
    double *error = dsvi_sparse_seen_error(s, block);
    const double *norm = dsvi_sparse_seen_norm(s, block);
    for (int64_t h = 0; h < s->shape.heads; h++) /* of two outputs of zeros the relative error is 0 */
        error[h] = norm[h] > 0 || !(error[h] <= 0) ? sqrt(error[h] / norm[h]) : 0;
    update_means(s, error, s->record.head_error + block * s->shape.heads, &s->record.error[block]);
}

DsvStatus dsvi_sparse_profile_read(DsviSparse *s)
{
    DsviDevice *device = s->backend->device;
    int64_t results = results_of_block(s);
    size_t bytes = (size_t)(s->shape.blocks * results) * sizeof(float);
    DSVI_TRY(device->download(device->stream, s->host_captured, s->captured, bytes));
    DSVI_TRY(device->download(device->stream, s->host_share90, s->share90, bytes));
    DSVI_TRY(device->download(device->stream, s->host_listed, s->listed, bytes));
    DSVI_TRY(device->download(device->stream, s->host_error, s->error, bytes));
    DSVI_TRY(device->download(device->stream, s->host_norm, s->norm, bytes));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        head_means(s, block, s->host_captured + block * results, dsvi_sparse_seen_captured(s, block));
        head_means(s, block, s->host_share90 + block * results, dsvi_sparse_seen_share90(s, block));
        head_means(s, block, s->host_listed + block * results, dsvi_sparse_seen_listed(s, block));
        head_means(s, block, s->host_error + block * results, dsvi_sparse_seen_error(s, block));
        head_means(s, block, s->host_norm + block * results, dsvi_sparse_seen_norm(s, block));
    }
    return DSV_OK;
}

/* Marks what lists of a block hold, and their output error, as not measured. */
static void forget_lists(DsviSparseRecord *record, int64_t block, int64_t heads)
{
    record->captured[block] = record->missed[block] = record->error[block] = NAN;
    for (int64_t h = block * heads; h < (block + 1) * heads; h++)
        record->head_captured[h] = record->head_error[h] = NAN;
}

void dsvi_sparse_profile_end(DsviSparse *s)
{
    DsviSparseRecord *record = &s->record;
    int64_t heads = s->shape.heads;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        const DsviSparseBlock *b = &s->block[block];
        if (!b->measured)
            continue;
        update_means(s, dsvi_sparse_seen_share90(s, block), record->head_share90 + block * heads,
                     &record->share90[block]);
        update_head_means(s, dsvi_sparse_seen_listed(s, block), record->head_listed + block * heads);
        record->listed[block] = blend(record->listed[block], b->measured_density, weight_of_old(s));
        if (record->measured_step[0] < 0 && !b->measured_fit)
            forget_lists(record, block, heads);
        if (b->measured_fit && b->measured_error)
            update_error(s, block);
        if (b->measured_fit) /* lists that do not fit are empty: the attention that they hold means nothing */
            update_missed(s, block,
                          update_means(s, dsvi_sparse_seen_captured(s, block),
                                       record->head_captured + block * heads, &record->captured[block]));
    }
}
