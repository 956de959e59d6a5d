/* SIMD variant of the attention backward pass, dense or over lists: five products per pair of tiles (Dao et
 * al. 2022), without atomics and with sums in a fixed order.
 *
 * The keys of a (batch, head) are divided into B blocks, and its query tiles into B blocks too; B depends
 * only on shapes and lists. In phase t, the piece of work for key block n processes query block (n + t) mod
 * B. No two pieces then write to the same rows of dq, dk or dv, and every row is summed phase by phase.
 *
 *     phase 0    queries 0 1 2 3      phase 1    queries 0 1 2 3
 *     keys 0             x            keys 0               x
 *     keys 1               x          keys 1                 x       and so on
 *     keys 2                 x        keys 2                   x
 *     keys 3                   x      keys 3             x
 *
 * The workspace keeps, between the phases of a head, its query tiles, packed once in all forms that the
 * products need, and the sums of dq, dk and dv in F32. The last phase scales these sums, rounds them once and
 * stores them. Heads are processed in batches of as many as fit in HEADS_BYTES, at least one. */
#include <math.h>

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

enum {
    BLOCK_LISTED = 768,     /* average number of keys that a list names in one key block: enough to amortise
                             * reading the packed forms of a query tile */
    BLOCK_LISTED_MIN = 256, /* lower limit of the same average, if key blocks are made smaller to get more
                             * pieces of work */
    PIECES = 8,             /* minimum number of pieces of work per phase */
    BLOCKS_MAX = 64,
    HEADS_BYTES = 256 << 20
};

/* Scratch memory of one worker; shapes count 32-bit words. Fields with an "x" hold pairs of BF16 packed
 * across rows (tile_words.h). With F32 words they are unused, because the rows themselves are the
 * operands. */
typedef struct Scratch {
    float *rows, *transposed; /* (tile_width, row_words or row_width) and (row_words, tile_width); used while
                               * packing */
    float *k, *v;             /* (KEYS, row_words) packed along D */
    float *kx;                /* (KEYS / 2, row_width) */
    float *dk, *dv;           /* (KEYS, row_width) */
    float *p, *ds;            /* (KEYS, tile_width) S^T, then P^T; dP^T, then dS^T; finally packed along
                               * queries */
    float *dsx;               /* (KEYS / 2, tile_width) dS^T */
} Scratch;

/* One tile of queries: Q and dOut in all packed forms, and the sum dQ^T, the gradient of Q. */
typedef struct Queries {
    float *q, *dout;    /* (tile_width, row_words) packed along D */
    float *qx, *doutx;  /* (tile_width / 2, row_width) packed across; with F32 words: q and dout */
    float *qt, *doutt;  /* (row_words, tile_width) Q^T and dOut^T, packed along D */
    float *lse, *delta; /* (tile_width); lse is infinite after the last query, to make p there 0 */
    float *dqt;         /* (row_width, tile_width) dQ^T, F32 */
} Queries;

typedef struct Backward {
    const DsviAttentionArgs *args;
    DsviAttentionTiles tiles;
    int64_t blocks, block_keys;
    int64_t heads_at_once;
    size_t worker_floats, tile_floats, head_floats;
    float *heads, *workers;    /* buffers in the workspace */
    int64_t first_pair, phase; /* first (batch, head) of the current batch of heads, and the current phase */
} Backward;

/* One tile of queries of (b, h). `head` is the index of (b, h) in the current batch of heads. */
typedef struct Tile {
    int64_t b, h, head;
    int64_t number, first, queries;
} Tile;

/* Sets the pointers of `s` to consecutive buffers starting at `base`, and returns the number of floats that
 * they hold together. If `base` is NULL, only computes this number. */
static size_t attention_bwd_scratch_layout(const DsviAttentionTiles *t, float *base, Scratch *s)
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

static size_t queries_layout(const DsviAttentionTiles *t, float *base, Queries *q)
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

