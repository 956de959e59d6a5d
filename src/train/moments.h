/* The optimizer's state: up to two moments for each trained parameter, divided over ranks like the weights
 * (dist/shard.h), in the form that the option `optimizer` names:
 *
 *                  matrices of the blocks                        all other parameters
 *     adamw        m and v in F32                                m and v in F32
 *     adamw_bf16   m and v in BF16                               the same
 *     adamw_8bit   m and v: codes of 8 bits, and an F32 scale    the same
 *                  for each 256 elements
 *     muon         m in F32, no v                                the same
 *
 * Each moment is an array of bytes. A bucket's bytes begin with its F32 part, that of the parameters that are
 * not matrices; then come the moments of its matrices. The scales are a second array. Blocks of 256 elements
 * are counted from the first matrix of a bucket, and shards end between blocks, so that the blocks do not
 * depend on the number of ranks. */
#ifndef DSVI_MOMENTS_H
#define DSVI_MOMENTS_H

#include "base/arena.h"
#include "dist/shard.h"
#include "dsv/config.h"
#include "model/weights/weights.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviOptimizer { DSVI_ADAMW, DSVI_ADAMW_BF16, DSVI_ADAMW_8BIT, DSVI_MUON } DsviOptimizer;

/* Returns the optimizer that the option names. */
DsviOptimizer dsvi_optimizer(const DsvConfig *settings);

typedef struct DsviMoment {
    DsviDtype matrix_dtype; /* of matrices of the blocks; DSVI_U8: codes */
    bool has_matrices;      /* false: matrices of the blocks have no such moment */
    const DsviParamTable *table;
    DsviShard bytes, scale_bytes; /* division among the ranks, in bytes */
    unsigned char *data, *scales; /* this rank's shards on the device (dsvi_moments_carve); scales: F32, empty
                                   * without codes */
} DsviMoment;

typedef struct DsviMoments {
    DsviOptimizer optimizer;
    DsviMoment moment[2]; /* m (exp_avg) and v (exp_avg_sq) */
} DsviMoments;

/* If the optimizer has codes, aligns `shard`, the division of the parameters, to their blocks. Then computes
 * the division of the moments. Keeps a pointer to the table. */
DsvStatus dsvi_moments_make(DsviOptimizer optimizer, const DsviParamTable *table, DsviShard *shard,
                            DsviMoments *out);
void dsvi_moments_free(DsviMoments *moments); /* accepts a zeroed struct */
/* Takes the device memory for the shards of the buckets from `first_bucket` on, once for planning and once
 * bound (base/arena.h). */
void dsvi_moments_carve(DsviMoments *moments, int64_t first_bucket, DsviArena *arena);

/* Returns whether the parameters of the bucket that are GEMM weights are matrices of a block. */
bool dsvi_moments_of_matrices(const DsviParamTable *table, int64_t bucket);
/* Returns the byte of a bucket's moments at which element `element` of the bucket begins. */
int64_t dsvi_moment_byte(const DsviMoment *moment, int64_t bucket, int64_t element);
/* Sets the arrays and dtype of m and v in `args` for the elements of this rank's shard of the bucket that
 * begin with the shard's element `at`. They are all matrices of a block, or all not. data[i] and scales[i]
 * are the device addresses of this rank's shard of the bucket's moment i. */
void dsvi_moments_arrays(const DsviMoments *moments, const DsviShard *shard, int64_t bucket, int64_t at,
                         unsigned char *const data[2], unsigned char *const scales[2], DsviAdamwArgs *args);

#ifdef __cplusplus
}
#endif
#endif
