/* SIMD variants of select_histogram and select_lists (ops/select.h): they compute histograms of estimates and
 * key lists from the features of queries (proxies) and of keys (candidates).
 *
 * Candidates are first transposed in blocks of (features, candidates), so that they are in vector lanes.
 * Proxies are the rows of a tile product. The few proxies of a small group would leave rows empty, so several
 * consecutive groups, a team, are scored in one product. Each worker holds one row of estimates for each
 * group of a team, never the whole matrix of scores. Powers of the scores of coarse features do not even
 * leave the registers (select_powers.h).
 *
 * Lists are made in three steps: first the spans of each group are chosen and marked as bits, and their
 * number and mass computed; then the offsets of the lists are computed in order; then the bits are written as
 * span numbers. */
#include <math.h>

#include "base/threads.h"
#include "cpu/select_choice.h"
#include "cpu/select_powers.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum {
    BLOCK_PROXIES = 32,  /* proxies in one product */
    BLOCK_COLUMNS = 256, /* candidates in one product */
    KEPT = 4,            /* times the memory of candidates that estimates may take to be kept */
    SLICES = 16          /* parts into which the groups of a (batch, head) are divided for the histograms */
};

/* The transposed candidates of some spans of one (batch, head). */
typedef struct Columns {
    int64_t spans, count; /* count: number of candidates */
    int64_t width;        /* `count` rounded up to whole strips (DSVI_POWER_STRIP) */
    float *transposed;    /* (blocks, features, BLOCK_COLUMNS) candidates */
} Columns;

typedef struct Select {
    const DsviSelectArgs *args;
    int64_t pairs, groups, proxies, spans;
    int64_t team;        /* largest number of groups in a team */
    bool keeps;          /* select_histogram computes and keeps the estimates of all spans */
    int64_t words;       /* number of 64-bit words that hold one bit for each span, for one group */
    Columns all;         /* candidates of every (batch, head), one after another */
    double *slice_count; /* (pairs, SLICES, BINS) */
    double *slice_mass;  /* (pairs, SLICES, BINS) */
    float *estimates;    /* (pairs * groups, spans) estimates that are kept for select_lists, or NULL */
    uint64_t *chosen;    /* (pairs * groups, words) bits of the chosen spans */
    double *mass;        /* (pairs * groups) estimated mass of each list */
    float *workers;
    size_t worker_floats;
} Select;

/* Scratch of one worker. */
typedef struct Scratch {
    float *proxies;  /* (BLOCK_PROXIES, features) */
    float *scores;   /* (BLOCK_PROXIES, BLOCK_COLUMNS); unused if features are coarse */
    float *estimate; /* (team, all.width) estimates of candidates, then of spans */
    float *counted;  /* of the spans that a tile of groups counts in the histogram, the transposed candidates,
                      * or  one group's estimates if they are kept; unused if all spans are counted */
    float *products; /* (DSVI_TILE_ROWS, all.width) sums of products; only if estimates are kept */
    const float *kept; /* `products` while they are those of the loaded proxies, or NULL */
    uint64_t *draws;   /* random bits of exploration: one for each span, or for each block of keys */
} Scratch;

static Columns select_columns_of(const DsviSelectArgs *args, int64_t spans, int64_t last_span,
                                 float *transposed)
{
    int64_t per_span = args->grain / args->candidate_keys;
    int64_t left = dsvi_select_candidates(args) - last_span * per_span;
    Columns columns = {.spans = spans, .transposed = transposed};
    columns.count = spans > 0 ? (spans - 1) * per_span + (left < per_span ? left : per_span) : 0;
    columns.width = dsvi_round_up(columns.count, DSVI_POWER_STRIP);
    return columns;
}

