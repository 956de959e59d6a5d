/* Weights in 8 bits: F8_E4M3 codes with an F32 scale for each DSVI_F8_BLOCK consecutive elements.
 *
 * f8_decode: out[i] = scale[i / DSVI_F8_BLOCK] * code[i], rounded once to the dtype of `out`.
 *
 * dsvi_f8_encode, on the host, makes codes: the scale of a block is its largest magnitude divided by 448, the
 * largest number of F8_E4M3, and a code is the number nearest to element / scale. The error of an element is
 * at most 2^-4 of the element, or 2^-10 scale if that is more. A block of zeros has scale 0. */
#ifndef DSVI_QUANT_H
#define DSVI_QUANT_H

#include "base/dtype.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_F8_BLOCK = 128 };

typedef struct DsviF8DecodeArgs {
    int64_t n;
    const void *code;    /* (n) F8_E4M3 */
    const float *scale;  /* (n / DSVI_F8_BLOCK, rounded up) */
    DsviDtype out_dtype; /* F32 or BF16; the reference implementation also takes F64 */
    void *out;           /* (n), overwritten */
} DsviF8DecodeArgs;
typedef DsvStatus dsvi_f8_decode_fn(DsviStream *stream, const DsviF8DecodeArgs *args);

dsvi_f8_decode_fn dsvi_f8_decode_ref;

/* Encodes n finite elements on all threads. `code` (n), `scale` as above. */
void dsvi_f8_encode(int64_t n, const float *x, uint8_t *code, float *scale);

#ifdef __cplusplus
}
#endif
#endif
