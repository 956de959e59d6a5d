/* Dense attention on ranks that are threads: all factorisations of the ranks, in all precisions. */
#include "test.h"

#include "cp/attend_cases.h"
#include "cpu/cpu.h"

static DsviBackend fast, exact;

static void try_case(const CpCase *c)
{
    static const struct {
        const DsviBackend *backend;
        DsviDtype act, acc;
    } kinds[] = {{&fast, DSVI_F32, DSVI_F32}, {&fast, DSVI_BF16, DSVI_F32}, {&exact, DSVI_F64, DSVI_F64}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        CpCase other = *c;
        other.backend = kinds[i].backend;
        other.act = kinds[i].act;
        other.acc = kinds[i].acc;
        check_attend_case(&other);
    }
}

static void equals_one_rank(void **state)
{
    (void)state;
    for_cp_cases(&fast, try_case);
}

/* ---- a workspace that is too small ---- */

static DsvStatus too_small(DsviCp *cp, const CpCase *c, void *ignored)
{
    const DsviCpAttention args = {.batch = c->batch, .head_dim = c->head_dim, .act = c->act, .acc = c->acc};
    (void)ignored;
    if (dsvi_cp_attend_fwd(cp, 0, &args) == DSV_E_SHAPE &&
        strstr(dsv_error_message(), "workspace has 0 bytes"))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "no workspace is not refused: %s", dsv_error_message());
}

static void refused(void **state)
{
    const CpCase c = {&fast, 2, 1, 16, 1, 2, 8, 1, DSVI_F32, DSVI_F32, 1, false, true, NULL};
    (void)state;
    run_cp(&c, too_small, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_one_rank), cmocka_unit_test(refused)};
    assert_ok(dsvi_cpu_open("auto", 1, &fast));
    assert_ok(dsvi_cpu_open("ref", 1, &exact));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&fast);
    dsvi_cpu_close(&exact);
    return failures;
}
