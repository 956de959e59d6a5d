/* Complete runs on several ranks, which are threads: compared with one rank; stopped and resumed, also on
 * another number of ranks; and failures that end all ranks. */
#include "test.h"

#include <sys/stat.h>
#include <sys/syscall.h>

#include <cjson/cJSON.h>

#include "cp/cp_costs.h"
#include "cpu/cpu.h"
#include "local_ranks.h"
#include "model/codec/codec.h"
#include "run/run.h"
#include "train/tiny.h"

enum { STEPS = 8, SAMPLES = 4 };

static char clips[DSVI_PATH_MAX], held_out[DSVI_PATH_MAX], renamed[DSVI_PATH_MAX];

static void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

/* One run on several ranks. Each cp group has a batch of SAMPLES divided by the number of cp groups. */
typedef struct RanksRun {
    const char *folder;
    const char *const *assignment;
    int64_t ranks;
    int64_t stage;                 /* zero_stage; 0: the value in `assignment` */
    int64_t stop_rank, stop_after; /* in steps; 0: the run is not stopped */
    int64_t odd_rank;              /* has odd_key=odd_value, unlike the others; -1: none */
    const char *odd_key, *odd_value;
    int64_t spoilt_rank; /* its model's output is NaN when sampling; -1: none */
    bool slow_disk;      /* slows writing; no rank may end before the checkpoint exists */
    const char *lost;    /* file to delete after all ranks have opened their clips; or NULL */
    bool resume;
    const char *from; /* folder of another run, from whose step 4 this run starts; or NULL */

    DsvConfig settings[RANKS_MAX];
    DsviBackend backend[RANKS_MAX];
    DsvTrainSummary summary[RANKS_MAX];
    RankOutcome outcome[RANKS_MAX];
} RanksRun;

typedef struct Listener {
    int64_t questions; /* number of wants_stop calls until it returns true; negative: never */
    const char *lost;  /* as in RanksRun */
    int lines;         /* number of log lines */
} Listener;

static bool wants_stop(void *context)
{
    Listener *listener = context;
    listener->questions -= listener->questions > 0;
    return listener->questions == 0;
}

static void hear_line(void *context, DsvLogLevel level, const char *line)
{
    Listener *listener = context;
    listener->lines += level == DSV_LOG_INFO;
    if (listener->lost && strncmp(line, "model: ", 7) == 0)
        assert_int_equal(unlink(listener->lost), 0);
}

static bool slow_disk;

int fsync(int file)
{
    if (slow_disk)
        usleep(10000);
    return (int)syscall(SYS_fsync, file);
}

/* Spoils velocities: of all downloads only a velocity has the size of a latent. */
static DsvStatus (*download_as_it_is)(DsviStream *stream, void *host, const void *device, size_t bytes);
static size_t latent_bytes;

static DsvStatus download_spoilt(DsviStream *stream, void *host, const void *device, size_t bytes)
{
    DSVI_TRY(download_as_it_is(stream, host, device, bytes));
    if (bytes == latent_bytes)
        *(float *)host = NAN;
    return DSV_OK;
}

static void spoil(const DsvConfig *settings, DsviBackend *backend)
{
    DsviCodec *codec;
    DsviVideoShape video = {3, TINY_FRAMES, TINY_SIDE, TINY_SIDE}, latent;
    assert_ok(dsvi_codec_open(settings, &codec));
    assert_ok(codec->latent_shape(codec, video, &latent));
    codec->close(codec);
    latent_bytes = (size_t)(latent.channels * latent.frames * latent.height * latent.width) * sizeof(float);
    download_as_it_is = backend->device->download;
    backend->device->download = download_spoilt;
}

static bool is_saved(const RanksRun *run, int64_t step)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/checkpoint-%d", run->folder, (int)step);
    return dsvi_path_exists(path);
}

static DsvStatus train(DsviComm *comm, void *context)
{
    RanksRun *run = context;
    int64_t rank = dsvi_comm_rank(comm);
    int64_t questions = run->stop_after > 0 && rank == run->stop_rank ? run->stop_after + 1 : -1;
    Listener listener = {.questions = questions, .lost = rank == 0 ? run->lost : NULL};
    DsvEvents events = {.context = &listener, .stop = wants_stop, .log = hear_line};
    DsvStatus status = dsvi_train_run(&run->settings[rank], &run->backend[rank], comm, NULL, &events,
                                      &run->summary[rank]);
    if (rank != 0 && listener.lines > 0)
        return DSVI_FAIL(DSV_E_INTERNAL, "rank %d is not silent", (int)rank);
    if (run->slow_disk && !is_saved(run, run->stop_after))
        return DSVI_FAIL(DSV_E_INTERNAL, "rank %d ends before there is a checkpoint", (int)rank);
    return status;
}

