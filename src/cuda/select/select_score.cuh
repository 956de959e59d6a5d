/* Computes the scores of selection with tensor cores. select_histogram and select_lists share these
 * functions, so that both compute the same estimates e_gr of the attention of a group of queries to a span
 * of keys (ops/select.h), up to the allowed error of coarse features.
 *
 * A warp has a set of 8 groups and handles a block of 32 spans at a time; 8 blocks are a segment of 256
 * spans. One product is mma.m16n8k16: 16 spans by the 8 proxies of a tile, which belong to some of the
 * groups. Lane 4 k + q has four spans of each block (its slots) and columns 2 q and 2 q + 1 of the tile:
 * rows k and k + 8 of the first product are slots 0 and 1, rows k and k + 8 of the second product are slots
 * 2 and 3. Over a segment a lane's slots are spans 32 k .. 32 k + 31 of the segment, one word of a list's
 * bits. Estimates are distributed in the same way, for groups 2 q and 2 q + 1 of the set. If a span has
 * several candidates, there are as many layers, each with one candidate of every span.
 *
 * Features are stored as half-precision numbers ("halves"). To fit their range, the proxies and candidates
 * of a (batch, head) are scaled to the same largest feature by powers of two that cancel in the product
 * (select_layout.cuh); a denormal half loses at most 2^-25 of a feature. Coarse features are rounded to one
 * half. Any other feature is split into a half (hi) and the half of the rounding error (lo), and is stored
 * three times for the products hi lo + lo hi + hi hi; the missing product lo lo is 2^-22 of the whole, so
 * the result is as exact as with floats. Of each DEPTH features a lane has 4 q .. 4 q + 3, of proxies and of
 * candidates; the features may be in any order inside a product as long as both factors use the same order.
 * Memory holds everything in the order in which lanes read it.
 *
 * Proxies are multiplied by log2 e, and a product starts with the term log2(weight) - lse log2 e, so an
 * estimate is e = sum of 2^(term + score). A multiprocessor computes 16 exponentials per cycle. For coarse
 * features 2^x is replaced by dsvi_select_power(x), which is linear between whole x: its bits are bits of a
 * number that the product computes, and are cut out of it two at a time, as halves or BF16. The additions
 * are then most of the work, and tensor cores do them, too.
 *
 * While an mma occupies the tensor cores for 6 cycles, its quarter of the multiprocessor starts nothing
 * else. Four scores of a lane take 7 cycles for the product, 2 for cutting and 3 for the sums. wgmma would
 * take as long, because the accumulators would have to be moved (lab/README.md). */
#ifndef DSVI_SELECT_SCORE_CUH
#define DSVI_SELECT_SCORE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/kernel.cuh"

