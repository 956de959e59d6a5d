/* Implements checkpoint_find.h, and of checkpoint.h: dsvi_checkpoint_latest, _tidy, _prune, _point, _step_in
 * and _set_aside. */
#include "run/checkpoint_find.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/checkpoint.h"
#include "run/manifest.h"

enum { LATEST_BYTES_MAX = 256, CHECKPOINTS_MAX = 100000, NAME_BYTES = 64 };

/* The steps of all folders named checkpoint-<step>. */
typedef struct Steps {
    int64_t *step;
    size_t count, capacity;
} Steps;

/* Returns <step> of the name checkpoint-<step>; -1 for other names. */
static int64_t step_of_name(const char *name)
{
    static const char prefix[] = "checkpoint-";
    char *end;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    const char *digits = name + sizeof prefix - 1;
    if (digits[0] < '0' || digits[0] > '9' || (digits[0] == '0' && digits[1]))
        return -1; /* dsv never writes leading zeros; step_path would not give this name */
    errno = 0;
    long long step = strtoll(digits, &end, 10);
    return *end || errno ? -1 : step;
}

static DsvStatus add_step(void *context, const char *name)
{
    Steps *steps = context;
    int64_t step = step_of_name(name);
    if (step < 0)
        return DSV_OK;
    if (steps->count == steps->capacity) {
        size_t capacity = steps->capacity ? 2 * steps->capacity : 16;
        int64_t *grown = capacity <= CHECKPOINTS_MAX ? realloc(steps->step, capacity * sizeof *grown) : NULL;
        if (!grown)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to list %zu checkpoints", steps->count + 1);
        steps->step = grown;
        steps->capacity = capacity;
    }
    steps->step[steps->count++] = step;
    return DSV_OK;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Lists the steps of all checkpoints, newest first. The caller must free steps->step, also after a
 * failure. */
static DsvStatus list_steps(const char *output_dir, Steps *steps)
{
    memset(steps, 0, sizeof *steps);
    DSVI_TRY(dsvi_folder_list(output_dir, add_step, steps));
    if (steps->count > 0)
        qsort(steps->step, steps->count, sizeof *steps->step, newest_first);
    return DSV_OK;
}

static DsvStatus step_path(char path[DSVI_PATH_MAX], const char *output_dir, int64_t step)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "checkpoint-%" PRId64, step);
    return dsvi_path_join(path, output_dir, name);
}

/* Replaces the checkpoint at `path` by `temporary`. Afterwards the old checkpoint is at `temporary`, or at
 * .<name>.old, until dsvi_checkpoint_tidy moves it into superseded/. An atomic exchange keeps a complete
 * checkpoint at `path` at all times. File systems without exchange (NFS, Lustre) need two renames, between
 * which `path` does not exist: if the process is killed there, dsvi_checkpoint_tidy restores the old
 * checkpoint. */
static DsvStatus checkpoint_find_exchange(const char *output_dir, const char *temporary, const char *path,
                                          const char *name)
{
    char old_name[NAME_BYTES + 8], old[DSVI_PATH_MAX];
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return dsvi_folder_sync(output_dir);
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot replace it by its new version: %s", path, strerror(errno));
    snprintf(old_name, sizeof old_name, ".%s.old", name);
    DSVI_TRY(dsvi_path_join(old, output_dir, old_name));
    DSVI_TRY(dsvi_folder_remove(old));
    DSVI_TRY(dsvi_path_rename(path, old));
    return dsvi_path_rename(temporary, path);
}

static DsvStatus point_latest(const char *output_dir, const char *name)
{
    char latest[DSVI_PATH_MAX], line[LATEST_BYTES_MAX];
    int length = snprintf(line, sizeof line, "%s\n", name);
    DSVI_TRY(dsvi_path_join(latest, output_dir, "latest"));
    return dsvi_file_replace(latest, line, (size_t)length);
}

DsvStatus dsvi_checkpoint_publish(const char *output_dir, const char *temporary, const char *name)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, output_dir, name));
    if (dsvi_path_exists(path))
        DSVI_TRY(checkpoint_find_exchange(output_dir, temporary, path, name));
    else
        DSVI_TRY(dsvi_path_rename(temporary, path));
    return point_latest(output_dir, name);
}

