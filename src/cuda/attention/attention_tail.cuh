/* The tail of attention over lists (ops/attention_tail.h), as a problem for the kernels of attention: a dense
 * problem of one group, whose queries are the proxy queries Q_c, whose keys are the mean keys K_r, and whose
 * scores have a bias of log n_gr. With one key a run n_gr is 1 or 0, and the bias is stored as a bit. Fields
 * of AttentionProblem that mean something else in a tail:
 *     out, lse     p_c (F32) and log T_c
 *     dout         G_c; delta is D_c, an argument
 *     dq           dQ_c (F32)
 *     sums         of dK_r / scale and dV_r
 * A row whose list is full has T_c = 0: p_c is 0, log T_c is -inf, and no gradient passes.
 *
 * The kernels for Hopper compute a key tail, with chunks of one query, otherwise. A chunk is then a query,
 * and P of its part over lists and of its tail have the lse of the whole in common, so that no u_i is needed:
 *     forward     joins p_c and log T_c to out and lse, instead of writing p_c
 *     backward    w_cr exp(-lse_i) in place of P_cr, dout_i in place of G_c, out_i . dout_i in place of D_c;
 *                 adds to dq; `sums` are those of dK_r / scale and dV_r, as above
 * They multiply exp(score) by n_gr, of which a byte is stored, instead of adding a bias to the score. */
#ifndef DSVI_ATTENTION_TAIL_CUH
#define DSVI_ATTENTION_TAIL_CUH

#include <math.h>

#include "cuda/attention/attention_list.cuh"
#include "ops/attention_tail.h"

namespace dsvi {

/* What a kernel for Hopper computes: attention over lists, or a tail with chunks of several queries and runs
 * of one key, or with chunks of one query and runs of several keys. */
enum TailKind { NO_TAIL, QUERY_TAIL, KEY_TAIL };

/* Type of out and dq in the kernels that read Q, K and V in BF16. */
template <bool TAIL> struct TailResult {
    using Type = __nv_bfloat16;
};

template <> struct TailResult<true> {
    using Type = float;
};

/* The bits or biases of a group are padded to this number of keys, with bits 0 or biases -inf, so that
 * kernels may read them for a whole tile of keys. */
constexpr int TAIL_KEYS = 128;
/* Queries of a tile of the forward pass on Hopper. */
constexpr int TAIL_ROWS = 128;
/* Key tails on Hopper: the number of rows that must have the same counts, and the largest count. */
constexpr int TAIL_GROUP = 64, TAIL_COUNT_MAX = 255;

/* Returns the place of run `run` in a line of counts. The runs of TAIL_KEYS columns of a product, of which a
 * lane has 2 in each 8, are stored lane by lane. */
__host__ __device__ __forceinline__ int tail_place(int run)
{
    return run / TAIL_KEYS * TAIL_KEYS + run % 8 / 2 * (TAIL_KEYS / 4) + run % TAIL_KEYS / 8 * 2 + run % 2;
}

/* Returns the offset, in elements of the array, of the bits, biases or counts of the group of row `row`. Rows
 * after the last one have the group of the last row. */
__device__ __forceinline__ int64_t tail_line(const AttentionProblem &a, int pair, int row)
{
    const AttentionTail &t = a.tail;
    return ((int64_t)pair * t.groups + min(row, a.queries - 1) / t.rows_per_group) * t.pitch;
}

/* Returns log n_gr for the group of row `row` and the run `key`. */
__device__ __forceinline__ float tail_bias(const AttentionProblem &a, int pair, int row, int key)
{
    int64_t line = tail_line(a, pair, row);
    if (a.tail.biases)
        return a.tail.biases[line + key];
    return a.tail.bits[line + key / 32] >> key % 32 & 1 ? 0.f : -INFINITY;
}

/* Returns D_c of row `row`. */
__device__ __forceinline__ float tail_delta(const AttentionProblem &a, int pair, int row)
{
    return a.tail.delta[(int64_t)pair * a.queries + row];
}

/* Returns log T_c such that exp(score - log T_c) is 0 also where T_c is 0. */
__device__ __forceinline__ float tail_lse(float lse)
{
    return lse == -INFINITY ? INFINITY : lse;
}

/* Returns what to subtract from scores of which `largest` is the largest one, so that exp(-inf) is 0 also
 * where all scores are -inf. */
__device__ __forceinline__ float tail_largest(float largest)
{
    return largest == -INFINITY ? 0.f : largest;
}

/* Forward: writes out and lse. Backward: writes dq and adds to `sums`. The variants in BF16 read Q, K, V and
 * dout in BF16. */
DsvStatus attention_tail_forward_f32(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_tail_backward_f32(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_tail_forward_bf16(DsviStream *stream, const AttentionProblem &problem);
DsvStatus attention_tail_backward_bf16(DsviStream *stream, const AttentionProblem &problem);

/* The kernels for Hopper serve heads of up to 128 elements in BF16, with rows of whole chunks of 16 bytes.
 * They set *served to false, and enqueue nothing, where TMA does not support the strides or address of a
 * tensor. Their backward passes need `workspace`, of attention_tail_sm90_bytes.
 *     query tail    forward writes out and lse of each part of the keys (AttentionTail.parts). Backward reads
 *                   AttentionTail.columns, adds to dk and dv, which it rounds twice, and writes dq in F32.
 *     key tail      groups have a multiple of TAIL_GROUP rows, or there is one group; runs have at most
 *                   TAIL_COUNT_MAX keys. Both passes read AttentionTail.counts. Forward reads and replaces
 *                   out and tail.lists_lse. Backward adds to dq, and writes `sums`. */
DsvStatus attention_tail_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *served);
DsvStatus attention_key_tail_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *served);
DsvStatus attention_tail_backward_sm90(DsviStream *stream, const AttentionProblem &problem, void *workspace,
                                       bool *served);
DsvStatus attention_key_tail_backward_sm90(DsviStream *stream, const AttentionProblem &problem,
                                           void *workspace, bool *served);
size_t attention_tail_sm90_bytes(int64_t pairs, int64_t queries);

} // namespace dsvi

#endif
