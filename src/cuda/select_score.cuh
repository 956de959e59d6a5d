/* Scores of selection by the tensor cores: what select_histogram and select_lists share, so that both see the
 * same e_gr, coarse ones up to the 2^-9 that they may be off by (ops/select.h).
 *
 * A warp owns a set of 8 groups and takes 32 runs at a time. One product is mma.m16n8k16: 16 runs by 8
 * groups, for the proxies of one `part`, the first of each group, then the second and so on; estimates then
 * add up inside a lane. Lane 4 k + q has runs 4 k ... 4 k + 3 of the 32 (its slots) of groups 2 q and 2 q + 1
 * of the set: rows k and k + 8 of the first product are slots 0 and 1, those of the second slots 2 and 3.
 * A run of several candidates has as many layers, each with one candidate of every run.
 *
 * Features are halves. So that these have the range, proxies and candidates of a (batch, head) are brought to
 * the same largest feature, by powers of two that cancel in the product (select_plan.cuh); where a half is
 * denormal it lacks 2^-25 times a feature. Coarse features are rounded to halves. Others are split into a
 * half and the half of what it leaves, and stand three times: hi lo + lo hi + hi hi, as if there were as
 * many more features; what is left out is 2^-22 of a product: as good as float.
 * Of each DEPTH features a lane holds 4 q ... 4 q + 3, for rows and for columns; which two a fragment calls
 * neighbours is free as long as both agree. Everything lies in memory as lanes want it.
 *
 * Rows are scaled by log2 e and a product starts with log2 of the weight less the lse, so that everything is
 * a power of two: e = sum of 2^(term + score). A multiprocessor makes 16 of those a cycle and does far
 * more of other arithmetic: where rows are near, and with that coarse, one in four is a polynomial
 * (add_exp2_shifted). */
#ifndef DSVI_SELECT_SCORE_CUH
#define DSVI_SELECT_SCORE_CUH

#include <cuda_pipeline_primitives.h>

#include "cuda/kernel.cuh"

namespace dsvi {

enum {
    SET_GROUPS = 8,
    COLUMNS = 32,  /* runs that are taken at a time, a block of them; also a word of a list's bits */
    SLOTS = 4,     /* of a lane */
    PAIR = 2,      /* groups of a lane */
    DEPTH = 16,    /* features of a chunk */
    WARPS = 8,
    SCORE_THREADS = WARPS * WARP,
    NEAR_BLOCKS = 3,  /* blocks of threads that a multiprocessor holds: where rows are near, and elsewhere */
    FAR_BLOCKS = 2,
    ROW_CHUNK = WARP / 2,        /* in 16 bytes: proxies of a part of a set */
    COLUMN_CHUNK = 2 * WARP,     /* candidates of a layer of a block: two products */
    TERMS = 8,                   /* of a part of a set: for both products, and the four pairs of groups */
    STAGE_CHUNKS = 8             /* of columns in shared memory at a time, at least */
};

/* What a kernel of scores walks over. */
struct SelectTiles {
    const uint4 *columns; /* (pairs, blocks, layers, depths, 2, WARP) candidates; zeros for none */
    const uint2 *rows;    /* (pairs, sets, parts, depths, WARP) proxies times scale log2 e; zeros for none */
    const float4 *terms;  /* (pairs, sets, parts, 2, 4) of a lane's two groups, twice; -inf for none. The last
                           * two of the second product are shifted (add_exp2_shifted) */
    int runs;             /* columns that there are */
    int last_layers;      /* candidates of the last run */
    int blocks, layers, depths, parts;
    bool coarse;          /* features are */
    int sets;             /* of a (batch, head), whole blocks of threads */
    int stage;            /* layers of blocks that are in shared memory at a time */
    int slices;           /* into which the blocks of columns are cut, for more blocks of threads */
};

/* The tile of a warp: its set, and blocks [begin, end) of columns. */
struct SelectPlace {
    int pair, set, slice;
    int begin, end;
};

__device__ __forceinline__ SelectPlace select_place(const SelectTiles &t, int64_t number)
{
    SelectPlace at;
    int row_blocks = t.sets / WARPS;
    int64_t row_block = number / t.slices;
    at.slice = (int)(number % t.slices);
    at.pair = (int)(row_block / row_blocks);
    at.set = (int)(row_block % row_blocks) * WARPS + threadIdx.x / WARP;
    at.begin = (int)((int64_t)at.slice * t.blocks / t.slices);
    at.end = (int)((int64_t)(at.slice + 1) * t.blocks / t.slices);
    return at;
}

/* The parts of a set where rows stay in shared memory and each number has kernels of its own; 0 elsewhere:
 * there rows come from the cache, again for each block of columns. */
__host__ __device__ __forceinline__ int select_near(const SelectTiles &t)
{
    bool near = t.coarse && t.depths == 1 && (t.parts == 1 || t.parts == 2 || t.parts == 4 || t.parts == 8);
    return near ? t.parts : 0;
}

/* Of columns, in 16 bytes. */
__host__ __device__ __forceinline__ int stage_size(const SelectTiles &t)
{
    return t.stage * t.depths * COLUMN_CHUNK;
}

/* Shared memory, in 16 bytes: two stages of columns, then rows and terms where they are near. */
__host__ __device__ __forceinline__ int select_shared(const SelectTiles &t)
{
    return 2 * stage_size(t) + WARPS * select_near(t) * (ROW_CHUNK + TERMS);
}

__device__ __forceinline__ void copy_near(uint4 *shared, const void *global, int count)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += SCORE_THREADS)
        __pipeline_memcpy_async(shared + i, static_cast<const uint4 *>(global) + i, sizeof(uint4));
}

