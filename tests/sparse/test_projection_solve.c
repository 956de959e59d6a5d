/* The closed-form projection: exact at full rank, and of least error at lower rank, for any covariances. */
#include "test.h"

#include "base/rng.h"
#include "sparse/projection_solve.h"

enum { DIM = 12, ROWS = 60 };

typedef struct Case {
    double q[ROWS][DIM], k[ROWS][DIM];
    double query_second[DIM * DIM], query_mean[DIM], key_second[DIM * DIM], key_mean[DIM];
} Case;

/* Makes rows of correlated queries and keys that vary in `flat` dimensions, with different variances. The
 * mean of the keys is far from zero. */
static void make(Case *c, uint64_t seed, int flat)
{
    DsviRng rng = {seed, DSVI_RNG_TEST, 0};
    uint64_t n = 0;
    memset(c, 0, sizeof *c);
    double mix[2][DIM][DIM];
    for (int i = 0; i < 2 * DIM * DIM; i++)
        (&mix[0][0][0])[i] = dsvi_rng_normal(rng, n++);
    for (int s = 0; s < ROWS; s++) {
        for (int i = 0; i < flat; i++) {
            double a = exp(-0.4 * i) * dsvi_rng_normal(rng, n++);
            double b = exp(-0.3 * i) * dsvi_rng_normal(rng, n++);
            for (int d = 0; d < DIM; d++) {
                c->q[s][d] += a * mix[0][i][d];
                c->k[s][d] += b * mix[1][i][d];
            }
        }
        for (int d = 0; d < DIM; d++)
            c->k[s][d] += 3 * d - 10;
    }
    for (int s = 0; s < ROWS; s++) {
        for (int i = 0; i < DIM; i++) {
            c->key_mean[i] += c->k[s][i] / ROWS;
            for (int j = 0; j < DIM; j++) {
                c->query_second[i * DIM + j] += c->q[s][i] * c->q[s][j] / ROWS;
                c->key_second[i * DIM + j] += c->k[s][i] * c->k[s][j] / ROWS;
            }
        }
    }
}

/* Returns the mean squared error of all scores that are computed through the projections, relative to the
 * mean square of the exact scores. A constant for each query does not count as an error. */
static double score_error(const Case *c, int rank, const float *query, const float *key)
{
    double error = 0, all = 0;
    for (int s = 0; s < ROWS; s++) {
        double qp[DIM] = {0};
        for (int r = 0; r < rank; r++)
            for (int d = 0; d < DIM; d++)
                qp[r] += c->q[s][d] * query[d * rank + r];
        for (int t = 0; t < ROWS; t++) {
            double exact = 0, estimate = 0;
            for (int d = 0; d < DIM; d++) {
                double centred = c->k[t][d] - c->key_mean[d];
                exact += c->q[s][d] * centred;
                for (int r = 0; r < rank; r++)
                    estimate += qp[r] * centred * key[d * rank + r];
            }
            error += (exact - estimate) * (exact - estimate);
            all += exact * exact;
        }
    }
    return error / all;
}

static DsviProjectionMoments moments_of(const Case *c)
{
    return (DsviProjectionMoments){c->query_second, c->query_mean, c->key_second, c->key_mean};
}

static void solve(const Case *c, int rank, float *query, float *key)
{
    DsviProjectionMoments moments = moments_of(c);
    void *workspace = malloc(dsvi_projection_workspace(DIM));
    assert_non_null(workspace);
    assert_ok(dsvi_projection_solve(DIM, rank, &moments, query, key, workspace));
    free(workspace);
}

static void test_full_rank_is_exact(void **state)
{
    static Case c;
    float query[DIM * DIM], key[DIM * DIM];
    (void)state;
    for (int flat = 1; flat <= DIM; flat += 3) {
        make(&c, (uint64_t)flat, flat);
        solve(&c, DIM, query, key);
        /* The matrices are rounded to F32. The error is 2^-24 times their condition number, squared. The
         * smallest eigenvalue is 1e-6 of the largest, so the condition number is about 1e3. */
        assert_error_below(score_error(&c, DIM, query, key), 1e-8, "flat %d", flat);
    }
}

/* With a rank below that of the data, the error falls with the rank, and no slightly changed matrix has a
 * smaller error. */
static void test_least_error(void **state)
{
    static Case c;
    float query[DIM * DIM], key[DIM * DIM], moved_query[DIM * DIM], moved_key[DIM * DIM];
    double before = 1;
    (void)state;
    make(&c, 77, DIM);
    for (int rank = 1; rank < DIM; rank++) {
        solve(&c, rank, query, key);
        double error = score_error(&c, rank, query, key);
        assert_true(error < before);
        before = error;
        for (uint64_t trial = 0; trial < 40; trial++) {
            DsviRng rng = {trial, DSVI_RNG_TEST, (uint32_t)rank};
            for (int i = 0; i < DIM * rank; i++) {
                double size = trial % 2 ? 1e-2 : 1e-1;
                moved_query[i] = query[i] * (float)(1 + size * dsvi_rng_normal(rng, (uint64_t)(2 * i)));
                moved_key[i] = key[i] * (float)(1 + size * dsvi_rng_normal(rng, (uint64_t)(2 * i + 1)));
            }
            assert_true(score_error(&c, rank, moved_query, moved_key) > error);
        }
    }
}

