/* Implements memory_plan.h.
 *
 * The table has a row for each way of gradient_checkpointing with everything on the device, and one for each
 * of the values of `offload` that fit the run, with activations chosen block by block; if state waits, one
 * for each place of its update. A row's memory is that of the layout function with the row's choices. */
#include "train/memory_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_limit.h"
#include "device/device_limit.h"
#include "train/size_plans.h"
#include "train/trainer_offload.h"
#include "train/trainer_sizes.h"
#include "train/update_place.h"

/* Pieces of memory are multiples of 256 bytes, and sums of pieces that are estimated apart may differ by a
 * few of them. */
enum { SLACK = 4096 };
/* Of the device's free memory, what is left to its libraries if memory_gib does not say how much may be used:
 * as in sampling (sample/sample_room.c). */
static const size_t RESERVE = (size_t)1 << 30;
static const double GIB = 1073741824.0;

enum { SETS = DSVI_WAY_SETS, SETS_ON_DEVICE = DSVI_WAY_SETS_ON_DEVICE };

/* What waits beside activations. */
typedef enum Waiting {
    NOTHING,
    STATE,
    WEIGHTS, /* weights of blocks: beside a LoRA the frozen weights; without a LoRA the trained weights, with
              * all optimizer state and gradients */
    WAITINGS
} Waiting;

/* A row of the table: which choices it allows, the best of them, and what that takes. */
typedef struct Row {
    const char *keep; /* value of gradient_checkpointing for all blocks; NULL: block by block */
    int first, end;   /* the sets of ways that are allowed */
    Waiting waiting;
    bool by_cpu;   /* the CPU updates the state that waits */
    int64_t level; /* for how many blocks it waits; not counted: the state and gradients beside weights */
    const DsviBlockPlan *plan[DSVI_CLIP_SIZES_MAX]; /* by size of clips */
    double seconds;                                 /* of a step */
    size_t device, host;                            /* bytes */
    bool fits;
} Row;

/* Memory with something that waits for a number of blocks. */
typedef struct Level {
    size_t begin;    /* DsviTrainer.passes_begin */
    size_t moved;    /* bytes that wait */
    size_t state;    /* of these, bytes of optimizer state */
    int64_t buckets; /* whose state waits */
} Level;

typedef struct Planner {
    DsviTrainer *t;
    dsvi_layout_fn *layout;
    size_t limit;       /* bytes of device memory */
    size_t pass_limit;  /* of these, what a pass may take at most, with as much as possible on the host */
    size_t host_limit;  /* bytes of host memory */
    size_t host_beside; /* of these, what is taken by every choice */
    int64_t levels[WAITINGS];  /* most blocks for which it can wait; -1: it cannot */
    Level *level[2][WAITINGS]; /* (levels + 1) by Row.by_cpu; NULL: not possible */
    size_t grads;              /* bytes of gradients that wait beside trained weights */
    DsviSizePlans *plans[2];   /* (size_count): [1]: with what waits beside weights, and half of the link for
                                * activations */
    DsviDitKept *kept;         /* (num_layers) */
} Planner;

bool dsvi_memory_plans(const DsvConfig *settings)
{
    return strcmp(settings->offload, "auto") == 0;
}

/* ---- memory ---- */

static DsviArena lay_out(const Planner *p)
{
    DsviArena plan;
    dsvi_arena_plan(&plan);
    p->layout(p->t, &plan);
    return plan;
}

static void set_level(const Planner *p, bool by_cpu, Waiting waiting, int64_t level)
{
    DsviTrainer *t = p->t;
    dsvi_zero_update_on_host(&t->zero, by_cpu);
    if (t->frozen)
        dsvi_dit_frozen_lend(t->frozen, t->backend->device, level, true);
    else if (waiting == WEIGHTS)
        dsvi_zero_lend(&t->zero, level);
    else
        dsvi_zero_host_state(&t->zero, level);
}

static void apply(const Planner *p, const Row *row)
{
    set_level(p, row->by_cpu, row->waiting, row->level);
    for (int64_t i = 0; i < p->t->size_count; i++) {
        for (int64_t b = 0; b < p->t->config.num_layers; b++)
            p->kept[b] = dsvi_block_way(row->plan[i]->way[b]);
        dsvi_dit_keep_blocks(p->t->sizes[i].dit, p->kept);
    }
}