static void run_it(RanksRun *run)
{
    for (int64_t r = 0; r < run->ranks; r++) {
        DsvConfig *settings = &run->settings[r];
        tiny_settings(settings);
        set(settings, "data.path", clips);
        set(settings, "output_dir", run->folder);
        set(settings, "max_train_steps", "8");
        for (const char *const *a = run->assignment; *a; a++)
            assert_ok(dsv_config_set(settings, *a));
        settings->train_batch_size = SAMPLES / (run->ranks / settings->cp_size);
        settings->zero_stage = run->stage ? run->stage : settings->zero_stage;
        set(settings, "seed", "7");
        if (r == run->odd_rank)
            set(settings, run->odd_key, run->odd_value);
        if (run->resume)
            set(settings, "resume_from_checkpoint", "latest");
        if (run->from)
            snprintf(settings->resume_from_checkpoint, sizeof settings->resume_from_checkpoint,
                     "%s/checkpoint-4", run->from);
        assert_ok(dsvi_cpu_open("auto", 1, &run->backend[r]));
        if (r == run->spoilt_rank)
            spoil(settings, &run->backend[r]);
    }
    slow_disk = run->slow_disk;
    run_ranks(run->ranks, 60, train, run, run->outcome);
    slow_disk = false;
    for (int64_t r = 0; r < run->ranks; r++)
        dsvi_cpu_close(&run->backend[r]);
}

static void check_outcome(const RanksRun *run, DsvStatus status)
{
    for (int64_t r = 0; r < run->ranks; r++)
        if (run->outcome[r].status != status)
            fail_msg("rank %d of %d: %s", (int)r, (int)run->ranks, run->outcome[r].sentence);
}

static RanksRun new_run(const char *folder, const char *const *assignment, int64_t ranks)
{
    return (RanksRun){
        .folder = folder, .assignment = assignment, .ranks = ranks, .odd_rank = -1, .spoilt_rank = -1};
}

/* Runs all steps without a stop, in a new folder, which is returned. */
static const char *run_stage(const char *const *assignment, int64_t ranks, int64_t stage)
{
    const char *folder = tiny_folder();
    RanksRun run = new_run(folder, assignment, ranks);
    run.stage = stage;
    run_it(&run);
    check_outcome(&run, DSV_OK);
    assert_int_equal(run.summary[0].last_step, STEPS);
    return folder;
}

static const char *run_straight(const char *const *assignment, int64_t ranks)
{
    return run_stage(assignment, ranks, 0);
}

/* Reads the numbers with key `name` from a file of JSON lines. Returns how many there are. */
static int read_numbers(const char *folder, const char *file, const char *name, double *number)
{
    char path[DSVI_PATH_MAX], *text = NULL;
    size_t room = 0;
    int count = 0;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *lines = fopen(path, "r");
    assert_non_null(lines);
    while (getline(&text, &room, lines) > 0) {
        cJSON *line = cJSON_Parse(text);
        assert_true(count < STEPS);
        number[count++] = cJSON_GetObjectItem(line, name)->valuedouble;
        cJSON_Delete(line);
    }
    free(text);
    fclose(lines);
    return count;
}

static void same_numbers(const char *a, const char *b, const char *file, const char *name, int wanted)
{
    double x[STEPS], y[STEPS];
    assert_int_equal(read_numbers(a, file, name, x), wanted);
    assert_int_equal(read_numbers(b, file, name, y), wanted);
    for (int i = 0; i < wanted; i++)
        assert_error_below(fabs(y[i] / x[i] - 1), 1e-5, "%s: %s, line %d", file, name, i + 1);
}

static char held_out_setting[DSVI_PATH_MAX + 32];
static const char *const DENSE[] = {"mixed_precision=no", "sparse.enabled=false", "validation.clips=3",
                                    "validation.every=4", held_out_setting,       NULL};
