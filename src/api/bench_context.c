/* dsv_bench_context: attention over lists of ranks that share a clip, by every way of sharing it out, in
 * turns; and what travels between ranks that divide tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/bench_context_parts.h"
#include "api/bench_report.h"
#include "api/ops_timed.h"
#include "api/ranks.h"
#include "base/threads.h"
#include "context/cp_plan.h"
#include "context/link_times.h"
#include "sparse/cost.h"

/* A GPU sets its clock by the power that it has drawn in the last hundredths of a second: each choice runs
 * for so long in its turn. */
#define SETTLE_S 0.06

enum { WARM_UP = 3, LINK_BYTES_MOST = 1 << 26 };

typedef enum Way { NAIVE_HEADS, NAIVE_KEYS, HEADS, KEYS, PLANNED, WAYS } Way;

/* What one pass takes, or several in the mean; seconds. */
typedef enum Part { SELECT, FORWARD, BACKWARD, ATTENTION, PARTS } Part;

typedef struct Choice {
    bool possible;
    DsvCpChoice plan;      /* its arrays are `placement` and `bound` */
    int32_t *placement;    /* (N) */
    int64_t *bound;        /* (ranks + 1) */
    double seconds[PARTS][DSV_BENCH_REPEATS_MOST];
    double median[PARTS];
    float *rows;           /* of its results */
    double off;            /* how far these are from NAIVE_KEYS', at most */
} Choice;

/* What travels, listed or all. */
typedef enum Transfer { GATHER, ALL_HOME, MARK, FETCH, HOME, TRANSFERS } Transfer;

typedef struct Bench {
    DsvContextBench of;
    Choice choice[WAYS];
    Way planned;           /* the choice that the plan is */
    double spread, far_share, captured;
    double transfer[TRANSFERS]; /* medians */
    double sent[TRANSFERS];     /* bytes, of the rank that sends most */
    double part_sent;      /* bytes, by the part that was timed last, between ranks that divide tokens */
    double *seen;          /* (ranks, SEEN_MOST) */
} Bench;

enum { SEEN_MOST = 8 };

void dsv_bench_context_defaults(DsvBenchContext *bench)
{
    *bench = (DsvBenchContext){.lists = dsvi_bench_lists_defaults()};
}

/* value (count) of every rank becomes the largest of all ranks' where `most`, else their mean. */
static DsvStatus agree(Bench *b, bool most, double *value, int64_t count)
{
    int64_t ranks = dsvi_comm_size(b->of.comm), rank = dsvi_comm_rank(b->of.comm);
    for (int64_t i = 0; i < count; i++)
        b->seen[rank * SEEN_MOST + i] = value[i];
    DSVI_TRY(dsvi_comm_share(b->of.comm, b->seen, SEEN_MOST * sizeof(double)));
    for (int64_t i = 0; i < count; i++) {
        value[i] = 0;
        for (int64_t r = 0; r < ranks; r++) {
            double seen = b->seen[r * SEEN_MOST + i];
            value[i] = most ? fmax(value[i], seen) : value[i] + seen / (double)ranks;
        }
    }
    return DSV_OK;
}

typedef DsvStatus part_fn(DsvContextBench *bench);

static double sent_so_far(const Bench *b)
{
    return (double)dsvi_comm_sent(dsvi_context_part(b->of.context, 0).sequence_device).bytes;
}

