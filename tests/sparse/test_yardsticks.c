/* Lists with which selected lists are compared in experiments: fixed windows and random keys. */
#include "sparse/sparse_rig.h"

#include "sparse/order.h"

/* Returns the squared distance of a key from the centre of `count` tokens that start at `first`, multiplied
 * by count^2 so that it is an exact integer. */
static int64_t squared_distance(const int64_t grid[3], const int32_t *order, int64_t first, int64_t count,
                                int64_t key)
{
    int64_t square = 0, stride = 1;
    for (int i = 2; i >= 0; i--) {
        int64_t sum = 0;
        for (int64_t q = first; q < first + count; q++)
            sum += order[q] / stride % grid[i];
        int64_t off = sum - count * (order[key] / stride % grid[i]);
        square += off * off;
        stride *= grid[i];
    }
    return square;
}

/* For any q and k and in every token order, no unlisted key is nearer to the centre of the group than a
 * listed key. */
static void window_lists_the_nearest(void **state)
{
    enum { GROUP = 16, KEYS = 27 };
    static const char *const orders[] = {"hilbert", "raster", "hilbert3d", "tube", "cube", "zcube"};
    static Rig rig;
    DsviSparseShape shape = rig_shape(1, 2, 2, 32, 5, 7, 9, DSVI_F32);
    int32_t order[5 * 7 * 9];
    (void)state;
    for (uint64_t seed = 0; seed < sizeof orders / sizeof *orders; seed++) {
        DsvConfig settings = rig_settings();
        snprintf(settings.sparse_order, sizeof settings.sparse_order, "%s", orders[seed]);
        rig_set(&settings, "sparse.selector=window");
        rig_set(&settings, "sparse.rule=topk");
        rig_set(&settings, "sparse.group=16");
        rig_set(&settings, "sparse.chunk=16");
        settings.sparse_target_density = (double)KEYS / (double)shape.tokens;
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, seed, 0);
        dsvi_sparse_force(rig.sparse, true);
        rig_run(&rig);
        assert_ok(dsvi_order_make(orders[seed], shape.grid, order));
        const DsviLists *lists = dsvi_sparse_lists(rig.sparse, 0);
        assert_non_null(lists);
        for (int64_t n = 0; n < dsvi_lists_count(lists); n++) {
            DsviList list = dsvi_list_at(lists, n);
            int64_t first = n % lists->groups * GROUP, farthest = 0;
            int64_t count = shape.tokens - first < GROUP ? shape.tokens - first : GROUP;
            assert_int_equal(list.count, KEYS);
            for (int64_t i = 0; i < KEYS; i++) {
                int64_t d = squared_distance(shape.grid, order, first, count, list.spans[i]);
                farthest = d > farthest ? d : farthest;
            }
            for (int64_t key = 0; key < shape.tokens; key++)
                if (!dsvi_list_contains(&list, key))
                    assert_true(squared_distance(shape.grid, order, first, count, key) >= farthest);
        }
        rig_close(&rig);
    }
}

static double shared(const DsviLists *a, const int32_t *spans, const int64_t *offsets)
{
    int64_t same = 0, count = dsvi_lists_count(a);
    for (int64_t n = 0; n < count; n++) {
        DsviList list = dsvi_list_at(a, n);
        for (int64_t i = offsets[n]; i < offsets[n + 1]; i++)
            same += dsvi_list_contains(&list, spans[i]);
    }
    return (double)same / (double)offsets[count];
}

/* Exploration that uses the whole budget gives random lists of the target density, in training and outside
 * training. Lists of consecutive steps have no more keys in common than chance gives. The 128 lists of 1024
 * keys have 13,000 draws, a number that varies by 1 %. Each list has one more key, the nearest key of the
 * window. */
static void whole_budget_can_be_random(void **state)
{
    enum { RUNS_MAX = 1 << 15 };
    static Rig rig;
    static int32_t spans[RUNS_MAX];
    static int64_t offsets[4096];
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 4, 16, 16, DSVI_F32);
    DsvConfig settings = rig_settings();
    (void)state;
    rig_set(&settings, "sparse.selector=window");
    rig_set(&settings, "sparse.group=16");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.1");
    rig_set(&settings, "sparse.explore_kind=random");
    rig_set(&settings, "sparse.explore=1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 0);
    dsvi_sparse_force(rig.sparse, true);
    for (int64_t step = 1; step <= 4; step++) {
        rig_step(&rig, step, step < 3);
        const DsviLists *lists = dsvi_sparse_lists(rig.sparse, 0);
        int64_t count = dsvi_lists_count(lists), all = lists->offsets[count];
        assert_true(count < 4096 && all <= RUNS_MAX);
        double density = (double)all / (double)(count * dsvi_lists_full(lists));
        assert_error_below(fabs(density - 0.1 - 1.0 / 1024), 0.005, "density of step %d", (int)step);
        if (step > 1)
            assert_error_below(fabs(shared(lists, spans, offsets) - 0.11), 0.02, "shared, step %d",
                               (int)step);
        memcpy(spans, lists->spans, (size_t)all * sizeof *spans);
        memcpy(offsets, lists->offsets, (size_t)(count + 1) * sizeof *offsets);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_lists_the_nearest),
        cmocka_unit_test(whole_budget_can_be_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
