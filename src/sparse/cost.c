/* Measures what dense and sparse attention cost on this machine, with the code that training uses. A sparse
 * layer of one block with the same head size, selector and groups gets random tensors, and attends densely
 * and over lists of several densities. Both costs grow with the square of the number of tokens, so a shorter
 * sequence is measured instead if the full one would take long.
 *
 * Timings vary from run to run, but decisions should not: the break-even density is rounded down to a
 * multiple of 0.05. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/carve.h"
#include "sparse/cost.h"
#include "sparse/sparse_internal.h"

enum { DENSITIES = 3, REPEATS_MIN = 2, REPEATS_MAX = 20, HEADS_MAX = 2, TOKENS_MIN = 128, TENSORS = 9 };
static const double probe_density[DENSITIES] = {0.05, 0.2, 0.5};

/* Smallest number of attention passes at one sequence length: a warm-up and REPEATS_MIN timed passes with
 * dense attention, and as many with key lists of each of the DENSITIES densities. */
#define PASSES ((1 + DENSITIES) * (1 + REPEATS_MIN))
#define BUDGET_S 1.5  /* seconds that all timing at one sequence length may take */
#define REPEAT_S 0.05 /* short passes are repeated for at least so many seconds */
/* the break-even density (below which sparse attention is faster) is a multiple of this */
#define STEP 0.05

typedef struct Probe {
    DsviBackend *backend;
    DsviSparse *sparse;
    DsviSparseShape shape;
    DsviAttentionCall pass;
    void *tensor[TENSORS]; /* q k v hidden out dout dq dk dv, (B, S, N, D) act each */
    void *lse;             /* (B, N, S) acc */
    void *memory;
} Probe;

enum { RANDOM_TENSORS = 4, QUERY_SCALE = 4 }; /* q k v hidden; factor of the queries */

static size_t tensor_bytes(const Probe *probe)
{
    const DsviSparseShape *shape = &probe->shape;
    return (size_t)(shape->batch * shape->tokens * shape->heads * shape->head_dim) *
           dsvi_dtype_size(shape->act);
}

static void cost_carve(void *of, DsviArena *arena)
{
    Probe *probe = of;
    for (int i = 0; i < TENSORS; i++)
        probe->tensor[i] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, tensor_bytes(probe));
    probe->lse = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                                 (size_t)(probe->shape.batch * probe->shape.tokens * probe->shape.heads) *
                                     sizeof(double));
    dsvi_sparse_carve(probe->sparse, arena);
    dsvi_sparse_carve_call(probe->sparse, arena);
}

static void point_pass(Probe *probe)
{
    void **t = probe->tensor;
    probe->pass = (DsviAttentionCall){
        .scale = 1 / sqrt((double)probe->shape.head_dim),
        .q = t[0],
        .k = t[1],
        .v = t[2],
        .hidden = t[3],
        .out = t[4],
        .lse = probe->lse,
        .dout = t[5],
        .dq = t[6],
        .dk = t[7],
        .dv = t[8],
    };
}

/* Fills the inputs with normally distributed numbers. Queries are scaled up, so that the estimated
 * attention weights are spread as widely as those of a real model, and lists of any density can be made.
 * dout (gradient of the output) stays zero. */