static Backward attention_bwd_setup(const DsviAttentionArgs *args)
{
    Scratch s;
    Queries q;
    Backward w = {.args = args, .tiles = dsvi_attention_tiles(args)};
    int64_t pairs = args->batch * args->heads;
    w.worker_floats = attention_bwd_scratch_layout(&w.tiles, NULL, &s);
    w.tile_floats = queries_layout(&w.tiles, NULL, &q);
    w.head_floats = w.tile_floats * (size_t)w.tiles.count + (size_t)(2 * args->keys * w.tiles.row_width);
    w.heads_at_once = w.head_floats > 0 ? (int64_t)(HEADS_BYTES / sizeof(float) / w.head_floats) : pairs;
    w.heads_at_once = w.heads_at_once < 1 ? 1 : w.heads_at_once > pairs ? pairs : w.heads_at_once;
    w.heads = args->workspace;
    w.workers = w.heads ? w.heads + w.head_floats * (size_t)w.heads_at_once : NULL;
    return w;
}

static void choose_blocks(Backward *w)
{
    const DsviLists *lists = w->args->lists;
    int64_t keys = w->args->keys, listed = keys;
    if (lists && dsvi_lists_count(lists) > 0)
        listed = lists->offsets[dsvi_lists_count(lists)] * lists->grain / dsvi_lists_count(lists);
    int64_t for_lists = (listed + BLOCK_LISTED - 1) / BLOCK_LISTED, limit = listed / BLOCK_LISTED_MIN;
    int64_t for_pieces = (PIECES + w->heads_at_once - 1) / (w->heads_at_once > 0 ? w->heads_at_once : 1);
    int64_t finer = for_pieces < limit ? for_pieces : limit;
    w->blocks = finer > for_lists ? finer : for_lists;
    w->blocks = w->blocks < 1 ? 1 : w->blocks > BLOCKS_MAX ? BLOCKS_MAX : w->blocks;
    w->block_keys = (keys + w->blocks - 1) / w->blocks;
}

static size_t cpu_attention_bwd_workspace(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    Backward w = attention_bwd_setup(args);
    return (w.worker_floats * (size_t)dsvi_threads_count() + w.head_floats * (size_t)w.heads_at_once) *
           sizeof(float);
}

static Scratch attention_bwd_scratch_of(const Backward *w, int worker)
{
    Scratch s;
    attention_bwd_scratch_layout(&w->tiles, w->workers + (size_t)worker * w->worker_floats, &s);
    return s;
}

/* Returns tile `number` of head `head` of the current batch of heads. An empty tile has queries == 0. */
static Tile attention_bwd_tile_of(const Backward *w, int64_t head, int64_t number)
{
    int64_t pair = w->first_pair + head;
    Tile at = {.b = pair / w->args->heads, .h = pair % w->args->heads, .head = head, .number = number};
    at.queries = dsvi_tile_queries(&w->tiles, w->args->queries, number, &at.first);
    return at;
}

static Queries queries_of(const Backward *w, const Tile *at)
{
    Queries q;
    queries_layout(&w->tiles,
                   w->heads + (size_t)at->head * w->head_floats + (size_t)at->number * w->tile_floats, &q);
    return q;
}

/* Returns a head's sums of dk or, if `dv`, of dv: (keys, row_width) F32. */
static float *key_sums(const Backward *w, int64_t head, bool dv)
{
    size_t rows = (size_t)(w->args->keys * w->tiles.row_width);
    return w->heads + (size_t)(head + 1) * w->head_floats - (dv ? 1 : 2) * rows;
}

static void load_query_rows(const Backward *w, const DsviHeads *rows, const Tile *at, float *out)
{
    for (int64_t i = 0; i < at->queries; i++)
        dsvi_row_words(&w->tiles, w->args, rows->data, dsvi_heads_at(rows, at->b, at->first + i, at->h),
                       out + i * w->tiles.row_words);
}

