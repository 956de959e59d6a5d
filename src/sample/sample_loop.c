/* The sampling loop: begins with noise, evaluates the model once or twice for each step of the sampler, and
 * decodes the latent with the codec. */
#include "sample/sample_loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/rng.h"

enum { BATCH_MAX = 2 };

/* State in host memory of one call of dsvi_sample_latent. */
typedef struct Walk {
    const DsviSampleJob *job;
    const DsvEvents *events;
    DsviSampler *sampler;
    int64_t elements; /* number of elements of the latent */
    int64_t inputs;   /* number of elements of the model's input: the latent, then the picture */
    bool guided;      /* the model is evaluated with both kinds of text */
    float *memory;    /* one allocation for the two arrays below */
    float *velocity;  /* (elements) */
    float *other;     /* (elements) velocity with null_text; NULL unless guided */
    float *state;     /* (elements) the latent, the caller's */
} Walk;

static int64_t latent_elements(const DsviSampleJob *job)
{
    DsviVideoShape latent = job->latent;
    return latent.channels * latent.frames * latent.height * latent.width;
}

bool dsvi_sample_guided(const DsviSampleJob *job)
{
    return job->text && job->guidance_scale > 1;
}

static DsvStatus open_walk(Walk *w)
{
    const DsviSampleJob *job = w->job;
    w->elements = latent_elements(job);
    w->inputs = w->elements / job->latent.channels * (job->latent.channels + job->image_channels);
    w->guided = dsvi_sample_guided(job);
    DSVI_ASSERT(job->batch == 1 || (job->batch == BATCH_MAX && w->guided));
    w->memory = malloc((size_t)w->elements * (w->guided ? 2 : 1) * sizeof(float));
    if (!w->memory)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers of a latent", (long long)w->elements);
    w->velocity = w->memory;
    w->other = w->guided ? w->velocity + w->elements : NULL;
    return dsvi_sampler_create(job->sampler, job->steps, job->flow_shift, w->elements, &w->sampler);
}

/* Uploads `count` elements to the model's input from element `first` on, for all rows of the batch. */
static DsvStatus upload_input(const Walk *w, int64_t first, const float *from, int64_t count)
{
    DsviDevice *device = w->job->backend->device;
    for (int64_t b = 0; b < w->job->batch; b++)
        DSVI_TRY(device->upload(device->stream, (float *)w->job->latents + b * w->inputs + first, from,
                                (size_t)count * sizeof *from));
    return DSV_OK;
}

/* Uploads the pictures that the model takes, which are the same in all steps. */
static DsvStatus upload_image(const Walk *w)
{
    const DsviSampleJob *job = w->job;
    DsviDevice *device = job->backend->device;
    size_t bytes = (size_t)job->image_row_elements * sizeof(float);
    if (job->image_channels > 0)
        DSVI_TRY(upload_input(w, w->elements, job->image, w->inputs - w->elements));
    if (bytes == 0)
        return DSV_OK;
    for (int64_t b = 0; b < job->batch; b++)
        DSVI_TRY(device->upload(device->stream, (char *)job->image_memory + (size_t)b * bytes,
                                job->image_rows, bytes));
    dsvi_dit_set_image(job->dit, job->image_memory, NULL);
    return DSV_OK;
}

/* Evaluates the model on the latents and timesteps on the device, for job->batch rows of text. Downloads the
 * velocities, one array for each row, and waits until the downloads are complete. */
static DsvStatus sample_loop_evaluate(const Walk *w, const float *const *text, float *const *velocity)
{
    const DsviSampleJob *job = w->job;
    DsviDevice *device = job->backend->device;
    size_t text_bytes = (size_t)job->text_elements * sizeof(float);
    size_t latent_bytes = (size_t)w->elements * sizeof(float);
    for (int64_t b = 0; b < job->batch; b++)
        DSVI_TRY(device->upload(device->stream, (char *)job->text_rows + (size_t)b * text_bytes, text[b],
                                text_bytes));
    DSVI_TRY(dsvi_dit_forward(job->dit, job->latents, job->timestep, job->text_rows, job->output, NULL));
    for (int64_t b = 0; b < job->batch; b++)
        DSVI_TRY(device->download(device->stream, velocity[b], (char *)job->output + (size_t)b * latent_bytes,
                                  latent_bytes));
    return device->sync(device->stream);
}

/* Makes the first frame of the latent the given one. Its own velocity has no meaning, and the sampler leaves
 * frames apart. */
static void set_first_frame(const Walk *w)
{
    DsviVideoShape latent = w->job->latent;
    size_t frame = (size_t)(latent.height * latent.width), clip = (size_t)latent.frames * frame;
    for (size_t c = 0; w->job->first_frame && c < (size_t)latent.channels; c++)
        memcpy(w->state + c * clip, w->job->first_frame + c * frame, frame * sizeof *w->state);
}

/* Returns which expert computes step i: 0 for high, 1 for low noise. Timesteps are compared in F32, as
 * diffusers compares them. */
static int expert_of_step(const Walk *w, int64_t i)
{
    return w->job->use_expert && (float)dsvi_sampler_timestep(w->sampler, i) < (float)w->job->boundary;
}

