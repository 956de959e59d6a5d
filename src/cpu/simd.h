/* Definitions for sources that are compiled once for each instruction set level (*_simd.c, see
 * CMakeLists.txt).
 *
 * Each such source exports one function per level, which puts the level's variants into a table of
 * operations:
 *     void DSVI_SIMD(fill_attention)(DsviOps *ops)      is      dsvi_fill_attention_avx2 and so on.
 * Everything else is static. The code is plain C. Where values must stay in registers, it uses DsviVec, a
 * vector of as many floats as a register of the level holds (a vector type of gcc and clang; + - * work lane
 * by lane). These sources are compiled with -ffp-contract=fast, so the compiler fuses a * b + c. */
#ifndef DSVI_SIMD_H
#define DSVI_SIMD_H

#include "base/dtype.h"
#include "ops/ops.h"

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DSVI_SIMD_LEVEL
#define DSVI_SIMD_LEVEL base
#endif
#define DSVI_SIMD_JOINED(name, level) dsvi_##name##_##level
#define DSVI_SIMD_EXPANDED(name, level) DSVI_SIMD_JOINED(name, level)
#define DSVI_SIMD(name) DSVI_SIMD_EXPANDED(name, DSVI_SIMD_LEVEL)
#define DSVI_SIMD_TEXT_OF(level) #level
#define DSVI_SIMD_EXPANDED_TEXT(level) DSVI_SIMD_TEXT_OF(level)
#define DSVI_SIMD_NAME                                                                  \
    DSVI_SIMD_EXPANDED_TEXT(DSVI_SIMD_LEVEL) /* the variant's name as a string, such as \
                                              * "avx2" */

/* Lanes of a vector, and the number of rows of a tile that a product keeps in registers (tile_product.h). */
#if defined(__AVX512F__)
enum { DSVI_LANES = 16, DSVI_TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { DSVI_LANES = 8, DSVI_TILE_ROWS = 4 };
#else
enum { DSVI_LANES = 4, DSVI_TILE_ROWS = 4 };
#endif

typedef float DsviVec __attribute__((vector_size(DSVI_LANES * 4)));
typedef int32_t DsviVecInt __attribute__((vector_size(DSVI_LANES * 4)));

/* `x` need not be aligned. */
static inline DsviVec dsvi_vec_load(const float *x)
{
    DsviVec v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void dsvi_vec_store(float *x, DsviVec v)
{
    memcpy(x, &v, sizeof v);
}

static inline DsviVec dsvi_vec_all(float x)
{
    DsviVec zero = {0};
    return x - zero; /* broadcast x; unlike 0 + x this also keeps -0, and it costs no instruction */
}

/* Minimum (maximum) of each lane; returns the lane of `b` if either is NaN. */
static inline DsviVec dsvi_vec_min(DsviVec a, DsviVec b)
{
#if defined(__AVX512F__)
    return (DsviVec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (DsviVec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (DsviVec)_mm_min_ps((__m128)a, (__m128)b);
#else
    for (int i = 0; i < DSVI_LANES; i++)
        b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
#endif
}

static inline DsviVec dsvi_vec_max(DsviVec a, DsviVec b)
{
#if defined(__AVX512F__)
    return (DsviVec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (DsviVec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (DsviVec)_mm_max_ps((__m128)a, (__m128)b);
#else
    for (int i = 0; i < DSVI_LANES; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
#endif
}

/* Sum of all lanes. Lanes are added pairwise, always in the same order. */
static inline float dsvi_vec_sum(DsviVec v)
{
    float x[DSVI_LANES];
    memcpy(x, &v, sizeof x);
    for (int half = DSVI_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] += x[i + half];
    return x[0];
}

/* Returns whether any lane of a comparison's result is true. */
static inline bool dsvi_vec_any(DsviVecInt condition)
{
    bool any = false;
    for (int i = 0; i < DSVI_LANES; i++)
        any |= condition[i] != 0;
    return any;
}

static inline float dsvi_vec_largest(DsviVec v)
{
    float x = v[0];
    for (int i = 1; i < DSVI_LANES; i++)
        x = v[i] > x ? v[i] : x;
    return x;
}

/* Returns n rounded up to a multiple of `unit`. */
static inline int64_t dsvi_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Takes the next `floats` floats of the scratch memory at `base` and advances *used. The result is 64-byte
 * aligned if `base` is. If `base` is NULL, only advances *used and returns NULL. */
static inline float *dsvi_take_floats(float *base, size_t *used, int64_t floats)
{
    float *piece = base ? base + *used : NULL;
    *used += (size_t)dsvi_round_up(floats, 16);
    return piece;
}

#ifdef __cplusplus
}
#endif
#endif
