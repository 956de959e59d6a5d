/* oneDNN matrix products, made once per shape and kept.
 *
 * A plan multiplies one tile of A by all of B, on one thread: it is made where a worker is alone (threads.h),
 * so that oneDNN finds no other. It holds one set of memory objects per worker, whose addresses are set call
 * by call. A and C of a plan are dense; B may have a row stride, and is best brought into oneDNN's own
 * blocked order first (packed), which pays as soon as a few tiles share it. */
#ifndef DSVI_GEMM_PLAN_H
#define DSVI_GEMM_PLAN_H

#include <dnnl.h>
#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All of one width, so that keys are compared as bytes. */
typedef struct DsvGemmKey {
    int64_t m, n, k;          /* of a tile */
    int64_t ldb;
    int64_t ab_dtype, c_dtype;
    int64_t trans_a, trans_b; /* trans_a: the tile lies as (K, M) */
    int64_t bias, accumulate;
    int64_t packed;           /* B may be brought into oneDNN's order */
} DsvGemmKey;

typedef struct DsvGemmPlan {
    DsvGemmKey key;
    dnnl_primitive_t matmul;       /* NULL: the slot is free */
    dnnl_primitive_t pack;         /* NULL: B is used as it lies */
    dnnl_memory_t b_plain, b_used; /* the same one where pack is NULL */
    dnnl_memory_t bias;            /* NULL: none */
    struct DsvGemmPlanWorker {
        dnnl_memory_t a, c, scratchpad;
    } *worker;                     /* (workers) */
    size_t packed_bytes, scratchpad_bytes;
} DsvGemmPlan;

typedef struct DsvGemmPlans DsvGemmPlans;

/* What oneDNN may use at most, as a dnnl_cpu_isa_t. oneDNN takes this once per process, before its first
 * use: a later call with another value has no effect. */
void dsvi_gemm_plans_limit(int cpu_isa);

DsvStatus dsvi_gemm_plans_create(int workers, DsvGemmPlans **out);
void dsvi_gemm_plans_free(DsvGemmPlans **plans);

/* oneDNN has products of BF16 for this CPU. */
bool dsvi_gemm_plans_have_bf16(const DsvGemmPlans *plans);

/* The plan for `key`, made if there is none yet. Valid until the next call. */
DsvStatus dsvi_gemm_plans_get(DsvGemmPlans *plans, const DsvGemmKey *key, DsvGemmPlan **out);

/* Tells the plan where B (and bias) lie, packs B into `packed` (plan->packed_bytes bytes) if it is to be
 * packed. By the calling thread, outside of workers. */
DsvStatus dsvi_gemm_plan_set_b(DsvGemmPlans *plans, DsvGemmPlan *plan, const void *b, const void *bias,
                               void *packed);

/* One tile, by a worker; scratchpad: plan->scratchpad_bytes bytes of its own. */
dnnl_status_t dsvi_gemm_plan_run(DsvGemmPlans *plans, DsvGemmPlan *plan, int worker, const void *a, void *c,
                                 void *scratchpad);

/* dnnl_success is DSV_OK; else a sentence about `what`. */
DsvStatus dsvi_gemm_plan_status(dnnl_status_t status, const char *what, const DsvGemmKey *key);

#ifdef __cplusplus
}
#endif
#endif
