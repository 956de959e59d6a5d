/* oneDNN primitives for matrix products, created once for each shape and cached.
 *
 * A primitive multiplies one tile of A by all of B on one thread. A primitive holds one set of memory objects
 * for each worker; their addresses are set before each call. A and C are dense. B may have a row stride, but
 * products are faster if B is first reordered ("packed") into oneDNN's blocked layout; this is worthwhile as
 * soon as a few tiles share B. */
#ifndef DSVI_GEMM_PRIMITIVE_H
#define DSVI_GEMM_PRIMITIVE_H

#include "cpu/onednn_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The key under which a primitive is cached. All fields have the same width, so that keys have no padding
 * and are compared as bytes. */
typedef struct DsviGemmKey {
    int64_t m, n, k; /* sizes of the product of one tile */
    int64_t ldb;
    int64_t ab_dtype, c_dtype;
    int64_t trans_a, trans_b; /* trans_a: the tile of A is stored as (K, M) */
    int64_t bias, accumulate;
    int64_t packed; /* B may be packed into oneDNN's blocked layout */
} DsviGemmKey;

typedef struct DsviGemmPrimitive {
    DsviGemmKey key;
    dnnl_primitive_t matmul;       /* NULL: the cache slot is free */
    dnnl_primitive_t pack;         /* NULL: B is used without packing */
    dnnl_memory_t b_plain, b_used; /* B as given, and B as multiplied; equal if `pack` is NULL */
    dnnl_memory_t bias;            /* NULL: the product has no bias */
    struct DsviGemmPrimitiveWorker {
        dnnl_memory_t a, c, scratchpad;
    } * worker; /* (workers) */
    size_t packed_bytes, scratchpad_bytes;
} DsviGemmPrimitive;

typedef struct DsviGemmPrimitives DsviGemmPrimitives;

DsvStatus dsvi_gemm_primitives_create(int workers, DsviGemmPrimitives **out);
void dsvi_gemm_primitives_free(DsviGemmPrimitives **primitives);

/* Returns whether oneDNN supports BF16 products on this CPU. */
bool dsvi_gemm_primitives_have_bf16(const DsviGemmPrimitives *primitives);

/* Returns in *out the primitive for `key`, and creates it if necessary. *out is valid until the next call. */
DsvStatus dsvi_gemm_primitives_get(DsviGemmPrimitives *primitives, const DsviGemmKey *key,
                                   DsviGemmPrimitive **out);

/* Sets the addresses of B and bias. If the primitive packs B, packs it into `packed`, which has packed_bytes
 * bytes. Called by the thread that owns the gemm, outside of parallel loops. */
DsvStatus dsvi_gemm_primitive_set_b(DsviGemmPrimitives *primitives, DsviGemmPrimitive *primitive,
                                    const void *b, const void *bias, void *packed);

/* Multiplies one tile; called by worker number `worker`. `scratchpad` has scratchpad_bytes bytes that no
 * other worker uses. */
dnnl_status_t dsvi_gemm_primitive_run(DsviGemmPrimitives *primitives, DsviGemmPrimitive *primitive,
                                      int worker, const void *a, void *c, void *scratchpad);

/* Converts a oneDNN status. Any status except dnnl_success sets an error message with `what` and the
 * shape. */
DsvStatus dsvi_gemm_primitive_status(dnnl_status_t status, const char *what, const DsviGemmKey *key);

#ifdef __cplusplus
}
#endif
#endif
