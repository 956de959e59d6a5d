/* See terminal.h. */
#include "terminal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "interrupt.h"
#include "text.h"

enum { DEFAULT_COLUMNS = 80, HANGING_INDENT = 2 };

/* Seconds between progress lines in a file or pipe, and between redraws on a terminal. */
static const double PLAIN_EVERY = 5, REDRAW_EVERY = 0.05;

/* Terminal control: move to the start of the line and clear it; colours. */
#define CLEAR_LINE "\r\033[K"
#define RED "\033[31m"
#define YELLOW "\033[33m"
#define DEFAULT_COLOUR "\033[0m"

static double clock_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool obeys_controls(FILE *stream)
{
    const char *term = getenv("TERM");
    return isatty(fileno(stream)) && term && term[0] && strcmp(term, "dumb") != 0;
}

static bool shows_colour(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR");
    return obeys_controls(stream) && !(no_color && no_color[0]);
}

size_t cli_columns(FILE *stream)
{
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return DEFAULT_COLUMNS;
}

/* Prints "word: " to stderr, coloured if the terminal shows colours. Returns its columns. */
static size_t print_mark(const char *word, const char *colour)
{
    bool coloured = shows_colour(stderr);
    fprintf(stderr, "%s%s:%s ", coloured ? colour : "", word, coloured ? DEFAULT_COLOUR : "");
    return strlen(word) + 2;
}

/* Prints the rest of a line on stderr, of which `column` columns are printed. On a terminal long text is
 * broken at spaces; in files and pipes it stays one line, for grep. The last column stays free, because some
 * terminals wrap as soon as it is filled. */
static void print_rest(const char *text, size_t column)
{
    if (obeys_controls(stderr))
        cli_put_wrapped(stderr, text, column, HANGING_INDENT, cli_columns(stderr) - 1);
    else
        cli_put_text(stderr, text);
}

void cli_print_error(const char *format, ...)
{
    char sentence[4096] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence - 1, format, list);
    va_end(list);
    strcat(sentence, ".");
    print_rest(sentence, print_mark("dsv", RED));
    fputc('\n', stderr);
}

void cli_print_result(const char *format, ...)
{
    char line[4096] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    cli_put_text(stdout, line);
    putchar('\n');
}

/* Redraws the progress line. The cursor stays at its end. */
static void draw(CliTerminal *t)
{
    fprintf(stderr, CLEAR_LINE "%s", t->line);
}

static void on_log(void *context, DsvLogLevel level, const char *line)
{
    CliTerminal *t = context;
    if (t->live && t->line[0])
        fputs(CLEAR_LINE, stderr);
    print_rest(line, level == DSV_LOG_WARNING ? print_mark("warning", YELLOW) : 0);
    fputc('\n', stderr);
    if (t->live && t->line[0])
        draw(t);
}

/* Formats the newest progress for the current width of the terminal; the last column stays free. */
static void make_line(CliTerminal *t)
{
    cli_progress_line(&t->progress, t->live ? cli_columns(stderr) - 1 : CLI_LINE_BYTES, t->line);
}

/* Returns whether a file or pipe gets a progress line now: for the first and the last progress, after each
 * tenth of the work, and every few seconds. */
static bool plain_line_due(CliTerminal *t, const DsvProgress *p, double time)
{
    int64_t tenths = p->total > 0 ? p->done * 10 / p->total : 0;
    bool due = t->tenths < tenths || p->done == p->total || time - t->shown_at >= PLAIN_EVERY;
    if (due)
        t->tenths = tenths;
    return due;
}

static void on_progress(void *context, const DsvProgress *p)
{
    CliTerminal *t = context;
    double time = clock_now();
    t->progress = *p;
    make_line(t);
    if (t->live ? time - t->shown_at < REDRAW_EVERY : !plain_line_due(t, p, time))
        return;
    t->shown_at = time;
    if (t->live)
        draw(t);
    else
        fprintf(stderr, "%s\n", t->line);
}

static bool should_stop(void *context)
{
    (void)context;
    return cli_interrupt_signal() != 0;
}

void cli_terminal_open(CliTerminal *t, const char *what)
{
    *t = (CliTerminal){.live = obeys_controls(stderr), .tenths = -1};
    cli_interrupt_watch(what, t->live);
}

void cli_terminal_close(CliTerminal *t)
{
    if (!t->live || !t->line[0])
        return;
    t->progress.seconds_left = -1; /* no estimate: the work has ended, finished or not */
    make_line(t);
    draw(t);
    fputc('\n', stderr);
    t->line[0] = 0;
}

DsvEvents cli_terminal_events(CliTerminal *t)
{
    return (DsvEvents){.context = t, .log = on_log, .progress = on_progress, .stop = should_stop};
}
