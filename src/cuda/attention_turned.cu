/* Attention's backward pass over lists turned about (attention_turned.cuh), what is before and behind its
 * kernel: the workspace, the lists, the order of the work, dq from its sums. */
#include "cuda/attention_turned.cuh"
#include "cuda/block_sums.cuh"

namespace dsvi {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int SLAB = 32;           /* blocks of keys whose lists a block of threads makes */
constexpr int GROUPS_MOST = 12288; /* a bit for each, for each of a SLAB, are 48 KiB; numbers of 16 bits */
constexpr int ORDERING = 1024;     /* threads that put blocks of keys in order */
constexpr size_t ALIGNED = 128;    /* bytes, of what is in the workspace */

/* Marks in `listed`, (SLAB, words) bits, which of the blocks from `first` on a group lists. */
__device__ void mark_group(const AttentionProblem &a, const Turned &t, int pair, int group, int first,
                           int words, uint32_t *listed)
{
    const int64_t *offset = a.offsets + (int64_t)pair * a.groups + group;
    const int32_t *runs = a.runs + offset[0];
    int count = (int)(offset[1] - offset[0]), low = 0, high = count, end = min(first + SLAB, t.blocks);
    while (low < high) { /* for the first run that does not end before */
        int middle = (low + high) / 2;
        if ((runs[middle] + 1) * t.of_run <= first)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count && runs[low] * t.of_run < end; low++) {
        int begin = runs[low] * t.of_run, behind = min(begin + t.of_run, end);
        for (int block = max(begin, first); block < behind; block++)
            atomicOr(&listed[(block - first) * words + group / 32], 1u << group % 32);
    }
}

/* The numbers of the bits that are set, by a warp; returns how many they are. */
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

/* A block's rows of dk or dv become 0, by a warp. */
__device__ void clear_rows(const AttentionProblem &a, const DsvHeads &rows, int pair, int block)
{
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(rows.data) + pair / a.heads * rows.batch_stride +
                        pair % a.heads * rows.head_stride;
    int end = min((block + 1) * BLOCK_KEYS, a.keys);
    for (int64_t key = block * BLOCK_KEYS; key < end; key++)
        for (int column = threadIdx.x % WARP * 2; column < a.dim; column += 2 * WARP)
            *reinterpret_cast<uint32_t *>(to + key * rows.token_stride + column) = 0;
}

/* Grid: SLAB blocks of keys of a (batch, head) each. A thread looks a group's list through, a warp writes
 * that of a block. */
__global__ void __launch_bounds__(THREADS)
    turn_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Turned t, int words)
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

/* Number n of all blocks of keys, (batch, head) after (batch, head). */
__device__ int block_numbered(const Turned &t, const int *heads, int n)
{
    int place = n / t.blocks;
    return (heads ? heads[place] : place) * t.blocks + n % t.blocks;
}

/* Of a block that `count` groups list: 0 the long ones, 1 the others, 2 those of nobody. */
__device__ int kind_of(int count, float long_one)
{
    return count == 0 ? 2 : (float)count > long_one ? 0 : 1;
}

/* One block of threads. Blocks of keys that more than twice as many groups list as in the mean come first,
 * lest one of them be begun when the others are done; then the others, each (batch, head)'s together, whose
 * queries then stay in the L2 cache. */
__global__ void __launch_bounds__(ORDERING)
    order_blocks_kernel(const __grid_constant__ Turned t, const int *heads, int all)
{
    __shared__ int before[2][ORDERING / WARP];
    __shared__ double sums[ORDERING / WARP];
    int each = (all + ORDERING - 1) / ORDERING, first = min((int)threadIdx.x * each, all);
    int end = min(first + each, all), counts[3] = {0, 0, 0}, places[2], totals[2];
    double total = 0;
    for (int i = first; i < end; i++)
        total += t.counts[i];
    float long_one = (float)(2 * block_sum(total, sums) / all);
    for (int n = first; n < end; n++)
        counts[kind_of(t.counts[block_numbered(t, heads, n)], long_one)]++;
    places[0] = block_before(counts[0], before[0], &totals[0]);
    places[1] = block_before(counts[1], before[1], &totals[1]) + totals[0];
    for (int n = first; n < end; n++) {
        int block = block_numbered(t, heads, n), kind = kind_of(t.counts[block], long_one);
        if (kind < 2)
            t.order[places[kind]++] = block;
    }
    if (threadIdx.x == 0)
        *t.listed = totals[0] + totals[1];
}

