/* Reference implementation of attention: the formulas of attention.h in double, one query or one key at a
 * time. Dense attention uses a list of all keys. */
#include "ops/attention.h"

#include <math.h>

DsvStatus dsvi_attention_check(const DsviAttentionArgs *args)
{
    const DsviLists *lists = args->lists;
    if (args->batch < 0 || args->heads < 0 || args->queries < 0 || args->keys < 0)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention: a size is negative: batch %lld, heads %lld, queries %lld, "
                         "keys %lld",
                         (long long)args->batch, (long long)args->heads, (long long)args->queries,
                         (long long)args->keys);
    if (args->head_dim < 2 || args->head_dim > DSVI_HEAD_DIM_MAX || args->head_dim % 2)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: head size is %lld, expected an even number from 2 to %d",
                         (long long)args->head_dim, DSVI_HEAD_DIM_MAX);
    if (!lists)
        return DSV_OK;
    if (lists->batch != args->batch || lists->heads != args->heads || lists->queries != args->queries ||
        lists->keys != args->keys)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention: lists are for batch %lld, heads %lld, queries %lld, keys "
                         "%lld, the tensors have %lld, %lld, %lld, %lld",
                         (long long)lists->batch, (long long)lists->heads, (long long)lists->queries,
                         (long long)lists->keys, (long long)args->batch, (long long)args->heads,
                         (long long)args->queries, (long long)args->keys);
    if (lists->group < 1 || lists->grain < 1 ||
        lists->groups != (args->queries + lists->group - 1) / lists->group)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention: %lld queries do not make the lists' %lld groups of %lld "
                         "(grain %lld)",
                         (long long)args->queries, (long long)lists->groups, (long long)lists->group,
                         (long long)lists->grain);
    return DSV_OK;
}

double dsvi_heads_dot(DsviDtype dtype, const DsviHeads *q, int64_t i, const DsviHeads *k, int64_t j,
                      int64_t b, int64_t h, int64_t dim)
{
    int64_t q_at = dsvi_heads_at(q, b, i, h), k_at = dsvi_heads_at(k, b, j, h);
    double sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum += dsvi_load(dtype, q->data, q_at + d) * dsvi_load(dtype, k->data, k_at + d);
    return sum;
}

static int64_t lse_at(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t i)
{
    return (b * args->heads + h) * args->queries + i;
}

static double attention_score(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return args->scale * dsvi_heads_dot(args->act, &args->q, i, &args->k, j, b, h, args->head_dim);
}

static void attention_add_row(double *sum, double weight, DsviDtype dtype, const DsviHeads *rows, int64_t at,
                              int64_t dim)
{
    for (int64_t d = 0; d < dim; d++)
        sum[d] += weight * dsvi_load(dtype, rows->data, at + d);
}

static void attention_store_row(const double *sum, double weight, DsviDtype dtype, const DsviHeads *rows,
                                int64_t at, int64_t dim)
{
    for (int64_t d = 0; d < dim; d++)
        dsvi_store(dtype, rows->data, at + d, weight * sum[d]);
}

double dsvi_attention_operand(DsviDtype act, double x)
{
    unsigned char stored[sizeof x];
    dsvi_store(act, stored, 0, x);
    return dsvi_load(act, stored, 0);
}

static void forward_query(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t i)
{
    DsviList list = dsvi_list_of(args->lists, args->keys, b, h, i);
    int64_t length = dsvi_list_length(&list);
    double largest = -INFINITY, total = 0, out[DSVI_HEAD_DIM_MAX] = {0};
    for (int64_t n = 0; n < length; n++)
        largest = fmax(largest, attention_score(args, b, h, i, dsvi_list_key(&list, n)));
    for (int64_t n = 0; n < length; n++) {
        int64_t j = dsvi_list_key(&list, n);
        double weight = exp(attention_score(args, b, h, i, j) - largest);
        total += weight;
        attention_add_row(out, dsvi_attention_operand(args->act, weight), args->act, &args->v,
                          dsvi_heads_at(&args->v, b, j, h), args->head_dim);
    }
    attention_store_row(out, length > 0 ? 1 / total : 0, args->act, &args->out,
                        dsvi_heads_at(&args->out, b, i, h), args->head_dim);
    dsvi_store(args->acc, args->lse, lse_at(args, b, h, i), length > 0 ? largest + log(total) : -INFINITY);
}

DsvStatus dsvi_attention_fwd_ref(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_check(args));
    for (int64_t b = 0; b < args->batch; b++)
        for (int64_t h = 0; h < args->heads; h++)
            for (int64_t i = 0; i < args->queries; i++)
                forward_query(args, b, h, i);
    return DSV_OK;
}

typedef struct Pair {
    double p, ds;
} Pair;

/* Returns the probability p_ij of query i and key j and its gradient ds_ij (formulas in attention.h), both
 * rounded to the dtype of activations. Key j must be in the list of query i. */
static Pair pair_of(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t i, int64_t j)
{
    Pair pair;
    double lse = dsvi_load(args->acc, args->lse, lse_at(args, b, h, i));
    double delta = dsvi_heads_dot(args->act, &args->out, i, &args->dout, i, b, h, args->head_dim);
    double dp = dsvi_heads_dot(args->act, &args->dout, i, &args->v, j, b, h, args->head_dim);
    double p = exp(attention_score(args, b, h, i, j) - lse);
    pair.p = dsvi_attention_operand(args->act, p);
    pair.ds = dsvi_attention_operand(args->act, p * (dp - delta));
    return pair;
}

static void backward_query(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t i)
{
    DsviList list = dsvi_list_of(args->lists, args->keys, b, h, i);
    int64_t length = dsvi_list_length(&list);
    double dq[DSVI_HEAD_DIM_MAX] = {0};
    for (int64_t n = 0; n < length; n++) {
        int64_t j = dsvi_list_key(&list, n);
        attention_add_row(dq, pair_of(args, b, h, i, j).ds, args->act, &args->k,
                          dsvi_heads_at(&args->k, b, j, h), args->head_dim);
    }
    attention_store_row(dq, args->scale, args->act, &args->dq, dsvi_heads_at(&args->dq, b, i, h),
                        args->head_dim);
}

static void backward_key(const DsviAttentionArgs *args, int64_t b, int64_t h, int64_t j)
{
    double dk[DSVI_HEAD_DIM_MAX] = {0}, dv[DSVI_HEAD_DIM_MAX] = {0};
    for (int64_t i = 0; i < args->queries; i++) {
        DsviList list = dsvi_list_of(args->lists, args->keys, b, h, i);
        if (!dsvi_list_contains(&list, j))
            continue;
        Pair pair = pair_of(args, b, h, i, j);
        attention_add_row(dk, pair.ds, args->act, &args->q, dsvi_heads_at(&args->q, b, i, h), args->head_dim);
        attention_add_row(dv, pair.p, args->act, &args->dout, dsvi_heads_at(&args->dout, b, i, h),
                          args->head_dim);
    }
    attention_store_row(dk, args->scale, args->act, &args->dk, dsvi_heads_at(&args->dk, b, j, h),
                        args->head_dim);
    attention_store_row(dv, 1, args->act, &args->dv, dsvi_heads_at(&args->dv, b, j, h), args->head_dim);
}

DsvStatus dsvi_attention_bwd_ref(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_check(args));
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t h = 0; h < args->heads; h++) {
            for (int64_t i = 0; i < args->queries; i++)
                backward_query(args, b, h, i);
            for (int64_t j = 0; j < args->keys; j++)
                backward_key(args, b, h, j);
        }
    }
    return DSV_OK;
}
