/* Compares each backward operation with central differences of its forward operation, with the reference
 * implementations on F64 tensors.
 *
 * The loss is the sum of all outputs, each times a fixed random weight; these weights are the gradient of the
 * outputs. Central differences with step h = 1e-5 have the errors h^2 f'''/6 and 2^-53 |loss| / h, both
 * around 1e-10 for values near 1. A bound of 1e-7 of the largest gradient is above these errors, and small
 * enough to find a wrong term. */
#include "base/rng.h"
#include "ops/check.h"
#include "test.h"

enum { CASE_RANKS_MAX = 512 };
static const double TOLERANCE = 1e-7;

static double *random_row(uint32_t number, int64_t n, double scale, double offset)
{
    DsviRng rng = {11, DSVI_RNG_TEST, number};
    double *row = calloc(CASE_RANKS_MAX, sizeof *row);
    assert_non_null(row);
    assert_true(n <= CASE_RANKS_MAX);
    for (int64_t i = 0; i < n; i++)
        row[i] = offset + scale * dsvi_rng_normal(rng, (uint64_t)i);
    return row;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Compares a gradient with central differences of `loss`. Every element of gradient[] was `start` before the
 * operation added to it. */
static void assert_gradient(const char *what, check_loss_fn *loss, void *context, double *x, int64_t n,
                            double *gradient, double start)
{
    for (int64_t i = 0; i < n; i++)
        gradient[i] -= start;
    assert_error_below(check_gradient_error(loss, context, x, n, gradient), TOLERANCE, "%s", what);
}

/* ---- layer_norm ---- */

static double layer_norm_loss(void *context)
{
    const DsviLayerNormArgs *args = context;
    assert_ok(dsvi_layer_norm_fwd_ref(NULL, args));
    return dot(args->y, args->dy, args->batch * args->tokens * args->channels);
}

static void check_layer_norm_gradient(int64_t stride)
{
    enum { B = 2, S = 3, C = 7 };
    int64_t n = B * S * C, modulation = stride ? (B - 1) * stride + C : C;
    double *x = random_row(1, n, 1, 0.3), *scale = random_row(2, modulation, 1, 0);
    double *shift = random_row(3, modulation, 1, 0), *dy = random_row(4, n, 1, 0);
    double *y = random_row(5, n, 1, 0), *mean = random_row(6, B * S, 1, 0);
    double *rstd = random_row(7, B * S, 1, 0);
    double *dx = random_row(8, n, 0, 0.5), *dscale = random_row(9, modulation, 0, 0.5);
    double *dshift = random_row(10, modulation, 0, 0.5);
    DsviLayerNormArgs args = {
        .batch = B,
        .tokens = S,
        .channels = C,
        .eps = 1e-3,
        .one_plus = stride ? 1 : 0,
        .sample_stride = stride,
        .act = DSVI_F64,
        .acc = DSVI_F64,
        .x = x,
        .scale = scale,
        .shift = shift,
        .y = y,
        .mean = mean,
        .rstd = rstd,
        .dy = dy,
        .dx = dx,
        .dscale = dscale,
        .dshift = dshift,
    };
    layer_norm_loss(&args);
    assert_ok(dsvi_layer_norm_bwd_ref(NULL, &args));
    assert_gradient("dx", layer_norm_loss, &args, x, n, dx, 0.5);
    assert_gradient("dscale", layer_norm_loss, &args, scale, modulation, dscale, 0.5);
    assert_gradient("dshift", layer_norm_loss, &args, shift, modulation, dshift, 0.5);
    double *const rows[] = {x, scale, shift, dy, y, mean, rstd, dx, dscale, dshift};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        free(rows[i]);
}

static void test_layer_norm(void **state)
{
    (void)state;
    check_layer_norm_gradient(0);
    check_layer_norm_gradient(7);
    check_layer_norm_gradient(11); /* a larger stride: elements between the samples' rows get no gradient */
}

/* ---- rms_norm_rope ---- */

static double rms_loss(void *context)
{
    const DsviRmsNormRopeArgs *args = context;
    assert_ok(dsvi_rms_norm_rope_fwd_ref(NULL, args));
    return dot(args->y, args->dy, args->batch * args->tokens * args->heads * args->head_dim);
}

static void check_rms_gradient(bool rotated)
{
    enum { B = 2, S = 3, N = 2, D = 6 };
    int64_t n = B * S * N * D;
    double *x = random_row(1, n, 1, 0.3), *weight = random_row(2, N * D, 0.3, 1);
    double *dy = random_row(3, n, 1, 0);
    double *cosine = random_row(4, S * D / 2, 1, 0), *sine = random_row(5, S * D / 2, 1, 0);
    double *y = random_row(6, n, 1, 0), *rstd = random_row(7, B * S, 1, 0);
    double *dx = random_row(8, n, 0, 0), *dweight = random_row(9, N * D, 0, 0.5);
    DsviRmsNormRopeArgs args = {
        .batch = B,
        .tokens = S,
        .heads = N,
        .head_dim = D,
        .eps = 1e-3,
        .act = DSVI_F64,
        .acc = DSVI_F64,
        .x = x,
        .weight = weight,
        .cos = rotated ? cosine : NULL,
        .sin = rotated ? sine : NULL,
        .y = y,
        .rstd = rstd,
        .dy = dy,
        .dx = dx,
        .dweight = dweight,
    };
    rms_loss(&args);
    assert_ok(dsvi_rms_norm_rope_bwd_ref(NULL, &args));
    assert_gradient("dx", rms_loss, &args, x, n, dx, 0);
    assert_gradient("dweight", rms_loss, &args, weight, N * D, dweight, 0.5);
    double *const rows[] = {x, weight, dy, cosine, sine, y, rstd, dx, dweight};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        free(rows[i]);
}

static void test_rms_norm_rope(void **state)
{
    (void)state;
    check_rms_gradient(false);
    check_rms_gradient(true);
}

/* ---- pointwise ---- */

typedef struct Activation {
    DsviActivationArgs args;
    double y[CASE_RANKS_MAX];
} Activation;

static double activation_loss(void *context)
{
    Activation *a = context;
    assert_ok(dsvi_activation_fwd_ref(NULL, &a->args));
    return dot(a->y, a->args.dy, a->args.n);
}

static void test_activation(void **state)
{
    enum { LENGTH = 33 };
    (void)state;
    for (int kind = DSVI_GELU_TANH; kind <= DSVI_GELU_QUICK; kind++) {
        Activation a;
        double *x = random_row(1, LENGTH, 2, 0), *dy = random_row(2, LENGTH, 1, 0);
        double *dx = random_row(3, LENGTH, 0, 0);
        a.args = (DsviActivationArgs){.activation = (DsviActivation)kind,
                                      .n = LENGTH,
                                      .dtype = DSVI_F64,
                                      .x = x,
                                      .y = a.y,
                                      .dy = dy,
                                      .dx = dx};
        assert_ok(dsvi_activation_bwd_ref(NULL, &a.args));
        assert_gradient("dx", activation_loss, &a, x, LENGTH, dx, 0);
        free(x);
        free(dy);
        free(dx);
    }
}

static double gate_loss(void *context)
{
    const DsviGateResidualArgs *args = context;
    assert_ok(dsvi_gate_residual_fwd_ref(NULL, args));
    return dot(args->out, args->dout, args->batch * args->tokens * args->channels);
}

static void test_gate_residual(void **state)
{
    enum { B = 2, S = 3, C = 5, STRIDE = 9, GATES = STRIDE + C };
    int64_t n = B * S * C;
    (void)state;
    for (int gated = 0; gated < 2; gated++) {
        double *x = random_row(1, n, 1, 0), *y = random_row(2, n, 1, 0), *gate = random_row(3, GATES, 1, 0);
        double *out = random_row(4, n, 1, 0), *dout = random_row(5, n, 1, 0), *dy = random_row(6, n, 0, 0);
        double *dgate = random_row(7, GATES, 0, 0.5);
        DsviGateResidualArgs args = {
            .batch = B,
            .tokens = S,
            .channels = C,
            .gate_stride = STRIDE,
            .act = DSVI_F64,
            .acc = DSVI_F64,
            .x = x,
            .y = y,
            .gate = gated ? gate : NULL,
            .out = out,
            .dout = dout,
            .dy = dy,
            .dgate = gated ? dgate : NULL,
        };
        assert_ok(dsvi_gate_residual_bwd_ref(NULL, &args));
        assert_gradient("dy", gate_loss, &args, y, n, dy, 0);
        if (gated)
            assert_gradient("dgate", gate_loss, &args, gate, GATES, dgate, 0.5);
        assert_gradient("dx is dout", gate_loss, &args, x, n, dout, 0);
        double *const rows[] = {x, y, gate, out, dout, dy, dgate};
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            free(rows[i]);
    }
}

static double add_rows_loss(void *context)
{
    const DsviAddRowsArgs *args = context;
    assert_ok(dsvi_add_rows_fwd_ref(NULL, args));
    return dot(args->out, args->dout, args->rows * args->cols);
}

static void test_add_rows(void **state)
{
    enum { ROWS = 3, COLS = 10, X_COLS = 5 };
    (void)state;
    double *x = random_row(1, ROWS * X_COLS, 1, 0), *table = random_row(2, COLS, 1, 0);
    double *out = random_row(3, ROWS * COLS, 1, 0), *dout = random_row(4, ROWS * COLS, 1, 0);
    double *dx = random_row(5, ROWS * X_COLS, 0, 0.5), *dtable = random_row(6, COLS, 0, 0.5);
    DsviAddRowsArgs args = {.rows = ROWS,
                            .cols = COLS,
                            .x_cols = X_COLS,
                            .acc = DSVI_F64,
                            .x = x,
                            .table = table,
                            .out = out,
                            .dout = dout,
                            .dx = dx,
                            .dtable = dtable};
    assert_ok(dsvi_add_rows_bwd_ref(NULL, &args));
    assert_gradient("dx", add_rows_loss, &args, x, ROWS * X_COLS, dx, 0.5);
    assert_gradient("dtable", add_rows_loss, &args, table, COLS, dtable, 0.5);
    double *const rows[] = {x, table, out, dout, dx, dtable};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        free(rows[i]);
}

/* ---- products, patches, objective ---- */

/* y = x W^T + b, with the gradients that src/ops/gemm.h defines. */
typedef struct Linear {
    DsviGemmArgs args;
    double *dy;
} Linear;

static double linear_loss(void *context)
{
    const Linear *linear = context;
    assert_ok(dsvi_gemm_ref(NULL, &linear->args));
    return dot(linear->args.c, linear->dy, linear->args.m * linear->args.n);
}

static void test_linear(void **state)
{
    enum { ROWS = 5, OUT = 4, IN = 3 };
    (void)state;
    double *x = random_row(1, ROWS * IN, 1, 0), *w = random_row(2, OUT * IN, 1, 0);
    double *b = random_row(3, OUT, 1, 0);
    double *y = random_row(4, ROWS * OUT, 1, 0), *dy = random_row(5, ROWS * OUT, 1, 0);
    double *dx = random_row(6, ROWS * IN, 0, 0), *dw = random_row(7, OUT * IN, 0, 0.5);
    double *db = random_row(8, OUT, 0, 0.5), *db_again = random_row(9, OUT, 0, 0.5);
    DsviGemmArgs forward = {.m = ROWS,
                            .n = OUT,
                            .k = IN,
                            .ab_dtype = DSVI_F64,
                            .c_dtype = DSVI_F64,
                            .a = x,
                            .lda = IN,
                            .b = w,
                            .ldb = IN,
                            .trans_b = true,
                            .c = y,
                            .ldc = OUT,
                            .bias_dtype = DSVI_F64,
                            .bias = b};
    Linear linear = {forward, dy};
    DsviGemmArgs to_x = {.m = ROWS,
                         .n = IN,
                         .k = OUT,
                         .ab_dtype = DSVI_F64,
                         .c_dtype = DSVI_F64,
                         .a = dy,
                         .lda = OUT,
                         .b = w,
                         .ldb = IN,
                         .c = dx,
                         .ldc = IN};
    DsviGemmArgs to_w = {.m = OUT,
                         .n = IN,
                         .k = ROWS,
                         .ab_dtype = DSVI_F64,
                         .c_dtype = DSVI_F64,
                         .a = dy,
                         .lda = OUT,
                         .trans_a = true,
                         .b = x,
                         .ldb = IN,
                         .c = dw,
                         .ldc = IN,
                         .accumulate = true,
                         .bias_dtype = DSVI_F64,
                         .a_sum = db_again};
    DsviColSumArgs to_b = {
        .m = ROWS, .n = OUT, .x_dtype = DSVI_F64, .x = dy, .ldx = OUT, .y_dtype = DSVI_F64, .y = db};
    assert_ok(dsvi_gemm_ref(NULL, &to_x));
    assert_ok(dsvi_gemm_ref(NULL, &to_w));
    assert_ok(dsvi_col_sum_ref(NULL, &to_b));
    assert_gradient("dx", linear_loss, &linear, x, ROWS * IN, dx, 0);
    assert_gradient("dw", linear_loss, &linear, w, OUT * IN, dw, 0.5);
    assert_gradient("db", linear_loss, &linear, b, OUT, db, 0.5);
    assert_gradient("db as a_sum", linear_loss, &linear, b, OUT, db_again, 0.5);
    double *const rows[] = {x, w, b, y, dy, dx, dw, db, db_again};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        free(rows[i]);
}

/* y = gelu(x W^T + b) V^T */
typedef struct TwoLinear {
    DsviGemmArgs first, second;
    double *dy;
} TwoLinear;

static double two_linear_loss(void *context)
{
    const TwoLinear *two = context;
    assert_ok(dsvi_gemm_ref(NULL, &two->first));
    assert_ok(dsvi_gemm_ref(NULL, &two->second));
    return dot(two->second.c, two->dy, two->second.m * two->second.n);
}

static void test_linear_gelu(void **state)
{
    enum { ROWS = 5, OUT = 4, MIDDLE = 6, IN = 3 };
    (void)state;
    double *x = random_row(1, ROWS * IN, 1, 0), *w = random_row(2, MIDDLE * IN, 1, 0);
    double *b = random_row(3, MIDDLE, 1, 0), *v = random_row(4, OUT * MIDDLE, 1, 0);
    double *z = random_row(5, ROWS * MIDDLE, 1, 0), *h = random_row(6, ROWS * MIDDLE, 1, 0);
    double *y = random_row(7, ROWS * OUT, 1, 0), *dy = random_row(8, ROWS * OUT, 1, 0);
    double *dz = random_row(9, ROWS * MIDDLE, 1, 0), *dx = random_row(10, ROWS * IN, 1, 0);
    DsviGemmArgs first = {.m = ROWS,
                          .n = MIDDLE,
                          .k = IN,
                          .ab_dtype = DSVI_F64,
                          .c_dtype = DSVI_F64,
                          .a = x,
                          .lda = IN,
                          .b = w,
                          .ldb = IN,
                          .trans_b = true,
                          .c = h,
                          .ldc = MIDDLE,
                          .bias_dtype = DSVI_F64,
                          .bias = b,
                          .gelu_input = z};
    DsviGemmArgs second = {.m = ROWS,
                           .n = OUT,
                           .k = MIDDLE,
                           .ab_dtype = DSVI_F64,
                           .c_dtype = DSVI_F64,
                           .a = h,
                           .lda = MIDDLE,
                           .b = v,
                           .ldb = MIDDLE,
                           .trans_b = true,
                           .c = y,
                           .ldc = OUT};
    DsviGemmArgs to_z = {.m = ROWS,
                         .n = MIDDLE,
                         .k = OUT,
                         .ab_dtype = DSVI_F64,
                         .c_dtype = DSVI_F64,
                         .a = dy,
                         .lda = OUT,
                         .b = v,
                         .ldb = MIDDLE,
                         .c = dz,
                         .ldc = MIDDLE,
                         .gelu_backward = z};
    DsviGemmArgs to_x = {.m = ROWS,
                         .n = IN,
                         .k = MIDDLE,
                         .ab_dtype = DSVI_F64,
                         .c_dtype = DSVI_F64,
                         .a = dz,
                         .lda = MIDDLE,
                         .b = w,
                         .ldb = IN,
                         .c = dx,
                         .ldc = IN};
    TwoLinear two = {first, second, dy};
    two_linear_loss(&two);
    assert_ok(dsvi_gemm_ref(NULL, &to_z));
    assert_ok(dsvi_gemm_ref(NULL, &to_x));
    assert_gradient("dx through a GELU", two_linear_loss, &two, x, ROWS * IN, dx, 0);
    double *const rows[] = {x, w, b, v, z, h, y, dy, dz, dx};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        free(rows[i]);
}

typedef struct Patch {
    DsviPatchArgs gather;
    double *weights;
    int64_t n;
} Patch;

static double patch_loss(void *context)
{
    const Patch *patch = context;
    assert_ok(dsvi_patch_gather_ref(NULL, &patch->gather));
    return dot(patch->gather.rows, patch->weights, patch->n);
}

static void test_patch(void **state)
{
    enum { B = 2, C = 3, F = 2, H = 4, W = 6, LENGTH = B * C * F * H * W };
    static const int32_t order[] = {3, 1, 5, 0, 2, 4};
    (void)state;
    for (int last = 0; last < 2; last++) {
        double *latent = random_row(1, LENGTH, 1, 0), *rows = random_row(2, LENGTH, 0, 0);
        double *weights = random_row(3, LENGTH, 1, 0), *dlatent = random_row(4, LENGTH, 0, NAN);
        Patch patch = {{.batch = B,
                        .channels = C,
                        .frames = F,
                        .height = H,
                        .width = W,
                        .patch = {2, 2, 2},
                        .channel_last = last,
                        .tokens = sizeof order / sizeof *order,
                        .order = order,
                        .latent_dtype = DSVI_F64,
                        .row_dtype = DSVI_F64,
                        .latent = latent,
                        .rows = rows},
                       weights,
                       LENGTH};
        DsviPatchArgs scatter = patch.gather;
        scatter.latent = dlatent;
        scatter.rows = weights;
        assert_ok(dsvi_patch_scatter_ref(NULL, &scatter));
        assert_gradient("dlatent", patch_loss, &patch, latent, LENGTH, dlatent, 0);
        free(latent);
        free(rows);
        free(weights);
        free(dlatent);
    }
}

static double mse_loss(void *context)
{
    const DsviMseArgs *args = context;
    DsviMseArgs alone = *args;
    double sum = 0;
    alone.doutput = NULL;
    assert_ok(dsvi_mse_ref(NULL, &alone));
    for (int64_t b = 0; b < args->batch; b++)
        sum += ((double *)args->loss)[b];
    return sum / (double)args->batch;
}

static void test_mse(void **state)
{
    enum { B = 2, LENGTH = 9, PERIOD = 3 };
    static const double weight[PERIOD] = {0.25, 1, 3.5};
    double loss[B];
    (void)state;
    double *output = random_row(1, B * LENGTH, 1, 0), *target = random_row(2, B * LENGTH, 1, 0);
    double *doutput = random_row(3, B * LENGTH, 0, 0);
    DsviMseArgs args = {.batch = B,
                        .n = LENGTH,
                        .grad_scale = 1,
                        .acc = DSVI_F64,
                        .output = output,
                        .target = target,
                        .loss = loss,
                        .doutput = doutput};
    assert_ok(dsvi_mse_ref(NULL, &args));
    assert_gradient("doutput", mse_loss, &args, output, B * LENGTH, doutput, 0);
    args.period = PERIOD;
    args.weight = weight;
    assert_ok(dsvi_mse_ref(NULL, &args));
    assert_gradient("doutput, weighted", mse_loss, &args, output, B * LENGTH, doutput, 0);
    free(output);
    free(target);
    free(doutput);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),  cmocka_unit_test(test_rms_norm_rope),
        cmocka_unit_test(test_activation),  cmocka_unit_test(test_gate_residual),
        cmocka_unit_test(test_add_rows),    cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_gelu), cmocka_unit_test(test_patch),
        cmocka_unit_test(test_mse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
