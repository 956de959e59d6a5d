/* Whole runs through the public call: same seed twice, stopped and resumed, one thread or two, refusals; and
 * with the argument `cuda` the same on a GPU, where one can be used. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cjson/cJSON.h>

#include "dsv/dsv.h"
#include "tiny.h"
#include "train/checkpoint.h"
#include "train/flow_draw.h"
#include "train/manifest.h"

enum { STEPS = 10 };

static char clips[DSVI_PATH_MAX];
static const char *device = "cpu";

/* Stops after so many questions: dsv_train asks once before each step. */
typedef struct Stopper {
    int64_t steps;
    char log[8192];
} Stopper;

static bool stop_after(void *context)
{
    return ((Stopper *)context)->steps-- <= 0;
}

static void keep_log(void *context, DsvLogLevel level, const char *line)
{
    Stopper *s = context;
    size_t used = strlen(s->log);
    (void)level;
    snprintf(s->log + used, sizeof s->log - used, "%s\n", line);
}

static void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

static void run_settings(DsvConfig *settings, const char *folder)
{
    tiny_settings(settings);
    set(settings, "data.path", clips);
    set(settings, "output_dir", folder);
    set(settings, "max_train_steps", "10");
    set(settings, "device", device);
    set(settings, "deterministic", "true");
}

/* Metrics that depend on nothing but the settings. */
static const char *const FIXED_METRICS[] = {"step", "loss", "grad_norm", "lr", "loss_bins", "density",
                                            "sparse_blocks", "captured_mass"};

static FILE *open_metrics(const char *folder)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    return file;
}

static cJSON *next_line(FILE *file)
{
    char *text = NULL;
    size_t room = 0;
    cJSON *object = getline(&text, &room, file) > 0 ? cJSON_Parse(text) : NULL;
    free(text);
    return object;
}

/* The same decisions after the same steps, and at least one of them. */
static void same_decisions(const char *folder_a, const char *folder_b)
{
    char path[DSVI_PATH_MAX];
    uint64_t a, b, bytes;
    snprintf(path, sizeof path, "%s/decisions.jsonl", folder_a);
    assert_ok(dsvi_file_size(path, &bytes));
    assert_true(bytes > 0);
    assert_ok(dsvi_file_checksum(path, &a));
    snprintf(path, sizeof path, "%s/decisions.jsonl", folder_b);
    assert_ok(dsvi_file_checksum(path, &b));
    assert_true(a == b);
}

static void same_metrics(const char *folder_a, const char *folder_b)
{
    FILE *a = open_metrics(folder_a), *b = open_metrics(folder_b);
    for (int line = 0; line < STEPS; line++) {
        cJSON *x = next_line(a), *y = next_line(b);
        assert_non_null(x);
        assert_non_null(y);
        for (size_t i = 0; i < sizeof FIXED_METRICS / sizeof *FIXED_METRICS; i++) {
            const cJSON *p = cJSON_GetObjectItem(x, FIXED_METRICS[i]);
            const cJSON *q = cJSON_GetObjectItem(y, FIXED_METRICS[i]);
            assert_non_null(p);
            assert_non_null(q);
            if (!cJSON_Compare(p, q, 1) || (cJSON_IsNumber(p) && p->valuedouble != q->valuedouble))
                fail_msg("step %d: %s differs: %.17g, %.17g", line + 1, FIXED_METRICS[i], p->valuedouble,
                         q->valuedouble);
        }
        cJSON_Delete(x);
        cJSON_Delete(y);
    }
    same_decisions(folder_a, folder_b);
    assert_null(next_line(a));
    assert_null(next_line(b));
    fclose(a);
    fclose(b);
}

/* And removes both. */
static void same_runs(const char *folder_a, const char *folder_b)
{
    same_metrics(folder_a, folder_b);
    tiny_same_checkpoints(folder_a, folder_b, STEPS);
    assert_ok(dsvi_folder_remove(folder_a));
    assert_ok(dsvi_folder_remove(folder_b));
}

static void train_straight(DsvConfig *settings, const char *folder, DsvTrainSummary *summary)
{
    DsvEvents events = {0};
    run_settings(settings, folder);
    assert_ok(dsv_train(settings, &events, summary));
    assert_int_equal(summary->last_step, STEPS);
    assert_true(isfinite(summary->last_loss));
}

static void same_seed_twice(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *a = tiny_folder(), *b = tiny_folder();
    (void)state;
    train_straight(&settings, a, &summary);
    assert_true(summary.sparse_blocks > 0); /* else this shows nothing about sparse attention */
    train_straight(&settings, b, &summary);
    same_runs(a, b);
}

