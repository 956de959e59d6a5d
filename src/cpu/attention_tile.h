/* Tiles of attention on the CPU, shared by the forward and backward passes.
 *
 * Dense attention is treated as one group that holds all queries, with a list of all keys. A tile is up to
 * 128 queries of one group of one (batch, head). The keys of the group's list are processed 64 at a time:
 * their rows are gathered into packed rows. All arrays of queries are stored transposed, with the queries in
 * vector lanes:
 *     S^T = K Q^T      (64, tile)      K as gathered, its words broadcast; Q^T packed once per tile
 *     O^T += V^T P^T   (D, tile)
 * The softmax of a query is then computed within one lane, and P^T and dS^T are operands of the next product
 * without another transposition.
 *
 * Operands consist of 32-bit words (tile_words.h). Distances between rows: row_words for rows packed along D,
 * row_width for rows of D words (packed across, or F32), tile_width for rows of queries. */
#ifndef DSVI_ATTENTION_TILE_H
#define DSVI_ATTENTION_TILE_H

#include "cpu/tile_words.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_TILE_QUERIES = 128, DSVI_TILE_KEYS = 64 };

/* How the queries of one (batch, head) are divided: into groups, and each group into tiles. Tiles are
 * numbered through all groups. */
typedef struct DsviAttentionTiles {
    int64_t group;      /* number of queries that share a list */
    int64_t tile;       /* number of queries of a tile; the last tile of a group may have fewer */
    int64_t per_group;  /* tiles of a group */
    int64_t count;      /* tiles of a (batch, head); the last tiles of the last group may be empty */
    bool pairs;         /* operands consist of words with two BF16 each (otherwise one F32) */
    int64_t dim_words;  /* words of a row packed along D; this is k of products over D */
    int64_t tile_width; /* `tile` rounded up to whole vectors (if words are BF16 pairs, to two vectors) */
    int64_t row_width;  /* D rounded up to whole vectors */
    int64_t row_words;  /* dim_words rounded up to whole vectors */
} DsviAttentionTiles;

/* Number of lanes that `queries` queries occupy: rounded up to the vector length or, if words are BF16
 * pairs, to twice the vector length. */
static inline int64_t dsvi_tile_width(const DsviAttentionTiles *t, int64_t queries)
{
    return dsvi_round_up(queries, t->pairs ? 2 * DSVI_LANES : DSVI_LANES);
}

static inline DsviAttentionTiles dsvi_attention_tiles(const DsviAttentionArgs *args)
{
    DsviAttentionTiles t;
    int64_t groups = args->lists ? args->lists->groups : 1;
    t.group = args->lists ? args->lists->group : args->queries;
    t.tile = t.group < DSVI_TILE_QUERIES ? t.group : (int64_t)DSVI_TILE_QUERIES;
    t.per_group = t.tile > 0 ? (t.group + t.tile - 1) / t.tile : 0;
    t.count = groups * t.per_group;
    t.pairs = DSVI_HAS_PAIRS && args->act == DSVI_BF16;
    t.dim_words = dsvi_words(t.pairs, args->head_dim);
    t.tile_width = dsvi_tile_width(&t, t.tile);
    t.row_width = dsvi_round_up(args->head_dim, DSVI_LANES);
    t.row_words = dsvi_round_up(t.dim_words, DSVI_LANES);
    return t;
}

/* Stores the first query of tile `n` in *first and returns the number of its queries, 0 for an empty tile. */
static inline int64_t dsvi_tile_queries(const DsviAttentionTiles *t, int64_t queries, int64_t n,
                                        int64_t *first)
{
    int64_t group_begin = n / t->per_group * t->group;
    int64_t group_end = group_begin + t->group < queries ? group_begin + t->group : queries;
    *first = group_begin + n % t->per_group * t->tile;
    if (*first >= group_end)
        return 0;
    return group_end - *first < t->tile ? group_end - *first : t->tile;
}

/* Stores the keys with positions [begin, end) in the list, at most DSVI_TILE_KEYS, in keys[0 .. end -
 * begin). */
static inline void dsvi_tile_keys(const DsviList *list, int64_t begin, int64_t end, int32_t *keys)
{
    if (list->grain == 1) {
        for (int64_t i = begin; i < end; i++)
            *keys++ = list->spans[i];
        return;
    }
    int64_t span = begin / list->grain, in_span = begin % list->grain;
    for (int64_t i = begin; i < end; i++) {
        *keys++ = (int32_t)(list->spans[span] * list->grain + in_span);
        if (++in_span == list->grain) {
            in_span = 0;
            span++;
        }
    }
}

/* Loads a row of `dim` elements as floats, and fills it with zeros up to `width` floats. */
static inline void dsvi_row_load(DsviDtype act, const void *data, int64_t at, int64_t dim, int64_t width,
                                 float *out)
{
    if (act == DSVI_F32) {
        memcpy(out, (const float *)data + at, (size_t)dim * sizeof *out);
    } else {
        const uint16_t *row = (const uint16_t *)data + at;
        for (int64_t d = 0; d < dim; d++)
            out[d] = dsvi_bf16_to_f32(row[d]);
    }
    for (int64_t d = dim; d < width; d++)
        out[d] = 0;
}

/* Loads a row of D elements as row_words 32-bit words (packed along D, see tile_words.h), filled up with
 * zeros. */
