/* dsv train: trains a model and prints a summary of the run. */
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
/* Number of first and of last steps over which the summary averages the loss (DsvTrainSummary in
   dsv/train.h). */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

static const char NO_CLIPS[] = "no clips to train on: data.path is empty";

static const char RESUME_KEY[] = "resume_from_checkpoint=";
enum { NOTICE_ROOM = DSV_TEXT_MAX + 4096 };

enum { DRY_RUN, CARD };

static const CliFlag flags[] = {
    [DRY_RUN] = {"--dry-run", NULL, "check the configuration and print the memory plan only"},
    [CARD] = {"--card", "NAME", "with --dry-run: plan for this card, such as rtx4090"},
    {0},
};

static const char text[] =
    "Trains a video diffusion transformer with the options in the YAML file CONFIG\n"
    "(default configs/demo.yaml); key=value arguments override the file. If the file\n"
    "does not exist here, the file of this name that is installed with dsv is used.\n"
    "Clips are read from data.path: a folder, a CSV or JSONL list, or a latent cache\n"
    "written by dsv encode. Written to the folder output_dir: config.yaml,\n"
    "metrics.jsonl, TensorBoard events, checkpoints and sampled clips.\n"
    "\n"
    "After Ctrl-C, SIGTERM or SIGHUP the current step is finished, a checkpoint is\n"
    "written, and the command for resuming is printed; the exit status is then 130,\n"
    "143 or 129. Further signals are ignored, except that Ctrl-C more than a second\n"
    "after the first signal ends the program at once.\n"
    "\n"
    "--dry-run checks the configuration and prints the memory that a run on one rank\n"
    "would take on the device, which must exist, and with offload=auto the settings\n"
    "that were compared. If data.path is set, the clips are opened too: it prints the\n"
    "sources and sizes, their clips, and a lower bound for the time of an epoch.\n"
    "--card plans for a card below instead of a device that exists, without times for\n"
    "cards whose speeds were not measured.\n"
    "\n"
    "To train with several processes, start dsv train with mpirun, srun or torchrun\n"
    "(docs/distributed.md).\n"
    "\n"
    "  dsv train configs/demo.yaml data.path=clips output_dir=runs/mine lr=1e-3\n"
    "  dsv train runs/mine/config.yaml resume_from_checkpoint=latest\n"
    "  dsv train configs/wan1.3b.yaml --dry-run\n"
    "  dsv train configs/wan_lora.yaml model.path=FOLDER --dry-run --card rtx4090\n"
    "  mpirun -n 2 dsv train configs/demo.yaml data.path=clips threads=1\n";

/* Prints a word with the quotes that a shell needs. */
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

/* Prints the command that resumes the run: this command with resume_from_checkpoint=latest. */
static void print_resume(const CliArgs *args)
{
    printf("to resume:\n  %s train", args->program);
    if (args->path[0])
        print_word(args->path[0]);
    for (int i = 0; i < args->option_count; i++)
        if (strncmp(args->options[i], RESUME_KEY, sizeof RESUME_KEY - 1) != 0)
            print_word(args->options[i]);
    printf(" %slatest\n", RESUME_KEY);
}