/* Layers of the slice's blocks, one after the other; stages come one ahead of the arithmetic. */
struct SelectFeed {
    const uint4 *columns; /* of the layer to ask for next */
    int left;             /* layers to ask for */
    int here;             /* of the stage, still to take */
    const uint4 *now;     /* in shared memory: the layer taken last */
    bool second;          /* whether that is in the second place */
};

__device__ __forceinline__ void feed_ask(const SelectTiles &t, uint4 *shared, SelectFeed &f, bool second)
{
    int size = (f.left < t.stage ? f.left : t.stage) * t.depths * COLUMN_CHUNK;
    copy_near(shared + second * stage_size(t), f.columns, size);
    f.columns += size;
    f.left -= t.stage;
    __pipeline_commit();
}

/* All threads of the block share pair and slice. */
__device__ __forceinline__ SelectFeed feed_begin(const SelectTiles &t, const SelectPlace &at, uint4 *shared)
{
    int64_t layer = (int64_t)(at.pair * t.blocks + at.begin) * t.layers;
    const uint4 *columns = t.columns + layer * t.depths * COLUMN_CHUNK;
    SelectFeed f = {columns, (at.end - at.begin) * t.layers, 0, shared, true};
    feed_ask(t, shared, f, false);
    return f;
}

/* The columns of the next layer. The barrier tells that a stage has arrived for all warps and that all have
 * done with the one before, in whose place the next one comes. */
__device__ __forceinline__ const uint4 *feed_next(const SelectTiles &t, uint4 *shared, SelectFeed &f)
{
    if (f.here == 0) {
        __pipeline_wait_prior(0);
        __syncthreads();
        if (f.left > 0)
            feed_ask(t, shared, f, f.second);
        f.second = !f.second;
        f.now = shared + f.second * stage_size(t);
        f.here = t.stage;
    } else {
        f.now += t.depths * COLUMN_CHUNK;
    }
    f.here--;
    return f.now;
}

/* ---- products ---- */

/* Candidates of one chunk of a layer. */
struct SelectColumns {
    uint4 product[2];
};

