/* dsv_bench_context (include/dsv/bench.h): times attention over lists on ranks that share a clip, with
 * several parallel plans alternately. Also times the transfers of keys between ranks that divide the
 * tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "bench/bench_cp_parts.h"
#include "bench/bench_report.h"
#include "bench/ops_timed.h"
#include "dist/ranks.h"
#include "base/threads.h"
#include "cp/cp_plan.h"
#include "cp/link_times.h"
#include "sparse/cost.h"

/* A GPU adapts its clock to the power of the last few hundredths of a second. Each plan therefore runs for at
 * least SETTLE_S seconds, and only its last repetition counts. */
#define SETTLE_S 0.06

enum { WARM_UP = 3, LINK_BYTES_MAX = 1 << 26 };

/* Ways to divide attention, named as in include/dsv/bench.h. */
typedef enum Way { NAIVE_HEADS, NAIVE_KEYS, HEADS, KEYS, PLANNED, WAYS } Way;

/* Parts of a step that are timed. ATTENTION is the time of attention kernels in both passes. */
typedef enum Part { SELECT, FORWARD, BACKWARD, ATTENTION, PARTS } Part;

/* One way to divide attention, with its measurements. */
typedef struct Choice {
    bool possible;      /* false if there are too few heads, or if PLANNED is the same plan as another way */
    DsviCpChoice plan;  /* uses the arrays `placement` and `bound` */
    int32_t *placement; /* (N) */
    int64_t *bound;     /* (ranks + 1) */
    double seconds[PARTS][DSVI_BENCH_REPEATS_MAX];
    double median[PARTS];
    float *rows; /* first rows of the results computed with this plan (dsvi_cp_bench_rows) */
    double off;  /* difference of `rows` from those of NAIVE_KEYS (dsvi_cp_bench_off) */
} Choice;

/* Transfers between ranks that are timed. If all keys are exchanged: GATHER gathers the keys, and ALL_HOME
 * returns their gradients to the ranks that own the keys. If only keys that lists name are exchanged: MARK
 * exchanges the marks that request keys, FETCH fetches these keys, and HOME returns their gradients. */
typedef enum Transfer { GATHER, ALL_HOME, MARK, FETCH, HOME, TRANSFERS } Transfer;

typedef struct Bench {
    DsviCpBench setup;
    Choice choice[WAYS];
    Way planned;                /* HEADS or KEYS if the chosen plan equals one of these, otherwise PLANNED */
    double spread;              /* how much the key lists of one rank differ (DsviCpBlock in cp/cp_plan.h) */
    double far_fraction;        /* fraction of other ranks' keys that a rank's lists name, mean over ranks */
    double captured;            /* captured mass: fraction of exact softmax attention on the listed keys */
    double transfer[TRANSFERS]; /* median seconds of each transfer */
    double sent[TRANSFERS];     /* bytes that each transfer sends, on the rank that sends most */
    double part_sent; /* bytes sent by this rank in the last time_part, to ranks that divide tokens */
    double *seen;     /* (ranks, SEEN_MAX) buffer of bench_cp_agree */
} Bench;

enum { SEEN_MAX = 8 };

void dsv_bench_context_defaults(DsvBenchContext *bench)
{
    *bench = (DsvBenchContext){.lists = dsvi_bench_lists_defaults()};
}

/* Replaces value (count) on all ranks by the maximum over ranks, or by the mean if `max` is false. */
static DsvStatus bench_cp_agree(Bench *b, bool max, double *value, int64_t count)
{
    int64_t ranks = dsvi_comm_size(b->setup.comm), rank = dsvi_comm_rank(b->setup.comm);
    for (int64_t i = 0; i < count; i++)
        b->seen[rank * SEEN_MAX + i] = value[i];
    DSVI_TRY(dsvi_comm_all_gather_one(b->setup.comm, b->seen, SEEN_MAX * sizeof(double)));
    for (int64_t i = 0; i < count; i++) {
        value[i] = 0;
        for (int64_t r = 0; r < ranks; r++) {
            double seen = b->seen[r * SEEN_MAX + i];
            value[i] = max ? fmax(value[i], seen) : value[i] + seen / (double)ranks;
        }
    }
    return DSV_OK;
}

