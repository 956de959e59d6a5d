/* From proxies and candidates to histograms and lists (ops/select.h).
 *
 * Candidates are transposed once, block by block, (features, candidates), so that they stand in lanes and a
 * group's proxies are rows of a tile product. A piece of work holds one row of estimates, never the scores as
 * a whole.
 *
 * Lists are made in three steps: each group's chosen runs as bits, with their count and mass; the offsets,
 * in order; the bits written out as run numbers. */
#include <math.h>

#include "base/rng.h"
#include "base/threads.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

enum {
    BLOCK_PROXIES = 32, /* rows of a product */
    BLOCK_COLUMNS = 256, /* candidates of a product */
    SLICES = 16,        /* into which the groups of a (batch, head) are cut for the histograms */
    WORD = 64           /* runs whose choice is kept in one word */
};

/* The candidates of some runs of one (batch, head), in lanes. */
typedef struct Columns {
    int64_t runs, count; /* count: of candidates */
    int64_t width;       /* `count` rounded up to whole vectors */
    float *transposed;   /* (blocks, features, BLOCK_COLUMNS) candidates */
} Columns;

typedef struct Select {
    const DsvSelectArgs *args;
    int64_t pairs, groups, proxies, runs;
    int64_t words;          /* of a group's bits */
    Columns all;            /* of every (batch, head), one after the other */
    double *slice_count;    /* (pairs, SLICES, BINS) */
    double *slice_mass;     /* (pairs, SLICES, BINS) */
    uint64_t *chosen;       /* (pairs * groups, words) */
    double *mass;           /* (pairs * groups) */
    float *workers;
    size_t worker_floats;
} Select;

/* Scratch of one worker. */
typedef struct Scratch {
    float *proxies;  /* (BLOCK_PROXIES, features) */
    float *scores;   /* (BLOCK_PROXIES, BLOCK_COLUMNS) */
    float *estimate; /* (all.width) of candidates, then of runs */
    float *counted;  /* the columns that a tile of groups counts, where it does not count all */
    uint64_t *draws; /* what exploration draws: a bit for each run, or for each block of keys */
} Scratch;

/* Things that exploration may draw for a list: where runs are long, blocks of keys are more than they. */
static int64_t units_most(const DsvSelectArgs *args)
{
    int64_t blocks = (args->keys + DSV_EXPLORE_BLOCK - 1) / DSV_EXPLORE_BLOCK, runs = dsvi_select_runs(args);
    return blocks > runs ? blocks : runs;
}

static Columns columns_of(const DsvSelectArgs *args, int64_t runs, int64_t last_run, float *transposed)
{
    int64_t per_run = args->grain / args->candidate_keys;
    int64_t left = dsvi_select_candidates(args) - last_run * per_run;
    Columns columns = {.runs = runs, .transposed = transposed};
    columns.count = runs > 0 ? (runs - 1) * per_run + (left < per_run ? left : per_run) : 0;
    columns.width = dsvi_round_up(columns.count, DSVI_LANES);
    return columns;
}