static const char *const USUAL[] = {NULL};
/* Samples a clip in the middle and at the end; the held-out clips do not fill all batches. */
static const char *const VALIDATED[] = {"validation.clips=3",
                                        "validation.every=4",
                                        "validation_steps=4",
                                        "validation_at_end=true",
                                        "num_inference_steps=3",
                                        held_out_setting,
                                        NULL};
static const char *const STATE_BF16[] = {"optimizer=adamw_bf16", NULL};
static const char *const STATE_8BIT[] = {"optimizer=adamw_8bit", NULL};
static const char *const MUON[] = {"optimizer=muon", NULL};
static const char *const PREDICTOR[] = {"sparse.selector=predictor", NULL};

/* Clips, their order, noise and held-out loss do not depend on the number of ranks. */
static void runs_equal_one_rank(void **state)
{
    const char *one = run_straight(DENSE, 1);
    (void)state;
    for (int64_t ranks = 2; ranks <= 4; ranks += 2) {
        const char *many = run_straight(DENSE, ranks);
        same_numbers(one, many, "metrics.jsonl", "loss", STEPS);
        same_numbers(one, many, "metrics.jsonl", "grad_norm", STEPS);
        same_numbers(one, many, "validation.jsonl", "loss", 2);
        assert_ok(dsvi_folder_remove(many));
    }
    assert_ok(dsvi_folder_remove(one));
}

/* A request to stop on one rank stops all ranks. The resumed run has the same bits as a run without a
 * stop. */
static void stopped_and_resumed(void **state)
{
    static const char *const *const assignments[] = {USUAL, PREDICTOR, STATE_BF16, STATE_8BIT, MUON};
    (void)state;
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++) {
        const char *straight = run_straight(assignments[i], 2), *folder = tiny_folder();
        RanksRun run = new_run(folder, assignments[i], 2);
        run.stop_rank = 1;
        run.stop_after = 3;
        run_it(&run);
        check_outcome(&run, DSV_E_INTERRUPTED);
        assert_int_equal(run.summary[0].last_step, 3);
        run = new_run(folder, assignments[i], 2);
        run.resume = true;
        run_it(&run);
        check_outcome(&run, DSV_OK);
        tiny_same_checkpoints(straight, folder, STEPS);
        assert_ok(dsvi_folder_remove(straight));
        assert_ok(dsvi_folder_remove(folder));
    }
}

/* A run in parts with different numbers of ranks. `stage`: zero_stage of each part, or NULL. */
static const char *run_in_stages(const char *const *assignment, const int64_t *ranks, const int64_t *stage)
{
    const char *folder = tiny_folder();
    for (int part = 0; ranks[part]; part++) {
        RanksRun run = new_run(folder, assignment, ranks[part]);
        run.stage = stage ? stage[part] : 0;
        run.resume = part > 0;
        run.stop_after = ranks[part + 1] ? 2 : 0;
        run_it(&run);
        check_outcome(&run, ranks[part + 1] ? DSV_E_INTERRUPTED : DSV_OK);
    }
    return folder;
}

static const char *run_in_parts(const char *const *assignment, const int64_t *ranks)
{
    return run_in_stages(assignment, ranks, NULL);
}

/* At zero_stage 2 and 3, checkpoints, held-out losses and sampled clips have the same bits as at stage 1. */
static void results_do_not_depend_on_the_stage(void **state)
{
    const char *first = run_stage(VALIDATED, 3, 1);
    (void)state;
    for (int64_t stage = 2; stage <= 3; stage++) {
        const char *other = run_stage(VALIDATED, 3, stage);
        tiny_same_checkpoints(first, other, STEPS);
        same_file(first, other, "validation.jsonl");
        same_file(first, other, "samples/step-000004.mp4");
        same_file(first, other, "samples/step-000008.mp4");
        assert_ok(dsvi_folder_remove(other));
    }
    assert_ok(dsvi_folder_remove(first));
}

/* A checkpoint can be resumed with any other number of ranks and any other zero_stage. */
static void resumed_at_another_stage(void **state)
{
    static const int64_t ranks[] = {4, 3, 1, 0}, falling[] = {3, 2, 1}, rising[] = {1, 3, 3};
    const char *first = run_in_stages(USUAL, ranks, NULL);
    (void)state;
    const char *a = run_in_stages(USUAL, ranks, falling), *b = run_in_stages(USUAL, ranks, rising);
    tiny_same_checkpoints(first, a, STEPS);
    tiny_same_checkpoints(first, b, STEPS);
    assert_ok(dsvi_folder_remove(a));
    assert_ok(dsvi_folder_remove(b));
    assert_ok(dsvi_folder_remove(first));
}

