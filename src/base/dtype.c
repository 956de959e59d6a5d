/* Conversions between number formats. */
#include "base/dtype.h"

#include <math.h>

#include "base/status.h"

size_t dsvi_dtype_size(DsviDtype dtype)
{
    static const unsigned char size[DSVI_DTYPE_COUNT] = {
        [DSVI_F32] = 4, [DSVI_BF16] = 2, [DSVI_F16] = 2, [DSVI_F64] = 8,
        [DSVI_I32] = 4, [DSVI_I64] = 8,  [DSVI_U8] = 1,  [DSVI_F8_E4M3] = 1,
    };
    return size[dtype];
}

const char *dsvi_dtype_name(DsviDtype dtype)
{
    static const char *const name[DSVI_DTYPE_COUNT] = {
        [DSVI_F32] = "F32", [DSVI_BF16] = "BF16", [DSVI_F16] = "F16", [DSVI_F64] = "F64",
        [DSVI_I32] = "I32", [DSVI_I64] = "I64",   [DSVI_U8] = "U8",   [DSVI_F8_E4M3] = "F8_E4M3",
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
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 is exact in F32 */
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
    if (bits >= 0x477ff000u) /* the value rounds to 2^16, which F16 cannot store, or is infinite */
        return sign | 0x7c00u;
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 rounds to the last place of F16's subnormals */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return (uint16_t)(sign | ((bits - 0x38000000u) >> 13));
}

/* The exponent 15 belongs to numbers too; only its largest fraction is NaN. */
static float f8_to_f32(uint8_t byte)
{
    int exponent = byte >> 3 & 15, fraction = byte & 7;
    float magnitude;
    if (exponent == 15 && fraction == 7)
        magnitude = NAN;
    else if (exponent == 0)
        magnitude = ldexpf((float)fraction, -9);
    else
        magnitude = ldexpf((float)(8 + fraction), exponent - 10);
    return byte & 0x80 ? -magnitude : magnitude;
}

uint8_t dsvi_f32_to_f8(float f)
{
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float magnitude = fabsf(f);
    int exponent;
    if (magnitude != magnitude)
        return sign | 0x7f;
    if (magnitude >= 448)
        return sign | 0x7e;
    if (magnitude == 0)
        return sign;
    (void)frexpf(magnitude, &exponent); /* magnitude is in [2^(exponent - 1), 2^exponent) */
    exponent = exponent - 1 > -6 ? exponent - 1 : -6;
    /* The code is the number of steps of 2^(exponent - 3) from zero, with the codes of lower exponents. A
     * magnitude that rounds up to the next power of two gets the next exponent by itself. */
    int steps = (int)nearbyintf(ldexpf(magnitude, 3 - exponent));
    return (uint8_t)(sign | ((exponent + 6) * 8 + steps));
}

/* Rounds to odd: rounds towards zero, then sets the last bit if the result is not exact. Rounding this result
 * to nearest even in a narrower format gives the same as rounding the double directly; rounding to nearest
 * twice does not. S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms
 * using rounding to odd", IEEE Transactions on Computers, 2008. */
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

double dsvi_load(DsviDtype dtype, const void *array, int64_t i)
{
    switch (dtype) {
    case DSVI_F32: return ((const float *)array)[i];
    case DSVI_BF16: return dsvi_bf16_to_f32(((const uint16_t *)array)[i]);
    case DSVI_F16: return f16_to_f32(((const uint16_t *)array)[i]);
    case DSVI_F64: return ((const double *)array)[i];
    case DSVI_F8_E4M3: return f8_to_f32(((const uint8_t *)array)[i]);
    default: break;
    }
    DSVI_ASSERT(!"dsvi_load of a dtype that is not floating");
    return 0;
}

void dsvi_store(DsviDtype dtype, void *array, int64_t i, double value)
{
    switch (dtype) {
    case DSVI_F32: ((float *)array)[i] = (float)value; return;
    case DSVI_BF16: ((uint16_t *)array)[i] = dsvi_f32_to_bf16(f64_to_f32_odd(value)); return;
    case DSVI_F16: ((uint16_t *)array)[i] = f32_to_f16(f64_to_f32_odd(value)); return;
    case DSVI_F64: ((double *)array)[i] = value; return;
    default: break;
    }
    DSVI_ASSERT(!"dsvi_store to a dtype that it does not write");
}

void dsvi_convert(DsviDtype dst_dtype, void *dst, DsviDtype src_dtype, const void *src, int64_t n)
{
    if (dst_dtype == src_dtype) {
        if (n > 0) /* an empty array may be NULL */
            memmove(dst, src, (size_t)n * dsvi_dtype_size(dst_dtype));
        return;
    }
    if (src_dtype == DSVI_F8_E4M3) {
        dsvi_convert_f8(dst_dtype, dst, src, 1, n);
        return;
    }
    if (dst_dtype == DSVI_F32 && src_dtype == DSVI_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i] = dsvi_bf16_to_f32(((const uint16_t *)src)[i]);
        return;
    }
    if (dst_dtype == DSVI_BF16 && src_dtype == DSVI_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = dsvi_f32_to_bf16(((const float *)src)[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dsvi_store(dst_dtype, dst, i, dsvi_load(src_dtype, src, i));
}

bool dsvi_all_finite(DsviDtype dtype, const void *array, int64_t n)
{
    enum { PIECE = 1024 };
    float piece[PIECE];
    size_t size = dsvi_dtype_size(dtype);
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        int64_t count = n - begin < PIECE ? n - begin : PIECE;
        float sum = 0; /* 0 x a finite number is 0, and NaN otherwise */
        dsvi_convert(DSVI_F32, piece, dtype, (const char *)array + (size_t)begin * size, count);
        for (int64_t i = 0; i < count; i++)
            sum += 0 * piece[i];
        if (isnan(sum))
            return false;
    }
    return true;
}

void dsvi_convert_f8(DsviDtype dst_dtype, void *dst, const void *src, double scale, int64_t n)
{
    enum { VALUES = 256, BYTES_MAX = 8 }; /* each value is converted once, into a table */
    _Alignas(BYTES_MAX) unsigned char table[VALUES * BYTES_MAX];
    const unsigned char *from = src;
    for (int i = 0; i < VALUES; i++)
        dsvi_store(dst_dtype, table, i, scale * f8_to_f32((uint8_t)i));
    switch (dsvi_dtype_size(dst_dtype)) {
    case 2:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = ((const uint16_t *)table)[from[i]];
        return;
    case 4:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)dst)[i] = ((const uint32_t *)table)[from[i]];
        return;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint64_t *)dst)[i] = ((const uint64_t *)table)[from[i]];
        return;
    }
}
