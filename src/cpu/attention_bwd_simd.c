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
 * Sums are kept in F32 in the workspace, for as many heads at a time as HEADS_BYTES holds (one at
 * least), and leave it, scaled and rounded once, in the last phase. */
#include <math.h>

#include "base/threads.h"
#include "cpu/attention_tile.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/tile_product.h"

enum {
    BLOCK_LISTED = 384, /* keys of a block in a list, on average: pays for packing the queries each phase */
    MOST_BLOCKS = 64,
    HEADS_BYTES = 256 << 20
};

/* Scratch of one worker, in floats. "x": words across, where these are other than the rows themselves. */
typedef struct Scratch {
    float *q, *dout;       /* (tile_width, row_words) along D */
    float *qt, *doutt;     /* (row_words, tile_width) Q^T, dOut^T, along D */
    float *qx, *doutx;     /* (tile_width / 2, row_width) */
    float *lse, *delta;    /* (tile_width); lse is infinite beyond the last query */
    float *dqt;            /* (row_width, tile_width) dQ^T */
    float *dq;             /* (tile_width, row_width) Out on entry, dQ in the end */
    float *k, *v;          /* (KEYS, row_words) along D */
    float *kx;             /* (KEYS / 2, row_width) */
    float *dk, *dv;        /* (KEYS, row_width) */
    float *p, *ds;         /* (KEYS, tile_width) S^T then P^T; dP^T then dS^T; in the end along queries */
    float *dsx;            /* (KEYS / 2, tile_width) dS^T */
} Scratch;

typedef struct Backward {
    const DsvAttentionArgs *args;
    DsvAttentionTiles tiles;
    int64_t blocks, block_keys;
    int64_t heads_at_once;
    size_t worker_floats, head_floats;
    int64_t first_pair, phase; /* of the pieces at work */
} Backward;

/* The F32 sums of one (batch, head). */
typedef struct Sums {
    float *dq, *dk, *dv; /* (queries or keys, row_width) */
} Sums;

/* What is at work: one tile of queries against keys of one block. */
typedef struct Tile {
    int64_t b, h;
    int64_t first, queries;
} Tile;

