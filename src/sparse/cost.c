/* Where sparse attention stops paying on this machine, measured on the real path: a sparse layer of one block
 * is made for the same head size, selector and groups, given random tensors, and run dense and over lists of
 * several densities. Both kinds of work grow with the square of the tokens, so where the actual length would
 * take long a shorter one stands for it.
 *
 * Timing wavers and decisions should not: the result is rounded down to a twentieth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
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

static void carve(Probe *probe, DsvArena *arena)
{
    for (int i = 0; i < TENSORS; i++)
        probe->tensor[i] = dsvi_arena_take(arena, DSV_MEM_SCRATCH, tensor_bytes(probe));
    probe->lse = dsvi_arena_take(arena, DSV_MEM_SCRATCH,
                                 (size_t)(probe->shape.batch * probe->shape.tokens * probe->shape.heads) *
                                     sizeof(double));
    dsvi_sparse_carve(probe->sparse, arena);
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
    DsvDevice *device = backend->device;
    DsvConfig settings = *given;
    DsvArena arena;
    settings.sparse_measure_cost = false;
    settings.sparse_target_mass = 0;
    settings.sparse_max_density = 1;
    memset(probe, 0, sizeof *probe);
    probe->backend = backend;
    probe->shape = *shape;
    probe->shape.blocks = 1;
    probe->shape.context = NULL;
    probe->shape.grid[0] = probe->shape.grid[1] = 1;
    probe->shape.grid[2] = shape->tokens;
    DSVI_TRY(dsvi_sparse_create(backend, &settings, &probe->shape, NULL, NULL, &probe->sparse));
    dsvi_arena_plan(&arena);
    carve(probe, &arena);
    size_t bytes = arena.used;
    DSVI_TRY(device->mem_alloc(device, bytes, &probe->memory));
    DSVI_TRY(device->zero(device->stream, probe->memory, bytes));
    dsvi_arena_bind(&arena, probe->memory, bytes);
    carve(probe, &arena);
    point_pass(probe);
    DSVI_TRY(dsvi_sparse_setup(probe->sparse));
    return fill(probe);
}

/* Seconds of one forward and, for training, backward pass: the best of several after a warm-up. density 0:
 * dense. */
static DsvStatus time_pass(Probe *probe, double density, double *seconds)
{
    DsvDevice *device = probe->backend->device;
    double spent = 0;
    *seconds = INFINITY;
    dsvi_sparse_force(probe->sparse, density > 0);
    probe->sparse->settings.sparse_target_density = density;
    for (int i = 0; i <= REPEATS_MOST && (i <= REPEATS_LEAST || spent < REPEAT_S); i++) {
        double begin, end;
        DSVI_TRY(device->clock(device->stream, &begin));
        DSVI_TRY(dsvi_sparse_forward(probe->sparse, 0, &probe->pass));
        if (probe->shape.backward)
            DSVI_TRY(dsvi_sparse_backward(probe->sparse, 0, &probe->pass));
        DSVI_TRY(device->clock(device->stream, &end));
        if (i > 0)
            *seconds = fmin(*seconds, end - begin);
        spent += end - begin;
    }
    return DSV_OK;
}

typedef struct Figures {
    int64_t tokens, heads;
    double dense, sparse[DENSITIES]; /* seconds */
    double density[DENSITIES];       /* as the lists turned out */
} Figures;

/* `longer`: whether twice the tokens could be afforded too, where there are more; nothing else is then
 * measured. */
static DsvStatus measure_shape(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               bool *longer, Figures *figures)
{
    DsvStatus status;
    Probe probe;
    DSVI_TRY_GOTO(status, open_probe(&probe, backend, settings, shape), done);
    DSVI_TRY_GOTO(status, time_pass(&probe, 0, &figures->dense), done);
    *longer = *longer && 4 * figures->dense * PASSES < BUDGET_S;
    for (int i = 0; i < DENSITIES && !*longer; i++) {
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
    if (f->sparse[0] >= f->dense)
        return 0;
    while (i < DENSITIES - 1 && f->sparse[i] < f->dense)
        i++;
    double slope = (f->sparse[i] - f->sparse[i - 1]) / (f->density[i] - f->density[i - 1]);
    if (!(slope > 0) || !isfinite(slope)) /* hardly any work, or too few keys to tell densities apart */
        return 1;
    double at = f->density[i - 1] + (f->dense - f->sparse[i - 1]) / slope;
    return fmin(fmax(floor(at / STEP + 1e-9) * STEP, 0), 1);
}

DsvStatus dsvi_cost_break_even(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               double *break_even, char *line, size_t line_bytes)
{
    Figures f = {.tokens = 0}, all = {.tokens = 0};
    DsvSparseShape part = *shape;
    bool longer = true, whole = false;
    part.batch = 1;
    part.heads = shape->heads < HEADS_MOST ? shape->heads : HEADS_MOST;
    double parts = (double)(shape->batch * shape->heads) / (double)part.heads;
    for (part.tokens = TOKENS_LEAST / 2; longer;) {
        part.tokens = 2 * part.tokens < shape->tokens ? 2 * part.tokens : shape->tokens;
        longer = part.tokens < shape->tokens;
        DSVI_TRY(measure_shape(backend, settings, &part, &longer, &f));
    }
    /* A few heads do not fill a large device: where all of them can be afforded they decide. */
    if (part.tokens == shape->tokens && parts > 1 && parts * f.dense * PASSES < BUDGET_S) {
        DsvStatus status = measure_shape(backend, settings, shape, &whole, &all);
        if (status == DSV_OK)
            f = all;
        else if (status != DSV_E_NO_MEMORY) /* beside the run itself there may be no room for all */
            return dsvi_fail_within(status, "measuring the cost of attention");
    }
    *break_even = crossing(&f);
    snprintf(line, line_bytes, "attention of %lld tokens, %lld heads: dense %.2f ms, over lists %.2f ms at "
             "density %.2f, %.2f at %.2f, %.2f at %.2f; it pays up to density %.2f", (long long)f.tokens,
             (long long)f.heads, 1e3 * f.dense, 1e3 * f.sparse[0], f.density[0], 1e3 * f.sparse[1],
             f.density[1], 1e3 * f.sparse[2], f.density[2], *break_even);
    return DSV_OK;
}
