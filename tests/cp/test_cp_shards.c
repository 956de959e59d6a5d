/* Which tokens and heads each rank has under a plan, and errors for invalid plans and shapes. */
#include "test.h"

#include "cp/cp_internal.h"
#include "cpu/cpu.h"
#include "dist/local_ranks.h"

static DsviBackend backend;

#define REFUSED(words, call)                                                                        \
    do {                                                                                            \
        DsvStatus refused = (call);                                                                 \
        if (refused != DSV_E_USAGE || !strstr(dsv_error_message(), (words)))                        \
            return DSVI_FAIL(DSV_E_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, dsv_error_message()); \
    } while (0)

typedef DsvStatus group_fn(DsviCpGroup *group);

static DsvStatus with_group(DsviComm *comm, void *fn)
{
    DsviCpGroup *group;
    DSVI_TRY(dsvi_cp_group_create(&backend, comm, 0, &group));
    DsvStatus status = (*(group_fn **)fn)(group);
    dsvi_cp_group_close(&group);
    return dsvi_comm_fail(comm, status);
}

static void on_ranks(int64_t ranks, group_fn *fn)
{
    run_ranks_well(ranks, with_group, &fn);
}

static DsvStatus check_parts(const DsviCp *c, int64_t rank)
{
    static const int64_t first[] = {0, 8, 24, 32, 48};
    DsviCpPart part = dsvi_cp_part(c, 0);
    MUST(dsvi_cp_first(c) == first[rank] &&
         dsvi_cp_tokens(c) == (rank == 3 ? 45 : first[rank + 1]) - first[rank]);
    MUST(part.head_ranks == 4 && part.sequence_ranks == 1 && part.head_index == rank);
    MUST(part.first == 0 && part.tokens == 45 && part.bound[0] == 0 && part.bound[1] == 45);
    MUST(part.heads == (rank == 3 ? 2 : 1) && part.head[0] == rank);
    MUST(dsvi_comm_size(part.head_device) == 4 && dsvi_comm_rank(part.head_device) == rank);
    MUST(!part.sequence_device && !part.sequence_host);
    return DSV_OK;
}

static DsvStatus check_square(DsviCp *c, int64_t rank)
{
    static const int32_t placement[] = {3, 1, 4, 0, 2};
    static const int64_t bound[] = {0, 2, 5};
    const DsviCpPlan plan = {2, 2, placement, bound};
    DSVI_TRY(dsvi_cp_set_plan(c, 1, &plan));
    DsviCpPart part = dsvi_cp_part(c, 1);
    MUST(part.head_index == rank % 2 && part.sequence_index == rank / 2);
    MUST(part.first == (rank < 2 ? 0 : 24) && part.tokens == (rank < 2 ? 24 : 21));
    MUST(part.bound[0] == 0 && part.bound[1] == 24 && part.bound[2] == 45);
    MUST(part.heads == (rank % 2 ? 3 : 2) && part.head[0] == (rank % 2 ? 4 : 3));
    MUST(dsvi_comm_rank(part.head_device) == rank % 2 && dsvi_comm_size(part.head_device) == 2);
    MUST(dsvi_comm_rank(part.sequence_host) == rank / 2 && dsvi_comm_size(part.sequence_host) == 2);
    DSVI_TRY(dsvi_cp_set_even_plan(c, 1, 1));
    part = dsvi_cp_part(c, 1);
    MUST(!part.head_device && dsvi_comm_size(part.sequence_device) == 4 && part.heads == 5);
    MUST(part.tokens == dsvi_cp_tokens(c) && part.first == dsvi_cp_first(c));
    return DSV_OK;
}

/* 45 tokens are six units of 8 tokens, the last one short, divided among four ranks. */
static DsvStatus four_ranks(DsviCpGroup *group)
{
    const DsviCpClip shape = {.tokens = 45, .heads = 5, .unit = 8, .blocks = 2};
    DsviCp *c;
    DSVI_TRY(dsvi_cp_create(group, &shape, &c));
    DsvStatus status = check_parts(c, dsvi_cp_group_rank(group));
    if (status == DSV_OK)
        status = check_square(c, dsvi_cp_group_rank(group));
    dsvi_cp_free(&c);
    return status;
}

static void parts_of_four(void **state)
{
    (void)state;
    on_ranks(4, four_ranks);
}

