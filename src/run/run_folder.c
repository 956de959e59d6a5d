/* Implements run_folder.h: opens, locks and prepares the run folder. */
#include "run/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run/checkpoint.h"
#include "run/sampled_clips.h"
#include "run/stored_settings.h"

/* Result of a search for an entry that only a run leaves in a folder. */
typedef struct Sign {
    const char *root;
    char name[64]; /* name of such an entry; "": none */
} Sign;

static DsvStatus count_entry(void *count, const char *name)
{
    (void)name;
    ++*(int *)count;
    return DSV_OK;
}

static bool is_empty_folder(const char *root, const char *name)
{
    char path[DSVI_PATH_MAX];
    int count = 0;
    return dsvi_path_join(path, root, name) == DSV_OK &&
           dsvi_folder_list(path, count_entry, &count) == DSV_OK && count == 0;
}

/* Returns whether an entry of this name shows that the folder holds a run. config.yaml does not: the user may
 * have put it there. `lock` does not: a start that failed may have left it. */
static bool is_of_a_run(const char *name)
{
    static const char *const file[] = {"metrics.jsonl", "blocks.jsonl", "decisions.jsonl", "validation.jsonl",
                                       "run.json",      "latest",       "samples",         "superseded"};
    static const char *const beginning[] = {"checkpoint-", "events.out.tfevents."};
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (strcmp(name, file[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof beginning / sizeof *beginning; i++)
        if (strncmp(name, beginning[i], strlen(beginning[i])) == 0)
            return true;
    return false;
}

static DsvStatus check_for_sign(void *context, const char *name)
{
    Sign *sign = context;
    if (!sign->name[0] && is_of_a_run(name) && !is_empty_folder(sign->root, name))
        snprintf(sign->name, sizeof sign->name, "%s", name);
    return DSV_OK;
}

/* Sets sign->name to an entry that shows that `root` holds a run; "" if it holds none. */
static DsvStatus find_sign(const char *root, Sign *sign)
{
    *sign = (Sign){.root = root};
    if (!dsvi_path_exists(root))
        return DSV_OK;
    if (!dsvi_path_is_folder(root))
        return DSVI_FAIL(DSV_E_USAGE, "output_dir=%s is a file, expected a folder or a new name", root);
    return dsvi_folder_list(root, check_for_sign, sign);
}

static DsvStatus find_latest(DsviRunFolder *folder, DsviSparseLog *log, void *log_context)
{
    char line[DSVI_PATH_MAX + 64];
    bool found;
    DSVI_TRY(dsvi_checkpoint_latest(folder->root, log, log_context, folder->checkpoint, &found));
    folder->start = found ? DSVI_START_RESUME : DSVI_START_FRESH;
    if (found)
        return DSV_OK;
    folder->checkpoint[0] = 0;
    snprintf(line, sizeof line, "%s holds no checkpoint: starting afresh", folder->root);
    if (log)
        log(log_context, line);
    return DSV_OK;
}

/* Resumes from the checkpoint folder `requested`. A checkpoint inside the run folder belongs to the run. A
 * checkpoint from elsewhere is accepted only if the folder holds no run, because the records of that run
 * would not contain the steps before the checkpoint. */
static DsvStatus find_named(const char *requested, const Sign *sign, DsviRunFolder *folder)
{
    bool inside = dsvi_checkpoint_step_in(folder->root, requested) >= 0;
    if (!dsvi_path_is_folder(requested))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "resume_from_checkpoint=%s: no such folder, expected latest or a checkpoint",
                         requested);
    if (!inside && sign->name[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "resume_from_checkpoint=%s is not a checkpoint of the run that "
                         "output_dir=%s already holds (%s): expected latest, %s/checkpoint-STEP or another "
                         "output_dir",
                         requested, folder->root, sign->name, folder->root);
    folder->start = inside ? DSVI_START_RESUME : DSVI_START_BRANCH;
    snprintf(folder->checkpoint, sizeof folder->checkpoint, "%s", requested);
    return DSV_OK;
}

/* Decides how the run starts. A run in the folder that is not resumed is an error: it must not be
 * overwritten. */
static DsvStatus run_folder_find_start(const DsvConfig *settings, DsviSparseLog *log, void *log_context,
                                       DsviRunFolder *folder)
{
    Sign sign;
    const char *requested = settings->resume_from_checkpoint;
    if (strcmp(requested, "latest") == 0)
        return find_latest(folder, log, log_context);
    DSVI_TRY(find_sign(folder->root, &sign));
    if (requested[0])
        return find_named(requested, &sign, folder);
    if (sign.name[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "output_dir=%s already holds a run (%s): resume_from_checkpoint=latest goes on with "
                         "it, another output_dir starts a new one",
                         folder->root, sign.name);
    return DSV_OK;
}

/* Returns the length of the longest prefix of `path` that is an existing folder. */
static size_t existing_part(const char *path)
{
    char part[DSVI_PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    while (part[0] && !dsvi_path_is_folder(part)) {
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = 0;
    }
    return strlen(part);
}

/* Locks the folder. Two processes in one folder would damage each other's metrics and checkpoints. */
static DsvStatus run_lock_folder(DsviRunFolder *folder)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder->root, "lock"));
    bool was_there = dsvi_path_exists(path);
    DsvStatus status = dsvi_file_lock(path, &folder->lock);
    if (status == DSV_E_USAGE)
        return DSVI_FAIL(DSV_E_USAGE, "output_dir=%s: another process trains there and has %s locked",
                         folder->root, path);
    folder->made_lock = !was_there && (status == DSV_OK || status == DSV_E_UNSUPPORTED);
    return status;
}

/* Creates, opens and locks the folder. */
static DsvStatus open_and_lock(DsviRunFolder *folder)
{
    folder->found = existing_part(folder->root);
    DSVI_TRY(dsvi_folder_make(folder->root));
    folder->place = open(folder->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->place < 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot open the folder: %s", folder->root, strerror(errno));
    return run_lock_folder(folder);
}

static void release_place(DsviRunFolder *folder)
{
    if (folder->lock >= 0)
        close(folder->lock);
    if (folder->place >= 0)
        close(folder->place);
    folder->lock = folder->place = -1;
}

static DsvStatus name_files(const DsvConfig *settings, DsviRunFolder *folder)
{
    snprintf(folder->root, sizeof folder->root, "%s", settings->output_dir);
    DSVI_TRY(dsvi_path_join(folder->samples, folder->root, "samples"));
    DSVI_TRY(dsvi_path_join(folder->metrics, folder->root, "metrics.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->blocks, folder->root, "blocks.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->decisions, folder->root, "decisions.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->validation, folder->root, "validation.jsonl"));
    DSVI_TRY(dsvi_path_join(folder->facts, folder->root, "run.json"));
    return dsvi_path_join(folder->costs, folder->root, "context_costs.json");
}

DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsviSparseLog *log, DsviSparseLog *warn,
                               void *log_context, DsviRunFolder *folder)
{
    char line[DSVI_PATH_MAX + 128];
    memset(folder, 0, sizeof *folder);
    folder->lock = folder->place = -1;
    DSVI_TRY(name_files(settings, folder));
    DsvStatus status = open_and_lock(folder);
    if (status != DSV_OK && status != DSV_E_UNSUPPORTED)
        return status;
    snprintf(line, sizeof line, "%s; another run in the same folder would not be noticed",
             dsv_error_message());
    if (status == DSV_E_UNSUPPORTED)
        warn(log_context, line);
    if (dsvi_checkpoint_tidy(folder->root) != DSV_OK)
        warn(log_context, dsv_error_message());
    return run_folder_find_start(settings, log, log_context, folder);
}

DsvStatus dsvi_run_folder_check(const DsvConfig *settings)
{
    DsviRunFolder folder;
    bool found;
    memset(&folder, 0, sizeof folder);
    DSVI_TRY(name_files(settings, &folder));
    if (strcmp(settings->resume_from_checkpoint, "latest") == 0) {
        DSVI_TRY(dsvi_checkpoint_latest_part(folder.root, "config.yaml", folder.checkpoint, &found));
    } else {
        DSVI_TRY(run_folder_find_start(settings, NULL, NULL, &folder));
        found = folder.start != DSVI_START_FRESH;
    }
    return found ? dsvi_checkpoint_check_options(settings, folder.checkpoint) : DSV_OK;
}

/* Writes config.yaml. An existing file with other contents is copied into `superseded` first. */
static DsvStatus store_settings(const DsviRunFolder *folder, const DsvConfig *settings,
                                DsviSuperseded *superseded)
{
    char path[DSVI_PATH_MAX], fresh[DSVI_PATH_MAX], aside[DSVI_PATH_MAX];
    uint64_t before, after;
    DSVI_TRY(dsvi_path_join(path, folder->root, "config.yaml"));
    if (!dsvi_path_exists(path))
        return dsvi_settings_store(settings, path);
    DSVI_TRY(dsvi_path_join(fresh, folder->root, ".config.yaml.new"));
    DSVI_TRY(dsvi_settings_store(settings, fresh));
    DSVI_TRY(dsvi_file_checksum(path, &before));
    DSVI_TRY(dsvi_file_checksum(fresh, &after));
    if (before == after)
        return dsvi_folder_remove(fresh);
    int old = open(path, O_RDONLY | O_CLOEXEC);
    if (old < 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    DsvStatus status = dsvi_superseded_place(superseded, "config.yaml", aside);
    status = status == DSV_OK ? dsvi_file_copy_from(old, 0, aside) : status;
    close(old);
    return status == DSV_OK ? dsvi_path_rename(fresh, path) : status;
}

/* `latest` is changed before anything is moved: if the process is killed after this,
 * resume_from_checkpoint=latest repeats the same start. */
DsvStatus dsvi_run_folder_accept(DsviRunFolder *folder, const DsvConfig *settings, int64_t step,
                                 DsviSuperseded *superseded)
{
    folder->accepted = true;
    if (folder->start != DSVI_START_FRESH)
        DSVI_TRY(dsvi_checkpoint_point(folder->root, step));
    DSVI_TRY(dsvi_checkpoint_set_aside(folder->root, step, superseded));
    DSVI_TRY(dsvi_folder_make(folder->samples));
    DSVI_TRY(dsvi_sampled_clips_set_aside(folder->samples, step, superseded));
    return store_settings(folder, settings, superseded);
}

bool dsvi_run_folder_in_place(const DsviRunFolder *folder)
{
    char path[DSVI_PATH_MAX];
    return dsvi_path_is_open_as(folder->root, folder->place) &&
           (folder->lock < 0 || (dsvi_path_join(path, folder->root, "lock") == DSV_OK &&
                                 dsvi_path_is_open_as(path, folder->lock)));
}

DsvStatus dsvi_run_folder_retake(DsviRunFolder *folder, const DsvConfig *settings, DsviSuperseded *superseded)
{
    Sign sign = {.root = folder->root};
    bool same = dsvi_path_is_open_as(folder->root, folder->place);
    release_place(folder);
    DsvStatus status = open_and_lock(folder);
    if (status != DSV_OK && status != DSV_E_UNSUPPORTED)
        return status;
    if (!same)
        DSVI_TRY(find_sign(folder->root, &sign));
    if (sign.name[0])
        return DSVI_FAIL(DSV_E_USAGE, "output_dir=%s: another run is there now (%s)", folder->root,
                         sign.name);
    DSVI_TRY(dsvi_folder_make(folder->samples));
    return store_settings(folder, settings, superseded);
}

/* Removes the lock and the empty folders that this start has created. */
static void remove_created(const DsviRunFolder *folder)
{
    char part[DSVI_PATH_MAX];
    if (!folder->made_lock)
        return;
    if (dsvi_path_join(part, folder->root, "lock") == DSV_OK)
        unlink(part);
    snprintf(part, sizeof part, "%s", folder->root);
    while (strlen(part) > folder->found && (rmdir(part) == 0 || errno == ENOENT)) {
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = 0;
    }
}

void dsvi_run_folder_close(DsviRunFolder *folder)
{
    if (!folder->accepted)
        remove_created(folder);
    release_place(folder);
}
