/* Reference implementation of attention with a tail: the formulas of attention_tail.h in double, one chunk of
 * queries or one run of keys at a time. Means are computed each time they are needed, so that no workspace is
 * needed. */
#include "ops/attention_tail.h"

#include <math.h>

DsvStatus dsvi_attention_tail_check(const DsviAttentionTailArgs *args)
{
    const DsviLists *lists = args->attention.lists;
    DSVI_TRY(dsvi_attention_check(&args->attention));
    if (!lists)
        return DSVI_FAIL(DSV_E_SHAPE, "attention tail: key lists are missing; dense attention has no tail");
    if (args->chunk < 1 || lists->group % args->chunk != 0)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention tail: chunks of %lld queries do not divide the lists' groups of %lld",
                         (long long)args->chunk, (long long)lists->group);
    if (args->run < 1)
        return DSVI_FAIL(DSV_E_SHAPE, "attention tail: runs have %lld keys, expected at least 1",
                         (long long)args->run);
    return DSV_OK;
}

/* Consecutive tokens of one head: the queries of a chunk, or the keys of a run. */
typedef struct Members {
    int64_t b, h, first, count;
} Members;

/* Returns members [n size, (n + 1) size) of `total` tokens. */
static Members tail_members(int64_t b, int64_t h, int64_t n, int64_t size, int64_t total)
{
    int64_t first = n * size;
    return (Members){b, h, first, first + size < total ? size : total - first};
}

static Members tail_chunk(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t c)
{
    return tail_members(b, h, c, args->chunk, args->attention.queries);
}

static Members tail_run(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t r)
{
    return tail_members(b, h, r, args->run, args->attention.keys);
}

static int64_t tail_runs(const DsviAttentionTailArgs *args)
{
    return (args->attention.keys + args->run - 1) / args->run;
}

/* Index of query i in lse, and of chunk c in tail_lse. */
static int64_t tail_lse_index(const DsviAttentionTailArgs *args, Members of, int64_t i)
{
    return (of.b * args->attention.heads + of.h) * args->attention.queries + i;
}

static int64_t tail_chunk_index(const DsviAttentionTailArgs *args, Members of, int64_t c)
{
    int64_t chunks = dsvi_tail_chunks(args->attention.queries, args->chunk);
    return (of.b * args->attention.heads + of.h) * chunks + c;
}

/* Stores the mean of the members' rows in `mean`, rounded as an operand of a matrix product. */
static void tail_mean(const DsviAttentionArgs *args, const DsviHeads *rows, Members of, double *mean)
{
    for (int64_t d = 0; d < args->head_dim; d++) {
        double sum = 0;
        for (int64_t i = of.first; i < of.first + of.count; i++)
            sum += dsvi_load(args->act, rows->data, dsvi_heads_at(rows, of.b, i, of.h) + d);
        mean[d] = dsvi_attention_operand(args->act, sum / (double)of.count);
    }
}

/* Adds factor * sum[d] to the row of each member. */
static void tail_spread(const DsviAttentionArgs *args, const DsviHeads *rows, Members of, const double *sum,
                        double factor)
{
    for (int64_t i = of.first; i < of.first + of.count; i++) {
        int64_t at = dsvi_heads_at(rows, of.b, i, of.h);
        for (int64_t d = 0; d < args->head_dim; d++)
            dsvi_store(args->act, rows->data, at + d,
                       dsvi_load(args->act, rows->data, at + d) + factor * sum[d]);
    }
}

static double tail_dot(const double *a, const double *b, int64_t dim)
{
    double sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum += a[d] * b[d];
    return sum;
}

/* Number of keys of the run that the list does not name. */
static int64_t tail_left_out(const DsviList *list, Members run)
{
    int64_t count = 0;
    for (int64_t j = run.first; j < run.first + run.count; j++)
        count += dsvi_list_contains(list, j) ? 0 : 1;
    return count;
}

/* Returns log w_cr, -inf if the list of the chunk names all keys of the run. `q` is Q_c. */
static double tail_score(const DsviAttentionTailArgs *args, const DsviList *list, const double *q,
                         Members run)
{
    double k[DSVI_HEAD_DIM_MAX];
    int64_t left_out = tail_left_out(list, run);
    if (left_out == 0)
        return -INFINITY;
    tail_mean(&args->attention, &args->attention.k, run, k);
    return args->attention.scale * tail_dot(q, k, args->attention.head_dim) + log((double)left_out);
}

