/* The part of trainer.h that sets and stores weights: drawn, or read from files. */
#include "train/trainer.h"

DsvStatus dsvi_trainer_load_frozen(DsviTrainer *t, const char *path)
{
    return dsvi_dit_frozen_load(t->frozen, t->backend->device, path, NULL);
}

DsvStatus dsvi_trainer_start(DsviTrainer *t, const DsviBucketIo *source)
{
    DsviDevice *device = t->backend->device;
    DsviZero *z = &t->zero;
    DSVI_TRY(dsvi_zero_store(z, DSVI_STATE_MASTER, source));
    DSVI_TRY(dsvi_zero_refresh(z));
    DSVI_TRY(dsvi_zero_clear_moments(z));
    if (z->ema.data)
        DSVI_TRY(dsvi_zero_store(z, DSVI_STATE_EMA, source));
    return device->sync(device->stream);
}

typedef struct NewWeights {
    const DsviParamTable *table;
    uint64_t seed;
} NewWeights;

static DsvStatus draw_bucket(void *context, int64_t bucket, void *data)
{
    const NewWeights *weights = context;
    dsvi_weights_init_bucket(weights->table, weights->seed, bucket, data);
    return DSV_OK;
}

DsvStatus dsvi_trainer_start_new(DsviTrainer *t, uint64_t seed)
{
    NewWeights weights = {t->trained, seed};
    return dsvi_trainer_start(t, &(DsviBucketIo){draw_bucket, &weights});
}

typedef struct FileWeights {
    const DsviParamTable *table;
    DsviStoredWeights stored;
} FileWeights;

static DsvStatus read_bucket(void *context, int64_t bucket, void *data)
{
    const FileWeights *weights = context;
    dsvi_weights_read_bucket(&weights->stored, weights->table, bucket, data);
    return DSV_OK;
}

static DsvStatus store_array(DsviTrainer *t, const DsviBucketIo *source, const DsviStateArray *array)
{
    return array ? dsvi_zero_store(&t->zero, *array, source) : dsvi_trainer_start(t, source);
}

/* Passes the weights in a file to one array of the state, or starts from them if `array` is NULL. */
static DsvStatus store_file(DsviTrainer *t, const char *path, const DsviStateArray *array)
{
    FileWeights weights = {.table = t->trained};
    if (dsvi_comm_rank(t->comm) == 0)
        DSVI_TRY(dsvi_weights_open(path, t->trained, &weights.stored));
    DsvStatus status = store_array(t, &(DsviBucketIo){read_bucket, &weights}, array);
    dsvi_weights_close(&weights.stored);
    return status;
}

DsvStatus dsvi_trainer_start_from(DsviTrainer *t, const char *path)
{
    return store_file(t, path, NULL);
}

DsvStatus dsvi_trainer_store_file(DsviTrainer *t, DsviStateArray array, const char *path)
{
    return store_file(t, path, &array);
}
