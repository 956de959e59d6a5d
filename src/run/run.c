/* A training run: opens data, model and folder, runs all steps, and saves checkpoints. train/step.c does the
 * work of a step, checkpoint.c saves and loads checkpoints, run_record.c writes metrics. */
#include "run/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "data/prefetch.h"
#include "run/checkpoint.h"
#include "run/metrics_read.h"
#include "run/model_path.h"
#include "run/notices.h"
#include "run/preview.h"
#include "train/ranks_agree.h"
#include "run/run_facts.h"
#include "run/run_folder.h"
#include "run/run_record.h"
#include "run/sampled_clips.h"
#include "train/step.h"

/* Maximum number of lines about measured costs: one of attention, one of transfers between ranks. */
enum { COSTS = 2 };

typedef struct Run {
    const DsvConfig *settings;
    DsviBackend *backend;
    DsviComm *comm; /* all ranks of the run; NULL: one rank */
    const DsvEvents *events;
    DsvTrainSummary *summary;
    DsviRunFolder folder;
    DsviDataset *dataset;
    DsviCodec *codec;
    DsviModelPath model; /* initial weights, if model.path is set and the run starts afresh */
    DsviDitConfig config;
    DsviTrainer *trainer;
    DsviPrefetch *prefetch;
    DsviRunRecord *record;    /* on rank 0 */
    uint64_t resident_before; /* resident bytes before the run allocates memory: code and libraries */
    char cost[COSTS][256];    /* decisions logged before `record` was open: measured costs */
    int costs;
    float *sampled_rows; /* (2, text_len, text_dim) text of sampled clips, then the empty prompt; or NULL */
    DsviSampledTexts sampled;
    double start;         /* dsvi_clock_seconds at the start */
    int64_t saved_step;   /* step of the newest checkpoint, or -1 */
    int64_t sampled_step; /* step of the newest validation clip, or -1 */
} Run;

static bool is_first(const Run *run)
{
    return dsvi_comm_rank(run->comm) == 0;
}

/* Logs a line. Information is logged by rank 0 only, warnings by every rank. */
DSVI_PRINTF(3, 4)
static void run_log(const Run *run, DsvLogLevel level, const char *format, ...)
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

/* Callback for information from lower layers. */
static void run_log_line(void *context, const char *line)
{
    run_log(context, DSV_LOG_INFO, "%s", line);
}

/* Callback for decisions about attention: logs and records them. The first lines, measured costs, come before
 * the record is open; they are kept in run->cost. */
static void run_decision_line(void *context, const char *line)
{
    Run *run = context;
    run_log(run, DSV_LOG_INFO, "%s", line);
    if (run->record)
        dsvi_run_record_decision(run->record, line);
    else if (run->costs < COSTS)
        snprintf(run->cost[run->costs++], sizeof run->cost[0], "%s", line);
}

static void run_event_line(void *context, DsvLogLevel level, const char *line)
{
    run_log(context, level, "%s", line);
}

static void run_warn_line(void *context, const char *line)
{
    const Run *run = context;
    if (is_first(run))
        run_log(run, DSV_LOG_WARNING, "%s", line);
    else
        run_log(run, DSV_LOG_WARNING, "rank %" PRId64 ": %s", dsvi_comm_rank(run->comm), line);
}

static DsvStatus run_encode(void *context, const float *pixels, float *latent)
{
    const Run *run = context;
    return run->codec->encode(run->codec, run->trainer->video, pixels, latent);
}

/* Returns whether the model is trained with text: the data has text states. */
static bool has_text(const Run *run)
{
    return run->dataset->text.folder[0] != 0;
}

static DsvStatus next_sample(void *context, DsviSample *sample)
{
    return dsvi_prefetch_next(context, sample);
}

/* Reads the model's shape from the checkpoint, because the model at model.path may no longer exist. Rank 0
 * reads it for all: other ranks may not see the checkpoint. */