static int64_t column_blocks(int64_t width)
{
    return (width + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
}

/* Of one block of columns. */
static int64_t block_floats(const Select *s)
{
    return s->args->features * BLOCK_COLUMNS;
}

/* Of the columns that a tile of groups counts. */
static int64_t counted_floats(const Select *s)
{
    int64_t per_run = s->args->grain / s->args->candidate_keys;
    int64_t most = DSVI_COUNTED_RUNS * dsvi_select_strata(s->args) * per_run;
    return s->args->bin_skip > 0 ? column_blocks(most) * block_floats(s) : 0;
}

/* All columns of a (batch, head). */
static Columns columns_of_pair(const Select *s, int64_t pair)
{
    Columns columns = s->all;
    columns.transposed += pair * column_blocks(s->all.width) * block_floats(s);
    return columns;
}

/* Lays the pieces out from `base` on (NULL: only counts) and gives their floats. */
static size_t lay_scratch(const Select *s, float *base, Scratch *scratch)
{
    size_t used = 0;
    int64_t draw_words = (units_most(s->args) + WORD - 1) / WORD;
    scratch->proxies = dsvi_take_floats(base, &used, BLOCK_PROXIES * s->args->features);
    scratch->scores = dsvi_take_floats(base, &used, BLOCK_PROXIES * BLOCK_COLUMNS);
    scratch->estimate = dsvi_take_floats(base, &used, s->all.width);
    scratch->counted = dsvi_take_floats(base, &used, counted_floats(s));
    scratch->draws = (uint64_t *)dsvi_take_floats(base, &used, 2 * draw_words);
    return used;
}

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Lays the workspace out (base NULL: only counts) and gives its bytes. */
static size_t plan(const DsvSelectArgs *args, char *base, Select *s)
{
    size_t used = 0;
    Scratch scratch;
    *s = (Select){.args = args, .pairs = args->batch * args->heads, .groups = dsvi_select_groups(args),
                  .proxies = dsvi_select_proxies(args), .runs = dsvi_select_runs(args)};
    s->all = columns_of(args, s->runs, s->runs - 1, NULL);
    s->words = (s->runs + WORD - 1) / WORD;
    size_t bins = (size_t)s->pairs * SLICES * DSV_SELECT_BINS * sizeof(double);
    size_t lists = (size_t)(s->pairs * s->groups);
    s->worker_floats = lay_scratch(s, NULL, &scratch);
    int64_t column_floats = s->pairs * column_blocks(s->all.width) * block_floats(s);
    size_t all = take(&used, (size_t)column_floats * sizeof(float));
    size_t workers = take(&used, s->worker_floats * (size_t)dsvi_threads_count() * sizeof(float));
    size_t mass = take(&used, lists * sizeof(double));
    size_t chosen = take(&used, lists * (size_t)s->words * sizeof(uint64_t));
    size_t histograms = take(&used, 2 * bins);
    if (base) {
        s->all.transposed = (float *)(base + all);
        s->workers = (float *)(base + workers);
        s->mass = (double *)(base + mass);
        s->chosen = (uint64_t *)(base + chosen);
        s->slice_count = (double *)(base + histograms);
        s->slice_mass = (double *)(base + histograms + bins);
    }
    return used;
}

static size_t workspace(DsvStream *stream, const DsvSelectArgs *args)
{
    (void)stream;
    Select s;
    return plan(args, NULL, &s);
}

static Scratch scratch_of(const Select *s, int worker)
{
    Scratch scratch;
    lay_scratch(s, s->workers + (size_t)worker * s->worker_floats, &scratch);
    return scratch;
}

/* One column of a block: a candidate's features, or zeros where there is none (NULL). */
static void transpose_column(const Select *s, const float *candidate, float *column)
{
    for (int64_t r = 0; r < s->args->features; r++)
        column[r * BLOCK_COLUMNS] = !candidate         ? 0
                                    : s->args->coarse ? dsvi_select_coarse(candidate[r], 1)
                                                      : candidate[r];
}

static const float *candidate_of(const Select *s, int64_t pair, int64_t number)
{
    return s->args->candidates + (pair * dsvi_select_candidates(s->args) + number) * s->args->features;
}

/* Transposes blocks of all candidates. */
static void transpose_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    int64_t blocks = column_blocks(s->all.width);
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        for (int64_t c = 0; c < BLOCK_COLUMNS; c++) {
            int64_t column = n % blocks * BLOCK_COLUMNS + c;
            transpose_column(s, column < s->all.count ? candidate_of(s, n / blocks, column) : NULL,
                             s->all.transposed + n * block_floats(s) + c);
        }
    }
}

/* Transposes the candidates of the runs that groups with this rotation count. */
static Columns transpose_counted(const Select *s, int64_t pair, uint32_t rotation, float *transposed)
{
    const DsvSelectArgs *args = s->args;
    int64_t per_run = args->grain / args->candidate_keys, runs = dsvi_select_counted_runs(args, rotation);
    int64_t last = runs > 0 ? dsvi_select_counted(args, rotation, runs - 1) : 0;
    Columns columns = columns_of(args, runs, last, transposed);
    for (int64_t c = 0; c < column_blocks(columns.width) * BLOCK_COLUMNS; c++) {
        int64_t first = c < columns.count ? dsvi_select_counted(args, rotation, c / per_run) * per_run : 0;
        transpose_column(s, c < columns.count ? candidate_of(s, pair, first + c % per_run) : NULL,
                         transposed + c / BLOCK_COLUMNS * block_floats(s) + c % BLOCK_COLUMNS);
    }
    return columns;
}

/* Copies proxies [first, first + count) of the pair, coarse ones as they count, zeros up to whole
 * DSVI_TILE_ROWS. */
