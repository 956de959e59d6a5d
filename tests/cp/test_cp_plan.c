/* The chosen plan against an exhaustive search; predicted times against the formulas of cp_plan.h, written
 * here a second time; limits of memory, unknown links, and when the present plan stays. */
#include "test.h"

#include <stdbool.h>

#include "base/rng.h"
#include "cp/cp_prices.h"

enum { HEADS = 6, RANKS_MAX = 6 };
#define SLACK 1e-4 /* PLACEMENT_SLACK of cp_plan.c */

/* A machine with round numbers: on every link 1e-9 s per byte, and 1e-5 s constant time per transfer. */
static void make_costs(DsviCpCosts *costs)
{
    memset(costs, 0, sizeof *costs);
    costs->beside = true;
    costs->touch = 1e-11;
    costs->attention = (DsviAttentionCost){.call = {1e-5, 2e-5}, .dense = {1e-9, 2.5e-9}, .select = 1e-10};
    for (int i = 0; i < 2; i++)
        for (int pass = 0; pass < DSVI_PASSES; pass++)
            dsvi_price_add(&costs->attention.lists[pass], i, (pass ? 3e-9 : 1.2e-9) * i);
    for (int64_t ranks = 2; ranks <= 8; ranks++) {
        DsviLinkCost *link = &costs->link[costs->link_count++];
        link->ranks = ranks;
        for (int i = 0; i < 2; i++) {
            dsvi_price_add(&link->head_exchange, 1e6 * i, 1e-5 + 1e-3 * i);
            dsvi_price_add(&link->sequence_exchange, 1e6 * i, 1e-5 + 2e-3 * i);
            dsvi_price_add(&link->sequence_swap, 1e6 * i, 1e-5 + 4e-3 * i);
        }
    }
}

static const int64_t even_bound[] = {0, 64, 128, 192, 256};

static DsviCpShape four_ranks(void)
{
    return (DsviCpShape){.ranks = 4,
                         .batch = 2,
                         .tokens = 256,
                         .heads = HEADS,
                         .head_dim = 32,
                         .bound = even_bound,
                         .element = 2,
                         .feature = 32,
                         .group = 16,
                         .grain = 1,
                         .backward = true};
}

static DsviCpPlan plan_of(int64_t head_ranks, int64_t ranks, const int32_t *placement, const int64_t *bound)
{
    return (DsviCpPlan){head_ranks, ranks / head_ranks, placement, bound};
}

static const int32_t in_order[HEADS] = {0, 1, 2, 3, 4, 5};
static const int64_t all_at_once[] = {0, HEADS}, uneven[] = {0, 2, HEADS}, thin[] = {0, 1, 2, 4, HEADS};

static void test_curve(void **state)
{
    (void)state;
    DsviPriceCurve curve = {.count = 0};
    assert_true(dsvi_price_at(&curve, 3) == 0);
    dsvi_price_add(&curve, 1, 10);
    assert_true(dsvi_price_at(&curve, 3) == 10);
    dsvi_price_add(&curve, 2, 12);
    dsvi_price_add(&curve, 2, 99); /* ignored: x must be ascending */
    dsvi_price_add(&curve, 4, 20);
    assert_int_equal(curve.count, 3);
    assert_true(dsvi_price_at(&curve, 1.5) == 11);
    assert_true(dsvi_price_at(&curve, 3) == 16);
    assert_true(dsvi_price_at(&curve, 6) == 28);
    assert_true(dsvi_price_at(&curve, 0) == 8);
    assert_true(dsvi_price_at(&curve, -9) == 0);
}

