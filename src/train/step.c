/* The main path: what one step of training is.
 *
 * Read dsvi_train_step first; the functions above it are its lines, in order. Called by run.c; what it
 * works on was laid out by trainer.c; where it goes deeper: model/dit.c (forward, backward), which goes on
 * to sparse/sparse.c for self-attention, and the op table (ops/ops.h). */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "base/host.h"
#include "train/schedule.h"

/* The main path with several ranks: each works on its own samples, or on its own tokens of samples that it
 * shares with others (context/context.h); gradients are summed while the backward pass goes on, each rank
 * updates its stretches of the weights, and the others get them, all by train/zero.h. Ranks that share
 * samples draw the same ones, with the same noise and times: all three follow from a sample's number. */

#define NO_SAMPLE INT64_MAX /* as what a rank has passed over */

/* Ranks that share a sample train on one and the same. A clip may be broken, or out of reach for a moment, on
 * some of them alone, and others then stand in its place there. *got is false where one has no sample. */
static DsvStatus agree_on_sample(DsvTrainer *t, int64_t passed_over, float *latent, bool *got)
{
    const DsvMesh *mesh = &t->mesh;
    int64_t *all = t->passed_over, best = 0;
    bool same = true;
    all[mesh->context_rank] = passed_over;
    DSVI_TRY(dsvi_comm_share(mesh->context, all, sizeof *all));
    *got = all[0] != NO_SAMPLE;
    for (int64_t r = 1; r < mesh->context_ranks; r++) {
        *got = *got && all[r] != NO_SAMPLE;
        same = same && all[r] == all[0];
        best = all[r] < all[best] ? r : best;
    }
    return same || !*got
               ? DSV_OK
               : dsvi_comm_broadcast(mesh->context, best, latent, (size_t)t->elements * sizeof *latent);
}

/* ahead: no failure to get a sample is one yet, so *got may be false; else it is true. */
static DsvStatus draw_sample(DsvTrainer *t, const DsvSampleSource *source, bool ahead, float *latent,
                             bool *got, double *waited)
{
    int64_t passed_over = 0;
    double start = dsvi_clock_seconds();
    DsvStatus status = source->next(source->context, latent, &passed_over);
    *waited += dsvi_clock_seconds() - start;
    if (!ahead)
        DSVI_TRY(status);
    return agree_on_sample(t, status == DSV_OK ? passed_over : NO_SAMPLE, latent, got);
}

/* A micro-batch on the host: latents from the data, and for each sample its own time. Where one is missing
 * that is drawn ahead, nothing is drawn: the step at work does not need it, and a source that failed fails
 * again when the next one does. */
static DsvStatus draw_batch(DsvTrainer *t, const DsvSampleSource *source, bool ahead, double *waited)
{
    const DsvConfig *settings = t->settings;
    uint64_t first = dsvi_trainer_first_sample(t);
    bool got;
    for (int64_t b = 0; b < settings->train_batch_size; b++) {
        DSVI_TRY(draw_sample(t, source, ahead, t->host_latents + b * t->elements, &got, waited));
        if (!got)
            return DSV_OK;
        double sigma = dsvi_flow_sigma(settings, first + (uint64_t)b);
        t->host_sigma[b] = (float)sigma;
        t->host_timestep[b] = (float)(1000 * sigma);
    }
    t->drawn = true;
    return DSV_OK;
}

/* Noise of its own for each sample of the micro-batch. */
static DsvStatus draw_noise(DsvTrainer *t)
{
    uint64_t first = dsvi_trainer_first_sample(t);
    for (int64_t b = 0; b < t->settings->train_batch_size; b++) {
        DsvNoiseArgs args = {
            .n = t->elements, .rng = dsvi_flow_noise(t->settings, first + (uint64_t)b), .acc = DSV_F32,
            .out = t->noise + b * t->elements,
        };
        DSVI_TRY(t->backend->ops.noise.run(t->backend->device->stream, &args));
    }
    return DSV_OK;
}

/* The next micro-batch to the device: the one drawn ahead, or else one drawn now. */
static DsvStatus take_batch(DsvTrainer *t, const DsvSampleSource *source, double *waited)
{
    DsvDevice *device = t->backend->device;
    int64_t batch = t->settings->train_batch_size;
    size_t bytes = (size_t)(batch * t->elements) * sizeof(float);
    if (!t->drawn)
        DSVI_TRY(draw_batch(t, source, false, waited));
    t->drawn = false;
    DSVI_TRY(device->upload(device->stream, t->latents, t->host_latents, bytes));
    DSVI_TRY(draw_noise(t));
    DSVI_TRY(device->upload(device->stream, t->sigma, t->host_sigma, (size_t)batch * sizeof(float)));
    DSVI_TRY(device->upload(device->stream, t->timestep, t->host_timestep, (size_t)batch * sizeof(float)));
    t->sample += dsvi_trainer_samples(t);
    return DSV_OK;
}

