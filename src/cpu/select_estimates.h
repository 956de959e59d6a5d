/* The log-sum-exp of each proxy and the estimates of each group (ops/select.h), for the SIMD variants of
 * selection.
 *
 * Proxies are the rows of a tile product, and candidates its columns (select_columns.h). The few proxies of a
 * small group would leave rows empty, so several consecutive groups, a team, are scored in one product. A
 * worker holds one row of estimates for each group of a team, never the whole matrix of scores. Powers of the
 * scores of coarse features do not even leave the registers (select_powers.h). */
#ifndef DSVI_SELECT_ESTIMATES_H
#define DSVI_SELECT_ESTIMATES_H

#include <math.h>

#include "cpu/select_columns.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TEAM_PROXIES = 32 }; /* proxies in one product */

/* Scratch of one worker. `width` is the width of the columns of all candidates. */
typedef struct DsviTeamScratch {
    float *proxies;  /* (DSVI_TEAM_PROXIES, features) */
    float *scores;   /* (DSVI_TEAM_PROXIES, DSVI_COLUMNS_BLOCK); unused if features are coarse */
    float *estimate; /* (groups of a team, width) estimates of candidates, then of spans */
    float *products; /* (DSVI_TILE_ROWS, width) sums of products; only if estimates are kept */
} DsviTeamScratch;

/* Groups [begin, end) of one (batch, head), at most dsvi_team_groups, and their proxies. */
typedef struct DsviSelectTeam {
    const DsviSelectArgs *args;
    DsviTeamScratch scratch;
    DsviSelectColumns all; /* all candidates of the (batch, head) */
    int64_t begin, end;
    int64_t first_proxy, end_proxy;
    const float *proxies; /* (proxies, features) of the (batch, head) */
    float *lse;           /* (proxies) of the (batch, head) */
    const float *kept;    /* scratch.products while they are those of the loaded proxies, or NULL */
} DsviSelectTeam;

/* Returns the number of groups in a team: as many as fill the rows of a tile product, at least one. */
static inline int64_t dsvi_team_groups(const DsviSelectArgs *args)
{
    int64_t per_group = dsvi_select_per_group(args);
    return per_group > 0 && per_group < DSVI_TILE_ROWS ? DSVI_TILE_ROWS / per_group : 1;
}

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. `keeps`: estimates are kept. */
static inline size_t dsvi_team_scratch(const DsviSelectArgs *args, int64_t width, bool keeps, float *base,
                                       DsviTeamScratch *s)
{
    size_t used = 0;
    s->proxies = dsvi_take_floats(base, &used, DSVI_TEAM_PROXIES * args->features);
    s->scores = dsvi_take_floats(base, &used, args->coarse ? 0 : DSVI_TEAM_PROXIES * DSVI_COLUMNS_BLOCK);
    s->estimate = dsvi_take_floats(base, &used, dsvi_team_groups(args) * width);
    s->products = dsvi_take_floats(base, &used, keeps ? DSVI_TILE_ROWS * width : 0);
    return used;
}

/* Describes groups [begin, end) of (batch, head) number `pair`, whose candidates are `all`. */
static inline DsviSelectTeam dsvi_select_team(const DsviSelectArgs *args, const DsviTeamScratch *scratch,
                                              const DsviSelectColumns *all, int64_t pair, int64_t begin,
                                              int64_t end)
{
    int64_t per_group = dsvi_select_per_group(args), proxies = dsvi_select_proxies(args);
    return (DsviSelectTeam){.args = args,
                            .scratch = *scratch,
                            .all = *all,
                            .begin = begin,
                            .end = end,
                            .first_proxy = dsvi_min(begin * per_group, proxies),
                            .end_proxy = dsvi_min(end * per_group, proxies),
                            .proxies = args->proxies + pair * proxies * args->features,
                            .lse = args->lse + pair * proxies,
                            .kept = NULL};
}

/* Returns the row of estimates of group g. */
static inline float *dsvi_team_estimate(const DsviSelectTeam *t, int64_t g)
{
    return t->scratch.estimate + (g - t->begin) * t->all.width;
}

/* Copies proxies [first, first + count) of the (batch, head) to scratch.proxies. If features are coarse, they
 * are rounded (dsvi_select_coarse) and multiplied by DSVI_POWER_UNIT. Adds rows of zeros up to a multiple of
 * DSVI_TILE_ROWS. */
static inline void dsvi_team_load(const DsviSelectTeam *t, int64_t first, int64_t count)
{
    const DsviSelectArgs *args = t->args;
    int64_t features = args->features, rows = dsvi_round_up(count, DSVI_TILE_ROWS);
    float *out = t->scratch.proxies;
    memcpy(out, t->proxies + first * features, (size_t)(count * features) * sizeof *out);
    for (int64_t i = 0; i < count * features && args->coarse; i++)
        out[i] = dsvi_select_coarse(out[i], args->scale * DSVI_LOG2_E) * DSVI_POWER_UNIT;
    memset(out + count * features, 0, (size_t)((rows - count) * features) * sizeof *out);
}

