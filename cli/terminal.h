/* Output for the user: a progress line, log lines above it, and errors, all to stderr; results to stdout.
 *
 * On a terminal the progress line is redrawn in place and long lines are broken at spaces. In a file or pipe,
 * or with TERM=dumb, progress is a new line every few seconds. Colours are used only on a terminal, and not
 * if NO_COLOR is set. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

#include "progress_line.h"

typedef struct CliTerminal {
    bool live;                 /* stderr is a terminal, on which the progress line is redrawn in place */
    DsvProgress progress;      /* newest progress */
    char line[CLI_LINE_BYTES]; /* `progress` as text; "" before any progress was reported */
    double shown_at;           /* clock when progress was last shown */
    int64_t tenths; /* tenths of the work that were done at the last progress line in a file or pipe; -1
                       before the first line */
} CliTerminal;

/* Initialises the terminal and installs signal handlers; `what` as in cli_interrupt_watch. */
void cli_terminal_open(CliTerminal *terminal, const char *what);
/* Leaves the last progress line on the screen, without its estimate of the time left. */
void cli_terminal_close(CliTerminal *terminal);
/* Returns callbacks that show the library's events on `terminal`. */
DsvEvents cli_terminal_events(CliTerminal *terminal);

/* Prints "dsv: <sentence>." to stderr. */
void cli_print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints a line to stdout; control characters, which may be in file names, are escaped (text.h). */
void cli_print_result(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the columns of a stream's terminal; 80 if the stream is no terminal. */
size_t cli_columns(FILE *stream);

#endif
