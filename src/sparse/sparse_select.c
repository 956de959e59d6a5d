/* From features to lists: how estimates spread, the threshold that follows, the lists.
 *
 * Exploration gives a share x = sparse.explore of a block's budget to runs drawn anew each step of training;
 * outside training too where x is 1, for then there are no winners. Winners get what the target mass takes,
 * but no more than (1 - x) of the target density. The budget is the density of winners divided by (1 - x).
 * The probability of a draw follows: x of the budget for single runs and for blocks; x / (2 (1 - x)) for the
 * neighbours, of which a winner has two; divided by the share of runs that are no winners, for a draw that
 * hits a winner adds nothing. */
#include <math.h>
#include <string.h>

#include "sparse/sparse_internal.h"

#define LEAST_SHARE 0.02 /* of the keys that a head asks for by count, however narrow its attention */
#define MISSED_MOST 8.0 /* times what was believed: beyond that lists would only grow */

/* Far apart: seeds that people choose are small. */
static const uint64_t RANK_SEEDS = UINT64_C(1) << 40;

enum { COUNTED_RUNS = 4096 }; /* in the histogram, at least, where there are as many */

/* A count for each head, no threshold. */
static bool by_count(const DsvSparse *s)
{
    return strcmp(s->settings.sparse_rule, "topk") == 0;
}

/* The histogram counts a sample of the runs of each group, one of each `stride` (ops/select_counted.h). If
 * the stride is no larger than the number of tiles, every run is counted by at least one tile of each head.
 * A count per head needs no histogram. */
static int64_t bin_skip(const DsvSparse *s)
{
    int64_t runs = (s->shape.tokens + s->settings.sparse_grain - 1) / s->settings.sparse_grain;
    int64_t groups = (s->shape.tokens + s->settings.sparse_group - 1) / s->settings.sparse_group;
    int64_t tiles = (groups + DSVI_COUNTED_GROUPS - 1) / DSVI_COUNTED_GROUPS, stride = runs / COUNTED_RUNS;
    if (by_count(s))
        return runs;
    stride = stride < tiles ? stride : tiles;
    return stride > 1 ? stride - 1 : 0;
}

static DsvSelectArgs select_args(const DsvSparse *s, int64_t block, const DsvSparseView *view)
{
    const DsvFeatures *f = &s->selector->features;
    return (DsvSelectArgs){
        .batch = s->shape.batch, .heads = view->heads, .queries = view->queries, .keys = s->shape.tokens,
        .group = s->settings.sparse_group, .chunk = f->chunk, .candidate_keys = f->candidate_keys,
        .grain = s->settings.sparse_grain, .features = f->features, .scale = f->scale, .coarse = f->coarse,
        .proxies = s->proxies, .candidates = s->candidates, .lse = s->select_lse, .bin_skip = bin_skip(s),
        /* mixed: dense blocks select every profile_every steps only, which the stride may divide */
        .bin_turn = dsvi_counted_mix((uint32_t)(s->step * s->shape.blocks + block)),
        .bin_heads = 1, .bin_count = s->bin_count, .bin_mass = s->bin_mass,
        .selected_mass = s->host_selected, .needed = s->host_needed,
        .workspace = s->workspace, .workspace_bytes = s->workspace_bytes,
    };
}

size_t dsvi_sparse_select_workspace(const DsvSparse *s, const DsvSparseView *view)
{
    const DsvOps *ops = &s->backend->ops;
    DsvSelectArgs args = select_args(s, 0, view);
    DsvLists lists = {.capacity = s->runs_most};
    dsvi_sparse_shape_lists(s, view, &lists);
    args.lists = &lists;
    size_t histogram = DSVI_OP_WORKSPACE(ops->select_histogram, s->backend->device->stream, &args);
    size_t choice = DSVI_OP_WORKSPACE(ops->select_lists, s->backend->device->stream, &args);
    return histogram > choice ? histogram : choice;
}

static DsvExplore explore_kind(const DsvSparse *s)
{
    const char *kind = s->settings.sparse_explore_kind;
    if ((!s->train && s->settings.sparse_explore < 1) || s->settings.sparse_explore <= 0)
        return DSV_EXPLORE_NONE;
    return strcmp(kind, "random") == 0       ? DSV_EXPLORE_RANDOM
           : strcmp(kind, "neighbours") == 0 ? DSV_EXPLORE_NEIGHBOURS
           : strcmp(kind, "blocks") == 0     ? DSV_EXPLORE_BLOCKS
                                             : DSV_EXPLORE_NONE;
}

