/* The forward pass of attention for one tile of queries, shared by attention_fwd_simd.c,
 * attention_tail_fwd_simd.c and bias_attention_simd.c: online softmax over tiles of keys (Milakov &
 * Gimelshein 2018; Dao et al. 2022). attention_tile.h describes the tiles.
 *
 * If one key has all the weight of a query, its probability is exactly 1, however large its score: scores are
 * rounded once, identically here and in the backward pass, before anything is subtracted. */
#ifndef DSVI_ATTENTION_FORWARD_H
#define DSVI_ATTENTION_FORWARD_H

#include <math.h>

#include "cpu/attention_tail_mask.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DsviForwardScratch of one worker, in floats. */
typedef struct DsviForwardScratch {
    float *rows;     /* (tile_width, row_width) Q as loaded; at the end O */
    float *qt;       /* (row_words, tile_width) Q^T, packed along D */
    float *sum;      /* (row_width, tile_width) O^T: sum of p v */
    float *scores;   /* (KEYS, tile_width) S^T, then P^T packed across keys */
    float *k;        /* (KEYS, row_words) packed along D */
    float *v;        /* (KEYS, row_words) packed along D */
    float *vx;       /* (KEYS / 2, row_width) V packed across keys; only with pairs */
    float *largest;  /* (tile_width) running maximum of the scores */
    float *total;    /* (tile_width) running sum of the softmax numerators p */
    int64_t *cursor; /* (tile_width) of the tail's mask */
} DsviForwardScratch;

typedef struct DsviForward {
    const DsviAttentionArgs *args;
    DsviAttentionTiles tiles;
    const float
        *bias; /* (N, 2 reach + 1) added to the scores as bias_attention does (ops/encoder.h), or NULL */
    int64_t reach;
    const DsviTailMask *mask; /* if set, queries are chunks and keys are runs of a tail */
} DsviForward;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static inline size_t dsvi_forward_scratch(const DsviAttentionTiles *t, float *base, DsviForwardScratch *s)
{
    size_t used = 0;
    int64_t row = t->row_words > t->row_width ? t->row_words : t->row_width;
    s->rows = dsvi_take_floats(base, &used, t->tile_width * row);
    s->qt = dsvi_take_floats(base, &used, t->row_words * t->tile_width);
    s->sum = dsvi_take_floats(base, &used, t->row_width * t->tile_width);
    s->scores = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->tile_width);
    s->k = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_words);
    s->v = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_words);
    s->vx = dsvi_take_floats(base, &used, t->pairs ? DSVI_TILE_KEYS / 2 * t->row_width : 0);
    s->largest = dsvi_take_floats(base, &used, t->tile_width);
    s->total = dsvi_take_floats(base, &used, t->tile_width);
    s->cursor = (int64_t *)(void *)dsvi_take_floats(base, &used, 2 * t->tile_width);
    return used;
}

/* Replaces the scores of key j (with BF16 pairs: of keys j and j + 1) for one vector of queries by their
 * softmax numerators p, as one row of P^T. Returns the sum of these p. */
static inline DsviVec dsvi_forward_probabilities(bool pairs, float *scores, int64_t stride, int64_t j,
                                                 int64_t count, DsviVec now)
{
    DsviVec first = dsvi_vec_exp_weight(dsvi_vec_load(scores + j * stride) - now), second = dsvi_vec_all(0);
    if (!pairs) {
        dsvi_vec_store(scores + j * stride, first);
        return first;
    }
    if (j + 1 < count)
        second = dsvi_vec_exp_weight(dsvi_vec_load(scores + (j + 1) * stride) - now);
    dsvi_vec_store(scores + j / 2 * stride, dsvi_pair_across(first, second));
    return first + second;
}

/* Updates the running softmax of one vector of queries with the scores of `count` keys. The scores become
 * softmax numerators p; the rows of words after the last key, up to row `words`, become 0. If the running
 * maximum of these queries' scores changed, their O^T is rescaled. */
