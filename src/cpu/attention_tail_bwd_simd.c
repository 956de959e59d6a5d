/* SIMD variant of the backward pass of attention_tail (ops/attention_tail.h has the symbols): the backward
 * pass of attention of proxies to mean keys, with the products of attention_backward.h. With chunks of one
 * query it uses lse, delta and dout of attention to list and tail together, because u_i P_ir = w_ir
 * exp(-lse_i). With larger chunks it uses log T_c, D_c and G_c.
 *
 * If a head has more proxies than runs, its tiles of proxies are divided into parts, each with its own sums
 * of dK and dV. If it has more runs than proxies, the runs are divided into blocks, each with its own sums of
 * dQ^T. A piece of work is one part or one block. Finally the sums are added in the order of the parts or
 * blocks, and spread over the keys or queries. The division depends only on shapes, so results do not depend
 * on the number of threads. Heads are processed in batches of as many as fit in TAIL_HEADS_BYTES, at least
 * one. */
#include "base/threads.h"
#include "cpu/attention_backward.h"
#include "cpu/attention_tail_dense.h"
#include "cpu/simd_fill.h"

enum {
    TAIL_PIECES = 8,      /* most parts, or fewest blocks of many runs, so that all threads have work */
    BLOCK_RUNS = 768,     /* most runs of a block if there are several, so that its sums stay in cache */
    BLOCK_RUNS_MIN = 256, /* fewest runs of a block: enough to amortise packing the proxies */
    DELTA_QUERIES = 64,   /* most queries whose delta is computed at a time, so that they stay in cache */
    TAIL_HEADS_BYTES = 256 << 20
};

/* Scratch memory of one worker. */
typedef struct TailScratch {
    DsviBackwardScratch tile;
    DsviBackwardQueries q;
    int64_t *cursor; /* (tile_width) of the mask */
} TailScratch;

/* One call of the operation. */
typedef struct TailBackward {
    DsviTailDense dense; /* with chunks of several queries, inner.dout is G_c, and inner.lse is log T_c, or
                          * infinite for a chunk without a tail */
    DsviTailMask mask;
    DsviAttentionTiles tiles;
    int64_t parts, blocks, heads_at_once; /* parts or blocks is 1 */
    float *query_delta;                   /* (B, N, Sq) delta_i; only with chunks of several queries */
    float *delta;                         /* (B, N, chunks) D_c; likewise */
    size_t worker_floats, head_floats;
    float *heads, *workers;
    size_t floats;             /* of the whole workspace */
    int64_t first_pair, batch; /* first (batch, head) and number of heads of the current batch of heads */
} TailBackward;

static size_t tail_scratch_layout(const TailBackward *w, float *base, TailScratch *s)
{
    const DsviAttentionTiles *t = &w->tiles;
    size_t used = dsvi_backward_scratch(t, base, &s->tile);
    used += dsvi_backward_queries(t, base ? base + used : NULL, &s->q);
    s->cursor = (int64_t *)(void *)dsvi_take_floats(base, &used, 2 * t->tile_width);
    return used;
}

static TailScratch tail_scratch_of(const TailBackward *w, int worker)
{
    TailScratch s;
    tail_scratch_layout(w, w->workers + (size_t)worker * w->worker_floats, &s);
    return s;
}

/* Numbers of floats of the sums of dK, or dV, of a head, and of dQ^T of a tile. */
static int64_t tail_key_floats(const TailBackward *w)
{
    return w->dense.inner.keys * w->tiles.row_width;
}

static int64_t tail_dqt_floats(const TailBackward *w)
{
    return w->tiles.row_width * w->tiles.tile_width;
}

/* Chooses the numbers of parts and blocks. The sums of all parts have at most as many rows as there are
 * proxies, those of all blocks at most as many as there are runs, apart from incomplete tiles. */
static void tail_divide(TailBackward *w)
{
    int64_t chunks = w->dense.inner.queries, runs = w->dense.inner.keys;
    int64_t parts = runs > 0 ? dsvi_min(w->tiles.count, chunks / runs) : 1;
    int64_t pieces = dsvi_min(runs / BLOCK_RUNS_MIN, TAIL_PIECES), cached = dsvi_pieces(runs, BLOCK_RUNS);
    int64_t blocks = chunks > 0 ? dsvi_min(runs / chunks, pieces > cached ? pieces : cached) : 1;
    w->parts = parts > 1 ? dsvi_min(parts, TAIL_PIECES) : 1;
    w->blocks = blocks > 1 ? blocks : 1;
}

