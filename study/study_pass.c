/* Loads a model and a data set, and runs the transformer forward with dense attention. Interface:
 * study_pass.h. */
#include "study_pass.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "device/carve.h"
#include "train/flow_draw.h"
#include "run/model_path.h"

struct StudyPass {
    DsvConfig settings;
    DsviBackend backend;
    DsviModelPath model;
    DsviDitConfig config;
    DsviParamTable table;
    DsviCodec *codec;
    DsviDataset *dataset;
    DsviVideoShape video, latent;
    DsviSparseShape shape;
    DsviSparse *sparse;
    DsviDit *dit;
    int64_t elements; /* of one latent */

    void *memory;
    DsviDitWeights weights;
    float *latents, *output, *timestep, *text; /* on the device */

    float *pixels;                  /* (3, T, H, W) */
    float *clean, *noise, *staging; /* (elements), on the host */
};

static DsvStatus describe(StudyPass *p)
{
    DSVI_TRY(dsvi_model_config(&p->model, &p->config));
    DSVI_TRY(dsvi_codec_open(&p->settings, &p->codec));
    p->video = (DsviVideoShape){3, p->settings.num_frames, p->settings.height, p->settings.width};
    DSVI_TRY(p->codec->latent_shape(p->codec, p->video, &p->latent));
    DSVI_TRY(dsvi_dit_check_latent(&p->config, p->codec, p->latent));
    p->elements = p->latent.channels * p->latent.frames * p->latent.height * p->latent.width;
    DsviDitShape shape = dsvi_dit_shape_of(&p->config, 1, p->latent);
    shape.act = dsvi_dit_act(&p->settings);
    p->shape = dsvi_dit_sparse_shape(&p->config, &shape);
    DSVI_TRY(dsvi_param_table_make(&p->config, &p->table));
    DSVI_TRY(dsvi_sparse_create(&p->backend, &p->settings, &p->shape, NULL, NULL, &p->sparse));
    return dsvi_dit_create(&p->backend, &p->config, &p->table, &shape, p->sparse, &p->dit);
}

static void carve(void *of, DsviArena *arena)
{
    StudyPass *p = of;
    size_t flat = (size_t)p->table.elements, latent = (size_t)p->elements * sizeof(float);
    size_t text = (size_t)(p->config.text_len * p->config.text_dim) * sizeof(float);
    p->weights.master = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * sizeof(float));
    p->weights.compute = p->shape.act == DSVI_F32
                             ? p->weights.master
                             : dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * dsvi_dtype_size(p->shape.act));
    p->latents = dsvi_arena_take(arena, DSVI_MEM_DATA, latent);
    p->output = dsvi_arena_take(arena, DSVI_MEM_DATA, latent);
    p->timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, sizeof(float));
    p->text = dsvi_arena_take(arena, DSVI_MEM_DATA, text);
    dsvi_sparse_carve(p->sparse, arena);
    dsvi_dit_carve(p->dit, arena);
    dsvi_dit_carve_pass(p->dit, arena);
}

/* The text rows stay zero, the unconditional input on which the models of the study are trained. */
static DsvStatus allocate(StudyPass *p)
{
    DSVI_TRY(dsvi_device_alloc_layout(p->backend.device, carve, p, &p->memory));
    size_t pixels = (size_t)(3 * p->video.frames * p->video.height * p->video.width);
    p->pixels = malloc(pixels * sizeof(float));
    p->clean = malloc((size_t)p->elements * sizeof(float));
    p->noise = malloc((size_t)p->elements * sizeof(float));
    p->staging = malloc((size_t)p->elements * sizeof(float));
    if (!p->pixels || !p->clean || !p->noise || !p->staging)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a clip of %zu pixels", pixels);
    return DSV_OK;
}

