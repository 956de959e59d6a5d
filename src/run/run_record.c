/* Implements run_record.h: writes metrics, events and progress of a run. */
#include "run/run_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/clip_frames.h"
#include "run/metrics.h"
#include "run/sampled_clips.h"
#include "run/tensorboard.h"

/* The JSON lines files. */
enum { STEPS, BLOCKS, DECISIONS, VALIDATION, FILES };

struct DsviRunRecord {
    const DsviTrainer *trainer;
    const DsvEvents *events;
    DsviMetrics *file[FILES];
    DsvStatus decided;            /* status of the first decision that could not be written, or DSV_OK */
    DsviTensorboard *tensorboard; /* NULL after a failure to write */
    double peak_flops;            /* FLOP/s of a large GEMM on this device */
    double smooth_step_s;         /* smoothed seconds of a step, for the estimate of the time left */
    DsviWaitWatch wait;
    bool warm; /* a step was recorded; the wait for samples of the first step is ignored */
};

/* Limits for clips in TensorBoard, which keeps pictures in memory. */
enum { CLIP_FRAMES_MAX = 32, CLIP_ROWS_MAX = 128 };

/* What all ranks process in a step. */
typedef struct StepWork {
    double tokens;
    double flops;            /* of both passes through the transformer, without what is recomputed */
    DsviSparseReport sparse; /* means over the step's batches, by the FLOPs of dense attention; sparse_blocks
                              * are those of the size with the most FLOPs */
} StepWork;

/* Returns the mean of the values (count) by `weight`, without values that are NaN: NaN if all are. */
static double mean_by_weight(const double *value, const double *weight, int64_t count)
{
    double sum = 0, mean = 0;
    for (int64_t i = 0; i < count; i++)
        sum += isnan(value[i]) ? 0 : weight[i];
    for (int64_t i = 0; i < count; i++)
        mean += isnan(value[i]) || weight[i] == 0 ? 0 : weight[i] / sum * value[i];
    return sum > 0 ? mean : NAN;
}

static StepWork work_of(const DsviTrainer *t, const DsviStepResult *result)
{
    StepWork work = {.tokens = 0};
    double attention[DSVI_CLIP_SIZES_MAX], most = -1;
    double density[DSVI_CLIP_SIZES_MAX], mass[DSVI_CLIP_SIZES_MAX];
    double error[DSVI_CLIP_SIZES_MAX], predictor[DSVI_CLIP_SIZES_MAX];
    for (int64_t i = 0; i < t->size_count; i++) {
        const DsviTrainerSize *size = &t->sizes[i];
        const DsviDitShape shape = dsvi_dit_shape_of(&t->config, t->settings->train_batch_size, size->latent);
        double batches = (double)result->batches[i];
        attention[i] = batches * dsvi_dit_flops_attention(&t->config, &shape);
        DsviSparseReport sparse;
        dsvi_sparse_report(size->sparse, &sparse);
        work.tokens += batches * (double)(shape.batch * dsvi_dit_tokens(&t->config, &shape));
        work.flops += batches * dsvi_dit_flops_step(&t->config, &shape, t->frozen != NULL, sparse.work);
        density[i] = sparse.density;
        mass[i] = sparse.captured_mass;
        error[i] = sparse.output_error;
        predictor[i] = sparse.predictor_loss;
        if (attention[i] > most)
            work.sparse = sparse;
        most = fmax(most, attention[i]);
    }
    work.sparse.density = mean_by_weight(density, attention, t->size_count);
    work.sparse.captured_mass = mean_by_weight(mass, attention, t->size_count);
    work.sparse.output_error = mean_by_weight(error, attention, t->size_count);
    work.sparse.predictor_loss = mean_by_weight(predictor, attention, t->size_count);
    return work;
}

DsvStatus dsvi_run_record_open(const DsviRunFolder *folder, const DsviTrainer *trainer, double peak_flops,
                               const DsvEvents *events, DsviRunRecord **out)
{
    const char *const path[FILES] = {
        [STEPS] = folder->metrics,
        [BLOCKS] = folder->blocks,
        [DECISIONS] = folder->decisions,
        [VALIDATION] = folder->validation,
    };
    DsvStatus status;
    DsviRunRecord *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a run's records");
    r->trainer = trainer;
    r->events = events;
    r->peak_flops = peak_flops;
    for (int i = 0; i < FILES; i++)
        DSVI_TRY_GOTO(status, dsvi_metrics_open(path[i], trainer->step, &r->file[i]), fail);
    *out = r;
    return DSV_OK;
fail:
    dsvi_run_record_close(&r);
    return status;
}

