/* A training run: opens data, model and folder, runs all steps, and saves checkpoints. train/step.c does the
 * work of a step, checkpoint.c saves and loads checkpoints, run_record.c writes metrics, and run_internal.h
 * names the other parts of a run. */
#include "run/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "device/device_limit.h"
#include "ops/gemm_peak.h"
#include "run/checkpoint.h"
#include "run/expert.h"
#include "run/metrics_read.h"
#include "run/notices.h"
#include "run/preview.h"
#include "run/run_facts.h"
#include "run/run_internal.h"
#include "train/ranks_agree.h"

/* Reads the model's shape from the checkpoint, because the model at model.path may no longer exist. Rank 0
 * reads it for all: other ranks may not see the checkpoint. */
static DsvStatus read_resumed_config(DsviRun *run)
{
    if (dsvi_run_is_first(run))
        DSVI_TRY(dsvi_model_of_checkpoint(run->settings, run->folder.checkpoint, &run->config));
    return dsvi_comm_broadcast(run->comm, 0, &run->config, sizeof run->config);
}

/* Determines the model's shape: that of the checkpoint with which a run goes on, or that of the options. */
static DsvStatus run_choose_config(DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    DsviVideoShape latent;
    if (dsvi_run_is_first(run) && run->folder.start != DSVI_START_FRESH)
        DSVI_TRY(dsvi_checkpoint_check_options(settings, run->folder.checkpoint));
    if (settings->model_path[0] && run->folder.start != DSVI_START_FRESH && settings->lora_rank == 0)
        return read_resumed_config(run);
    return dsvi_model_of_options(settings, run->codec, &run->model, &latent, &run->config);
}

/* Logs the memory plan and writes run.json. */
static DsvStatus report_facts(const DsviRun *run)
{
    DsviRunFacts facts;
    char line[512];
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    dsvi_run_facts(run->trainer, dsvi_prefetch_bytes(run->prefetch), (size_t)run->resident_before,
                   run->dataset->count, &facts);
    dsvi_run_facts_memory(&facts, line, sizeof line);
    dsvi_run_log(run, DSV_LOG_INFO, "%s", line);
    return dsvi_run_facts_write(&facts, run->folder.facts);
}

/* Warns if metrics.jsonl lacks steps before the checkpoint, for example after a power failure. */
static void warn_of_gap(DsviRun *run)
{
    char line[DSVI_PATH_MAX + 128];
    int64_t last = dsvi_run_record_last_step(run->record), step = run->trainer->step;
    if (run->folder.start != DSVI_START_RESUME || last >= step)
        return;
    snprintf(line, sizeof line,
             "%s: steps %" PRId64 " to %" PRId64 ", which the checkpoint holds, are not "
             "on record",
             run->folder.metrics, last + 1, step);
    dsvi_run_warn_line(run, line);
}

static DsvStatus open_record(DsviRun *run)
{
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_record_open(&run->folder, run->trainer, run->peak_flops, run->events, &run->record));
    warn_of_gap(run);
    return DSV_OK;
}

/* Prepares folder and records for the steps of this start. Measured costs are recorded only by the first
 * start of a run; a resumed run uses the costs stored then. */
static DsvStatus prepare_folder(DsviRun *run)
{
    DsviSuperseded superseded = {.root = run->folder.root};
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_folder_accept(&run->folder, run->settings, run->trainer->step, &superseded));
    DSVI_TRY(dsvi_run_record_begin(run->record, &run->folder, &superseded));
    if (superseded.folder[0])
        dsvi_run_log(run, DSV_LOG_INFO, "what this start replaces is kept in %s", superseded.folder);
    for (int i = 0; i < run->costs && run->folder.start == DSVI_START_FRESH; i++)
        dsvi_run_record_decision(run->record, run->cost[i]);
    return run->trainer->plans ? dsvi_costs_write(run->folder.costs, dsvi_cp_plans_costs(run->trainer->plans))
                               : DSV_OK;
}

/* Opens the run folder on rank 0, and sends to the other ranks whether the run is resumed. */
static DsvStatus open_folder(DsviRun *run)
{
    if (dsvi_run_is_first(run))
        DSVI_TRY(
            dsvi_run_folder_open(run->settings, dsvi_run_log_line, dsvi_run_warn_line, run, &run->folder));
    return dsvi_comm_broadcast(run->comm, 0, &run->folder.start, sizeof run->folder.start);
}

