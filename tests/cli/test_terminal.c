/* Output for people: plain lines in a file, a line redrawn in place on a (pseudo) terminal, colours only if
 * requested, and reactions to signals. */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/terminal.h"

enum { COLUMNS = 60 };

/* stderr for the time of a test, and all that was written to it. */
typedef struct Screen {
    int before, reader, writer;
    char text[16384];
} Screen;

static void begin(Screen *s, bool terminal)
{
    struct winsize size = {.ws_row = 24, .ws_col = COLUMNS};
    int ends[2];
    if (terminal)
        assert_int_equal(openpty(&ends[0], &ends[1], NULL, NULL, &size), 0);
    else
        assert_int_equal(pipe(ends), 0);
    s->reader = ends[0];
    s->writer = ends[1];
    assert_int_equal(fcntl(s->reader, F_SETFL, O_NONBLOCK), 0);
    s->before = dup(STDERR_FILENO);
    assert_int_equal(dup2(s->writer, STDERR_FILENO), STDERR_FILENO);
}

static void end(Screen *s)
{
    size_t used = 0;
    ssize_t got;
    fflush(stderr);
    while ((got = read(s->reader, s->text + used, sizeof s->text - 1 - used)) > 0)
        used += (size_t)got;
    s->text[used] = 0;
    dup2(s->before, STDERR_FILENO);
    close(s->before);
    close(s->reader);
    close(s->writer);
}

static int count(const char *text, const char *what)
{
    int found = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        found++;
    return found;
}

static void work(CliTerminal *t, int64_t from, int64_t to, int64_t total)
{
    DsvEvents events = cli_terminal_events(t);
    for (int64_t i = from; i <= to; i++) {
        DsvProgress p = {.unit = "step",
                         .done = i,
                         .total = total,
                         .seconds_left = 1,
                         .loss = 0.5,
                         .step_ms = 7,
                         .tokens_per_s = 100,
                         .memory_bytes = 1 << 30};
        events.progress(events.context, &p);
    }
}

static void test_plain(void **unused)
{
    (void)unused;
    Screen s;
    CliTerminal t;
    setenv("TERM", "xterm", 1);
    begin(&s, false);
    cli_terminal_open(&t, "this step");
    DsvEvents events = cli_terminal_events(&t);
    events.log(events.context, DSV_LOG_INFO, "two clips");
    work(&t, 1, 995, 1000);
    events.log(events.context, DSV_LOG_WARNING, "one is broken");
    work(&t, 996, 1000, 1000);
    cli_terminal_close(&t);
    end(&s);
    /* The first, then one a tenth of the way; quick work gives no more. */
    assert_int_equal(count(s.text, "step "), 11);
    assert_non_null(strstr(s.text, "two clips\nstep    1/1000  loss 0.5000"));
    assert_non_null(strstr(s.text, "\nstep  100/1000"));
    assert_non_null(strstr(s.text, "\nwarning: one is broken\nstep 1000/1000  loss 0.5000"));
    assert_null(strchr(s.text, '\033'));
    assert_null(strchr(s.text, '\r'));
}

static void test_live(void **unused)
{
    (void)unused;
    Screen s;
    CliTerminal t;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    begin(&s, true);
    cli_terminal_open(&t, "this step");
    DsvEvents events = cli_terminal_events(&t);
    work(&t, 1, 995, 1000);
    events.log(events.context, DSV_LOG_WARNING, "one is broken");
    work(&t, 996, 1000, 1000);
    cli_terminal_close(&t);
    end(&s);
    /* Drawn at once, not for every step, again below the log, and left standing whole. */
    assert_memory_equal(s.text, "\r\033[Kstep    1/1000", 18);
    assert_true(count(s.text, "step ") >= 3 && count(s.text, "step ") < 500);
    assert_non_null(strstr(s.text, "\r\033[K\033[33mwarning:\033[0m one is broken\r\n"
                                   "\r\033[Kstep  995/1000"));
    const char *last = strrchr(s.text, 'K');
    assert_non_null(last);
    assert_string_equal(last, "Kstep 1000/1000  loss 0.5000   7.0 ms    100 tok/s  1024 MiB\r\n");
    assert_true(strlen(last) - 3 < COLUMNS);
}