namespace dsvi {

enum {
    SET_GROUPS = 8, /* groups of queries that a warp handles, called a set */
    COLUMNS = 32,   /* spans of a block, which a warp handles at a time; also the bits of a word */
    SEGMENT = 8,    /* blocks of a segment, over which a lane's spans fill a word of bits */
    SLOTS = 4,      /* spans that a lane has in a block */
    PAIR = 2,       /* groups of queries that a lane has in its warp's set of 8 groups */
    DEPTH = 16,     /* features that one product multiplies, called a chunk */
    WARPS = 8,      /* warps of a thread block */
    SCORE_THREADS = WARPS * WARP,
    SCORE_BLOCKS = 2,        /* thread blocks that a multiprocessor holds at the same time */
    COLUMN_CHUNK = 2 * WARP, /* number of uint4 that hold one chunk of features of the 32 candidates of a
                                layer: the operands of two products */
    TERMS = 4, /* number of float4 that hold the terms of one tile of proxies: one for each pair of columns */
    STAGE_CHUNKS = 16, /* least number of chunks of columns in shared memory at a time */
    SHARED_PARTS = 16  /* number of tiles of proxies of a set that stay in shared memory, because the
                          registers do not suffice for them */
};

/* The tiles of proxies (rows) and candidates (columns) over which all kernels that compute scores loop. A
 * pair is a (batch, head). Where a proxy or candidate does not exist, its features are 0 and its term is
 * -inf. */
struct SelectTiles {
    const uint4 *columns; /* (pairs, blocks, layers, depths, 2, WARP) features of candidates */
    const uint2 *rows; /* (pairs, sets, parts, depths, WARP) features of proxies, multiplied by the attention
                          scale times log2 e */
    /* (pairs, sets, parts, 4) terms to which scores are added: log2(weight) - lse log2 e of the two proxies
     * of a lane; each pair of terms is stored twice */
    const float4 *terms;
    const float4 *ranges; /* largest features and lengths, as in SelectLayout (select_layout.cuh) */
    float factor;         /* attention scale times log2 e, by which proxies are multiplied */
    int spans;            /* number of spans of all keys that the lists refer to */
    int last_layers;      /* number of candidates of the last span, which may have fewer than the others */
    int blocks;           /* blocks of columns, a multiple of SEGMENT */
    int layers, depths, parts; /* layers: number of candidates of a span; depths: chunks of features; parts:
                                  tiles of proxies of a set */
    bool coarse;               /* the features are coarse (dsvi_select_coarse in ops/select.h) */
    int sets;                  /* number of sets of groups in a (batch, head), a multiple of WARPS */
    int stage; /* number of layers (one candidate of each span of a block) that one shared-memory buffer holds
                */
    int unit;  /* a slice consists of a multiple of so many blocks of columns */
    int slices; /* number of ranges into which the blocks are divided for different thread blocks */
};

/* The work of a warp: one set of groups with blocks [begin, end) of columns, one slice of the spans. */
struct SelectPlace {
    int pair, set, slice;
    int begin, end;
};

/* Returns the work of the calling warp if its thread block has number `number`. */
__device__ __forceinline__ SelectPlace select_place(const SelectTiles &t, int64_t number)
{
    SelectPlace at;
    int row_blocks = t.sets / WARPS, units = t.blocks / t.unit;
    int64_t row_block = number / t.slices;
    at.slice = (int)(number % t.slices);
    at.pair = (int)(row_block / row_blocks);
    at.set = (int)(row_block % row_blocks) * WARPS + threadIdx.x / WARP;
    at.begin = (int)((int64_t)at.slice * units / t.slices) * t.unit;
    at.end = (int)((int64_t)(at.slice + 1) * units / t.slices) * t.unit;
    return at;
}

/* Returns whether the proxies of a set of groups (`parts` tiles) stay in registers or in shared memory; for
 * each number of tiles for which they do, there are separate kernels. Otherwise proxies are read from the
 * cache again for each block of columns. */
__host__ __device__ __forceinline__ bool select_resident(bool coarse, int depths, int parts)
{
    return coarse && depths == 1 &&
           (parts == 1 || parts == 2 || parts == 4 || parts == 8 || parts == SHARED_PARTS);
}

/* Returns how many columns of a tile of proxies belong to each group of queries: if proxies stay in registers
 * or in shared memory, as many as the set has tiles, but at most all 8, because a product then adds up a
 * group's columns; otherwise one. */
__host__ __device__ __forceinline__ int select_columns_each(bool coarse, int depths, int parts)
{
    return !select_resident(coarse, depths, parts) ? 1 : parts < SET_GROUPS ? parts : SET_GROUPS;
}

/* Returns the template argument PARTS of the kernels that compute scores: the number of tiles of a set if
 * proxies stay in registers or in shared memory (select_resident), otherwise 0. */
inline int select_resident_parts(const SelectTiles &t)
{
    return select_resident(t.coarse, t.depths, t.parts) ? t.parts : 0;
}

/* Returns the number of uint4 in a stage, the t.stage layers of columns that are loaded to shared memory
 * together. */
__host__ __device__ __forceinline__ int stage_size(const SelectTiles &t)
{
    return t.stage * t.depths * COLUMN_CHUNK;
}

/* The proxies of a warp's set of groups in shared memory: their features in the order of SelectTiles.rows,
 * and the numbers to which scores are added in the order of SelectTiles.terms. */
struct SharedSet {
    uint2 row[SHARED_PARTS][WARP];
    float4 start[SHARED_PARTS][TERMS];
};

/* Returns the size of the proxies in a thread block's shared memory, as a number of uint4. PARTS is the
 * result of select_resident_parts. */
__host__ __device__ constexpr int shared_rows_size(int PARTS)
{
    return PARTS == SHARED_PARTS ? WARPS * (int)(sizeof(SharedSet) / sizeof(uint4)) : 0;
}

/* Returns the shared memory of a thread block as a number of uint4: the proxies, if they stay there, and two
 * buffers of one stage of columns each. */
inline int select_shared(const SelectTiles &t)
{
    return shared_rows_size(select_resident_parts(t)) + 2 * stage_size(t);
}

/* ---- tensor-core products ---- */

/* This lane's features of candidate keys in one chunk of 16 features, as operands of the two tensor-core
 * products of a block (16 spans each). */
struct SelectColumns {
    uint4 product[2];
};

__device__ __forceinline__ SelectColumns load_columns(const uint4 *mine)
{
    return {{mine[0], mine[WARP]}};
}

/* The memory addresses of this lane's features of the candidate keys of one layer, for the two tensor-core
 * products of a block (16 spans each). */
struct LayerColumns {
    const uint4 *product[2];
};

__device__ __forceinline__ SelectColumns load_columns(const LayerColumns &layer, int depth)
{
    return {{layer.product[0][depth * COLUMN_CHUNK], layer.product[1][depth * COLUMN_CHUNK]}};
}

/* x = start + a b with the tensor cores: 16 spans (a) by 8 proxies (b), summed over DEPTH features. */
__device__ __forceinline__ void multiply_add(float (&x)[4], const uint4 &a, uint2 b, const float (&start)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(start[0]), "f"(start[1]),
          "f"(start[2]), "f"(start[3]));
}

