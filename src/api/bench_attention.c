/* dsv_bench_attention: dense attention against selection plus attention over lists, on the same tensors, in
 * one run. The sparse side goes through the sparse layer as a model's block does. */
#include "dsv/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/backend.h"
#include "api/bench_heads.h"
#include "api/bench_report.h"
#include "api/ops_timed.h"
#include "base/threads.h"
#include "device/carve.h"
#include "sparse/sparse.h"

/* A GPU sets its clock by the power that it has drawn in the last hundredths of a second: dense attention
 * would slow down what is timed right behind it. Each side runs for so long in its turn. */
#define SETTLE_S 0.06

enum { PROFILE_SAMPLES = 256, RARE_REPEATS = 3 };

typedef struct Bench {
    DsvBenchAttention wanted;
    DsvConfig settings;       /* those given, with the lists' settings of `wanted` */
    DsvBackend backend;
    DsvBenchHeads heads;
    DsvDtype act;
    DsvSparseShape shape;
    DsvSparse *sparse;
    void *memory;
    void *q, *k, *v, *out, *dout, *dq, *dk, *dv; /* (1, S, N, D) act */
    void *lse;                /* (1, N, S) */
    void *workspace;
    size_t workspace_bytes;
    int32_t *sample;          /* (PROFILE_SAMPLES) */
    float *captured, *share90, *listed; /* (N, PROFILE_SAMPLES) */
} Bench;

void dsv_bench_attention_defaults(DsvBenchAttention *bench)
{
    *bench = (DsvBenchAttention){.lists = dsvi_bench_lists_defaults()};
}

static DsvStatus make_settings(Bench *b, const DsvConfig *given)
{
    const DsvBenchAttention *w = &b->wanted;
    b->settings = *given;
    DSVI_TRY(dsvi_bench_lists_check(&w->lists, given));
    DSVI_TRY(dsvi_bench_dtype(w->lists.dtype, &b->act));
    DSVI_TRY(dsvi_bench_lists_set(&b->settings, &w->lists));
    if (w->target_mass != 0) {
        DSVI_TRY(dsvi_bench_set(&b->settings, "sparse.target_density=0"));
        DSVI_TRY(dsvi_bench_set(&b->settings, "sparse.target_mass=%.17g", w->target_mass));
    }
    return dsvi_bench_set(&b->settings, "sparse.max_density=1");
}

static DsvStatus make_shape(Bench *b)
{
    DsvBenchHeads *heads = &b->heads;
    DSVI_TRY(dsvi_bench_heads_open(&b->wanted.lists, heads));
    b->shape = (DsvSparseShape){
        .blocks = 1, .batch = 1, .tokens = heads->tokens, .heads = heads->heads,
        .head_dim = heads->head_dim, .grid = {heads->grid[0], heads->grid[1], heads->grid[2]},
        .act = b->act,
        .backward = true,
    };
    return DSV_OK;
}

static DsvAttentionArgs attention_args(const Bench *b)
{
    const DsvSparseShape *s = &b->shape;
    return (DsvAttentionArgs){
        .batch = 1, .heads = s->heads, .queries = s->tokens, .keys = s->tokens, .head_dim = s->head_dim,
        .scale = 1 / sqrt((double)s->head_dim), .act = s->act, .acc = DSV_F32,
        .q = dsvi_heads(b->q, s->tokens, s->heads, s->head_dim),
        .k = dsvi_heads(b->k, s->tokens, s->heads, s->head_dim),
        .v = dsvi_heads(b->v, s->tokens, s->heads, s->head_dim),
        .out = dsvi_heads(b->out, s->tokens, s->heads, s->head_dim), .lse = b->lse,
        .dout = dsvi_heads(b->dout, s->tokens, s->heads, s->head_dim),
        .dq = dsvi_heads(b->dq, s->tokens, s->heads, s->head_dim),
        .dk = dsvi_heads(b->dk, s->tokens, s->heads, s->head_dim),
        .dv = dsvi_heads(b->dv, s->tokens, s->heads, s->head_dim),
        .workspace = b->workspace, .workspace_bytes = b->workspace_bytes,
    };
}

