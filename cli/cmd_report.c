/* dsv report: a run as one page. */
#include <inttypes.h>
#include <stdio.h>

#include "cmd.h"
#include "terminal.h"

enum { OUTPUT };

static const CliFlag flags[] = {
    [OUTPUT] = {"-o", "FILE", "where the page goes (default RUN_DIR/report.html)"},
    {0},
};

static const char text[] =
    "Writes one HTML page about the run in RUN_DIR, over or still going on: loss,\n"
    "loss by noise level, gradient norm, density and captured mass of blocks and\n"
    "heads, decisions and their reasons, where a step's time goes, memory, sampled\n"
    "clips, settings. The page holds all it shows and needs no network.\n"
    "\n"
    "  dsv report runs/mine -o mine.html\n";

static int run(const CliArgs *args)
{
    DsvReportSummary summary;
    DsvStatus status = dsv_report(args->path[0], args->flag[OUTPUT], &summary);
    if (status == DSV_OK)
        cli_print_result("%s: %" PRId64 " step%s, %" PRId64 " kB", summary.path, summary.steps,
                         summary.steps == 1 ? "" : "s", (summary.bytes + 999) / 1000);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_report = {
    .name = "report",
    .arguments = "RUN_DIR",
    .paths_least = 1,
    .paths_most = 1,
    .summary = "writes a page about a run, to look at in a browser",
    .text = text,
    .flags = flags,
    .run = run,
};
