/* What the forward kernel on Hopper (attention_list_fwd_sm90.cu) reads about the keys of a tail
 * (attention_tail.cuh), for 64 rows of a consumer and TAIL_KEYS keys of a step.
 *
 * TailLines says where the numbers of a consumer's rows are, TailStep holds those of a step. Lane l of a warp
 * has the columns 8 j + 2 (l % 4) and the next of a product, in rows l / 4 and l / 4 + 8 of the warp's 16. */
#ifndef DSVI_ATTENTION_TAIL_SM90_CUH
#define DSVI_ATTENTION_TAIL_SM90_CUH

#include "cuda/attention/attention_tail.cuh"
#include "cuda/common/hopper.cuh"

namespace dsvi {
namespace {

template <TailKind KIND> struct TailLines;
template <TailKind KIND> struct TailStep;

/* Attention over lists reads nothing of a tail. */
template <> struct TailLines<NO_TAIL> {
    __device__ void find(const AttentionProblem &, int, int) {}
};

template <> struct TailStep<NO_TAIL> {
    __device__ void fetch(const TailLines<NO_TAIL> &, int) {}
};

/* Query tail: bits of keys. */
template <> struct TailLines<QUERY_TAIL> {
    const uint4
        *lines[2]; /* for each of a lane's rows, bits of TAIL_KEYS keys, from the job's first key on */

    /* Sets `lines` for job `part` = (batch, head) x parts + part of the keys, whose rows for this consumer
     * begin at row `first`. */
    __device__ void find(const AttentionProblem &a, int part, int first)
    {
        int pair = part / a.tail.parts, from = part % a.tail.parts * a.tail.part_keys;
        int row = first + threadIdx.x % hopper::WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4;
#pragma unroll
        for (int half = 0; half < 2; half++)
            lines[half] = reinterpret_cast<const uint4 *>(a.tail.bits + tail_line(a, pair, row + 8 * half) +
                                                          from / 32);
    }
};

/* The bits of a step, moved so that bits 8 j and 8 j + 1 of bits[row][word] belong to columns 32 word + 8 j +
 * 2 (lane % 4) and the next. */
template <> struct TailStep<QUERY_TAIL> {
    uint32_t bits[2][TAIL_KEYS / 32];

    __device__ void fetch(const TailLines<QUERY_TAIL> &tail, int step)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 four = __ldg(tail.lines[half] + step);
            bits[half][0] = four.x, bits[half][1] = four.y, bits[half][2] = four.z, bits[half][3] = four.w;
        }
    }

    /* Sets the scores of keys that the tail does not contain to -inf. */
    template <int N> __device__ void apply(float (&s)[N])
    {
        static_assert(N == TAIL_KEYS / 2, "a thread has two rows, a quarter of the columns");
        int shift = threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++)
            bits[n / 4][n % 4] >>= shift;
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = bits[i / 2 % 2][i / 16] & 1u << (i / 4 % 4 * 8 + i % 2) ? s[i] : -INFINITY;
    }
};

/* Key tail: counts of runs, the same for all rows of a consumer. */
template <> struct TailLines<KEY_TAIL> {
    const uint4 *line; /* the lane's counts of step 0 */

    __device__ void find(const AttentionProblem &a, int pair, int first)
    {
        line = reinterpret_cast<const uint4 *>(a.tail.counts + tail_line(a, pair, first)) +
               threadIdx.x % 4 * 2;
    }
};

/* The counts of the lane's columns of a step, a byte each, in the order of the columns. */
template <> struct TailStep<KEY_TAIL> {
    uint32_t bytes[TAIL_KEYS / 16];

    __device__ void fetch(const TailLines<KEY_TAIL> &tail, int step)
    {
        const uint4 *from = tail.line + step * (TAIL_KEYS / 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 four = __ldg(from + i);
            bytes[4 * i] = four.x, bytes[4 * i + 1] = four.y, bytes[4 * i + 2] = four.z,
                      bytes[4 * i + 3] = four.w;
        }
    }

    /* Returns count number `n`, a constant. 2^23 + n is the float whose last byte is n. */
    __device__ float count(int n) const
    {
        return __uint_as_float(__byte_perm(bytes[n / 4], 0x4b000000u, 0x7440u + n % 4)) - 0x1p23f;
    }
};

} // namespace
} // namespace dsvi

#endif