static DsvStatus read_resumed_config(Run *run)
{
    char path[DSVI_PATH_MAX];
    if (is_first(run)) {
        DSVI_TRY(dsvi_path_join(path, run->folder.checkpoint, "transformer/config.json"));
        DSVI_TRY(dsvi_dit_config_read(path, &run->config));
    }
    return dsvi_comm_broadcast(run->comm, 0, &run->config, sizeof run->config);
}

/* Determines the model's shape: that of the initial weights, or that of the model.* options with the codec's
 * channels. */
static DsvStatus run_choose_config(Run *run)
{
    const DsvConfig *settings = run->settings;
    DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    if (settings->model_path[0] && run->folder.start != DSVI_START_FRESH && settings->lora_rank == 0)
        return read_resumed_config(run);
    if (settings->model_path[0]) {
        DSVI_TRY(dsvi_model_find(settings->model_path, &run->model));
        return dsvi_model_config(&run->model, &run->config);
    }
    DSVI_TRY(run->codec->latent_shape(run->codec, video, &latent));
    DSVI_TRY(dsvi_dit_config_make(settings, &run->config));
    run->config.in_channels = run->config.out_channels = latent.channels;
    return DSV_OK;
}

/* Checks that the model takes text states of the size that the data has. Without text states there is
 * nothing to check, unless the latents are a published VAE's: its models have learned to follow prompts. */
static DsvStatus check_text(const Run *run, const char *key, const char *path, const DsviTextStore *text)
{
    bool has = text->folder[0] != 0;
    if (!has && strcmp(run->settings->codec_name, "wan") == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s has no text states, which codec.name=wan needs: encode its clips with "
                         "dsv encode --model",
                         key, path);
    if (has != has_text(run))
        return DSVI_FAIL(DSV_E_USAGE, "%s=%s %s text states, and data.path=%s %s", key, path,
                         has ? "has" : "has no", run->settings->data_path, has ? "has none" : "has some");
    if (!has || text->dim == run->config.text_dim)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "%s=%s: text states of %" PRId64 " elements, but the model takes rows of %" PRId64
                     ": they were made by another text encoder",
                     key, path, text->dim, run->config.text_dim);
}

static DsvStatus open_data(const Run *run, const char *path, DsviDataset **dataset)
{
    DSVI_TRY(dsvi_dataset_open(path, run->settings, dataset));
    for (int64_t i = 0; i < (*dataset)->left_out_count && is_first(run); i++)
        run_log(run, DSV_LOG_WARNING, "left out: %s", (*dataset)->left_out[i].reason);
    for (int64_t i = 0; i < (*dataset)->remark_count && is_first(run); i++)
        run_log(run, DSV_LOG_WARNING, "%s", (*dataset)->remarks[i]);
    run_log(run, DSV_LOG_INFO, "%s: %" PRId64 " %s%s", path, (*dataset)->count,
            (*dataset)->latents ? "cached window" : "clip", (*dataset)->count == 1 ? "" : "s");
    return DSV_OK;
}

/* Reads and encodes the held-out windows. */
static DsvStatus open_held_out(const Run *run)
{
    DsviDataset *dataset;
    DsviHeldOut *held_out = run->trainer->held_out;
    if (!held_out)
        return DSV_OK;
    DSVI_TRY(open_data(run, run->settings->validation_data, &dataset));
    DsvStatus status = check_text(run, "validation.data", run->settings->validation_data, &dataset->text);
    if (status == DSV_OK)
        status = dsvi_ranks_agree_on_data(run->comm, "validation.data", dataset);
    if (status == DSV_OK)
        status = dsvi_held_out_fill(held_out, dataset, run->settings, run->codec, run_warn_line, (void *)run);
    dsvi_dataset_close(&dataset);
    if (status == DSV_OK)
        run_log(run, DSV_LOG_INFO, "held out: %" PRId64 " windows, %.1f MiB of them on this rank",
                run->settings->validation_clips, (double)dsvi_held_out_bytes(held_out) / 1048576.0);
    return status;
}

/* Warns if the clips differ from those of the checkpoint: the resumed run then uses other samples than an
 * uninterrupted run. */