static DsvStatus alone_group(DsviCpGroup *group)
{
    const DsviCpClip shape = {.tokens = 45, .heads = 5, .unit = 64, .blocks = 1};
    DsviCp *c;
    DSVI_TRY(dsvi_cp_create(group, &shape, &c));
    DsviCpPart part = dsvi_cp_part(c, 0);
    bool whole = part.heads == 5 && part.tokens == 45 && !part.head_device && !part.sequence_device &&
                 dsvi_cp_tokens(c) == 45;
    dsvi_cp_free(&c);
    MUST(whole);
    return DSV_OK;
}

static void alone(void **state)
{
    group_fn *fn = alone_group;
    (void)state;
    on_ranks(1, alone_group);
    assert_ok(with_group(NULL, &fn));
}

/* With a fixed head_ranks only its communicators are created. */
static DsvStatus one_degree(DsviComm *comm, void *nothing)
{
    const DsviCpClip shape = {.tokens = 45, .heads = 5, .unit = 8, .blocks = 1};
    DsviCpGroup *group;
    DsviCp *c = NULL;
    DsvStatus status;
    (void)nothing;
    DSVI_TRY(dsvi_cp_group_create(&backend, comm, 2, &group));
    EXPECT(group->factors == 1);
    DSVI_TRY_GOTO(status, dsvi_cp_create(group, &shape, &c), done);
    EXPECT(dsvi_cp_part(c, 0).head_ranks == 2 && dsvi_cp_part(c, 0).sequence_ranks == 2);
    EXPECT(dsvi_cp_set_even_plan(c, 0, 4) == DSV_E_USAGE &&
           strstr(dsv_error_message(), "a plan has 4 head-parallel ranks, but the groups were made for 2"));
done:
    dsvi_cp_free(&c);
    dsvi_cp_group_close(&group);
    return status;
}

static void groups_of_one_degree(void **state)
{
    (void)state;
    run_ranks_well(4, one_degree, NULL);
}

static DsvStatus bad_shapes(DsviCpGroup *group)
{
    DsviCp *c;
    DsviCpClip shape = {.tokens = 40, .heads = 2, .unit = 16, .blocks = 1};
    REFUSED("too few for 4 ranks", dsvi_cp_create(group, &shape, &c));
    MUST(!c);
    shape.unit = 8;
    shape.head_ranks = 4;
    REFUSED("2 heads are too few for 4", dsvi_cp_create(group, &shape, &c));
    shape.head_ranks = 3;
    REFUSED("do not divide", dsvi_cp_create(group, &shape, &c));
    return DSV_OK;
}

static DsvStatus bad_plans_of(DsviCp *c)
{
    static const int32_t good[] = {0, 1, 2, 3}, twice[] = {0, 1, 1, 3}, beyond[] = {0, 1, 2, 4};
    static const int64_t even[] = {0, 2, 4}, none[] = {0, 0, 4}, more[] = {0, 1, 4}, part[] = {0, 2, 3};
    const struct {
        const char *words;
        DsviCpPlan plan;
    } bad[] = {
        {"has head 1 twice", {2, 1, twice, even}}, {"head 4 of 4", {2, 1, beyond, even}},
        {"rank 0 no head", {2, 1, good, none}},    {"rank 1 3 heads of 40 tokens", {2, 1, good, more}},
        {"heads 0 to 3 of 4", {2, 1, good, part}}, {"2 x 2 ranks", {2, 2, good, even}},
        {"do not divide", {3, 1, good, even}},     {"1 head-parallel ranks, and 2", {1, 2, good, even}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        REFUSED(bad[i].words, dsvi_cp_set_plan(c, 0, &bad[i].plan));
        MUST(dsvi_cp_plan(c, 0)->head_ranks == 2 && dsvi_cp_plan(c, 0)->placement[3] == 3);
    }
    return DSV_OK;
}

static DsvStatus bad_plans(DsviCpGroup *group)
{
    const DsviCpClip shape = {.tokens = 40, .heads = 4, .unit = 8, .blocks = 1, .head_ranks = 2};
    DsviCp *c;
    DSVI_TRY(dsvi_cp_create(group, &shape, &c));
    DsvStatus status = bad_plans_of(c);
    dsvi_cp_free(&c);
    return status;
}

static void refused(void **state)
{
    (void)state;
    on_ranks(4, bad_shapes);
    on_ranks(2, bad_plans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_four), cmocka_unit_test(alone),
                                       cmocka_unit_test(refused), cmocka_unit_test(groups_of_one_degree)};
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&backend);
    return failures;
}
