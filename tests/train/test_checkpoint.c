/* Checkpoints with injected faults: the process dies, or the disk is full, at each single call that changes
 * the disk. The previous checkpoint must stay intact and the next run must find a checkpoint. The calls are
 * intercepted by functions defined here, since the program's symbols come before the C library's. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cpu/cpu.h"
#include "tiny.h"
#include "run/checkpoint.h"

/* Calls until the fault; negative: no fault. */
static long fuse = -1;
static long calls;
static enum { FAULT_DIE, FAULT_NO_SPACE } fault;
static bool no_exchange; /* renameat2 cannot exchange, as on NFS */
enum { DIED = 9 };

/* Returns true for the call that must fail. */
static int struck(void)
{
    calls++;
    if (fuse < 0 || fuse-- > 0)
        return 0;
    if (fault == FAULT_DIE)
        _exit(DIED);
    errno = ENOSPC;
    return 1;
}

ssize_t write(int file, const void *data, size_t bytes)
{
    return struck() ? -1 : syscall(SYS_write, file, data, bytes);
}

int fsync(int file)
{
    return struck() ? -1 : (int)syscall(SYS_fsync, file);
}

int rename(const char *from, const char *to)
{
    return struck() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (no_exchange && flags == RENAME_EXCHANGE) {
        errno = EINVAL;
        return -1;
    }
    return struck() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return struck() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* Makes a trainer whose weights identify the step. */
typedef struct Bench {
    DsvConfig settings;
    DsviBackend backend;
    DsviCodec *codec;
    DsviTrainer *trainer;
    const char *folder;
} Bench;

static void open_bench(Bench *b)
{
    DsviDitConfig config;
    DsviVideoShape video = {3, TINY_FRAMES, TINY_SIDE, TINY_SIDE}, latent;
    tiny_settings(&b->settings);
    b->folder = tiny_folder();
    assert_ok(dsvi_codec_open(&b->settings, &b->codec));
    assert_ok(b->codec->latent_shape(b->codec, video, &latent));
    assert_ok(dsvi_dit_config_make(&b->settings, &config));
    config.in_channels = config.out_channels = latent.channels;
    assert_ok(dsvi_cpu_open("auto", 1, &b->backend));
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &b->settings, .backend = &b->backend, .codec = b->codec, .config = &config},
        &b->trainer));
    assert_ok(dsvi_trainer_start_new(b->trainer, 1));
}

static void close_bench(Bench *b)
{
    dsvi_trainer_free(&b->trainer);
    b->codec->close(b->codec);
    dsvi_cpu_close(&b->backend);
    assert_ok(dsvi_folder_remove(b->folder));
}

/* Weight 0 of the model, which identifies the checkpoint. */
static float *mark(Bench *b)
{
    return b->trainer->zero.master.data;
}

static DsvStatus save_step(Bench *b, int64_t step)
{
    char path[DSVI_PATH_MAX];
    b->trainer->step = step;
    *mark(b) = (float)step;
    DSVI_TRY(dsvi_checkpoint_save(b->trainer, b->folder, path));
    return dsvi_checkpoint_prune(b->folder, b->settings.checkpoints_total_limit, step);
}

/* Checks that the newest checkpoint is intact, loads, and is one of the two. Returns its step. */
static int64_t newest(Bench *b)
{
    char path[DSVI_PATH_MAX];
    bool found;
    assert_ok(dsvi_checkpoint_latest(b->folder, NULL, NULL, path, &found));
    assert_true(found);
    *mark(b) = -1;
    assert_ok(dsvi_checkpoint_load(b->trainer, path));
    assert_true(*mark(b) == (float)b->trainer->step);
    return b->trainer->step;
}

static int count_entries;
static DsvStatus count_entry(void *context, const char *name)
{
    (void)context;
    (void)name;
    count_entries++;
    return DSV_OK;
}

static int entries(const Bench *b)
{
    count_entries = 0;
    assert_ok(dsvi_folder_list(b->folder, count_entry, NULL));
    return count_entries;
}

