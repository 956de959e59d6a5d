/* Token orders: each order is a bijection for every grid, the curves never jump, and consecutive tokens of a
 * curve fill squares or boxes, which makes groups compact. */
#include "test.h"

#include "sparse/order.h"

static const char *const names[] = {"hilbert", "raster", "hilbert3d", "tube", "cube", "zcube"};
static const int64_t large[][3] = {
    {7, 45, 80}, {21, 31, 53}, {1, 1, 977}, {13, 15, 11}, {2, 81, 2}, {5, 44, 81}, {21, 30, 52}, {33, 2, 2},
};
enum { LARGE = sizeof large / sizeof *large };

static int32_t *make(const char *name, const int64_t grid[3])
{
    int32_t *order = malloc((size_t)(grid[0] * grid[1] * grid[2]) * sizeof *order);
    assert_non_null(order);
    assert_ok(dsvi_order_make(name, grid, order));
    return order;
}

static void check_bijection(const char *name, const int64_t grid[3])
{
    int64_t tokens = grid[0] * grid[1] * grid[2];
    int32_t *order = make(name, grid);
    unsigned char *seen = calloc((size_t)tokens, 1);
    for (int64_t s = 0; s < tokens; s++) {
        if (order[s] < 0 || order[s] >= tokens || seen[order[s]])
            fail_msg("%s %d x %d x %d: token %d at %d", name, (int)grid[0], (int)grid[1], (int)grid[2],
                     (int)s, (int)order[s]);
        seen[order[s]] = 1;
    }
    free(seen);
    free(order);
}

/* Counts consecutive tokens of one frame that are not neighbours in the grid. */
static int64_t count_jumps(const int64_t grid[3], const int32_t *order)
{
    int64_t tokens = grid[0] * grid[1] * grid[2], frame = grid[1] * grid[2], jumps = 0;
    for (int64_t s = 1; s < tokens; s++) {
        if (order[s] / frame != order[s - 1] / frame)
            continue;
        int64_t from = order[s - 1] % frame, to = order[s] % frame;
        int64_t rows = to / grid[2] - from / grid[2], columns = to % grid[2] - from % grid[2];
        jumps += llabs(rows) + llabs(columns) != 1;
    }
    return jumps;
}

/* Counts consecutive tokens that are not neighbours in the three dimensions of the grid. */
static int64_t jumps_in_space(const char *name, const int64_t grid[3])
{
    int64_t tokens = grid[0] * grid[1] * grid[2], frame = grid[1] * grid[2], jumps = 0;
    int32_t *order = make(name, grid);
    for (int64_t s = 1; s < tokens; s++) {
        int64_t a = order[s - 1], b = order[s];
        jumps += llabs(a / frame - b / frame) + llabs(a % frame / grid[2] - b % frame / grid[2]) +
                     llabs(a % grid[2] - b % grid[2]) !=
                 1;
    }
    free(order);
    return jumps;
}

static int64_t jumps_in_frames(const char *name, const int64_t grid[3])
{
    int32_t *order = make(name, grid);
    int64_t jumps = count_jumps(grid, order);
    free(order);
    return jumps;
}

static void test_bijections(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        for (int64_t i = 0; i < 9 * 9 * 9; i++) {
            const int64_t grid[3] = {1 + i / 81, 1 + i / 9 % 9, 1 + i % 9};
            check_bijection(names[n], grid);
        }
        for (size_t i = 0; i < LARGE; i++)
            check_bijection(names[n], large[i]);
    }
}

/* A curve that only moves between neighbours alternates between the colours of a chessboard, so some pairs of
 * corners cannot be joined. But a curve that may end anywhere never has to jump. The curves here never jump:
 * not inside a frame, not from one frame to the next, and not in the three dimensions of hilbert3d. */
static void test_curves_never_jump(void **state)
{
    int64_t frames = 0, time = 0, space = 0, steps = 0;
    (void)state;
    for (int64_t i = 0; i < 9 * 9 * 9 + LARGE; i++) {
        const int64_t small[3] = {1 + i / 81, 1 + i / 9 % 9, 1 + i % 9};
        const int64_t *grid = i < 9 * 9 * 9 ? small : large[i - 9 * 9 * 9];
        steps += grid[0] * grid[1] * grid[2] - 1;
        frames += jumps_in_frames("hilbert", grid);
        time += jumps_in_space("hilbert", grid);
        space += jumps_in_space("hilbert3d", grid) + jumps_in_space("tube", grid);
    }
    print_message("%lld steps: %lld jumps inside frames, %lld with those between frames, %lld of the "
                  "curves through time\n",
                  (long long)steps, (long long)frames, (long long)time, (long long)space);
    assert_int_equal(frames, 0);
    assert_int_equal(time, 0);
    assert_int_equal(space, 0);
}

/* count_jumps finds jumps: raster order jumps at the end of every row except the last row of a frame. */
static void test_raster_jumps(void **state)
{
    const int64_t grid[3] = {3, 5, 7};
    (void)state;
    assert_int_equal(jumps_in_frames("raster", grid), 3 * 4);
}

/* With one frame, the order `tube` equals `hilbert`. */
static void test_tubes_of_one_frame(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 9 * 9; i++) {
        const int64_t grid[3] = {1, 1 + i / 9, 1 + i % 9};
        int32_t *tube = make("tube", grid), *curve = make("hilbert", grid);
        assert_memory_equal(tube, curve, (size_t)(grid[1] * grid[2]) * sizeof *tube);
        free(tube);
        free(curve);
    }
}

