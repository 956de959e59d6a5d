/* Placement of heads: the exact search against all placements, and never worse than greedy longest first. */
#include "test.h"

#include <stdbool.h>

#include "base/rng.h"
#include "cp/head_placement.h"

enum { CASES = 200, SMALL_HEADS = 10, SMALL_RANKS = 4 };

/* Pseudo-random numbers from 0 to 1. */
typedef struct Draw {
    float number[4 * DSVI_PLACED_HEADS_MAX];
    int64_t next;
} Draw;

static double draw(Draw *from)
{
    return 0.5 + 0.5 * erf((double)from->number[from->next++] / sqrt(2));
}

static void begin_draw(Draw *from, uint32_t which)
{
    DsviRng rng = {7, DSVI_RNG_TEST, which};
    dsvi_rng_fill_normal(rng, 0, from->number, 4 * DSVI_PLACED_HEADS_MAX);
    from->next = 0;
}

typedef struct Case {
    double burden[DSVI_PLACED_HEADS_MAX];
    double fixed[DSVI_PLACED_HEADS_MAX + 1], moved[2][DSVI_PLACED_HEADS_MAX + 1];
    DsviRankCost cost;
    DsviPlacementTask task;
} Case;

/* Generates a case, one of three kinds in turn: burdens only; also an exchange that is fastest with equal
 * counts; also ring transfers that attention hides partly. As in real models, a few heads have large
 * burdens. */
static void make_case(Case *c, uint32_t which, int64_t heads, int64_t ranks)
{
    Draw from;
    begin_draw(&from, which);
    memset(c, 0, sizeof *c);
    for (int64_t h = 0; h < heads; h++)
        c->burden[h] = pow(draw(&from), 3);
    if (which % 7 == 0) /* equal burdens, and burdens of 0 */
        for (int64_t h = 0; h < heads; h++)
            c->burden[h] = (double)(h % 3);
    c->cost = (DsviRankCost){.fixed = c->fixed, .share = {0.3, 0.7}, .hides = 0.75};
    double give = draw(&from), take = draw(&from);
    for (int64_t n = 0; n <= heads && which % 3 > 0; n++)
        c->fixed[n] = 0.1 * fmax(give * (double)(heads - n), take * (double)(n * (ranks - 1)));
    for (int pass = 0; pass < DSVI_PASSES && which % 3 == 2; pass++) {
        for (int64_t n = 0; n <= heads; n++)
            c->moved[pass][n] = 0.3 * (double)n * draw(&from);
        c->cost.moved[pass] = c->moved[pass];
    }
    c->task = (DsviPlacementTask){
        .heads = heads, .ranks = ranks, .burden = c->burden, .cost = &c->cost, .nodes_max = 10000000};
}

static double brute_force(const DsviPlacementTask *task)
{
    int32_t rank[SMALL_HEADS] = {0};
    double best = INFINITY;
    for (;;) {
        bool has[SMALL_RANKS] = {false};
        int64_t h = 0, used = 0;
        for (int64_t i = 0; i < task->heads; i++) {
            used += !has[rank[i]];
            has[rank[i]] = true;
        }
        if (used == task->ranks)
            best = fmin(best, dsvi_placement_cost(task, rank));
        while (h < task->heads && ++rank[h] == task->ranks)
            rank[h++] = 0;
        if (h == task->heads)
            return best;
    }
}

static double longest_first(const DsviPlacementTask *task)
{
    int32_t rank[DSVI_PLACED_HEADS_MAX];
    double load[DSVI_PLACED_HEADS_MAX] = {0};
    bool placed[DSVI_PLACED_HEADS_MAX] = {false};
    for (int64_t i = 0; i < task->heads; i++) {
        int64_t head = -1, to = 0;
        for (int64_t h = 0; h < task->heads; h++)
            if (!placed[h] && (head < 0 || task->burden[h] > task->burden[head]))
                head = h;
        for (int64_t r = 1; r < task->ranks && i >= task->ranks; r++)
            if (load[r] < load[to])
                to = r;
        to = i < task->ranks ? i : to;
        placed[head] = true;
        rank[head] = (int32_t)to;
        load[to] += task->burden[head];
    }
    return dsvi_placement_cost(task, rank);
}