/* A request to stop on one rank ends sampling of a clip on all ranks. */
static void stopped_while_sampling(void **state)
{
    const char *folder = tiny_folder();
    RanksRun run = new_run(folder, VALIDATED, 3);
    (void)state;
    run.stage = 3;
    run.stop_rank = 2;
    run.stop_after = 5; /* before the second step of the first clip */
    run_it(&run);
    check_outcome(&run, DSV_E_INTERRUPTED);
    assert_int_equal(run.summary[0].last_step, 4);
    assert_ok(dsvi_folder_remove(folder));
}

/* Ranks that share clips: 60 tokens in units of 16. */
#define SHARED "height=40", "width=32", "sparse.enabled=false", "validation.clips=3", "validation.every=4"
static const char *const ALONE[] = {SHARED, "mixed_precision=no", held_out_setting, NULL};
static const char *const BY_TWO[] = {SHARED, "mixed_precision=no", "cp_size=2", held_out_setting, NULL};
static const char *const BY_FOUR[] = {SHARED,       "mixed_precision=no", "cp_size=4",
                                      "cp_heads=2", held_out_setting,     NULL};
/* Default options, with lists. Measured times must not choose plans, so that bits can be compared. */
#define SAMPLED_SETTINGS                                                                                   \
    "height=40", "width=32", "cp_size=2", "cp_plan=false", "validation_steps=4", "validation_at_end=true", \
        "num_inference_steps=3", "validation.clips=3", "validation.every=4", held_out_setting
static const char *const SAMPLED[] = {SAMPLED_SETTINGS, NULL};
static const char *const SAMPLED_PREDICTOR[] = {SAMPLED_SETTINGS, "sparse.selector=predictor", NULL};

/* Checks the file of costs from which plans were made; it must have the links of the whole cp group. */
static void check_costs(const char *folder, int64_t ranks)
{
    DsviCpCosts costs;
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(path, folder, "context_costs.json"));
    assert_ok(dsvi_costs_read(path, &costs));
    assert_non_null(dsvi_costs_link(&costs, ranks));
    for (int pass = 0; pass < DSVI_PASSES; pass++) /* a short call may seem to have no time per pair */
        assert_true(costs.attention.call[pass] + costs.attention.dense[pass] > 0);
}

static void runs_on_shared_clips_equal_one_rank(void **state)
{
    static const struct {
        const char *const *assignment;
        int64_t ranks;
    } shared[] = {{BY_TWO, 2}, {BY_TWO, 4}, {BY_FOUR, 4}};
    const char *one = run_straight(ALONE, 1);
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *many = run_straight(shared[i].assignment, shared[i].ranks);
        same_numbers(one, many, "metrics.jsonl", "loss", STEPS);
        same_numbers(one, many, "metrics.jsonl", "grad_norm", STEPS);
        same_numbers(one, many, "validation.jsonl", "loss", 2);
        check_costs(many, shared[i].assignment == BY_FOUR ? 4 : 2);
        assert_ok(dsvi_folder_remove(many));
    }
    assert_ok(dsvi_folder_remove(one));
}

/* A stopped and resumed run has the same bits, and every cp group samples another clip. */
static void stop_and_resume_shared(const char *const *assignment)
{
    const char *straight = run_straight(assignment, 4), *folder = tiny_folder();
    char path[DSVI_PATH_MAX];
    RanksRun run = new_run(folder, assignment, 4);
    run.stop_rank = 3;
    run.stop_after = 3;
    run_it(&run);
    check_outcome(&run, DSV_E_INTERRUPTED);
    run = new_run(folder, assignment, 4);
    run.resume = true;
    run_it(&run);
    check_outcome(&run, DSV_OK);
    tiny_same_checkpoints(straight, folder, STEPS);
    same_file(straight, folder, "validation.jsonl");
    for (int step = 4; step <= STEPS; step += 4) {
        snprintf(path, sizeof path, "samples/step-%06d.mp4", step);
        same_file(straight, folder, path);
        snprintf(path, sizeof path, "samples/seed-8/step-%06d.mp4", step);
        same_file(straight, folder, path);
    }
    assert_ok(dsvi_folder_remove(straight));
    assert_ok(dsvi_folder_remove(folder));
}