__device__ __forceinline__ SelectColumns load_columns(const uint4 *chunk)
{
    const uint4 *mine = chunk + threadIdx.x % WARP;
    return {{mine[0], mine[WARP]}};
}

/* x = start + a b: 16 runs by 8 groups by DEPTH features. */
__device__ __forceinline__ void multiply_add(float (&x)[4], const uint4 &a, uint2 b, const float (&start)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(start[0]), "f"(start[1]),
          "f"(start[2]), "f"(start[3]));
}

/* Scores of a layer of a block: x[i][2 h + g] is slot 2 i + h of group g. The products start with `first` and
 * `second`. */
__device__ __forceinline__ void begin_products(float (&x)[2][4], const SelectColumns &a, uint2 b,
                                               const float (&first)[4], const float (&second)[4])
{
    multiply_add(x[0], a.product[0], b, first);
    multiply_add(x[1], a.product[1], b, second);
}

/* The same of the next features. */
__device__ __forceinline__ void add_products(float (&x)[2][4], const SelectColumns &a, uint2 b)
{
    begin_products(x, a, b, x[0], x[1]);
}

/* ---- powers ---- */

/* 2^x to 2 units in the last place; below 2^-126 it is zero. */
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x + SHIFT is 512 + 127 + x: with 14 bits behind the point, what it has above 512 is 2^x with its
 * fraction as mantissa once those bits lie where a float has its exponent: straight lines between powers
 * of whole numbers. */
#define SHIFT 639.f
#define SHIFTED_LEAST 512.f /* -127: becomes zero */
#define SHIFTED_MOST 767.f  /* 128: becomes infinity; beyond it there is no sense */

__device__ __forceinline__ float exp2_line(float shifted)
{
    return __uint_as_float(__float_as_uint(fmaxf(shifted, SHIFTED_LEAST)) << 9);
}

/* sum + 2^(shifted - SHIFT), the power to 2^-10 and exact where it is whole: 1 + f for a fraction f, times
 * a cubic that makes 2^f of it. */
__device__ __forceinline__ float add_exp2_shifted(float sum, float shifted)
{
    float power = exp2_line(shifted);
    uint32_t bits = __float_as_uint(power), mantissa;
    /* (bits & 0x7fffff) | 1.f: one instruction, of which nvcc makes two */
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(mantissa) : "r"(bits), "r"(0x7fffff), "r"(0x3f800000));
    float one_more = __uint_as_float(mantissa);
    float rest = fmaf(one_more, -0.10767654329538345f, 0.7166147828102112f);
    rest = fmaf(rest, one_more, -1.3961085081100464f);
    rest = fmaf(rest, one_more, 1.7871702909469604f);
    return fmaf(power, rest, sum);
}

/* The run in slot j of this lane. */
__device__ __forceinline__ int select_run(int block, int j)
{
    return block * COLUMNS + threadIdx.x % WARP / 4 * SLOTS + j;
}

/* Runs that have a candidate in this layer. */
__device__ __forceinline__ int layer_runs(const SelectTiles &t, int layer)
{
    return layer < t.last_layers ? t.runs : t.runs - 1;
}

/* Where this lane's rows and terms are. */
struct SelectRowsAt {
    const uint2 *rows;
    const float4 *terms;
};

template <int PARTS>
__device__ __forceinline__ SelectRowsAt rows_begin(const SelectTiles &t, const SelectPlace &at, uint4 *shared)
{
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * t.parts;
    SelectRowsAt r = {t.rows + first * t.depths * WARP, t.terms + first * TERMS};
    if (PARTS > 0) {
        uint4 *rows = shared + 2 * stage_size(t), *terms = rows + WARPS * PARTS * ROW_CHUNK;
        copy_near(rows, r.rows - warp * PARTS * WARP, WARPS * PARTS * ROW_CHUNK);
        copy_near(terms, r.terms - warp * PARTS * TERMS, WARPS * PARTS * TERMS);
        r.rows = reinterpret_cast<uint2 *>(rows + warp * PARTS * ROW_CHUNK);
        r.terms = reinterpret_cast<float4 *>(terms + warp * PARTS * TERMS);
    }
    return {r.rows + lane, r.terms + lane % 4};
}

