/* A transformer with a LoRA against the same transformer with the LoRA added to its weights. The merged
 * weight is W + f B A, so its gradient dW gives the gradients of both matrices: dB = f dW A^T and dA = f B^T
 * dW. */
#include "dit_case.h"

#include "base/rng.h"
#include "model/lora/lora_params.h"

enum { RANK = 3 };
static const double ALPHA = 4.5;

/* A LoRA and its arrays. */
typedef struct Adapter {
    DsviLoraParams params;
    DsviDitWeights weights;
    float *flat; /* values of the matrices */
} Adapter;

static void *allocate_numbers(DsviDtype dtype, int64_t n)
{
    void *memory = calloc((size_t)n, dsvi_dtype_size(dtype));
    assert_non_null(memory);
    return memory;
}

static void open_adapter(Adapter *a, const DsviParamTable *model, const char *layers, DsviDtype act)
{
    DsviDtype acc = act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    DsviLoraOptions options = {.rank = RANK, .alpha = ALPHA, .layers = layers};
    DsviRng rng = {3, DSVI_RNG_TEST, 0};
    assert_ok(dsvi_lora_params_make(model, &options, &a->params));
    int64_t n = a->params.table.elements;
    a->flat = allocate_numbers(DSVI_F32, n);
    dsvi_rng_fill_normal(rng, 0, a->flat, n);
    for (int64_t i = 0; i < n; i++)
        a->flat[i] *= 0.1f;
    a->weights = (DsviDitWeights){.master = allocate_numbers(acc, n),
                                  .compute = allocate_numbers(act, n),
                                  .grad = allocate_numbers(acc, n)};
    dsvi_convert(acc, a->weights.master, DSVI_F32, a->flat, n);
    dsvi_convert(act, a->weights.compute, DSVI_F32, a->flat, n);
}

static void close_adapter(Adapter *a)
{
    free(a->weights.master);
    free(a->weights.compute);
    free(a->weights.grad);
    free(a->flat);
    dsvi_lora_params_free(&a->params);
}

/* Adds the LoRA to the flat weights of the model. */
static void merge_into(const Adapter *a, const DsviParamTable *model, float *flat)
{
    const DsviLoraParams *p = &a->params;
    for (int64_t t = 0; t < p->count; t++) {
        const DsviParam *param = NULL;
        for (int64_t i = 0; i < model->count; i++)
            if (model->params[i].offset == p->targets[t].weight)
                param = &model->params[i];
        assert_non_null(param);
        int64_t out = param->shape[0], in = param->shape[1];
        for (int64_t e = 0; e < out * in; e++) {
            double sum = 0;
            for (int64_t r = 0; r < RANK; r++)
                sum += (double)a->flat[p->targets[t].b + e / in * RANK + r] *
                       (double)a->flat[p->targets[t].a + r * in + e % in];
            flat[param->offset + e] += (float)(p->targets[t].factor * sum);
        }
    }
}

static void backward_from_output(DitCase *c, void *dlatents, void *dtext)
{
    DsviMseArgs args = {
        .batch = c->shape.batch,
        .n = c->out_elements / c->shape.batch,
        .grad_scale = 1,
        .acc = c->acc,
        .output = c->output,
        .target = c->target,
        .loss = c->loss,
        .doutput = c->doutput,
    };
    assert_ok(c->backend.ops.mse.run(c->backend.device->stream, &args));
    assert_ok(dsvi_dit_backward(c->dit, c->doutput, dlatents, dtext));
}

/* Largest relative error of a matrix's gradient against the gradients of the merged weights. */
static double worst_gradient(const Adapter *a, const DitCase *lora, DitCase *merged)
{
    const DsviLoraParams *p = &a->params;
    double worst = 0;
    for (int64_t t = 0; t < p->count; t++) {
        const DsviParam *pa = &p->table.params[2 * t], *pb = &p->table.params[2 * t + 1];
        int64_t in = pa->shape[1], out = pb->shape[0], weight = p->targets[t].weight;
        double *da = calloc((size_t)(RANK * in), sizeof *da), *db = calloc((size_t)(out * RANK), sizeof *db);
        assert_true(da && db);
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                for (int64_t r = 0; r < RANK; r++) {
                    double dw = p->targets[t].factor *
                                dsvi_load(merged->acc, merged->weights.grad, weight + o * in + i);
                    da[r * in + i] += dw * (double)a->flat[pb->offset + o * RANK + r];
                    db[o * RANK + r] += dw * (double)a->flat[pa->offset + r * in + i];
                }
        size_t size = dsvi_dtype_size(lora->acc);
        const char *grad = a->weights.grad;
        double error_a = relative_l2(lora->acc, grad + (size_t)pa->offset * size, DSVI_F64, da, RANK * in);
        double error_b = relative_l2(lora->acc, grad + (size_t)pb->offset * size, DSVI_F64, db, out * RANK);
        worst = fmax(worst, fmax(error_a, error_b));
        assert_true(isfinite(error_a) && isfinite(error_b));
        free(da);
        free(db);
    }
    return worst;
}

