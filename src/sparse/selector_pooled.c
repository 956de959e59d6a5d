/* The pooled selector, as in block-sparse methods: it scores the mean query of a group against the mean
 * key of a span. This selector exists for comparison with the other selectors. */
#include <stdlib.h>

#include "sparse/selector.h"

static DsvStatus selector_pooled_create(const DsvConfig *settings, const DsviSparseShape *shape,
                                        DsviSelector **out)
{
    DsviSelector *s = calloc(1, sizeof *s);
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pooled selector");
    s->features.chunk = settings->sparse_group;
    s->features.candidate_keys = settings->sparse_grain;
    s->features.features = shape->head_dim;
    s->features.coarse = true;
    *out = s;
    return DSV_OK;
}

static void selector_pooled_release(DsviSelector *s)
{
    free(s);
}

static DsvStatus selector_pooled_observe(DsviSelector *s, int64_t block, const DsviAttentionCall *args,
                                         bool estimate)
{
    const DsviSparseShape *shape = &s->shape;
    DsviFeatures *f = &s->features;
    (void)block;
    if (!estimate)
        return DSV_OK;
    f->scale = args->scale;
    DSVI_TRY(dsvi_selector_features(s, shape->act,
                                    dsvi_call_q(args, s->tokens, shape->heads, shape->head_dim),
                                    shape->head_dim, f->chunk, NULL, f->proxies));
    return dsvi_selector_features(s, shape->act, dsvi_call_k(args, s->tokens, shape->heads, shape->head_dim),
                                  shape->head_dim, f->candidate_keys, NULL, f->candidates);
}

const DsviSelectorType dsvi_selector_pooled = {
    .name = "pooled",
    .create = selector_pooled_create,
    .free = selector_pooled_release,
    .observe = selector_pooled_observe,
};
