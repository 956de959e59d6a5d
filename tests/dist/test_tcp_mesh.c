/* How ranks connect over TCP while other programs call their ports, while ranks end or cannot start, and if a
 * port belongs to another job. Ranks are threads; strangers are plain sockets. */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"
#include "dist/tcp_call.h"
#include "dist/tcp_callers.h"
#include "dist/tcp_frame.h"
#include "dist/tcp_hello.h"
#include "dist/tcp_mesh.h"

enum { RANKS_MAX = 4 };

static int next_port(void)
{
    static int used;
    return 20000 + (getpid() * 41 + used++ * 7) % 12000; /* below the ports that the system assigns */
}

typedef struct Rank {
    pthread_t thread;
    DsviMeeting meeting;
    DsvStatus status;
    char sentence[DSVI_MESSAGE_BYTES];
    double seconds; /* duration of the call */
    int socket[RANKS_MAX];
    pthread_mutex_t lock; /* protects `said` */
    char said[8192];
} Rank;

static void hear(void *context, const char *line)
{
    Rank *rank = context;
    pthread_mutex_lock(&rank->lock);
    size_t used = strlen(rank->said);
    snprintf(rank->said + used, sizeof rank->said - used, "%s\n", line);
    pthread_mutex_unlock(&rank->lock);
}

static bool has_said(Rank *rank, const char *words)
{
    pthread_mutex_lock(&rank->lock);
    bool said = strstr(rank->said, words) != NULL;
    pthread_mutex_unlock(&rank->lock);
    return said;
}

static void *work(void *argument)
{
    Rank *rank = argument;
    double begin = dsvi_clock_seconds();
    rank->status = dsvi_tcp_mesh_connect(&rank->meeting, rank->socket);
    rank->seconds = dsvi_clock_seconds() - begin;
    snprintf(rank->sentence, sizeof rank->sentence, "%s", rank->status ? dsv_error_message() : "");
    return NULL;
}

static void begin_at(Rank *rank, int64_t number, int64_t size, const char *address, int port,
                     const char *word, double timeout_s)
{
    memset(rank, 0, sizeof *rank);
    pthread_mutex_init(&rank->lock, NULL);
    rank->meeting = (DsviMeeting){.rank = number,
                                  .size = size,
                                  .address = address,
                                  .port = port,
                                  .job_key = word,
                                  .timeout_s = timeout_s,
                                  .log = hear,
                                  .context = rank};
    assert_int_equal(pthread_create(&rank->thread, NULL, work, rank), 0);
}

static void begin_for(Rank *rank, int64_t number, int64_t size, int port, const char *word, double timeout_s)
{
    begin_at(rank, number, size, "127.0.0.1", port, word, timeout_s);
}

static void begin(Rank *rank, int64_t number, int64_t size, int port, const char *word)
{
    begin_for(rank, number, size, port, word, 60);
}

static void end(Rank *rank)
{
    pthread_join(rank->thread, NULL);
    pthread_mutex_destroy(&rank->lock);
    for (int64_t r = 0; r < rank->meeting.size && rank->status == DSV_OK; r++)
        if (rank->socket[r] >= 0)
            close(rank->socket[r]);
}

static void end_well(Rank *rank)
{
    end(rank);
    if (rank->status != DSV_OK)
        fail_msg("rank %d: %s", (int)rank->meeting.rank, rank->sentence);
}

/* Connects to 127.0.0.`last`. Returns the socket; -1 if refused. */
static int dial_at(int last, int port)
{
    struct sockaddr_in where = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(0x7f000000u + (unsigned)last)}};
    int file = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(file, (struct sockaddr *)&where, sizeof where) == 0)
        return file;
    close(file);
    return -1;
}

static int dial(int port)
{
    int file;
    while ((file = dial_at(1, port)) < 0)
        usleep(5000);
    return file;
}

