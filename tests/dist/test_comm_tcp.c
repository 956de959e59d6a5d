/* Groups of ranks that are connected by TCP (threads of this process): every call against plain loops, and
 * how the other ranks react to a rank that fails, is late, ends, or was started with other parameters. */
#include "test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm_cases.h"
#include "dist/comm_tcp.h"
#include "dist/tcp_frame.h"
#include "local_ranks.h"

/* Returns another port for each group, because the system may block a used port for some time. */
static int next_port(void)
{
    static int used;
    return 20000 + (getpid() * 37 + used++ * 7) % 12000; /* below the ports that the system assigns */
}

typedef struct TcpCase {
    rank_fn *fn;
    int port;
    double timeout_s;
} TcpCase;

/* The parameters of a rank, with the job key of these tests. */
static DsviMeeting meeting_of(int64_t rank, int64_t size, const char *address, int port, double timeout_s)
{
    return (DsviMeeting){.rank = rank,
                         .size = size,
                         .address = address,
                         .port = port,
                         .job_key = "a word",
                         .timeout_s = timeout_s};
}

static DsvStatus create(int64_t rank, int64_t size, const char *address, int port, double timeout_s,
                        DsviComm **comm)
{
    DsviMeeting meeting = meeting_of(rank, size, address, port, timeout_s);
    return dsvi_comm_tcp_create(&meeting, comm);
}

/* Connects a rank over TCP; the group of threads only gives its number. */
static DsvStatus over_tcp(DsviComm *thread, void *context)
{
    const TcpCase *c = context;
    DsviComm *comm;
    DSVI_TRY(
        create(dsvi_comm_rank(thread), dsvi_comm_size(thread), "localhost", c->port, c->timeout_s, &comm));
    DsvStatus status = dsvi_comm_fail(comm, c->fn(comm, NULL));
    dsvi_comm_close(&comm);
    return status;
}

static void run(int64_t size, double timeout_s, rank_fn *fn, RankOutcome *outcome)
{
    TcpCase c = {fn, next_port(), timeout_s};
    run_ranks(size, 60, over_tcp, &c, outcome);
}

static void calls(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    for (int64_t size = 1; size <= 5; size++)
        for (const CommCase *c = comm_cases; c->name; c++) {
            run(size, 60, c->run, outcome);
            for (int64_t r = 0; r < size; r++)
                if (outcome[r].status != DSV_OK)
                    fail_msg("%s, rank %d of %d: %s", c->name, (int)r, (int)size, outcome[r].sentence);
        }
}

/* Sends more than all socket buffers hold, in both directions at once. */
static DsvStatus much_at_once(DsviComm *comm, void *context)
{
    enum { BYTES = 48 << 20 };
    int64_t rank = dsvi_comm_rank(comm);
    unsigned char *data = malloc(2 * (size_t)BYTES);
    DsviPiece send[2] = {{data, BYTES}, {data, BYTES}}, receive[2] = {{data + BYTES, BYTES}, {data, BYTES}};
    (void)context;
    memset(data, (int)rank + 1, BYTES);
    receive[rank] = send[rank];
    receive[1 - rank].data = data + BYTES;
    DsvStatus status = dsvi_comm_exchange(comm, send, receive);
    for (size_t i = 0; i < BYTES && status == DSV_OK; i += 997)
        if (data[BYTES + i] != 2 - rank)
            status = DSVI_FAIL(DSV_E_INTERNAL, "byte %zu is %d", i, data[BYTES + i]);
    free(data);
    return status;
}

static void large_messages(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run(2, 60, much_at_once, outcome);
    for (int r = 0; r < 2; r++)
        if (outcome[r].status != DSV_OK)
            fail_msg("rank %d: %s", r, outcome[r].sentence);
}

static DsvStatus second_fails(DsviComm *comm, void *context)
{
    DsvStatus status = dsvi_comm_barrier(comm);
    (void)context;
    if (dsvi_comm_rank(comm) == 1)
        return DSVI_FAIL(DSV_E_IO, "the disk is full");
    while (status == DSV_OK)
        status = dsvi_comm_barrier(comm);
    return status;
}

/* Ends without a message, like a killed process. */
static DsvStatus second_ends(DsviComm *comm, void *context)
{
    (void)context;
    DSVI_TRY(dsvi_comm_barrier(comm));
    return dsvi_comm_rank(comm) == 1 ? DSV_OK : dsvi_comm_barrier(comm);
}

static DsvStatus second_is_late(DsviComm *comm, void *context)
{
    (void)context;
    DSVI_TRY(dsvi_comm_barrier(comm));
    if (dsvi_comm_rank(comm) == 1) {
        usleep(4000000);
        return DSV_OK;
    }
    return dsvi_comm_barrier(comm);
}

