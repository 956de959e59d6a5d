/* Loads and saves the state of a training run. */
#include <inttypes.h>
#include <stdio.h>

#include "run/checkpoint.h"
#include "run/run_internal.h"

/* Warns if the clips differ from those of the checkpoint: the resumed run then uses other samples than an
 * uninterrupted run. */
static DsvStatus compare_with_checkpoint(DsviRun *run)
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
    dsvi_run_warn_line(run, line);
    return DSV_OK;
}

/* Checks that a checkpoint in the run's own folder, checkpoint-<step>, has the same step in its
 * state.json. */
static DsvStatus check_checkpoint_name(const DsviRun *run)
{
    int64_t named = dsvi_checkpoint_step_in(run->folder.root, run->folder.checkpoint);
    if (run->folder.start != DSVI_START_RESUME || named == run->trainer->step)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_FORMAT, "%s: its state.json is of step %" PRId64, run->folder.checkpoint,
                     run->trainer->step);
}

/* Loads the checkpoint. If it is in the run's own folder, it counts as saved. */
static DsvStatus load_checkpoint(DsviRun *run)
{
    const DsviRunFolder *folder = &run->folder;
    DSVI_TRY(dsvi_checkpoint_load(run->trainer, folder->checkpoint));
    dsvi_run_log(run, DSV_LOG_INFO, "resuming after step %" PRId64 " from %s", run->trainer->step,
                 folder->checkpoint);
    if (dsvi_run_is_first(run)) {
        DSVI_TRY(check_checkpoint_name(run));
        DSVI_TRY(compare_with_checkpoint(run));
    }
    if (folder->start == DSVI_START_RESUME) {
        run->saved_step = run->trainer->step;
        snprintf(run->summary->checkpoint, sizeof run->summary->checkpoint, "%s", folder->checkpoint);
    }
    return DSV_OK;
}

DsvStatus dsvi_run_load_state(DsviRun *run)
{
    DsviTrainer *t = run->trainer;
    bool stored = run->settings->model_path[0] != 0, lora = t->frozen != NULL;
    if (t->experts)
        DSVI_TRY(dsvi_trainer_check_lent(t));
    if (lora)
        DSVI_TRY(dsvi_trainer_load_frozen(t, run->model.weights));
    if (run->folder.start != DSVI_START_FRESH)
        return load_checkpoint(run);
    if (stored && dsvi_run_is_first(run))
        DSVI_TRY(dsvi_model_verify(&run->model));
    if (stored && !lora)
        return dsvi_trainer_start_from(t, run->model.weights);
    return dsvi_trainer_start_new(t, (uint64_t)run->settings->seed);
}

/* Restores the folder and the records after somebody removed, moved or replaced them during the run. */
static DsvStatus repair_folder(DsviRun *run)
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
static DsvStatus secure_folder(DsviRun *run, bool *repaired)
{
    *repaired = false;
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    *repaired = !dsvi_run_folder_in_place(&run->folder) || !dsvi_run_record_in_place(run->record);
    if (*repaired && repair_folder(run) != DSV_OK)
        return dsvi_fail_prefix(DSV_E_IO,
                                "output_dir=%s was removed or replaced while the run was at work, "
                                "and step %" PRId64 " cannot be saved there",
                                run->folder.root, run->trainer->step);
    return dsvi_run_record_sync(run->record);
}

DsvStatus dsvi_run_save(DsviRun *run)
{
    char path[DSVI_PATH_MAX];
    bool repaired;
    if (run->saved_step == run->trainer->step)
        return DSV_OK;
    DSVI_TRY(secure_folder(run, &repaired));
    DSVI_TRY(dsvi_checkpoint_save(run->trainer, run->folder.root, path));
    snprintf(run->summary->checkpoint, sizeof run->summary->checkpoint, "%s", path);
    run->saved_step = run->trainer->step;
    dsvi_run_log(run, DSV_LOG_INFO, "saved %s", path);
    if (repaired)
        return DSVI_FAIL(DSV_E_IO,
                         "output_dir=%s or its records were removed or replaced while the run was "
                         "at work; the records are there again, and resume_from_checkpoint=latest goes on",
                         run->folder.root);
    if (dsvi_run_is_first(run) &&
        dsvi_checkpoint_prune(run->folder.root, run->settings->checkpoints_total_limit, run->saved_step) !=
            DSV_OK)
        dsvi_run_log(run, DSV_LOG_WARNING, "an old checkpoint is still there: %s", dsv_error_message());
    return DSV_OK;
}