/* One clip a step: its loss stands in the bin of its sigma, and in no other. */
static void a_loss_lies_in_its_bin(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "train_batch_size", "1");
    assert_ok(dsv_train(&settings, NULL, &summary));
    FILE *file = open_metrics(folder);
    for (uint64_t sample = 0; sample < STEPS; sample++) {
        cJSON *line = next_line(file);
        const cJSON *bins = cJSON_GetObjectItem(line, "loss_bins");
        assert_int_equal(cJSON_GetArraySize(bins), DSV_SIGMA_BINS);
        for (int i = 0; i < DSV_SIGMA_BINS; i++) {
            const cJSON *bin = cJSON_GetArrayItem(bins, i);
            if (i != dsvi_sigma_bin(dsvi_flow_sigma(&settings, sample)))
                assert_true(cJSON_IsNull(bin));
            else
                assert_true(bin->valuedouble == cJSON_GetObjectItem(line, "loss")->valuedouble);
        }
        cJSON_Delete(line);
    }
    fclose(file);
    assert_ok(dsvi_folder_remove(folder));
}

static void one_thread_or_two(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    DsvEvents events = {0};
    const char *folder[2] = {tiny_folder(), tiny_folder()};
    static const char *const threads[2] = {"1", "2"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        run_settings(&settings, folder[i]);
        set(&settings, "threads", threads[i]);
        set(&settings, "data.workers", threads[i]);
        assert_ok(dsv_train(&settings, &events, &summary));
    }
    same_metrics(folder[0], folder[1]);
    tiny_same_checkpoints(folder[0], folder[1], STEPS);
    for (int i = 0; i < 2; i++)
        assert_ok(dsvi_folder_remove(folder[i]));
}

/* Stopped once after every possible number of steps, then resumed: as if never stopped. */
static void stop_and_resume(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *straight = tiny_folder();
    const char *kind = *state;
    run_settings(&settings, straight);
    set(&settings, "sparse.selector", kind);
    assert_ok(dsv_train(&settings, NULL, &summary));
    for (int64_t stop = 0; stop < STEPS; stop += 3) {
        const char *folder = tiny_folder();
        Stopper stopper = {.steps = stop};
        DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
        run_settings(&settings, folder);
        set(&settings, "sparse.selector", kind);
        assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
        assert_int_equal(summary.last_step, stop);
        assert_non_null(strstr(summary.checkpoint, "checkpoint-"));
        set(&settings, "resume_from_checkpoint", "latest");
        assert_ok(dsv_train(&settings, NULL, &summary));
        assert_int_equal(summary.first_step, stop);
        same_metrics(straight, folder);
        tiny_same_checkpoints(straight, folder, STEPS);
        assert_ok(dsvi_folder_remove(folder));
    }
    assert_ok(dsvi_folder_remove(straight));
}

static void offload_settings(DsvConfig *settings, const char *folder, const char *keep, const char *offload)
{
    run_settings(settings, folder);
    set(settings, "model.num_layers", "4");
    set(settings, "gradient_accumulation_steps", "2");
    set(settings, "sparse.list_memory", "0.6");
    set(settings, "gradient_checkpointing", keep);
    set(settings, "sparse.offload_lists", offload);
}

/* Lists that stay on the device, and lists that wait on the host, in a run that is resumed besides. */
static void lists_kept_or_offloaded(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *kept = tiny_folder(), *offloaded = tiny_folder(), *keep = *state;
    Stopper stopper = {.steps = 5};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    offload_settings(&settings, kept, keep, "false");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_true(summary.sparse_blocks > 1);
    offload_settings(&settings, offloaded, keep, "true");
    assert_fails(DSV_E_INTERRUPTED, "stopped after step", dsv_train(&settings, &events, &summary));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    same_runs(kept, offloaded);
}

static ino_t file_number(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(stat(path, &about), 0);
    return about.st_ino;
}

/* A run that ends where it was resumed leaves the checkpoint it came from as it is. */
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

/* As states were before they told of clips. */
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

/* What a resume that stops at once says, and saves. */
static void resume(DsvConfig *settings, const char *data, Stopper *said)
{
    DsvTrainSummary summary;
    DsvEvents events = {.context = said, .stop = stop_after, .log = keep_log};
    *said = (Stopper){0};
    set(settings, "data.path", data);
    assert_fails(DSV_E_INTERRUPTED, "stopped after step 1", dsv_train(settings, &events, &summary));
}

/* A resume tells when the clips are not those of the checkpoint, where that is known. */
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
    resume(&settings, clips, &said); /* that one did no step, and has written nothing */
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

/* Of a file system that has no locks. */
static bool no_locks;

int flock(int file, int how)
{
    errno = ENOLCK;
    return no_locks ? -1 : (int)syscall(SYS_flock, file, how);
}

/* A second run that begins while the first is between two steps. */
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
    assert_non_null(strstr(stopper.log, "/lock: cannot lock it: No locks available; that another run"));
    assert_ok(dsvi_folder_remove(folder));
}