DsvStatus dsvi_run_record_begin(DsviRunRecord *r, const DsviRunFolder *folder, DsviSuperseded *superseded)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_begin(r->file[i], superseded));
    return dsvi_tensorboard_open(folder->root, r->trainer->step, &r->tensorboard);
}

void dsvi_run_record_close(DsviRunRecord **record)
{
    DsviRunRecord *r = *record;
    if (!r)
        return;
    for (int i = 0; i < FILES; i++)
        dsvi_metrics_close(&r->file[i]);
    dsvi_tensorboard_close(&r->tensorboard);
    free(r);
    *record = NULL;
}

int64_t dsvi_run_record_last_step(const DsviRunRecord *r)
{
    return dsvi_metrics_last_step(r->file[STEPS]);
}

/* Logs a warning: the formatted text, a colon, and the message of the last failure. */
DSVI_PRINTF(2, 3)
static void run_record_warn(const DsviRunRecord *r, const char *format, ...)
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

DsvStatus dsvi_run_record_sync(DsviRunRecord *r)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_sync(r->file[i]));
    if (r->tensorboard && dsvi_file_sync(dsvi_tensorboard_path(r->tensorboard)) != DSV_OK)
        run_record_warn(r, "TensorBoard's curves of the last steps may be lost");
    return DSV_OK;
}

bool dsvi_run_record_in_place(const DsviRunRecord *r)
{
    for (int i = 0; i < FILES; i++)
        if (!dsvi_metrics_in_place(r->file[i]))
            return false;
    return true;
}

DsvStatus dsvi_run_record_restore(DsviRunRecord *r, DsviSuperseded *superseded)
{
    for (int i = 0; i < FILES; i++)
        DSVI_TRY(dsvi_metrics_restore(r->file[i], superseded));
    return DSV_OK;
}

/* Handles a failure to write TensorBoard's events. The run continues, but the event file ends here, because
 * TensorBoard does not read a file beyond an incomplete record. */
static void check_curves(DsviRunRecord *r, int64_t step, DsvStatus written)
{
    if (written == DSV_OK)
        return;
    run_record_warn(r, "TensorBoard's curves end before step %" PRId64, step);
    dsvi_tensorboard_close(&r->tensorboard);
}

static void write_curves(DsviRunRecord *r, int64_t step, const DsviScalar *scalars, size_t count)
{
    if (r->tensorboard)
        check_curves(r, step, dsvi_tensorboard_step(r->tensorboard, step, scalars, count));
}

/* Writes the mean loss at each noise level as tags "<group>/loss_at_0.05" to "<group>/loss_at_0.95", with
 * more digits in a narrow range of levels. */
static void write_loss_by_noise(DsviRunRecord *r, int64_t step, const char *group, const double *sigma,
                                const double *loss)
{
    char tag[DSVI_SIGMA_BINS][DSVI_TENSORBOARD_TAG_MAX];
    DsviScalar scalars[DSVI_SIGMA_BINS];
    int digits = sigma[1] - sigma[0] < 0.02 ? 4 : 2;
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++) {
        snprintf(tag[bin], sizeof tag[bin], "%s/loss_at_%.*f", group, digits, sigma[bin]);
        scalars[bin] = (DsviScalar){tag[bin], loss[bin]};
    }
    write_curves(r, step, scalars, DSVI_SIGMA_BINS);
}

static void write_scalars(DsviRunRecord *r, const DsviMetricsStep *m)
{
    double sigma[DSVI_SIGMA_BINS], loss[DSVI_SIGMA_BINS];
    const DsviScalar scalars[] = {
        {"train/loss", m->loss},
        {"train/grad_norm", m->grad_norm},
        {"train/lr", m->lr},
        {"speed/step_ms", m->step_ms},
        {"speed/tokens_per_s", m->tokens_per_s},
        {"speed/data_wait_ms", m->data_wait_ms},
        {"speed/forward_ms", m->forward_ms},
        {"speed/backward_ms", m->backward_ms},
        {"speed/optimizer_ms", m->optimizer_ms},
        {"memory/used_MiB", (double)m->memory_bytes / 1048576.0},
        {"sparse/density", m->density},
        {"sparse/blocks", (double)m->sparse_blocks},
        {"sparse/captured_mass", m->captured_mass},
        {"sparse/output_error", m->output_error},
        {"sparse/predictor_loss", m->predictor_loss},
    };
    write_curves(r, m->step, scalars, sizeof scalars / sizeof *scalars);
    for (int bin = 0; bin < DSVI_SIGMA_BINS; bin++) {
        sigma[bin] = (bin + 0.5) / DSVI_SIGMA_BINS;
        loss[bin] = m->loss_bins[bin];
    }
    write_loss_by_noise(r, m->step, "train", sigma, loss);
}