static DsvStatus compare_with_checkpoint(Run *run)
{
    DsviCheckpointState state;
    char line[512];
    const DsviDatasetFingerprint *now = &run->trainer->data, *then = &state.data;
    DSVI_TRY(dsvi_checkpoint_state(run->folder.checkpoint, &state));
    if (then->count == 0 || (then->count == now->count && then->hash == now->hash))
        return DSV_OK;
    snprintf(line, sizeof line,
             "data.path=%.256s: %" PRId64 " clips that are not the %" PRId64 " of the "
             "checkpoint: the run goes on, but with other samples than an uninterrupted run",
             run->settings->data_path, now->count, then->count);
    run_warn_line(run, line);
    return DSV_OK;
}

/* Checks that a checkpoint in the run's own folder, checkpoint-<step>, has the same step in its
 * state.json. */
static DsvStatus check_checkpoint_name(const Run *run)
{
    int64_t named = dsvi_checkpoint_step_in(run->folder.root, run->folder.checkpoint);
    if (run->folder.start != DSVI_START_RESUME || named == run->trainer->step)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_FORMAT, "%s: its state.json is of step %" PRId64, run->folder.checkpoint,
                     run->trainer->step);
}

/* Loads the checkpoint. If it is in the run's own folder, it counts as saved. */
static DsvStatus load_checkpoint(Run *run)
{
    const DsviRunFolder *folder = &run->folder;
    DSVI_TRY(dsvi_checkpoint_load(run->trainer, folder->checkpoint));
    run_log(run, DSV_LOG_INFO, "resuming after step %" PRId64 " from %s", run->trainer->step,
            folder->checkpoint);
    if (is_first(run)) {
        DSVI_TRY(check_checkpoint_name(run));
        DSVI_TRY(compare_with_checkpoint(run));
    }
    if (folder->start == DSVI_START_RESUME) {
        run->saved_step = run->trainer->step;
        snprintf(run->summary->checkpoint, sizeof run->summary->checkpoint, "%s", folder->checkpoint);
    }
    return DSV_OK;
}

/* Initialises the trainer from a checkpoint, from the weights at model.path, or with random weights. */
static DsvStatus load_state(Run *run)
{
    DsviTrainer *t = run->trainer;
    bool stored = run->settings->model_path[0] != 0, lora = t->frozen != NULL;
    if (lora)
        DSVI_TRY(dsvi_trainer_load_frozen(t, run->model.weights));
    if (run->folder.start != DSVI_START_FRESH)
        return load_checkpoint(run);
    if (stored && is_first(run))
        DSVI_TRY(dsvi_model_verify(&run->model));
    if (stored && !lora && is_first(run))
        DSVI_TRY(dsvi_weights_read(run->model.weights, t->trained, t->host_flat));
    else if (is_first(run))
        dsvi_weights_init(t->trained, (uint64_t)run->settings->seed, t->host_flat);
    return dsvi_trainer_start(t);
}

/* Logs the memory plan and writes run.json. */
static DsvStatus report_facts(const Run *run)
{
    DsviRunFacts facts;
    char line[512];
    if (!is_first(run))
        return DSV_OK;
    dsvi_run_facts(run->trainer, dsvi_prefetch_bytes(run->prefetch), (size_t)run->resident_before,
                   run->dataset->count, &facts);
    dsvi_run_facts_memory(&facts, line, sizeof line);
    run_log(run, DSV_LOG_INFO, "%s", line);
    return dsvi_run_facts_write(&facts, run->folder.facts);
}

/* Warns if metrics.jsonl lacks steps before the checkpoint, for example after a power failure. */
static void warn_of_gap(Run *run)
{
    char line[DSVI_PATH_MAX + 128];
    int64_t last = dsvi_run_record_last_step(run->record), step = run->trainer->step;
    if (run->folder.start != DSVI_START_RESUME || last >= step)
        return;
    snprintf(line, sizeof line,
             "%s: steps %" PRId64 " to %" PRId64 ", which the checkpoint holds, are not "
             "on record",
             run->folder.metrics, last + 1, step);
    run_warn_line(run, line);
}

