/* Two results of attention over different keys become one. */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

typedef struct Weights {
    float from, part;
} Weights;

/* And the joint lse. */
static Weights weigh(float *lse, float part_lse)
{
    float larger = fmaxf(*lse, part_lse);
    if (larger == -INFINITY)
        return (Weights){0, 0};
    float from = expf(*lse - larger), part = expf(part_lse - larger), sum = from + part;
    *lse = larger + logf(sum);
    return (Weights){from / sum, part / sum};
}

/* A weight of zero is of what must not be used. */
DSVI_SPECIALISED void merge_row(DsvDtype from_dtype, DsvDtype act, DsvDtype to_dtype,
                                const DsvAttentionMergeArgs *args, int64_t b, int64_t s, int64_t h)
{
    int64_t lse_at = (b * args->heads + h) * args->queries + s;
    Weights weight = weigh((float *)args->lse + lse_at, ((const float *)args->part_lse)[lse_at]);
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

DSVI_SPECIALISED void merge_token(DsvDtype from_dtype, DsvDtype act, DsvDtype to_dtype,
                                  const DsvAttentionMergeArgs *args, int64_t token)
{
    for (int64_t h = 0; h < args->heads; h++)
        merge_row(from_dtype, act, to_dtype, args, token / args->queries, token % args->queries, h);
}

static void merge_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    const DsvAttentionMergeArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        if (args->act == DSV_F32)
            merge_token(DSV_F32, DSV_F32, DSV_F32, args, i);
        else if (args->from_dtype == DSV_BF16 && args->to_dtype == DSV_BF16)
            merge_token(DSV_BF16, DSV_BF16, DSV_BF16, args, i);
        else if (args->from_dtype == DSV_BF16)
            merge_token(DSV_BF16, DSV_BF16, DSV_F32, args, i);
        else if (args->to_dtype == DSV_BF16)
            merge_token(DSV_F32, DSV_BF16, DSV_BF16, args, i);
        else
            merge_token(DSV_F32, DSV_BF16, DSV_F32, args, i);
    }
}

static DsvStatus attention_merge(DsvStream *stream, const DsvAttentionMergeArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_takes("attention_merge", args->act, args->acc));
    dsvi_parallel_for(args->batch * args->queries, dsvi_rows_per_piece(args->heads * args->head_dim),
                      merge_tokens, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_merge)(DsvOps *ops)
{
    DSVI_OPS_SET(ops, attention_merge, attention_merge, DSVI_SIMD_NAME);
}
