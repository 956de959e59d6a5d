/* The transformer against itself: finite differences, batches, threads, repeated passes, and the memory and
 * the operation counts that its header promises. */
#include "dit_case.h"

#include "base/rng.h"

static void open_shape(DitCase *c, const DsviDitShape *shape, const char *isa, int threads)
{
    DsviDitConfig config = dit_case_small_config();
    dit_case_open(c, &config, shape, isa, threads, NULL);
    float *flat = dit_case_random_weights(&c->table, 0.1);
    dit_case_set_weights(c, flat);
    free(flat);
    dit_case_randomise(c, 1);
}

static void open_small(DitCase *c, DsviDtype act, const char *isa, int threads)
{
    DsviDitShape shape = dit_case_small_shape(act);
    open_shape(c, &shape, isa, threads);
}

/* Returns the loss with x[0..n) moved by step * direction; restores x. */
static double loss_moved(DitCase *c, double *x, const double *direction, int64_t n, double step)
{
    DsviMseArgs mse = {
        .batch = c->shape.batch,
        .n = c->out_elements / c->shape.batch,
        .grad_scale = 1,
        .acc = c->acc,
        .output = c->output,
        .target = c->target,
        .loss = c->loss,
    };
    double *kept = malloc((size_t)n * sizeof *kept);
    assert_non_null(kept);
    memcpy(kept, x, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++)
        x[i] += step * direction[i];
    dit_case_forward(c);
    assert_ok(c->backend.ops.mse.run(c->backend.device->stream, &mse));
    memcpy(x, kept, (size_t)n * sizeof *kept);
    free(kept);
    return dit_case_loss(c);
}

/* Compares the gradient with the slope of the loss along a random direction, by central differences of fourth
 * order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h. With h = 1e-3 the rounding error of a loss near 1 is
 * 1e-13 / h = 1e-10, and the truncation error is h^4 times a fifth derivative. */
static void check_slope(DitCase *c, const char *name, double *x, const double *gradient, int64_t n,
                        uint32_t stream)
{
    const double h = 1e-3;
    DsviRng rng = {17, DSVI_RNG_TEST, stream};
    double *direction = malloc((size_t)n * sizeof *direction), slope = 0, square = 0;
    assert_non_null(direction);
    for (int64_t i = 0; i < n; i++) {
        direction[i] = dsvi_rng_normal(rng, (uint64_t)i) / sqrt((double)n);
        slope += gradient[i] * direction[i];
        square += gradient[i] * gradient[i];
    }
    double near = loss_moved(c, x, direction, n, h) - loss_moved(c, x, direction, n, -h);
    double far = loss_moved(c, x, direction, n, 2 * h) - loss_moved(c, x, direction, n, -2 * h);
    double found = (8 * near - far) / (12 * h);
    assert_true(square > 0);
    assert_error_below(fabs(found - slope), 1e-6 * sqrt(square / (double)n) + 1e-10, "slope along %s", name);
    free(direction);
}

static void check_all_slopes(const DsviDitConfig *config, int64_t image_len)
{
    DitCase c;
    DsviDitShape shape = dit_case_small_shape(DSVI_F64);
    shape.image_len = image_len;
    dit_case_open(&c, config, &shape, "ref", 1, NULL);
    float *flat = dit_case_random_weights(&c.table, 0.2);
    dit_case_set_weights(&c, flat);
    dit_case_randomise(&c, 2);
    dit_case_gradients(&c);
    check_slope(&c, "latents", c.latents, c.dlatents, c.in_elements, 1);
    check_slope(&c, "text", c.text, c.dtext, c.text_elements, 2);
    if (image_len > 0)
        check_slope(&c, "image", c.image, c.dimage, c.image_elements, 1000);
    for (int64_t i = 0; i < c.table.count; i++) {
        const DsviParam *param = &c.table.params[i];
        check_slope(&c, param->name, (double *)c.weights.master + param->offset,
                    (const double *)dit_case_grad(&c, i), param->count, 3 + (uint32_t)i);
    }
    free(flat);
    dit_case_close(&c);
}

