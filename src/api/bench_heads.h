/* For benchmarks of attention: queries, keys and values, of a file or random, and settings of their lists. */
#ifndef DSVI_BENCH_HEADS_H
#define DSVI_BENCH_HEADS_H

#include "base/dtype.h"
#include "base/safetensors.h"
#include "dsv/bench.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvBenchTensor { DSV_BENCH_Q, DSV_BENCH_K, DSV_BENCH_V, DSV_BENCH_DOUT } DsvBenchTensor;

typedef struct DsvBenchHeads {
    int64_t tokens, heads, head_dim; /* S, N, D */
    int64_t grid[3];                 /* of the tokens: frames, rows, columns */
    DsvSafetensors *file;            /* NULL: random */
} DsvBenchHeads;

/* Opens the file heads_from with q, k and v (heads, tokens, head_dim), and metadata grid, FxHxW, where tokens
 * lie on one. Of more heads than there are the first ones come again; more tokens, a multiple of the file's,
 * are the clip again, later in time. */
DsvStatus dsvi_bench_heads_open(const DsvBenchLists *lists, DsvBenchHeads *heads);
void dsvi_bench_heads_close(DsvBenchHeads *heads); /* takes zeros */

/* Tokens [first, first + count) of a tensor, (count, N, D) act, to host memory. order (S): the place of each
 * token in the grid, row by row. dout is always random. */
void dsvi_bench_heads_fill(const DsvBenchHeads *heads, DsvBenchTensor tensor, uint64_t seed,
                           const int32_t *order, int64_t first, int64_t count, DsvDtype act, void *host);

enum { DSV_BENCH_REPEATS_MOST = 64 };

DsvBenchLists dsvi_bench_lists_defaults(void);
/* DSV_E_USAGE where a number is out of its bounds, or lists are not wanted. */
DsvStatus dsvi_bench_lists_check(const DsvBenchLists *lists, const DsvConfig *settings);
/* Selector, group, grain and density become settings; no mass is aimed at, nothing timed at start-up,
 * there is room for all lists, and they stay on the device. */
DsvStatus dsvi_bench_lists_set(DsvConfig *settings, const DsvBenchLists *lists);

/* "bf16" or "f32". */
DsvStatus dsvi_bench_dtype(const char *name, DsvDtype *dtype);
/* One assignment, key=value. */
DSVI_PRINTF(2, 3) DsvStatus dsvi_bench_set(DsvConfig *settings, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
