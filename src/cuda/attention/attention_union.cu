/* Implements attention_union.cuh: counts the spans of each union, adds up the counts, writes the spans. */
#include "cuda/attention/attention_union.cuh"
#include "cuda/common/block_sums.cuh"

namespace dsvi {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int ADDING = 1024;    /* threads of the kernel that adds up the counts */
constexpr int WORDS_MAX = 4096; /* 32-bit words of marks of one list in shared memory; more spans than these
                                 * have bits are processed in several windows */
constexpr int GROUP = 64;       /* queries in each of two united groups */

/* Sets the bits of the spans of list `list` that are in the window of spans [first, first + 32 words). */
__device__ void mark_spans(const AttentionProblem &a, int64_t list, int first, int words, uint32_t *marks)
{
    int64_t end = a.offsets[list + 1];
    for (int64_t i = a.offsets[list] + threadIdx.x; i < end; i += THREADS) {
        int span = a.spans[i] - first;
        if (span >= 0 && span < 32 * words)
            atomicOr(&marks[span / 32], 1u << span % 32);
    }
}

/* Writes the spans whose bits are set in word number `word` of the window of either list to `to`. */
__device__ void write_spans(const uint32_t (*marks)[WORDS_MAX], int word, int first, int32_t *to)
{
    uint32_t one = marks[0][word], other = marks[1][word];
    for (uint32_t left = one | other; left; left &= left - 1) {
        int bit = __ffs((int)left) - 1;
        uint32_t span = (uint32_t)(first + 32 * word + bit);
        *to++ = (int32_t)(span | (one >> bit & 1) * LISTED_FIRST | (other >> bit & 1) * LISTED_SECOND);
    }
}

/* A thread block makes one union: with WRITE it writes the spans from united.spans[offsets[n]] on, otherwise
 * it writes their number to offsets[n + 1]. `full` is the number of spans of all keys. */
template <bool WRITE>
__global__ void __launch_bounds__(THREADS)
    union_kernel(const __grid_constant__ AttentionProblem a, int unions, int full, int64_t *offsets,
                 int32_t *spans)
{
    __shared__ uint32_t marks[2][WORDS_MAX];
    __shared__ int sums[WARPS];
    int n = (int)blockIdx.x, one = n % unions * 2;
    int64_t list = (int64_t)(n / unions) * a.groups + one, count = 0, at = WRITE ? offsets[n] : 0;
    for (int first = 0; first < full; first += 32 * WORDS_MAX) {
        int words = min((full - first + 31) / 32, WORDS_MAX), each = (words + THREADS - 1) / THREADS;
        int begin = min((int)threadIdx.x * each, words), end = min(begin + each, words), here = 0, all;
        for (int word = threadIdx.x; word < words; word += THREADS)
            marks[0][word] = marks[1][word] = 0;
        __syncthreads();
        mark_spans(a, list, first, words, marks[0]);
        if (one + 1 < a.groups)
            mark_spans(a, list + 1, first, words, marks[1]);
        __syncthreads();
        for (int word = begin; word < end; word++)
            here += __popc(marks[0][word] | marks[1][word]);
        int64_t to = at + count + block_exclusive_sum(here, sums, &all);
        for (int word = begin; WRITE && word < end; word++) {
            write_spans(marks, word, first, spans + to);
            to += __popc(marks[0][word] | marks[1][word]);
        }
        count += all;
        __syncthreads();
    }
    if (!WRITE && threadIdx.x == 0)
        offsets[n + 1] = count;
}

/* Replaces the counts in offsets[1 .. count] by their sums up to each of them, and sets offsets[0] to 0.
 * Launched with one thread block. */
__global__ void __launch_bounds__(ADDING) add_up_kernel(int64_t *offsets, int count)
{
    __shared__ int64_t shared[ADDING / WARP];
    int each = (count + ADDING - 1) / ADDING, begin = min((int)threadIdx.x * each, count);
    int end = min(begin + each, count);
    int64_t sum = 0, all;
    for (int n = begin; n < end; n++)
        sum += offsets[n + 1];
    int64_t upto = block_exclusive_sum(sum, shared, &all);
    for (int n = begin; n < end; n++)
        offsets[n + 1] = upto += offsets[n + 1];
    if (threadIdx.x == 0)
        offsets[0] = 0;
}

int unions_of(const AttentionProblem &a)
{
    return (a.groups + 1) / 2;
}

size_t offsets_bytes(const AttentionProblem &a)
{
    return ((size_t)a.pairs * unions_of(a) + 1) * sizeof(int64_t);
}

} // namespace

/* The rule depends on sizes that are equal in all calls of a run, and not on the capacity of the lists, so
 * that a workspace for lists of some capacity also serves lists of less. */
size_t attention_union_bytes(const AttentionProblem &a, int64_t capacity)
{
    double spans = 0.5 * a.groups * (double)ceil_div(a.keys, a.grain), sums = 2. * a.keys * a.pitch;
    if (a.group != GROUP || a.groups < 2 || spans > 2 * sums)
        return 0;
    return offsets_bytes(a) + (size_t)capacity * sizeof(int32_t);
}

DsvStatus attention_unite_lists(DsviStream *stream, const AttentionProblem &a, void *at,
                                AttentionProblem *united)
{
    int unions = unions_of(a), count = a.pairs * unions, full = (int)ceil_div(a.keys, a.grain);
    int64_t *offsets = static_cast<int64_t *>(at);
    int32_t *spans = reinterpret_cast<int32_t *>(offsets + count + 1);
    DSVI_CUDA_LAUNCH(stream, "attention: lengths of unions", union_kernel<false>, (unsigned)count, THREADS, 0,
                     a, unions, full, offsets, spans);
    DSVI_CUDA_LAUNCH(stream, "attention: offsets of unions", add_up_kernel, 1, ADDING, 0, offsets, count);
    DSVI_CUDA_LAUNCH(stream, "attention: unions", union_kernel<true>, (unsigned)count, THREADS, 0, a, unions,
                     full, offsets, spans);
    *united = a;
    united->group = 2 * GROUP;
    united->groups = unions;
    united->offsets = offsets;
    united->spans = spans;
    united->united = true;
    return DSV_OK;
}

} // namespace dsvi
