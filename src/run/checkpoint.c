/* Saving and loading checkpoints. checkpoint.h describes the format; checkpoint_find.c finds and removes old
 * checkpoints. */
#include "run/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "run/checkpoint_find.h"
#include "run/checkpoint_moments.h"
#include "run/manifest.h"
#include "run/stored_settings.h"

enum { STATE_FORMAT = 1, STATE_BYTES_MAX = 1 << 20 };
static const uint64_t SHARD_BYTES = 5000000000u; /* size of weight files, as in published Wan models */

/* Returns whether this rank reads and writes the files. */
static bool is_file_rank(const DsviTrainer *t)
{
    return dsvi_comm_rank(t->comm) == 0;
}

/* Names under which weights are stored. */
typedef struct ModelNames {
    const char *folder; /* folder with all weights of a model */
    bool average;       /* names the moving average */
    const char *exact;  /* with a LoRA: file with the matrices in F32, and the name of this array */
    DsviStateArray array;
} ModelNames;

static const ModelNames WEIGHTS = {"transformer", false, "weight", DSVI_STATE_MASTER};
static const ModelNames EMA = {"transformer_ema", true, "ema", DSVI_STATE_EMA};

void dsvi_checkpoint_lora_name(const char *expert, bool average, char name[DSVI_LORA_FILE_BYTES])
{
    bool one = strcmp(expert, "none") != 0;
    snprintf(name, DSVI_LORA_FILE_BYTES, "lora%s%s%s%s.safetensors", one ? "_" : "", one ? expert : "",
             one ? "_noise" : "", average ? "_ema" : "");
}

static DsvStatus exact_path(char path[DSVI_PATH_MAX], const char *folder, const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "optimizer/%s.safetensors", name);
    return dsvi_path_join(path, folder, file);
}

/* Writes the matrices of a LoRA: once for other programs, in BF16, and once exactly, for a resumed run. */
static DsvStatus write_lora(DsviTrainer *t, const char *folder, const ModelNames *names)
{
    char path[DSVI_PATH_MAX], file[DSVI_LORA_FILE_BYTES];
    DSVI_TRY(dsvi_zero_fetch_whole(&t->zero, names->array, t->host_lora));
    dsvi_checkpoint_lora_name(t->settings->model_expert, names->average, file);
    DSVI_TRY(dsvi_path_join(path, folder, file));
    const char *expert = strcmp(t->settings->model_expert, "none") != 0 ? t->settings->model_expert : NULL;
    DSVI_TRY(dsvi_lora_params_write(&t->lora, t->host_lora, DSVI_BF16, expert, path));
    DSVI_TRY(dsvi_path_join(path, folder, "optimizer"));
    DSVI_TRY(dsvi_folder_make(path));
    DSVI_TRY(exact_path(path, folder, names->exact));
    return dsvi_flat_write(path, t->trained, names->exact, t->host_lora);
}

static DsvStatus write_bucket(void *context, int64_t bucket, void *data)
{
    return dsvi_weights_writer_put(context, bucket, data);
}

/* Writes a divided array of weights: a folder with config.json, or a LoRA. */
static DsvStatus write_model(DsviTrainer *t, const char *folder, const ModelNames *names)
{
    char path[DSVI_PATH_MAX], config[DSVI_PATH_MAX];
    DsviWeightsWriter *writer;
    if (t->frozen)
        return write_lora(t, folder, names);
    DSVI_TRY(dsvi_path_join(path, folder, names->folder));
    DSVI_TRY(dsvi_folder_make(path));
    DSVI_TRY(dsvi_path_join(config, path, "config.json"));
    DSVI_TRY(dsvi_dit_config_write(config, &t->config));
    DSVI_TRY(dsvi_weights_writer_open(path, &t->table, DSVI_F32, SHARD_BYTES, &writer));
    DsvStatus status = dsvi_zero_fetch(&t->zero, names->array, &(DsviBucketIo){write_bucket, writer});
    return dsvi_weights_writer_finish(&writer, status);
}

