/* Tiles of attention on the CPU, shared by the forward and backward passes.
 *
 * Dense attention is the case of one group that holds all queries, with a list of all keys. A tile is up to
 * 128 queries of one group of one (batch, head); the keys of its list pass it 64 at a time, gathered into
 * packed rows. All that belongs to queries stands transposed, queries across (lanes), as in
 *     S^T = K Q^T      (64, tile)      K as gathered, its words broadcast; Q^T packed once per tile
 *     O^T += V^T P^T   (D, tile)
 * so that a query's softmax runs down a lane, and P^T and dS^T serve as factors as they come out.
 *
 * Operands are words (tile_words.h). Rows packed along D are row_words apart, rows of D words (packed across,
 * or F32) row_width, rows of queries tile_width. */
#ifndef DSVI_ATTENTION_TILE_H
#define DSVI_ATTENTION_TILE_H

#include "cpu/tile_words.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TILE_QUERIES = 128, DSVI_TILE_KEYS = 64 };

/* How the queries of one (batch, head) are cut: groups, and tiles in them, numbered through. */
typedef struct DsvAttentionTiles {
    int64_t group;      /* queries that share a list */
    int64_t tile;       /* queries of a tile, but for the last of a group */
    int64_t per_group;  /* tiles */
    int64_t count;      /* tiles of a (batch, head); the last ones of the last group may be empty */
    bool pairs;         /* operands are pairs of bf16 */
    int64_t dim_words;  /* of a row along D: k of products over D */
    int64_t tile_width; /* `tile` rounded up to whole vectors (pairs: to pairs of them) */
    int64_t row_width;  /* D rounded up to whole vectors */
    int64_t row_words;  /* dim_words rounded up to whole vectors */
} DsvAttentionTiles;

/* Lanes that so many queries take. */
static inline int64_t dsvi_tile_width(const DsvAttentionTiles *t, int64_t queries)
{
    return dsvi_round_up(queries, t->pairs ? 2 * DSVI_LANES : DSVI_LANES);
}

static inline DsvAttentionTiles dsvi_attention_tiles(const DsvAttentionArgs *args)
{
    DsvAttentionTiles t;
    int64_t groups = args->lists ? args->lists->groups : 1;
    t.group = args->lists ? args->lists->group : args->queries;
    t.tile = t.group < DSVI_TILE_QUERIES ? t.group : (int64_t)DSVI_TILE_QUERIES;
    t.per_group = t.tile > 0 ? (t.group + t.tile - 1) / t.tile : 0;
    t.count = groups * t.per_group;
    t.pairs = DSVI_HAS_PAIRS && args->act == DSV_BF16;
    t.dim_words = dsvi_words(t.pairs, args->head_dim);
    t.tile_width = dsvi_tile_width(&t, t.tile);
    t.row_width = dsvi_round_up(args->head_dim, DSVI_LANES);
    t.row_words = dsvi_round_up(t.dim_words, DSVI_LANES);
    return t;
}

/* First query of tile `n` and how many there are: 0 for an empty one. */
static inline int64_t dsvi_tile_queries(const DsvAttentionTiles *t, int64_t queries, int64_t n,
                                        int64_t *first)
{
    int64_t group_begin = n / t->per_group * t->group;
    int64_t group_end = group_begin + t->group < queries ? group_begin + t->group : queries;
    *first = group_begin + n % t->per_group * t->tile;
    if (*first >= group_end)
        return 0;
    return group_end - *first < t->tile ? group_end - *first : t->tile;
}

/* Keys numbered [begin, end) of a list, at most DSVI_TILE_KEYS. */
static inline void dsvi_tile_keys(const DsvList *list, int64_t begin, int64_t end, int32_t *keys)
{
    if (list->grain == 1) {
        for (int64_t i = begin; i < end; i++)
            *keys++ = list->runs[i];
        return;
    }
    int64_t run = begin / list->grain, in_run = begin % list->grain;
    for (int64_t i = begin; i < end; i++) {
        *keys++ = (int32_t)(list->runs[run] * list->grain + in_run);
        if (++in_run == list->grain) {
            in_run = 0;
            run++;
        }
    }
}

/* One row of D elements as `width` floats, zeros behind. */
static inline void dsvi_row_load(DsvDtype act, const void *data, int64_t at, int64_t dim, int64_t width,
                                 float *out)
{
    if (act == DSV_F32) {
        memcpy(out, (const float *)data + at, (size_t)dim * sizeof *out);
    } else {
        const uint16_t *row = (const uint16_t *)data + at;
        for (int64_t d = 0; d < dim; d++)
            out[d] = dsvi_bf16_to_f32(row[d]);
    }
    for (int64_t d = dim; d < width; d++)
        out[d] = 0;
}

