/* SIMD variant of the forward pass of attention_tail: means, then for each tile of proxies attention to the
 * mean keys (attention_forward.h) and the merge with the results over lists. Results do not depend on the
 * number of threads. */
#include "base/threads.h"
#include "cpu/attention_forward.h"
#include "cpu/attention_tail_dense.h"
#include "cpu/simd_fill.h"

/* One call of the operation. */
typedef struct TailForward {
    DsviTailDense dense;
    DsviTailMask mask;
    DsviForward forward;
    size_t worker_floats;
    float *workers;
    size_t floats; /* of the whole workspace */
} TailForward;

/* Tiles of the proxies. A tile reads all keys, so tiles are as large as those of attention, unless there are
 * too few of them for two threads. */
static DsviAttentionTiles tail_fwd_tiles(const DsviAttentionArgs *inner)
{
    enum { TILE_MIN = 64, PIECES = 4 };
    DsviAttentionTiles t = dsvi_attention_tiles(inner);
    if (t.tile > TILE_MIN && inner->batch * inner->heads * t.count < PIECES) {
        t.tile = TILE_MIN;
        t.per_group = t.count = dsvi_pieces(t.group, t.tile);
        t.tile_width = dsvi_tile_width(&t, t.tile);
    }
    return t;
}

/* Pointers in the result refer to *call, which must not move. */
static void tail_fwd_setup(const DsviAttentionTailArgs *args, TailForward *call)
{
    DsviForwardScratch s;
    float *base = args->attention.workspace;
    size_t used = 0;
    *call = (TailForward){.dense = dsvi_tail_dense(args, base, &used)};
    DsviAttentionArgs *inner = &call->dense.inner;
    call->mask = (DsviTailMask){args, call->dense.logs};
    call->forward = (DsviForward){.args = inner, .tiles = tail_fwd_tiles(inner), .mask = &call->mask};
    call->worker_floats = dsvi_forward_scratch(&call->forward.tiles, NULL, &s);
    call->workers = dsvi_take_floats(base, &used, (int64_t)call->worker_floats * dsvi_threads_count());
    call->floats = used;
}

/* Merges the results over lists of the queries of chunk c with the tail's output, factor * sum. A row over an
 * empty list is not read. */
DSVI_SPECIALISED void tail_merge_chunk(DsviDtype act, const DsviAttentionTailArgs *args, int64_t b, int64_t h,
                                       int64_t c, float tail_lse, const float *sum, float factor)
{
    const DsviAttentionArgs *a = &args->attention;
    float *lse = (float *)a->lse + (b * a->heads + h) * a->queries;
    int64_t last = dsvi_min((c + 1) * args->chunk, a->queries), dim = a->head_dim;
    for (int64_t i = c * args->chunk; i < last; i++) {
        void *out = dsvi_at(act, a->out.data, dsvi_heads_at(&a->out, b, i, h));
        float larger = lse[i] > tail_lse ? lse[i] : tail_lse;
        float listed = expf(lse[i] - larger), tail = expf(tail_lse - larger), both = listed + tail;
        lse[i] = larger + logf(both);
        listed /= both;
        tail *= factor / both;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            dsvi_put(act, out, d, (listed > 0 ? listed * dsvi_get(act, out, d) : 0) + tail * sum[d]);
    }
}

/* Computes one tile of proxies of (b, h) and merges it with the results over lists. */
static void tail_fwd_tile(const TailForward *call, const DsviForwardScratch *s, int64_t b, int64_t h,
                          int64_t tile)
{
    const DsviAttentionTailArgs *args = call->dense.args;
    const DsviForward *f = &call->forward;
    int64_t first, chunks = dsvi_tile_queries(&f->tiles, f->args->queries, tile, &first);
    float *tail_lse = (float *)args->tail_lse + (b * f->args->heads + h) * f->args->queries + first;
    for (int64_t c = first; c < first + chunks; c++)
        dsvi_row_prefetch(f->args, &f->args->out, b, c * args->chunk, h);
    dsvi_forward_sums(f, s, b, h, first, chunks);
    for (int64_t c = 0; c < chunks; c++) {
        bool empty = s->largest[c] <= DSVI_MASKED;
        tail_lse[c] = empty ? -INFINITY : (float)(s->largest[c] + log(s->total[c]));
        if (empty)
            continue;
        const float *sum = s->rows + c * f->tiles.row_width;
        if (f->args->act == DSVI_F32)
            tail_merge_chunk(DSVI_F32, args, b, h, first + c, tail_lse[c], sum, 1 / s->total[c]);
        else
            tail_merge_chunk(DSVI_BF16, args, b, h, first + c, tail_lse[c], sum, 1 / s->total[c]);
    }
}

static void tail_fwd_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailForward *call = context;
    const DsviForward *f = &call->forward;
    DsviForwardScratch s;
    dsvi_forward_scratch(&f->tiles, call->workers + (size_t)worker * call->worker_floats, &s);
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / f->tiles.count;
        tail_fwd_tile(call, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
    dsvi_tile_products_end();
}

static size_t cpu_attention_tail_fwd_workspace(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    TailForward call;
    DsviAttentionTailArgs sizes = *args;
    (void)stream;
    sizes.attention.workspace = NULL;
    tail_fwd_setup(&sizes, &call);
    return call.floats * sizeof(float);
}

static DsvStatus cpu_attention_tail_fwd(DsviStream *stream, const DsviAttentionTailArgs *args)
{
    TailForward call;
    DSVI_TRY(dsvi_attention_tail_check(args));
    DSVI_TRY(dsvi_attention_check_simd(&args->attention, cpu_attention_tail_fwd_workspace(stream, args)));
    tail_fwd_setup(args, &call);
    const DsviAttentionArgs *inner = &call.dense.inner;
    int64_t pairs = inner->batch * inner->heads;
    dsvi_tail_prepare(&call.dense);
    dsvi_parallel_for(pairs * call.forward.tiles.count, 1, tail_fwd_range, &call);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_tail_fwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_fwd, cpu_attention_tail_fwd,
                                cpu_attention_tail_fwd_workspace, DSVI_SIMD_NAME);
}
