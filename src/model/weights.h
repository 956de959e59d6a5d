/* The parameters of a transformer: names <-> tensors <-> places in one flat array.
 *
 * All parameters lie one behind the other in one array, in a fixed order. Gradients, moments and the moving
 * average use the same layout. Names are diffusers'; original Wan names are translated on load.
 *
 * The array comes in stretches, whose gradients a backward pass finishes together: what stands before the
 * blocks, each block, what stands behind them. In each lie first the parameters that are used in F32, then
 * the GEMM weights, which are multiplied in the compute dtype:
 *
 *     | text, time, patch embedding | block 0                      | block 1      | head          |
 *     | F32         | GEMM weights  | F32 | GEMM weights           | F32 | GEMM   | F32 | GEMM    |
 *     begin[0]      gemm[0]         begin[1] gemm[1]               begin[2]  ...                  begin[4]
 */
#ifndef DSVI_WEIGHTS_H
#define DSVI_WEIGHTS_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/safetensors.h"
#include "model/dit_config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsvInit { /* which is the original Wan code's */
    DSV_INIT_ZERO,
    DSV_INIT_ONE,
    DSV_INIT_XAVIER,    /* uniform, on (shape[0], product of the rest) */
    DSV_INIT_NORMAL_02, /* N(0, 0.02) */
    DSV_INIT_TABLE      /* N(0, 1) / sqrt(C) */
} DsvInit;

typedef struct DsvParam {
    char name[96];        /* diffusers' */
    char original[96];    /* the Wan repository's */
    int ndim;
    int64_t shape[DSV_TENSOR_MAX_DIMS];
    int64_t count;        /* elements */
    int64_t offset;       /* elements from the start of the flat array, a multiple of 16 */
    DsvInit init;
    bool in_compute_dtype; /* a GEMM weight, which also lives in the compute dtype; not the time embedder's */
} DsvParam;

typedef struct DsvParamTable {
    DsvParam *params;
    int64_t count;
    int64_t elements;     /* of the flat array, padding included; padding is zero for ever */
    int64_t parameters;   /* without padding */
    int64_t stretches;
    int64_t *begin;       /* (stretches + 1) where each begins, up to the number of all elements */
    int64_t *gemm;        /* (stretches) where its GEMM weights begin */
} DsvParamTable;

/* The table for a shape; freed with dsvi_param_table_free. */
DsvStatus dsvi_param_table_make(const DsvDitConfig *config, DsvParamTable *out);
void dsvi_param_table_free(DsvParamTable *table);
/* By diffusers' name; -1 when there is none. */
int64_t dsvi_param_find(const DsvParamTable *table, const char *name);

/* The stretch in which a place of the flat array lies. */
int64_t dsvi_param_stretch(const DsvParamTable *table, int64_t place);

/* Host array `flat` (elements) F32 filled as DsvInit says, a function of the seed alone. */
void dsvi_weights_init(const DsvParamTable *table, uint64_t seed, float *flat);

/* Reads weights into the host array: `path` is a transformer folder (single file or sharded index) or one
 * safetensors file; either naming, known prefixes stripped, fused to_qkv / to_kv split, F32 BF16 F16
 * converted. Tensors missing, unknown, twice there or of another shape are one DSV_E_SHAPE that lists
 * them; pickles are DSV_E_UNSUPPORTED. */
DsvStatus dsvi_weights_read(const char *path, const DsvParamTable *table, float *flat);

/* Writes folder/diffusion_pytorch_model.safetensors, sharded with an index above shard_bytes. `dtype` is
 * F32 or BF16; `flat` is a host array. */
DsvStatus dsvi_weights_write(const char *folder, const DsvParamTable *table, const float *flat,
                             DsvDtype dtype, uint64_t shard_bytes);

/* A host array of F32 numbers in this layout, e.g. the optimizer's moment "exp_avg", to and from one file.
 * Its tensors are named by the array and the parameter: exp_avg.blocks.0.ffn.net.2.weight. Files of version
 * 0.1, which lack the first dot, are read too. */
DsvStatus dsvi_flat_write(const char *path, const DsvParamTable *table, const char *array,
                          const float *flat);
DsvStatus dsvi_flat_read(const char *path, const DsvParamTable *table, const char *array, float *flat);

#ifdef __cplusplus
}
#endif
#endif
