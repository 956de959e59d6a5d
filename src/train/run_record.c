/* See run_record.h. */
#include "train/run_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "data/clip_frames.h"
#include "train/metrics.h"
#include "train/tensorboard.h"

/* The files of JSON lines. */
enum { STEPS, BLOCKS, DECISIONS, VALIDATION, FILES };

struct DsvRunRecord {
    const DsvTrainer *trainer;
    const DsvEvents *events;
    DsvMetrics *file[FILES];
    DsvStatus decided; /* the first failure to write a decision */
    DsvTensorboard *tensorboard; /* NULL once it could not be written */
    int64_t tokens;         /* of a sample */
    double peak_flops;      /* what a large GEMM reaches here, per second */
    double flops_gemm, flops_attention; /* a rank's part of a step with dense attention, both passes */
    double smooth_step_s;   /* for the estimate of the time left */
    DsvWaitWatch wait;
    bool warm;              /* the first step is done: no step before it hides the decoding of its samples */
};

/* What TensorBoard gets of a clip: it keeps pictures in memory. */
enum { CLIP_FRAMES_MAX = 32, CLIP_ROWS_MAX = 128 };
/* The smallest square product that is timed, and how often. */
enum { PEAK_SIDE = 1024, PEAK_SIDE_MOST = 8192, PEAK_TRIES = 4 };
/* A product that takes less says more about its beginning and end than about the device. */
#define PEAK_SECONDS 1e-3

/* Random numbers, the same in every PEAK_SIDE squared: products of zeros are faster than real ones. */
static DsvStatus fill_random(DsvDevice *device, DsvDtype dtype, void *memory, size_t bytes)
{
    size_t count = (size_t)PEAK_SIDE * PEAK_SIDE, tile = count * dsvi_dtype_size(dtype);
    DsvRng rng = {0, DSV_RNG_TEST, 0};
    DsvStatus status;
    float *numbers = malloc(count * (sizeof *numbers + dsvi_dtype_size(dtype)));
    if (!numbers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the numbers of a product");
    dsvi_rng_fill_normal(rng, 0, numbers, (int64_t)count);
    dsvi_convert(dtype, numbers + count, DSV_F32, numbers, (int64_t)count);
    for (size_t at = 0; at < bytes; at += tile)
        DSVI_TRY_GOTO(status, device->upload(device->stream, (char *)memory + at, numbers + count, tile),
                      done);
    DSVI_TRY_GOTO(status, device->sync(device->stream), done);
done:
    free(numbers);
    return status;
}

/* Seconds of the fastest of a few products of `side` squared matrices in the compute dtype. */
static DsvStatus time_product(const DsvBackend *backend, DsvDtype act, int64_t side, double *best)
{
    DsvDevice *device = backend->device;
    size_t bytes = (size_t)(side * side) * dsvi_dtype_size(act);
    DsvStatus status;
    void *memory;
    *best = INFINITY;
    DSVI_TRY(device->mem_alloc(device, 3 * bytes, &memory));
    DsvGemmArgs args = {
        .m = side, .n = side, .k = side, .ab_dtype = act, .c_dtype = act, .bias_dtype = DSV_F32,
        .a = memory, .lda = side, .b = (char *)memory + bytes, .ldb = side, .trans_b = true,
        .c = (char *)memory + 2 * bytes, .ldc = side,
    };
    DSVI_TRY_GOTO(status, fill_random(device, act, memory, 2 * bytes), done);
    for (int i = 0; i < PEAK_TRIES; i++) {
        double start, end;
        DSVI_TRY_GOTO(status, device->clock(device->stream, &start), done);
        DSVI_TRY_GOTO(status, backend->ops.gemm.run(device->stream, &args), done);
        DSVI_TRY_GOTO(status, device->clock(device->stream, &end), done);
        *best = fmin(*best, end - start);
    }
done:
    device->mem_free(device, memory);
    return status;
}

/* What the speed of steps is shown against. Where a larger product finds no memory the smaller one counts. */
static DsvStatus measure_peak(DsvRunRecord *r)
{
    DsvDtype act = dsvi_dit_act(r->trainer->settings);
    double best = 0;
    for (int64_t side = PEAK_SIDE; side <= PEAK_SIDE_MOST && best < PEAK_SECONDS; side *= 2) {
        DsvStatus status = time_product(r->trainer->backend, act, side, &best);
        if (status == DSV_E_NO_MEMORY && side > PEAK_SIDE)
            return DSV_OK;
        DSVI_TRY(status);
        r->peak_flops = 2.0 * (double)(side * side * side) / best;
    }
    return DSV_OK;
}

static void count_flops(DsvRunRecord *r)
{
    const DsvTrainer *t = r->trainer;
    DsvDitShape shape = {
        .batch = t->settings->train_batch_size, .frames = t->latent.frames, .height = t->latent.height,
        .width = t->latent.width, .text_len = t->config.text_len,
    };
    /* The backward pass costs twice the forward pass; recomputation is no work of the model. */
    double passes = 3.0 * (double)t->settings->gradient_accumulation_steps / (double)t->mesh.context_ranks;
    r->tokens = dsvi_dit_tokens(&t->config, &shape);
    r->flops_gemm = passes * dsvi_dit_flops_gemm(&t->config, &shape);
    r->flops_attention = passes * dsvi_dit_flops_attention(&t->config, &shape);
}

DsvStatus dsvi_run_record_open(const DsvRunFolder *folder, const DsvTrainer *trainer,
                               const DsvEvents *events, DsvRunRecord **out)
{
    const char *const path[FILES] = {
        [STEPS] = folder->metrics, [BLOCKS] = folder->blocks, [DECISIONS] = folder->decisions,
        [VALIDATION] = folder->validation,
    };
    DsvStatus status;
    DsvRunRecord *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a run's records");
    r->trainer = trainer;
    r->events = events;
    count_flops(r);
    DSVI_TRY_GOTO(status, measure_peak(r), fail);
    for (int i = 0; i < FILES; i++)
        DSVI_TRY_GOTO(status, dsvi_metrics_open(path[i], trainer->step, &r->file[i]), fail);
    *out = r;
    return DSV_OK;
fail:
    dsvi_run_record_close(&r);
    return status;
}

DsvStatus dsvi_run_record_begin(DsvRunRecord *r, const DsvRunFolder *folder, DsvSuperseded *superseded)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_begin(r->file[i], superseded));
    return dsvi_tensorboard_open(folder->root, r->trainer->step, &r->tensorboard);
}

