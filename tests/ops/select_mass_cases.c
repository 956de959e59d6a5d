/* Checks that lists hold the mass for which their threshold was computed. The threshold follows from a sample
 * of the spans; the mass of the lists is summed over all listed spans. Each head has a separate threshold
 * here, so that the error of one head cannot cancel that of another. */
#include "base/rng.h"
#include "base/safetensors.h"
#include "ops/select_mass_cases.h"
#include "ops/sparse_cases.h"
#include "test.h"

#define TARGET 0.9

enum {
    GROUP = 64,
    COUNTED = 4096, /* approximate number of spans of each list that the histogram counts */
    HEADS_MAX = 6,
    BINS_MAX = HEADS_MAX * DSVI_SELECT_BINS
};

typedef struct MassCase {
    int64_t heads, tokens, features, chunk;
    double scale;
    float *proxies, *candidates; /* (heads, tokens / chunk, features), (heads, tokens, features) */
} MassCase;

typedef struct MassResult {
    double bin_count[BINS_MAX], bin_mass[BINS_MAX], selected[HEADS_MAX];
    float threshold[HEADS_MAX];
    int64_t needed;
} MassResult;

static float *take(int64_t count)
{
    float *memory = calloc((size_t)count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

/* Computes for each head the threshold at which lists hold TARGET of the mass. */
static void find_thresholds(const DsviOps *ops, DsviStream *stream, const DsviSelectArgs *args)
{
    for (int64_t h = 0; h < args->heads; h++) {
        DsviSelectThresholdArgs found = {
            .heads = 1,
            .bin_heads = 1,
            .bin_count = args->bin_count + h * DSVI_SELECT_BINS,
            .bin_mass = args->bin_mass + h * DSVI_SELECT_BINS,
            .mass_fraction = TARGET,
            .span_fraction = 1,
            .threshold = (float *)args->threshold + h,
        };
        assert_ok(ops->select_threshold.run(stream, &found));
    }
}

/* Computes histogram, thresholds and lists with the table `ops`. `args` has the sizes, and proxies and
 * candidates in memory of the backend (`backend` NULL: host). The lists have capacity 0, since only their
 * mass is needed. */
static void select_mass(const DsviBackend *backend, const DsviOps *ops, DsviSelectArgs *args, MassResult *r)
{
    DsviStream *stream = backend ? backend->device->stream : NULL;
    size_t bins = (size_t)args->heads * DSVI_SELECT_BINS * sizeof(double);
    DsviLists lists = {1, args->heads, args->queries, args->keys, GROUP, dsvi_select_groups(args),
                       1, 0,           NULL,          NULL};
    int64_t numbers = args->heads * dsvi_select_proxies(args) + dsvi_lists_count(&lists) + 1;
    float *host = take(2 * numbers); /* twice, because an offset is as large as two floats */
    void *lse = check_upload(backend, stream, host, (size_t)numbers * sizeof(float));
    args->lse = lse;
    args->bin_count = check_upload(backend, stream, r->bin_count, bins);
    args->bin_mass = check_upload(backend, stream, r->bin_mass, bins);
    args->threshold = check_upload(backend, stream, r->threshold, sizeof r->threshold);
    args->selected_mass = check_upload(backend, stream, r->selected, sizeof r->selected);
    args->needed = check_upload(backend, stream, &r->needed, sizeof r->needed);
    float *offsets = take(2 * numbers);
    lists.offsets = check_upload(backend, stream, offsets, (size_t)numbers * sizeof(int64_t));
    args->lists = &lists;
    size_t more = ops->select_lists.workspace(stream, args);
    args->workspace_bytes = ops->select_histogram.workspace(stream, args);
    args->workspace_bytes = more > args->workspace_bytes ? more : args->workspace_bytes;
    args->workspace = check_workspace(backend, stream, args->workspace_bytes);
    assert_ok(ops->select_histogram.run(stream, args));
    find_thresholds(ops, stream, args);
    args->again = true;
    assert_ok(ops->select_lists.run(stream, args));
    check_workspace_release(backend, stream, args->workspace, args->workspace_bytes);
    check_release(backend, stream, args->bin_count);
    check_release(backend, stream, args->bin_mass);
    check_release(backend, stream, args->threshold);
    check_release(backend, stream, lists.offsets);
    check_release(backend, stream, lse);
    check_download(backend, stream, r->selected, args->selected_mass, sizeof r->selected);
    check_download(backend, stream, &r->needed, args->needed, sizeof r->needed);
    free(host);
    free(offsets);
}

/* Fails unless the lists of every head hold TARGET of the mass, up to `tolerance`. `turn` decides which spans
 * are sampled. `backend` NULL tests the reference implementation. */
static void check_mass(const DsviBackend *backend, const MassCase *c, uint32_t turn, double tolerance)
{
    DsviStream *stream = backend ? backend->device->stream : NULL;
    DsviOps ref;
    MassResult *r = calloc(1, sizeof *r);
    int64_t proxies = c->tokens / c->chunk;
    DsviSelectArgs args = {
        .batch = 1,
        .heads = c->heads,
        .queries = c->tokens,
        .keys = c->tokens,
        .group = GROUP,
        .chunk = c->chunk,
        .candidate_keys = 1,
        .grain = 1,
        .features = c->features,
        .scale = c->scale,
        .coarse = true,
        .bin_heads = c->heads,
        .bin_turn = turn,
        .bin_skip = c->tokens / COUNTED - 1,
    };
    assert_non_null(r);
    dsvi_ops_fill_ref(&ref);
    args.proxies = check_upload(backend, stream, c->proxies,
                                (size_t)(c->heads * proxies * c->features) * sizeof(float));
    args.candidates = check_upload(backend, stream, c->candidates,
                                   (size_t)(c->heads * c->tokens * c->features) * sizeof(float));
    select_mass(backend, backend ? &backend->ops : &ref, &args, r);
    check_release(backend, stream, args.proxies);
    check_release(backend, stream, args.candidates);
    for (int64_t h = 0; h < c->heads; h++) {
        double mass = r->selected[h] / (double)dsvi_select_groups(&args);
        print_message("%lld tokens, head %lld, turn %u: %.4f\n", (long long)c->tokens, (long long)h, turn,
                      mass);
        assert_error_below(fabs(mass - TARGET), tolerance, "mass of head %d", (int)h);
    }
    free(r);
}

/* ---- keys that all queries attend to ---- */

/* Keys that all queries attend to are called sinks. Feature 0 is one for every proxy, and zero for every
 * candidate that is not a sink. The other features give normal scores of variance SPREAD. The sinks of a head
 * together get as much mass as all other keys. */
#define SPREAD 1.5

/* Returns the position of sink n of a head. Heads 0 and 1 have one sink each, in neighbouring pairs of spans:
 * a sample that is the same for all groups would count the sink of one head too often, or the other's not at
 * all. */
static int64_t sink_place(int64_t head, int64_t n, int64_t tokens)
{
    DsviRng rng = {5, DSVI_RNG_TEST, (uint32_t)head};
    if (head < 2)
        return tokens / 3 / 4 * 4 + 2 * head;
    return (int64_t)dsvi_rng_below(rng, (uint64_t)n, (uint64_t)tokens);
}

static MassCase sink_case(int64_t heads, int64_t tokens, int64_t features, int64_t chunk)
{
    static const int64_t sinks[HEADS_MAX] = {1, 1, 1, 2, 5, 10};
    MassCase c = {heads, tokens, features, chunk, 1, NULL, NULL};
    int64_t rows = tokens / chunk;
    double deviation = pow(SPREAD / (double)(features - 1), 0.25), others = (double)tokens * exp(SPREAD / 2);
    c.proxies = take(heads * rows * features);
    c.candidates = take(heads * tokens * features);
    for (int64_t i = 0; i < heads * rows * features; i++)
        c.proxies[i] = i % features
                           ? (float)(deviation * dsvi_rng_normal((DsviRng){6, DSVI_RNG_TEST, 0}, (uint64_t)i))
                           : 1;
    for (int64_t i = 0; i < heads * tokens * features; i++)
        c.candidates[i] = i % features ? (float)(deviation *
                                                 dsvi_rng_normal((DsviRng){6, DSVI_RNG_TEST, 1}, (uint64_t)i))
                                       : 0;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t n = 0; n < sinks[h]; n++) {
            float *sink = c.candidates + (h * tokens + sink_place(h, n, tokens)) * features;
            memset(sink, 0, (size_t)features * sizeof *sink);
            sink[0] = (float)log(others / (double)sinks[h]);
        }
    return c;
}

static void case_free(MassCase *c)
{
    free(c->proxies);
    free(c->candidates);
}

void check_select_sink_cases(const DsviBackend *backend, int64_t heads, int64_t tokens, int64_t features,
                             int64_t chunk)
{
    MassCase c = sink_case(heads, tokens, features, chunk);
    for (uint32_t turn = 0; turn < (tokens > 8192 ? 1u : 2u); turn++)
        check_mass(backend, &c, turn, 0.03);
    case_free(&c);
}

/* ---- heads of a trained model ---- */

enum { TRAINED_HEADS = 3, TRAINED_TOKENS = 4096, TRAINED_DIM = 128 };

/* Adds a head of the file as head `to` of the case: token i is token i % TRAINED_TOKENS of the file, proxies
 * are means of `chunk` queries. */
static void tile_head(MassCase *c, int64_t to, const float *q, const float *k)
{
    for (int64_t s = 0; s < c->tokens; s++) {
        int64_t row = s % TRAINED_TOKENS * TRAINED_DIM;
        float *proxy = c->proxies + (to * (c->tokens / c->chunk) + s / c->chunk) * TRAINED_DIM;
        for (int64_t d = 0; d < TRAINED_DIM; d++)
            proxy[d] += q[row + d] / (float)c->chunk;
        memcpy(c->candidates + (to * c->tokens + s) * TRAINED_DIM, k + row, TRAINED_DIM * sizeof(float));
    }
}

static void load_rows(const DsviStoredTensor *tensor, int64_t head, float *rows)
{
    int64_t count = TRAINED_TOKENS * TRAINED_DIM;
    const char *from = (const char *)tensor->data + (size_t)(head * count) * dsvi_dtype_size(tensor->dtype);
    dsvi_convert(DSVI_F32, rows, tensor->dtype, from, count);
}

void check_select_trained_cases(const DsviBackend *backend, int64_t first_head, int64_t tokens, int64_t chunk)
{
    const int64_t shape[3] = {TRAINED_HEADS, TRAINED_TOKENS, TRAINED_DIM};
    MassCase c = {TRAINED_HEADS - first_head, tokens, TRAINED_DIM, chunk, 1 / sqrt(TRAINED_DIM), NULL, NULL};
    DsviSafetensors *file;
    const DsviStoredTensor *q, *k;
    float *queries = take(TRAINED_TOKENS * TRAINED_DIM), *keys = take(TRAINED_TOKENS * TRAINED_DIM);
    assert_ok(dsvi_safetensors_open(shared_path("fixtures/heads/heads.safetensors"), &file));
    assert_ok(dsvi_safetensors_require(file, "q", 3, shape, &q));
    assert_ok(dsvi_safetensors_require(file, "k", 3, shape, &k));
    c.proxies = take(c.heads * tokens / chunk * TRAINED_DIM);
    c.candidates = take(c.heads * tokens * TRAINED_DIM);
    for (int64_t h = 0; h < c.heads; h++) {
        load_rows(q, first_head + h, queries);
        load_rows(k, first_head + h, keys);
        tile_head(&c, h, queries, keys);
    }
    check_mass(backend, &c, 3, 0.02);
    case_free(&c);
    dsvi_safetensors_close(&file);
    free(queries);
    free(keys);
}
