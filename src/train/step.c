/* The main path: one training step.
 *
 * Read dsvi_train_step at the end first; the functions above are called from there, in their order in the
 * file. run/run.c calls dsvi_train_step, and trainer.c creates the trainer. Forward and backward passes are
 * in model/dit/dit.c, which calls sparse/sparse.c for self-attention. Computing is done by the operations in
 * ops/ops.h. */
#include "train/step.h"

#include <math.h>
#include <string.h>

#include "base/host.h"
#include "train/flow_batch.h"
#include "train/schedule.h"
#include "train/trainer_sizes.h"

/* With several ranks, each rank processes its own samples, or its own tokens of samples that it shares with
 * other ranks (cp/cp.h). Gradients are summed over ranks during the backward pass; then each rank updates its
 * shard of the weights and sends it to the others (train/zero.h). Ranks that share samples draw the same
 * samples with the same noise and noise levels, because all three depend only on the sample's number. */

#define NO_SAMPLE INT64_MAX /* value of passed_over on a rank that got no sample */

/* Returns the number of elements of one sample's text rows. */
static size_t text_elements(const DsviTrainer *t)
{
    return (size_t)(t->config.text_len * t->config.text_dim);
}

/* Returns the number of elements of a sample in host memory, in the next micro-batch. */
static int64_t next_elements(const DsviTrainer *t)
{
    return t->sizes[t->next_size].inputs + t->image_elements;
}

/* Makes sure that ranks that share a sample use the same latent and text. A clip may be unreadable on some of
 * these ranks, which then have read a later clip instead. All use the sample of the rank that passed over the
 * fewest windows. `failed`: this rank has no sample. *got is false if any of these ranks has none. */
static DsvStatus agree_on_sample(DsviTrainer *t, bool failed, DsviSample *sample, bool *got)
{
    const DsviMesh *mesh = &t->mesh;
    int64_t *all = t->passed_over, best = 0;
    bool same = true;
    all[mesh->cp_rank] = failed ? NO_SAMPLE : sample->passed_over;
    DSVI_TRY(dsvi_comm_all_gather_one(mesh->cp, all, sizeof *all));
    *got = all[0] != NO_SAMPLE;
    for (int64_t r = 1; r < mesh->cp_ranks; r++) {
        *got = *got && all[r] != NO_SAMPLE;
        same = same && all[r] == all[0];
        best = all[r] < all[best] ? r : best;
    }
    if (same || !*got)
        return DSV_OK;
    DSVI_TRY(dsvi_comm_broadcast(mesh->cp, best, &sample->text_rows, sizeof sample->text_rows));
    if (sample->text_rows > 0)
        DSVI_TRY(dsvi_comm_broadcast(mesh->cp, best, sample->text,
                                     (size_t)(sample->text_rows * t->config.text_dim) * sizeof(float)));
    return dsvi_comm_broadcast(mesh->cp, best, sample->latent, (size_t)next_elements(t) * sizeof(float));
}

/* Clears the rows of zeros that follow the text states: the model was trained with them (no mask). */
static void pad_text(const DsviTrainer *t, const DsviSample *sample)
{
    size_t used = (size_t)(sample->text_rows * t->config.text_dim), all = text_elements(t);
    memset(sample->text + used, 0, (all - used) * sizeof(float));
}

/* Draws sample number `b` of the micro-batch into the host buffers. If `ahead` (the sample is for the next
 * pass), a failed source is not an error yet: the result is DSV_OK and *got is false. Otherwise *got is true
 * unless the result is an error. */
static DsvStatus draw_sample(DsviTrainer *t, const DsviSampleSource *source, bool ahead, int64_t b, bool *got,
                             double *waited)
{
    DsviSample sample = {
        .latent = t->host_latents + b * next_elements(t),
        .text = source->text ? t->host_text + (size_t)b * text_elements(t) : NULL,
    };
    double start = dsvi_clock_seconds();
    DsvStatus status = source->next(source->context, &sample);
    *waited += dsvi_clock_seconds() - start;
    if (!ahead)
        DSVI_TRY(status);
    DSVI_TRY(agree_on_sample(t, status != DSV_OK, &sample, got));
    if (*got && source->text)
        pad_text(t, &sample);
    return DSV_OK;
}

/* Draws a micro-batch into the host buffers: a latent, text states and a noise level for each sample. If
 * `ahead` (the batch is for the next pass) and a sample is missing, returns DSV_OK and leaves t->drawn false:
 * the source fails again when the batch is needed. */