/* latents and noise become what the model sees and what it should say. */
static DsvStatus mix_noise(DsvTrainer *t)
{
    DsvFlowMixArgs args = {
        .batch = t->settings->train_batch_size, .n = t->elements, .acc = DSV_F32,
        .x0 = t->latents, .noise = t->noise, .sigma = t->sigma,
        .x_t = t->latents, .target = t->noise,
    };
    return t->backend->ops.flow_mix.run(t->backend->device->stream, &args);
}

/* What a micro-batch of one rank counts in a step. */
static double pass_weight(const DsvTrainer *t)
{
    return 1.0 / (double)(t->settings->gradient_accumulation_steps * t->mesh.data_ranks);
}

/* Mean squared error of the velocity, as far as it is the own tokens', to the result's losses. */
static DsvStatus take_loss(DsvTrainer *t, DsvStepResult *result)
{
    DsvDevice *device = t->backend->device;
    int64_t batch = t->settings->train_batch_size;
    DSVI_TRY(device->download(device->stream, t->host_loss, t->loss, (size_t)batch * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t b = 0; b < batch; b++) {
        int bin = dsvi_sigma_bin(t->host_sigma[b]);
        double loss = dsvi_dit_share(t->dit) * (double)t->host_loss[b];
        result->loss += loss * pass_weight(t) / (double)batch;
        result->bin_loss[bin] += loss;
        result->bin_samples[bin]++;
    }
    return DSV_OK;
}

/* What all ranks' samples came to together. Ranks that share samples each have a part of their losses, and
 * the first of them counts them. */
static DsvStatus gather_results(DsvTrainer *t, DsvStepResult *result)
{
    DsvStepShare *own = &t->share[dsvi_comm_rank(t->comm)], all = {0};
    own->loss = result->loss;
    memcpy(own->bin_loss, result->bin_loss, sizeof own->bin_loss);
    memcpy(own->bin_samples, result->bin_samples, sizeof own->bin_samples);
    DSVI_TRY(dsvi_zero_grad_square(&t->zero, &own->grad_square));
    DSVI_TRY(dsvi_comm_share(t->comm, t->share, sizeof *t->share));
    for (int64_t r = 0; r < dsvi_comm_size(t->comm); r++) {
        const DsvStepShare *share = &t->share[r];
        bool counts = r % t->mesh.context_ranks == 0;
        all.grad_square += r < t->mesh.shard_ranks ? share->grad_square : 0; /* the others have the same */
        all.loss += share->loss;
        for (int bin = 0; bin < DSV_SIGMA_BINS; bin++) {
            all.bin_loss[bin] += share->bin_loss[bin];
            all.bin_samples[bin] += counts ? share->bin_samples[bin] : 0;
        }
    }
    result->loss = all.loss;
    result->grad_norm = sqrt(all.grad_square);
    memcpy(result->bin_loss, all.bin_loss, sizeof result->bin_loss);
    memcpy(result->bin_samples, all.bin_samples, sizeof result->bin_samples);
    return DSV_OK;
}

/* The first rank whose loss or gradient is not finite, or -1 where that cannot be told. */
static DsvStatus find_diverged(DsvTrainer *t, int64_t *rank)
{
    bool spoilt;
    int64_t own = dsvi_comm_rank(t->comm), size = dsvi_comm_size(t->comm);
    DSVI_TRY(dsvi_zero_grad_spoilt(&t->zero, &spoilt));
    t->share[own].grad_square = spoilt;
    DSVI_TRY(dsvi_comm_share(t->comm, t->share, sizeof *t->share));
    *rank = 0;
    while (*rank < size && isfinite(t->share[*rank].loss) && t->share[*rank].grad_square == 0)
        ++*rank;
    *rank = *rank < size ? *rank : -1;
    return DSV_OK;
}

static DsvStatus diverged(DsvTrainer *t, const DsvStepResult *result)
{
    int64_t rank = -1;
    if (dsvi_comm_size(t->comm) > 1)
        DSVI_TRY(find_diverged(t, &rank));
    t->diverged = true;
    DsvStatus status = DSVI_FAIL(DSV_E_DIVERGED,
                                 "step %lld: loss %g and gradient norm %g are not both finite",
                                 (long long)result->step, result->loss, result->grad_norm);
    return rank < 0 ? status : dsvi_fail_within(status, "rank %lld", (long long)rank);
}

/* Clips by the global norm and moves the weights and their moving average. */
static DsvStatus update_weights(DsvTrainer *t, double norm, double lr)
{
    const DsvConfig *settings = t->settings;
    double most = settings->max_grad_norm;
    DsvAdamwArgs how = {
        .step = t->step + 1, .lr = lr,
        .beta1 = settings->adam_beta1, .beta2 = settings->adam_beta2, .eps = settings->adam_epsilon,
        .weight_decay = settings->weight_decay,
        /* The 1e-6 is torch.nn.utils.clip_grad_norm_'s. */
        .grad_scale = most > 0 && norm > most ? most / (norm + 1e-6) : 1.0,
        .ema_decay = settings->ema_decay,
    };
    return dsvi_zero_update(&t->zero, &how);
}

/* Adds the device's time since the last call to *phase. */
static DsvStatus lap(DsvTrainer *t, double *last, double *phase)
{
    double now;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &now));
    *phase += now - *last;
    *last = now;
    return DSV_OK;
}

