/* The reference implementation of the predictor's loss against an independent formula, and its gradient
 * against finite differences. */
#include "ops/predictor_loss.h"

#include "base/rng.h"
#include "test.h"

enum { B = 2, N = 2, SQ = 7, SK = 9, D = 4, R = 3, SAMPLES = 4 };

typedef struct LossCase {
    double q[B * SQ * N * D], k[B * SK * N * D], ql[B * SQ * N * R], kl[B * SK * N * R];
    double dql[B * SQ * N * R], dkl[B * SK * N * R], loss;
    double workspace[SK * (2 + R)];
    DsviPredictorLossArgs args;
} LossCase;

static const int32_t SAMPLE[SAMPLES] = {5, 0, 3, 5}; /* sampled tokens, one of them twice */

static void fill(double *out, int64_t count, uint32_t stream)
{
    DsviRng rng = {3, DSVI_RNG_TEST, stream};
    for (int64_t i = 0; i < count; i++)
        out[i] = dsvi_rng_normal(rng, (uint64_t)i) + 0.5; /* the mean is not zero, so that centring matters */
}

static void create(LossCase *c, bool centred)
{
    fill(c->q, B * SQ * N * D, 1);
    fill(c->k, B * SK * N * D, 2);
    fill(c->ql, B * SQ * N * R, 3);
    fill(c->kl, B * SK * N * R, 4);
    memset(c->dql, 0xff, sizeof c->dql);
    memset(c->dkl, 0xff, sizeof c->dkl);
    c->args = (DsviPredictorLossArgs){.batch = B,
                                      .heads = N,
                                      .queries = SQ,
                                      .keys = SK,
                                      .head_dim = D,
                                      .rank = R,
                                      .cos_weight = 0.95,
                                      .norm_weight = 0.5,
                                      .centred = centred,
                                      .act = DSVI_F64,
                                      .acc = DSVI_F64,
                                      .q = dsvi_heads(c->q, SQ, N, D),
                                      .k = dsvi_heads(c->k, SK, N, D),
                                      .ql = dsvi_heads(c->ql, SQ, N, R),
                                      .kl = dsvi_heads(c->kl, SK, N, R),
                                      .samples = SAMPLES,
                                      .sample = SAMPLE,
                                      .loss = &c->loss,
                                      .dql = dsvi_heads(c->dql, SQ, N, R),
                                      .dkl = dsvi_heads(c->dkl, SK, N, R),
                                      .workspace = c->workspace,
                                      .workspace_bytes = sizeof c->workspace};
    assert_true(dsvi_predictor_loss_workspace_ref(NULL, &c->args) <= sizeof c->workspace);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void normalise(double row[SK], bool centred)
{
    double ones[SK], mean;
    for (int j = 0; j < SK; j++)
        ones[j] = 1;
    mean = dot(row, ones, SK) / SK;
    for (int j = 0; j < SK; j++)
        row[j] -= centred ? mean : 0;
    double norm = sqrt(dot(row, row, SK));
    for (int j = 0; j < SK; j++)
        row[j] /= norm;
}

static double query_loss_by_hand(const LossCase *c, int b, int h, int i)
{
    double u[SK], t[SK], distance = 0;
    for (int j = 0; j < SK; j++) {
        t[j] = dot(c->q + ((b * SQ + i) * N + h) * D, c->k + ((b * SK + j) * N + h) * D, D) / sqrt(D);
        u[j] = dot(c->ql + ((b * SQ + i) * N + h) * R, c->kl + ((b * SK + j) * N + h) * R, R) / sqrt(R);
    }
    normalise(t, c->args.centred);
    normalise(u, c->args.centred);
    for (int j = 0; j < SK; j++)
        distance += (u[j] - t[j]) * (u[j] - t[j]) / SK;
    return c->args.cos_weight * (1 - dot(u, t, SK)) + c->args.norm_weight * distance;
}

static double loss_by_hand(const LossCase *c)
{
    double loss = 0;
    for (int n = 0; n < B * N * SAMPLES; n++)
        loss += query_loss_by_hand(c, n / SAMPLES / N, n / SAMPLES % N, SAMPLE[n % SAMPLES]);
    return loss / (B * N * SAMPLES);
}

static void check_gradient(LossCase *c, double *x, const double *dx, int64_t count, const char *what)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < count; i++) {
        double kept = x[i], up, down;
        x[i] = kept + step;
        up = loss_by_hand(c);
        x[i] = kept - step;
        down = loss_by_hand(c);
        x[i] = kept;
        /* rounding: 1e-16 / 1e-5; truncation: 1e-10 of a third derivative of order one */
        assert_error_below(fabs(dx[i] - (up - down) / (2 * step)), 1e-9, "%s[%d]", what, (int)i);
    }
}

static void loss_and_gradient(void **state)
{
    (void)state;
    for (int centred = 0; centred < 2; centred++) {
        LossCase c;
        create(&c, centred);
        assert_ok(dsvi_predictor_loss_ref(NULL, &c.args));
        assert_error_below(fabs(c.loss - loss_by_hand(&c)), 1e-14, "loss");
        check_gradient(&c, c.ql, c.dql, B * SQ * N * R, "dql");
        check_gradient(&c, c.kl, c.dkl, B * SK * N * R, "dkl");
    }
}

/* The loss is zero if the predicted scores are proportional to the exact scores. */
static void perfect_prediction(void **state)
{
    (void)state;
    LossCase c;
    create(&c, true);
    for (int i = 0; i < B * SQ * N; i++)
        for (int d = 0; d < R; d++)
            c.q[i * D + d] = 3 * c.ql[i * R + d];
    for (int j = 0; j < B * SK * N; j++) {
        for (int d = 0; d < R; d++)
            c.k[j * D + d] = c.kl[j * R + d];
        c.k[j * D + 3] = 0;
    }
    assert_ok(dsvi_predictor_loss_ref(NULL, &c.args));
    assert_error_below(fabs(c.loss), 1e-14, "loss");
    for (int i = 0; i < B * SQ * N * R; i++)
        assert_error_below(fabs(c.dql[i]), 1e-14, "dql");
}

/* Scores that are equal up to rounding count as zero after centring. */
static void equal_rows(void **state)
{
    (void)state;
    LossCase c;
    create(&c, true);
    for (int i = 0; i < B * SK * N * R; i++)
        c.kl[i] = 0.7;
    assert_ok(dsvi_predictor_loss_ref(NULL, &c.args));
    assert_error_below(fabs(c.loss - (0.95 + 0.5 / SK)), 1e-14, "loss");
    for (int i = 0; i < B * SQ * N * R; i++)
        assert_true(c.dql[i] == 0);
}

/* A row of zeros has cosine 0 and no gradient; the norm term counts only the other row. */
static void zero_rows(void **state)
{
    (void)state;
    LossCase c;
    create(&c, false);
    memset(c.ql, 0, sizeof c.ql);
    assert_ok(dsvi_predictor_loss_ref(NULL, &c.args));
    assert_error_below(fabs(c.loss - (0.95 + 0.5 / SK)), 1e-14, "loss");
    for (int i = 0; i < B * SQ * N * R; i++)
        assert_true(c.dql[i] == 0);
    for (int j = 0; j < B * SK * N * R; j++)
        assert_true(c.dkl[j] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient),
        cmocka_unit_test(perfect_prediction),
        cmocka_unit_test(zero_rows),
        cmocka_unit_test(equal_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
