/* Encoding of weights in 8 bits: codes are the nearest numbers of F8_E4M3, and errors keep their bounds. */
#include "test.h"

#include "base/rng.h"
#include "ops/quant.h"

static double value_of(uint8_t code)
{
    return dsvi_load(DSVI_F8_E4M3, &code, 0);
}

static void numbers_round_to_the_nearest_code(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++)
        if ((i & 0x7f) != 0x7f)
            assert_int_equal(dsvi_f32_to_f8((float)value_of((uint8_t)i)), i);
    for (uint64_t i = 0; i < 20000; i++) {
        DsviRng rng = {2, DSVI_RNG_TEST, 0};
        float x = (float)(pow(2, 20 * dsvi_rng_uniform(rng, i) - 11) * (i % 2 ? -1 : 1));
        double error = fabs(value_of(dsvi_f32_to_f8(x)) - x);
        for (int code = 0; code < 256 && fabsf(x) < 448; code++)
            assert_true((code & 0x7f) == 0x7f || error <= fabs(value_of((uint8_t)code) - x));
    }
    assert_true(value_of(dsvi_f32_to_f8(1.0625f)) == 1);    /* between 1 and 1.125: to even */
    assert_true(value_of(dsvi_f32_to_f8(1.1875f)) == 1.25); /* between 1.125 and 1.25 */
    assert_true(value_of(dsvi_f32_to_f8(-1e9f)) == -448);
    assert_true(isnan(value_of(dsvi_f32_to_f8(NAN))));
}

static void errors_keep_their_bounds(void **state)
{
    enum { N = 1000, BLOCKS = (N + DSVI_F8_BLOCK - 1) / DSVI_F8_BLOCK };
    static float x[N], decoded[N], scale[BLOCKS];
    static uint8_t code[N];
    (void)state;
    dsvi_rng_fill_normal((DsviRng){4, DSVI_RNG_TEST, 0}, 0, x, N);
    for (int i = 0; i < N; i++)
        x[i] = i / DSVI_F8_BLOCK == 2 ? 0 : x[i] * (float)pow(10, -(i % 6));
    dsvi_f8_encode(N, x, code, scale);
    DsviF8DecodeArgs args = {.n = N, .code = code, .scale = scale, .out_dtype = DSVI_F32, .out = decoded};
    assert_ok(dsvi_f8_decode_ref(NULL, &args));
    for (int i = 0; i < N; i++) {
        double small = 0x1p-10 * scale[i / DSVI_F8_BLOCK], bound = fmax(0x1p-4 * fabs((double)x[i]), small);
        assert_true(fabs((double)decoded[i] - x[i]) <= bound * (1 + 1e-5));
    }
    assert_true(scale[2] == 0 && scale[0] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_round_to_the_nearest_code),
        cmocka_unit_test(errors_keep_their_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