static int64_t column_blocks(int64_t width)
{
    return (width + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
}

/* Number of floats of one block of columns. */
static int64_t block_floats(const Select *s)
{
    return s->args->features * BLOCK_COLUMNS;
}

/* Number of floats of the transposed candidates of those spans that a tile of groups counts in the
 * histogram; 0 if all spans are counted. */
static int64_t counted_floats(const Select *s)
{
    int64_t per_span = s->args->grain / s->args->candidate_keys;
    int64_t columns = DSVI_COUNTED_SPANS * dsvi_select_strata(s->args) * per_span;
    return s->args->bin_skip > 0 ? column_blocks(columns) * block_floats(s) : 0;
}

/* Returns whether the estimates of all spans are worth the memory to keep them: each product of a proxy and a
 * candidate is then computed once instead of two to three times. */
static bool worth_keeping(const Select *s)
{
    return s->args->coarse && s->groups * s->spans <= KEPT * column_blocks(s->all.width) * block_floats(s);
}

/* Returns the columns of all candidates of a (batch, head). */
static Columns columns_of_pair(const Select *s, int64_t pair)
{
    Columns columns = s->all;
    columns.transposed += pair * column_blocks(s->all.width) * block_floats(s);
    return columns;
}

/* Sets the pointers of `scratch` to consecutive buffers starting at `base`, and returns the number of floats
 * that they hold together. If `base` is NULL, only computes this number. */
static size_t select_scratch_layout(const Select *s, float *base, Scratch *scratch)
{
    size_t used = 0;
    int64_t draw_words = dsvi_choose_words(dsvi_explore_units_max(s->args));
    scratch->proxies = dsvi_take_floats(base, &used, BLOCK_PROXIES * s->args->features);
    scratch->scores = dsvi_take_floats(base, &used, s->args->coarse ? 0 : BLOCK_PROXIES * BLOCK_COLUMNS);
    scratch->estimate = dsvi_take_floats(base, &used, s->team * s->all.width);
    scratch->counted = dsvi_take_floats(base, &used, counted_floats(s));
    scratch->products = dsvi_take_floats(base, &used, s->keeps ? DSVI_TILE_ROWS * s->all.width : 0);
    scratch->kept = NULL;
    scratch->draws = (uint64_t *)dsvi_take_floats(base, &used, 2 * draw_words);
    return used;
}

/* Returns the number of groups in a team: as many as fill the rows of a tile product, at least one. */
static int64_t team_groups(const DsviSelectArgs *args)
{
    int64_t per_group = args->group / args->chunk;
    return per_group > 0 && per_group < DSVI_TILE_ROWS ? DSVI_TILE_ROWS / per_group : 1;
}

static size_t select_take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Initialises `s`, with buffers in the workspace `base`. Returns the bytes of workspace. If `base` is NULL,
 * only computes this number. Estimates are kept only if `keep`. */
static size_t select_layout(const DsviSelectArgs *args, char *base, bool keep, Select *s)
{
    size_t used = 0;
    Scratch scratch;
    *s = (Select){.args = args,
                  .pairs = args->batch * args->heads,
                  .groups = dsvi_select_groups(args),
                  .proxies = dsvi_select_proxies(args),
                  .spans = dsvi_select_spans(args),
                  .team = team_groups(args)};
    s->all = select_columns_of(args, s->spans, s->spans - 1, NULL);
    s->keeps = keep && worth_keeping(s);
    s->words = dsvi_choose_words(s->spans);
    size_t bins = (size_t)s->pairs * SLICES * DSVI_SELECT_BINS * sizeof(double);
    size_t lists = (size_t)(s->pairs * s->groups);
    s->worker_floats = select_scratch_layout(s, NULL, &scratch);
    int64_t column_floats = s->pairs * column_blocks(s->all.width) * block_floats(s);
    size_t all = select_take(&used, (size_t)column_floats * sizeof(float));
    size_t workers = select_take(&used, s->worker_floats * (size_t)dsvi_threads_count() * sizeof(float));
    size_t mass = select_take(&used, lists * sizeof(double));
    size_t chosen = select_take(&used, lists * (size_t)s->words * sizeof(uint64_t));
    size_t histograms = select_take(&used, 2 * bins);
    size_t estimates = select_take(&used, s->keeps ? lists * (size_t)s->spans * sizeof(float) : 0);
    if (base) {
        s->all.transposed = (float *)(base + all);
        s->workers = (float *)(base + workers);
        s->mass = (double *)(base + mass);
        s->chosen = (uint64_t *)(base + chosen);
        s->slice_count = (double *)(base + histograms);
        s->slice_mass = (double *)(base + histograms + bins);
        s->estimates = s->keeps ? (float *)(base + estimates) : NULL;
    }
    return used;
}

static size_t select_workspace(DsviStream *stream, const DsviSelectArgs *args)
{
    (void)stream;
    Select s;
    return select_layout(args, NULL, true, &s);
}

static Scratch select_scratch_of(const Select *s, int worker)
{
    Scratch scratch;
    select_scratch_layout(s, s->workers + (size_t)worker * s->worker_floats, &scratch);
    return scratch;
}

static float *column_of(const Select *s, const Columns *columns, int64_t c)
{
    return columns->transposed + c / BLOCK_COLUMNS * block_floats(s) + c % BLOCK_COLUMNS;
}

/* Transposes blocks [begin, end) of all candidates; blocks are numbered through all (batch, head). Columns
 * after the last candidate are zero. */
static void transpose_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    int64_t blocks = column_blocks(s->all.width), features = s->args->features;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / blocks, first = n % blocks * BLOCK_COLUMNS;
        int64_t count = dsvi_min(s->all.count - first, BLOCK_COLUMNS);
        const float *from = s->args->candidates + (pair * s->all.count + first) * features;
        float *to = s->all.transposed + n * block_floats(s);
        memset(to, 0, (size_t)block_floats(s) * sizeof *to);
        for (int64_t c = 0; c < count; c++)
            for (int64_t r = 0; r < features; r++)
                to[r * BLOCK_COLUMNS + c] = s->args->coarse ? dsvi_select_coarse(from[c * features + r], 1)
                                                            : from[c * features + r];
    }
}

