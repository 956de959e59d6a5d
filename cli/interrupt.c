/* See interrupt.h. The handler calls only async-signal-safe functions: clock_gettime, write, _exit; its state
 * is atomic. */
#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* `timeout`, mpirun and torchrun send a signal to a process and then to its process group: two signals within
 * milliseconds are one request to stop. Only a Ctrl-C that comes at least so many nanoseconds after the first
 * signal is a second request to stop. */
static const int64_t AGAIN_AFTER_NS = 1000000000;

/* Two threads may run the handler at the same time. The thread that sets `requested_at` owns the request. */
static _Atomic int64_t requested_at; /* CLOCK_MONOTONIC, ns; 0: no request yet */
static atomic_int received;
static char first_notice[160], second_notice[80];

static void write_notice(const char *notice)
{
    ssize_t written = write(STDERR_FILENO, notice, strlen(notice));
    (void)written; /* the signal takes effect even if stderr is closed */
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void on_signal(int number)
{
    int before = errno;
    int64_t first = 0, now = now_ns();
    if (atomic_compare_exchange_strong(&requested_at, &first, now)) {
        received = number;
        write_notice(first_notice);
    } else if (number == SIGINT && now - first >= AGAIN_AFTER_NS) {
        write_notice(second_notice);
        _exit(128 + number);
    }
    errno = before;
}

void cli_interrupt_watch(const char *what, bool on_progress_line)
{
    const char *fresh_line = on_progress_line ? "\n" : "";
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, hangup;
    if (what) {
        snprintf(first_notice, sizeof first_notice,
                 "%sdsv: finishing %s; Ctrl-C after one second ends at once.\n", fresh_line, what);
        snprintf(second_notice, sizeof second_notice, "%sdsv: ended at once.\n", fresh_line);
    }
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) /* nohup starts its program with SIGHUP ignored */
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* the work must continue if the reader of stdout or stderr ends */
}

int cli_interrupt_signal(void)
{
    return received;
}
