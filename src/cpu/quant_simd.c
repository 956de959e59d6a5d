/* SIMD variant of f8_decode (ops/quant.h): the values of all codes are in a table. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum { CODES = 256 };

typedef struct Decoding {
    const DsviF8DecodeArgs *args;
    float value[CODES];
} Decoding;

DSVI_SPECIALISED void decode_block(const Decoding *d, DsviDtype dtype, int64_t begin, int64_t end)
{
    const uint8_t *code = d->args->code;
    float scale = d->args->scale[begin / DSVI_F8_BLOCK];
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        dsvi_put(dtype, d->args->out, i, scale * d->value[code[i]]);
}

static void decode_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const Decoding *d = context;
    (void)worker;
    for (int64_t at = begin; at < end; at += DSVI_F8_BLOCK) {
        int64_t last = dsvi_min(at + DSVI_F8_BLOCK, end);
        if (d->args->out_dtype == DSVI_BF16)
            decode_block(d, DSVI_BF16, at, last);
        else
            decode_block(d, DSVI_F32, at, last);
    }
}

static DsvStatus cpu_f8_decode(DsviStream *stream, const DsviF8DecodeArgs *args)
{
    Decoding job = {.args = args};
    (void)stream;
    DSVI_TRY(dsvi_simd_check("f8_decode", args->out_dtype, DSVI_F32));
    for (int i = 0; i < CODES; i++) {
        uint8_t code = (uint8_t)i;
        job.value[i] = (float)dsvi_load(DSVI_F8_E4M3, &code, 0);
    }
    dsvi_parallel_for(args->n, DSVI_PIECE, decode_piece, &job);
    return DSV_OK;
}

void DSVI_SIMD(fill_quant)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, f8_decode, cpu_f8_decode, DSVI_SIMD_NAME);
}