/* Writes a block's density (fraction of keys that are listed; 1 if the block is dense), captured mass
   (fraction of the exact attention weights on listed keys) and output error (relative error of attention's
   output over lists and tail) to TensorBoard's events. */
static void write_block_curves(DsviRunRecord *r, int64_t step, int64_t block,
                               const DsviSparseBlockReport *report)
{
    char density[DSVI_TENSORBOARD_TAG_MAX], captured[DSVI_TENSORBOARD_TAG_MAX],
        error[DSVI_TENSORBOARD_TAG_MAX];
    snprintf(density, sizeof density, "density_by_block/block_%02" PRId64, block);
    snprintf(captured, sizeof captured, "captured_mass_by_block/block_%02" PRId64, block);
    snprintf(error, sizeof error, "output_error_by_block/block_%02" PRId64, block);
    const DsviScalar scalars[] = {
        {density, report->sparse ? report->density : 1},
        {captured, report->captured_mass},
        {error, report->output_error},
    };
    write_curves(r, step, scalars, sizeof scalars / sizeof *scalars);
}

static DsvStatus write_blocks(DsviRunRecord *r, int64_t step)
{
    const DsviTrainer *t = r->trainer;
    for (int64_t b = 0; b < t->config.num_layers; b++) {
        DsviSparseBlockReport report;
        dsvi_sparse_block_report(t->sparse, b, &report);
        DSVI_TRY(dsvi_metrics_block(r->file[BLOCKS], step, b, t->config.num_attention_heads, &report));
        write_block_curves(r, step, b, &report);
    }
    return DSV_OK;
}

/* flops: of one rank in the step */
static void run_record_progress(DsviRunRecord *r, const DsviMetricsStep *m, double flops, double step_s)
{
    const DsviTrainer *t = r->trainer;
    r->smooth_step_s = r->smooth_step_s > 0 ? 0.9 * r->smooth_step_s + 0.1 * step_s : step_s;
    DsvProgress progress = {
        .unit = "step",
        .done = m->step,
        .total = t->settings->max_train_steps,
        .seconds_left = (double)(t->settings->max_train_steps - m->step) * r->smooth_step_s,
        .loss = m->loss,
        .grad_norm = m->grad_norm,
        .lr = m->lr,
        .step_ms = m->step_ms,
        .tokens_per_s = m->tokens_per_s,
        .peak_share = flops / step_s / r->peak_flops,
        .density = m->density,
        .sparse_blocks = m->sparse_blocks,
        .blocks = t->config.num_layers,
        .captured_mass = m->captured_mass,
        .output_error = dsvi_sparse_has_tail(t->settings) ? m->output_error : 0,
        .dense_finish = dsvi_sparse_finishing(t->sparse),
        .memory_bytes = m->memory_bytes,
    };
    if (r->events->progress)
        r->events->progress(r->events->context, &progress);
}

void dsvi_run_record_decision(DsviRunRecord *r, const char *reason)
{
    if (r->decided == DSV_OK)
        r->decided = dsvi_metrics_decision(r->file[DECISIONS], r->trainer->step + 1, reason);
}

bool dsvi_run_record_has_held_out(const DsviRunRecord *r, int64_t step)
{
    return dsvi_metrics_last_step(r->file[VALIDATION]) == step;
}

DsvStatus dsvi_run_record_held_out(DsviRunRecord *r, int64_t step, const DsviHeldOutLoss *loss)
{
    const DsviScalar scalars[] = {
        {"validation/loss", loss->loss},
        {"validation/dense_loss", loss->dense_loss},
    };
    DSVI_TRY(dsvi_metrics_held_out(r->file[VALIDATION], step, loss));
    write_curves(r, step, scalars, sizeof scalars / sizeof *scalars);
    write_loss_by_noise(r, step, "validation", loss->bin_sigma, loss->bin_loss);
    return DSV_OK;
}

