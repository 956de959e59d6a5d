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
#include "base/threads.h"
#include "cpu/attention_backward.h"
#include "cpu/simd_fill.h"

enum {
    BLOCK_LISTED = 768,     /* average number of keys that a list names in one key block: enough to amortise
                             * reading the packed forms of a query tile */
    BLOCK_LISTED_MIN = 256, /* lower limit of the same average, if key blocks are made smaller to get more
                             * pieces of work */
    PIECES = 8,             /* minimum number of pieces of work per phase */
    BLOCKS_MAX = 64,
    HEADS_BYTES = 256 << 20
};

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

static Backward attention_bwd_setup(const DsviAttentionArgs *args)
{
    DsviBackwardScratch s;
    DsviBackwardQueries q;
    Backward w = {.args = args, .tiles = dsvi_attention_tiles(args)};
    int64_t pairs = args->batch * args->heads;
    w.worker_floats = dsvi_backward_scratch(&w.tiles, NULL, &s);
    w.tile_floats = dsvi_backward_queries(&w.tiles, NULL, &q);
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

static DsviBackwardScratch attention_bwd_scratch_of(const Backward *w, int worker)
{
    DsviBackwardScratch s;
    dsvi_backward_scratch(&w->tiles, w->workers + (size_t)worker * w->worker_floats, &s);
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

static DsviBackwardQueries queries_of(const Backward *w, const Tile *at)
{
    DsviBackwardQueries q;
    dsvi_backward_queries(
        &w->tiles, w->heads + (size_t)at->head * w->head_floats + (size_t)at->number * w->tile_floats, &q);
    return q;
}

/* Returns a head's sums of dk or, if `dv`, of dv: (keys, row_width) F32. */
static float *key_sums(const Backward *w, int64_t head, bool dv)
{
    size_t rows = (size_t)(w->args->keys * w->tiles.row_width);
    return w->heads + (size_t)(head + 1) * w->head_floats - (dv ? 1 : 2) * rows;
}

/* Packs tiles of queries and computes their delta. */
static void pack_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Backward *w = context;
    DsviBackwardScratch s = attention_bwd_scratch_of(w, worker);
    for (int64_t n = begin; n < end; n++) {
        Tile at = attention_bwd_tile_of(w, n / w->tiles.count, n % w->tiles.count);
        if (at.queries == 0)
            continue;
        DsviBackwardQueries q = queries_of(w, &at);
        int64_t pair = w->first_pair + at.head;
        dsvi_backward_pack(&w->tiles, w->args, pair, at.first, at.queries, &q);
        dsvi_backward_delta(&w->tiles, w->args, &s, pair, at.first, at.queries, &q);
    }
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
static void attention_bwd_tile(const Backward *w, const DsviBackwardScratch *s, const Tile *at, int64_t begin,
                               int64_t end)
{
    const DsviAttentionArgs *args = w->args;
    const DsviAttentionTiles *t = &w->tiles;
    DsviBackwardQueries q = queries_of(w, at);
    DsviList list = dsvi_list_of(args->lists, args->keys, at->b, at->h, at->first);
    DsviBackwardPass pass = {.args = args,
                             .tiles = t,
                             .scratch = s,
                             .q = &q,
                             .pair = w->first_pair + at->head,
                             .queries = at->queries,
                             .dk = key_sums(w, at->head, false),
                             .dv = key_sums(w, at->head, true)};
    int64_t to = keys_below(&list, end);
    for (int64_t from = keys_below(&list, begin), next, after; from < to; from = next) {
        int32_t keys[DSVI_TILE_KEYS];
        next = from + DSVI_TILE_KEYS < to ? from + DSVI_TILE_KEYS : to;
        after = next + DSVI_TILE_KEYS < to ? next + DSVI_TILE_KEYS : to;
        dsvi_tile_keys(&list, from, next, keys);
        dsvi_keys_prefetch(args, at->b, at->h, &list, next, after);
        pass.keys = keys;
        pass.count = next - from;
        dsvi_backward_scores(&pass);
        dsvi_backward_gradients(&pass);
    }
    if (w->phase < w->blocks - 1)
        return;
    dsvi_rows_transpose(q.dqt, t->tile_width, dsvi_tile_width(t, at->queries), t->row_width, s->rows,
                        t->row_width);
    store_rows(w, &args->dq, at->head, at->first, at->queries, args->scale, s->rows);
}

/* Processes key block `block` of a head with the query block that is paired with this key block in the
 * current phase. */
static void attention_bwd_block(const Backward *w, const DsviBackwardScratch *s, int64_t head, int64_t block)
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
    DsviBackwardScratch s = attention_bwd_scratch_of(w, worker);
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
