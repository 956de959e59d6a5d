/* Fuzzes data that a stranger or a faulty rank may send to a rank's port: a caller's hello, a listener's
 * challenge and answer, frames, and the end of a failed job. The first byte of an input selects one of
 * these, and whether the harness authenticates the following numbers with the job key, as a rank does. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"
#include "dist/tcp_call.h"
#include "dist/tcp_callers.h"
#include "dist/tcp_frame.h"
#include "fuzz.h"

enum { TO_LISTENER, TO_CALLER, FRAMES, FAREWELL, RANK = 1, SIZE = 3 };

static DsviJobKey key;

static void take_line(void *context, const char *line)
{
    (void)context;
    fuzz_expect(strlen(line) < 1024);
}

/* Called only for a hello authenticated with this job key. */
static DsviVerdict take_call(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from)
{
    (void)from;
    fuzz_expect(*(const bool *)context && hello->to == RANK);
    fuzz_accept();
    if (hello->size != SIZE)
        return DSVI_CALL_OTHER_SIZE;
    close(file);
    return DSVI_CALL_TAKEN;
}

/* Reads four numbers from the input. */
static bool take_numbers(const uint8_t *data, size_t size, int64_t number[4])
{
    if (size < 4 * sizeof *number)
        return false;
    memcpy(number, data, 4 * sizeof *number);
    return true;
}

static void say(int file, const void *data, size_t bytes)
{
    fuzz_expect(send(file, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes || bytes == 0);
}

static void hear_hello(int near, int far, bool sealed, const uint8_t *data, size_t size)
{
    static DsviTcpCallers callers;
    struct pollfd poller = {near, POLLIN, POLLIN};
    int64_t number[4];
    DsviHello hello = {.rank = 0};
    callers = (DsviTcpCallers){.key = &key,
                               .rank = RANK,
                               .size = SIZE,
                               .log = take_line,
                               .called = take_call,
                               .context = &sealed,
                               .count = 1};
    callers.caller[0] = (DsviCaller){.file = near, .until = 1e300};
    dsvi_challenge_make(&callers.caller[0].challenge);
    sealed = sealed && take_numbers(data, size, number);
    if (sealed) {
        hello = (DsviHello){.rank = number[0], .size = number[1], .to = number[2], .port = number[3]};
        dsvi_hello_make(&key, &callers.caller[0].challenge, &hello);
        say(far, &hello, sizeof hello);
    } else {
        say(far, data, size);
    }
    shutdown(far, SHUT_WR);
    for (int i = 0; i < 8 && callers.count > 0; i++)
        fuzz_expect(dsvi_tcp_callers_serve(&callers, &poller) == DSV_OK);
    fuzz_expect(callers.count == 0);
}

static void hear_answer(int near, int far, bool sealed, const uint8_t *data, size_t size)
{
    DsviTcpCall call = {.from = 2,
                        .to = RANK,
                        .state = DSVI_CALL_LISTENING,
                        .file = near,
                        .until = 1e300,
                        .places = {.count = 1}};
    int64_t number[4];
    DsviChallenge challenge;
    DsviAnswer answer;
    size_t first = size < sizeof challenge ? size : sizeof challenge;
    sealed = sealed && take_numbers(data, size, number);
    dsvi_challenge_make(&challenge);
    say(far, sealed ? (const void *)&challenge : data, sealed ? sizeof challenge : first);
    (void)dsvi_tcp_call_advance(&call, &key, true);
    if (call.state == DSVI_CALL_CHALLENGED) {
        dsvi_tcp_call_send_hello(&call, &key, SIZE, 1);
        DsviVerdict verdict = (DsviVerdict)(sealed ? number[0] & 7 : 0);
        dsvi_answer_make(&key, &call.challenge, &call.hello, verdict, sealed ? number[1] : 0, &answer);
        data += first;
        say(far, sealed ? (const void *)&answer : data, sealed ? sizeof answer : size - first);
        shutdown(far, SHUT_WR);
        DsvStatus status = dsvi_tcp_call_advance(&call, &key, true);
        fuzz_expect(sealed || status == DSV_OK);
        if (call.state == DSVI_CALL_DONE)
            fuzz_accept();
        fuzz_expect(sealed || call.state != DSVI_CALL_DONE);
    }
    if (call.state == DSVI_CALL_DONE)
        close(near);
    dsvi_tcp_call_end(&call);
}

static void hear_frames(int near, int far, const uint8_t *data, size_t size)
{
    char sentence[DSVI_MESSAGE_BYTES];
    DsviFrameHead head;
    say(far, data, size);
    shutdown(far, SHUT_WR);
    while (dsvi_frame_peek(near, &head) == DSVI_SEEN_HEAD) {
        dsvi_frame_receive_head(near);
        if (head.kind != DSVI_FRAME_FAILURE)
            continue;
        dsvi_frame_receive_message(near, head.bytes, sentence);
        fuzz_expect(strlen(sentence) < DSVI_MESSAGE_BYTES);
        fuzz_accept();
    }
    close(near);
}

static void hear_farewell(int near, int far, const uint8_t *data, size_t size)
{
    say(far, data, size);
    shutdown(far, SHUT_WR);
    if (dsvi_frame_await_goodbye(near, 5))
        fuzz_accept();
    close(near);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool begun;
    int pair[2];
    if (size == 0 || size > 1 << 14)
        return 0;
    fuzz_expect(begun || dsvi_job_key_derive("a word", &key) == DSV_OK);
    begun = true;
    fuzz_expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    bool sealed = data[0] & 0x80;
    switch (data[0] & 3) {
    case TO_LISTENER: hear_hello(pair[0], pair[1], sealed, data + 1, size - 1); break;
    case TO_CALLER: hear_answer(pair[0], pair[1], sealed, data + 1, size - 1); break;
    case FRAMES: hear_frames(pair[0], pair[1], data + 1, size - 1); break;
    default: hear_farewell(pair[0], pair[1], data + 1, size - 1); break;
    }
    close(pair[1]);
    return 0;
}
