/* A yardstick: the fixed 3-D window. Each group attends to the keys nearest to it in space and time, whatever
 * they hold. One frame counts as one patch of distance. Made for sparse.rule=topk.
 *
 * A proxy stands at m, the mean position of its chunk, a candidate at its own position p, and
 *     (2 m, -1) . (p, |p|^2) = |m|^2 - |m - p|^2,
 * of which the softmax loses |m|^2: the score is minus the squared distance. Positions count from the middle
 * of the grid, where their squares, and with them the rounding, are smallest. */
#include <stdlib.h>

#include "sparse/order.h"
#include "sparse/selector.h"

enum { FEATURES = 4 };

/* Score between the ends of the grid's diagonal: the window is as sharp as estimates, exponentials of the
 * scores in F32, can be without vanishing at the far end. */
#define RANGE 60.0

static DsvStatus create(const DsvConfig *settings, const DsvSparseShape *shape, DsvSelector **out)
{
    double diagonal = 0;
    DsvSelector *s = calloc(1, sizeof *s);
    if (!s)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the window selector");
    for (int i = 0; i < 3; i++)
        diagonal += (double)((shape->grid[i] - 1) * (shape->grid[i] - 1));
    s->features.chunk = settings->sparse_chunk;
    s->features.candidate_keys = 1;
    s->features.features = FEATURES;
    s->features.coarse = false; /* squares of positions want every bit */
    s->features.scale = diagonal > 0 ? RANGE / diagonal : RANGE;
    *out = s;
    return DSV_OK;
}

static void release(DsvSelector *s)
{
    free(s);
}

/* (frame, row, column) of a token, from the middle of the grid. */
static void locate(const int64_t grid[3], int64_t raster, double at[3])
{
    for (int i = 2; i >= 0; i--) {
        at[i] = (double)(raster % grid[i]) - (double)(grid[i] - 1) / 2;
        raster /= grid[i];
    }
}

/* `order` begins with the own tokens, as below. */
static void put_candidates(const DsvSelector *s, const int32_t *order, float *out)
{
    for (int64_t token = 0; token < s->tokens; token++) {
        double at[3], square = 0;
        locate(s->shape.grid, order[token], at);
        for (int i = 0; i < 3; i++) {
            out[token * FEATURES + i] = (float)at[i];
            square += at[i] * at[i];
        }
        out[token * FEATURES + 3] = (float)square;
    }
}

static void put_proxies(const DsvSelector *s, const int32_t *order, int64_t chunk, float *out)
{
    for (int64_t first = 0; first < s->tokens; first += chunk) {
        int64_t end = first + chunk < s->tokens ? first + chunk : s->tokens;
        double at[3], sum[3] = {0};
        float *row = out + first / chunk * FEATURES;
        for (int64_t token = first; token < end; token++) {
            locate(s->shape.grid, order[token], at);
            for (int i = 0; i < 3; i++)
                sum[i] += at[i];
        }
        for (int i = 0; i < 3; i++)
            row[i] = (float)(2 * sum[i] / (double)(end - first));
        row[3] = -1;
    }
}

/* The same rows for every (batch, head). */
static DsvStatus upload(const DsvSelector *s, const float *rows, int64_t count, float *features)
{
    DsvDevice *device = s->backend->device;
    for (int64_t pair = 0; pair < s->shape.batch * s->shape.heads; pair++)
        DSVI_TRY(device->upload(device->stream, features + pair * count * FEATURES, rows,
                                (size_t)(count * FEATURES) * sizeof *rows));
    return device->sync(device->stream);
}

/* Nothing changes afterwards. */
static DsvStatus setup(DsvSelector *s)
{
    DsvStatus status;
    const DsvFeatures *f = &s->features;
    int64_t tokens = s->tokens;
    int32_t *order = malloc((size_t)s->shape.tokens * sizeof *order);
    float *rows = malloc((size_t)(tokens * FEATURES) * sizeof *rows);
    if (!order || !rows) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the positions of %lld tokens", (long long)tokens);
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_order_make(s->settings->sparse_order, s->shape.grid, order), done);
    put_candidates(s, order + s->first, rows);
    DSVI_TRY_GOTO(status, upload(s, rows, tokens, f->candidates), done);
    put_proxies(s, order + s->first, f->chunk, rows);
    DSVI_TRY_GOTO(status, upload(s, rows, (tokens + f->chunk - 1) / f->chunk, f->proxies), done);
done:
    free(order);
    free(rows);
    return status;
}

static DsvStatus look(DsvSelector *s, int64_t block, const DsvSparseAttention *args, bool estimate)
{
    (void)s, (void)block, (void)args, (void)estimate;
    return DSV_OK;
}

const DsvSelectorType dsvi_selector_window = {
    .name = "window", .create = create, .free = release, .setup = setup, .look = look,
};
