/* The reference implementation of attention against independent formulas, against itself (full lists, finite
 * differences) and in cases whose result is known. */
#include "ops/attention.h"

#include "ops/attention_problem.h"
#include "test.h"

static const AttentionShape SHAPES[] = {
    {.batch = 2, .heads = 2, .queries = 7, .keys = 9, .head_dim = 4, .logit = 2},
    {.batch = 1,
     .heads = 3,
     .queries = 10,
     .keys = 13,
     .head_dim = 6,
     .logit = 2,
     .group = 4,
     .grain = 1,
     .density = 0.4},
    {.batch = 2,
     .heads = 1,
     .queries = 9,
     .keys = 11,
     .head_dim = 4,
     .logit = 2,
     .group = 2,
     .grain = 3,
     .density = -0.6},
    {.batch = 1,
     .heads = 1,
     .queries = 5,
     .keys = 8,
     .head_dim = 2,
     .logit = 2,
     .group = 3,
     .grain = 4,
     .density = 1},
    {.batch = 1, .heads = 1, .queries = 1, .keys = 1, .head_dim = 2, .logit = 1},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof SHAPES[0] };

/* Returns whether a query's list has the key. Compares the key's span with each entry of the list, without
 * the functions dsvi_list_*. */
static bool listed(const DsviLists *lists, int64_t b, int64_t h, int64_t query, int64_t key)
{
    if (!lists)
        return true;
    int64_t n = (b * lists->heads + h) * lists->groups + query / lists->group;
    for (int64_t at = lists->offsets[n]; at < lists->offsets[n + 1]; at++)
        if (lists->spans[at] == key / lists->grain)
            return true;
    return false;
}

/* Computes out and lse from whole rows of weights, without subtracting the largest score. */
static void forward_by_hand(const AttentionProblem *c, double *out, double *lse)
{
    const DsviAttentionArgs *a = &c->args;
    double *q = attention_problem_rows(c, &a->q, a->queries), *k = attention_problem_rows(c, &a->k, a->keys);
    double *v = attention_problem_rows(c, &a->v, a->keys);
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            for (int64_t i = 0; i < a->queries; i++) {
                double total = 0;
                double *row = out + ((b * a->queries + i) * a->heads + h) * a->head_dim;
                memset(row, 0, (size_t)a->head_dim * sizeof *row);
                for (int64_t j = 0; j < a->keys; j++) {
                    double score = 0;
                    if (!listed(a->lists, b, h, i, j))
                        continue;
                    for (int64_t d = 0; d < a->head_dim; d++)
                        score += q[((b * a->queries + i) * a->heads + h) * a->head_dim + d] *
                                 k[((b * a->keys + j) * a->heads + h) * a->head_dim + d];
                    total += exp(score * a->scale);
                    for (int64_t d = 0; d < a->head_dim; d++)
                        row[d] += exp(score * a->scale) *
                                  v[((b * a->keys + j) * a->heads + h) * a->head_dim + d];
                }
                for (int64_t d = 0; d < a->head_dim; d++)
                    row[d] = total > 0 ? row[d] / total : 0;
                lse[(b * a->heads + h) * a->queries + i] = log(total);
            }
        }
    }
    free(q);
    free(k);
    free(v);
}

static void forward_is_the_formula(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPE_COUNT; n++) {
        AttentionProblem c;
        attention_problem_create(&c, &SHAPES[n], DSVI_F64, DSVI_F64, 1);
        int64_t rows = c.args.batch * c.args.heads * c.args.queries;
        double *out = malloc((size_t)(rows * c.args.head_dim) * sizeof *out);
        double *lse = malloc((size_t)rows * sizeof *lse);
        assert_ok(dsvi_attention_fwd_ref(NULL, &c.args));
        forward_by_hand(&c, out, lse);
        double *got = attention_problem_rows(&c, &c.args.out, c.args.queries);
        /* Sums of at most 13 products in another order: about ten roundings of 1.1e-16. */
        assert_error_below(relative_l2(DSVI_F64, got, DSVI_F64, out, rows * c.args.head_dim), 1e-14,
                           "out of shape %d", n);
        assert_error_below(relative_l2(DSVI_F64, c.args.lse, DSVI_F64, lse, rows), 1e-14, "lse of shape %d",
                           n);
        attention_problem_check_gaps(&c, "forward");
        free(got);
        free(out);
        free(lse);
        attention_problem_free(&c);
    }
}