/* Which of the model's lists these are. */
static DsvStatus place_in_whole(const DsvSparse *s, const DsvSparseView *view, DsvSelectArgs *args)
{
    DsvDevice *device = s->backend->device;
    if (!s->context)
        return DSV_OK;
    args->part = (DsvSelectPart){
        .heads = s->shape.heads, .groups = (s->shape.tokens + args->group - 1) / args->group,
        .first_group = view->first / args->group, .head = s->head,
    };
    return device->upload(device->stream, s->head, view->head, (size_t)view->heads * sizeof *s->head);
}

static void plan_exploration(const DsvSparse *s, int64_t block, double budget, DsvSelectArgs *args)
{
    double share = s->settings.sparse_explore, others = 1 - (1 - share) * budget;
    args->explore = explore_kind(s);
    /* Different samples explore different keys; ranks that share them are neighbours. */
    int64_t rank = dsvi_comm_rank(s->comm) / (s->context ? dsvi_context_ranks(s->context) : 1);
    args->explore_seed = (uint64_t)s->settings.seed + (uint64_t)rank * RANK_SEEDS;
    args->explore_step = (uint64_t)(s->step * s->shape.blocks + block);
    double draws = args->explore == DSV_EXPLORE_NEIGHBOURS ? share / (2 * (1 - share)) : share * budget;
    args->explore_rate = draws < others ? draws / others : 1;
}

/* The density that a head asks for. Under sparse.rule=topk this is 1 - sparsity of the DSV paper: the share
 * of the keys that held 90 % of a query's mass when the head was last measured. */
static double wanted_density(const DsvSparse *s, int64_t block, int64_t head)
{
    int64_t n = block * s->shape.heads + head;
    if (s->prescribed)
        return s->prescribed[n];
    if (!by_count(s) || isnan(s->record.head_share90[n]))
        return s->settings.sparse_target_density;
    return fmax((double)s->record.head_share90[n], LEAST_SHARE);
}

/* Of all heads, those of other ranks included. */
static double mean_wanted(const DsvSparse *s, int64_t block)
{
    double sum = 0;
    for (int64_t h = 0; h < s->shape.heads; h++)
        sum += wanted_density(s, block, h);
    return sum / (double)s->shape.heads;
}

/* The mean over all heads of the density that lists may have. */
static double block_density(const DsvSparse *s, int64_t block)
{
    double wanted = mean_wanted(s, block);
    return s->prescribed ? wanted : fmin(wanted, s->settings.sparse_target_density);
}

/* The density that lists of a head may have. Where the heads of a block ask for more than the block may have,
 * each gets the same part of what it asks for. */
static double head_density(const DsvSparse *s, int64_t block, int64_t head)
{
    double wanted = wanted_density(s, block, head);
    return s->prescribed ? wanted : wanted * (block_density(s, block) / mean_wanted(s, block));
}

/* Share of the estimated mass at which lists hold sparse.target_mass of the exact one. A selector sees
 * attention blurred: of a block that looks at few keys, lists miss more than it believes, of a diffuse one
 * less. What they were found to miss tells by how much. */
static double aimed_mass(const DsvSparse *s, int64_t block)
{
    double may_miss = 1 - s->settings.sparse_target_mass, missed = s->record.missed[block];
    if (isnan(missed) || may_miss <= 0)
        return s->settings.sparse_target_mass;
    return 1 - fmin(may_miss / fmin(fmax(missed, 1 / MISSED_MOST), MISSED_MOST), (1 + may_miss) / 2);
}

/* Lowers the budget to the density of winners and explored runs together where winners hold `mass`. It
 * takes the histogram on the host, and waits for it. */
static DsvStatus budget_of_mass(DsvSparse *s, double winners, double mass, double *budget)
{
    DsvDevice *device = s->backend->device;
    size_t bytes = DSV_SELECT_BINS * sizeof(double);
    DSVI_TRY(device->download(device->stream, s->host_count, s->bin_count, bytes));
    DSVI_TRY(device->download(device->stream, s->host_mass, s->bin_mass, bytes));
    DSVI_TRY(device->sync(device->stream));
    double count = dsvi_threshold_for_mass(s->host_count, s->host_mass, 1, mass).count;
    if (winners > 0)
        *budget = fmin(count / winners, *budget);
    return DSV_OK;
}

/* Thresholds of all heads on the device. `winners` is their share of the budget; *budget, where there is
 * something to explore, the density that they and explored runs may have together. */
