/* How much attention the lists of each selector hold, with queries and keys of a trained model.
 *
 * Three heads of a trained model, each of another block, with 16 x 16 x 16 tokens. Their exact attention is
 * computed once. Captured mass is the fraction of a query's attention on its group's list, averaged over all
 * queries. */
#include "sparse/sparse_rig.h"

#include "base/safetensors.h"

enum { HEADS = 3, TOKENS = 4096, DIM = 128 };

typedef struct Golden {
    DsviSafetensors *file;
    const DsviStoredTensor *q, *k;
    float *p[HEADS]; /* (TOKENS, TOKENS) exact attention, raster order */
} Golden;

static Golden golden;

/* Applies the softmax to each row of scaled scores. */
static void softmax_rows(float *p)
{
    for (int64_t i = 0; i < TOKENS; i++) {
        float *row = p + i * TOKENS, largest = -INFINITY;
        double sum = 0;
        for (int64_t j = 0; j < TOKENS; j++)
            largest = row[j] > largest ? row[j] : largest;
        for (int64_t j = 0; j < TOKENS; j++) {
            row[j] = expf((row[j] - largest) / sqrtf(DIM));
            sum += row[j];
        }
        for (int64_t j = 0; j < TOKENS; j++)
            row[j] = (float)(row[j] / sum);
    }
}

static int load_golden(void **state)
{
    const int64_t shape[3] = {HEADS, TOKENS, DIM};
    DsviBackend backend;
    (void)state;
    skip_without_shared("fixtures/heads/heads.safetensors");
    assert_ok(dsvi_safetensors_open(shared_path("fixtures/heads/heads.safetensors"), &golden.file));
    assert_ok(dsvi_safetensors_require(golden.file, "q", 3, shape, &golden.q));
    assert_ok(dsvi_safetensors_require(golden.file, "k", 3, shape, &golden.k));
    assert_ok(dsvi_cpu_open("auto", 0, &backend));
    float *q = malloc(sizeof(float) * TOKENS * DIM), *k = malloc(sizeof(float) * TOKENS * DIM);
    for (int64_t h = 0; h < HEADS; h++) {
        size_t at = (size_t)(h * TOKENS * DIM) * dsvi_dtype_size(golden.q->dtype);
        golden.p[h] = malloc(sizeof(float) * TOKENS * TOKENS);
        assert_non_null(golden.p[h]);
        dsvi_convert(DSVI_F32, q, golden.q->dtype, (const char *)golden.q->data + at, TOKENS * DIM);
        dsvi_convert(DSVI_F32, k, golden.k->dtype, (const char *)golden.k->data + at, TOKENS * DIM);
        DsviGemmArgs args = {
            .m = TOKENS,
            .n = TOKENS,
            .k = DIM,
            .ab_dtype = DSVI_F32,
            .c_dtype = DSVI_F32,
            .a = q,
            .lda = DIM,
            .b = k,
            .ldb = DIM,
            .trans_b = true,
            .c = golden.p[h],
            .ldc = TOKENS,
            .bias_dtype = DSVI_F32,
        };
        assert_ok(backend.ops.gemm.run(backend.device->stream, &args));
        softmax_rows(golden.p[h]);
    }
    free(q);
    free(k);
    dsvi_cpu_close(&backend);
    return 0;
}

static int free_golden(void **state)
{
    (void)state;
    for (int h = 0; h < HEADS; h++)
        free(golden.p[h]);
    dsvi_safetensors_close(&golden.file);
    return 0;
}

/* Copies a tensor (HEADS, TOKENS, DIM) in raster order to (TOKENS, HEADS, DIM) in the layer's token order. */
static void reorder(const Rig *rig, const DsviStoredTensor *from, void *to)
{
    const int32_t *order = dsvi_sparse_order(rig->sparse);
    size_t row = DIM * dsvi_dtype_size(from->dtype);
    for (int64_t s = 0; s < TOKENS; s++)
        for (int64_t h = 0; h < HEADS; h++)
            memcpy((char *)to + (size_t)(s * HEADS + h) * row,
                   (const char *)from->data + (size_t)(h * TOKENS + order[s]) * row, row);
}

typedef struct Result {
    double density, captured, head[HEADS], estimated;
} Result;

