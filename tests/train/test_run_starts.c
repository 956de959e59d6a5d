/* Starts in a folder that contains a run: what each start may change, must keep, and refuses. */
#include "test.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "run_rig.h"
#include "run/checkpoint.h"
#include "run/metrics_read.h"

/* Names and checksums of all files below a folder. */
typedef struct Digest {
    char folder[DSVI_PATH_MAX];
    uint64_t sum;
    int64_t files;
} Digest;

static DsvStatus add_to_digest(void *context, const char *name)
{
    Digest *digest = context, below = {.sum = 0};
    uint64_t content = 1;
    DSVI_TRY(dsvi_path_join(below.folder, digest->folder, name));
    if (dsvi_path_is_folder(below.folder)) {
        DSVI_TRY(dsvi_folder_list(below.folder, add_to_digest, &below));
        content = below.sum;
    } else {
        DSVI_TRY(dsvi_file_checksum(below.folder, &content));
    }
    for (; *name; name++)
        content = (content ^ (uint64_t)*name) * UINT64_C(0x100000001b3);
    digest->sum = digest->sum * 31 + content;
    digest->files += 1 + below.files;
    return DSV_OK;
}

static Digest digest_of(const char *folder)
{
    Digest digest = {.sum = 0};
    snprintf(digest.folder, sizeof digest.folder, "%s", folder);
    assert_ok(dsvi_folder_list(folder, add_to_digest, &digest));
    return digest;
}

static void assert_untouched(const Digest *before, const char *folder)
{
    Digest after = digest_of(folder);
    assert_int_equal(after.files, before->files);
    assert_true(after.sum == before->sum);
}

static const char *in(const char *folder, const char *name)
{
    static char path[4][DSVI_PATH_MAX];
    static int next;
    char *out = path[next++ % 4];
    assert_ok(dsvi_path_join(out, folder, name));
    return out;
}

static void resume_settings(DsvConfig *settings, const char *folder, const char *checkpoint)
{
    run_settings(settings, folder);
    set(settings, "resume_from_checkpoint", checkpoint);
}

static const char *new_run(void)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    train_straight(&settings, folder, &summary);
    return folder;
}

/* Each start is refused for a different reason, some only after the checkpoint was read. */
static void a_refused_start_changes_nothing(void **state)
{
    static const struct {
        const char *resume, *key, *value;
        DsvStatus status;
        const char *sentence;
    } refused[] = {
        {"", "lr", "0.1", DSV_E_USAGE, "already holds a run"},
        {"latest", "seed", "8", DSV_E_USAGE, "was trained with seed=7"},
        {"latest", "data.path", "nowhere", DSV_E_NOT_FOUND, "nowhere"},
        {"latest", "model.ffn_dim", "64", DSV_E_USAGE, "ffn_dim is 96"},
        {"latest", "codec.temporal_levels", "2", DSV_E_USAGE, "2 spatial and 1 temporal levels"},
        {"latest", "height", "33", DSV_E_SHAPE, "33"},
        {"latest", "validation.data", "nowhere", DSV_E_NOT_FOUND, "nowhere"},
        {"nowhere", "lr", "0.1", DSV_E_NOT_FOUND, "resume_from_checkpoint=nowhere: no such folder"},
    };
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = new_run(), *other = new_run();
    Digest before = digest_of(folder);
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        resume_settings(&settings, folder, refused[i].resume);
        set(&settings, refused[i].key, refused[i].value);
        assert_fails(refused[i].status, refused[i].sentence, dsv_train(&settings, NULL, &summary));
        assert_untouched(&before, folder);
    }
    resume_settings(&settings, folder, in(other, "checkpoint-4"));
    assert_fails(DSV_E_USAGE, "is not a checkpoint of the run", dsv_train(&settings, NULL, &summary));
    assert_untouched(&before, folder);
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(other));
}