/* Saves in a process that dies at call number `at`, from 0. Returns whether the process reached this call. */
static bool dies_saving(Bench *b, int64_t step, long at)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fault = FAULT_DIE;
        fuse = at;
        _exit(save_step(b, step) == DSV_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != 0)
        assert_int_equal(WEXITSTATUS(status), DIED);
    return WEXITSTATUS(status) == DIED;
}

static void dying_at_any_call_leaves_a_whole_checkpoint(void **state)
{
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(save_step(&b, 4));
    int64_t seen_old = 0, seen_new = 0;
    for (long at = 0; dies_saving(&b, 8, at); at++) {
        int64_t step = newest(&b);
        assert_true(step == 4 || step == 8);
        step == 4 ? seen_old++ : seen_new++;
    }
    assert_int_equal(newest(&b), 8);
    assert_true(seen_old > 20); /* faults did occur during writing */
    print_message("died at %lld calls before the rename and %lld after it\n", (long long)seen_old,
                  (long long)seen_new);
    close_bench(&b);
}

/* Number of intact checkpoints of step 8, in the run folder and in superseded/. */
static int count_whole(const Bench *b)
{
    enum { NUMBERS = 100 }; /* more than are made; a fault may leave an empty one */
    char path[DSVI_PATH_MAX];
    int count = 0;
    snprintf(path, sizeof path, "%s/checkpoint-8", b->folder);
    for (int n = 1; n < NUMBERS; n++) {
        count += dsvi_path_exists(path) && dsvi_checkpoint_verify(path) == DSV_OK;
        snprintf(path, sizeof path, "%s/superseded/%d/checkpoint-8", b->folder, n);
    }
    return count;
}

/* Saves a checkpoint of a step that has one already, and dies during the last calls. At the next start both
 * exist, or only the old one. */
static void dying_while_a_checkpoint_is_replaced(void **state)
{
    enum { LAST = 24 };
    Bench b;
    no_exchange = *state != NULL;
    open_bench(&b);
    assert_ok(save_step(&b, 8));
    calls = 0;
    assert_ok(save_step(&b, 8));
    long total = calls;
    int whole = 2, added = 0;
    assert_int_equal(count_whole(&b), whole);
    for (long at = total - LAST; dies_saving(&b, 8, at); at++) {
        assert_ok(dsvi_checkpoint_tidy(b.folder));
        assert_int_equal(newest(&b), 8);
        int now = count_whole(&b);
        assert_true(now == whole || now == whole + 1);
        added += now - whole;
        whole = now;
    }
    assert_true(added > 3 && added < LAST);
    assert_int_equal(count_whole(&b), whole + 1);
    assert_int_equal(newest(&b), 8);
    no_exchange = false;
    close_bench(&b);
}

static void a_full_disk_is_an_error_and_leaves_nothing_behind(void **state)
{
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(save_step(&b, 4));
    calls = 0;
    assert_ok(save_step(&b, 8));
    long total = calls;
    fault = FAULT_NO_SPACE;
    for (long at = 0; at < total; at++) {
        fuse = at;
        DsvStatus status = save_step(&b, 12);
        fuse = -1;
        if (status != DSV_OK)
            assert_non_null(strstr(dsv_error_message(), b.folder));
        int64_t step = newest(&b);
        assert_true(step == 8 || step == 12);
        char path[DSVI_PATH_MAX];
        snprintf(path, sizeof path, "%s/checkpoint-12", b.folder);
        if (dsvi_path_exists(path)) { /* the fault was after the rename: the file is complete */
            assert_ok(dsvi_checkpoint_verify(path));
        } else { /* only latest, checkpoint-4 and checkpoint-8, nothing incomplete */
            assert_int_equal(entries(&b), 3);
        }
        assert_ok(dsvi_folder_remove(path));
        assert_int_equal(newest(&b), 8);
    }
    close_bench(&b);
}