static DsviList tail_list(const DsviAttentionTailArgs *args, Members chunk)
{
    return dsvi_list_of(args->attention.lists, args->attention.keys, chunk.b, chunk.h, chunk.first);
}

/* Computes p_c of a chunk and returns log T_c, -inf if the list of the chunk is full. */
static double tail_attend(const DsviAttentionTailArgs *args, Members chunk, double *p)
{
    double q[DSVI_HEAD_DIM_MAX], v[DSVI_HEAD_DIM_MAX], largest = -INFINITY, total = 0;
    int64_t dim = args->attention.head_dim, runs = tail_runs(args);
    DsviList list = tail_list(args, chunk);
    tail_mean(&args->attention, &args->attention.q, chunk, q);
    for (int64_t r = 0; r < runs; r++)
        largest = fmax(largest, tail_score(args, &list, q, tail_run(args, chunk.b, chunk.h, r)));
    for (int64_t d = 0; d < dim; d++)
        p[d] = 0;
    if (dsvi_list_length(&list) == args->attention.keys)
        return -INFINITY;
    for (int64_t r = 0; r < runs; r++) {
        Members run = tail_run(args, chunk.b, chunk.h, r);
        double weight = exp(tail_score(args, &list, q, run) - largest);
        total += weight;
        tail_mean(&args->attention, &args->attention.v, run, v);
        for (int64_t d = 0; d < dim; d++)
            p[d] += dsvi_attention_operand(args->attention.act, weight) * v[d];
    }
    for (int64_t d = 0; d < dim; d++)
        p[d] /= total;
    return largest + log(total);
}

/* Joins the part over lists of query i with the tail of its chunk. A part of no key is not read. */
static void tail_merge(const DsviAttentionTailArgs *args, Members chunk, int64_t i, double tail_lse,
                       const double *p)
{
    const DsviAttentionArgs *a = &args->attention;
    int64_t at = tail_lse_index(args, chunk, i), row = dsvi_heads_at(&a->out, chunk.b, i, chunk.h);
    double list_lse = dsvi_load(a->acc, a->lse, at), larger = fmax(list_lse, tail_lse);
    if (tail_lse == -INFINITY)
        return;
    double sum = exp(list_lse - larger) + exp(tail_lse - larger);
    double list_share = exp(list_lse - larger) / sum, tail_share = exp(tail_lse - larger) / sum;
    for (int64_t d = 0; d < a->head_dim; d++) {
        double listed = list_share > 0 ? list_share * dsvi_load(a->act, a->out.data, row + d) : 0;
        dsvi_store(a->act, a->out.data, row + d, listed + tail_share * p[d]);
    }
    dsvi_store(a->acc, a->lse, at, larger + log(sum));
}

static void tail_forward_chunk(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t c)
{
    Members chunk = tail_chunk(args, b, h, c);
    double p[DSVI_HEAD_DIM_MAX], tail_lse = tail_attend(args, chunk, p);
    dsvi_store(args->attention.acc, args->tail_lse, tail_chunk_index(args, chunk, c), tail_lse);
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; i++)
        tail_merge(args, chunk, i, tail_lse, p);
}

DsvStatus dsvi_attention_tail_fwd_ref(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_tail_check(args));
    for (int64_t b = 0; b < args->attention.batch; b++)
        for (int64_t h = 0; h < args->attention.heads; h++)
            for (int64_t c = 0; c < dsvi_tail_chunks(args->attention.queries, args->chunk); c++)
                tail_forward_chunk(args, b, h, c);
    return DSV_OK;
}

/* What the backward pass needs of one chunk; the names are those of attention_tail.h. */
typedef struct Proxy {
    Members chunk;
    DsviList list;
    double lse;                                               /* log T_c */
    double q[DSVI_HEAD_DIM_MAX], g[DSVI_HEAD_DIM_MAX], delta; /* Q_c, G_c, D_c */
} Proxy;