/* Compares output and gradients of both models; `bound` holds for each. */
static void compare_with_merged(DsviDtype act, DsviDitKeep keep, const char *layers, const char *isa,
                                double bound)
{
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(act);
    DsviParamTable table;
    Adapter adapter;
    DitCase lora, merged;
    config.image_dim = 13;
    shape.image_len = 7;
    assert_ok(dsvi_param_table_make(&config, &table));
    open_adapter(&adapter, &table, layers, act);
    float *flat = dit_case_random_weights(&table, 0.2);
    shape.backward = true;
    shape.keep = keep;
    dit_case_open(&merged, &config, &shape, isa, 2, NULL);
    shape.lora = &adapter.params;
    dit_case_open_lora(&lora, &config, &shape, isa, &adapter.weights);
    dit_case_set_weights(&lora, flat);
    merge_into(&adapter, &table, flat);
    dit_case_set_weights(&merged, flat);
    dit_case_randomise(&lora, 1);
    dit_case_randomise(&merged, 1);
    memset(merged.weights.grad, 0, (size_t)table.elements * dsvi_dtype_size(merged.acc));
    dit_case_forward(&lora);
    dit_case_forward(&merged);
    assert_error_below(relative_l2(lora.acc, lora.output, merged.acc, merged.output, lora.out_elements),
                       bound, "%s: output", layers);
    backward_from_output(&merged, merged.dlatents, merged.dtext);
    backward_from_output(&lora, NULL, NULL);
    assert_error_below(worst_gradient(&adapter, &lora, &merged), bound, "%s: gradients", layers);
    dit_case_close(&lora);
    dit_case_close(&merged);
    close_adapter(&adapter);
    dsvi_param_table_free(&table);
    free(flat);
}

static const char EVERY[] = "q,k,v,o,k_img,v_img,ffn.0,ffn.2";

/* The merged weights are rounded to F32, hence an error above that of F64. */
static void f64_equals_the_merged_model(void **state)
{
    (void)state;
    compare_with_merged(DSVI_F64, DSVI_KEEP_ALL, EVERY, "ref", 1e-6);
}

static void f32_equals_the_merged_model(void **state)
{
    (void)state;
    for (int isa = DSVI_ISA_REF; isa <= (int)dsvi_isa_best(); isa++)
        compare_with_merged(DSVI_F32, DSVI_KEEP_ALL, EVERY, dsvi_isa_name((DsviIsa)isa), 1e-4);
}

/* BF16 rounds the product of the two matrices where the merged model rounds their sum with W. */
static void bf16_is_near_the_merged_model(void **state)
{
    (void)state;
    compare_with_merged(DSVI_BF16, DSVI_KEEP_ALL, EVERY, "auto", 0.05);
}

static void some_layers_and_less_memory(void **state)
{
    (void)state;
    compare_with_merged(DSVI_F32, DSVI_KEEP_INPUT, EVERY, "auto", 1e-4);
    compare_with_merged(DSVI_F32, DSVI_KEEP_ATTENTION, "self_attn.*,add_k_proj", "auto", 1e-4);
    compare_with_merged(DSVI_F32, DSVI_KEEP_INPUT, "blocks.1.attn2.to_v, ffn.net.2", "auto", 1e-4);
}

/* ---- counts ---- */

static DsviOps counted;
static double gemm_flops;

static DsvStatus counting_gemm(DsviStream *stream, const DsviGemmArgs *args)
{
    gemm_flops += 2 * (double)args->m * (double)args->n * (double)args->k;
    return counted.gemm.run(stream, args);
}

/* Returns the FLOPs of the matrix products of a forward and a backward pass. */
static double count_step(DitCase *c)
{
    counted = c->backend.ops;
    c->backend.ops.gemm.run = counting_gemm;
    gemm_flops = 0;
    dit_case_randomise(c, 1);
    dit_case_forward(c);
    backward_from_output(c, NULL, NULL);
    c->backend.ops = counted;
    return gemm_flops;
}

/* The passes form every gradient that dsvi_dit_flops_step counts, except those of the inputs of the first
 * layers, and beside a LoRA no gradient of a weight of the model. */