static DsvStatus encode_clip(const char *path, DsviImage *image, uint8_t **png)
{
    DsviClipFrames frames;
    DSVI_TRY(dsvi_clip_frames_read(path, CLIP_FRAMES_MAX, CLIP_ROWS_MAX, &frames));
    DsvStatus status = dsvi_clip_frames_png(path, &frames, 0, frames.frames, png, &image->bytes);
    image->png = *png;
    image->height = frames.height;
    image->width = frames.width;
    dsvi_clip_frames_free(&frames);
    return status;
}

void dsvi_run_record_clip(DsviRunRecord *r, int64_t step, int64_t prompt, const char *path)
{
    uint8_t *png = NULL;
    char name[DSVI_PROMPT_FOLDER_BYTES] = "clip", tag[DSVI_PROMPT_FOLDER_BYTES + 16];
    if (prompt >= 0)
        dsvi_prompt_folder(prompt, name);
    snprintf(tag, sizeof tag, "samples/%s", name);
    DsviImage image = {.tag = tag};
    if (!r->tensorboard)
        return;
    if (encode_clip(path, &image, &png) == DSV_OK)
        check_curves(r, step, dsvi_tensorboard_image(r->tensorboard, step, &image));
    else if (r->events->log)
        r->events->log(r->events->context, DSV_LOG_WARNING, dsv_error_message());
    free(png);
}

bool dsvi_wait_watch_step(DsviWaitWatch *w, double wait_s, double step_s)
{
    w->waited_s += wait_s;
    w->taken_s += step_s;
    if (++w->steps < DSVI_WAIT_STEPS || w->told)
        return false;
    bool long_wait = w->waited_s > 0.1 * w->taken_s;
    *w = (DsviWaitWatch){.told = long_wait};
    return long_wait;
}

static void warn_of_waiting(DsviRunRecord *r, const DsviStepResult *result, double step_s)
{
    char line[256];
    double fraction = (r->wait.waited_s + result->wait_s) / (r->wait.taken_s + step_s);
    if (r->warm && dsvi_wait_watch_step(&r->wait, result->wait_s, step_s) && r->events->log) {
        snprintf(line, sizeof line,
                 "%.0f %% of the last %d steps' time was spent waiting for samples: raise "
                 "data.workers, or decode once with dsv encode",
                 100 * fraction, DSVI_WAIT_STEPS);
        r->events->log(r->events->context, DSV_LOG_WARNING, line);
    }
    r->warm = true;
}

DsvStatus dsvi_run_record_step(DsviRunRecord *r, const DsviStepResult *result, double step_s)
{
    const DsviTrainer *t = r->trainer;
    const StepWork work = work_of(t, result);
    DsviMetricsStep m = {
        .step = result->step,
        .loss = result->loss,
        .grad_norm = result->grad_norm,
        .lr = result->lr,
        .step_ms = 1e3 * step_s,
        .tokens_per_s = work.tokens / step_s,
        .data_wait_ms = 1e3 * result->wait_s,
        .forward_ms = 1e3 * result->forward_s,
        .backward_ms = 1e3 * result->backward_s,
        .optimizer_ms = 1e3 * result->optimizer_s,
        .density = work.sparse.density,
        .sparse_blocks = work.sparse.sparse_blocks,
        .captured_mass = work.sparse.captured_mass,
        .output_error = work.sparse.output_error,
        .predictor_loss = work.sparse.predictor_loss,
        .memory_bytes = t->backend->device->memory_used(t->backend->device),
    };
    for (int i = 0; i < DSVI_SIGMA_BINS; i++) {
        double samples = (double)result->bin_samples[i];
        m.loss_bins[i] = samples > 0 ? (float)(result->bin_loss[i] / samples) : NAN;
    }
    warn_of_waiting(r, result, step_s);
    DSVI_TRY(r->decided);
    DSVI_TRY(dsvi_metrics_step(r->file[STEPS], &m));
    write_scalars(r, &m);
    if (t->settings->sparse_enabled && dsvi_sparse_measured(t->sparse))
        DSVI_TRY(write_blocks(r, m.step));
    run_record_progress(r, &m, work.flops / (double)(t->mesh.data_ranks * t->mesh.cp_ranks), step_s);
    return DSV_OK;
}
