/* SIMD variant of the backward pass of attention_tail: means and the proxies' gradients G_c and D_c, then the
 * backward pass of attention of proxies to mean keys with the products of attention_backward.h.
 *
 * The runs of a head are divided into blocks. A piece of work is a block with all tiles of proxies: its sums
 * of dK and dV are complete at its end, and are spread over the keys. Each block has its own sums of dQ^T,
 * which are added in the order of the blocks afterwards. The division depends only on shapes, so results do
 * not depend on the number of threads. Heads are processed in batches of as many as fit in TAIL_HEADS_BYTES,
 * at least one. */
#include "base/threads.h"
#include "cpu/attention_backward.h"
#include "cpu/attention_tail_dense.h"
#include "cpu/simd_fill.h"

enum {
    BLOCK_RUNS = 768,     /* runs of a block: enough to amortise reading the packed tiles of proxies */
    BLOCK_RUNS_MIN = 256, /* lower limit, if blocks are made smaller to get more pieces of work */
    TAIL_PIECES = 8,      /* minimum number of pieces of work, so that all threads have some */
    TAIL_BLOCKS_MAX = 64,
    DELTA_QUERIES = 64, /* queries whose delta is computed at a time */
    TAIL_HEADS_BYTES = 256 << 20
};

/* Scratch memory of one worker. */
typedef struct TailScratch {
    DsviBackwardScratch tile;
    float *dk, *dv;      /* (block_runs, row_width) sums of a block */
    float *rows;         /* (DELTA_QUERIES, row_words) */
    float *outt, *doutt; /* (row_words, DELTA_QUERIES) out^T and dout^T */
    int64_t *cursor;     /* (tile_width) of the mask */
} TailScratch;

/* One call of the operation. */
typedef struct TailBackward {
    DsviTailDense dense; /* inner.dout is G_c; inner.lse is log T_c, or infinite for a chunk without a tail */
    DsviTailMask mask;
    DsviAttentionTiles tiles;
    int64_t blocks, block_runs, heads_at_once;
    float *query_delta; /* (B, N, Sq) delta_i */
    float *delta;       /* (B, N, chunks) D_c */
    size_t tile_floats, head_floats, worker_floats;
    float *heads, *workers;
    size_t floats;      /* of the whole workspace */
    int64_t first_pair; /* of the current batch of heads */
} TailBackward;

static size_t tail_scratch_layout(const TailBackward *w, float *base, TailScratch *s)
{
    const DsviAttentionTiles *t = &w->tiles;
    size_t used = dsvi_backward_scratch(t, base, &s->tile);
    s->dk = dsvi_take_floats(base, &used, w->block_runs * t->row_width);
    s->dv = dsvi_take_floats(base, &used, w->block_runs * t->row_width);
    s->rows = dsvi_take_floats(base, &used, DELTA_QUERIES * t->row_words);
    s->outt = dsvi_take_floats(base, &used, DELTA_QUERIES * t->row_words);
    s->doutt = dsvi_take_floats(base, &used, DELTA_QUERIES * t->row_words);
    s->cursor = (int64_t *)(void *)dsvi_take_floats(base, &used, 2 * t->tile_width);
    return used;
}

static TailScratch tail_scratch_of(const TailBackward *w, int worker)
{
    TailScratch s;
    tail_scratch_layout(w, w->workers + (size_t)worker * w->worker_floats, &s);
    return s;
}

static int64_t tail_dqt_floats(const TailBackward *w)
{
    return w->tiles.row_width * w->tiles.tile_width;
}

static void tail_choose_blocks(TailBackward *w)
{
    const DsviAttentionArgs *inner = &w->dense.inner;
    int64_t pairs = inner->batch * inner->heads, keys = inner->keys;
    int64_t for_runs = dsvi_pieces(keys, BLOCK_RUNS);
    int64_t for_pieces = dsvi_min(dsvi_pieces(TAIL_PIECES, pairs > 0 ? pairs : 1), keys / BLOCK_RUNS_MIN);
    w->blocks = for_pieces > for_runs ? for_pieces : for_runs;
    w->blocks = w->blocks < 1 ? 1 : dsvi_min(w->blocks, TAIL_BLOCKS_MAX);
    w->block_runs = dsvi_pieces(keys, w->blocks);
}

