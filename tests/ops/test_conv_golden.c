/* Compares the reference implementation of the convolution with PyTorch (golden/make_conv.py). */
#include "base/safetensors.h"
#include "golden/golden_files.h"
#include "ops/conv.h"
#include "test.h"

/* Both computations are sums of at most 81 products in double. */
static const double TOLERANCE = 1e-13;

static const DsviStoredTensor *tensor_of(DsviSafetensors *file, const char *name)
{
    const DsviStoredTensor *stored;
    assert_ok(dsvi_safetensors_require(file, name, -1, NULL, &stored));
    return stored;
}

/* Returns a copy of the tensor in F64. */
static double *values_of(const DsviStoredTensor *stored)
{
    double *values = malloc((size_t)stored->count * sizeof *values);
    assert_non_null(values);
    dsvi_convert(DSVI_F64, values, stored->dtype, stored->data, stored->count);
    return values;
}

static void check_case_file(const char *path)
{
    DsviSafetensors *file;
    int32_t steps[6];
    assert_ok(dsvi_safetensors_open(path, &file));
    const DsviStoredTensor *x = tensor_of(file, "x"), *weight = tensor_of(file, "weight");
    const DsviStoredTensor *bias = tensor_of(file, "bias"), *y = tensor_of(file, "y");
    const DsviStoredTensor *stored_steps = tensor_of(file, "steps");
    assert_int_equal(stored_steps->count, 6);
    memcpy(steps, stored_steps->data, sizeof steps);
    double *x_values = values_of(x), *weight_values = values_of(weight), *bias_values = values_of(bias);
    double *expected = values_of(y), *got = values_of(y);
    memset(got, 0xff, (size_t)y->count * sizeof *got);
    DsviConvArgs args = {
        .frames = x->shape[0],
        .height = x->shape[1],
        .width = x->shape[2],
        .out_frames = y->shape[0],
        .out_height = y->shape[1],
        .out_width = y->shape[2],
        .channels = x->shape[3],
        .out_channels = y->shape[3],
        .act = DSVI_F64,
        .acc = DSVI_F64,
        .x = x_values,
        .x_frame = x->shape[1] * x->shape[2] * x->shape[3],
        .x_row = x->shape[2] * x->shape[3],
        .weight = weight_values,
        .bias = bias_values,
        .y = got,
        .y_frame = y->shape[1] * y->shape[2] * y->shape[3],
        .y_row = y->shape[2] * y->shape[3],
    };
    for (int i = 0; i < 3; i++) {
        args.kernel[i] = weight->shape[1 + i];
        args.stride[i] = steps[i];
        args.pad[i] = steps[3 + i];
    }
    assert_ok(dsvi_conv_ref(NULL, &args));
    assert_error_below(relative_l2(DSVI_F64, got, DSVI_F64, expected, y->count), TOLERANCE, "%s", path);
    free(x_values);
    free(weight_values);
    free(bias_values);
    free(expected);
    free(got);
    dsvi_safetensors_close(&file);
}

static void conv_like_pytorch(void **state)
{
    char name[GOLDEN_CASES_MAX][GOLDEN_NAME], path[2 * GOLDEN_NAME];
    (void)state;
    int cases = golden_cases("conv", name);
    assert_true(cases > 0);
    for (int i = 0; i < cases; i++) {
        snprintf(path, sizeof path, "conv/%s.safetensors", name[i]);
        check_case_file(golden_path(path));
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(conv_like_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return golden_run("conv", run);
}
