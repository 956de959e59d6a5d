/* A run: open everything, step until done, save what must not be lost. Calls step.c for the work of a step,
 * checkpoint.c to store it, run_record.c to tell about it. */
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "data/prefetch.h"
#include "train/checkpoint.h"
#include "train/metrics_read.h"
#include "train/model_path.h"
#include "train/notices.h"
#include "train/preview.h"
#include "train/ranks_agree.h"
#include "train/run_facts.h"
#include "train/run_folder.h"
#include "train/run_record.h"
#include "train/sampled_clips.h"
#include "train/step.h"

enum { COSTS = 2 }; /* of attention, of links */

typedef struct Run {
    const DsvConfig *settings;
    DsvBackend *backend;
    DsvComm *comm;            /* the ranks that train together; NULL: one alone */
    const DsvEvents *events;
    DsvTrainSummary *summary;
    DsvRunFolder folder;
    DsvDataset *dataset;
    DsvCodec *codec;
    DsvModelPath model;       /* to start from, where settings name one */
    DsvDitConfig config;
    DsvTrainer *trainer;
    DsvPrefetch *prefetch;
    DsvRunRecord *record;     /* of rank 0 */
    uint64_t resident_before; /* bytes of code and libraries, before anything of the run is allocated */
    char cost[COSTS][256];    /* what things cost here, as it was said before there was a record */
    int costs;
    double start;             /* clock */
    int64_t saved_step;       /* of the newest checkpoint, or -1 */
    int64_t sampled_step;     /* of the newest validation clip, or -1 */
} Run;

static bool is_first(const Run *run)
{
    return dsvi_comm_rank(run->comm) == 0;
}

/* Rank 0 speaks for all; what is more than information is said by whoever meets it. */
DSVI_PRINTF(3, 4)
static void say(const Run *run, DsvLogLevel level, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!run->events->log || (level == DSV_LOG_INFO && !is_first(run)))
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    run->events->log(run->events->context, level, line);
}

/* The form in which lower layers log. */
static void log_line(void *context, const char *line)
{
    say(context, DSV_LOG_INFO, "%s", line);
}

/* What is decided on attention. The first words, what it and links cost here, come before there is a
 * record. */
static void decision_line(void *context, const char *line)
{
    Run *run = context;
    say(run, DSV_LOG_INFO, "%s", line);
    if (run->record)
        dsvi_run_record_decision(run->record, line);
    else if (run->costs < COSTS)
        snprintf(run->cost[run->costs++], sizeof run->cost[0], "%s", line);
}

static void event_line(void *context, DsvLogLevel level, const char *line)
{
    say(context, level, "%s", line);
}

static void warn_line(void *context, const char *line)
{
    const Run *run = context;
    if (is_first(run))
        say(run, DSV_LOG_WARNING, "%s", line);
    else
        say(run, DSV_LOG_WARNING, "rank %" PRId64 ": %s", dsvi_comm_rank(run->comm), line);
}

static DsvStatus encode(void *context, const float *pixels, float *latent)
{
    const Run *run = context;
    return run->codec->encode(run->codec, run->trainer->video, pixels, latent);
}

static DsvStatus next_sample(void *context, float *latent, int64_t *passed_over)
{
    /* Captions await a text encoder: every sample trains on the unconditional row. */
    const char *text;
    return dsvi_prefetch_next(context, latent, &text, passed_over);
}

/* The shape that the model of model.path gave a run when it began: the checkpoint's, for that model may be
 * gone. Only rank 0 is sure to see the checkpoint. */
static DsvStatus read_resumed_config(Run *run)
{
    char path[DSVI_PATH_MAX];
    if (is_first(run)) {
        DSVI_TRY(dsvi_path_join(path, run->folder.checkpoint, "transformer/config.json"));
        DSVI_TRY(dsvi_dit_config_read(path, &run->config));
    }
    return dsvi_comm_broadcast(run->comm, 0, &run->config, sizeof run->config);
}

/* The model's shape: that of the weights to start from, or the preset's with the codec's channels. */
static DsvStatus choose_config(Run *run)
{
    const DsvConfig *settings = run->settings;
    DsvVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    if (settings->model_path[0] && run->folder.start != DSV_START_FRESH)
        return read_resumed_config(run);
    if (settings->model_path[0]) {
        DSVI_TRY(dsvi_model_find(settings->model_path, &run->model));
        return dsvi_dit_config_read(run->model.config, &run->config);
    }
    DSVI_TRY(run->codec->latent_shape(run->codec, video, &latent));
    DSVI_TRY(dsvi_dit_config_make(settings, &run->config));
    run->config.in_channels = run->config.out_channels = latent.channels;
    return DSV_OK;
}

