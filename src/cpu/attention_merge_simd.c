/* SIMD variant of attention_merge (ops/attention_merge.h). */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

typedef struct Weights {
    float from, part;
} Weights;

/* Returns the weights with which two attention results are combined, and replaces *lse by the combined
 * log-sum-exp. */
static Weights merge_weights(float *lse, float part_lse)
{
    float larger = fmaxf(*lse, part_lse);
    if (larger == -INFINITY)
        return (Weights){0, 0};
    float from = expf(*lse - larger), part = expf(part_lse - larger), sum = from + part;
    *lse = larger + logf(sum);
    return (Weights){from / sum, part / sum};
}

/* Combines one row of two attention results. A result with weight 0 is not read: it had no keys, and its row
 * may contain anything. */
DSVI_SPECIALISED void cpu_merge_row(DsviDtype from_dtype, DsviDtype act, DsviDtype to_dtype,
                                    const DsviAttentionMergeArgs *args, int64_t b, int64_t s, int64_t h)
{
    int64_t lse_at = (b * args->heads + h) * args->queries + s;
    Weights weight = merge_weights((float *)args->lse + lse_at, ((const float *)args->part_lse)[lse_at]);
    const void *from = dsvi_at(from_dtype, args->from.data, dsvi_heads_at(&args->from, b, s, h));
    const void *part = dsvi_at(act, args->part.data, dsvi_heads_at(&args->part, b, s, h));
    void *to = dsvi_at(to_dtype, args->to.data, dsvi_heads_at(&args->to, b, s, h));
#pragma omp simd
    for (int64_t d = 0; d < args->head_dim; d++) {
        float of_from = weight.from > 0 ? weight.from * dsvi_get(from_dtype, from, d) : 0;
        float of_part = weight.part > 0 ? weight.part * dsvi_get(act, part, d) : 0;
        dsvi_put(to_dtype, to, d, of_from + of_part);
    }
}

DSVI_SPECIALISED void cpu_merge_token(DsviDtype from_dtype, DsviDtype act, DsviDtype to_dtype,
                                      const DsviAttentionMergeArgs *args, int64_t token)
{
    for (int64_t h = 0; h < args->heads; h++)
        cpu_merge_row(from_dtype, act, to_dtype, args, token / args->queries, token % args->queries, h);
}

static void cpu_merge_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviAttentionMergeArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        if (args->act == DSVI_F32)
            cpu_merge_token(DSVI_F32, DSVI_F32, DSVI_F32, args, i);
        else if (args->from_dtype == DSVI_BF16 && args->to_dtype == DSVI_BF16)
            cpu_merge_token(DSVI_BF16, DSVI_BF16, DSVI_BF16, args, i);
        else if (args->from_dtype == DSVI_BF16)
            cpu_merge_token(DSVI_BF16, DSVI_BF16, DSVI_F32, args, i);
        else if (args->to_dtype == DSVI_BF16)
            cpu_merge_token(DSVI_F32, DSVI_BF16, DSVI_BF16, args, i);
        else
            cpu_merge_token(DSVI_F32, DSVI_BF16, DSVI_F32, args, i);
    }
}

static DsvStatus cpu_attention_merge(DsviStream *stream, const DsviAttentionMergeArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("attention_merge", args->act, args->acc));
    dsvi_parallel_for(args->batch * args->queries, dsvi_rows_per_piece(args->heads * args->head_dim),
                      cpu_merge_tokens, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_merge)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, attention_merge, cpu_attention_merge, DSVI_SIMD_NAME);
}
