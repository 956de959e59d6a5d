/* Computes estimates from scores: loops of a warp over the spans of its slice, which pass the estimates to a
 * sink.
 *     walk_streamed    features of any number of chunks; proxies are read from the cache
 *     walk_resident    coarse features of one chunk; proxies stay in registers or in shared memory
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
        feed_block(t, f, block);
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

/* ---- coarse features of one chunk: 16-bit formats of the powers ---- */

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

/* The 16-bit format that fits the scores of all warps of the thread block. */
struct ScoreFormat {
    ScoreRange range;
    int scale;    /* estimates are too large by 2^scale */
    float cut;    /* is added to the terms, so that bits of a score are bits of the power */
    uint32_t one; /* factor by which powers are multiplied to be added up: 1, or -1 for BF16 powers */
};

/* Returns the format that fits the powers of all scores of the thread block. A lane passes terms log2(weight)
 * - lse log2 e of its warp's proxies, two in each row of `terms`; the lanes of a warp together pass all. All
 * threads of the block must call. */
template <int COUNT>
__device__ __forceinline__ ScoreFormat score_format(const SelectTiles &t, const SelectPlace &at,
                                                    const float (&terms)[COUNT][4])
{
    float bound = select_bound(t, at.pair);
    bool in_half = true, in_bf16 = true;
#pragma unroll
    for (int i = 0; i < PAIR * COUNT; i++) {
        float term = terms[i / PAIR][i % PAIR];
        bool none = term == -INFINITY;
        in_half &= none || (term - bound >= HALF_FITS_FROM && term + bound <= HALF_FITS_TO);
        in_bf16 &= none || (term - bound >= BF16_FITS_FROM && term + bound <= BF16_FITS_TO);
    }
    if (__syncthreads_and(in_half))
        return {IN_HALF, HALF_SCALE, HALF_CUT + HALF_SCALE, HALF_ONE};
    ScoreRange range = __syncthreads_and(in_bf16) ? IN_BF16 : IN_NONE;
    return {range, BF16_SCALE, BF16_CUT + BF16_SCALE, BF16_MINUS_ONE};
}

/* Computes 2^(term + score), as 16-bit numbers, of 16 spans with the 8 proxies of a tile: a half of the left
 * factor of the product that adds up the columns of a group. */
template <ScoreRange RANGE>
__device__ __forceinline__ void tile_powers(const uint4 &columns, uint2 row, const float (&start)[4],
                                            uint32_t *powers)
{
    float x[4];
    multiply_add(x, columns, row, start);
#pragma unroll
    for (int n = 0; RANGE == IN_NONE && n < 4; n++)
        x[n] = fminf(fmaxf(x[n], BF16_LEAST), BF16_MAX);
    powers[0] = cut_powers(x[0], x[1]);
    powers[1] = cut_powers(x[2], x[3]);
}

/* Adds the powers of 16 spans with the 16 proxies of two tiles to the estimates of the spans, which are in
 * slots 2 product and 2 product + 1. `one` is the right factor of the product that adds up the columns of
 * each group: ScoreFormat.one where a column belongs to a group, 0 elsewhere. */
template <ScoreRange RANGE>
__device__ __forceinline__ void add_to_estimates(float (&e)[SLOTS][PAIR], int product,
                                                 const uint32_t (&powers)[4], uint2 one)
{
    float(&upper)[PAIR] = e[2 * product], (&lower)[PAIR] = e[2 * product + 1];
    float sum[4] = {upper[0], upper[1], lower[0], lower[1]};
    add_powers_up<RANGE == IN_HALF>(sum, powers, one);
    upper[0] = sum[0];
    upper[1] = sum[1];
    lower[0] = sum[2];
    lower[1] = sum[3];
}

/* ---- proxies in registers ---- */