static void tail_bwd_setup(const DsviAttentionTailArgs *args, TailBackward *w)
{
    TailScratch s;
    float *base = args->attention.workspace;
    size_t used = 0;
    *w = (TailBackward){.dense = dsvi_tail_dense(args, base, &used)};
    DsviAttentionArgs *inner = &w->dense.inner;
    int64_t pairs = inner->batch * inner->heads;
    if (args->chunk > 1) {
        inner->dout = dsvi_tail_rows(inner, inner->queries, base, &used);
        inner->lse = dsvi_take_floats(base, &used, pairs * inner->queries);
        w->delta = dsvi_take_floats(base, &used, pairs * inner->queries);
        w->query_delta = dsvi_take_floats(base, &used, pairs * args->attention.queries);
    }
    w->mask = (DsviTailMask){args, w->dense.logs};
    w->tiles = dsvi_attention_tiles(inner);
    tail_divide(w);
    w->head_floats = (size_t)(w->parts * 2 * tail_key_floats(w));
    if (w->blocks > 1)
        w->head_floats += (size_t)(w->blocks * w->tiles.count * tail_dqt_floats(w));
    w->heads_at_once = w->head_floats > 0 ? (int64_t)(TAIL_HEADS_BYTES / sizeof(float) / w->head_floats)
                                          : pairs;
    w->heads_at_once = w->heads_at_once < 1 ? 1 : dsvi_min(w->heads_at_once, pairs);
    w->heads = dsvi_take_floats(base, &used, w->heads_at_once * (int64_t)w->head_floats);
    w->worker_floats = tail_scratch_layout(w, NULL, &s);
    w->workers = dsvi_take_floats(base, &used, (int64_t)w->worker_floats * dsvi_threads_count());
    w->floats = used;
}

/* Returns the number of queries whose delta is computed at a time; 0 if there are no queries. */
static int64_t tail_delta_width(const TailBackward *w)
{
    return dsvi_min(w->tiles.tile_width, DELTA_QUERIES);
}

/* Computes delta_i = out_i . dout_i for pieces of tail_delta_width queries. */
static void tail_delta_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    const DsviAttentionArgs *a = &w->dense.args->attention;
    DsviAttentionTiles t = w->tiles;
    TailScratch s = tail_scratch_of(w, worker);
    t.tile_width = tail_delta_width(w);
    int64_t pieces = dsvi_pieces(a->queries, t.tile_width);
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / pieces, first = n % pieces * t.tile_width;
        int64_t count = dsvi_min(t.tile_width, a->queries - first);
        dsvi_rows_load(&t, a, &a->dout, pair, first, count, s.q.dout);
        dsvi_rows_transpose(s.q.dout, t.row_words, t.row_words, count, s.q.doutt, t.tile_width);
        dsvi_backward_delta(&t, a, &s.tile, pair, first, count, &s.q);
        memcpy(w->query_delta + pair * a->queries + first, s.q.delta, (size_t)count * sizeof(float));
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

/* Returns the sums of dK, or if `dv` of dV, of one part of the tiles: (runs, row_width). */
static float *tail_key_sums(const TailBackward *w, int64_t head, int64_t part, bool dv)
{
    return w->heads + (size_t)head * w->head_floats + (2 * part + dv) * tail_key_floats(w);
}

/* Returns the sum dQ^T of a tile over the keys of one block of several. */
static float *tail_dqt_of(const TailBackward *w, int64_t head, int64_t tile, int64_t block)
{
    return tail_key_sums(w, head, w->parts, false) + (tile * w->blocks + block) * tail_dqt_floats(w);
}

/* Adds factor * sum (row_width) to the row of token i of head `pair` of a gradient. */
DSVI_SPECIALISED void tail_add_row(DsviDtype act, const DsviAttentionArgs *a, const DsviHeads *rows,
                                   int64_t pair, int64_t i, const float *sum, float factor)
{
    void *row = dsvi_at(act, rows->data, dsvi_heads_at(rows, pair / a->heads, i, pair % a->heads));
#pragma omp simd
    for (int64_t d = 0; d < a->head_dim; d++)
        dsvi_put(act, row, d, dsvi_get(act, row, d) + factor * sum[d]);
}

