/* For benchmarks of attention: queries, keys and values, from a file or random, and options of the key
 * lists. */
#ifndef DSVI_BENCH_HEADS_H
#define DSVI_BENCH_HEADS_H

#include "base/dtype.h"
#include "base/safetensors.h"
#include "dsv/bench.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviBenchTensor { DSVI_BENCH_Q, DSVI_BENCH_K, DSVI_BENCH_V, DSVI_BENCH_DOUT } DsviBenchTensor;

typedef struct DsviBenchHeads {
    int64_t tokens, heads, head_dim; /* S, N, D */
    int64_t grid[3];                 /* grid of the tokens: frames, rows, columns */
    DsviSafetensors *file;           /* q, k and v; NULL: random numbers */
} DsviBenchHeads;

/* Sets the sizes of *heads from `lists`. If lists->heads_from is set, opens the file of this name, which
 * holds q, k and v (heads, tokens, head_dim) and may have metadata "grid" (FxHxW, the grid of the tokens). If
 * more heads are requested than the file has, its heads are repeated. If more tokens are requested (a
 * multiple of the file's), the clip is repeated in time. */
DsvStatus dsvi_bench_heads_open(const DsvBenchLists *lists, DsviBenchHeads *heads);
void dsvi_bench_heads_close(DsviBenchHeads *heads); /* accepts a zeroed struct */

/* Arguments of dsvi_bench_heads_fill. */
typedef struct DsviBenchFill {
    const DsviBenchHeads *heads;
    DsviBenchTensor tensor;
    uint64_t seed;        /* seed of the random numbers */
    const int32_t *order; /* (S) index in the grid (raster order) of each token */
    int64_t first, count; /* tokens [first, first + count) are written */
    DsviDtype act;        /* activation dtype */
    void *host;           /* (count, N, D) of dtype `act`, host memory */
} DsviBenchFill;

/* Writes a range of tokens of a tensor to host memory. dout is always random. */
void dsvi_bench_heads_fill(const DsviBenchFill *fill);

enum { DSVI_BENCH_REPEATS_MAX = 64 };

DsvBenchLists dsvi_bench_lists_defaults(void);
/* Returns DSV_E_USAGE if a number is out of bounds, if the selector is the predictor, or if sparse.enabled is
 * false. */
DsvStatus dsvi_bench_lists_check(const DsvBenchLists *lists, const DsvConfig *settings);
/* Copies to `settings` those of selector, group, grain and density that `lists` has. Also sets `settings` so
 * that lists have no target mass (fraction of attention to reach), no costs are measured at start-up, memory
 * suffices for the lists of all steps, and lists stay on the device. */
DsvStatus dsvi_bench_lists_set(DsvConfig *settings, const DsvBenchLists *lists);

/* Sets *dtype from its name "bf16" or "f32". Other names are DSV_E_USAGE. */
DsvStatus dsvi_bench_dtype(const char *name, DsviDtype *dtype);
/* Formats an assignment key=value and applies it to `settings`. */
DSVI_PRINTF(2, 3) DsvStatus dsvi_bench_set(DsvConfig *settings, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
