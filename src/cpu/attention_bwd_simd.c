/* Attention backward, dense and over lists, in one pass of five products per pair of tiles (Dao et al. 2022),
 * without atomics and with sums in a fixed order.
 *
 * The keys of a (batch, head) are cut into B blocks, its query tiles into B blocks too, where B depends on
 * shapes and lists alone. In phase t a piece of work owns key block n and query block (n + t) mod B: no two
 * pieces touch the same rows of dq, dk or dv, and every row is summed phase by phase.
 *
 *     phase 0    queries 0 1 2 3      phase 1    queries 0 1 2 3
 *     keys 0             x            keys 0               x
 *     keys 1               x          keys 1                 x       and so on
 *     keys 2                 x        keys 2                   x
 *     keys 3                   x      keys 3             x
 *
 * What the phases share of a head is kept in the workspace: its query tiles, packed once in every form the
 * products want, and the sums in F32, which leave it, scaled and rounded once, in the last phase; for as many
 * heads at a time as HEADS_BYTES holds (one at least). */
#include <math.h>

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

enum {
    BLOCK_LISTED = 768, /* keys of a block in a list, on average: pays for reading a tile's forms */
    LEAST_LISTED = 256, /* and when blocks are made smaller to be more */
    PIECES = 8,         /* of a phase, wanted at least */
    MOST_BLOCKS = 64,
    HEADS_BYTES = 256 << 20
};

/* Scratch of one worker, in floats. "x": words across, where these are other than the rows themselves. */
typedef struct Scratch {
    float *rows, *turned;   /* (tile_width, row_words or row_width), (row_words, tile_width): while packing */
    float *k, *v;           /* (KEYS, row_words) along D */
    float *kx;              /* (KEYS / 2, row_width) */
    float *dk, *dv;         /* (KEYS, row_width) */
    float *p, *ds;          /* (KEYS, tile_width) S^T then P^T; dP^T then dS^T; in the end along queries */
    float *dsx;             /* (KEYS / 2, tile_width) dS^T */
} Scratch;

/* One tile of queries, packed, and its sum. */
typedef struct Queries {
    float *q, *dout;        /* (tile_width, row_words) along D */
    float *qx, *doutx;      /* (tile_width / 2, row_width), or q and dout */
    float *qt, *doutt;      /* (row_words, tile_width) Q^T, dOut^T, along D */
    float *lse, *delta;     /* (tile_width); lse is infinite beyond the last query */
    float *dqt;             /* (row_width, tile_width) dQ^T, F32 */
} Queries;

typedef struct Backward {
    const DsvAttentionArgs *args;
    DsvAttentionTiles tiles;
    int64_t blocks, block_keys;
    int64_t heads_at_once;
    size_t worker_floats, tile_floats, head_floats;
    float *heads, *workers; /* in the workspace */
    int64_t first_pair, phase; /* of the pieces at work */
} Backward;

/* What is at work: one tile of queries of a (batch, head), number `head` of those at work. */
typedef struct Tile {
    int64_t b, h, head;
    int64_t number, first, queries;
} Tile;