/* Returns whether `name` is .checkpoint-<step><ending>. If so, `checkpoint` receives checkpoint-<step>. */
static bool is_left_by(const char *name, const char *ending, char checkpoint[NAME_BYTES])
{
    size_t length = strlen(name), end = strlen(ending);
    if (name[0] != '.' || length <= end || length - end > NAME_BYTES ||
        strcmp(name + length - end, ending) != 0)
        return false;
    snprintf(checkpoint, NAME_BYTES, "%.*s", (int)(length - end - 1), name + 1);
    return step_of_name(checkpoint) >= 0;
}

static bool has_manifest(const char *folder)
{
    char path[DSVI_PATH_MAX];
    return dsvi_path_join(path, folder, DSVI_MANIFEST_NAME) == DSV_OK && dsvi_path_exists(path);
}

/* Tidies one entry of a run folder. If checkpoint-<step> exists and the hidden folder has a manifest, the
 * hidden folder is a replaced checkpoint and is moved into superseded/. If checkpoint-<step> does not exist,
 * .old is renamed back to it. Everything else, such as .tmp that was never published, is removed. */
static DsvStatus tidy_entry(void *context, const char *name)
{
    DsviSuperseded *superseded = context;
    char checkpoint[NAME_BYTES], left[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    bool old = is_left_by(name, ".old", checkpoint);
    if (!old && !is_left_by(name, ".tmp", checkpoint))
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(left, superseded->root, name));
    DSVI_TRY(dsvi_path_join(path, superseded->root, checkpoint));
    if (dsvi_path_exists(path) && has_manifest(left))
        return dsvi_superseded_move(superseded, name, checkpoint);
    return old && !dsvi_path_exists(path) ? dsvi_path_rename(left, path) : dsvi_folder_remove(left);
}

DsvStatus dsvi_checkpoint_tidy(const char *output_dir)
{
    DsviSuperseded superseded = {.root = output_dir};
    return dsvi_folder_list(output_dir, tidy_entry, &superseded);
}

static DsvStatus remove_step(const char *output_dir, int64_t step)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(step_path(path, output_dir, step));
    return dsvi_folder_remove(path);
}

DsvStatus dsvi_checkpoint_prune(const char *output_dir, int64_t keep, int64_t newest)
{
    Steps steps = {0};
    int64_t kept = 0;
    DsvStatus failed = dsvi_checkpoint_tidy(output_dir);
    DsvStatus status = keep > 0 ? list_steps(output_dir, &steps) : DSV_OK;
    for (size_t i = 0; i < steps.count && status == DSV_OK; i++) {
        if (steps.step[i] > newest || kept++ < keep)
            continue;
        DsvStatus removed = remove_step(output_dir, steps.step[i]);
        failed = removed == DSV_OK ? failed : removed;
    }
    free(steps.step);
    return status == DSV_OK ? failed : status;
}

DsvStatus dsvi_checkpoint_discard(const char *temporary)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", dsv_error_message());
    DsvStatus status = dsvi_folder_remove(temporary);
    dsvi_fail_adopt(DSV_E_IO, message);
    return status;
}

/* Returns the step of the checkpoint that the file `latest` names; -1 if the file is missing or names
 * none. */
static int64_t pointed_step(const char *output_dir)
{
    char path[DSVI_PATH_MAX];
    char *text;
    size_t bytes;
    int64_t step;
    if (dsvi_path_join(path, output_dir, "latest") != DSV_OK || !dsvi_path_exists(path) ||
        dsvi_file_read(path, LATEST_BYTES_MAX, &text, &bytes) != DSV_OK)
        return -1;
    text[strcspn(text, "\r\n")] = 0;
    step = step_of_name(text);
    free(text);
    return step;
}

DsvStatus dsvi_checkpoint_point(const char *output_dir, int64_t step)
{
    char name[NAME_BYTES];
    if (pointed_step(output_dir) == step)
        return DSV_OK;
    snprintf(name, sizeof name, "checkpoint-%" PRId64, step);
    return point_latest(output_dir, name);
}