/* Order `tube` visits all frames at each place of the curve, alternately forwards and backwards in time. */
static void test_tubes_reach_through_time(void **state)
{
    const int64_t grid[3] = {3, 4, 4}, frame = grid[1] * grid[2];
    int32_t *order = make("tube", grid);
    (void)state;
    for (int64_t s = 0; s < 3 * frame; s++) {
        int64_t forth = s % 3, place = s / 3;
        assert_int_equal(order[s] / frame, place % 2 ? 2 - forth : forth);
        assert_int_equal(order[s] % frame, order[place * 3] % frame);
    }
    free(order);
}

/* If the frame's sides are a power of two, each quarter of the curve fills a quarter of the frame, and so on
 * recursively. */
static void test_squares_are_compact(void **state)
{
    const int64_t grid[3] = {2, 16, 16};
    (void)state;
    int32_t *order = make("hilbert", grid);
    for (int64_t edge = 2; edge <= 8; edge *= 2) {
        for (int64_t s = 0; s < 2 * 256; s++) {
            int64_t first = order[s / (edge * edge) * edge * edge];
            assert_int_equal(order[s] / 16 / edge, first / 16 / edge);
            assert_int_equal(order[s] % 16 / edge, first % 16 / edge);
        }
    }
    free(order);
}

/* 64 consecutive tokens of the 3-D curve are inside a box that is not much larger than 4 x 4 x 4. */
static void test_boxes_are_compact(void **state)
{
    const int64_t grid[3] = {16, 16, 16};
    double sum = 0;
    (void)state;
    int32_t *order = make("hilbert3d", grid);
    for (int64_t group = 0; group < 64; group++) {
        int64_t least[3] = {16, 16, 16}, largest[3] = {0, 0, 0};
        for (int64_t s = 64 * group; s < 64 * (group + 1); s++) {
            const int64_t at[3] = {order[s] / 256, order[s] / 16 % 16, order[s] % 16};
            for (int i = 0; i < 3; i++) {
                least[i] = at[i] < least[i] ? at[i] : least[i];
                largest[i] = at[i] > largest[i] ? at[i] : largest[i];
            }
        }
        for (int i = 0; i < 3; i++)
            sum += (double)(largest[i] - least[i] + 1) / (3 * 64);
    }
    print_message("3-D curve, 64 of 16^3: mean edge of the bounding box %.2f\n", sum);
    assert_true(sum <= 5);
    free(order);
}

static void test_cubes(void **state)
{
    const int64_t grid[3] = {5, 6, 9};
    (void)state;
    int32_t *order = make("cube", grid);
    /* The first cube is complete; the second cube follows along the row. */
    assert_int_equal(order[1], 1);
    assert_int_equal(order[4], 9);
    assert_int_equal(order[16], 54);
    assert_int_equal(order[64], 4);
    /* The third is one column wide. */
    assert_int_equal(order[128], 8);
    assert_int_equal(order[129], 17);
    free(order);
}

/* Every 8 tokens of a complete cube are a cube of 2 x 2 x 2, and every 4 a square of 2 x 2. */
static void test_z_order(void **state)
{
    const int64_t grid[3] = {5, 6, 9};
    (void)state;
    int32_t *order = make("zcube", grid), *cubes = make("cube", grid);
    for (int cell = 0; cell < 8; cell++)
        assert_int_equal(order[cell], cell / 4 + cell / 2 % 2 * 9 + cell % 2 * 54);
    assert_int_equal(order[8], 108);
    assert_int_equal(order[16], 18);
    assert_int_equal(order[32], 2);
    /* Both orders have the same cubes: 64 tokens, 64 tokens, and 16 tokens of a cube one column wide. */
    const int sizes[] = {64, 64, 16};
    for (int cube = 0, first = 0; cube < 3; first += sizes[cube++]) {
        int64_t sum[2] = {0, 0};
        for (int i = first; i < first + sizes[cube]; i++) {
            sum[0] += order[i];
            sum[1] += cubes[i];
        }
        assert_int_equal(sum[0], sum[1]);
    }
    assert_int_equal(order[128], 8);
    assert_int_equal(order[129], 62);
    assert_int_equal(order[130], 17);
    free(order);
    free(cubes);
}

static void test_refusals(void **state)
{
    const int64_t grid[3] = {2, 2, 2}, empty[3] = {2, 0, 2}, huge[3] = {2000, 2000, 2000};
    int32_t order[8];
    (void)state;
    assert_fails(DSV_E_USAGE, "'peano' is unknown", dsvi_order_make("peano", grid, order));
    assert_fails(DSV_E_SHAPE, "2 x 0 x 2", dsvi_order_make("hilbert", empty, order));
    assert_fails(DSV_E_SHAPE, "more than", dsvi_order_make("raster", huge, order));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijections),
        cmocka_unit_test(test_curves_never_jump),
        cmocka_unit_test(test_raster_jumps),
        cmocka_unit_test(test_tubes_of_one_frame),
        cmocka_unit_test(test_tubes_reach_through_time),
        cmocka_unit_test(test_squares_are_compact),
        cmocka_unit_test(test_boxes_are_compact),
        cmocka_unit_test(test_cubes),
        cmocka_unit_test(test_z_order),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