/* Rank 1 fails while ranks 0 and 2 exchange data in a subgroup without it. */
static DsvStatus fails_elsewhere(DsviComm *comm, void *context)
{
    DsviComm *group;
    (void)context;
    DSVI_TRY(dsvi_comm_split(comm, dsvi_comm_rank(comm) == 1, &group));
    DsvStatus status = DSV_OK;
    if (dsvi_comm_rank(comm) == 1)
        status = DSVI_FAIL(DSV_E_IO, "the disk is full");
    while (status == DSV_OK)
        status = dsvi_comm_barrier(group);
    dsvi_comm_close(&group);
    return status;
}

static void *fail_soon(void *comm)
{
    usleep(100000);
    (void)dsvi_comm_fail(comm, DSVI_FAIL(DSV_E_IO, "the disk is full"));
    return NULL;
}

/* Rank 1 fails in one thread while another thread is sending a message that rank 0 receives slowly. */
static DsvStatus fails_within_a_message(DsviComm *comm, void *context)
{
    enum { BYTES = 32 << 20 };
    pthread_t thread;
    char *data = calloc(1, BYTES);
    int64_t rank = dsvi_comm_rank(comm);
    DsviPiece send[2] = {{0}}, receive[2] = {{0}};
    (void)context;
    send[0] = (DsviPiece){data, rank == 1 ? BYTES : 0};
    receive[1] = (DsviPiece){data, rank == 0 ? BYTES : 0};
    DsvStatus status = dsvi_comm_barrier(comm);
    if (rank == 1)
        pthread_create(&thread, NULL, fail_soon, comm);
    else
        usleep(1600000); /* an overloaded machine stops a rank for so long */
    if (status == DSV_OK)
        status = dsvi_comm_exchange(comm, send, receive);
    while (status == DSV_OK)
        status = dsvi_comm_barrier(comm);
    if (rank == 1)
        pthread_join(thread, NULL);
    free(data);
    return status;
}

static void a_failure_within_a_message_is_understood(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run(2, 60, fails_within_a_message, outcome);
    for (int r = 0; r < 2; r++)
        assert_string_equal(outcome[r].sentence, "rank 1: the disk is full");
}

enum { LONG_MESSAGE = 32 << 20 }; /* more than the buffers of a connection hold */

/* Rank 0 of a group, in an exchange with a rank 1 that the test plays on a plain socket. */
typedef struct Lone {
    int port;
    int64_t receives;  /* bytes that rank 0 expects from rank 1 in the exchange */
    bool fails, again; /* another thread reports a failure; a second exchange follows */
    DsvStatus status;
    double cpu_s; /* duration of the exchange */
    char sentence[DSVI_MESSAGE_BYTES];
} Lone;

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *be_rank_0(void *context)
{
    Lone *lone = context;
    DsviComm *comm;
    pthread_t thread;
    char *data = calloc(1, LONG_MESSAGE), *ones = malloc(4096), in[64];
    DsviPiece send[2] = {{0}, {data, LONG_MESSAGE}}, receive[2] = {{0}, {in, (size_t)lone->receives}};
    DsviPiece more[2] = {{0}, {ones, 4096}}, nothing[2] = {{0}};
    memset(ones, 1, 4096);
    lone->status = create(0, 2, "127.0.0.1", lone->port, 60, &comm);
    if (lone->status == DSV_OK) {
        if (lone->fails)
            pthread_create(&thread, NULL, fail_soon, comm);
        double begin = cpu_seconds();
        lone->status = dsvi_comm_exchange(comm, send, receive);
        lone->cpu_s = cpu_seconds() - begin;
        snprintf(lone->sentence, sizeof lone->sentence, "%s", dsv_error_message());
        (void)dsvi_comm_fail(comm, lone->status);
        if (lone->again)
            (void)dsvi_comm_exchange(comm, more, nothing);
        if (lone->fails)
            pthread_join(thread, NULL);
        dsvi_comm_close(&comm);
    }
    free(data);
    free(ones);
    return NULL;
}

/* Starts rank 0 and returns the socket of rank 1. */
static int begin_lone(Lone *lone, pthread_t *thread)
{
    int socket[2];
    lone->port = next_port();
    DsviMeeting meeting = meeting_of(1, 2, "127.0.0.1", lone->port, 60);
    assert_int_equal(pthread_create(thread, NULL, be_rank_0, lone), 0);
    assert_ok(dsvi_tcp_mesh_connect(&meeting, socket));
    return socket[0];
}

/* Receives until the connection ends, at most `room` bytes. Returns their number. */
static size_t receive_until_end(int file, unsigned char *data, size_t room)
{
    size_t got = 0;
    struct pollfd poller = {file, POLLIN, 0};
    while (got < room && poll(&poller, 1, 20000) > 0) {
        ssize_t more = recv(file, data + got, room - got, 0);
        if (more <= 0)
            break;
        got += (size_t)more;
    }
    return got;
}

