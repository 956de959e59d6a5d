/* The projection selector: which tokens it samples, how long samples count, how lists treat keys that were
 * never sampled, and lists from means of keys. */
#include "sparse/sparse_rig.h"

#include "base/rng.h"
#include "sparse/sparse_internal.h"

/* ---- which tokens are sampled ---- */

enum { CALLS_MAX = 256 };

/* The arguments of each call of select_covariance, alternately for queries and for keys. */
static struct {
    int64_t offset, stride, tokens;
} calls[CALLS_MAX];
static int call_count;
static dsvi_select_covariance_fn *real_covariance;

static DsvStatus noted_covariance(DsviStream *stream, const DsviSelectCovarianceArgs *args)
{
    assert_true(call_count < CALLS_MAX);
    calls[call_count].offset = args->offset;
    calls[call_count].stride = args->stride;
    calls[call_count++].tokens = args->tokens;
    return real_covariance(stream, args);
}

/* Opens a rig with one block and one small head whose projection takes a sample in every step. */
static void open_sampling(Rig *rig, int64_t frames, int64_t height, int64_t width, const char *order)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 1, 32, frames, height, width, DSVI_F32);
    shape.backward = false;
    rig_set(&settings, "sparse.refresh_every=50");
    rig_set(&settings, order);
    rig_open(rig, "auto", 1, &settings, &shape);
    real_covariance = rig->backend.ops.select_covariance.run;
    rig->backend.ops.select_covariance.run = noted_covariance;
    call_count = 0;
}

/* Runs one step in which only the projection processes the block. */
static void observe_step(Rig *rig, int64_t step)
{
    DsviSelector *selector = rig->sparse->selector;
    DsviAttentionCall pass = rig_pass(rig, 0);
    double loss;
    int32_t sparse = 0;
    assert_ok(dsvi_selector_step_begin(selector, step, true));
    assert_ok(dsvi_selector_observe(selector, 0, &pass, NULL, false));
    assert_ok(dsvi_selector_step_end(selector, &sparse, &loss));
}

/* Fails unless each of the `side` positions along one side of the grid has its share of the sampled tokens,
 * within a quarter of it. */
static void assert_even(const bool *sampled, const int32_t *order, int64_t tokens, int64_t inner,
                        int64_t side)
{
    int64_t count[64] = {0}, all = 0;
    assert_true(side <= 64);
    for (int64_t s = 0; s < tokens; s++) {
        count[order[s] / inner % side] += sampled[s];
        all += sampled[s];
    }
    for (int64_t i = 0; i < side; i++)
        assert_error_below(fabs((double)(count[i] * side) / (double)all - 1), 0.25, "place %d of %d", (int)i,
                           (int)side);
}

/* Each sample takes equally many tokens from all frames, rows and columns. The projection is refreshed every
 * 50 steps, and as many refreshes as the stride sample each token once. */
static void test_sampled_tokens(void **state)
{
    static const int64_t grids[][3] = {{32, 16, 16}, {16, 32, 32}, {21, 30, 52}, {32, 32, 32}};
    static const char *const orders[] = {"sparse.order=tube", "sparse.order=raster"};
    static Rig rig;
    (void)state;
    for (int n = 0; n < 8; n++) {
        const int64_t *grid = grids[n / 2];
        open_sampling(&rig, grid[0], grid[1], grid[2], orders[n % 2]);
        const int32_t *order = dsvi_sparse_order(rig.sparse);
        int64_t tokens = rig.shape.tokens, stride = 1;
        bool *sampled = calloc((size_t)tokens, 1), *ever = calloc((size_t)tokens, 1);
        rig_fill(&rig, 3, 0);
        for (int64_t i = 0; i < stride; i++) {
            observe_step(&rig, 50 * (i + 1));
            assert_int_equal(call_count, 2 * (i + 1));
            assert_int_equal(calls[2 * i].offset, calls[2 * i + 1].offset);
            stride = calls[2 * i].stride;
            memset(sampled, 0, (size_t)tokens);
            for (int64_t s = calls[2 * i].offset; s < tokens; s += stride) {
                assert_false(ever[s]);
                sampled[s] = ever[s] = true;
            }
            assert_even(sampled, order, tokens, grid[1] * grid[2], grid[0]);
            assert_even(sampled, order, tokens, grid[2], grid[1]);
            assert_even(sampled, order, tokens, 1, grid[2]);
        }
        for (int64_t s = 0; s < tokens; s++)
            assert_true(ever[s]);
        assert_true(tokens / stride > 2000 && tokens / stride <= 4096);
        free(sampled);
        free(ever);
        rig_close(&rig);
    }
}

/* ---- how long a sample counts ---- */

