/* The sampling loop: see sample_loop.h. Noise, then for each step of the sampler one or two passes of the
 * model, then the codec. */
#include "sample/sample_loop.h"

#include <math.h>
#include <stdlib.h>

#include "base/host.h"
#include "base/rng.h"

/* What a call holds on the host. */
typedef struct Walk {
    const DsvSampleJob *job;
    const DsvEvents *events;
    DsvSampler *sampler;
    int64_t elements; /* of the latent */
    bool guided;
    float *memory;    /* of the three below */
    float *state;     /* (elements) */
    float *velocity;  /* (elements) */
    float *other;     /* (elements), unconditional velocity; only when guided */
} Walk;

static DsvStatus open_walk(Walk *w)
{
    const DsvSampleJob *job = w->job;
    DsvVideoShape latent = job->latent;
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

/* One pass of the model on what lies in job->latents, with these text rows. */
static DsvStatus evaluate(const Walk *w, const float *text, float *velocity)
{
    const DsvSampleJob *job = w->job;
    DsvDevice *device = job->backend->device;
    DSVI_TRY(device->upload(device->stream, job->text_rows, text,
                            (size_t)job->text_elements * sizeof(float)));
    DSVI_TRY(dsvi_dit_forward(job->dit, job->latents, job->timestep, job->text_rows, job->output));
    DSVI_TRY(device->download(device->stream, velocity, job->output, (size_t)w->elements * sizeof(float)));
    return device->sync(device->stream);
}

/* The velocity at step i, guided where asked: v_uncond + g (v_cond - v_uncond). */
static DsvStatus find_velocity(const Walk *w, int64_t i)
{
    const DsvSampleJob *job = w->job;
    DsvDevice *device = job->backend->device;
    float timestep = (float)dsvi_sampler_timestep(w->sampler, i);
    DSVI_TRY(device->upload(device->stream, job->latents, w->state, (size_t)w->elements * sizeof(float)));
    DSVI_TRY(device->upload(device->stream, job->timestep, &timestep, sizeof timestep));
    DSVI_TRY(evaluate(w, job->text ? job->text : job->null_text, w->velocity));
    if (!w->guided)
        return DSV_OK;
    DSVI_TRY(evaluate(w, job->null_text, w->other));
    for (int64_t e = 0; e < w->elements; e++)
        w->velocity[e] = (float)(w->other[e] + job->guidance_scale * ((double)w->velocity[e] - w->other[e]));
    return DSV_OK;
}

static DsvStatus take_step(const Walk *w, int64_t i)
{
    const DsvSampleJob *job = w->job;
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_begin(job->sparse, i + 1, false));
    DSVI_TRY(find_velocity(w, i));
    if (job->sparse)
        DSVI_TRY(dsvi_sparse_step_end(job->sparse));
    return dsvi_sampler_step(w->sampler, i, w->velocity, w->state);
}

static void tell(const Walk *w, int64_t done, double seconds)
{
    int64_t total = w->job->steps;
    DsvDevice *device = w->job->backend->device;
    DsvProgress progress = {
        .unit = "step", .done = done, .total = total,
        .seconds_left = seconds / (double)done * (double)(total - done), .loss = NAN, .grad_norm = NAN,
        .lr = NAN, .captured_mass = NAN, .memory_bytes = device->memory_used(device),
    };
    if (w->events->progress)
        w->events->progress(w->events->context, &progress);
}

static DsvStatus walk(const Walk *w)
{
    const DsvSampleJob *job = w->job;
    DsvRng rng = {job->seed, DSV_RNG_SAMPLE, 0};
    double start = dsvi_clock_seconds();
    dsvi_rng_fill_normal(rng, 0, w->state, w->elements);
    for (int64_t i = 0; i < job->steps; i++) {
        if (w->events->stop && w->events->stop(w->events->context))
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after %lld of %lld sampling steps", (long long)i,
                             (long long)job->steps);
        DSVI_TRY(take_step(w, i));
        tell(w, i + 1, dsvi_clock_seconds() - start);
    }
    return job->codec->decode(job->codec, job->video, w->state, job->pixels);
}

DsvStatus dsvi_sample_run(const DsvSampleJob *job, const DsvEvents *events)
{
    DsvStatus status;
    Walk w = {.job = job, .events = events};
    DSVI_TRY_GOTO(status, open_walk(&w), done);
    DSVI_TRY_GOTO(status, walk(&w), done);
done:
    dsvi_sampler_free(&w.sampler);
    free(w.memory);
    return status;
}
