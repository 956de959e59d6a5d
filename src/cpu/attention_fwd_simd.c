/* Attention forward, dense and over lists: softmax online over key tiles (Milakov & Gimelshein 2018;
 * Dao et al. 2022), tiles as attention_tile.h tells. Each tile of queries is one piece of work, so the
 * result does not depend on the number of threads.
 *
 * The softmax of a query with one key of overwhelming weight is 1 to the bit, however large its score: scores
 * are rounded once, alike here and in the backward pass, before anything is subtracted. */
#include <math.h>

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

/* Scratch of one worker, in floats. */
typedef struct Scratch {
    float *rows;    /* (tile_width, row_width) Q as read; in the end O */
    float *qt;      /* (row_words, tile_width) Q^T, words along D */
    float *sum;     /* (row_width, tile_width) O^T: sum of p v */
    float *scores;  /* (KEYS, tile_width) S^T, then P^T, words across keys */
    float *k;       /* (KEYS, row_words) words along D */
    float *v;       /* (KEYS, row_words) likewise */
    float *vx;      /* (KEYS / 2, row_width) V, words across keys */
    float *largest; /* (tile_width) m */
    float *total;   /* (tile_width) sum of p */
} Scratch;

typedef struct Forward {
    const DsvAttentionArgs *args;
    DsvAttentionTiles tiles;
    size_t worker_floats;
} Forward;

/* Lays the pieces out from `base` on (NULL: only counts) and gives their floats. */
static size_t lay_scratch(const DsvAttentionTiles *t, float *base, Scratch *s)
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
    return used;
}

/* p of key j, with pairs of key j + 1 too: summed, and stored as one row of P^T. */
static DsvVec put_probabilities(bool pairs, float *scores, int64_t stride, int64_t j, int64_t count,
                                DsvVec now)
{
    DsvVec first = dsvi_vec_exp_weight(dsvi_vec_load(scores + j * stride) - now), second = dsvi_vec_all(0);
    if (!pairs) {
        dsvi_vec_store(scores + j * stride, first);
        return first;
    }
    if (j + 1 < count)
        second = dsvi_vec_exp_weight(dsvi_vec_load(scores + (j + 1) * stride) - now);
    dsvi_vec_store(scores + j / 2 * stride, dsvi_pair_across(first, second));
    return first + second;
}

/* Takes the scores of `count` keys into the running softmax of one vector of queries; scores become p, rows
 * beyond the last, up to `words`, zero. `sum`: O^T of these queries, brought to the new scale. */
static void softmax_lanes(const DsvAttentionTiles *t, const Scratch *s, int64_t i, int64_t count,
                          int64_t words)
{
    int64_t stride = t->tile_width;
    float *scores = s->scores + i, *sum = s->sum + i;
    DsvVec before = dsvi_vec_load(s->largest + i), now = before, total = dsvi_vec_all(0);
    for (int64_t j = 0; j < count; j++)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + j * stride));
    for (int64_t j = 0; j < count; j += t->pairs ? 2 : 1)
        total += put_probabilities(t->pairs, scores, stride, j, count, now);
    for (int64_t w = t->pairs ? (count + 1) / 2 : count; w < words; w++)
        dsvi_vec_store(scores + w * stride, dsvi_vec_all(0));
    DsvVec shrink = dsvi_vec_exp_weight(before - now);
    dsvi_vec_store(s->largest + i, now);
    dsvi_vec_store(s->total + i, dsvi_vec_load(s->total + i) * shrink + total);
    if (!dsvi_vec_any(now != before))
        return;
    for (int64_t d = 0; d < t->row_width; d++)
        dsvi_vec_store(sum + d * stride, dsvi_vec_load(sum + d * stride) * shrink);
}