int64_t dsvi_checkpoint_step_in(const char *output_dir, const char *path)
{
    char parent[DSVI_PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(parent, sizeof parent, "%.*s", (int)length, path);
    char *slash = strrchr(parent, '/');
    int64_t step = step_of_name(slash ? slash + 1 : parent);
    if (!slash)
        snprintf(parent, sizeof parent, ".");
    else
        slash[slash == parent] = 0; /* the root keeps its slash */
    return dsvi_path_same(parent, output_dir) ? step : -1;
}

DsvStatus dsvi_checkpoint_set_aside(const char *output_dir, int64_t after, DsviSuperseded *superseded)
{
    Steps steps;
    char name[NAME_BYTES];
    DsvStatus status = list_steps(output_dir, &steps);
    for (size_t i = 0; i < steps.count && steps.step[i] > after && status == DSV_OK; i++) {
        snprintf(name, sizeof name, "checkpoint-%" PRId64, steps.step[i]);
        status = dsvi_superseded_move(superseded, name, name);
    }
    free(steps.step);
    return status;
}

/* Fails because no undamaged checkpoint was found. `damaged` is the number of checkpoints tried, `fault` what
 * is wrong with the newest of these, `beyond` the number of checkpoints of steps later than `pointed`, the
 * step that `latest` names. */
static DsvStatus none_whole(const char *output_dir, size_t damaged, const char *fault, size_t beyond,
                            int64_t pointed)
{
    char more[128] = "";
    if (damaged == 0)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: latest names step %" PRId64 ", and neither its checkpoint nor an "
                         "earlier one is there; to go on from a later one, name its folder: "
                         "resume_from_checkpoint=%s/checkpoint-...",
                         output_dir, pointed, output_dir);
    if (beyond > 0)
        snprintf(more, sizeof more, "; %zu more are of steps after %" PRId64 ", to which the run went back",
                 beyond, pointed);
    return DSVI_FAIL(DSV_E_FORMAT, "%s: none of its %zu checkpoints is whole%s; the newest of them: %s",
                     output_dir, damaged, more, fault);
}

/* Returns the number of steps after `pointed`, the step that `latest` names; these come first. */
static size_t steps_beyond(const Steps *steps, int64_t pointed)
{
    size_t beyond = 0;
    while (pointed >= 0 && beyond < steps->count && steps->step[beyond] > pointed)
        beyond++;
    return beyond;
}

DsvStatus dsvi_checkpoint_latest(const char *output_dir, DsviSparseLog *log, void *log_context,
                                 char path[DSVI_PATH_MAX], bool *found)
{
    DsvStatus status = DSV_OK;
    Steps steps = {0};
    char line[DSVI_PATH_MAX + 512], fault[DSVI_PATH_MAX + 256] = "";
    *found = false;
    if (!dsvi_path_is_folder(output_dir))
        return DSV_OK;
    int64_t pointed = pointed_step(output_dir);
    DSVI_TRY_GOTO(status, list_steps(output_dir, &steps), done);
    size_t beyond = steps_beyond(&steps, pointed);
    for (size_t i = beyond; i < steps.count && !*found; i++) {
        DSVI_TRY_GOTO(status, step_path(path, output_dir, steps.step[i]), done);
        *found = dsvi_manifest_verify(path) == DSV_OK;
        snprintf(line, sizeof line, "passing over a damaged checkpoint: %s", dsv_error_message());
        if (!*found && i == beyond)
            snprintf(fault, sizeof fault, "%s", dsv_error_message());
        if (!*found && log)
            log(log_context, line);
    }
    if (!*found && steps.count > 0)
        status = none_whole(output_dir, steps.count - beyond, fault, beyond, pointed);
done:
    free(steps.step);
    return status;
}

DsvStatus dsvi_checkpoint_latest_part(const char *output_dir, const char *part, char path[DSVI_PATH_MAX],
                                      bool *found)
{
    DsvStatus status = DSV_OK;
    Steps steps = {0};
    *found = false;
    if (!dsvi_path_is_folder(output_dir))
        return DSV_OK;
    DSVI_TRY_GOTO(status, list_steps(output_dir, &steps), done);
    for (size_t i = steps_beyond(&steps, pointed_step(output_dir)); i < steps.count && !*found; i++) {
        DSVI_TRY_GOTO(status, step_path(path, output_dir, steps.step[i]), done);
        *found = dsvi_manifest_verify_part(path, part) == DSV_OK;
    }
done:
    free(steps.step);
    return status;
}