static DsvStatus open_data(const Run *run, const char *path, DsvDataset **dataset)
{
    DSVI_TRY(dsvi_dataset_open(path, run->settings, dataset));
    for (int64_t i = 0; i < (*dataset)->left_out_count && is_first(run); i++)
        say(run, DSV_LOG_WARNING, "left out: %s", (*dataset)->left_out[i]);
    for (int64_t i = 0; i < (*dataset)->remark_count && is_first(run); i++)
        say(run, DSV_LOG_WARNING, "%s", (*dataset)->remarks[i]);
    say(run, DSV_LOG_INFO, "%s: %" PRId64 " %s%s", path, (*dataset)->count,
        (*dataset)->latents ? "cached window" : "clip", (*dataset)->count == 1 ? "" : "s");
    return DSV_OK;
}

/* The held-out windows, of which latents stay in memory. */
static DsvStatus open_held_out(const Run *run)
{
    DsvDataset *dataset;
    DsvHeldOut *held_out = run->trainer->held_out;
    if (!held_out)
        return DSV_OK;
    DSVI_TRY(open_data(run, run->settings->validation_data, &dataset));
    DsvStatus status = dsvi_ranks_agree_on_data(run->comm, "validation.data", dataset);
    if (status == DSV_OK)
        status = dsvi_held_out_fill(held_out, dataset, run->settings, run->codec, warn_line, (void *)run);
    dsvi_dataset_close(&dataset);
    if (status == DSV_OK)
        say(run, DSV_LOG_INFO, "held out: %" PRId64 " windows, %.1f MiB of them on this rank",
            run->settings->validation_clips, (double)dsvi_held_out_bytes(held_out) / 1048576.0);
    return status;
}

/* A resumed run goes on with the sample that follows, which in another list of clips is another. */
static DsvStatus compare_with_checkpoint(Run *run)
{
    DsvCheckpointState state;
    char line[512];
    const DsvDatasetMark *now = &run->trainer->data, *then = &state.data;
    DSVI_TRY(dsvi_checkpoint_state(run->folder.checkpoint, &state));
    if (then->count == 0 || (then->count == now->count && then->hash == now->hash))
        return DSV_OK;
    snprintf(line, sizeof line, "data.path=%.256s: %" PRId64 " clips that are not the %" PRId64 " of the "
             "checkpoint: the run goes on, but with other samples than an uninterrupted run",
             run->settings->data_path, now->count, then->count);
    warn_line(run, line);
    return DSV_OK;
}

/* A checkpoint's name must not promise another step than it holds: the run's records go by the name. */
static DsvStatus check_name(const Run *run)
{
    int64_t named = dsvi_checkpoint_step_in(run->folder.root, run->folder.checkpoint);
    if (run->folder.start != DSV_START_RESUME || named == run->trainer->step)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_FORMAT, "%s: its state.json is of step %" PRId64, run->folder.checkpoint,
                     run->trainer->step);
}

/* A checkpoint of the run's own folder need not be written again before the next step. */
static DsvStatus load_checkpoint(Run *run)
{
    const DsvRunFolder *folder = &run->folder;
    DSVI_TRY(dsvi_checkpoint_load(run->trainer, folder->checkpoint));
    say(run, DSV_LOG_INFO, "resuming after step %" PRId64 " from %s", run->trainer->step, folder->checkpoint);
    if (is_first(run)) {
        DSVI_TRY(check_name(run));
        DSVI_TRY(compare_with_checkpoint(run));
    }
    if (folder->start == DSV_START_RESUME) {
        run->saved_step = run->trainer->step;
        snprintf(run->summary->checkpoint, sizeof run->summary->checkpoint, "%s", folder->checkpoint);
    }
    return DSV_OK;
}

