/* The run folder: its lock, what a resume finds, and what happens when writing fails. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "run_rig.h"
#include "run/checkpoint.h"
#include "run/manifest.h"

static ino_t file_number(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(stat(path, &about), 0);
    return about.st_ino;
}

/* A run that has no step left does not change the checkpoint from which it resumed. */
static void nothing_done_nothing_written(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    char checkpoint[DSVI_PATH_MAX];
    (void)state;
    run_settings(&settings, folder);
    assert_ok(dsv_train(&settings, NULL, &summary));
    snprintf(checkpoint, sizeof checkpoint, "%s", summary.checkpoint);
    ino_t manifest = file_number(checkpoint, "manifest.json"), latest = file_number(folder, "latest");
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_string_equal(summary.checkpoint, checkpoint);
    assert_true(file_number(checkpoint, "manifest.json") == manifest);
    assert_true(file_number(folder, "latest") == latest);
    assert_ok(dsvi_folder_remove(folder));
}

/* As written by versions whose state did not record the clips. */
static void forget_clips(const char *checkpoint)
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    assert_ok(dsvi_path_join(path, checkpoint, "state.json"));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    char *of_clips = strstr(text, ", \"clips\"");
    assert_non_null(of_clips);
    strcpy(of_clips, "}\n");
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    free(text);
    assert_ok(dsvi_path_join(path, checkpoint, "manifest.json"));
    assert_int_equal(unlink(path), 0);
    assert_ok(dsvi_manifest_write(checkpoint));
}

/* The log and the saved state of a resume that stops at once. */
static void resume(DsvConfig *settings, const char *data, Stopper *said)
{
    DsvTrainSummary summary;
    DsvEvents events = {.context = said, .stop = stop_after, .log = keep_log};
    *said = (Stopper){0};
    set(settings, "data.path", data);
    assert_fails(DSV_E_INTERRUPTED, "stopped after step 1", dsv_train(settings, &events, &summary));
}

/* A resume warns if the clips differ from the checkpoint's clips, when these are recorded. */
static void a_resume_knows_its_clips(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper said;
    const char *folder = tiny_folder(), *more = tiny_folder();
    (void)state;
    tiny_clips(more, 4);
    run_settings(&settings, folder);
    set(&settings, "max_train_steps", "1");
    assert_ok(dsv_train(&settings, NULL, &summary));
    set(&settings, "max_train_steps", "2");
    set(&settings, "resume_from_checkpoint", "latest");
    resume(&settings, clips, &said);
    assert_null(strstr(said.log, "clips that are not"));
    resume(&settings, more, &said);
    assert_non_null(strstr(said.log, "4 clips that are not the 3 of the checkpoint"));
    resume(&settings, clips, &said); /* that run did no step and wrote no checkpoint */
    assert_null(strstr(said.log, "clips that are not"));
    forget_clips(summary.checkpoint);
    resume(&settings, more, &said);
    assert_null(strstr(said.log, "clips that are not"));
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(more));
}

static void resume_of_nothing_starts_afresh(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 1};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "resume_from_checkpoint", "latest");
    assert_fails(DSV_E_INTERRUPTED, "step 1", dsv_train(&settings, &events, &summary));
    assert_non_null(strstr(stopper.log, "starting afresh"));
    set(&settings, "resume_from_checkpoint", "");
    assert_fails(DSV_E_USAGE, "already holds a run", dsv_train(&settings, &events, &summary));
    assert_ok(dsvi_folder_remove(folder));
}

/* Simulates a file system without locks. */
static bool no_locks;

int flock(int file, int how)
{
    errno = ENOLCK;
    return no_locks ? -1 : (int)syscall(SYS_flock, file, how);
}

/* A second run starts while the first is between two steps. */
typedef struct Rival {
    DsvConfig settings;
    int64_t questions;
    DsvStatus status;
    char sentence[1024];
} Rival;

static bool start_rival(void *context)
{
    Rival *rival = context;
    DsvTrainSummary summary;
    if (rival->questions++ == 5) {
        rival->status = dsv_train(&rival->settings, NULL, &summary);
        snprintf(rival->sentence, sizeof rival->sentence, "%s", dsv_error_message());
    }
    return false;
}

static void one_run_at_a_time(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *straight = tiny_folder(), *folder = tiny_folder();
    Rival rival = {.status = DSV_OK};
    DsvEvents events = {.context = &rival, .stop = start_rival};
    (void)state;
    train_straight(&settings, straight, &summary);
    run_settings(&settings, folder);
    run_settings(&rival.settings, folder);
    set(&rival.settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, &events, &summary));
    assert_int_equal(rival.status, DSV_E_USAGE);
    assert_non_null(strstr(rival.sentence, folder));
    assert_non_null(strstr(rival.sentence, "another process trains there"));
    same_runs(straight, folder);
}

static void a_folder_without_locks_will_do(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 1};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    no_locks = true;
    DsvStatus status = dsv_train(&settings, &events, &summary);
    no_locks = false;
    assert_fails(DSV_E_INTERRUPTED, "step 1", status);
    assert_non_null(strstr(stopper.log, "/lock: cannot lock it: No locks available; another run in"));
    assert_ok(dsvi_folder_remove(folder));
}

