/* Dealing the batches of a step to ranks. */
#include "train/deal.h"

#include "base/rng.h"
#include "test.h"

enum { BATCHES_MAX = 512, RANKS_MAX = 64 };

typedef struct Case {
    double cost[BATCHES_MAX], load[RANKS_MAX];
    int64_t dealt[BATCHES_MAX], order[BATCHES_MAX];
    DsviDeal deal;
} Case;

/* Costs of clips of five sizes, linear and quadratic in their tokens, or any numbers. */
static void draw_case(Case *c, uint64_t number, int64_t ranks, int64_t passes, bool any)
{
    static const double TOKENS[] = {1560, 7800, 14040, 20280, 32760};
    DsviRng rng = {number, DSVI_RNG_TEST, 0};
    c->deal = (DsviDeal){ranks, passes, c->cost, c->dealt, c->load, c->order};
    for (int64_t i = 0; i < ranks * passes; i++) {
        double s = TOKENS[dsvi_rng_below(rng, (uint64_t)i, 5)];
        c->cost[i] = any ? 1e-3 + dsvi_rng_uniform(rng, (uint64_t)i) : s + s * s / 20000;
    }
}

static double slowest(const Case *c)
{
    double max = 0;
    for (int64_t rank = 0; rank < c->deal.ranks; rank++)
        max = c->load[rank] > max ? c->load[rank] : max;
    return max;
}

/* Every batch is dealt once, and the loads are the sums of the costs. */
static void check_deal(const Case *c)
{
    int seen[BATCHES_MAX] = {0};
    for (int64_t rank = 0; rank < c->deal.ranks; rank++) {
        double sum = 0;
        for (int64_t pass = 0; pass < c->deal.passes; pass++) {
            int64_t batch = c->dealt[rank * c->deal.passes + pass];
            assert_true(batch >= 0 && batch < c->deal.ranks * c->deal.passes && !seen[batch]++);
            sum += c->cost[batch];
        }
        assert_error_below(fabs(sum - c->load[rank]), 1e-9 * sum, "load of rank %d", (int)rank);
    }
}

/* The least that the slowest rank can have, by trying all ways to deal batch `at` and the later ones. */
static double best_of_all(const Case *c, int64_t at, double load[], int64_t dealt[], double best)
{
    double most = 0;
    int64_t ranks = c->deal.ranks;
    for (int64_t rank = 0; rank < ranks; rank++)
        most = load[rank] > most ? load[rank] : most;
    if (most >= best || at == ranks * c->deal.passes)
        return most < best ? most : best;
    for (int64_t rank = 0; rank < ranks; rank++) {
        if (dealt[rank] == c->deal.passes)
            continue;
        double before = load[rank];
        dealt[rank]++;
        load[rank] += c->cost[at];
        best = best_of_all(c, at + 1, load, dealt, best);
        load[rank] = before;
        dealt[rank]--;
    }
    return best;
}

static void the_slowest_rank_has_at_most_four_thirds_of_the_optimum(void **state)
{
    (void)state;
    static const int64_t SHAPES[][2] = {{2, 1}, {2, 2}, {2, 3}, {2, 4}, {2, 5}, {3, 2}, {3, 3}, {4, 2}};
    static Case c;
    double worst = 1, sum = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        double load[4] = {0};
        int64_t dealt[4] = {0};
        const int64_t *shape = SHAPES[i % 8];
        draw_case(&c, i, shape[0], shape[1], i % 16 < 8);
        dsvi_deal(&c.deal);
        check_deal(&c);
        double ratio = slowest(&c) / best_of_all(&c, 0, load, dealt, INFINITY);
        assert_error_below(ratio, 4.0 / 3 + 1e-9, "case %d", (int)i);
        assert_error_below(1 - ratio, 1e-9, "case %d is better than the optimum", (int)i);
        worst = ratio > worst ? ratio : worst;
        sum += ratio;
    }
    print_message("worst %.4f, mean %.4f of the optimum\n", worst, sum / 1000);
}

static void passes_are_in_order_of_their_costs(void **state)
{
    (void)state;
    static Case c;
    for (uint64_t i = 0; i < 100; i++) {
        draw_case(&c, i, 4, 8, i % 2 == 0);
        dsvi_deal(&c.deal);
        for (int64_t pass = 1; pass < 8; pass++)
            for (int64_t rank = 0; rank < 4; rank++)
                assert_true(c.cost[c.dealt[rank * 8 + pass]] <= c.cost[c.dealt[rank * 8 + pass - 1]]);
    }
}

static void equal_costs_are_dealt_in_order(void **state)
{
    (void)state;
    static Case c;
    draw_case(&c, 0, 3, 4, true);
    for (int i = 0; i < 12; i++)
        c.cost[i] = 2;
    dsvi_deal(&c.deal);
    int64_t dealt[12];
    memcpy(dealt, c.dealt, sizeof dealt);
    dsvi_deal_in_order(&c.deal);
    check_deal(&c);
    assert_memory_equal(dealt, c.dealt, sizeof dealt);
    assert_int_equal(c.dealt[4 + 2], 2 * 3 + 1); /* rank 1, pass 2 */
}

/* Against dealing at random, the slowest rank is at least 1.15 times as fast with two ranks and eight passes,
 * and nearly as fast as possible. */
static void dealing_evens_out(void **state)
{
    (void)state;
    static Case c;
    double dealt = 0, random = 0, mean = 0;
    for (uint64_t i = 0; i < 500; i++) {
        draw_case(&c, i, 2, 8, false);
        dsvi_deal_in_order(&c.deal);
        random += slowest(&c);
        mean += (c.load[0] + c.load[1]) / 2;
        dsvi_deal(&c.deal);
        check_deal(&c);
        dealt += slowest(&c);
    }
    print_message("random %.3f, dealt %.4f of the mean load\n", random / mean, dealt / mean);
    assert_true(random / dealt >= 1.15);
    assert_true(dealt / mean < 1.02);
    draw_case(&c, 0, 64, 8, false);
    dsvi_deal(&c.deal);
    check_deal(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slowest_rank_has_at_most_four_thirds_of_the_optimum),
        cmocka_unit_test(passes_are_in_order_of_their_costs),
        cmocka_unit_test(equal_costs_are_dealt_in_order),
        cmocka_unit_test(dealing_evens_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