static void damage_is_found_and_passed_over(void **state)
{
    Bench b;
    char path[DSVI_PATH_MAX];
    bool found;
    (void)state;
    open_bench(&b);
    assert_ok(save_step(&b, 4));
    assert_ok(save_step(&b, 8));
    snprintf(path, sizeof path, "%s/checkpoint-8/optimizer/exp_avg.safetensors", b.folder);
    int file = open(path, O_WRONLY);
    assert_true(file >= 0 && pwrite(file, "x", 1, 4000) == 1 && close(file) == 0);
    snprintf(path, sizeof path, "%s/checkpoint-8", b.folder);
    assert_fails(DSV_E_FORMAT, "exp_avg.safetensors", dsvi_checkpoint_verify(path));
    assert_fails(DSV_E_FORMAT, "exp_avg.safetensors", dsvi_checkpoint_load(b.trainer, path));
    assert_int_equal(newest(&b), 4);
    snprintf(path, sizeof path, "%s/checkpoint-4/manifest.json", b.folder);
    assert_int_equal(truncate(path, 10), 0);
    assert_fails(DSV_E_FORMAT, "none of its 2 checkpoints is whole; the newest of them: ",
                 dsvi_checkpoint_latest(b.folder, NULL, NULL, path, &found));
    assert_non_null(strstr(dsv_error_message(), "checkpoint-8/optimizer/exp_avg.safetensors: checksum"));
    close_bench(&b);
}

static void only_the_newest_are_kept(void **state)
{
    Bench b;
    char path[DSVI_PATH_MAX];
    (void)state;
    open_bench(&b);
    b.settings.checkpoints_total_limit = 2;
    for (int64_t step = 1; step <= 5; step++)
        assert_ok(save_step(&b, step));
    for (int64_t step = 1; step <= 5; step++) {
        snprintf(path, sizeof path, "%s/checkpoint-%lld", b.folder, (long long)step);
        assert_int_equal(dsvi_path_exists(path), step >= 4);
    }
    /* Saved again: the old checkpoint is kept. */
    assert_ok(save_step(&b, 4));
    assert_int_equal(newest(&b), 4);
    snprintf(path, sizeof path, "%s/superseded/1/checkpoint-4", b.folder);
    assert_ok(dsvi_checkpoint_verify(path));
    close_bench(&b);
}

/* A run that was resumed from step 4 after step 12 keeps its own records. Later steps of the abandoned part
 * are neither shown as its past nor used as a fallback. */
static void steps_beyond_the_newest_do_not_count(void **state)
{
    Bench b;
    char path[DSVI_PATH_MAX];
    bool found;
    (void)state;
    open_bench(&b);
    b.settings.checkpoints_total_limit = 3;
    for (int64_t step = 4; step <= 12; step += 4)
        assert_ok(save_step(&b, step));
    b.settings.checkpoints_total_limit = 2;
    assert_ok(save_step(&b, 5));
    for (int64_t step = 4; step <= 12; step++) {
        snprintf(path, sizeof path, "%s/checkpoint-%lld", b.folder, (long long)step);
        assert_int_equal(dsvi_path_exists(path), step % 4 == 0 || step == 5);
    }
    snprintf(path, sizeof path, "%s/checkpoint-5/manifest.json", b.folder);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(newest(&b), 4);
    snprintf(path, sizeof path, "%s/checkpoint-4/manifest.json", b.folder);
    assert_int_equal(truncate(path, 10), 0);
    assert_fails(DSV_E_FORMAT, "none of its 2 checkpoints is whole",
                 dsvi_checkpoint_latest(b.folder, NULL, NULL, path, &found));
    assert_non_null(strstr(dsv_error_message(), "2 more are of steps after 5"));
    close_bench(&b);
}