/* Lays the pieces out from `base` on (NULL: only counts) and gives their floats. */
static size_t lay_scratch(const DsvAttentionTiles *t, float *base, Scratch *s)
{
    size_t used = 0;
    int64_t row = t->row_words > t->row_width ? t->row_words : t->row_width;
    int64_t scores = DSVI_TILE_KEYS * t->tile_width, across = t->pairs ? 1 : 0;
    s->rows = dsvi_take_floats(base, &used, t->tile_width * row);
    s->turned = dsvi_take_floats(base, &used, t->tile_width * t->row_words);
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

static size_t lay_queries(const DsvAttentionTiles *t, float *base, Queries *q)
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

static Backward plan(const DsvAttentionArgs *args)
{
    Scratch s;
    Queries q;
    Backward w = {.args = args, .tiles = dsvi_attention_tiles(args)};
    int64_t pairs = args->batch * args->heads;
    w.worker_floats = lay_scratch(&w.tiles, NULL, &s);
    w.tile_floats = lay_queries(&w.tiles, NULL, &q);
    w.head_floats = w.tile_floats * (size_t)w.tiles.count + (size_t)(2 * args->keys * w.tiles.row_width);
    w.heads_at_once = w.head_floats > 0 ? (int64_t)(HEADS_BYTES / sizeof(float) / w.head_floats) : pairs;
    w.heads_at_once = w.heads_at_once < 1 ? 1 : w.heads_at_once > pairs ? pairs : w.heads_at_once;
    w.heads = args->workspace;
    w.workers = w.heads ? w.heads + w.head_floats * (size_t)w.heads_at_once : NULL;
    return w;
}

static void plan_blocks(Backward *w)
{
    const DsvLists *lists = w->args->lists;
    int64_t keys = w->args->keys, listed = keys;
    if (lists && dsvi_lists_count(lists) > 0)
        listed = lists->offsets[dsvi_lists_count(lists)] * lists->grain / dsvi_lists_count(lists);
    int64_t wanted = (listed + BLOCK_LISTED - 1) / BLOCK_LISTED, most = listed / LEAST_LISTED;
    int64_t for_pieces = (PIECES + w->heads_at_once - 1) / (w->heads_at_once > 0 ? w->heads_at_once : 1);
    int64_t finer = for_pieces < most ? for_pieces : most;
    w->blocks = finer > wanted ? finer : wanted;
    w->blocks = w->blocks < 1 ? 1 : w->blocks > MOST_BLOCKS ? MOST_BLOCKS : w->blocks;
    w->block_keys = (keys + w->blocks - 1) / w->blocks;
}

static size_t workspace(DsvStream *stream, const DsvAttentionArgs *args)
{
    (void)stream;
    Backward w = plan(args);
    return (w.worker_floats * (size_t)dsvi_threads_count() + w.head_floats * (size_t)w.heads_at_once) *
           sizeof(float);
}

static Scratch scratch_of(const Backward *w, int worker)
{
    Scratch s;
    lay_scratch(&w->tiles, w->workers + (size_t)worker * w->worker_floats, &s);
    return s;
}

/* Tile `number` of the head at work of this number; without queries where it is empty. */
static Tile tile_of(const Backward *w, int64_t head, int64_t number)
{
    int64_t pair = w->first_pair + head;
    Tile at = {.b = pair / w->args->heads, .h = pair % w->args->heads, .head = head, .number = number};
    at.queries = dsvi_tile_queries(&w->tiles, w->args->queries, number, &at.first);
    return at;
}

static Queries queries_of(const Backward *w, const Tile *at)
{
    Queries q;
    lay_queries(&w->tiles, w->heads + (size_t)at->head * w->head_floats + (size_t)at->number * w->tile_floats,
                &q);
    return q;
}

/* The sums dk, or dv, of a head: (keys, row_width) F32. */
static float *key_sums(const Backward *w, int64_t head, bool dv)
{
    size_t rows = (size_t)(w->args->keys * w->tiles.row_width);
    return w->heads + (size_t)(head + 1) * w->head_floats - (dv ? 1 : 2) * rows;
}

static void load_rows(const Backward *w, const DsvHeads *rows, const Tile *at, float *out)
{
    for (int64_t i = 0; i < at->queries; i++)
        dsvi_row_words(&w->tiles, w->args, rows->data, dsvi_heads_at(rows, at->b, at->first + i, at->h),
                       out + i * w->tiles.row_words);
}

/* delta = out . dout per query, from out^T and dout^T, summed as dP is: where one key has all the weight,
 * dP - delta is 0 to the bit. */
static void find_delta(const DsvAttentionTiles *t, const float *outt, const Queries *q)
{
    for (int64_t i = 0; i < t->tile_width; i += DSVI_LANES)
        dsvi_vec_store(q->delta + i, dsvi_words_dot(t->pairs, q->doutt + i, outt + i, t->dim_words,
                                                    t->tile_width));
}

/* Packs Q and dOut of a tile in all forms, lse and delta; its dQ begins with 0. */
static void pack_tile(const Backward *w, const Scratch *s, const Tile *at)
{
    const DsvAttentionArgs *args = w->args;
    const DsvAttentionTiles *t = &w->tiles;
    const float *lse = (const float *)args->lse + (at->b * args->heads + at->h) * args->queries + at->first;
    Queries q = queries_of(w, at);
    load_rows(w, &args->q, at, q.q);
    load_rows(w, &args->dout, at, q.dout);
    load_rows(w, &args->out, at, s->rows);
    dsvi_rows_transpose(q.q, t->row_words, t->row_words, at->queries, q.qt, t->tile_width);
    dsvi_rows_transpose(q.dout, t->row_words, t->row_words, at->queries, q.doutt, t->tile_width);
    dsvi_rows_transpose(s->rows, t->row_words, t->row_words, at->queries, s->turned, t->tile_width);
    dsvi_rows_across(t, q.q, at->queries, q.qx);
    dsvi_rows_across(t, q.dout, at->queries, q.doutx);
    find_delta(t, s->turned, &q);
    for (int64_t i = 0; i < t->tile_width; i++)
        q.lse[i] = i < at->queries ? lse[i] : INFINITY;
    memset(q.dqt, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
}

static void pack_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    Scratch s = scratch_of(w, worker);
    for (int64_t n = begin; n < end; n++) {
        Tile at = tile_of(w, n / w->tiles.count, n % w->tiles.count);
        if (at.queries > 0)
            pack_tile(w, &s, &at);
    }
}

/* Of one key and one vector of queries: what is to be told of p and ds. */
typedef struct Difference {
    DsvVec p, ds;
} Difference;

static inline Difference differentiate(const Scratch *s, int64_t at, DsvVec lse, DsvVec delta)
{
    DsvVec p = dsvi_vec_exp_weight(dsvi_vec_load(s->p + at) - lse);
    return (Difference){p, p * (dsvi_vec_load(s->ds + at) - delta)};
}

/* p: scores to probabilities; ds: dP to dS. */
static void differentiate_floats(const Scratch *s, const Queries *q, int64_t keys, int64_t width,
                                 int64_t stride)
{
    for (int64_t i = 0; i < width; i += DSVI_LANES) {
        DsvVec lse = dsvi_vec_load(q->lse + i), delta = dsvi_vec_load(q->delta + i);
        for (int64_t at = i; at < i + keys * stride; at += stride) {
            Difference d = differentiate(s, at, lse, delta);
            dsvi_vec_store(s->p + at, d.p);
            dsvi_vec_store(s->ds + at, d.ds);
        }
    }
}

/* The same with pairs: p and ds along queries in place, ds across keys in dsx. Two keys and two vectors of
 * queries at a time; keys beyond the last have ds = 0. */
static void differentiate_pairs(const Scratch *s, const Queries *q, int64_t keys, int64_t width,
                                int64_t stride)
{
    for (int64_t i = 0; i < width; i += 2 * DSVI_LANES) {
        DsvVec lse[2], delta[2];
        for (int n = 0; n < 2; n++) {
            lse[n] = dsvi_vec_load(q->lse + i + n * DSVI_LANES);
            delta[n] = dsvi_vec_load(q->delta + i + n * DSVI_LANES);
        }
        for (int64_t j = 0; j < keys; j += 2) {
            Difference d[2][2];
            for (int key = 0; key < 2; key++) {
                int64_t at = (j + key) * stride + i;
                for (int n = 0; n < 2; n++)
                    d[key][n] = j + key < keys ? differentiate(s, at + n * DSVI_LANES, lse[n], delta[n])
                                               : (Difference){dsvi_vec_all(0), dsvi_vec_all(0)};
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

static void scatter_add(const float *rows, const int32_t *keys, int64_t count, int64_t width, float *sums)
{
    for (int64_t j = 0; j < count; j++)
        for (int64_t d = 0; d < width; d++)
            sums[keys[j] * width + d] += rows[j * width + d];
}

/* The five products for `count` keys: dQ into the tile's sum, dk and dv into the keys'. */
static void pass_keys(const Backward *w, const Scratch *s, const Tile *at, const Queries *q,
                      const int32_t *keys, int64_t count)
{
    const DsvAttentionArgs *args = w->args;
    const DsvAttentionTiles *t = &w->tiles;
    int64_t tile = t->tile_width, words = t->row_words, row = t->row_width;
    int64_t width = dsvi_tile_width(t, at->queries), padded = dsvi_round_up(count, dsvi_rows_unit(t->pairs));
    int64_t key_words = dsvi_words(t->pairs, count), query_words = dsvi_words(t->pairs, at->queries);
    dsvi_rows_gather(t, args, &args->k, at->b, at->h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, at->b, at->h, keys, count, s->v);
    const float *kx = dsvi_rows_across(t, s->k, count, s->kx), *dsx = t->pairs ? s->dsx : s->ds;
    DsvTileProduct scores = {.m = padded, .n = width, .k = t->dim_words, .a = s->k, .a_row = words,
                             .a_col = 1, .b = q->qt, .ldb = tile, .c = s->p, .ldc = tile,
                             .factor = (float)args->scale, .pairs = t->pairs};
    DsvTileProduct dp = {.m = padded, .n = width, .k = t->dim_words, .a = s->v, .a_row = words, .a_col = 1,
                         .b = q->doutt, .ldb = tile, .c = s->ds, .ldc = tile, .factor = 1, .pairs = t->pairs};
    DsvTileProduct dv = {.m = padded, .n = row, .k = query_words, .a = s->p, .a_row = tile, .a_col = 1,
                         .b = q->doutx, .ldb = row, .c = s->dv, .ldc = row, .factor = 1, .pairs = t->pairs};
    DsvTileProduct dk = {.m = padded, .n = row, .k = query_words, .a = s->ds, .a_row = tile, .a_col = 1,
                         .b = q->qx, .ldb = row, .c = s->dk, .ldc = row, .factor = 1, .pairs = t->pairs};
    DsvTileProduct dq = {.m = row, .n = width, .k = key_words, .a = kx, .a_row = 1, .a_col = row,
                         .b = dsx, .ldb = tile, .c = q->dqt, .ldc = tile, .add = true, .pairs = t->pairs};
    dsvi_tile_product(&scores);
    dsvi_tile_product(&dp);
    if (t->pairs)
        differentiate_pairs(s, q, count, width, tile);
    else
        differentiate_floats(s, q, count, width, tile);
    dsvi_tile_product(&dv);
    dsvi_tile_product(&dk);
    dsvi_tile_product(&dq);
    scatter_add(s->dv, keys, count, row, key_sums(w, at->head, true));
    scatter_add(s->dk, keys, count, row, key_sums(w, at->head, false));
}

/* How many keys of the list are below `key`. */
static int64_t keys_below(const DsvList *list, int64_t key)
{
    int64_t low = 0, high = list->count; /* the first run that ends beyond `key` is in [low, high] */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (((int64_t)list->runs[middle] + 1) * list->grain > key)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == list->count)
        return dsvi_list_length(list);
    int64_t begin = (int64_t)list->runs[low] * list->grain;
    return low * list->grain + (key > begin ? key - begin : 0);
}

/* Rows [first, first + count) of a gradient of a head at work, from their sums. */
static void store_rows(const Backward *w, const DsvHeads *rows, int64_t head, int64_t first, int64_t count,
                       double factor, const float *sums)
{
    const DsvAttentionArgs *args = w->args;
    int64_t pair = w->first_pair + head, b = pair / args->heads, h = pair % args->heads;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_store(args->act, rows->data, dsvi_heads_at(rows, b, first + i, h), args->head_dim,
                       sums + i * w->tiles.row_width, (float)factor);
}

/* Adds to dq of the tile what comes from keys [begin, end), and to dk and dv of these keys. */
static void backward_tile(const Backward *w, const Scratch *s, const Tile *at, int64_t begin, int64_t end)
{
    const DsvAttentionArgs *args = w->args;
    const DsvAttentionTiles *t = &w->tiles;
    Queries q = queries_of(w, at);
    DsvList list = dsvi_list_of(args->lists, args->keys, at->b, at->h, at->first);
    int64_t to = keys_below(&list, end);
    for (int64_t from = keys_below(&list, begin), next, after; from < to; from = next) {
        int32_t keys[DSVI_TILE_KEYS];
        next = from + DSVI_TILE_KEYS < to ? from + DSVI_TILE_KEYS : to;
        after = next + DSVI_TILE_KEYS < to ? next + DSVI_TILE_KEYS : to;
        dsvi_tile_keys(&list, from, next, keys);
        dsvi_keys_prefetch(args, at->b, at->h, &list, next, after);
        pass_keys(w, s, at, &q, keys, next - from);
    }
    if (w->phase < w->blocks - 1)
        return;
    dsvi_rows_transpose(q.dqt, t->tile_width, dsvi_tile_width(t, at->queries), t->row_width, s->rows,
                        t->row_width);
    store_rows(w, &args->dq, at->head, at->first, at->queries, args->scale, s->rows);
}

/* Key block `block` of a head against the query tiles that it owns in this phase. */
static void backward_block(const Backward *w, const Scratch *s, int64_t head, int64_t block)
{
    const DsvAttentionArgs *args = w->args;
    int64_t row = w->tiles.row_width, query_block = (block + w->phase) % w->blocks;
    int64_t begin = block * w->block_keys < args->keys ? block * w->block_keys : args->keys;
    int64_t end = begin + w->block_keys < args->keys ? begin + w->block_keys : args->keys;
    float *dk = key_sums(w, head, false) + begin * row, *dv = key_sums(w, head, true) + begin * row;
    if (w->phase == 0) {
        memset(dk, 0, (size_t)((end - begin) * row) * sizeof(float));
        memset(dv, 0, (size_t)((end - begin) * row) * sizeof(float));
    }
    int64_t last_tile = (query_block + 1) * w->tiles.count / w->blocks;
    for (int64_t n = query_block * w->tiles.count / w->blocks; n < last_tile; n++) {
        Tile at = tile_of(w, head, n);
        if (at.queries > 0)
            backward_tile(w, s, &at, begin, end);
    }
    if (w->phase == w->blocks - 1) {
        store_rows(w, &args->dk, head, begin, end - begin, args->scale, dk);
        store_rows(w, &args->dv, head, begin, end - begin, 1, dv);
    }
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    Scratch s = scratch_of(w, worker);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++)
        backward_block(w, &s, n / w->blocks, n % w->blocks);
    dsvi_tile_products_end();
}

static DsvStatus backward(DsvStream *stream, const DsvAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check_simd(args, workspace(stream, args)));
    Backward w = plan(args);
    int64_t pairs = args->batch * args->heads;
    plan_blocks(&w);
    for (w.first_pair = 0; w.first_pair < pairs; w.first_pair += w.heads_at_once) {
        int64_t heads = pairs - w.first_pair < w.heads_at_once ? pairs - w.first_pair : w.heads_at_once;
        dsvi_parallel_for(heads * w.tiles.count, 1, pack_range, &w);
        for (w.phase = 0; w.phase < w.blocks; w.phase++)
            dsvi_parallel_for(heads * w.blocks, 1, backward_range, &w);
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_bwd)(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_bwd, backward, workspace, DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_bwd, backward, workspace, DSVI_SIMD_NAME);
}
