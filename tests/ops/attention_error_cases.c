/* Cases of attention_error against the reference implementation. */
#include "base/rng.h"
#include "base/threads.h"
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

typedef struct ErrorShape {
    int64_t batch, heads, queries, keys, dim, samples;
    int64_t group, grain, chunk, run; /* chunk 0: no tail */
    double density, logit;
} ErrorShape;

enum { RESULTS_MAX = 256, SAMPLES_MAX = 64 };

typedef struct ErrorRun {
    float error[RESULTS_MAX], norm[RESULTS_MAX];
} ErrorRun;

static void *random_rows(DsviDtype dtype, int64_t count, double scale, uint32_t stream)
{
    void *rows = malloc((size_t)count * dsvi_dtype_size(dtype));
    DsviRng rng = {37, DSVI_RNG_TEST, stream};
    assert_non_null(rows);
    for (int64_t i = 0; i < count; i++)
        dsvi_store(dtype, rows, i, scale * dsvi_rng_normal(rng, (uint64_t)i));
    return rows;
}

/* Runs the op with the table `ops` on copies of the host arrays in `host`; writes the results to `r`. */
static void error_on(const DsviBackend *backend, const DsviOps *ops, const DsviAttentionErrorArgs *host,
                     ErrorRun *r)
{
    DsviStream *stream = backend && backend->device ? backend->device->stream : NULL;
    DsviAttentionErrorArgs args = *host;
    DsviLists lists = *host->lists;
    size_t size = dsvi_dtype_size(args.act), row = (size_t)(args.batch * args.heads * args.head_dim) * size;
    size_t out = (size_t)(args.batch * args.heads * args.samples) * sizeof(float);
    memset(r, 0xff, sizeof *r);
    args.q.data = check_upload(backend, stream, host->q.data, row * (size_t)args.queries);
    args.k.data = check_upload(backend, stream, host->k.data, row * (size_t)args.keys);
    args.v.data = check_upload(backend, stream, host->v.data, row * (size_t)args.keys);
    args.sample = check_upload(backend, stream, host->sample, (size_t)args.samples * sizeof *args.sample);
    args.error = check_upload(backend, stream, r->error, out);
    args.norm = check_upload(backend, stream, r->norm, out);
    lists.offsets = check_upload(backend, stream, lists.offsets,
                                 (size_t)(dsvi_lists_count(&lists) + 1) * sizeof *lists.offsets);
    lists.spans = check_upload(backend, stream, lists.spans, (size_t)lists.capacity * sizeof *lists.spans);
    args.lists = &lists;
    args.workspace_bytes = ops->attention_error.workspace(stream, &args);
    args.workspace = check_workspace(backend, stream, args.workspace_bytes);
    assert_ok(ops->attention_error.run(stream, &args));
    check_workspace_release(backend, stream, args.workspace, args.workspace_bytes);
    check_download(backend, stream, r->error, args.error, out);
    check_download(backend, stream, r->norm, args.norm, out);
    check_release(backend, stream, args.q.data);
    check_release(backend, stream, args.k.data);
    check_release(backend, stream, args.v.data);
    check_release(backend, stream, args.sample);
    check_release(backend, stream, lists.offsets);
    check_release(backend, stream, lists.spans);
}

/* Requires of each sample that the lengths of error and norm differ from the reference by no more than the
 * rounding of F32 scores allows, in relation to the length of the exact output. */
static void compare(const ErrorShape *s, const ErrorRun *reference, const ErrorRun *found)
{
    double slack = 4e-6 * (1 + s->logit);
    for (int64_t n = 0; n < s->batch * s->heads * s->samples; n++) {
        double length = sqrt(reference->norm[n]) + 1e-3;
        assert_error_below(fabs(sqrt(found->norm[n]) - sqrt(reference->norm[n])), slack * length, "norm %d",
                           (int)n);
        assert_error_below(fabs(sqrt(found->error[n]) - sqrt(reference->error[n])), slack * length,
                           "error %d", (int)n);
    }
}

