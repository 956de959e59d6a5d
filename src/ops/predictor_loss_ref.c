/* Reference implementation of the predictor's loss and its gradient. See predictor_loss.h.
 *
 * With unit rows U = u/|u| and T = t/|t|, d cos / du = (T - cos U) / |u|. The norm term of the loss is
 * (|U|^2 + |T|^2 - 2 cos) / keys, so the loss of a row depends on u only through cos. If rows are centred,
 * this gradient already sums to zero over the keys, as the gradient of a centred row must. */
#include "ops/predictor_loss.h"

#include <math.h>

/* The workspace holds the predicted scores u and the true scores t of one query, followed by the sums of dkl
 * of one (b, h), all in double. */
size_t dsvi_predictor_loss_workspace_ref(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    (void)stream;
    return (size_t)(args->keys * (2 + args->rank)) * sizeof(double);
}

/* Subtracts the mean of a row of scores if `centred`, then scales the row to norm 1. A row whose norm is too
 * small (see predictor_loss.h) becomes 0. Returns the row's norm before scaling, or 0 if the norm is too
 * small. */
static double predictor_loss_make_unit(double *row, int64_t keys, bool centred)
{
    double mean = 0, squares = 0;
    for (int64_t j = 0; j < keys && centred; j++)
        mean += row[j] / (double)keys;
    for (int64_t j = 0; j < keys; j++) {
        row[j] -= mean;
        squares += row[j] * row[j];
    }
    double norm = sqrt(squares), least = DSVI_PREDICTOR_MIN_FRACTION * fabs(mean) * sqrt((double)keys);
    if (norm < fmax(least, DSVI_PREDICTOR_MIN_NORM))
        norm = 0;
    for (int64_t j = 0; j < keys; j++)
        row[j] = norm == 0 ? 0 : row[j] / norm;
    return norm;
}

/* The scores of sampled query i of (b, h) against all keys, scaled to norm 1. */
typedef struct QueryRows {
    int64_t b, h, i;
    const double *u, *t; /* (keys) each: the predicted and the true scores */
    double cosine;       /* u . t */
} QueryRows;

/* Adds the gradient of slope * cos to dql of the query, and to dkl_sum, which is (keys, rank). */
static void add_gradient(const DsviPredictorLossArgs *args, const QueryRows *rows, double slope,
                         double *dkl_sum)
{
    int64_t b = rows->b, h = rows->h, i = rows->i;
    int64_t ql_at = dsvi_heads_at(&args->ql, b, i, h), dql_at = dsvi_heads_at(&args->dql, b, i, h);
    for (int64_t r = 0; r < args->rank; r++) {
        double ql = dsvi_load(args->acc, args->ql.data, ql_at + r), dql = 0;
        for (int64_t j = 0; j < args->keys; j++) {
            double du = slope * (rows->t[j] - rows->cosine * rows->u[j]);
            dql += du * dsvi_load(args->acc, args->kl.data, dsvi_heads_at(&args->kl, b, j, h) + r);
            dkl_sum[j * args->rank + r] += du * ql;
        }
        dsvi_store(args->acc, args->dql.data, dql_at + r,
                   dsvi_load(args->acc, args->dql.data, dql_at + r) + dql);
    }
}

/* Returns the loss of one sampled query, and adds its gradient unless a row of scores is degenerate. */
static double query_loss(const DsviPredictorLossArgs *args, int64_t b, int64_t h, int64_t i, double *dkl_sum)
{
    double *u = args->workspace, *t = u + args->keys, root = sqrt((double)args->rank);
    double rows = (double)(args->batch * args->heads * args->samples), keys = (double)args->keys;
    double cosine = 0;
    for (int64_t j = 0; j < args->keys; j++) {
        t[j] = dsvi_heads_dot(args->act, &args->q, i, &args->k, j, b, h, args->head_dim) /
               sqrt((double)args->head_dim);
        u[j] = dsvi_heads_dot(args->acc, &args->ql, i, &args->kl, j, b, h, args->rank) / root;
    }
    double t_norm = predictor_loss_make_unit(t, args->keys, args->centred);
    double u_norm = predictor_loss_make_unit(u, args->keys, args->centred);
    bool t_counts = t_norm != 0, u_counts = u_norm != 0; /* a NaN norm counts as nonzero, so that NaN reaches
                                                          * the loss */
    for (int64_t j = 0; j < args->keys; j++)
        cosine += u[j] * t[j];
    if (t_counts && u_counts) {
        QueryRows unit = {b, h, i, u, t, cosine};
        add_gradient(args, &unit, -(args->cos_weight + 2 * args->norm_weight / keys) / (u_norm * root * rows),
                     dkl_sum);
    }
    return args->cos_weight * (1 - cosine) + args->norm_weight * (t_counts + u_counts - 2 * cosine) / keys;
}

static void fill_zero(DsviDtype dtype, const DsviHeads *rows, int64_t b, int64_t h, int64_t tokens,
                      int64_t dim)
{
    for (int64_t s = 0; s < tokens; s++)
        for (int64_t d = 0; d < dim; d++)
            dsvi_store(dtype, rows->data, dsvi_heads_at(rows, b, s, h) + d, 0);
}

DsvStatus dsvi_predictor_loss_ref(DsviStream *stream, const DsviPredictorLossArgs *args)
{
    (void)stream;
    double *dkl_sum = (double *)args->workspace + 2 * args->keys, loss = 0;
    for (int64_t pair = 0; pair < args->batch * args->heads; pair++) {
        int64_t b = pair / args->heads, h = pair % args->heads;
        memset(dkl_sum, 0, (size_t)(args->keys * args->rank) * sizeof *dkl_sum);
        fill_zero(args->acc, &args->dql, b, h, args->queries, args->rank);
        for (int64_t n = 0; n < args->samples; n++)
            loss += query_loss(args, b, h, args->sample[n], dkl_sum);
        for (int64_t j = 0; j < args->keys; j++)
            for (int64_t r = 0; r < args->rank; r++)
                dsvi_store(args->acc, args->dkl.data, dsvi_heads_at(&args->dkl, b, j, h) + r,
                           dkl_sum[j * args->rank + r]);
    }
    int64_t rows = args->batch * args->heads * args->samples;
    dsvi_store(args->acc, args->loss, 0, rows > 0 ? loss / (double)rows : 0);
    return DSV_OK;
}
