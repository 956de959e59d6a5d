/* dsv_sample and dsv_config_of_run: a clip from stored weights. See include/dsv/sample.h. */
#include "dsv/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/backend.h"
#include "device/carve.h"
#include "train/model_path.h"
#include "train/notices.h"
#include "base/safetensors.h"
#include "sample/generator.h"

typedef struct Sampling {
    const DsvConfig *settings;
    DsvBackend backend;
    DsvModelPath model;
    DsvDitConfig config;
    DsvParamTable table;
    DsvCodec *codec;
    DsvGenerator *generator;
    void *memory;
    DsvDitWeights weights;
    float *host_flat; /* (table.elements) */
    float *text;      /* (text_len, text_dim), or NULL */
} Sampling;

DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found)
{
    DsvModelPath model;
    DSVI_TRY(dsvi_model_find(path, &model));
    *found = model.settings[0] != 0;
    return *found ? dsv_config_load(config, model.settings) : DSV_OK;
}

static DsvStatus read_text(Sampling *s, const char *text_path)
{
    DsvStatus status;
    DsvSafetensors *file;
    const DsvStoredTensor *rows;
    const int64_t shape[2] = {s->config.text_len, s->config.text_dim};
    DSVI_TRY(dsvi_safetensors_open(text_path, &file));
    DSVI_TRY_GOTO(status,
                  dsvi_safetensors_want_floating(file, "encoder_hidden_states", 2, shape, &rows), done);
    s->text = malloc((size_t)rows->count * sizeof(float));
    if (!s->text) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its text rows", text_path);
        goto done;
    }
    dsvi_convert(DSV_F32, s->text, rows->dtype, rows->data, rows->count);
done:
    dsvi_safetensors_close(&file);
    return status;
}

static void carve(void *of, DsvArena *arena)
{
    Sampling *s = of;
    size_t flat = (size_t)s->table.elements;
    DsvDtype act = dsvi_dit_act(s->settings);
    s->weights.master = dsvi_arena_take(arena, DSV_MEM_WEIGHTS, flat * sizeof(float));
    s->weights.compute = act == DSV_F32
        ? s->weights.master
        : dsvi_arena_take(arena, DSV_MEM_WEIGHTS, flat * dsvi_dtype_size(act));
    dsvi_generator_carve(s->generator, arena);
    dsvi_generator_carve_run(s->generator, arena);
}

static DsvStatus allocate(Sampling *s)
{
    DSVI_TRY(dsvi_device_carve(s->backend.device, carve, s, &s->memory));
    s->host_flat = calloc((size_t)s->table.elements, sizeof(float));
    if (!s->host_flat)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read its weights", s->model.weights);
    return DSV_OK;
}

static DsvStatus load(Sampling *s)
{
    DsvDevice *device = s->backend.device;
    DsvSparse *sparse = dsvi_generator_sparse(s->generator);
    DSVI_TRY(dsvi_weights_read(s->model.weights, &s->table, s->host_flat));
    DSVI_TRY(device->upload(device->stream, s->weights.master, s->host_flat,
                            (size_t)s->table.elements * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(dsvi_generator_setup(s->generator, &s->weights));
    DSVI_TRY(dsvi_generator_refresh(s->generator));
    return sparse && s->model.sparse[0] ? dsvi_sparse_load(sparse, s->model.sparse) : DSV_OK;
}

/* Before anything large is loaded. */
static DsvStatus check_latent(const Sampling *s, const char *model_path)
{
    const DsvConfig *settings = s->settings;
    DsvVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    DSVI_TRY(s->codec->latent_shape(s->codec, video, &latent));
    DsvStatus status = dsvi_dit_check_latent(&s->config, s->codec, latent);
    return status == DSV_OK ? DSV_OK : dsvi_fail_within(status, "%s", model_path);
}

/* Warns of text and guidance that change nothing, or nothing that was learned. */
static void warn_of_text(const Sampling *s, const char *text_path, const DsvEvents *events)
{
    char line[DSVI_PATH_MAX + 128];
    const char *guidance = text_path ? NULL : dsvi_notice_of_guidance(s->settings);
    if (!events->log)
        return;
    if (guidance)
        events->log(events->context, DSV_LOG_WARNING, guidance);
    if (!text_path || !s->model.checkpoint[0])
        return;
    snprintf(line, sizeof line, "--text: %s was trained without text, as all models of this version are: "
             "what text changes in the sample was not learned", s->model.checkpoint);
    events->log(events->context, DSV_LOG_WARNING, line);
}

static DsvStatus run(Sampling *s, const char *model_path, const char *text_path, const char *video_path,
                     const DsvEvents *events)
{
    if (text_path)
        DSVI_TRY(read_text(s, text_path));
    DSVI_TRY(dsvi_codec_open(s->settings, &s->codec));
    DSVI_TRY(check_latent(s, model_path));
    warn_of_text(s, text_path, events);
    DSVI_TRY(dsvi_param_table_make(&s->config, &s->table));
    DSVI_TRY(dsvi_generator_create(&s->backend, s->settings, s->codec, &s->config, &s->table,
                                   NULL, &s->generator));
    DSVI_TRY(allocate(s));
    DSVI_TRY(load(s));
    DSVI_TRY(dsvi_generator_run(s->generator, (uint64_t)s->settings->seed, s->text, events));
    return dsvi_generator_write(s->generator, video_path);
}

DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    Sampling s = {.settings = settings};
    DsvEvents none = {0};
    DSVI_TRY_GOTO(status, dsvi_file_check_place(video_path), done);
    DSVI_TRY_GOTO(status, dsvi_model_find(model_path, &s.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_verify(&s.model), done);
    DSVI_TRY_GOTO(status, dsvi_dit_config_read(s.model.config, &s.config), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &s.backend), done);
    DSVI_TRY_GOTO(status, run(&s, model_path, text_path, video_path, events ? events : &none), done);
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