/* Weights, moments and everything else, from a checkpoint, a model or the initial draw. */
static DsvStatus load_state(Run *run)
{
    DsvTrainer *t = run->trainer;
    if (run->folder.start != DSV_START_FRESH)
        return load_checkpoint(run);
    if (run->settings->model_path[0] && is_first(run))
        DSVI_TRY(dsvi_model_verify(&run->model));
    if (run->settings->model_path[0] && is_first(run))
        DSVI_TRY(dsvi_weights_read(run->model.weights, &t->table, t->host_flat));
    else if (is_first(run))
        dsvi_weights_init(&t->table, (uint64_t)run->settings->seed, t->host_flat);
    return dsvi_trainer_start(t);
}

/* What it is that runs, and the memory preview: told and stored. */
static DsvStatus tell_facts(const Run *run)
{
    DsvRunFacts facts;
    char line[512];
    if (!is_first(run))
        return DSV_OK;
    dsvi_run_facts(run->trainer, dsvi_prefetch_bytes(run->prefetch), (size_t)run->resident_before,
                   run->dataset->count, &facts);
    dsvi_run_facts_memory(&facts, line, sizeof line);
    say(run, DSV_LOG_INFO, "%s", line);
    return dsvi_run_facts_write(&facts, run->folder.facts);
}

/* Records end before the checkpoint when they were lost, by a power failure or by hand. */
static void tell_gap(Run *run)
{
    char line[DSVI_PATH_MAX + 128];
    int64_t last = dsvi_run_record_last_step(run->record), step = run->trainer->step;
    if (run->folder.start != DSV_START_RESUME || last >= step)
        return;
    snprintf(line, sizeof line, "%s: steps %" PRId64 " to %" PRId64 ", which the checkpoint holds, are not "
             "on record", run->folder.metrics, last + 1, step);
    warn_line(run, line);
}

static DsvStatus open_record(Run *run)
{
    if (!is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_record_open(&run->folder, run->trainer, run->events, &run->record));
    tell_gap(run);
    return DSV_OK;
}

/* From here on the folder is that of this start. A resumed run goes by what its first start has measured,
 * which is on record. */
static DsvStatus take_over_folder(Run *run)
{
    DsvSuperseded superseded = {.root = run->folder.root};
    if (!is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_folder_accept(&run->folder, run->settings, run->trainer->step, &superseded));
    DSVI_TRY(dsvi_run_record_begin(run->record, &run->folder, &superseded));
    if (superseded.folder[0])
        say(run, DSV_LOG_INFO, "what this start replaces is kept in %s", superseded.folder);
    for (int i = 0; i < run->costs && run->folder.start == DSV_START_FRESH; i++)
        dsvi_run_record_decision(run->record, run->cost[i]);
    return run->trainer->plans ? dsvi_costs_write(run->folder.costs,
                                                  dsvi_context_plans_costs(run->trainer->plans))
                               : DSV_OK;
}

/* The folder is rank 0's. The others need to know whether there is something to go on from. */
static DsvStatus open_folder(Run *run)
{
    if (is_first(run))
        DSVI_TRY(dsvi_run_folder_open(run->settings, log_line, warn_line, run, &run->folder));
    return dsvi_comm_broadcast(run->comm, 0, &run->folder.start, sizeof run->folder.start);
}

static DsvStatus start_prefetch(Run *run)
{
    const DsvConfig *settings = run->settings;
    uint64_t batch = (uint64_t)settings->train_batch_size;
    DsvSampleSeries series = {
        .first = dsvi_trainer_first_sample(run->trainer), .run = batch,
        .stride = dsvi_trainer_samples(run->trainer),
    };
    DsvPrefetchShare share = {
        .computes = run->backend->device->kind == DSV_DEVICE_CPU, .cores = dsvi_usable_cores(),
        .memory = dsvi_memory_bytes(), .ranks = run->trainer->here.ranks,
    };
    int64_t slots = settings->data_prefetch * settings->train_batch_size, elements = run->trainer->elements;
    int64_t workers = dsvi_prefetch_workers(run->dataset, settings, slots, elements, &share);
    say(run, DSV_LOG_INFO, "samples come from %" PRId64 " thread%s, up to %" PRId64 " ahead", workers,
        workers > 1 ? "s" : "", slots);
    return dsvi_prefetch_start(run->dataset, settings, series, workers, slots, elements, encode, run,
                               warn_line, run, &run->prefetch);
}

static void mesh_line(void *context, const char *line)
{
    say(context, DSV_LOG_INFO, "%s", line);
}