/* Unreadable records are detected last. */
static void unreadable_records_are_met_before_anything_changes(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = new_run();
    static const char lines[] = "{\"step\": 1}\nnonsense\n{\"step\": 2}\n";
    (void)state;
    assert_ok(dsvi_file_write(in(folder, "validation.jsonl"), lines, sizeof lines - 1));
    Digest before = digest_of(folder);
    resume_settings(&settings, folder, in(folder, "checkpoint-4"));
    assert_fails(DSV_E_FORMAT, "validation.jsonl:2", dsv_train(&settings, NULL, &summary));
    assert_untouched(&before, folder);
    assert_ok(dsvi_folder_remove(folder));
}

static void a_refused_first_start_leaves_no_folder(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *place = tiny_folder();
    Digest before = digest_of(place);
    (void)state;
    run_settings(&settings, in(place, "deep/deeper/run/"));
    set(&settings, "data.path", "nowhere");
    assert_fails(DSV_E_NOT_FOUND, "nowhere", dsv_train(&settings, NULL, &summary));
    assert_untouched(&before, place);
    set(&settings, "output_dir", place);
    assert_fails(DSV_E_NOT_FOUND, "nowhere", dsv_train(&settings, NULL, &summary));
    assert_untouched(&before, place);
    assert_ok(dsvi_folder_remove(place));
}

static void assert_resumes_nowhere(const char *config)
{
    DsvConfig stored;
    dsv_config_defaults(&stored);
    assert_ok(dsv_config_load(&stored, config));
    assert_string_equal(stored.resume_from_checkpoint, "");
}

static bool names(const char *folder, const char *checkpoint)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_file_read(in(folder, "latest"), 256, &text, &bytes));
    bool equal = strncmp(text, checkpoint, strlen(checkpoint)) == 0 && text[strlen(checkpoint)] == '\n';
    free(text);
    return equal;
}

static int64_t last_step(const char *folder)
{
    DsviMetricsSummary metrics;
    assert_ok(dsvi_metrics_summarise(in(folder, "metrics.jsonl"), &metrics));
    return metrics.last_step;
}

/* A start from an earlier checkpoint is stopped before its first step: records, checkpoints, clips and
 * options of the abandoned steps are kept, and the next start continues from the same checkpoint. */
static void going_back_keeps_what_was_there(void **state)
{
    static const char *const clip[] = {"samples/step-000004.mp4", "samples/step-000005.mp4",
                                       "samples/seed-9/step-000010.mp4"};
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 0};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    const char *straight = new_run(), *folder = new_run();
    (void)state;
    assert_ok(dsvi_folder_make(in(folder, "samples/seed-9")));
    for (size_t i = 0; i < sizeof clip / sizeof *clip; i++)
        assert_ok(dsvi_file_write(in(folder, clip[i]), "x", 1));
    resume_settings(&settings, folder, in(folder, "checkpoint-4"));
    set(&settings, "lr", "0.1");
    assert_fails(DSV_E_INTERRUPTED, "stopped after step 4", dsv_train(&settings, &events, &summary));
    assert_non_null(strstr(stopper.log, "/superseded/1"));
    assert_true(names(folder, "checkpoint-4"));
    assert_int_equal(last_step(folder), 4);
    assert_int_equal(last_step(in(folder, "superseded/1")), STEPS);
    assert_ok(dsvi_checkpoint_verify(in(folder, "superseded/1/checkpoint-8")));
    assert_ok(dsvi_checkpoint_verify(in(folder, "superseded/1/checkpoint-10")));
    assert_false(dsvi_path_exists(in(folder, "checkpoint-8")));
    assert_false(dsvi_path_exists(in(folder, "checkpoint-10")));
    for (size_t i = 0; i < sizeof clip / sizeof *clip; i++) {
        assert_int_equal(dsvi_path_exists(in(folder, clip[i])), i == 0);
        assert_int_equal(dsvi_path_exists(in(in(folder, "superseded/1"), clip[i])), i > 0);
    }
    assert_resumes_nowhere(in(folder, "config.yaml"));
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_load(&settings, in(folder, "superseded/1/config.yaml")));
    assert_true(settings.lr == 1e-3);
    resume_settings(&settings, folder, "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_int_equal(summary.first_step, 4);
    assert_resumes_nowhere(in(folder, "checkpoint-10/config.yaml"));
    same_runs(straight, folder);
}

