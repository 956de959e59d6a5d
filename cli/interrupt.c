/* See interrupt.h. The handler does nothing but what a handler may. */
#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t received;
static char first_notice[160], second_notice[80];

static void tell(const char *notice)
{
    int before = errno;
    ssize_t written = write(STDERR_FILENO, notice, strlen(notice));
    (void)written; /* nobody is left to be told */
    errno = before;
}

static void on_signal(int number)
{
    if (received && number == SIGHUP)
        return; /* a terminal that goes is told of more than once, by its shell and by the kernel */
    if (received) {
        tell(second_notice);
        _exit(128 + number);
    }
    received = number;
    tell(first_notice);
}

void cli_interrupt_watch(const char *what, bool on_progress_line)
{
    const char *fresh_line = on_progress_line ? "\n" : "";
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, hangup;
    if (what) {
        snprintf(first_notice, sizeof first_notice, "%sdsv: finishing %s; once more ends at once.\n",
                 fresh_line, what);
        snprintf(second_notice, sizeof second_notice, "%sdsv: ended at once.\n", fresh_line);
    }
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) /* as nohup leaves it */
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* whoever read along may go: the work is worth more than what is said of it */
}

int cli_interrupt_signal(void)
{
    return received;
}
