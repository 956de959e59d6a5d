/* Implements held_out.h: measures the loss on held-out clips. */
#include "train/held_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/latent_cache.h"
#include "train/flow_batch.h"

/* The text states of a window: true rows only. */
typedef struct HeldOutText {
    int64_t rows;
    float *states; /* (rows, text_dim) */
} HeldOutText;

struct DsviHeldOut {
    const DsvConfig *settings;
    DsviBackend *backend;
    const DsviMesh *mesh;
    DsviSparse *sparse;
    DsviDit *dit;
    DsviVideoShape video; /* (3, T, H, W) of a window */
    DsviVideoShape latent;
    int64_t batch, clips;
    int64_t local_windows;  /* number of windows that occur in this rank's batches */
    int64_t *place;         /* (clips) index of a window in host_latents; -1: not in this rank's batches */
    int64_t elements;       /* elements of one latent */
    int64_t inputs;         /* elements of a window's input, as DsviTrainerSize.inputs */
    int64_t image_elements; /* of the states of its pictures, which follow the input in host memory */
    int64_t text_len, text_dim;

    /* One batch in device memory. */
    float *image;           /* (B, image_elements) */
    float *latents, *noise; /* (B, inputs) and (B, elements): in the memory of a pass (DsviDitBuffers) */
    float *sigma, *timestep, *loss; /* (B); timestep as DsviTrainer.timestep */
    float *text;                    /* (B, text_len, text_dim): text states, then rows of zeros */

    /* Host memory. */
    float *host_latents;                           /* (local_windows, inputs + image_elements) */
    float *host_sigma, *host_timestep, *host_loss; /* (B) */
    HeldOutText *texts; /* (local_windows) allocated by dsvi_held_out_fill; NULL: no text */
};

/* One window at one noise level. Consecutive pairs have levels that differ by three bins (pair_at), so that a
 * batch mixes noise levels as in training. This matters because one threshold decides which keys are listed
 * for all samples of a batch in a block. */
typedef struct Pair {
    int64_t window;
    int bin;
} Pair;

/* Returns pair (window, noise level) number `number`. Numbers beyond the last pair start again at the
 * first, so that all batches are full. */
static Pair pair_at(const DsviHeldOut *h, int64_t number)
{
    enum { STRIDE = 3 }; /* shares no factor with the number of bins */
    number %= h->clips * DSVI_SIGMA_BINS;
    return (Pair){number / DSVI_SIGMA_BINS, (int)(number % DSVI_SIGMA_BINS * STRIDE % DSVI_SIGMA_BINS)};
}

static int64_t held_out_pair_count(const DsviHeldOut *h)
{
    return h->clips * DSVI_SIGMA_BINS;
}

/* Returns the number of batches that each cp group (the ranks that share clips) evaluates. It is the same
 * for all groups, because at zero_stage=3 a pass needs the weights of all ranks. */
static int64_t held_out_passes(const DsviHeldOut *h)
{
    int64_t at_once = h->mesh->data_ranks * h->batch;
    return (held_out_pair_count(h) + at_once - 1) / at_once;
}

/* Returns the number of the first pair (window, noise level) in this rank's batch number `pass`. A cp
 * group takes consecutive batches, so that it needs few windows. */
static int64_t first_pair(const DsviHeldOut *h, int64_t pass)
{
    return (h->mesh->data_rank * held_out_passes(h) + pass) * h->batch;
}

/* Determines which windows occur in this rank's batches. */
static DsvStatus held_out_choose_windows(DsviHeldOut *h)
{
    h->place = malloc((size_t)h->clips * sizeof *h->place);
    if (!h->place)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of held-out windows");
    for (int64_t k = 0; k < h->clips; k++)
        h->place[k] = -1;
    for (int64_t pair = first_pair(h, 0); pair < first_pair(h, held_out_passes(h)); pair++) {
        int64_t *place = &h->place[pair_at(h, pair).window];
        if (*place < 0)
            *place = h->local_windows++;
    }
    return DSV_OK;
}

