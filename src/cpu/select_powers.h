/* Sums of the powers of two of coarse scores (ops/select.h, DSVI_SELECT_COARSE_ERROR). The scores of a block
 * of proxies and a strip of candidates, and their powers, stay in registers. Only the sums of products may be
 * stored, for a second use.
 *
 * dsvi_select_power(x) is the float whose bits are (x + 127) 2^23. The proxies are therefore multiplied by
 * 2^23, and (127 + term) 2^23 is added to each sum of products, where `term` is the number that is added to
 * all scores of the proxy. The integer part of the sum is the result. At this magnitude a float has 16 or
 * more fractional bits of the exponent x. */
#ifndef DSVI_SELECT_POWERS_H
#define DSVI_SELECT_POWERS_H

#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_POWER_UNIT 0x1p23f
#define DSVI_POWER_INFINITY 0x1.FEp30f /* 0x7F800000, the bits of infinity: the largest sum */
#define DSVI_POWER_LOWEST (-3e38f)     /* the sum of a lane without a candidate: its power is 0 */

enum { DSVI_POWER_STRIP = 2 * DSVI_LANES }; /* candidates in a strip */

/* A block of DSVI_TILE_ROWS proxies and some candidates. */
typedef struct DsviPowers {
    int64_t features;
    const float *proxies;    /* (DSVI_TILE_ROWS, features), multiplied by DSVI_POWER_UNIT */
    const float *start;      /* (DSVI_TILE_ROWS) dsvi_power_start of each proxy, 0 for rows without one */
    const float *candidates; /* (features, pitch): transposed; all strips are readable to their end */
    int64_t pitch, count;    /* count: number of candidates */
    const float *kept; /* (DSVI_TILE_ROWS, kept_row) sums of products that dsvi_powers_keep stored, or NULL:
                        * they are computed */
    int64_t kept_row;
} DsviPowers;

static inline float dsvi_power_start(double term)
{
    return (float)((127 + term) * DSVI_POWER_UNIT);
}

/* Computes the sums of products of the strip that begins at candidate c, each plus the start of its proxy.
 * Kept and computed sums give equal bits. */
static inline __attribute__((always_inline)) void dsvi_power_scores(const DsviPowers *p, int64_t c,
                                                                    DsviVec score[DSVI_TILE_ROWS][2])
{
    const DsviTileProduct t = {.m = DSVI_TILE_ROWS,
                               .n = DSVI_POWER_STRIP,
                               .k = p->features,
                               .a = p->proxies,
                               .a_row = p->features,
                               .a_col = 1,
                               .b = p->candidates + c,
                               .ldb = p->pitch,
                               .c = NULL,
                               .ldc = 0,
                               .factor = 1,
                               .add = false,
                               .pairs = false,
                               .piece = 0};
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < 2; j++)
            score[i][j] = p->kept ? dsvi_vec_load(p->kept + i * p->kept_row + c + j * DSVI_LANES)
                                  : dsvi_vec_all(0);
    if (!p->kept)
        dsvi_tile_sum(&t, t.a, t.b, 0, t.k, 2, false, score);
    for (int i = 0; i < DSVI_TILE_ROWS; i++)
        for (int j = 0; j < 2; j++)
            score[i][j] += dsvi_vec_all(p->start[i]);
}

/* Stores the sums of products, with the starts, in rows of `to` that are `row` floats apart. Rows are written
 * to the end of the last strip. */
static inline void dsvi_powers_keep(const DsviPowers *p, float *to, int64_t row)
{
    DsviVec score[DSVI_TILE_ROWS][2];
    for (int64_t c = 0; c < p->count; c += DSVI_POWER_STRIP) {
        dsvi_power_scores(p, c, score);
        for (int i = 0; i < DSVI_TILE_ROWS; i++)
            for (int j = 0; j < 2; j++)
                dsvi_vec_store(to + i * row + c + j * DSVI_LANES, score[i][j]);
    }
}

