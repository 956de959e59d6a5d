/* The reference implementation of attention with a tail: finite differences, and limits whose result is
 * known. */
#include "ops/attention_tail.h"

#include "ops/attention_problem.h"
#include "test.h"

typedef struct Tail {
    AttentionShape shape;
    int64_t chunk, run;
} Tail;

/* Short last groups, chunks and runs. */
static const Tail TAILS[] = {
    {{2, 2, 7, 9, 4, 4, 1, 0.4, 2}, 2, 1},   {{1, 2, 10, 13, 6, 4, 1, 0.4, 2}, 4, 1},
    {{1, 2, 10, 13, 6, 4, 1, 0.4, 2}, 1, 3}, {{1, 1, 11, 8, 4, 6, 1, -0.5, 2}, 3, 3},
    {{2, 1, 9, 11, 4, 2, 3, -0.6, 2}, 2, 5}, {{1, 1, 5, 8, 2, 3, 4, 1, 2}, 3, 2},
    {{1, 1, 5, 8, 2, 3, 1, 0, 2}, 3, 20},    {{1, 1, 6, 7, 4, 3, 1, 0.5, 2}, 1, 1},
    {{1, 1, 1, 1, 2, 1, 1, 0, 1}, 1, 1},
};
enum { TAIL_COUNT = sizeof TAILS / sizeof TAILS[0] };

typedef struct TailProblem {
    AttentionProblem problem;
    DsviAttentionTailArgs args; /* args.attention is set from `problem` by each call */
} TailProblem;

static void problem_create(TailProblem *t, const Tail *tail, DsviDtype act, DsviDtype acc, uint64_t seed)
{
    attention_problem_create(&t->problem, &tail->shape, act, acc, seed);
    int64_t chunks = dsvi_tail_chunks(tail->shape.queries, tail->chunk);
    t->args = (DsviAttentionTailArgs){.attention = t->problem.args, .chunk = tail->chunk, .run = tail->run};
    t->args.tail_lse = malloc((size_t)(tail->shape.batch * tail->shape.heads * chunks) * sizeof(double));
    assert_non_null(t->args.tail_lse);
}

static void problem_free(TailProblem *t)
{
    free(t->args.tail_lse);
    attention_problem_free(&t->problem);
}

static void forward(TailProblem *t)
{
    assert_ok(dsvi_attention_fwd_ref(NULL, &t->args.attention));
    assert_ok(dsvi_attention_tail_fwd_ref(NULL, &t->args));
}

static void backward(TailProblem *t)
{
    assert_ok(dsvi_attention_bwd_ref(NULL, &t->args.attention));
    assert_ok(dsvi_attention_tail_bwd_ref(NULL, &t->args));
}

/* Returns sum(out * dout). */
static double objective(TailProblem *t)
{
    const DsviAttentionArgs *args = &t->args.attention;
    forward(t);
    double *out = attention_problem_rows(&t->problem, &args->out, args->queries), sum = 0;
    double *dout = attention_problem_rows(&t->problem, &args->dout, args->queries);
    for (int64_t i = 0; i < args->batch * args->queries * args->heads * args->head_dim; i++)
        sum += out[i] * dout[i];
    free(out);
    free(dout);
    return sum;
}

/* Compares `dx` with central differences of step 1e-4. The truncation error is 1e-8 times a third derivative
 * of about ten, the rounding error 1e-16 / 1e-4 times the objective; 1e-6 covers both. */
static void check_gradient(TailProblem *t, const DsviHeads *x, const DsviHeads *dx, int64_t tokens,
                           const char *what)
{
    const double step = 1e-4;
    const DsviAttentionArgs *args = &t->args.attention;
    for (int64_t n = 0; n < args->batch * tokens * args->heads * args->head_dim; n++) {
        int64_t d = n % args->head_dim, row = n / args->head_dim;
        int64_t h = row % args->heads, s = row / args->heads % tokens, b = row / args->heads / tokens;
        double *value = (double *)x->data + dsvi_heads_at(x, b, s, h) + d, kept = *value;
        *value = kept + step;
        double up = objective(t);
        *value = kept - step;
        double down = objective(t);
        *value = kept;
        double gradient = ((double *)dx->data)[dsvi_heads_at(dx, b, s, h) + d];
        assert_error_below(fabs(gradient - (up - down) / (2 * step)), 1e-6, "%s[%d,%d,%d,%d]", what, (int)b,
                           (int)s, (int)h, (int)d);
    }
}

