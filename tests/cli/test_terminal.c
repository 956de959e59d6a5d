/* What a person sees: plain lines in a file, a line redrawn in place on a (pseudo) terminal, colours only
 * where they are wanted, and what signals do. */
#include "test.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
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
        DsvProgress p = {.unit = "step", .done = i, .total = total, .seconds_left = 1, .loss = 0.5,
                         .step_ms = 7, .tokens_per_s = 100, .memory_bytes = 1 << 30};
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

/* In a child, because what a signal left behind stays. */
static int after_signals(int number, int times, char *text, size_t room)
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
        for (int i = 0; i < times; i++)
            raise(number);
        _exit(events.stop(events.context) && cli_interrupt_signal() == number ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    end(&s);
    snprintf(text, room, "%s", s.text);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_signals(void **unused)
{
    (void)unused;
    char text[256];
    assert_int_equal(after_signals(SIGINT, 0, text, sizeof text), 2); /* nobody asked to stop */
    assert_int_equal(after_signals(SIGINT, 1, text, sizeof text), 0);
    assert_string_equal(text, "dsv: finishing this step; once more ends at once.\n");
    assert_int_equal(after_signals(SIGTERM, 1, text, sizeof text), 0);
    assert_int_equal(after_signals(SIGINT, 2, text, sizeof text), 130);
    assert_int_equal(after_signals(SIGTERM, 2, text, sizeof text), 143);
    assert_string_equal(text, "dsv: finishing this step; once more ends at once.\ndsv: ended at once.\n");
    /* A terminal that goes is no wish to end at once, however often it is told. */
    assert_int_equal(after_signals(SIGHUP, 3, text, sizeof text), 0);
    assert_string_equal(text, "dsv: finishing this step; once more ends at once.\n");
    signal(SIGHUP, SIG_IGN); /* as nohup does */
    assert_int_equal(after_signals(SIGHUP, 1, text, sizeof text), 2);
    signal(SIGHUP, SIG_DFL);
}

/* `dsv train 2>&1 | tee log`, of which Ctrl-C ends tee: the work goes on, though nobody reads of it. */
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
        cmocka_unit_test(test_reader_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