/* Reads weights that write_model has written into a divided array. Called by all ranks. */
static DsvStatus read_model(DsviTrainer *t, const char *folder, const ModelNames *names, DsviStateArray array)
{
    char path[DSVI_PATH_MAX];
    if (!t->frozen) {
        DSVI_TRY(dsvi_path_join(path, folder, names->folder));
        return dsvi_trainer_store_file(t, array, path);
    }
    DSVI_TRY(exact_path(path, folder, names->exact));
    if (is_file_rank(t))
        DSVI_TRY(dsvi_flat_read(path, t->trained, names->exact, t->host_lora));
    return dsvi_zero_store_whole(&t->zero, array, t->host_lora);
}

static DsvStatus write_state(const DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX], text[256];
    int length = snprintf(text, sizeof text,
                          "{\"format\": %d, \"step\": %" PRId64 ", \"sample\": %" PRIu64
                          ", \"seed\": %" PRId64 ", \"clips\": %" PRId64 ", \"clips_hash\": \"%016" PRIx64
                          "\"}\n",
                          STATE_FORMAT, t->step, t->sample, t->settings->seed, t->data.count, t->data.hash);
    DSVI_TRY(dsvi_path_join(path, folder, "state.json"));
    return dsvi_file_write(path, text, (size_t)length);
}

static DsvStatus read_count(const cJSON *state, const char *name, const char *path, int64_t *count)
{
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(state, name);
    if (!cJSON_IsNumber(number) || !(number->valuedouble >= 0 && number->valuedouble <= 0x1p53))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not a checkpoint state of format %d: no %s", path, STATE_FORMAT,
                         name);
    *count = (int64_t)number->valuedouble;
    return DSV_OK;
}

static DsvStatus read_state(const cJSON *json, const char *path, DsviCheckpointState *state)
{
    int64_t format = 0, sample = 0;
    const char *hash = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "clips_hash"));
    *state = (DsviCheckpointState){0};
    DSVI_TRY(read_count(json, "format", path, &format));
    if (format != STATE_FORMAT)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not a checkpoint state of format %d", path, STATE_FORMAT);
    DSVI_TRY(read_count(json, "step", path, &state->step));
    DSVI_TRY(read_count(json, "sample", path, &sample));
    DSVI_TRY(read_count(json, "seed", path, &state->seed));
    state->sample = (uint64_t)sample;
    if (!hash) /* checkpoints of old versions do not identify the clips */
        return DSV_OK;
    DSVI_TRY(read_count(json, "clips", path, &state->data.count));
    state->data.hash = strtoull(hash, NULL, 16);
    return DSV_OK;
}

DsvStatus dsvi_checkpoint_state(const char *folder, DsviCheckpointState *state)
{
    char path[DSVI_PATH_MAX];
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_path_join(path, folder, "state.json"));
    DSVI_TRY(dsvi_file_read(path, STATE_BYTES_MAX, &text, &bytes));
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    free(text);
    DsvStatus status = read_state(json, path, state);
    cJSON_Delete(json);
    return status;
}

/* Makes the path of the sparse state of size number `size`: sparse.safetensors for the main one, which alone
 * has the projection, and sparse-FRAMESxHEIGHTxWIDTH.safetensors for the others. */
static DsvStatus sparse_path(const DsviTrainer *t, const char *folder, int64_t size, char path[DSVI_PATH_MAX])
{
    char name[DSVI_CLIP_SIZE_BYTES + 32], text[DSVI_CLIP_SIZE_BYTES];
    if (size == t->main_size)
        return dsvi_path_join(path, folder, "sparse.safetensors");
    snprintf(name, sizeof name, "sparse-%s.safetensors", dsvi_clip_size_text(&t->sizes[size].clip, text));
    return dsvi_path_join(path, folder, name);
}