static void gradients_are_finite_differences(void **state)
{
    DsviDitConfig config = dit_case_small_config();
    (void)state;
    config.num_layers = 1;
    check_all_slopes(&config, 0);
    config.num_attention_heads = 1; /* 17 rotary pairs, 7 + 5 + 5 for the three axes */
    config.attention_head_dim = 34;
    config.patch[0] = 2;
    config.image_dim = 13;
    check_all_slopes(&config, 7);
    config.pos_embed_seq_len = 6;
    check_all_slopes(&config, 6);
}

/* Copies sample b of `from` to the only sample of `to`. */
static void pick_sample(const DitCase *from, DitCase *to, int64_t b)
{
    size_t size = dsvi_dtype_size(from->acc), batch = (size_t)from->shape.batch;
    const struct {
        const void *from;
        void *to;
        int64_t n;
    } arrays[] = {
        {from->latents, to->latents, from->in_elements},
        {from->target, to->target, from->out_elements},
        {from->text, to->text, from->text_elements},
        {from->timestep, to->timestep, from->shape.batch},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        size_t bytes = (size_t)arrays[i].n * size / batch;
        memcpy(arrays[i].to, (const char *)arrays[i].from + (size_t)b * bytes, bytes);
    }
}

/* The output of a batch consists of the outputs of its samples; its gradient is the mean of their
 * gradients. */
static void check_batch(DsviDtype act, const char *isa, double bound)
{
    DitCase both, one;
    DsviDitShape shape = dit_case_small_shape(act);
    open_small(&both, act, isa, 2);
    shape.batch = 1;
    dit_case_open(&one, &both.config, &shape, isa, 2, NULL);
    memcpy(one.weights.master, both.weights.master, (size_t)both.table.elements * dsvi_dtype_size(both.acc));
    dit_case_gradients(&both);
    double *sum = calloc((size_t)both.table.elements, sizeof *sum);
    assert_non_null(sum);
    for (int64_t b = 0; b < 2; b++) {
        pick_sample(&both, &one, b);
        dit_case_gradients(&one);
        const char *output = (const char *)both.output +
                             (size_t)(b * one.out_elements) * dsvi_dtype_size(both.acc);
        assert_error_below(relative_l2(one.acc, one.output, both.acc, output, one.out_elements), bound,
                           "output of sample %d", (int)b);
        for (int64_t i = 0; i < both.table.elements; i++)
            sum[i] += 0.5 * dsvi_load(one.acc, one.weights.grad, i);
    }
    for (int64_t i = 0; i < both.table.count; i++)
        assert_error_below(relative_l2(DSVI_F64, sum + both.table.params[i].offset, both.acc,
                                       dit_case_grad(&both, i), both.table.params[i].count),
                           bound, "gradient of %s", both.table.params[i].name);
    free(sum);
    dit_case_close(&both);
    dit_case_close(&one);
}

static void a_batch_is_its_samples(void **state)
{
    (void)state;
    check_batch(DSVI_F64, "ref", 1e-12);
    check_batch(DSVI_F32, "auto", 1e-5);
}

static void runs_and_threads_agree_to_the_bit(void **state)
{
    static const DsviDtype ACTS[] = {DSVI_F32, DSVI_BF16};
    (void)state;
    for (int isa = DSVI_ISA_BASE; isa <= (int)dsvi_isa_best(); isa++) {
        if (TEST_SANITIZED && isa != DSVI_ISA_BASE && isa < (int)dsvi_isa_best())
            continue;
        for (int a = 0; a < 2; a++) {
            DitCase one, two;
            open_small(&one, ACTS[a], dsvi_isa_name((DsviIsa)isa), 1);
            dit_case_gradients(&one);
            open_small(&two, ACTS[a], dsvi_isa_name((DsviIsa)isa), 2);
            dit_case_gradients(&two);
            dit_case_assert_equal(&one, &two, true);
            dit_case_gradients(&two); /* again, with memory that holds the results of the first time */
            dit_case_assert_equal(&one, &two, true);
            dit_case_close(&one);
            dit_case_close(&two);
        }
    }
}

