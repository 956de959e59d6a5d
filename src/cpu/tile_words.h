/* Operands of tile products (tile_product.h) as 32-bit words along k: one F32 each or, if the processor
 * multiplies pairs of BF16 (AVX512-BF16, AMX), two BF16 that are consecutive along k, the first in the low
 * half. Buffers of words are declared as float, whatever they hold.
 *
 * Rows are packed "along" if k runs over the elements of a row, and "across" if k runs from row to row. With
 * F32 words both are the rows themselves. */
#ifndef DSVI_TILE_WORDS_H
#define DSVI_TILE_WORDS_H

#include "cpu/simd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSVI_HAS_PAIRS: this level multiplies BF16 pairs. With pairs, k is rounded up to DSVI_WORDS_UNIT, and the
 * rows of operands and results to DSVI_ROWS_UNIT. */
#if defined(__AMX_BF16__)
enum { DSVI_HAS_PAIRS = 1, DSVI_WORDS_UNIT = 16, DSVI_ROWS_UNIT = 32 };
#elif defined(__AVX512BF16__)
enum { DSVI_HAS_PAIRS = 1, DSVI_WORDS_UNIT = 1, DSVI_ROWS_UNIT = DSVI_TILE_ROWS };
#else
enum { DSVI_HAS_PAIRS = 0, DSVI_WORDS_UNIT = 1, DSVI_ROWS_UNIT = DSVI_TILE_ROWS };
#endif

/* Returns the number of which the row count of a tile product must be a multiple: operands are filled up
 * with rows of zeros, and results need room for the additional rows. */
static inline int64_t dsvi_rows_unit(bool pairs)
{
    return pairs ? (int64_t)DSVI_ROWS_UNIT : (int64_t)DSVI_TILE_ROWS;
}

/* Number of 32-bit words that n elements along k occupy. */
static inline int64_t dsvi_words(bool pairs, int64_t n)
{
    return pairs ? dsvi_round_up((n + 1) / 2, DSVI_WORDS_UNIT) : n;
}

/* Returns sum + a b, lane by lane, for words that are one F32 each or, with `pairs`, two BF16 each. */
static inline __attribute__((always_inline)) DsviVec dsvi_words_add(bool pairs, DsviVec sum, DsviVec a,
                                                                    DsviVec b)
{
#if defined(__AVX512BF16__)
    if (pairs)
        return (DsviVec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return sum + a * b;
}

/* Returns, for each lane, the sum of `words` products of the words in this lane of `a` and `b`; consecutive
 * words are `stride` apart. The order of additions is the order of a tile product with the same `piece`
 * (tile_product.h), so the results are bitwise equal. */
static inline DsviVec dsvi_words_dot(bool pairs, const float *a, const float *b, int64_t words,
                                     int64_t stride, int64_t piece)
{
    DsviVec sum = dsvi_vec_all(0);
#if defined(__AMX_BF16__)
    /* As the AMX instruction TDPBF16PS does, sums the products of the first halves of 16 words and of
     * their second halves separately (Intel SDM, volume 2). */
    const __m512i second = _mm512_set1_epi32((int)0xFFFF0000u);
    for (int64_t from = 0; pairs && from < words; from += DSVI_WORDS_UNIT) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int64_t at = from * stride; at < (from + DSVI_WORDS_UNIT) * stride; at += stride) {
            __m512i x = _mm512_loadu_si512(a + at), y = _mm512_loadu_si512(b + at);
            even = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(x, 16), (__m512)_mm512_slli_epi32(y, 16), even);
            odd = _mm512_fmadd_ps((__m512)_mm512_and_si512(x, second), (__m512)_mm512_and_si512(y, second),
                                  odd);
        }
        sum += (DsviVec)_mm512_add_ps(even, odd);
    }
    if (pairs)
        return sum;
#endif
    for (int64_t from = 0, to; from < words; from = to) {
        to = !piece || words - from <= piece ? words : from + piece;
        DsviVec part = dsvi_vec_all(0);
        for (int64_t at = from * stride; at < to * stride; at += stride)
            part = dsvi_words_add(pairs, part, dsvi_vec_load(a + at), dsvi_vec_load(b + at));
        sum += part;
    }
    return sum;
}

/* Packs two rows of F32, `low` and `high`, into one row of pairs packed across. */
static inline DsviVec dsvi_pair_across(DsviVec low, DsviVec high)
{
#if defined(__AVX512BF16__)
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh halves = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (DsviVec)_mm512_permutexvar_epi16(order, (__m512i)halves);
#else
    (void)high;
    return low;
#endif
}

/* Packs two consecutive vectors of a row of F32 into one vector of pairs packed along. */
static inline DsviVec dsvi_pair_along(DsviVec first, DsviVec second)
{
#if defined(__AVX512BF16__)
    return (DsviVec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    (void)second;
    return first;
#endif
}

typedef uint16_t DsviVecHalf __attribute__((vector_size(DSVI_LANES * 2)));
typedef uint32_t DsviVecWord __attribute__((vector_size(DSVI_LANES * 4)));

/* Packs two rows of BF16, `low` and `high`, into one row of `words` words packed across. `words` is a
 * multiple of DSVI_LANES. */
static inline void dsvi_halves_across(const uint16_t *low, const uint16_t *high, int64_t words, float *out)
{
    for (int64_t d = 0; d < words; d += DSVI_LANES) {
        DsviVecHalf a, b;
        memcpy(&a, low + d, sizeof a);
        memcpy(&b, high + d, sizeof b);
        DsviVecWord pair = __builtin_convertvector(b, DsviVecWord) << 16;
        pair |= __builtin_convertvector(a, DsviVecWord);
        memcpy(out + d, &pair, sizeof pair);
    }
}

typedef float DsviVec4 __attribute__((vector_size(16)));

/* Transposes a 4 x 4 block: out[j, i] = in[i, j]. */
static inline void dsvi_transpose_4x4(const float *in, int64_t in_stride, float *out, int64_t out_stride)
{
    DsviVec4 row[4], pair[4], column[4];
    for (int i = 0; i < 4; i++)
        memcpy(&row[i], in + i * in_stride, sizeof row[i]);
    for (int i = 0; i < 2; i++) {
        pair[i] = __builtin_shufflevector(row[i], row[i + 2], 0, 4, 1, 5);
        pair[i + 2] = __builtin_shufflevector(row[i], row[i + 2], 2, 6, 3, 7);
    }
    for (int i = 0; i < 4; i += 2) {
        column[i] = __builtin_shufflevector(pair[i], pair[i + 1], 0, 4, 1, 5);
        column[i + 1] = __builtin_shufflevector(pair[i], pair[i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 4; i++)
        memcpy(out + i * out_stride, &column[i], sizeof column[i]);
}

/* Transposes words: out[d, i] = in[i, d], d < columns, for the first `count` rows of `in`, which are `stride`
 * apart. Further columns of `out`, up to tile_width, become 0. `columns` and tile_width are multiples of
 * four. `in` must have tile_width rows; the rows after `count` are overwritten with zeros. */
static inline void dsvi_rows_transpose(float *in, int64_t stride, int64_t columns, int64_t count, float *out,
                                       int64_t tile_width)
{
    for (int64_t i = count; i < tile_width; i++)
        memset(in + i * stride, 0, (size_t)columns * sizeof *in);
    for (int64_t i = 0; i < tile_width; i += 4)
        for (int64_t d = 0; d < columns; d += 4)
            dsvi_transpose_4x4(in + i * stride + d, stride, out + d * tile_width + i, tile_width);
}

#ifdef __cplusplus
}
#endif
#endif
