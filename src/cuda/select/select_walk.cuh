/* Computes estimates from scores: loops of a warp over the spans of its slice, which pass the estimates to a
 * sink.
 *     walk_streamed    features of any number of chunks; proxies are read from the cache
 *     walk_resident    coarse features of one chunk; proxies stay in registers
 * select_score.cuh describes which estimates a lane has. A sink is a struct that receives estimates, and for
 * which three functions exist. scale_sink(sink, octaves) is called first if estimates will be too large by
 * 2^octaves. take(sink, block, e) is called for each block of columns. end_segment(sink, block) is called
 * after the last block of each segment, and gets the segment's first block. In take, e[j][g] is the estimate
 * of this lane's group g for the span in slot j: 0 if there is no such group, negative if there is no such
 * span. */
#ifndef DSVI_SELECT_WALK_CUH
#define DSVI_SELECT_WALK_CUH

#include "cuda/select/select_feed.cuh"

namespace dsvi {

/* ---- estimates from features of any kind ---- */

/* sum[j][g] += 2^(term + score) of the candidate in this lane's slot j (the j-th of its 4 spans) with the
 * proxies of its group g, in one layer, over all tiles of the warp's set of groups. `rows` (features of
 * proxies) and `terms` point to this lane's values of the first tile. */
template <bool LINEAR>
__device__ __forceinline__ void add_powers(const SelectTiles &t, const LayerColumns &columns,
                                           const uint2 *rows, const float4 *terms, float (&sum)[SLOTS][PAIR])
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
                sum[j][g] += power<LINEAR>(x[j / 2][j % 2 * 2 + g]);
    }
}

/* Computes the estimates of all blocks of the warp's slice of the spans and passes them to `sink`; the
 * proxies, which stand for queries, are read from the cache. */
template <bool LINEAR, typename Source, typename Sink>
__device__ __forceinline__ void walk_streamed(const SelectTiles &t, const SelectPlace &at,
                                              const Source &source, uint4 *shared, Sink &sink)
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
            add_powers<LINEAR>(t, feed_layer(t, shared, t.depths, f), rows, terms, sum);
            if (block >= whole)
                mask_columns(f, block, layer_spans(t, layer), 0.f, sum);
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
#pragma unroll
                for (int g = 0; g < PAIR; g++)
                    e[j][g] += sum[j][g];
        }
        if (block >= whole)
            mask_columns(f, block, t.spans, -1.f, e);
        take(sink, block, e);
        if (block % SEGMENT == SEGMENT - 1)
            end_segment(sink, block - (SEGMENT - 1));
    }
}

/* ---- estimates from coarse features of one chunk, with the proxies in registers ---- */

/* The powers 2^(term + score) are multiplied by 2^SCALE, so that a power near 1 has a high exponent and
 * smaller powers, which are most of them if attention is concentrated, have the exponents below. Halves have
 * only 27 octaves below 1 but are eight times finer than BF16; they are used if attention is so even that
 * all scores fit, where a relative error of a hundredth matters. */
#define BF16_SCALE 100
#define BF16_FITS_FROM (-126.f - BF16_SCALE)
#define BF16_FITS_TO (127.f - BF16_SCALE)
#define HALF_SCALE 13
#define HALF_FITS_FROM (-14.f - HALF_SCALE)
#define HALF_FITS_TO (15.9f - HALF_SCALE)

/* The 16-bit format into which all powers 2^(term + score) fit: half precision, else BF16, else none. */
enum ScoreRange { IN_HALF, IN_BF16, IN_NONE };

/* The proxies of a warp's set of groups, in registers: PARTS tiles of 8 columns. */
template <int PARTS> struct ResidentRows {
    enum {
        GROUPS = SET_GROUPS / PARTS, /* groups that have columns in one tile */
        SUMS = (PARTS + 1) / 2       /* products that add up the columns of a group; each adds two tiles */
    };
    uint2 row[PARTS];
    float start[PARTS][4]; /* for each tile, the terms to which the scores of the lane's two columns are
                              added, scaled; both are stored twice */
    uint2 sum[SUMS];       /* right factors of products that add up the columns of each group: 1 (-1 for BF16
                              powers) where the column belongs to the group */
    ScoreRange range;      /* 16-bit format that fits the scores of all warps of the thread block */
    int scale;             /* estimates are too large by 2^scale */
};

