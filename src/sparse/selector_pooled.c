/* The rival: block-sparse methods score the mean query of a group against the mean key of a run. */
#include <stdlib.h>

#include "sparse/selector.h"

static DsvStatus create(const DsvConfig *settings, const DsvSparseShape *shape, DsvSelector **out)
{
    DsvSelector *s = calloc(1, sizeof *s);
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pooled selector");
    s->features.chunk = settings->sparse_group;
    s->features.candidate_keys = settings->sparse_grain;
    s->features.features = shape->head_dim;
    s->features.coarse = true;
    *out = s;
    return DSV_OK;
}

static void release(DsvSelector *s)
{
    free(s);
}

static DsvStatus look(DsvSelector *s, int64_t block, const DsvSparseAttention *args, bool estimate)
{
    const DsvSparseShape *shape = &s->shape;
    DsvFeatures *f = &s->features;
    (void)block;
    if (!estimate)
        return DSV_OK;
    f->scale = args->scale;
    DSVI_TRY(dsvi_selector_features(s, shape->act,
                                    dsvi_heads(args->q, s->tokens, shape->heads, shape->head_dim),
                                    shape->head_dim, f->chunk, NULL, f->proxies));
    return dsvi_selector_features(s, shape->act,
                                  dsvi_heads(args->k, s->tokens, shape->heads, shape->head_dim),
                                  shape->head_dim, f->candidate_keys, NULL, f->candidates);
}

const DsvSelectorType dsvi_selector_pooled = {
    .name = "pooled", .create = create, .free = release, .look = look,
};