/* Logs how the ranks divide the work. */
static void log_ranks(const DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    const DsviMesh *mesh = &run->trainer->mesh;
    char shared[64] = "";
    int64_t clips = mesh->data_ranks * settings->train_batch_size * settings->gradient_accumulation_steps;
    if (dsvi_comm_size(run->comm) == 1)
        return;
    if (mesh->cp_ranks > 1)
        snprintf(shared, sizeof shared, ", %" PRId64 " to each clip", mesh->cp_ranks);
    dsvi_run_log(run, DSV_LOG_INFO,
                 "%" PRId64 " ranks%s: a step trains on %" PRId64 " clips, %" PRId64 " in a batch",
                 dsvi_comm_size(run->comm), shared, clips, settings->train_batch_size);
    if (dsvi_run_is_first(run))
        dsvi_mesh_describe(mesh, mesh->cp_ranks > 1 ? dsvi_cp_bound(run->trainer->cp) : NULL,
                           dsvi_run_log_line, (void *)run);
}

/* Checks, before weights are loaded, that sampled clips can be decoded beside the run, and logs the memory
 * that this takes. */
static DsvStatus check_decoding(const DsviRun *run)
{
    size_t room = dsvi_device_free_bytes(run->backend->device);
    char line[128];
    uint64_t bytes;
    DSVI_TRY(dsvi_run_facts_decoding(run->settings, run->backend, run->codec, run->trainer->arena.used, room,
                                     &bytes));
    dsvi_run_facts_decoding_text(bytes, line, sizeof line);
    if (bytes > 0)
        dsvi_run_log(run, DSV_LOG_INFO, "%s", line);
    return DSV_OK;
}

static DsvStatus open_run(DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    bool lends;
    DSVI_TRY(dsvi_preview_check(settings, run->backend)); /* before a folder is created */
    DSVI_TRY(open_folder(run));
    DSVI_TRY(dsvi_run_open_codec(run));
    DSVI_TRY(dsvi_run_open_data(run));
    dsvi_notices(settings, dsvi_run_is_first(run) ? run->dataset : NULL, dsvi_run_log_line,
                 dsvi_run_warn_line, run);
    DSVI_TRY(run_choose_config(run));
    DSVI_TRY(dsvi_expert_lend(settings, &run->experts, &lends));
    DSVI_TRY(dsvi_run_assign_sizes(run));
    DSVI_TRY(dsvi_ranks_agree(run->comm, run->settings, run->dataset, &run->config));
    if (dsvi_run_is_first(run)) /* now: later, decoding threads would slow the measurement */
        DSVI_TRY(dsvi_gemm_peak(run->backend, dsvi_dit_act(settings), &run->peak_flops));
    run->resident_before = dsvi_resident_bytes();
    DSVI_TRY(dsvi_trainer_create(&(DsviTrainerArgs){.settings = settings,
                                                    .backend = run->backend,
                                                    .comm = run->comm,
                                                    .codec = run->codec,
                                                    .config = &run->config,
                                                    .experts = lends ? &run->experts : NULL,
                                                    .sizes = &run->dataset->sizes,
                                                    .size_of = dsvi_run_sizes_of_batch,
                                                    .size_context = &run->sizes,
                                                    .log = dsvi_run_decision_line,
                                                    .plan_log = dsvi_run_decision_line,
                                                    .log_context = run},
                                 &run->trainer));
    run->trainer->data = dsvi_dataset_fingerprint(run->dataset);
    dsvi_run_log(run, DSV_LOG_INFO,
                 "model: %" PRId64 " parameters, %" PRId64 " blocks, latents %" PRId64 " x %" PRId64
                 " x %" PRId64 " x %" PRId64 ", on %s",
                 run->trainer->table.parameters, run->config.num_layers, run->trainer->latent.channels,
                 run->trainer->latent.frames, run->trainer->latent.height, run->trainer->latent.width,
                 run->backend->device->name);
    log_ranks(run);
    DSVI_TRY(check_decoding(run));
    DSVI_TRY(dsvi_run_load_state(run));
    DSVI_TRY(dsvi_run_open_held_out(run));
    DSVI_TRY(dsvi_run_open_sampled(run));
    DSVI_TRY(open_record(run));
    DSVI_TRY(dsvi_comm_barrier(run->comm)); /* after this, no rank has failed so far */
    if (run->folder.start == DSVI_START_BRANCH)
        DSVI_TRY(dsvi_run_save(
            run)); /* the run starts from another folder's checkpoint: it needs a copy in its own */
    DSVI_TRY(prepare_folder(run));
    DSVI_TRY(dsvi_run_list_inputs(run));
    DSVI_TRY(dsvi_run_list_prompts(run));
    DSVI_TRY(dsvi_comm_barrier(run->comm));
    DSVI_TRY(dsvi_run_start_prefetch(run));
    run->summary->first_step = run->trainer->step;
    return report_facts(run);
}

