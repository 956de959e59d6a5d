/* What attention costs on this machine, dense and sparse, measured on the real path: a sparse layer of one
 * block is made for the same head size, selector and groups, given random tensors, and run dense and over
 * lists of several densities. Both kinds of work grow with the square of the tokens, so where the actual
 * length would take long a shorter one stands for it.
 *
 * Timing wavers and decisions should not: the result is rounded down to a twentieth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/carve.h"
#include "sparse/cost.h"
#include "sparse/sparse_internal.h"

enum { DENSITIES = 3, REPEATS_LEAST = 2, REPEATS_MOST = 20, HEADS_MOST = 2, TOKENS_LEAST = 128, TENSORS = 9 };
static const double wanted_density[DENSITIES] = {0.05, 0.2, 0.5};

/* Passes that one length costs at least: dense and each density, with a warm-up. */
#define PASSES ((1 + DENSITIES) * (1 + REPEATS_LEAST))
#define BUDGET_S 1.5
#define REPEAT_S 0.05 /* short passes are repeated for so long */
#define STEP 0.05

typedef struct Probe {
    DsvBackend *backend;
    DsvSparse *sparse;
    DsvSparseShape shape;
    DsvSparseAttention pass;
    void *tensor[TENSORS]; /* q k v hidden out dout dq dk dv, (B, S, N, D) act each */
    void *lse;             /* (B, N, S) acc */
    void *memory;
} Probe;

enum { RANDOM_TENSORS = 4, LONG_QUERIES = 4 }; /* q k v hidden; how long queries are */

static size_t tensor_bytes(const Probe *probe)
{
    const DsvSparseShape *shape = &probe->shape;
    return (size_t)(shape->batch * shape->tokens * shape->heads * shape->head_dim) *
           dsvi_dtype_size(shape->act);
}

static void carve(void *of, DsvArena *arena)
{
    Probe *probe = of;
    for (int i = 0; i < TENSORS; i++)
        probe->tensor[i] = dsvi_arena_take(arena, DSV_MEM_SCRATCH, tensor_bytes(probe));
    probe->lse = dsvi_arena_take(arena, DSV_MEM_SCRATCH,
                                 (size_t)(probe->shape.batch * probe->shape.tokens * probe->shape.heads) *
                                     sizeof(double));
    dsvi_sparse_carve(probe->sparse, arena);
    dsvi_sparse_carve_call(probe->sparse, arena);
}

static void point_pass(Probe *probe)
{
    void **t = probe->tensor;
    probe->pass = (DsvSparseAttention){
        .scale = 1 / sqrt((double)probe->shape.head_dim), .q = t[0], .k = t[1], .v = t[2], .hidden = t[3],
        .out = t[4], .lse = probe->lse, .dout = t[5], .dq = t[6], .dk = t[7], .dv = t[8],
    };
}

/* Normal numbers for what is read, long ones for the queries: then estimates spread as widely as real ones
 * and lists can be made as dense as wanted. dout stays zero. */