static void tail_bwd_setup(const DsviAttentionTailArgs *args, TailBackward *w)
{
    TailScratch s;
    DsviBackwardQueries q;
    float *base = args->attention.workspace;
    size_t used = 0;
    *w = (TailBackward){.dense = dsvi_tail_dense(args, base, &used)};
    DsviAttentionArgs *inner = &w->dense.inner;
    int64_t pairs = inner->batch * inner->heads;
    inner->dout = dsvi_tail_rows(inner, inner->queries, base, &used);
    inner->lse = dsvi_take_floats(base, &used, pairs * inner->queries);
    w->delta = dsvi_take_floats(base, &used, pairs * inner->queries);
    w->query_delta = dsvi_take_floats(base, &used, pairs * args->attention.queries);
    w->mask = (DsviTailMask){args, w->dense.logs};
    w->tiles = dsvi_attention_tiles(inner);
    tail_choose_blocks(w);
    w->tile_floats = dsvi_backward_queries(&w->tiles, NULL, &q);
    w->head_floats = (w->tile_floats + (size_t)((w->blocks - 1) * tail_dqt_floats(w))) *
                     (size_t)w->tiles.count;
    w->heads_at_once = w->head_floats > 0 ? (int64_t)(TAIL_HEADS_BYTES / sizeof(float) / w->head_floats)
                                          : pairs;
    w->heads_at_once = w->heads_at_once < 1 ? 1 : dsvi_min(w->heads_at_once, pairs);
    w->heads = dsvi_take_floats(base, &used, w->heads_at_once * (int64_t)w->head_floats);
    w->worker_floats = tail_scratch_layout(w, NULL, &s);
    w->workers = dsvi_take_floats(base, &used, (int64_t)w->worker_floats * dsvi_threads_count());
    w->floats = used;
}

/* Loads `count` rows of (b, h) from token `first` on and stores them transposed: (row_words, DELTA_QUERIES).
 */
static void tail_load_transposed(const TailBackward *w, const DsviHeads *rows, int64_t pair, int64_t first,
                                 int64_t count, float *loaded, float *out)
{
    const DsviAttentionArgs *a = &w->dense.args->attention;
    const DsviAttentionTiles *t = &w->tiles;
    int64_t b = pair / a->heads, h = pair % a->heads;
    for (int64_t i = 0; i < count; i++)
        dsvi_row_words(t, a, rows->data, dsvi_heads_at(rows, b, first + i, h), loaded + i * t->row_words);
    dsvi_rows_transpose(loaded, t->row_words, t->row_words, count, out, DELTA_QUERIES);
}

/* Computes delta_i = out_i . dout_i for pieces of DELTA_QUERIES queries, with the order of additions of a
 * tile product, so that dP - delta is exactly 0 if one key has all the weight. */
static void tail_delta_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    const DsviAttentionArgs *a = &w->dense.args->attention;
    TailScratch s = tail_scratch_of(w, worker);
    int64_t pieces = dsvi_pieces(a->queries, DELTA_QUERIES);
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / pieces, first = n % pieces * DELTA_QUERIES;
        int64_t count = dsvi_min(DELTA_QUERIES, a->queries - first);
        float delta[DELTA_QUERIES];
        tail_load_transposed(w, &a->out, pair, first, count, s.rows, s.outt);
        tail_load_transposed(w, &a->dout, pair, first, count, s.rows, s.doutt);
        for (int64_t i = 0; i < count; i += DSVI_LANES)
            dsvi_vec_store(delta + i,
                           dsvi_words_dot(w->tiles.pairs, s.doutt + i, s.outt + i, w->tiles.dim_words,
                                          DELTA_QUERIES, dsvi_dp_piece(&w->tiles, a->act)));
        memcpy(w->query_delta + pair * a->queries + first, delta, (size_t)count * sizeof *delta);
    }
}