/* Computes the scores of `count` loaded proxies and columns [first, first + columns) of a block. Scores after
 * the last candidate are -inf. Returns the number of columns, a multiple of the vector length. */
static inline int64_t dsvi_team_score(const DsviSelectTeam *t, const DsviSelectColumns *of, int64_t count,
                                      int64_t first)
{
    int64_t columns = dsvi_min(of->width - first, DSVI_COLUMNS_BLOCK);
    float *scores = t->scratch.scores;
    const DsviTileProduct product = {.m = dsvi_round_up(count, DSVI_TILE_ROWS),
                                     .n = columns,
                                     .k = of->features,
                                     .a = t->scratch.proxies,
                                     .a_row = of->features,
                                     .a_col = 1,
                                     .b = dsvi_column(of, first),
                                     .ldb = DSVI_COLUMNS_BLOCK,
                                     .c = scores,
                                     .ldc = DSVI_COLUMNS_BLOCK,
                                     .factor = (float)t->args->scale,
                                     .add = false,
                                     .pairs = false,
                                     .piece = 0};
    dsvi_tile_product(&product);
    for (int64_t c = of->count - first; c < columns; c++)
        for (int64_t p = 0; p < count; p++)
            scores[p * DSVI_COLUMNS_BLOCK + c] = -INFINITY;
    return columns;
}

/* The running log-sum-exp of one proxy, separate in each lane. */
typedef struct DsviLaneSums {
    DsviVec largest, sum;
} DsviLaneSums;

static inline void dsvi_lanes_add(DsviLaneSums *lanes, const float *scores, int64_t columns)
{
    DsviVec before = lanes->largest, now = before, sum = dsvi_vec_all(0);
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + c));
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        sum += dsvi_vec_exp_weight(dsvi_vec_load(scores + c) - now);
    lanes->sum = lanes->sum * dsvi_vec_exp_weight(before - now) + sum;
    lanes->largest = now;
}

static inline float dsvi_lanes_lse(const DsviLaneSums *lanes)
{
    float largest = dsvi_vec_largest(lanes->largest);
    float sum = dsvi_vec_sum(lanes->sum * dsvi_vec_exp_weight(lanes->largest - dsvi_vec_all(largest)));
    return (float)(largest + log(sum));
}

/* Computes the log-sum-exp of `count` loaded proxies over all candidates. */
static inline void dsvi_exact_lse(const DsviSelectTeam *t, int64_t count, float *lse)
{
    DsviLaneSums lanes[DSVI_TEAM_PROXIES];
    /* The maximum starts at a finite number and not at -inf, because a lane may contain only padding, and
     * -inf - -inf is NaN. */
    for (int64_t p = 0; p < count; p++)
        lanes[p] = (DsviLaneSums){dsvi_vec_all(DSVI_POWER_LOWEST), dsvi_vec_all(0)};
    for (int64_t from = 0; from < t->all.width; from += DSVI_COLUMNS_BLOCK) {
        int64_t columns = dsvi_team_score(t, &t->all, count, from);
        for (int64_t p = 0; p < count; p++)
            dsvi_lanes_add(&lanes[p], t->scratch.scores + p * DSVI_COLUMNS_BLOCK, columns);
    }
    for (int64_t p = 0; p < count; p++)
        lse[p] = dsvi_lanes_lse(&lanes[p]);
}

/* Returns the arguments for the powers of loaded proxies [p, p + DSVI_TILE_ROWS) and the block of columns
 * that begins at `from`. `start` has one element for each loaded proxy. */
static inline DsviPowers dsvi_team_powers(const DsviSelectTeam *t, const DsviSelectColumns *of, int64_t p,
                                          const float *start, int64_t from)
{
    return (DsviPowers){.features = of->features,
                        .proxies = t->scratch.proxies + p * of->features,
                        .start = start + p,
                        .candidates = dsvi_column(of, from),
                        .pitch = DSVI_COLUMNS_BLOCK,
                        .count = dsvi_min(of->count - from, DSVI_COLUMNS_BLOCK),
                        .kept = t->kept ? t->kept + from : NULL,
                        .kept_row = t->all.width};
}