static DsvProfileArgs profile_args(const Bench *b)
{
    DsvAttentionArgs a = attention_args(b);
    return (DsvProfileArgs){
        .batch = 1, .heads = a.heads, .queries = a.queries, .keys = a.keys, .head_dim = a.head_dim,
        .scale = a.scale, .mass = 0.9, .act = a.act, .q = a.q, .k = a.k, .samples = PROFILE_SAMPLES,
        .sample = b->sample, .captured = b->captured, .share90 = b->share90, .listed = b->listed,
        .workspace = b->workspace, .workspace_bytes = b->workspace_bytes,
    };
}

static size_t workspace_of(const Bench *b)
{
    const DsvOps *ops = &b->backend.ops;
    DsvStream *stream = b->backend.device->stream;
    DsvAttentionArgs args = attention_args(b);
    DsvProfileArgs profile = profile_args(b);
    size_t bytes[3] = {
        DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args),
        DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args),
        DSVI_OP_WORKSPACE(ops->profile, stream, &profile),
    };
    size_t most = 0;
    for (int i = 0; i < 3; i++)
        most = bytes[i] > most ? bytes[i] : most;
    return most;
}

static void carve(void *of, DsvArena *arena)
{
    Bench *b = of;
    const DsvSparseShape *s = &b->shape;
    size_t rows = (size_t)(s->tokens * s->heads);
    size_t bytes = rows * (size_t)s->head_dim * dsvi_dtype_size(s->act);
    size_t samples = (size_t)s->heads * PROFILE_SAMPLES * sizeof(float);
    void **tensor[] = {&b->q, &b->k, &b->v, &b->out, &b->dout, &b->dq, &b->dk, &b->dv};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++)
        *tensor[i] = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    b->lse = dsvi_arena_take(arena, DSV_MEM_DATA, rows * sizeof(float));
    b->sample = dsvi_arena_take(arena, DSV_MEM_DATA, PROFILE_SAMPLES * sizeof(int32_t));
    b->captured = dsvi_arena_take(arena, DSV_MEM_DATA, samples);
    b->share90 = dsvi_arena_take(arena, DSV_MEM_DATA, samples);
    b->listed = dsvi_arena_take(arena, DSV_MEM_DATA, samples);
    b->workspace = dsvi_arena_take(arena, DSV_MEM_SCRATCH, b->workspace_bytes);
    dsvi_sparse_carve(b->sparse, arena);
    dsvi_sparse_carve_call(b->sparse, arena);
}

static DsvStatus allocate(Bench *b)
{
    b->workspace_bytes = workspace_of(b);
    return dsvi_device_carve(b->backend.device, carve, b, &b->memory);
}