/* A checkpoint's folder that cannot be removed, as with a file in it that NFS keeps for who has it open. */
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

/* Turns what the process writes to its TensorBoard events into a full disk. */
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
    if (stopper->steps-- == 0)
        fill_disk_of_curves();
    return false;
}

/* What a run leaves beside its checkpoints and metrics does not end it when it cannot be written, nor do old
 * checkpoints that cannot be removed. */
static void only_its_own_work_ends_a_run(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 5};
    DsvEvents events = {.context = &stopper, .stop = fill_disk_later, .log = keep_log};
    const char *straight = tiny_folder(), *folder = tiny_folder();
    (void)state;
    train_straight(&settings, straight, &summary);
    run_settings(&settings, folder);
    set(&settings, "checkpoints_total_limit", "1");
    set(&settings, "validation_steps", "5");
    set(&settings, "num_inference_steps", "2");
    make_in(folder, "samples/step-000005.mp4");
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

static void bad_inputs_are_named(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder(), *empty = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "data.path", empty);
    assert_fails(DSV_E_NOT_FOUND, empty, dsv_train(&settings, NULL, &summary));
    run_settings(&settings, "/proc/dsv-cannot-be-here");
    assert_int_not_equal(dsv_train(&settings, NULL, &summary), DSV_OK);
    assert_non_null(strstr(dsv_error_message(), "/proc/dsv-cannot-be-here"));
    run_settings(&settings, folder);
    set(&settings, "height", "33");
    assert_fails(DSV_E_SHAPE, "33", dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(empty));
}

typedef struct Thief {
    int64_t steps;      /* after which the clips are taken away */
    const char *clips, *away;
} Thief;

static bool take_clips(void *context)
{
    Thief *thief = context;
    if (thief->steps-- == 0)
        assert_int_equal(rename(thief->clips, thief->away), 0);
    return false;
}

/* Clips that go away end a run, with the samples that are ready; what it has done is saved, and is what a run
 * of as many steps does. */
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
    assert_non_null(strstr(dsv_error_message(), "3 clips in a row cannot be read"));
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

/* The clip a run samples when it ends is the clip that its stored model gives: same weights, same lists. */
static void a_stored_model_samples_the_same(void **state)
{
    DsvConfig settings, of_run;
    DsvTrainSummary summary;
    char video[DSVI_PATH_MAX];
    uint64_t of_training, of_storage;
    bool found;
    const char *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "3");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_true(summary.sparse_blocks > 0);
    assert_ok(dsv_config_of_run(folder, &of_run, &found));
    snprintf(video, sizeof video, "%s/again.mp4", folder);
    assert_ok(dsv_sample(folder, NULL, video, &of_run, NULL));
    assert_ok(dsvi_file_checksum(summary.sample, &of_training));
    assert_ok(dsvi_file_checksum(video, &of_storage));
    assert_true(of_training == of_storage);
    assert_ok(dsvi_folder_remove(folder));
}

/* A run can go on from a model another run left, and its clips can be sampled. */
static void a_run_is_a_model(void **state)
{
    DsvConfig settings, of_run;
    DsvTrainSummary summary;
    char path[DSVI_PATH_MAX], video[DSVI_PATH_MAX];
    bool found;
    const char *first = tiny_folder(), *second = tiny_folder();
    (void)state;
    train_straight(&settings, first, &summary);
    run_settings(&settings, second);
    snprintf(path, sizeof path, "%s/transformer/diffusion_pytorch_model.safetensors", summary.checkpoint);
    set(&settings, "model.path", path);
    set(&settings, "max_train_steps", "2");
    assert_ok(dsv_train(&settings, NULL, &summary));
    dsv_config_defaults(&of_run);
    assert_ok(dsv_config_of_run(first, &of_run, &found));
    assert_true(found && of_run.num_frames == TINY_FRAMES);
    set(&of_run, "num_inference_steps", "2");
    snprintf(video, sizeof video, "%s/out.mp4", second);
    assert_ok(dsv_sample(first, NULL, video, &of_run, NULL));
    uint64_t bytes;
    assert_ok(dsvi_file_size(video, &bytes));
    assert_true(bytes > 0);
    assert_ok(dsvi_folder_remove(first));
    assert_ok(dsvi_folder_remove(second));
}

static void sample_to(const char *model, const char *folder, const char *name, uint64_t *checksum)
{
    DsvConfig of_run;
    char video[DSVI_PATH_MAX];
    bool found = false;
    dsv_config_defaults(&of_run);
    assert_ok(dsv_config_of_run(model, &of_run, &found));
    assert_true(found && of_run.num_frames == TINY_FRAMES);
    set(&of_run, "num_inference_steps", "2");
    snprintf(video, sizeof video, "%s/%s", folder, name);
    assert_ok(dsv_sample(model, NULL, video, &of_run, NULL));
    assert_ok(dsvi_file_checksum(video, checksum));
}

