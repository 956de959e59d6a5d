/* The sampling loop: begins with noise, evaluates the model once or twice for each step of the sampler, and
 * decodes the latent with the codec. */
#include "sample/sample_loop.h"

#include <math.h>
#include <stdlib.h>

#include "base/host.h"
#include "base/rng.h"

/* State in host memory of one call of dsvi_sample_run, which samples a clip. */
typedef struct Walk {
    const DsviSampleJob *job;
    const DsvEvents *events;
    DsviSampler *sampler;
    int64_t elements; /* number of elements of the latent */
    bool guided;      /* the model is evaluated with and without text */
    float *memory;    /* one allocation for the three arrays below */
    float *state;     /* (elements) the latent */
    float *velocity;  /* (elements) */
    float *other;     /* (elements) unconditional velocity; NULL unless guided */
} Walk;

static DsvStatus open_walk(Walk *w)
{
    const DsviSampleJob *job = w->job;
    DsviVideoShape latent = job->latent;
    w->elements = latent.channels * latent.frames * latent.height * latent.width;
    w->guided = job->text && job->guidance_scale != 1;
    w->memory = malloc((size_t)w->elements * (w->guided ? 3 : 2) * sizeof(float));
    if (!w->memory)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers of a latent", (long long)w->elements);
    w->state = w->memory;
    w->velocity = w->state + w->elements;
    w->other = w->guided ? w->velocity + w->elements : NULL;
    return dsvi_sampler_create(job->sampler, job->steps, job->flow_shift, w->elements, &w->sampler);
}

/* Evaluates the model with the text rows `text` on job->latents and job->timestep. Downloads the model's
 * output, the velocity, and waits until the download is complete. */
static DsvStatus sample_loop_evaluate(const Walk *w, const float *text, float *velocity)
{
    const DsviSampleJob *job = w->job;
    DsviDevice *device = job->backend->device;
    DSVI_TRY(
        device->upload(device->stream, job->text_rows, text, (size_t)job->text_elements * sizeof(float)));
    DSVI_TRY(dsvi_dit_forward(job->dit, job->latents, job->timestep, job->text_rows, job->output, NULL));
    DSVI_TRY(device->download(device->stream, velocity, job->output, (size_t)w->elements * sizeof(float)));
    return device->sync(device->stream);
}

/* Computes the velocity at step i. With guidance of scale g the velocity is v_uncond + g (v_cond -
 * v_uncond), from one evaluation without text and one with text. */
static DsvStatus find_velocity(const Walk *w, int64_t i)
{
    const DsviSampleJob *job = w->job;
    DsviDevice *device = job->backend->device;
    float timestep = (float)dsvi_sampler_timestep(w->sampler, i);
    DSVI_TRY(device->upload(device->stream, job->latents, w->state, (size_t)w->elements * sizeof(float)));
    DSVI_TRY(device->upload(device->stream, job->timestep, &timestep, sizeof timestep));
    DSVI_TRY(sample_loop_evaluate(w, job->text ? job->text : job->null_text, w->velocity));
    if (!w->guided)
        return DSV_OK;
    DSVI_TRY(sample_loop_evaluate(w, job->null_text, w->other));
    for (int64_t e = 0; e < w->elements; e++)
        w->velocity[e] = (float)(w->other[e] + job->guidance_scale * ((double)w->velocity[e] - w->other[e]));
    return DSV_OK;
}

static DsvStatus sample_loop_take_step(const Walk *w, int64_t i)
{
    const DsviSampleJob *job = w->job;
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_begin(job->sparse, i + 1, false));
    DSVI_TRY(find_velocity(w, i));
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_end(job->sparse));
    return dsvi_sampler_step(w->sampler, i, w->velocity, w->state);
}

static void sample_loop_report(const Walk *w, int64_t done, double seconds)
{
    int64_t total = w->job->steps;
    DsviDevice *device = w->job->backend->device;
    DsvProgress progress = {
        .unit = "step",
        .done = done,
        .total = total,
        .seconds_left = seconds / (double)done * (double)(total - done),
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
    dsvi_rng_fill_normal(rng, 0, w->state, w->elements);
    for (int64_t i = 0; i < job->steps; i++) {
        if (w->events->stop && w->events->stop(w->events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld sampling steps", (long long)i,
                             (long long)job->steps);
        DSVI_TRY(sample_loop_take_step(w, i));
        sample_loop_report(w, i + 1, dsvi_clock_seconds() - start);
    }
    return job->codec->decode(job->codec, job->video, w->state, job->pixels);
}

DsvStatus dsvi_sample_run(const DsviSampleJob *job, const DsvEvents *events)
{
    DsvStatus status;
    Walk w = {.job = job, .events = events};
    DSVI_TRY_GOTO(status, open_walk(&w), done);
    DSVI_TRY_GOTO(status, sample_loop_walk(&w), done);
done:
    dsvi_sampler_free(&w.sampler);
    free(w.memory);
    return status;
}