static DsviArena lay_out_host(const Planner *p)
{
    DsviArena plan;
    dsvi_arena_plan(&plan);
    dsvi_trainer_offload_carve(p->t, &plan);
    return plan;
}

/* ---- the best choices of a row ---- */

/* Returns the memory of a row's choice if `level` blocks wait. */
static const Level *level_of(const Planner *p, const Row *row, int64_t level)
{
    return &p->level[row->by_cpu][row->waiting][level];
}

/* Returns which plans a row uses: copies of activations have half of the link beside those of weights. */
static const DsviSizePlans *plans_of(const Planner *p, const Row *row, int64_t size)
{
    return &p->plans[row->waiting == WEIGHTS][size];
}

/* Returns the seconds of the forward and backward pass in which the device waits for copies. The weights of a
 * lent block are copied while the blocks between two lent blocks compute, and the gradients of a block are
 * copied to the host during the backward pass of the next block; what takes longer than that is waited for.
 */
static double exposed_copies(const Planner *p, const Row *row, const DsviSizePlans *plans)
{
    double layers = (double)p->t->config.num_layers, level = (double)row->level, link = p->t->speeds.link;
    double forward = (double)plans->forward * 1e-12, backward = (double)plans->backward * 1e-12, exposed = 0;
    if (row->waiting != WEIGHTS)
        return 0;
    if (row->level > 0) {
        double weights = fmax(0, (double)level_of(p, row, row->level)->moved -
                                     (double)level_of(p, row, 0)->moved);
        double one = weights / link / level * (row->end == SETS ? 2 : 1), apart = layers / level;
        exposed = level * (fmax(0, one - forward * apart) + fmax(0, one - backward * apart));
    }
    return exposed + layers * fmax(0, (double)p->grads / link / layers - backward);
}

/* Returns the predicted seconds of a step. */
static double predict(const Planner *p, const Row *row)
{
    const DsviTrainer *t = p->t;
    const Level *level = level_of(p, row, row->level);
    double pass = 0;
    DsviUpdateWork update = {
        .by_cpu = row->by_cpu,
        .buckets = level->buckets,
        .state = level->state,
        .grads = row->waiting == WEIGHTS ? p->grads : 0,
    };
    for (int64_t i = 0; i < t->size_count; i++) {
        const DsviSizePlans *plans = plans_of(p, row, i);
        pass += (double)row->plan[i]->time * 1e-12 + plans->ends + exposed_copies(p, row, plans);
        update.backward += (double)plans->backward * 1e-12 * (double)t->config.num_layers /
                           (double)t->size_count;
    }
    pass *= (double)t->settings->gradient_accumulation_steps / (double)t->size_count;
    return pass + dsvi_update_seconds(t, &update);
}

/* Returns the host memory of a choice, at most. */
static size_t waiting_bytes(const Planner *p, const Row *row)
{
    size_t most = 0;
    for (int64_t i = 0; i < p->t->size_count; i++) {
        size_t bytes = 0;
        for (int64_t b = 0; b < p->t->config.num_layers; b++) {
            DsviDitKept kept = dsvi_block_way(row->plan[i]->way[b]);
            bytes += kept.host ? dsvi_dit_own_bytes(p->t->sizes[i].dit, kept.keep) : 0;
        }
        most = bytes > most ? bytes : most;
    }
    return p->host_beside + most + level_of(p, row, row->level)->moved;
}

/* Chooses plans for all sizes with `level` blocks of state or weights in host memory. Returns the device
 * memory that they take, about; 0: nothing fits into `limit`. */
static size_t choose_at(const Planner *p, Row *row, int64_t level, size_t limit, bool least)
{
    size_t most = p->t->others_bytes, begin = level_of(p, row, level)->begin;
    row->level = level;
    if (!least && begin + most > limit)
        return 0;
    for (int64_t i = 0; i < p->t->size_count; i++) {
        const DsviSizePlans *plans = plans_of(p, row, i);
        size_t taken = dsvi_size_plans_choose(plans, row->first, row->end, least ? 0 : limit - begin, least,
                                              &row->plan[i]);
        if (taken == 0)
            return 0;
        most = taken > most ? taken : most;
    }
    row->seconds = predict(p, row);
    return begin + most;
}

