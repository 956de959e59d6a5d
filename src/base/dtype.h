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

/* The names are those of the safetensors format. */
typedef enum DsvDtype {
    DSV_F32,
    DSV_BF16,
    DSV_F16,
    DSV_F64,
    DSV_I32,
    DSV_I64,
    DSV_U8,
    DSV_DTYPE_COUNT
} DsvDtype;

size_t dsvi_dtype_size(DsvDtype dtype);      /* bytes of one element */
const char *dsvi_dtype_name(DsvDtype dtype); /* "F32", "BF16", ... */
static inline bool dsvi_dtype_is_floating(DsvDtype dtype)
{
    return dtype == DSV_F32 || dtype == DSV_BF16 || dtype == DSV_F16 || dtype == DSV_F64;
}

/* Element `i` of an array of floating dtype (F32, BF16, F16, F64), widened to double. */
double dsvi_load(DsvDtype dtype, const void *array, int64_t i);
/* Rounds to nearest even and stores. */
void dsvi_store(DsvDtype dtype, void *array, int64_t i, double value);

/* dst[0..n) = src[0..n), any two floating dtypes, or any dtype to itself; the arrays may be the same only if
 * the dtypes are. */
void dsvi_convert(DsvDtype dst_dtype, void *dst, DsvDtype src_dtype, const void *src, int64_t n);

static inline float dsvi_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Round to nearest even; NaN stays a quiet NaN. */
static inline uint16_t dsvi_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