/* The proxies of a warp's set of groups, in registers: PARTS tiles of 8 columns. */
template <int PARTS> struct RegisterRows {
    enum {
        AT_ONCE = 1,                /* layers of columns that add_linear_powers handles at a time */
        UNROLL = PARTS < 8 ? 2 : 1, /* number of blocks of spans that are handled side by side: as many as the
                                       registers suffice for */
        GROUPS = SET_GROUPS / PARTS, /* groups that have columns in one tile */
        SUMS = (PARTS + 1) / 2       /* products that add up the columns of a group; each adds two tiles */
    };
    uint2 row[PARTS];
    float start[PARTS][4]; /* for each tile, the terms to which the scores of the lane's two columns are
                              added, plus format.cut; both are stored twice */
    uint2 sum[SUMS]; /* right factors of the products that add up the columns of each group: format.one where
                        the column belongs to the group */
    ScoreFormat format;
};

/* Returns `one` if column `n` (0 to 15) of the two tiles 2 pair and 2 pair + 1 belongs to group `group`,
 * else 0. */
template <int PARTS>
__device__ __forceinline__ uint32_t column_of_group(int pair, int n, int group, uint32_t one)
{
    using N = RegisterRows<PARTS>;
    return (2 * pair + n / 8) * N::GROUPS + n % 8 / PARTS == group ? one : 0;
}

/* Loads the proxies of a warp's set of groups into registers. All threads of the block must call. */
template <int PARTS>
__device__ __forceinline__ void rows_begin(const SelectTiles &t, const SelectPlace &at, uint4 *,
                                           RegisterRows<PARTS> &r)
{
    int lane = threadIdx.x % WARP, k = lane / 4, q = lane % 4;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * PARTS;
#pragma unroll
    for (int tile = 0; tile < PARTS; tile++)
        load(reinterpret_cast<const float *>(t.terms + (first + tile) * TERMS + q), r.start[tile]);
    r.format = score_format(t, at, r.start);
    uint32_t one = r.format.one;
#pragma unroll
    for (int tile = 0; tile < PARTS; tile++) {
        r.row[tile] = t.rows[(first + tile) * WARP + lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r.start[tile][i] += r.format.cut;
    }
#pragma unroll
    for (int i = 0; i < RegisterRows<PARTS>::SUMS; i++) {
        r.sum[i].x = column_of_group<PARTS>(i, 2 * q, k, one) | column_of_group<PARTS>(i, 2 * q + 1, k, one)
                                                                    << 16;
        r.sum[i].y = column_of_group<PARTS>(i, 2 * q + 8, k, one) |
                     column_of_group<PARTS>(i, 2 * q + 9, k, one) << 16;
    }
}

/* e[0][j][g] += 2^scale (ScoreFormat) times the sum of 2^(term + score) over the proxies of this lane's group
 * g, for the candidate in its slot j (the j-th of its 4 spans) in one layer. */
template <ScoreRange RANGE, int PARTS>
__device__ __forceinline__ void add_linear_powers(const SelectColumns (&a)[1], const RegisterRows<PARTS> &r,
                                                  float (&e)[1][SLOTS][PAIR])
{
#pragma unroll
    for (int i = 0; i < 2; i++) { /* product i has the spans in slots 2 i and 2 i + 1 */
#pragma unroll
        for (int pair = 0; pair < RegisterRows<PARTS>::SUMS; pair++) {
            uint32_t powers[4] = {};
#pragma unroll
            for (int half = 0; half < 2 && 2 * pair + half < PARTS; half++)
                tile_powers<RANGE>(a[0].product[i], r.row[2 * pair + half], r.start[2 * pair + half],
                                   powers + 2 * half);
            add_to_estimates<RANGE>(e[0], i, powers, r.sum[pair]);
        }
    }
}

/* ---- proxies in shared memory ---- */

/* The proxies of a warp's set of groups, in shared memory: SHARED_PARTS tiles, two for each group. */
struct SharedRows {
    enum {
        AT_ONCE = 2, /* layers of columns that add_linear_powers handles at a time, so that a proxy that is
                        read from shared memory serves four products */
        UNROLL = 1   /* as in RegisterRows */
    };
    const uint2 *row;    /* this lane's features of the first tile; of tile n at row[n * WARP] */
    const float4 *start; /* terms plus format.cut of this lane's columns of the first tile, both stored twice;
                            of tile n at start[n * TERMS] */
    uint2 one;           /* format.one for all columns of a group */
    ScoreFormat format;
};

/* Copies the proxies of a warp's set of groups to shared memory. All threads of the block must call. */
__device__ __forceinline__ void rows_begin(const SelectTiles &t, const SelectPlace &at, uint4 *shared,
                                           SharedRows &r)
{
    static_assert(SHARED_PARTS == 2 * SET_GROUPS, "a group must have two tiles");
    constexpr int EACH = SHARED_PARTS * TERMS / WARP; /* terms of a set that a lane copies */
    int lane = threadIdx.x % WARP;
    int64_t first = ((int64_t)at.pair * t.sets + at.set) * SHARED_PARTS;
    SharedSet *set = reinterpret_cast<SharedSet *>(shared) + threadIdx.x / WARP;
    float start[EACH][4];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        load(reinterpret_cast<const float *>(t.terms + first * TERMS + i * WARP + lane), start[i]);
    r.format = score_format(t, at, start);
    uint32_t one = r.format.one << 16 | r.format.one;
    r.one = make_uint2(one, one | zero_of(t.spans));
    r.row = set->row[0] + lane;
    r.start = set->start[0] + lane % TERMS;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int n = 0; n < 4; n++)
            start[i][n] += r.format.cut;
        store(reinterpret_cast<float *>(set->start[0] + i * WARP + lane), start[i]);
    }