/* Lays the pieces out from `base` on (NULL: only counts) and gives their floats. */
static size_t lay_scratch(const DsvAttentionTiles *t, float *base, Scratch *s)
{
    size_t used = 0;
    int64_t query_rows = t->tile_width * t->row_width, query_words = t->tile_width * t->row_words;
    int64_t scores = DSVI_TILE_KEYS * t->tile_width, across = t->pairs ? 1 : 0;
    s->q = dsvi_take_floats(base, &used, query_words);
    s->dout = dsvi_take_floats(base, &used, query_words);
    s->qt = dsvi_take_floats(base, &used, query_words);
    s->doutt = dsvi_take_floats(base, &used, query_words);
    s->qx = dsvi_take_floats(base, &used, across * query_rows / 2);
    s->doutx = dsvi_take_floats(base, &used, across * query_rows / 2);
    s->lse = dsvi_take_floats(base, &used, t->tile_width);
    s->delta = dsvi_take_floats(base, &used, t->tile_width);
    s->dqt = dsvi_take_floats(base, &used, query_rows);
    s->dq = dsvi_take_floats(base, &used, query_rows > query_words ? query_rows : query_words);
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

static Backward plan(const DsvAttentionArgs *args)
{
    Scratch s;
    Backward w = {.args = args, .tiles = dsvi_attention_tiles(args)};
    int64_t pairs = args->batch * args->heads;
    w.worker_floats = lay_scratch(&w.tiles, NULL, &s);
    w.head_floats = (size_t)((args->queries + 2 * args->keys) * w.tiles.row_width);
    w.heads_at_once = w.head_floats > 0 ? (int64_t)(HEADS_BYTES / sizeof(float) / w.head_floats) : pairs;
    w.heads_at_once = w.heads_at_once < 1 ? 1 : w.heads_at_once > pairs ? pairs : w.heads_at_once;
    return w;
}

static void plan_blocks(Backward *w)
{
    const DsvLists *lists = w->args->lists;
    int64_t keys = w->args->keys, listed = keys;
    if (lists && dsvi_lists_count(lists) > 0)
        listed = lists->offsets[dsvi_lists_count(lists)] * lists->grain / dsvi_lists_count(lists);
    w->blocks = (listed + BLOCK_LISTED - 1) / BLOCK_LISTED;
    w->blocks = w->blocks < 1 ? 1 : w->blocks > MOST_BLOCKS ? MOST_BLOCKS : w->blocks;
    w->block_keys = (keys + w->blocks - 1) / w->blocks;
}

static size_t workspace(const DsvAttentionArgs *args)
{
    Backward w = plan(args);
    return (w.worker_floats * (size_t)dsvi_threads_count() + w.head_floats * (size_t)w.heads_at_once) *
           sizeof(float);
}

/* delta = out . dout per query, where dout^T and the rows of out (in the room of dq) are packed. The sum runs
 * over the words of D one by one, as that of dP does: where one key has all the weight, dP - delta is 0 to the
 * bit. */
static void find_delta(const DsvAttentionTiles *t, const Scratch *s, int64_t queries)
{
    memset(s->delta, 0, (size_t)t->tile_width * sizeof(float));
    for (int64_t from = 0; from < t->dim_words; from += DSVI_TILE_KEYS) {
        int64_t left = t->row_words - from, columns = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        const float *doutt = s->doutt + from * t->tile_width;
        dsvi_rows_transpose(s->dq + from, t->row_words, columns, queries, s->ds, t->tile_width);
        for (int64_t i = 0; i < t->tile_width; i += DSVI_LANES) {
            DsvVec sum = dsvi_vec_load(s->delta + i);
            for (int64_t at = i; at < i + columns * t->tile_width; at += t->tile_width)
                sum = dsvi_words_add(t->pairs, sum, dsvi_vec_load(doutt + at), dsvi_vec_load(s->ds + at));
            dsvi_vec_store(s->delta + i, sum);
        }
    }
}

static void load_rows(const Backward *w, const DsvHeads *rows, const Tile *at, float *out)
{
    for (int64_t i = 0; i < at->queries; i++)
        dsvi_row_words(&w->tiles, w->args, rows->data, dsvi_heads_at(rows, at->b, at->first + i, at->h),
                      out + i * w->tiles.row_words);
}

/* The tile's queries as the five products want them. */
typedef struct Queries {
    const float *qx, *doutx;
} Queries;

/* Packs Q and dOut in all forms, lse and delta of the tile. */
static Queries load_queries(const Backward *w, const Scratch *s, const Tile *at)
{
    const DsvAttentionArgs *args = w->args;
    const DsvAttentionTiles *t = &w->tiles;
    const float *lse = (const float *)args->lse + (at->b * args->heads + at->h) * args->queries + at->first;
    load_rows(w, &args->q, at, s->q);
    load_rows(w, &args->dout, at, s->dout);
    load_rows(w, &args->out, at, s->dq);
    dsvi_rows_transpose(s->q, t->row_words, t->row_words, at->queries, s->qt, t->tile_width);
    dsvi_rows_transpose(s->dout, t->row_words, t->row_words, at->queries, s->doutt, t->tile_width);
    find_delta(t, s, at->queries);
    for (int64_t i = 0; i < t->tile_width; i++)
        s->lse[i] = i < at->queries ? lse[i] : INFINITY;
    memset(s->dqt, 0, (size_t)(t->row_width * t->tile_width) * sizeof(float));
    return (Queries){dsvi_rows_across(t, s->q, at->queries, s->qx),
                     dsvi_rows_across(t, s->dout, at->queries, s->doutx)};
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
static void differentiate_floats(const Scratch *s, int64_t keys, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < width; i += DSVI_LANES) {
        DsvVec lse = dsvi_vec_load(s->lse + i), delta = dsvi_vec_load(s->delta + i);
        for (int64_t at = i; at < i + keys * stride; at += stride) {
            Difference d = differentiate(s, at, lse, delta);
            dsvi_vec_store(s->p + at, d.p);
            dsvi_vec_store(s->ds + at, d.ds);
        }
    }
}

/* The same with pairs: p and ds along queries in place, ds across keys in dsx. Two keys and two vectors of
 * queries at a time; keys beyond the last have ds = 0. */
static void differentiate_pairs(const Scratch *s, int64_t keys, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < width; i += 2 * DSVI_LANES) {
        DsvVec lse[2], delta[2];
        for (int n = 0; n < 2; n++) {
            lse[n] = dsvi_vec_load(s->lse + i + n * DSVI_LANES);
            delta[n] = dsvi_vec_load(s->delta + i + n * DSVI_LANES);
        }
        for (int64_t j = 0; j < keys; j += 2) {
            Difference d[2][2];
            for (int key = 0; key < 2; key++)
                for (int n = 0; n < 2; n++)
                    d[key][n] = j + key < keys
                                    ? differentiate(s, (j + key) * stride + i + n * DSVI_LANES, lse[n], delta[n])
                                    : (Difference){dsvi_vec_all(0), dsvi_vec_all(0)};
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

/* The five products for `count` keys, and their dk and dv into the sums. */
static void pass_keys(const Backward *w, const Scratch *s, const Tile *at, const Queries *queries,
                      const int32_t *keys, int64_t count, const Sums *sums)
{
    const DsvAttentionArgs *args = w->args;
    const DsvAttentionTiles *t = &w->tiles;
    int64_t tile = t->tile_width, words = t->row_words, row = t->row_width;
    int64_t width = dsvi_tile_width(t, at->queries), padded = dsvi_round_up(count, DSVI_ROWS_UNIT);
    int64_t key_words = dsvi_words(t->pairs, count), query_words = dsvi_words(t->pairs, at->queries);
    dsvi_rows_gather(t, args, &args->k, at->b, at->h, keys, count, s->k);
    dsvi_rows_gather(t, args, &args->v, at->b, at->h, keys, count, s->v);
    const float *kx = dsvi_rows_across(t, s->k, count, s->kx), *dsx = t->pairs ? s->dsx : s->ds;
    DsvTileProduct scores = {.m = padded, .n = width, .k = t->dim_words, .a = s->k, .a_row = words,
                             .a_col = 1, .b = s->qt, .ldb = tile, .c = s->p, .ldc = tile,
                             .factor = (float)args->scale, .pairs = t->pairs};
    DsvTileProduct dp = {.m = padded, .n = width, .k = t->dim_words, .a = s->v, .a_row = words, .a_col = 1,
                         .b = s->doutt, .ldb = tile, .c = s->ds, .ldc = tile, .factor = 1,
                         .pairs = t->pairs};
    DsvTileProduct dv = {.m = padded, .n = row, .k = query_words, .a = s->p, .a_row = tile, .a_col = 1,
                         .b = queries->doutx, .ldb = row, .c = s->dv, .ldc = row, .factor = 1,
                         .pairs = t->pairs};
    DsvTileProduct dk = {.m = padded, .n = row, .k = query_words, .a = s->ds, .a_row = tile, .a_col = 1,
                         .b = queries->qx, .ldb = row, .c = s->dk, .ldc = row, .factor = 1,
                         .pairs = t->pairs};
    DsvTileProduct dq = {.m = row, .n = width, .k = key_words, .a = kx, .a_row = 1, .a_col = row,
                         .b = dsx, .ldb = tile, .c = s->dqt, .ldc = tile, .add = true, .pairs = t->pairs};
    dsvi_tile_product(&scores);
    dsvi_tile_product(&dp);
    if (t->pairs)
        differentiate_pairs(s, count, width, tile);
    else
        differentiate_floats(s, count, width, tile);
    dsvi_tile_product(&dv);
    dsvi_tile_product(&dk);
    dsvi_tile_product(&dq);
    scatter_add(s->dv, keys, count, row, sums->dv);
    scatter_add(s->dk, keys, count, row, sums->dk);
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

static void store_rows(const DsvAttentionArgs *args, const DsvHeads *rows, const Tile *at, double factor,
                       const float *sums, int64_t width)
{
    for (int64_t i = 0; i < at->queries; i++)
        dsvi_row_store(args->act, rows->data, dsvi_heads_at(rows, at->b, at->first + i, at->h),
                       args->head_dim, sums + (at->first + i) * width, (float)factor);
}

/* Adds to dq of the tile what comes from keys [begin, end), and to dk and dv of these keys. */
static void backward_tile(const Backward *w, const Scratch *s, const Tile *at, int64_t begin, int64_t end,
                          const Sums *sums)
{
    const DsvAttentionArgs *args = w->args;
    int64_t row = w->tiles.row_width;
    DsvList list = dsvi_list_of(args->lists, args->keys, at->b, at->h, at->first);
    int64_t from = keys_below(&list, begin), to = keys_below(&list, end);
    float *dq = sums->dq + at->first * row;
    if (w->phase == 0)
        memset(dq, 0, (size_t)(at->queries * row) * sizeof *dq);
    if (from < to) {
        Queries queries = load_queries(w, s, at);
        for (; from < to; from += DSVI_TILE_KEYS) {
            int32_t keys[DSVI_TILE_KEYS];
            int64_t next = from + DSVI_TILE_KEYS < to ? from + DSVI_TILE_KEYS : to;
            int64_t after = next + DSVI_TILE_KEYS < to ? next + DSVI_TILE_KEYS : to;
            dsvi_tile_keys(&list, from, next, keys);
            dsvi_rows_prefetch(args, &args->k, at->b, at->h, &list, next, after);
            dsvi_rows_prefetch(args, &args->v, at->b, at->h, &list, next, after);
            pass_keys(w, s, at, &queries, keys, next - from, sums);
        }
        dsvi_rows_transpose(s->dqt, w->tiles.tile_width, dsvi_tile_width(&w->tiles, at->queries), row, s->dq, row);
        for (int64_t i = 0; i < at->queries * row; i++)
            dq[i] += s->dq[i];
    }
    if (w->phase == w->blocks - 1)
        store_rows(args, &args->dq, at, args->scale, sums->dq, row);
}

/* Key block `block` of a (batch, head) against the query tiles that it owns in this phase. */
static void backward_block(const Backward *w, const Scratch *s, int64_t pair, int64_t block, const Sums *sums)
{
    const DsvAttentionArgs *args = w->args;
    int64_t row = w->tiles.row_width, query_block = (block + w->phase) % w->blocks;
    int64_t begin = block * w->block_keys < args->keys ? block * w->block_keys : args->keys;
    int64_t end = begin + w->block_keys < args->keys ? begin + w->block_keys : args->keys;
    Tile at = {.b = pair / args->heads, .h = pair % args->heads};
    if (w->phase == 0) {
        memset(sums->dk + begin * row, 0, (size_t)((end - begin) * row) * sizeof(float));
        memset(sums->dv + begin * row, 0, (size_t)((end - begin) * row) * sizeof(float));
    }
    int64_t last_tile = (query_block + 1) * w->tiles.count / w->blocks;
    for (int64_t n = query_block * w->tiles.count / w->blocks; n < last_tile; n++) {
        at.queries = dsvi_tile_queries(&w->tiles, args->queries, n, &at.first);
        if (at.queries > 0)
            backward_tile(w, s, &at, begin, end, sums);
    }
    if (w->phase == w->blocks - 1) {
        Tile keys = {.b = at.b, .h = at.h, .first = begin, .queries = end - begin};
        store_rows(args, &args->dk, &keys, args->scale, sums->dk, row);
        store_rows(args, &args->dv, &keys, 1, sums->dv, row);
    }
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    const DsvAttentionArgs *args = w->args;
    Scratch s;
    float *heads = args->workspace;
    float *workers = heads + w->head_floats * (size_t)w->heads_at_once;
    lay_scratch(&w->tiles, workers + (size_t)worker * w->worker_floats, &s);
    for (int64_t n = begin; n < end; n++) {
        int64_t head = n / w->blocks;
        Sums sums = {.dq = heads + w->head_floats * (size_t)head};
        sums.dk = sums.dq + args->queries * w->tiles.row_width;
        sums.dv = sums.dk + args->keys * w->tiles.row_width;
        backward_block(w, &s, w->first_pair + head, n % w->blocks, &sums);
    }
}

static DsvStatus backward(DsvStream *stream, const DsvAttentionArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_attention_check_simd(args, workspace(args)));
    Backward w = plan(args);
    int64_t pairs = args->batch * args->heads;
    plan_blocks(&w);
    for (w.first_pair = 0; w.first_pair < pairs; w.first_pair += w.heads_at_once) {
        int64_t heads = pairs - w.first_pair < w.heads_at_once ? pairs - w.first_pair : w.heads_at_once;
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