/* Finds the fastest choice of a row within the limits; without any, the one that takes the least host memory
 * within the limit of the device; without any, the one that takes the least device memory. */
static void choose_within(const Planner *p, Row *row)
{
    bool alone = p->t->frozen || row->waiting == STATE; /* without blocks nothing waits */
    int64_t from = row->waiting != NOTHING && alone ? 1 : 0, to = p->levels[row->waiting];
    Row best = *row, lean = *row, small = *row;
    size_t least = SIZE_MAX, leanest = SIZE_MAX, limit = p->limit > SLACK ? p->limit - SLACK : 0;
    bool found = false;
    for (int64_t level = from; level <= to; level++) {
        Row try = *row;
        size_t bytes = choose_at(p, &try, level, limit, false);
        size_t waiting = bytes > 0 ? waiting_bytes(p, &try) : SIZE_MAX;
        if (waiting <= p->host_limit && bytes > 0 && (!found || try.seconds < best.seconds)) {
            best = try;
            found = true;
        }
        if (waiting < leanest) {
            lean = try;
            leanest = waiting;
        }
        bytes = choose_at(p, &try, level, 0, true);
        if (bytes < least) {
            small = try;
            least = bytes;
        }
    }
    *row = found ? best : leanest < SIZE_MAX ? lean : small;
}

/* Chooses for a row and lays out what the choice takes. */
static void fill_row(const Planner *p, Row *row)
{
    choose_within(p, row);
    apply(p, row);
    row->device = lay_out(p).used;
    row->host = p->host_beside + lay_out_host(p).used;
    row->fits = row->device <= p->limit && row->host <= p->host_limit;
}

/* ---- the table ---- */

/* Names what waits in host memory, as a value of the option offload. */
static const char *offload_name(const Row *row)
{
    bool waits = row->end == SETS;
    if (row->waiting == NOTHING)
        return waits ? "residual" : "none";
    if (row->waiting == WEIGHTS)
        return waits ? "weights+residual" : "weights";
    return waits ? "states+residual" : "states";
}

/* Counts the blocks of each way in the main size. */
static void count_ways(const Planner *p, const Row *row, int64_t count[DSVI_BLOCK_WAYS])
{
    memset(count, 0, DSVI_BLOCK_WAYS * sizeof *count);
    for (int64_t b = 0; b < p->t->config.num_layers; b++)
        count[row->plan[p->t->main_size]->way[b]]++;
}

static void report_row(const Planner *p, const Row *row, bool chosen, DsviSparseLog *log, void *context)
{
    char line[256], seconds[16] = "-";
    int64_t count[DSVI_BLOCK_WAYS];
    count_ways(p, row, count);
    if (!p->t->speeds.assumed)
        snprintf(seconds, sizeof seconds, "%.4g", row->seconds);
    snprintf(line, sizeof line,
             "%-16s | %-9s | %4" PRId64 " %9" PRId64 " %4" PRId64 " %4" PRId64 " | %5" PRId64
             " %-6s | %10.3f | %8.3f | %8s | %s",
             offload_name(row), row->keep ? row->keep : "by block", count[0], count[1] + count[3],
             count[2] + count[4], count[3] + count[4], row->level,
             row->waiting == NOTHING || p->t->frozen ? ""
             : row->by_cpu                           ? "host"
                                                     : "device",
             (double)row->device / GIB, (double)row->host / GIB, seconds,
             !row->fits ? (chosen ? "least" : "too much")
             : chosen   ? "chosen"
                        : "fits");
    log(context, line);
}

