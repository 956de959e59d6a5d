/* Cases of the profile and of the predictor loss, against the reference implementations. */
#include "base/rng.h"
#include "base/threads.h"
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

/* ---- profile: share90 counts keys, so that rounding may move it by the keys near the border ---- */

typedef struct ProfileShape {
    int64_t batch, heads, queries, keys, dim, samples;
    int64_t group, grain; /* group 0: no lists */
    double density, logit, mass;
} ProfileShape;

typedef struct ProfileRun {
    float captured[256], share90[256], listed[256];
} ProfileRun;

static void *host_rows(DsviDtype dtype, int64_t count, double scale, uint32_t stream)
{
    void *rows = malloc((size_t)count * dsvi_dtype_size(dtype) + 1);
    DsviRng rng = {31, DSVI_RNG_TEST, stream};
    assert_non_null(rows);
    for (int64_t i = 0; i < count; i++)
        dsvi_store(dtype, rows, i, scale * dsvi_rng_normal(rng, (uint64_t)i));
    return rows;
}

/* Runs the profile with the table `ops` on copies of the host arrays in `host`; writes the results to `r`. */
static void profile_on(const DsviBackend *backend, const DsviOps *ops, const DsviProfileArgs *host,
                       ProfileRun *r)
{
    DsviStream *stream = backend && backend->device ? backend->device->stream : NULL;
    DsviProfileArgs args = *host;
    DsviLists lists = {0};
    size_t size = dsvi_dtype_size(args.act), row = (size_t)(args.batch * args.heads * args.head_dim) * size;
    size_t out = (size_t)(args.batch * args.heads * args.samples) * sizeof(float);
    memset(r, 0xff, sizeof *r);
    args.q.data = check_upload(backend, stream, host->q.data, row * (size_t)args.queries);
    args.k.data = check_upload(backend, stream, host->k.data, row * (size_t)args.keys);
    args.sample = check_upload(backend, stream, host->sample, (size_t)args.samples * sizeof *args.sample);
    args.captured = check_upload(backend, stream, r->captured, out);
    args.share90 = check_upload(backend, stream, r->share90, out);
    args.listed = check_upload(backend, stream, r->listed, out);
    if (host->lists) {
        lists = *host->lists;
        lists.offsets = check_upload(backend, stream, lists.offsets,
                                     (size_t)(dsvi_lists_count(&lists) + 1) * sizeof *lists.offsets);
        lists.spans = check_upload(backend, stream, lists.spans,
                                   (size_t)lists.capacity * sizeof *lists.spans);
        args.lists = &lists;
    }
    args.workspace_bytes = ops->profile.workspace(stream, &args);
    args.workspace = check_workspace(backend, stream, args.workspace_bytes);
    assert_ok(ops->profile.run(stream, &args));
    check_workspace_release(backend, stream, args.workspace, args.workspace_bytes);
    check_download(backend, stream, r->captured, args.captured, out);
    check_download(backend, stream, r->share90, args.share90, out);
    check_download(backend, stream, r->listed, args.listed, out);
    check_release(backend, stream, args.q.data);
    check_release(backend, stream, args.k.data);
    check_release(backend, stream, args.sample);
    check_release(backend, stream, lists.offsets);
    check_release(backend, stream, lists.spans);
}

/* Results of the reference for slightly less and slightly more mass. Rounding moves the mass by about 1e-6
 * times (1 + the size `logit` of the scores). */
typedef struct Shifted {
    bool made;
    ProfileRun less, more;
} Shifted;

/* Returns the allowed error of share90: the change that a shift of the mass by the rounding error causes, and
 * one key more. */
static double share_slack(const ProfileShape *s, const DsviProfileArgs *args, Shifted *by,
                          float reference_share, int64_t n)
{
    DsviOps ref;
    DsviProfileArgs shifted = *args;
    double shift = 2e-6 * (1 + s->logit);
    dsvi_ops_fill_ref(&ref);
    if (!by->made) {
        shifted.mass = args->mass - shift;
        profile_on(NULL, &ref, &shifted, &by->less);
        shifted.mass = args->mass + shift;
        profile_on(NULL, &ref, &shifted, &by->more);
        by->made = true;
    }
    return fmax(fabs(by->more.share90[n] - reference_share), fabs(by->less.share90[n] - reference_share)) +
           1.01 / (double)s->keys;
}

