/* See run_folder.h. */
#include "train/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train/checkpoint.h"
#include "train/sampled_clips.h"
#include "train/stored_settings.h"

/* A sign that a folder holds a run. */
typedef struct Sign {
    const char *root;
    char name[64]; /* "": none */
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

/* Whether only a run leaves something of this name. config.yaml may be a user's own, lock a refused
 * start's. */
static bool is_of_a_run(const char *name)
{
    static const char *const file[] = {"metrics.jsonl", "blocks.jsonl", "decisions.jsonl", "validation.jsonl",
                                       "run.json", "latest", "samples", "superseded"};
    static const char *const beginning[] = {"checkpoint-", "events.out.tfevents."};
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (strcmp(name, file[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof beginning / sizeof *beginning; i++)
        if (strncmp(name, beginning[i], strlen(beginning[i])) == 0)
            return true;
    return false;
}

static DsvStatus look_for_sign(void *context, const char *name)
{
    Sign *sign = context;
    if (!sign->name[0] && is_of_a_run(name) && !is_empty_folder(sign->root, name))
        snprintf(sign->name, sizeof sign->name, "%s", name);
    return DSV_OK;
}

/* sign->name: something by which `root` is known to hold a run, "" if it holds none. */
static DsvStatus find_sign(const char *root, Sign *sign)
{
    *sign = (Sign){.root = root};
    return dsvi_folder_list(root, look_for_sign, sign);
}

static DsvStatus find_latest(DsvRunFolder *folder, DsvSparseLog *log, void *log_context)
{
    char line[DSVI_PATH_MAX + 64];
    bool found;
    DSVI_TRY(dsvi_checkpoint_latest(folder->root, log, log_context, folder->checkpoint, &found));
    folder->start = found ? DSV_START_RESUME : DSV_START_FRESH;
    if (found)
        return DSV_OK;
    folder->checkpoint[0] = 0;
    snprintf(line, sizeof line, "%s holds no checkpoint: starting afresh", folder->root);
    if (log)
        log(log_context, line);
    return DSV_OK;
}

/* A checkpoint that the folder holds is the run's own, whoever put it there. The records of a run say nothing
 * of the steps that led to any other. */
static DsvStatus find_named(const char *wanted, const Sign *sign, DsvRunFolder *folder)
{
    bool own = dsvi_checkpoint_step_in(folder->root, wanted) >= 0;
    if (!dsvi_path_is_folder(wanted))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "resume_from_checkpoint=%s: no such folder, wanted latest or a checkpoint", wanted);
    if (!own && sign->name[0])
        return DSVI_FAIL(DSV_E_USAGE, "resume_from_checkpoint=%s is not a checkpoint of the run that "
                         "output_dir=%s already holds (%s): wanted latest, %s/checkpoint-STEP or another "
                         "output_dir", wanted, folder->root, sign->name, folder->root);
    folder->start = own ? DSV_START_RESUME : DSV_START_BRANCH;
    snprintf(folder->checkpoint, sizeof folder->checkpoint, "%s", wanted);
    return DSV_OK;
}

/* A run that is not resumed must not be written over. */
static DsvStatus find_start(const DsvConfig *settings, DsvSparseLog *log, void *log_context,
                            DsvRunFolder *folder)
{
    Sign sign;
    const char *wanted = settings->resume_from_checkpoint;
    if (strcmp(wanted, "latest") == 0)
        return find_latest(folder, log, log_context);
    DSVI_TRY(find_sign(folder->root, &sign));
    if (wanted[0])
        return find_named(wanted, &sign, folder);
    if (sign.name[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "output_dir=%s already holds a run (%s): resume_from_checkpoint=latest goes on with "
                         "it, another output_dir starts a new one", folder->root, sign.name);
    return DSV_OK;
}

/* Bytes of `path` up to the end of the deepest folder on it that exists. */
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

/* Two processes would cut and mix each other's metrics and move each other's checkpoints. */
static DsvStatus lock_folder(DsvRunFolder *folder)
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

/* Makes the folder and locks it. */
static DsvStatus take_place(DsvRunFolder *folder)
{
    folder->found = existing_part(folder->root);
    DSVI_TRY(dsvi_folder_make(folder->root));
    folder->place = open(folder->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->place < 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot open the folder: %s", folder->root, strerror(errno));
    return lock_folder(folder);
}

static void release_place(DsvRunFolder *folder)
{
    if (folder->lock >= 0)
        close(folder->lock);
    if (folder->place >= 0)
        close(folder->place);
    folder->lock = folder->place = -1;
}

static DsvStatus name_files(const DsvConfig *settings, DsvRunFolder *folder)
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

DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsvSparseLog *log, DsvSparseLog *warn,
                               void *log_context, DsvRunFolder *folder)
{
    char line[DSVI_PATH_MAX + 128];
    memset(folder, 0, sizeof *folder);
    folder->lock = folder->place = -1;
    DSVI_TRY(name_files(settings, folder));
    DsvStatus status = take_place(folder);
    if (status != DSV_OK && status != DSV_E_UNSUPPORTED)
        return status;
    snprintf(line, sizeof line, "%s; that another run works in the folder would not be seen",
             dsv_error_message());
    if (status == DSV_E_UNSUPPORTED)
        warn(log_context, line);
    if (dsvi_checkpoint_tidy(folder->root) != DSV_OK)
        warn(log_context, dsv_error_message());
    return find_start(settings, log, log_context, folder);
}

/* Replaces config.yaml; one that differs is copied into `superseded` first. */
static DsvStatus store_settings(const DsvRunFolder *folder, const DsvConfig *settings,
                                DsvSuperseded *superseded)
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

/* `latest` comes first: from there on a start that is cut short is made again by
 * resume_from_checkpoint=latest. */
DsvStatus dsvi_run_folder_accept(DsvRunFolder *folder, const DsvConfig *settings, int64_t step,
                                 DsvSuperseded *superseded)
{
    folder->accepted = true;
    if (folder->start != DSV_START_FRESH)
        DSVI_TRY(dsvi_checkpoint_point(folder->root, step));
    DSVI_TRY(dsvi_checkpoint_set_aside(folder->root, step, superseded));
    DSVI_TRY(dsvi_folder_make(folder->samples));
    DSVI_TRY(dsvi_sampled_clips_set_aside(folder->samples, step, superseded));
    return store_settings(folder, settings, superseded);
}

bool dsvi_run_folder_in_place(const DsvRunFolder *folder)
{
    char path[DSVI_PATH_MAX];
    return dsvi_path_is_open_as(folder->root, folder->place) &&
           (folder->lock < 0 || (dsvi_path_join(path, folder->root, "lock") == DSV_OK &&
                                 dsvi_path_is_open_as(path, folder->lock)));
}

DsvStatus dsvi_run_folder_retake(DsvRunFolder *folder, const DsvConfig *settings, DsvSuperseded *superseded)
{
    Sign sign = {.root = folder->root};
    bool same = dsvi_path_is_open_as(folder->root, folder->place);
    release_place(folder);
    DsvStatus status = take_place(folder);
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

/* Removes the lock and the folders that this start has made, as far as they are empty. */
static void undo(const DsvRunFolder *folder)
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

void dsvi_run_folder_close(DsvRunFolder *folder)
{
    if (!folder->accepted)
        undo(folder);
    release_place(folder);
}
