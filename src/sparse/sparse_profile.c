/* What the lists really hold: exact attention of sampled queries, block by block, kept as running means. */
#include <math.h>

#include "sparse/sparse_internal.h"

#define SHARE_OF_MASS 0.9
#define LEAST_MISSED 1e-4 /* of which a ratio is worth something */

static int64_t results_of_block(const DsvSparse *s)
{
    return s->shape.batch * s->shape.heads * s->samples;
}

static DsvProfileArgs profile_args(const DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    const DsvSparseShape *shape = &s->shape;
    return (DsvProfileArgs){
        .batch = shape->batch, .heads = shape->heads, .queries = shape->tokens, .keys = shape->tokens,
        .head_dim = shape->head_dim, .scale = pass->scale, .mass = SHARE_OF_MASS, .act = shape->act,
        .q = dsvi_heads(pass->q, shape->tokens, shape->heads, shape->head_dim),
        .k = dsvi_heads(pass->k, shape->tokens, shape->heads, shape->head_dim),
        .samples = s->samples, .sample = s->sample + block * s->samples,
        .captured = s->captured + block * results_of_block(s),
        .share90 = s->share90 + block * results_of_block(s), .listed = s->listed,
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

size_t dsvi_sparse_profile_workspace(const DsvSparse *s)
{
    const DsvSparseAttention nothing = {0};
    DsvProfileArgs args = profile_args(s, 0, &nothing);
    args.lists = &s->block[0].lists;
    return DSVI_OP_WORKSPACE(s->backend->ops.profile, s->backend->device->stream, &args);
}

DsvStatus dsvi_sparse_profile_begin(DsvSparse *s)
{
    DsvDevice *device = s->backend->device;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        dsvi_draw_queries((uint64_t)s->settings.seed, s->step, block, DSV_DRAW_PROFILE, s->shape.tokens,
                          s->samples, s->host_sample + block * s->samples);
    return device->upload(device->stream, s->sample, s->host_sample,
                          (size_t)(s->shape.blocks * s->samples) * sizeof(int32_t));
}

DsvStatus dsvi_sparse_profile_pass(DsvSparse *s, int64_t block, const DsvSparseAttention *pass)
{
    DsvSparseBlock *b = &s->block[block];
    DsvProfileArgs args = profile_args(s, block, pass);
    args.lists = b->fit ? &b->lists : NULL;
    b->measured = true;
    b->measured_fit = b->fit;
    b->measured_density = s->record.density[block];
    b->measured_mass = s->record.estimated_mass[block];
    return s->backend->ops.profile.run(s->backend->device->stream, &args);
}

static double blend(double old, double sample, double weight_of_old)
{
    return isnan(old) ? sample : weight_of_old * old + (1 - weight_of_old) * sample;
}

/* Mean of the results (B, N, samples) of head h. */
static double head_mean(const DsvSparse *s, const float *results, int64_t h)
{
    double sum = 0;
    for (int64_t b = 0; b < s->shape.batch; b++)
        for (int64_t i = 0; i < s->samples; i++)
            sum += results[(b * s->shape.heads + h) * s->samples + i];
    return sum / (double)(s->shape.batch * s->samples);
}

/* One quantity of one block: the heads' running means, then the block's, from the mean of the heads. Returns
 * that mean. */
static double take_in(const DsvSparse *s, const double *sample, float *heads, double *block)
{
    double weight = s->settings.sparse_profile_ema, mean = 0;
    for (int64_t h = 0; h < s->shape.heads; h++) {
        heads[h] = (float)blend(heads[h], sample[h], weight);
        mean += sample[h] / (double)s->shape.heads;
    }
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
    DSVI_TRY(device->sync(device->stream));
    for (int64_t block = 0; block < s->shape.blocks; block++)
        for (int64_t h = 0; h < s->shape.heads; h++) {
            dsvi_sparse_seen_captured(s, block)[h] = head_mean(s, s->host_captured + block * results, h);
            dsvi_sparse_seen_share90(s, block)[h] = head_mean(s, s->host_share90 + block * results, h);
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
        record->listed[block] = blend(record->listed[block], b->measured_density,
                                      s->settings.sparse_profile_ema);
        if (b->measured_fit) /* what did not fit has no mass to tell */
            take_in_missed(s, block, take_in(s, dsvi_sparse_seen_captured(s, block),
                                             record->head_captured + block * heads,
                                             &record->captured[block]));
    }
}