static void check_profile(const DsviBackend *backend, const ProfileShape *s, DsviDtype act)
{
    int32_t sample[64];
    DsviOps ref;
    DsviLists lists = {0};
    ProfileRun reference, one, three;
    Shifted shifted = {0};
    int64_t rows = s->batch * s->heads;
    void *q = host_rows(act, rows * s->queries * s->dim, s->logit, 1);
    void *k = host_rows(act, rows * s->keys * s->dim, 1, 2);
    dsvi_ops_fill_ref(&ref);
    for (int64_t n = 0; n < s->samples; n++)
        sample[n] = (int32_t)(n * 7 % s->queries);
    if (s->group > 0) {
        lists = (DsviLists){.batch = s->batch,
                            .heads = s->heads,
                            .queries = s->queries,
                            .keys = s->keys,
                            .group = s->group,
                            .grain = s->grain};
        random_lists_create(&lists, s->density, 1);
    }
    DsviProfileArgs args = {
        .batch = s->batch,
        .heads = s->heads,
        .queries = s->queries,
        .keys = s->keys,
        .head_dim = s->dim,
        .scale = 1 / sqrt((double)s->dim),
        .mass = s->mass,
        .act = act,
        .q = dsvi_heads(q, s->queries, s->heads, s->dim),
        .k = dsvi_heads(k, s->keys, s->heads, s->dim),
        .lists = s->group > 0 ? &lists : NULL,
        .samples = s->samples,
        .sample = sample,
    };
    profile_on(NULL, &ref, &args, &reference);
    dsvi_threads_set(1);
    profile_on(backend, &backend->ops, &args, &one);
    dsvi_threads_set(3);
    if (!test_small()) {
        profile_on(backend, &backend->ops, &args, &three);
        assert_memory_equal(&one, &three, sizeof one);
    }
    for (int64_t n = 0; n < rows * s->samples; n++) {
        bool equal = reference.share90[n] == one.share90[n];
        double slack = equal ? 0 : share_slack(s, &args, &shifted, reference.share90[n], n);
        assert_error_below(fabs(one.captured[n] - reference.captured[n]), 2e-6 * (1 + s->logit),
                           "captured %d", (int)n);
        assert_error_below(fabs(one.listed[n] - reference.listed[n]), 1e-7, "listed %d", (int)n);
        assert_error_below(fabs(one.share90[n] - reference.share90[n]), slack, "share90 %d", (int)n);
    }
    free(q);
    free(k);
    random_lists_free(&lists);
}

/* Long rows: an implementation may not have memory for all of them at once. */
enum { LONG_KEYS = 75600, MANY_HEADS = 40, MANY_SAMPLES = 64 };

static size_t profile_workspace(const DsviBackend *backend, int64_t heads, int64_t samples)
{
    DsviProfileArgs args = {.batch = 1,
                            .heads = heads,
                            .queries = LONG_KEYS,
                            .keys = LONG_KEYS,
                            .head_dim = 128,
                            .act = DSVI_BF16,
                            .samples = samples};
    return backend->ops.profile.workspace(backend->device->stream, &args);
}

static size_t loss_workspace(const DsviBackend *backend, int64_t heads, int64_t samples)
{
    DsviPredictorLossArgs args = {.batch = 1,
                                  .heads = heads,
                                  .queries = LONG_KEYS,
                                  .keys = LONG_KEYS,
                                  .head_dim = 128,
                                  .rank = 16,
                                  .act = DSVI_BF16,
                                  .acc = DSVI_F32,
                                  .samples = samples};
    return backend->ops.predictor_loss.workspace(backend->device->stream, &args);
}

static void check_workspaces(const DsviBackend *backend,
                             size_t (*workspace)(const DsviBackend *, int64_t, int64_t))
{
    size_t largest = workspace(backend, MANY_HEADS, MANY_SAMPLES);
    for (int64_t heads = 1; heads <= MANY_HEADS; heads++)
        for (int64_t samples = 0; samples <= MANY_SAMPLES; samples++)
            if (workspace(backend, heads, samples) > largest)
                fail_msg("%d heads and %d samples need more workspace than all", (int)heads, (int)samples);
}