/* Returns the upper limits of the sums of a vector: `limit` in each lane that holds a candidate, and
 * DSVI_POWER_LOWEST in the others. `count` is the number of candidates from the vector's first lane on. */
static inline DsviVec dsvi_power_limit(int64_t count, float limit)
{
    float lanes[DSVI_LANES];
    if (count >= DSVI_LANES)
        return dsvi_vec_all(limit);
    for (int i = 0; i < (int)DSVI_LANES; i++)
        lanes[i] = i < count ? limit : DSVI_POWER_LOWEST;
    return dsvi_vec_load(lanes);
}

/* Returns the power of a sum x: the float whose bits are x, limited to [0, limit], or 0 if x is NaN. */
static inline DsviVec dsvi_power_of(DsviVec x, DsviVec limit)
{
    x = dsvi_vec_max(dsvi_vec_min(limit, x), dsvi_vec_all(0));
    return dsvi_vec_from_bits(__builtin_convertvector(x, DsviVecInt));
}

/* Computes, separately in each lane, sum[i] += the powers of the scores of proxy i. The sums are copied, so
 * that they stay in registers during the loop. */
static inline void dsvi_powers_sum(const DsviPowers *p, DsviVec *sum)
{
    DsviVec score[DSVI_TILE_ROWS][2], total[DSVI_TILE_ROWS];
    memcpy(total, sum, sizeof total);
    for (int64_t c = 0; c < p->count; c += DSVI_POWER_STRIP) {
        dsvi_power_scores(p, c, score);
        for (int j = 0; j < 2; j++) {
            DsviVec limit = dsvi_power_limit(p->count - c - j * DSVI_LANES, DSVI_POWER_INFINITY);
            for (int i = 0; i < DSVI_TILE_ROWS; i++)
                total[i] += dsvi_power_of(score[i][j], limit);
        }
    }
    memcpy(sum, total, sizeof total);
}

/* Raises largest[i], separately in each lane, to the largest sum of proxy i. */
static inline void dsvi_powers_largest(const DsviPowers *p, DsviVec *largest)
{
    DsviVec score[DSVI_TILE_ROWS][2];
    for (int64_t c = 0; c < p->count; c += DSVI_POWER_STRIP) {
        dsvi_power_scores(p, c, score);
        for (int j = 0; j < 2; j++) {
            DsviVec limit = dsvi_power_limit(p->count - c - j * DSVI_LANES, INFINITY);
            for (int i = 0; i < DSVI_TILE_ROWS; i++)
                largest[i] = dsvi_vec_max(dsvi_vec_min(limit, score[i][j]), largest[i]);
        }
    }
}

/* Adds the powers of the proxies of each group to the group's row of estimates. The first row is `estimate`;
 * rows are `row` floats apart and are written to the end of the last strip. Bit i of `ends` is set if proxy i
 * is the last of its group in this block. */
static inline void dsvi_powers_add(const DsviPowers *p, uint32_t ends, float *estimate, int64_t row)
{
    DsviVec score[DSVI_TILE_ROWS][2];
    for (int64_t c = 0; c < p->count; c += DSVI_POWER_STRIP) {
        dsvi_power_scores(p, c, score);
        DsviVec limit[2], sum[2] = {0};
        float *to = estimate + c;
        for (int j = 0; j < 2; j++)
            limit[j] = dsvi_power_limit(p->count - c - j * DSVI_LANES, DSVI_POWER_INFINITY);
        for (int i = 0; i < DSVI_TILE_ROWS; i++) {
            for (int j = 0; j < 2; j++)
                sum[j] += dsvi_power_of(score[i][j], limit[j]);
            if (!(ends >> i & 1))
                continue;
            for (int j = 0; j < 2; j++) {
                dsvi_vec_store(to + j * DSVI_LANES, dsvi_vec_load(to + j * DSVI_LANES) + sum[j]);
                sum[j] = dsvi_vec_all(0);
            }
            to += row;
        }
    }
}

#ifdef __cplusplus
}
#endif
#endif
