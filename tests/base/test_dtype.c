/* Number formats: every 16-bit pattern, and rounding at every midpoint between neighbours. */
#include "base/dtype.h"

#include <float.h>

#include "test.h"

/* Value of a 16-bit float by definition: sign, exponent, fraction. */
static double meaning(uint16_t bits, int fraction_bits)
{
    int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude;
    if (exponent == (1 << exponent_bits) - 1)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static int fraction_bits_of(DsviDtype dtype)
{
    return dtype == DSVI_BF16 ? 7 : 10;
}

static uint16_t stored(DsviDtype dtype, double value)
{
    uint16_t bits = 0xdead;
    dsvi_store(dtype, &bits, 0, value);
    return bits;
}

static void names_and_sizes(void **state)
{
    static const struct {
        DsviDtype dtype;
        const char *name;
        size_t size;
    } want[DSVI_DTYPE_COUNT] = {
        {DSVI_F32, "F32", 4}, {DSVI_BF16, "BF16", 2}, {DSVI_F16, "F16", 2}, {DSVI_F64, "F64", 8},
        {DSVI_I32, "I32", 4}, {DSVI_I64, "I64", 8},   {DSVI_U8, "U8", 1},   {DSVI_F8_E4M3, "F8_E4M3", 1},
    };
    (void)state;
    for (int i = 0; i < DSVI_DTYPE_COUNT; i++) {
        assert_string_equal(dsvi_dtype_name(want[i].dtype), want[i].name);
        assert_int_equal(dsvi_dtype_size(want[i].dtype), want[i].size);
    }
}

/* All 65,536 patterns of both formats are loaded exactly and stored back to the same bits. A NaN stays a NaN
 * of the same sign. */
static void every_pattern_survives(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        DsviDtype dtype = which ? DSVI_BF16 : DSVI_F16;
        for (uint32_t b = 0; b <= 0xffff; b++) {
            uint16_t bits = (uint16_t)b;
            double want = meaning(bits, fraction_bits_of(dtype)), got = dsvi_load(dtype, &bits, 0);
            uint16_t back = stored(dtype, got);
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_true(isnan(meaning(back, fraction_bits_of(dtype))) && (back >> 15) == (bits >> 15));
                continue;
            }
            assert_memory_equal(&got, &want, sizeof got); /* also checks the sign of zero */
            assert_int_equal(back, bits);
            if (dtype == DSVI_BF16)
                assert_int_equal(dsvi_f32_to_bf16(dsvi_bf16_to_f32(bits)), bits);
        }
    }
}

/* The midpoint of two neighbours rounds to the even one, and the next double on either side rounds to the
 * nearer one. So doubles are rounded once, not first to F32. */
static void rounds_once_to_nearest_even(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        DsviDtype dtype = which ? DSVI_BF16 : DSVI_F16;
        int fraction_bits = fraction_bits_of(dtype);
        uint16_t infinity = (uint16_t)(0x7fff >> fraction_bits << fraction_bits);
        for (uint16_t low = 0; low < infinity; low++) {
            uint16_t high = (uint16_t)(low + 1), even = low % 2 ? high : low;
            /* The step to infinity has the size of the step before. */
            double bottom = meaning(low, fraction_bits);
            double top = high < infinity ? meaning(high, fraction_bits)
                                         : 2 * bottom - meaning((uint16_t)(low - 1), fraction_bits);
            double middle = 0.5 * (bottom + top);
            assert_int_equal(stored(dtype, middle), even);
            assert_int_equal(stored(dtype, nextafter(middle, 0)), low);
            assert_int_equal(stored(dtype, nextafter(middle, INFINITY)), high);
            assert_int_equal(stored(dtype, -middle), even | 0x8000);
            assert_int_equal(stored(dtype, -nextafter(middle, 0)), low | 0x8000);
            assert_int_equal(stored(dtype, -nextafter(middle, INFINITY)), high | 0x8000);
            if (dtype == DSVI_BF16) /* the midpoint of two BF16 numbers is an F32 number */
                assert_int_equal(dsvi_f32_to_bf16((float)middle), even);
        }
        assert_int_equal(stored(dtype, DBL_MAX), infinity);
        assert_int_equal(stored(dtype, -INFINITY), infinity | 0x8000);
        assert_int_equal(stored(dtype, 0x1p-1000), 0);
        assert_int_equal(stored(dtype, -0x1p-1000), 0x8000);
    }
}

static void f32_and_f64_are_themselves(void **state)
{
    double doubles[2] = {0}, value = 0x1.123456789abcdp-7;
    float floats[2] = {0};
    (void)state;
    dsvi_store(DSVI_F64, doubles, 1, value);
    dsvi_store(DSVI_F32, floats, 1, value);
    assert_true(doubles[0] == 0 && doubles[1] == value && dsvi_load(DSVI_F64, doubles, 1) == value);
    assert_true(floats[0] == 0 && floats[1] == (float)value &&
                dsvi_load(DSVI_F32, floats, 1) == (float)value);
}

