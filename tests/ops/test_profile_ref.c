/* The reference implementation of the profile against a direct computation from sorted probabilities. */
#include "ops/profile.h"

#include "ops/attention_problem.h"
#include "test.h"

enum { SAMPLES = 5 };

static int larger_first(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Computes captured mass, share90 and listed fraction of query i of (b, h) into out[3]; reads the list span
 * by span. */
static void by_hand(const AttentionProblem *c, double mass, int64_t b, int64_t h, int64_t i, double out[3])
{
    const DsviAttentionArgs *a = &c->args;
    double *p = malloc((size_t)a->keys * sizeof *p), total = 0, sum = 0;
    int64_t count = 0;
    for (int64_t j = 0; j < a->keys; j++)
        total += p[j] = exp(a->scale * dsvi_heads_dot(a->act, &a->q, i, &a->k, j, b, h, a->head_dim));
    for (int64_t j = 0; j < a->keys; j++)
        p[j] /= total;
    out[0] = out[2] = a->lists ? 0 : 1;
    for (int64_t j = 0; a->lists && j < a->keys; j++) {
        int64_t n = (b * a->heads + h) * a->lists->groups + i / a->lists->group;
        for (int64_t at = a->lists->offsets[n]; at < a->lists->offsets[n + 1]; at++) {
            if (a->lists->spans[at] != j / a->lists->grain)
                continue;
            out[0] += p[j];
            out[2] += 1 / (double)a->keys;
        }
    }
    qsort(p, (size_t)a->keys, sizeof *p, larger_first);
    while (count < a->keys && sum < mass)
        sum += p[count++];
    out[1] = (double)count / (double)a->keys;
    free(p);
}

static void check(const AttentionShape *shape, double mass)
{
    AttentionProblem c;
    int32_t sample[SAMPLES];
    float captured[64], share[64], listed[64];
    attention_problem_create(&c, shape, DSVI_F32, DSVI_F32, 3);
    for (int n = 0; n < SAMPLES; n++)
        sample[n] = (int32_t)((n * 5 + 2) % shape->queries);
    DsviProfileArgs args = {shape->batch,
                            shape->heads,
                            shape->queries,
                            shape->keys,
                            shape->head_dim,
                            c.args.scale,
                            mass,
                            DSVI_F32,
                            c.args.q,
                            c.args.k,
                            c.args.lists,
                            SAMPLES,
                            sample,
                            captured,
                            share,
                            listed,
                            NULL,
                            0};
    args.workspace_bytes = dsvi_profile_workspace_ref(NULL, &args);
    args.workspace = malloc(args.workspace_bytes);
    assert_ok(dsvi_profile_ref(NULL, &args));
    for (int64_t n = 0; n < shape->batch * shape->heads * SAMPLES; n++) {
        double expected[3];
        by_hand(&c, mass, n / SAMPLES / shape->heads, n / SAMPLES % shape->heads, sample[n % SAMPLES],
                expected);
        assert_error_below(fabs(captured[n] - expected[0]), 1e-6, "captured %d", (int)n);
        assert_error_below(fabs(share[n] - expected[1]), 1e-6, "share90 %d", (int)n);
        assert_error_below(fabs(listed[n] - expected[2]), 1e-6, "listed %d", (int)n);
    }
    free(args.workspace);
    attention_problem_free(&c);
}

static void is_brute_force(void **state)
{
    (void)state;
    const double masses[] = {0, 0.3, 0.9, 0.999}, densities[] = {0, 0.4, -0.4, 1};
    for (int n = 0; n < 16; n++) {
        AttentionShape shape = {.batch = 2,
                                .heads = 3,
                                .queries = 13,
                                .keys = 29,
                                .head_dim = 8,
                                .group = 4,
                                .grain = 1 + n % 3,
                                .density = densities[n % 4],
                                .logit = 2};
        check(&shape, masses[n / 4]);
        shape.group = 0;
        check(&shape, masses[n / 4]);
    }
}

/* Equal scores: 90 % of the mass is 90 % of the keys, rounded up. */
static void equal_scores(void **state)
{
    (void)state;
    for (int64_t keys = 1; keys <= 16; keys *= 2) {
        AttentionShape shape = {.batch = 1, .heads = 1, .queries = 2, .keys = keys, .head_dim = 4};
        check(&shape, 0.9);
        check(&shape, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_brute_force), cmocka_unit_test(equal_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