/* Copies the columns of the spans that groups with this `rotation` count in the histogram. The rotation
 * decides which part of all spans these are (dsvi_select_counted_span). Columns after the last candidate are
 * zero. */
static Columns copy_counted(const Select *s, int64_t pair, uint32_t rotation, float *transposed)
{
    const DsviSelectArgs *args = s->args;
    int64_t per_span = args->grain / args->candidate_keys, spans = dsvi_select_counted_spans(args, rotation);
    int64_t last = spans > 0 ? dsvi_select_counted_span(args, rotation, spans - 1) : 0;
    const Columns all = columns_of_pair(s, pair);
    Columns columns = select_columns_of(args, spans, last, transposed);
    for (int64_t c = 0; c < columns.count; c++) {
        int64_t span = dsvi_select_counted_span(args, rotation, c / per_span);
        const float *from = column_of(s, &all, span * per_span + c % per_span);
        float *to = column_of(s, &columns, c);
        for (int64_t r = 0; r < args->features; r++)
            to[r * BLOCK_COLUMNS] = from[r * BLOCK_COLUMNS];
    }
    for (int64_t c = columns.count; c < columns.width; c++)
        for (int64_t r = 0; r < args->features; r++)
            column_of(s, &columns, c)[r * BLOCK_COLUMNS] = 0;
    return columns;
}

/* Copies proxies [first, first + count) of (batch, head) number `pair`. If features are coarse, they are
 * rounded (dsvi_select_coarse) and multiplied by DSVI_POWER_UNIT. Adds rows of zeros up to a multiple of
 * DSVI_TILE_ROWS. */
static void load_proxies(const Select *s, int64_t pair, int64_t first, int64_t count, float *out)
{
    int64_t features = s->args->features, rows = dsvi_round_up(count, DSVI_TILE_ROWS);
    memcpy(out, s->args->proxies + (pair * s->proxies + first) * features,
           (size_t)(count * features) * sizeof *out);
    for (int64_t i = 0; i < count * features && s->args->coarse; i++)
        out[i] = dsvi_select_coarse(out[i], s->args->scale * DSVI_LOG2_E) * DSVI_POWER_UNIT;
    memset(out + count * features, 0, (size_t)((rows - count) * features) * sizeof *out);
}

/* Computes the scores of `count` loaded proxies and columns [first, first + columns). Scores after the last
 * candidate are -inf. Returns the number of columns, a multiple of the vector length. */
static int64_t cpu_select_score(const Select *s, const Columns *of, const Scratch *scratch, int64_t count,
                                int64_t first)
{
    int64_t columns = dsvi_min(of->width - first, BLOCK_COLUMNS);
    dsvi_tile_product(&(DsviTileProduct){.m = dsvi_round_up(count, DSVI_TILE_ROWS),
                                         .n = columns,
                                         .k = s->args->features,
                                         .a = scratch->proxies,
                                         .a_row = s->args->features,
                                         .a_col = 1,
                                         .b = of->transposed + first / BLOCK_COLUMNS * block_floats(s),
                                         .ldb = BLOCK_COLUMNS,
                                         .c = scratch->scores,
                                         .ldc = BLOCK_COLUMNS,
                                         .factor = (float)s->args->scale});
    for (int64_t c = of->count - first; c < columns; c++)
        for (int64_t p = 0; p < count; p++)
            scratch->scores[p * BLOCK_COLUMNS + c] = -INFINITY;
    return columns;
}

/* The running log-sum-exp of one proxy, separate in each lane. */
typedef struct LaneSums {
    DsviVec largest, sum;
} LaneSums;