static void test_union(void **state)
{
    (void)state;
    assert_true(fabs(dsvi_cp_union(0.1, 50, 0) - 0.1) < 1e-12);
    assert_true(fabs(dsvi_cp_union(0.1, 2, 1) - 0.19) < 1e-12);
    assert_true(dsvi_cp_union(1, 50, 0.4) == 1);
    assert_true(dsvi_cp_union(0, 50, 0.4) == 0);
    for (double spread = 0.1; spread < 1; spread += 0.2)
        assert_true(fabs(dsvi_cp_spread(0.07, 40, dsvi_cp_union(0.07, 40, spread)) - spread) < 1e-9);
    assert_true(dsvi_cp_spread(0.07, 40, 0.05) == 0); /* no more than one list names */
    assert_true(dsvi_cp_spread(0.07, 1, 0.07) == 0);
    assert_true(dsvi_cp_spread(0.5, 2, 1) == 1);
}

static void check_seconds(double found, double expected)
{
    assert_error_below(fabs(found - expected) / expected, 1e-12, "%.12g, expected %.12g", found, expected);
}

/* 4 x 1: no sequence ranks. The ranks have 1, 1, 2 and 2 of 6 heads; the last two ranks are the slowest. */
static void test_head_parallel(void **state)
{
    (void)state;
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    const DsviCpBlock block = {.spread = DSVI_CP_SPREAD};
    DsviCpPlan plan = plan_of(4, 4, in_order, thin);
    DsviCpTimes times;
    make_costs(&costs);
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    double bytes = 32 * 2 * fmax(64 * 4, 192 * 2); /* D e max(S_own (N - c), (T - S_own) c) */
    double tensor = 2 * (1e-5 + 1e-9 * bytes) + 1e-11 * 2 * (2 * 64 * 6 * 32 * 2);
    check_seconds(times.heads, 12 * tensor);
    check_seconds(times.attend, 3e-5 + 2 * 2.0 * 256 * 256 * 3.5e-9);
    check_seconds(times.total, times.heads + times.attend);
    assert_true(fabs(times.sequence) < 1e-15);
    assert_int_equal(times.memory, 8 * 2 * 256 * 2 * 32 * 2 + 3 * 2 * 64 * 6 * 32 * 2);
    shape.recompute = true;
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    check_seconds(times.heads, 16 * tensor);
    check_seconds(times.attend, 4e-5 + 2 * 2.0 * 256 * 256 * 4.5e-9);
    shape.backward = shape.recompute = false;
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    check_seconds(times.heads, 4 * tensor);
    check_seconds(times.attend, 1e-5 + 2 * 2.0 * 256 * 256 * 1e-9);
}

/* 1 x 4, dense: ring attention; three quarters of attention overlap with transfers. */
static void test_ring(void **state)
{
    (void)state;
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    const DsviCpBlock block = {.spread = DSVI_CP_SPREAD};
    DsviCpPlan plan = plan_of(1, 4, in_order, all_at_once);
    DsviCpTimes times;
    make_costs(&costs);
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    double numbers = 2.0 * 64 * 6 * 32, pairs = 6 * 2.0 * 64 * 256;
    double keys = 2 * (1e-5 + 4e-9 * numbers * 2), sums = 2 * (1e-5 + 4e-9 * numbers * 4);
    double forward = 3 * keys, backward = 2 * keys + 3 * sums;
    double seen = keys + (1 + 3) * 3 * numbers * (2 + 8) * 1e-11;
    check_seconds(times.attend, 4 * 3e-5 + pairs * 3.5e-9);
    check_seconds(times.sequence,
                  seen + fmax(0, forward - 0.75 * pairs * 1e-9) + fmax(0, backward - 0.75 * pairs * 2.5e-9));
    assert_true(times.heads == 0);
    assert_int_equal(times.memory, 64 * 2 * 6 * 32 * (4 * 2 + 5 * 4 + 2 * 2));
    costs.beside = false;
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    check_seconds(times.sequence, seen + forward + backward);
}

