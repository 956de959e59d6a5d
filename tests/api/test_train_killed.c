/* Runs with a published model that are killed go on to the bit: of one size, of three sizes, and on two
 * ranks.
 */
#include "train_wan_case.h"

#include <signal.h>
#include <sys/wait.h>

typedef void Settings(DsvConfig *settings, const char *folder);

/* Kills the process two steps after the checkpoint of step 4. */
static bool die_after_checkpoint(void *context)
{
    Stopper *heard = context;
    if (strstr(heard->log, "checkpoint-4") && heard->steps-- <= 0)
        raise(SIGKILL);
    return false;
}

/* The child: trains until it kills itself. Runs in a new process, because threads do not survive
 * a fork. */
static int train_and_die(char **argument)
{
    DsvConfig settings;
    Stopper heard = {.steps = 2};
    const DsvEvents events = {.context = &heard, .log = keep_log, .stop = die_after_checkpoint};
    Settings *prepare = strcmp(argument[1], "sizes") == 0 ? sized_settings : wan_settings;
    snprintf(wan_model, sizeof wan_model, "%s", golden_path("pipe_a"));
    prepare(&settings, argument[2]);
    set(&settings, "data.path", argument[3]);
    set(&settings, "data.cache", argument[4]);
    set(&settings, "validation.data", argument[5]);
    (void)dsv_train(&settings, &events, NULL);
    return 1;
}

/* Trains to `straight` without a stop, and to `killed` in a child that dies two steps after its checkpoint,
 * and then resumes. Compares both runs to the bit. */
static void kill_and_compare(const char *kind, Settings *prepare, const char *straight, const char *killed)
{
    DsvConfig settings;
    Stopper heard;
    int status;
    prepare(&settings, straight);
    train(&settings, &heard);
    prepare(&settings, killed);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_train_killed", kind, killed, settings.data_path, settings.data_cache,
              settings.validation_data, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    set(&settings, "resume_from_checkpoint", "latest");
    train(&settings, &heard);
    assert_non_null(strstr(heard.log, "resuming after step 4"));
    same_in_checkpoint(straight, killed, 10, "lora.safetensors");
    same_in_checkpoint(straight, killed, 10, "lora_ema.safetensors");
    same_in_checkpoint(straight, killed, 10, "optimizer/weight.safetensors");
    same_in_checkpoint(straight, killed, 10, "sparse.safetensors");
    for (int step = 1; step <= 10; step++)
        assert_true(loss_of_step(straight, step) == loss_of_step(killed, step));
}

static void a_killed_run_goes_on_to_the_bit(void **state)
{
    (void)state;
    kill_and_compare("one", wan_settings, folder_named("straight"), folder_named("killed"));
}

/* With clips and a picture in three sizes, captions, and lists whose state each size keeps. */
static void a_killed_run_of_three_sizes_goes_on_to_the_bit(void **state)
{
    const char *straight = folder_named("sized-straight"), *killed = folder_named("sized-killed");
    char *list;
    size_t bytes;
    (void)state;
    kill_and_compare("sizes", sized_settings, straight, killed);
    same_in_checkpoint(straight, killed, 10, "sparse-9x32x32.safetensors");
    same_in_checkpoint(straight, killed, 10, "sparse-1x32x32.safetensors");
    assert_ok(dsvi_file_read(scratch_path("sized-straight/inputs.csv"), 1 << 20, &list, &bytes));
    assert_non_null(strstr(list, ",1x32x32,"));
    assert_non_null(strstr(list, ",5x32x48,"));
    assert_non_null(strstr(list, ",9x32x32,"));
    free(list);
}

