/* The key-major backward pass of attention (attention_inverted.cuh), except its main kernel: the workspace,
 * the inversion of the lists, the order of the blocks, and the conversion of the sums to dq. */
#include "cuda/attention/attention_inverted.cuh"
#include "cuda/common/block_sums.cuh"

namespace dsvi {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int SLAB = 32; /* blocks of keys whose inverted lists one thread block writes */
/* Largest number of groups. One bit for each group and each of SLAB blocks of keys takes 48 KiB of shared
 * memory, and group numbers are stored in 16 bits. */
constexpr int GROUPS_MAX = 12288;
constexpr int ORDERING = 1024;  /* number of threads of the kernel that sorts the blocks of keys */
constexpr size_t ALIGNED = 128; /* bytes; buffers in the workspace begin at multiples of it */

/* Sets the bit of group `group` of queries in `listed` (SLAB, words) for each block of 128 keys that the
 * group's list contains, among the SLAB blocks from `first` on. */
__device__ void mark_group(const AttentionProblem &a, const Inverted &t, int pair, int group, int first,
                           int words, uint32_t *listed)
{
    const int64_t *offset = a.offsets + (int64_t)pair * a.groups + group;
    const int32_t *spans = a.spans + offset[0];
    int count = (int)(offset[1] - offset[0]), low = 0, high = count, end = min(first + SLAB, t.blocks);
    while (low < high) { /* finds the first span that does not end before block `first` */
        int middle = (low + high) / 2;
        if ((spans[middle] + 1) * t.blocks_per_span <= first)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count && spans[low] * t.blocks_per_span < end; low++) {
        int begin = spans[low] * t.blocks_per_span, past = min(begin + t.blocks_per_span, end);
        for (int block = max(begin, first); block < past; block++)
            atomicOr(&listed[(block - first) * words + group / 32], 1u << group % 32);
    }
}

/* Writes to `to` the numbers of the groups whose bits are set in `listed`, ascending, and returns how many
 * bits are set. Called by all lanes of a warp. */
__device__ int write_groups(const uint32_t *listed, int words, uint16_t *to)
{
    int lane = threadIdx.x % WARP, count = 0;
    for (int first = 0; first < words; first += WARP) {
        int word = first + lane;
        uint32_t bits = word < words ? listed[word] : 0;
        int here = __popc(bits), upto = here;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            int below = __shfl_up_sync(0xffffffffu, upto, step);
            upto += lane >= step ? below : 0;
        }
        uint16_t *at = to + count + upto - here;
        for (; bits; bits &= bits - 1)
            *at++ = (uint16_t)(32 * word + __ffs((int)bits) - 1);
        count += __shfl_sync(0xffffffffu, upto, WARP - 1);
    }
    return count;
}

/* Sets the rows of dk, or of dv, of one block of keys to 0. Called by all lanes of a warp. */
__device__ void clear_rows(const AttentionProblem &a, const DsviHeads &rows, int pair, int block)
{
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(rows.data) + pair / a.heads * rows.batch_stride +
                        pair % a.heads * rows.head_stride;
    int end = min((block + 1) * BLOCK_KEYS, a.keys);
    for (int64_t key = block * BLOCK_KEYS; key < end; key++)
        for (int column = threadIdx.x % WARP * 2; column < a.dim; column += 2 * WARP)
            *reinterpret_cast<uint32_t *>(to + key * rows.token_stride + column) = 0;
}

/* Grid: a thread block for each SLAB blocks of keys of a (batch, head). A thread reads the list of a group, a
 * warp writes the inverted list of a block. */
__global__ void __launch_bounds__(THREADS)
    invert_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted t, int words)
{
    extern __shared__ uint32_t listed[];
    int slabs = (t.blocks + SLAB - 1) / SLAB, pair = blockIdx.x / slabs, first = blockIdx.x % slabs * SLAB;
    for (int i = threadIdx.x; i < SLAB * words; i += THREADS)
        listed[i] = 0;
    __syncthreads();
    for (int group = threadIdx.x; group < a.groups; group += THREADS)
        mark_group(a, t, pair, group, first, words, listed);
    __syncthreads();
    for (int line = threadIdx.x / WARP; line < SLAB && first + line < t.blocks; line += WARPS) {
        int64_t block = (int64_t)pair * t.blocks + first + line;
        int count = write_groups(listed + line * words, words, t.groups + block * a.groups);
        if (threadIdx.x % WARP == 0)
            t.counts[block] = count;
        if (count > 0)
            continue;
        clear_rows(a, a.dk, pair, first + line);
        clear_rows(a, a.dv, pair, first + line);
    }
}

