/* dsv train: a run from its settings to its summary. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "config_file.h"
#include "interrupt.h"
#include "launch.h"
#include "terminal.h"

static const char DEFAULT_CONFIG[] = "configs/demo.yaml";
/* The steps whose mean losses a summary holds (dsv/train.h). */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

static const char NO_CLIPS[] = "no clips to train on: data.path is empty";

static const char RESUME_KEY[] = "resume_from_checkpoint=";
enum { NOTICE_ROOM = DSV_TEXT_MAX + 4096 };

enum { DRY_RUN };

static const CliFlag flags[] = {
    [DRY_RUN] = {"--dry-run", NULL, "check the settings, tell the memory plan, train nothing"},
    {0},
};

static const char text[] =
    "Trains a video diffusion transformer as the YAML file CONFIG says, or\n"
    "configs/demo.yaml where none is named; key=value arguments come after it and\n"
    "win. A file that is not here is looked for among those installed with dsv.\n"
    "Clips are read from data.path: a folder, a CSV or JSONL list, or a latent\n"
    "cache made by dsv encode. The run lives in the folder output_dir: config.yaml,\n"
    "metrics.jsonl, TensorBoard events, checkpoints, sampled clips.\n"
    "\n"
    "Ctrl-C, SIGTERM and SIGHUP finish the step, write a checkpoint and say how to go\n"
    "on; the exit status is then 130, 143 or 129. Further signals change nothing, but\n"
    "Ctrl-C more than a second after the first ends the program at once.\n"
    "\n"
    "--dry-run checks the settings and tells what memory a run on one rank would take\n"
    "on the device, which must be there; data.path is not read.\n"
    "\n"
    "Several processes train one model together when mpirun, srun or torchrun starts\n"
    "them: each works on a batch of its own (docs/distributed.md).\n"
    "\n"
    "  dsv train configs/demo.yaml data.path=clips output_dir=runs/mine lr=1e-3\n"
    "  dsv train runs/mine/config.yaml resume_from_checkpoint=latest\n"
    "  dsv train configs/wan1.3b.yaml --dry-run\n"
    "  mpirun -n 2 dsv train configs/demo.yaml data.path=clips threads=1\n";

/* A word as a shell would have to be given it. */
static void print_word(const char *word)
{
    const char *harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/=+@%";
    if (word[0] && !word[strspn(word, harmless)]) {
        printf(" %s", word);
        return;
    }
    fputs(" '", stdout);
    for (const char *c = word; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*c);
    }
    putchar('\'');
}

/* The same call again, but for where it goes on. */
static void print_resume(const CliArgs *args)
{
    printf("to go on:\n  %s train", args->program);
    if (args->path[0])
        print_word(args->path[0]);
    for (int i = 0; i < args->setting_count; i++)
        if (strncmp(args->settings[i], RESUME_KEY, sizeof RESUME_KEY - 1) != 0)
            print_word(args->settings[i]);
    printf(" %slatest\n", RESUME_KEY);
}