static void test_no_color(void **unused)
{
    (void)unused;
    Screen s;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    begin(&s, true);
    cli_print_error("%s", "no such thing");
    end(&s);
    assert_string_equal(s.text, "dsv: no such thing.\r\n");
    unsetenv("NO_COLOR");
    begin(&s, true);
    cli_print_error("%s", "no such thing");
    end(&s);
    assert_string_equal(s.text, "\033[31mdsv:\033[0m no such thing.\r\n");
    setenv("TERM", "dumb", 1);
    begin(&s, true);
    cli_print_error("%s", "no such thing");
    end(&s);
    assert_string_equal(s.text, "dsv: no such thing.\r\n");
}

static void wait_ms(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The exit status of a child that raises the signal `times` times, `pause_ms` apart: 0 if the signal asked
 * its work to stop, 2 if nothing did, 128 + the signal if it was ended at once. */
static int after_signals(int number, int times, int pause_ms, char *text, size_t room)
{
    Screen s;
    int status;
    begin(&s, false);
    pid_t child = fork();
    if (child == 0) {
        CliTerminal t;
        cli_terminal_open(&t, "this step");
        DsvEvents events = cli_terminal_events(&t);
        if (events.stop(events.context))
            _exit(1);
        for (int i = 0; i < times; i++) {
            if (i > 0)
                wait_ms(pause_ms);
            raise(number);
        }
        _exit(events.stop(events.context) && cli_interrupt_signal() == number ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    end(&s);
    snprintf(text, room, "%s", s.text);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define FINISHING "dsv: finishing this step; Ctrl-C after one second ends at once.\n"

static void test_signals(void **unused)
{
    (void)unused;
    char text[256];
    assert_int_equal(after_signals(SIGINT, 0, 0, text, sizeof text), 2); /* no orderly stop was requested */
    assert_int_equal(after_signals(SIGINT, 1, 0, text, sizeof text), 0);
    assert_string_equal(text, FINISHING);
    assert_int_equal(after_signals(SIGTERM, 1, 0, text, sizeof text), 0);
    assert_int_equal(after_signals(SIGINT, 2, 1100, text, sizeof text), 130);
    assert_string_equal(text, FINISHING "dsv: ended at once.\n");
    /* `timeout --signal=INT` and torchrun on a terminal send two within milliseconds. */
    assert_int_equal(after_signals(SIGINT, 2, 1, text, sizeof text), 0);
    assert_string_equal(text, FINISHING);
    signal(SIGHUP, SIG_IGN); /* as nohup does */
    assert_int_equal(after_signals(SIGHUP, 1, 0, text, sizeof text), 2);
    signal(SIGHUP, SIG_DFL);
}

/* A launcher that signals a process and its group, a scheduler that repeats itself: the work is saved. */
static void test_repeated_requests(void **unused)
{
    (void)unused;
    char text[256];
    for (int number = SIGHUP; number <= SIGTERM; number += SIGTERM - SIGHUP)
        for (int pause_ms = 0; pause_ms <= 1100; pause_ms += 1100) {
            assert_int_equal(after_signals(number, 2, pause_ms, text, sizeof text), 0);
            assert_string_equal(text, FINISHING);
        }
}

static void *raise_often(void *number)
{
    for (int i = 0; i < 1000; i++)
        raise(*(int *)number);
    return NULL;
}

/* Signals sent to a process may reach two of its threads at the same time; they count as one request,
 * reported once. */
static void test_signals_of_threads(void **unused)
{
    (void)unused;
    for (int round = 0; round < 20; round++) {
        Screen s;
        int status, number = SIGINT;
        begin(&s, false);
        pid_t child = fork();
        if (child == 0) {
            CliTerminal t;
            pthread_t thread[2];
            cli_terminal_open(&t, "this step");
            for (int i = 0; i < 2; i++)
                pthread_create(&thread[i], NULL, raise_often, &number);
            for (int i = 0; i < 2; i++)
                pthread_join(thread[i], NULL);
            _exit(cli_interrupt_signal() == SIGINT ? 0 : 2);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        end(&s);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_string_equal(s.text, FINISHING);
    }
}

/* Names come from files: they must not move the cursor, clear the screen or forge a line. */
static void test_control_bytes(void **unused)
{
    (void)unused;
    Screen s;
    CliTerminal t;
    setenv("TERM", "xterm", 1);
    begin(&s, false);
    cli_terminal_open(&t, "this step");
    DsvEvents events = cli_terminal_events(&t);
    events.log(events.context, DSV_LOG_INFO, "a\033[2Jb\nc\177d\tclip \303\251\343\201\202.mp4");
    events.log(events.context, DSV_LOG_WARNING, "C1 \302\233 and bytes \233 \303 that are not UTF-8 \377");
    cli_terminal_close(&t);
    cli_print_error("%s: no such clip", "x\ry.mp4");
    end(&s);
    assert_string_equal(s.text, "a\\x1b[2Jb\\x0ac\\x7fd\\x09clip \303\251\343\201\202.mp4\n"
                                "warning: C1 \\xc2\\x9b and bytes \\x9b \\xc3 that are not UTF-8 \\xff\n"
                                "dsv: x\\x0dy.mp4: no such clip.\n");
}

/* A terminal of 60 columns would break these lines in the middle of a word. */
static void test_long_lines(void **unused)
{
    (void)unused;
    Screen s;
    CliTerminal t;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    begin(&s, true);
    cli_terminal_open(&t, "this step");
    DsvEvents events = cli_terminal_events(&t);
    events.log(events.context, DSV_LOG_INFO, "tokens      16 to      47   of each clip:      rank    1  x");
    events.log(events.context, DSV_LOG_INFO,
               "model: 1234567 parameters, 4 blocks, latents 24 x 5 x 24 x 24, on CPU (avx512_bf16)");
    events.log(events.context, DSV_LOG_WARNING,
               "0123456789012345678901234567890123456789012345678901234567/long_name.mp4: damaged");
    cli_terminal_close(&t);
    end(&s);
    unsetenv("NO_COLOR");
    assert_string_equal(s.text, "tokens      16 to      47   of each clip:      rank    1  x\r\n"
                                "model: 1234567 parameters, 4 blocks, latents 24 x 5 x 24 x\r\n"
                                "  24, on CPU (avx512_bf16)\r\n"
                                "warning: 0123456789012345678901234567890123456789012345678901234567"
                                "/long_name.mp4:\r\n"
                                "  damaged\r\n");
}

/* After Ctrl-C the line shows no remaining time. */
static void test_time_left_goes(void **unused)
{
    (void)unused;
    Screen s;
    CliTerminal t;
    setenv("TERM", "xterm", 1);
    begin(&s, true);
    cli_terminal_open(&t, "this step");
    work(&t, 1, 5, 1000);
    assert_non_null(strstr(t.line, "0:01 left"));
    cli_terminal_close(&t);
    end(&s);
    const char *last = strrchr(s.text, 'K');
    assert_non_null(last);
    assert_string_equal(last, "Kstep    5/1000  loss 0.5000   7.0 ms    100 tok/s  1024 MiB\r\n");
}

/* `dsv train 2>&1 | tee log`, where Ctrl-C ends tee: the run continues without a reader. */
static void test_reader_gone(void **unused)
{
    (void)unused;
    Screen s;
    int status;
    begin(&s, false);
    close(s.reader);
    s.reader = open("/dev/null", O_RDONLY);
    pid_t child = fork();
    if (child == 0) {
        CliTerminal t;
        cli_terminal_open(&t, "this step");
        DsvEvents events = cli_terminal_events(&t);
        events.log(events.context, DSV_LOG_INFO, "saved");
        raise(SIGINT);
        _exit(events.stop(events.context) ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    end(&s);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_no_color),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_repeated_requests),
        cmocka_unit_test(test_signals_of_threads),
        cmocka_unit_test(test_control_bytes),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_time_left_goes),
        cmocka_unit_test(test_reader_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
