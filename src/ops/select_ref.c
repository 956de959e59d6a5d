/* Reference implementation of select_histogram and select_lists: the formulas of select.h in double, one
 * group at a time. */
#include "ops/select.h"

#include <math.h>

#include "base/rng.h"

DsvStatus dsvi_select_check(const DsviSelectArgs *args, bool lists)
{
    if (args->group < 1 || args->chunk < 1 || args->group % args->chunk)
        return DSVI_FAIL(DSV_E_SHAPE, "select: chunk is %lld, expected a divisor of group %lld",
                         (long long)args->chunk, (long long)args->group);
    if (args->candidate_keys < 1 || args->grain < 1 || args->grain % args->candidate_keys)
        return DSVI_FAIL(DSV_E_SHAPE, "select: grain is %lld, expected a multiple of candidate_keys %lld",
                         (long long)args->grain, (long long)args->candidate_keys);
    if (args->queries < 1 || args->keys < 1 || args->features < 1 || args->features > DSVI_HEAD_DIM_MAX)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "select: %lld queries, %lld keys, %lld features; expected at least one "
                         "of each and at most %d features",
                         (long long)args->queries, (long long)args->keys, (long long)args->features,
                         DSVI_HEAD_DIM_MAX);
    if (args->bin_skip < 0)
        return DSVI_FAIL(DSV_E_USAGE, "select: bin_skip is %lld, expected 0 or more",
                         (long long)args->bin_skip);
    if (!lists && args->bin_heads != 1 && args->bin_heads != args->heads)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "select: histograms for %lld of %lld heads, expected one or one for each",
                         (long long)args->bin_heads, (long long)args->heads);
    if (!lists)
        return DSV_OK;
    if (!args->threshold == !args->topk)
        return DSVI_FAIL(DSV_E_USAGE, "select: expected exactly one of threshold and topk");
    const DsviLists *out = args->lists;
    if (out->batch != args->batch || out->heads != args->heads || out->queries != args->queries ||
        out->keys != args->keys || out->group != args->group || out->grain != args->grain ||
        out->groups != dsvi_select_groups(args))
        return DSVI_FAIL(DSV_E_SHAPE,
                         "select: lists to fill are for batch %lld, heads %lld, queries %lld, "
                         "keys %lld, groups of %lld, spans of %lld keys, which differs from the arguments",
                         (long long)out->batch, (long long)out->heads, (long long)out->queries,
                         (long long)out->keys, (long long)out->group, (long long)out->grain);
    return DSV_OK;
}

/* Returns the score z_pc = scale f_p . f_c of proxy p and candidate c (select.h), where pair = b * heads + h.
 * With coarse features the score is in units of ln 2. */
static double select_score(const DsviSelectArgs *args, int64_t pair, int64_t p, int64_t c)
{
    const float *proxy = args->proxies + (pair * dsvi_select_proxies(args) + p) * args->features;
    const float *candidate = args->candidates + (pair * dsvi_select_candidates(args) + c) * args->features;
    double sum = 0;
    for (int64_t r = 0; r < args->features; r++)
        sum += args->coarse ? (double)dsvi_select_coarse(proxy[r], args->scale * DSVI_LOG2_E) *
                                  dsvi_select_coarse(candidate[r], 1)
                            : (double)proxy[r] * candidate[r];
    return args->coarse ? sum : args->scale * sum;
}

/* Returns exp(x), or with coarse features dsvi_select_power(x), an approximation of 2^x. x is a score minus
 * the largest score or the lse; if this reference value changes by an integer, the approximation scales by an
 * exact power of 2. */
static double select_power(const DsviSelectArgs *args, double x)
{
    return args->coarse ? dsvi_select_power(x) : exp(x);
}

static double log_sum_exp(const DsviSelectArgs *args, int64_t pair, int64_t p)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < dsvi_select_candidates(args); c++)
        largest = fmax(largest, select_score(args, pair, p, c));
    largest = args->coarse ? floor(largest) : largest;
    for (int64_t c = 0; c < dsvi_select_candidates(args); c++)
        sum += select_power(args, select_score(args, pair, p, c) - largest);
    return (args->coarse ? largest / DSVI_LOG2_E : largest) + log(sum);
}

/* Returns w_p a_pc, the contribution of proxy p to its group's estimate for candidate c (select.h); w_p is
 * `weight`. The lse is read as stored, after rounding, so that select_histogram and select_lists compute
 * equal estimates. */
static double weighted_estimate(const DsviSelectArgs *args, int64_t pair, int64_t p, int64_t c, double weight)
{
    double lse = args->lse[pair * dsvi_select_proxies(args) + p];
    if (args->coarse)
        return select_power(args, select_score(args, pair, p, c) + log2(weight) - lse * DSVI_LOG2_E);
    return weight * select_power(args, select_score(args, pair, p, c) - lse);
}

/* Computes the estimated attention e_gr of group g to every span r of keys, into estimate[r]. */
static void select_group_estimates(const DsviSelectArgs *args, int64_t pair, int64_t g, double *estimate)
{
    int64_t begin = g * args->group;
    int64_t end = begin + args->group < args->queries ? begin + args->group : args->queries;
    int64_t candidates = dsvi_select_candidates(args), per_span = dsvi_select_per_span(args);
    for (int64_t r = 0; r < dsvi_select_spans(args); r++)
        estimate[r] = 0;
    for (int64_t first = begin; first < end; first += args->chunk) {
        int64_t p = first / args->chunk;
        int64_t last = first + args->chunk < end ? first + args->chunk : end;
        double weight = (double)(last - first) / (double)(end - begin);
        for (int64_t c = 0; c < candidates; c++)
            estimate[c / per_span] += weighted_estimate(args, pair, p, c, weight);
    }
}