/* The child: one of two ranks that train together. `die`: rank 0 kills itself after its checkpoint. */
static int train_as_rank(char **argument)
{
    DsvConfig settings;
    DsvRanks *ranks;
    DsvRanksPlace place = {
        .rank = atoi(argument[2]), .size = 2, .address = "localhost", .port = atoi(argument[3])};
    Stopper heard = {.steps = 2};
    DsvEvents events = {.context = &heard, .log = keep_log};
    if (strcmp(argument[1], "die") == 0 && place.rank == 0)
        events.stop = die_after_checkpoint;
    snprintf(wan_model, sizeof wan_model, "%s", golden_path("pipe_a"));
    sized_settings(&settings, argument[4]);
    set(&settings, "data.path", argument[5]);
    set(&settings, "data.cache", argument[6]);
    set(&settings, "validation.data", argument[7]);
    set(&settings, "threads", "1");
    if (strcmp(argument[1], "resume") == 0)
        set(&settings, "resume_from_checkpoint", "latest");
    if (dsv_ranks_join(&settings, &place, NULL, &ranks) != DSV_OK)
        return 1;
    DsvStatus status = dsv_train_ranks(ranks, &settings, &events, NULL);
    dsv_ranks_leave(&ranks);
    return status == DSV_OK ? 0 : 1;
}

/* Trains `folder` on two processes. With `die` rank 0 kills itself and this function kills rank 1 at once. */
static void train_two(const char *how, const char *folder)
{
    static int calls;
    DsvConfig settings;
    char number[16], port[16];
    pid_t child[2];
    int status[2];
    bool die = strcmp(how, "die") == 0;
    sized_settings(&settings, folder);
    snprintf(port, sizeof port, "%d", 20000 + (int)(getpid() + 7 * calls++) % 12000);
    for (int rank = 0; rank < 2; rank++) {
        snprintf(number, sizeof number, "%d", rank);
        child[rank] = fork();
        assert_true(child[rank] >= 0);
        if (child[rank] > 0)
            continue;
        execl("/proc/self/exe", "test_train_killed", how, number, port, folder, settings.data_path,
              settings.data_cache, settings.validation_data, (char *)NULL);
        _exit(1);
    }
    for (int rank = 0; rank < 2; rank++) {
        if (die && rank == 1)
            (void)kill(child[rank], SIGKILL);
        assert_int_equal(waitpid(child[rank], &status[rank], 0), child[rank]);
    }
    if (die)
        assert_true(WIFSIGNALED(status[0]) && WTERMSIG(status[0]) == SIGKILL);
    for (int rank = 0; rank < 2 && !die; rank++)
        assert_true(WIFEXITED(status[rank]) && WEXITSTATUS(status[rank]) == 0);
}

/* Two ranks share an epoch of three sizes, which are dealt by cost, and are killed within it. */
static void two_killed_ranks_go_on_to_the_bit(void **state)
{
    const char *straight = folder_named("ranks-straight"), *killed = folder_named("ranks-killed");
    static const char *const FILES[] = {"lora.safetensors",
                                        "lora_ema.safetensors",
                                        "optimizer/weight.safetensors",
                                        "optimizer/exp_avg.safetensors",
                                        "optimizer/exp_avg_sq.safetensors",
                                        "sparse.safetensors",
                                        "sparse-9x32x32.safetensors",
                                        "sparse-1x32x32.safetensors"};
    (void)state;
    train_two("straight", straight);
    train_two("die", killed);
    assert_true(dsvi_path_exists(scratch_path("ranks-killed/checkpoint-4")));
    assert_false(dsvi_path_exists(scratch_path("ranks-killed/checkpoint-10")));
    train_two("resume", killed);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
        same_in_checkpoint(straight, killed, 10, FILES[i]);
    for (int step = 1; step <= 10; step++)
        assert_true(loss_of_step(straight, step) == loss_of_step(killed, step));
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on_to_the_bit),
        cmocka_unit_test(a_killed_run_of_three_sizes_goes_on_to_the_bit),
        cmocka_unit_test(two_killed_ranks_go_on_to_the_bit),
    };
    if (count == 8)
        return train_as_rank(arguments);
    if (count == 6)
        return train_and_die(arguments);
    return cmocka_run_group_tests(tests, make_data, scratch_remove);
}