/* Writes all files of a checkpoint into `folder`, on rank 0. */
static DsvStatus checkpoint_write_files(DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_folder_make(folder));
    DSVI_TRY(write_model(t, folder, &WEIGHTS));
    if (t->zero.ema.data)
        DSVI_TRY(write_model(t, folder, &EMA));
    DSVI_TRY(dsvi_checkpoint_write_moments(t, folder));
    for (int64_t i = 0; i < t->size_count; i++) {
        DSVI_TRY(sparse_path(t, folder, i, path));
        DSVI_TRY(dsvi_sparse_save(t->sizes[i].sparse, path));
    }
    DSVI_TRY(dsvi_path_join(path, folder, "config.yaml"));
    DSVI_TRY(dsvi_settings_store(t->settings, path));
    DSVI_TRY(write_state(t, folder));
    return dsvi_manifest_write(folder);
}

/* What the other ranks do while rank 0 runs checkpoint_write_files: the same calls of dsvi_zero_fetch in
 * the same order. */
static DsvStatus checkpoint_send(DsviTrainer *t)
{
    DSVI_TRY(dsvi_zero_fetch(&t->zero, DSVI_STATE_MASTER, NULL));
    if (t->zero.ema.data)
        DSVI_TRY(dsvi_zero_fetch(&t->zero, DSVI_STATE_EMA, NULL));
    return dsvi_checkpoint_send_moments(t);
}

DsvStatus dsvi_checkpoint_save(DsviTrainer *t, const char *output_dir, char path[DSVI_PATH_MAX])
{
    DsvStatus status;
    path[0] = 0;
    if (!is_file_rank(t))
        return checkpoint_send(t);
    char name[64], temporary_name[64], temporary[DSVI_PATH_MAX];
    snprintf(name, sizeof name, "checkpoint-%" PRId64, t->step);
    snprintf(temporary_name, sizeof temporary_name, ".checkpoint-%" PRId64 ".tmp", t->step);
    DSVI_TRY(dsvi_path_join(path, output_dir, name));
    DSVI_TRY(dsvi_path_join(temporary, output_dir, temporary_name));

    DSVI_TRY(dsvi_folder_remove(temporary));
    DSVI_TRY_GOTO(status, checkpoint_write_files(t, temporary), fail);
    DSVI_TRY_GOTO(status, dsvi_checkpoint_publish(output_dir, temporary, name), fail);
    return DSV_OK;
fail:
    /* Return the first failure. If the unfinished folder cannot be removed, for example because the disk is
     * broken, readers ignore it. */
    (void)dsvi_checkpoint_discard(temporary);
    return status;
}

DsvStatus dsvi_checkpoint_verify(const char *path)
{
    return dsvi_manifest_verify(path);
}

static DsvStatus check_seed(const DsviTrainer *t, const char *folder, int64_t seed)
{
    if (seed == t->settings->seed)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s was trained with seed=%" PRId64 ", this run has seed=%" PRId64, folder,
                     seed, t->settings->seed);
}

/* Checks that the checkpoint has the same model shape. Tensor sizes alone do not identify it: 6 heads of
 * 64 and 12 heads of 32 have tensors of the same sizes. */
static DsvStatus check_model(const DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX];
    DsviDitConfig found;
    if (t->frozen) /* the names and shapes of the matrices are checked when they are read */
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(path, folder, "transformer/config.json"));
    DSVI_TRY(dsvi_dit_config_read(path, &found));
    return dsvi_dit_config_compare(&found, &t->config, path);
}

/* Checks that a LoRA goes on as the LoRA of the same rank and expert, and all weights as all weights. */
static DsvStatus check_trained(const DsvConfig *found, const DsvConfig *ours, const char *folder)
{
    if (found->lora_rank != ours->lora_rank)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s was trained with lora_rank=%" PRId64 "%s, this run has lora_rank=%" PRId64,
                         folder, found->lora_rank, found->lora_rank == 0 ? " (all weights)" : "",
                         ours->lora_rank);
    if (strcmp(found->model_expert, ours->model_expert) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%s was trained with model.expert=%s, this run has model.expert=%s",
                         folder, found->model_expert, ours->model_expert);
    return DSV_OK;
}