/* In a separate folder, a start from another run's checkpoint is a new run that keeps a copy of what it
 * started from. */
static void a_branch_holds_what_it_began_from(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 0};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    const char *trunk = new_run(), *folder = tiny_folder();
    Digest before = digest_of(trunk);
    (void)state;
    resume_settings(&settings, folder, in(trunk, "checkpoint-4"));
    assert_fails(DSV_E_INTERRUPTED, "stopped after step 4", dsv_train(&settings, &events, &summary));
    assert_untouched(&before, trunk);
    assert_true(names(folder, "checkpoint-4"));
    assert_resumes_nowhere(in(folder, "config.yaml"));
    assert_fails(DSV_E_USAGE, "is not a checkpoint of the run", dsv_train(&settings, NULL, &summary));
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_int_equal(summary.first_step, 4);
    tiny_same_checkpoints(trunk, folder, STEPS);
    assert_ok(dsvi_folder_remove(trunk));
    assert_ok(dsvi_folder_remove(folder));
}

/* Any single file of a run is enough to refuse a new run in its folder. */
static void any_trace_of_a_run_keeps_a_new_one_out(void **state)
{
    static const char *const trace[] = {"checkpoint-4",    "metrics.jsonl",    "blocks.jsonl",
                                        "decisions.jsonl", "validation.jsonl", "run.json",
                                        "latest"};
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *run = new_run();
    (void)state;
    for (size_t i = 0; i < sizeof trace / sizeof *trace; i++) {
        const char *folder = tiny_folder();
        assert_ok(dsvi_path_rename(in(run, trace[i]), in(folder, trace[i])));
        Digest before = digest_of(folder);
        run_settings(&settings, folder);
        assert_fails(DSV_E_USAGE, trace[i], dsv_train(&settings, NULL, &summary));
        assert_untouched(&before, folder);
        assert_ok(dsvi_folder_remove(folder));
    }
    assert_ok(dsvi_folder_remove(run));
}

/* A resume does not need the model from which the run began. */
static void a_model_that_is_gone_is_not_missed(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *model = new_run(), *folder = tiny_folder();
    (void)state;
    run_settings(&settings, folder);
    set(&settings, "model.path", model);
    set(&settings, "model.ffn_dim", "0"); /* the stored model's shape is used */
    set(&settings, "max_train_steps", "4");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_remove(model));
    set(&settings, "max_train_steps", "6");
    set(&settings, "resume_from_checkpoint", "latest");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_int_equal(summary.last_step, 6);
    assert_ok(dsvi_folder_remove(folder));
}

/* Records that a power failure truncated before the checkpoint's step. */
static void lost_records_are_named(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    Stopper stopper = {.steps = 0};
    DsvEvents events = {.context = &stopper, .stop = stop_after, .log = keep_log};
    const char *folder = new_run();
    (void)state;
    assert_int_equal(truncate(in(folder, "metrics.jsonl"), 0), 0);
    resume_settings(&settings, folder, "latest");
    set(&settings, "max_train_steps", "12");
    assert_fails(DSV_E_INTERRUPTED, "step 10", dsv_train(&settings, &events, &summary));
    assert_non_null(strstr(stopper.log, "metrics.jsonl: steps 1 to 10, which the checkpoint holds, are not"));
    assert_ok(dsvi_folder_remove(folder));
}

/* Which records were synced since the last checkpoint, and how many checkpoints were written before all
 * records were synced. */