static void inference_is_the_same_forward_pass(void **state)
{
    static const DsviDtype ACTS[] = {DSVI_F32, DSVI_BF16};
    (void)state;
    for (int a = 0; a < 2; a++) {
        DitCase trained, sampled;
        open_small(&trained, ACTS[a], "auto", 2);
        dit_case_gradients(&trained);
        DsviDitShape shape = trained.shape;
        shape.backward = false;
        dit_case_open(&sampled, &trained.config, &shape, "auto", 2, NULL);
        dit_case_set_weights(&sampled, trained.weights.master);
        dit_case_randomise(&sampled, 1);
        dit_case_forward(&sampled);
        dit_case_assert_equal(&trained, &sampled, false);
        dit_case_close(&trained);
        dit_case_close(&sampled);
    }
}

/* A second backward pass, without gradients of the inputs, adds to the gradients of the first. */
static void gradients_add_up(void **state)
{
    DitCase c;
    (void)state;
    open_small(&c, DSVI_F32, "auto", 2);
    dit_case_gradients(&c);
    size_t bytes = (size_t)c.table.elements * sizeof(float);
    float *once = malloc(bytes);
    assert_non_null(once);
    memcpy(once, c.weights.grad, bytes);
    dit_case_forward(&c);
    assert_ok(dsvi_dit_backward(c.dit, c.doutput, NULL, NULL));
    for (int64_t i = 0; i < c.table.elements; i++)
        once[i] *= 2;
    for (int64_t i = 0; i < c.table.count; i++)
        assert_error_below(relative_l2(DSVI_F32, dit_case_grad(&c, i), DSVI_F32,
                                       once + c.table.params[i].offset, c.table.params[i].count),
                           1e-6, "gradient of %s", c.table.params[i].name);
    free(once);
    dit_case_close(&c);
}

/* The model can compute the loss without storing the output. Gradients have the same bits; the loss may
 * differ by rounding, because it is summed in another order. */
static void loss_without_output(void **state)
{
    static const DsviDtype acts[] = {DSVI_F64, DSVI_F32, DSVI_BF16};
    (void)state;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        DitCase by_output, by_loss;
        DsviDitShape shape = dit_case_small_shape(acts[i]);
        const char *isa = acts[i] == DSVI_F64 ? "ref" : "auto";
        open_shape(&by_output, &shape, isa, 2);
        shape.loss = true;
        open_shape(&by_loss, &shape, isa, 2);
        dit_case_gradients(&by_output);
        dit_case_loss_gradients(&by_loss);
        double expected = dit_case_loss(&by_output);
        assert_error_below(fabs(dit_case_loss(&by_loss) - expected), 1e-6 * expected, "loss");
        dit_case_forward(&by_loss);
        dit_case_assert_equal(&by_loss, &by_output, true);
        dit_case_close(&by_output);
        dit_case_close(&by_loss);
    }
}

/* With shape.grad_begin, gradients overwrite activations that the backward pass no longer needs. Results must
 * not change, for models whose gradients are longer and shorter than their activations. */
static void gradients_reuse_activation_memory(void **state)
{
    static const DsviDitKeep keeps[] = {DSVI_KEEP_ALL, DSVI_KEEP_ATTENTION, DSVI_KEEP_INPUT};
    (void)state;
    for (int i = 0; i < 6; i++) {
        DitCase apart, among;
        DsviDitShape shape = dit_case_small_shape(DSVI_BF16);
        shape.keep = keeps[i % 3];
        shape.loss = true;
        shape.width *= i < 3 ? 1 : 8;
        shape.ffn_rows = i % 2 ? 0 : 7; /* 7: the first part writes a gradient, later parts add to it */
        open_shape(&apart, &shape, "auto", 2);
        shape.grad_begin = apart.table.begin;
        open_shape(&among, &shape, "auto", 2);
        dit_case_loss_gradients(&apart);
        dit_case_loss_gradients(&among);
        assert_true(dit_case_loss(&apart) == dit_case_loss(&among));
        for (int64_t p = 0; p < apart.table.count; p++)
            assert_memory_equal(dit_case_grad(&apart, p), dit_case_grad(&among, p),
                                (size_t)apart.table.params[p].count * sizeof(float));
        assert_memory_equal(apart.dlatents, among.dlatents, (size_t)apart.in_elements * sizeof(float));
        assert_memory_equal(apart.dtext, among.dtext, (size_t)apart.text_elements * sizeof(float));
        dit_case_close(&apart);
        dit_case_close(&among);
    }
}