/* Forward pass and loss; the host has waited for both. */
static DsvStatus find_loss(DsvTrainer *t, DsvStepResult *result)
{
    const DsvDitLoss loss = {.target = t->noise, .grad_scale = pass_weight(t),
                             .channel_weight = t->channel_weight, .loss = t->loss};
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    DSVI_TRY(mix_noise(t));
    DSVI_TRY(dsvi_dit_forward_loss(t->dit, t->latents, t->timestep, t->text, &loss));
    DSVI_TRY(take_loss(t, result));
    return lap(t, &last, &result->forward_s);
}

/* The backward pass, during which gradients go to be summed over the ranks as they are finished. Where one
 * more micro-batch follows, the host draws it from `next` meanwhile. */
static DsvStatus find_gradients(DsvTrainer *t, bool last_pass, const DsvSampleSource *next,
                                DsvStepResult *result)
{
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    dsvi_zero_begin_pass(&t->zero, last_pass);
    DSVI_TRY(dsvi_dit_backward(t->dit, NULL, NULL, NULL));
    if (next)
        DSVI_TRY(draw_batch(t, next, true, &result->wait_s));
    return lap(t, &last, &result->backward_s);
}

DsvStatus dsvi_train_gradients(DsvTrainer *t, DsvStepResult *result)
{
    DSVI_TRY(find_loss(t, result));
    return find_gradients(t, true, NULL, result);
}

DsvStatus dsvi_train_update(DsvTrainer *t, DsvStepResult *result)
{
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    DSVI_TRY(dsvi_zero_sum_gradients(&t->zero));
    DSVI_TRY(gather_results(t, result));
    if (!isfinite(result->loss) || !isfinite(result->grad_norm))
        return diverged(t, result);
    DSVI_TRY(update_weights(t, result->grad_norm, result->lr));
    DSVI_TRY(dsvi_sparse_step_end(t->sparse));
    t->step = result->step;
    return lap(t, &last, &result->optimizer_s);
}

/* Gradients begin at zero; the time counts as the optimizer's, as no phase else would hold it. */
static DsvStatus clear_gradients(DsvTrainer *t, DsvStepResult *result)
{
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    DSVI_TRY(dsvi_zero_clear_gradients(&t->zero));
    return lap(t, &last, &result->optimizer_s);
}

static DsvStatus take_step(DsvTrainer *t, const DsvSampleSource *source, DsvStepResult *result)
{
    const DsvConfig *settings = t->settings;
    int64_t passes = settings->gradient_accumulation_steps;
    if (!t->drawn) /* before anything of the step: without a sample all stays as it is, and can be saved */
        DSVI_TRY(draw_batch(t, source, false, &result->wait_s));
    result->begun = true;
    if (t->plans)
        DSVI_TRY(dsvi_context_plans_step(t->plans));
    DSVI_TRY(dsvi_sparse_step_begin(t->sparse, result->step, true));
    DSVI_TRY(clear_gradients(t, result));
    for (int64_t i = 0; i < passes; i++) {
        bool last_pass = i + 1 == passes, last = result->step >= settings->max_train_steps && last_pass;
        DSVI_TRY(take_batch(t, source, &result->wait_s));
        DSVI_TRY(find_loss(t, result));
        DSVI_TRY(find_gradients(t, last_pass, last ? NULL : source, result));
    }
    return dsvi_train_update(t, result);
}

DsvStatus dsvi_train_step(DsvTrainer *t, const DsvSampleSource *source, DsvStepResult *result)
{
    memset(result, 0, sizeof *result);
    result->step = t->step + 1;
    result->lr = dsvi_learning_rate(t->settings, result->step);
    return dsvi_zero_settle(&t->zero, take_step(t, source, result));
}