static void check_error(const DsviBackend *backend, const ErrorShape *s, DsviDtype act)
{
    int32_t sample[SAMPLES_MAX];
    DsviOps ref;
    ErrorRun reference, one, three;
    int64_t rows = s->batch * s->heads;
    void *q = random_rows(act, rows * s->queries * s->dim, s->logit, 1);
    void *k = random_rows(act, rows * s->keys * s->dim, 1, 2);
    void *v = random_rows(act, rows * s->keys * s->dim, 1, 3);
    DsviLists lists = {.batch = s->batch,
                       .heads = s->heads,
                       .queries = s->queries,
                       .keys = s->keys,
                       .group = s->group,
                       .grain = s->grain};
    random_lists_create(&lists, s->density, 1);
    dsvi_ops_fill_ref(&ref);
    for (int64_t n = 0; n < s->samples; n++)
        sample[n] = (int32_t)(n * 7 % s->queries);
    DsviAttentionErrorArgs args = {
        .batch = s->batch,
        .heads = s->heads,
        .queries = s->queries,
        .keys = s->keys,
        .head_dim = s->dim,
        .scale = 1 / sqrt((double)s->dim),
        .act = act,
        .q = dsvi_heads(q, s->queries, s->heads, s->dim),
        .k = dsvi_heads(k, s->keys, s->heads, s->dim),
        .v = dsvi_heads(v, s->keys, s->heads, s->dim),
        .lists = &lists,
        .chunk = s->chunk,
        .run = s->run,
        .samples = s->samples,
        .sample = sample,
    };
    error_on(NULL, &ref, &args, &reference);
    dsvi_threads_set(1);
    error_on(backend, &backend->ops, &args, &one);
    compare(s, &reference, &one);
    dsvi_threads_set(3);
    if (!test_small()) {
        error_on(backend, &backend->ops, &args, &three);
        assert_memory_equal(&one, &three, sizeof one);
    }
    free(q);
    free(k);
    free(v);
    random_lists_free(&lists);
}

static DsvStatus run_with(const DsviBackend *backend, DsviAttentionErrorArgs args)
{
    args.workspace_bytes = 0;
    return backend->ops.attention_error.run(backend->device->stream, &args);
}

/* Missing lists, chunks that do not divide groups, and a workspace that is too small are refused. */
static void check_refusals(const DsviBackend *backend)
{
    DsviLists lists = {
        .batch = 1, .heads = 1, .queries = 32, .keys = 32, .group = 16, .groups = 2, .grain = 1};
    DsviAttentionErrorArgs args = {.batch = 1,
                                   .heads = 1,
                                   .queries = 32,
                                   .keys = 32,
                                   .head_dim = 32,
                                   .act = DSVI_F32,
                                   .lists = &lists,
                                   .chunk = 16,
                                   .run = 1,
                                   .samples = 4};
    assert_int_equal(run_with(backend, args), DSV_E_SHAPE);
    assert_non_null(strstr(dsv_error_message(), "workspace"));
    args.chunk = 12;
    assert_int_equal(run_with(backend, args), DSV_E_SHAPE);
    assert_non_null(strstr(dsv_error_message(), "chunks of 12"));
    args.lists = NULL;
    assert_int_equal(run_with(backend, args), DSV_E_SHAPE);
    assert_non_null(strstr(dsv_error_message(), "no lists"));
}

void check_attention_error_cases(const DsviBackend *backend)
{
    static const ErrorShape shapes[] = {
        {1, 1, 1, 1, 2, 1, 1, 1, 0, 0, 0, 1},
        {2, 3, 13, 29, 34, 5, 4, 1, 2, 1, 0.4, 2},
        {1, 2, 200, 515, 64, 37, 128, 1, 64, 1, 0.1, 3},
        {1, 2, 200, 515, 64, 37, 64, 1, 1, 16, 0.1, 3},
        {1, 1, 40, 130, 128, 16, 16, 64, 8, 7, 0.5, 1},
        {1, 2, 40, 130, 128, 16, 16, 1, 0, 0, 0.3, 2},
        {1, 1, 9, 100, 256, 3, 4, 3, 4, 5, 1, 4},
        {1, 1, 20, 64, 32, 17, 8, 1, 8, 64, 0, 2},
        {1, 2, 33, 90, 64, 20, 16, 1, 4, 4, -0.4, 2},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_error(backend, &shapes[i], DSVI_F32);
        check_error(backend, &shapes[i], DSVI_BF16);
    }
    check_refusals(backend);
}