static DsvStatus cost_fill(Probe *probe)
{
    DsviDevice *device = probe->backend->device;
    const DsviSparseShape *shape = &probe->shape;
    DsvStatus status = DSV_OK;
    size_t bytes = tensor_bytes(probe), count = bytes / dsvi_dtype_size(shape->act);
    float *numbers = malloc(count * sizeof *numbers);
    void *host = malloc(bytes);
    if (!numbers || !host) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes to measure attention on", bytes);
        goto done;
    }
    for (uint32_t i = 0; i < RANDOM_TENSORS; i++) {
        DsviRng rng = {0, DSVI_RNG_TEST, i};
        dsvi_rng_fill_normal(rng, 0, numbers, (int64_t)count);
        for (size_t n = 0; n < count && i == 0; n++)
            numbers[n] *= QUERY_SCALE;
        dsvi_convert(shape->act, host, DSVI_F32, numbers, (int64_t)count);
        DSVI_TRY_GOTO(status, device->upload(device->stream, probe->tensor[i], host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
done:
    free(numbers);
    free(host);
    return status;
}

static void close_probe(Probe *probe)
{
    dsvi_sparse_free(&probe->sparse);
    probe->backend->device->mem_free(probe->backend->device, probe->memory);
    probe->memory = NULL;
}

/* Creates a sparse layer of one block whose density time_pass sets. The caller must call close_probe, even
 * if this function fails. */
static DsvStatus open_probe(Probe *probe, DsviBackend *backend, const DsvConfig *given,
                            const DsviSparseShape *shape)
{
    DsvConfig settings = *given;
    settings.sparse_measure_cost = false;
    settings.sparse_target_mass = 0;
    settings.sparse_min_keys = 0;
    settings.sparse_target_density = 1; /* time_pass changes this density before each timing */
    settings.sparse_max_density = 1;
    memset(probe, 0, sizeof *probe);
    probe->backend = backend;
    probe->shape = *shape;
    probe->shape.blocks = 1;
    probe->shape.cp = NULL;
    probe->shape.grid[0] = probe->shape.grid[1] = 1;
    probe->shape.grid[2] = shape->tokens;
    DSVI_TRY(dsvi_sparse_create(backend, &settings, &probe->shape, NULL, NULL, &probe->sparse));
    DSVI_TRY(dsvi_device_alloc_layout(backend->device, cost_carve, probe, &probe->memory));
    point_pass(probe);
    DSVI_TRY(dsvi_sparse_setup(probe->sparse));
    return cost_fill(probe);
}

/* Seconds that the parts of one attention pass took. */
typedef struct PassTime {
    double forward;  /* selection and attention */
    double attend;   /* attention over lists that were made before */
    double backward; /* 0 without a backward pass */
} PassTime;

static DsvStatus time_once(Probe *probe, PassTime *time)
{
    DsviDevice *device = probe->backend->device;
    DsviAttentionCall repeated = probe->pass;
    double begin, selected, attended, end;
    /* attention over the key lists that the pass before has made, without making them again */
    repeated.recompute = true;
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_forward(probe->sparse, 0, &probe->pass));
    DSVI_TRY(device->clock(device->stream, &selected));
    DSVI_TRY(dsvi_sparse_forward(probe->sparse, 0, &repeated));
    DSVI_TRY(device->clock(device->stream, &attended));
    if (probe->shape.backward)
        DSVI_TRY(dsvi_sparse_backward(probe->sparse, 0, &probe->pass));
    DSVI_TRY(device->clock(device->stream, &end));
    *time = (PassTime){selected - begin, attended - selected, probe->shape.backward ? end - attended : 0};
    return DSV_OK;
}

/* Runs a pass several times and sets *best to the shortest times of all runs but the first. Density 0 means
 * dense attention. */
static DsvStatus time_pass(Probe *probe, double density, PassTime *best)
{
    double spent = 0;
    *best = (PassTime){INFINITY, INFINITY, INFINITY};
    dsvi_sparse_force(probe->sparse, density > 0);
    probe->sparse->settings.sparse_target_density = density;
    for (int i = 0; i <= REPEATS_MAX && (i <= REPEATS_MIN || spent < REPEAT_S); i++) {
        PassTime time;
        DSVI_TRY(time_once(probe, &time));
        spent += time.forward + time.attend + time.backward;
        if (i == 0)
            continue;
        best->forward = fmin(best->forward, time.forward);
        best->attend = fmin(best->attend, time.attend);
        best->backward = fmin(best->backward, time.backward);
    }
    return DSV_OK;
}

/* Times measured at one sequence length. */
typedef struct Figures {
    int64_t tokens, heads;
    PassTime dense, sparse[DENSITIES];
    double density[DENSITIES]; /* densities of the lists that were made */
} Figures;

static double total_seconds(PassTime time)
{
    return time.forward + time.backward;
}

static double cost_pairs_of(const Figures *f)
{
    return (double)f->heads * (double)f->tokens * (double)f->tokens;
}

/* Times dense attention on a sequence and, unless a longer sequence will be measured after it, attention
 * over key lists. On entry *longer says whether the model has more tokens than this sequence; on return it
 * is true only if, besides, the time budget allows to measure twice as many tokens. */
static DsvStatus measure_shape(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                               bool *longer, Figures *figures)
{
    DsvStatus status;
    Probe probe;
    DSVI_TRY_GOTO(status, open_probe(&probe, backend, settings, shape), done);
    DSVI_TRY_GOTO(status, time_pass(&probe, 0, &figures->dense), done);
    *longer = *longer && 4 * total_seconds(figures->dense) * PASSES < BUDGET_S;
    for (int i = 0; i < DENSITIES && !*longer && settings->sparse_enabled; i++) {
        DSVI_TRY_GOTO(status, time_pass(&probe, probe_density[i], &figures->sparse[i]), done);
        figures->density[i] = probe.sparse->record.density[0];
    }
    figures->tokens = shape->tokens;
    figures->heads = shape->batch * shape->heads;
done:
    close_probe(&probe);
    return status;
}

/* Returns the density at which the piecewise linear curve of sparse times reaches the dense time, at most
 * 1. */
static double break_even_density(const Figures *f)
{
    int i = 1;
    double dense = total_seconds(f->dense);
    if (total_seconds(f->sparse[0]) >= dense)
        return 0;
    while (i < DENSITIES - 1 && total_seconds(f->sparse[i]) < dense)
        i++;
    double before = total_seconds(f->sparse[i - 1]);
    double slope = (total_seconds(f->sparse[i]) - before) / (f->density[i] - f->density[i - 1]);
    if (!(slope > 0) || !isfinite(slope)) /* the attention has hardly any work, or too few keys for the times
                                           * at two densities to differ */
        return 1;
    double at = f->density[i - 1] + (dense - before) / slope;
    return fmin(fmax(floor(at / STEP + 1e-9) * STEP, 0), 1);
}

/* Computes the fixed cost of one attention call and the cost of one pair of query and key. `few` are the
 * times at the shortest measured sequence, from which the fixed cost follows; `f` are the times at the
 * longest. */
static void compute_costs(const Figures *few, const Figures *f, DsviAttentionCost *out)
{
    double pairs = cost_pairs_of(f), more = pairs - cost_pairs_of(few);
    const double dense[DSVI_PASSES] = {f->dense.forward, f->dense.backward};
    const double short_one[DSVI_PASSES] = {few->dense.forward, few->dense.backward};
    memset(out, 0, sizeof *out);
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        double pair = more > 0 ? fmax(0, (dense[pass] - short_one[pass]) / more) : dense[pass] / pairs;
        out->call[pass] = fmax(0, short_one[pass] - pair * cost_pairs_of(few));
        out->dense[pass] = fmax(0, dense[pass] - out->call[pass]) / pairs;
    }
    for (int i = 0; i < DENSITIES && f->density[i] > 0; i++) {
        const double lists[DSVI_PASSES] = {f->sparse[i].attend, f->sparse[i].backward};
        for (int pass = 0; pass < DSVI_PASSES; pass++)
            dsvi_price_add(&out->lists[pass], f->density[i], fmax(0, lists[pass] - out->call[pass]) / pairs);
        out->select += fmax(0, f->sparse[i].forward - f->sparse[i].attend) / pairs / DENSITIES;
    }
}