static DsvStatus draw_batch(DsviTrainer *t, const DsviSampleSource *source, bool ahead, double *waited)
{
    const DsvConfig *settings = t->settings;
    uint64_t first = dsvi_trainer_next_batch(t, &t->next_size);
    const DsviClipSize *clip = &t->sizes[t->next_size].clip;
    const double shift = dsvi_flow_shift(settings, clip->height * clip->width);
    bool got;
    for (int64_t b = 0; b < settings->train_batch_size; b++) {
        DSVI_TRY(draw_sample(t, source, ahead, b, &got, waited));
        if (!got)
            return DSV_OK;
        double sigma = dsvi_flow_sigma(settings, shift, first + (uint64_t)b);
        t->host_sigma[b] = (float)sigma;
        dsvi_flow_set_times(settings, sigma, b, t->host_timestep);
    }
    t->drawn = true;
    return DSV_OK;
}

/* Draws the noise of each sample of the micro-batch on the device. */
static DsvStatus draw_noise(DsviTrainer *t)
{
    uint64_t first = dsvi_trainer_first_sample(t);
    for (int64_t b = 0; b < t->settings->train_batch_size; b++) {
        DsviNoiseArgs args = {
            .n = t->elements,
            .rng = dsvi_flow_noise(t->settings, first + (uint64_t)b),
            .acc = DSVI_F32,
            .out = t->noise + b * t->elements,
        };
        DSVI_TRY(t->backend->ops.noise.run(t->backend->device->stream, &args));
    }
    return DSV_OK;
}

/* Uploads the samples' inputs, and the states of pictures that follow each. */
static DsvStatus upload_samples(DsviTrainer *t)
{
    DsviDevice *device = t->backend->device;
    size_t inputs = (size_t)t->inputs, image = (size_t)t->image_elements;
    for (size_t b = 0; b < (size_t)t->settings->train_batch_size; b++) {
        const float *sample = t->host_latents + b * (inputs + image);
        DSVI_TRY(device->upload(device->stream, t->latents + b * inputs, sample, inputs * sizeof(float)));
        if (image > 0)
            DSVI_TRY(
                device->upload(device->stream, t->image + b * image, sample + inputs, image * sizeof(float)));
    }
    return DSV_OK;
}

/* Uploads the next micro-batch. Draws it first, unless the previous pass has already drawn it. */
static DsvStatus take_batch(DsviTrainer *t, const DsviSampleSource *source, double *waited)
{
    DsviDevice *device = t->backend->device;
    int64_t batch = t->settings->train_batch_size;
    if (!t->drawn)
        DSVI_TRY(draw_batch(t, source, false, waited));
    t->drawn = false;
    dsvi_trainer_use(t, t->next_size);
    DSVI_TRY(upload_samples(t));
    if (source->text)
        DSVI_TRY(device->upload(device->stream, t->text, t->host_text,
                                (size_t)batch * text_elements(t) * sizeof(float)));
    dsvi_dit_set_samples(t->dit, (uint64_t)t->settings->seed, dsvi_trainer_first_sample(t));
    DSVI_TRY(draw_noise(t));
    DSVI_TRY(device->upload(device->stream, t->sigma, t->host_sigma, (size_t)batch * sizeof(float)));
    DSVI_TRY(device->upload(device->stream, t->timestep, t->host_timestep,
                            (size_t)(batch * dsvi_flow_times(t->settings)) * sizeof(float)));
    t->sample += dsvi_trainer_samples(t);
    t->pass = (t->pass + 1) % t->settings->gradient_accumulation_steps;
    return DSV_OK;
}

/* Replaces latents by the noisy model input, and noise by the target velocity. */
static DsvStatus mix_noise(DsviTrainer *t)
{
    return dsvi_flow_mix_batch(&(DsviFlowBatch){.settings = t->settings,
                                                .backend = t->backend,
                                                .batch = t->settings->train_batch_size,
                                                .latent = t->latent,
                                                .inputs = t->inputs,
                                                .latents = t->latents,
                                                .noise = t->noise,
                                                .sigma = t->sigma});
}

/* Returns the weight of one rank's micro-batch in the mean loss of the step. */
static double pass_weight(const DsviTrainer *t)
{
    return 1.0 / (double)(t->settings->gradient_accumulation_steps * t->mesh.data_ranks);
}

/* Returns the weights of the samples' gradients, or NULL if all are 1. */
static const double *sample_weights(const DsviTrainer *t)
{
    if (!dsvi_flow_weighs(t->settings))
        return NULL;
    for (int64_t b = 0; b < t->settings->train_batch_size; b++)
        t->host_weight[b] = dsvi_flow_weight(t->settings, t->host_sigma[b]);
    return t->host_weight;
}