/* Loss and gradients have the same bits whatever each block keeps, on the device or in host memory, also with
 * gradients in the memory of activations and with a feed-forward layer in parts. */
static void keep_at_random(int64_t ffn_rows, uint32_t stream)
{
    enum { BLOCKS = 6, KINDS = 5, TRIES = 6 };
    static const DsviDitKept KIND[KINDS] = {{DSVI_KEEP_ALL, false},
                                            {DSVI_KEEP_ATTENTION, false},
                                            {DSVI_KEEP_INPUT, false},
                                            {DSVI_KEEP_ATTENTION, true},
                                            {DSVI_KEEP_INPUT, true}};
    const DsviRng rng = {5, DSVI_RNG_TEST, stream};
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(DSVI_BF16);
    DitCase all, mixed;
    config.num_layers = BLOCKS;
    shape.loss = true;
    shape.ffn_rows = ffn_rows;
    dit_case_open(&all, &config, &shape, "auto", 2, NULL);
    float *weights = dit_case_random_weights(&all.table, 0.1);
    dit_case_set_weights(&all, weights);
    dit_case_randomise(&all, 0);
    dit_case_loss_gradients(&all);
    shape.grad_begin = all.table.begin;
    for (uint64_t i = 0; i < TRIES; i++) {
        DsviDitKept kept[BLOCKS];
        for (uint64_t b = 0; b < BLOCKS; b++)
            kept[b] = KIND[dsvi_rng_below(rng, i * BLOCKS + b, KINDS)];
        dit_case_open_kept(&mixed, &config, &shape, kept);
        dit_case_set_weights(&mixed, weights);
        dit_case_randomise(&mixed, 0);
        dit_case_loss_gradients(&mixed);
        assert_true(dit_case_loss(&all) == dit_case_loss(&mixed));
        for (int64_t p = 0; p < all.table.count; p++)
            assert_memory_equal(dit_case_grad(&all, p), dit_case_grad(&mixed, p),
                                (size_t)all.table.params[p].count * sizeof(float));
        dit_case_close(&mixed);
    }
    free(weights);
    dit_case_close(&all);
}

static void blocks_keep_what_they_like(void **state)
{
    (void)state;
    keep_at_random(7, 0);
    keep_at_random(0, 1);
}

/* Computing the feed-forward layer in parts gives the same result. The parts are a part of a sample or span
 * several samples, and the last part is shorter. */
static void feed_forward_parts_are_the_whole(void **state)
{
    static const struct {
        DsviDitKeep keep;
        int64_t rows;
    } cases[] = {{DSVI_KEEP_ALL, 7},     {DSVI_KEEP_ATTENTION, 1}, {DSVI_KEEP_ATTENTION, 29},
                 {DSVI_KEEP_INPUT, 7},   {DSVI_KEEP_INPUT, 30},    {DSVI_KEEP_INPUT, 61},
                 {DSVI_KEEP_INPUT, 1000}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        DitCase whole, parts;
        DsviDitShape shape = dit_case_small_shape(DSVI_F64);
        shape.batch = 3;
        shape.keep = cases[i / 2].keep;
        shape.given_first = shape.loss = i % 2;
        open_shape(&whole, &shape, "ref", 1);
        shape.ffn_rows = cases[i / 2].rows;
        open_shape(&parts, &shape, "ref", 1);
        dit_case_gradients(&whole);
        dit_case_gradients(&parts);
        assert_memory_equal(whole.output, parts.output, (size_t)whole.out_elements * sizeof(double));
        for (int64_t p = 0; p < whole.table.count; p++)
            assert_error_below(relative_l2(DSVI_F64, dit_case_grad(&parts, p), DSVI_F64,
                                           dit_case_grad(&whole, p), whole.table.params[p].count),
                               1e-12, "gradient of %s", whole.table.params[p].name);
        dit_case_close(&whole);
        dit_case_close(&parts);
    }
}

