/* Makes key lists from the selector's features: computes a histogram of the estimated attention, a threshold
 * from the histogram, then the lists.
 *
 * A list consists of winners, whose estimates reach the threshold, and explored spans, drawn at random.
 * With x = sparse.explore, the fraction x of a block's budget (the density of its lists) is explored.
 * Spans are drawn anew in each training step; outside training only if x is 1, because then no winners
 * exist. Winners have as many spans as the target mass needs, but at most (1 - x) of the target density.
 * The budget is the density of winners divided by (1 - x). The probability with which a span is drawn
 * follows from the budget: x times the budget for single spans and for blocks, and x / (2 (1 - x)) for
 * neighbours, because a winner has two. A draw that hits a winner adds nothing, so the probability is
 * divided by the fraction of spans that are no winners. */
#include <math.h>
#include <string.h>

#include "sparse/sparse_internal.h"

#define DENSITY_MIN 0.02 /* with sparse.rule=topk: smallest list density that any head may request */
#define MISSED_MAX                                                                   \
    8.0 /* bound of DsviSparseRecord.missed and 1 / missed: keeps lists from growing \
         * endlessly */

/* Distance between the exploration seeds of two ranks: a number larger than the seeds that users choose,
 * so that no two ranks get the same seed. */
static const uint64_t RANK_SEEDS = UINT64_C(1) << 40;

/* The histogram counts spans with at least so many keys of each list, or all keys if there are fewer. */
enum { COUNTED_KEYS = 2048 };

/* Returns whether lists follow from a count for each head (sparse.rule=topk) instead of a threshold. */
static bool uses_topk(const DsviSparse *s)
{
    return strcmp(s->settings.sparse_rule, "topk") == 0;
}

/* Returns bin_skip, the number of spans that the histogram skips for each span that it counts
 * (ops/select_counted.h). The stride is limited to the number of tiles, so that each span is counted by at
 * least one tile of each head. With sparse.rule=topk no histogram is needed, and nearly all spans are
 * skipped. */
static int64_t bin_skip(const DsviSparse *s)
{
    int64_t spans = (s->shape.tokens + s->settings.sparse_grain - 1) / s->settings.sparse_grain;
    int64_t groups = (s->shape.tokens + s->settings.sparse_group - 1) / s->settings.sparse_group;
    int64_t tiles = (groups + DSVI_COUNTED_GROUPS - 1) / DSVI_COUNTED_GROUPS,
            stride = s->shape.tokens / COUNTED_KEYS;
    if (uses_topk(s))
        return spans;
    stride = stride < tiles ? stride : tiles;
    return stride > 1 ? stride - 1 : 0;
}

static DsviSelectArgs select_args(const DsviSparse *s, int64_t block, const DsviSparseView *view)
{
    const DsviFeatures *f = &s->selector->features;
    return (DsviSelectArgs){
        .batch = s->shape.batch,
        .heads = view->heads,
        .queries = view->queries,
        .keys = s->shape.tokens,
        .group = s->settings.sparse_group,
        .chunk = f->chunk,
        .candidate_keys = f->candidate_keys,
        .grain = s->settings.sparse_grain,
        .features = f->features,
        .scale = f->scale,
        .coarse = f->coarse,
        .proxies = s->proxies,
        .candidates = s->candidates,
        .lse = s->select_lse,
        .bin_skip = bin_skip(s),
        /* The position of the spans that the histogram counts is a hash of step and block. Dense blocks
         * make lists on every profile_every-th step only: with a position that advances by one each step
         * they would count the same spans each time if the stride divided profile_every. */
        .bin_turn = dsvi_counted_mix((uint32_t)(s->step * s->shape.blocks + block)),
        .bin_heads = 1,
        .bin_count = s->bin_count,
        .bin_mass = s->bin_mass,
        .selected_mass = s->host_selected,
        .needed = s->host_needed,
        .workspace = s->workspace,
        .workspace_bytes = s->workspace_bytes,
    };
}

size_t dsvi_sparse_select_workspace(const DsviSparse *s, const DsviSparseView *view)
{
    const DsviOps *ops = &s->backend->ops;
    DsviSelectArgs args = select_args(s, 0, view);
    DsviLists lists = {.capacity = s->spans_max};
    dsvi_sparse_shape_lists(s, view, &lists);
    args.lists = &lists;
    size_t histogram = DSVI_OP_WORKSPACE(ops->select_histogram, s->backend->device->stream, &args);
    size_t choice = DSVI_OP_WORKSPACE(ops->select_lists, s->backend->device->stream, &args);
    return histogram > choice ? histogram : choice;
}

static DsviExplore explore_kind(const DsviSparse *s)
{
    const char *kind = s->settings.sparse_explore_kind;
    if ((!s->train && s->settings.sparse_explore < 1) || s->settings.sparse_explore <= 0)
        return DSVI_EXPLORE_NONE;
    return strcmp(kind, "random") == 0       ? DSVI_EXPLORE_RANDOM
           : strcmp(kind, "neighbours") == 0 ? DSVI_EXPLORE_NEIGHBOURS
           : strcmp(kind, "blocks") == 0     ? DSVI_EXPLORE_BLOCKS
                                             : DSVI_EXPLORE_NONE;
}

