/* Elementary functions on vectors of floats, accurate to about one unit in the last place.
 * The polynomials interpolate at Chebyshev nodes; their greatest errors are given with them. */
#ifndef DSVI_SIMD_MATH_H
#define DSVI_SIMD_MATH_H

#include "cpu/simd.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline DsvVecInt dsvi_vec_bits(DsvVec x)
{
    DsvVecInt bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline DsvVec dsvi_vec_from_bits(DsvVecInt bits)
{
    DsvVec x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Added to x it rounds x to a whole n, and leaves n in the low bits. */
#define DSVI_ROUNDER 12582912.0f /* 1.5 * 2^23 */

/* 2^(n + f), n as the rounder left it, |f| <= 1/2. Polynomial of 2^f: error 9e-9. */
static inline DsvVec dsvi_vec_exp2_parts(DsvVec rounded, DsvVec f)
{
    DsvVec scale = dsvi_vec_from_bits((dsvi_vec_bits(rounded) + (127 - 0x4B400000)) << 23);
    DsvVec y = f * 0.000154531634f + 0.00133908633f;
    y = y * f + 0.00961808302f;
    y = y * f + 0.0555035695f;
    y = y * f + 0.240226507f;
    y = y * f + 0.693147182f;
    return scale * (y * f + 1.0f);
}

/* 2^x. Below 2^-126 or a little less it is 0, above 2^127.5 or a little more infinite; NaN stays NaN. */
static inline DsvVec dsvi_vec_exp2(DsvVec x)
{
#if defined(__AVX512DQ__)
    /* x = n + f, 0 <= f < 1: one instruction takes n off, another multiplies by 2^n. Error of 2^f: 6e-9. */
    DsvVec f = (DsvVec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    DsvVec y = f * 0.000208179146f + 0.00126921665f;
    y = y * f + 0.0096521955f;
    y = y * f + 0.0554960221f;
    y = y * f + 0.240227208f;
    y = y * f + 0.693147182f;
    y = y * f + 1.0f;
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (DsvVec)_mm512_maskz_scalef_ps(normal, (__m512)y, (__m512)x);
#else
    x = dsvi_vec_min(dsvi_vec_all(128), dsvi_vec_max(dsvi_vec_all(-127), x));
    DsvVec rounded = x + DSVI_ROUNDER;
    return dsvi_vec_exp2_parts(rounded, x - (rounded - DSVI_ROUNDER));
#endif
}

/* exp x, with the same limits. f ln 2 = x - n ln 2 in two steps (Cody & Waite 1980): the first product is
 * exact, as 0.693359375 has 9 bits. */
static inline DsvVec dsvi_vec_exp(DsvVec x)
{
    x = dsvi_vec_min(dsvi_vec_all(88.7228394f), dsvi_vec_max(dsvi_vec_all(-88.0296936f), x));
    DsvVec rounded = x * 1.44269504f + DSVI_ROUNDER;
    DsvVec n = rounded - DSVI_ROUNDER;
    DsvVec rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return dsvi_vec_exp2_parts(rounded, rest * 1.44269504f);
}

/* exp x of x <= 0, where it is weighed against exp 0 as in a softmax: the relative error grows like
 * |x| 2^-24, the absolute one stays below 2^-23. */
static inline DsvVec dsvi_vec_exp_weight(DsvVec x)
{
    return dsvi_vec_exp2(x * 1.44269504f);
}

/* log2 x of positive normal x; of zero and denormals something below -126.
 * x = 2^n m with m in [1/sqrt 2, sqrt 2): polynomial of log2(m) in m - 1, error 9e-8. */
static inline DsvVec dsvi_vec_log2(DsvVec x)
{
    DsvVecInt shifted = dsvi_vec_bits(x) - 0x3F3504F3; /* bits of 1/sqrt 2 */
    DsvVecInt n = shifted >> 23;
    DsvVec m = dsvi_vec_from_bits((shifted & 0x7FFFFF) + 0x3F3504F3) - 1.0f;
    DsvVec y = m * -0.14275974f + 0.232652575f;
    y = y * m - 0.249271825f;
    y = y * m + 0.287288874f;
    y = y * m - 0.360225171f;
    y = y * m + 0.480916709f;
    y = y * m - 0.721352935f;
    y = y * m + 1.44269502f;
    return y * m + __builtin_convertvector(n, DsvVec);
}

#ifdef __cplusplus
}
#endif
#endif
