/* What all selectors have in common: the choice by name, memory for features, views, drawing queries. */
#include "sparse/selector.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

DsvStatus dsvi_selector_create(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               DsvSelector **out)
{
    static const DsvSelectorType *const types[] = {
        &dsvi_selector_projection, &dsvi_selector_predictor, &dsvi_selector_pooled, &dsvi_selector_window,
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
        (*out)->tokens = shape->context ? dsvi_context_tokens(shape->context) : shape->tokens;
        (*out)->first = shape->context ? dsvi_context_first(shape->context) : 0;
        (*out)->context_ranks = shape->context ? dsvi_context_ranks(shape->context) : 1;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_USAGE, "sparse.selector '%s' is unknown: projection, predictor, pooled or window",
                     settings->sparse_selector);
}

void dsvi_selector_free(DsvSelector **selector)
{
    if (*selector)
        (*selector)->type->free(*selector);
    *selector = NULL;
}

static size_t feature_bytes(const DsvSelector *s, int64_t tokens_each)
{
    int64_t rows = (s->tokens + tokens_each - 1) / tokens_each;
    return (size_t)(s->shape.batch * s->shape.heads * rows * s->features.features) * sizeof(float);
}

void dsvi_selector_carve(DsvSelector *s, DsvArena *arena)
{
    DsvFeatures *f = &s->features;
    f->proxies = dsvi_arena_take(arena, DSV_MEM_SCRATCH, feature_bytes(s, f->chunk));
    f->candidates = dsvi_arena_take(arena, DSV_MEM_SCRATCH, feature_bytes(s, f->candidate_keys));
    if (s->type->carve)
        s->type->carve(s, arena);
}

DsvStatus dsvi_selector_setup(DsvSelector *s)
{
    return s->type->setup ? s->type->setup(s) : DSV_OK;
}

DsvStatus dsvi_selector_step_begin(DsvSelector *s, int64_t step, bool train)
{
    s->step = step;
    s->train = train;
    return s->type->step_begin ? s->type->step_begin(s) : DSV_OK;
}

bool dsvi_selector_learns(const DsvSelector *s)
{
    return s->type->learn && s->train && s->shape.backward;
}

DsvStatus dsvi_selector_look(DsvSelector *s, int64_t block, const DsvSparseAttention *args,
                             const DsvSparseScored *scored, bool estimate)
{
    DSVI_TRY(s->type->look(s, block, args, estimate));
    return dsvi_selector_learns(s) ? s->type->learn(s, block, args, scored) : DSV_OK;
}

DsvStatus dsvi_selector_step_end(DsvSelector *s, const int32_t *sparse, double *loss)
{
    *loss = NAN;
    return s->type->step_end ? s->type->step_end(s, sparse, loss) : DSV_OK;
}

void dsvi_selector_state(DsvSelector *s, DsvStateList *list)
{
    if (s->type->state)
        s->type->state(s, list);
}

DsvStatus dsvi_selector_restored(DsvSelector *s)
{
    return s->type->restored ? s->type->restored(s) : DSV_OK;
}

DsvStatus dsvi_selector_features(const DsvSelector *s, DsvDtype dtype, DsvHeads rows, int64_t dim,
                                 int64_t tokens_each, const float *projection, float *out)
{
    DsvSelectFeaturesArgs args = {
        .batch = s->shape.batch, .heads = s->shape.heads, .tokens = s->tokens, .dim = dim,
        .chunk = tokens_each, .features = s->features.features, .act = dtype, .x = rows,
        .projection = projection, .y = out,
    };
    return s->backend->ops.select_features.run(s->backend->device->stream, &args);
}

void dsvi_draw_queries(uint64_t seed, int64_t step, int64_t block, DsvDraw use, int64_t tokens, int64_t count,
                       int32_t *query)
{
    DsvRng rng = {seed, DSV_RNG_PROFILE, (uint32_t)step};
    for (int64_t i = 0; i < count; i++) {
        int64_t begin = i * tokens / count, end = (i + 1) * tokens / count;
        uint64_t index = ((uint64_t)(block * DSV_DRAW_COUNT + (int64_t)use) << 32) + (uint64_t)i;
        query[i] = (int32_t)(begin + (int64_t)dsvi_rng_below(rng, index, (uint64_t)(end - begin)));
    }
}

/* They ascend, so that a view's are neighbours. */
int64_t dsvi_keep_queries(const DsvSparseView *view, int64_t count, int32_t *query)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (query[i] >= view->first && query[i] < view->first + view->queries)
            query[kept++] = (int32_t)(query[i] - view->first);
    return kept;
}

DsvSparseView dsvi_sparse_view_of(const DsvSparseShape *shape, int64_t block)
{
    if (!shape->context)
        return (DsvSparseView){.queries = shape->tokens, .heads = shape->heads};
    DsvContextPart part = dsvi_context_part(shape->context, block);
    return (DsvSparseView){part.first, part.tokens, part.heads, part.head, part.sequence_ranks > 1};
}