static double trace_of_keys(const Rig *rig)
{
    DsviStateList list = {.count = 0};
    double trace = 0;
    int found = 0;
    dsvi_selector_state(rig->sparse->selector, &list);
    for (int i = 0; i < list.count; i++) {
        if (strcmp(list.item[i].name, "projection.key_second") != 0)
            continue;
        for (int64_t d = 0; d < rig->shape.head_dim; d++)
            trace += ((const double *)list.item[i].memory)[d * rig->shape.head_dim + d];
        found++;
    }
    assert_int_equal(found, 1);
    return trace;
}

/* The newest of all samples counts as much as all samples before it. */
static void test_memory(void **state)
{
    static Rig rig;
    double first, second;
    (void)state;
    open_sampling(&rig, 4, 8, 8, "sparse.order=tube");
    rig_fill(&rig, 3, 0);
    observe_step(&rig, 50);
    first = trace_of_keys(&rig);
    for (int64_t i = 0; i < rig.shape.tokens * rig.shape.head_dim; i++)
        ((float *)rig.block[0].k)[i] *= 3;
    observe_step(&rig, 100);
    second = trace_of_keys(&rig);
    assert_error_below(fabs(second / first - 5), 1e-5, "0.5 + 0.5 * 9");
    rig_close(&rig);
}

/* ---- a key that was never sampled ---- */

enum { SINK = 4097, CAPTURED_QUERIES = 64 };

/* Fills in queries and keys that vary along a dozen directions. Along one further direction all queries are
 * equal, and one key (the sink), not longer than the others, is far from all others. The sink gets half of
 * each query's attention. */
static void fill_with_sink(Rig *rig, int64_t sink)
{
    float *q = rig->block[0].q, *k = rig->block[0].k;
    DsviRng rng = {8, DSVI_RNG_TEST, 0};
    int64_t dim = rig->shape.head_dim;
    memset(q, 0, rig->tensor_bytes);
    memset(k, 0, rig->tensor_bytes);
    memset(rig->block[0].v, 0, rig->tensor_bytes);
    for (int64_t s = 0; s < rig->shape.tokens; s++) {
        for (int64_t d = 0; d < 12; d++) {
            double size = 3.5 * exp(-0.25 * (double)d);
            q[s * dim + d] = (float)(size * dsvi_rng_normal(rng, (uint64_t)(2 * (s * 12 + d))));
            k[s * dim + d] = (float)(size * dsvi_rng_normal(rng, (uint64_t)(2 * (s * 12 + d) + 1)));
        }
        q[s * dim + 12] = 8;
    }
    memset(k + sink * dim, 0, (size_t)dim * sizeof *k);
    k[sink * dim + 12] = 10.85f;
}

/* Returns the fraction of exact attention that lists hold, averaged over queries from the whole clip. */
static double captured(const Rig *rig, double scale)
{
    const DsviLists *lists = dsvi_sparse_lists(rig->sparse, 0);
    const float *q = rig->block[0].q, *k = rig->block[0].k;
    int64_t tokens = rig->shape.tokens, dim = rig->shape.head_dim;
    double *weight = malloc((size_t)tokens * sizeof *weight), sum = 0;
    assert_non_null(lists);
    for (int64_t i = 0; i < CAPTURED_QUERIES; i++) {
        int64_t query = i * tokens / CAPTURED_QUERIES + 7;
        DsviList list = dsvi_list_of(lists, tokens, 0, 0, query);
        double all = 0, held = 0;
        for (int64_t s = 0; s < tokens; s++) {
            double score = 0;
            for (int64_t d = 0; d < dim; d++)
                score += (double)q[query * dim + d] * k[s * dim + d];
            all += weight[s] = exp(scale * score);
        }
        for (int64_t n = 0; n < dsvi_list_length(&list); n++)
            held += weight[dsvi_list_key(&list, n)];
        sum += held / all / CAPTURED_QUERIES;
    }
    free(weight);
    return sum;
}

/* The sink is not among the sampled tokens. Lists must still contain it, and the selector's estimate of the
 * captured mass must be right. */
