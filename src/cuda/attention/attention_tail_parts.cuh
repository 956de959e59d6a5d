/* The steps before and after the products of a tail (attention_tail.cuh): means of queries and of keys, the
 * weights of keys, the gradients G_c and D_c of proxies, and the changes to out, lse and dq. Compact tensors
 * are (pairs, count, pitch), with pitch = D rounded up to 8. */
#ifndef DSVI_ATTENTION_TAIL_PARTS_CUH
#define DSVI_ATTENTION_TAIL_PARTS_CUH

#include "cuda/attention/attention_tail.cuh"

namespace dsvi {

/* One tail: the arguments of the op, and the numbers of proxies and of mean keys. */
struct TailShape {
    DsviAttentionArgs a;
    float *tail_lse; /* (pairs, chunks) log T_c */
    int64_t pairs, chunk, chunks, run, runs;
    int64_t pitch; /* of compact tensors */
};

/* Returns a compact tensor (pairs, count, pitch) at `data` as rows (B, count, N, D). */
inline DsviHeads compact_heads(const TailShape &tail, void *data, int64_t count)
{
    DsviHeads rows = {data, tail.a.heads * count * tail.pitch, tail.pitch, count * tail.pitch};
    return rows;
}

/* Enqueues: each row of `to` becomes the mean of `width` consecutive ones of `tokens` rows of `from`. */
DsvStatus attention_tail_means(DsviStream *stream, const TailShape &tail, const DsviHeads &from,
                               int64_t tokens, int64_t width, const DsviHeads &to);

/* Elements of a line of bits (32 keys each), biases or counts of one group. */
int64_t attention_tail_line(const TailShape &tail);
/* Enqueues: writes the bits (runs of one key) or the biases of all groups to `to`. */
DsvStatus attention_tail_weights(DsviStream *stream, const TailShape &tail, uint32_t *to);
/* Enqueues: writes the counts of all groups, as AttentionTail.counts, to `to`. */
DsvStatus attention_tail_counts(DsviStream *stream, const TailShape &tail, uint8_t *to);

/* Enqueues: writes the bits of all groups, as AttentionTail.columns, to `to`, for `padded` keys. */
DsvStatus attention_tail_columns(DsviStream *stream, const TailShape &tail, int64_t padded, uint64_t *to);

/* Enqueues: writes G_c to `g`, in act, and D_c to `delta` (pairs, chunks). */
DsvStatus attention_tail_gradients(DsviStream *stream, const TailShape &tail, const DsviHeads &g,
                                   float *delta);

/* Enqueues: joins the results over `parts` parts of the keys, `p` (pairs, parts, chunks, pitch) and `lse`
 * (pairs, parts, chunks), to p_c, compact rows of F32 in `to`, and log T_c. */
DsvStatus attention_tail_join_parts(DsviStream *stream, const TailShape &tail, int64_t parts, const float *p,
                                    const float *lse, float *to);
/* Enqueues: joins p_c, compact rows of F32, to out and lse. */
DsvStatus attention_tail_join(DsviStream *stream, const TailShape &tail, const float *p);
/* Enqueues: adds to each row of dq its part of dQ_c, compact rows of F32. */
DsvStatus attention_tail_spread(DsviStream *stream, const TailShape &tail, const float *dq);

} // namespace dsvi

#endif