/* Arrays are converted like single elements for each pair of types, and nothing after them is written. */
static void convert_is_store_of_load(void **state)
{
    enum { N = 37 };
    static const DsviDtype dtypes[] = {DSVI_F32, DSVI_BF16, DSVI_F16, DSVI_F64};
    (void)state;
    for (size_t from = 0; from < 4; from++)
        for (size_t to = 0; to < 4; to++) {
            _Alignas(8) unsigned char src[8 * N], dst[8 * N + 8], want[8 * N];
            size_t bytes = N * dsvi_dtype_size(dtypes[to]);
            for (int i = 0; i < N; i++) {
                dsvi_store(dtypes[from], src, i, (i % 3 - 1) * exp2(0.77 * i - 10) * 1.01);
                dsvi_store(dtypes[to], want, i, dsvi_load(dtypes[from], src, i));
            }
            memset(dst, 0x5a, sizeof dst);
            dsvi_convert(dtypes[to], dst, dtypes[from], src, N);
            assert_memory_equal(dst, want, bytes);
            for (size_t i = bytes; i < bytes + 8; i++)
                assert_int_equal(dst[i], 0x5a);
            dsvi_convert(dtypes[to], NULL, dtypes[from], NULL, 0);
        }
}

/* All patterns of F8_E4M3, by definition: an exponent with bias 7, and NaN where all seven bits are set. A
 * scale is applied before the only rounding. */
static void f8_is_loaded_and_scaled(void **state)
{
    static const DsviDtype dtypes[] = {DSVI_F32, DSVI_BF16, DSVI_F16, DSVI_F64};
    const double scale = 0.0123456789;
    (void)state;
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        const int exponent = b >> 3 & 15, fraction = b & 7;
        double want = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
        want = b & 128 ? -want : want;
        double found = dsvi_load(DSVI_F8_E4M3, &byte, 0);
        if ((b & 127) == 127) {
            assert_true(isnan(found));
            continue;
        }
        assert_true(found == want && !signbit(found) == !signbit(want));
        for (size_t d = 0; d < 4; d++) {
            _Alignas(8) unsigned char expected[16], converted[16];
            memset(expected, 0x5a, sizeof expected);
            memset(converted, 0x5a, sizeof converted);
            dsvi_store(dtypes[d], expected, 0, want);
            dsvi_convert(dtypes[d], converted, DSVI_F8_E4M3, &byte, 1);
            assert_memory_equal(converted, expected, sizeof expected);
            dsvi_store(dtypes[d], expected, 0, want * scale);
            dsvi_convert_f8(dtypes[d], converted, &byte, scale, 1);
            assert_memory_equal(converted, expected, sizeof expected);
        }
    }
}

/* Integers are not converted to other types, but can be copied, also in place. */
static void convert_copies_any_dtype(void **state)
{
    int64_t src[] = {INT64_MIN, -1, INT64_MAX}, dst[3];
    (void)state;
    dsvi_convert(DSVI_I64, dst, DSVI_I64, src, 3);
    assert_memory_equal(dst, src, sizeof src);
    dsvi_convert(DSVI_I64, dst, DSVI_I64, dst, 3);
    assert_memory_equal(dst, src, sizeof src);
}

/* One element in any place, of any floating dtype, is found. */
static void elements_that_are_not_finite_are_found(void **state)
{
    static const DsviDtype DTYPES[] = {DSVI_F32, DSVI_BF16, DSVI_F16, DSVI_F64};
    enum { COUNT = 1500 };
    double room[COUNT];
    (void)state;
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        for (int i = 0; i < COUNT; i++)
            dsvi_store(DTYPES[d], room, i, i % 2 ? -65504.0 : 0);
        assert_true(dsvi_all_finite(DTYPES[d], room, COUNT));
        for (int at = 0; at < COUNT; at += COUNT - 1) {
            dsvi_store(DTYPES[d], room, at, at ? NAN : -INFINITY);
            assert_false(dsvi_all_finite(DTYPES[d], room, COUNT));
            dsvi_store(DTYPES[d], room, at, 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes),
        cmocka_unit_test(every_pattern_survives),
        cmocka_unit_test(rounds_once_to_nearest_even),
        cmocka_unit_test(f32_and_f64_are_themselves),
        cmocka_unit_test(convert_is_store_of_load),
        cmocka_unit_test(f8_is_loaded_and_scaled),
        cmocka_unit_test(convert_copies_any_dtype),
        cmocka_unit_test(elements_that_are_not_finite_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
