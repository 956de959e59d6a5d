/* SIMD variant of bias_attention: the forward pass of attention_forward.h inside each segment, with a bias on
 * the scores. A piece of work is one tile of queries of one head of one segment. */
#include "base/threads.h"
#include "cpu/attention_forward.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum {
    DIM_MAX = 128, /* largest D */
    /* floats of scratch memory of one tile: Q^T, O^T and the rows of Q or O; the scores; K, V and V in pairs
     */
    SCRATCH_FLOATS = 3 * DSVI_TILE_QUERIES * DIM_MAX + DSVI_TILE_KEYS * DSVI_TILE_QUERIES +
                     3 * DSVI_TILE_KEYS * DIM_MAX + 2 * DSVI_TILE_QUERIES
};

static int64_t segment_rows(const DsviBiasAttentionArgs *args, int64_t segment)
{
    return args->starts[segment + 1] - args->starts[segment];
}

static int64_t segment_tiles(const DsviBiasAttentionArgs *args, int64_t segment)
{
    return dsvi_pieces(segment_rows(args, segment), DSVI_TILE_QUERIES);
}

/* Describes the attention inside one segment. */
static DsviAttentionArgs segment_attention(const DsviBiasAttentionArgs *args, int64_t segment)
{
    int64_t dim = args->head_dim, first = args->starts[segment], row = args->heads * dim;
    int64_t at = first * args->stride;
    return (DsviAttentionArgs){
        .batch = 1,
        .heads = args->heads,
        .queries = segment_rows(args, segment),
        .keys = segment_rows(args, segment),
        .head_dim = dim,
        .scale = args->scale,
        .act = args->act,
        .acc = args->acc,
        .q = {dsvi_at(args->act, args->q, at), 0, args->stride, dim},
        .k = {dsvi_at(args->act, args->k, at), 0, args->stride, dim},
        .v = {dsvi_at(args->act, args->v, at), 0, args->stride, dim},
        .out = {dsvi_at(args->act, args->out, first * row), 0, row, dim},
    };
}

/* Computes one tile of queries of head h. Not inlined: where gcc 12 sees that the attention has no lists, it
 * warns wrongly about reads after the end of the list of all keys. */
static __attribute__((noinline)) void bias_attention_tile(const DsviForward *forward, float *memory,
                                                          int64_t h, int64_t tile)
{
    DsviForwardScratch scratch;
    dsvi_forward_scratch(&forward->tiles, memory, &scratch);
    dsvi_forward_tile(forward, &scratch, 0, h, tile);
}

static void bias_attention_range(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviBiasAttentionArgs *args = context;
    _Alignas(64) float memory[SCRATCH_FLOATS];
    (void)worker;
    dsvi_tile_products_begin();
    for (int64_t n = begin; n < end; n++) {
        int64_t tile = n / args->heads, segment = 0;
        for (; tile >= segment_tiles(args, segment); segment++)
            tile -= segment_tiles(args, segment);
        DsviAttentionArgs attention = segment_attention(args, segment);
        DsviForward forward = {.args = &attention,
                               .tiles = dsvi_attention_tiles(&attention),
                               .bias = args->bias,
                               .reach = args->reach};
        bias_attention_tile(&forward, memory, n % args->heads, tile);
    }
    dsvi_tile_products_end();
}

static DsvStatus cpu_bias_attention(DsviStream *stream, const DsviBiasAttentionArgs *args)
{
    int64_t tiles = 0;
    (void)stream;
    DSVI_TRY(dsvi_simd_check("bias_attention", args->act, args->acc));
    if (args->head_dim < 1 || args->head_dim > DIM_MAX || args->head_dim % 8 != 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "bias_attention: head_dim is %lld, expected a multiple of 8 up to %d",
                         (long long)args->head_dim, DIM_MAX);
    for (int64_t g = 0; g < args->segments; g++)
        tiles += segment_tiles(args, g);
    dsvi_parallel_for(tiles * args->heads, 1, bias_attention_range, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_bias_attention)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, bias_attention, cpu_bias_attention, DSVI_SIMD_NAME);
}
