/* The generator: a transformer, its sparse layer and the sampling loop for one clip (generator.h). */
#include "sample/generator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "sample/sample_loop.h"
#include "sample/video_writer.h"

struct DsviGenerator {
    DsvConfig settings; /* a copy, changed by generator_make_sparse */
    DsviBackend *backend;
    DsviDitConfig config;
    DsviSparse *sparse;
    DsviDit *dit;
    DsviSampleJob job;
    int64_t elements;                /* number of elements of the latent */
    int64_t image_len;               /* DsviGeneratorArgs.image_len */
    bool given_first;                /* as DsviGeneratorArgs */
    float *zeros;                    /* (text_len, text_dim) */
    char sparse_path[DSVI_PATH_MAX]; /* DsviGeneratorArgs.sparse_path, or "" */
    DsviSparseUse use;
};

/* Allocates the arrays of host memory. */
static DsvStatus generator_allocate(DsviGenerator *g)
{
    DsviSampleJob *job = &g->job;
    int64_t pixels;
    (void)dsvi_generator_pixels(g, &pixels);
    g->zeros = calloc((size_t)job->text_elements, sizeof *g->zeros);
    job->pixels = job->codec->decode ? malloc((size_t)pixels * sizeof *job->pixels) : NULL;
    if (!g->zeros || (job->codec->decode && !job->pixels))
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the frames of a sampled clip");
    return DSV_OK;
}

/* Checks that the model takes the latent, and beside it a picture if `image`, and finds how many channels the
 * picture has. */
static DsvStatus find_channels(DsviSampleJob *job, const DsviDitConfig *config, bool image)
{
    DsviDitConfig latent = *config;
    job->image_channels = image ? config->in_channels - config->out_channels : 0;
    latent.in_channels -= job->image_channels;
    return dsvi_dit_check_latent(&latent, job->codec, job->latent);
}

/* Rows that the feed-forward layer processes at once. With these its activations take no more memory than
 * attention, with which they share memory; matrix products of so many rows keep a GPU busy. */
enum { FFN_ROWS = 16384 };

/* Creates the sparse layer. Two options differ from the caller's: attention is not timed at the start,
 * because a loaded sparse state contains the break-even density, and because a clip must not depend on
 * measured times; and a clip whose model learns nothing from it explores no keys. */
static DsvStatus generator_make_sparse(DsviGenerator *g, const DsviGeneratorArgs *args,
                                       const DsviSparseShape *shape)
{
    bool learns = args->sparse_learns && args->settings->sparse_enabled;
    g->settings.sparse_measure_cost = false;
    if (learns && g->settings.sparse_explore < 1)
        snprintf(g->settings.sparse_explore_kind, sizeof g->settings.sparse_explore_kind, "none");
    DSVI_TRY(
        dsvi_sparse_create(args->backend, &g->settings, shape, args->log, args->log_context, &g->sparse));
    if (!learns)
        return DSV_OK;
    g->job.sparse_learns = true;
    g->job.use = &g->use;
    if (args->sparse_path) {
        snprintf(g->sparse_path, sizeof g->sparse_path, "%s", args->sparse_path);
        DSVI_TRY(dsvi_sparse_check_file(g->sparse, args->sparse_path));
    }
    return dsvi_sparse_use_make(shape->blocks, &g->use);
}