/* Computes sum[p], the sum over all candidates of power(score - reference[p]), of `count` loaded proxies. */
static inline void dsvi_coarse_sums(const DsviSelectTeam *t, int64_t count, const float *reference,
                                    float *sum)
{
    float start[DSVI_TEAM_PROXIES] = {0};
    DsviVec lanes[DSVI_TEAM_PROXIES] = {{0}};
    for (int64_t p = 0; p < count; p++)
        start[p] = dsvi_power_start(-reference[p]);
    for (int64_t from = 0; from < t->all.width; from += DSVI_COLUMNS_BLOCK)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = dsvi_team_powers(t, &t->all, p, start, from);
            dsvi_powers_sum(&powers, lanes + p);
        }
    for (int64_t p = 0; p < count; p++)
        sum[p] = dsvi_vec_sum(lanes[p]);
}

/* Returns whether a sum of powers neither overflowed nor is so small that powers were flushed to zero. */
static inline bool dsvi_coarse_in_range(float sum)
{
    return sum >= 0x1p-80f && sum < INFINITY;
}

/* Sets the reference of each proxy whose sum of powers is not in range to the proxy's largest score, rounded
 * up to an integer, so that it scales powers exactly. */
static inline void dsvi_coarse_references(const DsviSelectTeam *t, int64_t count, const float *sum,
                                          float *reference)
{
    static const float start[DSVI_TEAM_PROXIES] = {0};
    DsviVec largest[DSVI_TEAM_PROXIES];
    for (int64_t p = 0; p < DSVI_TEAM_PROXIES; p++)
        largest[p] = dsvi_vec_all(DSVI_POWER_LOWEST);
    for (int64_t from = 0; from < t->all.width; from += DSVI_COLUMNS_BLOCK)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = dsvi_team_powers(t, &t->all, p, start, from);
            dsvi_powers_largest(&powers, largest + p);
        }
    for (int64_t p = 0; p < count; p++)
        if (!dsvi_coarse_in_range(sum[p]))
            reference[p] = ceilf(dsvi_vec_largest(largest[p]) / DSVI_POWER_UNIT);
}

/* Does the same as dsvi_exact_lse for coarse features. Scores are rarely so large or so small that their
 * powers need a reference other than 0. */
static inline void dsvi_coarse_lse(const DsviSelectTeam *t, int64_t count, float *lse)
{
    float reference[DSVI_TEAM_PROXIES] = {0}, sum[DSVI_TEAM_PROXIES];
    bool ok = true;
    dsvi_coarse_sums(t, count, reference, sum);
    for (int64_t p = 0; p < count; p++)
        ok &= dsvi_coarse_in_range(sum[p]);
    if (!ok) {
        dsvi_coarse_references(t, count, sum, reference);
        dsvi_coarse_sums(t, count, reference, sum);
    }
    for (int64_t p = 0; p < count; p++)
        lse[p] = (float)(reference[p] / DSVI_LOG2_E + log(sum[p]));
}

/* Computes the log-sum-exp of the scores of each proxy of the team, over all candidates. */
static inline void dsvi_team_lse(const DsviSelectTeam *t)
{
    for (int64_t first = t->first_proxy; first < t->end_proxy; first += DSVI_TEAM_PROXIES) {
        int64_t count = dsvi_min(t->end_proxy - first, DSVI_TEAM_PROXIES);
        dsvi_team_load(t, first, count);
        if (t->args->coarse)
            dsvi_coarse_lse(t, count, t->lse + first);
        else
            dsvi_exact_lse(t, count, t->lse + first);
    }
}

/* Returns the weight of proxy p of a (batch, head) in its group: the fraction of the group's queries. */
static inline float dsvi_proxy_weight(const DsviSelectArgs *args, int64_t p)
{
    int64_t of_group = args->queries - p * args->chunk / args->group * args->group;
    int64_t of_proxy = args->queries - p * args->chunk;
    return (float)dsvi_min(of_proxy, args->chunk) / (float)dsvi_min(of_group, args->group);
}

/* Computes estimate[0..columns) += weight exp(score - lse). */
static inline void dsvi_estimates_add(float *estimate, const float *scores, int64_t columns, float lse,
                                      float weight)
{
    for (int64_t c = 0; c < columns; c += DSVI_LANES) {
        DsviVec a = dsvi_vec_exp_weight(dsvi_vec_load(scores + c) - dsvi_vec_all(lse));
        dsvi_vec_store(estimate + c, dsvi_vec_load(estimate + c) + a * weight);
    }
}

/* Adds what loaded proxies [first, first + count) contribute to the estimates of their groups. */
static inline void dsvi_exact_add(const DsviSelectTeam *t, const DsviSelectColumns *of, int64_t first,
                                  int64_t count)
{
    int64_t per_group = dsvi_select_per_group(t->args);
    for (int64_t from = 0; from < of->width; from += DSVI_COLUMNS_BLOCK) {
        int64_t columns = dsvi_team_score(t, of, count, from);
        for (int64_t p = first; p < first + count; p++)
            dsvi_estimates_add(dsvi_team_estimate(t, p / per_group) + from,
                               t->scratch.scores + (p - first) * DSVI_COLUMNS_BLOCK, columns, t->lse[p],
                               dsvi_proxy_weight(t->args, p));
    }
}

