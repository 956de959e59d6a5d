/* For sources that are compiled once for each level of the instruction set (CMakeLists.txt: *_simd.c).
 *
 * One such source gives one linkable function per level, which puts the level's variants into an op table:
 *     void DSVI_SIMD(fill_attention)(DsvOps *ops)      is      dsvi_fill_attention_avx2 and so on;
 * everything else in it is static. Code is plain C; where the compiler must not fail to keep things in
 * registers it uses DsvVec, a vector of as many floats as the level's registers hold (a gcc and clang type;
 * + - * work lane by lane). The compiler fuses a * b + c here: these sources are compiled with
 * -ffp-contract=fast. */
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
#define DSVI_SIMD_NAME DSVI_SIMD_EXPANDED_TEXT(DSVI_SIMD_LEVEL) /* "avx2": the variant's name */

/* Lanes of a vector, and rows of a tile that a product keeps in registers (tile_product.h). */
#if defined(__AVX512F__)
enum { DSVI_LANES = 16, DSVI_TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { DSVI_LANES = 8, DSVI_TILE_ROWS = 4 };
#else
enum { DSVI_LANES = 4, DSVI_TILE_ROWS = 4 };
#endif

typedef float DsvVec __attribute__((vector_size(DSVI_LANES * 4)));
typedef int32_t DsvVecInt __attribute__((vector_size(DSVI_LANES * 4)));

/* `x` need not be aligned. */
static inline DsvVec dsvi_vec_load(const float *x)
{
    DsvVec v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void dsvi_vec_store(float *x, DsvVec v)
{
    memcpy(x, &v, sizeof v);
}

static inline DsvVec dsvi_vec_all(float x)
{
    DsvVec zero = {0};
    return x - zero; /* unlike 0 + x this is x for -0 as well, and no instruction */
}

/* The smaller (larger) of each lane; `b` where either is NaN. */
static inline DsvVec dsvi_vec_min(DsvVec a, DsvVec b)
{
#if defined(__AVX512F__)
    return (DsvVec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (DsvVec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (DsvVec)_mm_min_ps((__m128)a, (__m128)b);
#else
    for (int i = 0; i < DSVI_LANES; i++)
        b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
#endif
}

static inline DsvVec dsvi_vec_max(DsvVec a, DsvVec b)
{
#if defined(__AVX512F__)
    return (DsvVec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (DsvVec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (DsvVec)_mm_max_ps((__m128)a, (__m128)b);
#else
    for (int i = 0; i < DSVI_LANES; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
#endif
}

/* Sum of all lanes, pairwise: the order is the same for every call. */
static inline float dsvi_vec_sum(DsvVec v)
{
    float x[DSVI_LANES];
    memcpy(x, &v, sizeof x);
    for (int half = DSVI_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] += x[i + half];
    return x[0];
}

/* Of a comparison's result. */
static inline bool dsvi_vec_any(DsvVecInt truth)
{
    bool any = false;
    for (int i = 0; i < DSVI_LANES; i++)
        any |= truth[i] != 0;
    return any;
}

static inline float dsvi_vec_largest(DsvVec v)
{
    float x = v[0];
    for (int i = 1; i < DSVI_LANES; i++)
        x = v[i] > x ? v[i] : x;
    return x;
}

/* n rounded up to a multiple of `unit`. */
static inline int64_t dsvi_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* The next `floats` of scratch that begins at `base`, 64 bytes aligned if that is; NULL without a base, to
 * count what is wanted. */
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