static inline void dsvi_forward_softmax(const DsviAttentionTiles *t, const DsviForwardScratch *s, int64_t i,
                                        int64_t count, int64_t words)
{
    int64_t stride = t->tile_width;
    float *scores = s->scores + i, *sum = s->sum + i;
    DsviVec before = dsvi_vec_load(s->largest + i), now = before, total = dsvi_vec_all(0);
    for (int64_t j = 0; j < count; j++)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + j * stride));
    for (int64_t j = 0; j < count; j += t->pairs ? 2 : 1)
        total += dsvi_forward_probabilities(t->pairs, scores, stride, j, count, now);
    for (int64_t w = t->pairs ? (count + 1) / 2 : count; w < words; w++)
        dsvi_vec_store(scores + w * stride, dsvi_vec_all(0));
    DsviVec shrink = dsvi_vec_exp_weight(before - now);
    dsvi_vec_store(s->largest + i, now);
    dsvi_vec_store(s->total + i, dsvi_vec_load(s->total + i) * shrink + total);
    if (!dsvi_vec_any(now != before))
        return;
    for (int64_t d = 0; d < t->row_width; d++)
        dsvi_vec_store(sum + d * stride, dsvi_vec_load(sum + d * stride) * shrink);
}

static inline void dsvi_forward_queries(const DsviForward *f, const DsviForwardScratch *s, int64_t b,
                                        int64_t h, int64_t first, int64_t count)
{
    const DsviAttentionArgs *args = f->args;
    const DsviAttentionTiles *t = &f->tiles;
    dsvi_rows_load(t, args, &args->q, b * args->heads + h, first, count, s->rows);
    dsvi_rows_transpose(s->rows, t->row_words, t->row_words, count, s->qt, t->tile_width);
    memset(s->sum, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
    for (int64_t i = 0; i < t->tile_width; i++) {
        s->largest[i] = -INFINITY;
        s->total[i] = 0;
    }
}

/* Adds the bias of head h to the scores of the queries from `first` on and of the keys from `key` on. */
static inline void dsvi_forward_bias(const DsviForward *f, const DsviForwardScratch *s, int64_t h,
                                     int64_t first, int64_t key, int64_t count, int64_t width)
{
    const float *bias = f->bias + h * (2 * f->reach + 1) + f->reach;
    float line[DSVI_TILE_QUERIES + DSVI_TILE_KEYS + 2 * DSVI_LANES]; /* by descending key - query */
    int64_t largest = key + count - 1 - first;
    for (int64_t e = 0; e < width + count - 1; e++) {
        int64_t distance = largest - e;
        line[e] = bias[distance < -f->reach ? -f->reach : distance > f->reach ? f->reach : distance];
    }
    for (int64_t j = 0; j < count; j++) {
        float *scores = s->scores + j * f->tiles.tile_width;
        for (int64_t i = 0; i < width; i += DSVI_LANES)
            dsvi_vec_store(scores + i, dsvi_vec_load(scores + i) + dsvi_vec_load(line + count - 1 - j + i));
    }
}

/* Computes S^T, its softmax, and O^T += V^T P^T, for `count` keys of (b, h) and the
 * queries from `first` on; `tail` is used with a mask. */
static inline void dsvi_forward_keys(const DsviForward *f, const DsviForwardScratch *s, int64_t b, int64_t h,
                                     const int32_t *keys, int64_t count, int64_t first, int64_t width,
                                     const DsviTailTile *tail)
{
    const DsviAttentionArgs *args = f->args;
    const DsviAttentionTiles *t = &f->tiles;
    int64_t words = dsvi_words(t->pairs, count);
    dsvi_rows_gather(t, args, &args->k, b * args->heads + h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, b * args->heads + h, keys, count, s->v);
    const float *v = dsvi_rows_across(t, s->v, count, s->vx);
    const DsviTileProduct score = {.m = dsvi_round_up(count, dsvi_rows_unit(t->pairs)),
                                   .n = width,
                                   .k = t->dim_words,
                                   .a = s->k,
                                   .a_row = t->row_words,
                                   .a_col = 1,
                                   .b = s->qt,
                                   .ldb = t->tile_width,
                                   .c = s->scores,
                                   .ldc = t->tile_width,
                                   .factor = (float)args->scale,
                                   .add = false,
                                   .pairs = t->pairs,
                                   .piece = 0};
    dsvi_tile_product(&score);
    if (f->bias)
        dsvi_forward_bias(f, s, h, first, keys[0], count, width);
    if (f->mask)
        dsvi_tail_mask(f->mask, tail, keys[0], count, s->scores, t->tile_width);
    for (int64_t i = 0; i < width; i += DSVI_LANES)
        dsvi_forward_softmax(t, s, i, count, words);
    const DsviTileProduct weigh = {.m = t->row_width,
                                   .n = width,
                                   .k = words,
                                   .a = v,
                                   .a_row = 1,
                                   .a_col = t->row_width,
                                   .b = s->scores,
                                   .ldb = t->tile_width,
                                   .c = s->sum,
                                   .ldc = t->tile_width,
                                   .factor = 1,
                                   .add = true,
                                   .pairs = t->pairs,
                                   .piece = 0};
    dsvi_tile_product(&weigh);
}

/* Computes, for the `queries` queries of (b, h) from `first` on, the sums of p v in s->rows (queries,
 * row_width), the sums of p in s->total, and the largest scores in s->largest. */
static inline void dsvi_forward_sums(const DsviForward *f, const DsviForwardScratch *s, int64_t b, int64_t h,
                                     int64_t first, int64_t queries)
{
    const DsviAttentionArgs *args = f->args;
    DsviList list = dsvi_list_of(args->lists, args->keys, b, h, first);
    int64_t length = dsvi_list_length(&list), width = dsvi_tile_width(&f->tiles, queries);
    const DsviTailTile tail = {b, h, first, queries, s->cursor};
    dsvi_forward_queries(f, s, b, h, first, queries);
    if (f->mask)
        dsvi_tail_begin(f->mask, &tail, 0);
    for (int64_t from = 0; from < length; from += DSVI_TILE_KEYS) {
        int32_t keys[DSVI_TILE_KEYS];
        int64_t to = from + DSVI_TILE_KEYS < length ? from + DSVI_TILE_KEYS : length;
        int64_t next = to + DSVI_TILE_KEYS < length ? to + DSVI_TILE_KEYS : length;
        dsvi_tile_keys(&list, from, to, keys);
        dsvi_keys_prefetch(args, b, h, &list, to, next);
        dsvi_forward_keys(f, s, b, h, keys, to - from, first, width, &tail);
    }
    dsvi_rows_transpose(s->sum, f->tiles.tile_width, width, f->tiles.row_width, s->rows, f->tiles.row_width);
}

/* Computes and stores one tile of queries of (b, h). */
static inline void dsvi_forward_tile(const DsviForward *f, const DsviForwardScratch *s, int64_t b, int64_t h,
                                     int64_t tile)
{
    const DsviAttentionArgs *args = f->args;
    int64_t first, queries = dsvi_tile_queries(&f->tiles, args->queries, tile, &first);
    if (queries == 0)
        return;
    float *lse = args->lse ? (float *)args->lse + (b * args->heads + h) * args->queries + first : NULL;
    dsvi_forward_sums(f, s, b, h, first, queries);
    for (int64_t i = 0; i < queries; i++) {
        bool any = s->total[i] != 0; /* false without keys */
        dsvi_row_store(args->act, args->out.data, dsvi_heads_at(&args->out, b, first + i, h), args->head_dim,
                       s->rows + i * f->tiles.row_width, any ? 1 / s->total[i] : 0);
        if (lse)
            lse[i] = any ? (float)(s->largest[i] + log(s->total[i])) : -INFINITY;
    }
}

#ifdef __cplusplus
}
#endif
#endif