/* Returns the sum of out * dout, whose gradient the backward pass computes. */
static double objective(AttentionProblem *c)
{
    assert_ok(dsvi_attention_fwd_ref(NULL, &c->args));
    double *out = attention_problem_rows(c, &c->args.out, c->args.queries);
    double *dout = attention_problem_rows(c, &c->args.dout, c->args.queries), sum = 0;
    for (int64_t i = 0; i < c->args.batch * c->args.queries * c->args.heads * c->args.head_dim; i++)
        sum += out[i] * dout[i];
    free(out);
    free(dout);
    return sum;
}

/* Compares `dx` with central differences of step 1e-4. The truncation error is 1e-8 times a third derivative
 * of about ten, the rounding error 1e-16 / 1e-4 times the objective; 1e-6 covers both. */
static void check_gradient(AttentionProblem *c, const DsviHeads *x, const DsviHeads *dx, int64_t tokens,
                           const char *what)
{
    const double step = 1e-4;
    for (int64_t b = 0; b < c->args.batch; b++) {
        for (int64_t s = 0; s < tokens; s++) {
            for (int64_t h = 0; h < c->args.heads; h++) {
                for (int64_t d = 0; d < c->args.head_dim; d++) {
                    double *value = (double *)x->data + dsvi_heads_at(x, b, s, h) + d, kept = *value;
                    *value = kept + step;
                    double up = objective(c);
                    *value = kept - step;
                    double down = objective(c);
                    *value = kept;
                    double gradient = ((double *)dx->data)[dsvi_heads_at(dx, b, s, h) + d];
                    assert_error_below(fabs(gradient - (up - down) / (2 * step)), 1e-6, "%s[%d,%d,%d,%d]",
                                       what, (int)b, (int)s, (int)h, (int)d);
                }
            }
        }
    }
}

static void gradients_are_finite_differences(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPE_COUNT; n++) {
        AttentionProblem c;
        attention_problem_create(&c, &SHAPES[n], DSVI_F64, DSVI_F64, 2);
        assert_ok(dsvi_attention_fwd_ref(NULL, &c.args));
        assert_ok(dsvi_attention_bwd_ref(NULL, &c.args));
        attention_problem_check_gaps(&c, "backward");
        check_gradient(&c, &c.args.q, &c.args.dq, c.args.queries, "dq");
        check_gradient(&c, &c.args.k, &c.args.dk, c.args.keys, "dk");
        check_gradient(&c, &c.args.v, &c.args.dv, c.args.keys, "dv");
        attention_problem_free(&c);
    }
}

/* The reference visits the keys of a full list in the same order as dense attention, so the bits are
 * equal. */
static void full_lists_are_dense(void **state)
{
    (void)state;
    for (int64_t grain = 1; grain <= 5; grain += 2) {
        AttentionShape shape = {.batch = 2,
                                .heads = 2,
                                .queries = 11,
                                .keys = 17,
                                .head_dim = 8,
                                .group = 4,
                                .grain = grain,
                                .density = 1,
                                .logit = 3};
        AttentionProblem sparse, dense;
        attention_problem_create(&sparse, &shape, DSVI_F32, DSVI_F32, 3);
        attention_problem_create(&dense, &shape, DSVI_F32, DSVI_F32, 3);
        dense.args.lists = NULL;
        AttentionProblem *cases[] = {&sparse, &dense};
        for (int i = 0; i < 2; i++) {
            assert_ok(dsvi_attention_fwd_ref(NULL, &cases[i]->args));
            assert_ok(dsvi_attention_bwd_ref(NULL, &cases[i]->args));
        }
        for (size_t i = 0; i < sizeof sparse.memory / sizeof sparse.memory[0]; i++)
            if (sparse.memory[i])
                assert_memory_equal(sparse.memory[i], dense.memory[i], sparse.bytes[i]);
        attention_problem_free(&sparse);
        attention_problem_free(&dense);
    }
}

