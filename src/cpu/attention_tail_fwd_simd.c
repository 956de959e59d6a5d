/* SIMD variant of the forward pass of attention_tail: means, attention of proxies to mean keys with the tiles
 * of attention_forward.h, and the merge with the results over lists. Results do not depend on the number of
 * threads. */
#include "base/threads.h"
#include "cpu/attention_forward.h"
#include "cpu/attention_tail_dense.h"
#include "cpu/simd_fill.h"

/* One call of the operation. */
typedef struct TailForward {
    DsviTailDense dense; /* inner.out is p_c, F32 */
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
    int64_t dim = inner->head_dim, chunks = inner->queries;
    inner->out = (DsviHeads){NULL, inner->heads * chunks * dim, dim, chunks * dim};
    inner->out.data = dsvi_take_floats(base, &used, inner->batch * inner->heads * chunks * dim);
    inner->lse = args->tail_lse;
    call->mask = (DsviTailMask){args, call->dense.logs};
    call->forward = (DsviForward){.args = inner, .tiles = tail_fwd_tiles(inner), .mask = &call->mask};
    call->worker_floats = dsvi_forward_scratch(&call->forward.tiles, NULL, &s);
    call->workers = dsvi_take_floats(base, &used, (int64_t)call->worker_floats * dsvi_threads_count());
    call->floats = used;
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
        dsvi_forward_tile(f, &s, pair / f->args->heads, pair % f->args->heads, n % f->tiles.count);
    }
    dsvi_tile_products_end();
}

/* Merges one row of the results over lists with p, the tail's output of its chunk. A row over an empty list
 * is not read. */
DSVI_SPECIALISED void tail_merge_row(DsviDtype act, void *out, int64_t dim, float *lse, float tail_lse,
                                     const float *p)
{
    float larger = *lse > tail_lse ? *lse : tail_lse;
    float listed = expf(*lse - larger), tail = expf(tail_lse - larger), sum = listed + tail;
    *lse = larger + logf(sum);
    listed /= sum;
    tail /= sum;
#pragma omp simd
    for (int64_t d = 0; d < dim; d++)
        dsvi_put(act, out, d, (listed > 0 ? listed * dsvi_get(act, out, d) : 0) + tail * p[d]);
}

/* Merges the rows of chunks [begin, end), which are numbered through all heads. */
static void tail_merge_range(void *context, int64_t begin, int64_t end, int worker)
{
    const TailForward *call = context;
    const DsviAttentionTailArgs *args = call->dense.args;
    const DsviAttentionArgs *a = &args->attention, *inner = &call->dense.inner;
    (void)worker;
    for (int64_t n = begin; n < end; n++) {
        int64_t pair = n / inner->queries, c = n % inner->queries, b = pair / a->heads, h = pair % a->heads;
        float tail_lse = ((const float *)args->tail_lse)[n];
        const float *p = (const float *)inner->out.data + dsvi_heads_at(&inner->out, b, c, h);
        int64_t last = dsvi_min((c + 1) * args->chunk, a->queries);
        for (int64_t i = c * args->chunk; i < last && tail_lse != -INFINITY; i++) {
            float *lse = (float *)a->lse + pair * a->queries + i;
            void *out = dsvi_at(a->act, a->out.data, dsvi_heads_at(&a->out, b, i, h));
            if (a->act == DSVI_F32)
                tail_merge_row(DSVI_F32, out, a->head_dim, lse, tail_lse, p);
            else
                tail_merge_row(DSVI_BF16, out, a->head_dim, lse, tail_lse, p);
        }
    }
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
    dsvi_parallel_for(pairs * inner->queries, dsvi_rows_per_piece(args->chunk * inner->head_dim),
                      tail_merge_range, &call);
    return DSV_OK;
}

void DSVI_SIMD(fill_attention_tail_fwd)(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_tail_fwd, cpu_attention_tail_fwd,
                                cpu_attention_tail_fwd_workspace, DSVI_SIMD_NAME);
}
