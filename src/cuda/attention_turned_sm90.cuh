/* Attention backward over lists turned about, on Hopper: plan and barriers, which all its warpgroups share,
 * and the first of them, which keeps house: takes blocks of keys, brings them and their queries, makes dQ.
 * The others, and what all of it is for: attention_turned_sm90.cu. */
#ifndef DSVI_ATTENTION_TURNED_SM90_CUH
#define DSVI_ATTENTION_TURNED_SM90_CUH

#include "cuda/attention_boxes.cuh"
#include "cuda/attention_schedule.cuh"
#include "cuda/attention_scores_sm90.cuh"
#include "cuda/attention_turned.cuh"

namespace dsvi {
namespace {

using namespace hopper;

enum { HOUSE_BARRIER = 1 }; /* barriers by number */

/* Of this thread, as the compiler does not keep it, and known to be small: of its warp, of its warpgroup. */
__device__ __forceinline__ int lane_anew()
{
    return anew(threadIdx.x) & (WARP - 1);
}

__device__ __forceinline__ int warp_anew()
{
    return (anew(threadIdx.x) & (WARPGROUP - 1)) / WARP;
}

/* What follows a step: another one of the same block of keys, one of another block, none. */
enum Follows { MORE, ANOTHER_BLOCK, NOTHING };

/* A tile of queries against a block of keys. */
struct Step {
    int tile, block; /* of all (batch, head)s; a tile below 0: there is no step */
    int keys;        /* from the first of the block to the last of all: it may be short */
    int follows;     /* Follows */
};

/* How far the house has brought steps. The first of its warps alone knows. */
struct Ahead {
    Step step;       /* to be brought next */
    int drawn;       /* place in the order of the block after its block */
    int count;       /* groups that list the block */
    int begin, past; /* with which of them the walk began; how many came before the one that is brought */
    int group, part; /* that one; which of its tiles */
};

struct Plan {
    static constexpr int DIM = TILE_COLUMNS, QUERIES = TILE_QUERIES, KEYS = BLOCK_KEYS, STAGES = 3;
    static constexpr int SHARERS = 2, THREADS = (1 + SHARERS) * WARPGROUP, WARPS = WARPGROUP / WARP;
    /* 64 rows of DIM columns, in halves of 64 columns: a tile's of Q or dO, a sharer's of K or V. */
    static constexpr int MATRIX_BYTES = 64 * DIM * 2, HALF_BYTES = MATRIX_BYTES / 2;
    static constexpr int STAGE_BYTES = 2 * MATRIX_BYTES, ROWS_BYTES = 2 * QUERIES * (int)sizeof(float);
    static constexpr int CHUNK_BYTES = CHUNK_KEYS * QUERIES * 2, DS_BYTES = SHARERS * CHUNK_BYTES;
    static constexpr int BUFFERS = 2; /* of dS */
    /* dQ is made PART_COLUMNS at a time, all that the house has registers for; a warp's is a piece. */
    static constexpr int PART_COLUMNS = 64, PARTS = DIM / PART_COLUMNS;
    static constexpr int PIECE_BYTES = QUERIES / WARPS * PART_COLUMNS * (int)sizeof(float);
    static constexpr int VALUES_AT = SHARERS * MATRIX_BYTES, STAGES_AT = 2 * VALUES_AT;
    static constexpr int DS_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int PIECES_AT = DS_AT + BUFFERS * DS_BYTES;
    static constexpr int ROWS_AT = PIECES_AT + PARTS * WARPS * PIECE_BYTES;
    static constexpr int BARRIERS_AT = ROWS_AT + STAGES * ROWS_BYTES;
    static constexpr int STEPS_AT = BARRIERS_AT + (STAGES + 1 + 2 * BUFFERS) * 8;
    static constexpr int AHEAD_AT = STEPS_AT + STAGES * (int)sizeof(Step);
    static constexpr int SHARED = AHEAD_AT + (int)sizeof(Ahead);
    /* Of a thread; the launch bounds give each BEGUN_REGISTERS, which then change hands. */
    static constexpr int BEGUN_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int HOUSE_REGISTERS = 72, SHARER_REGISTERS = 216;
    static_assert(SHARED + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(HOUSE_REGISTERS + SHARERS * SHARER_REGISTERS <= (1 + SHARERS) * BEGUN_REGISTERS,
                  "registers of a multiprocessor");
    static_assert(DIM + QUERIES / 4 + QUERIES / 2 + 32 <= SHARER_REGISTERS, "dK and dV, dS, S; 32 others");
    static_assert(PART_COLUMNS / 2 + 32 <= HOUSE_REGISTERS, "dQ; 32 others");
    static_assert(KEYS == SHARERS * CHUNK_KEYS && QUERIES == 64 && BOX_ROWS == 64 && BOX_COLUMNS == 64,
                  "a matrix is two boxes");
    static_assert(STAGE_BYTES % ATOM_BYTES == 0 && CHUNK_BYTES % ATOM_BYTES == 0, "matrices are atoms");
    static_assert(ROWS_AT % 16 == 0 && BARRIERS_AT % 8 == 0, "");
};

/* How the copy engine sees Q, dO, K and V. */
struct TurnedMaps {
    CUtensorMap q, dout, k, v;
};

/* PART_COLUMNS columns of a tile's dQ, of which a warp has 16 rows. */
using DqPart = float[Plan::PART_COLUMNS / 2];

/* Shared memory of a block of threads. */
struct Memory {
    unsigned char *bytes;
    uint32_t base; /* the same, as wgmma and the copy engine take it */
    __device__ uint32_t keys_at(int sharer) const { return base + sharer * Plan::MATRIX_BYTES; }
    __device__ uint32_t values_at(int sharer) const
    {
        return base + Plan::VALUES_AT + sharer * Plan::MATRIX_BYTES;
    }
    __device__ uint32_t queries_at(int stage) const
    {
        return base + Plan::STAGES_AT + stage * Plan::STAGE_BYTES;
    }
    __device__ uint32_t douts_at(int stage) const { return queries_at(stage) + Plan::MATRIX_BYTES; }
    __device__ uint32_t ds_at(int buffer) const { return base + Plan::DS_AT + buffer * Plan::DS_BYTES; }
    /* lse of a stage's queries, and behind it delta. */
    __device__ uint32_t lse_at(int stage) const { return base + Plan::ROWS_AT + stage * Plan::ROWS_BYTES; }
    __device__ uint32_t delta_at(int stage) const { return lse_at(stage) + Plan::ROWS_BYTES / 2; }
    __device__ uint32_t barrier(int number) const { return base + Plan::BARRIERS_AT + 8 * number; }
    __device__ uint32_t stage_full(int stage) const { return barrier(stage); }
    __device__ uint32_t keys_full() const { return barrier(Plan::STAGES); }
    __device__ uint32_t ds_full(int buffer) const { return barrier(Plan::STAGES + 1 + buffer); }
    __device__ uint32_t ds_empty(int buffer) const
    {
        return barrier(Plan::STAGES + 1 + Plan::BUFFERS + buffer);
    }
    /* The step that a stage holds. */
    __device__ Step *step(int stage) const
    {
        return reinterpret_cast<Step *>(bytes + Plan::STEPS_AT) + stage;
    }
    __device__ Ahead *ahead() const { return reinterpret_cast<Ahead *>(bytes + Plan::AHEAD_AT); }
};

__device__ __forceinline__ void make_barriers(const Memory &memory)
{
    for (int stage = 0; stage < Plan::STAGES; stage++)
        barrier_init(memory.stage_full(stage), 1);
    barrier_init(memory.keys_full(), 1);
    for (int buffer = 0; buffer < Plan::BUFFERS; buffer++) {
        barrier_init(memory.ds_full(buffer), Plan::SHARERS * Plan::WARPS);
        barrier_init(memory.ds_empty(buffer), Plan::WARPS);
    }
    fence_fresh_barriers();
}

/* 64 rows, from `row` on, for one thread. */
__device__ __forceinline__ void copy_matrix(uint32_t to, const CUtensorMap *map, const AttentionProblem &a,
                                            int pair, int row, uint32_t barrier)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        copy_box(to + half * Plan::HALF_BYTES, map, half * BOX_COLUMNS, pair % a.heads, row, pair / a.heads,
                 barrier);
}

/* A block's K and V, which must be free. */
__device__ __forceinline__ void bring_keys(const AttentionProblem &a, const Turned &t, const TurnedMaps &maps,
                                           const Memory &memory, int block)
{
    int pair = block / t.blocks, key = block % t.blocks * Plan::KEYS;
    if (!elected())
        return;
    barrier_arrive_expecting(memory.keys_full(), 2 * Plan::SHARERS * Plan::MATRIX_BYTES);
#pragma unroll
    for (int sharer = 0; sharer < Plan::SHARERS; sharer++) {
        int row = key + sharer * CHUNK_KEYS;
        copy_matrix(memory.keys_at(sharer), &maps.k, a, pair, row, memory.keys_full());
        copy_matrix(memory.values_at(sharer), &maps.v, a, pair, row, memory.keys_full());
    }
}

/* The next step into a stage, which must be free. */
__device__ __forceinline__ void bring_step(const AttentionProblem &a, const Turned &t, const TurnedMaps &maps,
                                           const Memory &memory, int stage)
{
    const Step step = memory.ahead()->step;
    if (step.tile < 0 || !elected())
        return;
    int pair = step.tile / t.tiles, row = step.tile % t.tiles * Plan::QUERIES;
    uint32_t full = memory.stage_full(stage);
    *memory.step(stage) = step;
    barrier_arrive_expecting(full, Plan::STAGE_BYTES + Plan::ROWS_BYTES);
    copy_matrix(memory.queries_at(stage), &maps.q, a, pair, row, full);
    copy_matrix(memory.douts_at(stage), &maps.dout, a, pair, row, full);
    copy_bulk(memory.lse_at(stage), t.queries + (int64_t)step.tile * 2 * Plan::QUERIES, Plan::ROWS_BYTES,
              full);
}

/* Of a (batch, head)'s blocks of keys, by how many groups one is listed in the mean. */
__device__ __forceinline__ float mean_count(const AttentionProblem &a, const Turned &t, int pair)
{
    const int64_t *offset = a.offsets + (int64_t)pair * a.groups;
    return __fdividef((float)(offset[a.groups] - offset[0]) * (float)t.of_run, (float)t.blocks);
}

/* The block that was drawn becomes the one that is walked. */
__device__ __forceinline__ void begin_block(const AttentionProblem &a, const Turned &t,
                                            const Schedule &schedule, Ahead *h)
{
    int drawn = 0;
    unsigned clock = 0;
    h->step.block = t.order[h->drawn];
    h->step.keys = a.keys - h->step.block % t.blocks * Plan::KEYS;
    h->count = t.counts[h->step.block];
    if (threadIdx.x == 0) {
        drawn = take_tile(schedule);
        clock = clock_of(schedule);
    }
    h->drawn = agreed(drawn);
    float share = __fdividef((float)h->count, mean_count(a, t, h->step.block / t.blocks));
    h->begin = first_step(share, h->count, (unsigned)agreed((int)clock));
    h->past = 0;
}

/* The group that comes next in the walk over the block's. */
__device__ __forceinline__ void begin_group(const AttentionProblem &a, const Turned &t,
                                            const Schedule &schedule, Ahead *h)
{
    int place = h->begin + h->past;
    place -= place < h->count ? 0 : h->count;
    h->group = t.groups[(int64_t)h->step.block * a.groups + place];
    h->part = 0;
    if (threadIdx.x == 0)
        move_clock(schedule, pace_of(h->count));
}

__device__ __forceinline__ int tiles_in(const Turned &t, int group)
{
    return min(t.of_group, t.tiles - group * t.of_group);
}

/* Goes on to the step after the one that was brought. All lanes of the warp do the same. */
__device__ __forceinline__ void look_ahead(const AttentionProblem &a, const Turned &t,
                                           const Schedule &schedule, const Memory &memory)
{
    Ahead h = *memory.ahead();
    if (h.step.tile < 0)
        return;
    if (h.step.follows == NOTHING) {
        h.step.tile = -1;
    } else {
        if (h.step.follows == ANOTHER_BLOCK) {
            begin_block(a, t, schedule, &h);
            begin_group(a, t, schedule, &h);
        } else if (++h.part == tiles_in(t, h.group)) {
            h.past++;
            begin_group(a, t, schedule, &h);
        }
        h.step.tile = h.step.block / t.blocks * t.tiles + h.group * t.of_group + h.part;
        h.step.follows = h.part + 1 < tiles_in(t, h.group) || h.past + 1 < h.count ? MORE
                         : h.drawn < *t.listed                                     ? ANOTHER_BLOCK
                                                                                   : NOTHING;
    }
    __syncwarp();
    if (threadIdx.x == 0)
        *memory.ahead() = h;
    __syncwarp();
}

/* What the first steps need; there is one. */
__device__ __forceinline__ void bring_first(const AttentionProblem &a, const Turned &t,
                                            const Schedule &schedule, const TurnedMaps &maps,
                                            const Memory &memory)
{
    if (threadIdx.x == 0) {
        memory.ahead()->step = {0, 0, 0, ANOTHER_BLOCK};
        memory.ahead()->drawn = (int)blockIdx.x;
    }
    __syncwarp();
    look_ahead(a, t, schedule, memory);
    bring_keys(a, t, maps, memory, memory.ahead()->step.block);
#pragma unroll 1
    for (int stage = 0; stage < Plan::STAGES; stage++) {
        bring_step(a, t, maps, memory, stage);
        look_ahead(a, t, schedule, memory);
    }
}

/* PART_COLUMNS columns of dQ = dS K of a step, begun. Lines of both are keys. */
template <int PART> __device__ __forceinline__ void begin_dq(DqPart &dq, const Memory &memory, int buffer)
{
    uint64_t left = matrix_at(memory.ds_at(buffer), ATOM_BYTES, ATOM_BYTES);
    uint64_t right = matrix_at(memory.keys_at(0) + PART * Plan::HALF_BYTES, ATOM_BYTES, ATOM_BYTES);
    leave_unset(dq);
    products_begin();
#pragma unroll
    for (int key = 0; key < Plan::KEYS; key += 16) {
        int line = key / CHUNK_KEYS * Plan::MATRIX_BYTES + key % CHUNK_KEYS * LINE_BYTES;
        multiply_turned(dq, left + key * LINE_BYTES / 16, right + line / 16, key > 0);
    }
    products_commit();
}

/* A part of a warp's rows of dQ to their sums. Each part has a buffer of its own; what was sent from it
 * before was sent as many parts ago as there are. */
template <int PART>
__device__ __forceinline__ void add_dq(const DqPart &dq, const Turned &t, const Memory &memory, int tile,
                                       bool issues)
{
    int lane = lane_anew(), piece = Plan::PARTS * warp_anew() + PART;
    uint32_t buffer = memory.base + Plan::PIECES_AT + piece * Plan::PIECE_BYTES;
    if (issues)
        bulk_wait_read<Plan::PARTS - 1>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < (int)(sizeof dq / sizeof *dq); i += 4)
        store_four(buffer + (i / 4 * WARP + lane) * 16, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    fence_for_products();
    __syncwarp();
    if (issues) {
        float *sums = t.sums + (int64_t)tile * TILE_FLOATS;
        add_bulk(sums + piece * (Plan::PIECE_BYTES / (int)sizeof(float)), buffer, Plan::PIECE_BYTES);
        bulk_commit();
    }
}

/* All parts from PART on. When the last product is made, dS of the step is free. */
template <int PART>
__device__ __forceinline__ void make_dq(const Turned &t, const Memory &memory, int buffer, int tile,
                                        bool issues)
{
    DqPart dq;
    begin_dq<PART>(dq, memory, buffer);
    products_wait<0>();
    hold(dq);
    if constexpr (PART + 1 == Plan::PARTS) {
        named_sync(HOUSE_BARRIER, WARPGROUP);
        if (threadIdx.x % WARP == 0)
            barrier_arrive(memory.ds_empty(buffer));
    }
    add_dq<PART>(dq, t, memory, tile, issues);
    if constexpr (PART + 1 < Plan::PARTS)
        make_dq<PART + 1>(t, memory, buffer, tile, issues);
}

/* When dS of a step is full both sharers are done with all of the step before, so that its stage is free; and
 * with K and V too, if the step is the last of its block. */
__device__ __forceinline__ void keep_house(const AttentionProblem &a, const Turned &t,
                                           const Schedule &schedule, const TurnedMaps &maps,
                                           const Memory &memory)
{
    bool first_warp = agreed(threadIdx.x / WARP) == 0, issues = elected();
    if (first_warp)
        bring_first(a, t, schedule, maps, memory);
    for (uint32_t turn = 0;; turn++) {
        int buffer = turn % Plan::BUFFERS;
        barrier_wait(memory.ds_full(buffer), turn / Plan::BUFFERS & 1);
        fence_for_products();
        if (first_warp && turn > 0)
            bring_step(a, t, maps, memory, (turn - 1) % Plan::STAGES);
        const Step step = *memory.step(turn % Plan::STAGES);
        make_dq<0>(t, memory, buffer, step.tile, issues);
        if (first_warp && step.follows == ANOTHER_BLOCK)
            bring_keys(a, t, maps, memory, memory.step((turn + 1) % Plan::STAGES)->block);
        if (step.follows == NOTHING)
            break;
        if (first_warp && turn > 0)
            look_ahead(a, t, schedule, memory);
    }
    if (issues)
        bulk_wait();
}

} // namespace
} // namespace dsvi

#endif
