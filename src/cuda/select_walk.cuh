/* From scores to estimates: walks of a warp over the runs of its slice, which hand what they find to a sink.
 *     walk_far     features of any number of chunks, rows from the cache
 *     walk_near    coarse features of one chunk, rows in registers
 * What a lane's estimates are: select_score.cuh. */
#ifndef DSVI_SELECT_WALK_CUH
#define DSVI_SELECT_WALK_CUH

#include "cuda/select_feed.cuh"

namespace dsvi {

/* ---- estimates, anywhere ---- */

/* sum[j][g]: over the parts, the powers of slot j and group g in the layer whose columns these are. Rows and
 * terms are this lane's first ones. */
template <bool LINES>
__device__ __forceinline__ void add_powers(const SelectTiles &t, const LayerColumns &columns,
                                           const uint2 *rows, const float4 *terms,
                                           float (&sum)[SLOTS][PAIR])
{
    SelectColumns a = load_columns(columns, 0);
#pragma unroll 2
    for (int part = 0; part < t.parts; part++) {
        float x[2][4], start[4];
        load(reinterpret_cast<const float *>(terms + part * TERMS), start);
        begin_products(x, a, *rows, start);
        rows += WARP;
        for (int depth = 1; depth < t.depths; depth++, rows += WARP)
            add_products(x, load_columns(columns, depth), *rows);
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
#pragma unroll
            for (int g = 0; g < PAIR; g++)
                sum[j][g] += power<LINES>(x[j / 2][j % 2 * 2 + g]);
    }
}

/* Calls take(sink, block, e) for each block of columns, e[j][g] the estimate of group g of this lane for the
 * run in slot j: zero where there is no such group, negative where there is no such run; and
 * end_stretch(sink, block) behind the last block of each stretch, which is block + STRETCH - 1. */
template <bool LINES, typename Source, typename Sink>
__device__ __forceinline__ void walk_far(const SelectTiles &t, const SelectPlace &at, const Source &source,
                                         uint4 *shared, Sink &sink)
{
    int lane = threadIdx.x % WARP;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * t.parts;
    const uint2 *rows = t.rows + first * t.depths * WARP + lane;
    const float4 *terms = t.terms + first * TERMS + lane % 4;
    auto f = feed_begin(t, at, source, shared);
    int whole = feed_whole(t, f);
    for (int block = at.begin; block < at.end; block++) {
        float e[SLOTS][PAIR] = {};
        for (int layer = 0; layer < t.layers; layer++) {
            float sum[SLOTS][PAIR] = {};
            add_powers<LINES>(t, feed_layer(t, shared, t.depths, f), rows, terms, sum);
            if (block >= whole)
                mask_columns(f, block, layer_runs(t, layer), 0.f, sum);
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
#pragma unroll
                for (int g = 0; g < PAIR; g++)
                    e[j][g] += sum[j][g];
        }
        if (block >= whole)
            mask_columns(f, block, t.runs, -1.f, e);
        take(sink, block, e);
        if (block % STRETCH == STRETCH - 1)
            end_stretch(sink, block - (STRETCH - 1));
    }
}

/* ---- estimates of coarse features of one chunk, rows in registers ---- */

/* Of all the exponents that there are, a power near one takes a high one: what lies far below one, as most
 * scores do where attention is narrow, then has the others. Halves have but 27 octaves below, and tell powers
 * eight times finer: attention that is so even that a hundredth of an estimate counts does with those. */
#define BF16_LIFT 100
#define BF16_FITS_FROM (-126.f - BF16_LIFT)
#define BF16_FITS_TO (127.f - BF16_LIFT)
#define HALF_LIFT 13
#define HALF_FITS_FROM (-14.f - HALF_LIFT)
#define HALF_FITS_TO (15.9f - HALF_LIFT)

enum NearRange { IN_HALF, IN_BF16, IN_NONE };

template <int PARTS> struct NearRows {
    enum {
        GROUPS = SET_GROUPS / PARTS, /* of a tile */
        SUMS = (PARTS + 1) / 2       /* left sides, two tiles each, of products that add up columns */
    };
    uint2 row[PARTS];
    float start[PARTS][4]; /* terms of the lane's two columns, lifted, twice */
    uint2 sum[SUMS];       /* which columns belong to which group: one, or minus one of negative powers */
    NearRange range;       /* of all scores of all warps of the block of threads */
    int lift;
};

/* `one` where column `n` of two tiles, the pair number `pair`, is of group `group`. */
template <int PARTS>
__device__ __forceinline__ uint32_t column_of_group(int pair, int n, int group, uint32_t one)
{
    using N = NearRows<PARTS>;
    return (2 * pair + n / 8) * N::GROUPS + n % 8 / PARTS == group ? one : 0;
}

/* Terms into r.start; gives the range of all scores of the block of threads. */
template <int PARTS>
__device__ __forceinline__ NearRange load_terms(const SelectTiles &t, const SelectPlace &at, int64_t first,
                                                NearRows<PARTS> &r)
{
    float bound = select_bound(t, at.pair);
    bool in_half = true, in_bf16 = true;
#pragma unroll
    for (int tile = 0; tile < PARTS; tile++) {
        load(reinterpret_cast<const float *>(t.terms + (first + tile) * TERMS + threadIdx.x % 4),
             r.start[tile]);
#pragma unroll
        for (int i = 0; i < PAIR; i++) {
            float term = r.start[tile][i];
            bool none = term == -INFINITY;
            in_half &= none || (term - bound >= HALF_FITS_FROM && term + bound <= HALF_FITS_TO);
            in_bf16 &= none || (term - bound >= BF16_FITS_FROM && term + bound <= BF16_FITS_TO);
        }
    }
    if (__syncthreads_and(in_half))
        return IN_HALF;
    return __syncthreads_and(in_bf16) ? IN_BF16 : IN_NONE;
}

template <int PARTS>
__device__ __forceinline__ void near_begin(const SelectTiles &t, const SelectPlace &at, NearRows<PARTS> &r)
{
    int lane = threadIdx.x % WARP, k = lane / 4, q = lane % 4;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * PARTS;
    r.range = load_terms<PARTS>(t, at, first, r);
    r.lift = r.range == IN_HALF ? HALF_LIFT : BF16_LIFT;
    float cut = r.range == IN_HALF ? HALF_CUT + HALF_LIFT : BF16_CUT + BF16_LIFT;
    uint32_t one = r.range == IN_HALF ? HALF_ONE : BF16_MINUS_ONE;
#pragma unroll
    for (int tile = 0; tile < PARTS; tile++) {
        r.row[tile] = t.rows[(first + tile) * WARP + lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r.start[tile][i] += cut;
    }
#pragma unroll
    for (int i = 0; i < NearRows<PARTS>::SUMS; i++) {
        r.sum[i].x = column_of_group<PARTS>(i, 2 * q, k, one) |
                     column_of_group<PARTS>(i, 2 * q + 1, k, one) << 16;
        r.sum[i].y = column_of_group<PARTS>(i, 2 * q + 8, k, one) |
                     column_of_group<PARTS>(i, 2 * q + 9, k, one) << 16;
    }
}

/* The left side of a product that adds up: powers of 16 runs and of tiles 2 pair and 2 pair + 1. */
template <int PARTS, NearRange RANGE>
__device__ __forceinline__ void tile_powers(const uint4 &columns, const NearRows<PARTS> &r, int pair,
                                            uint32_t (&powers)[4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int tile = 2 * pair + half;
        powers[2 * half] = powers[2 * half + 1] = 0;
        if (tile >= PARTS)
            continue;
        float x[4];
        multiply_add(x, columns, r.row[tile], r.start[tile]);
#pragma unroll
        for (int n = 0; RANGE == IN_NONE && n < 4; n++)
            x[n] = fminf(fmaxf(x[n], BF16_LEAST), BF16_MOST);
        powers[2 * half] = cut_powers(x[0], x[1]);
        powers[2 * half + 1] = cut_powers(x[2], x[3]);
    }
}

/* e[j][g] += the powers of slot j and group g, times 2^lift. */
template <int PARTS, NearRange RANGE>
__device__ __forceinline__ void add_lines(const SelectColumns &a, const NearRows<PARTS> &r,
                                          float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int i = 0; i < 2; i++) { /* slots 2 i and 2 i + 1 */
        float sum[4] = {e[2 * i][0], e[2 * i][1], e[2 * i + 1][0], e[2 * i + 1][1]};
#pragma unroll
        for (int pair = 0; pair < NearRows<PARTS>::SUMS; pair++) {
            uint32_t powers[4];
            tile_powers<PARTS, RANGE>(a.product[i], r, pair, powers);
            add_powers_up<RANGE == IN_HALF>(sum, powers, r.sum[pair]);
        }
        e[2 * i][0] = sum[0];
        e[2 * i][1] = sum[1];
        e[2 * i + 1][0] = sum[2];
        e[2 * i + 1][1] = sum[3];
    }
}

/* The estimates of a block whose runs have several candidates. */
template <int PARTS, NearRange RANGE, typename Feed>
__device__ __forceinline__ void add_layers(const SelectTiles &t, const NearRows<PARTS> &rows, int block,
                                           int whole, uint4 *shared, Feed &f, float (&e)[SLOTS][PAIR])
{
    for (int layer = 0; layer < t.layers; layer++) {
        float sum[SLOTS][PAIR] = {};
        add_lines<PARTS, RANGE>(load_columns(feed_layer(t, shared, 1, f), 0), rows, sum);
        if (block >= whole && layer >= t.last_layers)
            mask_columns(f, block, t.runs - 1, 0.f, sum);
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
#pragma unroll
            for (int g = 0; g < PAIR; g++)
                e[j][g] += sum[j][g];
    }
}

/* As walk_far; estimates are times 2^lift. SINGLE: a run is one candidate, and stages are whole stretches. */
template <int PARTS, bool SINGLE, NearRange RANGE, typename Source, typename Sink>
__device__ __forceinline__ void walk_near(const SelectTiles &t, const SelectPlace &at,
                                          const NearRows<PARTS> &rows, const Source &source, uint4 *shared,
                                          Sink &sink)
{
    constexpr int AT_ONCE = PARTS < 8 ? 2 : 1; /* blocks for which there are registers */
    auto f = feed_begin(t, at, source, shared);
    int whole = feed_whole(t, f);
    for (int stretch = at.begin; stretch < at.end; stretch += STRETCH) {
        auto columns = feed_stretch<SINGLE>(t, shared, f);
#pragma unroll AT_ONCE
        for (int block = stretch; block < stretch + STRETCH; block++) {
            float e[SLOTS][PAIR] = {};
            if (SINGLE)
                add_lines<PARTS, RANGE>(stretch_columns(t, f, columns, block), rows, e);
            else
                add_layers<PARTS, RANGE>(t, rows, block, whole, shared, f, e);
            if (stretch >= whole)
                mask_columns(f, block, t.runs, -1.f, e);
            take(sink, block, e);
        }
        end_stretch(sink, stretch);
    }
}

/* Either. A sink is told by lift() by which power of two its estimates will be too large. */
template <int PARTS, typename Source, typename Sink>
__device__ __forceinline__ void walk_estimates(const SelectTiles &t, const SelectPlace &at,
                                               const Source &source, uint4 *shared, Sink &sink)
{
    if constexpr (PARTS > 0) {
        NearRows<PARTS> rows;
        near_begin<PARTS>(t, at, rows);
        lift(sink, rows.lift);
        if (rows.range == IN_NONE)
            walk_near<PARTS, false, IN_NONE>(t, at, rows, source, shared, sink);
        else if (rows.range == IN_HALF && t.layers == 1)
            walk_near<PARTS, true, IN_HALF>(t, at, rows, source, shared, sink);
        else if (rows.range == IN_HALF)
            walk_near<PARTS, false, IN_HALF>(t, at, rows, source, shared, sink);
        else if (t.layers == 1)
            walk_near<PARTS, true, IN_BF16>(t, at, rows, source, shared, sink);
        else
            walk_near<PARTS, false, IN_BF16>(t, at, rows, source, shared, sink);
    } else if (t.coarse) {
        walk_far<true>(t, at, source, shared, sink);
    } else {
        walk_far<false>(t, at, source, shared, sink);
    }
}

} // namespace dsvi

#endif