/* With context parallelism, sets in `args` which of all queries and heads of the model are those for which
 * this rank makes lists. */
static DsvStatus set_part_of_whole(const DsviSparse *s, const DsviSparseView *view, DsviSelectArgs *args)
{
    DsviDevice *device = s->backend->device;
    if (!s->cp)
        return DSV_OK;
    args->part = (DsviSelectPart){
        .heads = s->shape.heads,
        .groups = (s->shape.tokens + args->group - 1) / args->group,
        .first_group = view->first / args->group,
        .head = s->head,
    };
    return device->upload(device->stream, s->head, view->head, (size_t)view->heads * sizeof *s->head);
}

static void set_exploration(const DsviSparse *s, int64_t block, double budget, DsviSelectArgs *args)
{
    double explored = s->settings.sparse_explore, others = 1 - (1 - explored) * budget;
    args->explore = explore_kind(s);
    /* Ranks with different samples explore different keys. Ranks of one context-parallel group have the
     * same samples and consecutive rank numbers, and must use one seed. */
    int64_t rank = dsvi_comm_rank(s->comm) / (s->cp ? dsvi_cp_ranks(s->cp) : 1);
    args->explore_seed = (uint64_t)s->settings.seed + (uint64_t)rank * RANK_SEEDS;
    args->explore_step = (uint64_t)(s->step * s->shape.blocks + block);
    double draws = args->explore == DSVI_EXPLORE_NEIGHBOURS ? explored / (2 * (1 - explored))
                                                            : explored * budget;
    args->explore_rate = draws < others ? draws / others : 1;
}

/* Returns the density of key lists that a head requests. With sparse.rule=topk this density is 1 -
 * sparsity in the words of the DSV paper: the running mean of the fraction of keys that holds 90 % of a
 * query's mass. */
static double requested_density(const DsviSparse *s, int64_t block, int64_t head)
{
    int64_t n = block * s->shape.heads + head;
    if (s->prescribed)
        return s->prescribed[n];
    if (!uses_topk(s) || isnan(s->record.head_share90[n]))
        return s->settings.sparse_target_density;
    return fmax((double)s->record.head_share90[n], DENSITY_MIN);
}

/* Returns the mean of the list densities that all heads of the block request, including the heads of other
 * ranks. */
static double mean_requested(const DsviSparse *s, int64_t block)
{
    double sum = 0;
    for (int64_t h = 0; h < s->shape.heads; h++)
        sum += requested_density(s, block, h);
    return sum / (double)s->shape.heads;
}

/* Returns the density that lists may have, as mean over all heads. */
static double block_density(const DsviSparse *s, int64_t block)
{
    double requested = mean_requested(s, block);
    return s->prescribed ? requested : fmin(requested, s->settings.sparse_target_density);
}

/* Returns the density that lists of one head may have. If the heads of a block together request a larger
 * density than the block may have, each head gets the same fraction of the density that it requests. */
static double head_density(const DsviSparse *s, int64_t block, int64_t head)
{
    double requested = requested_density(s, block, head);
    return s->prescribed ? requested : requested * (block_density(s, block) / mean_requested(s, block));
}

/* Returns the fraction of estimated mass that lists should hold so that their exact mass is
 * sparse.target_mass. A selector's estimates are smoother than attention. For a block that attends to few
 * keys, lists therefore miss more than estimated; for diffuse attention lists miss less. The ratio of
 * exact to estimated missed mass has been measured (DsviSparseRecord.missed). */
static double aimed_mass(const DsviSparse *s, int64_t block)
{
    double may_miss = 1 - s->settings.sparse_target_mass, missed = s->record.missed[block];
    if (isnan(missed) || may_miss <= 0)
        return s->settings.sparse_target_mass;
    return 1 - fmin(may_miss / fmin(fmax(missed, 1 / MISSED_MAX), MISSED_MAX), (1 + may_miss) / 2);
}

/* Lowers *budget to the density that winners and explored spans have together when the winners hold the
 * fraction `mass`. `winners` is the winners' fraction of the budget. Waits for the device, to read the
 * histogram. */
static DsvStatus budget_of_mass(DsviSparse *s, double winners, double mass, double *budget)
{
    DsviDevice *device = s->backend->device;
    size_t bytes = DSVI_SELECT_BINS * sizeof(double);
    DSVI_TRY(device->download(device->stream, s->host_count, s->bin_count, bytes));
    DSVI_TRY(device->download(device->stream, s->host_mass, s->bin_mass, bytes));
    DSVI_TRY(device->sync(device->stream));
    double count = dsvi_threshold_for_mass(s->host_count, s->host_mass, 1, mass).count;
    if (winners > 0)
        *budget = fmin(count / winners, *budget);
    return DSV_OK;
}