static void shared_clips_stopped_and_resumed(void **state)
{
    (void)state;
    stop_and_resume_shared(SAMPLED);
    stop_and_resume_shared(SAMPLED_PREDICTOR);
}

/* A checkpoint can be resumed with any other division into cp groups. */
static void resumed_on_another_layout(void **state)
{
    static const struct {
        const char *const *assignment;
        int64_t ranks;
    } part[] = {{BY_FOUR, 4}, {BY_TWO, 4}, {ALONE, 2}, {BY_TWO, 2}};
    const char *straight = run_straight(ALONE, 1), *folder = tiny_folder();
    (void)state;
    for (int i = 0; i < 4; i++) {
        RanksRun run = new_run(folder, part[i].assignment, part[i].ranks);
        run.resume = i > 0;
        run.stop_after = i < 3 ? 2 : 0;
        run_it(&run);
        check_outcome(&run, i < 3 ? DSV_E_INTERRUPTED : DSV_OK);
    }
    same_numbers(straight, folder, "metrics.jsonl", "loss", STEPS);
    same_numbers(straight, folder, "metrics.jsonl", "grad_norm", STEPS);
    same_numbers(straight, folder, "validation.jsonl", "loss", 2);
    assert_ok(dsvi_folder_remove(folder));
    assert_ok(dsvi_folder_remove(straight));
}

/* A clip file is deleted for one rank only. The ranks of its cp group still have the file, so the run
 * continues. */
static void a_clip_lost_to_one_rank_alone(void **state)
{
    static const char *const shared[] = {"height=40", "width=32", "cp_size=2", "cp_plan=false", NULL};
    const char *straight = run_straight(shared, 4);
    (void)state;
    for (int64_t rank = 2; rank < 4; rank++) {
        const char *folder = tiny_folder(), *own_clips = tiny_folder();
        char lost[DSVI_PATH_MAX];
        RanksRun run = new_run(folder, shared, 4);
        tiny_clips(own_clips, 3);
        assert_ok(dsvi_path_join(lost, own_clips, "waves-1.mp4"));
        run.odd_rank = rank;
        run.odd_key = "data.path";
        run.odd_value = own_clips;
        run.lost = lost;
        run_it(&run);
        check_outcome(&run, DSV_OK);
        tiny_same_checkpoints(straight, folder, STEPS);
        assert_ok(dsvi_folder_remove(own_clips));
        assert_ok(dsvi_folder_remove(folder));
    }
    assert_ok(dsvi_folder_remove(straight));
}

