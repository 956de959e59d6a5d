/* Attention in the middle of a VAE: one head over the positions of each frame. */
#include <math.h>

#include "model/vae/vae_pass.h"

enum {
    QUERIES = 1024
}; /* queries whose scores are computed together; no option changes this number, because
    * the bits of a matrix product may depend on its sizes */

/* Memory for one frame: */
enum {
    ROWS,   /* (H W, C) act: normalised rows, then the output of attention */
    QKV,    /* (H W, 3 C) act */
    SCORES, /* (QUERIES, H W) F32, then the probabilities in act after it, or in place if act is F32 */
};

static size_t queries_of(size_t positions)
{
    return positions < QUERIES ? positions : QUERIES;
}

void dsvi_vae_attention_carve(const DsviVaePass *pass, int64_t i, DsviArena *arena)
{
    const DsviVaeBound *bound = &pass->bounds[i];
    void **scratch = pass->steps[i].scratch;
    size_t positions = (size_t)(bound->height * bound->width), element = dsvi_dtype_size(pass->act);
    size_t row = (size_t)bound->channels * element, scores = queries_of(positions) * positions;
    scratch[ROWS] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, positions * row);
    scratch[QKV] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, positions * 3 * row);
    scratch[SCORES] = dsvi_arena_take(arena, DSVI_MEM_SCRATCH,
                                      scores * (sizeof(float) + (pass->act == DSVI_F32 ? 0 : element)));
}

/* Attends from queries [begin, begin + count) of a frame. */
static DsvStatus attend(DsviVaePass *pass, void *const *scratch, int64_t positions, int64_t channels,
                        int64_t begin, int64_t count)
{
    const DsviOps *ops = &pass->backend->ops;
    DsviStream *stream = pass->backend->device->stream;
    int64_t element = (int64_t)dsvi_dtype_size(pass->act);
    char *qkv = scratch[QKV], *out = scratch[ROWS];
    float *scores = scratch[SCORES];
    void *probabilities = pass->act == DSVI_F32 ? scores
                                                : scores + queries_of((size_t)positions) * (size_t)positions;
    DsviGemmArgs product = {
        .m = count,
        .n = positions,
        .k = channels,
        .ab_dtype = pass->act,
        .c_dtype = DSVI_F32,
        .a = qkv + begin * 3 * channels * element,
        .lda = 3 * channels,
        .b = qkv + channels * element,
        .ldb = 3 * channels,
        .trans_b = true,
        .c = scores,
        .ldc = positions,
        .bias_dtype = DSVI_F32,
    };
    DsviSoftmaxArgs softmax = {
        .rows = count,
        .cols = positions,
        .scale = 1 / sqrt((double)channels),
        .act = pass->act,
        .acc = DSVI_F32,
        .x = scores,
        .y = probabilities,
    };
    DsviGemmArgs mix = {
        .m = count,
        .n = channels,
        .k = positions,
        .ab_dtype = pass->act,
        .c_dtype = pass->act,
        .a = probabilities,
        .lda = positions,
        .b = qkv + 2 * channels * element,
        .ldb = 3 * channels,
        .c = out + begin * channels * element,
        .ldc = channels,
        .bias_dtype = DSVI_F32,
    };
    DSVI_TRY(ops->gemm.run(stream, &product));
    DSVI_TRY(ops->softmax.run(stream, &softmax));
    return ops->gemm.run(stream, &mix);
}

DsvStatus dsvi_vae_attention_run(DsviVaePass *pass, int64_t i)
{
    const DsviVaeStage *stage = &pass->stages[i];
    void *const *scratch = pass->steps[i].scratch;
    int64_t frames = pass->blocks[i].frames, channels = stage->in;
    for (int64_t f = 0; f < frames; f++) {
        DsviVaeBlock x = dsvi_vae_block_from(pass, &pass->blocks[i], f, 0);
        x.frames = 1;
        int64_t row = x.width * channels, positions = (x.hi - x.lo) * x.width;
        DsviVaeBlock rows = x, qkv = x;
        rows.data = scratch[ROWS];
        rows.row = row;
        qkv.data = scratch[QKV];
        qkv.row = 3 * row;
        qkv.channels = 3 * channels;
        DSVI_TRY(dsvi_vae_norm(pass, stage->gamma[0], false, &x, &rows));
        DSVI_TRY(dsvi_vae_conv(pass, &stage->conv[0], &rows, 0, 0, &qkv, false));
        for (int64_t q = 0; q < positions && !pass->measuring; q += QUERIES)
            DSVI_TRY(attend(pass, scratch, positions, channels, q,
                            positions - q < QUERIES ? positions - q : QUERIES));
        DSVI_TRY(dsvi_vae_conv(pass, &stage->conv[1], &rows, 0, 0, &x, true));
    }
    return DSV_OK;
}
