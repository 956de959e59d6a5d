/* dsv_bench_attention (include/dsv/bench.h): times dense attention, and selection plus attention over lists,
 * alternately on the same tensors. Sparse attention is called through the sparse layer, like in a block of a
 * model. */
#include "dsv/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "base/memory_limit.h"
#include "backend/backend.h"
#include "bench/bench_heads.h"
#include "bench/bench_report.h"
#include "bench/ops_timed.h"
#include "base/threads.h"
#include "device/carve.h"
#include "sparse/selector.h"
#include "sparse/sparse.h"

/* A GPU adapts its clock to the power of the last few hundredths of a second. A short measurement right after
 * dense attention would therefore run at the clock of dense attention. Each side runs for at least SETTLE_S
 * seconds, and only its last repetition counts. */
#define SETTLE_S 0.06

enum { PROFILE_SAMPLES = 1024 }; /* number of queries for which profile (ops/profile.h) runs */
/* Repetitions of steps that also measure captured mass (the fraction of exact attention that the key lists
 * hold) or renew the selector's projection of queries and keys. */
enum { RARE_REPEATS = 3 };

typedef struct Bench {
    DsvBenchAttention options;
    DsvConfig settings; /* the caller's settings, changed as the benchmark's options say */
    DsviBackend backend;
    DsviBenchHeads heads;
    DsviDtype act;
    DsviSparseShape shape;
    DsviSparse *sparse;
    void *memory;
    void *q, *k, *v, *out, *dout, *dq, *dk, *dv; /* (1, S, N, D), activation dtype */
    void *lse;                                   /* (1, N, S): log-sum-exp of each query's scores */
    void *workspace;
    size_t workspace_bytes;
    int32_t *sample;                    /* (PROFILE_SAMPLES) numbers of the sampled queries */
    float *captured, *share90, *listed; /* (N, PROFILE_SAMPLES) results of profile (ops/profile.h) */
    float *error, *norm; /* (N, PROFILE_SAMPLES) results of attention_error (ops/attention_error.h) */
} Bench;

void dsv_bench_attention_defaults(DsvBenchAttention *bench)
{
    *bench = (DsvBenchAttention){.lists = dsvi_bench_lists_defaults()};
}

static DsvStatus bench_attention_make_settings(Bench *b, const DsvConfig *given)
{
    const DsvBenchAttention *w = &b->options;
    b->settings = *given;
    DSVI_TRY(dsvi_bench_lists_check(&w->lists, given));
    DSVI_TRY(dsvi_bench_dtype(w->lists.dtype, &b->act));
    DSVI_TRY(dsvi_bench_lists_set(&b->settings, &w->lists));
    if (w->target_mass != 0 && strcmp(b->settings.sparse_rule, "threshold") != 0)
        return DSVI_FAIL(DSV_E_USAGE, "target mass %.15g with sparse.rule=%s, expected sparse.rule=threshold",
                         w->target_mass, b->settings.sparse_rule);
    if (w->target_mass != 0) {
        DSVI_TRY(dsvi_bench_set(&b->settings, "sparse.target_density=0"));
        DSVI_TRY(dsvi_bench_set(&b->settings, "sparse.min_keys=0"));
        DSVI_TRY(dsvi_bench_set(&b->settings, "sparse.target_mass=%.17g", w->target_mass));
    }
    return dsvi_bench_set(&b->settings, "sparse.max_density=1");
}

static DsvStatus bench_attention_make_shape(Bench *b)
{
    DsviBenchHeads *heads = &b->heads;
    DSVI_TRY(dsvi_bench_heads_open(&b->options.lists, heads));
    b->shape = (DsviSparseShape){
        .blocks = 1,
        .batch = 1,
        .tokens = heads->tokens,
        .heads = heads->heads,
        .head_dim = heads->head_dim,
        .grid = {heads->grid[0], heads->grid[1], heads->grid[2]},
        .act = b->act,
        .backward = true,
    };
    return DSV_OK;
}