/* Returns the number of the n-th block of keys, where the blocks of one (batch, head) follow those of another
 * in the order `heads` (NULL: ascending). */
__device__ int block_numbered(const Inverted &t, const int *heads, int n)
{
    int place = n / t.blocks;
    return (heads ? heads[place] : place) * t.blocks + n % t.blocks;
}

/* Returns the class of a block of keys that the lists of `count` groups contain: 0 if `count` exceeds
 * `heavy`, 2 if `count` is 0, else 1. Class 0 is processed first, class 2 not at all. */
__device__ int class_of(int count, float heavy)
{
    return count == 0 ? 2 : (float)count > heavy ? 0 : 1;
}

/* Sorts the blocks of keys for the main kernel; launched with one thread block. First come heavy blocks,
 * which more than twice the mean number of groups list, so that no heavy block begins when all other work is
 * already done. Then come the normal blocks, one (batch, head) after the other, so that the queries of a
 * (batch, head) stay in the L2 cache. */
__global__ void __launch_bounds__(ORDERING)
    order_blocks_kernel(const __grid_constant__ Inverted t, const int *heads, int all)
{
    __shared__ int before[2][ORDERING / WARP];
    __shared__ double sums[ORDERING / WARP];
    int each = (all + ORDERING - 1) / ORDERING, first = min((int)threadIdx.x * each, all);
    int end = min(first + each, all), counts[3] = {0, 0, 0}, places[2], totals[2];
    double total = 0;
    for (int i = first; i < end; i++)
        total += t.counts[i];
    float heavy = (float)(2 * block_sum(total, sums) / all);
    for (int n = first; n < end; n++)
        counts[class_of(t.counts[block_numbered(t, heads, n)], heavy)]++;
    places[0] = block_exclusive_sum(counts[0], before[0], &totals[0]);
    places[1] = block_exclusive_sum(counts[1], before[1], &totals[1]) + totals[0];
    for (int n = first; n < end; n++) {
        int block = block_numbered(t, heads, n), kind = class_of(t.counts[block], heavy);
        if (kind < 2)
            t.order[places[kind]++] = block;
    }
    if (threadIdx.x == 0)
        *t.listed = totals[0] + totals[1];
}

/* Stores eight elements of a row of dq, or adds them to what the row contains. */
template <TailKind KIND, typename Out> __device__ __forceinline__ void store_row(Out *to, float (&x)[8])
{
    if constexpr (KIND == KEY_TAIL) {
        float before[8];
        load(to, before);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] += before[i];
    }
    store_vector(to, x);
}

/* Rounds the F32 sums of dQ, scaled, to dq; a thread converts eight columns of two rows. Grid: two thread
 * blocks for each tile of queries. */
template <TailKind KIND>
__global__ void __launch_bounds__(THREADS)
    finish_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted t)
{
    int tile = blockIdx.x / 2, pair = tile / t.tiles, columns = threadIdx.x % 16;
    /* 16 threads convert rows r and r + 8 of the 16 rows that one warp's product has; `line` is the number of
     * this pair of rows in the tile. */
    int line = blockIdx.x % 2 * (THREADS / 16) + threadIdx.x / 16;
    int row = tile % t.tiles * TILE_QUERIES + line / 8 * 16 + line % 8;
    if (8 * columns >= a.dim)
        return;
    const float *from = t.sums + (int64_t)tile * TILE_FLOATS + line / 8 * (TILE_FLOATS / 4) + columns * 128 +
                        line % 8 * 16;
    float x[2][8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float four[4];
        load(from + 4 * i, four);
        x[0][2 * i] = a.scale * four[0], x[0][2 * i + 1] = a.scale * four[1];
        x[1][2 * i] = a.scale * four[2], x[1][2 * i + 1] = a.scale * four[3];
    }
    using Out = typename TailResult<KIND == QUERY_TAIL>::Type;
    Out *to = static_cast<Out *>(a.dq.data) + pair / a.heads * a.dq.batch_stride +
              pair % a.heads * a.dq.head_stride + 8 * columns;
    if (row < a.queries)
        store_row<KIND>(to + row * a.dq.token_stride, x[0]);
    if (row + 8 < a.queries)
        store_row<KIND>(to + (row + 8) * a.dq.token_stride, x[1]);
}

} // namespace