/* Waits for the forward pass and adds its loss, of this rank's tokens only, to `result`. */
static DsvStatus take_loss(DsviTrainer *t, DsviStepResult *result)
{
    DsviDevice *device = t->backend->device;
    int64_t batch = t->settings->train_batch_size;
    DSVI_TRY(device->download(device->stream, t->host_loss, t->loss, (size_t)batch * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    for (int64_t b = 0; b < batch; b++) {
        int bin = dsvi_sigma_bin(t->host_sigma[b]);
        double loss = dsvi_dit_token_fraction(t->dit) * (double)t->host_loss[b];
        result->loss += loss * pass_weight(t) / (double)batch;
        result->bin_loss[bin] += loss;
        result->bin_samples[bin]++;
    }
    return DSV_OK;
}

/* Sums loss and gradient norm over all ranks, in `result`. Each of the ranks that share samples contributes
 * the loss of its tokens, but only the first of them counts the samples. */
static DsvStatus gather_results(DsviTrainer *t, DsviStepResult *result)
{
    DsviStepPart *local = &t->step_parts[dsvi_comm_rank(t->comm)], all = {0};
    local->loss = result->loss;
    memcpy(local->bin_loss, result->bin_loss, sizeof local->bin_loss);
    memcpy(local->bin_samples, result->bin_samples, sizeof local->bin_samples);
    DSVI_TRY(dsvi_zero_grad_square(&t->zero, &local->grad_square));
    DSVI_TRY(dsvi_comm_all_gather_one(t->comm, t->step_parts, sizeof *t->step_parts));
    for (int64_t r = 0; r < dsvi_comm_size(t->comm); r++) {
        const DsviStepPart *part = &t->step_parts[r];
        bool counts = r % t->mesh.cp_ranks == 0;
        /* Only ranks of the first shard group count, because the other shard groups hold copies of the
         * same gradients. */
        all.grad_square += r < t->mesh.shard_ranks ? part->grad_square : 0;
        all.loss += part->loss;
        for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++) {
            all.bin_loss[bin] += part->bin_loss[bin];
            all.bin_samples[bin] += counts ? part->bin_samples[bin] : 0;
        }
    }
    result->loss = all.loss;
    result->grad_norm = sqrt(all.grad_square);
    memcpy(result->bin_loss, all.bin_loss, sizeof result->bin_loss);
    memcpy(result->bin_samples, all.bin_samples, sizeof result->bin_samples);
    return DSV_OK;
}

/* Sets *rank to the first rank whose loss or gradient is not finite before the sum over ranks; -1: none
 * found. */
static DsvStatus find_diverged(DsviTrainer *t, int64_t *rank)
{
    bool spoilt;
    int64_t self = dsvi_comm_rank(t->comm), size = dsvi_comm_size(t->comm);
    DSVI_TRY(dsvi_zero_grad_nonfinite(&t->zero, &spoilt));
    t->step_parts[self].grad_square = spoilt;
    DSVI_TRY(dsvi_comm_all_gather_one(t->comm, t->step_parts, sizeof *t->step_parts));
    *rank = 0;
    while (*rank < size && isfinite(t->step_parts[*rank].loss) && t->step_parts[*rank].grad_square == 0)
        ++*rank;
    *rank = *rank < size ? *rank : -1;
    return DSV_OK;
}

static DsvStatus diverged(DsviTrainer *t, const DsviStepResult *result)
{
    int64_t rank = -1;
    if (dsvi_comm_size(t->comm) > 1)
        DSVI_TRY(find_diverged(t, &rank));
    t->diverged = true;
    DsvStatus status = DSVI_FAIL(DSV_E_DIVERGED,
                                 "step %lld: loss %g and gradient norm %g are not both finite",
                                 (long long)result->step, result->loss, result->grad_norm);
    return rank < 0 ? status : dsvi_fail_prefix(status, "rank %lld", (long long)rank);
}

/* Returns the options of the update of weights and their moving average; gradients are clipped by the global
 * norm. */
static DsviAdamwArgs update_options(const DsviTrainer *t, double norm, double lr)
{
    const DsvConfig *settings = t->settings;
    double norm_max = settings->max_grad_norm;
    return (DsviAdamwArgs){
        .step = t->step + 1,
        .lr = lr,
        .beta1 = settings->adam_beta1,
        .beta2 = settings->adam_beta2,
        .eps = settings->adam_epsilon,
        .weight_decay = settings->weight_decay,
        /* 1e-6 is added to the norm as in torch.nn.utils.clip_grad_norm_. */
        .grad_scale = norm_max > 0 && norm > norm_max ? norm_max / (norm + 1e-6) : 1.0,
        .rng = {(uint64_t)settings->seed, DSVI_RNG_ROUNDING, (uint32_t)(t->step + 1)},
        .ema_decay = settings->ema_decay,
    };
}

static DsvStatus update_weights(DsviTrainer *t, double norm, double lr)
{
    const DsviAdamwArgs options = update_options(t, norm, lr);
    return t->zero.updates_in_pass ? DSV_OK : dsvi_zero_update(&t->zero, &options);
}

/* Call before a backward pass, which may update the weights. */
static DsvStatus begin_update_in_pass(DsviTrainer *t, const DsviStepResult *result)
{
    const DsviAdamwArgs options = update_options(t, 0, result->lr);
    if (!t->zero.updates_in_pass)
        return DSV_OK;
    if (!isfinite(result->loss))
        return diverged(t, result);
    dsvi_zero_update_in_pass(&t->zero, &options);
    return DSV_OK;
}

/* Adds the device's time since *last, the clock at the previous call, to *phase. */
static DsvStatus lap(DsviTrainer *t, double *last, double *phase)
{
    double now;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &now));
    *phase += now - *last;
    *last = now;
    return DSV_OK;
}