static DsvStatus open_record(Run *run)
{
    if (!is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_record_open(&run->folder, run->trainer, run->events, &run->record));
    warn_of_gap(run);
    return DSV_OK;
}

/* Prepares folder and records for the steps of this start. Measured costs are recorded only by the first
 * start of a run; a resumed run uses the costs stored then. */
static DsvStatus prepare_folder(Run *run)
{
    DsviSuperseded superseded = {.root = run->folder.root};
    if (!is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_run_folder_accept(&run->folder, run->settings, run->trainer->step, &superseded));
    DSVI_TRY(dsvi_run_record_begin(run->record, &run->folder, &superseded));
    if (superseded.folder[0])
        run_log(run, DSV_LOG_INFO, "what this start replaces is kept in %s", superseded.folder);
    for (int i = 0; i < run->costs && run->folder.start == DSVI_START_FRESH; i++)
        dsvi_run_record_decision(run->record, run->cost[i]);
    return run->trainer->plans ? dsvi_costs_write(run->folder.costs, dsvi_cp_plans_costs(run->trainer->plans))
                               : DSV_OK;
}

/* Opens the run folder on rank 0, and sends to the other ranks whether the run is resumed. */
static DsvStatus open_folder(Run *run)
{
    if (is_first(run))
        DSVI_TRY(dsvi_run_folder_open(run->settings, run_log_line, run_warn_line, run, &run->folder));
    return dsvi_comm_broadcast(run->comm, 0, &run->folder.start, sizeof run->folder.start);
}

static DsvStatus start_prefetch(Run *run)
{
    const DsvConfig *settings = run->settings;
    uint64_t batch = (uint64_t)settings->train_batch_size;
    DsviSampleSeries series = {
        .first = dsvi_trainer_first_sample(run->trainer),
        .run = batch,
        .stride = dsvi_trainer_samples(run->trainer),
    };
    DsviPrefetchResources share = {
        .computes = run->backend->device->kind == DSVI_DEVICE_CPU,
        .cores = dsvi_usable_cores(),
        .memory = dsvi_memory_bytes(),
        .ranks = run->trainer->here.ranks,
    };
    int64_t slots = settings->data_prefetch * settings->train_batch_size, elements = run->trainer->elements;
    int64_t workers = dsvi_prefetch_workers(run->dataset, settings, slots, elements, &share);
    run_log(run, DSV_LOG_INFO, "samples come from %" PRId64 " thread%s, up to %" PRId64 " ahead", workers,
            workers > 1 ? "s" : "", slots);
    DsviPrefetchArgs args = {
        .dataset = run->dataset,
        .config = settings,
        .series = series,
        .workers = workers,
        .slots = slots,
        .latent_elements = elements,
        .text_rows = has_text(run) ? run->config.text_len : 0,
        .encode = run_encode,
        .encode_context = run,
        .warn = run_warn_line,
        .warn_context = run,
    };
    return dsvi_prefetch_start(&args, &run->prefetch);
}

/* Logs how the ranks divide the work. */
static void log_ranks(const Run *run)
{
    const DsvConfig *settings = run->settings;
    const DsviMesh *mesh = &run->trainer->mesh;
    char shared[64] = "";
    int64_t clips = mesh->data_ranks * settings->train_batch_size * settings->gradient_accumulation_steps;
    if (dsvi_comm_size(run->comm) == 1)
        return;
    if (mesh->cp_ranks > 1)
        snprintf(shared, sizeof shared, ", %" PRId64 " to each clip", mesh->cp_ranks);
    run_log(run, DSV_LOG_INFO,
            "%" PRId64 " ranks%s: a step trains on %" PRId64 " clips, %" PRId64 " in a batch",
            dsvi_comm_size(run->comm), shared, clips, settings->train_batch_size);
    if (is_first(run))
        dsvi_mesh_describe(mesh, mesh->cp_ranks > 1 ? dsvi_cp_bound(run->trainer->cp) : NULL, run_log_line,
                           (void *)run);
}

