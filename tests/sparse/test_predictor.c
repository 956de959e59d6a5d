/* The predictor of the DSV paper: its gradient against finite differences, its learning, its two learning
 * rates. */
#include "sparse/sparse_rig.h"

#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "base/safetensors.h"

static char path[64];

static DsvConfig predictor_settings(void)
{
    DsvConfig settings = rig_settings();
    rig_set(&settings, "sparse.selector=predictor");
    rig_set(&settings, "weight_decay=0");
    return settings;
}

static double loss_of_step(Rig *rig, int64_t step)
{
    DsviSparseReport report;
    rig_step(rig, step, true);
    dsvi_sparse_report(rig->sparse, &report);
    return report.predictor_loss;
}

/* Saves the layer's state and returns a copy of tensor `name` with *count elements; the caller frees the
 * copy. */
static double *saved_tensor(Rig *rig, const char *name, int64_t *count)
{
    DsviSafetensors *file;
    assert_ok(dsvi_sparse_save(rig->sparse, path));
    assert_ok(dsvi_safetensors_open(path, &file));
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, name);
    assert_non_null(tensor);
    double *values = malloc((size_t)tensor->count * sizeof *values);
    dsvi_convert(DSVI_F64, values, tensor->dtype, tensor->data, tensor->count);
    *count = tensor->count;
    dsvi_safetensors_close(&file);
    return values;
}

/* Writes the rig's state with weight[at] moved by `by`, and loads it back. */
static void move_weight(Rig *rig, int64_t at, double by)
{
    enum { CASE_RANKS_MAX = 32 };
    DsviSafetensors *file;
    DsviStoredTensor tensors[CASE_RANKS_MAX];
    double *weight = NULL;
    const char *const metadata[][2] = {
        {"selector", "predictor"}, {"rank", "3"}, {"blocks", "2"}, {"heads", "2"}, {"head_dim", "32"},
    };
    assert_ok(dsvi_sparse_save(rig->sparse, path));
    assert_ok(dsvi_safetensors_open(path, &file));
    size_t count = dsvi_safetensors_count(file);
    assert_true(count <= CASE_RANKS_MAX);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = *dsvi_safetensors_at(file, i);
        if (strcmp(tensors[i].name, "predictor.weight") != 0)
            continue;
        weight = malloc(tensors[i].bytes);
        memcpy(weight, tensors[i].data, tensors[i].bytes);
        weight[at] += by;
        tensors[i].data = weight;
    }
    char moved[80];
    snprintf(moved, sizeof moved, "%s.moved", path);
    assert_ok(dsvi_safetensors_write(moved, tensors, count, metadata, 5));
    assert_ok(dsvi_sparse_load(rig->sparse, moved));
    unlink(moved);
    dsvi_safetensors_close(&file);
    free(weight);
}

/* After the first step exp_avg is (1 - beta1) times the gradient. With a learning rate of 0 the weights stay,
 * and the next step reports the loss of the moved weights. Everything is computed in F64 by the reference
 * implementation. */
static void test_gradient(void **state)
{
    static Rig rig;
    DsvConfig settings = predictor_settings();
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 1, 4, 5, DSVI_F64);
    int64_t size;
    const int64_t outputs = 2 * 3 * 2, inputs = 64;
    (void)state;
    rig_set(&settings, "sparse.rank=3");
    rig_set(&settings, "sparse.predictor_lr=0");
    rig_set(&settings, "sparse.predictor_lr_sparse=0");
    rig_set(&settings, "sparse.predictor_samples=20"); /* all tokens: the random draw does not matter */
    rig_open(&rig, "ref", 2, &settings, &shape);
    rig_fill(&rig, 4, 0);
    loss_of_step(&rig, 1);
    double *gradient = saved_tensor(&rig, "predictor.exp_avg", &size);
    assert_int_equal(size, 2 * outputs * (inputs + 1));
    /* Some weights of both blocks and of all outputs, and some biases. */
    int checked = 0;
    for (int64_t at = 5; at < size; at += at % (size / 2) < outputs * inputs ? 97 : 3) {
        const double by = 1e-5;
        move_weight(&rig, at, by);
        double above = loss_of_step(&rig, 2);
        move_weight(&rig, at, -2 * by);
        double below = loss_of_step(&rig, 2);
        move_weight(&rig, at, by);
        /* The reported loss is the mean over two blocks. The difference quotient has a truncation error of
         * by^2 times the third derivative, and a rounding error of 1e-16 / by. */
        double slope = 2 * (above - below) / (2 * by);
        assert_error_below(fabs(slope - gradient[at] / 0.1), 1e-8 + 1e-6 * fabs(slope), "weight %d", (int)at);
        checked += fabs(slope) > 1e-6;
    }
    assert_true(checked > 15);
    free(gradient);
    rig_close(&rig);
}

/* Fills in hidden states from which q and k follow linearly, as in a model, so that the predictor can learn
 * them. */
static void fill_learnable(Rig *rig)
{
    int64_t dim = rig->shape.head_dim, heads = rig->shape.heads, width = heads * dim;
    enum { LATENT = 6 };
    rig_fill(rig, 21, 0);
    for (int64_t i = 0; i < rig->shape.blocks; i++) {
        DsviRng mix = {5, DSVI_RNG_TEST, (uint32_t)i};
        for (int64_t row = 0; row < rig->shape.batch * rig->shape.tokens; row++) {
            for (int64_t c = 0; c < width; c++) {
                double q = 0, k = 0;
                for (int64_t l = 0; l < LATENT; l++) {
                    double latent = dsvi_load(rig->shape.act, rig->block[i].hidden, row * width + l);
                    q += latent * dsvi_rng_normal(mix, (uint64_t)(c * LATENT + l));
                    k += latent * dsvi_rng_normal(mix, (uint64_t)((width + c) * LATENT + l));
                }
                dsvi_store(rig->shape.act, rig->block[i].q, row * width + c, q);
                dsvi_store(rig->shape.act, rig->block[i].k, row * width + c, k);
            }
        }
    }
}

