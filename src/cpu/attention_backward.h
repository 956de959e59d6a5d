/* The products of the attention backward pass for one tile of queries and one tile of keys, shared by
 * attention_bwd_simd.c and attention_tail_bwd_simd.c. attention_tile.h describes the tiles. */
#ifndef DSVI_ATTENTION_BACKWARD_H
#define DSVI_ATTENTION_BACKWARD_H

#include <math.h>

#include "cpu/attention_tile.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DsviBackwardScratch memory of one worker; shapes count 32-bit words. Fields with an "x" hold pairs of BF16
 * packed across rows (tile_words.h). With F32 words they are unused, because the rows themselves are the
 * operands. */
typedef struct DsviBackwardScratch {
    float *rows, *transposed; /* (tile_width, row_words or row_width) and (row_words, tile_width); used while
                               * packing */
    float *k, *v;             /* (KEYS, row_words) packed along D */
    float *kx;                /* (KEYS / 2, row_width) */
    float *dk, *dv;           /* (KEYS, row_width) */
    float *p, *ds;            /* (KEYS, tile_width) S^T, then P^T; dP^T, then dS^T; finally packed along
                               * queries */
    float *dsx;               /* (KEYS / 2, tile_width) dS^T */
} DsviBackwardScratch;

/* One tile of queries: Q and dOut in all packed forms, and the sum dQ^T, the gradient of Q. */
typedef struct DsviBackwardQueries {
    float *q, *dout;    /* (tile_width, row_words) packed along D */
    float *qx, *doutx;  /* (tile_width / 2, row_width) packed across; with F32 words: q and dout */
    float *qt, *doutt;  /* (row_words, tile_width) Q^T and dOut^T, packed along D */
    float *lse, *delta; /* (tile_width); lse is infinite after the last query, to make p there 0 */
    float *dqt;         /* (row_width, tile_width) dQ^T, F32 */
} DsviBackwardQueries;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static inline size_t dsvi_backward_scratch(const DsviAttentionTiles *t, float *base, DsviBackwardScratch *s)
{
    size_t used = 0;
    int64_t row = t->row_words > t->row_width ? t->row_words : t->row_width;
    int64_t scores = DSVI_TILE_KEYS * t->tile_width, across = t->pairs ? 1 : 0;
    s->rows = dsvi_take_floats(base, &used, t->tile_width * row);
    s->transposed = dsvi_take_floats(base, &used, t->tile_width * t->row_words);
    s->k = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_words);
    s->v = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_words);
    s->kx = dsvi_take_floats(base, &used, across * DSVI_TILE_KEYS / 2 * t->row_width);
    s->dk = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_width);
    s->dv = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_width);
    s->p = dsvi_take_floats(base, &used, scores);
    s->ds = dsvi_take_floats(base, &used, scores);
    s->dsx = dsvi_take_floats(base, &used, across * scores / 2);
    return used;
}

static inline size_t dsvi_backward_queries(const DsviAttentionTiles *t, float *base, DsviBackwardQueries *q)
{
    size_t used = 0;
    int64_t words = t->tile_width * t->row_words, across = t->tile_width / 2 * t->row_width;
    q->q = dsvi_take_floats(base, &used, words);
    q->dout = dsvi_take_floats(base, &used, words);
    q->qx = t->pairs ? dsvi_take_floats(base, &used, across) : q->q;
    q->doutx = t->pairs ? dsvi_take_floats(base, &used, across) : q->dout;
    q->qt = dsvi_take_floats(base, &used, words);
    q->doutt = dsvi_take_floats(base, &used, words);
    q->lse = dsvi_take_floats(base, &used, t->tile_width);
    q->delta = dsvi_take_floats(base, &used, t->tile_width);
    q->dqt = dsvi_take_floats(base, &used, t->row_width * t->tile_width);
    return used;
}

/* Returns DsviTileProduct::piece of dP and delta, sums over D of which dS keeps the difference. With F32 they
 * are sums of four sums, which round less: with few keys, or one that outweighs the others, the difference is
 * much smaller than its terms. With BF16 the rounding of `out` outweighs the error of the sums. */
static inline int64_t dsvi_dp_piece(const DsviAttentionTiles *t, DsviDtype act)
{
    return act == DSVI_F32 ? (t->dim_words + 3) / 4 : 0;
}

/* Packs Q and dOut of a tile in all forms, stores its lse, and clears its dQ^T. The tile has the `count`
 * queries of head `pair` from `first` on. */
