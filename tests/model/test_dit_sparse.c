/* The transformer with the sparse layer: token orders do not change results, full lists equal dense
 * attention, and lists of some keys work with gradient checkpointing. */
#include "dit_case.h"

static DsvConfig sparse_settings(const char *order, double target_mass)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    snprintf(settings.sparse_order, sizeof settings.sparse_order, "%s", order);
    settings.sparse_measure_cost = false;
    settings.sparse_max_density = settings.sparse_list_memory = 1;
    settings.sparse_group = 16;
    settings.sparse_chunk = 8;
    settings.sparse_target_mass = target_mass;
    settings.sparse_target_density = 0;
    settings.sparse_min_keys = 0;
    return settings;
}

/* Opens a model with two samples of 3 x 4 x 5 tokens; `settings` NULL: dense attention in raster order. */
static void open_case(DitCase *c, DsviDtype act, const DsvConfig *settings, DsviDitKeep keep,
                      bool given_first)
{
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = {.batch = 2,
                          .frames = 3,
                          .height = 8,
                          .width = 10,
                          .text_len = 5,
                          .given_first = given_first,
                          .act = act,
                          .backward = true,
                          .keep = keep,
                          .loss = given_first};
    dit_case_open(c, &config, &shape, "auto", 2, settings);
    float *flat = dit_case_random_weights(&c->table, 0.1);
    dit_case_set_weights(c, flat);
    free(flat);
    dit_case_randomise(c, 1);
}

static void gradients_of_a_step(DitCase *c)
{
    if (c->sparse)
        assert_ok(dsvi_sparse_step_begin(c->sparse, 1, true));
    dit_case_gradients(c);
    if (c->sparse)
        assert_ok(dsvi_sparse_step_end(c->sparse));
}

/* Sums in F32 have another order, so the bounds are those of the comparison with PyTorch
 * (test_dit_golden.c). */
static void compare(const DitCase *found, const DitCase *expected, const char *what)
{
    assert_error_below(relative_l2(found->acc, found->output, expected->acc, expected->output,
                                   expected->out_elements),
                       1e-5, "%s: output", what);
    assert_error_below(relative_l2(found->acc, found->dlatents, expected->acc, expected->dlatents,
                                   expected->in_elements),
                       1e-5, "%s: gradient of the latents", what);
    assert_error_below(relative_l2(found->acc, found->dtext, expected->acc, expected->dtext,
                                   expected->text_elements),
                       1e-5, "%s: gradient of the text", what);
    for (int64_t i = 0; i < expected->table.count; i++)
        assert_error_below(relative_l2(found->acc, dit_case_grad(found, i), expected->acc,
                                       dit_case_grad(expected, i), expected->table.params[i].count),
                           1e-4, "%s: gradient of %s", what, expected->table.params[i].name);
}

static const char *const ORDERS[] = {"hilbert", "raster", "hilbert3d", "tube", "cube", "zcube"};
enum { ORDER_COUNT = sizeof ORDERS / sizeof *ORDERS };

static void check_orders(bool full_lists, bool given_first)
{
    DitCase dense, ordered;
    open_case(&dense, DSVI_F32, NULL, DSVI_KEEP_ALL, given_first);
    gradients_of_a_step(&dense);
    for (int i = 0; i < ORDER_COUNT; i++) {
        DsvConfig settings = sparse_settings(ORDERS[i], 1);
        open_case(&ordered, DSVI_F32, &settings, DSVI_KEEP_ALL, given_first);
        if (full_lists)
            dsvi_sparse_force(ordered.sparse, true);
        gradients_of_a_step(&ordered);
        for (int64_t block = 0; block < 2; block++) {
            const DsviLists *lists = dsvi_sparse_lists(ordered.sparse, block);
            assert_int_equal(lists != NULL, full_lists);
            if (lists)
                assert_int_equal(lists->offsets[dsvi_lists_count(lists)],
                                 dsvi_lists_count(lists) * dsvi_lists_full(lists));
        }
        compare(&ordered, &dense, ORDERS[i]);
        dit_case_close(&ordered);
    }
    dit_case_close(&dense);
}

static void orders_change_nothing(void **state)
{
    (void)state;
    check_orders(false, false);
    check_orders(false, true);
}

static void full_lists_are_dense(void **state)
{
    (void)state;
    check_orders(true, false);
}

static void lists_survive_checkpointing(void **state)
{
    static const DsviDtype ACTS[] = {DSVI_F32, DSVI_BF16};
    static const char *const SELECTORS[] = {"projection", "predictor", "pooled"};
    (void)state;
    for (int s = 0; s < 3; s++) {
        for (int a = 0; a < 4; a++) {
            DitCase kept, recomputed;
            DsvConfig settings = sparse_settings("hilbert", 0.6);
            snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", SELECTORS[s]);
            open_case(&kept, ACTS[a % 2], &settings, DSVI_KEEP_ALL, false);
            open_case(&recomputed, ACTS[a % 2], &settings, a < 2 ? DSVI_KEEP_INPUT : DSVI_KEEP_ATTENTION,
                      false);
            dsvi_sparse_force(kept.sparse, true);
            dsvi_sparse_force(recomputed.sparse, true);
            gradients_of_a_step(&kept);
            gradients_of_a_step(&recomputed);
            const DsviLists *lists = dsvi_sparse_lists(kept.sparse, 0);
            assert_non_null(lists);
            assert_true(lists->offsets[dsvi_lists_count(lists)] <
                        dsvi_lists_count(lists) * dsvi_lists_full(lists));
            dit_case_assert_equal(&kept, &recomputed, true);
            dit_case_close(&kept);
            dit_case_close(&recomputed);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_change_nothing),
        cmocka_unit_test(full_lists_are_dense),
        cmocka_unit_test(lists_survive_checkpointing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