/* Sets *stop on all ranks if events->stop of any rank returns true. */
static DsvStatus run_wants_stop(const DsviRun *run, bool *stop)
{
    double wishes = run->events->stop && run->events->stop(run->events->context);
    DSVI_TRY(dsvi_comm_all_reduce(run->comm, DSVI_F64, &wishes, 1));
    *stop = wishes > 0;
    return DSV_OK;
}

/* events->stop for sampling: the same on all ranks. A communication failure also stops sampling; the next
 * call of run_wants_stop returns it. */
static bool all_want_stop(void *context)
{
    bool stop;
    return run_wants_stop(context, &stop) != DSV_OK || stop;
}

/* Records a clip on rank 0 (DsviClipWritten). */
static void clip_written(void *context, int64_t prompt, const char *path)
{
    DsviRun *run = context;
    if (prompt <= 0)
        snprintf(run->summary->sample, sizeof run->summary->sample, "%s", path);
    dsvi_run_log(run, DSV_LOG_INFO, "sampled %s", path);
    dsvi_run_record_clip(run->record, run->trainer->step, prompt, path);
}

/* Called when a run must end because no sample, or no lent expert, could be read: saves a checkpoint of the
 * steps done, and returns `failure` with its message. With several ranks nothing is saved, because the other
 * ranks already wait in the step and cannot take part in saving. */
static DsvStatus save_before(DsviRun *run, DsvStatus failure)
{
    DsviStatusRecord first = *dsvi_status_record();
    if (dsvi_comm_size(run->comm) == 1)
        (void)dsvi_run_save(run); /* a failure to save is ignored: `failure` is reported */
    *dsvi_status_record() = first;
    return failure;
}

static DsvStatus validate(DsviRun *run)
{
    DsvEvents quiet = {.context = run, .log = dsvi_run_event_line, .stop = all_want_stop};
    if (run->sampled_step == run->trainer->step)
        return DSV_OK;
    DsvStatus status = dsvi_sample_clips(run->trainer, &run->sampled, &run->pictures, run->folder.samples,
                                         &quiet, clip_written, run);
    if (status == DSV_E_INTERRUPTED)
        return DSV_OK; /* stop was requested: the training loop gets the same request, and saves a
                        * checkpoint before it ends */
    if (run->trainer->experts && !run->settings->validation_ema && status != DSV_OK)
        return save_before(run, status); /* for example, the files of the lent expert are gone; with
                                          * validation.ema the average is still in the place of the weights */
    DSVI_TRY(dsvi_zero_await_transfers(&run->trainer->zero, status));
    run->sampled_step = run->trainer->step;
    return DSV_OK;
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Sets *is_due to true if the held-out loss must be measured after the current step and is not recorded
 * yet. Before the first step (step 0) it counts as recorded, because an empty record has 0 as its last
 * step. */
static DsvStatus held_out_due(const DsviRun *run, bool *is_due)
{
    const DsviTrainer *t = run->trainer;
    const DsvConfig *settings = run->settings;
    bool last = t->step == settings->max_train_steps;
    *is_due = t->held_out && (last || due(t->step, settings->validation_every));
    if (!*is_due)
        return DSV_OK;
    if (dsvi_run_is_first(run))
        *is_due = !dsvi_run_record_has_held_out(run->record, t->step);
    return dsvi_comm_broadcast(run->comm, 0, is_due, sizeof *is_due);
}

static DsvStatus measure_held_out(DsviRun *run)
{
    DsviTrainer *t = run->trainer;
    DsviHeldOutLoss loss;
    char dense[64] = "";
    bool is_due;
    DSVI_TRY(held_out_due(run, &is_due));
    if (!is_due)
        return DSV_OK;
    DsvStatus status = dsvi_held_out_measure(t->held_out, t->sparse, run->events, &loss);
    if (status == DSV_E_INTERRUPTED)
        return DSV_OK; /* stop was requested: the training loop saves a checkpoint and ends; the resumed
                        * run measures this loss first */
    DSVI_TRY(dsvi_zero_await_transfers(&t->zero, status));
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    if (!isnan(loss.dense_loss))
        snprintf(dense, sizeof dense, ", %.5f with all attention dense", loss.dense_loss);
    dsvi_run_log(run, DSV_LOG_INFO, "held-out loss %.5f after step %" PRId64 "%s", loss.loss, t->step, dense);
    return dsvi_run_record_held_out(run->record, t->step, &loss);
}

/* Returns whether `status` is the divergence of a training step, which all ranks detect together.
 * Sampling and the sparse layer may return DSV_E_DIVERGED on one rank only. */
static bool diverged_on_all(const DsviRun *run, DsvStatus status)
{
    return status == DSV_E_DIVERGED && run->trainer && run->trainer->diverged;
}

/* Reports this rank's failure to the other ranks. A requested stop and a diverged step are not reported,
 * because all ranks detect these together. */
static DsvStatus run_tell_others(const DsviRun *run, DsvStatus status)
{
    bool known = status == DSV_E_INTERRUPTED || diverged_on_all(run, status);
    return known ? status : dsvi_comm_fail(run->comm, status);
}

/* Adds to the message of a failed training which step failed and from which checkpoint the run can be
 * resumed. */
static DsvStatus explain_failure(const DsviRun *run, DsvStatus status)
{
    if (dsvi_comm_size(run->comm) > 1 && !diverged_on_all(run, status))
        dsvi_fail_prefix(status, "step %" PRId64, run->trainer->step + 1);
    if (run->summary->checkpoint[0])
        return dsvi_fail_prefix(status, "training stopped, %s is whole", run->summary->checkpoint);
    return status;
}

static DsvStatus run_train(DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    DsviTrainer *t = run->trainer;
    DsviSampleSource source = dsvi_run_source(run);
    DSVI_TRY(measure_held_out(run));
    while (t->step < settings->max_train_steps) {
        DsviStepResult result;
        bool stop;
        DSVI_TRY(run_wants_stop(run, &stop));
        if (stop) {
            DSVI_TRY(dsvi_run_save(run));
            DSVI_TRY(dsvi_comm_barrier(run->comm)); /* wait until every rank has saved: a launcher may kill
                                                     * all ranks when one ends */
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after step %" PRId64, t->step);
        }
        double start = dsvi_clock_seconds();
        DsvStatus status = dsvi_train_step(t, &source, &result);
        if (status != DSV_OK)
            return result.begun ? status : save_before(run, status);
        if (dsvi_run_is_first(run))
            DSVI_TRY(dsvi_run_record_step(run->record, &result, dsvi_clock_seconds() - start));
        DSVI_TRY(measure_held_out(run));
        if (due(t->step, settings->checkpointing_steps))
            DSVI_TRY(dsvi_run_save(run));
        if (due(t->step, settings->validation_steps))
            DSVI_TRY(validate(run));
    }
    DSVI_TRY(dsvi_run_save(run));
    if (settings->validation_at_end)
        DSVI_TRY(validate(run));
    DSVI_TRY(dsvi_run_report_replaced(run));
    return dsvi_comm_barrier(run->comm); /* no rank ends before all ranks are done */
}

static DsvStatus summarise(DsviRun *run)
{
    DsviMetricsSummary metrics;
    DsviSparseReport sparse;
    DsvTrainSummary *summary = run->summary;
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_metrics_summarise(run->folder.metrics, &metrics));
    dsvi_sparse_report(run->trainer->sparse, &sparse);
    summary->last_step = run->trainer->step;
    summary->first_loss = metrics.first_loss;
    summary->last_loss = metrics.last_loss;
    summary->sparse_blocks = sparse.sparse_blocks;
    summary->blocks = sparse.blocks;
    summary->captured_mass = sparse.captured_mass;
    summary->dense_finish = dsvi_sparse_finishing(run->trainer->sparse);
    summary->output_error = dsvi_sparse_has_tail(run->trainer->settings) ? sparse.output_error : 0;
    summary->seconds = dsvi_clock_seconds() - run->start;
    return DSV_OK;
}

