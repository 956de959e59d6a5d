/* Reference implementation of weights in 8 bits. See quant.h. */
#include "ops/quant.h"

#include <math.h>

#include "base/threads.h"

enum { BLOCKS_PER_PIECE = 512 };

DsvStatus dsvi_f8_decode_ref(DsviStream *stream, const DsviF8DecodeArgs *args)
{
    (void)stream;
    for (int64_t i = 0; i < args->n; i++)
        dsvi_store(args->out_dtype, args->out, i,
                   (double)args->scale[i / DSVI_F8_BLOCK] * dsvi_load(DSVI_F8_E4M3, args->code, i));
    return DSV_OK;
}

typedef struct Encoding {
    int64_t n;
    const float *x;
    uint8_t *code;
    float *scale;
} Encoding;

static void encode_blocks(void *context, int64_t begin, int64_t end, int worker)
{
    const Encoding *e = context;
    (void)worker;
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * DSVI_F8_BLOCK;
        int64_t last = first + DSVI_F8_BLOCK < e->n ? first + DSVI_F8_BLOCK : e->n;
        float largest = 0;
        for (int64_t i = first; i < last; i++)
            largest = fabsf(e->x[i]) > largest ? fabsf(e->x[i]) : largest;
        e->scale[block] = largest / 448;
        for (int64_t i = first; i < last; i++)
            e->code[i] = dsvi_f32_to_f8(e->scale[block] > 0 ? e->x[i] / e->scale[block] : 0);
    }
}

void dsvi_f8_encode(int64_t n, const float *x, uint8_t *code, float *scale)
{
    Encoding encoding = {n, x, code, scale};
    dsvi_parallel_for((n + DSVI_F8_BLOCK - 1) / DSVI_F8_BLOCK, BLOCKS_PER_PIECE, encode_blocks, &encoding);
}
