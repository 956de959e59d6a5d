/* Implements moments.h: layout and memory of the optimizer's state. */
#include "train/moments.h"

#include <stdlib.h>
#include <string.h>

DsviOptimizer dsvi_optimizer(const DsvConfig *settings)
{
    static const char *const name[] = {"adamw", "adamw_bf16", "adamw_8bit", "muon"};
    int i = 0;
    while (i < DSVI_MUON && strcmp(settings->optimizer, name[i]) != 0)
        i++;
    return (DsviOptimizer)i;
}

/* The first bucket holds the embeddings and the last one the head. */
bool dsvi_moments_of_matrices(const DsviParamTable *table, int64_t bucket)
{
    return bucket > 0 && bucket < table->buckets - 1;
}

/* Returns the offset in the bucket at which matrices of a block begin; the bucket's size if it has none. */
static int64_t matrices_begin(const DsviParamTable *table, int64_t bucket)
{
    bool block = dsvi_moments_of_matrices(table, bucket);
    return (block ? table->gemm[bucket] : table->begin[bucket + 1]) - table->begin[bucket];
}

int64_t dsvi_moment_byte(const DsviMoment *moment, int64_t bucket, int64_t element)
{
    int64_t exact = matrices_begin(moment->table, bucket);
    int64_t size = moment->has_matrices ? (int64_t)dsvi_dtype_size(moment->matrix_dtype) : 0;
    if (element <= exact)
        return element * (int64_t)sizeof(float);
    return exact * (int64_t)sizeof(float) + (element - exact) * size;
}

static int64_t moment_byte_of(const void *context, int64_t bucket, int64_t element)
{
    return dsvi_moment_byte(context, bucket, element);
}

static int64_t scale_byte_of(const void *context, int64_t bucket, int64_t element)
{
    const DsviMoment *moment = context;
    int64_t coded = element - matrices_begin(moment->table, bucket);
    if (moment->matrix_dtype != DSVI_U8 || coded <= 0)
        return 0;
    return (coded + DSVI_STATE_BLOCK - 1) / DSVI_STATE_BLOCK * (int64_t)sizeof(float);
}

static DsvStatus align_to_blocks(const DsviParamTable *table, DsviShard *shard)
{
    int64_t *from = calloc((size_t)table->buckets, sizeof *from);
    if (!from)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to divide the optimizer's state");
    for (int64_t b = 0; b < table->buckets; b++)
        from[b] = matrices_begin(table, b);
    dsvi_shard_align(shard, from, DSVI_STATE_BLOCK);
    free(from);
    return DSV_OK;
}

DsvStatus dsvi_moments_make(DsviOptimizer optimizer, const DsviParamTable *table, DsviShard *shard,
                            DsviMoments *out)
{
    static const DsviDtype dtype[] = {DSVI_F32, DSVI_BF16, DSVI_U8, DSVI_F32};
    *out = (DsviMoments){.optimizer = optimizer};
    if (optimizer == DSVI_ADAMW_8BIT)
        DSVI_TRY(align_to_blocks(table, shard));
    for (int i = 0; i < 2; i++) {
        DsviMoment *moment = &out->moment[i];
        moment->table = table;
        moment->matrix_dtype = dtype[optimizer];
        moment->has_matrices = i == 0 || optimizer != DSVI_MUON;
        DSVI_TRY(dsvi_shard_map(shard, moment_byte_of, moment, &moment->bytes));
        DSVI_TRY(dsvi_shard_map(shard, scale_byte_of, moment, &moment->scale_bytes));
    }
    return DSV_OK;
}

void dsvi_moments_free(DsviMoments *moments)
{
    for (int i = 0; i < 2; i++) {
        dsvi_shard_free(&moments->moment[i].bytes);
        dsvi_shard_free(&moments->moment[i].scale_bytes);
    }
}

void dsvi_moments_carve(DsviMoments *moments, int64_t first_bucket, DsviArena *arena)
{
    for (int i = 0; i < 2; i++) {
        DsviMoment *moment = &moments->moment[i];
        int64_t bytes = moment->bytes.own - moment->bytes.packed[first_bucket];
        int64_t scale_bytes = moment->scale_bytes.own - moment->scale_bytes.packed[first_bucket];
        moment->data = dsvi_arena_take(arena, DSVI_MEM_OPTIMIZER, (size_t)bytes);
        moment->scales = dsvi_arena_take(arena, DSVI_MEM_OPTIMIZER, (size_t)scale_bytes);
    }
}

void dsvi_moments_arrays(const DsviMoments *moments, const DsviShard *shard, int64_t bucket, int64_t at,
                         unsigned char *const data[2], unsigned char *const scales[2], DsviAdamwArgs *args)
{
    const DsviParamTable *table = moments->moment[0].table;
    int64_t first = dsvi_shard_first(shard, bucket), element = first + at;
    bool matrices = element >= matrices_begin(table, bucket);
    unsigned char *from[2], *scales_from[2];
    for (int i = 0; i < 2; i++) {
        const DsviMoment *moment = &moments->moment[i];
        from[i] = data[i] + dsvi_moment_byte(moment, bucket, element) -
                  dsvi_moment_byte(moment, bucket, first);
        scales_from[i] = scales[i] + scale_byte_of(moment, bucket, element) -
                         scale_byte_of(moment, bucket, first);
    }
    args->state_dtype = matrices ? moments->moment[0].matrix_dtype : DSVI_F32;
    args->first = table->begin[bucket] + element;
    args->m = from[0];
    args->v = from[1];
    args->m_scale = (float *)scales_from[0];
    args->v_scale = (float *)scales_from[1];
}