void dsvi_run_record_close(DsvRunRecord **record)
{
    DsvRunRecord *r = *record;
    if (!r)
        return;
    for (int i = 0; i < FILES; i++)
        dsvi_metrics_close(&r->file[i]);
    dsvi_tensorboard_close(&r->tensorboard);
    free(r);
    *record = NULL;
}

int64_t dsvi_run_record_last_step(const DsvRunRecord *r)
{
    return dsvi_metrics_last_step(r->file[STEPS]);
}

/* "... : <the failure>" as a warning. */
DSVI_PRINTF(2, 3)
static void warn(const DsvRunRecord *r, const char *format, ...)
{
    char line[DSVI_MESSAGE_BYTES + 128];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(line + used, sizeof line - (size_t)used, ": %s", dsv_error_message());
    if (r->events->log)
        r->events->log(r->events->context, DSV_LOG_WARNING, line);
}

DsvStatus dsvi_run_record_sync(DsvRunRecord *r)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_sync(r->file[i]));
    if (r->tensorboard && dsvi_file_sync(dsvi_tensorboard_path(r->tensorboard)) != DSV_OK)
        warn(r, "TensorBoard's curves of the last steps may be lost");
    return DSV_OK;
}

bool dsvi_run_record_in_place(const DsvRunRecord *r)
{
    for (int i = 0; i < FILES; i++)
        if (!dsvi_metrics_in_place(r->file[i]))
            return false;
    return true;
}

DsvStatus dsvi_run_record_restore(DsvRunRecord *r, DsvSuperseded *superseded)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_restore(r->file[i], superseded));
    return DSV_OK;
}

/* A run goes on without its curves. They end at the first record that cannot be written, because TensorBoard
 * reads no file past a torn record. */
static void settle_curves(DsvRunRecord *r, int64_t step, DsvStatus written)
{
    if (written == DSV_OK)
        return;
    warn(r, "TensorBoard's curves end before step %" PRId64, step);
    dsvi_tensorboard_close(&r->tensorboard);
}

static void write_curves(DsvRunRecord *r, int64_t step, const DsvScalar *scalars, size_t count)
{
    if (r->tensorboard)
        settle_curves(r, step, dsvi_tensorboard_step(r->tensorboard, step, scalars, count));
}