/* ---- counts ---- */

static DsviOps counted;
static double gemm_flops, attention_flops;

static DsvStatus counting_gemm(DsviStream *stream, const DsviGemmArgs *args)
{
    gemm_flops += 2 * (double)args->m * (double)args->n * (double)args->k;
    return counted.gemm.run(stream, args);
}

static DsvStatus counting_attention(DsviStream *stream, const DsviAttentionArgs *args)
{
    attention_flops += 4 * (double)(args->batch * args->heads * args->head_dim) * (double)args->queries *
                       (double)args->keys;
    return counted.attention_fwd.run(stream, args);
}

static void flops_are_those_of_the_calls(void **state)
{
    DitCase c;
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(DSVI_F32);
    (void)state;
    config.image_dim = 13;
    shape.image_len = 7;
    dit_case_open(&c, &config, &shape, "auto", 2, NULL);
    memset(c.weights.master, 0, (size_t)c.table.elements * sizeof(float));
    dit_case_randomise(&c, 1);
    counted = c.backend.ops;
    c.backend.ops.gemm.run = counting_gemm;
    c.backend.ops.attention_fwd.run = counting_attention;
    gemm_flops = attention_flops = 0;
    dit_case_forward(&c);
    assert_true(gemm_flops > 0 && gemm_flops == dsvi_dit_flops_gemm(&c.config, &c.shape));
    assert_true(attention_flops > 0 && attention_flops == dsvi_dit_flops_attention(&c.config, &c.shape));
    dit_case_close(&c);
}

/* ---- memory ---- */

static DsviArena plan_of(const DsviDitShape *shape)
{
    DsviBackend backend;
    DsviDitConfig config = dit_case_small_config();
    config.ffn_dim = 1000;
    DsviParamTable table;
    DsviDit *dit;
    DsviArena plan;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_ok(dsvi_param_table_make(&config, &table));
    assert_ok(dsvi_dit_create(&backend, &config, &table, shape, NULL, &dit));
    dsvi_arena_plan(&plan);
    dsvi_dit_carve(dit, &plan);
    dsvi_dit_carve_pass(dit, &plan);
    dsvi_dit_free(&dit);
    assert_null(dit);
    dsvi_dit_free(&dit);
    dsvi_param_table_free(&table);
    dsvi_cpu_close(&backend);
    return plan;
}

static size_t activations(const DsviDitShape *shape)
{
    return plan_of(shape).by_class[DSVI_MEM_ACTIVATIONS];
}

static void checkpointing_saves_memory(void **state)
{
    DsviDitShape shape = dit_case_small_shape(DSVI_BF16);
    (void)state;
    size_t kept = activations(&shape);
    shape.keep = DSVI_KEEP_ATTENTION;
    size_t selected = activations(&shape);
    shape.keep = DSVI_KEEP_INPUT;
    size_t recomputed = activations(&shape);
    shape.backward = false;
    assert_true(recomputed < selected && selected < kept);
    assert_int_equal(activations(&shape), 0);
}

/* Gradients of the model's head, which are computed first, take memory after all activations. Gradients of
 * the blocks take no further memory if they fit into activations that are no longer needed; otherwise they
 * take the difference. */