static DsvStatus fill_all(Bench *b)
{
    DsvStatus status = DSV_OK;
    DsvDevice *device = b->backend.device;
    const DsvSparseShape *s = &b->shape;
    void *const tensor[4] = {b->q, b->k, b->v, b->dout};
    size_t bytes = (size_t)(s->tokens * s->heads * s->head_dim) * dsvi_dtype_size(s->act);
    int32_t sample[PROFILE_SAMPLES];
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of queries", bytes);
    for (uint32_t i = 0; i < 4; i++) {
        dsvi_bench_heads_fill(&b->heads, (DsvBenchTensor)i, (uint64_t)b->settings.seed,
                              dsvi_sparse_order(b->sparse), 0, s->tokens, s->act, host);
        DSVI_TRY_GOTO(status, device->upload(device->stream, tensor[i], host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
    for (int i = 0; i < PROFILE_SAMPLES; i++)
        sample[i] = (int32_t)((int64_t)i * s->tokens / PROFILE_SAMPLES);
    DSVI_TRY_GOTO(status, device->upload(device->stream, b->sample, sample, sizeof sample), done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
done:
    free(host);
    return status;
}

typedef struct Times {
    double dense_fwd[DSV_BENCH_REPEATS_MOST], dense_bwd[DSV_BENCH_REPEATS_MOST];
    double select[DSV_BENCH_REPEATS_MOST];
    double sparse_fwd[DSV_BENCH_REPEATS_MOST], sparse_bwd[DSV_BENCH_REPEATS_MOST];
    double select_mean; /* of a step, those that do more than others included */
} Times;

/* Steps of training differ by what selection does beside making lists: some measure what these hold, some
 * renew the projection. */
typedef struct StepKinds {
    int64_t profile_every, refresh_every, period;
} StepKinds;

static StepKinds step_kinds(const Bench *b)
{
    StepKinds k = {b->settings.sparse_profile_every, b->settings.sparse_refresh_every, 0};
    int64_t a = k.profile_every, other = k.refresh_every;
    while (other > 0) {
        int64_t rest = a % other;
        a = other;
        other = rest;
    }
    k.period = k.profile_every / a * k.refresh_every;
    return k;
}

/* The share of steps that are of this kind; *step, unless there are none, is the first of them after 0, and
 * every k.period-th from there on is another. */
static double share_of_steps(const StepKinds *k, bool profiles, bool refreshes, int64_t *step)
{
    int64_t profiled = k->period / k->profile_every, refreshed = k->period / k->refresh_every;
    int64_t count = profiles && refreshes ? 1
                    : profiles            ? profiled - 1
                    : refreshes           ? refreshed - 1
                                          : k->period - profiled - refreshed + 1;
    int64_t pace = profiles && refreshes ? k->period
                   : profiles            ? k->profile_every
                   : refreshes           ? k->refresh_every
                                         : 1;
    for (*step = pace; count > 0; *step += pace)
        if ((*step % k->profile_every == 0) == profiles && (*step % k->refresh_every == 0) == refreshes)
            break;
    return (double)count / (double)k->period;
}

static DsvSparseAttention sparse_pass(const Bench *b)
{
    return (DsvSparseAttention){
        .scale = attention_args(b).scale, .q = b->q, .k = b->k, .v = b->v, .out = b->out, .lse = b->lse,
        .dout = b->dout, .dq = b->dq, .dk = b->dk, .dv = b->dv,
    };
}

/* One step of training of the sparse layer. Selection is all of it but attention, what the host does between
 * kernels included; marks stand around attention alone, so that none are part of selection. */
static DsvStatus time_step(Bench *b, int64_t step, double *select, double spent[DSV_KIND_COUNT])
{
    DsvDevice *device = b->backend.device;
    DsvSparseAttention pass = sparse_pass(b);
    double begin, middle, end;
    dsvi_ops_time_reset();
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_step_begin(b->sparse, step, true));
    DSVI_TRY(dsvi_sparse_forward(b->sparse, 0, &pass));
    DSVI_TRY(device->clock(device->stream, &middle));
    DSVI_TRY(dsvi_sparse_backward(b->sparse, 0, &pass));
    DSVI_TRY(dsvi_ops_time_spent(spent));
    *select = middle - begin - spent[DSV_KIND_ATTENTION_FWD];
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_step_end(b->sparse));
    DSVI_TRY(device->clock(device->stream, &end));
    *select += end - begin;
    return DSV_OK;
}

/* What selection takes in the mean of all steps, `plain` in those that do nothing else. */
static DsvStatus mean_of_steps(Bench *b, double plain, double *mean)
{
    StepKinds kinds = step_kinds(b);
    *mean = 0;
    for (int kind = 0; kind < 4; kind++) {
        int64_t step;
        double select[RARE_REPEATS], spent[DSV_KIND_COUNT];
        double share = share_of_steps(&kinds, kind & 1, kind & 2, &step);
        for (int i = 0; i < RARE_REPEATS && kind > 0 && share > 0; i++)
            DSVI_TRY(time_step(b, step + i * kinds.period, &select[i], spent));
        if (share > 0)
            *mean += share * (kind > 0 ? dsvi_median(select, RARE_REPEATS) : plain);
    }
    return DSV_OK;
}

/* Passes of dense attention until the clock has settled; the last one counts. */
static DsvStatus time_dense(Bench *b, double *forward, double *backward)
{
    const DsvOps *ops = &b->backend.ops;
    DsvDevice *device = b->backend.device;
    DsvAttentionArgs dense = attention_args(b);
    double begin, now, spent[DSV_KIND_COUNT];
    DSVI_TRY(device->clock(device->stream, &begin));
    do {
        dsvi_ops_time_reset();
        DSVI_TRY(ops->attention_fwd.run(device->stream, &dense));
        DSVI_TRY(ops->attention_bwd.run(device->stream, &dense));
        DSVI_TRY(dsvi_ops_time_spent(spent));
        DSVI_TRY(device->clock(device->stream, &now));
    } while (now - begin < SETTLE_S);
    *forward = spent[DSV_KIND_ATTENTION_FWD];
    *backward = spent[DSV_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* Likewise for steps of the sparse layer, all of them step `step`. */
static DsvStatus time_sparse(Bench *b, int64_t step, double *select, double *forward, double *backward)
{
    DsvDevice *device = b->backend.device;
    double begin, now, spent[DSV_KIND_COUNT];
    DSVI_TRY(device->clock(device->stream, &begin));
    do {
        DSVI_TRY(time_step(b, step, select, spent));
        DSVI_TRY(device->clock(device->stream, &now));
    } while (now - begin < SETTLE_S);
    *forward = spent[DSV_KIND_ATTENTION_FWD];
    *backward = spent[DSV_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* Dense and sparse in turns, so that a machine that slows down slows both. Turn -1 warms up: it is step 0, in
 * which everything is due. */
static DsvStatus measure(Bench *b, Times *times)
{
    StepKinds kinds = step_kinds(b);
    int64_t plain;
    share_of_steps(&kinds, false, false, &plain);
    for (int64_t i = -1; i < b->wanted.lists.repeats; i++) {
        Times ignored, *to = i < 0 ? &ignored : times;
        int64_t slot = i < 0 ? 0 : i;
        DSVI_TRY(time_dense(b, &to->dense_fwd[slot], &to->dense_bwd[slot]));
        DSVI_TRY(time_sparse(b, i < 0 ? 0 : plain + i * kinds.period, &to->select[slot],
                             &to->sparse_fwd[slot], &to->sparse_bwd[slot]));
    }
    return mean_of_steps(b, dsvi_median(times->select, (size_t)b->wanted.lists.repeats), &times->select_mean);
}

/* Exact mass the lists hold and their density, means over heads and sampled queries. */
static DsvStatus measure_mass(const Bench *b, double *captured, double *density)
{
    DsvDevice *device = b->backend.device;
    DsvProfileArgs args = profile_args(b);
    int64_t count = args.heads * PROFILE_SAMPLES;
    DsvStatus status;
    args.lists = dsvi_sparse_lists(b->sparse, 0);
    if (!args.lists)
        return DSVI_FAIL(DSV_E_USAGE, "there are no lists to measure: attention was dense");
    float *host = malloc(2 * (size_t)count * sizeof *host);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a profile");
    DSVI_TRY_GOTO(status, b->backend.ops.profile.run(device->stream, &args), done);
    DSVI_TRY_GOTO(status, device->download(device->stream, host, b->captured, (size_t)count * 4), done);
    DSVI_TRY_GOTO(status, device->download(device->stream, host + count, b->listed, (size_t)count * 4),
                  done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    *captured = *density = 0;
    for (int64_t i = 0; i < count; i++) {
        *captured += host[i] / (double)count;
        *density += host[count + i] / (double)count;
    }
done:
    free(host);
    return status;
}

static DsvStatus report(const Bench *b, Times *times, const char *json_path, DsvLine *line, void *context)
{
    double captured = 0, density = 0;
    size_t n = (size_t)b->wanted.lists.repeats;
    DSVI_TRY(measure_mass(b, &captured, &density));
    double dense_fwd = dsvi_median(times->dense_fwd, n), dense_bwd = dsvi_median(times->dense_bwd, n);
    double plain = dsvi_median(times->select, n), select = times->select_mean;
    double fwd = dsvi_median(times->sparse_fwd, n), bwd = dsvi_median(times->sparse_bwd, n);
    double pairs = (double)b->shape.heads * (double)b->shape.tokens * (double)b->shape.tokens;
    double flops = 4 * pairs * (double)b->shape.head_dim;
    const DsvBenchFigure figures[] = {
        {"tokens", (double)b->shape.tokens}, {"heads", (double)b->shape.heads},
        {"head_dim", (double)b->shape.head_dim}, {"group", (double)b->wanted.lists.group},
        {"grain", (double)b->wanted.lists.grain}, {"threads", (double)dsvi_threads_count()},
        {"dense_fwd_ms", 1e3 * dense_fwd}, {"dense_bwd_ms", 1e3 * dense_bwd},
        {"select_ms", 1e3 * select}, {"select_plain_ms", 1e3 * plain},
        {"sparse_fwd_ms", 1e3 * fwd}, {"sparse_bwd_ms", 1e3 * bwd},
        {"density", density}, {"captured_mass", captured},
        {"speedup", (dense_fwd + dense_bwd) / (select + fwd + bwd)},
        {"dense_fwd_gflops", 1e-9 * flops / dense_fwd}, {"dense_bwd_gflops", 2.5e-9 * flops / dense_bwd},
        {"sparse_fwd_gflops", 1e-9 * flops * density / fwd},
        {"sparse_bwd_gflops", 2.5e-9 * flops * density / bwd},
    };
    const DsvBenchLabel labels[] = {
        {"device", b->backend.device->name}, {"variant", b->backend.ops.attention_list_fwd.variant},
        {"bwd_variant", b->backend.ops.attention_list_bwd.variant},
        {"dense_variant", b->backend.ops.attention_fwd.variant}, {"dtype", b->wanted.lists.dtype},
        {"selector", b->wanted.lists.selector},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, figures,
                             sizeof figures / sizeof *figures, json_path, line, context);
}

static DsvStatus run(Bench *b, const char *json_path, DsvLine *line, void *context)
{
    Times times;
    DSVI_TRY(make_shape(b));
    DSVI_TRY(dsvi_backend_open(&b->settings, &b->backend));
    dsvi_ops_time(&b->backend);
    dsvi_ops_time_kinds(1u << DSV_KIND_ATTENTION_FWD | 1u << DSV_KIND_ATTENTION_BWD);
    DSVI_TRY(dsvi_sparse_create(&b->backend, &b->settings, &b->shape, NULL, NULL, &b->sparse));
    DSVI_TRY(allocate(b));
    DSVI_TRY(dsvi_sparse_setup(b->sparse));
    dsvi_sparse_force(b->sparse, true);
    DSVI_TRY(fill_all(b));
    DSVI_TRY(measure(b, &times));
    return report(b, &times, json_path, line, context);
}

DsvStatus dsv_bench_attention(const DsvBenchAttention *wanted, const DsvConfig *given,
                              const char *json_path, DsvLine *line, void *context)
{
    DsvStatus status;
    Bench b = {.wanted = *wanted};
    DSVI_TRY_GOTO(status, make_settings(&b, given), done);
    DSVI_TRY_GOTO(status, run(&b, json_path, line, context), done);
done:
    dsvi_sparse_free(&b.sparse);
    if (b.memory)
        b.backend.device->mem_free(b.backend.device, b.memory);
    dsvi_backend_close(&b.backend);
    dsvi_bench_heads_close(&b.heads);
    return status;
}