/* sum[j][g]: over the parts, the powers of slot j and group g in the layer whose columns these are. */
template <int PARTS>
__device__ __forceinline__ void add_powers_near(const uint4 *columns, const SelectRowsAt &r,
                                                float (&sum)[SLOTS][PAIR])
{
    SelectColumns a = load_columns(columns);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        float x[2][4], first[4], second[4];
        load(reinterpret_cast<const float *>(r.terms + part * TERMS), first);
        load(reinterpret_cast<const float *>(r.terms + part * TERMS + 4), second);
        begin_products(x, a, r.rows[part * WARP], first, second);
#pragma unroll
        for (int g = 0; g < PAIR; g++) {
            sum[0][g] += exp2_near(x[0][g]);
            sum[1][g] += exp2_near(x[0][2 + g]);
            sum[2][g] += exp2_near(x[1][g]);
            sum[3][g] = add_exp2_shifted(sum[3][g], x[1][2 + g]);
        }
    }
}

/* The same for any number of parts and, unless ONE, of chunks; all powers are made alike. */
template <bool ONE>
__device__ __forceinline__ void add_powers_far(const SelectTiles &t, const uint4 *columns,
                                               const SelectRowsAt &r, float (&sum)[SLOTS][PAIR])
{
    const uint2 *rows = r.rows;
    SelectColumns a = load_columns(columns);
#pragma unroll ONE ? 1 : 2
    for (int part = 0; part < t.parts; part++) {
        float x[2][4], start[4];
        load(reinterpret_cast<const float *>(r.terms + part * TERMS), start);
        begin_products(x, a, *rows, start, start);
        rows += WARP;
        for (int depth = 1; !ONE && depth < t.depths; depth++, rows += WARP)
            add_products(x, load_columns(columns + depth * COLUMN_CHUNK), *rows);
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
#pragma unroll
            for (int g = 0; g < PAIR; g++)
                sum[j][g] += exp2_near(x[j / 2][j % 2 * 2 + g]);
    }
}

/* Columns from number `runs` on get `x`. */
__device__ __forceinline__ void mask_columns(int block, int runs, float x, float (&e)[SLOTS][PAIR])
{
    if ((block + 1) * COLUMNS <= runs)
        return;
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            e[j][g] = select_run(block, j) < runs ? e[j][g] : x;
}

/* Calls take(sink, block, e) for each block of columns, e[j][g] the estimate of group g of this lane for the
 * run in slot j: zero where there is no such group, negative where there is no such run. */
template <int PARTS, typename Sink>
__device__ __forceinline__ void walk_estimates(const SelectTiles &t, const SelectPlace &at, uint4 *shared,
                                               Sink &sink)
{
    SelectRowsAt rows = rows_begin<PARTS>(t, at, shared);
    SelectFeed f = feed_begin(t, at, shared);
    for (int block = at.begin; block < at.end; block++) {
        float e[SLOTS][PAIR] = {};
        for (int layer = 0; layer < t.layers; layer++) {
            const uint4 *columns = feed_next(t, shared, f);
            if (PARTS > 0 && (block + 1) * COLUMNS <= layer_runs(t, layer)) {
                add_powers_near<PARTS>(columns, rows, e);
                continue;
            }
            float sum[SLOTS][PAIR] = {};
            add_powers_far<(PARTS > 0)>(t, columns, rows, sum);
            mask_columns(block, layer_runs(t, layer), 0.f, sum);
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
#pragma unroll
                for (int g = 0; g < PAIR; g++)
                    e[j][g] += sum[j][g];
        }
        mask_columns(block, t.runs, -1.f, e);
        take(sink, block, e);
    }
}

} // namespace dsvi

#endif
