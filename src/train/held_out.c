/* See held_out.h. */
#include "train/held_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/latent_cache.h"

struct DsvHeldOut {
    const DsvConfig *settings;
    DsvBackend *backend;
    const DsvMesh *mesh;
    DsvSparse *sparse;
    DsvDit *dit;
    DsvVideoShape video;       /* (3, T, H, W) of a window */
    int64_t batch, clips;
    int64_t own;               /* windows that this rank measures anything of */
    int64_t *place;            /* (clips) which of them a window is; -1: none */
    int64_t elements;          /* of one latent */
    int64_t text_elements;     /* of one sample's conditioning */

    /* One batch, device memory. */
    float *latents, *noise;          /* (B, elements): of the plan's room */
    float *sigma, *timestep, *loss;  /* (B) */
    float *text;                     /* (B, text_len, text_dim): zero, the unconditional row */

    /* Host memory. */
    float *host_latents; /* (own, elements) */
    float *host_sigma, *host_timestep, *host_loss; /* (B) */
};

/* One window at one level. The levels of neighbouring pairs lie apart, so that a batch mixes noise levels as
 * one of training does: the lists of a block have a threshold common to the batch. */
typedef struct Pair {
    int64_t window;
    int bin;
} Pair;

/* They begin again behind the last: batches are always full. */
static Pair pair_at(const DsvHeldOut *h, int64_t number)
{
    enum { STRIDE = 3 }; /* shares no factor with the number of bins */
    number %= h->clips * DSV_SIGMA_BINS;
    return (Pair){number / DSV_SIGMA_BINS, (int)(number % DSV_SIGMA_BINS * STRIDE % DSV_SIGMA_BINS)};
}

static int64_t pairs_of(const DsvHeldOut *h)
{
    return h->clips * DSV_SIGMA_BINS;
}

/* Batches of each context group: as many on all, for the weights may be divided among them. */
static int64_t passes_of(const DsvHeldOut *h)
{
    int64_t at_once = h->mesh->data_ranks * h->batch;
    return (pairs_of(h) + at_once - 1) / at_once;
}

/* A group's batches follow one another: their pairs are of few windows. */
static int64_t first_pair(const DsvHeldOut *h, int64_t pass)
{
    return (h->mesh->data_rank * passes_of(h) + pass) * h->batch;
}

/* Finds the windows that the rank's batches are made of. */
static DsvStatus choose_windows(DsvHeldOut *h)
{
    h->place = malloc((size_t)h->clips * sizeof *h->place);
    if (!h->place)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of held-out windows");
    for (int64_t k = 0; k < h->clips; k++)
        h->place[k] = -1;
    for (int64_t pair = first_pair(h, 0); pair < first_pair(h, passes_of(h)); pair++) {
        int64_t *place = &h->place[pair_at(h, pair).window];
        if (*place < 0)
            *place = h->own++;
    }
    return DSV_OK;
}

DsvStatus dsvi_held_out_create(DsvBackend *backend, const DsvMesh *mesh, const DsvConfig *settings,
                               DsvVideoShape latent, const DsvDitConfig *config, const DsvParamTable *table,
                               const DsvContext *context, DsvHeldOut **out)
{
    DsvStatus status;
    DsvDitShape shape = {
        .batch = settings->train_batch_size, .frames = latent.frames, .height = latent.height,
        .width = latent.width, .text_len = config->text_len, .act = dsvi_dit_act(settings), .loss = true,
        .context = context,
    };
    DsvSparseShape sparse_shape = dsvi_dit_sparse_shape(config, &shape);
    DsvConfig quiet = *settings;
    quiet.sparse_measure_cost = false; /* where sparse stops paying comes with the state of training */
    DsvHeldOut *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the held-out loss");
    h->settings = settings;
    h->backend = backend;
    h->mesh = mesh;
    h->video = (DsvVideoShape){3, settings->num_frames, settings->height, settings->width};
    h->batch = settings->train_batch_size;
    h->clips = settings->validation_clips;
    h->elements = latent.channels * latent.frames * latent.height * latent.width;
    h->text_elements = config->text_len * config->text_dim;
    DSVI_TRY_GOTO(status, choose_windows(h), fail);
    DSVI_TRY_GOTO(status, dsvi_sparse_create(backend, &quiet, &sparse_shape, NULL, NULL, &h->sparse), fail);
    DSVI_TRY_GOTO(status, dsvi_dit_create(backend, config, table, &shape, h->sparse, &h->dit), fail);
    *out = h;
    return DSV_OK;
fail:
    dsvi_held_out_free(&h);
    return status;
}