#pragma unroll
    for (int n = 0; n < SHARED_PARTS; n++)
        set->row[n][lane] = t.rows[(first + n) * WARP + lane];
    __syncwarp();
}

/* e[n][j][g] += 2^scale (ScoreFormat) times the sum of 2^(term + score) over the proxies of this lane's group
 * g, for the candidate in its slot j (the j-th of its 4 spans) in layer n of two layers. */
template <ScoreRange RANGE>
__device__ __forceinline__ void add_linear_powers(const SelectColumns (&a)[SharedRows::AT_ONCE],
                                                  const SharedRows &r,
                                                  float (&e)[SharedRows::AT_ONCE][SLOTS][PAIR])
{
#pragma unroll 2
    for (int group = 0; group < SET_GROUPS; group++) {
        uint2 row[2];
        float start[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            row[half] = r.row[(2 * group + half) * WARP];
            load(reinterpret_cast<const float *>(r.start + (2 * group + half) * TERMS), start[half]);
        }
        /* the group has all columns of both tiles, and its sum is column `group` of the product */
        bool mine = threadIdx.x % WARP / 4 == group;
        uint2 one = make_uint2(mine ? r.one.x : 0, mine ? r.one.y : 0);
#pragma unroll
        for (int i = 0; i < 2 * SharedRows::AT_ONCE; i++) {
            uint32_t powers[4];
#pragma unroll
            for (int half = 0; half < 2; half++)
                tile_powers<RANGE>(a[i / 2].product[i % 2], row[half], start[half], powers + 2 * half);
            add_to_estimates<RANGE>(e[i / 2], i % 2, powers, one);
        }
    }
}

/* ---- estimates with the proxies in registers or in shared memory ---- */

/* Adds to e the estimates of a block of spans, summed over all layers (candidates of each span); needed if
 * spans have several candidates. */
template <ScoreRange RANGE, typename Rows, typename Feed>
__device__ __forceinline__ void add_layers(const SelectTiles &t, const Rows &rows, int block, int whole,
                                           uint4 *shared, Feed &f, float (&e)[SLOTS][PAIR])
{
    feed_block(t, f, block);
    for (int layer = 0; layer < t.layers; layer += Rows::AT_ONCE) {
        SelectColumns a[Rows::AT_ONCE] = {};
        float sum[Rows::AT_ONCE][SLOTS][PAIR] = {};
#pragma unroll
        for (int n = 0; n < Rows::AT_ONCE; n++)
            if (n == 0 || layer + n < t.layers)
                a[n] = load_columns(feed_layer(t, shared, 1, f), 0);
        add_linear_powers<RANGE>(a, rows, sum);
#pragma unroll
        for (int n = 0; n < Rows::AT_ONCE; n++) {
            if (n > 0 && layer + n >= t.layers)
                break;
            if (block >= whole && layer + n >= t.last_layers)
                mask_columns(f, block, t.spans - 1, 0.f, sum[n]);
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
#pragma unroll
                for (int g = 0; g < PAIR; g++)
                    e[j][g] += sum[n][j][g];
        }
    }
}