static void test_unseen_sink(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 1, 64, 8, 32, 32, DSVI_F32);
    DsviSparseBlockReport report;
    (void)state;
    shape.backward = false;
    rig_set(&settings, "sparse.rank=8");
    rig_set(&settings, "sparse.group=16");
    rig_set(&settings, "sparse.chunk=1");
    rig_set(&settings, "sparse.target_mass=0.8");
    rig_set(&settings, "sparse.max_density=1");
    rig_set(&settings, "sparse.list_memory=1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    real_covariance = rig.backend.ops.select_covariance.run;
    rig.backend.ops.select_covariance.run = noted_covariance;
    call_count = 0;
    fill_with_sink(&rig, SINK);
    dsvi_sparse_force(rig.sparse, true);
    DsviAttentionCall pass = rig_pass(&rig, 0);
    assert_ok(dsvi_sparse_step_begin(rig.sparse, 1, true));
    assert_ok(dsvi_sparse_forward(rig.sparse, 0, &pass));
    assert_ok(dsvi_sparse_step_end(rig.sparse));
    assert_true(call_count == 2 && (SINK - calls[1].offset) % calls[1].stride != 0);
    dsvi_sparse_block_report(rig.sparse, 0, &report);
    double held = captured(&rig, pass.scale);
    print_message("estimated %.3f, captured %.3f at density %.3f\n", report.estimated_mass, held,
                  report.density);
    assert_true(report.density < 0.5);
    assert_error_below(fabs(report.estimated_mass - held), 0.08, "captured against estimated mass");
    rig_close(&rig);
}

/* ---- means of keys ---- */

enum { CHUNKED_TOKENS = 2 * 13 * 17, CHUNKED_LISTS = 14, CHUNKED_SPANS = 56 };

/* Fills in keys, multiples of 2^-8, that have the same mean over every `chunk` consecutive keys, whatever
 * `apart` is: keys of a chunk are equal if it is 0, otherwise they differ in two chunks of three. */
static void fill_chunks(Rig *rig, int64_t chunk, float apart)
{
    float *k = rig->block[0].k;
    DsviRng rng = {9, DSVI_RNG_TEST, 0};
    int64_t dim = rig->shape.head_dim;
    for (int64_t s = 0; s < CHUNKED_TOKENS; s++)
        for (int64_t d = 0; d < dim; d++) {
            int64_t number = s / chunk;
            double mean = floor(256 * dsvi_rng_normal(rng, (uint64_t)(number * dim + d))) / 256;
            bool whole = number < CHUNKED_TOKENS / chunk;
            float moved = whole ? apart * (float)(number % 3) : 0;
            k[s * dim + d] = (float)mean + ((s + d) % 2 == 0 ? moved : -moved);
        }
}

/* Runs a step with these keys (fill_chunks) and sets named[n][r] to whether list n names span r. */
static void list_chunks(Rig *rig, int64_t step, float apart, bool named[CHUNKED_LISTS][CHUNKED_SPANS])
{
    DsviAttentionCall pass = rig_pass(rig, 0);
    fill_chunks(rig, 4, apart);
    assert_ok(dsvi_sparse_step_begin(rig->sparse, step, true));
    assert_ok(dsvi_sparse_forward(rig->sparse, 0, &pass));
    assert_ok(dsvi_sparse_step_end(rig->sparse));
    const DsviLists *lists = dsvi_sparse_lists(rig->sparse, 0);
    assert_int_equal(dsvi_lists_count(lists), CHUNKED_LISTS);
    memset(named, 0, CHUNKED_LISTS * CHUNKED_SPANS);
    for (int64_t n = 0; n < CHUNKED_LISTS; n++)
        for (int64_t i = lists->offsets[n]; i < lists->offsets[n + 1]; i++)
            named[n][lists->spans[i]] = true;
}

/* Runs step 1, which computes the projection, with equal keys in every chunk of four, and step 2 with keys
 * that differ from their chunk's mean. Returns how many entries of lists only one of the steps has. */
static int changed_entries(const char *key_chunk)
{
    static Rig rig;
    static bool equal[CHUNKED_LISTS][CHUNKED_SPANS], apart[CHUNKED_LISTS][CHUNKED_SPANS];
    int changed = 0;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 1, 32, 2, 13, 17, DSVI_F32);
    shape.backward = false;
    rig_set(&settings, "sparse.grain=8");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.2");
    rig_set(&settings, "sparse.rank=32");
    rig_set(&settings, key_chunk);
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 5, 0);
    dsvi_sparse_force(rig.sparse, true);
    list_chunks(&rig, 1, 0, equal);
    list_chunks(&rig, 2, 1, apart);
    for (int i = 0; i < CHUNKED_LISTS * CHUNKED_SPANS; i++)
        changed += equal[i / CHUNKED_SPANS][i % CHUNKED_SPANS] != apart[i / CHUNKED_SPANS][i % CHUNKED_SPANS];
    rig_close(&rig);
    print_message("%s: %d entries changed\n", key_chunk, changed);
    return changed;
}

/* With sparse.key_chunk=4 lists depend on the means of four keys only, without it on the single keys. The
 * clip has 442 tokens, so that the last mean is of two keys. */
static void test_means_of_keys(void **state)
{
    (void)state;
    assert_int_equal(changed_entries("sparse.key_chunk=4"), 0);
    assert_true(changed_entries("sparse.key_chunk=1") > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampled_tokens),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_unseen_sink),
        cmocka_unit_test(test_means_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