/* Restores the folder and the records after somebody removed, moved or replaced them during the run. */
static DsvStatus repair_folder(Run *run)
{
    DsviSuperseded superseded = {.root = run->folder.root};
    if (!dsvi_run_folder_in_place(&run->folder)) {
        run->summary->checkpoint[0] = 0;
        DSVI_TRY(dsvi_run_folder_retake(&run->folder, run->settings, &superseded));
    }
    return dsvi_run_record_restore(run->record, &superseded);
}

/* Called before a checkpoint is written: syncs the records and checks that the folder is still the run's. If
 * folder or records had to be restored, *repaired is true: the run must end after the checkpoint is written,
 * because somebody else changes the folder. */
static DsvStatus secure_folder(Run *run, bool *repaired)
{
    *repaired = false;
    if (!is_first(run))
        return DSV_OK;
    *repaired = !dsvi_run_folder_in_place(&run->folder) || !dsvi_run_record_in_place(run->record);
    if (*repaired && repair_folder(run) != DSV_OK)
        return dsvi_fail_prefix(DSV_E_IO,
                                "output_dir=%s was removed or replaced while the run was at work, "
                                "and step %" PRId64 " cannot be saved there",
                                run->folder.root, run->trainer->step);
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
    run_log(run, DSV_LOG_INFO, "saved %s", path);
    if (repaired)
        return DSVI_FAIL(DSV_E_IO,
                         "output_dir=%s or its records were removed or replaced while the run was "
                         "at work; the records are there again, and resume_from_checkpoint=latest goes on",
                         run->folder.root);
    if (is_first(run) && dsvi_checkpoint_prune(run->folder.root, run->settings->checkpoints_total_limit,
                                               run->saved_step) != DSV_OK)
        run_log(run, DSV_LOG_WARNING, "an old checkpoint is still there: %s", dsv_error_message());
    return DSV_OK;
}

/* Opens the codec, and checks that it can decode the clips that the run samples. */
static DsvStatus open_codec(Run *run)
{
    const DsvConfig *settings = run->settings;
    DSVI_TRY(dsvi_codec_open(settings, &run->codec));
    dsvi_codec_decode_on(run->codec, run->backend);
    if (run->codec->decode || (settings->validation_steps == 0 && !settings->validation_at_end))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "model.path=%s has no VAE to decode sampled clips: name one with model.vae, or "
                     "set validation_at_end=false and validation_steps=0",
                     settings->model_path);
}

/* Reads the texts of sampled clips from the latent cache: each cp group samples the first caption of another
 * item, and steers away from the empty prompt. */
static DsvStatus open_sampled_texts(Run *run)
{
    const DsviDataset *d = run->dataset;
    int64_t rows_max = run->config.text_len, row = run->config.text_dim, rows;
    int64_t item = run->trainer->mesh.data_rank % d->count;
    if (!run->trainer->generator || !has_text(run))
        return DSV_OK;
    run->sampled_rows = calloc((size_t)(2 * rows_max * row), sizeof *run->sampled_rows);
    if (!run->sampled_rows)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the text of sampled clips");
    float *negative = run->sampled_rows + rows_max * row;
    int64_t caption = d->items[item].captions.count > 0 ? 0 : -1;
    DSVI_TRY(dsvi_dataset_text_states(d, item, caption, rows_max, run->sampled_rows, &rows));
    DSVI_TRY(dsvi_dataset_text_states(d, item, -1, rows_max, negative, &rows));
    run->sampled = (DsviSampledTexts){run->sampled_rows, negative};
    run_log(run, DSV_LOG_INFO, "sampled clips show: %s",
            caption < 0 ? "the empty prompt" : d->items[item].captions.at[caption].text);
    return DSV_OK;
}

