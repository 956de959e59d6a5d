/* What the lists really hold: exact attention of sampled queries, block by block, kept as running means. */
#include <math.h>

#include "sparse/sparse_internal.h"

#define SHARE_OF_MASS 0.9
#define LEAST_MISSED 1e-4 /* of which a ratio is worth something */

static int64_t results_of_block(const DsvSparse *s)
{
    return s->shape.batch * s->shape.heads * s->samples;
}

static DsvProfileArgs profile_args(const DsvSparse *s, const DsvSparseView *view, int64_t block, double scale,
                                   const DsvSparseScored *scored)
{
    const DsvSparseShape *shape = &s->shape;
    return (DsvProfileArgs){
        .batch = shape->batch, .heads = view->heads, .queries = view->queries, .keys = shape->tokens,
        .head_dim = shape->head_dim, .scale = scale, .mass = SHARE_OF_MASS, .act = shape->act,
        .q = dsvi_heads(scored->q, view->queries, view->heads, shape->head_dim),
        .k = dsvi_heads(scored->k, shape->tokens, view->heads, shape->head_dim),
        .samples = s->samples, .sample = s->sample + block * s->samples,
        .captured = s->captured + block * results_of_block(s),
        .share90 = s->share90 + block * results_of_block(s),
        .listed = s->listed + block * results_of_block(s),
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

size_t dsvi_sparse_profile_workspace(const DsvSparse *s, const DsvSparseView *view)
{
    const DsvSparseScored nothing = {0};
    DsvProfileArgs args = profile_args(s, view, 0, 1, &nothing);
    DsvLists lists = {.capacity = s->runs_most};
    dsvi_sparse_shape_lists(s, view, &lists);
    args.lists = &lists;
    return DSVI_OP_WORKSPACE(s->backend->ops.profile, s->backend->device->stream, &args);
}

/* Queries are drawn from all; a rank keeps those of its view. */
static void draw_samples(DsvSparse *s, int64_t block)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    int32_t *sample = s->host_sample + block * s->samples;
    dsvi_draw_queries((uint64_t)s->settings.seed, s->step, block, DSV_DRAW_PROFILE, s->shape.tokens,
                      s->samples, sample);
    s->block[block].sample_count = dsvi_keep_queries(&view, s->samples, sample);
}

DsvStatus dsvi_sparse_profile_begin(DsvSparse *s)
{
    DsvDevice *device = s->backend->device;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        draw_samples(s, block);
    return device->upload(device->stream, s->sample, s->host_sample,
                          (size_t)(s->shape.blocks * s->samples) * sizeof(int32_t));
}

DsvStatus dsvi_sparse_profile_pass(DsvSparse *s, int64_t block, double scale, const DsvSparseScored *scored)
{
    DsvSparseBlock *b = &s->block[block];
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvProfileArgs args = profile_args(s, &view, block, scale, scored);
    args.lists = b->fit ? &b->lists : NULL;
    args.samples = b->sample_count;
    b->measured = true;
    b->measured_fit = b->fit;
    b->measured_density = s->record.density[block];
    b->measured_mass = s->record.estimated_mass[block];
    return args.samples > 0 ? s->backend->ops.profile.run(s->backend->device->stream, &args) : DSV_OK;
}

static double blend(double old, double sample, double weight_of_old)
{
    return isnan(old) ? sample : weight_of_old * old + (1 - weight_of_old) * sample;
}

/* Into `means` (N) what this rank has of one quantity of a block, (B, N_own, samples), as its part in the
 * sums of all that share the samples; the mean over ranks makes means of these. */
static void head_means(const DsvSparse *s, int64_t block, const float *results, double *means)
{
    DsvSparseView view = dsvi_sparse_view(s, block);
    int64_t count = s->block[block].sample_count, ranks = s->context ? dsvi_context_ranks(s->context) : 1;
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

static void take_in_heads(const DsvSparse *s, const double *sample, float *heads)
{
    for (int64_t h = 0; h < s->shape.heads; h++)
        heads[h] = (float)blend(heads[h], sample[h], s->settings.sparse_profile_ema);
}

/* One quantity of one block: the heads' running means, then the block's, from the mean of the heads. Returns
 * that mean. */
static double take_in(const DsvSparse *s, const double *sample, float *heads, double *block)
{
    double weight = s->settings.sparse_profile_ema, mean = 0;
    take_in_heads(s, sample, heads);
    for (int64_t h = 0; h < s->shape.heads; h++)
        mean += sample[h] / (double)s->shape.heads;
    *block = blend(*block, mean, weight);
    return mean;
}

/* How far the selector was off, of lists that were measured. */
static void take_in_missed(const DsvSparse *s, int64_t block, double captured)
{
    double *missed = &s->record.missed[block], believed = 1 - s->block[block].measured_mass;
    if (believed > LEAST_MISSED)
        *missed = blend(*missed, (1 - captured) / believed, s->settings.sparse_profile_ema);
}

DsvStatus dsvi_sparse_profile_read(DsvSparse *s)
{
    DsvDevice *device = s->backend->device;
    int64_t results = results_of_block(s);
    size_t bytes = (size_t)(s->shape.blocks * results) * sizeof(float);
    DSVI_TRY(device->download(device->stream, s->host_captured, s->captured, bytes));
    DSVI_TRY(device->download(device->stream, s->host_share90, s->share90, bytes));
    DSVI_TRY(device->download(device->stream, s->host_listed, s->listed, bytes));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        head_means(s, block, s->host_captured + block * results, dsvi_sparse_seen_captured(s, block));
        head_means(s, block, s->host_share90 + block * results, dsvi_sparse_seen_share90(s, block));
        head_means(s, block, s->host_listed + block * results, dsvi_sparse_seen_listed(s, block));
    }
    return DSV_OK;
}

void dsvi_sparse_profile_end(DsvSparse *s)
{
    DsvSparseRecord *record = &s->record;
    int64_t heads = s->shape.heads;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        const DsvSparseBlock *b = &s->block[block];
        if (!b->measured)
            continue;
        take_in(s, dsvi_sparse_seen_share90(s, block), record->head_share90 + block * heads,
                &record->share90[block]);
        take_in_heads(s, dsvi_sparse_seen_listed(s, block), record->head_listed + block * heads);
        record->listed[block] = blend(record->listed[block], b->measured_density,
                                      s->settings.sparse_profile_ema);
        if (b->measured_fit) /* what did not fit has no mass to tell */
            take_in_missed(s, block, take_in(s, dsvi_sparse_seen_captured(s, block),
                                             record->head_captured + block * heads,
                                             &record->captured[block]));
    }
}
