/* Reference implementation of attention_error. See attention_error.h.
 *
 * Both outputs are weighted means of the values. A value's weight in the exact output is exp(score). Its
 * weight in the output over lists is exp(score) if the list names its key, plus, with a tail, an equal part
 * of the weight of its run: the mean value of a run is a sum over the members of the run, including the
 * listed ones. The score of a run's mean key is the mean of the scores of its members. */
#include "ops/attention_error.h"

#include <math.h>

DsvStatus dsvi_attention_error_check(const DsviAttentionErrorArgs *args, size_t needed)
{
    if (!args->lists)
        return DSVI_FAIL(DSV_E_SHAPE, "attention error: there are no lists");
    if (args->chunk < 0 || (args->chunk > 0 && (args->lists->group % args->chunk || args->run < 1)))
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention error: chunks of %lld queries in groups of %lld, and runs of %lld keys",
                         (long long)args->chunk, (long long)args->lists->group, (long long)args->run);
    if (args->workspace_bytes < needed)
        return DSVI_FAIL(DSV_E_SHAPE, "attention error: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, needed);
    return DSV_OK;
}

/* One sampled query, and the weights of all values in both outputs. */
typedef struct Sampled {
    int64_t b, h, query;
    double *exact, *listed; /* (keys) scores, then weights */
} Sampled;

size_t dsvi_attention_error_workspace_ref(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    (void)stream;
    return 2 * (size_t)args->keys * sizeof(double);
}

/* Computes the scores of the mean query of the sampled query's chunk with all keys. */
static void proxy_scores(const DsviAttentionErrorArgs *args, const Sampled *at, double *scores)
{
    int64_t first = at->query / args->chunk * args->chunk;
    int64_t end = first + args->chunk < args->queries ? first + args->chunk : args->queries;
    for (int64_t j = 0; j < args->keys; j++) {
        scores[j] = 0;
        for (int64_t i = first; i < end; i++)
            scores[j] += args->scale / (double)(end - first) *
                         dsvi_heads_dot(args->act, &args->q, i, &args->k, j, at->b, at->h, args->head_dim);
    }
}

/* Replaces the scores of the keys [first, end), one run, by the weight of one left-out key of the run,
 * divided by the number of the run's keys. */
static void weigh_run(double *scores, int64_t first, int64_t end, double largest)
{
    double mean = 0, count = (double)(end - first);
    for (int64_t j = first; j < end; j++)
        mean += scores[j] / count;
    for (int64_t j = first; j < end; j++)
        scores[j] = exp(mean - largest) / count;
}

/* Computes the scores of the query and of its proxy, and from these scores the weights. */
static void weigh(const DsviAttentionErrorArgs *args, const Sampled *at)
{
    DsviList list = dsvi_list_of(args->lists, args->keys, at->b, at->h, at->query);
    int64_t length = dsvi_list_length(&list), next = 0, run = args->chunk > 0 ? args->run : args->keys;
    double largest = -INFINITY;
    for (int64_t j = 0; j < args->keys; j++)
        at->exact[j] = args->scale * dsvi_heads_dot(args->act, &args->q, at->query, &args->k, j, at->b, at->h,
                                                    args->head_dim);
    if (args->chunk > 0)
        proxy_scores(args, at, at->listed);
    for (int64_t j = 0; j < args->keys; j++)
        largest = fmax(largest, fmax(at->exact[j], args->chunk > 0 ? at->listed[j] : -INFINITY));
    for (int64_t first = 0; first < args->keys; first += run) {
        int64_t end = first + run < args->keys ? first + run : args->keys, from = next;
        while (next < length && dsvi_list_key(&list, next) < end)
            next++;
        if (args->chunk > 0)
            weigh_run(at->listed, first, end, largest);
        for (int64_t j = first; j < end; j++) {
            at->exact[j] = exp(at->exact[j] - largest);
            at->listed[j] = args->chunk > 0 ? (double)(end - first - (next - from)) * at->listed[j] : 0;
        }
        for (int64_t n = from; n < next; n++)
            at->listed[dsvi_list_key(&list, n)] += at->exact[dsvi_list_key(&list, n)];
    }
}

/* Writes to out (D) the mean of the values with these weights; zeros if all weights are 0. */
static void weighted_mean(const DsviAttentionErrorArgs *args, const Sampled *at, const double *weight,
                          double *out)
{
    double total = 0;
    for (int64_t d = 0; d < args->head_dim; d++)
        out[d] = 0;
    for (int64_t j = 0; j < args->keys; j++) {
        int64_t row = dsvi_heads_at(&args->v, at->b, j, at->h);
        total += weight[j];
        for (int64_t d = 0; d < args->head_dim; d++)
            out[d] += weight[j] * dsvi_load(args->act, args->v.data, row + d);
    }
    for (int64_t d = 0; d < args->head_dim && total > 0; d++)
        out[d] /= total;
}

DsvStatus dsvi_attention_error_ref(DsviStream *stream, const DsviAttentionErrorArgs *args)
{
    DSVI_TRY(dsvi_attention_error_check(args, dsvi_attention_error_workspace_ref(stream, args)));
    double *exact = args->workspace, *listed = exact + args->keys;
    for (int64_t n = 0; n < args->batch * args->heads * args->samples; n++) {
        Sampled at = {n / args->samples / args->heads, n / args->samples % args->heads,
                      args->sample[n % args->samples], exact, listed};
        double expected[DSVI_HEAD_DIM_MAX], found[DSVI_HEAD_DIM_MAX], error = 0, norm = 0;
        weigh(args, &at);
        weighted_mean(args, &at, exact, expected);
        weighted_mean(args, &at, listed, found);
        for (int64_t d = 0; d < args->head_dim; d++) {
            error += (found[d] - expected[d]) * (found[d] - expected[d]);
            norm += expected[d] * expected[d];
        }
        args->error[n] = (float)error;
        args->norm[n] = (float)norm;
    }
    return DSV_OK;
}