DsvStatus dsvi_train_gradients(DsviTrainer *t, bool last_pass, const DsviSampleSource *next,
                               DsviStepResult *result)
{
    const DsviDitLoss loss = {.target = t->noise,
                              .grad_scale = pass_weight(t),
                              .sample_weight = sample_weights(t),
                              .channel_weight = t->channel_weight,
                              .loss = t->loss};
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    DSVI_TRY(mix_noise(t));
    DSVI_TRY(dsvi_dit_forward(t->dit, t->latents, t->timestep, t->text, NULL, &loss));
    DSVI_TRY(take_loss(t, result)); /* waits for the device */
    DSVI_TRY(lap(t, &last, &result->forward_s));
    DSVI_TRY(begin_update_in_pass(t, result));
    dsvi_zero_begin_pass(&t->zero, last_pass); /* the last pass sums gradients over ranks while it runs */
    DSVI_TRY(dsvi_dit_backward(t->dit, NULL, NULL, NULL));
    if (next) /* the host draws the next micro-batch while the device computes this one */
        DSVI_TRY(draw_batch(t, next, true, &result->wait_s));
    return lap(t, &last, &result->backward_s);
}

DsvStatus dsvi_train_update(DsviTrainer *t, DsviStepResult *result)
{
    double last;
    DSVI_TRY(t->backend->device->clock(t->backend->device->stream, &last));
    DSVI_TRY(dsvi_zero_sum_gradients(&t->zero));
    DSVI_TRY(gather_results(t, result));
    if (!isfinite(result->loss) || !isfinite(result->grad_norm))
        return diverged(t, result);
    DSVI_TRY(update_weights(t, result->grad_norm, result->lr));
    DSVI_TRY(dsvi_trainer_sizes_step_end(t));
    t->step = result->step;
    return lap(t, &last, &result->optimizer_s);
}

/* Counts the micro-batches of each size of the step that begins now. */
static void count_batches(const DsviTrainer *t, DsviStepResult *result)
{
    int64_t passes = t->settings->gradient_accumulation_steps, size = t->main_size;
    uint64_t first = t->sample / (uint64_t)t->settings->train_batch_size;
    for (int64_t rank = 0; rank < t->mesh.data_ranks; rank++)
        for (int64_t pass = 0; pass < passes; pass++) {
            if (t->dealer)
                dsvi_dealer_batch(t->dealer, first, rank, pass, &size);
            result->batches[size]++;
        }
}

DsvStatus dsvi_train_step(DsviTrainer *t, const DsviSampleSource *source, DsviStepResult *result)
{
    const DsvConfig *settings = t->settings;
    DsviDevice *device = t->backend->device;
    int64_t passes = settings->gradient_accumulation_steps;
    double last;
    DsvStatus status = DSV_OK;
    memset(result, 0, sizeof *result);
    result->step = t->step + 1;
    result->lr = dsvi_learning_rate(settings, result->step);
    if (!t->drawn) /* the first batch is drawn before the step changes anything: if no sample can be read,
                    * the state can still be saved */
        DSVI_TRY_GOTO(status, draw_batch(t, source, false, &result->wait_s), settle);
    result->begun = true;
    count_batches(t, result);
    if (t->plans)
        DSVI_TRY_GOTO(status, dsvi_cp_plans_step(t->plans), settle);
    DSVI_TRY_GOTO(status, dsvi_trainer_sizes_step_begin(t, result->step), settle);
    DSVI_TRY_GOTO(status, device->clock(device->stream, &last), settle);
    DSVI_TRY_GOTO(status, dsvi_zero_clear_gradients(&t->zero), settle);
    DSVI_TRY_GOTO(status, lap(t, &last, &result->optimizer_s), settle);
    for (int64_t i = 0; i < passes; i++) {
        bool last_pass = i + 1 == passes, more = !last_pass || result->step < settings->max_train_steps;
        DSVI_TRY_GOTO(status, take_batch(t, source, &result->wait_s), settle);
        DSVI_TRY_GOTO(status, dsvi_train_gradients(t, last_pass, more ? source : NULL, result), settle);
    }
    DSVI_TRY_GOTO(status, dsvi_train_update(t, result), settle);
settle:
    return dsvi_zero_await_transfers(&t->zero, status);
}