/* 2 x 2 over lists: features, keys and values that lists name, and their gradients. */
static void test_lists(void **state)
{
    (void)state;
    const double density[HEADS] = {0.25, 0.125, 0.125, 0.25, 0.25, 0.0625};
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    const DsviCpBlock block = {.density = density, .spread = 0.5};
    DsviCpPlan plan = plan_of(2, 4, in_order, uneven);
    DsviCpTimes times;
    make_costs(&costs);
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    double pairs = 2.0 * 128 * 256, lists = 128 / 16, others = 2 * 128, own = 0, all = 0;
    for (int h = 0; h < HEADS; h++) {
        double named = others * (1 - pow(1 - density[h], sqrt(lists)));
        all += named / 2;
        own += h < 2 ? 0 : density[h];
    }
    double row = 2 * 32 * 2 * (2e-9 + 1e-5 / (all * 2 * 32 * 2)), seen = 0, again = 0;
    for (int h = 2; h < HEADS; h++) { /* half of a head's attention is over the head group's own keys */
        double there = row * others * (1 - pow(1 - density[h], sqrt(lists)));
        seen += there + fmax(0, there - 0.5 * pairs * 1.2e-9 * density[h]) +
                fmax(0, there - 0.5 * pairs * 3e-9 * density[h]);
        again += there + 2 * fmax(0, there - 0.5 * pairs * 1.2e-9 * density[h]);
    }
    double attend = 2 * 3e-5 + pairs * (4 * 1e-10 + own * 4.2e-9);
    double exchange = 12 *
                      (2 * (1e-5 + 1e-9 * 32 * 2 * fmax(64 * 2, 64 * 4)) + 1e-11 * 2 * (2 * 64 * 6 * 32 * 2));
    double features = 1e-5 + 1e-9 * 2 * 32 * fmax(192 * 4, 64 * (2 * 6 - 4));
    double merge = (1 + 3) * 2.0 * 128 * 4 * 32 * (2 + 8) * 1e-11;
    double sequence = 1e-5 + 2e-9 * others * 4 / 8 + features + seen + merge;
    check_seconds(times.total, attend + exchange + sequence); /* the rank with four sparse heads is slower */
    check_seconds(times.attend, attend);
    check_seconds(times.heads, exchange);
    check_seconds(times.sequence, sequence);
    shape.recompute = true; /* one more forward pass; 4 tensors and the rows travel once less */
    dsvi_cp_times(&costs, &shape, &block, &plan, &times);
    check_seconds(times.heads, exchange);
    check_seconds(times.sequence, sequence - seen + again + merge / 4);
}

/* 1 x 4 over lists with a tail: keys travel as in dense attention, and features as over lists. Attention
 * costs as much as over lists, in four calls. */
static void test_lists_with_tail(void **state)
{
    (void)state;
    const double density[HEADS] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    const DsviCpBlock lists = {.density = density, .spread = 0.5}, dense = {.spread = 0.5};
    DsviCpPlan plan = plan_of(1, 4, in_order, all_at_once);
    DsviCpTimes times, of_dense;
    make_costs(&costs);
    costs.beside = false;
    shape.tail = true;
    for (int recompute = 0; recompute < 2; recompute++) {
        shape.recompute = recompute;
        dsvi_cp_times(&costs, &shape, &dense, &plan, &of_dense);
        dsvi_cp_times(&costs, &shape, &lists, &plan, &times);
        double features = 1e-5 + 1e-9 * 2 * 32 * fmax(192 * 6, 64 * (4 * 6 - 6));
        double forward = 1 + recompute, pairs = 6 * 2.0 * 64 * 256;
        check_seconds(times.sequence, of_dense.sequence + features);
        check_seconds(times.attend,
                      4 * (forward * 1e-5 + 2e-5) + pairs * (1e-10 + 0.5 * (forward * 1.2e-9 + 3e-9)));
        assert_int_equal(times.memory, of_dense.memory + 2 * 256 * 6 * 32);
    }
}

