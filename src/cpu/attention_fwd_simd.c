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
    float *rows;    /* (tile, row_width) Q as read, then sum of p v */
    float *qt;      /* (row_width, tile_width) Q^T */
    float *scores;  /* (KEYS, tile_width) S^T, then P^T */
    float *k, *v;   /* (KEYS, row_width) */
    float *largest; /* (tile_width) m */
    float *total;   /* (tile_width) sum of p */
    float *shrink;  /* (tile_width) exp(old m - new m) */
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
    s->rows = dsvi_take_floats(base, &used, t->tile_width * t->row_width);
    s->qt = dsvi_take_floats(base, &used, t->row_width * t->tile_width);
    s->scores = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->tile_width);
    s->k = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_width);
    s->v = dsvi_take_floats(base, &used, DSVI_TILE_KEYS * t->row_width);
    s->largest = dsvi_take_floats(base, &used, t->tile_width);
    s->total = dsvi_take_floats(base, &used, t->tile_width);
    s->shrink = dsvi_take_floats(base, &used, t->tile_width);
    return used;
}

/* Takes the scores of `count` keys into the running softmax of 16 queries or fewer lanes; scores become p.
 * Tells whether any query's largest score grew. */
static bool softmax_lanes(float *scores, int64_t count, int64_t stride, float *largest, float *total,
                          float *shrink)
{
    DsvVec before = dsvi_vec_load(largest), now = before, sum = dsvi_vec_all(0);
    for (int64_t j = 0; j < count; j++)
        now = dsvi_vec_max(now, dsvi_vec_load(scores + j * stride));
    for (int64_t j = 0; j < count; j++) {
        DsvVec p = dsvi_vec_exp(dsvi_vec_load(scores + j * stride) - now);
        dsvi_vec_store(scores + j * stride, p);
        sum += p;
    }
    DsvVec factor = dsvi_vec_exp(before - now);
    dsvi_vec_store(largest, now);
    dsvi_vec_store(total, dsvi_vec_load(total) * factor + sum);
    dsvi_vec_store(shrink, factor);
    DsvVecInt grew = now != before;
    bool any = false;
    for (int i = 0; i < DSVI_LANES; i++)
        any |= grew[i] != 0;
    return any;
}

static void softmax_tile(const Scratch *s, int64_t keys, int64_t queries, const DsvAttentionTiles *t)
{
    for (int64_t i = 0; i < queries; i += DSVI_LANES) {
        if (!softmax_lanes(s->scores + i, keys, t->tile_width, s->largest + i, s->total + i, s->shrink + i))
            continue;
        for (int64_t row = i; row < i + DSVI_LANES; row++)
            for (int64_t d = 0; d < t->row_width; d++)
                s->rows[row * t->row_width + d] *= s->shrink[row];
    }
}

static void load_queries(const Forward *f, const Scratch *s, int64_t b, int64_t h, int64_t first,
                         int64_t count)
{
    const DsvAttentionArgs *args = f->args;
    const DsvAttentionTiles *t = &f->tiles;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_load(args->act, args->q.data, dsvi_heads_at(&args->q, b, first + i, h), args->head_dim,
                      t->row_width, s->rows + i * t->row_width);
    dsvi_rows_transpose(s->rows, t->row_width, t->row_width, count, s->qt, t->tile_width);
    memset(s->rows, 0, (size_t)(t->tile_width * t->row_width) * sizeof(float));
    for (int64_t i = 0; i < t->tile_width; i++) {
        s->largest[i] = -INFINITY;
        s->total[i] = 0;
    }
}

/* S^T, its softmax, and rows += P V, for `count` keys of (b, h). */
static void pass_keys(const Forward *f, const Scratch *s, int64_t b, int64_t h, const int32_t *keys,
                      int64_t count, int64_t queries)
{
    const DsvAttentionArgs *args = f->args;
    const DsvAttentionTiles *t = &f->tiles;
    int64_t width = dsvi_round_up(queries, DSVI_LANES);
    dsvi_rows_gather(args->act, &args->k, b, h, keys, count, args->head_dim, t->row_width, s->k);
    dsvi_rows_gather(args->act, &args->v, b, h, keys, count, args->head_dim, t->row_width, s->v);
    dsvi_tile_product(&(DsvTileProduct){
        .m = dsvi_round_up(count, DSVI_TILE_ROWS), .n = width, .k = args->head_dim,
        .a = s->k, .a_row = t->row_width, .a_col = 1, .b = s->qt, .ldb = t->tile_width,
        .c = s->scores, .ldc = t->tile_width, .factor = (float)args->scale});
    softmax_tile(s, count, queries, t);
    dsvi_tile_product(&(DsvTileProduct){
        .m = width, .n = t->row_width, .k = count,
        .a = s->scores, .a_row = 1, .a_col = t->tile_width, .b = s->v, .ldb = t->row_width,
        .c = s->rows, .ldc = t->row_width, .factor = 1, .add = true});
}

static void forward_tile(const Forward *f, const Scratch *s, int64_t b, int64_t h, int64_t tile)
{
    const DsvAttentionArgs *args = f->args;
    int64_t first, queries = dsvi_tile_queries(&f->tiles, args->queries, tile, &first);
    if (queries == 0)
        return;
    DsvList list = dsvi_list_of(args->lists, args->keys, b, h, first);
    int64_t length = dsvi_list_length(&list);
    float *lse = (float *)args->lse + (b * args->heads + h) * args->queries + first;
    load_queries(f, s, b, h, first, queries);
    for (int64_t from = 0; from < length; from += DSVI_TILE_KEYS) {
        int32_t keys[DSVI_TILE_KEYS];
        int64_t to = from + DSVI_TILE_KEYS < length ? from + DSVI_TILE_KEYS : length;
        dsvi_tile_keys(&list, from, to, keys);
        pass_keys(f, s, b, h, keys, to - from, queries);
    }
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
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / f->tiles.count;
        forward_tile(f, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
}

static Forward plan(const DsvAttentionArgs *args)
{
    Scratch s;
    Forward f = {args, dsvi_attention_tiles(args), 0};
    f.worker_floats = lay_scratch(&f.tiles, NULL, &s);
    return f;
}

static size_t workspace(const DsvAttentionArgs *args)
{
    return plan(args).worker_floats * sizeof(float) * (size_t)dsvi_threads_count();
}

static DsvStatus forward(DsvStream *stream, const DsvAttentionArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_check_simd(args, workspace(args)));
    Forward f = plan(args);
    dsvi_parallel_for(args->batch * args->heads * f.tiles.count, 1, forward_range, &f);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_fwd)(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_fwd, forward, workspace, DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_fwd, forward, workspace, DSVI_SIMD_NAME);
}
