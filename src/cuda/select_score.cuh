/* Scores of selection by the tensor cores: what select_histogram and select_lists share, so that both see the
 * same e_gr, coarse ones up to what they may be off by (ops/select.h).
 *
 * A warp owns a set of 8 groups and takes 32 runs at a time, a block of a stretch of 256. One product is
 * mma.m16n8k16: 16 runs by the 8 proxies of a tile, which are those of some groups. Lane 4 k + q has four
 * runs of each block (its slots), of columns 2 q and 2 q + 1 of the tile: rows k and k + 8 of the first
 * product are slots 0 and 1, those of the second slots 2 and 3. Over a stretch that makes runs 32 k ...
 * 32 k + 31 of it, a word of a list's bits. So it is with estimates, of groups 2 q and 2 q + 1 of the set.
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
 * a power of two: e = sum of 2^(term + score). A multiprocessor makes 16 of those a cycle. Where features
 * are coarse powers are straight lines: bits of a number that the product makes as they are wanted, cut out
 * two at a time, as halves or BF16. Then even additions are most of the work, and tensor cores make them too.
 *
 * While an mma is in the tensor cores, 6 cycles, its quarter of the multiprocessor begins nothing else: for
 * four scores of a lane that makes 7 cycles for the product, 2 for cuts and 3 for sums. As wgmma it would
 * take as long, since accumulators have to go to and fro (lab/README.md). */
#ifndef DSVI_SELECT_SCORE_CUH
#define DSVI_SELECT_SCORE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernel.cuh"