static DsvStatus plan_threshold(DsvSparse *s, int64_t block, double winners, double *budget)
{
    double mass = s->prescribed ? 0 : s->settings.sparse_target_mass, density = block_density(s, block);
    const DsvSelectThresholdArgs args = {
        .heads = s->shape.heads, .bin_heads = 1, .bin_count = s->bin_count, .bin_mass = s->bin_mass,
        .mass_share = mass > 0 ? aimed_mass(s, block) : 1, .run_share = density > 0 ? winners * density : 1,
        .threshold = s->threshold,
    };
    DSVI_TRY(s->backend->ops.select_threshold.run(s->backend->device->stream, &args));
    *budget = density > 0 ? density : 1;
    return mass > 0 && winners < 1 ? budget_of_mass(s, winners, args.mass_share, budget) : DSV_OK;
}

/* A count for each head of the view. */
static DsvStatus plan_topk(DsvSparse *s, int64_t block, const DsvSparseView *view, double winners,
                           int64_t runs)
{
    DsvDevice *device = s->backend->device;
    for (int64_t h = 0; h < view->heads; h++) {
        double density = head_density(s, block, view->head ? view->head[h] : h);
        int64_t k = (int64_t)(winners * density * (double)runs + 0.5);
        s->host_topk[h] = (int32_t)(k < 1 ? 1 : k);
    }
    return device->upload(device->stream, s->topk, s->host_topk, (size_t)view->heads * sizeof(int32_t));
}

/* Of all that share the samples, so that each finds the threshold of the whole: what travels are both
 * arrays of bins, once to be summed and once to be known. */
static DsvStatus add_histograms(const DsvSparse *s)
{
    if (!s->context)
        return DSV_OK;
    return dsvi_comm_all_reduce(dsvi_context_group_device(dsvi_context_group(s->context)), DSV_F64,
                                s->bin_count, 2 * DSV_SELECT_BINS);
}

DsvStatus dsvi_sparse_make_lists(DsvSparse *s, int64_t block)
{
    const DsvOps *ops = &s->backend->ops;
    DsvDevice *device = s->backend->device;
    DsvSparseBlock *b = &s->block[block];
    DsvSparseView view = dsvi_sparse_view(s, block);
    DsvSelectArgs args = select_args(s, block, &view);
    double budget, winners = explore_kind(s) == DSV_EXPLORE_NONE ? 1 : 1 - s->settings.sparse_explore;

    s->listed_block = -1;
    DSVI_TRY(place_in_whole(s, &view, &args));
    DSVI_TRY(ops->select_histogram.run(device->stream, &args));
    if (by_count(s)) {
        DSVI_TRY(plan_topk(s, block, &view, winners, dsvi_select_runs(&args)));
        budget = block_density(s, block);
        args.topk = s->topk;
    } else {
        DSVI_TRY(add_histograms(s));
        DSVI_TRY(plan_threshold(s, block, winners, &budget));
        args.threshold = s->threshold;
    }
    plan_exploration(s, block, budget, &args);
    args.lists = &b->lists;
    args.again = true;
    DSVI_TRY(ops->select_lists.run(device->stream, &args));
    return device->flag(device->stream);
}

/* Lists of all heads and queries, those of other ranks included. */
static double lists_of_all(const DsvSparse *s)
{
    int64_t group = s->settings.sparse_group;
    return (double)(s->shape.batch * s->shape.heads * ((s->shape.tokens + group - 1) / group));
}

DsvStatus dsvi_sparse_take_lists(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    if (s->listed_block == block) /* taken before they were measured */
        return DSV_OK;
    DSVI_TRY(s->backend->device->await(s->backend->device->stream));
    int64_t needed = *s->host_needed;
    double lists = lists_of_all(s);
    struct { double needed, mass, unfit; } seen = {(double)needed, 0, needed > b->lists.capacity};
    for (int64_t h = 0; h < b->lists.heads; h++)
        seen.mass += s->host_selected[h] / lists;
    if (s->context)
        DSVI_TRY(dsvi_comm_all_reduce(dsvi_context_group_host(dsvi_context_group(s->context)), DSV_F64, &seen,
                                      sizeof seen / sizeof(double)));
    s->record.density[block] = seen.needed / (lists * (double)dsvi_lists_full(&b->lists));
    s->record.estimated_mass[block] = seen.mass;
    s->listed_block = block;
    s->listed_runs = needed;
    b->fit = seen.unfit == 0;
    return DSV_OK;
}