/* Resuming from an earlier step moves the abandoned steps to superseded/, where no search finds them. */
static void abandoned_steps_are_set_aside(void **state)
{
    Bench b;
    char path[DSVI_PATH_MAX];
    DsviSuperseded superseded;
    (void)state;
    open_bench(&b);
    b.settings.checkpoints_total_limit = 3;
    for (int64_t step = 4; step <= 12; step += 4)
        assert_ok(save_step(&b, step));
    superseded = (DsviSuperseded){.root = b.folder};
    assert_ok(dsvi_checkpoint_point(b.folder, 4));
    assert_ok(dsvi_checkpoint_set_aside(b.folder, 4, &superseded));
    assert_int_equal(newest(&b), 4);
    b.settings.checkpoints_total_limit = 1;
    assert_ok(save_step(&b, 5));
    for (int64_t step = 4; step <= 12; step += 4) {
        snprintf(path, sizeof path, "%s/checkpoint-%lld", b.folder, (long long)step);
        assert_false(dsvi_path_exists(path));
        snprintf(path, sizeof path, "%s/superseded/1/checkpoint-%lld", b.folder, (long long)step);
        assert_int_equal(dsvi_path_exists(path), step > 4);
    }
    assert_int_equal(newest(&b), 5);
    close_bench(&b);
}

/* The checkpoint is recognised however its path is written; a checkpoint of another folder is not of this
 * run. */
static void a_folder_knows_its_checkpoints(void **state)
{
    char inside[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    const char *folder = tiny_folder(), *other = tiny_folder();
    (void)state;
    snprintf(inside, sizeof inside, "%s/superseded", folder);
    assert_ok(dsvi_folder_make(inside));
    snprintf(path, sizeof path, "%s/superseded/..//checkpoint-12/", folder);
    assert_int_equal(dsvi_checkpoint_step_in(folder, path), 12);
    snprintf(path, sizeof path, "%s/superseded/checkpoint-12", folder);
    assert_int_equal(dsvi_checkpoint_step_in(folder, path), -1);
    snprintf(path, sizeof path, "%s/checkpoint-12", other);
    assert_int_equal(dsvi_checkpoint_step_in(folder, path), -1);
    snprintf(path, sizeof path, "%s/best", folder);
    assert_int_equal(dsvi_checkpoint_step_in(folder, path), -1);
    assert_int_equal(dsvi_checkpoint_step_in(".", "checkpoint-3"), 3);
    assert_int_equal(dsvi_checkpoint_step_in("/", "/checkpoint-3"), 3);
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(other));
}

/* These configurations differ, although all tensors have the same shapes: one head of 64 instead of two of
 * 32, and another codec that also makes 96 channels. */
static void another_seed_shape_or_codec_is_refused(void **state)
{
    Bench b;
    char path[DSVI_PATH_MAX];
    (void)state;
    open_bench(&b);
    assert_ok(save_step(&b, 4));
    snprintf(path, sizeof path, "%s/checkpoint-4", b.folder);
    b.settings.seed = 8;
    assert_fails(DSV_E_USAGE, "seed=7", dsvi_checkpoint_load(b.trainer, path));
    b.settings.seed = 7;
    b.settings.codec_spatial_levels = 1;
    b.settings.codec_temporal_levels = 3;
    assert_fails(DSV_E_USAGE, "haar of 2 spatial and 1 temporal levels",
                 dsvi_checkpoint_load(b.trainer, path));
    b.settings.codec_spatial_levels = 2;
    b.settings.codec_temporal_levels = 1;
    b.trainer->config.num_attention_heads = 1;
    b.trainer->config.attention_head_dim = 64;
    assert_fails(DSV_E_USAGE, "num_attention_heads is 2, this model's is 1",
                 dsvi_checkpoint_load(b.trainer, path));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dying_at_any_call_leaves_a_whole_checkpoint),
        cmocka_unit_test_prestate(dying_while_a_checkpoint_is_replaced, NULL),
        cmocka_unit_test_prestate(dying_while_a_checkpoint_is_replaced, "no exchange"),
        cmocka_unit_test(a_full_disk_is_an_error_and_leaves_nothing_behind),
        cmocka_unit_test(damage_is_found_and_passed_over),
        cmocka_unit_test(only_the_newest_are_kept),
        cmocka_unit_test(steps_beyond_the_newest_do_not_count),
        cmocka_unit_test(abandoned_steps_are_set_aside),
        cmocka_unit_test(a_folder_knows_its_checkpoints),
        cmocka_unit_test(another_seed_shape_or_codec_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