static DsviAttentionArgs attention_args(const Bench *b)
{
    const DsviSparseShape *s = &b->shape;
    return (DsviAttentionArgs){
        .batch = 1,
        .heads = s->heads,
        .queries = s->tokens,
        .keys = s->tokens,
        .head_dim = s->head_dim,
        .scale = 1 / sqrt((double)s->head_dim),
        .act = s->act,
        .acc = DSVI_F32,
        .q = dsvi_heads(b->q, s->tokens, s->heads, s->head_dim),
        .k = dsvi_heads(b->k, s->tokens, s->heads, s->head_dim),
        .v = dsvi_heads(b->v, s->tokens, s->heads, s->head_dim),
        .out = dsvi_heads(b->out, s->tokens, s->heads, s->head_dim),
        .lse = b->lse,
        .dout = dsvi_heads(b->dout, s->tokens, s->heads, s->head_dim),
        .dq = dsvi_heads(b->dq, s->tokens, s->heads, s->head_dim),
        .dk = dsvi_heads(b->dk, s->tokens, s->heads, s->head_dim),
        .dv = dsvi_heads(b->dv, s->tokens, s->heads, s->head_dim),
        .workspace = b->workspace,
        .workspace_bytes = b->workspace_bytes,
    };
}

static DsviProfileArgs bench_attention_profile_args(const Bench *b)
{
    DsviAttentionArgs a = attention_args(b);
    return (DsviProfileArgs){
        .batch = 1,
        .heads = a.heads,
        .queries = a.queries,
        .keys = a.keys,
        .head_dim = a.head_dim,
        .scale = a.scale,
        .mass = 0.9,
        .act = a.act,
        .q = a.q,
        .k = a.k,
        .samples = PROFILE_SAMPLES,
        .sample = b->sample,
        .captured = b->captured,
        .share90 = b->share90,
        .listed = b->listed,
        .workspace = b->workspace,
        .workspace_bytes = b->workspace_bytes,
    };
}

/* With a chunk of 0 the error is the error of the lists without a tail. */
static DsviAttentionErrorArgs bench_attention_error_args(const Bench *b, DsviSparseTail tail)
{
    DsviAttentionArgs a = attention_args(b);
    return (DsviAttentionErrorArgs){
        .batch = 1,
        .heads = a.heads,
        .queries = a.queries,
        .keys = a.keys,
        .head_dim = a.head_dim,
        .scale = a.scale,
        .act = a.act,
        .q = a.q,
        .k = a.k,
        .v = a.v,
        .chunk = tail.chunk,
        .run = tail.run,
        .samples = PROFILE_SAMPLES,
        .sample = b->sample,
        .error = b->error,
        .norm = b->norm,
        .workspace = b->workspace,
        .workspace_bytes = b->workspace_bytes,
    };
}

static size_t bench_attention_workspace_of(const Bench *b)
{
    const DsviOps *ops = &b->backend.ops;
    DsviStream *stream = b->backend.device->stream;
    DsviAttentionArgs args = attention_args(b);
    DsviProfileArgs profile = bench_attention_profile_args(b);
    DsviSparseTail tail = dsvi_sparse_tail_of(&b->settings);
    DsviAttentionErrorArgs lists = bench_attention_error_args(b, (DsviSparseTail){0, 0});
    DsviAttentionErrorArgs whole = bench_attention_error_args(b, tail);
    size_t bytes[] = {
        DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args),
        DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args),
        DSVI_OP_WORKSPACE(ops->profile, stream, &profile),
        DSVI_OP_WORKSPACE(ops->attention_error, stream, &lists),
        DSVI_OP_WORKSPACE(ops->attention_error, stream, &whole),
    };
    size_t max = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        max = bytes[i] > max ? bytes[i] : max;
    return max;
}