/* At rank 1 the projection can be computed in a second way: the key direction K is Q^1/2 times the leading
 * eigenvector of Q^1/2 C Q^1/2, so it is the leading eigenvector of Q C, which power iteration finds. */
static void test_against_power_iteration(void **state)
{
    static Case c;
    float query[DIM], key[DIM];
    double v[DIM], next[DIM], covariance[DIM][DIM];
    (void)state;
    make(&c, 5, DIM);
    solve(&c, 1, query, key);
    for (int i = 0; i < DIM; i++)
        for (int j = 0; j < DIM; j++)
            covariance[i][j] = c.key_second[i * DIM + j] - c.key_mean[i] * c.key_mean[j];
    for (int d = 0; d < DIM; d++)
        v[d] = 1;
    for (int iteration = 0; iteration < 3000; iteration++) {
        double cv[DIM] = {0}, norm = 0;
        for (int i = 0; i < DIM; i++)
            for (int j = 0; j < DIM; j++)
                cv[i] += covariance[i][j] * v[j];
        for (int i = 0; i < DIM; i++) {
            next[i] = 0;
            for (int j = 0; j < DIM; j++)
                next[i] += c.query_second[i * DIM + j] * cv[j];
            norm += next[i] * next[i];
        }
        for (int i = 0; i < DIM; i++)
            v[i] = next[i] / sqrt(norm);
    }
    double dot = 0, norm = 0;
    for (int d = 0; d < DIM; d++) {
        dot += v[d] * key[d];
        norm += (double)key[d] * key[d];
    }
    assert_error_below(fabs(fabs(dot) / sqrt(norm) - 1), 1e-6, "direction of the keys");
}

/* The solver has the condition that scores of the mean query are exact. They are exact at every rank; full
 * rank is as exact as without the condition; and the condition costs at most one rank. */
static void test_mean_query_is_exact(void **state)
{
    static Case c, plain;
    float query[DIM * DIM], key[DIM * DIM], other_query[DIM * DIM], other_key[DIM * DIM];
    (void)state;
    for (int rank = 1; rank <= DIM; rank++) {
        make(&c, (uint64_t)rank, DIM);
        plain = c;
        for (int s = 0; s < ROWS; s++)
            for (int d = 0; d < DIM; d++)
                c.query_mean[d] += c.q[s][d] / ROWS;
        solve(&c, rank, query, key);
        DsviRng rng = {3, DSVI_RNG_TEST, (uint32_t)rank};
        double exact = 0, estimate = 0, k[DIM];
        for (int d = 0; d < DIM; d++) {
            k[d] = 100 * dsvi_rng_normal(rng, (uint64_t)d);
            exact += c.query_mean[d] * k[d];
        }
        for (int r = 0; r < rank; r++) {
            double a = 0, b = 0;
            for (int d = 0; d < DIM; d++) {
                a += c.query_mean[d] * query[d * rank + r];
                b += k[d] * key[d * rank + r];
            }
            estimate += a * b;
        }
        assert_error_below(fabs(exact - estimate), 1e-3 * fabs(exact) + 1e-2, "rank %d", rank);
        if (rank == DIM)
            assert_error_below(score_error(&c, DIM, query, key), 1e-8, "full rank");
        if (rank == 1)
            continue;
        solve(&plain, rank - 1, other_query, other_key);
        assert_true(score_error(&c, rank, query, key) <=
                    score_error(&c, rank - 1, other_query, other_key) + 1e-8);
    }
}

static void test_degenerate(void **state)
{
    static Case c;
    float query[DIM * 2], key[DIM * 2];
    (void)state;
    memset(&c, 0, sizeof c); /* all queries and keys zero */
    solve(&c, 2, query, key);
    for (int i = 0; i < DIM * 2; i++)
        assert_true(isfinite(query[i]) && isfinite(key[i]));

    void *workspace = malloc(dsvi_projection_workspace(DIM));
    c.query_second[5] = NAN;
    assert_fails(DSV_E_DIVERGED, "not finite",
                 dsvi_projection_solve(
                     DIM, 2, &(DsviProjectionMoments){c.query_second, c.query_mean, c.key_second, c.key_mean},
                     query, key, workspace));
    free(workspace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_rank_is_exact),
        cmocka_unit_test(test_least_error),
        cmocka_unit_test(test_against_power_iteration),
        cmocka_unit_test(test_mean_query_is_exact),
        cmocka_unit_test(test_degenerate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