static void load_proxies(const Select *s, int64_t pair, int64_t first, int64_t count, float *out)
{
    int64_t features = s->args->features, rows = dsvi_round_up(count, DSVI_TILE_ROWS);
    memcpy(out, s->args->proxies + (pair * s->proxies + first) * features,
           (size_t)(count * features) * sizeof *out);
    for (int64_t i = 0; i < count * features && s->args->coarse; i++)
        out[i] = dsvi_select_coarse(out[i], s->args->scale * DSVI_LOG2_E);
    memset(out + count * features, 0, (size_t)((rows - count) * features) * sizeof *out);
}

/* scores[p, c] of `count` loaded proxies and columns [first, first + columns), in units of ln 2 where
 * features are coarse; beyond the last candidate they are -inf. Gives the columns, whole vectors. */
static int64_t score(const Select *s, const Columns *of, const Scratch *scratch, int64_t count, int64_t first)
{
    int64_t columns = of->width - first < BLOCK_COLUMNS ? of->width - first : (int64_t)BLOCK_COLUMNS;
    dsvi_tile_product(&(DsvTileProduct){
        .m = dsvi_round_up(count, DSVI_TILE_ROWS), .n = columns, .k = s->args->features,
        .a = scratch->proxies, .a_row = s->args->features, .a_col = 1,
        .b = of->transposed + first / BLOCK_COLUMNS * block_floats(s), .ldb = BLOCK_COLUMNS,
        .c = scratch->scores, .ldc = BLOCK_COLUMNS,
        .factor = s->args->coarse ? 1.0f : (float)s->args->scale});
    for (int64_t c = of->count - first; c < columns; c++)
        for (int64_t p = 0; p < count; p++)
            scratch->scores[p * BLOCK_COLUMNS + c] = -INFINITY;
    return columns;
}

/* dsvi_select_power(x): x + 127 with its fraction where a float has exponent and mantissa. From 128 on it is
 * infinite. */
static DsvVec line_power(DsvVec x)
{
    DsvVec shifted = dsvi_vec_min(dsvi_vec_max(x + 127.0f, dsvi_vec_all(0)), dsvi_vec_all(255));
    return dsvi_vec_from_bits(__builtin_convertvector(shifted * 0x1p23f, DsvVecInt));
}

/* Of a score less its reference. */
static DsvVec power(bool coarse, DsvVec x)
{
    return coarse ? line_power(x) : dsvi_vec_exp_weight(x);
}

/* The running log-sum-exp of one proxy, each lane its own. References are whole where features are coarse. */
typedef struct LaneSums {
    DsvVec largest, sum;
} LaneSums;

static void add_scores(bool coarse, LaneSums *lanes, const float *scores, int64_t columns)
{
    DsvVec before = lanes->largest, now = before, sum = dsvi_vec_all(0);
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + c));
    for (int lane = 0; coarse && lane < (int)DSVI_LANES; lane++)
        now[lane] = ceilf(now[lane]);
    for (int64_t c = 0; c < columns; c += DSVI_LANES)
        sum += power(coarse, dsvi_vec_load(scores + c) - now);
    lanes->sum = lanes->sum * power(coarse, before - now) + sum;
    lanes->largest = now;
}

static float log_sum(bool coarse, const LaneSums *lanes)
{
    float largest = dsvi_vec_largest(lanes->largest);
    float sum = dsvi_vec_sum(lanes->sum * power(coarse, lanes->largest - dsvi_vec_all(largest)));
    return (float)((coarse ? largest / DSVI_LOG2_E : largest) + log(sum));
}

/* The lse of the proxies of group g. */
static void group_lse(const Select *s, const Scratch *scratch, int64_t pair, int64_t g)
{
    int64_t per_group = s->args->group / s->args->chunk;
    int64_t end = (g + 1) * per_group < s->proxies ? (g + 1) * per_group : s->proxies;
    const Columns all = columns_of_pair(s, pair);
    for (int64_t first = g * per_group; first < end; first += BLOCK_PROXIES) {
        int64_t count = end - first < BLOCK_PROXIES ? end - first : (int64_t)BLOCK_PROXIES;
        LaneSums lanes[BLOCK_PROXIES];
        /* not -inf: a lane may meet nothing but padding, and -inf - -inf is NaN */
        for (int64_t p = 0; p < count; p++)
            lanes[p] = (LaneSums){dsvi_vec_all(-3e38f), dsvi_vec_all(0)};
        load_proxies(s, pair, first, count, scratch->proxies);
        for (int64_t from = 0; from < all.width; from += BLOCK_COLUMNS) {
            int64_t columns = score(s, &all, scratch, count, from);
            for (int64_t p = 0; p < count; p++)
                add_scores(s->args->coarse, &lanes[p], scratch->scores + p * BLOCK_COLUMNS, columns);
        }
        for (int64_t p = 0; p < count; p++)
            s->args->lse[pair * s->proxies + first + p] = log_sum(s->args->coarse, &lanes[p]);
    }
}