static inline void dsvi_backward_pack(const DsviAttentionTiles *t, const DsviAttentionArgs *args,
                                      int64_t pair, int64_t first, int64_t count,
                                      const DsviBackwardQueries *q)
{
    const float *lse = (const float *)args->lse + pair * args->queries + first;
    dsvi_rows_load(t, args, &args->q, pair, first, count, q->q);
    dsvi_rows_load(t, args, &args->dout, pair, first, count, q->dout);
    dsvi_rows_transpose(q->q, t->row_words, t->row_words, count, q->qt, t->tile_width);
    dsvi_rows_transpose(q->dout, t->row_words, t->row_words, count, q->doutt, t->tile_width);
    dsvi_rows_across(t, q->q, count, q->qx);
    dsvi_rows_across(t, q->dout, count, q->doutx);
    for (int64_t i = 0; i < t->tile_width; i++)
        q->lse[i] = i < count ? lse[i] : INFINITY;
    memset(q->dqt, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
}

/* Computes delta = out . dout of each query of a tile, for which q->doutt is packed. The order of additions
 * is the same as for dP, so that dP - delta is exactly 0 if one key has all the weight. */
static inline void dsvi_backward_delta(const DsviAttentionTiles *t, const DsviAttentionArgs *args,
                                       const DsviBackwardScratch *s, int64_t pair, int64_t first,
                                       int64_t count, const DsviBackwardQueries *q)
{
    int64_t piece = dsvi_dp_piece(t, args->act);
    dsvi_rows_load(t, args, &args->out, pair, first, count, s->rows);
    dsvi_rows_transpose(s->rows, t->row_words, t->row_words, count, s->transposed, t->tile_width);
    for (int64_t i = 0; i < t->tile_width; i += DSVI_LANES)
        dsvi_vec_store(q->delta + i, dsvi_words_dot(t->pairs, q->doutt + i, s->transposed + i, t->dim_words,
                                                    t->tile_width, piece));
}

/* Probabilities p and score gradients ds of one key, for one vector of queries. */
typedef struct DsviGradients {
    DsviVec p, ds;
} DsviGradients;

static inline DsviGradients dsvi_differentiate(const DsviBackwardScratch *s, int64_t at, DsviVec lse,
                                               DsviVec delta)
{
    DsviVec p = dsvi_vec_exp_weight(dsvi_vec_load(s->p + at) - lse);
    return (DsviGradients){p, p * (dsvi_vec_load(s->ds + at) - delta)};
}

/* Converts in place: s->p from scores to attention probabilities, s->ds from dP to the gradient dS of the
 * scores. */
static inline void dsvi_differentiate_floats(const DsviBackwardScratch *s, const DsviBackwardQueries *q,
                                             int64_t keys, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < width; i += DSVI_LANES) {
        DsviVec lse = dsvi_vec_load(q->lse + i), delta = dsvi_vec_load(q->delta + i);
        for (int64_t at = i; at < i + keys * stride; at += stride) {
            DsviGradients d = dsvi_differentiate(s, at, lse, delta);
            dsvi_vec_store(s->p + at, d.p);
            dsvi_vec_store(s->ds + at, d.ds);
        }
    }
}

/* Like dsvi_differentiate_floats, for operands that are pairs of BF16: p and ds are packed along queries in
 * place, and ds is packed across keys in dsx. Processes two keys and two vectors of queries at a time. The
 * added keys after the last one have ds = 0. */
static inline void dsvi_differentiate_pairs(const DsviBackwardScratch *s, const DsviBackwardQueries *q,
                                            int64_t keys, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < width; i += 2 * DSVI_LANES) {
        DsviVec lse[2], delta[2];
        for (int n = 0; n < 2; n++) {
            lse[n] = dsvi_vec_load(q->lse + i + n * DSVI_LANES);
            delta[n] = dsvi_vec_load(q->delta + i + n * DSVI_LANES);
        }
        for (int64_t j = 0; j < keys; j += 2) {
            DsviGradients d[2][2];
            for (int key = 0; key < 2; key++) {
                int64_t at = (j + key) * stride + i;
                for (int n = 0; n < 2; n++)
                    d[key][n] = j + key < keys ? dsvi_differentiate(s, at + n * DSVI_LANES, lse[n], delta[n])
                                               : (DsviGradients){dsvi_vec_all(0), dsvi_vec_all(0)};
            }
            for (int key = 0; key < 2; key++) {
                int64_t at = (j + key) * stride + i / 2;
                dsvi_vec_store(s->p + at, dsvi_pair_along(d[key][0].p, d[key][1].p));
                dsvi_vec_store(s->ds + at, dsvi_pair_along(d[key][0].ds, d[key][1].ds));
            }
            for (int n = 0; n < 2; n++)
                dsvi_vec_store(s->dsx + j / 2 * stride + i + n * DSVI_LANES,
                               dsvi_pair_across(d[0][n].ds, d[1][n].ds));
        }
    }
    int64_t listed = (keys + 1) / 2;
    memset(s->dsx + listed * stride, 0, (size_t)((dsvi_words(true, keys) - listed) * stride) * sizeof(float));
}