/* 2 x 2: the time that training of the predictor adds to a dense block and to a block over lists. */
static void test_predictor_training(void **state)
{
    (void)state;
    const double density[HEADS] = {0.25, 0.125, 0.125, 0.25, 0.25, 0.0625};
    DsviCpCosts costs;
    DsviCpPlan plan = plan_of(2, 4, in_order, uneven);
    make_costs(&costs);
    for (int lists = 0; lists < 2; lists++) {
        DsviCpShape shape = four_ranks();
        const DsviCpBlock block = {.density = lists ? density : NULL, .spread = 0.5};
        DsviCpTimes untaught, taught;
        dsvi_cp_times(&costs, &shape, &block, &plan, &untaught);
        shape.taught = 8 * 16;
        dsvi_cp_times(&costs, &shape, &block, &plan, &taught);
        double busiest = 64 * 4; /* max(S_own (N - c), (T - S_own) c) with c = 4 */
        double key = 2 * (1e-5 + 1e-9 * 32 * 2 * busiest) + 1e-11 * 2 * (2 * 64 * 6 * 32 * 2);
        double features = 2 * (1e-5 + 1e-9 * 128 * busiest) + 1e-11 * 2 * (2 * 64 * 6 * 128);
        double column = 2 * (3e-5 + 2e-9 * 128 * 4 * (32 * 2 + 2 * 128)); /* of two samples */
        check_seconds(taught.heads - untaught.heads, 2 * features + (lists ? 0 : 2 * key));
        check_seconds(taught.sequence - untaught.sequence, column);
        check_seconds(taught.attend, untaught.attend);
    }
}

/* Returns the smallest time over all degrees and all placements. */
static double best_of_all(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block)
{
    double best = INFINITY;
    for (int64_t head_ranks = 1; head_ranks <= shape->ranks && head_ranks <= shape->heads; head_ranks++) {
        int32_t rank[HEADS] = {0};
        int64_t h = shape->ranks % head_ranks ? shape->heads : 0;
        while (h < shape->heads) {
            int32_t placement[HEADS];
            int64_t bound[RANKS_MAX + 1] = {0}, filled = 0;
            bool whole = true;
            for (int64_t r = 0; r < head_ranks; r++) {
                for (int64_t i = 0; i < shape->heads; i++)
                    if (rank[i] == r)
                        placement[filled++] = (int32_t)i;
                bound[r + 1] = filled;
                whole = whole && bound[r + 1] > bound[r];
            }
            DsviCpPlan plan = plan_of(head_ranks, shape->ranks, placement, bound);
            DsviCpTimes times = {.total = INFINITY};
            if (whole)
                dsvi_cp_times(costs, shape, block, &plan, &times);
            best = fmin(best, times.total);
            for (h = 0; h < shape->heads && ++rank[h] == head_ranks; h++)
                rank[h] = 0;
        }
    }
    return best;
}

typedef struct Room {
    int32_t placement[DSVI_PLACED_HEADS_MAX];
    int64_t bound[DSVI_PLACED_HEADS_MAX + 1];
    DsviCpChoice choice;
} Room;

static void make_room(Room *room)
{
    memset(room, 0, sizeof *room);
    room->choice.placement = room->placement;
    room->choice.bound = room->bound;
}

static void check_choice(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                         uint32_t which, int64_t chosen[RANKS_MAX + 1])
{
    Room room;
    DsviCpTimes again;
    make_room(&room);
    double best = best_of_all(costs, shape, block);
    DsviCpChoice *choice = &room.choice;
    if (!isfinite(best)) {
        assert_fails(DSV_E_USAGE, "cannot be shared out", dsvi_cp_choose(costs, shape, block, NULL, choice));
        return;
    }
    assert_ok(dsvi_cp_choose(costs, shape, block, NULL, choice));
    assert_true(choice->changed && isnan(choice->present.total));
    if (!(choice->times.total <= best * (1 + SLACK) && choice->times.total >= best * (1 - 1e-12)))
        fail_msg("case %u: %.9g, the best is %.9g", which, choice->times.total, best);
    dsvi_cp_times(costs, shape, block, &choice->plan, &again);
    assert_memory_equal(&again, &choice->times, sizeof again);
    chosen[choice->plan.head_ranks]++;
}

