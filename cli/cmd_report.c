/* dsv report: writes an HTML page about a run. */
#include <inttypes.h>
#include <stdio.h>

#include "cmd.h"
#include "terminal.h"

enum { OUTPUT };

static const CliFlag flags[] = {
    [OUTPUT] = {"-o", "FILE", "file name of the page (default RUN_DIR/report.html)"},
    {0},
};

static const char text[] =
    "Writes one HTML page about the run in RUN_DIR, finished or active: loss, loss by\n"
    "noise level, gradient norm, density and captured mass of blocks and heads,\n"
    "decisions of the guard and their reasons, parts of a step's time, memory,\n"
    "sampled clips, configuration. The page needs no other file and no network.\n"
    "\n"
    "  dsv report runs/mine -o mine.html\n";

static int run_report(const CliArgs *args)
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
    .paths_min = 1,
    .paths_max = 1,
    .summary = "write an HTML page about a run",
    .text = text,
    .flags = flags,
    .run = run_report,
};
