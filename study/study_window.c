/* Lists are made on the host: each sampled query sorts all keys by distance. Interface: study_window.h. */
#include "study_window.h"

#include <stdlib.h>
#include <string.h>

typedef struct Near {
    int64_t distance; /* squared */
    int32_t key;
} Near;

static int by_distance(const void *a, const void *b)
{
    const Near *x = a, *y = b;
    if (x->distance != y->distance)
        return x->distance < y->distance ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

static int by_key(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static int64_t square(int64_t x)
{
    return x * x;
}

/* Writes the k keys nearest to `query` to `keys`, ascending. `scratch` has one entry per key. */
static void nearest(const int64_t grid[3], bool through_time, int64_t query, int64_t k, Near *scratch,
                    int32_t *keys)
{
    int64_t width = grid[2], frame = grid[1] * grid[2], tokens = grid[0] * frame;
    for (int64_t key = 0; key < tokens; key++) {
        int64_t frames = through_time ? key / frame - query / frame : 0;
        int64_t rows = key % frame / width - query % frame / width, columns = key % width - query % width;
        scratch[key] = (Near){square(frames) + square(rows) + square(columns), (int32_t)key};
    }
    qsort(scratch, (size_t)tokens, sizeof *scratch, by_distance);
    for (int64_t i = 0; i < k; i++)
        keys[i] = scratch[i].key;
    qsort(keys, (size_t)k, sizeof *keys, by_key);
}

/* Fills offsets (N * S + 1) and runs (N * samples * k). sampled[q] is nonzero for each query q that gets a
 * list; `scratch` has one entry per key. */
static void fill(const DsviSparseShape *shape, bool through_time, int64_t k, const unsigned char *sampled,
                 Near *scratch, int64_t *offsets, int32_t *runs)
{
    int64_t used = 0, tokens = shape->tokens;
    offsets[0] = 0;
    for (int64_t query = 0; query < tokens; query++) {
        if (sampled[query])
            nearest(shape->grid, through_time, query, k, scratch, runs + used);
        used += sampled[query] ? k : 0;
        offsets[query + 1] = used;
    }
    for (int64_t h = 1; h < shape->heads; h++) {
        memcpy(runs + h * used, runs, (size_t)used * sizeof *runs);
        for (int64_t query = 1; query <= tokens; query++)
            offsets[h * tokens + query] = h * used + offsets[query];
    }
}

DsvStatus study_window_lists(DsviDevice *device, const DsviSparseShape *shape, bool through_time,
                             double density, const int32_t *sample, int64_t samples, StudyBuffer *offsets,
                             StudyBuffer *runs, DsviLists *lists)
{
    DsvStatus status;
    int64_t tokens = shape->tokens, wanted = (int64_t)(density * (double)tokens + 0.5);
    int64_t k = wanted > 0 ? wanted : 1;
    size_t offset_bytes = (size_t)(shape->heads * tokens + 1) * sizeof(int64_t);
    size_t run_bytes = (size_t)(shape->heads * samples * k) * sizeof(int32_t);
    unsigned char *sampled = calloc((size_t)tokens, 1);
    Near *scratch = malloc((size_t)tokens * sizeof *scratch);
    int64_t *host_offsets = malloc(offset_bytes);
    int32_t *host_runs = malloc(run_bytes);
    if (!sampled || !scratch || !host_offsets || !host_runs) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for windows of %lld tokens", (long long)tokens);
        goto done;
    }
    for (int64_t i = 0; i < samples; i++)
        sampled[sample[i]] = 1;
    fill(shape, through_time, k, sampled, scratch, host_offsets, host_runs);
    DSVI_TRY_GOTO(status, study_buffer_reserve(device, offsets, offset_bytes), done);
    DSVI_TRY_GOTO(status, study_buffer_reserve(device, runs, run_bytes), done);
    DSVI_TRY_GOTO(status, device->upload(device->stream, offsets->memory, host_offsets, offset_bytes), done);
    DSVI_TRY_GOTO(status, device->upload(device->stream, runs->memory, host_runs, run_bytes), done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    *lists = (DsviLists){
        .batch = 1,
        .heads = shape->heads,
        .queries = tokens,
        .keys = tokens,
        .group = 1,
        .groups = tokens,
        .grain = 1,
        .capacity = shape->heads * samples * k,
        .offsets = offsets->memory,
        .spans = runs->memory,
    };
done:
    free(sampled);
    free(scratch);
    free(host_offsets);
    free(host_runs);
    return status;
}