__attribute__((format(printf, 2, 3)))
static void print_row(const char *name, const char *format, ...)
{
    char value[2 * DSV_TEXT_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    cli_print_result("  %-14s %s", name, value);
}

/* The mean losses of the first and of the last steps; a run too short to have both has one mean. */
static void print_losses(const DsvTrainSummary *summary)
{
    int64_t steps = summary->last_step, last = steps < LAST_STEPS ? steps : LAST_STEPS;
    if (steps == 1)
        print_row("loss", "%.4f", summary->last_loss);
    else if (steps <= FIRST_STEPS)
        print_row("loss", "%.4f over all %" PRId64 " steps", summary->last_loss, steps);
    else
        print_row("loss", "%.4f over the last %" PRId64 " steps, %.4f over the first %d",
                  summary->last_loss, last, summary->first_loss, FIRST_STEPS);
}

static void print_summary(const DsvConfig *config, const DsvTrainSummary *summary)
{
    char time[CLI_DURATION_BYTES];
    cli_duration(summary->seconds, time);
    if (summary->last_step == summary->first_step + 1)
        cli_print_result("%s: step %" PRId64 " in %s", config->output_dir, summary->last_step, time);
    else if (summary->last_step > summary->first_step)
        cli_print_result("%s: steps %" PRId64 " to %" PRId64 " in %s", config->output_dir,
                         summary->first_step + 1, summary->last_step, time);
    else
        cli_print_result("%s: nothing to do after step %" PRId64, config->output_dir, summary->last_step);
    if (!isnan(summary->last_loss))
        print_losses(summary);
    if (summary->sparse_blocks > 0)
        print_row("sparse blocks", "%" PRId64 " of %" PRId64 ", holding %.3f of the exact attention",
                  summary->sparse_blocks, summary->blocks, summary->captured_mass);
    else
        print_row("sparse blocks", "none of %" PRId64, summary->blocks);
    if (summary->checkpoint[0])
        print_row("checkpoint", "%s", summary->checkpoint);
    if (summary->sample[0])
        print_row("sample", "%s", summary->sample);
    print_row("metrics", "%s/metrics.jsonl", config->output_dir);
    print_row("curves", "tensorboard --logdir %s", config->output_dir);
    print_row("page", "dsv report %s", config->output_dir);
}

/* A file may say to resume from `latest`. A checkpoint's path in a file is ignored, and `notice` says so:
 * older versions stored the path in a run's config.yaml, and every later start would go back to that
 * checkpoint. */
static void drop_stored_path(const char *path, DsvConfig *config, char notice[NOTICE_ROOM])
{
    char *stored = config->resume_from_checkpoint;
    notice[0] = 0;
    if (!stored[0] || strcmp(stored, "latest") == 0)
        return;
    snprintf(notice, NOTICE_ROOM, "%s: %s%s is ignored: a checkpoint's path is followed only as an argument "
             "of the command", path, RESUME_KEY, stored);
    stored[0] = 0;
}

static DsvStatus read_settings(const CliArgs *args, const char *path, DsvConfig *config,
                               char notice[NOTICE_ROOM])
{
    dsv_config_defaults(config);
    DsvStatus status = cli_config_load(path, config);
    drop_stored_path(path, config, notice);
    return status == DSV_OK ? cli_args_settings(args, config) : status;
}

/* What rank 0, or a process alone, prints when all is done. */
static void print_end(const CliArgs *args, const DsvConfig *config, DsvStatus status,
                      const DsvTrainSummary *summary)
{
    if (status == DSV_OK || status == DSV_E_INTERRUPTED)
        print_summary(config, summary);
    if (status == DSV_E_INTERRUPTED)
        print_resume(args);
}

/* Of an interruption the signal may have come to another rank: then it is as if it were SIGTERM. */
static int interrupted_status(void)
{
    return 128 + (cli_interrupt_signal() ? cli_interrupt_signal() : SIGTERM);
}

/* `notice`: what there is to say of the settings, or "". */
static int train(const CliArgs *args, const DsvConfig *config, const char *notice, DsvRanks *ranks)
{
    DsvTrainSummary summary;
    CliTerminal terminal;
    bool speaks = !ranks || dsv_ranks_rank(ranks) == 0;
    cli_terminal_open(&terminal, speaks ? "this step and writing a checkpoint" : NULL);
    DsvEvents events = cli_terminal_events(&terminal);
    if (speaks && notice[0] && !config->resume_from_checkpoint[0])
        events.log(events.context, DSV_LOG_WARNING, notice);
    DsvStatus status = ranks ? dsv_train_ranks(ranks, config, &events, &summary)
                             : dsv_train(config, &events, &summary);
    cli_terminal_close(&terminal);
    if (speaks)
        print_end(args, config, status, &summary);
    return status == DSV_E_INTERRUPTED ? interrupted_status() : cli_launch_outcome(args, ranks, status);
}

static int run(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    char notice[NOTICE_ROOM];
    const char *path = args->path[0] ? args->path[0] : DEFAULT_CONFIG;
    if (!args->path[0] && access(cli_config_find(path), F_OK) != 0)
        return cli_launch_decline(args, cli_misused(args->verb, "no CONFIG named, and there is no %s here",
                                                    path), "no CONFIG named");
    DsvStatus status = read_settings(args, path, &config, notice);
    if (status != DSV_OK)
        return cli_launch_decline(args, cli_outcome(args, status), dsv_error_message());
    if (args->flag[DRY_RUN])
        return cli_outcome(args, dsv_train_preview(&config, cli_print_line, NULL));
    if (!config.data_path[0])
        return cli_launch_decline(args, cli_misused(args->verb, "%s", NO_CLIPS), NO_CLIPS);

    int outcome = cli_launch_join(args, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    outcome = train(args, &config, notice, ranks);
    fflush(stdout); /* leaving may end in the starter ending this process */
    dsv_ranks_leave(&ranks);
    return outcome;
}

const CliVerb cli_verb_train = {
    .name = "train",
    .arguments = "[CONFIG.yaml]",
    .paths_most = 1,
    .takes_settings = true,
    .lists_settings = true,
    .summary = "trains a model on clips",
    .text = text,
    .flags = flags,
    .run = run,
};