static void add_scores(LaneSums *lanes, const float *scores, int64_t columns)
{
    DsviVec before = lanes->largest, now = before, sum = dsvi_vec_all(0);
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + c));
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        sum += dsvi_vec_exp_weight(dsvi_vec_load(scores + c) - now);
    lanes->sum = lanes->sum * dsvi_vec_exp_weight(before - now) + sum;
    lanes->largest = now;
}

static float log_sum(const LaneSums *lanes)
{
    float largest = dsvi_vec_largest(lanes->largest);
    float sum = dsvi_vec_sum(lanes->sum * dsvi_vec_exp_weight(lanes->largest - dsvi_vec_all(largest)));
    return (float)(largest + log(sum));
}

/* Computes the log-sum-exp of `count` loaded proxies over all candidates. */
static void exact_lse(const Select *s, const Columns *all, const Scratch *scratch, int64_t count, float *lse)
{
    LaneSums lanes[BLOCK_PROXIES];
    /* The maximum starts at a finite number and not at -inf, because a lane may contain only padding, and
     * -inf - -inf is NaN. */
    for (int64_t p = 0; p < count; p++)
        lanes[p] = (LaneSums){dsvi_vec_all(DSVI_POWER_LOWEST), dsvi_vec_all(0)};
    for (int64_t from = 0; from < all->width; from += BLOCK_COLUMNS) {
        int64_t columns = cpu_select_score(s, all, scratch, count, from);
        for (int64_t p = 0; p < count; p++)
            add_scores(&lanes[p], scratch->scores + p * BLOCK_COLUMNS, columns);
    }
    for (int64_t p = 0; p < count; p++)
        lse[p] = log_sum(&lanes[p]);
}

/* Returns the arguments for the powers of loaded proxies [p, p + DSVI_TILE_ROWS) and the block of columns
 * that begins at `from`. `start` has one element for each loaded proxy. */
static DsviPowers powers_of(const Select *s, const Columns *of, const Scratch *scratch, int64_t p,
                            const float *start, int64_t from)
{
    return (DsviPowers){.features = s->args->features,
                        .proxies = scratch->proxies + p * s->args->features,
                        .start = start + p,
                        .candidates = of->transposed + from / BLOCK_COLUMNS * block_floats(s),
                        .pitch = BLOCK_COLUMNS,
                        .count = dsvi_min(of->count - from, BLOCK_COLUMNS),
                        .kept = scratch->kept ? scratch->kept + from : NULL,
                        .kept_row = s->all.width};
}

/* Computes sum[p], the sum over all candidates of power(score - reference[p]), of `count` loaded proxies. */
static void coarse_sums(const Select *s, const Columns *all, const Scratch *scratch, int64_t count,
                        const float *reference, float *sum)
{
    float start[BLOCK_PROXIES] = {0};
    DsviVec lanes[BLOCK_PROXIES] = {{0}};
    for (int64_t p = 0; p < count; p++)
        start[p] = dsvi_power_start(-reference[p]);
    for (int64_t from = 0; from < all->width; from += BLOCK_COLUMNS)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = powers_of(s, all, scratch, p, start, from);
            dsvi_powers_sum(&powers, lanes + p);
        }
    for (int64_t p = 0; p < count; p++)
        sum[p] = dsvi_vec_sum(lanes[p]);
}

/* Returns whether a sum of powers neither overflowed nor is so small that powers were flushed to zero. */
static bool in_range(float sum)
{
    return sum >= 0x1p-80f && sum < INFINITY;
}

/* Sets the reference of each proxy whose sum of powers is not in range to the proxy's largest score, rounded
 * up to an integer, so that it scales powers exactly. */
static void coarse_references(const Select *s, const Columns *all, const Scratch *scratch, int64_t count,
                              const float *sum, float *reference)
{
    static const float start[BLOCK_PROXIES] = {0};
    DsviVec largest[BLOCK_PROXIES];
    for (int64_t p = 0; p < BLOCK_PROXIES; p++)
        largest[p] = dsvi_vec_all(DSVI_POWER_LOWEST);
    for (int64_t from = 0; from < all->width; from += BLOCK_COLUMNS)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = powers_of(s, all, scratch, p, start, from);
            dsvi_powers_largest(&powers, largest + p);
        }
    for (int64_t p = 0; p < count; p++)
        if (!in_range(sum[p]))
            reference[p] = ceilf(dsvi_vec_largest(largest[p]) / DSVI_POWER_UNIT);
}

/* Does the same as exact_lse for coarse features. Scores are rarely so large or so small that their powers
 * need a reference other than 0. */
