/* SIMD variant of the attention forward pass, dense or over lists, with online softmax over tiles of keys
 * (Milakov & Gimelshein 2018; Dao et al. 2022). attention_tile.h describes the tiles. Each tile of queries is
 * one piece of work, so the result does not depend on the number of threads.
 *
 * If one key has all the weight of a query, its probability is exactly 1, however large its score: scores are
 * rounded once, identically here and in the backward pass, before anything is subtracted. */
#include <math.h>

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

/* Scratch of one worker, in floats. */
typedef struct Scratch {
    float *rows;    /* (tile_width, row_width) Q as loaded; at the end O */
    float *qt;      /* (row_words, tile_width) Q^T, packed along D */
    float *sum;     /* (row_width, tile_width) O^T: sum of p v */
    float *scores;  /* (KEYS, tile_width) S^T, then P^T packed across keys */
    float *k;       /* (KEYS, row_words) packed along D */
    float *v;       /* (KEYS, row_words) packed along D */
    float *vx;      /* (KEYS / 2, row_width) V packed across keys; only with pairs */
    float *largest; /* (tile_width) running maximum of the scores */
    float *total;   /* (tile_width) running sum of the softmax numerators p */
} Scratch;

typedef struct Forward {
    const DsviAttentionArgs *args;
    DsviAttentionTiles tiles;
    size_t worker_floats;
} Forward;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static size_t attention_fwd_scratch_layout(const DsviAttentionTiles *t, float *base, Scratch *s)
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

/* Replaces the scores of key j (with BF16 pairs: of keys j and j + 1) for one vector of queries by their
 * softmax numerators p, as one row of P^T. Returns the sum of these p. */
static DsviVec put_probabilities(bool pairs, float *scores, int64_t stride, int64_t j, int64_t count,
                                 DsviVec now)
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
static void softmax_lanes(const DsviAttentionTiles *t, const Scratch *s, int64_t i, int64_t count,
                          int64_t words)
{
    int64_t stride = t->tile_width;
    float *scores = s->scores + i, *sum = s->sum + i;
    DsviVec before = dsvi_vec_load(s->largest + i), now = before, total = dsvi_vec_all(0);
    for (int64_t j = 0; j < count; j++)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + j * stride));
    for (int64_t j = 0; j < count; j += t->pairs ? 2 : 1)
        total += put_probabilities(t->pairs, scores, stride, j, count, now);
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

static void attention_fwd_load_queries(const Forward *f, const Scratch *s, int64_t b, int64_t h,
                                       int64_t first, int64_t count)
{
    const DsviAttentionArgs *args = f->args;
    const DsviAttentionTiles *t = &f->tiles;
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

/* Computes S^T, its softmax, and O^T += V^T P^T, for `count` keys of (b, h). */
static void attention_fwd_pass_keys(const Forward *f, const Scratch *s, int64_t b, int64_t h,
                                    const int32_t *keys, int64_t count, int64_t width)
{
    const DsviAttentionArgs *args = f->args;
    const DsviAttentionTiles *t = &f->tiles;
    int64_t words = dsvi_words(t->pairs, count);
    dsvi_rows_gather(t, args, &args->k, b * args->heads + h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, b * args->heads + h, keys, count, s->v);
    const float *v = dsvi_rows_across(t, s->v, count, s->vx);
    dsvi_tile_product(&(DsviTileProduct){.m = dsvi_round_up(count, dsvi_rows_unit(t->pairs)),
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
                                         .pairs = t->pairs});
    for (int64_t i = 0; i < width; i += DSVI_LANES)
        softmax_lanes(t, s, i, count, words);
    dsvi_tile_product(&(DsviTileProduct){.m = t->row_width,
                                         .n = width,
                                         .k = words,
                                         .a = v,
                                         .a_row = 1,
                                         .a_col = t->row_width,
                                         .b = s->scores,
                                         .ldb = t->tile_width,
                                         .c = s->sum,
                                         .ldc = t->tile_width,
                                         .add = true,
                                         .pairs = t->pairs});
}

static void attention_fwd_tile(const Forward *f, const Scratch *s, int64_t b, int64_t h, int64_t tile)
{
    const DsviAttentionArgs *args = f->args;
    int64_t first, queries = dsvi_tile_queries(&f->tiles, args->queries, tile, &first);
    if (queries == 0)
        return;
    DsviList list = dsvi_list_of(args->lists, args->keys, b, h, first);
    int64_t length = dsvi_list_length(&list), width = dsvi_tile_width(&f->tiles, queries);
    float *lse = (float *)args->lse + (b * args->heads + h) * args->queries + first;
    attention_fwd_load_queries(f, s, b, h, first, queries);
    for (int64_t from = 0; from < length; from += DSVI_TILE_KEYS) {
        int32_t keys[DSVI_TILE_KEYS];
        int64_t to = from + DSVI_TILE_KEYS < length ? from + DSVI_TILE_KEYS : length;
        int64_t next = to + DSVI_TILE_KEYS < length ? to + DSVI_TILE_KEYS : length;
        dsvi_tile_keys(&list, from, to, keys);
        dsvi_keys_prefetch(args, b, h, &list, to, next);
        attention_fwd_pass_keys(f, s, b, h, keys, to - from, width);
    }
    dsvi_rows_transpose(s->sum, f->tiles.tile_width, width, f->tiles.row_width, s->rows, f->tiles.row_width);
    for (int64_t i = 0; i < queries; i++) {
        dsvi_row_store(args->act, args->out.data, dsvi_heads_at(&args->out, b, first + i, h), args->head_dim,
                       s->rows + i * f->tiles.row_width, length > 0 ? 1 / s->total[i] : 0);
        lse[i] = length > 0 ? (float)(s->largest[i] + log(s->total[i])) : -INFINITY;
    }
}

static void attention_fwd_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Forward *f = context;
    Scratch s;
    float *memory = (float *)f->args->workspace + (size_t)worker * f->worker_floats;
    attention_fwd_scratch_layout(&f->tiles, memory, &s);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / f->tiles.count;
        attention_fwd_tile(f, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
    dsvi_tile_products_end();
}

static Forward attention_fwd_setup(const DsviAttentionArgs *args)
{
    Scratch s;
    Forward f = {args, dsvi_attention_tiles(args), 0};
    f.worker_floats = attention_fwd_scratch_layout(&f.tiles, NULL, &s);
    return f;
}

static size_t cpu_attention_fwd_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    return attention_fwd_setup(args).worker_floats * sizeof(float) * (size_t)dsvi_threads_count();
}

static DsvStatus cpu_attention_fwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check_simd(args, cpu_attention_fwd_workspace(stream, args)));
    Forward f = attention_fwd_setup(args);
    dsvi_parallel_for(args->batch * args->heads * f.tiles.count, 1, attention_fwd_range, &f);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_fwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, cpu_attention_fwd, cpu_attention_fwd_workspace,
                                DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_fwd, cpu_attention_fwd, cpu_attention_fwd_workspace,
                                DSVI_SIMD_NAME);
}
