/* Reference implementation of attention_merge. See attention_merge.h. */
#include "ops/attention_merge.h"

#include <math.h>

static double weighed(double weight, DsviDtype dtype, const DsviHeads *rows, int64_t at)
{
    return weight > 0 ? weight * dsvi_load(dtype, rows->data, at) : 0;
}

static void merge_row(const DsviAttentionMergeArgs *args, int64_t b, int64_t s, int64_t h)
{
    int64_t at = (b * args->heads + h) * args->queries + s;
    double from_lse = dsvi_load(args->acc, args->lse, at);
    double part_lse = dsvi_load(args->acc, args->part_lse, at);
    double larger = fmax(from_lse, part_lse);
    double from = 0, part = 0, lse = larger;
    if (larger > -INFINITY) {
        double sum = exp(from_lse - larger) + exp(part_lse - larger);
        from = exp(from_lse - larger) / sum;
        part = exp(part_lse - larger) / sum;
        lse = larger + log(sum);
    }
    for (int64_t d = 0; d < args->head_dim; d++)
        dsvi_store(args->to_dtype, args->to.data, dsvi_heads_at(&args->to, b, s, h) + d,
                   weighed(from, args->from_dtype, &args->from, dsvi_heads_at(&args->from, b, s, h) + d) +
                       weighed(part, args->act, &args->part, dsvi_heads_at(&args->part, b, s, h) + d));
    dsvi_store(args->acc, args->lse, at, lse);
}

DsvStatus dsvi_attention_merge_ref(DsviStream *stream, const DsviAttentionMergeArgs *args)
{
    (void)stream;
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t s = 0; s < args->queries; s++)
            for (int64_t h = 0; h < args->heads; h++)
                merge_row(args, b, s, h);
    return DSV_OK;
}
