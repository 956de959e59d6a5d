/* SIMD variants of select_histogram and select_lists (ops/select.h): they compute histograms of estimates and
 * key lists from the features of queries (proxies) and of keys (candidates).
 *
 * Candidates are first transposed (select_columns.h). Estimates are then computed for a few groups at a time
 * (select_estimates.h). If worth_keeping, select_histogram keeps the estimates of all groups for
 * select_lists.
 *
 * Lists are made in three steps: first the spans of each group are chosen and marked as bits, and their
 * number and mass computed; then the offsets of the lists are computed in order; then the bits are written as
 * span numbers. */
#include "base/threads.h"
#include "cpu/select_choice.h"
#include "cpu/select_estimates.h"
#include "cpu/simd_fill.h"

enum {
    KEPT = 4,   /* times the memory of candidates that estimates may take to be kept */
    SLICES = 16 /* parts into which the groups of a (batch, head) are divided for the histograms */
};

typedef struct Select {
    const DsviSelectArgs *args;
    int64_t pairs, groups, spans;
    int64_t team;          /* largest number of groups in a team */
    bool keeps;            /* select_histogram computes and keeps the estimates of all spans */
    int64_t words;         /* number of 64-bit words that hold one bit for each span, for one group */
    DsviSelectColumns all; /* candidates of every (batch, head), one after another */
    double *slice_count;   /* (pairs, SLICES, BINS) */
    double *slice_mass;    /* (pairs, SLICES, BINS) */
    float *estimates;      /* (pairs * groups, spans) estimates that are kept for select_lists, or NULL */
    uint64_t *chosen;      /* (pairs * groups, words) bits of the chosen spans */
    double *mass;          /* (pairs * groups) estimated mass of each list */
    float *workers;
    size_t worker_floats;
} Select;

/* Scratch of one worker. */
typedef struct Scratch {
    DsviTeamScratch team;
    float *counted;  /* of the spans that a tile of groups counts in the histogram, the transposed candidates,
                      * or one group's estimates if they are kept; unused if all spans are counted */
    uint64_t *draws; /* random bits of exploration: one for each span, or for each block of keys */
} Scratch;

/* Number of floats of the transposed candidates of those spans that a tile of groups counts in the
 * histogram; 0 if all spans are counted. */
static int64_t counted_floats(const Select *s)
{
    int64_t per_span = dsvi_select_per_span(s->args);
    int64_t columns = DSVI_COUNTED_SPANS * dsvi_select_strata(s->args) * per_span;
    return s->args->bin_skip > 0 ? dsvi_column_floats(s->args->features, columns) : 0;
}

/* Number of floats of the transposed candidates of a (batch, head). */
static int64_t pair_floats(const Select *s)
{
    return dsvi_column_floats(s->args->features, s->all.width);
}

/* Returns whether the estimates of all spans are worth the memory to keep them: each product of a proxy and a
 * candidate is then computed once instead of two to three times. */
static bool worth_keeping(const Select *s)
{
    return s->args->coarse && s->groups * s->spans <= KEPT * pair_floats(s);
}

/* Returns the columns of all candidates of a (batch, head). */
static DsviSelectColumns columns_of_pair(const Select *s, int64_t pair)
{
    DsviSelectColumns columns = s->all;
    columns.transposed += pair * pair_floats(s);
    return columns;
}

/* Sets the pointers of `scratch` to consecutive buffers starting at `base`, and returns the number of floats
 * that they hold together. If `base` is NULL, only computes this number. */
static size_t select_scratch_layout(const Select *s, float *base, Scratch *scratch)
{
    size_t used = dsvi_team_scratch(s->args, s->all.width, s->keeps, base, &scratch->team);
    int64_t draw_words = dsvi_choose_words(dsvi_explore_units_max(s->args));
    scratch->counted = dsvi_take_floats(base, &used, counted_floats(s));
    scratch->draws = (uint64_t *)dsvi_take_floats(base, &used, 2 * draw_words);
    return used;
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
                  .spans = dsvi_select_spans(args),
                  .team = dsvi_team_groups(args)};
    s->all = dsvi_select_columns(args, s->spans, s->spans - 1, NULL);
    s->keeps = keep && worth_keeping(s);
    s->words = dsvi_choose_words(s->spans);
    size_t bins = (size_t)s->pairs * SLICES * DSVI_SELECT_BINS * sizeof(double);
    size_t lists = (size_t)(s->pairs * s->groups);
    s->worker_floats = select_scratch_layout(s, NULL, &scratch);
    size_t all = select_take(&used, (size_t)(s->pairs * pair_floats(s)) * sizeof(float));
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

/* Returns groups [begin, end) of a (batch, head). */
static DsviSelectTeam select_team_of(const Select *s, const Scratch *scratch, int64_t pair, int64_t begin,
                                     int64_t end)
{
    const DsviSelectColumns all = columns_of_pair(s, pair);
    return dsvi_select_team(s->args, &scratch->team, &all, pair, begin, end);
}

/* Transposes blocks [begin, end) of all candidates; blocks are numbered through all (batch, head). */
static void transpose_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Select *s = context;
    int64_t blocks = dsvi_column_blocks(s->all.width);
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        const DsviSelectColumns all = columns_of_pair(s, n / blocks);
        dsvi_columns_transpose(s->args, &all, n / blocks, n % blocks);
    }
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
        const DsviSelectTeam team = select_team_of(s, scratch, pair, g, next);
        dsvi_team_lse_and_estimates(&team);
        for (int64_t group = g; group < next; group++) {
            int64_t list = pair * s->groups + group, spans;
            const float *estimate = dsvi_team_estimate(&team, group);
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
    const DsviSelectColumns all = columns_of_pair(s, pair);
    DsviSelectColumns counted = all;
    for (int64_t g = slice * s->groups / SLICES, next; g < last; g = next) {
        if (s->args->bin_skip > 0 && g / DSVI_COUNTED_GROUPS != tile)
            counted = dsvi_columns_copy_counted(
                s->args, &all, dsvi_select_rotation(s->args, pair * s->groups + g), scratch->counted);
        tile = g / DSVI_COUNTED_GROUPS;
        next = dsvi_min(dsvi_min(g + s->team, last), (tile + 1) * DSVI_COUNTED_GROUPS);
        const DsviSelectTeam team = select_team_of(s, scratch, pair, g, next);
        dsvi_team_lse(&team);
        dsvi_team_estimates(&team, &counted);
        for (int64_t group = g; group < next; group++)
            add_to_histogram(dsvi_team_estimate(&team, group), counted.spans, count, mass);
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
        dsvi_parallel_for(s->pairs * dsvi_column_blocks(s->all.width), 1, transpose_range, s);
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
        const DsviSelectTeam team = select_team_of(s, &scratch, pair, first, last);
        bool kept = s->estimates && s->args->again;
        if (!kept)
            dsvi_team_estimates(&team, &team.all);
        for (int64_t g = first; g < last; g++) {
            int64_t list = pair * s->groups + g;
            choose(s, list, kept ? s->estimates + list * s->spans : dsvi_team_estimate(&team, g),
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