/* estimate[0..columns) += weight exp(score - lse) */
static void add_estimates(float *estimate, const float *scores, int64_t columns, float lse, float weight)
{
    for (int64_t c = 0; c < columns; c += DSVI_LANES) {
        DsvVec a = dsvi_vec_exp_weight(dsvi_vec_load(scores + c) - dsvi_vec_all(lse));
        dsvi_vec_store(estimate + c, dsvi_vec_load(estimate + c) + a * weight);
    }
}

/* estimate[0..columns) += power(score + term) */
static void add_coarse_estimates(float *estimate, const float *scores, int64_t columns, float term)
{
    for (int64_t c = 0; c < columns; c += DSVI_LANES) {
        DsvVec a = line_power(dsvi_vec_load(scores + c) + dsvi_vec_all(term));
        dsvi_vec_store(estimate + c, dsvi_vec_load(estimate + c) + a);
    }
}

/* e_gr of group g and the runs of these columns, in scratch->estimate. */
static void group_estimates(const Select *s, const Columns *of, const Scratch *scratch, int64_t pair,
                            int64_t g)
{
    const DsvSelectArgs *args = s->args;
    int64_t per_group = args->group / args->chunk, per_run = args->grain / args->candidate_keys;
    int64_t end = (g + 1) * per_group < s->proxies ? (g + 1) * per_group : s->proxies;
    int64_t left = args->queries - g * args->group, queries = left < args->group ? left : args->group;
    float *estimate = scratch->estimate;
    memset(estimate, 0, (size_t)of->width * sizeof *estimate);
    for (int64_t first = g * per_group; first < end; first += BLOCK_PROXIES) {
        int64_t count = end - first < BLOCK_PROXIES ? end - first : (int64_t)BLOCK_PROXIES;
        load_proxies(s, pair, first, count, scratch->proxies);
        for (int64_t from = 0; from < of->width; from += BLOCK_COLUMNS) {
            int64_t columns = score(s, of, scratch, count, from);
            for (int64_t p = first; p < first + count; p++) {
                left = args->queries - p * args->chunk;
                float weight = (float)(left < args->chunk ? left : args->chunk) / (float)queries;
                float lse = args->lse[pair * s->proxies + p];
                const float *scores = scratch->scores + (p - first) * BLOCK_COLUMNS;
                if (args->coarse)
                    add_coarse_estimates(estimate + from, scores, columns,
                                         (float)(log2((double)weight) - lse * DSVI_LOG2_E));
                else
                    add_estimates(estimate + from, scores, columns, lse, weight);
            }
        }
    }
    for (int64_t r = 0; per_run > 1 && r < of->runs; r++) {
        float sum = 0;
        for (int64_t c = r * per_run; c < (r + 1) * per_run && c < of->count; c++)
            sum += estimate[c];
        estimate[r] = sum;
    }
}

static void add_to_bins(const float *estimate, int64_t runs, double *count, double *mass)
{
    const DsvVec last = dsvi_vec_all(DSV_SELECT_BINS - 1), zero = dsvi_vec_all(0);
    for (int64_t r = 0; r < runs; r += DSVI_LANES) {
        float e[DSVI_LANES];
        int32_t bin[DSVI_LANES];
        int64_t lanes = runs - r < DSVI_LANES ? runs - r : (int64_t)DSVI_LANES;
        DsvVec x = (dsvi_vec_log2(dsvi_vec_load(estimate + r)) + DSV_SELECT_OCTAVES) * DSV_SELECT_PER_OCTAVE;
        /* NaN goes to bin 0 */
        DsvVecInt number = __builtin_convertvector(dsvi_vec_min(dsvi_vec_max(x, zero), last), DsvVecInt);
        memcpy(bin, &number, sizeof bin);
        memcpy(e, estimate + r, sizeof e);
        for (int64_t i = 0; i < lanes; i++) {
            count[bin[i]] += 1;
            mass[bin[i]] += e[i];
        }
    }
}

