/* Key-major attention backward on Hopper: constants, shared memory and barriers of the kernel, and its
 * producer warpgroup, which takes blocks of keys, loads them and the queries that attend to them, and
 * computes dQ. The consumers, and an overview of the kernel, are in attention_inverted_sm90.cu.
 *
 * With another KIND than NO_TAIL the kernel computes the backward pass of a tail (attention_tail.cuh): all
 * tiles of queries attend to each block of keys, so a tile counts as a group and no inverted list is read. A
 * key tail has few blocks of keys. Its tiles are therefore divided into slices (AttentionTail.slice_tiles),
 * and the producer takes a block of keys with the tiles of one slice. */
#ifndef DSVI_ATTENTION_INVERTED_SM90_CUH
#define DSVI_ATTENTION_INVERTED_SM90_CUH

#include "cuda/attention/attention_boxes.cuh"
#include "cuda/attention/attention_inverted.cuh"
#include "cuda/attention/attention_schedule.cuh"
#include "cuda/attention/attention_scores_sm90.cuh"
#include "cuda/attention/attention_tail.cuh"

namespace dsvi {
namespace {

using namespace hopper;

enum { PRODUCER_BARRIER = 1 }; /* number of a named barrier */

/* The lane in the warp, and the warp in the warpgroup, computed anew at each call so that the compiler keeps
 * no register for these numbers, and masked so that the compiler knows their range. */
__device__ __forceinline__ int lane_anew()
{
    return anew(threadIdx.x) & (WARP - 1);
}

__device__ __forceinline__ int warp_anew()
{
    return (anew(threadIdx.x) & (WARPGROUP - 1)) / WARP;
}

/* What follows a step (a tile of queries against a block of keys): a step of the same block of keys, a step
 * of another block, or nothing. */
enum Follows { MORE, ANOTHER_BLOCK, NOTHING };

/* One step of the kernel: a tile of queries against a block of keys. */
struct Step {
    int tile, block; /* numbers of the tile and of the block, counted over all (batch, head)s; a negative tile
                      * means that no step is left */
    int keys;    /* number of keys from the block's first key to the last of all keys; the block has the first
                    KEYS of these keys */
    int follows; /* what follows this step, a value of enum Follows */
};

/* Position of the producer in the sequence of steps that it loads. Only its first warp uses it. */
struct Cursor {
    Step step;       /* the step to load next */
    int drawn;       /* position in Inverted.order of the block to process after step.block; in a query tail
                        the block; in a key tail slice of the tiles x Inverted.all + block */
    int first;       /* in a key tail, the first tile of the slice */
    int count;       /* number of groups of queries whose lists contain the current block of keys; in a tail,
                        of tiles */
    int begin, past; /* the groups are processed cyclically from the one at index `begin` of the block's
                        inverted list; past: how many of these groups are done */
    int group, part; /* the current group, and the index of the current tile among the tiles of this group */
};

/* Constants of the kernel, for heads of up to 128 elements. */
struct Config {
    static constexpr int DIM = TILE_COLUMNS, QUERIES = TILE_QUERIES, KEYS = BLOCK_KEYS, STAGES = 3;
    static constexpr int CONSUMERS = 2, THREADS = (1 + CONSUMERS) * WARPGROUP, WARPS = WARPGROUP / WARP;
    /* A matrix in shared memory has 64 rows of DIM columns, stored as two halves of 64 columns. Q and dO of a
     * tile are such matrices, and so are K and V of the 64 keys of one consumer. */
    static constexpr int MATRIX_BYTES = 64 * DIM * 2, HALF_BYTES = MATRIX_BYTES / 2;
    static constexpr int STAGE_BYTES = 2 * MATRIX_BYTES, ROWS_BYTES = 2 * QUERIES * (int)sizeof(float);
    static constexpr int CHUNK_BYTES = CHUNK_KEYS * QUERIES * 2, DS_BYTES = CONSUMERS * CHUNK_BYTES;
    static constexpr int BUFFERS = 2; /* number of shared-memory buffers for dS */
    /* dQ is computed PART_COLUMNS columns at a time, as many as the producer has registers for. The 16 rows
     * of such columns that one warp computes are called a piece. */
    static constexpr int PART_COLUMNS = 64, PARTS = DIM / PART_COLUMNS;
    static constexpr int PIECE_BYTES = QUERIES / WARPS * PART_COLUMNS * (int)sizeof(float);
    static constexpr int VALUES_AT = CONSUMERS * MATRIX_BYTES, STAGES_AT = 2 * VALUES_AT;
    static constexpr int DS_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int PIECES_AT = DS_AT + BUFFERS * DS_BYTES;
    static constexpr int ROWS_AT = PIECES_AT + PARTS * WARPS * PIECE_BYTES;
    static constexpr int BARRIERS_AT = ROWS_AT + STAGES * ROWS_BYTES;
    static constexpr int STEPS_AT = BARRIERS_AT + (STAGES + 1 + 2 * BUFFERS) * 8;
    static constexpr int CURSOR_AT = STEPS_AT + STAGES * (int)sizeof(Step);
    static constexpr int SHARED = CURSOR_AT + (int)sizeof(Cursor);
    /* Registers of a thread. A launch gives each thread LAUNCH_REGISTERS; setmaxnreg then redistributes
     * them. */
    static constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int PRODUCER_REGISTERS = 72, CONSUMER_REGISTERS = 216;
    static_assert(SHARED + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (1 + CONSUMERS) * LAUNCH_REGISTERS,
                  "registers of a multiprocessor");
    static_assert(DIM + QUERIES / 4 + QUERIES / 2 + 32 <= CONSUMER_REGISTERS, "dK and dV, dS, S; 32 others");
    static_assert(PART_COLUMNS / 2 + 32 <= PRODUCER_REGISTERS, "dQ; 32 others");
    static_assert(KEYS == CONSUMERS * CHUNK_KEYS && QUERIES == 64 && BOX_ROWS == 64 && BOX_COLUMNS == 64,
                  "a matrix is two boxes");
    static_assert(STAGE_BYTES % ATOM_BYTES == 0 && CHUNK_BYTES % ATOM_BYTES == 0, "matrices are atoms");
    static_assert(ROWS_AT % 16 == 0 && BARRIERS_AT % 8 == 0, "");
};

/* TMA descriptors of q, dout, k and v. */
struct InvertedMaps {
    CUtensorMap q, dout, k, v;
};

/* A thread's part of PART_COLUMNS columns of a tile's dQ; a warp holds 16 rows. */
using DqPart = float[Config::PART_COLUMNS / 2];

/* Shared memory of a thread block. */
struct Memory {
    unsigned char *bytes;
    uint32_t base; /* address of `bytes` in the shared window, as wgmma and TMA need it */
    __device__ uint32_t keys_at(int consumer) const { return base + consumer * Config::MATRIX_BYTES; }
    __device__ uint32_t values_at(int consumer) const
    {
        return base + Config::VALUES_AT + consumer * Config::MATRIX_BYTES;
    }
    __device__ uint32_t queries_at(int stage) const
    {
        return base + Config::STAGES_AT + stage * Config::STAGE_BYTES;
    }
    __device__ uint32_t douts_at(int stage) const { return queries_at(stage) + Config::MATRIX_BYTES; }
    __device__ uint32_t ds_at(int buffer) const { return base + Config::DS_AT + buffer * Config::DS_BYTES; }
    /* Address of the lse of the queries whose Q is in a stage. The delta of these queries follows the lse. */
    __device__ uint32_t lse_at(int stage) const
    {
        return base + Config::ROWS_AT + stage * Config::ROWS_BYTES;
    }
    __device__ uint32_t delta_at(int stage) const { return lse_at(stage) + Config::ROWS_BYTES / 2; }
    __device__ uint32_t barrier(int number) const { return base + Config::BARRIERS_AT + 8 * number; }
    __device__ uint32_t stage_full(int stage) const { return barrier(stage); }
    __device__ uint32_t keys_full() const { return barrier(Config::STAGES); }
    __device__ uint32_t ds_full(int buffer) const { return barrier(Config::STAGES + 1 + buffer); }
    __device__ uint32_t ds_empty(int buffer) const
    {
        return barrier(Config::STAGES + 1 + Config::BUFFERS + buffer);
    }
    /* The step whose queries are in a stage. */
    __device__ Step *step(int stage) const
    {
        return reinterpret_cast<Step *>(bytes + Config::STEPS_AT) + stage;
    }
    __device__ Cursor *cursor() const { return reinterpret_cast<Cursor *>(bytes + Config::CURSOR_AT); }
};

__device__ __forceinline__ void init_barriers(const Memory &memory)
{
    for (int stage = 0; stage < Config::STAGES; stage++)
        barrier_init(memory.stage_full(stage), 1);
    barrier_init(memory.keys_full(), 1);
    for (int buffer = 0; buffer < Config::BUFFERS; buffer++) {
        barrier_init(memory.ds_full(buffer), Config::CONSUMERS * Config::WARPS);
        barrier_init(memory.ds_empty(buffer), Config::WARPS);
    }
    fence_fresh_barriers();
}

/* Enqueues the TMA copy of 64 rows of a tensor, from token `row` of (batch, head) `pair` on, to shared
 * memory. Called by one thread. */
__device__ __forceinline__ void load_matrix(uint32_t to, const CUtensorMap *map, const AttentionProblem &a,
                                            int pair, int row, uint32_t barrier)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        copy_box(to + half * Config::HALF_BYTES, map, half * BOX_COLUMNS, pair % a.heads, row, pair / a.heads,
                 barrier);
}

/* Enqueues the copies of K and V of a block of keys to shared memory, whose previous contents, K and V of the
 * previous block, must no longer be in use. */
__device__ __forceinline__ void load_keys(const AttentionProblem &a, const Inverted &t,
                                          const InvertedMaps &maps, const Memory &memory, int block)
{
    int pair = block / t.blocks, key = block % t.blocks * Config::KEYS;
    if (!elected())
        return;
    barrier_arrive_expecting(memory.keys_full(), 2 * Config::CONSUMERS * Config::MATRIX_BYTES);
#pragma unroll
    for (int consumer = 0; consumer < Config::CONSUMERS; consumer++) {
        int row = key + consumer * CHUNK_KEYS;
        load_matrix(memory.keys_at(consumer), &maps.k, a, pair, row, memory.keys_full());
        load_matrix(memory.values_at(consumer), &maps.v, a, pair, row, memory.keys_full());
    }
}

/* Enqueues the copies of Q, dO, lse and delta of the next step into a stage, which must be free. */
__device__ __forceinline__ void load_step(const AttentionProblem &a, const Inverted &t,
                                          const InvertedMaps &maps, const Memory &memory, int stage)
{
    const Step step = memory.cursor()->step;
    if (step.tile < 0 || !elected())
        return;
    int pair = step.tile / t.tiles, row = step.tile % t.tiles * Config::QUERIES;
    uint32_t full = memory.stage_full(stage);
    *memory.step(stage) = step;
    barrier_arrive_expecting(full, Config::STAGE_BYTES + Config::ROWS_BYTES);
    load_matrix(memory.queries_at(stage), &maps.q, a, pair, row, full);
    load_matrix(memory.douts_at(stage), &maps.dout, a, pair, row, full);
    copy_bulk(memory.lse_at(stage), t.queries + (int64_t)step.tile * 2 * Config::QUERIES, Config::ROWS_BYTES,
              full);
}

/* Returns the mean, over the blocks of keys of a (batch, head), of the number of groups whose lists contain a
 * block. */
__device__ __forceinline__ float mean_count(const AttentionProblem &a, const Inverted &t, int pair)
{
    const int64_t *offset = a.offsets + (int64_t)pair * a.groups;
    return __fdividef((float)(offset[a.groups] - offset[0]) * (float)t.blocks_per_span, (float)t.blocks);
}

/* Returns the number of tiles of a slice of a tail's tiles; a query tail has one slice. */
template <TailKind KIND>
__device__ __forceinline__ int tiles_in_slice(const AttentionProblem &a, const Inverted &t)
{
    return KIND == KEY_TAIL ? a.tail.slice_tiles : t.tiles;
}

/* Returns the number of blocks of keys to process; in a tail, times the number of slices of the tiles. */
template <TailKind KIND>
__device__ __forceinline__ int blocks_to_process(const AttentionProblem &a, const Inverted &t)
{
    if constexpr (KIND == NO_TAIL)
        return *t.listed;
    int each = tiles_in_slice<KIND>(a, t);
    return t.all * ((t.tiles + each - 1) / each);
}

/* Proceeds to the block of keys whose number was taken from the global counter earlier, and takes the number
 * of the block after it. In a tail, the blocks of a (batch, head) begin with different tiles, so that thread
 * blocks do not add to the same dQ at the same time. */
template <TailKind KIND>
__device__ __forceinline__ void begin_block(const AttentionProblem &a, const Inverted &t,
                                            const Schedule &schedule, Cursor *h)
{
    int drawn = 0;
    unsigned clock = 0;
    h->step.block = KIND == NO_TAIL ? t.order[h->drawn] : KIND == KEY_TAIL ? h->drawn % t.all : h->drawn;
    h->step.keys = a.keys - h->step.block % t.blocks * Config::KEYS;
    int each = tiles_in_slice<KIND>(a, t);
    h->first = KIND == KEY_TAIL ? h->drawn / t.all * each : 0;
    h->count = KIND == NO_TAIL ? t.counts[h->step.block] : min(each, t.tiles - h->first);
    if (threadIdx.x == 0) {
        drawn = take_tile(schedule);
        clock = clock_of(schedule);
    }
    h->drawn = agreed(drawn);
    h->past = 0;
    if constexpr (KIND != NO_TAIL) {
        h->begin = h->step.block % h->count;
        return;
    }
    float relative_count = __fdividef((float)h->count, mean_count(a, t, h->step.block / t.blocks));
    h->begin = first_step(relative_count, h->count, (unsigned)agreed((int)clock));
}

/* Proceeds to the next of the groups whose lists contain the current block of keys. */
template <TailKind KIND>
__device__ __forceinline__ void begin_group(const AttentionProblem &a, const Inverted &t,
                                            const Schedule &schedule, Cursor *h)
{
    int place = h->begin + h->past;
    place -= place < h->count ? 0 : h->count;
    h->group = KIND == NO_TAIL ? t.groups[(int64_t)h->step.block * a.groups + place] : h->first + place;
    h->part = 0;
    if (KIND == NO_TAIL && threadIdx.x == 0)
        move_clock(schedule, pace_of(h->count));
}

__device__ __forceinline__ int tiles_in(const Inverted &t, int group)
{
    return min(t.tiles_per_group, t.tiles - group * t.tiles_per_group);
}

/* Advances the cursor in shared memory from the step just loaded to the next one. Called by one warp, whose
 * lanes all compute the same. */
template <TailKind KIND>
__device__ __forceinline__ void advance_cursor(const AttentionProblem &a, const Inverted &t,
                                               const Schedule &schedule, const Memory &memory)
{
    Cursor h = *memory.cursor();
    if (h.step.tile < 0)
        return;
    if (h.step.follows == NOTHING) {
        h.step.tile = -1;
    } else {
        if (h.step.follows == ANOTHER_BLOCK) {
            begin_block<KIND>(a, t, schedule, &h);
            begin_group<KIND>(a, t, schedule, &h);
        } else if (++h.part == tiles_in(t, h.group)) {
            h.past++;
            begin_group<KIND>(a, t, schedule, &h);
        }
        h.step.tile = h.step.block / t.blocks * t.tiles + h.group * t.tiles_per_group + h.part;
        h.step.follows = h.part + 1 < tiles_in(t, h.group) || h.past + 1 < h.count ? MORE
                         : h.drawn < blocks_to_process<KIND>(a, t)                 ? ANOTHER_BLOCK
                                                                                   : NOTHING;
    }
    __syncwarp();
    if (threadIdx.x == 0)
        *memory.cursor() = h;
    __syncwarp();
}

/* Loads the first block of keys, and the queries of the first STAGES steps. There is at least one step. */
template <TailKind KIND>
__device__ __forceinline__ void load_first_steps(const AttentionProblem &a, const Inverted &t,
                                                 const Schedule &schedule, const InvertedMaps &maps,
                                                 const Memory &memory)
{
    if (threadIdx.x == 0) {
        memory.cursor()->step = {0, 0, 0, ANOTHER_BLOCK};
        memory.cursor()->drawn = (int)blockIdx.x;
    }
    __syncwarp();
    advance_cursor<KIND>(a, t, schedule, memory);
    load_keys(a, t, maps, memory, memory.cursor()->step.block);
#pragma unroll 1
    for (int stage = 0; stage < Config::STAGES; stage++) {
        load_step(a, t, maps, memory, stage);
        advance_cursor<KIND>(a, t, schedule, memory);
    }
}

/* Begins the product dQ = dS K of a step, for the PART_COLUMNS columns of part PART. In shared memory each
 * line of either matrix belongs to one key. */
template <int PART> __device__ __forceinline__ void begin_dq(DqPart &dq, const Memory &memory, int buffer)
{
    uint64_t left = matrix_at(memory.ds_at(buffer), ATOM_BYTES, ATOM_BYTES);
    uint64_t right = matrix_at(memory.keys_at(0) + PART * Config::HALF_BYTES, ATOM_BYTES, ATOM_BYTES);
    leave_unset(dq);
    products_begin();
#pragma unroll
    for (int key = 0; key < Config::KEYS; key += 16) {
        int line = key / CHUNK_KEYS * Config::MATRIX_BYTES + key % CHUNK_KEYS * LINE_BYTES;
        multiply_transposed(dq, left + key * LINE_BYTES / 16, right + line / 16, key > 0);
    }
    products_commit();
}

/* Adds PART_COLUMNS columns of a warp's 16 rows of dQ to the sums in global memory, by TMA from a staging
 * buffer. Each part of the columns has its own staging buffer, so a buffer is free once all but the latest
 * PARTS - 1 additions have read their buffers. */
template <int PART>
__device__ __forceinline__ void add_dq(const DqPart &dq, const Inverted &t, const Memory &memory, int tile,
                                       bool issues)
{
    int lane = lane_anew(), piece = Config::PARTS * warp_anew() + PART;
    uint32_t buffer = memory.base + Config::PIECES_AT + piece * Config::PIECE_BYTES;
    if (issues)
        bulk_wait_read<Config::PARTS - 1>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < (int)(sizeof dq / sizeof *dq); i += 4)
        store_four(buffer + (i / 4 * WARP + lane) * 16, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    fence_for_products();
    __syncwarp();
    if (issues) {
        float *sums = t.sums + (int64_t)tile * TILE_FLOATS;
        add_bulk(sums + piece * (Config::PIECE_BYTES / (int)sizeof(float)), buffer, Config::PIECE_BYTES);
        bulk_commit();
    }
}

/* Computes the parts (PART_COLUMNS columns each) of dQ from PART on, and adds them to the sums. After the
 * last product, the buffer of the step's dS is free. */
template <int PART>
__device__ __forceinline__ void make_dq(const Inverted &t, const Memory &memory, int buffer, int tile,
                                        bool issues)
{
    DqPart dq;
    begin_dq<PART>(dq, memory, buffer);
    products_wait<0>();
    hold(dq);
    if constexpr (PART + 1 == Config::PARTS) {
        named_sync(PRODUCER_BARRIER, WARPGROUP);
        if (threadIdx.x % WARP == 0)
            barrier_arrive(memory.ds_empty(buffer));
    }
    add_dq<PART>(dq, t, memory, tile, issues);
    if constexpr (PART + 1 < Config::PARTS)
        make_dq<PART + 1>(t, memory, buffer, tile, issues);
}

/* The producer's loop over steps. When dS of a step is full, both consumers are done with the previous step,
 * whose stage is then free; and if the step is the last of its block, they are also done with K and V. */
template <TailKind KIND>
__device__ __forceinline__ void produce(const AttentionProblem &a, const Inverted &t,
                                        const Schedule &schedule, const InvertedMaps &maps,
                                        const Memory &memory)
{
    bool first_warp = agreed(threadIdx.x / WARP) == 0, issues = elected();
    if (first_warp)
        load_first_steps<KIND>(a, t, schedule, maps, memory);
    for (uint32_t turn = 0;; turn++) {
        int buffer = turn % Config::BUFFERS;
        barrier_wait(memory.ds_full(buffer), turn / Config::BUFFERS & 1);
        fence_for_products();
        if (first_warp && turn > 0)
            load_step(a, t, maps, memory, (turn - 1) % Config::STAGES);
        const Step step = *memory.step(turn % Config::STAGES);
        make_dq<0>(t, memory, buffer, step.tile, issues);
        if (first_warp && step.follows == ANOTHER_BLOCK)
            load_keys(a, t, maps, memory, memory.step((turn + 1) % Config::STAGES)->block);
        if (step.follows == NOTHING)
            break;
        if (first_warp && turn > 0)
            advance_cursor<KIND>(a, t, schedule, memory);
    }
    if (issues)
        bulk_wait();
}

} // namespace
} // namespace dsvi

#endif