DsvStatus dsvi_held_out_create(const DsviHeldOutArgs *args, DsviHeldOut **out)
{
    DsvStatus status;
    const DsvConfig *settings = args->settings;
    const DsviDitConfig *config = args->config;
    const DsviVideoShape latent = args->latent;
    DsviDitShape shape = dsvi_dit_shape_of(config, settings->train_batch_size, latent);
    shape.given_first = dsvi_dit_given_first(settings);
    shape.act = dsvi_dit_act(settings);
    shape.loss = true;
    shape.lora = args->lora;
    shape.cp = args->cp;
    DsviSparseShape sparse_shape = dsvi_dit_sparse_shape(config, &shape);
    DsvConfig sparse_settings = *settings;
    /* The density up to which lists are faster than dense attention is part of the state copied from
     * training. */
    sparse_settings.sparse_measure_cost = false;
    DsviHeldOut *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the held-out loss");
    h->settings = settings;
    h->backend = args->backend;
    h->mesh = args->mesh;
    h->latent = latent;
    h->video = (DsviVideoShape){3, settings->num_frames, settings->height, settings->width};
    h->batch = settings->train_batch_size;
    h->clips = settings->validation_clips;
    h->elements = latent.channels * latent.frames * latent.height * latent.width;
    h->inputs = h->elements / latent.channels * config->in_channels;
    h->image_elements = shape.image_len * config->image_dim;
    h->text_len = config->text_len;
    h->text_dim = config->text_dim;
    DSVI_TRY_GOTO(status, held_out_choose_windows(h), fail);
    DSVI_TRY_GOTO(status,
                  dsvi_sparse_create(h->backend, &sparse_settings, &sparse_shape, NULL, NULL, &h->sparse),
                  fail);
    DSVI_TRY_GOTO(status, dsvi_dit_create(h->backend, config, args->table, &shape, h->sparse, &h->dit), fail);
    *out = h;
    return DSV_OK;
fail:
    dsvi_held_out_free(&h);
    return status;
}

void dsvi_held_out_free(DsviHeldOut **held_out)
{
    DsviHeldOut *h = *held_out;
    if (!h)
        return;
    dsvi_dit_free(&h->dit);
    dsvi_sparse_free(&h->sparse);
    for (int64_t i = 0; h->texts && i < h->local_windows; i++)
        free(h->texts[i].states);
    free(h->texts);
    free(h->place);
    free(h);
    *held_out = NULL;
}

/* Returns the number of elements of a window in host memory. */
static int64_t window_elements(const DsviHeldOut *h)
{
    return h->inputs + h->image_elements;
}

/* Returns the bytes of the timesteps of a batch. */
static size_t timestep_bytes(const DsviHeldOut *h)
{
    return (size_t)(h->batch * dsvi_flow_times(h->settings)) * sizeof(float);
}

void dsvi_held_out_carve(DsviHeldOut *h, DsviArena *arena)
{
    size_t batch = (size_t)h->batch;
    h->sigma = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    h->timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, timestep_bytes(h));
    h->loss = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * sizeof(float));
    h->text = dsvi_arena_take(arena, DSVI_MEM_DATA,
                              batch * (size_t)(h->text_len * h->text_dim) * sizeof(float));
    h->image = dsvi_arena_take(arena, DSVI_MEM_DATA, batch * (size_t)h->image_elements * sizeof(float));
    dsvi_sparse_carve(h->sparse, arena);
    dsvi_dit_carve(h->dit, arena);
}

void dsvi_held_out_carve_run(DsviHeldOut *h, DsviArena *arena)
{
    dsvi_dit_carve_pass(h->dit, arena);
    h->latents = dsvi_dit_buffers(h->dit).latents;
    h->noise = dsvi_dit_buffers(h->dit).target;
}

void dsvi_held_out_carve_host(DsviHeldOut *h, DsviArena *arena)
{
    size_t batch = (size_t)h->batch * sizeof(float);
    h->host_latents = dsvi_arena_take(arena, DSVI_MEM_DATA, dsvi_held_out_bytes(h));
    h->host_sigma = dsvi_arena_take(arena, DSVI_MEM_DATA, batch);
    h->host_timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, timestep_bytes(h));
    h->host_loss = dsvi_arena_take(arena, DSVI_MEM_DATA, batch);
}

DsvStatus dsvi_held_out_setup(DsviHeldOut *h, const DsviDitWeights *weights)
{
    DSVI_TRY(dsvi_sparse_setup(h->sparse));
    DSVI_TRY(dsvi_dit_setup(h->dit, weights));
    if (h->image_elements > 0)
        dsvi_dit_set_image(h->dit, h->image, NULL);
    return DSV_OK;
}

size_t dsvi_held_out_bytes(const DsviHeldOut *h)
{
    return (size_t)(h->local_windows * window_elements(h)) * sizeof(float);
}

/* State of dsvi_held_out_fill. */
typedef struct Filling {
    const DsviDataset *dataset;
    const DsvConfig *settings;
    const DsviCodec *codec;
    float *pixels; /* (3, T, H, W) */
    float *states; /* (text_len, text_dim) */
    void (*warn)(void *context, const char *line);
    void *warn_context;
    unsigned char *warned; /* (dataset->count): 1 once `warn` was called for the item */
} Filling;