/* One slice of the groups of a (batch, head). */
static void histogram_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    Scratch scratch = scratch_of(s, worker);
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / SLICES, slice = n % SLICES, tile = -1;
        Columns counted = columns_of_pair(s, pair);
        double *count = s->slice_count + n * DSV_SELECT_BINS, *mass = s->slice_mass + n * DSV_SELECT_BINS;
        memset(count, 0, DSV_SELECT_BINS * sizeof *count);
        memset(mass, 0, DSV_SELECT_BINS * sizeof *mass);
        for (int64_t g = slice * s->groups / SLICES; g < (slice + 1) * s->groups / SLICES; g++) {
            if (s->args->bin_skip > 0 && g / DSVI_COUNTED_GROUPS != tile)
                counted = transpose_counted(s, pair, dsvi_select_rotation(s->args, pair * s->groups + g),
                                            scratch.counted);
            tile = g / DSVI_COUNTED_GROUPS;
            group_lse(s, &scratch, pair, g);
            group_estimates(s, &counted, &scratch, pair, g);
            add_to_bins(scratch.estimate, counted.runs, count, mass);
        }
    }
}

/* Adds the slices of all that share a histogram, in order. */
static void reduce_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        double *count = s->args->bin_count + h * DSV_SELECT_BINS;
        double *mass = s->args->bin_mass + h * DSV_SELECT_BINS;
        memset(count, 0, DSV_SELECT_BINS * sizeof *count);
        memset(mass, 0, DSV_SELECT_BINS * sizeof *mass);
        for (int64_t n = h * SLICES; n < s->pairs * SLICES; n++) {
            if (n / SLICES % s->args->bin_heads != h)
                continue;
            for (int64_t bin = 0; bin < DSV_SELECT_BINS; bin++) {
                count[bin] += s->slice_count[n * DSV_SELECT_BINS + bin];
                mass[bin] += s->slice_mass[n * DSV_SELECT_BINS + bin];
            }
        }
    }
}

static DsvStatus prepare(const DsvSelectArgs *args, Select *s)
{
    size_t wanted = plan(args, args->workspace, s);
    if (args->workspace_bytes < wanted)
        return DSVI_FAIL(DSV_E_SHAPE, "select: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         wanted);
    dsvi_parallel_for(s->pairs * column_blocks(s->all.width), 1, transpose_range, s);
    return DSV_OK;
}

static DsvStatus histogram(DsvStream *stream, const DsvSelectArgs *args)
{
    Select s;
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, false));
    DSVI_TRY(prepare(args, &s));
    dsvi_parallel_for(s.pairs * SLICES, 1, histogram_range, &s);
    dsvi_parallel_for(args->bin_heads, 1, reduce_range, &s);
    return DSV_OK;
}

/* The bits of a non-negative float order as it does. */
static float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int64_t count_from(const float *estimate, int64_t runs, float cut)
{
    int32_t count = 0;
    for (int64_t r = 0; r < runs; r++)
        count += estimate[r] >= cut;
    return count;
}

/* The k-th largest estimate, 1 <= k <= runs, by halving the interval of floats it lies in. */
static float kth_largest(const float *estimate, int64_t runs, int64_t k)
{
    int32_t low = 0, high = 0x7F800000; /* at least k are >= low, fewer are >= high */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (count_from(estimate, runs, float_of(middle)) >= k)
            low = middle;
        else
            high = middle;
    }
    return float_of(low);
}

/* Sets the bits of the runs whose estimate reaches `cut`; of those equal to it only the first `equal`. */
static void mark(const float *estimate, int64_t runs, float cut, int64_t equal, uint64_t *chosen)
{
    for (int64_t first = 0; first < runs; first += WORD) {
        uint64_t word = 0, ties = 0;
        int64_t count = runs - first < WORD ? runs - first : (int64_t)WORD;
        for (int64_t i = 0; i < count; i++) {
            word |= (uint64_t)(estimate[first + i] > cut) << i;
            ties |= (uint64_t)(estimate[first + i] == cut) << i;
        }
        for (; ties && equal > 0; ties &= ties - 1, equal--)
            word |= ties & -ties;
        chosen[first / WORD] = word;
    }
}