/* Returns `one` if column `n` (0 to 15) of the two tiles 2 pair and 2 pair + 1 belongs to group `group`,
 * else 0. */
template <int PARTS>
__device__ __forceinline__ uint32_t column_of_group(int pair, int n, int group, uint32_t one)
{
    using N = ResidentRows<PARTS>;
    return (2 * pair + n / 8) * N::GROUPS + n % 8 / PARTS == group ? one : 0;
}

/* Loads the terms log2(weight) - lse log2 e of the proxies of a set of groups into r.start. Returns which
 * 16-bit format fits the powers of all scores of the thread block; all threads of the block must call. */
template <int PARTS>
__device__ __forceinline__ ScoreRange load_terms(const SelectTiles &t, const SelectPlace &at, int64_t first,
                                                 ResidentRows<PARTS> &r)
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

/* Loads the proxies of a warp's set of groups into registers. All threads of the block must call. */
template <int PARTS>
__device__ __forceinline__ void resident_begin(const SelectTiles &t, const SelectPlace &at,
                                               ResidentRows<PARTS> &r)
{
    int lane = threadIdx.x % WARP, k = lane / 4, q = lane % 4;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * PARTS;
    r.range = load_terms<PARTS>(t, at, first, r);
    r.scale = r.range == IN_HALF ? HALF_SCALE : BF16_SCALE;
    float cut = r.range == IN_HALF ? HALF_CUT + HALF_SCALE : BF16_CUT + BF16_SCALE;
    uint32_t one = r.range == IN_HALF ? HALF_ONE : BF16_MINUS_ONE;
#pragma unroll
    for (int tile = 0; tile < PARTS; tile++) {
        r.row[tile] = t.rows[(first + tile) * WARP + lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r.start[tile][i] += cut;
    }
#pragma unroll
    for (int i = 0; i < ResidentRows<PARTS>::SUMS; i++) {
        r.sum[i].x = column_of_group<PARTS>(i, 2 * q, k, one) | column_of_group<PARTS>(i, 2 * q + 1, k, one)
                                                                    << 16;
        r.sum[i].y = column_of_group<PARTS>(i, 2 * q + 8, k, one) |
                     column_of_group<PARTS>(i, 2 * q + 9, k, one) << 16;
    }
}

/* Computes the left factor of the product that adds up the columns of a group: 2^(term + score), as 16-bit
 * numbers, of 16 spans with the 16 proxies in tiles 2 pair and 2 pair + 1. */
template <int PARTS, ScoreRange RANGE>
__device__ __forceinline__ void tile_powers(const uint4 &columns, const ResidentRows<PARTS> &r, int pair,
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
            x[n] = fminf(fmaxf(x[n], BF16_LEAST), BF16_MAX);
        powers[2 * half] = cut_powers(x[0], x[1]);
        powers[2 * half + 1] = cut_powers(x[2], x[3]);
    }
}

/* e[j][g] += 2^r.scale times the sum of 2^(term + score) over the proxies of this lane's group g, for the
 * candidate in its slot j (the j-th of its 4 spans) in one layer. */