static void test_learns(void **state)
{
    static Rig rig;
    static const DsviDtype dtypes[2] = {DSVI_F32, DSVI_BF16};
    (void)state;
    for (int n = 0; n < 2; n++) {
        DsvConfig settings = predictor_settings();
        DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 8, 8, dtypes[n]);
        DsviSparseBlockReport before, after;
        rig_set(&settings, "sparse.predictor_lr=0.005");
        rig_set(&settings, "sparse.target_mass=0");
        rig_set(&settings, "sparse.target_density=0.1");
        rig_set(&settings, "sparse.profile_every=150");
        rig_set(&settings, "sparse.profile_ema=0");
        rig_set(&settings, "sparse.min_mass=1"); /* so the block stays dense */
        rig_open(&rig, "auto", 2, &settings, &shape);
        fill_learnable(&rig);
        double first = loss_of_step(&rig, 1), last = first;
        dsvi_sparse_block_report(rig.sparse, 0, &before);
        for (int64_t step = 2; step <= 150; step++)
            last = loss_of_step(&rig, step);
        dsvi_sparse_block_report(rig.sparse, 0, &after);
        print_message("%s: loss %.3f, after 150 steps %.3f; captured at 10 %%: %.3f, %.3f\n",
                      dsvi_dtype_name(dtypes[n]), first, last, before.captured_mass, after.captured_mass);
        assert_true(first > 0.7 && first < 1.2); /* untrained: the cosines are near 0 */
        assert_true(last < 0.3);
        assert_true(after.captured_mass > before.captured_mass + 0.1);
        rig_close(&rig);
    }
}

/* There is one learning rate for dense and one for sparse blocks. If one of them is 0, weights change only in
 * blocks of the other kind. */
static void test_two_learning_rates(void **state)
{
    static Rig rig;
    (void)state;
    for (int sparse_moves = 0; sparse_moves < 2; sparse_moves++) {
        DsvConfig settings = predictor_settings();
        DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 8, 8, DSVI_F32);
        int64_t size;
        bool moved[2];
        rig_set(&settings, sparse_moves ? "sparse.predictor_lr=0" : "sparse.predictor_lr_sparse=0");
        rig_set(&settings, "sparse.min_mass=0"); /* so the blocks are sparse after the first step */
        rig_set(&settings, "sparse.max_density=1");
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 3, 8);
        double *weight = saved_tensor(&rig, "predictor.weight", &size);
        for (int64_t step = 1; step <= 2; step++) {
            loss_of_step(&rig, step);
            double *now = saved_tensor(&rig, "predictor.weight", &size);
            moved[step - 1] = memcmp(weight, now, (size_t)size * sizeof *now) != 0;
            free(weight);
            weight = now;
        }
        assert_int_equal(moved[0], !sparse_moves);
        assert_int_equal(moved[1], sparse_moves);
        free(weight);
        rig_close(&rig);
    }
}

/* Initial weights are Kaiming-normal (mean 0, variance 2 / inputs), biases are zero, blocks differ, and the
 * weights follow from the seed. */
static void test_initial_weights(void **state)
{
    static Rig rig;
    DsvConfig settings = predictor_settings();
    DsviSparseShape shape = rig_shape(2, 1, 4, 32, 1, 4, 4, DSVI_F32);
    int64_t size, half;
    const int64_t outputs = 2 * 8 * 4, inputs = 128;
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    double *weight = saved_tensor(&rig, "predictor.weight", &size), mean = 0, square = 0;
    half = size / 2;
    assert_int_equal(half, outputs * (inputs + 1));
    for (int64_t i = 0; i < outputs * inputs; i++) {
        mean += weight[i] / (double)(outputs * inputs);
        square += weight[i] * weight[i] / (double)(outputs * inputs);
        assert_true(weight[i] != weight[half + i]);
    }
    for (int64_t i = outputs * inputs; i < half; i++)
        assert_true(weight[i] == 0);
    /* Bounds: five standard errors of 8,192 draws. */
    assert_error_below(fabs(mean), 5 * sqrt(2.0 / inputs / 8192), "mean");
    assert_error_below(fabs(square * inputs / 2 - 1), 5 * sqrt(2.0 / 8192), "variance");
    free(weight);
    rig_close(&rig);
}

static void test_needs_hidden_states(void **state)
{
    static Rig rig;
    DsvConfig settings = predictor_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 4, 4, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 1, &settings, &shape);
    rig_fill(&rig, 3, 0);
    dsvi_sparse_force(rig.sparse, true);
    DsviAttentionCall pass = rig_pass(&rig, 0);
    pass.hidden = NULL;
    assert_fails(DSV_E_USAGE, "needs the hidden states", dsvi_sparse_forward(rig.sparse, 0, &pass));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_two_learning_rates),
        cmocka_unit_test(test_initial_weights),
        cmocka_unit_test(test_needs_hidden_states),
    };
    snprintf(path, sizeof path, "/tmp/dsv-predictor-%d.safetensors", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
