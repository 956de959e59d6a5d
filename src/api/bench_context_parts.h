/* What the files of dsv_bench_context share.
 *
 * bench_context.c        what is measured, in turns, and the report
 * bench_context_setup.c  settings, layers, memory
 * bench_context_rows.c   whether all choices compute the same
 * bench_context_keys.c   attention that gathers all keys, and what travels of all keys or of listed ones
 * head_sparsity.c        sparsities of heads as text */
#ifndef DSVI_BENCH_CONTEXT_PARTS_H
#define DSVI_BENCH_CONTEXT_PARTS_H

#include "api/bench_heads.h"
#include "context/rows_exchange.h"
#include "dsv/bench.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention whose keys and values are all gathered, and kept from the forward to the backward pass. All
 * (S, N, D) act, but for what others send. */
typedef struct DsvAllKeys {
    void *k, *v, *dk, *dv;
    void *received;        /* (ranks, own tokens, N, D) act: gradients of the own keys */
    void *workspace;
    size_t workspace_bytes;
} DsvAllKeys;

/* Rows that lists name (context/rows_exchange.h). */
typedef struct DsvListedKeys {
    DsvRowsMemory memory;
    void *host_first;
    DsvLists near, far;
    void *compact;
    DsvRowsExchange exchange;
} DsvListedKeys;

typedef struct DsvContextBench {
    DsvBenchContext wanted;
    DsvConfig settings;
    DsvComm *comm;
    DsvBackend backend;
    DsvDtype act;
    DsvBenchHeads heads;
    double *density;       /* (N) of its lists, as prescribed; then of those that were made */
    DsvContextGroup *group;
    DsvContext *context;
    DsvSparseShape shape;
    DsvSparse *sparse;
    void *memory, *more;   /* the second once there are lists */
    DsvSparseAttention pass; /* own tokens, (1, S_own, N, D) act */
    DsvAllKeys all;
    DsvListedKeys listed;
} DsvContextBench;

/* head_sparsity.c: density (heads) = 1 - sparsity of each, from a list of numbers or a JSON file of one. */
DsvStatus dsvi_head_sparsity_read(const char *text, int64_t heads, double *density);

/* bench_context_setup.c: all but `more`; to be closed even after failure. The tensors are filled. */
DsvStatus dsvi_context_bench_open(DsvComm *comm, const DsvBenchContext *wanted, const DsvConfig *given,
                                  DsvContextBench *bench);
void dsvi_context_bench_close(DsvContextBench *bench);

/* bench_context_rows.c: the first rows of out, dq, dk and dv, so many numbers; and how far two choices are
 * apart, in the tensor where it is most, over its length. */
size_t dsvi_context_bench_rows_count(const DsvContextBench *bench);
DsvStatus dsvi_context_bench_rows(const DsvContextBench *bench, float *rows);
double dsvi_context_bench_off(const DsvContextBench *bench, const float *rows, const float *others);

/* bench_context_keys.c. The plan divides the tokens alone, and lists have been made under it. */
DsvStatus dsvi_context_bench_keys_open(DsvContextBench *bench);
DsvStatus dsvi_all_keys_forward(DsvContextBench *bench);
DsvStatus dsvi_all_keys_backward(DsvContextBench *bench);
/* What travels, without attention: all keys and values there; gradients of all of them back. */
DsvStatus dsvi_all_keys_gather(DsvContextBench *bench);
DsvStatus dsvi_all_keys_home(DsvContextBench *bench);
/* The same of listed ones: marks, rows, gradients. Marks come first. */
DsvStatus dsvi_listed_keys_mark(DsvContextBench *bench);
DsvStatus dsvi_listed_keys_fetch(DsvContextBench *bench);
DsvStatus dsvi_listed_keys_home(DsvContextBench *bench);

#ifdef __cplusplus
}
#endif
#endif