/* Who does what. */
static void tell_ranks(const Run *run)
{
    const DsvConfig *settings = run->settings;
    const DsvMesh *mesh = &run->trainer->mesh;
    char shared[64] = "";
    int64_t clips = mesh->data_ranks * settings->train_batch_size * settings->gradient_accumulation_steps;
    if (dsvi_comm_size(run->comm) == 1)
        return;
    if (mesh->context_ranks > 1)
        snprintf(shared, sizeof shared, ", %" PRId64 " to each clip", mesh->context_ranks);
    say(run, DSV_LOG_INFO, "%" PRId64 " ranks%s: a step trains on %" PRId64 " clips, %" PRId64 " in a batch",
        dsvi_comm_size(run->comm), shared, clips, settings->train_batch_size);
    if (is_first(run))
        dsvi_mesh_draw(mesh, mesh->context_ranks > 1 ? dsvi_context_bound(run->trainer->context) : NULL,
                       mesh_line, (void *)run);
}

/* Whatever was removed, moved or replaced in the folder while the run was at work is put there again. */
static DsvStatus repair_folder(Run *run)
{
    DsvSuperseded superseded = {.root = run->folder.root};
    if (!dsvi_run_folder_in_place(&run->folder)) {
        run->summary->checkpoint[0] = 0;
        DSVI_TRY(dsvi_run_folder_retake(&run->folder, run->settings, &superseded));
    }
    return dsvi_run_record_restore(run->record, &superseded);
}

/* Before a checkpoint is written: the records of its steps are on the disk, and the folder is still the
 * run's. *repaired: the folder had to be put in order, and the run must end once the checkpoint is written,
 * because somebody else is at work in the folder. */
static DsvStatus secure_folder(Run *run, bool *repaired)
{
    *repaired = false;
    if (!is_first(run))
        return DSV_OK;
    *repaired = !dsvi_run_folder_in_place(&run->folder) || !dsvi_run_record_in_place(run->record);
    if (*repaired && repair_folder(run) != DSV_OK)
        return dsvi_fail_within(DSV_E_IO, "output_dir=%s was removed or replaced while the run was at work, "
                                "and step %" PRId64 " cannot be saved there", run->folder.root,
                                run->trainer->step);
    return dsvi_run_record_sync(run->record);
}

static DsvStatus save(Run *run)
{
    char path[DSVI_PATH_MAX];
    bool repaired;
    if (run->saved_step == run->trainer->step)
        return DSV_OK;
    DSVI_TRY(secure_folder(run, &repaired));
    DSVI_TRY(dsvi_checkpoint_save(run->trainer, run->folder.root, path));
    snprintf(run->summary->checkpoint, sizeof run->summary->checkpoint, "%s", path);
    run->saved_step = run->trainer->step;
    say(run, DSV_LOG_INFO, "saved %s", path);
    if (repaired)
        return DSVI_FAIL(DSV_E_IO, "output_dir=%s or its records were removed or replaced while the run was "
                         "at work; the records are there again, and resume_from_checkpoint=latest goes on",
                         run->folder.root);
    if (is_first(run) && dsvi_checkpoint_prune(run->folder.root, run->settings->checkpoints_total_limit,
                                               run->saved_step) != DSV_OK)
        say(run, DSV_LOG_WARNING, "an old checkpoint is still there: %s", dsv_error_message());
    return DSV_OK;
}

static DsvStatus open_run(Run *run)
{
    const DsvConfig *settings = run->settings;
    DSVI_TRY(dsvi_preview_check(settings, run->backend)); /* before clips are opened and a folder is made */
    DSVI_TRY(open_folder(run));
    DSVI_TRY(dsvi_codec_open(settings, &run->codec));
    DSVI_TRY(open_data(run, settings->data_path, &run->dataset));
    dsvi_notices(settings, is_first(run) ? run->dataset : NULL, log_line, warn_line, run);
    DSVI_TRY(choose_config(run));
    DSVI_TRY(dsvi_ranks_agree(run->comm, run->settings, run->dataset, &run->config));
    run->resident_before = dsvi_resident_bytes();
    DSVI_TRY(dsvi_trainer_create(settings, run->backend, run->comm, run->codec, &run->config,
                                 decision_line, run, &run->trainer));
    run->trainer->data = dsvi_dataset_mark(run->dataset);
    say(run, DSV_LOG_INFO, "model: %" PRId64 " parameters, %" PRId64 " blocks, latents %" PRId64 " x %" PRId64
        " x %" PRId64 " x %" PRId64 ", on %s", run->trainer->table.parameters, run->config.num_layers,
        run->trainer->latent.channels, run->trainer->latent.frames, run->trainer->latent.height,
        run->trainer->latent.width, run->backend->device->name);
    tell_ranks(run);
    DSVI_TRY(load_state(run));
    DSVI_TRY(open_held_out(run));
    DSVI_TRY(open_record(run)); /* measures the machine: before decoding takes a part of it, on any rank */
    DSVI_TRY(dsvi_comm_barrier(run->comm)); /* all ranks have accepted everything */
    if (run->folder.start == DSV_START_BRANCH)
        DSVI_TRY(save(run)); /* so that the run's own folder has what it began from */
    DSVI_TRY(take_over_folder(run));
    DSVI_TRY(dsvi_comm_barrier(run->comm));
    DSVI_TRY(start_prefetch(run));
    run->summary->first_step = run->trainer->step;
    return tell_facts(run);
}