/* Does the same as dsvi_exact_add for coarse features. */
static inline void dsvi_coarse_add(const DsviSelectTeam *t, const DsviSelectColumns *of, int64_t first,
                                   int64_t count)
{
    int64_t per_group = dsvi_select_per_group(t->args);
    float start[DSVI_TEAM_PROXIES] = {0};
    uint32_t ends = 0; /* bit p: proxy p is the last of its group or of a block of DSVI_TILE_ROWS */
    for (int64_t p = 0; p < count; p++) {
        double lse = t->lse[first + p];
        bool end = (first + p + 1) % per_group == 0 || (p + 1) % DSVI_TILE_ROWS == 0 || p + 1 == count;
        start[p] = dsvi_power_start(log2(dsvi_proxy_weight(t->args, first + p)) - lse * DSVI_LOG2_E);
        ends |= (uint32_t)end << p;
    }
    for (int64_t from = 0; from < of->width; from += DSVI_COLUMNS_BLOCK)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = dsvi_team_powers(t, of, p, start, from);
            dsvi_powers_add(&powers, ends >> p, dsvi_team_estimate(t, (first + p) / per_group) + from,
                            t->all.width);
        }
}

static inline void dsvi_estimates_clear(const DsviSelectTeam *t, const DsviSelectColumns *of)
{
    for (int64_t g = t->begin; g < t->end; g++)
        memset(dsvi_team_estimate(t, g), 0, (size_t)of->width * sizeof(float));
}

/* Replaces the estimates of candidates by the sums of each span. */
static inline void dsvi_estimates_sum(const DsviSelectTeam *t, const DsviSelectColumns *of)
{
    int64_t per_span = dsvi_select_per_span(t->args);
    for (int64_t g = t->begin; per_span > 1 && g < t->end; g++) {
        float *estimate = dsvi_team_estimate(t, g);
        for (int64_t r = 0; r < of->spans; r++) {
            int64_t end = dsvi_min((r + 1) * per_span, of->count);
            float sum = 0;
            for (int64_t c = r * per_span; c < end; c++)
                sum += estimate[c];
            estimate[r] = sum;
        }
    }
}

/* Computes the estimates e_gr (ops/select.h) of the team's groups g and of each span r of the columns `of`,
 * in scratch.estimate. */
static inline void dsvi_team_estimates(const DsviSelectTeam *t, const DsviSelectColumns *of)
{
    dsvi_estimates_clear(t, of);
    for (int64_t first = t->first_proxy; first < t->end_proxy; first += DSVI_TEAM_PROXIES) {
        int64_t count = dsvi_min(t->end_proxy - first, DSVI_TEAM_PROXIES);
        dsvi_team_load(t, first, count);
        if (t->args->coarse)
            dsvi_coarse_add(t, of, first, count);
        else
            dsvi_exact_add(t, of, first, count);
    }
    dsvi_estimates_sum(t, of);
}

/* Keeps the sums of products of the first DSVI_TILE_ROWS loaded proxies and all candidates. */
static inline void dsvi_team_keep_products(const DsviSelectTeam *t)
{
    static const float start[DSVI_TILE_ROWS] = {0};
    for (int64_t from = 0; from < t->all.width; from += DSVI_COLUMNS_BLOCK) {
        const DsviPowers powers = dsvi_team_powers(t, &t->all, 0, start, from);
        dsvi_powers_keep(&powers, t->scratch.products + from, t->all.width);
    }
}

/* Does the same as dsvi_team_lse, and then the same as dsvi_team_estimates for all spans, for coarse
 * features. Keeps the products of a few proxies at a time, so that they stay in cache. */
static inline void dsvi_team_lse_and_estimates(const DsviSelectTeam *t)
{
    DsviSelectTeam kept = *t;
    kept.kept = t->scratch.products;
    dsvi_estimates_clear(t, &t->all);
    for (int64_t first = t->first_proxy; first < t->end_proxy; first += DSVI_TILE_ROWS) {
        int64_t count = dsvi_min(t->end_proxy - first, DSVI_TILE_ROWS);
        dsvi_team_load(t, first, count);
        dsvi_team_keep_products(t);
        dsvi_coarse_lse(&kept, count, t->lse + first);
        dsvi_coarse_add(&kept, &t->all, first, count);
    }
    dsvi_estimates_sum(t, &t->all);
}

#ifdef __cplusplus
}
#endif
#endif
