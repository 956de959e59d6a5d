/* Conversions between number formats. */
#include "base/dtype.h"

#include <math.h>

#include "base/status.h"

size_t dsvi_dtype_size(DsvDtype dtype)
{
    static const unsigned char size[DSV_DTYPE_COUNT] = {
        [DSV_F32] = 4, [DSV_BF16] = 2, [DSV_F16] = 2, [DSV_F64] = 8,
        [DSV_I32] = 4, [DSV_I64] = 8,  [DSV_U8] = 1,
    };
    return size[dtype];
}

const char *dsvi_dtype_name(DsvDtype dtype)
{
    static const char *const name[DSV_DTYPE_COUNT] = {
        [DSV_F32] = "F32", [DSV_BF16] = "BF16", [DSV_F16] = "F16", [DSV_F64] = "F64",
        [DSV_I32] = "I32", [DSV_I64] = "I64",   [DSV_U8] = "U8",
    };
    return name[dtype];
}

static float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    uint32_t bits;
    float f;
    if (exponent == 0) { /* zero or denormal: fraction * 2^-24 is exact in F32 */
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31)
        bits = sign | 0x7f800000u | (fraction << 13);
    else
        bits = sign | ((exponent + 112) << 23) | (fraction << 13);
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return sign | 0x7e00u;
    if (bits >= 0x477ff000u) /* rounds to 2^16 or is infinite */
        return sign | 0x7c00u;
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 rounds at the denormals' last place */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return (uint16_t)(sign | ((bits - 0x38000000u) >> 13));
}

/* Rounds to odd: towards zero, then the last bit is set if anything was lost. Rounding that to nearest even
 * in a format with fewer digits is as good as rounding the double itself, which rounding twice to nearest is
 * not: S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
 * rounding to odd", IEEE Transactions on Computers, 2008. */
static float f64_to_f32_odd(double value)
{
    float f = (float)value;
    uint32_t bits;
    if (f == value || value != value)
        return f;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 1) == 0)
        bits = fabs((double)f) < fabs(value) ? bits + 1 : bits - 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

double dsvi_load(DsvDtype dtype, const void *array, int64_t i)
{
    switch (dtype) {
    case DSV_F32: return ((const float *)array)[i];
    case DSV_BF16: return dsvi_bf16_to_f32(((const uint16_t *)array)[i]);
    case DSV_F16: return f16_to_f32(((const uint16_t *)array)[i]);
    case DSV_F64: return ((const double *)array)[i];
    default: break;
    }
    DSVI_ASSERT(!"dsvi_load of a dtype that is not floating");
    return 0;
}

void dsvi_store(DsvDtype dtype, void *array, int64_t i, double value)
{
    switch (dtype) {
    case DSV_F32: ((float *)array)[i] = (float)value; return;
    case DSV_BF16: ((uint16_t *)array)[i] = dsvi_f32_to_bf16(f64_to_f32_odd(value)); return;
    case DSV_F16: ((uint16_t *)array)[i] = f32_to_f16(f64_to_f32_odd(value)); return;
    case DSV_F64: ((double *)array)[i] = value; return;
    default: break;
    }
    DSVI_ASSERT(!"dsvi_store to a dtype that is not floating");
}

void dsvi_convert(DsvDtype dst_dtype, void *dst, DsvDtype src_dtype, const void *src, int64_t n)
{
    if (dst_dtype == src_dtype) {
        if (n > 0) /* an empty array may be NULL */
            memmove(dst, src, (size_t)n * dsvi_dtype_size(dst_dtype));
        return;
    }
    if (dst_dtype == DSV_F32 && src_dtype == DSV_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i] = dsvi_bf16_to_f32(((const uint16_t *)src)[i]);
        return;
    }
    if (dst_dtype == DSV_BF16 && src_dtype == DSV_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = dsvi_f32_to_bf16(((const float *)src)[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dsvi_store(dst_dtype, dst, i, dsvi_load(src_dtype, src, i));
}