const char *attention_inverted_declines(const DsviStream *stream, const AttentionProblem &a)
{
    if (a.dim <= 64 || a.dim > TILE_COLUMNS)
        return "head size not from 65 to 128";
    if (a.group % TILE_QUERIES != 0 && a.groups != 1)
        return "groups are not whole tiles of 64 queries";
    if (a.groups > GROUPS_MAX)
        return "more than 12288 groups";
    if (ceil_div(a.keys, BLOCK_KEYS) * a.pairs < stream->multiprocessors)
        return "fewer blocks than multiprocessors";
    return a.queries > 0 ? nullptr : "no queries";
}

/* Returns the address *at in the workspace and advances *at by `bytes`, rounded up to a multiple of ALIGNED.
 */
static char *attention_inverted_take(char **at, size_t bytes)
{
    char *taken = *at;
    *at += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return taken;
}

/* Fills *t with the layout of a workspace at `at`; returns the end of the workspace. */
static char *attention_inverted_carve(const AttentionProblem &a, char *at, Inverted *t)
{
    t->blocks = (int)ceil_div(a.keys, BLOCK_KEYS);
    t->tiles = (int)ceil_div(a.queries, TILE_QUERIES);
    t->tiles_per_group = (int)ceil_div(a.group, TILE_QUERIES);
    t->blocks_per_span = (int)ceil_div(a.grain, BLOCK_KEYS);
    t->all = a.pairs * t->blocks;
    size_t tiles = (size_t)a.pairs * t->tiles, blocks = (size_t)a.pairs * t->blocks;
    t->sums = reinterpret_cast<float *>(attention_inverted_take(&at, tiles * TILE_FLOATS * sizeof(float)));
    t->queries = reinterpret_cast<float *>(
        attention_inverted_take(&at, tiles * 2 * TILE_QUERIES * sizeof(float)));
    t->groups = reinterpret_cast<uint16_t *>(
        attention_inverted_take(&at, blocks * a.groups * sizeof(uint16_t)));
    t->counts = reinterpret_cast<int *>(attention_inverted_take(&at, blocks * sizeof(int)));
    t->order = reinterpret_cast<int *>(attention_inverted_take(&at, blocks * sizeof(int)));
    t->listed = reinterpret_cast<int *>(attention_inverted_take(&at, sizeof(int)));
    return at;
}

size_t attention_inverted_bytes(const AttentionProblem &a)
{
    Inverted inverted;
    return (size_t)(attention_inverted_carve(a, nullptr, &inverted) - static_cast<char *>(nullptr));
}

Inverted attention_inverted_at(const AttentionProblem &a)
{
    Inverted inverted;
    attention_inverted_carve(a, reinterpret_cast<char *>(a.sums), &inverted);
    return inverted;
}

DsvStatus attention_invert_lists(DsviStream *stream, const AttentionProblem &a, const Inverted &t,
                                 const int *heads)
{
    int words = (int)ceil_div(a.groups, 32), slabs = (int)ceil_div(t.blocks, SLAB);
    DSVI_CUDA_LAUNCH(stream, "attention: inverted lists", invert_kernel, (unsigned)(slabs * a.pairs), THREADS,
                     SLAB * words * sizeof(uint32_t), a, t, words);
    DSVI_CUDA_LAUNCH(stream, "attention: order of blocks", order_blocks_kernel, 1, ORDERING, 0, t, heads,
                     a.pairs * t.blocks);
    return DSV_OK;
}

DsvStatus attention_finish_queries(DsviStream *stream, const AttentionProblem &a, const Inverted &t,
                                   TailKind kind)
{
    auto *kernel = kind == NO_TAIL      ? finish_kernel<NO_TAIL>
                   : kind == QUERY_TAIL ? finish_kernel<QUERY_TAIL>
                                        : finish_kernel<KEY_TAIL>;
    DSVI_CUDA_LAUNCH(stream, "attention: dq from its sums", kernel, (unsigned)(2 * a.pairs * t.tiles),
                     THREADS, 0, a, t);
    return DSV_OK;
}

} // namespace dsvi
