/* Rotary tables: how pairs are divided among the axes, angles, and gathering by a token order. */
#include "test.h"

#include "model/dit/rope.h"

static void pairs_of_the_published_head_size(void **state)
{
    int64_t pairs[3];
    (void)state;
    dsvi_rope_split(128, pairs);
    assert_int_equal(pairs[0], 22);
    assert_int_equal(pairs[1], 21);
    assert_int_equal(pairs[2], 21);
    for (int64_t dim = 2; dim <= 256; dim += 2) {
        dsvi_rope_split(dim, pairs);
        assert_int_equal(pairs[0] + pairs[1] + pairs[2], dim / 2);
        assert_int_equal(pairs[1], pairs[2]);
        assert_in_range(pairs[0] - pairs[1], 0, 2);
    }
}

/* Returns the angle that Wan 2.1 defines: 128 dimensions, of which the axes have 44, 42 and 42. Written
 * independently of src/. */
static double angle_128(int64_t pair, const int64_t position[3])
{
    if (pair < 22)
        return (double)position[0] * pow(10000, -2 * (double)pair / 44);
    if (pair < 43)
        return (double)position[1] * pow(10000, -2 * (double)(pair - 22) / 42);
    return (double)position[2] * pow(10000, -2 * (double)(pair - 43) / 42);
}

static void angles_are_those_of_wan(void **state)
{
    enum { FRAMES = 3, ROWS = 4, COLUMNS = 5, TOKENS = FRAMES * ROWS * COLUMNS, HALF = 64 };
    static const int64_t grid[3] = {FRAMES, ROWS, COLUMNS};
    static double cosines[TOKENS * HALF], sines[TOKENS * HALF];
    (void)state;
    dsvi_rope_tables(grid, 128, TOKENS, NULL, DSVI_F64, cosines, sines);
    for (int64_t s = 0; s < TOKENS; s++) {
        const int64_t position[3] = {s / (ROWS * COLUMNS), s / COLUMNS % ROWS, s % COLUMNS};
        for (int64_t p = 0; p < HALF; p++) {
            double angle = angle_128(p, position);
            assert_error_below(fabs(cosines[s * HALF + p] - cos(angle)), 1e-14, "cosine");
            assert_error_below(fabs(sines[s * HALF + p] - sin(angle)), 1e-14, "sine");
        }
    }
}

static void order_gathers_rows(void **state)
{
    enum { TOKENS = 12, HALF = 17 };
    static const int64_t grid[3] = {1, 3, 4};
    static const int32_t order[TOKENS] = {7, 0, 11, 3, 5, 1, 2, 10, 4, 9, 6, 8};
    float plain[2][TOKENS * HALF], ordered[2][TOKENS * HALF];
    (void)state;
    dsvi_rope_tables(grid, 2 * HALF, TOKENS, NULL, DSVI_F32, plain[0], plain[1]);
    dsvi_rope_tables(grid, 2 * HALF, TOKENS, order, DSVI_F32, ordered[0], ordered[1]);
    for (int s = 0; s < TOKENS; s++)
        for (int t = 0; t < 2; t++)
            assert_memory_equal(ordered[t] + s * HALF, plain[t] + order[s] * HALF, HALF * sizeof(float));
    dsvi_rope_tables(grid, 2 * HALF, 5, order + 4, DSVI_F32, plain[0], plain[1]);
    for (int t = 0; t < 2; t++)
        assert_memory_equal(plain[t], ordered[t] + 4 * HALF, 5 * HALF * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_the_published_head_size),
        cmocka_unit_test(angles_are_those_of_wan),
        cmocka_unit_test(order_gathers_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
