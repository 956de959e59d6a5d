/* What a person sees during the work: a progress line, log lines above it, errors. All of it goes to stderr;
 * results go to stdout.
 *
 * On a terminal the progress line is redrawn in place and longer lines are broken at spaces. Elsewhere (a
 * file, a pipe, TERM=dumb) a plain line is written now and then. Colours only on a terminal and without
 * NO_COLOR. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "progress_line.h"

typedef struct CliTerminal {
    bool live;                  /* the progress line is redrawn in place */
    DsvProgress progress;       /* the newest */
    char line[CLI_LINE_BYTES];  /* its text; "" before the first */
    double shown_at;            /* clock when progress was last shown */
    int64_t tenths;             /* of the work, at the last plain line; -1 before the first */
} CliTerminal;

/* Watches for Ctrl-C, SIGTERM and SIGHUP, after which the work may finish `what` (interrupt.h). */
void cli_terminal_open(CliTerminal *terminal, const char *what);
/* Leaves the last progress line on the screen, without its estimate of the time left. */
void cli_terminal_close(CliTerminal *terminal);
/* What to give the library: its events are shown on `terminal`. */
DsvEvents cli_terminal_events(CliTerminal *terminal);

/* "dsv: <sentence>." on stderr. */
void cli_print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A line of results on stdout; control bytes of names in it are made visible (text.h). */
void cli_print_result(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Columns of a stream's terminal, 80 where it is none. */
size_t cli_columns(FILE *stream);

#endif