static const char *const RECORD[] = {"/metrics.jsonl", "/blocks.jsonl", "/decisions.jsonl",
                                     "/validation.jsonl", "/events.out.tfevents."};
enum { RECORDS = sizeof RECORD / sizeof *RECORD };
static bool synced[RECORDS];
static int published, too_early;

int fsync(int file)
{
    char link[64], path[DSVI_PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    for (int i = 0; i < RECORDS; i++)
        synced[i] = synced[i] || strstr(path, RECORD[i]);
    return (int)syscall(SYS_fsync, file);
}

int rename(const char *from, const char *to)
{
    if (strncmp(strrchr(to, '/'), "/checkpoint-", 12) == 0) {
        bool early = false;
        for (int i = 0; i < RECORDS; i++)
            early = early || !synced[i];
        too_early += early;
        published++;
        memset(synced, 0, sizeof synced);
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void records_are_on_the_disk_before_their_checkpoint(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    (void)state;
    published = too_early = 0;
    memset(synced, 0, sizeof synced);
    train_straight(&settings, folder, &summary);
    assert_int_equal(published, 3);
    assert_int_equal(too_early, 0);
    assert_ok(dsvi_folder_remove(folder));
}

/* Changes the run folder after this many steps. */
typedef struct Vandal {
    int64_t steps;
    void (*act)(const char *folder);
    const char *folder;
} Vandal;

static bool let_loose(void *context)
{
    Vandal *vandal = context;
    if (vandal->steps-- == 0)
        vandal->act(vandal->folder);
    return false;
}

static void remove_metrics(const char *folder)
{
    assert_int_equal(unlink(in(folder, "metrics.jsonl")), 0);
}

static void replace_decisions(const char *folder)
{
    assert_ok(dsvi_file_replace(in(folder, "decisions.jsonl"), "edited\n", 7));
}

static void remove_lock(const char *folder)
{
    assert_int_equal(unlink(in(folder, "lock")), 0);
}

static void remove_all(const char *folder)
{
    assert_ok(dsvi_folder_remove(folder));
}

/* The run saves, restores its records and ends. The next start completes the run as if nothing had happened.
 */
static void a_disturbed_folder_ends_a_run_that_loses_nothing(void **state)
{
    static void (*const act[])(const char *) = {remove_metrics, replace_decisions, remove_lock, remove_all};
    DsvConfig settings;
    DsvTrainSummary summary;
    (void)state;
    for (size_t i = 0; i < sizeof act / sizeof *act; i++) {
        const char *straight = new_run(), *folder = tiny_folder();
        Vandal vandal = {.steps = 6, .act = act[i], .folder = folder};
        DsvEvents events = {.context = &vandal, .stop = let_loose};
        run_settings(&settings, folder);
        assert_fails(DSV_E_IO, "removed or replaced while the run was at work",
                     dsv_train(&settings, &events, &summary));
        assert_non_null(strstr(dsv_error_message(), "checkpoint-8 is whole"));
        assert_true(names(folder, "checkpoint-8"));
        assert_true(dsvi_path_exists(in(folder, "config.yaml")));
        set(&settings, "resume_from_checkpoint", "latest");
        assert_ok(dsv_train(&settings, NULL, &summary));
        assert_int_equal(summary.first_step, 8);
        same_runs(straight, folder);
    }
}

/* Another run has replaced this one, which ends without changing the other's files. */
static const char *another_run;

static void replace_all(const char *folder)
{
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_path_rename(another_run, folder));
}

static void a_run_in_the_place_of_another_is_let_alone(void **state)
{
    DsvConfig settings;
    DsvTrainSummary summary;
    const char *folder = tiny_folder();
    another_run = new_run();
    Digest before = digest_of(another_run);
    Vandal vandal = {.steps = 6, .act = replace_all, .folder = folder};
    DsvEvents events = {.context = &vandal, .stop = let_loose};
    (void)state;
    run_settings(&settings, folder);
    assert_fails(DSV_E_IO, "another run is there now", dsv_train(&settings, &events, &summary));
    assert_non_null(strstr(dsv_error_message(), "step 8 cannot be saved"));
    assert_null(strstr(dsv_error_message(), "is whole"));
    assert_untouched(&before, folder);
    assert_ok(dsvi_folder_remove(folder));
}

static void spoil(const char *file)
{
    char byte;
    FILE *at = fopen(file, "r+");
    assert_non_null(at);
    assert_int_equal(fseek(at, -3, SEEK_END), 0);
    assert_int_equal(fread(&byte, 1, 1, at), 1);
    byte ^= 1;
    assert_int_equal(fseek(at, -3, SEEK_END), 0);
    assert_int_equal(fwrite(&byte, 1, 1, at), 1);
    assert_int_equal(fclose(at), 0);
}

/* A checkpoint with one flipped bit in `file` is refused as a model, whatever path names it. */
static void assert_no_model(const char *folder, const char *path, const char *file)
{
    DsvConfig settings, of_run;
    DsvTrainSummary summary;
    char video[DSVI_PATH_MAX];
    const char *fresh = tiny_folder();
    snprintf(video, sizeof video, "%s", in(folder, "out.mp4"));
    run_settings(&of_run, "unused");
    assert_fails(DSV_E_FORMAT, file, dsv_sample(in(folder, path), NULL, video, &of_run, NULL));
    assert_false(dsvi_path_exists(video));
    run_settings(&settings, fresh);
    set(&settings, "model.path", in(folder, path));
    assert_fails(DSV_E_FORMAT, file, dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_remove(fresh));
}

static void a_damaged_checkpoint_is_no_model(void **state)
{
    static const char weights[] = "checkpoint-4/transformer/diffusion_pytorch_model.safetensors";
    DsvConfig settings;
    char video[DSVI_PATH_MAX];
    const char *folder = new_run();
    (void)state;
    snprintf(video, sizeof video, "%s", in(folder, "out.mp4"));
    run_settings(&settings, "unused");
    set(&settings, "num_inference_steps", "1");
    assert_ok(dsvi_folder_remove(in(folder, "checkpoint-4/optimizer")));
    spoil(in(folder, "checkpoint-4/transformer_ema/diffusion_pytorch_model.safetensors"));
    assert_ok(dsv_sample(in(folder, "checkpoint-4"), NULL, video, &settings, NULL)); /* unused here */
    assert_int_equal(unlink(video), 0);
    assert_no_model(folder, "checkpoint-4/transformer_ema", "transformer_ema");
    spoil(in(folder, weights));
    assert_no_model(folder, "checkpoint-4", "diffusion_pytorch_model");
    assert_no_model(folder, "checkpoint-4/transformer/", "diffusion_pytorch_model");
    assert_no_model(folder, weights, "diffusion_pytorch_model");
    spoil(in(folder, "checkpoint-8/sparse.safetensors"));
    assert_no_model(folder, "checkpoint-8", "sparse.safetensors");
    assert_ok(dsvi_folder_remove(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_start_changes_nothing),
        cmocka_unit_test(unreadable_records_are_met_before_anything_changes),
        cmocka_unit_test(a_refused_first_start_leaves_no_folder),
        cmocka_unit_test(going_back_keeps_what_was_there),
        cmocka_unit_test(a_branch_holds_what_it_began_from),
        cmocka_unit_test(any_trace_of_a_run_keeps_a_new_one_out),
        cmocka_unit_test(a_model_that_is_gone_is_not_missed),
        cmocka_unit_test(lost_records_are_named),
        cmocka_unit_test(records_are_on_the_disk_before_their_checkpoint),
        cmocka_unit_test(a_disturbed_folder_ends_a_run_that_loses_nothing),
        cmocka_unit_test(a_run_in_the_place_of_another_is_let_alone),
        cmocka_unit_test(a_damaged_checkpoint_is_no_model),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
