/* Dense attention of ranks that are threads: every way of sharing it out, in every precision. */
#include "test.h"

#include "context/attend_cases.h"
#include "cpu/cpu.h"

static DsvBackend fast, exact;

static void try_case(const ContextCase *c)
{
    static const struct {
        const DsvBackend *backend;
        DsvDtype act, acc;
    } kinds[] = {{&fast, DSV_F32, DSV_F32}, {&fast, DSV_BF16, DSV_F32}, {&exact, DSV_F64, DSV_F64}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        ContextCase other = *c;
        other.backend = kinds[i].backend;
        other.act = kinds[i].act;
        other.acc = kinds[i].acc;
        check_attend_case(&other);
    }
}

static void like_one_rank(void **state)
{
    (void)state;
    for_context_cases(&fast, try_case);
}

/* ---- a workspace that is too small ---- */

static DsvStatus too_small(DsvContext *context, const ContextCase *c, void *ignored)
{
    const DsvContextAttention args = {.batch = c->batch, .head_dim = c->head_dim, .act = c->act,
                                      .acc = c->acc};
    (void)ignored;
    if (dsvi_context_attend_fwd(context, 0, &args) == DSV_E_SHAPE &&
        strstr(dsv_error_message(), "workspace has 0 bytes"))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "no workspace is not refused: %s", dsv_error_message());
}

static void refused(void **state)
{
    const ContextCase c = {&fast, 2, 1, 16, 1, 2, 8, 1, DSV_F32, DSV_F32, 1, false, true, NULL};
    (void)state;
    run_context(&c, too_small, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(like_one_rank), cmocka_unit_test(refused)};
    assert_ok(dsvi_cpu_open("auto", 1, &fast));
    assert_ok(dsvi_cpu_open("ref", 1, &exact));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&fast);
    dsvi_cpu_close(&exact);
    return failures;
}