/* Reads the text states of a sample. */
static DsvStatus read_text(const DsviHeldOut *h, const Filling *f, const DsviSampleRef *ref,
                           HeldOutText *text)
{
    DSVI_TRY(
        dsvi_dataset_text_states(f->dataset, ref->item, ref->caption, h->text_len, f->states, &text->rows));
    size_t bytes = (size_t)(text->rows * h->text_dim) * sizeof(float);
    free(text->states); /* of a window that could not be read */
    text->states = malloc(bytes);
    if (!text->states)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the text states of a held-out window");
    memcpy(text->states, f->states, bytes);
    return DSV_OK;
}

/* Reads window number `place` of this rank: its text states, and its pixels into f->pixels or, if the data
 * set is a latent cache, its latent into `latent`. */
static DsvStatus read_window(const DsviHeldOut *h, const Filling *f, const DsviSampleRef *ref, int64_t place,
                             float *latent)
{
    const char *path = f->dataset->items[ref->item].path;
    if (h->texts)
        DSVI_TRY(read_text(h, f, ref, &h->texts[place]));
    if (f->dataset->latents)
        return dsvi_latent_read(path, window_elements(h), latent);
    return dsvi_clip_read(path, &ref->window, f->pixels);
}

static void warn_once(const Filling *f, int64_t item)
{
    if (f->warn && !f->warned[item])
        f->warn(f->warn_context, dsv_error_message());
    f->warned[item] = 1;
}