void dsvi_held_out_free(DsvHeldOut **held_out)
{
    DsvHeldOut *h = *held_out;
    if (!h)
        return;
    dsvi_dit_free(&h->dit);
    dsvi_sparse_free(&h->sparse);
    free(h->place);
    free(h);
    *held_out = NULL;
}

void dsvi_held_out_carve(DsvHeldOut *h, DsvArena *arena)
{
    size_t batch = (size_t)h->batch;
    h->sigma = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    h->timestep = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    h->loss = dsvi_arena_take(arena, DSV_MEM_DATA, batch * sizeof(float));
    h->text = dsvi_arena_take(arena, DSV_MEM_DATA, batch * (size_t)h->text_elements * sizeof(float));
    dsvi_sparse_carve(h->sparse, arena);
    dsvi_dit_carve(h->dit, arena);
}

void dsvi_held_out_carve_run(DsvHeldOut *h, DsvArena *arena)
{
    dsvi_dit_carve_pass(h->dit, arena);
    h->latents = dsvi_dit_room(h->dit).latents;
    h->noise = dsvi_dit_room(h->dit).target;
}

void dsvi_held_out_carve_host(DsvHeldOut *h, DsvArena *arena)
{
    size_t batch = (size_t)h->batch * sizeof(float);
    h->host_latents = dsvi_arena_take(arena, DSV_MEM_DATA, dsvi_held_out_bytes(h));
    h->host_sigma = dsvi_arena_take(arena, DSV_MEM_DATA, batch);
    h->host_timestep = dsvi_arena_take(arena, DSV_MEM_DATA, batch);
    h->host_loss = dsvi_arena_take(arena, DSV_MEM_DATA, batch);
}

DsvStatus dsvi_held_out_setup(DsvHeldOut *h, const DsvDitWeights *weights)
{
    DSVI_TRY(dsvi_sparse_setup(h->sparse));
    return dsvi_dit_setup(h->dit, weights);
}

size_t dsvi_held_out_bytes(const DsvHeldOut *h)
{
    return (size_t)(h->own * h->elements) * sizeof(float);
}

/* What windows are read from and with, and who hears of those that cannot be. */
typedef struct Filling {
    const DsvDataset *dataset;
    const DsvConfig *settings;
    const DsvCodec *codec;
    float *pixels; /* (3, T, H, W) */
    void (*warn)(void *context, const char *line);
    void *warn_context;
    unsigned char *warned; /* (dataset->count): the item has been named */
} Filling;

/* The window as the codec's input, or as a latent where the data set holds latents. */
static DsvStatus read_window(const DsvHeldOut *h, const Filling *f, const DsvSampleRef *ref, float *latent)
{
    const char *path = f->dataset->items[ref->item].path;
    if (f->dataset->latents)
        return dsvi_latent_read(path, h->elements, latent);
    return dsvi_clip_read(path, &ref->window, f->pixels);
}

static void warn_once(const Filling *f, int64_t item)
{
    if (f->warn && !f->warned[item])
        f->warn(f->warn_context, dsv_error_message());
    f->warned[item] = 1;
}

static DsvStatus fill_window(const DsvHeldOut *h, const Filling *f, int64_t k)
{
    float *latent = h->host_latents + h->place[k] * h->elements;
    int64_t tries = dsvi_dataset_tries(f->dataset);
    char last[512];
    for (int64_t attempt = 0; attempt < tries; attempt++) {
        DsvSampleRef ref = dsvi_dataset_spread_again(f->dataset, f->settings, k, h->clips, attempt);
        DsvStatus status = read_window(h, f, &ref, latent);
        if (status == DSV_OK)
            return f->dataset->latents ? DSV_OK : f->codec->encode(f->codec, h->video, f->pixels, latent);
        if (!dsvi_dataset_is_broken(status))
            return status;
        warn_once(f, ref.item);
    }
    snprintf(last, sizeof last, "%s", dsv_error_message());
    return DSVI_FAIL(DSV_E_NOT_FOUND, "%lld held-out windows in a row cannot be read, the last: %s",
                     (long long)tries, last);
}

DsvStatus dsvi_held_out_fill(DsvHeldOut *h, const DsvDataset *dataset, const DsvConfig *settings,
                             const DsvCodec *codec, void (*warn)(void *context, const char *line),
                             void *warn_context)
{
    DsvStatus status = DSV_OK;
    size_t pixels = (size_t)(3 * h->video.frames * h->video.height * h->video.width);
    Filling f = {.dataset = dataset,
                 .settings = settings,
                 .codec = codec,
                 .warn = warn,
                 .warn_context = warn_context};
    f.pixels = malloc(pixels * sizeof *f.pixels);
    f.warned = calloc((size_t)dataset->count, 1);
    if (!f.pixels || !f.warned)
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the frames of a held-out window");
    for (int64_t k = 0; k < h->clips && status == DSV_OK; k++)
        if (h->place[k] >= 0)
            status = fill_window(h, &f, k);
    free(f.warned);
    free(f.pixels);
    return status;
}