static void gradients_are_finite_differences(void **state)
{
    (void)state;
    for (int n = 0; n < TAIL_COUNT; n++) {
        TailProblem t;
        problem_create(&t, &TAILS[n], DSVI_F64, DSVI_F64, 2);
        const DsviAttentionArgs *args = &t.args.attention;
        forward(&t);
        backward(&t);
        attention_problem_check_gaps(&t.problem, "tail");
        check_gradient(&t, &args->q, &args->dq, args->queries, "dq");
        check_gradient(&t, &args->k, &args->dk, args->keys, "dk");
        check_gradient(&t, &args->v, &args->dv, args->keys, "dv");
        problem_free(&t);
    }
}

/* Fails unless out, lse, dq, dk and dv of two problems agree within a relative L2 error of `bound`. */
static void check_equal(const AttentionProblem *a, const AttentionProblem *b, double bound, const char *what)
{
    const DsviAttentionArgs *args = &a->args;
    const DsviHeads *x[] = {&a->args.out, &a->args.dq, &a->args.dk, &a->args.dv};
    const DsviHeads *y[] = {&b->args.out, &b->args.dq, &b->args.dk, &b->args.dv};
    for (int i = 0; i < 4; i++) {
        int64_t tokens = i < 2 ? args->queries : args->keys;
        double *left = attention_problem_rows(a, x[i], tokens),
               *right = attention_problem_rows(b, y[i], tokens);
        assert_error_below(relative_l2(DSVI_F64, left, DSVI_F64, right,
                                       args->batch * tokens * args->heads * args->head_dim),
                           bound, "%s: tensor %d", what, i);
        free(left);
        free(right);
    }
    assert_error_below(relative_l2(args->acc, a->args.lse, args->acc, b->args.lse,
                                   args->batch * args->heads * args->queries),
                       bound, "%s: lse", what);
}

/* One query a chunk and one key a run leave nothing approximate: dense attention, whatever the lists are.
 * Only the order of sums differs. */
static void single_queries_and_keys_are_dense(void **state)
{
    (void)state;
    static const double densities[] = {0, 0.3, -0.7, 1};
    for (int n = 0; n < 4; n++) {
        Tail tail = {{2, 2, 11, 17, 8, 4, 3, densities[n], 3}, 1, 1};
        TailProblem t;
        AttentionProblem dense;
        problem_create(&t, &tail, DSVI_F64, DSVI_F64, 3);
        attention_problem_create(&dense, &tail.shape, DSVI_F64, DSVI_F64, 3);
        dense.args.lists = NULL;
        forward(&t);
        backward(&t);
        assert_ok(dsvi_attention_fwd_ref(NULL, &dense.args));
        assert_ok(dsvi_attention_bwd_ref(NULL, &dense.args));
        check_equal(&t.problem, &dense, 1e-14, "chunk 1, run 1");
        problem_free(&t);
        attention_problem_free(&dense);
    }
}

/* Full lists leave nothing out: the tail changes no bit. */
static void full_lists_have_no_tail(void **state)
{
    (void)state;
    static const DsviDtype acts[] = {DSVI_F64, DSVI_BF16};
    for (int n = 0; n < 2; n++) {
        Tail tail = {{2, 2, 11, 17, 8, 4, 3, 1, 3}, 2, 5};
        DsviDtype acc = acts[n] == DSVI_BF16 ? DSVI_F32 : acts[n];
        TailProblem t;
        AttentionProblem lists;
        problem_create(&t, &tail, acts[n], acc, 3);
        attention_problem_create(&lists, &tail.shape, acts[n], acc, 3);
        forward(&t);
        backward(&t);
        assert_ok(dsvi_attention_fwd_ref(NULL, &lists.args));
        assert_ok(dsvi_attention_bwd_ref(NULL, &lists.args));
        for (size_t i = 0; i < sizeof lists.memory / sizeof lists.memory[0]; i++)
            assert_memory_equal(t.problem.memory[i], lists.memory[i], lists.bytes[i]);
        for (int64_t c = 0; c < 2 * 2 * 6; c++)
            assert_true(dsvi_load(acc, t.args.tail_lse, c) == -INFINITY);
        problem_free(&t);
        attention_problem_free(&lists);
    }
}