template <int PARTS, ScoreRange RANGE>
__device__ __forceinline__ void add_linear_powers(const SelectColumns &a, const ResidentRows<PARTS> &r,
                                                  float (&e)[SLOTS][PAIR])
{
#pragma unroll
    for (int i = 0; i < 2; i++) { /* product i has the spans in slots 2 i and 2 i + 1 */
        float sum[4] = {e[2 * i][0], e[2 * i][1], e[2 * i + 1][0], e[2 * i + 1][1]};
#pragma unroll
        for (int pair = 0; pair < ResidentRows<PARTS>::SUMS; pair++) {
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

/* Adds to e the estimates of a block of spans, summed over all layers (candidates of each span); needed if
 * spans have several candidates. */
template <int PARTS, ScoreRange RANGE, typename Feed>
__device__ __forceinline__ void add_layers(const SelectTiles &t, const ResidentRows<PARTS> &rows, int block,
                                           int whole, uint4 *shared, Feed &f, float (&e)[SLOTS][PAIR])
{
    for (int layer = 0; layer < t.layers; layer++) {
        float sum[SLOTS][PAIR] = {};
        add_linear_powers<PARTS, RANGE>(load_columns(feed_layer(t, shared, 1, f), 0), rows, sum);
        if (block >= whole && layer >= t.last_layers)
            mask_columns(f, block, t.spans - 1, 0.f, sum);
#pragma unroll
        for (int j = 0; j < SLOTS; j++)
#pragma unroll
            for (int g = 0; g < PAIR; g++)
                e[j][g] += sum[j][g];
    }
}

/* Computes the estimates of all blocks of the warp's slice and passes them to `sink`, like walk_streamed but
 * with the proxies in registers. Estimates are too large by 2^rows.scale. SINGLE: a span is one candidate,
 * and stages consist of whole segments. */
template <int PARTS, bool SINGLE, ScoreRange RANGE, typename Source, typename Sink>
__device__ __forceinline__ void walk_resident(const SelectTiles &t, const SelectPlace &at,
                                              const ResidentRows<PARTS> &rows, const Source &source,
                                              uint4 *shared, Sink &sink)
{
    /* number of blocks of spans handled at a time: as many as the registers suffice for */
    constexpr int AT_ONCE = PARTS < 8 ? 2 : 1;
    auto f = feed_begin(t, at, source, shared);
    int whole = feed_whole(t, f);
    for (int segment = at.begin; segment < at.end; segment += SEGMENT) {
        auto columns = feed_segment<SINGLE>(t, shared, f);
#pragma unroll AT_ONCE
        for (int block = segment; block < segment + SEGMENT; block++) {
            float e[SLOTS][PAIR] = {};
            if (SINGLE)
                add_linear_powers<PARTS, RANGE>(segment_columns(t, f, columns, block), rows, e);
            else
                add_layers<PARTS, RANGE>(t, rows, block, whole, shared, f, e);
            if (segment >= whole)
                mask_columns(f, block, t.spans, -1.f, e);
            take(sink, block, e);
        }
        end_segment(sink, segment);
    }
}

/* Computes the estimates of the warp's slice, with walk_resident if the proxies stay in registers and
 * otherwise with walk_streamed. PARTS is the result of select_resident_parts. */
template <int PARTS, typename Source, typename Sink>
__device__ __forceinline__ void walk_estimates(const SelectTiles &t, const SelectPlace &at,
                                               const Source &source, uint4 *shared, Sink &sink)
{
    if constexpr (PARTS > 0) {
        ResidentRows<PARTS> rows;
        resident_begin<PARTS>(t, at, rows);
        scale_sink(sink, rows.scale);
        if (rows.range == IN_NONE)
            walk_resident<PARTS, false, IN_NONE>(t, at, rows, source, shared, sink);
        else if (rows.range == IN_HALF && t.layers == 1)
            walk_resident<PARTS, true, IN_HALF>(t, at, rows, source, shared, sink);
        else if (rows.range == IN_HALF)
            walk_resident<PARTS, false, IN_HALF>(t, at, rows, source, shared, sink);
        else if (t.layers == 1)
            walk_resident<PARTS, true, IN_BF16>(t, at, rows, source, shared, sink);
        else
            walk_resident<PARTS, false, IN_BF16>(t, at, rows, source, shared, sink);
    } else if (t.coarse) {
        walk_streamed<true>(t, at, source, shared, sink);
    } else {
        walk_streamed<false>(t, at, source, shared, sink);
    }
}

} // namespace dsvi

#endif