/* A checkpoint's folder that cannot be removed, for example because NFS keeps a file that is open. */
static const char *kept_folder = "";

int rmdir(const char *path)
{
    size_t length = strlen(path), kept = strlen(kept_folder);
    if (kept > 0 && length >= kept && strcmp(path + length - kept, kept_folder) == 0) {
        errno = EBUSY;
        return -1;
    }
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

static bool is_in(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return dsvi_path_exists(path);
}

static void make_in(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(dsvi_folder_make(path));
}

/* Makes writes to the TensorBoard file fail as on a full disk. */
static void fill_disk_of_curves(void)
{
    char link[64], target[DSVI_PATH_MAX];
    int full = open("/dev/full", O_WRONLY), found = 0;
    assert_true(full >= 0);
    for (int file = 0; file < 256; file++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (!strstr(target, "/events.out.tfevents."))
            continue;
        assert_int_equal(dup2(full, file), file);
        found++;
    }
    assert_int_equal(found, 1);
    close(full);
}

static bool fill_disk_later(void *context)
{
    Stopper *stopper = context;
    if (stopper->steps-- == 0) {
        fill_disk_of_curves();
        make_in(stopper->folder, "samples/step-000005.mp4"); /* blocks the clip */
    }
    return false;
}

/* A failure to write files other than checkpoints and metrics, or to remove old checkpoints, does not end a
 * run. */
static void only_its_own_work_ends_a_run(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *straight = tiny_folder(), *folder = tiny_folder();
    Stopper stopper = {.steps = 5, .folder = folder};
    DsvEvents events = {.context = &stopper, .stop = fill_disk_later, .log = keep_log};
    (void)state;
    train_straight(&settings, straight, &summary);
    run_settings(&settings, folder);
    set(&settings, "checkpoints_total_limit", "1");
    set(&settings, "validation_steps", "5");
    set(&settings, "num_inference_steps", "2");
    make_in(folder, ".checkpoint-7.tmp/transformer");
    kept_folder = "/checkpoint-4";
    DsvStatus status = dsv_train(&settings, &events, &summary);
    kept_folder = "";
    assert_ok(status);
    assert_non_null(strstr(stopper.log, "an old checkpoint is still there: "));
    assert_true(is_in(folder, "checkpoint-4") && !is_in(folder, "checkpoint-8"));
    assert_false(is_in(folder, ".checkpoint-7.tmp"));
    assert_non_null(strstr(stopper.log, "samples/step-000005.mp4: "));
    assert_non_null(strstr(summary.sample, "step-000010.mp4"));
    const char *curves = strstr(stopper.log, "TensorBoard's curves end before step 6: ");
    assert_non_null(curves);
    assert_null(strstr(curves + 1, "TensorBoard's curves"));
    same_runs(straight, folder);
}

typedef struct Thief {
    int64_t steps; /* the clips are removed after this many steps */
    const char *clips, *away;
} Thief;

static bool take_clips(void *context)
{
    Thief *thief = context;
    if (thief->steps-- == 0)
        assert_int_equal(rename(thief->clips, thief->away), 0);
    return false;
}

/* If clips disappear, the run ends after the prepared samples. Its work is saved, and equals a run of as
 * many steps. */
static void steps_done_are_saved_when_clips_go_away(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    char mine[DSVI_PATH_MAX], away[DSVI_PATH_MAX];
    const char *folder = tiny_folder(), *straight = tiny_folder(), *place = tiny_folder();
    Thief thief = {.steps = 3, .clips = mine, .away = away};
    DsvEvents events = {.context = &thief, .stop = take_clips};
    int64_t step;
    (void)state;
    assert_ok(dsvi_path_join(mine, place, "clips"));
    assert_ok(dsvi_path_join(away, place, "away"));
    assert_ok(dsvi_folder_make(mine));
    tiny_clips(mine, 3);
    run_settings(&settings, folder);
    set(&settings, "data.path", mine);
    set(&settings, "data.cache_mb", "0");
    set(&settings, "checkpointing_steps", "0");
    assert_fails(DSV_E_NOT_FOUND, "is whole: ", dsv_train(&settings, &events, &summary));
    assert_non_null(strstr(dsv_error_message(), "16 windows in a row cannot be read"));
    step = atoll(strrchr(summary.checkpoint, '-') + 1);
    assert_true(step >= 3 && step < STEPS);
    run_settings(&settings, straight);
    set(&settings, "checkpointing_steps", "1");
    settings.max_train_steps = step;
    assert_ok(dsv_train(&settings, NULL, &summary));
    tiny_same_checkpoints(straight, folder, (int)step);
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(place));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_done_nothing_written),
        cmocka_unit_test(steps_done_are_saved_when_clips_go_away),
        cmocka_unit_test(a_resume_knows_its_clips),
        cmocka_unit_test(resume_of_nothing_starts_afresh),
        cmocka_unit_test(one_run_at_a_time),
        cmocka_unit_test(a_folder_without_locks_will_do),
        cmocka_unit_test(only_its_own_work_ends_a_run),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
