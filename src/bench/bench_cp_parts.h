/* Declarations shared by the files of dsv_bench_context (include/dsv/bench.h).
 *
 *     bench_cp.c         measurements and report
 *     bench_cp_setup.c   options, sparse layer, memory, tensors
 *     bench_cp_rows.c    comparison of the results of all plans
 *     bench_cp_keys.c    attention with an all-gather of all keys; transfers of all keys and of listed keys
 *     head_sparsity.c    reads sparsities of heads from text */
#ifndef DSVI_BENCH_CP_PARTS_H
#define DSVI_BENCH_CP_PARTS_H

#include "bench/bench_heads.h"
#include "cp/rows_exchange.h"
#include "dsv/bench.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of attention for which each rank gathers all keys and values, and keeps them from the forward to the
 * backward pass. k, v, dk and dv are (S, N, D) in the activation dtype. */
typedef struct DsviAllKeys {
    void *k, *v, *dk, *dv;
    void *received; /* (ranks, tokens of this rank, N, D), activation dtype: gradients of this rank's keys
                     * from each rank */
    void *workspace;
    size_t workspace_bytes;
} DsviAllKeys;

/* Memory for the exchange of only those keys and values that key lists name (cp/rows_exchange.h). */
typedef struct DsviListedKeys {
    DsviRowsMemory memory;
    void *host_first; /* host memory to which memory.host_first points */
    /* near: the part of each list with this rank's keys; far: the part with other ranks' keys */
    DsviLists near, far;
    void *compact; /* fetched keys, then fetched values */
    DsviRowsExchange exchange;
} DsviListedKeys;

/* State of the benchmark on one rank. */
typedef struct DsviCpBench {
    DsvBenchContext options;
    DsvConfig settings;
    DsviComm *comm;
    DsviBackend backend;
    DsviDtype act;
    DsviBenchHeads heads;
    double *density; /* (N) density of each head's lists: first as prescribed, then as measured */
    DsviCpGroup *group;
    DsviCp *cp;
    DsviSparseShape shape;
    DsviSparse *sparse;
    void *memory;           /* device memory of dsvi_cp_bench_open */
    void *more;             /* device memory of dsvi_cp_bench_keys_open */
    DsviAttentionCall pass; /* tensors of this rank's tokens, (1, tokens, N, D), activation dtype */
    DsviAllKeys all;
    DsviListedKeys listed;
} DsviCpBench;

/* In head_sparsity.c. Reads one sparsity per head from `text`, in a format that head_sparsity.c describes,
 * and writes density (heads) = 1 - sparsity. */
DsvStatus dsvi_head_sparsity_read(const char *text, int64_t heads, double *density);

/* In bench_cp_setup.c. Sets up everything except `more`, and fills the tensors. The caller must call
 * dsvi_cp_bench_close, also after a failure. */
DsvStatus dsvi_cp_bench_open(DsviComm *comm, const DsvBenchContext *options, const DsvConfig *given,
                             DsviCpBench *bench);
void dsvi_cp_bench_close(DsviCpBench *bench);

/* In bench_cp_rows.c. Number of elements that dsvi_cp_bench_rows writes. */
size_t dsvi_cp_bench_rows_count(const DsviCpBench *bench);
/* Copies the first rows of the tensors out, dq, dk and dv to host memory as F32. */
DsvStatus dsvi_cp_bench_rows(const DsviCpBench *bench, float *rows);
/* Compares `rows` with `others`, each of which holds rows of the tensors out, dq, dk and dv. Returns the
 * largest of the four relative differences (L2 norm). */
double dsvi_cp_bench_off(const DsviCpBench *bench, const float *rows, const float *others);

/* In bench_cp_keys.c. Allocates the memory that dsvi_all_keys_* and dsvi_listed_keys_* use. The current plan
 * must have one head rank (all ranks divide tokens), and lists must have been made with it. */
DsvStatus dsvi_cp_bench_keys_open(DsviCpBench *bench);
/* Attention over lists with an all-gather of all keys and values; the backward pass returns gradients to the
 * ranks that own the keys. */
DsvStatus dsvi_all_keys_forward(DsviCpBench *bench);
DsvStatus dsvi_all_keys_backward(DsviCpBench *bench);
/* Only the transfers of attention with all keys: dsvi_all_keys_gather gathers keys and values, the other
 * function returns and sums their gradients. */
DsvStatus dsvi_all_keys_gather(DsviCpBench *bench);
DsvStatus dsvi_all_keys_home(DsviCpBench *bench);
/* The transfers if only keys that lists name are exchanged: first the marks that request keys, then the keys
 * and values, then their gradients. dsvi_listed_keys_mark must be called first. */
DsvStatus dsvi_listed_keys_mark(DsviCpBench *bench);
DsvStatus dsvi_listed_keys_fetch(DsviCpBench *bench);
DsvStatus dsvi_listed_keys_home(DsviCpBench *bench);

#ifdef __cplusplus
}
#endif
#endif
