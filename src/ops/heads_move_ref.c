/* Reference implementation of heads_move. See heads_move.h. */
#include "ops/heads_move.h"

#include <string.h>

DsvStatus dsvi_heads_move_ref(DsviStream *stream, const DsviHeadsMoveArgs *args)
{
    size_t size = dsvi_dtype_size(args->dtype), bytes = (size_t)args->head_dim * size;
    (void)stream;
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t s = 0; s < args->tokens; s++)
            for (int64_t i = 0; i < args->heads; i++) {
                int64_t from = dsvi_heads_at(&args->from, b, s, dsvi_head_index(args->from_head, i));
                int64_t to = dsvi_heads_at(&args->to, b, s, dsvi_head_index(args->to_head, i));
                memcpy((char *)args->to.data + (size_t)to * size,
                       (const char *)args->from.data + (size_t)from * size, bytes);
            }
    return DSV_OK;
}