size_t dsvi_select_workspace_ref(DsviStream *stream, const DsviSelectArgs *args)
{
    (void)stream;
    return (size_t)dsvi_select_spans(args) * (sizeof(double) + 1);
}

static int64_t bin_of(double estimate)
{
    double bin = floor((log2(estimate) + DSVI_SELECT_OCTAVES) * DSVI_SELECT_PER_OCTAVE);
    if (!(bin >= 0)) /* NaN goes to bin 0 */
        return 0;
    return bin > DSVI_SELECT_BINS - 1 ? DSVI_SELECT_BINS - 1 : (int64_t)bin;
}

DsvStatus dsvi_select_histogram_ref(DsviStream *stream, const DsviSelectArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, false));
    double *estimate = args->workspace;
    for (int64_t i = 0; i < args->bin_heads * DSVI_SELECT_BINS; i++)
        args->bin_count[i] = args->bin_mass[i] = 0;
    for (int64_t pair = 0; pair < args->batch * args->heads; pair++) {
        double *count = args->bin_count + pair % args->bin_heads * DSVI_SELECT_BINS;
        double *mass = args->bin_mass + pair % args->bin_heads * DSVI_SELECT_BINS;
        for (int64_t p = 0; p < dsvi_select_proxies(args); p++)
            args->lse[pair * dsvi_select_proxies(args) + p] = (float)log_sum_exp(args, pair, p);
        for (int64_t g = 0; g < dsvi_select_groups(args); g++) {
            uint32_t rotation = dsvi_select_rotation(args, pair * dsvi_select_groups(args) + g);
            select_group_estimates(args, pair, g, estimate);
            for (int64_t i = 0; i < dsvi_select_counted_spans(args, rotation); i++) {
                int64_t r = dsvi_select_counted_span(args, rotation, i);
                count[bin_of(estimate[r])] += 1;
                mass[bin_of(estimate[r])] += estimate[r];
            }
        }
    }
    return DSV_OK;
}

/* Returns whether span r is among the k spans with the largest estimates, that is, whether fewer than k spans
 * have a larger estimate, or an equal estimate and a smaller index. */
static bool among_largest(const double *estimate, int64_t spans, int64_t r, int64_t k)
{
    int64_t before = 0;
    for (int64_t other = 0; other < spans; other++)
        before += estimate[other] > estimate[r] || (estimate[other] == estimate[r] && other < r);
    return before < k;
}

static void select_mark_winners(const DsviSelectArgs *args, int64_t h, const double *estimate,
                                unsigned char *winner)
{
    int64_t spans = dsvi_select_spans(args), best = 0;
    for (int64_t r = 0; r < spans; r++) {
        winner[r] = args->topk ? among_largest(estimate, spans, r, args->topk[h])
                               : estimate[r] >= args->threshold[h];
        best = estimate[r] > estimate[best] ? r : best;
    }
    winner[best] = 1;
}

static bool explored(const DsviSelectArgs *args, int64_t list, const unsigned char *winner, int64_t r)
{
    int64_t spans = dsvi_select_spans(args), unit = r, units = spans;
    if (args->explore == DSVI_EXPLORE_NONE)
        return false;
    bool adjacent = (r > 0 && winner[r - 1]) || (r + 1 < spans && winner[r + 1]);
    if (args->explore == DSVI_EXPLORE_NEIGHBOURS && !adjacent)
        return false;
    if (args->explore == DSVI_EXPLORE_BLOCKS) {
        unit = r * args->grain / DSVI_EXPLORE_BLOCK;
        units = (args->keys + DSVI_EXPLORE_BLOCK - 1) / DSVI_EXPLORE_BLOCK;
    }
    DsviRng rng = {args->explore_seed, DSVI_RNG_EXPLORE, (uint32_t)args->explore_step};
    uint32_t words[4];
    uint64_t first = (uint64_t)(dsvi_select_number(args, list) * ((units + 3) / 4));
    dsvi_rng_words(rng, first + (uint64_t)unit / 4, words);
    return words[unit % 4] < dsvi_explore_limit(args->explore_rate);
}

DsvStatus dsvi_select_lists_ref(DsviStream *stream, const DsviSelectArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_select_check(args, true));
    int64_t spans = dsvi_select_spans(args), groups = dsvi_select_groups(args), total = 0;
    double *estimate = args->workspace;
    unsigned char *winner = (unsigned char *)(estimate + spans);
    DsviLists *lists = args->lists;
    for (int64_t h = 0; h < args->heads; h++)
        args->selected_mass[h] = 0;
    lists->offsets[0] = 0;
    for (int64_t n = 0; n < args->batch * args->heads * groups; n++) {
        int64_t pair = n / groups, h = pair % args->heads;
        select_group_estimates(args, pair, n % groups, estimate);
        select_mark_winners(args, h, estimate, winner);
        for (int64_t r = 0; r < spans; r++) {
            if (!winner[r] && !explored(args, n, winner, r))
                continue;
            if (total < lists->capacity)
                lists->spans[total] = (int32_t)r;
            total++;
            args->selected_mass[h] += estimate[r];
        }
        lists->offsets[n + 1] = total;
    }
    *args->needed = total;
    for (int64_t n = 0; n < dsvi_lists_count(lists) && total > lists->capacity; n++)
        lists->offsets[n + 1] = 0;
    return DSV_OK;
}