/* Computes delta = out . dout of each query, from out^T and dout^T. The order of additions is the same as for
 * dP, so that dP - delta is exactly 0 if one key has all the weight. */
static void compute_delta(const DsviAttentionTiles *t, const float *outt, const Queries *q)
{
    for (int64_t i = 0; i < t->tile_width; i += DSVI_LANES)
        dsvi_vec_store(q->delta + i,
                       dsvi_words_dot(t->pairs, q->doutt + i, outt + i, t->dim_words, t->tile_width));
}

/* Packs Q and dOut of a tile in all forms, computes its lse and delta, and clears its dQ. */
static void pack_tile(const Backward *w, const Scratch *s, const Tile *at)
{
    const DsviAttentionArgs *args = w->args;
    const DsviAttentionTiles *t = &w->tiles;
    const float *lse = (const float *)args->lse + (at->b * args->heads + at->h) * args->queries + at->first;
    Queries q = queries_of(w, at);
    load_query_rows(w, &args->q, at, q.q);
    load_query_rows(w, &args->dout, at, q.dout);
    load_query_rows(w, &args->out, at, s->rows);
    dsvi_rows_transpose(q.q, t->row_words, t->row_words, at->queries, q.qt, t->tile_width);
    dsvi_rows_transpose(q.dout, t->row_words, t->row_words, at->queries, q.doutt, t->tile_width);
    dsvi_rows_transpose(s->rows, t->row_words, t->row_words, at->queries, s->transposed, t->tile_width);
    dsvi_rows_across(t, q.q, at->queries, q.qx);
    dsvi_rows_across(t, q.dout, at->queries, q.doutx);
    compute_delta(t, s->transposed, &q);
    for (int64_t i = 0; i < t->tile_width; i++)
        q.lse[i] = i < at->queries ? lse[i] : INFINITY;
    memset(q.dqt, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
}

static void pack_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    Scratch s = attention_bwd_scratch_of(w, worker);
    for (int64_t n = begin; n < end; n++) {
        Tile at = attention_bwd_tile_of(w, n / w->tiles.count, n % w->tiles.count);
        if (at.queries > 0)
            pack_tile(w, &s, &at);
    }
}

/* Probabilities p and score gradients ds of one key, for one vector of queries. */
typedef struct Gradients {
    DsviVec p, ds;
} Gradients;

static inline Gradients cpu_differentiate(const Scratch *s, int64_t at, DsviVec lse, DsviVec delta)
{
    DsviVec p = dsvi_vec_exp_weight(dsvi_vec_load(s->p + at) - lse);
    return (Gradients){p, p * (dsvi_vec_load(s->ds + at) - delta)};
}

/* Converts in place: s->p from scores to attention probabilities, s->ds from dP to the gradient dS of the
 * scores. */
static void differentiate_floats(const Scratch *s, const Queries *q, int64_t keys, int64_t width,
                                 int64_t stride)
{
    for (int64_t i = 0; i < width; i += DSVI_LANES) {
        DsviVec lse = dsvi_vec_load(q->lse + i), delta = dsvi_vec_load(q->delta + i);
        for (int64_t at = i; at < i + keys * stride; at += stride) {
            Gradients d = cpu_differentiate(s, at, lse, delta);
            dsvi_vec_store(s->p + at, d.p);
            dsvi_vec_store(s->ds + at, d.ds);
        }
    }
}

/* Like differentiate_floats, for operands that are pairs of BF16: p and ds are packed along queries in place,
 * and ds is packed across keys in dsx. Processes two keys and two vectors of queries at a time. The added
 * keys after the last one have ds = 0. */