static void flops_of_a_step_are_those_of_its_calls(void **state)
{
    (void)state;
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(DSVI_F32);
    DsviParamTable table;
    Adapter adapter;
    DitCase lora, whole;
    config.num_layers = 8;
    assert_ok(dsvi_param_table_make(&config, &table));
    open_adapter(&adapter, &table, "self_attn.q", DSVI_F32);
    float *flat = dit_case_random_weights(&table, 0.2);
    shape.backward = true;
    dit_case_open(&whole, &config, &shape, "auto", 2, NULL);
    dit_case_set_weights(&whole, flat);
    memset(whole.weights.grad, 0, (size_t)table.elements * sizeof(float));
    shape.lora = &adapter.params;
    dit_case_open_lora(&lora, &config, &shape, "auto", &adapter.weights);
    dit_case_set_weights(&lora, flat);
    double attention = 3 * dsvi_dit_flops_attention(&config, &shape);
    double trained = dsvi_dit_flops_step(&config, &shape, false, 1) - attention;
    double frozen = dsvi_dit_flops_step(&config, &shape, true, 1) - attention;
    double rows = (double)(shape.batch * dsvi_dit_tokens(&config, &shape));
    double matrices = 3 * 2 * rows * (double)adapter.params.table.parameters;
    double found = count_step(&whole) / trained, found_lora = (count_step(&lora) - matrices) / frozen;
    if (!(found <= 1 && found > 0.9 && found_lora <= 1 && found_lora > 0.85))
        fail_msg("%g of the FLOPs of a step, %g of those beside a LoRA", found, found_lora);
    dit_case_close(&lora);
    dit_case_close(&whole);
    close_adapter(&adapter);
    dsvi_param_table_free(&table);
    free(flat);
}

/* ---- dropout ---- */

enum { FIRST_SAMPLE = 5 };

/* A model with a LoRA whose inputs are dropped with probability 0.4. */
typedef struct Dropper {
    DsviParamTable table;
    Adapter adapter;
    DitCase model;
} Dropper;

static void open_dropper(Dropper *d, DsviDtype act, DsviDitKeep keep, int64_t ffn_rows)
{
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(act);
    config.image_dim = 13;
    shape.image_len = 7;
    assert_ok(dsvi_param_table_make(&config, &d->table));
    open_adapter(&d->adapter, &d->table, EVERY, act);
    shape.backward = true;
    shape.keep = keep;
    shape.ffn_rows = ffn_rows;
    shape.lora = &d->adapter.params;
    shape.lora_dropout = 0.4;
    dit_case_open_lora(&d->model, &config, &shape, act == DSVI_F64 ? "ref" : "auto", &d->adapter.weights);
    float *flat = dit_case_random_weights(&d->table, 0.2);
    dit_case_set_weights(&d->model, flat);
    free(flat);
    dit_case_randomise(&d->model, 1);
    dsvi_dit_set_samples(d->model.dit, 11, FIRST_SAMPLE);
}

static void close_dropper(Dropper *d)
{
    dit_case_close(&d->model);
    close_adapter(&d->adapter);
    dsvi_param_table_free(&d->table);
}

/* Adds `step` times a fixed random direction to the matrices (F64). Returns the product of the gradient with
 * the direction. */
static double move_along(Dropper *d, double step)
{
    DsviDitWeights *w = &d->adapter.weights;
    double slope = 0;
    for (int64_t i = 0; i < d->adapter.params.table.elements; i++) {
        double direction = dsvi_rng_normal((DsviRng){4, DSVI_RNG_TEST, 1}, (uint64_t)i);
        ((double *)w->master)[i] += step * direction;
        ((double *)w->compute)[i] = ((double *)w->master)[i];
        slope += ((double *)w->grad)[i] * direction;
    }
    return slope;
}

/* The loss without its factor, for which backward_from_output computes gradients. */
static double summed_loss(DitCase *c)
{
    double sum = 0;
    dit_case_forward(c);
    for (int64_t i = 0; i < c->out_elements; i++) {
        double difference = ((double *)c->output)[i] - ((double *)c->target)[i];
        sum += difference * difference;
    }
    return sum / (double)c->out_elements;
}

/* The backward pass, which computes activations again in parts of 7 rows, must drop what the forward pass has
 * dropped, or its gradients are not the loss's slopes. */
static void dropout_has_the_gradients_of_its_loss(void **state)
{
    const double step = 1e-4;
    Dropper d;
    (void)state;
    open_dropper(&d, DSVI_F64, DSVI_KEEP_INPUT, 7);
    summed_loss(&d.model);
    backward_from_output(&d.model, NULL, NULL);
    double slope = move_along(&d, step), above = summed_loss(&d.model);
    move_along(&d, -2 * step);
    double below = summed_loss(&d.model), measured = (above - below) / (2 * step);
    assert_error_below(fabs(slope / measured - 1), 1e-5, "slope %g", measured);
    close_dropper(&d);
}