static DsvStatus fill(Probe *probe)
{
    DsvDevice *device = probe->backend->device;
    const DsvSparseShape *shape = &probe->shape;
    DsvStatus status = DSV_OK;
    size_t bytes = tensor_bytes(probe), count = bytes / dsvi_dtype_size(shape->act);
    float *numbers = malloc(count * sizeof *numbers);
    void *host = malloc(bytes);
    if (!numbers || !host) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes to measure attention on", bytes);
        goto done;
    }
    for (uint32_t i = 0; i < RANDOM_TENSORS; i++) {
        DsvRng rng = {0, DSV_RNG_TEST, i};
        dsvi_rng_fill_normal(rng, 0, numbers, (int64_t)count);
        for (size_t n = 0; n < count && i == 0; n++)
            numbers[n] *= LONG_QUERIES;
        dsvi_convert(shape->act, host, DSV_F32, numbers, (int64_t)count);
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

/* A sparse layer of `shape` that does as it is told, of one block. To be closed even after failure. */
static DsvStatus open_probe(Probe *probe, DsvBackend *backend, const DsvConfig *given,
                            const DsvSparseShape *shape)
{
    DsvConfig settings = *given;
    settings.sparse_measure_cost = false;
    settings.sparse_target_mass = 0;
    settings.sparse_target_density = 1; /* until time_pass says */
    settings.sparse_max_density = 1;
    memset(probe, 0, sizeof *probe);
    probe->backend = backend;
    probe->shape = *shape;
    probe->shape.blocks = 1;
    probe->shape.context = NULL;
    probe->shape.grid[0] = probe->shape.grid[1] = 1;
    probe->shape.grid[2] = shape->tokens;
    DSVI_TRY(dsvi_sparse_create(backend, &settings, &probe->shape, NULL, NULL, &probe->sparse));
    DSVI_TRY(dsvi_device_carve(backend->device, carve, probe, &probe->memory));
    point_pass(probe);
    DSVI_TRY(dsvi_sparse_setup(probe->sparse));
    return fill(probe);
}

/* Seconds of one pass. */
typedef struct PassTime {
    double forward;  /* selection and attention */
    double attend;   /* the attention in it */
    double backward; /* 0 where there is none */
} PassTime;

static DsvStatus time_once(Probe *probe, PassTime *time)
{
    DsvDevice *device = probe->backend->device;
    DsvSparseAttention again = probe->pass;
    double begin, selected, attended, end;
    again.recompute = true; /* over the lists that are there */
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_forward(probe->sparse, 0, &probe->pass));
    DSVI_TRY(device->clock(device->stream, &selected));
    DSVI_TRY(dsvi_sparse_forward(probe->sparse, 0, &again));
    DSVI_TRY(device->clock(device->stream, &attended));
    if (probe->shape.backward)
        DSVI_TRY(dsvi_sparse_backward(probe->sparse, 0, &probe->pass));
    DSVI_TRY(device->clock(device->stream, &end));
    *time = (PassTime){selected - begin, attended - selected, probe->shape.backward ? end - attended : 0};
    return DSV_OK;
}