static void coarse_lse(const Select *s, const Columns *all, const Scratch *scratch, int64_t count, float *lse)
{
    float reference[BLOCK_PROXIES] = {0}, sum[BLOCK_PROXIES];
    bool ok = true;
    coarse_sums(s, all, scratch, count, reference, sum);
    for (int64_t p = 0; p < count; p++)
        ok &= in_range(sum[p]);
    if (!ok) {
        coarse_references(s, all, scratch, count, sum, reference);
        coarse_sums(s, all, scratch, count, reference, sum);
    }
    for (int64_t p = 0; p < count; p++)
        lse[p] = (float)(reference[p] / DSVI_LOG2_E + log(sum[p]));
}

/* Returns the first proxy of group g of a (batch, head), or the number of proxies if there is no such group.
 */
static int64_t first_proxy(const Select *s, int64_t g)
{
    return dsvi_min(g * (s->args->group / s->args->chunk), s->proxies);
}

/* Computes the log-sum-exp of the scores of each proxy of groups [g, g_end), over all candidates. */
static void team_lse(const Select *s, const Scratch *scratch, int64_t pair, int64_t g, int64_t g_end)
{
    int64_t end = first_proxy(s, g_end);
    const Columns all = columns_of_pair(s, pair);
    for (int64_t first = first_proxy(s, g); first < end; first += BLOCK_PROXIES) {
        int64_t count = dsvi_min(end - first, BLOCK_PROXIES);
        float *lse = s->args->lse + pair * s->proxies + first;
        load_proxies(s, pair, first, count, scratch->proxies);
        if (s->args->coarse)
            coarse_lse(s, &all, scratch, count, lse);
        else
            exact_lse(s, &all, scratch, count, lse);
    }
}

/* Returns the weight of proxy p of a (batch, head) in its group: the fraction of the group's queries. */
static float proxy_weight(const DsviSelectArgs *args, int64_t p)
{
    int64_t of_group = args->queries - p * args->chunk / args->group * args->group;
    int64_t of_proxy = args->queries - p * args->chunk;
    return (float)dsvi_min(of_proxy, args->chunk) / (float)dsvi_min(of_group, args->group);
}

/* The estimates of group g of a team that begins with group `first`. */
static float *estimate_of(const Select *s, const Scratch *scratch, int64_t first, int64_t g)
{
    return scratch->estimate + (g - first) * s->all.width;
}

/* Computes estimate[0..columns) += weight exp(score - lse). */
static void add_estimates(float *estimate, const float *scores, int64_t columns, float lse, float weight)
{
    for (int64_t c = 0; c < columns; c += DSVI_LANES) {
        DsviVec a = dsvi_vec_exp_weight(dsvi_vec_load(scores + c) - dsvi_vec_all(lse));
        dsvi_vec_store(estimate + c, dsvi_vec_load(estimate + c) + a * weight);
    }
}

/* Adds what loaded proxies [first, first + count) contribute to the estimates of their groups. The team
 * begins with group g. */
static void add_exact(const Select *s, const Columns *of, const Scratch *scratch, int64_t pair, int64_t g,
                      int64_t first, int64_t count)
{
    int64_t per_group = s->args->group / s->args->chunk;
    for (int64_t from = 0; from < of->width; from += BLOCK_COLUMNS) {
        int64_t columns = cpu_select_score(s, of, scratch, count, from);
        for (int64_t p = first; p < first + count; p++)
            add_estimates(estimate_of(s, scratch, g, p / per_group) + from,
                          scratch->scores + (p - first) * BLOCK_COLUMNS, columns,
                          s->args->lse[pair * s->proxies + p], proxy_weight(s->args, p));
    }
}

/* Does the same as add_exact for coarse features. */
static void add_coarse(const Select *s, const Columns *of, const Scratch *scratch, int64_t pair, int64_t g,
                       int64_t first, int64_t count)
{
    int64_t per_group = s->args->group / s->args->chunk;
    float start[BLOCK_PROXIES] = {0};
    uint32_t ends = 0; /* bit p: proxy p is the last of its group or of a block of DSVI_TILE_ROWS */
    for (int64_t p = 0; p < count; p++) {
        double lse = s->args->lse[pair * s->proxies + first + p];
        bool end = (first + p + 1) % per_group == 0 || (p + 1) % DSVI_TILE_ROWS == 0 || p + 1 == count;
        start[p] = dsvi_power_start(log2(proxy_weight(s->args, first + p)) - lse * DSVI_LOG2_E);
        ends |= (uint32_t)end << p;
    }
    for (int64_t from = 0; from < of->width; from += BLOCK_COLUMNS)
        for (int64_t p = 0; p < count; p += DSVI_TILE_ROWS) {
            const DsviPowers powers = powers_of(s, of, scratch, p, start, from);
            dsvi_powers_add(&powers, ends >> p, estimate_of(s, scratch, g, (first + p) / per_group) + from,
                            s->all.width);
        }
}

