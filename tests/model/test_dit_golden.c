/* The transformer against PyTorch: output, loss and all gradients of two small models with the structure of
 * published models. */
#include "dit_case.h"

#include "golden/golden_files.h"
#include "model/dit/dit_internal.h"

typedef GoldenDit Golden;

static Golden golden[GOLDEN_CASES_MAX];
static int golden_count;

static DsviSafetensors *open_file(const Golden *g, const char *name)
{
    char path[256];
    DsviSafetensors *file;
    snprintf(path, sizeof path, "%s/%s/%s.safetensors", g->model, g->name, name);
    assert_ok(dsvi_safetensors_open(golden_path(path), &file));
    return file;
}

static const DsviStoredTensor *tensor_of(const DsviSafetensors *file, const char *name)
{
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, name);
    assert_non_null(tensor);
    return tensor;
}

static void open_golden(DitCase *c, const Golden *g, DsviDtype act, const char *isa, DsviDitKeep keep)
{
    char path[256];
    DsviDitConfig config;
    DsviDitShape shape = {
        .batch = g->batch,
        .frames = g->frames,
        .height = g->height,
        .width = g->width,
        .text_len = g->text_len,
        .image_len = g->image_len,
        .given_first = g->given_first,
        .act = act,
        .backward = true,
        .loss = g->given_first,
        .keep = keep,
    };
    snprintf(path, sizeof path, "%s/config.json", g->model);
    assert_ok(dsvi_dit_config_read(golden_path(path), &config));
    dit_case_open(c, &config, &shape, isa, 2, NULL);
    float *flat = calloc((size_t)c->table.elements, sizeof *flat);
    assert_non_null(flat);
    assert_ok(dsvi_weights_read(golden_path(g->model), &c->table, flat));
    dit_case_set_weights(c, flat);
    free(flat);
    DsviSafetensors *inputs = open_file(g, "inputs");
    dit_case_set(c, c->latents, inputs, "hidden_states");
    dit_case_set(c, c->timestep, inputs, "timestep");
    dit_case_set(c, c->text, inputs, "encoder_hidden_states");
    dit_case_set(c, c->target, inputs, "target");
    if (g->image_len > 0)
        dit_case_set(c, c->image, inputs, "encoder_hidden_states_image");
    dsvi_safetensors_close(&inputs);
}

static double error_of(const DitCase *c, const void *found, const DsviSafetensors *file, const char *name)
{
    const DsviStoredTensor *tensor = tensor_of(file, name);
    return relative_l2(c->acc, found, tensor->dtype, tensor->data, tensor->count);
}

typedef struct Bounds {
    double output, loss, dlatents, dtext, grad;
} Bounds;

static void compare(const DitCase *c, const Golden *g, const char *isa, Bounds bounds)
{
    DsviSafetensors *expected = open_file(g, "expected_f64"), *grads = open_file(g, "grads");
    double loss = dsvi_load(DSVI_F64, tensor_of(expected, "loss")->data, 0);
    assert_error_below(error_of(c, c->output, expected, "output"), bounds.output, "%s %s: output", g->name,
                       isa);
    assert_error_below(fabs(dit_case_loss(c) / loss - 1), bounds.loss, "%s %s: loss", g->name, isa);
    assert_error_below(error_of(c, c->dlatents, expected, "grad_hidden_states"), bounds.dlatents,
                       "%s %s: gradient of the latents", g->name, isa);
    assert_error_below(error_of(c, c->dtext, expected, "grad_encoder_hidden_states"), bounds.dtext,
                       "%s %s: gradient of the text", g->name, isa);
    if (g->image_len > 0)
        assert_error_below(error_of(c, c->dimage, expected, "grad_encoder_hidden_states_image"), bounds.dtext,
                           "%s %s: gradient of the image rows", g->name, isa);
    for (int64_t i = 0; i < c->table.count; i++)
        assert_error_below(error_of(c, dit_case_grad(c, i), grads, c->table.params[i].name), bounds.grad,
                           "%s %s: gradient of %s", g->name, isa, c->table.params[i].name);
    dsvi_safetensors_close(&expected);
    dsvi_safetensors_close(&grads);
}

/* Computes the time embedding with frequencies rounded to F32. PyTorch computes these frequencies in F32 even
 * if everything else is double, which changes angles of up to 1000 by up to 1e-4. With rounded frequencies
 * both results in double agree, except that PyTorch's F32 exponential sometimes differs by one unit in the
 * last place. */
static DsvStatus time_embed_f32_frequencies(DsviStream *stream, const DsviTimeEmbedArgs *args)
{
    int64_t half = args->dim / 2;
    (void)stream;
    for (int64_t i = 0; i < args->batch * half; i++) {
        int64_t b = i / half, j = i % half;
        float exponent = (float)-log(10000) * (float)j / (float)half;
        double angle = dsvi_load(args->acc, args->t, b) * (double)(float)exp((double)exponent);
        dsvi_store(args->acc, args->row, b * args->dim + j, cos(angle));
        dsvi_store(args->acc, args->row, b * args->dim + half + j, sin(angle));
    }
    return DSV_OK;
}