static void gradients_add_little_planned_memory(void **state)
{
    static const int64_t begin[][5] = {{0, 64, 128, 192, 256}, {0, 1 << 24, 1 << 25, 1 << 25, 1 << 25}};
    DsviDitShape shape = dit_case_small_shape(DSVI_F32);
    (void)state;
    DsviArena without = plan_of(&shape);
    for (int i = 0; i < 2; i++) {
        shape.grad_begin = begin[i];
        DsviArena with = plan_of(&shape);
        size_t bytes = (size_t)begin[i][4] * sizeof(float);
        assert_int_equal(with.by_class[DSVI_MEM_GRADIENTS], bytes);
        size_t head = (size_t)(begin[i][4] - begin[i][3]) * sizeof(float);
        assert_in_range(with.used - without.used, i == 0 ? head : bytes / 2, i == 0 ? head : bytes);
    }
}

static void feed_forward_parts_need_less_memory(void **state)
{
    DsviDitShape shape = dit_case_small_shape(DSVI_F32);
    (void)state;
    shape.keep = DSVI_KEEP_INPUT;
    size_t whole = plan_of(&shape).used;
    shape.ffn_rows = 7;
    assert_true(plan_of(&shape).used < whole);
    shape.keep = DSVI_KEEP_ALL;
    size_t kept = plan_of(&shape).used; /* less for gradients, as much for activations */
    shape.ffn_rows = 0;
    assert_true(kept < plan_of(&shape).used);
}

static void refuses_shapes(void **state)
{
    static const struct {
        DsviDitShape shape;
        const char *words;
    } CASES[] = {
        {{.batch = 0, .frames = 1, .height = 2, .width = 2, .text_len = 1}, "batch 0"},
        {{.batch = 1, .frames = 1, .height = 2, .width = 2, .text_len = 0}, "0 text rows"},
        {{.batch = 1, .frames = 1, .height = 2, .width = 2, .text_len = 1, .image_len = 1},
         "1 image rows: the model takes none"},
        {{.batch = 1, .frames = 1, .height = 3, .width = 2, .text_len = 1}, "height of the latent is 3"},
        {{.batch = 1, .frames = 0, .height = 2, .width = 2, .text_len = 1}, "frames of the latent is 0"},
        {{.batch = 1, .frames = 1, .height = 2, .width = 130, .text_len = 1}, "width of the latent is 65"},
        {{.batch = 1, .frames = 1, .height = 2, .width = 2, .text_len = 1, .given_first = true},
         "1 latent frames in patches of 1 frames: a clip that begins with a given frame"},
    };
    DsviBackend backend;
    DsviDitConfig config = dit_case_small_config();
    DsviParamTable table;
    DsviDit *dit;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_ok(dsvi_param_table_make(&config, &table));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_fails(DSV_E_SHAPE, CASES[i].words,
                     dsvi_dit_create(&backend, &config, &table, &CASES[i].shape, NULL, &dit));
        assert_null(dit);
    }
    dsvi_param_table_free(&table);
    config.image_dim = 13;
    config.pos_embed_seq_len = 6;
    assert_ok(dsvi_param_table_make(&config, &table));
    DsviDitShape shape = dit_case_small_shape(DSVI_F32);
    assert_fails(DSV_E_UNSUPPORTED, "the model takes rows of an image encoder",
                 dsvi_dit_create(&backend, &config, &table, &shape, NULL, &dit));
    shape.image_len = 7;
    assert_fails(DSV_E_SHAPE, "7 image rows, expected 6",
                 dsvi_dit_create(&backend, &config, &table, &shape, NULL, &dit));
    dsvi_param_table_free(&table);
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(a_batch_is_its_samples),
        cmocka_unit_test(runs_and_threads_agree_to_the_bit),
        cmocka_unit_test(inference_is_the_same_forward_pass),
        cmocka_unit_test(gradients_add_up),
        cmocka_unit_test(loss_without_output),
        cmocka_unit_test(gradients_reuse_activation_memory),
        cmocka_unit_test(blocks_keep_what_they_like),
        cmocka_unit_test(feed_forward_parts_are_the_whole),
        cmocka_unit_test(flops_are_those_of_the_calls),
        cmocka_unit_test(checkpointing_saves_memory),
        cmocka_unit_test(gradients_add_little_planned_memory),
        cmocka_unit_test(feed_forward_parts_need_less_memory),
        cmocka_unit_test(refuses_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