static void mark_winners(const Select *s, int64_t h, const float *estimate, uint64_t *chosen)
{
    int64_t best = 0, k;
    float cut = s->args->topk ? 0 : s->args->threshold[h];
    for (int64_t r = 1; r < s->runs; r++)
        best = estimate[r] > estimate[best] ? r : best;
    if (s->args->topk) {
        k = s->args->topk[h] < 1 ? 1 : s->args->topk[h] > s->runs ? s->runs : s->args->topk[h];
        cut = kth_largest(estimate, s->runs, k);
        mark(estimate, s->runs, cut, k - count_from(estimate, s->runs, nextafterf(cut, INFINITY)), chosen);
    } else {
        mark(estimate, s->runs, cut, s->runs, chosen);
    }
    chosen[best / WORD] |= (uint64_t)1 << best % WORD;
}

/* draws[i / 64] bit i % 64: whether unit i of list n of the whole is explored (ops/select.h). */
static void draw_units(const DsvSelectArgs *args, int64_t n, int64_t units, uint64_t *draws)
{
    DsvRng rng = {args->explore_seed, DSV_RNG_EXPLORE, (uint32_t)args->explore_step};
    uint64_t limit = dsvi_explore_limit(args->explore_rate);
    int64_t fours = (units + 3) / 4;
    memset(draws, 0, (size_t)((units + WORD - 1) / WORD) * sizeof *draws);
    for (int64_t u = 0; u < fours; u++) {
        uint32_t words[4];
        dsvi_rng_words(rng, (uint64_t)(n * fours + u), words);
        for (int64_t i = 0; i < 4 && 4 * u + i < units; i++)
            draws[4 * u / WORD] |= (uint64_t)(words[i] < limit) << (4 * u + i) % WORD;
    }
}

static void explore(const Select *s, int64_t n, uint64_t *draws, uint64_t *chosen)
{
    const DsvSelectArgs *args = s->args;
    int64_t number = dsvi_select_number(args, n);
    if (args->explore == DSV_EXPLORE_NONE)
        return;
    if (args->explore == DSV_EXPLORE_BLOCKS) {
        draw_units(args, number, (args->keys + DSV_EXPLORE_BLOCK - 1) / DSV_EXPLORE_BLOCK, draws);
        for (int64_t r = 0; r < s->runs; r++) {
            int64_t block = r * args->grain / DSV_EXPLORE_BLOCK;
            chosen[r / WORD] |= (draws[block / WORD] >> block % WORD & 1) << r % WORD;
        }
        return;
    }
    draw_units(args, number, s->runs, draws);
    uint64_t before = 0; /* the winners of the word before */
    for (int64_t w = 0; w < s->words; w++) {
        uint64_t here = chosen[w], after = w + 1 < s->words ? chosen[w + 1] : 0;
        uint64_t beside = here << 1 | before >> (WORD - 1) | here >> 1 | after << (WORD - 1);
        chosen[w] |= args->explore == DSV_EXPLORE_NEIGHBOURS ? draws[w] & beside : draws[w];
        before = here;
    }
}

/* Chooses the runs of list n; offsets[n + 1] becomes their number. */
static void choose_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    Scratch scratch = scratch_of(s, worker);
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / s->groups, count = 0;
        uint64_t *chosen = s->chosen + n * s->words;
        double mass = 0;
        const Columns all = columns_of_pair(s, pair);
        group_estimates(s, &all, &scratch, pair, n % s->groups);
        mark_winners(s, pair % s->args->heads, scratch.estimate, chosen);
        explore(s, n, scratch.draws, chosen);
        for (int64_t w = 0; w < s->words; w++) {
            count += __builtin_popcountll(chosen[w]);
            for (uint64_t left = chosen[w]; left; left &= left - 1)
                mass += scratch.estimate[w * WORD + __builtin_ctzll(left)];
        }
        s->mass[n] = mass;
        s->args->lists->offsets[n + 1] = count;
    }
}

static void write_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    const DsvLists *lists = s->args->lists;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        int64_t at = lists->offsets[n];
        for (int64_t w = 0; w < s->words; w++)
            for (uint64_t left = s->chosen[n * s->words + w]; left; left &= left - 1)
                lists->runs[at++] = (int32_t)(w * WORD + __builtin_ctzll(left));
    }
}

static DsvStatus select_lists(DsvStream *stream, const DsvSelectArgs *args)
{
    Select s;
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, true));
    DSVI_TRY(prepare(args, &s));
    int64_t count = dsvi_lists_count(args->lists);
    dsvi_parallel_for(count, 1, choose_range, &s);
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

void DSVI_SIMD(fill_select)(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, histogram, workspace, DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_lists, select_lists, workspace, DSVI_SIMD_NAME);
}