static void differentiate_pairs(const Scratch *s, const Queries *q, int64_t keys, int64_t width,
                                int64_t stride)
{
    for (int64_t i = 0; i < width; i += 2 * DSVI_LANES) {
        DsviVec lse[2], delta[2];
        for (int n = 0; n < 2; n++) {
            lse[n] = dsvi_vec_load(q->lse + i + n * DSVI_LANES);
            delta[n] = dsvi_vec_load(q->delta + i + n * DSVI_LANES);
        }
        for (int64_t j = 0; j < keys; j += 2) {
            Gradients d[2][2];
            for (int key = 0; key < 2; key++) {
                int64_t at = (j + key) * stride + i;
                for (int n = 0; n < 2; n++)
                    d[key][n] = j + key < keys ? cpu_differentiate(s, at + n * DSVI_LANES, lse[n], delta[n])
                                               : (Gradients){dsvi_vec_all(0), dsvi_vec_all(0)};
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

/* Computes the five products of the backward pass for one query tile and `count` keys. Adds the resulting
 * gradients to the sums of dQ of the tile, and of dk and dv of these keys. */
static void attention_bwd_pass_keys(const Backward *w, const Scratch *s, const Tile *at, const Queries *q,
                                    const int32_t *keys, int64_t count)
{
    const DsviAttentionArgs *args = w->args;
    const DsviAttentionTiles *t = &w->tiles;
    int64_t tile = t->tile_width, words = t->row_words, row = t->row_width;
    int64_t width = dsvi_tile_width(t, at->queries), padded = dsvi_round_up(count, dsvi_rows_unit(t->pairs));
    int64_t key_words = dsvi_words(t->pairs, count), query_words = dsvi_words(t->pairs, at->queries);
    dsvi_rows_gather(t, args, &args->k, at->b * args->heads + at->h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, at->b * args->heads + at->h, keys, count, s->v);
    const float *kx = dsvi_rows_across(t, s->k, count, s->kx), *dsx = t->pairs ? s->dsx : s->ds;
    DsviTileProduct scores = {.m = padded,
                              .n = width,
                              .k = t->dim_words,
                              .a = s->k,
                              .a_row = words,
                              .a_col = 1,
                              .b = q->qt,
                              .ldb = tile,
                              .c = s->p,
                              .ldc = tile,
                              .factor = (float)args->scale,
                              .pairs = t->pairs};
    DsviTileProduct dp = {.m = padded,
                          .n = width,
                          .k = t->dim_words,
                          .a = s->v,
                          .a_row = words,
                          .a_col = 1,
                          .b = q->doutt,
                          .ldb = tile,
                          .c = s->ds,
                          .ldc = tile,
                          .factor = 1,
                          .pairs = t->pairs};
    DsviTileProduct dv = {.m = padded,
                          .n = row,
                          .k = query_words,
                          .a = s->p,
                          .a_row = tile,
                          .a_col = 1,
                          .b = q->doutx,
                          .ldb = row,
                          .c = s->dv,
                          .ldc = row,
                          .factor = 1,
                          .pairs = t->pairs};
    DsviTileProduct dk = {.m = padded,
                          .n = row,
                          .k = query_words,
                          .a = s->ds,
                          .a_row = tile,
                          .a_col = 1,
                          .b = q->qx,
                          .ldb = row,
                          .c = s->dk,
                          .ldc = row,
                          .factor = 1,
                          .pairs = t->pairs};
    DsviTileProduct dq = {.m = row,
                          .n = width,
                          .k = key_words,
                          .a = kx,
                          .a_row = 1,
                          .a_col = row,
                          .b = dsx,
                          .ldb = tile,
                          .c = q->dqt,
                          .ldc = tile,
                          .add = true,
                          .pairs = t->pairs};
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

/* Returns how many keys of the list are smaller than `key`. */
static int64_t keys_below(const DsviList *list, int64_t key)
{
    int64_t low = 0, high = list->count; /* the first span that ends after `key` is in [low, high] */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (((int64_t)list->spans[middle] + 1) * list->grain > key)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == list->count)
        return dsvi_list_length(list);
    int64_t begin = (int64_t)list->spans[low] * list->grain;
    return low * list->grain + (key > begin ? key - begin : 0);
}

/* Scales, rounds and stores rows [first, first + count) of a gradient of a head from their F32 sums. */
static void store_rows(const Backward *w, const DsviHeads *rows, int64_t head, int64_t first, int64_t count,
                       double factor, const float *sums)
{
    const DsviAttentionArgs *args = w->args;
    int64_t pair = w->first_pair + head, b = pair / args->heads, h = pair % args->heads;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_store(args->act, rows->data, dsvi_heads_at(rows, b, first + i, h), args->head_dim,
                       sums + i * w->tiles.row_width, (float)factor);
}

/* Adds the contributions of keys [begin, end) to dq of the tile, and the tile's contributions to dk and dv of
 * these keys. */
static void attention_bwd_tile(const Backward *w, const Scratch *s, const Tile *at, int64_t begin,
                               int64_t end)
{
    const DsviAttentionArgs *args = w->args;
    const DsviAttentionTiles *t = &w->tiles;
    Queries q = queries_of(w, at);
    DsviList list = dsvi_list_of(args->lists, args->keys, at->b, at->h, at->first);
    int64_t to = keys_below(&list, end);
    for (int64_t from = keys_below(&list, begin), next, after; from < to; from = next) {
        int32_t keys[DSVI_TILE_KEYS];
        next = from + DSVI_TILE_KEYS < to ? from + DSVI_TILE_KEYS : to;
        after = next + DSVI_TILE_KEYS < to ? next + DSVI_TILE_KEYS : to;
        dsvi_tile_keys(&list, from, next, keys);
        dsvi_keys_prefetch(args, at->b, at->h, &list, next, after);
        attention_bwd_pass_keys(w, s, at, &q, keys, next - from);
    }
    if (w->phase < w->blocks - 1)
        return;
    dsvi_rows_transpose(q.dqt, t->tile_width, dsvi_tile_width(t, at->queries), t->row_width, s->rows,
                        t->row_width);
    store_rows(w, &args->dq, at->head, at->first, at->queries, args->scale, s->rows);
}

/* Processes key block `block` of a head with the query block that is paired with this key block in the
 * current phase. */
static void attention_bwd_block(const Backward *w, const Scratch *s, int64_t head, int64_t block)
{
    const DsviAttentionArgs *args = w->args;
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
        Tile at = attention_bwd_tile_of(w, head, n);
        if (at.queries > 0)
            attention_bwd_tile(w, s, &at, begin, end);
    }
    if (w->phase == w->blocks - 1) {
        store_rows(w, &args->dk, head, begin, end - begin, args->scale, dk);
        store_rows(w, &args->dv, head, begin, end - begin, 1, dv);
    }
}

static void attention_bwd_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    Scratch s = attention_bwd_scratch_of(w, worker);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++)
        attention_bwd_block(w, &s, n / w->blocks, n % w->blocks);
    dsvi_tile_products_end();
}

static DsvStatus cpu_attention_bwd(DsviStream *stream, const DsviAttentionArgs *args)
{
    DSVI_TRY(dsvi_attention_check_simd(args, cpu_attention_bwd_workspace(stream, args)));
    Backward w = attention_bwd_setup(args);
    int64_t pairs = args->batch * args->heads;
    choose_blocks(&w);
    for (w.first_pair = 0; w.first_pair < pairs; w.first_pair += w.heads_at_once) {
        int64_t heads = pairs - w.first_pair < w.heads_at_once ? pairs - w.first_pair : w.heads_at_once;
        dsvi_parallel_for(heads * w.tiles.count, 1, pack_range, &w);
        for (w.phase = 0; w.phase < w.blocks; w.phase++)
            dsvi_parallel_for(heads * w.blocks, 1, attention_bwd_range, &w);
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_bwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_bwd, cpu_attention_bwd, cpu_attention_bwd_workspace,
                                DSVI_SIMD_NAME);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_list_bwd, cpu_attention_bwd, cpu_attention_bwd_workspace,
                                DSVI_SIMD_NAME);
}