static bool receive_all(int file, void *data, size_t bytes)
{
    return recv(file, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* Connects and sends the hello of a rank with job word `word`. Does not receive the answer. */
static int dial_as(int port, const char *word, int64_t rank, int64_t size, DsviHello *hello)
{
    DsviJobKey key;
    DsviChallenge challenge;
    int file = dial(port);
    assert_ok(dsvi_job_key_derive(word, &key));
    assert_true(receive_all(file, &challenge, sizeof challenge));
    *hello = (DsviHello){.rank = rank, .size = size, .to = 0, .port = 1};
    dsvi_hello_make(&key, &challenge, hello);
    assert_int_equal(send(file, hello, sizeof *hello, MSG_NOSIGNAL), sizeof *hello);
    return file;
}

/* Receives until the connection ends. Returns whether the other side ended it. */
static bool is_hung_up(int file)
{
    char rest[4096];
    struct timeval limit = {20, 0};
    ssize_t got;
    setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((got = recv(file, rest, sizeof rest, 0)) > 0)
        continue;
    return got == 0 || errno == ECONNRESET;
}

static void silent_callers_do_not_delay(void **state)
{
    enum { SILENT = 60 };
    Rank rank[2];
    int port = next_port(), silent[SILENT];
    (void)state;
    begin(&rank[0], 0, 2, port, "word");
    for (int i = 0; i < SILENT; i++)
        silent[i] = dial(port);
    begin(&rank[1], 1, 2, port, "word");
    end_well(&rank[0]);
    end_well(&rank[1]);
    assert_true(rank[1].seconds < 1);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
}

/* More strangers call than rank 0 handles at once; a rank can connect nevertheless. */
static void many_callers_do_not_keep_a_rank_out(void **state)
{
    enum { MANY = DSVI_CALLERS_MAX + 40 };
    Rank rank[2];
    int port = next_port(), silent[MANY];
    (void)state;
    begin(&rank[0], 0, 2, port, "word");
    for (int i = 0; i < MANY; i++)
        silent[i] = dial(port);
    begin(&rank[1], 1, 2, port, "word");
    end_well(&rank[0]);
    end_well(&rank[1]);
    assert_non_null(strstr(rank[0].said, "too many others call"));
    for (int i = 0; i < MANY; i++)
        close(silent[i]);
}

static DsviVerdict count_call(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from)
{
    (void)hello;
    (void)from;
    ++*(int *)context;
    close(file);
    return DSVI_CALL_TAKEN;
}

static void say_nothing(void *context, const char *line)
{
    (void)context;
    (void)line;
}

static void serve_callers(DsviTcpCallers *callers)
{
    struct pollfd poller[DSVI_CALLER_POLLERS];
    int count = dsvi_tcp_callers_pollers(callers, poller);
    poll(poller, (nfds_t)count, 50);
    assert_ok(dsvi_tcp_callers_serve(callers, poller));
}

/* If the challenge of rank 0 has arrived, sends the hello. Returns whether the hello was sent. */
static bool answer_challenge(int file, const DsviJobKey *key, int64_t rank, int64_t size)
{
    DsviChallenge challenge;
    DsviHello hello = {.rank = rank, .size = size, .to = 0, .port = 1};
    if (recv(file, &challenge, sizeof challenge, MSG_DONTWAIT) != (ssize_t)sizeof challenge)
        return false;
    dsvi_hello_make(key, &challenge, &hello);
    return send(file, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello;
}

/* More ranks than rank 0 handles at once call at the same time: none is dropped before its hello could be
 * read, and the listener is not polled while no call can be accepted. */
static void many_ranks_that_call_at_once_are_all_heard(void **state)
{
    enum { MANY = DSVI_CALLERS_MAX + 60 };
    static DsviTcpCallers callers;
    struct pollfd poller[DSVI_CALLER_POLLERS];
    int port = next_port(), file[MANY];
    bool answered[MANY] = {false};
    int arrivals = 0;
    DsviTcpPlaces places;
    DsviJobKey key;
    (void)state;
    assert_ok(dsvi_job_key_derive("word", &key));
    assert_ok(dsvi_places_resolve("127.0.0.1", port, &places));
    callers = (DsviTcpCallers){.key = &key,
                               .rank = 0,
                               .size = MANY + 1,
                               .log = say_nothing,
                               .called = count_call,
                               .context = &arrivals};
    assert_ok(dsvi_tcp_callers_listen(&callers, &places));
    for (int i = 0; i < MANY; i++)
        file[i] = dial(port);
    serve_callers(&callers);
    assert_int_equal(callers.count, DSVI_CALLERS_MAX);
    dsvi_tcp_callers_pollers(&callers, poller);
    assert_int_equal(poller[0].fd, -1);
    double until = dsvi_clock_seconds() + 20;
    while (arrivals < MANY && dsvi_clock_seconds() < until) {
        for (int i = 0; i < MANY; i++)
            answered[i] = answered[i] || answer_challenge(file[i], &key, i + 1, MANY + 1);
        serve_callers(&callers);
    }
    assert_int_equal(arrivals, MANY);
    assert_int_equal(callers.dropped, 0);
    for (int i = 0; i < MANY; i++)
        close(file[i]);
    dsvi_tcp_callers_close(&callers);
}

/* A host name has two addresses: no program listens at the first, and a program that is no rank at the
 * second. */
static void a_stranger_at_the_second_address_ends_the_call(void **state)
{
    int refusing = next_port(), strange = next_port(), listener = socket(AF_INET, SOCK_STREAM, 0), file;
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)strange), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    DsviTcpPlaces places, second;
    DsviTcpCall call;
    DsviJobKey key;
    double begin_s = dsvi_clock_seconds();
    DsvStatus status = DSV_OK;
    (void)state;
    assert_ok(dsvi_job_key_derive("word", &key));
    assert_int_equal(bind(listener, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(listen(listener, 8), 0);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    assert_ok(dsvi_places_resolve("127.0.0.1", refusing, &places));
    assert_ok(dsvi_places_resolve("127.0.0.1", strange, &second));
    dsvi_places_add(&places, &second.place[0]);
    assert_int_equal(places.count, 2);
    dsvi_tcp_call_begin(&call, 1, 0, &places);
    while (status == DSV_OK && dsvi_clock_seconds() - begin_s < 5) {
        struct pollfd poller = dsvi_tcp_call_poller(&call);
        bool ready = poll(&poller, 1, 10) > 0;
        status = dsvi_tcp_call_advance(&call, &key, ready);
        if ((file = accept(listener, NULL, NULL)) >= 0)
            close(file);
        if (call.state == DSVI_CALL_CONNECTING && call.next == 0 && call.strange_since[1] > 0)
            call.strange_since[1] -= 31; /* as after half a minute */
    }
    assert_int_equal(status, DSV_E_RANK);
    assert_non_null(strstr(dsv_error_message(), "rank 1 did not find rank 0 for 30 s"));
    dsvi_tcp_call_end(&call);
    close(listener);
}

/* The system may return one address twice, but it can be bound only once. */
static void equal_addresses_are_one(void **state)
{
    DsviTcpPlaces places, other;
    (void)state;
    assert_ok(dsvi_places_resolve("127.0.0.1", 20000, &places));
    assert_int_equal(places.count, 1);
    dsvi_places_add(
        &places, &(DsviTcpPlace){.family = places.place[0].family, .port = 20000, .address = {127, 0, 0, 1}});
    assert_int_equal(places.count, 1);
    assert_ok(dsvi_places_resolve("127.0.0.2", 20000, &other));
    for (int i = 0; i < 2 * DSVI_PLACES_MAX; i++) {
        other.place[0].port++;
        dsvi_places_add(&places, &other.place[0]);
    }
    assert_int_equal(places.count, DSVI_PLACES_MAX);
}

/* Debian maps the host name to 127.0.1.1, but connections to this address come from 127.0.0.1. */
static void ranks_meet_at_another_loopback_address(void **state)
{
    Rank rank[3];
    int port = next_port();
    (void)state;
    for (int r = 0; r < 3; r++)
        begin_at(&rank[r], r, 3, "127.0.1.1", port, "word", 10);
    for (int r = 0; r < 3; r++)
        end_well(&rank[r]);
}

/* Sends the hello of an old version without proof of the job key: magic, port, rank, size. */
static void say_without_proof(int file)
{
    unsigned char hello[24] = {0x64, 0x73, 0x76, 0x31, 0x0f, 0xa0};
    hello[8] = 1;
    hello[16] = 2;
    (void)!send(file, hello, sizeof hello, MSG_NOSIGNAL);
}

static void strangers_are_dropped(void **state)
{
    Rank rank[2];
    DsviHello hello;
    DsviAnswer answer;
    int port = next_port(), file;
    (void)state;
    begin(&rank[0], 0, 2, port, "word");

    file = dial(port);
    (void)!send(file, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
    assert_true(is_hung_up(file));
    close(file);

    file = dial(port);
    say_without_proof(file);
    assert_true(is_hung_up(file));
    close(file);

    file = dial(port); /* closed with a reset */
    struct linger reset = {1, 0};
    assert_int_equal(setsockopt(file, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    close(file);

    file = dial_as(port, "other word", 1, 2, &hello);
    assert_true(receive_all(file, &answer, sizeof answer));
    assert_int_equal(answer.verdict, DSVI_CALL_OTHER_JOB);
    assert_true(is_hung_up(file));
    close(file);

    file = dial_as(port, "other word", 1, 99, &hello); /* from a job with another number of ranks */
    assert_true(is_hung_up(file));
    close(file);

    begin(&rank[1], 1, 2, port, "word");
    end_well(&rank[0]);
    end_well(&rank[1]);
    assert_non_null(strstr(rank[0].said, "rank 0 dropped a call from 127.0.0.1:"));
    assert_non_null(strstr(rank[0].said, "what it sent is no hello of dsv (1 so far)"));
    assert_non_null(strstr(rank[0].said, "it belongs to another job, or has another job key"));
}

/* A recorded hello that a stranger without the job key sends again. */
static void a_replayed_hello_is_dropped(void **state)
{
    Rank rank[3];
    DsviHello hello;
    DsviAnswer answer;
    DsviChallenge challenge;
    int port = next_port();
    (void)state;
    begin(&rank[0], 0, 3, port, "word");
    int genuine = dial_as(port, "word", 1, 3, &hello);
    assert_true(receive_all(genuine, &answer, sizeof answer));
    assert_int_equal(answer.verdict, DSVI_CALL_TAKEN);
    int replay = dial(port);
    assert_true(receive_all(replay, &challenge, sizeof challenge));
    hello.rank = 2; /* changed or not, the hello is rejected */
    (void)!send(replay, &hello, sizeof hello, MSG_NOSIGNAL);
    assert_true(receive_all(replay, &answer, sizeof answer));
    assert_int_equal(answer.verdict, DSVI_CALL_OTHER_JOB);
    close(replay);
    close(genuine); /* like a killed rank */
    begin(&rank[2], 2, 3, port, "word");
    for (int r = 2; r >= 0; r -= 2) {
        end(&rank[r]);
        assert_int_equal(rank[r].status, DSV_E_RANK);
        assert_string_equal(rank[r].sentence, "rank 1 has ended before all ranks had met");
    }
}

/* Returns the number of this process's listening sockets; *all_loopback: all are bound to 127.0.0.1. */
static int listeners(bool *all_loopback)
{
    int count = 0;
    *all_loopback = true;
    for (int file = 3; file < 256; file++) {
        struct sockaddr_storage where = {0};
        socklen_t length = sizeof where, listens_length = sizeof(int);
        int listens = 0;
        if (getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_length) != 0 || !listens)
            continue;
        getsockname(file, (struct sockaddr *)&where, &length);
        const struct sockaddr_in *four = (const struct sockaddr_in *)&where;
        *all_loopback &= where.ss_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
        count++;
    }
    return count;
}

static void ranks_listen_at_their_address_alone(void **state)
{
    Rank rank[3];
    bool all_loopback;
    int port = next_port();
    (void)state;
    begin(&rank[0], 0, 3, port, "word");
    begin(&rank[1], 1, 3, port, "word");
    while (listeners(&all_loopback) < 2) /* the listeners of ranks 0 and 1 */
        usleep(10000);
    assert_true(all_loopback);
    assert_int_equal(dial_at(2, port), -1); /* another address of this machine */
    begin(&rank[2], 2, 3, port, "word");
    for (int r = 0; r < 3; r++)
        end_well(&rank[r]);
    assert_int_equal(listeners(&all_loopback), 0);
}

/* Rank 0 of job A listens at the port that job B uses too: rank 0 of B cannot listen, rank 1 of B is refused,
 * and job A is not disturbed. */
static void jobs_do_not_mix(void **state)
{
    Rank a[2], b[2];
    int port = next_port();
    (void)state;
    begin(&a[0], 0, 2, port, "job a");
    close(dial(port));
    begin(&b[0], 0, 2, port, "job b");
    end(&b[0]);
    assert_int_equal(b[0].status, DSV_E_IO);
    assert_non_null(strstr(b[0].sentence, "Address already in use"));
    begin_for(&b[1], 1, 2, port, "job b", 2);
    while (!has_said(&a[0], "it belongs to another job"))
        usleep(10000);
    begin(&a[1], 1, 2, port, "job a");
    end_well(&a[0]);
    end_well(&a[1]);
    end(&b[1]);
    assert_int_equal(b[1].status, DSV_E_RANK);
    assert_non_null(strstr(b[1].sentence, "rank 1 gave up after 2 s: it calls rank 0 at 127.0.0.1:"));
}

/* Rank 1 of three ends before rank 2 has connected, after it has sent `bytes` bytes of a frame head. Rank 2
 * gets the failure when it connects. */
static void check_early_end(size_t bytes)
{
    Rank rank[3];
    DsviFrameHead head = {DSVI_FRAME_READY, 0, 0};
    DsviHello hello;
    DsviAnswer answer;
    int port = next_port();
    begin_for(&rank[0], 0, 3, port, "word", 10);
    int doomed = dial_as(port, "word", 1, 3, &hello);
    assert_true(receive_all(doomed, &answer, sizeof answer));
    assert_int_equal(send(doomed, &head, bytes, MSG_NOSIGNAL), bytes);
    close(doomed);
    double until = dsvi_clock_seconds() + 4;
    while (!has_said(&rank[0], "rank 1 has ended before all ranks had met") && dsvi_clock_seconds() < until)
        usleep(10000);
    assert_true(dsvi_clock_seconds() < until);
    begin_for(&rank[2], 2, 3, port, "word", 10);
    end(&rank[2]);
    end(&rank[0]);
    for (int r = 0; r < 3; r += 2) {
        assert_int_equal(rank[r].status, DSV_E_RANK);
        assert_string_equal(rank[r].sentence, "rank 1 has ended before all ranks had met");
        assert_true(rank[r].seconds < 4);
    }
}

static void a_rank_that_ends_early_ends_all(void **state)
{
    (void)state;
    check_early_end(0);
    check_early_end(5);
}

static void when_rank_0_ends_early_all_end(void **state)
{
    Rank rank[3];
    int port = next_port(), listener = socket(AF_INET, SOCK_STREAM, 0), file[2];
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    DsviJobKey key;
    (void)state;
    assert_ok(dsvi_job_key_derive("word", &key));
    assert_int_equal(bind(listener, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(listen(listener, 8), 0);
    for (int r = 1; r < 3; r++) { /* plays a rank 0 that accepts calls and then is killed */
        DsviChallenge challenge;
        DsviHello hello;
        DsviAnswer answer;
        begin(&rank[r], r, 4, port, "word");
        file[r - 1] = accept(listener, NULL, NULL);
        dsvi_challenge_make(&challenge);
        (void)!send(file[r - 1], &challenge, sizeof challenge, MSG_NOSIGNAL);
        assert_true(receive_all(file[r - 1], &hello, sizeof hello));
        dsvi_answer_make(&key, &challenge, &hello, DSVI_CALL_TAKEN, 4, &answer);
        (void)!send(file[r - 1], &answer, sizeof answer, MSG_NOSIGNAL);
    }
    usleep(200000);
    close(listener);
    close(file[0]);
    close(file[1]);
    for (int r = 1; r < 3; r++) {
        end(&rank[r]);
        assert_int_equal(rank[r].status, DSV_E_RANK);
        assert_string_equal(rank[r].sentence, "rank 0 has ended before all ranks had met");
        assert_true(rank[r].seconds < 4);
    }
}

/* Rank 0 or another rank cannot start, before or after the others have called. */
static void ranks_that_cannot_start_report_why(void **state)
{
    (void)state;
    for (int who = 0; who < 2; who++)
        for (int late = 0; late < 2; late++) {
            Rank other;
            int port = next_port();
            DsviMeeting meeting = {.rank = who,
                                   .size = 2,
                                   .address = "127.0.0.1",
                                   .port = port,
                                   .job_key = "w",
                                   .timeout_s = 60};
            begin(&other, 1 - who, 2, port, "w");
            if (late)
                usleep(200000);
            dsvi_tcp_mesh_decline(&meeting, "no key nosuch");
            end(&other);
            assert_int_equal(other.status, DSV_E_RANK);
            assert_string_equal(other.sentence, "no key nosuch");
        }
}

static void wrong_sizes_and_duplicate_ranks_end(void **state)
{
    Rank rank[4];
    int port = next_port();
    (void)state;
    begin(&rank[0], 0, 3, port, "word");
    begin(&rank[1], 1, 3, port, "word");
    usleep(300000);
    begin(&rank[2], 1, 3, port, "word");
    usleep(300000);
    begin(&rank[3], 2, 3, port, "word");
    for (int r = 3; r >= 0; r--) {
        end(&rank[r]);
        assert_non_null(strstr(rank[r].sentence, "two processes were started as rank 1"));
    }
    port = next_port();
    begin(&rank[0], 0, 2, port, "word");
    begin(&rank[1], 2, 4, port, "word");
    for (int r = 1; r >= 0; r--) {
        end(&rank[r]);
        assert_int_equal(rank[r].status, DSV_E_USAGE);
        assert_string_equal(rank[r].sentence, "rank 2 was started with 4 ranks, rank 0 with 2");
    }
}

/* Rank 0 names a missing rank within ten seconds, and so does a rank that cannot reach rank 0. */
static void missing_ranks_are_named(void **state)
{
    Rank first, alone;
    int port = next_port(), nobodys = next_port();
    (void)state;
    begin_for(&first, 0, 4, port, "word", 9);
    begin_for(&alone, 2, 4, nobodys, "word", 9);
    end(&first);
    end(&alone);
    assert_non_null(strstr(first.said, "rank 0 waits at 127.0.0.1:"));
    assert_non_null(strstr(first.said, "for ranks 1 to 3 of 4 to call"));
    assert_non_null(strstr(alone.said, "rank 2 calls rank 0 at 127.0.0.1:"));
    assert_non_null(strstr(alone.said, "Connection refused"));
    assert_non_null(strstr(first.sentence, "rank 0 gave up after 9 s: it waits at "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_callers_do_not_delay),
        cmocka_unit_test(many_callers_do_not_keep_a_rank_out),
        cmocka_unit_test(many_ranks_that_call_at_once_are_all_heard),
        cmocka_unit_test(a_stranger_at_the_second_address_ends_the_call),
        cmocka_unit_test(equal_addresses_are_one),
        cmocka_unit_test(ranks_meet_at_another_loopback_address),
        cmocka_unit_test(strangers_are_dropped),
        cmocka_unit_test(a_replayed_hello_is_dropped),
        cmocka_unit_test(ranks_listen_at_their_address_alone),
        cmocka_unit_test(jobs_do_not_mix),
        cmocka_unit_test(a_rank_that_ends_early_ends_all),
        cmocka_unit_test(when_rank_0_ends_early_all_end),
        cmocka_unit_test(ranks_that_cannot_start_report_why),
        cmocka_unit_test(wrong_sizes_and_duplicate_ranks_end),
        cmocka_unit_test(missing_ranks_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