static void resumed_on_another_number_of_ranks(void **state)
{
    static const int64_t fewer[] = {4, 2, 1, 0}, more[] = {1, 4, 0}, odd[] = {4, 3, 1, 2, 0};
    const char *straight = run_straight(DENSE, 1);
    (void)state;
    const char *falling = run_in_parts(DENSE, fewer), *rising = run_in_parts(DENSE, more);
    same_numbers(straight, falling, "metrics.jsonl", "loss", STEPS);
    same_numbers(straight, rising, "metrics.jsonl", "loss", STEPS);
    /* with three ranks a step trains on three clips, so the losses differ; all state of the sparse layer must
     * be resumed */
    const char *mixed = run_in_parts(USUAL, odd);
    double loss[STEPS];
    assert_int_equal(read_numbers(mixed, "metrics.jsonl", "loss", loss), STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_true(loss[i] > 0 && loss[i] < 10);
    assert_ok(dsvi_folder_remove(mixed));
    assert_ok(dsvi_folder_remove(rising));
    assert_ok(dsvi_folder_remove(falling));
    assert_ok(dsvi_folder_remove(straight));
}

/* Only rank 0 reads the checkpoint of the other run. The new run's folder has a copy before the first
 * step. */
static void a_branch_of_another_run(void **state)
{
    const char *trunk = run_straight(USUAL, 2), *folder = tiny_folder();
    RanksRun run = new_run(folder, USUAL, 2);
    (void)state;
    run.from = trunk;
    run_it(&run);
    check_outcome(&run, DSV_OK);
    assert_int_equal(run.summary[0].first_step, 4);
    tiny_same_checkpoints(trunk, folder, 4);
    tiny_same_checkpoints(trunk, folder, STEPS);
    assert_ok(dsvi_folder_remove(trunk));
    assert_ok(dsvi_folder_remove(folder));
}

/* All ranks end when the run folder, which only rank 0 checks, is lost. */
static void a_lost_folder_ends_all(void **state)
{
    const char *folder = tiny_folder();
    char lost[DSVI_PATH_MAX];
    RanksRun run = new_run(folder, USUAL, 3);
    (void)state;
    assert_ok(dsvi_path_join(lost, folder, "lock"));
    run.lost = lost;
    run_it(&run);
    for (int r = 0; r < 3; r++)
        assert_non_null(strstr(run.outcome[r].sentence, "removed or replaced while the run was at work"));
    assert_int_equal(run.outcome[0].status, DSV_E_IO);
    assert_int_equal(run.outcome[2].status, DSV_E_RANK);
    assert_true(is_saved(&run, 4));
    assert_ok(dsvi_folder_remove(folder));
}

static void a_failure_of_one_ends_all(void **state)
{
    static const char *const odd[][3] = {
        {"seed", "8", "rank 2: seed is 8 here and 7 on rank 0"},
        {"deterministic", "true", "rank 2: deterministic is true here and false on rank 0"},
        {"lr", "0.5", "rank 2: lr is 0.5 here and "},
        {"sampler", "euler", "rank 2: sampler is euler here and unipc on rank 0"},
        {"validation.data", "/nowhere", "rank 2: validation.data is given here and not given on rank 0"},
        {"data.path", renamed, "rank 2: data.path: the hash of the clips' names and lengths is "},
        {"data.path", held_out, "rank 2: data.path: the number of clips is 2 here and 3 on rank 0"},
    };
    const char *folder = tiny_folder();
    RanksRun run;
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        run = new_run(folder, USUAL, 3);
        run.odd_rank = 2;
        run.odd_key = odd[i][0];
        run.odd_value = odd[i][1];
        run_it(&run);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(run.outcome[r].status, r == 2 ? DSV_E_USAGE : DSV_E_RANK);
            assert_non_null(strstr(run.outcome[r].sentence, odd[i][2]));
        }
        assert_int_equal(rmdir(folder), 0); /* empty, because one rank refused the run */
        assert_int_equal(mkdir(folder, 0777), 0);
    }
    run = new_run("/proc/dsv-cannot-be-here", USUAL, 2);
    run_it(&run);
    for (int r = 0; r < 2; r++) {
        assert_int_not_equal(run.outcome[r].status, DSV_OK);
        assert_non_null(strstr(run.outcome[r].sentence, "rank 0: "));
        assert_non_null(strstr(run.outcome[r].sentence, "/proc/dsv-cannot-be-here"));
    }
    assert_ok(dsvi_folder_remove(folder));
}

/* The message of a failed step names the step and the last complete checkpoint. */
static void a_failure_names_step_and_checkpoint(void **state)
{
    static const char *const wild[] = {"lr=10",
                                       "warmup_steps=0",
                                       "max_grad_norm=0",
                                       "checkpointing_steps=1",
                                       "weight_decay=10",
                                       "mixed_precision=no",
                                       NULL};
    const char *folder = tiny_folder();
    RanksRun run = new_run(folder, wild, 2);
    (void)state;
    run_it(&run);
    if (run.outcome[0].status == DSV_OK)
        fail_msg("even this rate did not make it diverge");
    assert_int_equal(run.outcome[0].status, DSV_E_DIVERGED);
    assert_int_equal(run.outcome[1].status, DSV_E_DIVERGED);
    assert_non_null(strstr(run.outcome[0].sentence, "training stopped, "));
    assert_non_null(strstr(run.outcome[0].sentence, "is whole: rank "));
    assert_ok(dsvi_folder_remove(folder));
}

static const char *const WITH_CLIPS[] = {"validation_steps=4", "num_inference_steps=3", NULL};

