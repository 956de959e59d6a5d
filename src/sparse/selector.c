/* Common parts of all selectors (which estimate attention to make key lists): creation by name, memory for
 * features, drawing of sampled queries, and the part of attention that a rank computes. */
#include "sparse/selector.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

DsvStatus dsvi_selector_create(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                               DsviSelector **out)
{
    static const DsviSelectorType *const types[] = {
        &dsvi_selector_projection,
        &dsvi_selector_predictor,
        &dsvi_selector_pooled,
        &dsvi_selector_window,
    };
    *out = NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(settings->sparse_selector, types[i]->name) != 0)
            continue;
        DSVI_TRY(types[i]->create(settings, shape, out));
        (*out)->type = types[i];
        (*out)->backend = backend;
        (*out)->settings = settings;
        (*out)->shape = *shape;
        (*out)->tokens = shape->cp ? dsvi_cp_tokens(shape->cp) : shape->tokens;
        (*out)->tokens_max = (*out)->tokens;
        (*out)->first = shape->cp ? dsvi_cp_first(shape->cp) : 0;
        (*out)->cp_ranks = shape->cp ? dsvi_cp_ranks(shape->cp) : 1;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_USAGE, "sparse.selector '%s' is unknown: projection, predictor, pooled or window",
                     settings->sparse_selector);
}

void dsvi_selector_free(DsviSelector **selector)
{
    if (*selector)
        (*selector)->type->free(*selector);
    *selector = NULL;
}

static size_t selector_feature_bytes(const DsviSelector *s, int64_t tokens_each)
{
    int64_t rows = (s->tokens_max + tokens_each - 1) / tokens_each;
    return (size_t)(s->shape.batch * s->shape.heads * rows * s->features.features) * sizeof(float);
}

void dsvi_selector_carve(DsviSelector *s, DsviArena *arena)
{
    DsviFeatures *f = &s->features;
    f->proxies = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, selector_feature_bytes(s, f->chunk));
    f->candidates = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, selector_feature_bytes(s, f->candidate_keys));
    if (s->type->carve)
        s->type->carve(s, arena);
}

bool dsvi_selector_is_shared(const DsviSelector *s)
{
    return s->type->shared;
}

void dsvi_selector_reserve(DsviSelector *s, const DsviSparseShape *shape)
{
    DSVI_ASSERT(!shape->cp && shape->batch == s->shape.batch);
    s->tokens_max = shape->tokens > s->tokens_max ? shape->tokens : s->tokens_max;
}

void dsvi_selector_use(DsviSelector *s, const DsviSparseShape *shape)
{
    DSVI_ASSERT(s->tokens == s->tokens_max || shape->tokens <= s->tokens_max);
    s->shape = *shape;
    if (!shape->cp)
        s->tokens = shape->tokens;
}

DsvStatus dsvi_selector_setup(DsviSelector *s)
{
    return s->type->setup ? s->type->setup(s) : DSV_OK;
}

DsvStatus dsvi_selector_step_begin(DsviSelector *s, int64_t step, bool train)
{
    s->step = step;
    s->train = train;
    return s->type->step_begin ? s->type->step_begin(s) : DSV_OK;
}

bool dsvi_selector_learns(const DsviSelector *s)
{
    return s->type->learn && s->train && s->shape.backward;
}

DsvStatus dsvi_selector_observe(DsviSelector *s, int64_t block, const DsviAttentionCall *args,
                                const DsviSparseScored *scored, bool estimate)
{
    DSVI_TRY(s->type->observe(s, block, args, estimate));
    return dsvi_selector_learns(s) ? s->type->learn(s, block, args, scored) : DSV_OK;
}

DsvStatus dsvi_selector_step_end(DsviSelector *s, const int32_t *sparse, double *loss)
{
    *loss = NAN;
    return s->type->step_end ? s->type->step_end(s, sparse, loss) : DSV_OK;
}

void dsvi_selector_state(DsviSelector *s, DsviStateList *list)
{
    if (s->type->state)
        s->type->state(s, list);
}

DsvStatus dsvi_selector_restored(DsviSelector *s)
{
    return s->type->restored ? s->type->restored(s) : DSV_OK;
}

void dsvi_selector_forget(DsviSelector *s)
{
    if (s->type->forget)
        s->type->forget(s);
}

DsvStatus dsvi_selector_features(const DsviSelector *s, DsviDtype dtype, DsviHeads rows, int64_t dim,
                                 int64_t tokens_each, const float *projection, float *out)
{
    DsviSelectFeaturesArgs args = {
        .batch = s->shape.batch,
        .heads = s->shape.heads,
        .tokens = s->tokens,
        .dim = dim,
        .chunk = tokens_each,
        .features = s->features.features,
        .act = dtype,
        .x = rows,
        .projection = projection,
        .y = out,
    };
    return s->backend->ops.select_features.run(s->backend->device->stream, &args);
}

void dsvi_draw_queries(uint64_t seed, int64_t step, int64_t block, DsviDraw use, int64_t tokens,
                       int64_t count, int32_t *query)
{
    DsviRng rng = {seed, DSVI_RNG_PROFILE, (uint32_t)step};
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = i * tokens / count, end = (i + 1) * tokens / count;
        uint64_t index = ((uint64_t)(block * DSVI_DRAW_COUNT + (int64_t)use) << 32) + (uint64_t)i;
        query[i] = (int32_t)(begin + (int64_t)dsvi_rng_below(rng, index, (uint64_t)(end - begin)));
    }
}

/* The sampled queries in `query` are in ascending order, so those that belong to the view (this rank's
 * range of queries) are adjacent, and moving them to the front keeps their order. */
int64_t dsvi_keep_queries(const DsviSparseView *view, int64_t count, int32_t *query)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (query[i] >= view->first && query[i] < view->first + view->queries)
            query[kept++] = (int32_t)(query[i] - view->first);
    return kept;
}

DsviSparseView dsvi_sparse_view_of(const DsviSparseShape *shape, int64_t block)
{
    if (!shape->cp)
        return (DsviSparseView){.queries = shape->tokens, .heads = shape->heads};
    DsviCpPart part = dsvi_cp_part(shape->cp, block);
    return (DsviSparseView){part.first, part.tokens, part.heads, part.head, part.sequence_ranks > 1};
}