/* The mean loss at each noise level: tags "train/loss_at_0.05" to "train/loss_at_0.95". */
static void write_noise(DsvRunRecord *r, int64_t step, const char *group, const double *sigma,
                        const double *loss)
{
    char tag[DSV_SIGMA_BINS][DSV_TENSORBOARD_TAG_MOST];
    DsvScalar scalars[DSV_SIGMA_BINS];
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++) {
        snprintf(tag[bin], sizeof tag[bin], "%s/loss_at_%.2f", group, sigma[bin]);
        scalars[bin] = (DsvScalar){tag[bin], loss[bin]};
    }
    write_curves(r, step, scalars, DSV_SIGMA_BINS);
}

static void write_scalars(DsvRunRecord *r, const DsvMetricsStep *m)
{
    double sigma[DSV_SIGMA_BINS], loss[DSV_SIGMA_BINS];
    const DsvScalar scalars[] = {
        {"train/loss", m->loss}, {"train/grad_norm", m->grad_norm}, {"train/lr", m->lr},
        {"speed/step_ms", m->step_ms}, {"speed/tokens_per_s", m->tokens_per_s},
        {"speed/data_wait_ms", m->data_wait_ms}, {"speed/forward_ms", m->forward_ms},
        {"speed/backward_ms", m->backward_ms}, {"speed/optimizer_ms", m->optimizer_ms},
        {"memory/used_MiB", (double)m->memory_bytes / 1048576.0}, {"sparse/density", m->density},
        {"sparse/blocks", (double)m->sparse_blocks}, {"sparse/captured_mass", m->captured_mass},
        {"sparse/predictor_loss", m->predictor_loss},
    };
    write_curves(r, m->step, scalars, sizeof scalars / sizeof *scalars);
    for (int bin = 0; bin < DSV_SIGMA_BINS; bin++) {
        sigma[bin] = (bin + 0.5) / DSV_SIGMA_BINS;
        loss[bin] = m->loss_bins[bin];
    }
    write_noise(r, m->step, "train", sigma, loss);
}

/* A block's density, which is 1 while the block is dense, and its captured mass. */
static void write_block_curves(DsvRunRecord *r, int64_t step, int64_t block,
                               const DsvSparseBlockReport *report)
{
    char density[DSV_TENSORBOARD_TAG_MOST], captured[DSV_TENSORBOARD_TAG_MOST];
    snprintf(density, sizeof density, "density_by_block/block_%02" PRId64, block);
    snprintf(captured, sizeof captured, "captured_mass_by_block/block_%02" PRId64, block);
    const DsvScalar scalars[] = {
        {density, report->sparse ? report->density : 1}, {captured, report->captured_mass},
    };
    write_curves(r, step, scalars, sizeof scalars / sizeof *scalars);
}

static DsvStatus write_blocks(DsvRunRecord *r, int64_t step)
{
    const DsvTrainer *t = r->trainer;
    for (int64_t b = 0; b < t->config.num_layers; b++) {
        DsvSparseBlockReport report;
        dsvi_sparse_block_report(t->sparse, b, &report);
        DSVI_TRY(dsvi_metrics_block(r->file[BLOCKS], step, b, t->config.num_attention_heads, &report));
        write_block_curves(r, step, b, &report);
    }
    return DSV_OK;
}

static void show(DsvRunRecord *r, const DsvMetricsStep *m, double work, double step_s)
{
    const DsvTrainer *t = r->trainer;
    r->smooth_step_s = r->smooth_step_s > 0 ? 0.9 * r->smooth_step_s + 0.1 * step_s : step_s;
    DsvProgress progress = {
        .unit = "step", .done = m->step, .total = t->settings->max_train_steps,
        .seconds_left = (double)(t->settings->max_train_steps - m->step) * r->smooth_step_s,
        .loss = m->loss, .grad_norm = m->grad_norm, .lr = m->lr, .step_ms = m->step_ms,
        .tokens_per_s = m->tokens_per_s, .peak_share = work / step_s / r->peak_flops,
        .density = m->density, .sparse_blocks = m->sparse_blocks, .blocks = t->config.num_layers,
        .captured_mass = m->captured_mass, .memory_bytes = m->memory_bytes,
    };
    if (r->events->progress)
        r->events->progress(r->events->context, &progress);
}

void dsvi_run_record_decision(DsvRunRecord *r, const char *reason)
{
    if (r->decided == DSV_OK)
        r->decided = dsvi_metrics_decision(r->file[DECISIONS], r->trainer->step + 1, reason);
}

bool dsvi_run_record_has_held_out(const DsvRunRecord *r, int64_t step)
{
    return dsvi_metrics_last_step(r->file[VALIDATION]) == step;
}