static void run_and_compare(DsviDtype act, const char *isa)
{
    for (int i = 0; i < golden_count; i++) {
        const Golden *g = &golden[i];
        DitCase c;
        Bounds bounds = {1e-5, 1e-6, 1e-5, 1e-5, 1e-4};
        if (act == DSVI_F64) /* golden gradients of weights come from a PyTorch run in F32 */
            bounds = (Bounds){1e-6, 1e-7, 1e-6, 1e-6, 1e-5};
        if (act == DSVI_BF16)
            bounds = (Bounds){1.5 * g->bf16_output, 1e-3, 1.5 * g->bf16_dlatents, 1.5 * g->bf16_worst_grad,
                              1.5 * g->bf16_worst_grad};
        open_golden(&c, g, act, isa, DSVI_KEEP_ALL);
        if (act == DSVI_F64)
            c.backend.ops.time_embed.run = time_embed_f32_frequencies;
        dit_case_gradients(&c);
        compare(&c, g, isa, bounds);
        dit_case_close(&c);
    }
}

static void f32_at_every_level(void **state)
{
    (void)state;
    for (int isa = DSVI_ISA_REF; isa <= (int)dsvi_isa_best(); isa++)
        run_and_compare(DSVI_F32, dsvi_isa_name((DsviIsa)isa));
}

static void bf16_at_every_level(void **state)
{
    (void)state;
    for (int isa = DSVI_ISA_REF; isa <= (int)dsvi_isa_best(); isa++)
        run_and_compare(DSVI_BF16, dsvi_isa_name((DsviIsa)isa));
}

static void f64_matches_pytorch(void **state)
{
    (void)state;
    run_and_compare(DSVI_F64, "ref");
}

/* Compares tensors inside the model, for the cases of dit_a, to find where a difference begins. */
static void intermediate_tensors(void **state)
{
    (void)state;
    for (int i = 0; i < golden_count && strcmp(golden[i].model, "dit_a") == 0; i++) {
        const Golden *g = &golden[i];
        DitCase c;
        open_golden(&c, g, DSVI_F32, "ref", DSVI_KEEP_ALL);
        DsviSafetensors *file = open_file(g, "intermediates");
        dit_case_forward(&c);
        const struct {
            const char *name;
            const void *found;
        } tensors[] = {
            {"timesteps_proj", c.dit->embedded.time_row},
            {"temb", c.dit->embedded.time},
            {"timestep_proj", c.dit->embedded.modulation},
            {"text_embedding", c.dit->embedded.text_states},
            {"blocks.0.attn1", c.dit->saved[0].y_self},
            {"blocks.0.ffn", c.dit->saved[0].y_ffn},
            {"blocks.0", c.dit->residual[1]},
            {"blocks.1.attn1", c.dit->saved[1].y_self},
            {"blocks.1.ffn", c.dit->saved[1].y_ffn},
            {"blocks.1", c.dit->residual[2]},
            {"proj_out", c.dit->scratch.head_rows},
        };
        for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
            assert_error_below(error_of(&c, tensors[t].found, file, tensors[t].name), 1e-5, "%s: %s", g->name,
                               tensors[t].name);
        dsvi_safetensors_close(&file);
        dit_case_close(&c);
    }
}

/* Recomputed activations have the same bits, so gradients have the same bits too. */
static void checkpointing_changes_nothing(void **state)
{
    static const DsviDtype ACTS[] = {DSVI_F32, DSVI_BF16};
    (void)state;
    for (int i = 0; i < golden_count; i++) {
        for (int a = 0; a < 4; a++) {
            DitCase kept, recomputed;
            open_golden(&kept, &golden[i], ACTS[a % 2], "auto", DSVI_KEEP_ALL);
            open_golden(&recomputed, &golden[i], ACTS[a % 2], "auto",
                        a < 2 ? DSVI_KEEP_INPUT : DSVI_KEEP_ATTENTION);
            dit_case_gradients(&kept);
            dit_case_gradients(&recomputed);
            dit_case_assert_equal(&kept, &recomputed, true);
            dit_case_close(&kept);
            dit_case_close(&recomputed);
        }
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intermediate_tensors),
        cmocka_unit_test(f64_matches_pytorch),
        cmocka_unit_test(f32_at_every_level),
        cmocka_unit_test(bf16_at_every_level),
        cmocka_unit_test(checkpointing_changes_nothing),
    };
    golden_count = golden_dit_cases(golden);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return golden_run("dit_a", run);
}
