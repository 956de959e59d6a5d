/* Heads on ranks: the exact search against all placements there are, and never worse than longest first. */
#include "test.h"

#include <stdbool.h>

#include "base/rng.h"
#include "context/head_placement.h"

enum { CASES = 200, SMALL_HEADS = 10, SMALL_RANKS = 4 };

/* Numbers from 0 to 1 that follow from their place in a case. */
typedef struct Draw {
    float number[4 * DSV_PLACED_HEADS_MOST];
    int64_t next;
} Draw;

static double draw(Draw *from)
{
    return 0.5 + 0.5 * erf((double)from->number[from->next++] / sqrt(2));
}

static void begin_draw(Draw *from, uint32_t which)
{
    DsvRng rng = {7, DSV_RNG_TEST, which};
    dsvi_rng_fill_normal(rng, 0, from->number, 4 * DSV_PLACED_HEADS_MOST);
    from->next = 0;
}

typedef struct Case {
    double burden[DSV_PLACED_HEADS_MOST];
    double fixed[DSV_PLACED_HEADS_MOST + 1], moved[2][DSV_PLACED_HEADS_MOST + 1];
    DsvRankCost cost;
    DsvPlacementTask task;
} Case;

/* Three kinds by turns: burdens alone; with what an exchange costs, least for even counts; with a ring that
 * attention hides partly. Burdens are skewed as heads are: a few long ones. */
static void make_case(Case *c, uint32_t which, int64_t heads, int64_t ranks)
{
    Draw from;
    begin_draw(&from, which);
    memset(c, 0, sizeof *c);
    for (int64_t h = 0; h < heads; h++)
        c->burden[h] = pow(draw(&from), 3);
    if (which % 7 == 0) /* equal ones, and heads that cost nothing */
        for (int64_t h = 0; h < heads; h++)
            c->burden[h] = (double)(h % 3);
    c->cost = (DsvRankCost){.fixed = c->fixed, .share = {0.3, 0.7}, .hides = 0.75};
    double give = draw(&from), take = draw(&from);
    for (int64_t n = 0; n <= heads && which % 3 > 0; n++)
        c->fixed[n] = 0.1 * fmax(give * (double)(heads - n), take * (double)(n * (ranks - 1)));
    for (int pass = 0; pass < DSV_PASSES && which % 3 == 2; pass++) {
        for (int64_t n = 0; n <= heads; n++)
            c->moved[pass][n] = 0.3 * (double)n * draw(&from);
        c->cost.moved[pass] = c->moved[pass];
    }
    c->task = (DsvPlacementTask){.heads = heads, .ranks = ranks, .burden = c->burden, .cost = &c->cost,
                                 .nodes_most = 10000000};
}

static double brute_force(const DsvPlacementTask *task)
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

static double longest_first(const DsvPlacementTask *task)
{
    int32_t rank[DSV_PLACED_HEADS_MOST];
    double load[DSV_PLACED_HEADS_MOST] = {0};
    bool placed[DSV_PLACED_HEADS_MOST] = {false};
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

static void check_form(const DsvPlacementTask *task, const int32_t *rank)
{
    int32_t next = 0;
    for (int64_t h = 0; h < task->heads; h++) {
        assert_true(rank[h] >= 0 && rank[h] <= next); /* by the first head, without gaps */
        next += rank[h] == next;
    }
    assert_int_equal(next, task->ranks); /* none without */
}

static void test_optimum(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < CASES; which++) {
        Case c;
        int32_t rank[DSV_PLACED_HEADS_MOST];
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

/* With the tries that a plan may spend, and on sizes for which there is no search. */
static void test_never_worse_than_longest_first(void **state)
{
    (void)state;
    const int64_t heads_of[] = {12, 16, 24, 40, 64, 130}, ranks_of[] = {2, 3, 4, 8, 12};
    for (uint32_t which = 0; which < 90; which++) {
        Case c;
        int32_t rank[DSV_PLACED_HEADS_MOST];
        make_case(&c, which, heads_of[which % 6], ranks_of[which / 6 % 5]);
        c.task.nodes_most = 20000;
        c.task.slack = 1e-3;
        double seconds = dsvi_place_heads(&c.task, rank), simple = longest_first(&c.task);
        check_form(&c.task, rank);
        if (!(seconds <= simple * (1 + 1e-12)))
            fail_msg("case %u: %.12g, longest first %.12g", which, seconds, simple);
    }
}

/* DSV's figure 13: 4 heads on 2 GPUs, one straggler when counts are all that is equal. */
static void test_straggler(void **state)
{
    (void)state;
    double zero[5] = {0};
    const double burden[4] = {0.2, 0.18, 0.1, 0.09};
    const DsvRankCost cost = {.fixed = zero};
    const DsvPlacementTask task = {.heads = 4, .ranks = 2, .burden = burden, .cost = &cost,
                                   .nodes_most = 1000};
    const int32_t in_order[4] = {0, 0, 1, 1}, wanted[4] = {0, 1, 1, 0};
    int32_t rank[4];
    assert_true(fabs(dsvi_placement_cost(&task, in_order) - 0.38) < 1e-12);
    assert_true(fabs(dsvi_place_heads(&task, rank) - 0.29) < 1e-12);
    assert_memory_equal(rank, wanted, sizeof rank);
}

/* Counts for which there is no room are not chosen, and where none is left that shows. */
static void test_room(void **state)
{
    (void)state;
    double fixed[7] = {0, 0, 0, 0, INFINITY, INFINITY, INFINITY};
    const double burden[6] = {6, 1, 1, 1, 1, 1};
    const DsvRankCost cost = {.fixed = fixed};
    DsvPlacementTask task = {.heads = 6, .ranks = 2, .burden = burden, .cost = &cost, .nodes_most = 1000};
    int32_t rank[6];
    assert_true(dsvi_place_heads(&task, rank) == 8); /* 6 alone were faster, but 5 heads do not fit */
    fixed[3] = INFINITY;
    assert_true(isinf(dsvi_place_heads(&task, rank)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimum),
        cmocka_unit_test(test_never_worse_than_longest_first),
        cmocka_unit_test(test_straggler),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
