/* The planner on ranks that are threads: all ranks set the same plans, and changed plans are logged. */
#include "test.h"

#include "cp/cp_planner.h"
#include "cpu/cpu.h"
#include "dist/local_ranks.h"

enum { BLOCKS = 4, HEADS = 6, TOKENS = 256, LINES_MAX = 16 };

static DsviBackend backend;

typedef struct Heard {
    int count;
    char line[LINES_MAX][1100];
} Heard;

static Heard heard[RANKS_MAX];

static void hear(void *context, const char *line)
{
    Heard *h = context;
    if (h->count < LINES_MAX)
        snprintf(h->line[h->count], sizeof h->line[0], "%s", line);
    h->count++;
}

/* Attention is slow and links are fast, so that the placement of heads decides. */
static void make_costs(DsviCpCosts *costs)
{
    memset(costs, 0, sizeof *costs);
    costs->attention = (DsviAttentionCost){.dense = {1e-7, 2e-7}};
    for (int i = 0; i < 2; i++)
        for (int pass = 0; pass < DSVI_PASSES; pass++)
            dsvi_price_add(&costs->attention.lists[pass], i, 1e-7 * i);
    for (int64_t ranks = 2; ranks <= 4; ranks += 2) {
        DsviLinkCost *link = &costs->link[costs->link_count++];
        link->ranks = ranks;
        dsvi_price_add(&link->head_exchange, 1, 1e-6);
        dsvi_price_add(&link->sequence_exchange, 1, 1e-4);
        dsvi_price_add(&link->sequence_swap, 1, 1e-4);
    }
}

static bool begins(const char *text, const char *words)
{
    return strncmp(text, words, strlen(words)) == 0;
}

static bool is_plan(const DsviCpPlan *plan, const int32_t *placement, const int64_t *bound)
{
    return memcmp(plan->placement, placement, HEADS * sizeof *placement) == 0 &&
           memcmp(plan->bound, bound, (size_t)(plan->head_ranks + 1) * sizeof *bound) == 0;
}

static DsvStatus first_plans(DsviCp *cp, DsviCpPlanner *planner, DsviCpBlock *block, Heard *h)
{
    static const int32_t placement[HEADS] = {0, 1, 2, 4, 3, 5};
    static const int64_t bound[] = {0, 1, 2, 4, HEADS};
    DSVI_TRY(dsvi_cp_planner_update(planner, block));
    MUST(h->count == 2);
    MUST(begins(h->line[0], "blocks 0 to 1: 4 x 1 ranks (heads x tokens), heads "));
    MUST(strstr(h->line[0], "for dense attention: "));
    MUST(begins(h->line[1], "blocks 2 to 3: 4 x 1 ranks (heads x tokens), heads 0 | 1 | 2 4 | 3 5, "
                            "for lists of density 0.233: "));
    MUST(is_plan(dsvi_cp_plan(cp, 2), placement, bound));
    MUST(dsvi_cp_planner_expected(planner, 2)->total > 0);
    DSVI_TRY(dsvi_cp_planner_update(planner, block));
    MUST(h->count == 2); /* no density has changed */
    return DSV_OK;
}

static DsvStatus later_plans(DsviCp *cp, DsviCpPlanner *planner, DsviCpBlock *block, Heard *h)
{
    static const double moved[HEADS] = {0.1, 0.1, 0.1, 0.1, 0.5, 0.5};
    static const int32_t placement[HEADS] = {0, 2, 1, 3, 4, 5};
    static const int64_t bound[] = {0, 2, 4, 5, HEADS};
    block[3].density = moved;
    DSVI_TRY(dsvi_cp_planner_update(planner, block));
    MUST(h->count == 3);
    MUST(begins(h->line[2], "block 3: 4 x 1 ranks") && strstr(h->line[2], "; as it was "));
    MUST(is_plan(dsvi_cp_plan(cp, 3), placement, bound));
    double seconds[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
        seconds[b] = dsvi_cp_planner_expected(planner, b)->total * (b == 2 ? 3 : 1.5);
    dsvi_cp_planner_compare(planner, seconds);
    MUST(h->count == 4 && strstr(h->line[3], "furthest off is block 2, "));
    return DSV_OK;
}

static DsvStatus plans(DsviCp *cp, Heard *h)
{
    static const double density[HEADS] = {0.5, 0.5, 0.1, 0.1, 0.1, 0.1};
    DsviCpCosts costs;
    DsviCpBlock block[BLOCKS] = {{0}, {0}, {density, DSVI_CP_SPREAD}, {density, DSVI_CP_SPREAD}};
    const DsviCpShape shape = {
        .batch = 1, .head_dim = 32, .element = 2, .group = 16, .grain = 1, .backward = true};
    DsviCpPlanner *planner;
    make_costs(&costs);
    DSVI_TRY(dsvi_cp_planner_create(cp, &costs, &shape, hear, h, &planner));
    DsvStatus status = first_plans(cp, planner, block, h);
    if (status == DSV_OK)
        status = later_plans(cp, planner, block, h);
    dsvi_cp_planner_free(&planner);
    return status;
}

static DsvStatus on_rank(DsviComm *comm, void *unused)
{
    const DsviCpClip shape = {.tokens = TOKENS,
                              .heads = HEADS,
                              .unit = 16,
                              .blocks = BLOCKS,
                              .head_ranks = 4,
                              .rows_max = TOKENS * 4};
    DsviCpGroup *group;
    DsviCp *cp = NULL;
    (void)unused;
    DSVI_TRY(dsvi_cp_group_create(&backend, comm, 0, &group));
    DsvStatus status = dsvi_cp_create(group, &shape, &cp);
    if (status == DSV_OK)
        status = plans(cp, &heard[dsvi_comm_rank(comm)]);
    dsvi_cp_free(&cp);
    dsvi_cp_group_close(&group);
    return dsvi_comm_fail(comm, status);
}

static void test_planner(void **state)
{
    (void)state;
    run_ranks_well(4, on_rank, NULL);
    for (int r = 1; r < 4; r++) {
        assert_int_equal(heard[r].count, heard[0].count);
        assert_memory_equal(heard[r].line, heard[0].line, sizeof heard[0].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner),
    };
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