/* Adds the gradient of a mean, factor * sums, evenly to its members, tokens [from, to), for `heads` heads
 * from `pair` on, whose sums are `stride` floats apart. Heads are the inner loop, because the rows of a token
 * are close together in memory. */
static void tail_spread(const DsviAttentionArgs *a, const DsviHeads *rows, int64_t pair, int64_t heads,
                        int64_t from, int64_t to, const float *sums, int64_t stride, double factor)
{
    float each = (float)(factor / (double)(to - from));
    for (int64_t i = from; i < to; i++)
        for (int64_t n = 0; n < heads; n++) {
            if (a->act == DSVI_F32)
                tail_add_row(DSVI_F32, a, rows, pair + n, i, sums + n * stride, each);
            else
                tail_add_row(DSVI_BF16, a, rows, pair + n, i, sums + n * stride, each);
        }
}

/* Adds the gradient of a tile's proxies, dQ^T, to their queries. */
static void tail_spread_queries(const TailBackward *w, const TailScratch *s, int64_t head, int64_t tile,
                                float *dqt)
{
    const DsviAttentionTailArgs *args = w->dense.args;
    const DsviAttentionArgs *a = &args->attention;
    const DsviAttentionTiles *t = &w->tiles;
    int64_t first, count = dsvi_tile_queries(t, w->dense.inner.queries, tile, &first);
    dsvi_rows_transpose(dqt, t->tile_width, dsvi_tile_width(t, count), t->row_width, s->tile.rows,
                        t->row_width);
    for (int64_t c = first; c < first + count; c++)
        tail_spread(a, &a->dq, w->first_pair + head, 1, c * args->chunk,
                    dsvi_min((c + 1) * args->chunk, a->queries), s->tile.rows + (c - first) * t->row_width, 0,
                    a->scale);
}

/* A piece of work: one part of the tiles of a head with the runs [begin, end) of one block. */
typedef struct TailPiece {
    int64_t head, part, block;
    int64_t begin, end;
} TailPiece;

/* Computes dQ^T of one tile over the runs of a piece, and adds to the sums of dK and dV of its part. */
static void tail_piece_tile(const TailBackward *w, const TailScratch *s, const TailPiece *piece, int64_t tile)
{
    const DsviAttentionArgs *inner = &w->dense.inner;
    const DsviAttentionTiles *t = &w->tiles;
    DsviBackwardQueries q = s->q;
    int64_t first, count = dsvi_tile_queries(t, inner->queries, tile, &first);
    int64_t pair = w->first_pair + piece->head;
    int32_t keys[DSVI_TILE_KEYS];
    DsviTailTile at = {pair / inner->heads, pair % inner->heads, first, count, s->cursor};
    DsviBackwardPass pass = {.args = inner,
                             .tiles = t,
                             .scratch = &s->tile,
                             .q = &q,
                             .pair = pair,
                             .queries = count,
                             .keys = keys,
                             .dk = tail_key_sums(w, piece->head, piece->part, false),
                             .dv = tail_key_sums(w, piece->head, piece->part, true)};
    if (w->blocks > 1)
        q.dqt = tail_dqt_of(w, piece->head, tile, piece->block);
    dsvi_backward_pack(t, inner, pair, first, count, &q);
    if (w->dense.args->chunk == 1)
        dsvi_backward_delta(t, inner, &s->tile, pair, first, count, &q);
    else
        for (int64_t i = 0; i < t->tile_width; i++)
            q.delta[i] = i < count ? w->delta[pair * inner->queries + first + i] : 0;
    for (int64_t c = first; c < first + count; c++)
        dsvi_row_prefetch(inner, &inner->dq, at.b, c * w->dense.args->chunk, at.h);
    dsvi_tail_begin(&w->mask, &at, piece->begin);
    for (int64_t r = piece->begin; r < piece->end; r += DSVI_TILE_KEYS) {
        pass.count = dsvi_min(DSVI_TILE_KEYS, piece->end - r);
        for (int64_t j = 0; j < pass.count; j++)
            keys[j] = (int32_t)(r + j);
        dsvi_backward_scores(&pass);
        dsvi_tail_mask(&w->mask, &at, r, pass.count, s->tile.p, t->tile_width);
        dsvi_backward_gradients(&pass);
    }
    if (w->blocks == 1)
        tail_spread_queries(w, s, piece->head, tile, q.dqt);
}