/* Replaces the estimates of candidates by the sums of each span. */
static void sum_spans(const Select *s, const Columns *of, float *estimate)
{
    int64_t per_span = s->args->grain / s->args->candidate_keys;
    for (int64_t r = 0; per_span > 1 && r < of->spans; r++) {
        int64_t end = dsvi_min((r + 1) * per_span, of->count);
        float sum = 0;
        for (int64_t c = r * per_span; c < end; c++)
            sum += estimate[c];
        estimate[r] = sum;
    }
}

static void clear_estimates(const Select *s, const Columns *of, const Scratch *scratch, int64_t g,
                            int64_t g_end)
{
    for (int64_t group = g; group < g_end; group++)
        memset(estimate_of(s, scratch, g, group), 0, (size_t)of->width * sizeof(float));
}

/* Computes the estimates e_gr (ops/select.h) of groups [g, g_end) and of each span r of the columns `of`, in
 * scratch->estimate. */
static void team_estimates(const Select *s, const Columns *of, const Scratch *scratch, int64_t pair,
                           int64_t g, int64_t g_end)
{
    int64_t end = first_proxy(s, g_end);
    clear_estimates(s, of, scratch, g, g_end);
    for (int64_t first = first_proxy(s, g); first < end; first += BLOCK_PROXIES) {
        int64_t count = dsvi_min(end - first, BLOCK_PROXIES);
        load_proxies(s, pair, first, count, scratch->proxies);
        if (s->args->coarse)
            add_coarse(s, of, scratch, pair, g, first, count);
        else
            add_exact(s, of, scratch, pair, g, first, count);
    }
    for (int64_t group = g; group < g_end; group++)
        sum_spans(s, of, estimate_of(s, scratch, g, group));
}

/* Keeps the sums of products of the first DSVI_TILE_ROWS loaded proxies and all candidates. */
static void keep_products(const Select *s, const Columns *all, const Scratch *scratch)
{
    static const float start[DSVI_TILE_ROWS] = {0};
    for (int64_t from = 0; from < all->width; from += BLOCK_COLUMNS) {
        const DsviPowers powers = powers_of(s, all, scratch, 0, start, from);
        dsvi_powers_keep(&powers, scratch->products + from, all->width);
    }
}

/* Does the same as team_lse, and then the same as team_estimates for all spans, for coarse features. Keeps
 * the products of a few proxies at a time, so that they stay in cache. */
static void team_lse_and_estimates(const Select *s, const Scratch *scratch, int64_t pair, int64_t g,
                                   int64_t g_end)
{
    int64_t end = first_proxy(s, g_end);
    const Columns all = columns_of_pair(s, pair);
    Scratch kept = *scratch;
    kept.kept = scratch->products;
    clear_estimates(s, &all, scratch, g, g_end);
    for (int64_t first = first_proxy(s, g); first < end; first += DSVI_TILE_ROWS) {
        int64_t count = dsvi_min(end - first, DSVI_TILE_ROWS);
        load_proxies(s, pair, first, count, scratch->proxies);
        keep_products(s, &all, scratch);
        coarse_lse(s, &all, &kept, count, s->args->lse + pair * s->proxies + first);
        add_coarse(s, &all, &kept, pair, g, first, count);
    }
    for (int64_t group = g; group < g_end; group++)
        sum_spans(s, &all, estimate_of(s, scratch, g, group));
}

/* Returns the estimates of the spans that list n counts in the histogram, with zeros up to a whole vector,
 * and sets *spans to their number. `estimate` has the estimates of all spans. */
static const float *counted_estimates(const Select *s, const Scratch *scratch, int64_t n,
                                      const float *estimate, int64_t *spans)
{
    uint32_t rotation = dsvi_select_rotation(s->args, n);
    *spans = s->spans;
    if (s->args->bin_skip == 0)
        return estimate;
    *spans = dsvi_select_counted_spans(s->args, rotation);
    for (int64_t r = 0; r < *spans; r++)
        scratch->counted[r] = estimate[dsvi_select_counted_span(s->args, rotation, r)];
    for (int64_t r = *spans; r % DSVI_LANES; r++)
        scratch->counted[r] = 0;
    return scratch->counted;
}