static void close_run(DsviRun *run)
{
    dsvi_prefetch_stop(&run->prefetch);
    dsvi_run_record_close(&run->record);
    dsvi_trainer_free(&run->trainer);
    dsvi_dataset_close(&run->dataset);
    dsvi_sampled_texts_free(&run->sampled);
    dsvi_sampled_pictures_free(&run->pictures);
    if (run->codec)
        run->codec->close(run->codec);
    dsvi_run_folder_close(&run->folder);
}

DsvStatus dsvi_train_run(const DsvConfig *settings, DsviBackend *backend, DsviComm *comm,
                         const DsviRunPrompts *prompts, const DsvEvents *events, DsvTrainSummary *summary)
{
    DsviRun run = {.settings = settings,
                   .backend = backend,
                   .comm = comm,
                   .prompts = prompts,
                   .events = events,
                   .summary = summary,
                   .start = dsvi_clock_seconds(),
                   .saved_step = -1,
                   .sampled_step = -1,
                   .folder = {.place = -1, .lock = -1}};
    memset(summary, 0, sizeof *summary);
    DsvStatus status = open_run(&run);
    if (status != DSV_OK) {
        status = run_tell_others(&run, status);
    } else {
        status = run_tell_others(&run, run_train(&run));
        if (status == DSV_OK || status == DSV_E_INTERRUPTED) {
            DsvStatus summed = summarise(&run);
            status = status == DSV_OK ? summed : status;
        } else {
            status = explain_failure(&run, status);
        }
    }
    close_run(&run);
    return status;
}