static void bench_attention_carve(void *context, DsviArena *arena)
{
    Bench *b = context;
    const DsviSparseShape *s = &b->shape;
    size_t rows = (size_t)(s->tokens * s->heads);
    size_t bytes = rows * (size_t)s->head_dim * dsvi_dtype_size(s->act);
    size_t samples = (size_t)s->heads * PROFILE_SAMPLES * sizeof(float);
    void **tensor[] = {&b->q, &b->k, &b->v, &b->out, &b->dout, &b->dq, &b->dk, &b->dv};
    for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++)
        *tensor[i] = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    b->lse = dsvi_arena_take(arena, DSVI_MEM_DATA, rows * sizeof(float));
    b->sample = dsvi_arena_take(arena, DSVI_MEM_DATA, PROFILE_SAMPLES * sizeof(int32_t));
    b->captured = dsvi_arena_take(arena, DSVI_MEM_DATA, samples);
    b->share90 = dsvi_arena_take(arena, DSVI_MEM_DATA, samples);
    b->listed = dsvi_arena_take(arena, DSVI_MEM_DATA, samples);
    b->error = dsvi_arena_take(arena, DSVI_MEM_DATA, samples);
    b->norm = dsvi_arena_take(arena, DSVI_MEM_DATA, samples);
    b->workspace = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, b->workspace_bytes);
    dsvi_sparse_carve(b->sparse, arena);
    dsvi_sparse_carve_call(b->sparse, arena);
}

static DsvStatus bench_attention_allocate(Bench *b)
{
    b->workspace_bytes = bench_attention_workspace_of(b);
    return dsvi_device_alloc_layout(b->backend.device, bench_attention_carve, b, &b->memory);
}

/* Draws one query at random from each of PROFILE_SAMPLES equal ranges of queries. Evenly spaced queries would
 * have the same place in all groups, and the errors of a group's first and middle queries differ. Of fewer
 * tokens some are sampled repeatedly. */
static void draw_sample(int64_t tokens, uint64_t seed, int32_t sample[PROFILE_SAMPLES])
{
    if (tokens >= PROFILE_SAMPLES)
        dsvi_draw_queries(seed, 0, 0, DSVI_DRAW_PROFILE, tokens, PROFILE_SAMPLES, sample);
    else
        for (int i = 0; i < PROFILE_SAMPLES; i++)
            sample[i] = (int32_t)(i * tokens / PROFILE_SAMPLES);
}