/* Computes the estimates of all blocks of the warp's slice and passes them to `sink`, like walk_streamed but
 * with the proxies in registers or in shared memory. Estimates are too large by 2^rows.format.scale. SINGLE:
 * a span is one candidate, and stages and slices consist of whole segments. */
template <bool SINGLE, ScoreRange RANGE, typename Rows, typename Source, typename Sink>
__device__ __forceinline__ void walk_resident(const SelectTiles &t, const SelectPlace &at, const Rows &rows,
                                              const Source &source, uint4 *shared, Sink &sink)
{
    constexpr int BLOCKS = SINGLE ? (int)Rows::AT_ONCE : 1;
    auto f = feed_begin(t, at, source, shared);
    int whole = feed_whole(t, f);
    for (int segment = at.begin, end; segment < at.end; segment = end) {
        auto columns = feed_segment<SINGLE>(t, shared, f);
        end = segment_end<SINGLE>(f, segment, at.end);
#pragma unroll Rows::UNROLL
        for (int block = segment; block < end; block += BLOCKS) {
            float e[BLOCKS][SLOTS][PAIR] = {};
            if constexpr (SINGLE) {
                SelectColumns a[BLOCKS];
#pragma unroll
                for (int n = 0; n < BLOCKS; n++)
                    a[n] = segment_columns(t, f, columns, block + n);
                add_linear_powers<RANGE>(a, rows, e);
            } else {
                add_layers<RANGE>(t, rows, block, whole, shared, f, e[0]);
            }
#pragma unroll
            for (int n = 0; n < BLOCKS; n++) {
                if (segment >= whole)
                    mask_columns(f, block + n, t.spans, -1.f, e[n]);
                take(sink, block + n, e[n]);
            }
        }
        end_segment(sink, segment);
    }
}

/* Computes the estimates of the warp's slice with walk_resident. `shared` has the proxies, if they stay
 * there, then the columns. */
template <int PARTS, typename Rows, typename Source, typename Sink>
__device__ __forceinline__ void walk_with_rows(const SelectTiles &t, const SelectPlace &at,
                                               const Source &source, uint4 *shared, Sink &sink)
{
    Rows rows;
    rows_begin(t, at, shared, rows);
    shared += shared_rows_size(PARTS);
    scale_sink(sink, rows.format.scale);
    if (rows.format.range == IN_NONE)
        walk_resident<false, IN_NONE>(t, at, rows, source, shared, sink);
    else if (rows.format.range == IN_HALF && t.layers == 1)
        walk_resident<true, IN_HALF>(t, at, rows, source, shared, sink);
    else if (rows.format.range == IN_HALF)
        walk_resident<false, IN_HALF>(t, at, rows, source, shared, sink);
    else if (t.layers == 1)
        walk_resident<true, IN_BF16>(t, at, rows, source, shared, sink);
    else
        walk_resident<false, IN_BF16>(t, at, rows, source, shared, sink);
}

/* Computes the estimates of the warp's slice, with walk_resident if the proxies stay in registers or in
 * shared memory and otherwise with walk_streamed. PARTS is the result of select_resident_parts. */
template <int PARTS, typename Source, typename Sink>
__device__ __forceinline__ void walk_estimates(const SelectTiles &t, const SelectPlace &at,
                                               const Source &source, uint4 *shared, Sink &sink)
{
    if constexpr (PARTS == SHARED_PARTS)
        walk_with_rows<PARTS, SharedRows>(t, at, source, shared, sink);
    else if constexpr (PARTS > 0)
        walk_with_rows<PARTS, RegisterRows<PARTS>>(t, at, source, shared, sink);
    else if (t.coarse)
        walk_streamed<true>(t, at, source, shared, sink);
    else
        walk_streamed<false>(t, at, source, shared, sink);
}

} // namespace dsvi

#endif