static double level(int bin)
{
    return (bin + 0.5) / DSV_SIGMA_BINS;
}

/* Pairs first, first + 1, ... onto the device, and the noise of their windows. */
static DsvStatus load_batch(DsvHeldOut *h, int64_t first)
{
    DsvDevice *device = h->backend->device;
    size_t latent = (size_t)h->elements * sizeof(float), scalars = (size_t)h->batch * sizeof(float);
    for (int64_t b = 0; b < h->batch; b++) {
        Pair pair = pair_at(h, first + b);
        DsvNoiseArgs noise = {
            .n = h->elements, .rng = dsvi_flow_held_out_noise(h->settings, (uint64_t)pair.window),
            .acc = DSV_F32, .out = h->noise + b * h->elements,
        };
        DSVI_TRY(device->upload(device->stream, h->latents + b * h->elements,
                                h->host_latents + h->place[pair.window] * h->elements, latent));
        DSVI_TRY(h->backend->ops.noise.run(device->stream, &noise));
        h->host_sigma[b] = (float)level(pair.bin);
        h->host_timestep[b] = (float)(1000 * level(pair.bin));
    }
    DSVI_TRY(device->upload(device->stream, h->sigma, h->host_sigma, scalars));
    return device->upload(device->stream, h->timestep, h->host_timestep, scalars);
}

/* host_loss of the batch that lies on the device. */
static DsvStatus evaluate(DsvHeldOut *h)
{
    DsvDevice *device = h->backend->device;
    DsvFlowMixArgs mix = {
        .batch = h->batch, .n = h->elements, .acc = DSV_F32, .x0 = h->latents, .noise = h->noise,
        .sigma = h->sigma, .x_t = h->latents, .target = h->noise,
    };
    const DsvDitLoss loss = {.target = h->noise, .loss = h->loss};
    DSVI_TRY(h->backend->ops.flow_mix.run(device->stream, &mix));
    DSVI_TRY(dsvi_dit_forward_loss(h->dit, h->latents, h->timestep, h->text, &loss));
    DSVI_TRY(device->download(device->stream, h->host_loss, h->loss, (size_t)h->batch * sizeof(float)));
    return device->sync(device->stream);
}

/* Mean loss of each level, with the blocks on the sides the sparse layer has them on. Ranks that share a
 * batch have a part of its loss each. */
static DsvStatus measure_bins(DsvHeldOut *h, const DsvEvents *events, double bin_loss[DSV_SIGMA_BINS])
{
    const DsvMesh *mesh = h->mesh;
    double share = dsvi_dit_share(h->dit) / (double)h->clips;
    bool alone = dsvi_comm_size(mesh->all) == 1;
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++)
        bin_loss[bin] = 0;
    DSVI_TRY(dsvi_sparse_step_begin(h->sparse, 0, false));
    for (int64_t pass = 0; pass < passes_of(h); pass++) {
        int64_t first = first_pair(h, pass);
        if (alone && events->stop && events->stop(events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped while measuring the held-out loss");
        DSVI_TRY(load_batch(h, first));
        DSVI_TRY(evaluate(h));
        for (int64_t b = 0; b < h->batch && first + b < pairs_of(h); b++)
            bin_loss[pair_at(h, first + b).bin] += share * (double)h->host_loss[b];
    }
    DSVI_TRY(dsvi_comm_all_reduce(mesh->all, DSV_F64, bin_loss, DSV_SIGMA_BINS));
    return dsvi_sparse_step_end(h->sparse);
}

static double mean(const double bin_loss[DSV_SIGMA_BINS])
{
    double sum = 0;
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++)
        sum += bin_loss[bin];
    return sum / DSV_SIGMA_BINS;
}

DsvStatus dsvi_held_out_measure(DsvHeldOut *h, const DsvSparse *sparse, const DsvEvents *events,
                                DsvHeldOutLoss *loss)
{
    double dense[DSV_SIGMA_BINS];
    DsvSparseReport report;
    dsvi_sparse_report(sparse, &report);
    DSVI_TRY(dsvi_sparse_copy(h->sparse, sparse));
    DSVI_TRY(measure_bins(h, events, loss->bin_loss));
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++)
        loss->bin_sigma[bin] = level(bin);
    loss->loss = mean(loss->bin_loss);
    loss->dense_loss = NAN;
    if (report.sparse_blocks == 0)
        return DSV_OK;
    dsvi_sparse_restart(h->sparse);
    DSVI_TRY(measure_bins(h, events, dense));
    loss->dense_loss = mean(dense);
    return DSV_OK;
}