static void report(const Planner *p, const Row *rows, int count, const Row *chosen, DsviSparseLog *log,
                   void *context)
{
    const DsviDeviceSpeeds *speeds = &p->t->speeds;
    char line[256];
    snprintf(line, sizeof line,
             "memory plan: at most %.3f GiB of device memory; %s with %.3g TFLOP/s, %.4g GB/s of device "
             "memory, %.3g GB/s to and from the host and %.3g GB/s of host memory in AdamW of the CPU",
             (double)p->limit / GIB, speeds->assumed ? "compared" : "predicted", speeds->flops * 1e-12,
             speeds->memory * 1e-9, speeds->link * 1e-9, speeds->update * 1e-9);
    log(context, line);
    snprintf(line, sizeof line, "%-16s | %-9s | %4s %9s %4s %4s | %5s %-6s | %10s | %8s | %8s |", "offload",
             "recompute", "all", "selective", "true", "host", "moved", "update", "device GiB", "host GiB",
             "s/step");
    log(context, line);
    for (int i = 0; i < count; i++)
        report_row(p, &rows[i], &rows[i] == chosen, log, context);
}

/* Returns the fastest row that fits, of equal ones the first, which copies less; without any the one that
 * takes the least host memory within the limit of the device, and without any the one that takes the least
 * device memory. */
static const Row *best_row(const Planner *p, const Row *rows, int count)
{
    const Row *best = NULL, *lean = NULL, *small = &rows[0];
    for (int i = 0; i < count; i++) {
        if (rows[i].fits && (!best || rows[i].seconds < best->seconds))
            best = &rows[i];
        if (rows[i].device <= p->limit && (!lean || rows[i].host < lean->host))
            lean = &rows[i];
        small = rows[i].device < small->device ? &rows[i] : small;
    }
    return best ? best : lean ? lean : small;
}

static void choose(const Planner *p, DsviSparseLog *log, void *context)
{
    Row rows[] = {
        {.keep = "false", .first = 0, .end = 1},
        {.keep = "selective", .first = 1, .end = 2},
        {.keep = "true", .first = 2, .end = 3},
        {.first = 0, .end = SETS_ON_DEVICE},
        {.first = 0, .end = SETS_ON_DEVICE, .waiting = STATE},
        {.first = 0, .end = SETS_ON_DEVICE, .waiting = STATE, .by_cpu = true},
        {.first = 0, .end = SETS_ON_DEVICE, .waiting = WEIGHTS},
        {.first = 0, .end = SETS_ON_DEVICE, .waiting = WEIGHTS, .by_cpu = true},
        {.first = SETS_ON_DEVICE, .end = SETS},
        {.first = SETS_ON_DEVICE, .end = SETS, .waiting = STATE},
        {.first = SETS_ON_DEVICE, .end = SETS, .waiting = STATE, .by_cpu = true},
        {.first = SETS_ON_DEVICE, .end = SETS, .waiting = WEIGHTS},
        {.first = SETS_ON_DEVICE, .end = SETS, .waiting = WEIGHTS, .by_cpu = true},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!p->level[rows[i].by_cpu][rows[i].waiting])
            continue;
        rows[count] = rows[i];
        fill_row(p, &rows[count++]);
    }
    const Row *chosen = best_row(p, rows, count);
    apply(p, chosen);
    if (log)
        report(p, rows, count, chosen, log, context);
}

/* ---- the planner ---- */

/* Returns whether something can wait whose state, if any, the CPU updates, or the device. */
static bool may_wait(const Planner *p, bool by_cpu, Waiting waiting)
{
    bool state = waiting != NOTHING && !p->t->frozen;
    return p->levels[waiting] >= 0 && (state ? dsvi_update_place_may_be(p->t, by_cpu) : !by_cpu);
}

static DsvStatus allocate(Planner *p)
{
    size_t layers = (size_t)p->t->config.num_layers, sizes = (size_t)p->t->size_count;
    bool whole = true;
    for (int by_cpu = 0; by_cpu < 2; by_cpu++)
        for (int w = 0; w < WAITINGS; w++) {
            if (!may_wait(p, by_cpu, (Waiting)w))
                continue;
            p->level[by_cpu][w] = calloc((size_t)p->levels[w] + 1, sizeof(Level));
            whole = whole && p->level[by_cpu][w];
        }
    p->plans[0] = calloc(sizes, sizeof *p->plans[0]);
    p->plans[1] = calloc(sizes, sizeof *p->plans[1]);
    p->kept = calloc(layers, sizeof *p->kept);
    return whole && p->plans[0] && p->plans[1] && p->kept
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to plan %zu blocks", layers);
}

