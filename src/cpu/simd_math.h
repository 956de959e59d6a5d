/* Elementary functions on vectors of floats, accurate to about one unit in the last place. The polynomials
 * interpolate at Chebyshev nodes; a comment at each polynomial states its largest error. */
#ifndef DSVI_SIMD_MATH_H
#define DSVI_SIMD_MATH_H

#include "cpu/simd.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline DsviVecInt dsvi_vec_bits(DsviVec x)
{
    DsviVecInt bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline DsviVec dsvi_vec_from_bits(DsviVecInt bits)
{
    DsviVec x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x + DSVI_ROUNDER rounds x to an integer n and holds n in its low mantissa bits. */
#define DSVI_ROUNDER 12582912.0f /* 1.5 * 2^23 */

/* Returns 2^(n + f), |f| <= 1/2, where `rounded` is n + DSVI_ROUNDER. Error of the polynomial of 2^f:
 * 9e-9. */
static inline DsviVec dsvi_vec_exp2_parts(DsviVec rounded, DsviVec f)
{
    DsviVec scale = dsvi_vec_from_bits((dsvi_vec_bits(rounded) + (127 - 0x4B400000)) << 23);
    DsviVec y = f * 0.000154531634f + 0.00133908633f;
    y = y * f + 0.00961808302f;
    y = y * f + 0.0555035695f;
    y = y * f + 0.240226507f;
    y = y * f + 0.693147182f;
    return scale * (y * f + 1.0f);
}

/* Returns 2^x: 0 if the result would be below about 2^-126, infinity if above about 2^127.5, NaN for NaN. */
static inline DsviVec dsvi_vec_exp2(DsviVec x)
{
#if defined(__AVX512DQ__)
    /* x = n + f with an integer n and 0 <= f < 1: one instruction subtracts n, another multiplies by 2^n. The
     * error of the polynomial of 2^f is 6e-9. */
    DsviVec f = (DsviVec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    DsviVec y = f * 0.000208179146f + 0.00126921665f;
    y = y * f + 0.0096521955f;
    y = y * f + 0.0554960221f;
    y = y * f + 0.240227208f;
    y = y * f + 0.693147182f;
    y = y * f + 1.0f;
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (DsviVec)_mm512_maskz_scalef_ps(normal, (__m512)y, (__m512)x);
#else
    x = dsvi_vec_min(dsvi_vec_all(128), dsvi_vec_max(dsvi_vec_all(-127), x));
    DsviVec rounded = x + DSVI_ROUNDER;
    return dsvi_vec_exp2_parts(rounded, x - (rounded - DSVI_ROUNDER));
#endif
}

/* Returns exp x, with the limits of dsvi_vec_exp2. It is 2^(n + f) with an integer n, and f ln 2 = x - n
 * ln 2 is computed in two steps (Cody & Waite 1980): the first product is exact because 0.693359375 has 9
 * significant bits. */
static inline DsviVec dsvi_vec_exp(DsviVec x)
{
    x = dsvi_vec_min(dsvi_vec_all(88.7228394f), dsvi_vec_max(dsvi_vec_all(-88.0296936f), x));
    DsviVec rounded = x * 1.44269504f + DSVI_ROUNDER;
    DsviVec n = rounded - DSVI_ROUNDER;
    DsviVec rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return dsvi_vec_exp2_parts(rounded, rest * 1.44269504f);
}

/* Returns exp x for x <= 0, as a weight relative to exp 0 in a softmax. The relative error grows like |x|
 * 2^-24; the absolute error stays below 2^-23. */
static inline DsviVec dsvi_vec_exp_weight(DsviVec x)
{
    return dsvi_vec_exp2(x * 1.44269504f);
}

/* Returns log2 x for positive normal x, and some value below -126 for zero and denormal x. x = 2^n m with m
 * in [1/sqrt 2, sqrt 2): a polynomial of log2(m) in m - 1, error 9e-8. */
static inline DsviVec dsvi_vec_log2(DsviVec x)
{
    DsviVecInt shifted = dsvi_vec_bits(x) - 0x3F3504F3; /* bits of 1/sqrt 2 */
    DsviVecInt n = shifted >> 23;
    DsviVec m = dsvi_vec_from_bits((shifted & 0x7FFFFF) + 0x3F3504F3) - 1.0f;
    DsviVec y = m * -0.14275974f + 0.232652575f;
    y = y * m - 0.249271825f;
    y = y * m + 0.287288874f;
    y = y * m - 0.360225171f;
    y = y * m + 0.480916709f;
    y = y * m - 0.721352935f;
    y = y * m + 1.44269502f;
    return y * m + __builtin_convertvector(n, DsviVec);
}

/* Returns the distribution function of N(0, 1), and sets *density to exp(-x^2 / 2): its density times
 * sqrt(2 pi). Below 0 the function is t p(t) exp(-x^2 / 2) with t = 1 / (1 + 0.3 |x| / sqrt 2) and a
 * polynomial p, relative error 3e-8. */
static inline DsviVec dsvi_vec_normal_below(DsviVec x, DsviVec *density)
{
    DsviVec size = dsvi_vec_min(dsvi_vec_all(100), dsvi_vec_max(x, -x));
    DsviVec t = 1.0f / (1.0f + size * 0.212132034f);
    DsviVec y = t * -0.0652096671f + 0.24510257f;
    y = y * t - 0.261267981f;
    y = y * t + 0.280163691f;
    y = y * t - 0.0520275739f;
    y = y * t + 0.109638117f;
    y = y * t + 0.0735615704f;
    y = y * t + 0.0854513577f;
    y = y * t + 0.0845879061f;
    *density = dsvi_vec_exp(size * size * -0.5f);
    y = y * t * *density;
    DsviVecInt negative = x < 0.0f; /* all bits of a lane, or none */
    return dsvi_vec_from_bits((negative & dsvi_vec_bits(y)) | (~negative & dsvi_vec_bits(1.0f - y)));
}

#ifdef __cplusplus
}
#endif
#endif