/* Computes the scores of a layer (one candidate of each span of a block) from the first chunk of features:
 * x[i][2 h + g] is the score of the candidate in this lane's slot 2 i + h with the proxy in its column g.
 * `start` is added to each score. */
__device__ __forceinline__ void begin_products(float (&x)[2][4], const SelectColumns &a, uint2 b,
                                               const float (&start)[4])
{
    multiply_add(x[0], a.product[0], b, start);
    multiply_add(x[1], a.product[1], b, start);
}

/* Adds to the scores x the products of the next chunk of features. */
__device__ __forceinline__ void add_products(float (&x)[2][4], const SelectColumns &a, uint2 b)
{
    multiply_add(x[0], a.product[0], b, x[0]);
    multiply_add(x[1], a.product[1], b, x[1]);
}

/* ---- 2^x, exactly or linear between whole x ---- */

/* Returns 2^x with an error of at most 2 units in the last place; 0 below 2^-126. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Constants that compute dsvi_select_power(x) from the bits of a float. x + SHIFT = 512 + 127 + x. A float
 * between 512 and 1024 has 14 fraction bits; shifted left by 9 bits, the bits below 512 are exponent and
 * mantissa of dsvi_select_power(x). */
#define SHIFT 639.f
#define SHIFTED_LEAST 512.f /* for x = -127, gives 0 */
#define SHIFTED_MAX 767.f   /* for x = 128, gives infinity; larger numbers would give nonsense */