/* Computes the velocity at step i: of a guided step with guidance g it is v_null + g (v_text - v_null). */
static DsvStatus find_velocity(const Walk *w, int64_t i)
{
    const DsviSampleJob *job = w->job;
    DsviDevice *device = job->backend->device;
    float timestep = (float)dsvi_sampler_timestep(w->sampler, i);
    float timesteps[2 * BATCH_MAX] = {timestep, timestep};
    int64_t times = job->first_frame ? 2 : 1;
    const float *const text[BATCH_MAX] = {job->text ? job->text : job->null_text, job->null_text};
    float *const velocity[BATCH_MAX] = {w->velocity, w->other};
    double guidance = expert_of_step(w, i) ? job->guidance_scale_2 : job->guidance_scale;
    for (int64_t b = 0; times > 1 && b < BATCH_MAX; b++) {
        timesteps[2 * b] = 0;
        timesteps[2 * b + 1] = timestep;
    }
    set_first_frame(w);
    DSVI_TRY(upload_input(w, 0, w->state, w->elements));
    DSVI_TRY(device->upload(device->stream, job->timestep, timesteps,
                            (size_t)(job->batch * times) * sizeof *timesteps));
    for (int64_t row = 0; row < (w->guided ? BATCH_MAX : 1); row += job->batch) {
        if (row > 0 && job->sparse && job->sparse_learns)
            DSVI_TRY(dsvi_sparse_measure_again(job->sparse));
        DSVI_TRY(sample_loop_evaluate(w, text + row, velocity + row));
    }
    for (int64_t e = 0; w->guided && e < w->elements; e++)
        w->velocity[e] = (float)(w->other[e] + guidance * ((double)w->velocity[e] - w->other[e]));
    return DSV_OK;
}

static DsvStatus sample_loop_take_step(const Walk *w, int64_t i)
{
    const DsviSampleJob *job = w->job;
    int expert = expert_of_step(w, i);
    if (job->use_expert)
        DSVI_TRY(job->use_expert(job->expert_context, expert));
    if (job->sparse_learns && i > 0 && expert != expert_of_step(w, i - 1))
        dsvi_sparse_restart(job->sparse); /* what was measured holds for the other expert */
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_begin(job->sparse, i + 1, job->sparse_learns));
    DSVI_TRY(find_velocity(w, i));
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_end(job->sparse));
    if (job->use)
        dsvi_sparse_use_add(job->use, job->sparse);
    return dsvi_sampler_step(w->sampler, i, w->velocity, w->state);
}

/* Reports that `done` steps of this clip took so many seconds. */
static void sample_loop_report(const Walk *w, int64_t done, double seconds)
{
    const DsviSampleJob *job = w->job;
    int64_t left = job->steps - done + job->steps_after;
    DsviDevice *device = job->backend->device;
    DsvProgress progress = {
        .unit = !job->use_expert              ? "step"
                : expert_of_step(w, done - 1) ? "low noise, step"
                                              : "high noise, step",
        .done = job->steps_before + done,
        .total = job->steps_before + job->steps + job->steps_after,
        .seconds_left = seconds / (double)done * (double)left,
        .loss = NAN,
        .grad_norm = NAN,
        .lr = NAN,
        .captured_mass = NAN,
        .memory_bytes = device->memory_used(device),
    };
    if (w->events->progress)
        w->events->progress(w->events->context, &progress);
}

static DsvStatus sample_loop_walk(const Walk *w)
{
    const DsviSampleJob *job = w->job;
    DsviRng rng = {job->seed, DSVI_RNG_SAMPLE, 0};
    double start = dsvi_clock_seconds();
    if (job->noise)
        memcpy(w->state, job->noise, (size_t)w->elements * sizeof *w->state);
    else
        dsvi_rng_fill_normal(rng, 0, w->state, w->elements);
    DSVI_TRY(upload_image(w));
    for (int64_t i = 0; i < job->steps; i++) {
        if (w->events->stop && w->events->stop(w->events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld sampling steps", (long long)i,
                             (long long)job->steps);
        DSVI_TRY(sample_loop_take_step(w, i));
        sample_loop_report(w, i + 1, dsvi_clock_seconds() - start);
    }
    set_first_frame(w);
    return DSV_OK;
}

DsvStatus dsvi_sample_latent(const DsviSampleJob *job, const DsvEvents *events, float *latent)
{
    DsvStatus status;
    Walk w = {.job = job, .events = events, .state = latent};
    DSVI_TRY_GOTO(status, open_walk(&w), done);
    DSVI_TRY_GOTO(status, sample_loop_walk(&w), done);
done:
    dsvi_sampler_free(&w.sampler);
    free(w.memory);
    return status;
}

DsvStatus dsvi_sample_run(const DsviSampleJob *job, const DsvEvents *events)
{
    DsvStatus status;
    float *latent = malloc((size_t)latent_elements(job) * sizeof *latent);
    if (!latent)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a latent");
    DSVI_TRY_GOTO(status, dsvi_sample_latent(job, events, latent), done);
    DSVI_TRY_GOTO(status, job->codec->decode(job->codec, job->video, latent, job->pixels), done);
done:
    free(latent);
    return status;
}