/* Random costs and blocks, ranks with different numbers of tokens, with and without limits of memory. */
static void test_best_of_all(void **state)
{
    (void)state;
    const int64_t bound_of_six[] = {0, 48, 96, 144, 176, 208, 240};
    int64_t chosen[RANKS_MAX + 1] = {0};
    for (uint32_t which = 0; which < 60; which++) {
        DsviCpCosts costs;
        DsviRng rng = {9, DSVI_RNG_TEST, which};
        float number[16];
        double density[HEADS];
        DsviCpShape shape = four_ranks();
        make_costs(&costs);
        dsvi_rng_fill_normal(rng, 0, number, 16);
        for (int h = 0; h < HEADS; h++)
            density[h] = fmin(1, 0.1 * exp(number[h]));
        for (int64_t i = 0; i < costs.link_count; i++)
            for (int point = 0; point < 2; point++) {
                costs.link[i].head_exchange.y[point] *= exp(number[8]);
                costs.link[i].sequence_exchange.y[point] *= exp(number[9]);
                costs.link[i].sequence_swap.y[point] *= exp(number[9]);
            }
        costs.beside = which % 2;
        if (which % 3 == 0)
            shape.ranks = 6, shape.bound = bound_of_six, shape.tokens = 240;
        if (which % 5 == 1)
            shape.rows_max = 400;
        if (which % 5 == 2)
            shape.memory_max = (size_t)(1e5 * exp(number[10]));
        const DsviCpBlock block = {.density = which % 4 ? density : NULL, .spread = DSVI_CP_SPREAD};
        check_choice(&costs, &shape, &block, which, chosen);
    }
    assert_true(chosen[1] > 0 && chosen[2] > 0 && chosen[4] > 0); /* all degrees occurred */
}

static void test_allowed_degrees(void **state)
{
    (void)state;
    Room room;
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    const DsviCpBlock block = {.spread = DSVI_CP_SPREAD};
    make_costs(&costs);
    make_room(&room);
    for (int64_t head_ranks = 1; head_ranks <= 4; head_ranks *= 2) {
        shape.head_ranks = head_ranks;
        assert_ok(dsvi_cp_choose(&costs, &shape, &block, NULL, &room.choice));
        assert_int_equal(room.choice.plan.head_ranks, head_ranks);
        assert_int_equal(room.choice.plan.sequence_ranks, 4 / head_ranks);
        assert_int_equal(room.choice.candidates, 1);
    }
    shape.head_ranks = 0;
    costs.link_count = 1; /* groups of 2 ranks only: the costs of 4 x 1 and 1 x 4 are unknown */
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, NULL, &room.choice));
    assert_int_equal(room.choice.plan.head_ranks, 2);
    assert_int_equal(room.choice.candidates, 3);
    shape.rows_max = 128 * 2; /* and three heads of a head group of two ranks exceed rows_max */
    assert_fails(DSV_E_USAGE, "6 heads of 256 tokens cannot be shared out to 4 ranks",
                 dsvi_cp_choose(&costs, &shape, &block, NULL, &room.choice));
    shape.heads = 2; /* fewer heads than ranks: 4 x 1 is no candidate */
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, NULL, &room.choice));
    assert_int_equal(room.choice.candidates, 2);
    const double density[2] = {0.5, 0.5};
    const DsviCpBlock lists = {.density = density};
    costs.attention.lists[0].count = 0; /* the cost of attention over lists is unknown */
    assert_fails(DSV_E_USAGE, "none has a known price",
                 dsvi_cp_choose(&costs, &shape, &lists, NULL, &room.choice));
}