__attribute__((format(printf, 2, 3))) static void print_row(const char *name, const char *format, ...)
{
    char value[2 * DSV_TEXT_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    cli_print_result("  %-14s %s", name, value);
}

/* Prints the mean losses of the first and of the last steps, or one mean for a short run. */
static void print_losses(const DsvTrainSummary *summary)
{
    int64_t steps = summary->last_step, last = steps < LAST_STEPS ? steps : LAST_STEPS;
    if (steps == 1)
        print_row("loss", "%.4f", summary->last_loss);
    else if (steps <= FIRST_STEPS)
        print_row("loss", "%.4f over all %" PRId64 " steps", summary->last_loss, steps);
    else
        print_row("loss", "%.4f over the last %" PRId64 " steps, %.4f over the first %d", summary->last_loss,
                  last, summary->first_loss, FIRST_STEPS);
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
    if (summary->dense_finish)
        print_row("sparse blocks", "none of %" PRId64 " since the dense finish began (sparse.dense_finish)",
                  summary->blocks);
    else if (summary->sparse_blocks > 0 && summary->output_error > 0)
        print_row("sparse blocks", "%" PRId64 " of %" PRId64 ", with an output error of %.3f",
                  summary->sparse_blocks, summary->blocks, summary->output_error);
    else if (summary->sparse_blocks > 0)
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

/* Ignores the path of a checkpoint in a configuration file, and writes a warning about it to `notice`;
 * `latest` is accepted. Older versions stored this path in a run's config.yaml, so that every later start
 * would go back to the same checkpoint. */
static void drop_stored_path(const char *path, DsvConfig *config, char notice[NOTICE_ROOM])
{
    char *stored = config->resume_from_checkpoint;
    notice[0] = 0;
    if (!stored[0] || strcmp(stored, "latest") == 0)
        return;
    snprintf(notice, NOTICE_ROOM,
             "%s: %s%s is ignored: a checkpoint's path is followed only as an argument "
             "of the command",
             path, RESUME_KEY, stored);
    stored[0] = 0;
}

static DsvStatus cmd_train_read_settings(const CliArgs *args, const char *path, DsvConfig *config,
                                         char notice[NOTICE_ROOM])
{
    dsv_config_defaults(config);
    DsvStatus status = cli_config_load(path, config);
    drop_stored_path(path, config, notice);
    return status == DSV_OK ? cli_args_options(args, config) : status;
}

/* Prints the summary of the run. Called by rank 0 only. */
static void print_end(const CliArgs *args, const DsvConfig *config, DsvStatus status,
                      const DsvTrainSummary *summary)
{
    if (status == DSV_OK || status == DSV_E_INTERRUPTED)
        print_summary(config, summary);
    if (status == DSV_E_INTERRUPTED)
        print_resume(args);
}

/* Returns the exit status of an interrupted run. If another rank received the signal, this rank treats it as
   SIGTERM. */
static int interrupted_status(void)
{
    return 128 + (cli_interrupt_signal() ? cli_interrupt_signal() : SIGTERM);
}

static int cmd_train(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    DsvTrainSummary summary;
    CliTerminal terminal;
    char notice[NOTICE_ROOM]; /* a warning about the configuration file, or "" */
    const char *path = args->path[0] ? args->path[0] : DEFAULT_CONFIG;
    if (!args->path[0] && access(cli_config_find(path), F_OK) != 0)
        return cli_launch_decline(args,
                                  cli_misused(args->verb, "no CONFIG named, and there is no %s here", path),
                                  "no CONFIG named");
    DsvStatus status = cmd_train_read_settings(args, path, &config, notice);
    if (status != DSV_OK)
        return cli_launch_decline(args, cli_outcome(args, status), dsv_error_message());
    if (args->flag[CARD] && !args->flag[DRY_RUN])
        return cli_launch_decline(
            args, cli_misused(args->verb, "--card %s: expected --dry-run with it", args->flag[CARD]),
            "--card without --dry-run");
    if (args->flag[CARD])
        return cli_outcome(args, dsv_train_preview_card(args->flag[CARD], &config, cli_print_line, NULL));
    if (args->flag[DRY_RUN])
        return cli_outcome(args, dsv_train_preview(&config, cli_print_line, NULL));
    if (!config.data_path[0])
        return cli_launch_decline(args, cli_misused(args->verb, "%s", NO_CLIPS), NO_CLIPS);

    int outcome = cli_launch_join(args, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    bool first = !ranks || dsv_ranks_rank(ranks) == 0;
    cli_terminal_open(&terminal, first ? "this step and writing a checkpoint" : NULL);
    DsvEvents events = cli_terminal_events(&terminal);
    if (first && notice[0] && !config.resume_from_checkpoint[0])
        events.log(events.context, DSV_LOG_WARNING, notice);
    status = dsv_train_ranks(ranks, &config, &events, &summary);
    cli_terminal_close(&terminal);
    if (first)
        print_end(args, &config, status, &summary);
    outcome = status == DSV_E_INTERRUPTED ? interrupted_status() : cli_launch_outcome(args, ranks, status);
    fflush(stdout); /* a launcher may kill this process after it has left the other ranks */
    dsv_ranks_leave(&ranks);
    return outcome;
}

const CliVerb cli_verb_train = {
    .name = "train",
    .arguments = "[CONFIG.yaml]",
    .paths_max = 1,
    .takes_options = true,
    .lists_options = true,
    .lists_cards = true,
    .summary = "train a model on clips",
    .text = text,
    .flags = flags,
    .run = cmd_train,
};