static void check_form(const DsviPlacementTask *task, const int32_t *rank)
{
    int32_t next = 0;
    for (int64_t h = 0; h < task->heads; h++) {
        assert_true(rank[h] >= 0 && rank[h] <= next); /* numbered by first head, without gaps */
        next += rank[h] == next;
    }
    assert_int_equal(next, task->ranks); /* no rank without heads */
}

static void test_optimum(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < CASES; which++) {
        Case c;
        int32_t rank[DSVI_PLACED_HEADS_MAX];
        int64_t ranks = 1 + which % SMALL_RANKS;
        int64_t heads = ranks + which / SMALL_RANKS % (SMALL_HEADS - ranks + 1);
        make_case(&c, which, heads, ranks);
        double seconds = dsvi_place_heads(&c.task, rank), best = brute_force(&c.task);
        check_form(&c.task, rank);
        assert_true(fabs(seconds - dsvi_placement_cost(&c.task, rank)) <= 1e-9 * seconds);
        if (!(fabs(seconds - best) <= 1e-9 * best))
            fail_msg("case %u, %lld heads, %lld ranks: %.12g, the best is %.12g", which, (long long)heads,
                     (long long)ranks, seconds, best);
    }
}

/* With the node limit that plans use, and with sizes for which no exact search exists. */
static void test_never_worse_than_longest_first(void **state)
{
    (void)state;
    const int64_t heads_of[] = {12, 16, 24, 40, 64, 130}, ranks_of[] = {2, 3, 4, 8, 12};
    for (uint32_t which = 0; which < 90; which++) {
        Case c;
        int32_t rank[DSVI_PLACED_HEADS_MAX];
        make_case(&c, which, heads_of[which % 6], ranks_of[which / 6 % 5]);
        c.task.nodes_max = 20000;
        c.task.slack = 1e-3;
        double seconds = dsvi_place_heads(&c.task, rank), simple = longest_first(&c.task);
        check_form(&c.task, rank);
        if (!(seconds <= simple * (1 + 1e-12)))
            fail_msg("case %u: %.12g, longest first %.12g", which, seconds, simple);
    }
}

/* Figure 13 of the DSV paper: 4 heads on 2 GPUs; with equal counts one GPU is slower. */
static void test_straggler(void **state)
{
    (void)state;
    double zero[5] = {0};
    const double burden[4] = {0.2, 0.18, 0.1, 0.09};
    const DsviRankCost cost = {.fixed = zero};
    const DsviPlacementTask task = {
        .heads = 4, .ranks = 2, .burden = burden, .cost = &cost, .nodes_max = 1000};
    const int32_t in_order[4] = {0, 0, 1, 1}, expected[4] = {0, 1, 1, 0};
    int32_t rank[4];
    assert_true(fabs(dsvi_placement_cost(&task, in_order) - 0.38) < 1e-12);
    assert_true(fabs(dsvi_place_heads(&task, rank) - 0.29) < 1e-12);
    assert_memory_equal(rank, expected, sizeof rank);
}

/* Counts of heads that exceed memory are not chosen; if none remains, the result is INFINITY. */
static void test_memory_limits(void **state)
{
    (void)state;
    double fixed[7] = {0, 0, 0, 0, INFINITY, INFINITY, INFINITY};
    const double burden[6] = {6, 1, 1, 1, 1, 1};
    const DsviRankCost cost = {.fixed = fixed};
    DsviPlacementTask task = {.heads = 6, .ranks = 2, .burden = burden, .cost = &cost, .nodes_max = 1000};
    int32_t rank[6];
    assert_true(dsvi_place_heads(&task, rank) == 8); /* head 0 alone: faster, but 5 heads do not fit */
    fixed[3] = INFINITY;
    assert_true(isinf(dsvi_place_heads(&task, rank)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimum),
        cmocka_unit_test(test_never_worse_than_longest_first),
        cmocka_unit_test(test_straggler),
        cmocka_unit_test(test_memory_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