/* Computes G_c and D_c of chunk c of (b, h). */
DSVI_SPECIALISED void tail_gather_chunk(DsviDtype act, const TailBackward *w, int64_t pair, int64_t c)
{
    const DsviAttentionTailArgs *args = w->dense.args;
    const DsviAttentionArgs *a = &args->attention, *inner = &w->dense.inner;
    int64_t b = pair / a->heads, h = pair % a->heads, at = pair * inner->queries + c, dim = a->head_dim;
    int64_t last = dsvi_min((c + 1) * args->chunk, a->queries);
    float tail_lse = ((const float *)args->tail_lse)[at], delta = 0, g[DSVI_HEAD_DIM_MAX] = {0};
    bool empty = tail_lse == -INFINITY;
    for (int64_t i = c * args->chunk; i < last && !empty; i++) {
        float share = expf(tail_lse - ((const float *)a->lse)[pair * a->queries + i]);
        const void *dout = dsvi_at(act, a->dout.data, dsvi_heads_at(&a->dout, b, i, h));
        delta += share * w->query_delta[pair * a->queries + i];
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            g[d] += share * dsvi_get(act, dout, d);
    }
    void *row = dsvi_at(act, inner->dout.data, dsvi_heads_at(&inner->dout, b, c, h));
#pragma omp simd
    for (int64_t d = 0; d < dim; d++)
        dsvi_put(act, row, d, g[d]);
    w->delta[at] = delta;
    ((float *)inner->lse)[at] = empty ? INFINITY : tail_lse;
}

static void tail_gather_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    int64_t chunks = w->dense.inner.queries;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        if (w->dense.inner.act == DSVI_F32)
            tail_gather_chunk(DSVI_F32, w, n / chunks, n % chunks);
        else
            tail_gather_chunk(DSVI_BF16, w, n / chunks, n % chunks);
    }
}

static DsviBackwardQueries tail_queries_of(const TailBackward *w, int64_t head, int64_t tile)
{
    DsviBackwardQueries q;
    dsvi_backward_queries(&w->tiles, w->heads + (size_t)head * w->head_floats + (size_t)tile * w->tile_floats,
                          &q);
    return q;
}

/* Returns the sum dQ^T of a tile over the keys of one block. Block 0 uses the sum of the packed tile. */
static float *tail_dqt_of(const TailBackward *w, int64_t head, int64_t tile, int64_t block)
{
    if (block == 0)
        return tail_queries_of(w, head, tile).dqt;
    float *others = w->heads + (size_t)head * w->head_floats + (size_t)w->tiles.count * w->tile_floats;
    return others + (tile * (w->blocks - 1) + block - 1) * tail_dqt_floats(w);
}

/* Packs the proxies of a tile and their G_c in all forms. */
static void tail_pack_tile(const TailBackward *w, int64_t head, int64_t tile)
{
    const DsviAttentionArgs *inner = &w->dense.inner;
    const DsviAttentionTiles *t = &w->tiles;
    DsviBackwardQueries q = tail_queries_of(w, head, tile);
    int64_t first, count = dsvi_tile_queries(t, inner->queries, tile, &first), pair = w->first_pair + head;
    int64_t b = pair / inner->heads, h = pair % inner->heads, at = pair * inner->queries + first;
    for (int64_t i = 0; i < count; i++) {
        dsvi_row_words(t, inner, inner->q.data, dsvi_heads_at(&inner->q, b, first + i, h),
                       q.q + i * t->row_words);
        dsvi_row_words(t, inner, inner->dout.data, dsvi_heads_at(&inner->dout, b, first + i, h),
                       q.dout + i * t->row_words);
    }
    dsvi_rows_transpose(q.q, t->row_words, t->row_words, count, q.qt, t->tile_width);
    dsvi_rows_transpose(q.dout, t->row_words, t->row_words, count, q.doutt, t->tile_width);
    dsvi_rows_across(t, q.q, count, q.qx);
    dsvi_rows_across(t, q.dout, count, q.doutx);
    for (int64_t i = 0; i < t->tile_width; i++) {
        q.lse[i] = i < count ? ((const float *)inner->lse)[at + i] : INFINITY;
        q.delta[i] = i < count ? w->delta[at + i] : 0;
    }
}