namespace dsvi {

enum {
    SET_GROUPS = 8,
    COLUMNS = 32,  /* runs that are taken at a time, a block of them; also those of a word of a list's bits */
    STRETCH = 8,   /* blocks whose runs lanes hold in whole words */
    SLOTS = 4,     /* of a lane */
    PAIR = 2,      /* groups of a lane */
    DEPTH = 16,    /* features of a chunk */
    WARPS = 8,
    SCORE_THREADS = WARPS * WARP,
    SCORE_BLOCKS = 2, /* of threads that a multiprocessor holds */
    COLUMN_CHUNK = 2 * WARP, /* in 16 bytes: candidates of a layer of a block, two products */
    TERMS = 4,               /* of a part of a set: of the four pairs of groups */
    STAGE_CHUNKS = 16        /* of columns in shared memory at a time, at least */
};

/* What a kernel of scores walks over. */
struct SelectTiles {
    const uint4 *columns; /* (pairs, blocks, layers, depths, 2, WARP) candidates; zeros for none */
    const uint2 *rows;    /* (pairs, sets, parts, depths, WARP) proxies times scale log2 e; zeros for none */
    const float4 *terms;  /* (pairs, sets, parts, 4) of a lane's two columns, twice; -inf for none */
    const float4 *ranges; /* see select_bound */
    float factor;         /* of proxies, in scores */
    int runs;             /* columns that there are */
    int last_layers;      /* candidates of the last run */
    int blocks;           /* of columns, whole stretches */
    int layers, depths, parts;
    bool coarse;          /* features are */
    int sets;             /* of a (batch, head), whole blocks of threads */
    int stage;            /* layers of blocks that are in shared memory at a time */
    int slices;           /* into which the stretches of columns are cut, for more blocks of threads */
};

/* The tile of a warp: its set, and blocks [begin, end) of columns. */
struct SelectPlace {
    int pair, set, slice;
    int begin, end;
};

__device__ __forceinline__ SelectPlace select_place(const SelectTiles &t, int64_t number)
{
    SelectPlace at;
    int row_blocks = t.sets / WARPS, stretches = t.blocks / STRETCH;
    int64_t row_block = number / t.slices;
    at.slice = (int)(number % t.slices);
    at.pair = (int)(row_block / row_blocks);
    at.set = (int)(row_block % row_blocks) * WARPS + threadIdx.x / WARP;
    at.begin = (int)((int64_t)at.slice * stretches / t.slices) * STRETCH;
    at.end = (int)((int64_t)(at.slice + 1) * stretches / t.slices) * STRETCH;
    return at;
}

/* Whether a set's rows, of so many tiles, stay in registers, where each number has kernels of its own.
 * Elsewhere rows come from the cache, again for each block of columns. */
__host__ __device__ __forceinline__ bool select_near(bool coarse, int depths, int parts)
{
    return coarse && depths == 1 && (parts == 1 || parts == 2 || parts == 4 || parts == 8);
}

/* Columns of a tile that a group has. Near, products add them up; elsewhere a group has one in each tile. */
__host__ __device__ __forceinline__ int select_columns_each(bool coarse, int depths, int parts)
{
    return select_near(coarse, depths, parts) ? parts : 1;
}

/* The template argument that kernels take for this: PARTS, or 0. */
inline int select_near_parts(const SelectTiles &t)
{
    return select_near(t.coarse, t.depths, t.parts) ? t.parts : 0;
}

/* Of columns, in 16 bytes. */
__host__ __device__ __forceinline__ int stage_size(const SelectTiles &t)
{
    return t.stage * t.depths * COLUMN_CHUNK;
}

/* Shared memory of a block of threads, in 16 bytes: two stages of columns. */
__host__ __device__ __forceinline__ int select_shared(const SelectTiles &t)
{
    return 2 * stage_size(t);
}

/* ---- products ---- */

/* Candidates of one chunk of a layer. */
struct SelectColumns {
    uint4 product[2];
};

__device__ __forceinline__ SelectColumns load_columns(const uint4 *mine)
{
    return {{mine[0], mine[WARP]}};
}

/* Where a lane's candidates of a layer are, of each product. */
struct LayerColumns {
    const uint4 *product[2];
};

__device__ __forceinline__ SelectColumns load_columns(const LayerColumns &layer, int depth)
{
    return {{layer.product[0][depth * COLUMN_CHUNK], layer.product[1][depth * COLUMN_CHUNK]}};
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

/* Scores of a layer of a block: x[i][2 h + g] is slot 2 i + h of group g. The products start with `start`. */
__device__ __forceinline__ void begin_products(float (&x)[2][4], const SelectColumns &a, uint2 b,
                                               const float (&start)[4])
{
    multiply_add(x[0], a.product[0], b, start);
    multiply_add(x[1], a.product[1], b, start);
}

/* Adds those of the next features. */
__device__ __forceinline__ void add_products(float (&x)[2][4], const SelectColumns &a, uint2 b)
{
    multiply_add(x[0], a.product[0], b, x[0]);
    multiply_add(x[1], a.product[1], b, x[1]);
}

/* ---- powers ---- */

/* 2^x to 2 units in the last place; below 2^-126 it is zero. */
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x + SHIFT is 512 + 127 + x: with 14 bits behind the point, what it has above 512 is dsvi_select_power(x)
 * once those bits lie where a float has exponent and mantissa. It may be -inf. */
#define SHIFT 639.f
#define SHIFTED_LEAST 512.f /* -127: becomes zero */
#define SHIFTED_MOST 767.f  /* 128: becomes infinity; beyond both there is no sense */

/* 2^x, by straight lines or not. */
template <bool LINES> __device__ __forceinline__ float power(float x)
{
    if (!LINES)
        return exp2_near(x);
    float shifted = fminf(fmaxf(x + SHIFT, SHIFTED_LEAST), SHIFTED_MOST);
    return __uint_as_float(__float_as_uint(shifted) << 9);
}

/* Powers of two are cut out of floats as their bits 8 to 23. Of one from 256 to 512 they make a BF16: x +
 * BF16_CUT is 256 + 127 + x and half of what that loses, and gives -dsvi_select_power(x), to the nearest. Of
 * one from 32 to 64 they make a half: x + HALF_CUT is 32 + 15 + x and half of what that loses, and gives
 * dsvi_select_power(x). -inf gives zero. */
#define BF16_CUT (383.f + 0x1p-8f)
#define BF16_LEAST 256.f  /* -127: becomes zero */
#define BF16_MOST 510.99f /* just below 128; beyond both there is no sense */
#define HALF_CUT (47.f + 0x1p-11f)

/* Those of a and b. */
__device__ __forceinline__ uint32_t cut_powers(float a, float b)
{
    return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x6521);
}

/* The sums of two BF16 and two others. */
__device__ __forceinline__ uint32_t add_bf16(uint32_t a, uint32_t b)
{
    __nv_bfloat162 sum = __hadd2(*reinterpret_cast<__nv_bfloat162 *>(&a),
                                 *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<uint32_t *>(&sum);
}

/* x += a b: 16 rows by 8 columns by 16 powers. HALF: or else they are BF16. */
template <bool HALF>
__device__ __forceinline__ void add_powers_up(float (&x)[4], const uint32_t (&a)[4], uint2 b)
{
    if (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

#define HALF_ONE 0x3C00u
#define BF16_MINUS_ONE 0xBF80u

/* No coarse score of the (batch, head) is further from zero, given as log2: the longest proxy times the
 * longest candidate, and somewhat more for rounding. */
__device__ __forceinline__ float select_bound(const SelectTiles &t, int pair)
{
    float4 mine = t.ranges[pair * WARP + threadIdx.x % WARP];
    return 1.002f * fabsf(t.factor) * sqrtf(warp_max(mine.z)) * sqrtf(warp_max(mine.w)) + 1.f;
}

/* The run in slot j of lanes 4 k + q. */
__device__ __forceinline__ int run_of_lanes(int block, int k, int j)
{
    int within = block & (STRETCH - 1);
    return (block - within) * COLUMNS + k * COLUMNS + within * SLOTS + j;
}

/* Of this lane. */
__device__ __forceinline__ int select_run(int block, int j)
{
    return run_of_lanes(block, threadIdx.x % WARP / 4, j);
}

/* Blocks, from the first, of stretches in which no run is missing, nor a candidate of a run. */
__device__ __forceinline__ int select_whole(const SelectTiles &t)
{
    return (t.last_layers < t.layers ? t.runs - 1 : t.runs) / (STRETCH * COLUMNS) * STRETCH;
}

/* Runs that have a candidate in this layer. */
__device__ __forceinline__ int layer_runs(const SelectTiles &t, int layer)
{
    return layer < t.last_layers ? t.runs : t.runs - 1;
}

} // namespace dsvi

#endif