/* On all ranks as soon as one wants to. */
static DsvStatus wants_stop(const Run *run, bool *stop)
{
    double wishes = run->events->stop && run->events->stop(run->events->context);
    DSVI_TRY(dsvi_comm_all_reduce(run->comm, DSV_F64, &wishes, 1));
    *stop = wishes > 0;
    return DSV_OK;
}

/* The same for sampling. A failure to agree ends it too, and is met again at the next call. */
static bool all_want_stop(void *context)
{
    bool stop;
    return wants_stop(context, &stop) != DSV_OK || stop;
}

static DsvStatus validate(Run *run)
{
    char path[DSVI_PATH_MAX];
    DsvEvents quiet = {.context = run, .log = event_line, .stop = all_want_stop};
    if (run->sampled_step == run->trainer->step)
        return DSV_OK;
    DsvStatus status = dsvi_sample_clips(run->trainer, run->folder.samples, &quiet, path);
    if (status == DSV_E_INTERRUPTED)
        return DSV_OK; /* the training loop will see the same request, and save first */
    DSVI_TRY(dsvi_zero_settle(&run->trainer->zero, status));
    run->sampled_step = run->trainer->step;
    if (!path[0]) /* it could not be written, or it is not this rank's to write */
        return DSV_OK;
    snprintf(run->summary->sample, sizeof run->summary->sample, "%s", path);
    say(run, DSV_LOG_INFO, "sampled %s", path);
    dsvi_run_record_clip(run->record, run->trainer->step, path);
    return DSV_OK;
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Whether the held-out loss is due after the steps done and not on record yet. Before the first step it
 * counts as on record: the last step of an empty record is 0. */
static DsvStatus held_out_due(const Run *run, bool *wanted)
{
    const DsvTrainer *t = run->trainer;
    const DsvConfig *settings = run->settings;
    bool last = t->step == settings->max_train_steps;
    *wanted = t->held_out && (last || due(t->step, settings->validation_every));
    if (!*wanted)
        return DSV_OK;
    if (is_first(run))
        *wanted = !dsvi_run_record_has_held_out(run->record, t->step);
    return dsvi_comm_broadcast(run->comm, 0, wanted, sizeof *wanted);
}

static DsvStatus measure_held_out(Run *run)
{
    DsvTrainer *t = run->trainer;
    DsvHeldOutLoss loss;
    char dense[64] = "";
    bool wanted;
    DSVI_TRY(held_out_due(run, &wanted));
    if (!wanted)
        return DSV_OK;
    DsvStatus status = dsvi_held_out_measure(t->held_out, t->sparse, run->events, &loss);
    if (status == DSV_E_INTERRUPTED)
        return DSV_OK; /* the training loop sees the same request and saves; a resume measures first */
    DSVI_TRY(dsvi_zero_settle(&t->zero, status));
    if (!is_first(run))
        return DSV_OK;
    if (!isnan(loss.dense_loss))
        snprintf(dense, sizeof dense, ", %.5f with all attention dense", loss.dense_loss);
    say(run, DSV_LOG_INFO, "held-out loss %.5f after step %" PRId64 "%s", loss.loss, t->step, dense);
    return dsvi_run_record_held_out(run->record, t->step, &loss);
}

/* All ranks find out together that a step diverged. Sampling and the sparse layer may on one alone. */
static bool diverged_on_all(const Run *run, DsvStatus status)
{
    return status == DSV_E_DIVERGED && run->trainer && run->trainer->diverged;
}

/* Of what they do not all know, stopping together aside, the others are told. */
static DsvStatus tell_others(const Run *run, DsvStatus status)
{
    bool known = status == DSV_E_INTERRUPTED || diverged_on_all(run, status);
    return known ? status : dsvi_comm_fail(run->comm, status);
}

/* A failed step must say which it was and from where the run can go on. */
static DsvStatus explain_failure(const Run *run, DsvStatus status)
{
    if (dsvi_comm_size(run->comm) > 1 && !diverged_on_all(run, status))
        dsvi_fail_within(status, "step %" PRId64, run->trainer->step + 1);
    if (run->summary->checkpoint[0])
        return dsvi_fail_within(status, "training stopped, %s is whole", run->summary->checkpoint);
    return status;
}

/* Before a run ends for want of samples: the steps done are saved. Of several ranks the others wait for this
 * one's sample already, and cannot be asked to save. */
static DsvStatus save_before(Run *run, DsvStatus failure)
{
    DsvStatusRecord first = *dsvi_status_record();
    if (dsvi_comm_size(run->comm) == 1)
        (void)save(run); /* the failure that matters is the first */
    *dsvi_status_record() = first;
    return failure;
}

static DsvStatus train(Run *run)
{
    const DsvConfig *settings = run->settings;
    DsvTrainer *t = run->trainer;
    DsvSampleSource source = {run->prefetch, next_sample};
    DSVI_TRY(measure_held_out(run));
    while (t->step < settings->max_train_steps) {
        DsvStepResult result;
        bool stop;
        DSVI_TRY(wants_stop(run, &stop));
        if (stop) {
            DSVI_TRY(save(run));
            DSVI_TRY(dsvi_comm_barrier(run->comm)); /* a rank that ends may have the others ended */
            return DSVI_FAIL(DSV_E_INTERRUPTED, "stopped after step %" PRId64, t->step);
        }
        double start = dsvi_clock_seconds();
        DsvStatus status = dsvi_train_step(t, &source, &result);
        if (status != DSV_OK)
            return result.begun ? status : save_before(run, status);
        if (is_first(run))
            DSVI_TRY(dsvi_run_record_step(run->record, &result, dsvi_clock_seconds() - start));
        DSVI_TRY(measure_held_out(run));
        if (due(t->step, settings->checkpointing_steps))
            DSVI_TRY(save(run));
        if (due(t->step, settings->validation_steps))
            DSVI_TRY(validate(run));
    }
    DSVI_TRY(save(run));
    if (settings->validation_at_end)
        DSVI_TRY(validate(run));
    return dsvi_comm_barrier(run->comm); /* none is done before all are */
}

static DsvStatus summarise(Run *run)
{
    DsvMetricsSummary metrics;
    DsvSparseReport sparse;
    DsvTrainSummary *summary = run->summary;
    if (!is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_metrics_summarise(run->folder.metrics, &metrics));
    dsvi_sparse_report(run->trainer->sparse, &sparse);
    summary->last_step = run->trainer->step;
    summary->first_loss = metrics.first_loss;
    summary->last_loss = metrics.last_loss;
    summary->sparse_blocks = sparse.sparse_blocks;
    summary->blocks = sparse.blocks;
    summary->captured_mass = sparse.captured_mass;
    summary->seconds = dsvi_clock_seconds() - run->start;
    return DSV_OK;
}

static void close_run(Run *run)
{
    dsvi_prefetch_stop(&run->prefetch);
    dsvi_run_record_close(&run->record);
    dsvi_trainer_free(&run->trainer);
    dsvi_dataset_close(&run->dataset);
    if (run->codec)
        run->codec->close(run->codec);
    dsvi_run_folder_close(&run->folder);
}

DsvStatus dsvi_train_run(const DsvConfig *settings, DsvBackend *backend, DsvComm *comm,
                         const DsvEvents *events, DsvTrainSummary *summary)
{
    Run run = {.settings = settings, .backend = backend, .comm = comm, .events = events, .summary = summary,
               .start = dsvi_clock_seconds(), .saved_step = -1, .sampled_step = -1,
               .folder = {.place = -1, .lock = -1}};
    memset(summary, 0, sizeof *summary);
    DsvStatus status = open_run(&run);
    if (status != DSV_OK) {
        status = tell_others(&run, status);
    } else {
        status = tell_others(&run, train(&run));
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