static void load_queries(const Forward *f, const Scratch *s, int64_t b, int64_t h, int64_t first,
                         int64_t count)
{
    const DsvAttentionArgs *args = f->args;
    const DsvAttentionTiles *t = &f->tiles;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_words(t, args, args->q.data, dsvi_heads_at(&args->q, b, first + i, h),
                      s->rows + i * t->row_words);
    dsvi_rows_transpose(s->rows, t->row_words, t->row_words, count, s->qt, t->tile_width);
    memset(s->sum, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
    for (int64_t i = 0; i < t->tile_width; i++) {
        s->largest[i] = -INFINITY;
        s->total[i] = 0;
    }
}

/* S^T, its softmax, and O^T += V^T P^T, for `count` keys of (b, h). */
static void pass_keys(const Forward *f, const Scratch *s, int64_t b, int64_t h, const int32_t *keys,
                      int64_t count, int64_t width)
{
    const DsvAttentionArgs *args = f->args;
    const DsvAttentionTiles *t = &f->tiles;
    int64_t words = dsvi_words(t->pairs, count);
    dsvi_rows_gather(t, args, &args->k, b, h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, b, h, keys, count, s->v);
    const float *v = dsvi_rows_across(t, s->v, count, s->vx);
    dsvi_tile_product(&(DsvTileProduct){
        .m = dsvi_round_up(count, dsvi_rows_unit(t->pairs)), .n = width, .k = t->dim_words,
        .a = s->k, .a_row = t->row_words, .a_col = 1, .b = s->qt, .ldb = t->tile_width,
        .c = s->scores, .ldc = t->tile_width, .factor = (float)args->scale, .pairs = t->pairs});
    for (int64_t i = 0; i < width; i += DSVI_LANES)
        softmax_lanes(t, s, i, count, words);
    dsvi_tile_product(&(DsvTileProduct){
        .m = t->row_width, .n = width, .k = words, .a = v, .a_row = 1, .a_col = t->row_width,
        .b = s->scores, .ldb = t->tile_width, .c = s->sum, .ldc = t->tile_width, .add = true,
        .pairs = t->pairs});
}

static void forward_tile(const Forward *f, const Scratch *s, int64_t b, int64_t h, int64_t tile)
{
    const DsvAttentionArgs *args = f->args;
    int64_t first, queries = dsvi_tile_queries(&f->tiles, args->queries, tile, &first);
    if (queries == 0)
        return;
    DsvList list = dsvi_list_of(args->lists, args->keys, b, h, first);
    int64_t length = dsvi_list_length(&list), width = dsvi_tile_width(&f->tiles, queries);
    float *lse = (float *)args->lse + (b * args->heads + h) * args->queries + first;
    load_queries(f, s, b, h, first, queries);
    for (int64_t from = 0; from < length; from += DSVI_TILE_KEYS) {
        int32_t keys[DSVI_TILE_KEYS];
        int64_t to = from + DSVI_TILE_KEYS < length ? from + DSVI_TILE_KEYS : length;
        int64_t next = to + DSVI_TILE_KEYS < length ? to + DSVI_TILE_KEYS : length;
        dsvi_tile_keys(&list, from, to, keys);
        dsvi_keys_prefetch(args, b, h, &list, to, next);
        pass_keys(f, s, b, h, keys, to - from, width);
    }
    dsvi_rows_transpose(s->sum, f->tiles.tile_width, width, f->tiles.row_width, s->rows, f->tiles.row_width);
    for (int64_t i = 0; i < queries; i++) {
        dsvi_row_store(args->act, args->out.data, dsvi_heads_at(&args->out, b, first + i, h), args->head_dim,
                       s->rows + i * f->tiles.row_width, length > 0 ? 1 / s->total[i] : 0);
        lse[i] = length > 0 ? (float)(s->largest[i] + log(s->total[i])) : -INFINITY;
    }
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Forward *f = context;
    Scratch s;
    float *memory = (float *)f->args->workspace + (size_t)worker * f->worker_floats;
    lay_scratch(&f->tiles, memory, &s);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / f->tiles.count;
        forward_tile(f, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
    dsvi_tile_products_end();
}

static Forward plan(const DsvAttentionArgs *args)
{
    Scratch s;
    Forward f = {args, dsvi_attention_tiles(args), 0};
    f.worker_floats = lay_scratch(&f.tiles, NULL, &s);
    return f;
}

static size_t workspace(DsvStream *stream, const DsvAttentionArgs *args)
{
    (void)stream;
    return plan(args).worker_floats * sizeof(float) * (size_t)dsvi_threads_count();
}

static DsvStatus forward(DsvStream *stream, const DsvAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check_simd(args, workspace(stream, args)));
    Forward f = plan(args);
    dsvi_parallel_for(args->batch * args->heads * f.tiles.count, 1, forward_range, &f);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_fwd)(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, forward, workspace, DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_fwd, forward, workspace, DSVI_SIMD_NAME);
}
