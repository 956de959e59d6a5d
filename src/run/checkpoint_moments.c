/* Implements checkpoint_moments.h. Moments pass through rank 0 one bucket at a time; their scales, at most
 * 1/64 of them, as a whole. */
#include "run/checkpoint_moments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"

enum { NAME_BYTES = 160 };

static const char *const MOMENT_NAME[2] = {"exp_avg", "exp_avg_sq"};

/* The tensors of one file. */
typedef struct MomentTensors {
    DsviStoredTensor *tensor; /* `data` is set for the scales only */
    int64_t *bucket;          /* (count) bucket of each moment, and where the moment begins in it, in bytes */
    size_t *place;
    const DsviStoredTensor **stored; /* (count) when reading: the tensors in the file */
    DsviSafetensorsWriter *writer;   /* when writing */
    const DsviMoment *moment;
    char (*name)[NAME_BYTES];
    size_t count, scales; /* all tensors; the first `scales` of them are scales */
} MomentTensors;

static DsvStatus moments_path(char path[DSVI_PATH_MAX], const char *folder, int i)
{
    char file[64];
    snprintf(file, sizeof file, "optimizer/%s.safetensors", MOMENT_NAME[i]);
    return dsvi_path_join(path, folder, file);
}

static void free_tensors(MomentTensors *t)
{
    free(t->tensor);
    free(t->bucket);
    free(t->place);
    free(t->stored);
    free(t->name);
}

/* Appends a tensor without data; its shape is set by the caller. */
static DsviStoredTensor *append_tensor(MomentTensors *t, DsviDtype dtype, int64_t count)
{
    DsviStoredTensor *tensor = &t->tensor[t->count];
    *tensor = (DsviStoredTensor){.name = t->name[t->count],
                                 .dtype = dtype,
                                 .ndim = 1,
                                 .shape = {count},
                                 .count = count,
                                 .bytes = (size_t)count * dsvi_dtype_size(dtype)};
    t->count++;
    return tensor;
}

/* Describes the scales of each bucket, in `flat`. */
static void describe_scales(const DsviMoment *moment, const char *array, char *flat, MomentTensors *out)
{
    for (int64_t b = 0; b < moment->scale_bytes.buckets; b++) {
        int64_t bytes = dsvi_shard_bucket_size(&moment->scale_bytes, b);
        if (bytes == 0)
            continue;
        snprintf(out->name[out->count], NAME_BYTES, "%s.scale.%lld", array, (long long)b);
        append_tensor(out, DSVI_F32, bytes / (int64_t)sizeof(float))->data = flat +
                                                                             moment->scale_bytes.begin[b];
    }
    out->scales = out->count;
}

/* Describes the moments of each parameter, those of dtype `dtype`. */
static void describe_params(const DsviMoment *moment, const char *array, DsviDtype dtype, MomentTensors *out)
{
    const DsviParamTable *table = moment->table;
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        int64_t b = dsvi_param_bucket(table, param->offset);
        bool matrix = param->in_compute_dtype && dsvi_moments_of_matrices(table, b);
        if ((matrix ? moment->matrix_dtype : DSVI_F32) != dtype || (matrix && !moment->has_matrices))
            continue;
        snprintf(out->name[out->count], NAME_BYTES, "%s.%s", array, param->name);
        out->bucket[out->count] = b;
        out->place[out->count] = (size_t)dsvi_moment_byte(moment, b, param->offset - table->begin[b]);
        DsviStoredTensor *tensor = append_tensor(out, dtype, param->count);
        tensor->ndim = param->ndim;
        memcpy(tensor->shape, param->shape, sizeof tensor->shape);
    }
}

/* Describes all tensors of moment `i`, whose scales are in a host array. The caller frees *out, also after a
 * failure. */
static DsvStatus describe(const DsviTrainer *t, int i, void *scales, MomentTensors *out)
{
    const DsviMoment *moment = &t->zero.moments.moment[i];
    size_t room = (size_t)(moment->table->count + moment->table->buckets);
    *out = (MomentTensors){.tensor = calloc(room, sizeof *out->tensor),
                           .bucket = calloc(room, sizeof *out->bucket),
                           .place = calloc(room, sizeof *out->place),
                           .stored = calloc(room, sizeof *out->stored),
                           .name = calloc(room, sizeof *out->name),
                           .moment = moment};
    if (!out->tensor || !out->bucket || !out->place || !out->stored || !out->name)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of the optimizer's state");
    describe_scales(moment, MOMENT_NAME[i], scales, out);
    describe_params(moment, MOMENT_NAME[i], DSVI_F32, out); /* wider dtypes first, for alignment */
    if (moment->matrix_dtype != DSVI_F32)
        describe_params(moment, MOMENT_NAME[i], moment->matrix_dtype, out);
    return DSV_OK;
}

/* Returns host memory for the scales of a moment, to be freed. One byte if it has none. */
static DsvStatus alloc_scales(const DsviMoment *moment, void **out)
{
    *out = calloc((size_t)moment->scale_bytes.begin[moment->scale_bytes.buckets] + 1, 1);
    return *out ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the scales of the optimizer's state");
}

static DsvStatus put_bucket(void *context, int64_t bucket, void *data)
{
    const MomentTensors *t = context;
    for (size_t i = t->scales; i < t->count; i++)
        if (t->bucket[i] == bucket)
            DSVI_TRY(dsvi_safetensors_put(t->writer, i, (const char *)data + t->place[i]));
    return DSV_OK;
}