static DsvStatus load_weights(StudyPass *p)
{
    DsviDevice *device = p->backend.device;
    DsvStatus status;
    size_t bytes = (size_t)p->table.elements * sizeof(float);
    float *flat = calloc(1, bytes);
    if (!flat)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of weights", bytes);
    DSVI_TRY_GOTO(status, dsvi_weights_read(p->model.weights, &p->table, flat), done);
    DSVI_TRY_GOTO(status, device->upload(device->stream, p->weights.master, flat, bytes), done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    DSVI_TRY_GOTO(status, dsvi_dit_setup(p->dit, &p->weights), done);
    status = dsvi_dit_refresh_compute(p->dit);
done:
    free(flat);
    return status;
}

DsvStatus study_pass_open(const char *model, const char *clips, const DsvConfig *settings, StudyPass **out)
{
    DsvStatus status;
    StudyPass *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a model");
    p->settings = *settings;
    DSVI_TRY_GOTO(status, dsv_config_set(&p->settings, "sparse.enabled=false"), fail);
    DSVI_TRY_GOTO(status, dsv_config_set(&p->settings, "sparse.order=raster"), fail);
    DSVI_TRY_GOTO(status, dsvi_model_find(model, &p->model), fail);
    DSVI_TRY_GOTO(status, dsvi_backend_open(&p->settings, &p->backend), fail);
    DSVI_TRY_GOTO(status, dsvi_dataset_open(clips, &p->settings, &p->dataset), fail);
    if (p->dataset->latents) {
        status = DSVI_FAIL(DSV_E_USAGE, "%s is a latent cache; the study needs clips", clips);
        goto fail;
    }
    DSVI_TRY_GOTO(status, describe(p), fail);
    DSVI_TRY_GOTO(status, allocate(p), fail);
    DSVI_TRY_GOTO(status, dsvi_sparse_setup(p->sparse), fail);
    DSVI_TRY_GOTO(status, load_weights(p), fail);
    *out = p;
    return DSV_OK;
fail:
    study_pass_close(&p);
    return status;
}

void study_pass_close(StudyPass **pass)
{
    StudyPass *p = *pass;
    if (!p)
        return;
    dsvi_dit_free(&p->dit);
    dsvi_sparse_free(&p->sparse);
    dsvi_param_table_free(&p->table);
    dsvi_dataset_close(&p->dataset);
    if (p->codec)
        p->codec->close(p->codec);
    if (p->memory)
        p->backend.device->mem_free(p->backend.device, p->memory);
    dsvi_backend_close(&p->backend);
    free(p->pixels);
    free(p->clean);
    free(p->noise);
    free(p->staging);
    free(p);
    *pass = NULL;
}

DsviBackend *study_pass_backend(StudyPass *p)
{
    return &p->backend;
}

const DsviSparseShape *study_pass_shape(const StudyPass *p)
{
    return &p->shape;
}

int64_t study_pass_clips(const StudyPass *p)
{
    return p->dataset->count;
}

const char *study_pass_clip_name(const StudyPass *p, int64_t clip)
{
    const char *path = p->dataset->items[clip].path, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

DsvStatus study_pass_draw(StudyPass *p, int64_t clip)
{
    DsviSampleRef sample = dsvi_dataset_sample_in(p->dataset, &p->settings, (uint64_t)clip, clip);
    DSVI_TRY(dsvi_clip_read(p->dataset->items[clip].path, &sample.window, p->pixels));
    DSVI_TRY(p->codec->encode(p->codec, p->video, p->pixels, p->clean));
    dsvi_rng_fill_normal(dsvi_flow_noise(&p->settings, (uint64_t)clip), 0, p->noise, p->elements);
    return DSV_OK;
}

DsvStatus study_pass_run(StudyPass *p, double sigma, DsviSparseWatch *watch, void *context, double *loss)
{
    DsviDevice *device = p->backend.device;
    size_t bytes = (size_t)p->elements * sizeof(float);
    const float timestep = (float)(1000 * sigma);
    for (int64_t i = 0; i < p->elements; i++)
        p->staging[i] = (float)((1 - sigma) * p->clean[i] + sigma * p->noise[i]);
    DSVI_TRY(device->upload(device->stream, p->latents, p->staging, bytes));
    DSVI_TRY(device->upload(device->stream, p->timestep, &timestep, sizeof timestep));
    DSVI_TRY(device->sync(device->stream));
    dsvi_sparse_watch(p->sparse, watch, context);
    DSVI_TRY(dsvi_sparse_step_begin(p->sparse, 1, false));
    DSVI_TRY(dsvi_dit_forward(p->dit, p->latents, p->timestep, p->text, p->output, NULL));
    DSVI_TRY(device->download(device->stream, p->staging, p->output, bytes));
    DSVI_TRY(device->sync(device->stream));
    *loss = 0;
    for (int64_t i = 0; i < p->elements; i++) {
        double error = p->staging[i] - (p->noise[i] - p->clean[i]);
        *loss += error * error / (double)p->elements;
    }
    return DSV_OK;
}
