/* attention_tail: what key lists leave out of attention, stood in for by means of queries and keys.
 *
 * Attention over lists (attention.h) drops the keys that a group's list does not name. The tail adds them
 * back, approximately and at a small cost: `chunk` consecutive queries of a group share one proxy query, and
 * `run` consecutive keys share one mean key and one mean value.
 *
 *     Q_c = mean of the queries of chunk c       K_r, V_r = mean of the keys and of the values of run r
 *     n_gr = number of keys of run r that the list of group g does not name
 *     w_cr = n_gr exp(scale Q_c . K_r)           g: the group of chunk c
 *     T_c = sum_r w_cr                           p_c = sum_r w_cr V_r / T_c
 *
 * With Z_i and o_i for the sum of exponentials and the output of query i over its list, and c for the chunk
 * of query i:
 *     out_i = (Z_i o_i + T_c p_c) / (Z_i + T_c)          lse_i = log(Z_i + T_c)
 *
 * chunk divides the group of the lists, so that a chunk has one list. The last chunk and the last run may be
 * short; their means are over the members that exist. A chunk of 1 and a run of 1 give dense attention,
 * whatever the lists are. With full lists the tail is empty, and out and lse stay as they are. With empty
 * lists the result is the tail alone. A query tail has chunk > 1 and run 1, a key tail chunk 1 and run > 1;
 * both may exceed 1.
 *
 * Gradients, with the lse and out of the whole, delta_i = out_i . dout_i, and u_i = exp(log T_c - lse_i), the
 * share of the tail in query i:
 *     G_c = sum over i in c of u_i dout_i        D_c = sum over i in c of u_i delta_i
 *     P_cr = w_cr / T_c                          dS_cr = P_cr (G_c . V_r - D_c)
 *     dQ_c = scale sum_r dS_cr K_r               dK_r = scale sum_c dS_cr Q_c        dV_r = sum_c P_cr G_c
 * and dQ_c is divided evenly over the queries of chunk c, dK_r and dV_r over the keys of run r. The gradients
 * of the part over lists are those of attention.h, taken with the lse and out of the whole. G_c, D_c and the
 * gradients of the tail have the form of attention's backward pass with T_c's logarithm as lse, G_c as dout
 * and D_c as delta.
 *
 * FLOPs: forward 4 B N D pairs, backward 10 B N D pairs, where pairs = chunks x runs.
 *
 * The ops work on the results of attention over the same lists:
 *     attention_tail_fwd: after attention_list_fwd. Reads and replaces out and lse, writes tail_lse.
 *     attention_tail_bwd: after attention_list_bwd, which was given the lse and out of the whole. Adds to dq,
 *                         dk and dv.
 * Sums are accumulated in F32 or wider. A variant may round Q_c, K_r, V_r, P, G_c and dS to `act` when they
 * are operands of a matrix product. On a device whose field `deterministic` is true, equal arguments give
 * equal bits. */
#ifndef DSVI_ATTENTION_TAIL_H
#define DSVI_ATTENTION_TAIL_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviAttentionTailArgs {
    /* As for attention over lists; lists, q, k, v, out and lse are required. out and lse are read and
     * replaced by forward, read by backward. Backward reads dout, and adds to dq, dk and dv. */
    DsviAttentionArgs attention;
    int64_t chunk;  /* queries of a proxy; divides attention.lists->group */
    int64_t run;    /* keys of a mean key, >= 1 */
    void *tail_lse; /* (B, N, chunks) acc: log T_c, -inf if the list of the chunk is full, or if the tail's
                     * share of the whole is below the smallest normal number of acc; written by forward, read
                     * by backward */
} DsviAttentionTailArgs;

typedef DsvStatus dsvi_attention_tail_fn(DsviStream *stream, const DsviAttentionTailArgs *args);
/* Returns the bytes of args->attention.workspace for these shapes. The data pointers are not read. The
 * bytes suffice for fewer heads too; a call with fewer queries or keys may need more. */
typedef size_t dsvi_attention_tail_workspace_fn(DsviStream *stream, const DsviAttentionTailArgs *args);

/* Number of chunks of all queries. A chunk lies in one group, because chunk divides the group. */
static inline int64_t dsvi_tail_chunks(int64_t queries, int64_t chunk)
{
    return (queries + chunk - 1) / chunk;
}

/* Fails with DSV_E_SHAPE if sizes disagree or chunk does not divide the group. Every variant calls it. */
DsvStatus dsvi_attention_tail_check(const DsviAttentionTailArgs *args);

/* The reference implementations need no workspace. */
dsvi_attention_tail_fn dsvi_attention_tail_fwd_ref, dsvi_attention_tail_bwd_ref;

#ifdef __cplusplus
}
#endif
#endif