static void tail_piece_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    TailScratch s = tail_scratch_of(w, worker);
    int64_t pieces = w->parts * w->blocks, row = w->tiles.row_width, runs = w->dense.inner.keys;
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        TailPiece p = {.head = n / pieces, .part = n % pieces / w->blocks, .block = n % w->blocks};
        p.begin = p.block * runs / w->blocks;
        p.end = (p.block + 1) * runs / w->blocks;
        int64_t last_tile = (p.part + 1) * w->tiles.count / w->parts;
        for (int dv = 0; dv < 2; dv++)
            memset(tail_key_sums(w, p.head, p.part, dv) + p.begin * row, 0,
                   (size_t)((p.end - p.begin) * row) * sizeof(float));
        for (int64_t tile = p.part * w->tiles.count / w->parts; tile < last_tile; tile++)
            tail_piece_tile(w, &s, &p, tile);
    }
    dsvi_tile_products_end();
}

/* Adds `others` further arrays of `count` floats, which are `stride` floats apart, to the first array. */
static void tail_add_up(float *sum, int64_t count, int64_t stride, int64_t others)
{
    for (int64_t n = 1; n <= others; n++)
        for (int64_t i = 0; i < count; i++)
            sum[i] += sum[n * stride + i];
}

/* Adds the sums of dK and dV of the parts and spreads them over the keys, for runs [begin, end) of all heads
 * of the batch. */
static void tail_keys_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    const DsviAttentionTailArgs *args = w->dense.args;
    const DsviAttentionArgs *a = &args->attention;
    int64_t row = w->tiles.row_width, head_floats = (int64_t)w->head_floats;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        int64_t from = r * args->run, to = dsvi_min(from + args->run, a->keys);
        for (int dv = 0; dv < 2; dv++) {
            for (int64_t head = 0; head < w->batch; head++)
                tail_add_up(tail_key_sums(w, head, 0, dv) + r * row, row, 2 * tail_key_floats(w),
                            w->parts - 1);
            tail_spread(a, dv ? &a->dv : &a->dk, w->first_pair, w->batch, from, to,
                        tail_key_sums(w, 0, 0, dv) + r * row, head_floats, dv ? 1 : a->scale);
        }
    }
}

/* Adds the sums of dQ^T of several blocks and spreads them over the queries, for tiles [begin, end). */
static void tail_queries_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailBackward *w = context;
    TailScratch s = tail_scratch_of(w, worker);
    for (int64_t n = begin; n < end; n++) {
        int64_t head = n / w->tiles.count, tile = n % w->tiles.count;
        float *sum = tail_dqt_of(w, head, tile, 0);
        tail_add_up(sum, tail_dqt_floats(w), tail_dqt_floats(w), w->blocks - 1);
        tail_spread_queries(w, &s, head, tile, sum);
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
    if (args->chunk > 1 && a->queries > 0) {
        dsvi_parallel_for(pairs * dsvi_pieces(a->queries, tail_delta_width(&w)), 4, tail_delta_range, &w);
        dsvi_parallel_for(pairs * w.dense.inner.queries, dsvi_rows_per_piece(args->chunk * a->head_dim),
                          tail_gather_range, &w);
    }
    for (w.first_pair = 0; w.first_pair < pairs; w.first_pair += w.heads_at_once) {
        w.batch = dsvi_min(w.heads_at_once, pairs - w.first_pair);
        dsvi_parallel_for(w.batch * w.parts * w.blocks, 1, tail_piece_range, &w);
        dsvi_parallel_for(w.dense.inner.keys, dsvi_rows_per_piece(w.batch * args->run * a->head_dim),
                          tail_keys_range, &w);
        if (w.blocks > 1)
            dsvi_parallel_for(w.batch * w.tiles.count, 1, tail_queries_range, &w);
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_tail_bwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_bwd, cpu_attention_tail_bwd,
                                cpu_attention_tail_bwd_workspace, DSVI_SIMD_NAME);
}
