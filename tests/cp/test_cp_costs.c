/* Files of costs: equal after writing and reading, and errors for invalid files. */
#include "test.h"

#include "base/fs.h"
#include "base/scratch.h"
#include "cp/cp_costs.h"

static void test_round_trip(void **state)
{
    (void)state;
    DsviCpCosts costs = {.about = "a machine", .beside = true, .touch = 1e-10, .link_count = 2}, read;
    const char *path = scratch_path("costs.json");
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        costs.attention.call[pass] = 1e-5 * (1 + pass);
        costs.attention.dense[pass] = 1e-12 * (1 + pass);
        dsvi_price_add(&costs.attention.lists[pass], 0.05, 3e-12);
        dsvi_price_add(&costs.attention.lists[pass], 0.5, 5e-12 * (1 + pass));
    }
    costs.attention.select = 2e-13;
    for (int i = 0; i < 2; i++) {
        costs.link[i].ranks = 2 << i;
        dsvi_price_add(&costs.link[i].head_exchange, 1 << 16, 1e-5);
        dsvi_price_add(&costs.link[i].head_exchange, 1 << 20, 2e-5);
        dsvi_price_add(&costs.link[i].sequence_exchange, 1 << 16, 3e-5);
        dsvi_price_add(&costs.link[i].sequence_swap, 1 << 16, 4e-5);
    }
    assert_ok(dsvi_costs_write(path, &costs));
    assert_ok(dsvi_costs_read(path, &read));
    assert_string_equal(read.about, costs.about);
    assert_true(read.beside && read.link_count == 2 && read.link[1].ranks == 4);
    assert_true(fabs(read.touch / costs.touch - 1) < 1e-9);
    assert_true(fabs(read.attention.select / costs.attention.select - 1) < 1e-9);
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        assert_true(fabs(read.attention.call[pass] / costs.attention.call[pass] - 1) < 1e-9);
        assert_true(fabs(read.attention.dense[pass] / costs.attention.dense[pass] - 1) < 1e-9);
        assert_true(fabs(dsvi_price_at(&read.attention.lists[pass], 0.2) /
                             dsvi_price_at(&costs.attention.lists[pass], 0.2) -
                         1) < 1e-9);
    }
    for (double bytes = 1e4; bytes < 1e7; bytes *= 10)
        assert_true(fabs(dsvi_price_at(&read.link[0].head_exchange, bytes) /
                             dsvi_price_at(&costs.link[0].head_exchange, bytes) -
                         1) < 1e-9);
}

#define ATTENTION                                                                   \
    "\"attention\": {\"call_us\": [1, 2], \"dense_ps\": [1, 2], \"select_ps\": 1, " \
    "\"lists_forward_ps\": [[0.1, 1]], \"lists_backward_ps\": [[0.1, 1], [0.2, 2]]}"
#define MEMORY ", \"memory_ps\": 1"

static void refused(const char *text, const char *words)
{
    DsviCpCosts costs;
    const char *path = scratch_path("refused.json");
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    assert_fails(DSV_E_FORMAT, words, dsvi_costs_read(path, &costs));
}

static void test_refused(void **state)
{
    (void)state;
    DsviCpCosts costs;
    assert_fails(DSV_E_NOT_FOUND, "none.json", dsvi_costs_read("none.json", &costs));
    refused("", "not a JSON object");
    refused("[1]", "not a JSON object");
    refused("{}", "attention.call_us: expected two numbers from 0 up");
    refused("{\"attention\": {\"call_us\": [1, -2]}}", "attention.call_us");
    refused("{\"attention\": {\"call_us\": [1, 2], \"dense_ps\": [1, 2], \"select_ps\": \"x\"}}",
            "attention.select_ps: expected a number");
    refused("{\"attention\": {\"call_us\": [1, 2], \"dense_ps\": [1, 2], \"select_ps\": 1, "
            "\"lists_forward_ps\": [[0.2, 1], [0.1, 1]]}}",
            "attention.lists_forward_ps: expected at most 12 pairs");
    refused("{" ATTENTION ", \"memory_ps\": []}", ": memory_ps: expected a number");
    refused("{" ATTENTION MEMORY "}", "links: expected an array");
    refused("{" ATTENTION MEMORY ", \"links\": [{\"ranks\": 1.5}]}",
            "links[].ranks: expected a whole number");
    refused("{" ATTENTION MEMORY ", \"links\": [{\"ranks\": 2, \"head_exchange_us\": [3]}]}",
            "links[].head_exchange_us");
    refused("{" ATTENTION MEMORY ", \"links\": [{\"ranks\": 2, \"head_exchange_us\": [[1]]}]}",
            "links[].head_exchange_us: expected at most 12 pairs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