static void empty_lists_give_nothing(void **state)
{
    (void)state;
    AttentionShape shape = {.batch = 1,
                            .heads = 1,
                            .queries = 4,
                            .keys = 6,
                            .head_dim = 4,
                            .group = 2,
                            .grain = 1,
                            .density = 0,
                            .logit = 1};
    AttentionProblem c;
    attention_problem_create(&c, &shape, DSVI_BF16, DSVI_F32, 4);
    assert_ok(dsvi_attention_fwd_ref(NULL, &c.args));
    assert_ok(dsvi_attention_bwd_ref(NULL, &c.args));
    const DsviHeads *rows[] = {&c.args.out, &c.args.dq, &c.args.dk, &c.args.dv};
    for (int n = 0; n < 4; n++) {
        int64_t tokens = n < 2 ? 4 : 6;
        double *values = attention_problem_rows(&c, rows[n], tokens);
        for (int64_t i = 0; i < tokens * 4; i++)
            assert_true(values[i] == 0);
        free(values);
    }
    for (int i = 0; i < 4; i++)
        assert_true(((float *)c.args.lse)[i] == -INFINITY);
    attention_problem_free(&c);
}

/* Equal scores of any size: out is the mean of v, lse is score + log(keys). */
static void large_equal_scores(void **state)
{
    (void)state;
    AttentionShape shape = {.batch = 1, .heads = 1, .queries = 3, .keys = 5, .head_dim = 2, .logit = 0};
    AttentionProblem c;
    attention_problem_create(&c, &shape, DSVI_F64, DSVI_F64, 5);
    double *q = c.args.q.data, *k = c.args.k.data, *v = c.args.v.data, *out = c.args.out.data, mean = 0;
    for (int i = 0; i < 3; i++)
        q[dsvi_heads_at(&c.args.q, 0, i, 0)] = 1e4;
    for (int j = 0; j < 5; j++) {
        k[dsvi_heads_at(&c.args.k, 0, j, 0)] = 1;
        mean += v[dsvi_heads_at(&c.args.v, 0, j, 0)] / 5;
    }
    assert_ok(dsvi_attention_fwd_ref(NULL, &c.args));
    for (int i = 0; i < 3; i++) {
        assert_error_below(fabs(out[dsvi_heads_at(&c.args.out, 0, i, 0)] - mean), 1e-14, "mean of v");
        assert_error_below(fabs(((double *)c.args.lse)[i] - (1e4 * c.args.scale + log(5))), 1e-11, "lse");
    }
    attention_problem_free(&c);
}

static void refuses_shapes_that_disagree(void **state)
{
    (void)state;
    AttentionShape shape = {.batch = 1,
                            .heads = 1,
                            .queries = 4,
                            .keys = 6,
                            .head_dim = 4,
                            .group = 2,
                            .grain = 1,
                            .density = 1,
                            .logit = 1};
    AttentionProblem c;
    attention_problem_create(&c, &shape, DSVI_F32, DSVI_F32, 6);
    c.own_lists.keys = 5;
    assert_fails(DSV_E_SHAPE, "lists are for", dsvi_attention_fwd_ref(NULL, &c.args));
    c.own_lists.keys = 6;
    c.own_lists.groups = 3;
    assert_fails(DSV_E_SHAPE, "do not make", dsvi_attention_bwd_ref(NULL, &c.args));
    c.own_lists.groups = 2;
    c.args.head_dim = DSVI_HEAD_DIM_MAX + 2;
    assert_fails(DSV_E_SHAPE, "head size is 258", dsvi_attention_fwd_ref(NULL, &c.args));
    c.args.head_dim = 3;
    assert_fails(DSV_E_SHAPE, "even number", dsvi_attention_fwd_ref(NULL, &c.args));
    attention_problem_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_the_formula), cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(full_lists_are_dense),   cmocka_unit_test(empty_lists_give_nothing),
        cmocka_unit_test(large_equal_scores),     cmocka_unit_test(refuses_shapes_that_disagree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