/* From when all ranks have come to it; attention: what kernels of attention take in it. */
static DsvStatus time_part(Bench *b, part_fn *part, double *seconds, double *attention)
{
    DsvDevice *device = b->of.backend.device;
    double begin, end, spent[DSV_KIND_COUNT];
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(dsvi_comm_barrier(b->of.comm));
    dsvi_ops_time_reset();
    double before = sent_so_far(b);
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(part(&b->of));
    DSVI_TRY(device->clock(device->stream, &end));
    b->part_sent = sent_so_far(b) - before;
    DSVI_TRY(dsvi_ops_time_spent(spent));
    *seconds = end - begin;
    *attention = spent[DSV_KIND_ATTENTION_FWD] + spent[DSV_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* ---- attention ---- */

static DsvStatus forward(DsvContextBench *b)
{
    return dsvi_sparse_forward(b->sparse, 0, &b->pass);
}

static DsvStatus forward_again(DsvContextBench *b)
{
    DsvSparseAttention again = b->pass;
    again.recompute = true; /* over the lists that are there */
    return dsvi_sparse_forward(b->sparse, 0, &again);
}

static DsvStatus backward(DsvContextBench *b)
{
    return dsvi_sparse_backward(b->sparse, 0, &b->pass);
}

/* A step of training of one layer, as far as attention goes: the slowest rank's seconds. */
static DsvStatus time_step(Bench *b, Way way, int64_t step, double seconds[PARTS])
{
    bool all_keys = way == NAIVE_KEYS;
    double first, attention[3];
    DSVI_TRY(dsvi_sparse_step_begin(b->of.sparse, step, true));
    DSVI_TRY(time_part(b, forward, &first, &attention[0]));
    if (!dsvi_sparse_lists(b->of.sparse, 0))
        return DSVI_FAIL(DSV_E_USAGE, "the lists of one rank find no room where %lld ranks divide the heads",
                         (long long)b->choice[way].plan.plan.head_ranks);
    DSVI_TRY(time_part(b, all_keys ? dsvi_all_keys_forward : forward_again, &seconds[FORWARD],
                       &attention[1]));
    DSVI_TRY(time_part(b, all_keys ? dsvi_all_keys_backward : backward, &seconds[BACKWARD], &attention[2]));
    DSVI_TRY(dsvi_sparse_step_end(b->of.sparse));
    seconds[SELECT] = fmax(0, first - seconds[FORWARD]);
    seconds[ATTENTION] = attention[1] + attention[2];
    return agree(b, true, seconds, PARTS);
}

/* Until the clock has settled; the last one counts. */
static DsvStatus time_choice(Bench *b, Way way, int64_t step, double seconds[PARTS])
{
    double spent = 0;
    DSVI_TRY(dsvi_context_set_plan(b->of.context, 0, &b->choice[way].plan.plan));
    while (spent < SETTLE_S) {
        DSVI_TRY(time_step(b, way, step, seconds));
        spent += seconds[SELECT] + 2 * seconds[FORWARD] + seconds[BACKWARD];
    }
    return DSV_OK;
}

/* In turns, so that a machine that slows down slows all. */
static DsvStatus measure_choices(Bench *b)
{
    double seconds[PARTS];
    int64_t repeats = b->of.wanted.lists.repeats;
    for (int64_t i = -1; i < repeats; i++)
        for (int way = 0; way < WAYS; way++) {
            Choice *c = &b->choice[way];
            if (!c->possible)
                continue;
            DSVI_TRY(time_choice(b, (Way)way, 1, seconds));
            if (i < 0)
                DSVI_TRY(dsvi_context_bench_rows(&b->of, c->rows));
            for (int part = 0; part < PARTS && i >= 0; part++)
                c->seconds[part][i] = seconds[part];
        }
    for (int way = 0; way < WAYS; way++) {
        Choice *c = &b->choice[way];
        c->off = c->possible ? dsvi_context_bench_off(&b->of, c->rows, b->choice[NAIVE_KEYS].rows) : 0;
        DSVI_TRY(agree(b, true, &c->off, 1));
        for (int part = 0; part < PARTS; part++)
            c->median[part] = c->possible ? dsvi_median(c->seconds[part], (size_t)repeats) : NAN;
    }
    return DSV_OK;
}

/* ---- plans ---- */

static DsvStatus take_memory(Bench *b)
{
    size_t ranks = (size_t)dsvi_comm_size(b->of.comm), heads = (size_t)b->of.heads.heads;
    bool whole = true;
    b->seen = calloc(ranks, SEEN_MOST * sizeof *b->seen);
    for (int way = 0; way < WAYS; way++) {
        Choice *c = &b->choice[way];
        c->plan.placement = c->placement = calloc(heads, sizeof *c->placement);
        c->plan.bound = c->bound = calloc(ranks + 1, sizeof *c->bound);
        c->rows = calloc(dsvi_context_bench_rows_count(&b->of), sizeof *c->rows);
        whole = whole && c->placement && c->bound && c->rows;
    }
    return b->seen && whole ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for plans of %zu ranks", ranks);
}

/* Heads in order. */
static void set_even(Bench *b, Way way, int64_t head_ranks)
{
    Choice *c = &b->choice[way];
    int64_t ranks = dsvi_comm_size(b->of.comm), heads = b->of.heads.heads;
    c->possible = head_ranks <= heads;
    for (int64_t h = 0; h < heads; h++)
        c->placement[h] = (int32_t)h;
    dsvi_comm_bounds(heads, 1, head_ranks, c->bound);
    c->plan.plan = (DsvContextPlan){head_ranks, ranks / head_ranks, c->placement, c->bound};
}

/* What plans are made from, the same on all ranks. */
static DsvStatus measure_costs(Bench *b, DsvContextCosts *costs)
{
    DsvContextBench *of = &b->of;
    DsvSparseShape shape = of->shape;
    DsvCostFound found;
    size_t own = (size_t)(shape.tokens / dsvi_comm_size(of->comm) * shape.heads * shape.head_dim) *
                 dsvi_dtype_size(shape.act);
    memset(costs, 0, sizeof *costs);
    DSVI_TRY(dsvi_link_times(of->group, own < LINK_BYTES_MOST ? own : LINK_BYTES_MOST, costs));
    DSVI_TRY(dsvi_cost_measure(&of->backend, &of->settings, &shape, &found));
    costs->attention = found.attention;
    return dsvi_comm_broadcast(of->comm, 0, costs, sizeof *costs);
}

/* As dsvi_dit_cp_shape: bytes of what a key of a head is to selection. */
static double feature_bytes(const DsvContextBench *of)
{
    bool pooled = strcmp(of->wanted.lists.selector, "pooled") == 0;
    int64_t features = pooled ? of->heads.head_dim : of->settings.sparse_rank;
    return (double)features * sizeof(float) / (double)(pooled ? of->settings.sparse_grain : 1);
}

static DsvStatus make_plans(Bench *b)
{
    const DsvContextBench *of = &b->of;
    int64_t ranks = dsvi_comm_size(of->comm);
    DsvContextCosts costs;
    DsvCpBlock known = {of->density, b->spread};
    DsvCpShape shape = {
        .ranks = ranks, .batch = 1, .tokens = of->heads.tokens, .heads = of->heads.heads,
        .head_dim = of->heads.head_dim, .bound = dsvi_context_bound(of->context),
        .element = (int64_t)dsvi_dtype_size(of->act), .feature = feature_bytes(of),
        .group = of->settings.sparse_group, .grain = of->settings.sparse_grain, .backward = true,
        .rows_most = dsvi_context_shape(of->context)->rows_most,
    };
    DSVI_TRY(measure_costs(b, &costs));
    set_even(b, NAIVE_HEADS, ranks);
    set_even(b, NAIVE_KEYS, 1);
    set_even(b, KEYS, 1);
    DSVI_TRY(dsvi_cp_choose(&costs, &shape, &known, NULL, &b->choice[PLANNED].plan));
    shape.head_ranks = ranks;
    b->choice[HEADS].possible = ranks <= of->heads.heads;
    if (b->choice[HEADS].possible)
        DSVI_TRY(dsvi_cp_choose(&costs, &shape, &known, NULL, &b->choice[HEADS].plan));
    int64_t head_ranks = b->choice[PLANNED].plan.plan.head_ranks;
    b->planned = head_ranks == ranks ? HEADS : head_ranks == 1 ? KEYS : PLANNED;
    b->choice[PLANNED].possible = b->planned == PLANNED;
    return DSV_OK;
}

/* ---- lists and transfers ---- */

/* Lists by keys: the first steps learn the projection and measure. */
static DsvStatus warm_up(Bench *b)
{
    DsvContextBench *of = &b->of;
    DsvSparseBlockReport report;
    DSVI_TRY(dsvi_context_set_even_plan(of->context, 0, 1));
    for (int i = 0; i < WARM_UP; i++) {
        DSVI_TRY(dsvi_sparse_step_begin(of->sparse, 0, true));
        DSVI_TRY(forward(of));
        b->far_share = dsvi_sparse_far_share(of->sparse, 0);
        DSVI_TRY(dsvi_sparse_step_end(of->sparse));
    }
    if (!dsvi_sparse_lists(of->sparse, 0))
        return DSVI_FAIL(DSV_E_USAGE, "the lists of one rank are too uneven to find room");
    dsvi_sparse_block_report(of->sparse, 0, &report);
    b->captured = report.captured_mass;
    dsvi_sparse_burden(of->sparse, 0, of->density);
    DSVI_TRY(agree(b, false, &b->far_share, 1));
    double density = 0, tokens = (double)of->heads.tokens / (double)dsvi_comm_size(of->comm);
    for (int64_t h = 0; h < of->heads.heads; h++)
        density += of->density[h] / (double)of->heads.heads;
    b->spread = dsvi_cp_spread(density, ceil(tokens / (double)of->settings.sparse_group), b->far_share);
    return dsvi_context_bench_keys_open(of);
}

static DsvStatus time_transfer(Bench *b, Transfer kind, part_fn *part)
{
    double seconds[DSV_BENCH_REPEATS_MOST], ignored;
    for (int64_t i = -1; i < b->of.wanted.lists.repeats; i++) {
        double *to = &seconds[i < 0 ? 0 : i];
        DSVI_TRY(time_part(b, part, to, &ignored));
        b->sent[kind] = b->part_sent;
        DSVI_TRY(agree(b, true, to, 1));
    }
    b->transfer[kind] = dsvi_median(seconds, (size_t)b->of.wanted.lists.repeats);
    return agree(b, true, &b->sent[kind], 1);
}

static DsvStatus measure_transfers(Bench *b)
{
    static part_fn *const part[TRANSFERS] = {
        [GATHER] = dsvi_all_keys_gather, [ALL_HOME] = dsvi_all_keys_home, [MARK] = dsvi_listed_keys_mark,
        [FETCH] = dsvi_listed_keys_fetch, [HOME] = dsvi_listed_keys_home,
    };
    for (int kind = 0; kind < TRANSFERS; kind++)
        DSVI_TRY(time_transfer(b, (Transfer)kind, part[kind]));
    return DSV_OK;
}

/* ---- the report ---- */

enum { FIGURES_MOST = 80, NAME_BYTES = 40 };

typedef struct Figures {
    int64_t count;
    char name[FIGURES_MOST][NAME_BYTES];
    DsvBenchFigure figure[FIGURES_MOST];
} Figures;

static void add(Figures *f, const char *prefix, const char *name, double value)
{
    snprintf(f->name[f->count], NAME_BYTES, "%s%s", prefix, name);
    f->figure[f->count] = (DsvBenchFigure){f->name[f->count], value};
    f->count++;
}

/* The slowest rank's share of attention over an even share, heads divided by a plan: what a placement could
 * gain, in attention alone. */
static double unevenness(const Bench *b, const Choice *c)
{
    double all = 0, most = 0;
    if (!c->possible)
        return NAN;
    for (int64_t r = 0; r < c->plan.plan.head_ranks; r++) {
        double own = 0;
        for (int64_t i = c->bound[r]; i < c->bound[r + 1]; i++)
            own += b->of.density[c->placement[i]];
        most = fmax(most, own);
        all += own;
    }
    return most * (double)c->plan.plan.head_ranks / all;
}

static double step_of(const Choice *c)
{
    return c->median[FORWARD] + c->median[BACKWARD];
}

static void add_choices(const Bench *b, Figures *f)
{
    static const char *const name[WAYS] = {"naive_heads", "naive_keys", "heads", "keys", "planned"};
    double least = INFINITY;
    for (int way = 0; way < WAYS; way++) {
        const Choice *c = &b->choice[way == PLANNED ? (int)b->planned : way];
        add(f, name[way], "_ms", 1e3 * step_of(c));
        add(f, name[way], "_forward_ms", 1e3 * c->median[FORWARD]);
        add(f, name[way], "_backward_ms", 1e3 * c->median[BACKWARD]);
        add(f, name[way], "_attention_ms", 1e3 * c->median[ATTENTION]);
        add(f, name[way], "_transfer_ms", 1e3 * (step_of(c) - c->median[ATTENTION]));
        add(f, name[way], "_select_ms", 1e3 * c->median[SELECT]);
        add(f, name[way], "_off", c->possible ? c->off : NAN);
        least = fmin(least, way == PLANNED || isnan(step_of(c)) ? INFINITY : step_of(c));
    }
    double planned = step_of(&b->choice[b->planned]);
    add(f, "naive_heads", "_uneven", unevenness(b, &b->choice[NAIVE_HEADS]));
    add(f, "heads", "_uneven", unevenness(b, &b->choice[HEADS]));
    add(f, "over_naive_heads", "", step_of(&b->choice[NAIVE_HEADS]) / planned);
    add(f, "over_naive_keys", "", step_of(&b->choice[NAIVE_KEYS]) / planned);
    add(f, "over_best_fixed", "", least / planned);
    add(f, "planned", "_expected_ms", 1e3 * b->choice[PLANNED].plan.times.total);
}

static void add_transfers(const Bench *b, Figures *f)
{
    static const char *const name[TRANSFERS] = {"gather", "all_home", "mark", "fetch", "home"};
    double all = b->transfer[GATHER] + b->transfer[ALL_HOME];
    double listed = b->transfer[MARK] + b->transfer[FETCH] + b->transfer[HOME];
    for (int kind = 0; kind < TRANSFERS; kind++) {
        add(f, name[kind], "_ms", 1e3 * b->transfer[kind]);
        add(f, name[kind], "_mib", b->sent[kind] / 1048576);
    }
    add(f, "all_keys", "_ms", 1e3 * all);
    add(f, "listed_keys", "_ms", 1e3 * listed);
    add(f, "all_over_listed", "", all / listed);
}

static DsvStatus report(const Bench *b, const char *json_path, DsvLine *line, void *context)
{
    const DsvContextBench *of = &b->of;
    Figures f = {.count = 0};
    char plan[512] = "not made", heads[512] = "none";
    double density = 0;
    for (int64_t h = 0; h < of->heads.heads; h++)
        density += of->density[h] / (double)of->heads.heads;
    add(&f, "ranks", "", (double)dsvi_comm_size(of->comm));
    add(&f, "tokens", "", (double)of->heads.tokens);
    add(&f, "heads", "", (double)of->heads.heads);
    add(&f, "head_dim", "", (double)of->heads.head_dim);
    add(&f, "group", "", (double)of->wanted.lists.group);
    add(&f, "grain", "", (double)of->wanted.lists.grain);
    add(&f, "threads", "", (double)dsvi_threads_count());
    add(&f, "density", "", density);
    add(&f, "captured_mass", "", b->captured);
    add(&f, "named_share", "", b->far_share);
    add_transfers(b, &f);
    if (!of->wanted.transfers_only) {
        const DsvContextPlan *p = &b->choice[b->planned].plan.plan;
        int used = snprintf(plan, sizeof plan, "%lld x %lld ranks (heads x tokens), ",
                            (long long)p->head_ranks, (long long)p->sequence_ranks);
        dsvi_cp_heads_text(p, plan + used, sizeof plan - (size_t)used);
        if (b->choice[HEADS].possible)
            dsvi_cp_heads_text(&b->choice[HEADS].plan.plan, heads, sizeof heads);
        add_choices(b, &f);
    }
    const DsvBenchLabel labels[] = {
        {"device", of->backend.device->name}, {"variant", of->backend.ops.attention_list_fwd.variant},
        {"bwd_variant", of->backend.ops.attention_list_bwd.variant}, {"dtype", of->wanted.lists.dtype},
        {"selector", of->wanted.lists.selector}, {"heads_placed", heads}, {"plan", plan},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, f.figure, (size_t)f.count, json_path,
                             line, context);
}

static DsvStatus run(Bench *b, const DsvBenchContext *wanted, const DsvConfig *settings)
{
    DSVI_TRY(dsvi_context_bench_open(b->of.comm, wanted, settings, &b->of));
    DSVI_TRY(take_memory(b));
    DSVI_TRY(warm_up(b));
    DSVI_TRY(measure_transfers(b));
    if (wanted->transfers_only)
        return DSV_OK;
    DSVI_TRY(make_plans(b));
    return measure_choices(b);
}

DsvStatus dsv_bench_context(DsvRanks *ranks, const DsvBenchContext *wanted, const DsvConfig *settings,
                            const char *json_path, DsvLine *line, void *context)
{
    Bench *b = calloc(1, sizeof *b);
    DsvComm *comm = ranks ? ranks->comm : NULL;
    if (!b)
        return dsvi_comm_fail(comm, DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a benchmark"));
    b->of.comm = comm;
    DsvStatus status = dsvi_comm_fail(comm, run(b, wanted, settings));
    if (status == DSV_OK && dsvi_comm_rank(comm) == 0)
        status = report(b, json_path, line, context);
    for (int way = 0; way < WAYS; way++) {
        free(b->choice[way].placement);
        free(b->choice[way].bound);
        free(b->choice[way].rows);
    }
    free(b->seen);
    dsvi_context_bench_close(&b->of);
    free(b);
    return status;
}