/* One tile of queries of head `pair` = b * heads + h, with `count` keys. */
typedef struct DsviBackwardPass {
    const DsviAttentionArgs *args;
    const DsviAttentionTiles *tiles;
    const DsviBackwardScratch *scratch;
    const DsviBackwardQueries *q;
    int64_t pair, queries;
    const int32_t *keys; /* (count), count <= DSVI_TILE_KEYS */
    int64_t count;
    float *dk, *dv; /* sums of dk and dv, (keys, row_width) F32; row 0 is for key first_key */
    int64_t first_key;
} DsviBackwardPass;

/* Computes the scores S^T in scratch->p and dP^T in scratch->ds. */
static inline void dsvi_backward_scores(const DsviBackwardPass *pass)
{
    const DsviAttentionArgs *args = pass->args;
    const DsviAttentionTiles *t = pass->tiles;
    const DsviBackwardScratch *s = pass->scratch;
    int64_t tile = t->tile_width, width = dsvi_tile_width(t, pass->queries);
    int64_t padded = dsvi_round_up(pass->count, dsvi_rows_unit(t->pairs));
    dsvi_rows_gather(t, args, &args->k, pass->pair, pass->keys, pass->count, s->k);
    dsvi_rows_gather(t, args, &args->v, pass->pair, pass->keys, pass->count, s->v);
    DsviTileProduct scores = {.m = padded,
                              .n = width,
                              .k = t->dim_words,
                              .a = s->k,
                              .a_row = t->row_words,
                              .a_col = 1,
                              .b = pass->q->qt,
                              .ldb = tile,
                              .c = s->p,
                              .ldc = tile,
                              .factor = (float)args->scale,
                              .add = false,
                              .pairs = t->pairs,
                              .piece = 0};
    DsviTileProduct dp = scores;
    dp.a = s->v;
    dp.b = pass->q->doutt;
    dp.c = s->ds;
    dp.piece = dsvi_dp_piece(t, args->act);
    dp.factor = 1;
    dsvi_tile_product(&scores);
    dsvi_tile_product(&dp);
}

static inline void dsvi_backward_scatter(const DsviBackwardPass *pass, const float *rows, float *sums)
{
    int64_t width = pass->tiles->row_width;
    for (int64_t j = 0; j < pass->count; j++) {
        float *sum = sums + (pass->keys[j] - pass->first_key) * width;
        for (int64_t d = 0; d < width; d++)
            sum[d] += rows[j * width + d];
    }
}

/* Continues after dsvi_backward_scores with the other three products. Adds the resulting gradients to the
 * sums of dQ of the tile, and of dk and dv of the keys. */
static inline void dsvi_backward_gradients(const DsviBackwardPass *pass)
{
    const DsviAttentionTiles *t = pass->tiles;
    const DsviBackwardScratch *s = pass->scratch;
    const DsviBackwardQueries *q = pass->q;
    int64_t tile = t->tile_width, row = t->row_width, width = dsvi_tile_width(t, pass->queries);
    int64_t padded = dsvi_round_up(pass->count, dsvi_rows_unit(t->pairs));
    const float *kx = dsvi_rows_across(t, s->k, pass->count, s->kx), *dsx = t->pairs ? s->dsx : s->ds;
    DsviTileProduct dv = {.m = padded,
                          .n = row,
                          .k = dsvi_words(t->pairs, pass->queries),
                          .a = s->p,
                          .a_row = tile,
                          .a_col = 1,
                          .b = q->doutx,
                          .ldb = row,
                          .c = s->dv,
                          .ldc = row,
                          .factor = 1,
                          .add = false,
                          .pairs = t->pairs,
                          .piece = 0};
    DsviTileProduct dk = dv;
    dk.a = s->ds;
    dk.b = q->qx;
    dk.c = s->dk;
    DsviTileProduct dq = {.m = row,
                          .n = width,
                          .k = dsvi_words(t->pairs, pass->count),
                          .a = kx,
                          .a_row = 1,
                          .a_col = row,
                          .b = dsx,
                          .ldb = tile,
                          .c = q->dqt,
                          .ldc = tile,
                          .factor = 1,
                          .add = true,
                          .pairs = t->pairs,
                          .piece = 0};
    if (t->pairs)
        dsvi_differentiate_pairs(s, q, pass->count, width, tile);
    else
        dsvi_differentiate_floats(s, q, pass->count, width, tile);
    dsvi_tile_product(&dv);
    dsvi_tile_product(&dk);
    dsvi_tile_product(&dq);
    dsvi_backward_scatter(pass, s->dv, pass->dv);
    dsvi_backward_scatter(pass, s->dk, pass->dk);
}

#ifdef __cplusplus
}
#endif
#endif