/* A failure in the sample of one rank ends all ranks; the message names the rank and the step. */
static void a_sample_that_diverges_ends_all(void **state)
{
    const char *folder = tiny_folder();
    RanksRun run = new_run(folder, WITH_CLIPS, 2);
    (void)state;
    run.spoilt_rank = 1;
    run_it(&run);
    assert_int_equal(run.outcome[0].status, DSV_E_RANK);
    assert_int_equal(run.outcome[1].status, DSV_E_DIVERGED);
    for (int r = 0; r < 2; r++)
        if (!strstr(run.outcome[r].sentence, "step 5: rank 1: sampling step 1 of 3: "))
            fail_msg("rank %d: %s", r, run.outcome[r].sentence);
    assert_non_null(strstr(run.outcome[0].sentence, "checkpoint-4 is whole: step 5: rank 1: "));
    assert_ok(dsvi_folder_remove(folder));
}

/* A launcher may end all ranks as soon as one ends, so no rank may end before rank 0 has written the
 * checkpoint. */
static void none_ends_before_the_checkpoint_is_there(void **state)
{
    const char *folder = tiny_folder();
    RanksRun run = new_run(folder, USUAL, 3);
    (void)state;
    run.stop_rank = 1;
    run.stop_after = 3;
    run.slow_disk = true;
    run_it(&run);
    check_outcome(&run, DSV_E_INTERRUPTED);
    assert_ok(dsvi_folder_remove(folder));
}

/* Rank 0 cannot write the clip of rank 1: the other clips are written, and the run continues. */
static void a_clip_that_cannot_be_written(void **state)
{
    const char *folder = tiny_folder();
    char path[DSVI_PATH_MAX];
    RanksRun run = new_run(folder, WITH_CLIPS, 3);
    (void)state;
    run.resume = true; /* a new run would be refused, because the folder has samples */
    assert_ok(dsvi_path_join(path, folder, "samples"));
    assert_ok(dsvi_folder_make(path));
    assert_ok(dsvi_path_join(path, folder, "samples/seed-8"));
    assert_ok(dsvi_file_write(path, "", 0));
    run_it(&run);
    check_outcome(&run, DSV_OK);
    for (int seed = 7; seed <= 9; seed += 2) {
        snprintf(path, sizeof path, "%s/samples/%sstep-000008.mp4", folder, seed == 9 ? "seed-9/" : "");
        assert_true(dsvi_path_exists(path));
    }
    assert_ok(dsvi_folder_remove(folder));
}

static int make_clips(void **state)
{
    (void)state;
    snprintf(clips, sizeof clips, "%s", tiny_folder());
    snprintf(held_out, sizeof held_out, "%s", tiny_folder());
    snprintf(held_out_setting, sizeof held_out_setting, "validation.data=%s", held_out);
    tiny_clips(clips, 3);
    tiny_clips(held_out, 2);
    snprintf(renamed, sizeof renamed, "%s", tiny_folder());
    tiny_clips(renamed, 3);
    char from[DSVI_PATH_MAX], to[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(from, renamed, "waves-2.mp4"));
    assert_ok(dsvi_path_join(to, renamed, "waves-3.mp4"));
    return rename(from, to);
}

static int remove_clips(void **state)
{
    (void)state;
    return dsvi_folder_remove(clips) == DSV_OK && dsvi_folder_remove(held_out) == DSV_OK &&
                   dsvi_folder_remove(renamed) == DSV_OK
               ? 0
               : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_equal_one_rank),
        cmocka_unit_test(stopped_and_resumed),
        cmocka_unit_test(runs_on_shared_clips_equal_one_rank),
        cmocka_unit_test(shared_clips_stopped_and_resumed),
        cmocka_unit_test(resumed_on_another_layout),
        cmocka_unit_test(resumed_on_another_number_of_ranks),
        cmocka_unit_test(a_clip_lost_to_one_rank_alone),
        cmocka_unit_test(results_do_not_depend_on_the_stage),
        cmocka_unit_test(resumed_at_another_stage),
        cmocka_unit_test(stopped_while_sampling),
        cmocka_unit_test(a_branch_of_another_run),
        cmocka_unit_test(a_lost_folder_ends_all),
        cmocka_unit_test(a_failure_of_one_ends_all),
        cmocka_unit_test(a_failure_names_step_and_checkpoint),
        cmocka_unit_test(a_sample_that_diverges_ends_all),
        cmocka_unit_test(none_ends_before_the_checkpoint_is_there),
        cmocka_unit_test(a_clip_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
