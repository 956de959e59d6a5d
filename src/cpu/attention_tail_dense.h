/* The tail as attention of proxies to mean keys, for the SIMD variants of attention_tail: means of queries,
 * keys and values, and the arguments of dense attention over them. With chunks of one query or runs of one
 * key the rows themselves are the means and are not copied. */
#ifndef DSVI_ATTENTION_TAIL_DENSE_H
#define DSVI_ATTENTION_TAIL_DENSE_H

#include "cpu/attention_tail_mask.h"
#include "cpu/simd_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTailDense {
    const DsviAttentionTailArgs *args;
    DsviAttentionArgs inner; /* dense attention: queries are chunks, and keys are runs; out, lse and the
                              * gradients remain those of queries and keys */
    float *logs;             /* (run + 1) of DsviTailMask */
} DsviTailDense;

/* Takes memory for (B, N, members, D) act. If `base` is NULL, only counts. */
static inline DsviHeads dsvi_tail_rows(const DsviAttentionArgs *args, int64_t members, float *base,
                                       size_t *used)
{
    int64_t dim = args->head_dim, count = args->batch * args->heads * members * dim;
    DsviHeads rows = {NULL, args->heads * members * dim, dim, members * dim};
    rows.data = dsvi_take_floats(base, used, args->act == DSVI_BF16 ? (count + 1) / 2 : count);
    return rows;
}

/* Sets up the arguments of dense attention, with memory from `base` for the means. */
static inline DsviTailDense dsvi_tail_dense(const DsviAttentionTailArgs *args, float *base, size_t *used)
{
    DsviTailDense t = {.args = args, .inner = args->attention, .logs = NULL};
    t.inner.lists = NULL;
    t.inner.queries = dsvi_tail_chunks(args->attention.queries, args->chunk);
    t.inner.keys = dsvi_tail_chunks(args->attention.keys, args->run);
    t.logs = dsvi_take_floats(base, used, args->run + 1);
    if (args->chunk > 1)
        t.inner.q = dsvi_tail_rows(&args->attention, t.inner.queries, base, used);
    if (args->run > 1) {
        t.inner.k = dsvi_tail_rows(&args->attention, t.inner.keys, base, used);
        t.inner.v = dsvi_tail_rows(&args->attention, t.inner.keys, base, used);
    }
    return t;
}

/* Means over `size` consecutive tokens of `from`, stored as tokens of `to`. */
typedef struct DsviTailMeans {
    const DsviAttentionArgs *args;
    DsviHeads from, to;
    int64_t tokens, size;
} DsviTailMeans;

DSVI_SPECIALISED void dsvi_tail_mean(DsviDtype act, const DsviTailMeans *m, int64_t b, int64_t h, int64_t n)
{
    float sum[DSVI_HEAD_DIM_MAX] = {0};
    int64_t first = n * m->size, end = dsvi_min(first + m->size, m->tokens), dim = m->args->head_dim;
    for (int64_t s = first; s < end; s++) {
        const void *row = dsvi_at(act, m->from.data, dsvi_heads_at(&m->from, b, s, h));
        for (int64_t d = 0; d < dim; d++)
            sum[d] += dsvi_get(act, row, d);
    }
    void *mean = dsvi_at(act, m->to.data, dsvi_heads_at(&m->to, b, n, h));
    for (int64_t d = 0; d < dim; d++)
        dsvi_put(act, mean, d, sum[d] / (float)(end - first));
}

static inline void dsvi_tail_mean_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviTailMeans *m = (const DsviTailMeans *)context;
    int64_t members = dsvi_tail_chunks(m->tokens, m->size), heads = m->args->heads;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t pair = i / members, b = pair / heads, h = pair % heads;
        if (m->args->act == DSVI_F32)
            dsvi_tail_mean(DSVI_F32, m, b, h, i % members);
        else
            dsvi_tail_mean(DSVI_BF16, m, b, h, i % members);
    }
}

/* Computes one tensor of means. */
static inline void dsvi_tail_compute_means(const DsviAttentionArgs *args, DsviHeads from, DsviHeads to,
                                           int64_t tokens, int64_t size)
{
    DsviTailMeans m = {args, from, to, tokens, size};
    if (size > 1)
        dsvi_parallel_for(args->batch * args->heads * dsvi_tail_chunks(tokens, size),
                          dsvi_rows_per_piece(size * args->head_dim), dsvi_tail_mean_range, &m);
}

/* Computes the means and the table of logarithms. */
static inline void dsvi_tail_prepare(const DsviTailDense *t)
{
    const DsviAttentionArgs *args = &t->args->attention;
    t->logs[0] = DSVI_MASKED;
    for (int64_t n = 1; n <= t->args->run; n++)
        t->logs[n] = logf((float)n);
    dsvi_tail_compute_means(args, args->q, t->inner.q, args->queries, t->args->chunk);
    dsvi_tail_compute_means(args, args->k, t->inner.k, args->keys, t->args->run);
    dsvi_tail_compute_means(args, args->v, t->inner.v, args->keys, t->args->run);
}

#ifdef __cplusplus
}
#endif
#endif