/* Computes the threshold of all heads on the device. `winners` is the winners' fraction of the budget. Sets
 * *budget to the density that winners and explored spans may have together. */
static DsvStatus compute_threshold(DsviSparse *s, int64_t block, double winners, double *budget)
{
    double mass = s->prescribed ? 0 : s->settings.sparse_target_mass, density = block_density(s, block);
    const DsviSelectThresholdArgs args = {
        .heads = s->shape.heads,
        .bin_heads = 1,
        .bin_count = s->bin_count,
        .bin_mass = s->bin_mass,
        .mass_fraction = mass > 0 ? aimed_mass(s, block) : 1,
        .span_fraction = density > 0 ? winners * density : 1,
        .threshold = s->threshold,
    };
    DSVI_TRY(s->backend->ops.select_threshold.run(s->backend->device->stream, &args));
    *budget = density > 0 ? density : 1;
    return mass > 0 && winners < 1 ? budget_of_mass(s, winners, args.mass_fraction, budget) : DSV_OK;
}

/* Uploads the number of winners (spans with the largest estimates) in each list, for each head that this
 * rank computes. */
static DsvStatus upload_topk(DsviSparse *s, int64_t block, const DsviSparseView *view, double winners,
                             int64_t spans)
{
    DsviDevice *device = s->backend->device;
    for (int64_t h = 0; h < view->heads; h++) {
        double density = head_density(s, block, view->head ? view->head[h] : h);
        int64_t k = (int64_t)(winners * density * (double)spans + 0.5);
        s->host_topk[h] = (int32_t)(k < 1 ? 1 : k);
    }
    return device->upload(device->stream, s->topk, s->host_topk, (size_t)view->heads * sizeof(int32_t));
}

/* Context parallelism: sums the histograms over the ranks of a sample, so that all ranks compute the
 * threshold of the whole block. bin_count and bin_mass are contiguous, so one all-reduce sums both. */
static DsvStatus add_histograms(const DsviSparse *s)
{
    if (!s->cp)
        return DSV_OK;
    return dsvi_comm_all_reduce(dsvi_cp_group_device(dsvi_cp_group(s->cp)), DSVI_F64, s->bin_count,
                                2 * DSVI_SELECT_BINS);
}

DsvStatus dsvi_sparse_make_lists(DsviSparse *s, int64_t block)
{
    const DsviOps *ops = &s->backend->ops;
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    DsviSparseView view = dsvi_sparse_view(s, block);
    DsviSelectArgs args = select_args(s, block, &view);
    double budget, winners = explore_kind(s) == DSVI_EXPLORE_NONE ? 1 : 1 - s->settings.sparse_explore;

    s->listed_block = -1;
    DSVI_TRY(set_part_of_whole(s, &view, &args));
    DSVI_TRY(ops->select_histogram.run(device->stream, &args));
    if (uses_topk(s)) {
        DSVI_TRY(upload_topk(s, block, &view, winners, dsvi_select_spans(&args)));
        budget = block_density(s, block);
        args.topk = s->topk;
    } else {
        DSVI_TRY(add_histograms(s));
        DSVI_TRY(compute_threshold(s, block, winners, &budget));
        args.threshold = s->threshold;
    }
    set_exploration(s, block, budget, &args);
    args.lists = &b->lists;
    args.again = true;
    DSVI_TRY(ops->select_lists.run(device->stream, &args));
    return device->flag(device->stream);
}

/* Returns the number of lists of a block, including those of other context-parallel ranks. */
static double list_count_of_all_ranks(const DsviSparse *s)
{
    int64_t group = s->settings.sparse_group;
    return (double)(s->shape.batch * s->shape.heads * ((s->shape.tokens + group - 1) / group));
}

DsvStatus dsvi_sparse_await_lists(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    /* the host knows the lengths of these lists since the lists were measured */
    if (s->listed_block == block)
        return DSV_OK;
    DSVI_TRY(s->backend->device->await(s->backend->device->stream));
    int64_t needed = *s->host_needed;
    double lists = list_count_of_all_ranks(s);
    struct {
        double needed, mass, unfit;
    } seen = {(double)needed, 0, needed > b->lists.capacity};
    for (int64_t h = 0; h < b->lists.heads; h++)
        seen.mass += s->host_selected[h] / lists;
    if (s->cp)
        DSVI_TRY(dsvi_comm_all_reduce(dsvi_cp_group_host(dsvi_cp_group(s->cp)), DSVI_F64, &seen,
                                      sizeof seen / sizeof(double)));
    s->record.density[block] = seen.needed / (lists * (double)dsvi_lists_full(&b->lists));
    s->record.estimated_mass[block] = seen.mass;
    s->listed_block = block;
    s->listed_spans = needed;
    b->fit = seen.unfit == 0;
    return DSV_OK;
}