static inline void dsvi_row_words(const DsviAttentionTiles *t, const DsviAttentionArgs *args,
                                  const void *data, int64_t at, float *out)
{
    if (!t->pairs) {
        dsvi_row_load(args->act, data, at, args->head_dim, t->row_words, out);
        return;
    }
    const uint16_t *row = (const uint16_t *)data + at;
    uint16_t *halves = (uint16_t *)out;
    if (args->head_dim == 2 * t->row_words) { /* whole vectors need neither a call of memcpy nor of memset */
        for (int64_t d = 0; d < args->head_dim; d += 2 * DSVI_LANES)
            memcpy(halves + d, row + d, sizeof(DsviVec));
        return;
    }
    memcpy(halves, row, (size_t)args->head_dim * sizeof *halves);
    memset(halves + args->head_dim, 0, (size_t)(2 * t->row_words - args->head_dim) * sizeof *halves);
}

/* Loads the `count` rows of pair = b * heads + h from token `first` on into `out` (count, row_words), packed
 * along D. */
static inline void dsvi_rows_load(const DsviAttentionTiles *t, const DsviAttentionArgs *args,
                                  const DsviHeads *rows, int64_t pair, int64_t first, int64_t count,
                                  float *out)
{
    int64_t b = pair / args->heads, h = pair % args->heads;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_words(t, args, rows->data, dsvi_heads_at(rows, b, first + i, h), out + i * t->row_words);
}

/* Stores a row of `dim` elements, multiplied by `factor`. */
static inline void dsvi_row_store(DsviDtype act, void *data, int64_t at, int64_t dim, const float *in,
                                  float factor)
{
    if (act == DSVI_F32) {
        float *row = (float *)data + at;
        for (int64_t d = 0; d < dim; d++)
            row[d] = in[d] * factor;
    } else {
        uint16_t *row = (uint16_t *)data + at;
        for (int64_t d = 0; d < dim; d++)
            row[d] = dsvi_f32_to_bf16(in[d] * factor);
    }
}

/* Clears the rows that follow `count` packed rows of `width` words, because a tile product reads whole
 * units of rows (dsvi_rows_unit). */
static inline void dsvi_rows_finish(bool pairs, int64_t count, int64_t width, float *rows)
{
    int64_t padded = dsvi_round_up(count, dsvi_rows_unit(pairs));
    memset(rows + count * width, 0, (size_t)((padded - count) * width) * sizeof *rows);
}

/* Gathers the rows `keys` of pair = b * heads + h into `out` (count, row_words), packed along D. */
static inline void dsvi_rows_gather(const DsviAttentionTiles *t, const DsviAttentionArgs *args,
                                    const DsviHeads *rows, int64_t pair, const int32_t *keys, int64_t count,
                                    float *out)
{
    int64_t b = pair / args->heads, h = pair % args->heads;
    for (int64_t j = 0; j < count; j++)
        dsvi_row_words(t, args, rows->data, dsvi_heads_at(rows, b, keys[j], h), out + j * t->row_words);
    dsvi_rows_finish(t->pairs, count, t->row_words, out);
}

/* Prefetches row (b, token, h) into the second-level cache. */
static inline void dsvi_row_prefetch(const DsviAttentionArgs *args, const DsviHeads *rows, int64_t b,
                                     int64_t token, int64_t h)
{
    enum { LINE = 64 };
    size_t size = dsvi_dtype_size(args->act), bytes = (size_t)args->head_dim * size;
    const char *row = (const char *)rows->data + (size_t)dsvi_heads_at(rows, b, token, h) * size;
    for (size_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(row + at, 0, 2);
}

/* Prefetches into cache the rows of K and V of list positions [begin, end), which are scattered in memory. */
static inline void dsvi_keys_prefetch(const DsviAttentionArgs *args, int64_t b, int64_t h,
                                      const DsviList *list, int64_t begin, int64_t end)
{
    int32_t keys[DSVI_TILE_KEYS];
    dsvi_tile_keys(list, begin, end, keys);
    for (int64_t j = 0; j < end - begin; j++) {
        dsvi_row_prefetch(args, &args->k, b, keys[j], h);
        dsvi_row_prefetch(args, &args->v, b, keys[j], h);
    }
}

/* Returns `count` rows as words packed across rows, row_width words apart. `rows` are packed along D and were
 * completed by dsvi_rows_finish. With pairs the result is written to `out`; otherwise it is `rows` itself. */
static inline const float *dsvi_rows_across(const DsviAttentionTiles *t, const float *rows, int64_t count,
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

/* Fails if the SIMD variants of attention do not support the arguments, or if fewer than `workspace` bytes
 * are given. */
static inline DsvStatus dsvi_attention_check_simd(const DsviAttentionArgs *args, size_t workspace)
{
    DSVI_TRY(dsvi_attention_check(args));
    if ((args->act != DSVI_F32 && args->act != DSVI_BF16) || args->acc != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "attention: this variant takes F32 and BF16 with F32 sums, "
                         "not %s with %s",
                         dsvi_dtype_name(args->act), dsvi_dtype_name(args->acc));
    const DsviLists *lists = args->lists;
    if (lists && lists->offsets[dsvi_lists_count(lists)] > lists->capacity)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: lists have %lld spans, but their memory holds %lld",
                         (long long)lists->offsets[dsvi_lists_count(lists)], (long long)lists->capacity);
    if (args->workspace_bytes < workspace)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: workspace has %zu bytes, expected %zu",
                         args->workspace_bytes, workspace);
    return DSV_OK;
}

#ifdef __cplusplus
}
#endif
#endif