/* The same as words along D, row_words of them. */
static inline void dsvi_row_words(const DsvAttentionTiles *t, const DsvAttentionArgs *args, const void *data,
                                  int64_t at, float *out)
{
    if (!t->pairs) {
        dsvi_row_load(args->act, data, at, args->head_dim, t->row_words, out);
        return;
    }
    const uint16_t *row = (const uint16_t *)data + at;
    uint16_t *halves = (uint16_t *)out;
    if (args->head_dim == 2 * t->row_words) { /* whole vectors: spares two calls */
        for (int64_t d = 0; d < args->head_dim; d += 2 * DSVI_LANES)
            memcpy(halves + d, row + d, sizeof(DsvVec));
        return;
    }
    memcpy(halves, row, (size_t)args->head_dim * sizeof *halves);
    memset(halves + args->head_dim, 0, (size_t)(2 * t->row_words - args->head_dim) * sizeof *halves);
}

/* One row of D elements, times `factor`. */
static inline void dsvi_row_store(DsvDtype act, void *data, int64_t at, int64_t dim, const float *in,
                                  float factor)
{
    if (act == DSV_F32) {
        float *row = (float *)data + at;
        for (int64_t d = 0; d < dim; d++)
            row[d] = in[d] * factor;
    } else {
        uint16_t *row = (uint16_t *)data + at;
        for (int64_t d = 0; d < dim; d++)
            row[d] = dsvi_f32_to_bf16(in[d] * factor);
    }
}

/* Zero rows behind `count` packed rows, `width` wide, up to what products may read. */
static inline void dsvi_rows_finish(bool pairs, int64_t count, int64_t width, float *rows)
{
    int64_t padded = dsvi_round_up(count, dsvi_rows_unit(pairs));
    memset(rows + count * width, 0, (size_t)((padded - count) * width) * sizeof *rows);
}

/* The rows `keys` of (b, h) one behind the other, along D. */
static inline void dsvi_rows_gather(const DsvAttentionTiles *t, const DsvAttentionArgs *args,
                                    const DsvHeads *rows, int64_t b, int64_t h, const int32_t *keys,
                                    int64_t count, float *out)
{
    for (int64_t j = 0; j < count; j++)
        dsvi_row_words(t, args, rows->data, dsvi_heads_at(rows, b, keys[j], h), out + j * t->row_words);
    dsvi_rows_finish(t->pairs, count, t->row_words, out);
}

/* Asks for the rows of K and V of keys [begin, end) of a list, which may lie anywhere, before they are
 * wanted. */
static inline void dsvi_keys_prefetch(const DsvAttentionArgs *args, int64_t b, int64_t h, const DsvList *list,
                                      int64_t begin, int64_t end)
{
    enum { LINE = 64 };
    int32_t keys[DSVI_TILE_KEYS];
    size_t size = dsvi_dtype_size(args->act), bytes = (size_t)args->head_dim * size;
    dsvi_tile_keys(list, begin, end, keys);
    for (int64_t j = 0; j < end - begin; j++) {
        const char *k = (const char *)args->k.data + (size_t)dsvi_heads_at(&args->k, b, keys[j], h) * size;
        const char *v = (const char *)args->v.data + (size_t)dsvi_heads_at(&args->v, b, keys[j], h) * size;
        for (size_t at = 0; at < bytes; at += LINE) {
            __builtin_prefetch(k + at, 0, 3);
            __builtin_prefetch(v + at, 0, 3);
        }
    }
}

/* The `count` rows packed along D, finished, as words across: in `out` (row_width wide), or as they are. */
static inline const float *dsvi_rows_across(const DsvAttentionTiles *t, const float *rows, int64_t count,
                                            float *out)
{
    if (!t->pairs)
        return rows;
    const uint16_t *halves = (const uint16_t *)rows;
    for (int64_t w = 0; w < dsvi_words(true, count); w++)
        dsvi_halves_across(halves + 4 * w * t->row_words, halves + (4 * w + 2) * t->row_words, t->row_width,
                           out + w * t->row_width);
    return out;
}

/* Refuses what these variants do not serve. */
static inline DsvStatus dsvi_attention_check_simd(const DsvAttentionArgs *args, size_t workspace)
{
    DSVI_TRY(dsvi_attention_check(args));
    if ((args->act != DSV_F32 && args->act != DSV_BF16) || args->acc != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: this variant takes F32 and BF16 with F32 sums, "
                         "not %s with %s", dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    const DsvLists *lists = args->lists;
    if (lists && lists->offsets[dsvi_lists_count(lists)] > lists->capacity)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: lists want %lld runs, their memory holds %lld",
                         (long long)lists->offsets[dsvi_lists_count(lists)], (long long)lists->capacity);
    if (args->workspace_bytes < workspace)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         workspace);
    return DSV_OK;
}

#ifdef __cplusplus
}
#endif
#endif
