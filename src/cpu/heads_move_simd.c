/* SIMD variant of heads_move: copies rows of some heads from one tensor to another. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* Copies tokens [begin, end), numbered over all samples. */
static void move_tokens(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviHeadsMoveArgs *args = context;
    size_t size = dsvi_dtype_size(args->dtype), bytes = (size_t)args->head_dim * size;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t from = dsvi_heads_at(&args->from, i / args->tokens, i % args->tokens, 0);
        int64_t to = dsvi_heads_at(&args->to, i / args->tokens, i % args->tokens, 0);
        for (int64_t h = 0; h < args->heads; h++) {
            int64_t source = from + dsvi_head_index(args->from_head, h) * args->from.head_stride;
            int64_t target = to + dsvi_head_index(args->to_head, h) * args->to.head_stride;
            memcpy((char *)args->to.data + (size_t)target * size,
                   (const char *)args->from.data + (size_t)source * size, bytes);
        }
    }
}

static DsvStatus cpu_heads_move(DsviStream *stream, const DsviHeadsMoveArgs *args)
{
    (void)stream;
    dsvi_parallel_for(args->batch * args->tokens, dsvi_rows_per_piece(args->heads * args->head_dim),
                      move_tokens, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_heads_move)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, heads_move, cpu_heads_move, DSVI_SIMD_NAME);
}
