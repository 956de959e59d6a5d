/* See run_folder.h. */
#include "train/run_folder.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train/checkpoint.h"

static DsvStatus find_checkpoint(const DsvConfig *settings, DsvSparseLog *log, void *log_context,
                                 DsvRunFolder *folder)
{
    const char *wanted = settings->resume_from_checkpoint;
    char line[DSVI_PATH_MAX + 64];
    if (!wanted[0])
        return DSV_OK;
    if (strcmp(wanted, "latest") != 0) {
        if (!dsvi_path_is_folder(wanted))
            return DSVI_FAIL(DSV_E_NOT_FOUND,
                             "resume_from_checkpoint=%s: no such folder, wanted latest or a checkpoint",
                             wanted);
        snprintf(folder->checkpoint, sizeof folder->checkpoint, "%s", wanted);
        folder->resume = true;
        return DSV_OK;
    }
    DSVI_TRY(dsvi_checkpoint_latest(folder->root, log, log_context, folder->checkpoint, &folder->resume));
    if (!folder->resume && log) {
        snprintf(line, sizeof line, "%s holds no checkpoint: starting afresh", folder->root);
        log(log_context, line);
    }
    return DSV_OK;
}

/* A run that is not resumed must not be written over. */
static DsvStatus refuse_old_run(const DsvConfig *settings, const DsvRunFolder *folder)
{
    if (settings->resume_from_checkpoint[0] || !dsvi_path_exists(folder->metrics))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "output_dir=%s already holds a run: resume_from_checkpoint=latest goes on with it, "
                     "another output_dir starts a new one", folder->root);
}

/* Two processes would cut and mix each other's metrics and remove each other's checkpoints. */
static DsvStatus lock_folder(DsvRunFolder *folder, DsvSparseLog *warn, void *log_context)
{
    char path[DSVI_PATH_MAX], line[DSVI_PATH_MAX + 128];
    DSVI_TRY(dsvi_path_join(path, folder->root, "lock"));
    DsvStatus status = dsvi_file_lock(path, &folder->lock);
    if (status == DSV_E_USAGE)
        return DSVI_FAIL(DSV_E_USAGE, "output_dir=%s: another process trains there and has %s locked",
                         folder->root, path);
    if (status != DSV_E_UNSUPPORTED)
        return status;
    snprintf(line, sizeof line, "%s; that another run works in the folder would not be seen",
             dsv_error_message());
    warn(log_context, line);
    return DSV_OK;
}

DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsvSparseLog *log, DsvSparseLog *warn,
                               void *log_context, DsvRunFolder *folder)
{
    char config[DSVI_PATH_MAX];
    memset(folder, 0, sizeof *folder);
    folder->lock = -1;
    snprintf(folder->root, sizeof folder->root, "%s", settings->output_dir);
    DSVI_TRY(dsvi_path_join(folder->samples, folder->root, "samples"));
    DSVI_TRY(dsvi_path_join(folder->metrics, folder->root, "metrics.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->blocks, folder->root, "blocks.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->decisions, folder->root, "decisions.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->validation, folder->root, "validation.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->facts, folder->root, "run.json"));
    DSVI_TRY(dsvi_path_join(folder->costs, folder->root, "context_costs.json"));
    DSVI_TRY(dsvi_folder_make(folder->root));
    DSVI_TRY(lock_folder(folder, warn, log_context));
    DSVI_TRY(refuse_old_run(settings, folder));
    DSVI_TRY(dsvi_folder_make(folder->samples));
    if (dsvi_checkpoint_tidy(folder->root) != DSV_OK)
        warn(log_context, dsv_error_message());
    DSVI_TRY(find_checkpoint(settings, log, log_context, folder));
    DSVI_TRY(dsvi_path_join(config, folder->root, "config.yaml"));
    return dsv_config_save(settings, config);
}

void dsvi_run_folder_close(DsvRunFolder *folder)
{
    if (folder->lock >= 0)
        close(folder->lock);
    folder->lock = -1;
}