static Result measure(const Rig *rig)
{
    const DsviLists *lists = dsvi_sparse_lists(rig->sparse, 0);
    const int32_t *order = dsvi_sparse_order(rig->sparse);
    Result result = {0, 0, {0}, 0};
    DsviSparseBlockReport report;
    int64_t pairs = 0;
    assert_non_null(lists);
    for (int64_t h = 0; h < HEADS; h++) {
        double sum = 0;
        for (int64_t s = 0; s < TOKENS; s++) {
            DsviList list = dsvi_list_of(lists, TOKENS, 0, h, s);
            int64_t length = dsvi_list_length(&list);
            const float *row = golden.p[h] + (int64_t)order[s] * TOKENS;
            for (int64_t i = 0; i < length; i++)
                sum += row[order[dsvi_list_key(&list, i)]];
            pairs += length;
        }
        result.head[h] = sum / TOKENS;
        result.captured += sum / TOKENS / HEADS;
    }
    dsvi_sparse_block_report(rig->sparse, 0, &report);
    result.estimated = report.estimated_mass;
    result.density = (double)pairs / HEADS / TOKENS / TOKENS;
    return result;
}

typedef struct Setting {
    const char *selector, *order, *rule;
    int64_t group, grain, rank;
} Setting;

/* Measures the captured mass at each density and prints the results in one line. */
static void sweep(const Setting *setting, const double *densities, int count, Result *results)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", setting->selector);
    snprintf(settings.sparse_order, sizeof settings.sparse_order, "%s", setting->order);
    snprintf(settings.sparse_rule, sizeof settings.sparse_rule, "%s", setting->rule);
    settings.sparse_group = setting->group;
    settings.sparse_grain = setting->grain;
    settings.sparse_rank = setting->rank;
    settings.sparse_target_mass = 0;
    print_message("%-10s %-9s group %3d grain %2d rank %3d %-9s:", setting->selector, setting->order,
                  (int)setting->group, (int)setting->grain, (int)setting->rank, setting->rule);
    for (int i = 0; i < count; i++) {
        settings.sparse_target_density = densities[i];
        DsviSparseShape shape = rig_shape(1, 1, HEADS, DIM, 16, 16, 16, golden.q->dtype);
        shape.backward = false;
        rig_open(&rig, "auto", 0, &settings, &shape);
        reorder(&rig, golden.q, rig.block[0].q);
        reorder(&rig, golden.k, rig.block[0].k);
        memset(rig.block[0].v, 0, rig.tensor_bytes);
        DsviAttentionCall pass = rig_pass(&rig, 0);
        dsvi_sparse_force(rig.sparse, true);
        assert_ok(dsvi_sparse_forward(rig.sparse, 0, &pass));
        results[i] = measure(&rig);
        print_message("  %.3f at %.3f (%.2f %.2f %.2f)", results[i].captured, results[i].density,
                      results[i].head[0], results[i].head[1], results[i].head[2]);
        rig_close(&rig);
    }
    print_message("\n");
}

/* The default configuration of the projection selector. The bounds at 10 % are those that the study requires;
 * the bounds at 5 and 20 % only bracket the results. */
static void test_projection(void **state)
{
    static const double densities[3] = {0.1, 0.05, 0.2};
    Result count[3], threshold[3], wide[1];
    (void)state;
    sweep(&(Setting){"projection", "hilbert", "topk", 64, 1, 16}, densities, 3, count);
    sweep(&(Setting){"projection", "hilbert", "threshold", 64, 1, 16}, densities, 3, threshold);
    sweep(&(Setting){"projection", "hilbert", "threshold", 128, 1, 16}, densities, 1, wide);
    assert_true(count[0].captured >= 0.80);
    assert_true(threshold[0].captured >= 0.84);
    assert_true(wide[0].captured >= 0.83);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(count[i].density - densities[i]) < 1e-3);
        assert_true(fabs(threshold[i].density - densities[i]) < 1e-3);
        assert_true(threshold[i].captured > count[i].captured);
        /* The selector's estimate of the captured mass must be close to the captured mass. */
        assert_true(fabs(threshold[i].estimated - threshold[i].captured) < 0.1);
    }
    assert_true(count[1].captured < count[0].captured && count[0].captured < count[2].captured);
}

static void test_choices(void **state)
{
    static const double densities[1] = {0.1};
    Result raster[1], low[1], high[1], pooled[1];
    (void)state;
    sweep(&(Setting){"projection", "raster", "threshold", 64, 1, 16}, densities, 1, raster);
    sweep(&(Setting){"projection", "hilbert", "threshold", 64, 1, 8}, densities, 1, low);
    sweep(&(Setting){"projection", "hilbert", "threshold", 64, 1, 32}, densities, 1, high);
    sweep(&(Setting){"pooled", "cube", "topk", 64, 64, 16}, densities, 1, pooled);
    assert_true(raster[0].captured >= 0.80);
    assert_true(low[0].captured >= 0.80);
    assert_true(high[0].captured >= 0.84);
    assert_true(pooled[0].captured < 0.6); /* spans of 64 keys hold much less than single keys */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projection),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