typedef DsvStatus part_fn(DsviCpBench *bench);

static double sent_so_far(const Bench *b)
{
    return (double)dsvi_comm_sent(dsvi_cp_part(b->setup.cp, 0).sequence_device).bytes;
}

/* Calls `part` when all ranks are ready, and measures its seconds. *attention is set to the seconds that
 * attention kernels take during the call. */
static DsvStatus time_part(Bench *b, part_fn *part, double *seconds, double *attention)
{
    DsviDevice *device = b->setup.backend.device;
    double begin, end, spent[DSVI_KIND_COUNT];
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(dsvi_comm_barrier(b->setup.comm));
    dsvi_ops_time_reset();
    double before = sent_so_far(b);
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(part(&b->setup));
    DSVI_TRY(device->clock(device->stream, &end));
    b->part_sent = sent_so_far(b) - before;
    DSVI_TRY(dsvi_ops_time_spent(spent));
    *seconds = end - begin;
    *attention = spent[DSVI_KIND_ATTENTION_FWD] + spent[DSVI_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* ---- attention ---- */

static DsvStatus bench_cp_forward(DsviCpBench *b)
{
    return dsvi_sparse_forward(b->sparse, 0, &b->pass);
}

static DsvStatus forward_again(DsviCpBench *b)
{
    DsviAttentionCall again = b->pass;
    again.recompute = true; /* attends over the lists of the previous forward pass */
    return dsvi_sparse_forward(b->sparse, 0, &again);
}

static DsvStatus bench_cp_backward(DsviCpBench *b)
{
    return dsvi_sparse_backward(b->sparse, 0, &b->pass);
}

/* Times attention of one layer in a training step. The result is the seconds of the slowest rank. */
static DsvStatus bench_cp_time_step(Bench *b, Way way, int64_t step, double seconds[PARTS])
{
    bool all_keys = way == NAIVE_KEYS;
    double first, attention[3];
    DSVI_TRY(dsvi_sparse_step_begin(b->setup.sparse, step, true));
    DSVI_TRY(time_part(b, bench_cp_forward, &first, &attention[0]));
    if (!dsvi_sparse_lists(b->setup.sparse, 0))
        return DSVI_FAIL(DSV_E_USAGE, "the lists of one rank do not fit if %lld ranks divide the heads",
                         (long long)b->choice[way].plan.plan.head_ranks);
    DSVI_TRY(
        time_part(b, all_keys ? dsvi_all_keys_forward : forward_again, &seconds[FORWARD], &attention[1]));
    DSVI_TRY(time_part(b, all_keys ? dsvi_all_keys_backward : bench_cp_backward, &seconds[BACKWARD],
                       &attention[2]));
    DSVI_TRY(dsvi_sparse_step_end(b->setup.sparse));
    seconds[SELECT] = fmax(0, first - seconds[FORWARD]);
    seconds[ATTENTION] = attention[1] + attention[2];
    return bench_cp_agree(b, true, seconds, PARTS);
}

/* Repeats a training step for SETTLE_S seconds and returns the times of the last repetition. */
static DsvStatus time_choice(Bench *b, Way way, int64_t step, double seconds[PARTS])
{
    double spent = 0;
    DSVI_TRY(dsvi_cp_set_plan(b->setup.cp, 0, &b->choice[way].plan.plan));
    while (spent < SETTLE_S) {
        DSVI_TRY(bench_cp_time_step(b, way, step, seconds));
        spent += seconds[SELECT] + 2 * seconds[FORWARD] + seconds[BACKWARD];
    }
    return DSV_OK;
}

/* Times all ways to divide attention alternately, so that a machine that becomes slower affects all of them.
 * Repetition -1 is an untimed warm-up. */
static DsvStatus measure_choices(Bench *b)
{
    double seconds[PARTS];
    int64_t repeats = b->setup.options.lists.repeats;
    for (int64_t i = -1; i < repeats; i++)
        for (int way = 0; way < WAYS; way++) {
            Choice *c = &b->choice[way];
            if (!c->possible)
                continue;
            DSVI_TRY(time_choice(b, (Way)way, 1, seconds));
            if (i < 0)
                DSVI_TRY(dsvi_cp_bench_rows(&b->setup, c->rows));
            for (int part = 0; part < PARTS && i >= 0; part++)
                c->seconds[part][i] = seconds[part];
        }
    for (int way = 0; way < WAYS; way++) {
        Choice *c = &b->choice[way];
        c->off = c->possible ? dsvi_cp_bench_off(&b->setup, c->rows, b->choice[NAIVE_KEYS].rows) : 0;
        DSVI_TRY(bench_cp_agree(b, true, &c->off, 1));
        for (int part = 0; part < PARTS; part++)
            c->median[part] = c->possible ? dsvi_median(c->seconds[part], (size_t)repeats) : NAN;
    }
    return DSV_OK;
}

/* ---- plans ---- */

static DsvStatus bench_cp_allocate(Bench *b)
{
    size_t ranks = (size_t)dsvi_comm_size(b->setup.comm), heads = (size_t)b->setup.heads.heads;
    bool whole = true;
    b->seen = calloc(ranks, SEEN_MAX * sizeof *b->seen);
    for (int way = 0; way < WAYS; way++) {
        Choice *c = &b->choice[way];
        c->plan.placement = c->placement = calloc(heads, sizeof *c->placement);
        c->plan.bound = c->bound = calloc(ranks + 1, sizeof *c->bound);
        c->rows = calloc(dsvi_cp_bench_rows_count(&b->setup), sizeof *c->rows);
        whole = whole && c->placement && c->bound && c->rows;
    }
    return b->seen && whole ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for plans of %zu ranks", ranks);
}

/* Sets the plan of `way` to one that divides the heads, in order, into head_ranks parts of equal size, and
 * the tokens among the ranks that share a part. */
static void set_even(Bench *b, Way way, int64_t head_ranks)
{
    Choice *c = &b->choice[way];
    int64_t ranks = dsvi_comm_size(b->setup.comm), heads = b->setup.heads.heads;
    c->possible = head_ranks <= heads;
    for (int64_t h = 0; h < heads; h++)
        c->placement[h] = (int32_t)h;
    dsvi_comm_even_bounds(heads, 1, head_ranks, c->bound);
    c->plan.plan = (DsviCpPlan){head_ranks, ranks / head_ranks, c->placement, c->bound};
}

/* Measures the costs of attention and transfers from which plans are made. All ranks use the costs that rank
 * 0 measured. */
static DsvStatus measure_costs(Bench *b, DsviCpCosts *costs)
{
    DsviCpBench *setup = &b->setup;
    DsviSparseShape shape = setup->shape;
    DsviCostFound found;
    size_t local = (size_t)(shape.tokens / dsvi_comm_size(setup->comm) * shape.heads * shape.head_dim) *
                   dsvi_dtype_size(shape.act);
    memset(costs, 0, sizeof *costs);
    DSVI_TRY(dsvi_link_times(setup->group, local < LINK_BYTES_MAX ? local : LINK_BYTES_MAX, costs));
    DSVI_TRY(dsvi_cost_measure(&setup->backend, &setup->settings, &shape, &found));
    costs->attention = found.attention;
    return dsvi_comm_broadcast(setup->comm, 0, costs, sizeof *costs);
}

static DsvStatus bench_cp_make_plans(Bench *b)
{
    const DsviCpBench *setup = &b->setup;
    int64_t ranks = dsvi_comm_size(setup->comm);
    DsviCpCosts costs;
    DsviCpBlock known = {setup->density, b->spread};
    DsviCpShape shape = {
        .ranks = ranks,
        .batch = 1,
        .tokens = setup->heads.tokens,
        .heads = setup->heads.heads,
        .head_dim = setup->heads.head_dim,
        .bound = dsvi_cp_bound(setup->cp),
        .element = (int64_t)dsvi_dtype_size(setup->act),
        .feature = dsvi_sparse_feature_bytes(&setup->settings, setup->heads.head_dim),
        .group = setup->settings.sparse_group,
        .grain = setup->settings.sparse_grain,
        .backward = true,
        .rows_max = dsvi_cp_clip(setup->cp)->rows_max,
    };
    DSVI_TRY(measure_costs(b, &costs));
    set_even(b, NAIVE_HEADS, ranks);
    set_even(b, NAIVE_KEYS, 1);
    set_even(b, KEYS, 1);
    DSVI_TRY(dsvi_cp_choose(&costs, &shape, &known, NULL, &b->choice[PLANNED].plan));
    shape.head_ranks = ranks;
    b->choice[HEADS].possible = ranks <= setup->heads.heads;
    if (b->choice[HEADS].possible)
        DSVI_TRY(dsvi_cp_choose(&costs, &shape, &known, NULL, &b->choice[HEADS].plan));
    int64_t head_ranks = b->choice[PLANNED].plan.plan.head_ranks;
    b->planned = head_ranks == ranks ? HEADS : head_ranks == 1 ? KEYS : PLANNED;
    b->choice[PLANNED].possible = b->planned == PLANNED;
    return DSV_OK;
}

/* ---- lists and transfers ---- */

/* Makes key lists while all ranks divide the tokens. For this it runs training step 0 several times, which
 * renews the selector's projection and measures captured mass (the fraction of exact attention that the lists
 * hold). */
static DsvStatus make_lists(Bench *b)
{
    DsviCpBench *setup = &b->setup;
    DsviSparseBlockReport report;
    DSVI_TRY(dsvi_cp_set_even_plan(setup->cp, 0, 1));
    for (int i = 0; i < WARM_UP; i++) {
        DSVI_TRY(dsvi_sparse_step_begin(setup->sparse, 0, true));
        DSVI_TRY(bench_cp_forward(setup));
        b->far_fraction = dsvi_sparse_far_fraction(setup->sparse, 0);
        DSVI_TRY(dsvi_sparse_step_end(setup->sparse));
    }
    if (!dsvi_sparse_lists(setup->sparse, 0))
        return DSVI_FAIL(DSV_E_USAGE, "the lists of one rank are much longer than the mean and do not fit");
    dsvi_sparse_block_report(setup->sparse, 0, &report);
    b->captured = report.captured_mass;
    dsvi_sparse_head_densities(setup->sparse, 0, setup->density);
    DSVI_TRY(bench_cp_agree(b, false, &b->far_fraction, 1));
    double density = 0, tokens = (double)setup->heads.tokens / (double)dsvi_comm_size(setup->comm);
    for (int64_t h = 0; h < setup->heads.heads; h++)
        density += setup->density[h] / (double)setup->heads.heads;
    b->spread = dsvi_cp_spread(density, ceil(tokens / (double)setup->settings.sparse_group), b->far_fraction);
    return dsvi_cp_bench_keys_open(setup);
}

static DsvStatus bench_cp_time_transfer(Bench *b, Transfer kind, part_fn *part)
{
    double seconds[DSVI_BENCH_REPEATS_MAX], ignored;
    for (int64_t i = -1; i < b->setup.options.lists.repeats; i++) {
        double *to = &seconds[i < 0 ? 0 : i];
        DSVI_TRY(time_part(b, part, to, &ignored));
        b->sent[kind] = b->part_sent;
        DSVI_TRY(bench_cp_agree(b, true, to, 1));
    }
    b->transfer[kind] = dsvi_median(seconds, (size_t)b->setup.options.lists.repeats);
    return bench_cp_agree(b, true, &b->sent[kind], 1);
}

static DsvStatus measure_transfers(Bench *b)
{
    static part_fn *const part[TRANSFERS] = {
        [GATHER] = dsvi_all_keys_gather,  [ALL_HOME] = dsvi_all_keys_home, [MARK] = dsvi_listed_keys_mark,
        [FETCH] = dsvi_listed_keys_fetch, [HOME] = dsvi_listed_keys_home,
    };
    for (int kind = 0; kind < TRANSFERS; kind++)
        DSVI_TRY(bench_cp_time_transfer(b, (Transfer)kind, part[kind]));
    return DSV_OK;
}

/* ---- the report ---- */

enum { FIGURES_MAX = 80, NAME_BYTES = 40 };

typedef struct Figures {
    int64_t count;
    char name[FIGURES_MAX][NAME_BYTES];
    DsviBenchFigure figure[FIGURES_MAX];
} Figures;

static void bench_cp_add(Figures *f, const char *prefix, const char *name, double value)
{
    snprintf(f->name[f->count], NAME_BYTES, "%s%s", prefix, name);
    f->figure[f->count] = (DsviBenchFigure){f->name[f->count], value};
    f->count++;
}

/* Returns the attention work of the busiest head rank divided by the mean over head ranks. 1 is a perfect
 * placement of heads. */
static double unevenness(const Bench *b, const Choice *c)
{
    double all = 0, max = 0;
    if (!c->possible)
        return NAN;
    for (int64_t r = 0; r < c->plan.plan.head_ranks; r++) {
        double work = 0;
        for (int64_t i = c->bound[r]; i < c->bound[r + 1]; i++)
            work += b->setup.density[c->placement[i]];
        max = fmax(max, work);
        all += work;
    }
    return max * (double)c->plan.plan.head_ranks / all;
}

static double step_seconds_of(const Choice *c)
{
    return c->median[FORWARD] + c->median[BACKWARD];
}

static void add_choices(const Bench *b, Figures *f)
{
    static const char *const name[WAYS] = {"naive_heads", "naive_keys", "heads", "keys", "planned"};
    double best = INFINITY;
    for (int way = 0; way < WAYS; way++) {
        const Choice *c = &b->choice[way == PLANNED ? (int)b->planned : way];
        bench_cp_add(f, name[way], "_ms", 1e3 * step_seconds_of(c));
        bench_cp_add(f, name[way], "_forward_ms", 1e3 * c->median[FORWARD]);
        bench_cp_add(f, name[way], "_backward_ms", 1e3 * c->median[BACKWARD]);
        bench_cp_add(f, name[way], "_attention_ms", 1e3 * c->median[ATTENTION]);
        bench_cp_add(f, name[way], "_transfer_ms", 1e3 * (step_seconds_of(c) - c->median[ATTENTION]));
        bench_cp_add(f, name[way], "_select_ms", 1e3 * c->median[SELECT]);
        bench_cp_add(f, name[way], "_off", c->possible ? c->off : NAN);
        best = fmin(best, way == PLANNED || isnan(step_seconds_of(c)) ? INFINITY : step_seconds_of(c));
    }
    double planned = step_seconds_of(&b->choice[b->planned]);
    bench_cp_add(f, "naive_heads", "_uneven", unevenness(b, &b->choice[NAIVE_HEADS]));
    bench_cp_add(f, "heads", "_uneven", unevenness(b, &b->choice[HEADS]));
    bench_cp_add(f, "over_naive_heads", "", step_seconds_of(&b->choice[NAIVE_HEADS]) / planned);
    bench_cp_add(f, "over_naive_keys", "", step_seconds_of(&b->choice[NAIVE_KEYS]) / planned);
    bench_cp_add(f, "over_best_fixed", "", best / planned);
    bench_cp_add(f, "planned", "_expected_ms", 1e3 * b->choice[PLANNED].plan.times.total);
}

static void add_transfers(const Bench *b, Figures *f)
{
    static const char *const name[TRANSFERS] = {"gather", "all_home", "mark", "fetch", "home"};
    double all = b->transfer[GATHER] + b->transfer[ALL_HOME];
    double listed = b->transfer[MARK] + b->transfer[FETCH] + b->transfer[HOME];
    for (int kind = 0; kind < TRANSFERS; kind++) {
        bench_cp_add(f, name[kind], "_ms", 1e3 * b->transfer[kind]);
        bench_cp_add(f, name[kind], "_mib", b->sent[kind] / 1048576);
    }
    bench_cp_add(f, "all_keys", "_ms", 1e3 * all);
    bench_cp_add(f, "listed_keys", "_ms", 1e3 * listed);
    bench_cp_add(f, "all_over_listed", "", all / listed);
}

static DsvStatus bench_cp_report(const Bench *b, const char *json_path, DsvLine *line, void *context)
{
    const DsviCpBench *setup = &b->setup;
    Figures f = {.count = 0};
    char plan[512] = "not made", heads[512] = "none";
    double density = 0;
    for (int64_t h = 0; h < setup->heads.heads; h++)
        density += setup->density[h] / (double)setup->heads.heads;
    bench_cp_add(&f, "ranks", "", (double)dsvi_comm_size(setup->comm));
    bench_cp_add(&f, "tokens", "", (double)setup->heads.tokens);
    bench_cp_add(&f, "heads", "", (double)setup->heads.heads);
    bench_cp_add(&f, "head_dim", "", (double)setup->heads.head_dim);
    bench_cp_add(&f, "group", "", (double)setup->settings.sparse_group);
    bench_cp_add(&f, "grain", "", (double)setup->settings.sparse_grain);
    bench_cp_add(&f, "threads", "", (double)dsvi_threads_count());
    bench_cp_add(&f, "density", "", density);
    bench_cp_add(&f, "captured_mass", "", b->captured);
    bench_cp_add(&f, "named_share", "", b->far_fraction);
    add_transfers(b, &f);
    if (!setup->options.transfers_only) {
        const DsviCpPlan *p = &b->choice[b->planned].plan.plan;
        int used = snprintf(plan, sizeof plan, "%lld x %lld ranks (heads x tokens), ",
                            (long long)p->head_ranks, (long long)p->sequence_ranks);
        dsvi_cp_heads_text(p, plan + used, sizeof plan - (size_t)used);
        if (b->choice[HEADS].possible)
            dsvi_cp_heads_text(&b->choice[HEADS].plan.plan, heads, sizeof heads);
        add_choices(b, &f);
    }
    const DsviBenchLabel labels[] = {
        {"device", setup->backend.device->name},
        {"variant", setup->backend.ops.attention_list_fwd.variant},
        {"bwd_variant", setup->backend.ops.attention_list_bwd.variant},
        {"dtype", setup->options.lists.dtype},
        {"selector", setup->settings.sparse_selector},
        {"heads_placed", heads},
        {"plan", plan},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, f.figure, (size_t)f.count, json_path,
                             line, context);
}

static DsvStatus bench_cp_run(Bench *b, const DsvBenchContext *options, const DsvConfig *settings)
{
    DSVI_TRY(dsvi_cp_bench_open(b->setup.comm, options, settings, &b->setup));
    DSVI_TRY(bench_cp_allocate(b));
    DSVI_TRY(make_lists(b));
    DSVI_TRY(measure_transfers(b));
    if (options->transfers_only)
        return DSV_OK;
    DSVI_TRY(bench_cp_make_plans(b));
    return measure_choices(b);
}

DsvStatus dsv_bench_context(DsvRanks *ranks, const DsvBenchContext *options, const DsvConfig *settings,
                            const char *json_path, DsvLine *line, void *context)
{
    DSVI_TRY(dsvi_config_check_abi(settings));
    Bench *b = calloc(1, sizeof *b);
    DsviComm *comm = ranks ? ranks->comm : NULL;
    if (!b)
        return dsvi_comm_fail(comm, DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a benchmark"));
    b->setup.comm = comm;
    DsvStatus status = dsvi_comm_fail(comm, bench_cp_run(b, options, settings));
    if (status == DSV_OK && dsvi_comm_rank(comm) == 0)
        status = bench_cp_report(b, json_path, line, context);
    for (int way = 0; way < WAYS; way++) {
        free(b->choice[way].placement);
        free(b->choice[way].bound);
        free(b->choice[way].rows);
    }
    free(b->seen);
    dsvi_cp_bench_close(&b->setup);
    free(b);
    return status;
}