/* Measures attention of the shape `part`. If memory is short, measures it with `fitting` tokens instead, a
 * number of tokens that fit in memory in an earlier measurement (0: there was none). */
static DsvStatus measure_what_fits(DsviBackend *backend, const DsvConfig *settings, DsviSparseShape *part,
                                   int64_t fitting, bool *longer, Figures *f)
{
    DsvStatus status = measure_shape(backend, settings, part, longer, f);
    if (status != DSV_E_NO_MEMORY || fitting == 0)
        return status;
    part->tokens = fitting;
    *longer = false;
    return measure_shape(backend, settings, part, longer, f);
}

/* Measures attention on sequences of doubling length until the next one would take more than BUDGET_S. Sets
 * *few to the times at the shortest length and *f to those at the longest. */
static DsvStatus cost_measure(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                              Figures *few, Figures *f)
{
    DsviSparseShape part = *shape;
    bool longer = true, twice = false;
    part.batch = 1;
    part.heads = shape->heads < HEADS_MAX ? shape->heads : HEADS_MAX;
    double parts = (double)(shape->batch * shape->heads) / (double)part.heads;
    for (part.tokens = TOKENS_MIN / 2; longer;) {
        part.tokens = 2 * part.tokens < shape->tokens ? 2 * part.tokens : shape->tokens;
        longer = part.tokens < shape->tokens;
        DSVI_TRY(measure_what_fits(backend, settings, &part, f->tokens, &longer, f));
        if (few->tokens == 0)
            *few = *f;
    }
    /* A few heads do not fill a large device: measure all heads if the budget allows. */
    if (part.tokens == shape->tokens && parts > 1 && parts * total_seconds(f->dense) * PASSES < BUDGET_S) {
        Figures all = {.tokens = 0};
        DsvStatus status = measure_shape(backend, settings, shape, &twice, &all);
        if (status == DSV_OK)
            *f = all;
        else if (status != DSV_E_NO_MEMORY) /* the memory that the run has left free may be too small for all
                                             * heads */
            return status;
    }
    return DSV_OK;
}

DsvStatus dsvi_cost_measure(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                            DsviCostFound *found)
{
    Figures few = {.tokens = 0}, f = {.tokens = 0};
    DsvStatus status = cost_measure(backend, settings, shape, &few, &f);
    if (status != DSV_OK)
        return dsvi_fail_prefix(status, "measuring the cost of attention");
    compute_costs(&few, &f, &found->attention);
    found->break_even = settings->sparse_enabled ? break_even_density(&f) : 0;
    int used = snprintf(found->line, sizeof found->line,
                        "attention of %lld tokens, %lld heads: dense %.2f "
                        "ms",
                        (long long)f.tokens, (long long)f.heads, 1e3 * total_seconds(f.dense));
    if (settings->sparse_enabled)
        snprintf(found->line + used, sizeof found->line - (size_t)used,
                 ", over lists %.2f ms at density "
                 "%.2f, %.2f at %.2f, %.2f at %.2f; lists are faster up to density %.2f",
                 1e3 * total_seconds(f.sparse[0]), f.density[0], 1e3 * total_seconds(f.sparse[1]),
                 f.density[1], 1e3 * total_seconds(f.sparse[2]), f.density[2], found->break_even);
    return DSV_OK;
}