/* transformer_ema of a checkpoint is sampled as the checkpoint itself is, settings, lists and all: as if its
 * weights were the checkpoint's. */
static void an_average_is_a_model(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    char model[DSVI_PATH_MAX], weights[DSVI_PATH_MAX], aside[DSVI_PATH_MAX];
    uint64_t of_weights, same_weights, of_average, swapped;
    const char *folder = tiny_folder();
    (void)state;
    train_straight(&settings, folder, &summary);
    assert_true(summary.sparse_blocks > 0);
    snprintf(model, sizeof model, "%s/transformer_ema/", summary.checkpoint);
    snprintf(weights, sizeof weights, "%s/transformer", summary.checkpoint);
    snprintf(aside, sizeof aside, "%s/aside", summary.checkpoint);
    sample_to(summary.checkpoint, folder, "weights.mp4", &of_weights);
    sample_to(weights, folder, "again.mp4", &same_weights);
    sample_to(model, folder, "average.mp4", &of_average);
    assert_true(of_weights == same_weights && of_weights != of_average);
    assert_ok(dsvi_path_rename(weights, aside));
    assert_ok(dsvi_path_rename(model, weights));
    sample_to(summary.checkpoint, folder, "swapped.mp4", &swapped);
    assert_true(swapped == of_average);
    assert_ok(dsvi_folder_remove(folder));
}

/* Losses of a run in F32, all blocks dense. */
static void losses_on(const char *name, double loss[STEPS])
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    run_settings(&settings, folder);
    set(&settings, "device", name);
    set(&settings, "mixed_precision", "no");
    set(&settings, "sparse.enabled", "false");
    assert_ok(dsv_train(&settings, NULL, &summary));
    FILE *file = open_metrics(folder);
    for (int i = 0; i < STEPS; i++) {
        cJSON *line = next_line(file);
        loss[i] = cJSON_GetObjectItem(line, "loss")->valuedouble;
        cJSON_Delete(line);
    }
    fclose(file);
    assert_ok(dsvi_folder_remove(folder));
}

/* The same host code over other kernels: rounding is all that differs, and grows with the steps. */
static void devices_agree(void **state)
{
    double cpu[STEPS], gpu[STEPS];
    (void)state;
    losses_on("cpu", cpu);
    losses_on("cuda", gpu);
    for (int i = 0; i < STEPS; i++)
        assert_error_below(fabs(gpu[i] / cpu[i] - 1), 1e-4, "loss of step %d", i + 1);
}

static int make_clips(void **state)
{
    (void)state;
    snprintf(clips, sizeof clips, "%s", tiny_folder());
    tiny_clips(clips, 3);
    return 0;
}

static int remove_clips(void **state)
{
    (void)state;
    return dsvi_folder_remove(clips) == DSV_OK ? 0 : 1;
}

static int run_cuda(void)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_twice),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "false"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "selective"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "true"),
        cmocka_unit_test(devices_agree),
        cmocka_unit_test_prestate(stop_and_resume, "projection"),
        cmocka_unit_test_prestate(stop_and_resume, "predictor"),
        cmocka_unit_test_prestate(stop_and_resume, "pooled"),
        cmocka_unit_test(a_stored_model_samples_the_same),
    };
    device = "cuda";
    run_settings(&settings, "nowhere");
    set(&settings, "data.path", "nowhere");
    if (dsv_train(&settings, NULL, &summary) == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_twice),
        cmocka_unit_test(a_loss_lies_in_its_bin),
        cmocka_unit_test(one_thread_or_two),
        cmocka_unit_test_prestate(stop_and_resume, "projection"),
        cmocka_unit_test_prestate(stop_and_resume, "predictor"),
        cmocka_unit_test_prestate(stop_and_resume, "pooled"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "false"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "selective"),
        cmocka_unit_test_prestate(lists_kept_or_offloaded, "true"),
        cmocka_unit_test(nothing_done_nothing_written),
        cmocka_unit_test(steps_done_are_saved_when_clips_go_away),
        cmocka_unit_test(a_resume_knows_its_clips),
        cmocka_unit_test(resume_of_nothing_starts_afresh),
        cmocka_unit_test(one_run_at_a_time),
        cmocka_unit_test(a_folder_without_locks_will_do),
        cmocka_unit_test(only_its_own_work_ends_a_run),
        cmocka_unit_test(bad_inputs_are_named),
        cmocka_unit_test(a_stored_model_samples_the_same),
        cmocka_unit_test(a_run_is_a_model),
        cmocka_unit_test(an_average_is_a_model),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