static void add_to_histogram(const float *estimate, int64_t spans, double *count, double *mass)
{
    const DsviVec last = dsvi_vec_all(DSVI_SELECT_BINS - 1), zero = dsvi_vec_all(0);
    for (int64_t r = 0; r < spans; r += DSVI_LANES) {
        float e[DSVI_LANES];
        int32_t bin[DSVI_LANES];
        int64_t lanes = spans - r < DSVI_LANES ? spans - r : (int64_t)DSVI_LANES;
        DsviVec x = (dsvi_vec_log2(dsvi_vec_load(estimate + r)) + DSVI_SELECT_OCTAVES) *
                    DSVI_SELECT_PER_OCTAVE;
        /* An estimate that is NaN goes to bin 0, because max returns `zero` for NaN. */
        DsviVecInt number = __builtin_convertvector(dsvi_vec_min(dsvi_vec_max(x, zero), last), DsviVecInt);
        memcpy(bin, &number, sizeof bin);
        memcpy(e, estimate + r, sizeof e);
        for (int64_t i = 0; i < lanes; i++) {
            count[bin[i]] += 1;
            mass[bin[i]] += e[i];
        }
    }
}

/* Computes lse and the estimates of the groups of slice n, keeps the estimates, and adds those of counted
 * spans to the histogram. */
static void keep_slice(const Select *s, const Scratch *scratch, int64_t n, double *count, double *mass)
{
    int64_t pair = n / SLICES, slice = n % SLICES, last = (slice + 1) * s->groups / SLICES;
    for (int64_t g = slice * s->groups / SLICES, next; g < last; g = next) {
        next = dsvi_min(g + s->team, last);
        team_lse_and_estimates(s, scratch, pair, g, next);
        for (int64_t group = g; group < next; group++) {
            int64_t list = pair * s->groups + group, spans;
            const float *estimate = estimate_of(s, scratch, g, group);
            memcpy(s->estimates + list * s->spans, estimate, (size_t)s->spans * sizeof *estimate);
            estimate = counted_estimates(s, scratch, list, estimate, &spans);
            add_to_histogram(estimate, spans, count, mass);
        }
    }
}

/* Does the same without keeping estimates. Only those of counted spans are computed. */
static void count_slice(const Select *s, const Scratch *scratch, int64_t n, double *count, double *mass)
{
    int64_t pair = n / SLICES, slice = n % SLICES, tile = -1, last = (slice + 1) * s->groups / SLICES;
    Columns counted = columns_of_pair(s, pair);
    for (int64_t g = slice * s->groups / SLICES, next; g < last; g = next) {
        if (s->args->bin_skip > 0 && g / DSVI_COUNTED_GROUPS != tile)
            counted = copy_counted(s, pair, dsvi_select_rotation(s->args, pair * s->groups + g),
                                   scratch->counted);
        tile = g / DSVI_COUNTED_GROUPS;
        next = dsvi_min(dsvi_min(g + s->team, last), (tile + 1) * DSVI_COUNTED_GROUPS);
        team_lse(s, scratch, pair, g, next);
        team_estimates(s, &counted, scratch, pair, g, next);
        for (int64_t group = g; group < next; group++)
            add_to_histogram(estimate_of(s, scratch, g, group), counted.spans, count, mass);
    }
}

/* Fills the partial histograms of slices [begin, end). Slice n is a part of the groups of (batch, head) n
 * / SLICES. */
static void histogram_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    Scratch scratch = select_scratch_of(s, worker);
    for (int64_t n = begin; n < end; n++) {
        double *count = s->slice_count + n * DSVI_SELECT_BINS, *mass = s->slice_mass + n * DSVI_SELECT_BINS;
        memset(count, 0, DSVI_SELECT_BINS * sizeof *count);
        memset(mass, 0, DSVI_SELECT_BINS * sizeof *mass);
        if (s->estimates)
            keep_slice(s, &scratch, n, count, mass);
        else
            count_slice(s, &scratch, n, count, mass);
    }
}

/* Sums, always in the same order, the slices of all (batch, head) that share histogram h. */
static void reduce_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        double *count = s->args->bin_count + h * DSVI_SELECT_BINS;
        double *mass = s->args->bin_mass + h * DSVI_SELECT_BINS;
        memset(count, 0, DSVI_SELECT_BINS * sizeof *count);
        memset(mass, 0, DSVI_SELECT_BINS * sizeof *mass);
        for (int64_t n = h * SLICES; n < s->pairs * SLICES; n++) {
            if (n / SLICES % s->args->bin_heads != h)
                continue;
            for (int64_t bin = 0; bin < DSVI_SELECT_BINS; bin++) {
                count[bin] += s->slice_count[n * DSVI_SELECT_BINS + bin];
                mass[bin] += s->slice_mass[n * DSVI_SELECT_BINS + bin];
            }
        }
    }
}