static void tail_pack_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    (void)worker;
    for (int64_t n = begin; n < end; n++)
        tail_pack_tile(w, n / w->tiles.count, n % w->tiles.count);
}

/* Adds factor * sum (row_width) to tokens [first, last) of (b, h) of a gradient. */
DSVI_SPECIALISED void tail_spread(DsviDtype act, const DsviHeads *rows, int64_t b, int64_t h, int64_t first,
                                  int64_t last, int64_t dim, const float *sum, float factor)
{
    for (int64_t i = first; i < last; i++) {
        void *row = dsvi_at(act, rows->data, dsvi_heads_at(rows, b, i, h));
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            dsvi_put(act, row, d, dsvi_get(act, row, d) + factor * sum[d]);
    }
}

/* Adds factor * sums[n] / members to each member of means [first, first + count), of `size` tokens each. */
static void tail_spread_rows(const TailBackward *w, const DsviHeads *rows, int64_t pair, int64_t first,
                             int64_t count, int64_t size, int64_t tokens, const float *sums, double factor)
{
    const DsviAttentionArgs *inner = &w->dense.inner;
    int64_t b = pair / inner->heads, h = pair % inner->heads, dim = inner->head_dim;
    for (int64_t n = 0; n < count; n++) {
        int64_t from = (first + n) * size, to = dsvi_min(from + size, tokens);
        const float *sum = sums + n * w->tiles.row_width;
        float each = (float)(factor / (double)(to - from));
        if (inner->act == DSVI_F32)
            tail_spread(DSVI_F32, rows, b, h, from, to, dim, sum, each);
        else
            tail_spread(DSVI_BF16, rows, b, h, from, to, dim, sum, each);
    }
}

/* Computes dQ^T of one tile over runs [begin, end) of block `block`, and adds to the block's sums of dK and
 * dV. */
static void tail_block_tile(const TailBackward *w, const TailScratch *s, int64_t head, int64_t block,
                            int64_t tile, int64_t begin, int64_t end)
{
    const DsviAttentionArgs *inner = &w->dense.inner;
    DsviBackwardQueries q = tail_queries_of(w, head, tile);
    int64_t first, count = dsvi_tile_queries(&w->tiles, inner->queries, tile, &first);
    int64_t pair = w->first_pair + head;
    int32_t keys[DSVI_TILE_KEYS];
    DsviTailTile at = {pair / inner->heads, pair % inner->heads, first, count, s->cursor};
    DsviBackwardPass pass = {.args = inner,
                             .tiles = &w->tiles,
                             .scratch = &s->tile,
                             .q = &q,
                             .pair = pair,
                             .queries = count,
                             .keys = keys,
                             .dk = s->dk,
                             .dv = s->dv,
                             .first_key = begin};
    q.dqt = tail_dqt_of(w, head, tile, block);
    memset(q.dqt, 0, (size_t)tail_dqt_floats(w) * sizeof(float));
    dsvi_tail_begin(&w->mask, &at, begin);
    for (int64_t r = begin; r < end; r += DSVI_TILE_KEYS) {
        pass.count = dsvi_min(DSVI_TILE_KEYS, end - r);
        for (int64_t j = 0; j < pass.count; j++)
            keys[j] = (int32_t)(r + j);
        dsvi_backward_scores(&pass);
        dsvi_tail_mask(&w->mask, &at, r, pass.count, s->tile.p, w->tiles.tile_width);
        dsvi_backward_gradients(&pass);
    }
}