/* The best of several after a warm-up. density 0: dense. */
static DsvStatus time_pass(Probe *probe, double density, PassTime *best)
{
    double spent = 0;
    *best = (PassTime){INFINITY, INFINITY, INFINITY};
    dsvi_sparse_force(probe->sparse, density > 0);
    probe->sparse->settings.sparse_target_density = density;
    for (int i = 0; i <= REPEATS_MOST && (i <= REPEATS_LEAST || spent < REPEAT_S); i++) {
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

typedef struct Figures {
    int64_t tokens, heads;
    PassTime dense, sparse[DENSITIES];
    double density[DENSITIES]; /* as the lists turned out */
} Figures;

static double whole(PassTime time)
{
    return time.forward + time.backward;
}

static double pairs_of(const Figures *f)
{
    return (double)f->heads * (double)f->tokens * (double)f->tokens;
}

/* `longer`: whether twice the tokens could be afforded too, where there are more; nothing else is then
 * measured. */
static DsvStatus measure_shape(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               bool *longer, Figures *figures)
{
    DsvStatus status;
    Probe probe;
    DSVI_TRY_GOTO(status, open_probe(&probe, backend, settings, shape), done);
    DSVI_TRY_GOTO(status, time_pass(&probe, 0, &figures->dense), done);
    *longer = *longer && 4 * whole(figures->dense) * PASSES < BUDGET_S;
    for (int i = 0; i < DENSITIES && !*longer && settings->sparse_enabled; i++) {
        DSVI_TRY_GOTO(status, time_pass(&probe, wanted_density[i], &figures->sparse[i]), done);
        figures->density[i] = probe.sparse->record.density[0];
    }
    figures->tokens = shape->tokens;
    figures->heads = shape->batch * shape->heads;
done:
    close_probe(&probe);
    return status;
}

/* Where the line through the measured times crosses the dense time. */
static double crossing(const Figures *f)
{
    int i = 1;
    double dense = whole(f->dense);
    if (whole(f->sparse[0]) >= dense)
        return 0;
    while (i < DENSITIES - 1 && whole(f->sparse[i]) < dense)
        i++;
    double before = whole(f->sparse[i - 1]);
    double slope = (whole(f->sparse[i]) - before) / (f->density[i] - f->density[i - 1]);
    if (!(slope > 0) || !isfinite(slope)) /* hardly any work, or too few keys to tell densities apart */
        return 1;
    double at = f->density[i - 1] + (dense - before) / slope;
    return fmin(fmax(floor(at / STEP + 1e-9) * STEP, 0), 1);
}

/* The prices of calls and pairs. What a call takes whatever it attends shows at the shortest length. */
static void price(const Figures *few, const Figures *f, DsvAttentionCost *out)
{
    double pairs = pairs_of(f), more = pairs - pairs_of(few);
    const double dense[DSV_PASSES] = {f->dense.forward, f->dense.backward};
    const double short_one[DSV_PASSES] = {few->dense.forward, few->dense.backward};
    memset(out, 0, sizeof *out);
    for (int pass = 0; pass < DSV_PASSES; pass++) {
        double pair = more > 0 ? fmax(0, (dense[pass] - short_one[pass]) / more) : dense[pass] / pairs;
        out->call[pass] = fmax(0, short_one[pass] - pair * pairs_of(few));
        out->dense[pass] = fmax(0, dense[pass] - out->call[pass]) / pairs;
    }
    for (int i = 0; i < DENSITIES && f->density[i] > 0; i++) {
        const double lists[DSV_PASSES] = {f->sparse[i].attend, f->sparse[i].backward};
        for (int pass = 0; pass < DSV_PASSES; pass++)
            dsvi_price_add(&out->lists[pass], f->density[i], fmax(0, lists[pass] - out->call[pass]) / pairs);
        out->select += fmax(0, f->sparse[i].forward - f->sparse[i].attend) / pairs / DENSITIES;
    }
}

/* `part` at its length, or where the run has left no room for that at `fitting`, which had; 0: none has. */
static DsvStatus measure_or_shorter(DsvBackend *backend, const DsvConfig *settings, DsvSparseShape *part,
                                    int64_t fitting, bool *longer, Figures *f)
{
    DsvStatus status = measure_shape(backend, settings, part, longer, f);
    if (status != DSV_E_NO_MEMORY || fitting == 0)
        return status;
    part->tokens = fitting;
    *longer = false;
    return measure_shape(backend, settings, part, longer, f);
}

/* `few`: at the shortest length, dense alone. */
static DsvStatus measure(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                         Figures *few, Figures *f)
{
    DsvSparseShape part = *shape;
    bool longer = true, twice = false;
    part.batch = 1;
    part.heads = shape->heads < HEADS_MOST ? shape->heads : HEADS_MOST;
    double parts = (double)(shape->batch * shape->heads) / (double)part.heads;
    for (part.tokens = TOKENS_LEAST / 2; longer;) {
        part.tokens = 2 * part.tokens < shape->tokens ? 2 * part.tokens : shape->tokens;
        longer = part.tokens < shape->tokens;
        DSVI_TRY(measure_or_shorter(backend, settings, &part, f->tokens, &longer, f));
        if (few->tokens == 0)
            *few = *f;
    }
    /* A few heads do not fill a large device: where all of them can be afforded they decide. */
    if (part.tokens == shape->tokens && parts > 1 && parts * whole(f->dense) * PASSES < BUDGET_S) {
        Figures all = {.tokens = 0};
        DsvStatus status = measure_shape(backend, settings, shape, &twice, &all);
        if (status == DSV_OK)
            *f = all;
        else if (status != DSV_E_NO_MEMORY) /* beside the run itself there may be no room for all */
            return status;
    }
    return DSV_OK;
}

DsvStatus dsvi_cost_measure(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                            DsvCostFound *found)
{
    Figures few = {.tokens = 0}, f = {.tokens = 0};
    DsvStatus status = measure(backend, settings, shape, &few, &f);
    if (status != DSV_OK)
        return dsvi_fail_within(status, "measuring the cost of attention");
    price(&few, &f, &found->attention);
    found->break_even = settings->sparse_enabled ? crossing(&f) : 0;
    int used = snprintf(found->line, sizeof found->line, "attention of %lld tokens, %lld heads: dense %.2f "
                        "ms", (long long)f.tokens, (long long)f.heads, 1e3 * whole(f.dense));
    if (settings->sparse_enabled)
        snprintf(found->line + used, sizeof found->line - (size_t)used, ", over lists %.2f ms at density "
                 "%.2f, %.2f at %.2f, %.2f at %.2f; it pays up to density %.2f", 1e3 * whole(f.sparse[0]),
                 f.density[0], 1e3 * whole(f.sparse[1]), f.density[1], 1e3 * whole(f.sparse[2]),
                 f.density[2], found->break_even);
    return DSV_OK;
}