/* Returns 2^x or, with LINEAR, dsvi_select_power(x), which is linear between whole x. x may be -inf. */
template <bool LINEAR> __device__ __forceinline__ float power(float x)
{
    if (!LINEAR)
        return exp2_approx(x);
    float shifted = fminf(fmaxf(x + SHIFT, SHIFTED_LEAST), SHIFTED_MAX);
    return __uint_as_float(__float_as_uint(shifted) << 9);
}

/* Constants that compute dsvi_select_power(x) with 16 bits, which are bits 8 to 23 of a float. Bits 8 to 23
 * of a float from 256 to 512 are a BF16: x + BF16_CUT = 256 + 127 + x, plus half a unit of the last bit so
 * that cutting rounds to nearest, gives -dsvi_select_power(x). Bits 8 to 23 of a float from 32 to 64 are a
 * half: x + HALF_CUT = 32 + 15 + x, plus half a unit, gives dsvi_select_power(x). -inf gives 0. */
#define BF16_CUT (383.f + 0x1p-8f)
#define BF16_LEAST 256.f /* for x = -127, gives 0 */
#define BF16_MAX 510.99f /* for x just below 128; larger numbers would give nonsense */
#define HALF_CUT (47.f + 0x1p-11f)

/* Cuts bits 8 to 23 out of the floats a and b, which gives dsvi_select_power of two scores as BF16 or half,
 * and returns both in one word. */
__device__ __forceinline__ uint32_t cut_powers(float a, float b)
{
    return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x6521);
}

/* Adds the two BF16 packed in a to the two BF16 packed in b. */
__device__ __forceinline__ uint32_t add_bf16(uint32_t a, uint32_t b)
{
    __nv_bfloat162 sum = __hadd2(*reinterpret_cast<__nv_bfloat162 *>(&a),
                                 *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<uint32_t *>(&sum);
}

/* x += a b with the tensor cores: 16 rows by 8 columns, summed over 16 elements. `a` holds values of
 * dsvi_select_power, which are halves (HALF) or BF16. */
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

/* Returns 0 in a way that the compiler cannot recognise: the sign bit of `count`, which is never negative.
 * ptxas copies constants, and registers that it knows to be equal, into place again for each product. An
 * operand that is combined with this zero stays in place. */
__device__ __forceinline__ uint32_t zero_of(int count)
{
    return (uint32_t)(count >> 31);
}

/* Returns an upper bound of |score| (in units of log2) for all coarse scores of a (batch, head): the length
 * of the longest proxy times the length of the longest candidate, plus a margin for rounding. */
__device__ __forceinline__ float select_bound(const SelectTiles &t, int pair)
{
    float4 mine = t.ranges[pair * WARP + threadIdx.x % WARP];
    return 1.002f * fabsf(t.factor) * sqrtf(warp_max(mine.z)) * sqrtf(warp_max(mine.w)) + 1.f;
}

/* Returns which span of a block of 32 spans lanes 4 k + q have in slot j (the j-th of their 4 spans). */
__device__ __forceinline__ int span_of_lanes(int block, int k, int j)
{
    int within = block & (SEGMENT - 1);
    return (block - within) * COLUMNS + k * COLUMNS + within * SLOTS + j;
}

/* Returns which span of a block of 32 spans the calling lane has in slot j (the j-th of its 4 spans). */
__device__ __forceinline__ int select_span(int block, int j)
{
    return span_of_lanes(block, threadIdx.x % WARP / 4, j);
}

/* Returns how many blocks, from the first, are in segments that have all spans and all candidates of these
 * spans. */
__device__ __forceinline__ int select_whole(const SelectTiles &t)
{
    return (t.last_layers < t.layers ? t.spans - 1 : t.spans) / (SEGMENT * COLUMNS) * SEGMENT;
}

/* Returns how many spans have a candidate number `layer`; only the last span may lack one. */
__device__ __forceinline__ int layer_spans(const SelectTiles &t, int layer)
{
    return layer < t.last_layers ? t.spans : t.spans - 1;
}

} // namespace dsvi

#endif
