/* Checks all CPU variants of attention and of the other operations of sparse attention
 * (sparse_case_group.c). */
#include "cpu/levels.h"
#include "ops/attention_problem.h"
#include "ops/case_groups.h"
#include "ops/check.h"
#include "test.h"

/* Runs forward and backward, each with a workspace of the size that it requests. */
static void attend(AttentionProblem *problem)
{
    const DsviOps *ops = &level_backend.ops;
    DsviAttentionArgs *args = &problem->args;
    size_t fwd = (args->lists ? ops->attention_list_fwd.workspace : ops->attention_fwd.workspace)(NULL, args);
    size_t bwd = (args->lists ? ops->attention_list_bwd.workspace : ops->attention_bwd.workspace)(NULL, args);
    args->workspace_bytes = fwd > bwd ? fwd : bwd;
    args->workspace = malloc(args->workspace_bytes);
    assert_non_null(args->workspace);
    assert_ok((args->lists ? ops->attention_list_fwd.run : ops->attention_fwd.run)(NULL, args));
    assert_ok((args->lists ? ops->attention_list_bwd.run : ops->attention_bwd.run)(NULL, args));
    free(args->workspace);
}

static double difference(const AttentionProblem *a, const DsviHeads *a_rows, const AttentionProblem *b,
                         const DsviHeads *b_rows, int64_t tokens)
{
    double *x = attention_problem_rows(a, a_rows, tokens), *y = attention_problem_rows(b, b_rows, tokens);
    double error = relative_l2(DSVI_F64, x, DSVI_F64, y,
                               a->args.batch * tokens * a->args.heads * a->args.head_dim);
    free(x);
    free(y);
    return error;
}

/* With full lists, keys are processed in the order and in the tiles of dense attention, so that out and lse
 * have the same bits. In the backward pass the groups decide the order of sums of some hundred terms. */
static void full_lists_are_dense(void **state)
{
    (void)state;
    for (int64_t grain = 1; grain <= 65; grain += 8) {
        AttentionShape shape = {.batch = 1,
                                .heads = 2,
                                .queries = 150,
                                .keys = 500,
                                .head_dim = 40,
                                .group = 48,
                                .grain = grain,
                                .density = 1,
                                .logit = 2};
        AttentionProblem sparse, dense;
        attention_problem_create(&sparse, &shape, DSVI_F32, DSVI_F32, 1);
        attention_problem_create(&dense, &shape, DSVI_F32, DSVI_F32, 1);
        dense.args.lists = NULL;
        attend(&sparse);
        attend(&dense);
        assert_true(difference(&sparse, &sparse.args.out, &dense, &dense.args.out, 150) == 0);
        assert_memory_equal(sparse.args.lse, dense.args.lse, 2 * 150 * sizeof(float));
        assert_error_below(difference(&sparse, &sparse.args.dq, &dense, &dense.args.dq, 150), 1e-6, "dq");
        assert_error_below(difference(&sparse, &sparse.args.dk, &dense, &dense.args.dk, 500), 1e-6, "dk");
        assert_error_below(difference(&sparse, &sparse.args.dv, &dense, &dense.args.dv, 500), 1e-6, "dv");
        attention_problem_free(&sparse);
        attention_problem_free(&dense);
    }
}

/* NaN must reach the results, so that diverged training is noticed: NaN in one key makes the output NaN for
 * each query that attends to this key, and for no other query. */
static void nan_reaches_results(void **state)
{
    (void)state;
    AttentionShape shape = {.batch = 1,
                            .heads = 1,
                            .queries = 40,
                            .keys = 100,
                            .head_dim = 32,
                            .group = 8,
                            .grain = 1,
                            .density = 0.5,
                            .logit = 1};
    AttentionProblem problem;
    int spoilt = 0;
    attention_problem_create(&problem, &shape, DSVI_F32, DSVI_F32, 1);
    ((float *)problem.args.k.data)[dsvi_heads_at(&problem.args.k, 0, 70, 0) + 5] = NAN;
    attend(&problem);
    for (int64_t i = 0; i < shape.queries; i++) {
        DsviList list = dsvi_list_of(problem.args.lists, shape.keys, 0, 0, i);
        float out = ((float *)problem.args.out.data)[dsvi_heads_at(&problem.args.out, 0, i, 0)];
        float dq = ((float *)problem.args.dq.data)[dsvi_heads_at(&problem.args.dq, 0, i, 0)];
        bool attends = dsvi_list_contains(&list, 70);
        assert_true(isnan(out) == attends && isnan(dq) == attends);
        assert_true(isnan(((float *)problem.args.lse)[i]) == attends);
        spoilt += attends;
    }
    assert_true(spoilt > 0 && spoilt < shape.queries);
    attention_problem_free(&problem);
}

static void refusals(void **state)
{
    (void)state;
    AttentionShape shape = {.batch = 1,
                            .heads = 1,
                            .queries = 4,
                            .keys = 6,
                            .head_dim = 32,
                            .group = 2,
                            .grain = 1,
                            .density = 1};
    AttentionProblem problem;
    attention_problem_create(&problem, &shape, DSVI_F32, DSVI_F32, 1);
    problem.own_lists.capacity = 11;
    assert_fails(DSV_E_SHAPE, "have 12 spans, but their memory holds 11",
                 level_backend.ops.attention_list_fwd.run(NULL, &problem.args));
    problem.args.lists = NULL;
    assert_fails(DSV_E_SHAPE, "workspace has 0 bytes",
                 level_backend.ops.attention_fwd.run(NULL, &problem.args));
    assert_fails(DSV_E_SHAPE, "workspace has 0 bytes",
                 level_backend.ops.attention_bwd.run(NULL, &problem.args));
    problem.args.act = DSVI_F64;
    assert_fails(DSV_E_UNSUPPORTED, "not F64", level_backend.ops.attention_fwd.run(NULL, &problem.args));
    attention_problem_free(&problem);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_lists_are_dense),
        cmocka_unit_test(nan_reaches_results),
        cmocka_unit_test(refusals),
    };
    int failures = run_sparse_cases(&level_backend);
    return failures + cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    check_keep_results();
    return run_levels(DSVI_ISA_BASE, run);
}