/* The number of latent channels alone does not identify the codec. */
DsvStatus dsvi_checkpoint_check_options(const DsvConfig *ours, const char *folder)
{
    char path[DSVI_PATH_MAX];
    DsvConfig found;
    dsv_config_defaults(&found);
    DSVI_TRY(dsvi_path_join(path, folder, "config.yaml"));
    DSVI_TRY(dsv_config_load(&found, path));
    DSVI_TRY(check_trained(&found, ours, folder));
    if (strcmp(found.optimizer, ours->optimizer) != 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s was trained with optimizer=%s, whose state optimizer=%s of this run cannot "
                         "continue",
                         folder, found.optimizer, ours->optimizer);
    if (strcmp(found.codec_name, ours->codec_name) == 0 &&
        found.codec_spatial_levels == ours->codec_spatial_levels &&
        found.codec_temporal_levels == ours->codec_temporal_levels)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "%s was trained with codec %s of %" PRId64 " spatial and %" PRId64
                     " temporal levels, this run has %s of %" PRId64 " and %" PRId64,
                     folder, found.codec_name, found.codec_spatial_levels, found.codec_temporal_levels,
                     ours->codec_name, ours->codec_spatial_levels, ours->codec_temporal_levels);
}

/* Rank 0 verifies the checkpoint and reads step and sample; all ranks get them. */
static DsvStatus read_position(DsviTrainer *t, const char *folder)
{
    DsviCheckpointState state;
    if (is_file_rank(t)) {
        DSVI_TRY(dsvi_manifest_verify(folder));
        DSVI_TRY(dsvi_checkpoint_state(folder, &state));
        DSVI_TRY(check_seed(t, folder, state.seed));
        DSVI_TRY(dsvi_checkpoint_check_options(t->settings, folder));
        DSVI_TRY(check_model(t, folder));
        t->step = state.step;
        t->sample = state.sample;
    }
    DSVI_TRY(dsvi_comm_broadcast(t->comm, 0, &t->step, sizeof t->step));
    return dsvi_comm_broadcast(t->comm, 0, &t->sample, sizeof t->sample);
}

/* If the checkpoint has no moving average, because ema_decay was 0 before, the moving average starts from its
 * weights. */
static DsvStatus read_ema(DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX];
    unsigned char stored = 0;
    if (!t->zero.ema.data)
        return DSV_OK;
    if (is_file_rank(t)) {
        DSVI_TRY(t->frozen ? exact_path(path, folder, EMA.exact) : dsvi_path_join(path, folder, EMA.folder));
        stored = dsvi_path_exists(path);
    }
    DSVI_TRY(dsvi_comm_broadcast(t->comm, 0, &stored, sizeof stored));
    return read_model(t, folder, stored ? &EMA : &WEIGHTS, DSVI_STATE_EMA);
}

static DsvStatus read_sparse(DsviTrainer *t, const char *folder)
{
    char path[DSVI_PATH_MAX];
    for (int64_t i = 0; i < t->size_count; i++) {
        DSVI_TRY(sparse_path(t, folder, i, path));
        /* a size that the run did not have when it wrote the checkpoint begins without decisions */
        if (is_file_rank(t) && (i == t->main_size || dsvi_path_exists(path)))
            DSVI_TRY(dsvi_sparse_load(t->sizes[i].sparse, path));
        DSVI_TRY(dsvi_sparse_broadcast(t->sizes[i].sparse));
    }
    return DSV_OK;
}

DsvStatus dsvi_checkpoint_load(DsviTrainer *t, const char *folder)
{
    DSVI_TRY(read_position(t, folder));
    DSVI_TRY(read_model(t, folder, &WEIGHTS, DSVI_STATE_MASTER));
    DSVI_TRY(dsvi_zero_refresh(&t->zero));
    DSVI_TRY(read_ema(t, folder));
    DSVI_TRY(dsvi_checkpoint_read_moments(t, folder));
    return read_sparse(t, folder);
}