static DsvStatus write_moment(DsviTrainer *t, const char *folder, int i)
{
    char path[DSVI_PATH_MAX];
    DsvStatus status;
    MomentTensors tensors = {0};
    void *scales = NULL;
    DSVI_TRY(moments_path(path, folder, i));
    DSVI_TRY_GOTO(status, alloc_scales(&t->zero.moments.moment[i], &scales), done);
    DSVI_TRY_GOTO(status, dsvi_zero_fetch_whole(&t->zero, dsvi_state_moment(i, true), scales), done);
    DSVI_TRY_GOTO(status, describe(t, i, scales, &tensors), done);
    DSVI_TRY_GOTO(status, dsvi_safetensors_create(path, tensors.tensor, tensors.count, &tensors.writer),
                  done);
    for (size_t k = 0; k < tensors.scales; k++)
        DSVI_TRY_GOTO(status, dsvi_safetensors_put(tensors.writer, k, tensors.tensor[k].data), done);
    status = dsvi_zero_fetch(&t->zero, dsvi_state_moment(i, false), &(DsviBucketIo){put_bucket, &tensors});
done:
    status = dsvi_safetensors_finish(&tensors.writer, status);
    free_tensors(&tensors);
    free(scales);
    return status;
}

DsvStatus dsvi_checkpoint_write_moments(DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder, "optimizer"));
    DSVI_TRY(dsvi_folder_make(path));
    for (int i = 0; i < 2; i++)
        DSVI_TRY(write_moment(t, folder, i));
    return DSV_OK;
}

DsvStatus dsvi_checkpoint_send_moments(DsviTrainer *t)
{
    for (int i = 0; i < 2; i++) {
        DSVI_TRY(dsvi_zero_fetch(&t->zero, dsvi_state_moment(i, true), NULL));
        DSVI_TRY(dsvi_zero_fetch(&t->zero, dsvi_state_moment(i, false), NULL));
    }
    return DSV_OK;
}

/* Finds the tensors of the file and copies the scales. */
static DsvStatus find_tensors(const DsviSafetensors *file, MomentTensors *tensors)
{
    size_t found = dsvi_safetensors_count(file);
    for (size_t i = 0; i < tensors->count; i++) {
        const DsviStoredTensor *wanted = &tensors->tensor[i], *stored;
        DSVI_TRY(dsvi_safetensors_require(file, wanted->name, wanted->ndim, wanted->shape, &stored));
        if (stored->dtype != wanted->dtype)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected %s", dsvi_safetensors_path(file),
                             wanted->name, dsvi_dtype_name(stored->dtype), dsvi_dtype_name(wanted->dtype));
        tensors->stored[i] = stored;
        if (i < tensors->scales)
            memcpy((void *)wanted->data, stored->data, stored->bytes);
    }
    return found == tensors->count ? DSV_OK
                                   : DSVI_FAIL(DSV_E_SHAPE, "%s: %zu tensors, expected %zu",
                                               dsvi_safetensors_path(file), found, tensors->count);
}

/* Opens a file of moments in F32, which may be of version 0.1, or a file of another form. */
static DsvStatus open_file(DsviTrainer *t, const char *folder, int i, void *scales, MomentTensors *tensors,
                           DsviSafetensors **file)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(moments_path(path, folder, i));
    DSVI_TRY(describe(t, i, scales, tensors));
    if (t->zero.moments.optimizer == DSVI_ADAMW)
        return dsvi_flat_open(path, t->trained, MOMENT_NAME[i], tensors->stored, file);
    DSVI_TRY(dsvi_safetensors_open(path, file));
    return find_tensors(*file, tensors);
}

static DsvStatus get_bucket(void *context, int64_t bucket, void *data)
{
    const MomentTensors *t = context;
    memset(data, 0, (size_t)dsvi_shard_bucket_size(&t->moment->bytes, bucket)); /* padding must be zero */
    for (size_t i = t->scales; i < t->count; i++)
        if (t->bucket[i] == bucket)
            memcpy((char *)data + t->place[i], t->stored[i]->data, t->stored[i]->bytes);
    return DSV_OK;
}

static DsvStatus read_moment(DsviTrainer *t, const char *folder, int i)
{
    DsvStatus status = DSV_OK;
    MomentTensors tensors = {0};
    DsviSafetensors *file = NULL;
    void *scales = NULL;
    if (dsvi_comm_rank(t->comm) == 0) {
        DSVI_TRY_GOTO(status, alloc_scales(&t->zero.moments.moment[i], &scales), done);
        DSVI_TRY_GOTO(status, open_file(t, folder, i, scales, &tensors, &file), done);
    }
    DSVI_TRY_GOTO(status, dsvi_zero_store_whole(&t->zero, dsvi_state_moment(i, true), scales), done);
    status = dsvi_zero_store(&t->zero, dsvi_state_moment(i, false), &(DsviBucketIo){get_bucket, &tensors});
done:
    dsvi_safetensors_close(&file);
    free_tensors(&tensors);
    free(scales);
    return status;
}

DsvStatus dsvi_checkpoint_read_moments(DsviTrainer *t, const char *folder)
{
    for (int i = 0; i < 2; i++)
        DSVI_TRY(read_moment(t, folder, i));
    return DSV_OK;
}