static void tail_block_range(void *context, int64_t from, int64_t to, int worker)
{
    const TailBackward *w = context;
    const DsviAttentionTailArgs *args = w->dense.args;
    const DsviAttentionArgs *a = &args->attention;
    TailScratch s = tail_scratch_of(w, worker);
    dsvi_tile_products_begin();
    for (int64_t n = from; n < to; n++) {
        int64_t head = n / w->blocks, block = n % w->blocks, runs = w->dense.inner.keys;
        int64_t begin = dsvi_min(block * w->block_runs, runs), end = dsvi_min(begin + w->block_runs, runs);
        size_t bytes = (size_t)((end - begin) * w->tiles.row_width) * sizeof(float);
        memset(s.dk, 0, bytes);
        memset(s.dv, 0, bytes);
        for (int64_t tile = 0; tile < w->tiles.count; tile++)
            tail_block_tile(w, &s, head, block, tile, begin, end);
        tail_spread_rows(w, &a->dk, w->first_pair + head, begin, end - begin, args->run, a->keys, s.dk,
                         a->scale);
        tail_spread_rows(w, &a->dv, w->first_pair + head, begin, end - begin, args->run, a->keys, s.dv, 1);
    }
    dsvi_tile_products_end();
}

/* Adds the blocks' sums of dQ^T and spreads them over the queries, for tiles [begin, end). */
static void tail_queries_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    const DsviAttentionTailArgs *args = w->dense.args;
    const DsviAttentionTiles *t = &w->tiles;
    TailScratch s = tail_scratch_of(w, worker);
    for (int64_t n = begin; n < end; n++) {
        int64_t head = n / t->count, tile = n % t->count, first;
        int64_t count = dsvi_tile_queries(t, w->dense.inner.queries, tile, &first);
        float *sum = tail_dqt_of(w, head, tile, 0);
        for (int64_t block = 1; block < w->blocks; block++) {
            const float *part = tail_dqt_of(w, head, tile, block);
            for (int64_t i = 0; i < tail_dqt_floats(w); i++)
                sum[i] += part[i];
        }
        dsvi_rows_transpose(sum, t->tile_width, dsvi_tile_width(t, count), t->row_width, s.tile.rows,
                            t->row_width);
        tail_spread_rows(w, &args->attention.dq, w->first_pair + head, first, count, args->chunk,
                         args->attention.queries, s.tile.rows, args->attention.scale);
    }
}

static size_t cpu_attention_tail_bwd_workspace(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    TailBackward w;
    DsviAttentionTailArgs sizes = *args;
    (void)stream;
    sizes.attention.workspace = NULL;
    tail_bwd_setup(&sizes, &w);
    return w.floats * sizeof(float);
}

static DsvStatus cpu_attention_tail_bwd(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    TailBackward w;
    DSVI_TRY(dsvi_attention_tail_check(args));
    DSVI_TRY(dsvi_attention_check_simd(&args->attention, cpu_attention_tail_bwd_workspace(stream, args)));
    tail_bwd_setup(args, &w);
    const DsviAttentionArgs *a = &args->attention;
    int64_t pairs = a->batch * a->heads;
    dsvi_tail_prepare(&w.dense);
    dsvi_parallel_for(pairs * dsvi_pieces(a->queries, DELTA_QUERIES), 4, tail_delta_range, &w);
    dsvi_parallel_for(pairs * w.dense.inner.queries, dsvi_rows_per_piece(args->chunk * a->head_dim),
                      tail_gather_range, &w);
    for (w.first_pair = 0; w.first_pair < pairs; w.first_pair += w.heads_at_once) {
        int64_t heads = dsvi_min(w.heads_at_once, pairs - w.first_pair);
        dsvi_parallel_for(heads * w.tiles.count, 1, tail_pack_range, &w);
        dsvi_parallel_for(heads * w.blocks, 1, tail_block_range, &w);
        dsvi_parallel_for(heads * w.tiles.count, 1, tail_queries_range, &w);
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_tail_bwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_bwd, cpu_attention_tail_bwd,
                                cpu_attention_tail_bwd_workspace, DSVI_SIMD_NAME);
}