/* Eight columns of two rows. Grid: half a tile each, neighbouring threads have neighbouring columns. */
__global__ void __launch_bounds__(THREADS)
    finish_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Turned t)
{
    int tile = blockIdx.x / 2, pair = tile / t.tiles, columns = threadIdx.x % 16;
    int line = blockIdx.x % 2 * (THREADS / 16) + threadIdx.x / 16; /* two rows of each warp that made them */
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
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(a.dq.data) + pair / a.heads * a.dq.batch_stride +
                        pair % a.heads * a.dq.head_stride + 8 * columns;
    if (row < a.queries)
        store(to + row * a.dq.token_stride, x[0]);
    if (row + 8 < a.queries)
        store(to + (row + 8) * a.dq.token_stride, x[1]);
}

} // namespace

const char *attention_turned_leaves(const DsvStream *stream, const AttentionProblem &a)
{
    if (a.dim <= 64 || a.dim > TILE_COLUMNS)
        return "head size not from 65 to 128";
    if (a.group % TILE_QUERIES != 0 && a.groups != 1)
        return "groups are not whole tiles of 64 queries";
    if (a.groups > GROUPS_MOST)
        return "more than 12288 groups";
    if (ceil_div(a.keys, BLOCK_KEYS) * a.pairs < stream->multiprocessors)
        return "fewer blocks than multiprocessors";
    return a.queries > 0 ? nullptr : "no queries";
}

/* The next `bytes` of the workspace. */
static char *take(char **at, size_t bytes)
{
    char *taken = *at;
    *at += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return taken;
}

/* Returns where it ends. */
static char *lay_out(const AttentionProblem &a, char *at, Turned *t)
{
    t->blocks = (int)ceil_div(a.keys, BLOCK_KEYS);
    t->tiles = (int)ceil_div(a.queries, TILE_QUERIES);
    t->of_group = (int)ceil_div(a.group, TILE_QUERIES);
    t->of_run = (int)ceil_div(a.grain, BLOCK_KEYS);
    size_t tiles = (size_t)a.pairs * t->tiles, blocks = (size_t)a.pairs * t->blocks;
    t->sums = reinterpret_cast<float *>(take(&at, tiles * TILE_FLOATS * sizeof(float)));
    t->queries = reinterpret_cast<float *>(take(&at, tiles * 2 * TILE_QUERIES * sizeof(float)));
    t->groups = reinterpret_cast<uint16_t *>(take(&at, blocks * a.groups * sizeof(uint16_t)));
    t->counts = reinterpret_cast<int *>(take(&at, blocks * sizeof(int)));
    t->order = reinterpret_cast<int *>(take(&at, blocks * sizeof(int)));
    t->listed = reinterpret_cast<int *>(take(&at, sizeof(int)));
    return at;
}

size_t attention_turned_bytes(const AttentionProblem &a)
{
    Turned turned;
    return (size_t)(lay_out(a, nullptr, &turned) - static_cast<char *>(nullptr));
}

Turned attention_turned_at(const AttentionProblem &a)
{
    Turned turned;
    lay_out(a, reinterpret_cast<char *>(a.sums), &turned);
    return turned;
}

DsvStatus attention_turn_lists(DsvStream *stream, const AttentionProblem &a, const Turned &t,
                               const int *heads)
{
    int words = (int)ceil_div(a.groups, 32), slabs = (int)ceil_div(t.blocks, SLAB);
    turn_kernel<<<(unsigned)(slabs * a.pairs), THREADS, SLAB * words * sizeof(uint32_t), stream->handle>>>(
        a, t, words);
    DSVI_CUDA_LAUNCHED("attention's lists turned about");
    order_blocks_kernel<<<1, ORDERING, 0, stream->handle>>>(t, heads, a.pairs * t.blocks);
    DSVI_CUDA_LAUNCHED("attention's order of blocks");
    return DSV_OK;
}

DsvStatus attention_finish_queries(DsvStream *stream, const AttentionProblem &a, const Turned &t)
{
    finish_kernel<<<(unsigned)(2 * a.pairs * t.tiles), THREADS, 0, stream->handle>>>(a, t);
    DSVI_CUDA_LAUNCHED("attention's dq");
    return DSV_OK;
}

} // namespace dsvi
