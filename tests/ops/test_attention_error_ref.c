/* The reference implementation of attention_error against the attention ops whose outputs it compares. */
#include "ops/attention_error.h"

#include "ops/attention_problem.h"
#include "ops/attention_tail.h"
#include "test.h"

enum { SAMPLES = 6, RESULTS = 64 };

static DsviAttentionErrorArgs error_args(const AttentionProblem *c, int64_t chunk, int64_t run,
                                         int32_t *sample, float *error, float *norm)
{
    for (int n = 0; n < SAMPLES; n++)
        sample[n] = (int32_t)((n * 5 + 2) % c->args.queries);
    return (DsviAttentionErrorArgs){
        .batch = c->args.batch,
        .heads = c->args.heads,
        .queries = c->args.queries,
        .keys = c->args.keys,
        .head_dim = c->args.head_dim,
        .scale = c->args.scale,
        .act = c->args.act,
        .q = c->args.q,
        .k = c->args.k,
        .v = c->args.v,
        .lists = c->args.lists,
        .chunk = chunk,
        .run = run,
        .samples = SAMPLES,
        .sample = sample,
        .error = error,
        .norm = norm,
    };
}

/* Runs attention over the lists of `c` with the tail, if chunk is not 0. */
static void attend(const AttentionProblem *c, int64_t chunk, int64_t run)
{
    DsviAttentionTailArgs tail = {.attention = c->args, .chunk = chunk, .run = run};
    assert_ok(dsvi_attention_fwd_ref(NULL, &c->args));
    if (chunk == 0)
        return;
    tail.tail_lse = malloc(
        (size_t)(c->args.batch * c->args.heads * dsvi_tail_chunks(c->args.queries, chunk)) * sizeof(double));
    assert_ok(dsvi_attention_tail_fwd_ref(NULL, &tail));
    free(tail.tail_lse);
}

static void check(const AttentionShape *shape, int64_t chunk, int64_t run, double *largest)
{
    AttentionProblem c;
    int32_t sample[SAMPLES];
    float error[RESULTS], norm[RESULTS];
    attention_problem_create(&c, shape, DSVI_F64, DSVI_F64, 3);
    DsviAttentionErrorArgs args = error_args(&c, chunk, run, sample, error, norm);
    args.workspace_bytes = dsvi_attention_error_workspace_ref(NULL, &args);
    args.workspace = malloc(args.workspace_bytes);
    assert_ok(dsvi_attention_error_ref(NULL, &args));
    attend(&c, chunk, run);
    double *found = attention_problem_rows(&c, &c.args.out, shape->queries);
    c.args.lists = NULL;
    attend(&c, 0, 0);
    double *exact = attention_problem_rows(&c, &c.args.out, shape->queries);
    *largest = 0;
    for (int64_t n = 0; n < shape->batch * shape->heads * SAMPLES; n++) {
        int64_t b = n / SAMPLES / shape->heads, h = n / SAMPLES % shape->heads;
        int64_t row = ((b * shape->queries + sample[n % SAMPLES]) * shape->heads + h) * shape->head_dim;
        double expected_error = 0, expected_norm = 0;
        for (int64_t d = 0; d < shape->head_dim; d++) {
            expected_error += pow(found[row + d] - exact[row + d], 2);
            expected_norm += pow(exact[row + d], 2);
        }
        assert_error_below(fabs(error[n] - expected_error), 1e-6 * (expected_norm + 1e-9), "error %d",
                           (int)n);
        assert_error_below(fabs(norm[n] - expected_norm), 1e-6 * (expected_norm + 1e-9), "norm %d", (int)n);
        *largest = fmax(*largest, expected_error / expected_norm);
    }
    free(found);
    free(exact);
    free(args.workspace);
    attention_problem_free(&c);
}

static const AttentionShape ordinary = {.batch = 2,
                                        .heads = 3,
                                        .queries = 21,
                                        .keys = 45,
                                        .head_dim = 8,
                                        .group = 8,
                                        .grain = 1,
                                        .density = 0.4,
                                        .logit = 2};

static void is_difference_of_outputs(void **state)
{
    static const int64_t tails[][2] = {{0, 0}, {1, 4}, {8, 1}, {2, 5}, {4, 64}};
    static const double densities[] = {0, 0.4, -0.4};
    double largest;
    (void)state;
    for (size_t t = 0; t < sizeof tails / sizeof *tails; t++)
        for (int n = 0; n < 3; n++) {
            AttentionShape shape = ordinary;
            shape.density = densities[n];
            shape.grain = 1 + n;
            check(&shape, tails[t][0], tails[t][1], &largest);
            assert_true(largest > 1e-3);
        }
}

/* Full lists, and a tail of chunks and runs of one, give exact attention. */
static void limits_have_no_error(void **state)
{
    AttentionShape shape = ordinary;
    double largest;
    (void)state;
    check(&shape, 1, 1, &largest);
    assert_error_below(largest, 1e-20, "chunks and runs of one");
    shape.density = 1;
    check(&shape, 0, 0, &largest);
    assert_error_below(largest, 1e-20, "full lists");
    check(&shape, 8, 4, &largest);
    assert_error_below(largest, 1e-20, "full lists with a tail");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_difference_of_outputs),
                                       cmocka_unit_test(limits_have_no_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