static DsvStatus held_out_fill_window(const DsviHeldOut *h, const Filling *f, int64_t k)
{
    float *latent = h->host_latents + h->place[k] * window_elements(h);
    int64_t tries = dsvi_dataset_tries(f->dataset, 0);
    char last[512];
    for (int64_t attempt = 0; attempt < tries; attempt++) {
        DsviSampleRef ref = dsvi_dataset_spread_again(f->dataset, f->settings, k, h->clips, attempt);
        DsvStatus status = read_window(h, f, &ref, h->place[k], latent);
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

DsvStatus dsvi_held_out_fill(DsviHeldOut *h, const DsviDataset *dataset, const DsvConfig *settings,
                             const DsviCodec *codec, void (*warn)(void *context, const char *line),
                             void *warn_context)
{
    DsvStatus status = DSV_OK;
    size_t pixels = (size_t)(3 * h->video.frames * h->video.height * h->video.width);
    Filling f = {
        .dataset = dataset, .settings = settings, .codec = codec, .warn = warn, .warn_context = warn_context};
    f.pixels = malloc(pixels * sizeof *f.pixels);
    f.warned = calloc((size_t)dataset->count, 1);
    if (dataset->text.folder[0]) {
        f.states = malloc((size_t)(h->text_len * h->text_dim) * sizeof *f.states);
        h->texts = calloc((size_t)h->local_windows + 1, sizeof *h->texts);
    }
    if (!f.pixels || !f.warned || (dataset->text.folder[0] && (!f.states || !h->texts)))
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the frames of a held-out window");
    for (int64_t k = 0; k < h->clips && status == DSV_OK; k++)
        if (h->place[k] >= 0)
            status = held_out_fill_window(h, &f, k);
    free(f.warned);
    free(f.pixels);
    free(f.states);
    return status;
}

/* Ten levels of the range in which noise levels are drawn in training. */
static double noise_level(const DsviHeldOut *h, int bin)
{
    const double least = h->settings->sigma_min, most = h->settings->sigma_max;
    return least + (most - least) * (bin + 0.5) / DSVI_SIGMA_BINS;
}

/* Uploads the text states of a window to sample `b` of the batch, and clears the rows after them. */
static DsvStatus load_text(const DsviHeldOut *h, int64_t window, int64_t b)
{
    DsviDevice *device = h->backend->device;
    const HeldOutText *text = &h->texts[h->place[window]];
    float *to = h->text + b * h->text_len * h->text_dim;
    size_t used = (size_t)(text->rows * h->text_dim), all = (size_t)(h->text_len * h->text_dim);
    DSVI_TRY(device->upload(device->stream, to, text->states, used * sizeof(float)));
    return device->clear(device->stream, to + used, (all - used) * sizeof(float));
}

/* Uploads the latents, text states and noise levels of pairs first, first + 1, ... as one batch and draws the
 * noise of their windows on the device. */
static DsvStatus load_batch(DsviHeldOut *h, int64_t first)
{
    DsviDevice *device = h->backend->device;
    size_t inputs = (size_t)h->inputs * sizeof(float), scalars = (size_t)h->batch * sizeof(float);
    for (int64_t b = 0; b < h->batch; b++) {
        Pair pair = pair_at(h, first + b);
        DsviNoiseArgs noise = {
            .n = h->elements,
            .rng = dsvi_flow_held_out_noise(h->settings, (uint64_t)pair.window),
            .acc = DSVI_F32,
            .out = h->noise + b * h->elements,
        };
        const float *window = h->host_latents + h->place[pair.window] * window_elements(h);
        DSVI_TRY(device->upload(device->stream, h->latents + b * h->inputs, window, inputs));
        if (h->image_elements > 0)
            DSVI_TRY(device->upload(device->stream, h->image + b * h->image_elements, window + h->inputs,
                                    (size_t)h->image_elements * sizeof(float)));
        DSVI_TRY(h->backend->ops.noise.run(device->stream, &noise));
        if (h->texts)
            DSVI_TRY(load_text(h, pair.window, b));
        h->host_sigma[b] = (float)noise_level(h, pair.bin);
        dsvi_flow_set_times(h->settings, noise_level(h, pair.bin), b, h->host_timestep);
    }
    DSVI_TRY(device->upload(device->stream, h->sigma, h->host_sigma, scalars));
    return device->upload(device->stream, h->timestep, h->host_timestep, timestep_bytes(h));
}

/* Computes host_loss of the batch that load_batch has put on the device. */
static DsvStatus held_out_evaluate(DsviHeldOut *h)
{
    DsviDevice *device = h->backend->device;
    const DsviFlowBatch mix = {.settings = h->settings,
                               .backend = h->backend,
                               .batch = h->batch,
                               .latent = h->latent,
                               .inputs = h->inputs,
                               .latents = h->latents,
                               .noise = h->noise,
                               .sigma = h->sigma};
    const DsviDitLoss loss = {.target = h->noise, .loss = h->loss};
    DSVI_TRY(dsvi_flow_mix_batch(&mix));
    DSVI_TRY(dsvi_dit_forward(h->dit, h->latents, h->timestep, h->text, NULL, &loss));
    DSVI_TRY(device->download(device->stream, h->host_loss, h->loss, (size_t)h->batch * sizeof(float)));
    return device->sync(device->stream);
}

/* Computes the mean loss of each noise level over all ranks. Blocks are sparse or dense as
 * h->sparse has decided. Ranks that share a batch each contribute the loss of their own tokens. */
static DsvStatus measure_bins(DsviHeldOut *h, const DsvEvents *events, double bin_loss[DSVI_SIGMA_BINS])
{
    const DsviMesh *mesh = h->mesh;
    double weight = dsvi_dit_token_fraction(h->dit) / (double)h->clips;
    bool alone = dsvi_comm_size(mesh->all) == 1;
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
        bin_loss[bin] = 0;
    DSVI_TRY(dsvi_sparse_step_begin(h->sparse, 0, false));
    for (int64_t pass = 0; pass < held_out_passes(h); pass++) {
        int64_t first = first_pair(h, pass);
        if (alone && events->stop && events->stop(events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped while measuring the held-out loss");
        DSVI_TRY(load_batch(h, first));
        DSVI_TRY(held_out_evaluate(h));
        for (int64_t b = 0; b < h->batch && first + b < held_out_pair_count(h); b++)
            bin_loss[pair_at(h, first + b).bin] += weight * (double)h->host_loss[b];
    }
    DSVI_TRY(dsvi_comm_all_reduce(mesh->all, DSVI_F64, bin_loss, DSVI_SIGMA_BINS));
    return dsvi_sparse_step_end(h->sparse);
}

static double held_out_mean(const double bin_loss[DSVI_SIGMA_BINS])
{
    double sum = 0;
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
        sum += bin_loss[bin];
    return sum / DSVI_SIGMA_BINS;
}

DsvStatus dsvi_held_out_measure(DsviHeldOut *h, const DsviSparse *sparse, const DsvEvents *events,
                                DsviHeldOutLoss *loss)
{
    double dense[DSVI_SIGMA_BINS];
    DsviSparseReport report;
    dsvi_sparse_report(sparse, &report);
    DSVI_TRY(dsvi_sparse_copy(h->sparse, sparse));
    DSVI_TRY(measure_bins(h, events, loss->bin_loss));
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++)
        loss->bin_sigma[bin] = noise_level(h, bin);
    loss->loss = held_out_mean(loss->bin_loss);
    loss->dense_loss = NAN;
    if (report.sparse_blocks == 0)
        return DSV_OK;
    dsvi_sparse_restart(h->sparse);
    DSVI_TRY(measure_bins(h, events, dense));
    loss->dense_loss = held_out_mean(dense);
    return DSV_OK;
}
