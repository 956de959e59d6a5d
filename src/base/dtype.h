/* Number formats: names, sizes, conversions. */
#ifndef DSVI_DTYPE_H
#define DSVI_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number formats of tensor elements, named as in the safetensors format. */
typedef enum DsviDtype {
    DSVI_F32,
    DSVI_BF16,
    DSVI_F16,
    DSVI_F64,
    DSVI_I32,
    DSVI_I64,
    DSVI_U8,
    DSVI_F8_E4M3, /* 4 bits of exponent, 3 of fraction, no infinity; dsvi_store does not write it */
    DSVI_DTYPE_COUNT
} DsviDtype;

size_t dsvi_dtype_size(DsviDtype dtype);      /* bytes of one element */
const char *dsvi_dtype_name(DsviDtype dtype); /* "F32", "BF16", ... */
/* Returns whether dsvi_load can read elements of this dtype: F32, BF16, F16, F64 or F8_E4M3. */
static inline bool dsvi_dtype_is_floating(DsviDtype dtype)
{
    return dtype == DSVI_F32 || dtype == DSVI_BF16 || dtype == DSVI_F16 || dtype == DSVI_F64 ||
           dtype == DSVI_F8_E4M3;
}

/* Returns element `i` of an array of a floating dtype, widened to double. */
double dsvi_load(DsviDtype dtype, const void *array, int64_t i);
/* Stores `value` as element `i` of an array of F32, BF16, F16 or F64, rounded to nearest even. */
void dsvi_store(DsviDtype dtype, void *array, int64_t i, double value);

/* Returns whether all elements of an array of a floating dtype are finite. */
bool dsvi_all_finite(DsviDtype dtype, const void *array, int64_t n);

/* dst[i] = src[i] for 0 <= i < n. The dtypes are equal, or both are floating and dst_dtype is not F8_E4M3.
 * The arrays may overlap only if the dtypes are equal. */
void dsvi_convert(DsviDtype dst_dtype, void *dst, DsviDtype src_dtype, const void *src, int64_t n);
/* dst[i] = scale * src[i] for 0 <= i < n, rounded once. src is F8_E4M3; dst_dtype as for dsvi_store. */
void dsvi_convert_f8(DsviDtype dst_dtype, void *dst, const void *src, double scale, int64_t n);

static inline float dsvi_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Returns the F8_E4M3 number nearest to f, the even one of two. Numbers above 448, the largest, become 448;
 * NaN stays NaN. */
uint8_t dsvi_f32_to_f8(float f);

/* Rounds to nearest even. Returns a quiet NaN for every NaN. */
static inline uint16_t dsvi_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Rounds up or down at random, with probabilities that make the mean exact: `random`, of which 16 bits are
 * used, is uniformly distributed. Infinities and NaN are rounded as by dsvi_f32_to_bf16. */
static inline uint16_t dsvi_f32_to_bf16_random(float f, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return dsvi_f32_to_bf16(f);
    return (uint16_t)((bits + (random & 0xffffu)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
