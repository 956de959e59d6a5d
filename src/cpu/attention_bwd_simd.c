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

/* Scratch of one worker, in floats. */
typedef struct Scratch {
    float *q, *dout;       /* (tile, row_width) */
    float *qt, *doutt;     /* (row_width, tile_width) Q^T, dOut^T */
    float *lse, *delta;    /* (tile_width); lse is infinite beyond the last query */
    float *dq;             /* (tile_width, row_width) */
    float *k, *v, *dk, *dv; /* (KEYS, row_width) */
    float *p, *ds;         /* (KEYS, tile_width) S^T then P^T; dP^T then dS^T */
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
    int64_t query_rows = t->tile_width * t->row_width, key_rows = DSVI_TILE_KEYS * t->row_width;
    int64_t scores = DSVI_TILE_KEYS * t->tile_width;
    s->q = dsvi_take_floats(base, &used, query_rows);
    s->dout = dsvi_take_floats(base, &used, query_rows);
    s->qt = dsvi_take_floats(base, &used, query_rows);
    s->doutt = dsvi_take_floats(base, &used, query_rows);
    s->lse = dsvi_take_floats(base, &used, t->tile_width);
    s->delta = dsvi_take_floats(base, &used, t->tile_width);
    s->dq = dsvi_take_floats(base, &used, query_rows);
    s->k = dsvi_take_floats(base, &used, key_rows);
    s->v = dsvi_take_floats(base, &used, key_rows);
    s->dk = dsvi_take_floats(base, &used, key_rows);
    s->dv = dsvi_take_floats(base, &used, key_rows);
    s->p = dsvi_take_floats(base, &used, scores);
    s->ds = dsvi_take_floats(base, &used, scores);
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
 * over d one by one, as that of dP does: where one key has all the weight, dP - delta is 0 to the bit. */
static void find_delta(const DsvAttentionTiles *t, const Scratch *s, int64_t queries)
{
    memset(s->delta, 0, (size_t)t->tile_width * sizeof(float));
    for (int64_t from = 0; from < t->row_width; from += DSVI_TILE_KEYS) {
        int64_t left = t->row_width - from, columns = left < DSVI_TILE_KEYS ? left : (int64_t)DSVI_TILE_KEYS;
        const float *doutt = s->doutt + from * t->tile_width;
        dsvi_rows_transpose(s->dq + from, t->row_width, columns, queries, s->ds, t->tile_width);
        for (int64_t i = 0; i < t->tile_width; i += DSVI_LANES) {
            DsvVec sum = dsvi_vec_load(s->delta + i);
            for (int64_t at = i; at < i + columns * t->tile_width; at += t->tile_width)
                sum += dsvi_vec_load(doutt + at) * dsvi_vec_load(s->ds + at);
            dsvi_vec_store(s->delta + i, sum);
        }
    }
}

static void load_rows(const DsvAttentionArgs *args, const DsvHeads *rows, const Tile *at, int64_t width,
                      float *out)
{
    for (int64_t i = 0; i < at->queries; i++)
        dsvi_row_load(args->act, rows->data, dsvi_heads_at(rows, at->b, at->first + i, at->h), args->head_dim,
                      width, out + i * width);
}

/* Packs Q, Q^T, dOut, dOut^T, lse and delta of the tile. */
static void load_queries(const Backward *w, const Scratch *s, const Tile *at)
{
    const DsvAttentionArgs *args = w->args;
    int64_t row = w->tiles.row_width, tile = w->tiles.tile_width;
    const float *lse = (const float *)args->lse + (at->b * args->heads + at->h) * args->queries + at->first;
    load_rows(args, &args->q, at, row, s->q);
    load_rows(args, &args->dout, at, row, s->dout);
    load_rows(args, &args->out, at, row, s->dq);
    dsvi_rows_transpose(s->q, row, row, at->queries, s->qt, tile);
    dsvi_rows_transpose(s->dout, row, row, at->queries, s->doutt, tile);
    find_delta(&w->tiles, s, at->queries);
    for (int64_t i = 0; i < tile; i++)
        s->lse[i] = i < at->queries ? lse[i] : INFINITY;
    memset(s->dq, 0, (size_t)(tile * row) * sizeof(float));
}

/* p: scores to probabilities; ds: dP to dS. */
static void differentiate(const Scratch *s, int64_t keys, int64_t width, int64_t stride)
{
    for (int64_t i = 0; i < width; i += DSVI_LANES) {
        DsvVec lse = dsvi_vec_load(s->lse + i), delta = dsvi_vec_load(s->delta + i);
        for (int64_t at = i; at < i + keys * stride; at += stride) {
            DsvVec p = dsvi_vec_exp(dsvi_vec_load(s->p + at) - lse);
            dsvi_vec_store(s->p + at, p);
            dsvi_vec_store(s->ds + at, p * (dsvi_vec_load(s->ds + at) - delta));
        }
    }
}

static void scatter_add(const float *rows, const int32_t *keys, int64_t count, int64_t width, float *sums)
{
    for (int64_t j = 0; j < count; j++)
        for (int64_t d = 0; d < width; d++)
            sums[keys[j] * width + d] += rows[j * width + d];
}

/* The five products for `count` keys, and their dk and dv into the sums. */
static void pass_keys(const Backward *w, const Scratch *s, const Tile *at, const int32_t *keys, int64_t count,
                      const Sums *sums)
{
    const DsvAttentionArgs *args = w->args;
    int64_t dim = args->head_dim, tile = w->tiles.tile_width, row = w->tiles.row_width;
    int64_t width = dsvi_round_up(at->queries, DSVI_LANES), padded = dsvi_round_up(count, DSVI_TILE_ROWS);
    dsvi_rows_gather(args->act, &args->k, at->b, at->h, keys, count, dim, row, s->k);
    dsvi_rows_gather(args->act, &args->v, at->b, at->h, keys, count, dim, row, s->v);
    DsvTileProduct scores = {.m = padded, .n = width, .k = dim, .a = s->k, .a_row = row, .a_col = 1,
                             .b = s->qt, .ldb = tile, .c = s->p, .ldc = tile, .factor = (float)args->scale};
    DsvTileProduct dp = {.m = padded, .n = width, .k = dim, .a = s->v, .a_row = row, .a_col = 1,
                         .b = s->doutt, .ldb = tile, .c = s->ds, .ldc = tile, .factor = 1};
    DsvTileProduct dv = {.m = padded, .n = row, .k = at->queries, .a = s->p, .a_row = tile, .a_col = 1,
                         .b = s->dout, .ldb = row, .c = s->dv, .ldc = row, .factor = 1};
    DsvTileProduct dk = {.m = padded, .n = row, .k = at->queries, .a = s->ds, .a_row = tile, .a_col = 1,
                         .b = s->q, .ldb = row, .c = s->dk, .ldc = row, .factor = 1};
    DsvTileProduct dq = {.m = width, .n = row, .k = count, .a = s->ds, .a_row = 1, .a_col = tile,
                         .b = s->k, .ldb = row, .c = s->dq, .ldc = row, .factor = 1, .add = true};
    dsvi_tile_product(&scores);
    dsvi_tile_product(&dp);
    differentiate(s, count, width, tile);
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
        load_queries(w, s, at);
        for (; from < to; from += DSVI_TILE_KEYS) {
            int32_t keys[DSVI_TILE_KEYS];
            int64_t next = from + DSVI_TILE_KEYS < to ? from + DSVI_TILE_KEYS : to;
            dsvi_tile_keys(&list, from, next, keys);
            pass_keys(w, s, at, keys, next - from, sums);
        }
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