static DsvStatus bench_attention_fill(Bench *b)
{
    DsvStatus status = DSV_OK;
    DsviDevice *device = b->backend.device;
    const DsviSparseShape *s = &b->shape;
    void *const tensor[4] = {b->q, b->k, b->v, b->dout};
    size_t bytes = (size_t)(s->tokens * s->heads * s->head_dim) * dsvi_dtype_size(s->act);
    int32_t sample[PROFILE_SAMPLES];
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of queries", bytes);
    for (uint32_t i = 0; i < 4; i++) {
        dsvi_bench_heads_fill(&(DsviBenchFill){.heads = &b->heads,
                                               .tensor = (DsviBenchTensor)i,
                                               .seed = (uint64_t)b->settings.seed,
                                               .order = dsvi_sparse_order(b->sparse),
                                               .count = s->tokens,
                                               .act = s->act,
                                               .host = host});
        DSVI_TRY_GOTO(status, device->upload(device->stream, tensor[i], host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
    draw_sample(s->tokens, (uint64_t)b->settings.seed, sample);
    DSVI_TRY_GOTO(status, device->upload(device->stream, b->sample, sample, sizeof sample), done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
done:
    free(host);
    return status;
}

/* Seconds that each repetition took for dense attention, and for selection and sparse attention. */
typedef struct Times {
    double dense_fwd[DSVI_BENCH_REPEATS_MAX], dense_bwd[DSVI_BENCH_REPEATS_MAX];
    double select[DSVI_BENCH_REPEATS_MAX];
    double sparse_fwd[DSVI_BENCH_REPEATS_MAX], sparse_bwd[DSVI_BENCH_REPEATS_MAX];
    double select_mean; /* mean over all steps of training, including those with additional work */
} Times;

/* How often training steps do additional work for sparse attention. Every step makes key lists. Every
 * profile_every-th step also measures captured mass (the fraction of exact attention that the lists hold),
 * and every refresh_every-th step also renews the projection of queries and keys that the selector uses. */
typedef struct StepKinds {
    int64_t profile_every, refresh_every;
    int64_t period; /* least common multiple of profile_every and refresh_every */
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

/* Returns the fraction of training steps of one kind: steps that measure captured mass if and only if
 * `profiles` is true, and renew the selector's projection if and only if `refreshes` is true. Sets *step to
 * the first step of this kind after step 0, if there is one; the kinds of steps repeat every k->period
 * steps. */
static double fraction_of_steps(const StepKinds *k, bool profiles, bool refreshes, int64_t *step)
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

static DsviAttentionCall sparse_pass(const Bench *b)
{
    return (DsviAttentionCall){
        .scale = attention_args(b).scale,
        .q = b->q,
        .k = b->k,
        .v = b->v,
        .out = b->out,
        .lse = b->lse,
        .dout = b->dout,
        .dq = b->dq,
        .dk = b->dk,
        .dv = b->dv,
    };
}

/* Times one training step of the sparse layer. The time of selection is everything except attention,
 * including the host's work between kernels. Only attention is enclosed by marks, so that marks do not add to
 * selection. */
static DsvStatus bench_attention_time_step(Bench *b, int64_t step, double *select,
                                           double spent[DSVI_KIND_COUNT])
{
    DsviDevice *device = b->backend.device;
    DsviAttentionCall pass = sparse_pass(b);
    double begin, middle, end;
    dsvi_ops_time_reset();
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_step_begin(b->sparse, step, true));
    DSVI_TRY(dsvi_sparse_forward(b->sparse, 0, &pass));
    DSVI_TRY(device->clock(device->stream, &middle));
    DSVI_TRY(dsvi_sparse_backward(b->sparse, 0, &pass));
    DSVI_TRY(dsvi_ops_time_spent(spent));
    *select = middle - begin - spent[DSVI_KIND_ATTENTION_FWD];
    DSVI_TRY(device->clock(device->stream, &begin));
    DSVI_TRY(dsvi_sparse_step_end(b->sparse));
    DSVI_TRY(device->clock(device->stream, &end));
    *select += end - begin;
    return DSV_OK;
}

/* Computes the mean seconds of selection over all training steps. `plain` is the seconds of selection in a
 * step that neither measures captured mass nor renews the projection. */
static DsvStatus mean_of_steps(Bench *b, double plain, double *mean)
{
    StepKinds kinds = step_kinds(b);
    *mean = 0;
    for (int kind = 0; kind < 4; kind++) {
        int64_t step;
        double select[RARE_REPEATS], spent[DSVI_KIND_COUNT];
        double fraction = fraction_of_steps(&kinds, kind & 1, kind & 2, &step);
        for (int i = 0; i < RARE_REPEATS && kind > 0 && fraction > 0; i++)
            DSVI_TRY(bench_attention_time_step(b, step + i * kinds.period, &select[i], spent));
        if (fraction > 0)
            *mean += fraction * (kind > 0 ? dsvi_median(select, RARE_REPEATS) : plain);
    }
    return DSV_OK;
}

/* Runs dense attention repeatedly for SETTLE_S seconds and returns the times of the last repetition. */
static DsvStatus time_dense(Bench *b, double *forward, double *backward)
{
    const DsviOps *ops = &b->backend.ops;
    DsviDevice *device = b->backend.device;
    DsviAttentionArgs dense = attention_args(b);
    double begin, now, spent[DSVI_KIND_COUNT];
    DSVI_TRY(device->clock(device->stream, &begin));
    do {
        dsvi_ops_time_reset();
        DSVI_TRY(ops->attention_fwd.run(device->stream, &dense));
        DSVI_TRY(ops->attention_bwd.run(device->stream, &dense));
        DSVI_TRY(dsvi_ops_time_spent(spent));
        DSVI_TRY(device->clock(device->stream, &now));
    } while (now - begin < SETTLE_S);
    *forward = spent[DSVI_KIND_ATTENTION_FWD];
    *backward = spent[DSVI_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* Runs step number `step` of the sparse layer repeatedly for SETTLE_S seconds and returns the times of the
 * last repetition. */
static DsvStatus time_sparse(Bench *b, int64_t step, double *select, double *forward, double *backward)
{
    DsviDevice *device = b->backend.device;
    double begin, now, spent[DSVI_KIND_COUNT];
    DSVI_TRY(device->clock(device->stream, &begin));
    do {
        DSVI_TRY(bench_attention_time_step(b, step, select, spent));
        DSVI_TRY(device->clock(device->stream, &now));
    } while (now - begin < SETTLE_S);
    *forward = spent[DSVI_KIND_ATTENTION_FWD];
    *backward = spent[DSVI_KIND_ATTENTION_BWD];
    return DSV_OK;
}

/* Times dense and sparse attention alternately, so that a machine that becomes slower affects both.
 * Repetition -1 is an untimed warm-up: it runs training step 0, which also measures captured mass and renews
 * the selector's projection of queries and keys. */
static DsvStatus bench_attention_measure(Bench *b, Times *times)
{
    StepKinds kinds = step_kinds(b);
    int64_t plain;
    fraction_of_steps(&kinds, false, false, &plain);
    for (int64_t i = -1; i < b->options.lists.repeats; i++) {
        Times ignored, *to = i < 0 ? &ignored : times;
        int64_t slot = i < 0 ? 0 : i;
        DSVI_TRY(time_dense(b, &to->dense_fwd[slot], &to->dense_bwd[slot]));
        DSVI_TRY(time_sparse(b, i < 0 ? 0 : plain + i * kinds.period, &to->select[slot],
                             &to->sparse_fwd[slot], &to->sparse_bwd[slot]));
    }
    double median = dsvi_median(times->select, (size_t)b->options.lists.repeats);
    return mean_of_steps(b, median, &times->select_mean);
}

/* Measures the captured mass of the lists (the fraction of exact attention that they hold) and their density
 * (the fraction of keys that they name), both as means over heads and sampled queries. */
static DsvStatus measure_mass(const Bench *b, double *captured, double *density)
{
    DsviDevice *device = b->backend.device;
    DsviProfileArgs args = bench_attention_profile_args(b);
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
    DSVI_TRY_GOTO(status, device->download(device->stream, host + count, b->listed, (size_t)count * 4), done);
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

/* Measures the relative error of attention's output over the lists, with a tail unless its chunk is 0,
 * against exact attention; mean over heads. */
static DsvStatus measure_error(const Bench *b, DsviSparseTail tail, double *error)
{
    DsviDevice *device = b->backend.device;
    DsviAttentionErrorArgs args = bench_attention_error_args(b, tail);
    int64_t count = args.heads * PROFILE_SAMPLES;
    DsvStatus status;
    args.lists = dsvi_sparse_lists(b->sparse, 0);
    float *host = malloc(2 * (size_t)count * sizeof *host);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the errors of sampled queries");
    DSVI_TRY_GOTO(status, b->backend.ops.attention_error.run(device->stream, &args), done);
    DSVI_TRY_GOTO(status, device->download(device->stream, host, b->error, (size_t)count * 4), done);
    DSVI_TRY_GOTO(status, device->download(device->stream, host + count, b->norm, (size_t)count * 4), done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    *error = 0;
    for (int64_t h = 0; h < args.heads; h++) {
        double errors = 0, norms = 0;
        for (int64_t i = h * PROFILE_SAMPLES; i < (h + 1) * PROFILE_SAMPLES; i++) {
            errors += host[i];
            norms += host[count + i];
        }
        *error += sqrt(errors / norms) / (double)args.heads;
    }
done:
    free(host);
    return status;
}

static DsvStatus bench_attention_report(const Bench *b, Times *times, const char *json_path, DsvLine *line,
                                        void *context)
{
    double captured = 0, density = 0, list_error = 0, output_error = 0;
    size_t n = (size_t)b->options.lists.repeats;
    DSVI_TRY(measure_mass(b, &captured, &density));
    DSVI_TRY(measure_error(b, (DsviSparseTail){0, 0}, &list_error));
    DSVI_TRY(measure_error(b, dsvi_sparse_tail_of(&b->settings), &output_error));
    double dense_fwd = dsvi_median(times->dense_fwd, n), dense_bwd = dsvi_median(times->dense_bwd, n);
    double plain = dsvi_median(times->select, n), select = times->select_mean;
    double fwd = dsvi_median(times->sparse_fwd, n), bwd = dsvi_median(times->sparse_bwd, n);
    double pairs = (double)b->shape.heads * (double)b->shape.tokens * (double)b->shape.tokens;
    double flops = 4 * pairs * (double)b->shape.head_dim;
    const DsviBenchFigure figures[] = {
        {"tokens", (double)b->shape.tokens},
        {"heads", (double)b->shape.heads},
        {"head_dim", (double)b->shape.head_dim},
        {"group", (double)b->settings.sparse_group},
        {"grain", (double)b->settings.sparse_grain},
        {"threads", (double)dsvi_threads_count()},
        {"dense_fwd_ms", 1e3 * dense_fwd},
        {"dense_bwd_ms", 1e3 * dense_bwd},
        {"select_ms", 1e3 * select},
        {"select_plain_ms", 1e3 * plain},
        {"sparse_fwd_ms", 1e3 * fwd},
        {"sparse_bwd_ms", 1e3 * bwd},
        {"density", density},
        {"captured_mass", captured},
        {"output_error", output_error},
        {"list_error", list_error},
        {"speedup", (dense_fwd + dense_bwd) / (select + fwd + bwd)},
        {"dense_fwd_gflops", 1e-9 * flops / dense_fwd},
        {"dense_bwd_gflops", 2.5e-9 * flops / dense_bwd},
        {"sparse_fwd_gflops", 1e-9 * flops * density / fwd},
        {"sparse_bwd_gflops", 2.5e-9 * flops * density / bwd},
    };
    const DsviBenchLabel labels[] = {
        {"device", b->backend.device->name},
        {"variant", b->backend.ops.attention_list_fwd.variant},
        {"bwd_variant", b->backend.ops.attention_list_bwd.variant},
        {"dense_variant", b->backend.ops.attention_fwd.variant},
        {"dtype", b->options.lists.dtype},
        {"selector", b->settings.sparse_selector},
        {"tail", b->settings.sparse_tail},
    };
    return dsvi_bench_report(labels, sizeof labels / sizeof *labels, figures,
                             sizeof figures / sizeof *figures, json_path, line, context);
}

static DsvStatus bench_attention_run(Bench *b, const char *json_path, DsvLine *line, void *context)
{
    Times times;
    DSVI_TRY(bench_attention_make_shape(b));
    DSVI_TRY(dsvi_backend_open(&b->settings, &b->backend));
    b->backend.device->limit = (size_t)dsvi_memory_limit(&b->settings);
    dsvi_ops_time_enable(&b->backend);
    dsvi_ops_time_kinds(1u << DSVI_KIND_ATTENTION_FWD | 1u << DSVI_KIND_ATTENTION_BWD);
    DSVI_TRY(dsvi_sparse_create(&b->backend, &b->settings, &b->shape, NULL, NULL, &b->sparse));
    DSVI_TRY(bench_attention_allocate(b));
    DSVI_TRY(dsvi_sparse_setup(b->sparse));
    dsvi_sparse_force(b->sparse, true);
    DSVI_TRY(bench_attention_fill(b));
    DSVI_TRY(bench_attention_measure(b, &times));
    return bench_attention_report(b, &times, json_path, line, context);
}

DsvStatus dsv_bench_attention(const DsvBenchAttention *options, const DsvConfig *given, const char *json_path,
                              DsvLine *line, void *context)
{
    DSVI_TRY(dsvi_config_check_abi(given));
    DsvStatus status;
    Bench b = {.options = *options};
    DSVI_TRY_GOTO(status, bench_attention_make_settings(&b, given), done);
    DSVI_TRY_GOTO(status, bench_attention_run(&b, json_path, line, context), done);
done:
    dsvi_sparse_free(&b.sparse);
    if (b.memory)
        b.backend.device->mem_free(b.backend.device, b.memory);
    dsvi_backend_close(&b.backend);
    dsvi_bench_heads_close(&b.heads);
    return status;
}