static DsvStatus cpu_select_prepare(const DsviSelectArgs *args, Select *s)
{
    /* A workspace for more queries or keys, whose estimates are not kept, may be too small to keep these. */
    bool keep = args->workspace_bytes >= select_layout(args, NULL, true, s);
    size_t needed = select_layout(args, args->workspace, keep, s);
    if (args->workspace_bytes < needed)
        return DSVI_FAIL(DSV_E_SHAPE, "select: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         needed);
    if (!args->again)
        dsvi_parallel_for(s->pairs * column_blocks(s->all.width), 1, transpose_range, s);
    return DSV_OK;
}

static DsvStatus cpu_select_histogram(DsviStream *stream, const DsviSelectArgs *args)
{
    Select s;
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, false));
    DSVI_TRY(cpu_select_prepare(args, &s));
    dsvi_parallel_for(s.pairs * SLICES, 1, histogram_range, &s);
    dsvi_parallel_for(args->bin_heads, 1, reduce_range, &s);
    return DSV_OK;
}

/* Chooses the spans of list n from its estimates, and sets offsets[n + 1] to their number. */
static void choose(const Select *s, int64_t n, const float *estimate, uint64_t *draws)
{
    uint64_t *chosen = s->chosen + n * s->words;
    int64_t count = 0;
    double mass = 0;
    dsvi_choose_winners(s->args, n / s->groups % s->args->heads, estimate, chosen);
    dsvi_choose_explored(s->args, n, draws, chosen);
    for (int64_t w = 0; w < s->words; w++) {
        count += __builtin_popcountll(chosen[w]);
        for (uint64_t left = chosen[w]; left; left &= left - 1)
            mass += estimate[w * DSVI_CHOICE_WORD + __builtin_ctzll(left)];
    }
    s->mass[n] = mass;
    s->args->lists->offsets[n + 1] = count;
}

static int64_t teams_of_pair(const Select *s)
{
    return dsvi_pieces(s->groups, s->team);
}

/* Chooses the spans of the lists of teams [begin, end); teams are numbered through all (batch, head). */
static void choose_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    Scratch scratch = select_scratch_of(s, worker);
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / teams_of_pair(s), first = n % teams_of_pair(s) * s->team;
        int64_t last = dsvi_min(first + s->team, s->groups);
        const Columns all = columns_of_pair(s, pair);
        bool kept = s->estimates && s->args->again;
        if (!kept)
            team_estimates(s, &all, &scratch, pair, first, last);
        for (int64_t g = first; g < last; g++) {
            int64_t list = pair * s->groups + g;
            choose(s, list, kept ? s->estimates + list * s->spans : estimate_of(s, &scratch, first, g),
                   scratch.draws);
        }
    }
}

static void write_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    const DsviLists *lists = s->args->lists;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        int64_t at = lists->offsets[n];
        for (int64_t w = 0; w < s->words; w++)
            for (uint64_t left = s->chosen[n * s->words + w]; left; left &= left - 1)
                lists->spans[at++] = (int32_t)(w * DSVI_CHOICE_WORD + __builtin_ctzll(left));
    }
}

static DsvStatus cpu_select_lists(DsviStream *stream, const DsviSelectArgs *args)
{
    Select s;
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, true));
    DSVI_TRY(cpu_select_prepare(args, &s));
    int64_t count = dsvi_lists_count(args->lists);
    dsvi_parallel_for(s.pairs * teams_of_pair(&s), 1, choose_range, &s);
    for (int64_t h = 0; h < args->heads; h++)
        args->selected_mass[h] = 0;
    args->lists->offsets[0] = 0;
    for (int64_t n = 0; n < count; n++) {
        args->lists->offsets[n + 1] += args->lists->offsets[n];
        args->selected_mass[n / s.groups % args->heads] += s.mass[n];
    }
    *args->needed = args->lists->offsets[count];
    if (*args->needed <= args->lists->capacity)
        dsvi_parallel_for(count, 4, write_range, &s);
    else
        memset(args->lists->offsets, 0, (size_t)(count + 1) * sizeof *args->lists->offsets);
    return DSV_OK;
}

void DSVI_SIMD(fill_select)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, cpu_select_histogram, select_workspace,
                                DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_lists, cpu_select_lists, select_workspace, DSVI_SIMD_NAME);
}
