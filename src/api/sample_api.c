/* dsv_sample and dsv_config_of_run (include/dsv/sample.h): samples a clip with stored weights. */
#include "dsv/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "backend/backend.h"
#include "device/carve.h"
#include "run/model_path.h"
#include "run/notices.h"
#include "base/safetensors.h"
#include "sample/generator.h"

typedef struct Sampling {
    const DsvConfig *settings;
    DsviBackend backend;
    DsviModelPath model;
    DsviDitConfig config;
    DsviParamTable table;
    DsviCodec *codec;
    DsviGenerator *generator;
    void *memory;
    DsviDitWeights weights;
    float *host_flat; /* (table.elements) */
    float *text;      /* (text_len, text_dim), or NULL */
} Sampling;

DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found)
{
    DsviModelPath model;
    DSVI_TRY(dsvi_model_find(path, &model));
    *found = model.settings[0] != 0;
    return *found ? dsv_config_load(config, model.settings) : DSV_OK;
}

static DsvStatus sample_read_text(Sampling *s, const char *text_path)
{
    DsvStatus status;
    DsviSafetensors *file;
    const DsviStoredTensor *rows;
    const int64_t shape[2] = {s->config.text_len, s->config.text_dim};
    DSVI_TRY(dsvi_safetensors_open(text_path, &file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_require_floating(file, "encoder_hidden_states", 2, shape, &rows),
                  done);
    s->text = malloc((size_t)rows->count * sizeof(float));
    if (!s->text) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its text rows", text_path);
        goto done;
    }
    dsvi_convert(DSVI_F32, s->text, rows->dtype, rows->data, rows->count);
done:
    dsvi_safetensors_close(&file);
    return status;
}

static void sample_carve(void *context, DsviArena *arena)
{
    Sampling *s = context;
    size_t flat = (size_t)s->table.elements;
    DsviDtype act = dsvi_dit_act(s->settings);
    s->weights.master = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * sizeof(float));
    s->weights.compute = act == DSVI_F32
                             ? s->weights.master
                             : dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * dsvi_dtype_size(act));
    dsvi_generator_carve(s->generator, arena);
    dsvi_generator_carve_run(s->generator, arena);
}

static DsvStatus sample_allocate(Sampling *s)
{
    DSVI_TRY(dsvi_device_alloc_layout(s->backend.device, sample_carve, s, &s->memory));
    s->host_flat = calloc((size_t)s->table.elements, sizeof(float));
    if (!s->host_flat)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read its weights", s->model.weights);
    return DSV_OK;
}

static DsvStatus sample_load(Sampling *s)
{
    DsviDevice *device = s->backend.device;
    DsviSparse *sparse = dsvi_generator_sparse(s->generator);
    DSVI_TRY(dsvi_weights_read(s->model.weights, &s->table, s->host_flat));
    DSVI_TRY(device->upload(device->stream, s->weights.master, s->host_flat,
                            (size_t)s->table.elements * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(dsvi_generator_setup(s->generator, &s->weights));
    DSVI_TRY(dsvi_generator_refresh(s->generator));
    return sparse && s->model.sparse[0] ? dsvi_sparse_load(sparse, s->model.sparse) : DSV_OK;
}

/* Checks that model and codec fit. Called before weights are loaded, so that it fails early. */
static DsvStatus check_latent(const Sampling *s, const char *model_path)
{
    const DsvConfig *settings = s->settings;
    DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    DSVI_TRY(s->codec->latent_shape(s->codec, video, &latent));
    DsvStatus status = dsvi_dit_check_latent(&s->config, s->codec, latent);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", model_path);
}

/* Warns if guidance has no effect because there is no text, or if text was not part of training. */
static void warn_about_text(const Sampling *s, const char *text_path, const DsvEvents *events)
{
    char line[DSVI_PATH_MAX + 128];
    const char *guidance = text_path ? NULL : dsvi_notice_of_guidance(s->settings);
    if (!events->log)
        return;
    if (guidance)
        events->log(events->context, DSV_LOG_WARNING, guidance);
    if (!text_path || !s->model.checkpoint[0])
        return;
    snprintf(line, sizeof line,
             "--text: %s was trained without text, as all models of this version are: "
             "what text changes in the sample was not learned",
             s->model.checkpoint);
    events->log(events->context, DSV_LOG_WARNING, line);
}

static DsvStatus sample_run(Sampling *s, const char *model_path, const char *text_path,
                            const char *video_path, const DsvEvents *events)
{
    if (text_path)
        DSVI_TRY(sample_read_text(s, text_path));
    DSVI_TRY(dsvi_codec_open(s->settings, &s->codec));
    DSVI_TRY(check_latent(s, model_path));
    warn_about_text(s, text_path, events);
    DSVI_TRY(dsvi_param_table_make(&s->config, &s->table));
    DSVI_TRY(dsvi_generator_create(&s->backend, s->settings, s->codec, &s->config, &s->table, NULL,
                                   &s->generator));
    DSVI_TRY(sample_allocate(s));
    DSVI_TRY(sample_load(s));
    DSVI_TRY(dsvi_generator_run(s->generator, (uint64_t)s->settings->seed, s->text, events));
    return dsvi_generator_write(s->generator, video_path);
}

DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *settings, const DsvEvents *events)
{
    DSVI_TRY(dsvi_config_check_abi(settings));
    DsvStatus status;
    Sampling s = {.settings = settings};
    DsvEvents none = {0};
    DSVI_TRY_GOTO(status, dsvi_file_check_writable(video_path), done);
    DSVI_TRY_GOTO(status, dsvi_model_find(model_path, &s.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_verify(&s.model), done);
    DSVI_TRY_GOTO(status, dsvi_dit_config_read(s.model.config, &s.config), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &s.backend), done);
    DSVI_TRY_GOTO(status, sample_run(&s, model_path, text_path, video_path, events ? events : &none), done);
done:
    dsvi_generator_free(&s.generator);
    dsvi_param_table_free(&s.table);
    if (s.codec)
        s.codec->close(s.codec);
    if (s.memory)
        s.backend.device->mem_free(s.backend.device, s.memory);
    free(s.host_flat);
    free(s.text);
    dsvi_backend_close(&s.backend);
    return status;
}
