/* The window selector, for comparison: a fixed 3-D window. Each group attends to the keys that are nearest in
 * space and time, whatever q and k are. A distance of one frame counts like a distance of one patch inside a
 * frame. This selector is made for sparse.rule=topk.
 *
 * The position m of a proxy is the mean position of the queries that it stands for; p is the position of a
 * candidate key. With the features (2 m, -1) and (p, |p|^2) the score is
 *     (2 m, -1) . (p, |p|^2) = |m|^2 - |m - p|^2.
 * Softmax ignores |m|^2, which is the same for all candidates, so scores are negative squared distances.
 * Positions are measured from the centre of the grid, where their squares and rounding errors are
 * smallest. */
#include <stdlib.h>

#include "sparse/order.h"
#include "sparse/selector.h"

enum { FEATURES = 4 };

/* Difference of the scores of two keys at opposite corners of the token grid. Estimates of attention are
 * exponentials of scores in F32: with a larger difference the estimates of distant keys would underflow to
 * 0. */
#define RANGE 60.0

static DsvStatus selector_window_create(const DsvConfig *settings, const DsviSparseShape *shape,
                                        DsviSelector **out)
{
    double diagonal = 0;
    DsviSelector *s = calloc(1, sizeof *s);
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the window selector");
    for (int i = 0; i < 3; i++)
        diagonal += (double)((shape->grid[i] - 1) * (shape->grid[i] - 1));
    s->features.chunk = settings->sparse_chunk;
    s->features.candidate_keys = 1;
    s->features.features = FEATURES;
    s->features.coarse = false; /* squares of positions need full precision */
    s->features.scale = diagonal > 0 ? RANGE / diagonal : RANGE;
    *out = s;
    return DSV_OK;
}

static void selector_window_release(DsviSelector *s)
{
    free(s);
}

/* Computes the (frame, row, column) of a token relative to the centre of the grid. */
static void token_position(const int64_t grid[3], int64_t raster, double at[3])
{
    for (int i = 2; i >= 0; i--) {
        at[i] = (double)(raster % grid[i]) - (double)(grid[i] - 1) / 2;
        raster /= grid[i];
    }
}

/* Fills out (tokens, FEATURES) with the features of this rank's keys. `order` begins with this rank's
 * tokens. */
static void fill_candidates(const DsviSelector *s, const int32_t *order, float *out)
{
    for (int64_t token = 0; token < s->tokens; token++) {
        double at[3], square = 0;
        token_position(s->shape.grid, order[token], at);
        for (int i = 0; i < 3; i++) {
            out[token * FEATURES + i] = (float)at[i];
            square += at[i] * at[i];
        }
        out[token * FEATURES + 3] = (float)square;
    }
}

/* Fills out (ceil(tokens / chunk), FEATURES) with the features of this rank's chunks of queries. `order`
 * begins with this rank's tokens. */
static void fill_proxies(const DsviSelector *s, const int32_t *order, int64_t chunk, float *out)
{
    for (int64_t first = 0; first < s->tokens; first += chunk) {
        int64_t end = first + chunk < s->tokens ? first + chunk : s->tokens;
        double at[3], sum[3] = {0};
        float *row = out + first / chunk * FEATURES;
        for (int64_t token = first; token < end; token++) {
            token_position(s->shape.grid, order[token], at);
            for (int i = 0; i < 3; i++)
                sum[i] += at[i];
        }
        for (int i = 0; i < 3; i++)
            row[i] = (float)(2 * sum[i] / (double)(end - first));
        row[3] = -1;
    }
}

/* Uploads `count` rows of features, the same for each pair of sample and head. */
static DsvStatus upload_features(const DsviSelector *s, const float *rows, int64_t count, float *features)
{
    DsviDevice *device = s->backend->device;
    for (int64_t pair = 0; pair < s->shape.batch * s->shape.heads; pair++)
        DSVI_TRY(device->upload(device->stream, features + pair * count * FEATURES, rows,
                                (size_t)(count * FEATURES) * sizeof *rows));
    return device->sync(device->stream);
}

/* Uploads the features of queries and keys once, at setup: they are positions and do not depend on q and
 * k. */
static DsvStatus selector_window_setup(DsviSelector *s)
{
    DsvStatus status;
    const DsviFeatures *f = &s->features;
    int64_t tokens = s->tokens;
    int32_t *order = malloc((size_t)s->shape.tokens * sizeof *order);
    float *rows = malloc((size_t)(tokens * FEATURES) * sizeof *rows);
    if (!order || !rows) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the positions of %lld tokens", (long long)tokens);
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_order_make(s->settings->sparse_order, s->shape.grid, order), done);
    fill_candidates(s, order + s->first, rows);
    DSVI_TRY_GOTO(status, upload_features(s, rows, tokens, f->candidates), done);
    fill_proxies(s, order + s->first, f->chunk, rows);
    DSVI_TRY_GOTO(status, upload_features(s, rows, (tokens + f->chunk - 1) / f->chunk, f->proxies), done);
done:
    free(order);
    free(rows);
    return status;
}

static DsvStatus selector_window_observe(DsviSelector *s, int64_t block, const DsviAttentionCall *args,
                                         bool estimate)
{
    (void)s, (void)block, (void)args, (void)estimate;
    return DSV_OK;
}

const DsviSelectorType dsvi_selector_window = {
    .name = "window",
    .create = selector_window_create,
    .free = selector_window_release,
    .setup = selector_window_setup,
    .observe = selector_window_observe,
};