DsvStatus dsvi_run_record_held_out(DsvRunRecord *r, int64_t step, const DsvHeldOutLoss *loss)
{
    const DsvScalar scalars[] = {
        {"validation/loss", loss->loss}, {"validation/dense_loss", loss->dense_loss},
    };
    DSVI_TRY(dsvi_metrics_held_out(r->file[VALIDATION], step, loss));
    write_curves(r, step, scalars, sizeof scalars / sizeof *scalars);
    write_noise(r, step, "validation", loss->bin_sigma, loss->bin_loss);
    return DSV_OK;
}

static DsvStatus encode_clip(const char *path, DsvImage *image, uint8_t **png)
{
    DsvClipFrames frames;
    DSVI_TRY(dsvi_clip_frames_read(path, CLIP_FRAMES_MAX, CLIP_ROWS_MAX, &frames));
    DsvStatus status = dsvi_clip_frames_png(path, &frames, 0, frames.frames, png, &image->bytes);
    image->png = *png;
    image->height = frames.height;
    image->width = frames.width;
    dsvi_clip_frames_free(&frames);
    return status;
}

void dsvi_run_record_clip(DsvRunRecord *r, int64_t step, const char *path)
{
    uint8_t *png = NULL;
    DsvImage image = {.tag = "samples/clip"};
    if (!r->tensorboard)
        return;
    if (encode_clip(path, &image, &png) == DSV_OK)
        settle_curves(r, step, dsvi_tensorboard_image(r->tensorboard, step, &image));
    else if (r->events->log)
        r->events->log(r->events->context, DSV_LOG_WARNING, dsv_error_message());
    free(png);
}

bool dsvi_wait_watch_step(DsvWaitWatch *w, double wait_s, double step_s)
{
    w->waited_s += wait_s;
    w->taken_s += step_s;
    if (++w->steps < DSVI_WAIT_STEPS || w->told)
        return false;
    bool long_wait = w->waited_s > 0.1 * w->taken_s;
    *w = (DsvWaitWatch){.told = long_wait};
    return long_wait;
}

static void watch_wait(DsvRunRecord *r, const DsvStepResult *result, double step_s)
{
    char line[256];
    double share = (r->wait.waited_s + result->wait_s) / (r->wait.taken_s + step_s);
    if (r->warm && dsvi_wait_watch_step(&r->wait, result->wait_s, step_s) && r->events->log) {
        snprintf(line, sizeof line, "%.0f %% of the last %d steps' time was spent waiting for samples: raise "
                 "data.workers, or decode once with dsv encode", 100 * share, DSVI_WAIT_STEPS);
        r->events->log(r->events->context, DSV_LOG_WARNING, line);
    }
    r->warm = true;
}

DsvStatus dsvi_run_record_step(DsvRunRecord *r, const DsvStepResult *result, double step_s)
{
    const DsvTrainer *t = r->trainer;
    const DsvConfig *settings = t->settings;
    DsvSparseReport sparse;
    dsvi_sparse_report(t->sparse, &sparse);
    int64_t tokens = r->tokens * settings->train_batch_size * settings->gradient_accumulation_steps *
                     t->mesh.data_ranks;
    DsvMetricsStep m = {
        .step = result->step, .loss = result->loss, .grad_norm = result->grad_norm, .lr = result->lr,
        .step_ms = 1e3 * step_s, .tokens_per_s = (double)tokens / step_s,
        .data_wait_ms = 1e3 * result->wait_s, .forward_ms = 1e3 * result->forward_s,
        .backward_ms = 1e3 * result->backward_s, .optimizer_ms = 1e3 * result->optimizer_s,
        .density = sparse.density, .sparse_blocks = sparse.sparse_blocks,
        .captured_mass = sparse.captured_mass, .predictor_loss = sparse.predictor_loss,
        .memory_bytes = t->backend->device->memory_used(t->backend->device),
    };
    for (int i = 0; i < DSV_SIGMA_BINS; i++) {
        double samples = (double)result->bin_samples[i];
        m.loss_bins[i] = samples > 0 ? (float)(result->bin_loss[i] / samples) : NAN;
    }
    watch_wait(r, result, step_s);
    DSVI_TRY(r->decided);
    DSVI_TRY(dsvi_metrics_step(r->file[STEPS], &m));
    write_scalars(r, &m);
    if (settings->sparse_enabled && dsvi_sparse_measured(t->sparse))
        DSVI_TRY(write_blocks(r, m.step));
    /* Self-attention over lists does its density's share of the work. */
    show(r, &m, r->flops_gemm + r->flops_attention * sparse.density, step_s);
    return DSV_OK;
}