static DsvStatus open_run(Run *run)
{
    const DsvConfig *settings = run->settings;
    DSVI_TRY(dsvi_preview_check(settings, run->backend)); /* before a folder is created */
    DSVI_TRY(open_folder(run));
    DSVI_TRY(open_codec(run));
    DSVI_TRY(open_data(run, settings->data_path, &run->dataset));
    dsvi_notices(settings, is_first(run) ? run->dataset : NULL, run_log_line, run_warn_line, run);
    DSVI_TRY(run_choose_config(run));
    DSVI_TRY(check_text(run, "data.path", settings->data_path, &run->dataset->text));
    DSVI_TRY(dsvi_ranks_agree(run->comm, run->settings, run->dataset, &run->config));
    run->resident_before = dsvi_resident_bytes();
    DSVI_TRY(dsvi_trainer_create(&(DsviTrainerArgs){.settings = settings,
                                                    .backend = run->backend,
                                                    .comm = run->comm,
                                                    .codec = run->codec,
                                                    .config = &run->config,
                                                    .log = run_decision_line,
                                                    .log_context = run},
                                 &run->trainer));
    run->trainer->data = dsvi_dataset_fingerprint(run->dataset);
    run_log(run, DSV_LOG_INFO,
            "model: %" PRId64 " parameters, %" PRId64 " blocks, latents %" PRId64 " x %" PRId64 " x %" PRId64
            " x %" PRId64 ", on %s",
            run->trainer->table.parameters, run->config.num_layers, run->trainer->latent.channels,
            run->trainer->latent.frames, run->trainer->latent.height, run->trainer->latent.width,
            run->backend->device->name);
    log_ranks(run);
    DSVI_TRY(load_state(run));
    DSVI_TRY(open_held_out(run));
    DSVI_TRY(open_sampled_texts(run));
    DSVI_TRY(open_record(run)); /* measures the speed of large matrix products, which decoding threads of
                                 * any rank would falsify */
    DSVI_TRY(dsvi_comm_barrier(run->comm)); /* after this, no rank has failed so far */
    if (run->folder.start == DSVI_START_BRANCH)
        DSVI_TRY(save(run)); /* the run starts from another folder's checkpoint: it needs a copy in its own */
    DSVI_TRY(prepare_folder(run));
    DSVI_TRY(dsvi_comm_barrier(run->comm));
    DSVI_TRY(start_prefetch(run));
    run->summary->first_step = run->trainer->step;
    return report_facts(run);
}

/* Sets *stop on all ranks if events->stop of any rank returns true. */
static DsvStatus run_wants_stop(const Run *run, bool *stop)
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

static DsvStatus validate(Run *run)
{
    char path[DSVI_PATH_MAX];
    DsvEvents quiet = {.context = run, .log = run_event_line, .stop = all_want_stop};
    if (run->sampled_step == run->trainer->step)
        return DSV_OK;
    DsvStatus status = dsvi_sample_clips(run->trainer, &run->sampled, run->folder.samples, &quiet, path);
    if (status == DSV_E_INTERRUPTED)
        return DSV_OK; /* stop was requested: the training loop gets the same request, and saves a
                        * checkpoint before it ends */
    DSVI_TRY(dsvi_zero_await_transfers(&run->trainer->zero, status));
    run->sampled_step = run->trainer->step;
    if (!path[0]) /* the clip could not be written, or this is not rank 0 */
        return DSV_OK;
    snprintf(run->summary->sample, sizeof run->summary->sample, "%s", path);
    run_log(run, DSV_LOG_INFO, "sampled %s", path);
    dsvi_run_record_clip(run->record, run->trainer->step, path);
    return DSV_OK;
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Sets *is_due to true if the held-out loss must be measured after the current step and is not recorded
 * yet. Before the first step (step 0) it counts as recorded, because an empty record has 0 as its last
 * step. */
static DsvStatus held_out_due(const Run *run, bool *is_due)
{
    const DsviTrainer *t = run->trainer;
    const DsvConfig *settings = run->settings;
    bool last = t->step == settings->max_train_steps;
    *is_due = t->held_out && (last || due(t->step, settings->validation_every));
    if (!*is_due)
        return DSV_OK;
    if (is_first(run))
        *is_due = !dsvi_run_record_has_held_out(run->record, t->step);
    return dsvi_comm_broadcast(run->comm, 0, is_due, sizeof *is_due);
}

static DsvStatus measure_held_out(Run *run)
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
    if (!is_first(run))
        return DSV_OK;
    if (!isnan(loss.dense_loss))
        snprintf(dense, sizeof dense, ", %.5f with all attention dense", loss.dense_loss);
    run_log(run, DSV_LOG_INFO, "held-out loss %.5f after step %" PRId64 "%s", loss.loss, t->step, dense);
    return dsvi_run_record_held_out(run->record, t->step, &loss);
}