/* Lists can be divided among at most 64 ranks, so with 128 ranks head_ranks is at least 2. */
static void test_limit_of_list_parts(void **state)
{
    (void)state;
    const double density[HEADS] = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1};
    const DsviCpBlock lists = {.density = density}, dense = {.density = NULL};
    static const int64_t of_heads[2] = {1, 2};
    int64_t bound[129];
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    make_costs(&costs);
    for (int64_t i = 0; i <= 128; i++)
        bound[i] = 16 * i;
    shape.ranks = 128, shape.bound = bound, shape.tokens = bound[128];
    for (int64_t ranks = 64; ranks <= 128; ranks *= 2) {
        costs.link[costs.link_count] = costs.link[0];
        costs.link[costs.link_count++].ranks = ranks;
    }
    for (int i = 0; i < 2; i++) {
        DsviCpPrices prices;
        DsviCpShards at = dsvi_cp_shards(&shape, of_heads[i]);
        assert_true(dsvi_cp_prices(&costs, &shape, &dense, &at, &prices));
        assert_true(dsvi_cp_prices(&costs, &shape, &lists, &at, &prices) == (of_heads[i] == 2));
        shape.tail = true; /* no keys are fetched, and the limit does not apply */
        assert_true(dsvi_cp_prices(&costs, &shape, &lists, &at, &prices));
        shape.tail = false;
    }
}

/* The present plan stays if the gain is below DSVI_CP_GAIN_MIN, and is replaced after densities changed. */
static void test_present_plan_stays(void **state)
{
    (void)state;
    Room first, second;
    DsviCpCosts costs;
    DsviCpShape shape = four_ranks();
    char line[512];
    double density[HEADS] = {0.5, 0.1, 0.1, 0.1, 0.1, 0.1};
    const DsviCpBlock block = {.density = density, .spread = DSVI_CP_SPREAD};
    make_costs(&costs);
    for (int pass = 0; pass < DSVI_PASSES; pass++) /* attention decides, not transfers */
        costs.attention.lists[pass].y[1] *= 100;
    make_room(&first);
    make_room(&second);
    shape.head_ranks = 2;
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, NULL, &first.choice));
    dsvi_cp_explain(&first.choice, &block, line, sizeof line);
    assert_non_null(strstr(line, "2 x 2 ranks (heads x tokens), heads 0"));
    assert_null(strstr(line, "as it was"));
    density[5] = 0.101;
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, &first.choice.plan, &second.choice));
    assert_false(second.choice.changed);
    assert_memory_equal(second.placement, first.placement, HEADS * sizeof *first.placement);
    density[0] = 0.1;
    density[5] = 0.5;
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, &first.choice.plan, &second.choice));
    assert_true(second.choice.changed);
    assert_true(second.choice.times.total < (1 - DSVI_CP_GAIN_MIN) * second.choice.present.total);
    dsvi_cp_explain(&second.choice, &block, line, sizeof line);
    assert_non_null(strstr(line, "for lists of density 0.167: "));
    assert_non_null(strstr(line, "; as it was "));
    shape.head_ranks = 1; /* a present plan that is no longer allowed is replaced */
    assert_ok(dsvi_cp_choose(&costs, &shape, &block, &first.choice.plan, &second.choice));
    assert_true(second.choice.changed && second.choice.plan.head_ranks == 1);
}

static void test_heads_as_text(void **state)
{
    (void)state;
    const int32_t placement[HEADS] = {0, 1, 2, 5, 3, 4};
    const int64_t bound[] = {0, 4, HEADS};
    DsviCpPlan plan = plan_of(2, 4, placement, bound);
    char text[64];
    dsvi_cp_heads_text(&plan, text, sizeof text);
    assert_string_equal(text, "0-2 5 | 3-4");
    dsvi_cp_heads_text(&plan, text, 6);
    assert_string_equal(text, "0-2 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve),
        cmocka_unit_test(test_union),
        cmocka_unit_test(test_head_parallel),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_lists_with_tail),
        cmocka_unit_test(test_predictor_training),
        cmocka_unit_test(test_best_of_all),
        cmocka_unit_test(test_allowed_degrees),
        cmocka_unit_test(test_limit_of_list_parts),
        cmocka_unit_test(test_present_plan_stays),
        cmocka_unit_test(test_heads_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