/* The same elements are dropped whichever activations are kept and however many rows a part has. */
static void dropout_does_not_depend_on_memory(void **state)
{
    Dropper all, input;
    (void)state;
    open_dropper(&all, DSVI_F32, DSVI_KEEP_ALL, 0);
    open_dropper(&input, DSVI_F32, DSVI_KEEP_INPUT, 11);
    int64_t n = all.adapter.params.table.elements;
    dit_case_forward(&all.model);
    backward_from_output(&all.model, NULL, NULL);
    dit_case_forward(&input.model);
    backward_from_output(&input.model, NULL, NULL);
    assert_error_below(relative_l2(DSVI_F32, all.model.output, DSVI_F32, input.model.output,
                                   all.model.out_elements),
                       1e-5, "output");
    assert_error_below(relative_l2(DSVI_F32, all.adapter.weights.grad, DSVI_F32, input.adapter.weights.grad,
                                   n),
                       1e-5, "gradients");
    close_dropper(&all);
    close_dropper(&input);
}

/* Copies the second sample of an array with `elements` elements over its first. */
static void second_to_first(void *array, int64_t elements)
{
    float *values = array;
    memcpy(values, values + elements / 2, (size_t)(elements / 2) * sizeof *values);
}

/* What is dropped follows from the sample's number, not from its place in the batch. */
static void dropout_follows_the_number_of_the_sample(void **state)
{
    Dropper d;
    (void)state;
    open_dropper(&d, DSVI_F32, DSVI_KEEP_ALL, 0);
    DitCase *c = &d.model;
    int64_t half = c->out_elements / 2;
    float *second = allocate_numbers(DSVI_F32, half), *first = c->output;
    dit_case_forward(c);
    memcpy(second, first + half, (size_t)half * sizeof *second);
    second_to_first(c->latents, c->in_elements);
    second_to_first(c->text, c->text_elements);
    second_to_first(c->image, c->image_elements);
    second_to_first(c->timestep, 2);
    dit_case_forward(c);
    double other = relative_l2(DSVI_F32, first, DSVI_F32, second, half);
    assert_true(other > 1e-3);
    dsvi_dit_set_samples(c->dit, 11, FIRST_SAMPLE + 1);
    dit_case_forward(c);
    assert_error_below(relative_l2(DSVI_F32, first, DSVI_F32, second, half), 1e-6, "another place (%g)",
                       other);
    dsvi_dit_set_samples(c->dit, 12, FIRST_SAMPLE + 1);
    dit_case_forward(c);
    assert_true(relative_l2(DSVI_F32, first, DSVI_F32, second, half) > 1e-3);
    free(second);
    close_dropper(&d);
}

static void wrong_options_are_refused(void **state)
{
    DsviDitConfig config = dit_case_small_config();
    DsviParamTable table;
    DsviLoraParams params;
    (void)state;
    assert_ok(dsvi_param_table_make(&config, &table));
    assert_fails(DSV_E_USAGE, "a LoRA of rank 0, expected 1 or more",
                 dsvi_lora_params_make(&table, &(DsviLoraOptions){0, 1, "q"}, &params));
    assert_fails(DSV_E_USAGE, "a LoRA of rank 1000, expected at most the width of",
                 dsvi_lora_params_make(&table, &(DsviLoraOptions){1000, 1, "q"}, &params));
    assert_fails(DSV_E_USAGE, "no linear layer of the blocks is called query",
                 dsvi_lora_params_make(&table, &(DsviLoraOptions){2, 1, "q,query"}, &params));
    assert_fails(DSV_E_USAGE, "no linear layer of the blocks is called norm_q",
                 dsvi_lora_params_make(&table, &(DsviLoraOptions){2, 1, "norm_q"}, &params));
    assert_fails(DSV_E_USAGE, "lora_target_modules is empty",
                 dsvi_lora_params_make(&table, &(DsviLoraOptions){2, 1, " , "}, &params));
    dsvi_param_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_equals_the_merged_model),
        cmocka_unit_test(f32_equals_the_merged_model),
        cmocka_unit_test(bf16_is_near_the_merged_model),
        cmocka_unit_test(some_layers_and_less_memory),
        cmocka_unit_test(flops_of_a_step_are_those_of_its_calls),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(dropout_has_the_gradients_of_its_loss),
        cmocka_unit_test(dropout_does_not_depend_on_memory),
        cmocka_unit_test(dropout_follows_the_number_of_the_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