/* Returns whether `status` is the divergence of a training step, which all ranks detect together.
 * Sampling and the sparse layer may return DSV_E_DIVERGED on one rank only. */
static bool diverged_on_all(const Run *run, DsvStatus status)
{
    return status == DSV_E_DIVERGED && run->trainer && run->trainer->diverged;
}

/* Reports this rank's failure to the other ranks. A requested stop and a diverged step are not reported,
 * because all ranks detect these together. */
static DsvStatus run_tell_others(const Run *run, DsvStatus status)
{
    bool known = status == DSV_E_INTERRUPTED || diverged_on_all(run, status);
    return known ? status : dsvi_comm_fail(run->comm, status);
}

/* Adds to the message of a failed training which step failed and from which checkpoint the run can be
 * resumed. */
static DsvStatus explain_failure(const Run *run, DsvStatus status)
{
    if (dsvi_comm_size(run->comm) > 1 && !diverged_on_all(run, status))
        dsvi_fail_prefix(status, "step %" PRId64, run->trainer->step + 1);
    if (run->summary->checkpoint[0])
        return dsvi_fail_prefix(status, "training stopped, %s is whole", run->summary->checkpoint);
    return status;
}

/* Called when a run must end because no sample could be read: saves a checkpoint of the steps done, and
 * returns `failure` with its message. With several ranks nothing is saved, because the other ranks
 * already wait in the step and cannot take part in saving. */
static DsvStatus save_before(Run *run, DsvStatus failure)
{
    DsviStatusRecord first = *dsvi_status_record();
    if (dsvi_comm_size(run->comm) == 1)
        (void)save(run); /* a failure to save is ignored: `failure` is reported */
    *dsvi_status_record() = first;
    return failure;
}

static DsvStatus run_train(Run *run)
{
    const DsvConfig *settings = run->settings;
    DsviTrainer *t = run->trainer;
    DsviSampleSource source = {.context = run->prefetch, .next = next_sample, .text = has_text(run)};
    DSVI_TRY(measure_held_out(run));
    while (t->step < settings->max_train_steps) {
        DsviStepResult result;
        bool stop;
        DSVI_TRY(run_wants_stop(run, &stop));
        if (stop) {
            DSVI_TRY(save(run));
            DSVI_TRY(dsvi_comm_barrier(run->comm)); /* wait until every rank has saved: a launcher may kill
                                                     * all ranks when one ends */
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
    return dsvi_comm_barrier(run->comm); /* no rank ends before all ranks are done */
}

static DsvStatus summarise(Run *run)
{
    DsviMetricsSummary metrics;
    DsviSparseReport sparse;
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
    summary->output_error = dsvi_sparse_has_tail(run->trainer->settings) ? sparse.output_error : 0;
    summary->seconds = dsvi_clock_seconds() - run->start;
    return DSV_OK;
}

static void close_run(Run *run)
{
    dsvi_prefetch_stop(&run->prefetch);
    dsvi_run_record_close(&run->record);
    dsvi_trainer_free(&run->trainer);
    dsvi_dataset_close(&run->dataset);
    free(run->sampled_rows);
    if (run->codec)
        run->codec->close(run->codec);
    dsvi_run_folder_close(&run->folder);
}

DsvStatus dsvi_train_run(const DsvConfig *settings, DsviBackend *backend, DsviComm *comm,
                         const DsvEvents *events, DsvTrainSummary *summary)
{
    Run run = {.settings = settings,
               .backend = backend,
               .comm = comm,
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