DsvStatus dsvi_generator_create(const DsviGeneratorArgs *args, DsviGenerator **out)
{
    DsviBackend *backend = args->backend;
    const DsvConfig *settings = args->settings;
    const DsviCodec *codec = args->codec;
    const DsviDitConfig *config = args->config;
    DsvStatus status;
    DsviGenerator *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a generator");
    g->settings = *settings;
    g->backend = backend;
    g->config = *config;
    g->given_first = args->given_first;
    DsviSampleJob *job = &g->job;
    job->backend = backend;
    job->codec = codec;
    job->batch = args->guided_batch ? 2 : 1;
    job->video = (DsviVideoShape){3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY_GOTO(status, codec->latent_shape(codec, job->video, &job->latent), fail);
    DSVI_TRY_GOTO(status, find_channels(job, config, args->image), fail);
    g->elements = job->latent.channels * job->latent.frames * job->latent.height * job->latent.width;
    job->text_elements = config->text_len * config->text_dim;
    job->image_row_elements = args->image_len * config->image_dim;
    g->image_len = args->image_len;
    job->sampler = g->settings.sampler;
    job->steps = settings->num_inference_steps;
    job->flow_shift = settings->flow_shift;
    job->guidance_scale = settings->guidance_scale;
    job->guidance_scale_2 = settings->guidance_scale_2 > 0 ? settings->guidance_scale_2
                                                           : settings->guidance_scale;
    job->use_expert = args->use_expert;
    job->expert_context = args->expert_context;
    job->boundary = args->boundary;

    DsviDitShape shape = dsvi_dit_shape_of(config, job->batch, job->latent);
    shape.image_len = args->image_len;
    shape.given_first = args->given_first;
    shape.act = dsvi_dit_act(settings);
    shape.ffn_rows = FFN_ROWS;
    shape.lora = args->lora;
    shape.cp = args->cp;
    DsviSparseShape sparse_shape = dsvi_dit_sparse_shape(config, &shape);
    if (settings->sparse_enabled || args->cp)
        DSVI_TRY_GOTO(status, generator_make_sparse(g, args, &sparse_shape), fail);
    DSVI_TRY_GOTO(status, dsvi_dit_create(backend, config, args->table, &shape, g->sparse, &g->dit), fail);
    job->sparse = g->sparse;
    job->dit = g->dit;
    DSVI_TRY_GOTO(status, generator_allocate(g), fail);
    *out = g;
    return DSV_OK;
fail:
    dsvi_generator_free(&g);
    return status;
}

void dsvi_generator_free(DsviGenerator **generator)
{
    DsviGenerator *g = *generator;
    if (!g)
        return;
    dsvi_dit_free(&g->dit);
    dsvi_sparse_free(&g->sparse);
    dsvi_sparse_use_free(&g->use);
    free(g->job.pixels);
    free(g->zeros);
    free(g);
    *generator = NULL;
}

void dsvi_generator_carve(DsviGenerator *g, DsviArena *arena)
{
    if (g->sparse)
        dsvi_sparse_carve(g->sparse, arena);
    dsvi_dit_carve(g->dit, arena);
}

void dsvi_generator_carve_run(DsviGenerator *g, DsviArena *arena)
{
    DsviSampleJob *job = &g->job;
    size_t batch = (size_t)job->batch, latent = batch * (size_t)g->elements * sizeof(float);
    size_t channels = (size_t)job->latent.channels;
    job->latents = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                   latent / channels * (channels + (size_t)job->image_channels));
    job->output = dsvi_arena_take(arena, DSVI_MEM_DATA, latent);
    job->timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, (g->given_first ? 2 : 1) * batch * sizeof(float));
    job->text_rows = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                     batch * (size_t)job->text_elements * sizeof(float));
    job->image_memory = dsvi_arena_take(arena, DSVI_MEM_DATA,
                                        batch * (size_t)job->image_row_elements * sizeof(float));
    dsvi_dit_carve_pass(g->dit, arena);
}

DsvStatus dsvi_generator_setup(DsviGenerator *g, const DsviDitWeights *weights)
{
    if (g->sparse)
        DSVI_TRY(dsvi_sparse_setup(g->sparse));
    return dsvi_dit_setup(g->dit, weights);
}

DsvStatus dsvi_generator_refresh(DsviGenerator *g)
{
    return dsvi_dit_refresh_compute(g->dit);
}

DsviSparse *dsvi_generator_sparse(DsviGenerator *g)
{
    return g->settings.sparse_enabled ? g->sparse : NULL;
}

const DsviSparseUse *dsvi_generator_sparse_use(const DsviGenerator *g)
{
    return g->job.use;
}

/* Begins a clip. What was measured in earlier clips is forgotten, so that a clip does not depend on them. */
static DsvStatus begin_clip(DsviGenerator *g, const DsviGeneratorClip *clip)
{
    DsviSampleJob *job = &g->job;
    job->seed = clip->seed;
    job->noise = clip->noise;
    job->image = clip->image;
    job->image_rows = clip->image_rows;
    job->first_frame = clip->first_frame;
    DSVI_ASSERT(g->given_first == (clip->first_frame != NULL));
    job->text = clip->text;
    job->null_text = clip->negative ? clip->negative : g->zeros;
    job->steps_before = clip->before * job->steps;
    job->steps_after = clip->after * job->steps;
    if (!job->sparse_learns)
        return DSV_OK;
    dsvi_sparse_use_clear(&g->use);
    dsvi_sparse_restart(g->sparse);
    return g->sparse_path[0] ? dsvi_sparse_load(g->sparse, g->sparse_path) : DSV_OK;
}

DsvStatus dsvi_generator_run(DsviGenerator *g, const DsviGeneratorClip *clip, const DsvEvents *events)
{
    DSVI_TRY(begin_clip(g, clip));
    return dsvi_sample_run(&g->job, events);
}

DsvStatus dsvi_generator_latent(DsviGenerator *g, const DsviGeneratorClip *clip, const DsvEvents *events,
                                float *latent)
{
    DSVI_TRY(begin_clip(g, clip));
    return dsvi_sample_latent(&g->job, events, latent);
}

double dsvi_generator_flops(const DsviGenerator *g, bool guided)
{
    DsviDitShape shape = dsvi_dit_shape_of(&g->config, 1, g->job.latent);
    shape.image_len = g->image_len;
    shape.given_first = g->given_first;
    double pass = dsvi_dit_flops_gemm(&g->config, &shape) + dsvi_dit_flops_attention(&g->config, &shape);
    return (guided ? 2 : 1) * (double)g->job.steps * pass;
}

DsviVideoShape dsvi_generator_latent_shape(const DsviGenerator *g)
{
    return g->job.latent;
}

float *dsvi_generator_pixels(DsviGenerator *g, int64_t *count)
{
    DsviVideoShape video = g->job.video;
    *count = video.channels * video.frames * video.height * video.width;
    return g->job.pixels;
}

DsvStatus dsvi_generator_write(const DsviGenerator *g, const char *video_path)
{
    DsviVideoShape video = g->job.video;
    return dsvi_video_write(video_path, g->job.pixels, video.frames, video.height, video.width,
                            g->settings.fps);
}