/* Empty lists leave the tail alone: dense attention of mean queries to mean keys, whose weights are the
 * numbers of keys. With equal rows in each chunk and each run the means are the rows, and the result is dense
 * attention. */
static void empty_lists_leave_the_tail(void **state)
{
    (void)state;
    Tail tail = {{1, 2, 11, 17, 8, 4, 1, 0, 2}, 4, 5};
    TailProblem t;
    AttentionProblem dense;
    problem_create(&t, &tail, DSVI_F64, DSVI_F64, 3);
    attention_problem_create(&dense, &tail.shape, DSVI_F64, DSVI_F64, 3);
    dense.args.lists = NULL;
    const DsviAttentionArgs *args[] = {&t.args.attention, &dense.args};
    for (int n = 0; n < 2; n++) {
        const DsviHeads *rows[] = {&args[n]->q, &args[n]->k, &args[n]->v};
        for (int i = 0; i < 3; i++) {
            int64_t tokens = i == 0 ? 11 : 17, size = i == 0 ? 4 : 5;
            for (int64_t at = 0; at < tokens * 2 * 8; at++) {
                int64_t s = at / 16, h = at / 8 % 2, d = at % 8;
                ((double *)rows[i]->data)[dsvi_heads_at(rows[i], 0, s, h) + d] =
                    ((double *)rows[i]->data)[dsvi_heads_at(rows[i], 0, s / size * size, h) + d];
            }
        }
    }
    forward(&t);
    assert_ok(dsvi_attention_fwd_ref(NULL, &dense.args));
    double *out = attention_problem_rows(&t.problem, &t.args.attention.out, 11);
    double *expected = attention_problem_rows(&dense, &dense.args.out, 11);
    assert_error_below(relative_l2(DSVI_F64, out, DSVI_F64, expected, 11 * 2 * 8), 1e-14, "out");
    assert_error_below(relative_l2(DSVI_F64, t.args.attention.lse, DSVI_F64, dense.args.lse, 11 * 2), 1e-14,
                       "lse");
    free(out);
    free(expected);
    problem_free(&t);
    attention_problem_free(&dense);
}

/* NaN in a key that no list names reaches every output. */
static void nan_reaches_results(void **state)
{
    (void)state;
    Tail tail = {{1, 1, 8, 9, 4, 4, 1, 0, 1}, 4, 3};
    TailProblem t;
    problem_create(&t, &tail, DSVI_F32, DSVI_F32, 1);
    const DsviHeads *k = &t.args.attention.k, *out = &t.args.attention.out;
    ((float *)k->data)[dsvi_heads_at(k, 0, 7, 0)] = NAN;
    forward(&t);
    for (int64_t i = 0; i < 8; i++) {
        assert_true(isnan(((float *)out->data)[dsvi_heads_at(out, 0, i, 0)]));
        assert_true(isnan(((float *)t.args.attention.lse)[i]));
    }
    problem_free(&t);
}

static void refuses_tails_that_do_not_fit(void **state)
{
    (void)state;
    Tail tail = {{1, 1, 8, 9, 4, 4, 1, 0.5, 1}, 4, 3};
    TailProblem t;
    problem_create(&t, &tail, DSVI_F32, DSVI_F32, 1);
    t.args.chunk = 3;
    assert_fails(DSV_E_SHAPE, "chunks of 3 queries do not divide the lists' groups of 4",
                 dsvi_attention_tail_fwd_ref(NULL, &t.args));
    t.args.chunk = 0;
    assert_fails(DSV_E_SHAPE, "chunks of 0 queries", dsvi_attention_tail_bwd_ref(NULL, &t.args));
    t.args.chunk = 2;
    t.args.run = 0;
    assert_fails(DSV_E_SHAPE, "runs have 0 keys", dsvi_attention_tail_bwd_ref(NULL, &t.args));
    t.args.run = 3;
    t.args.attention.lists = NULL;
    assert_fails(DSV_E_SHAPE, "key lists are missing", dsvi_attention_tail_fwd_ref(NULL, &t.args));
    problem_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(single_queries_and_keys_are_dense),
        cmocka_unit_test(full_lists_have_no_tail),
        cmocka_unit_test(empty_lists_leave_the_tail),
        cmocka_unit_test(nan_reaches_results),
        cmocka_unit_test(refuses_tails_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
