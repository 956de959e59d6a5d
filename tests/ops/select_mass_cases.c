/* Whether lists hold the mass that their threshold promised. The threshold follows from a sample of the
 * runs, and what lists then hold is summed over all runs. Each head has a threshold of its own here, so
 * that no head makes up for another. */
#include "base/rng.h"
#include "base/safetensors.h"
#include "ops/select_mass_cases.h"
#include "ops/sparse_cases.h"
#include "test.h"

#define TARGET 0.9

enum {
    GROUP = 64,
    COUNTED = 4096, /* runs that the histogram counts of each list, about */
    HEADS_MOST = 6,
    BINS_MOST = HEADS_MOST * DSV_SELECT_BINS
};

typedef struct MassCase {
    int64_t heads, tokens, features, chunk;
    double scale;
    float *proxies, *candidates; /* (heads, tokens / chunk, features), (heads, tokens, features) */
} MassCase;

typedef struct MassResult {
    double bin_count[BINS_MOST], bin_mass[BINS_MOST], selected[HEADS_MOST];
    float threshold[HEADS_MOST];
    int64_t needed;
} MassResult;

static float *take(int64_t count)
{
    float *memory = calloc((size_t)count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

/* Thresholds for TARGET of each head's mass. */
static void find_thresholds(const DsvOps *ops, DsvStream *stream, const DsvSelectArgs *args)
{
    for (int64_t h = 0; h < args->heads; h++) {
        DsvSelectThresholdArgs found = {
            .heads = 1, .bin_heads = 1, .bin_count = args->bin_count + h * DSV_SELECT_BINS,
            .bin_mass = args->bin_mass + h * DSV_SELECT_BINS, .mass_share = TARGET, .run_share = 1,
            .threshold = (float *)args->threshold + h,
        };
        assert_ok(ops->select_threshold.run(stream, &found));
    }
}

/* Histogram, thresholds and lists on `ops`; `args` has the case's sizes and its features where ops run.
 * Lists get no room: their mass is all that is wanted. `backend` NULL: on the host. */
static void select_mass(const DsvBackend *backend, const DsvOps *ops, DsvSelectArgs *args, MassResult *r)
{
    DsvStream *stream = backend ? backend->device->stream : NULL;
    size_t bins = (size_t)args->heads * DSV_SELECT_BINS * sizeof(double);
    DsvLists lists = {1, args->heads, args->queries, args->keys, GROUP, dsvi_select_groups(args), 1, 0, NULL,
                      NULL};
    int64_t numbers = args->heads * dsvi_select_proxies(args) + dsvi_lists_count(&lists) + 1;
    float *host = take(2 * numbers); /* offsets are of twice the size */
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

/* Every head's lists hold TARGET of the mass, within `tolerance`; the sample moves with `turn`. `backend`
 * NULL: the reference. */
static void check_mass(const DsvBackend *backend, const MassCase *c, uint32_t turn, double tolerance)
{
    DsvStream *stream = backend ? backend->device->stream : NULL;
    DsvOps ref;
    MassResult *r = calloc(1, sizeof *r);
    int64_t proxies = c->tokens / c->chunk;
    DsvSelectArgs args = {
        .batch = 1, .heads = c->heads, .queries = c->tokens, .keys = c->tokens, .group = GROUP,
        .chunk = c->chunk, .candidate_keys = 1, .grain = 1, .features = c->features, .scale = c->scale,
        .coarse = true, .bin_heads = c->heads, .bin_turn = turn, .bin_skip = c->tokens / COUNTED - 1,
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

/* Feature 0 of every proxy is one, and of all candidates but the sinks zero; scores from the other
 * features are normal, of variance SPREAD. The sinks together get as much mass as all other keys. */
#define SPREAD 1.5

/* The places of the sinks: of each head another number of them. Heads 0 and 1 have neighbouring pairs of
 * runs, so that a choice that is the same for all groups counts one head's sink too much or the other's
 * not at all. */
static int64_t sink_place(int64_t head, int64_t n, int64_t tokens)
{
    DsvRng rng = {5, DSV_RNG_TEST, (uint32_t)head};
    if (head < 2)
        return tokens / 3 / 4 * 4 + 2 * head;
    return (int64_t)dsvi_rng_below(rng, (uint64_t)n, (uint64_t)tokens);
}

static MassCase sink_case(int64_t heads, int64_t tokens, int64_t features, int64_t chunk)
{
    static const int64_t sinks[HEADS_MOST] = {1, 1, 1, 2, 5, 10};
    MassCase c = {heads, tokens, features, chunk, 1, NULL, NULL};
    int64_t rows = tokens / chunk;
    double deviation = pow(SPREAD / (double)(features - 1), 0.25), others = (double)tokens * exp(SPREAD / 2);
    c.proxies = take(heads * rows * features);
    c.candidates = take(heads * tokens * features);
    for (int64_t i = 0; i < heads * rows * features; i++)
        c.proxies[i] = i % features ? (float)(deviation * dsvi_rng_normal((DsvRng){6, DSV_RNG_TEST, 0},
                                                                          (uint64_t)i)) : 1;
    for (int64_t i = 0; i < heads * tokens * features; i++)
        c.candidates[i] = i % features ? (float)(deviation * dsvi_rng_normal((DsvRng){6, DSV_RNG_TEST, 1},
                                                                             (uint64_t)i)) : 0;
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

void check_select_sink_cases(const DsvBackend *backend, int64_t heads, int64_t tokens, int64_t features,
                             int64_t chunk)
{
    MassCase c = sink_case(heads, tokens, features, chunk);
    for (uint32_t turn = 0; turn < (tokens > 8192 ? 1u : 2u); turn++)
        check_mass(backend, &c, turn, 0.03);
    case_free(&c);
}

/* ---- heads of a trained model ---- */

enum { TRAINED_HEADS = 3, TRAINED_TOKENS = 4096, TRAINED_DIM = 128 };

/* Token i of the case is token i % TRAINED_TOKENS of the file; proxies are means of `chunk` queries. */
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

static void load_rows(const DsvStoredTensor *tensor, int64_t head, float *rows)
{
    int64_t count = TRAINED_TOKENS * TRAINED_DIM;
    const char *from = (const char *)tensor->data + (size_t)(head * count) * dsvi_dtype_size(tensor->dtype);
    dsvi_convert(DSV_F32, rows, tensor->dtype, from, count);
}

void check_select_trained_cases(const DsvBackend *backend, int64_t first_head, int64_t tokens, int64_t chunk)
{
    const int64_t shape[3] = {TRAINED_HEADS, TRAINED_TOKENS, TRAINED_DIM};
    MassCase c = {TRAINED_HEADS - first_head, tokens, TRAINED_DIM, chunk, 1 / sqrt(TRAINED_DIM), NULL, NULL};
    DsvSafetensors *file;
    const DsvStoredTensor *q, *k;
    float *queries = take(TRAINED_TOKENS * TRAINED_DIM), *keys = take(TRAINED_TOKENS * TRAINED_DIM);
    assert_ok(dsvi_safetensors_open(shared_path("fixtures/heads/heads.safetensors"), &file));
    assert_ok(dsvi_safetensors_want(file, "q", 3, shape, &q));
    assert_ok(dsvi_safetensors_want(file, "k", 3, shape, &k));
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