void check_profile_cases(const DsviBackend *backend)
{
    static const ProfileShape shapes[] = {
        {1, 1, 1, 1, 2, 1, 0, 0, 0, 1, 0.9},           {2, 3, 13, 29, 34, 5, 4, 1, 0.4, 2, 0.9},
        {1, 2, 200, 515, 64, 37, 128, 1, 0.1, 3, 0.9}, {1, 1, 40, 130, 128, 16, 16, 64, 0.5, 1, 0.5},
        {1, 1, 20, 64, 32, 17, 8, 3, 0, 0, 0.9},       {1, 1, 9, 100, 256, 3, 4, 1, 1, 20, 0.999},
        {1, 1, 9, 100, 32, 3, 0, 0, 0, 0, 1},          {1, 1, 9, 100, 32, 3, 0, 0, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_profile(backend, &shapes[i], DSVI_F32);
        check_profile(backend, &shapes[i], DSVI_BF16);
    }
    if (check_long(backend)) {
        static const ProfileShape in_parts = {1, 3, 20, 100000, 2, 64, 16, 64, 0.3, 1, 0.9};
        check_profile(backend, &in_parts, DSVI_BF16);
    }
    check_workspaces(backend, profile_workspace);
}

/* ---- predictor loss: compared element by element by the checker (check.h) ---- */

typedef struct LossShape {
    int64_t batch, heads, queries, keys, dim, rank, samples;
    bool centred;
} LossShape;

typedef struct LossProblem {
    LossShape shape;
    const DsviBackend *backend;
} LossProblem;

enum { Q, K, QL, KL, SAMPLE, LOSS, DQL, DKL };

static DsvStatus run_loss(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const LossProblem *p = c->parameters;
    const LossShape *s = &p->shape;
    DsviPredictorLossArgs args = {
        .batch = s->batch,
        .heads = s->heads,
        .queries = s->queries,
        .keys = s->keys,
        .head_dim = s->dim,
        .rank = s->rank,
        .cos_weight = 0.95,
        .norm_weight = 0.5,
        .centred = s->centred,
        .act = c->act,
        .acc = c->acc,
        .q = dsvi_heads(c->buffer[Q].data, s->queries, s->heads, s->dim),
        .k = dsvi_heads(c->buffer[K].data, s->keys, s->heads, s->dim),
        .ql = dsvi_heads(c->buffer[QL].data, s->queries, s->heads, s->rank),
        .kl = dsvi_heads(c->buffer[KL].data, s->keys, s->heads, s->rank),
        .samples = s->samples,
        .sample = c->buffer[SAMPLE].data,
        .loss = c->buffer[LOSS].data,
        .dql = dsvi_heads(c->buffer[DQL].data, s->queries, s->heads, s->rank),
        .dkl = dsvi_heads(c->buffer[DKL].data, s->keys, s->heads, s->rank),
    };
    args.workspace_bytes = ops->predictor_loss.workspace(stream, &args);
    args.workspace = check_workspace(p->backend, stream, args.workspace_bytes);
    DsvStatus status = ops->predictor_loss.run(stream, &args);
    check_workspace_release(p->backend, stream, args.workspace, args.workspace_bytes);
    return status;
}

static void check_loss(const DsviBackend *backend, const LossShape *s)
{
    int32_t sample[64];
    LossProblem p = {*s, backend};
    CheckCase c = {.op = "predictor_loss", .parameters = &p, .run = run_loss, .ulps = 8};
    int64_t rows = s->batch * s->heads;
    snprintf(c.shape, sizeof c.shape, "b %lld h %lld q %lld k %lld d %lld r %lld samples %lld%s",
             (long long)s->batch, (long long)s->heads, (long long)s->queries, (long long)s->keys,
             (long long)s->dim, (long long)s->rank, (long long)s->samples, s->centred ? " centred" : "");
    for (int64_t n = 0; n < s->samples; n++)
        sample[n] = (int32_t)(n * 5 % s->queries);
    check_buffer(&c, "q", CHECK_ACT, CHECK_IN, rows * s->queries * s->dim);
    check_buffer(&c, "k", CHECK_ACT, CHECK_IN, rows * s->keys * s->dim);
    check_buffer(&c, "ql", CHECK_ACC, CHECK_IN, rows * s->queries * s->rank);
    check_buffer(&c, "kl", CHECK_ACC, CHECK_IN, rows * s->keys * s->rank);
    check_buffer(&c, "sample", CHECK_I32, CHECK_IN, s->samples)->indices = sample;
    check_buffer(&c, "loss", CHECK_ACC, CHECK_OUT, 1);
    check_buffer(&c, "dql", CHECK_ACC, CHECK_OUT, rows * s->queries * s->rank);
    check_buffer(&c, "dkl", CHECK_ACC, CHECK_OUT, rows * s->keys * s->rank);
    assert_case(&c, backend);
}

void check_predictor_loss_cases(const DsviBackend *backend)
{
    static const LossShape shapes[] = {
        {1, 1, 1, 3, 2, 1, 1, false},       {2, 3, 7, 37, 34, 5, 4, true},
        {1, 2, 40, 130, 64, 16, 37, true},  {1, 1, 9, 64, 128, 16, 16, false},
        {1, 1, 20, 100, 256, 34, 17, true}, {1, 1, 4, 8, 32, 16, 0, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_loss(backend, &shapes[i]);
    if (check_long(backend)) {
        static const LossShape in_parts = {1, 3, 20, 50000, 2, 2, 64, true};
        check_loss(backend, &in_parts);
    }
    check_workspaces(backend, loss_workspace);
}