/* Computes Q_c, G_c and D_c of chunk c. If the chunk has no tail, returns false and leaves these unset. */
static bool tail_proxy(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t c, Proxy *proxy)
{
    const DsviAttentionArgs *a = &args->attention;
    proxy->chunk = tail_chunk(args, b, h, c);
    proxy->list = tail_list(args, proxy->chunk);
    proxy->lse = dsvi_load(a->acc, args->tail_lse, tail_chunk_index(args, proxy->chunk, c));
    if (proxy->lse == -INFINITY)
        return false;
    tail_mean(a, &a->q, proxy->chunk, proxy->q);
    proxy->delta = 0;
    for (int64_t d = 0; d < a->head_dim; d++)
        proxy->g[d] = 0;
    for (int64_t i = proxy->chunk.first; i < proxy->chunk.first + proxy->chunk.count; i++) {
        double share = exp(proxy->lse - dsvi_load(a->acc, a->lse, tail_lse_index(args, proxy->chunk, i)));
        int64_t dout = dsvi_heads_at(&a->dout, b, i, h);
        proxy->delta += share * dsvi_heads_dot(a->act, &a->out, i, &a->dout, i, b, h, a->head_dim);
        for (int64_t d = 0; d < a->head_dim; d++)
            proxy->g[d] += share * dsvi_load(a->act, a->dout.data, dout + d);
    }
    for (int64_t d = 0; d < a->head_dim; d++)
        proxy->g[d] = dsvi_attention_operand(a->act, proxy->g[d]);
    return true;
}

typedef struct TailPair {
    double p, ds;
} TailPair;

/* Returns P_cr and dS_cr, rounded to the dtype of activations. */
static TailPair tail_pair(const DsviAttentionTailArgs *args, const Proxy *proxy, Members run)
{
    const DsviAttentionArgs *a = &args->attention;
    double v[DSVI_HEAD_DIM_MAX], p = exp(tail_score(args, &proxy->list, proxy->q, run) - proxy->lse);
    tail_mean(a, &a->v, run, v);
    double ds = p * (tail_dot(proxy->g, v, a->head_dim) - proxy->delta);
    return (TailPair){dsvi_attention_operand(a->act, p), dsvi_attention_operand(a->act, ds)};
}

static void tail_backward_chunk(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t c)
{
    const DsviAttentionArgs *a = &args->attention;
    Proxy proxy;
    double dq[DSVI_HEAD_DIM_MAX] = {0}, k[DSVI_HEAD_DIM_MAX];
    if (!tail_proxy(args, b, h, c, &proxy))
        return;
    for (int64_t r = 0; r < tail_runs(args); r++) {
        Members run = tail_run(args, b, h, r);
        TailPair pair = tail_pair(args, &proxy, run);
        tail_mean(a, &a->k, run, k);
        for (int64_t d = 0; d < a->head_dim; d++)
            dq[d] += pair.ds * k[d];
    }
    tail_spread(a, &a->dq, proxy.chunk, dq, a->scale / (double)proxy.chunk.count);
}

static void tail_backward_run(const DsviAttentionTailArgs *args, int64_t b, int64_t h, int64_t r)
{
    const DsviAttentionArgs *a = &args->attention;
    Members run = tail_run(args, b, h, r);
    double dk[DSVI_HEAD_DIM_MAX] = {0}, dv[DSVI_HEAD_DIM_MAX] = {0};
    for (int64_t c = 0; c < dsvi_tail_chunks(a->queries, args->chunk); c++) {
        Proxy proxy;
        if (!tail_proxy(args, b, h, c, &proxy))
            continue;
        TailPair pair = tail_pair(args, &proxy, run);
        for (int64_t d = 0; d < a->head_dim; d++) {
            dk[d] += pair.ds * proxy.q[d];
            dv[d] += pair.p * proxy.g[d];
        }
    }
    tail_spread(a, &a->dk, run, dk, a->scale / (double)run.count);
    tail_spread(a, &a->dv, run, dv, 1 / (double)run.count);
}

DsvStatus dsvi_attention_tail_bwd_ref(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_tail_check(args));
    for (int64_t b = 0; b < args->attention.batch; b++) {
        for (int64_t h = 0; h < args->attention.heads; h++) {
            for (int64_t c = 0; c < dsvi_tail_chunks(args->attention.queries, args->chunk); c++)
                tail_backward_chunk(args, b, h, c);
            for (int64_t r = 0; r < tail_runs(args); r++)
                tail_backward_run(args, b, h, r);
        }
    }
    return DSV_OK;
}