/* Rank 1 sends an unexpected frame while rank 0 is sending a message to it: rank 0 completes the message, and
 * then reports the error. */
static void a_wrong_frame_within_a_message_is_answered(void **state)
{
    Lone lone = {.receives = 8};
    pthread_t thread;
    DsviFrameHead wrong = {DSVI_FRAME_DATA, 0, 9}, head;
    size_t room = LONG_MESSAGE + 4096, message = sizeof head + LONG_MESSAGE;
    unsigned char *data = malloc(room);
    (void)state;
    int file = begin_lone(&lone, &thread);
    usleep(100000);
    assert_int_equal(send(file, &wrong, sizeof wrong, MSG_NOSIGNAL), sizeof wrong);
    usleep(200000);
    size_t got = receive_until_end(file, data, room);
    pthread_join(thread, NULL);
    assert_int_equal(lone.status, DSV_E_INTERNAL);
    assert_non_null(strstr(lone.sentence, "rank 1 sends 9 bytes"));
    assert_true(got > message + sizeof head);
    memcpy(&head, data + message, sizeof head);
    assert_int_equal(head.kind, DSVI_FRAME_FAILURE);
    close(file);
    free(data);
}

/* Rank 1 ends while rank 0 completes a message to it after a failure: rank 0 must not wait in a busy loop. */
static void a_rank_that_ends_within_the_last_message_causes_no_busy_wait(void **state)
{
    Lone lone = {.fails = true};
    pthread_t thread;
    (void)state;
    int file = begin_lone(&lone, &thread);
    usleep(250000);
    close(file);
    pthread_join(thread, NULL);
    assert_int_equal(lone.status, DSV_E_RANK);
    assert_true(lone.cpu_s < 0.35);
}

/* A message that could not be completed in time is not continued with the bytes of a later message. */
static void a_later_message_is_not_part_of_an_earlier_one(void **state)
{
    Lone lone = {.fails = true, .again = true};
    pthread_t thread;
    size_t room = LONG_MESSAGE + 4096, ones = 0;
    unsigned char *data = malloc(room);
    (void)state;
    int file = begin_lone(&lone, &thread);
    usleep(3500000); /* longer than rank 0 waits for the end of its message */
    size_t got = receive_until_end(file, data, room);
    pthread_join(thread, NULL);
    for (size_t i = sizeof(DsviFrameHead); i < got; i++)
        ones += data[i] != 0;
    assert_int_equal(ones, 0);
    close(file);
    free(data);
}

static void a_failure_of_one_ends_all(void **state)
{
    static const struct {
        rank_fn *fn;
        double timeout_s;
        const char *sentence;
    } endings[] = {
        {second_fails, 60, "rank 1: the disk is full"},
        {second_ends, 60, "rank 1 has ended, and others wait for it in barrier"},
        {second_is_late, 2, "rank 1 has not come to barrier for 2 s"},
        {fails_elsewhere, 60, "rank 1: the disk is full"},
    };
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        run(3, endings[i].timeout_s, endings[i].fn, outcome);
        for (int r = 0; r < 3; r += 2) {
            assert_int_equal(outcome[r].status, DSV_E_RANK);
            assert_string_equal(outcome[r].sentence, endings[i].sentence);
        }
    }
}

/* A rank that the test plays on plain sockets: how it meets the other two. */
typedef struct Played {
    int64_t rank;
    int port;
    DsvStatus status;
    int socket[3];
} Played;

static void *meet(void *context)
{
    Played *played = context;
    DsviMeeting meeting = meeting_of(played->rank, 3, "127.0.0.1", played->port, 60);
    played->status = dsvi_tcp_mesh_connect(&meeting, played->socket);
    return NULL;
}

/* Rank 0 of three, which waits for a message from rank 2. */
static void *wait_for_rank_2(void *context)
{
    Lone *lone = context;
    DsviComm *comm;
    char in[8];
    DsviPiece send[3] = {{0}}, receive[3] = {{0}, {0}, {in, sizeof in}};
    lone->status = create(0, 3, "127.0.0.1", lone->port, 60, &comm);
    if (lone->status != DSV_OK)
        return NULL;
    lone->status = dsvi_comm_exchange(comm, send, receive);
    snprintf(lone->sentence, sizeof lone->sentence, "%s", dsv_error_message());
    dsvi_comm_close(&comm);
    return NULL;
}

/* Rank 1 reports a failure to rank 0 only. Rank 0 passes the report on to rank 2 before its connection ends,
 * so that rank 2 does not take the end of rank 0 for the failure. */
