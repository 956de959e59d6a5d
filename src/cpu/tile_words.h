/* The operands of tile products (tile_product.h) as 32-bit words along k: one F32 each, or, where the
 * processor multiplies pairs of bf16 (AVX512-BF16, AMX), two bf16 that are consecutive along k, the first in
 * the low half. Buffers of words are declared as float, whatever they hold.
 *
 * "along" is along a row (k runs over its elements), "across" from row to row (k runs over the rows). With
 * F32 both are the rows themselves. */
#ifndef DSVI_TILE_WORDS_H
#define DSVI_TILE_WORDS_H

#include "cpu/simd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSVI_HAS_PAIRS: this level multiplies pairs. DSVI_WORDS_UNIT: k of pairs is rounded up to it, with zeros.
 * DSVI_ROWS_UNIT: so are the rows of what a product reads or writes. */
#if defined(__AVX512BF16__)
enum { DSVI_HAS_PAIRS = 1, DSVI_WORDS_UNIT = 1, DSVI_ROWS_UNIT = DSVI_TILE_ROWS };
#else
enum { DSVI_HAS_PAIRS = 0, DSVI_WORDS_UNIT = 1, DSVI_ROWS_UNIT = DSVI_TILE_ROWS };
#endif

/* Words that n elements make along k. */
static inline int64_t dsvi_words(bool pairs, int64_t n)
{
    return pairs ? dsvi_round_up((n + 1) / 2, DSVI_WORDS_UNIT) : n;
}

/* sum + a b, lane by lane, words being F32 or pairs. */
static inline __attribute__((always_inline)) DsvVec dsvi_words_add(bool pairs, DsvVec sum, DsvVec a, DsvVec b)
{
#if defined(__AVX512BF16__)
    if (pairs)
        return (DsvVec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return sum + a * b;
}

/* Two rows of F32, `low` and `high`, as one row of pairs: across. */
static inline DsvVec dsvi_pair_across(DsvVec low, DsvVec high)
{
#if defined(__AVX512BF16__)
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh halves = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (DsvVec)_mm512_permutexvar_epi16(order, (__m512i)halves);
#else
    (void)high;
    return low;
#endif
}

/* Two vectors of a row of F32, one behind the other, as one of pairs: along. */
static inline DsvVec dsvi_pair_along(DsvVec first, DsvVec second)
{
#if defined(__AVX512BF16__)
    return (DsvVec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    (void)second;
    return first;
#endif
}

typedef uint16_t DsvVecHalf __attribute__((vector_size(DSVI_LANES * 2)));
typedef uint32_t DsvVecWord __attribute__((vector_size(DSVI_LANES * 4)));

/* Rows `low` and `high` of bf16 as one row of `words` words (a multiple of DSVI_LANES): across. */
static inline void dsvi_halves_across(const uint16_t *low, const uint16_t *high, int64_t words, float *out)
{
    for (int64_t d = 0; d < words; d += DSVI_LANES) {
        DsvVecHalf a, b;
        memcpy(&a, low + d, sizeof a);
        memcpy(&b, high + d, sizeof b);
        DsvVecWord pair = __builtin_convertvector(a, DsvVecWord) | __builtin_convertvector(b, DsvVecWord) << 16;
        memcpy(out + d, &pair, sizeof pair);
    }
}

#ifdef __cplusplus
}
#endif
#endif