static void release(Planner *p)
{
    for (int half = 0; half < 2; half++) {
        for (int64_t i = 0; p->plans[half] && i < p->t->size_count; i++)
            dsvi_size_plans_free(&p->plans[half][i]);
        free(p->plans[half]);
    }
    for (int w = 0; w < WAITINGS; w++) {
        free(p->level[0][w]);
        free(p->level[1][w]);
    }
    free(p->kept);
}

/* Measures what can wait for each number of blocks. Returns the least device memory beside a pass. */
static size_t measure_levels(const Planner *p, bool by_cpu, Waiting waiting)
{
    size_t least = SIZE_MAX;
    const DsviTrainer *t = p->t;
    Level *levels = p->level[by_cpu][waiting];
    for (int64_t level = 0; levels && level <= p->levels[waiting]; level++) {
        set_level(p, by_cpu, waiting, level);
        (void)lay_out(p);
        levels[level] = (Level){t->passes_begin, lay_out_host(p).used,
                                dsvi_zero_waiting_state(&t->zero, t->settings), t->zero.hosted};
        least = t->passes_begin < least ? t->passes_begin : least;
    }
    return least;
}

/* Measures what can wait, and finds the plans of activations that may fit beside the rest. */
static DsvStatus measure(Planner *p)
{
    DsviTrainer *t = p->t;
    size_t begin = SIZE_MAX;
    for (int i = 0; i < 2 * WAITINGS; i++) {
        size_t least = measure_levels(p, i >= WAITINGS, (Waiting)(i % WAITINGS));
        begin = least < begin ? least : begin;
    }
    p->pass_limit = p->limit > begin ? p->limit - begin : 0;
    for (int half = 0; half < 2; half++) {
        if (half && p->levels[WEIGHTS] < 0)
            continue;
        set_level(p, false, half ? WEIGHTS : NOTHING, 0);
        p->grads = lay_out_host(p).by_class[DSVI_MEM_GRADIENTS];
        for (int64_t i = 0; i < t->size_count; i++) {
            const DsviSizePlansArgs args = {i, t->speeds.link / (1 + half), p->pass_limit, p->layout};
            DSVI_TRY(dsvi_size_plans_find(t, &args, &p->plans[half][i]));
        }
    }
    return DSV_OK;
}

/* Returns the bytes of device memory that may be used. */
static size_t device_limit(const DsviTrainer *t)
{
    DsviDevice *device = t->backend->device;
    size_t limit = (size_t)dsvi_memory_limit(t->settings), left = dsvi_device_free_bytes(device);
    if (limit > 0)
        return limit < device->memory_bytes ? limit : device->memory_bytes;
    return left > RESERVE ? left - RESERVE : left;
}

DsvStatus dsvi_memory_plan_choose(DsviTrainer *t, dsvi_layout_fn *layout, size_t host_beside,
                                  DsviSparseLog *log, void *log_context)
{
    DsviDevice *device = t->backend->device;
    size_t available = device->host_available(device);
    Planner p = {
        .t = t,
        .layout = layout,
        .limit = device_limit(t),
        .host_limit = available > 0 ? available / (size_t)(t->here.ranks > 1 ? t->here.ranks : 1) : SIZE_MAX,
        .host_beside = host_beside,
        .levels = {[NOTHING] = 0, [STATE] = -1, [WEIGHTS] = -1},
    };
    if (t->group)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "offload is auto and %lld ranks share a clip, expected cp_size=1 or another value of "
            "offload",
            (long long)t->mesh.cp_ranks);
    if (!t->frozen)
        p.levels[STATE] = t->zero.shard.buckets;
    if (dsvi_trainer_lends(t))
        p.levels[WEIGHTS] = t->config.num_layers;
    DsvStatus status = allocate(&p);
    if (status == DSV_OK)
        status = measure(&p);
    if (status == DSV_OK)
        choose(&p, log, log_context);
    release(&p);
    return status;
}