static void a_report_is_passed_on(void **state)
{
    static const char reason[] = "rank 1: the disk is full";
    Lone lone = {.port = next_port()};
    Played one = {.rank = 1, .port = lone.port}, two = {.rank = 2, .port = lone.port};
    pthread_t zero, meeting;
    DsviFrameHead head;
    unsigned char data[1024];
    (void)state;
    assert_int_equal(pthread_create(&zero, NULL, wait_for_rank_2, &lone), 0);
    assert_int_equal(pthread_create(&meeting, NULL, meet, &one), 0);
    meet(&two);
    pthread_join(meeting, NULL);
    assert_ok(one.status);
    assert_ok(two.status);
    assert_true(dsvi_frame_send(one.socket[0], DSVI_FRAME_FAILURE, reason, strlen(reason)));
    size_t got = receive_until_end(two.socket[0], data, sizeof data);
    pthread_join(zero, NULL);
    assert_int_equal(lone.status, DSV_E_RANK);
    assert_string_equal(lone.sentence, reason);
    assert_int_equal(got, sizeof head + strlen(reason));
    memcpy(&head, data, sizeof head);
    assert_int_equal(head.kind, DSVI_FRAME_FAILURE);
    assert_memory_equal(data + sizeof head, reason, strlen(reason));
    for (int r = 0; r < 3; r++) {
        if (r != 1)
            close(one.socket[r]);
        if (r != 2)
            close(two.socket[r]);
    }
}

static void different_lengths_are_reported(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    (void)state;
    run(2, 60, comm_lengths_differ, outcome);
    assert_int_equal(outcome[0].status, DSV_E_INTERNAL);
    assert_non_null(strstr(outcome[0].sentence, "rank 1 sends 3 bytes"));
}

/* All ranks except rank 0 are given a group size that is too large by one. */
static DsvStatus with_wrong_size(DsviComm *thread, void *context)
{
    DsviComm *comm;
    int64_t rank = dsvi_comm_rank(thread);
    DsvStatus status = create(rank, rank == 0 ? 2 : 3, "localhost", *(int *)context, 3, &comm);
    dsvi_comm_close(&comm);
    return status;
}

static void ranks_need_equal_parameters(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    int port = next_port();
    DsviComm *comm;
    (void)state;
    run_ranks(2, 60, with_wrong_size, &port, outcome);
    assert_int_equal(outcome[0].status, DSV_E_USAGE);
    assert_string_equal(outcome[0].sentence, "rank 1 was started with 3 ranks, rank 0 with 2");
    assert_int_equal(outcome[1].status, DSV_E_USAGE);
    assert_string_equal(outcome[1].sentence, "rank 1 was started with 3 ranks, rank 0 with 2");
    assert_fails(DSV_E_RANK, "rank 1 gave up after 0.2 s: it calls rank 0 at ",
                 create(1, 2, "localhost", next_port(), 0.2, &comm));
    assert_fails(DSV_E_RANK, "of 2 to call", create(0, 2, "localhost", next_port(), 0.2, &comm));
    assert_fails(DSV_E_NOT_FOUND, "cannot resolve host name nowhere.invalid",
                 create(1, 2, "nowhere.invalid", next_port(), 0.2, &comm));
}

/* A stranger connects and sends other bytes; then the expected rank connects. */
static DsvStatus with_a_stranger(DsviComm *thread, void *context)
{
    DsviComm *comm;
    int64_t rank = dsvi_comm_rank(thread);
    if (rank == 1) {
        struct sockaddr_in place = {
            .sin_family = AF_INET,
            .sin_port = htons((uint16_t) * (int *)context),
            .sin_addr = {htonl(INADDR_LOOPBACK)},
        };
        int stranger = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(stranger, (struct sockaddr *)&place, sizeof place) != 0)
            usleep(10000);
        (void)!write(stranger, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35);
        close(stranger);
    }
    DSVI_TRY(create(rank, 2, "127.0.0.1", *(int *)context, 30, &comm));
    DsvStatus status = dsvi_comm_barrier(comm);
    dsvi_comm_close(&comm);
    return status;
}

static void strangers_are_ignored(void **state)
{
    int port = next_port();
    (void)state;
    run_ranks_well(2, with_a_stranger, &port);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls),
        cmocka_unit_test(large_messages),
        cmocka_unit_test(a_failure_of_one_ends_all),
        cmocka_unit_test(a_report_is_passed_on),
        cmocka_unit_test(a_failure_within_a_message_is_understood),
        cmocka_unit_test(a_wrong_frame_within_a_message_is_answered),
        cmocka_unit_test(a_rank_that_ends_within_the_last_message_causes_no_busy_wait),
        cmocka_unit_test(a_later_message_is_not_part_of_an_earlier_one),
        cmocka_unit_test(different_lengths_are_reported),
        cmocka_unit_test(ranks_need_equal_parameters),
        cmocka_unit_test(strangers_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
