/* See comm_cases.h. Test values are functions of (rank, index), so that every rank knows the values of all
 * others. */
#include "comm_cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "local_ranks.h"

#define WORKS(call) DSVI_TRY_GOTO(status, call, done)

enum { RANKS = 16 };

/* Lengths at the limits where comm.c changes its algorithm: 0, 1, small sums, chunks. */
static const int64_t length[] = {0, 1, 5, 511, 1024, 1025, 65536, 65537, 600001};
enum { LENGTHS = sizeof length / sizeof *length };

static double value_of(int64_t rank, int64_t i)
{
    DsviRng rng = {(uint64_t)rank, DSVI_RNG_TEST, 0};
    return dsvi_rng_uniform(rng, (uint64_t)i) - 0.5;
}

/* Ranges of different lengths; some ranks have no items. */
static void ragged_bounds(int64_t n, int64_t size, int64_t *bound)
{
    bound[0] = 0;
    for (int64_t r = 0; r < size; r++)
        bound[r + 1] = r % 3 == 1 ? bound[r] : bound[r] + (n - bound[r]) * (r + 1) / size;
    bound[size] = n;
}

static uint64_t sent_since(const DsviComm *comm, DsviCommSent before)
{
    return dsvi_comm_sent(comm).bytes - before.bytes;
}

/* The expected sum, added in the order of the ranks as dist/comm.h requires. */
static double sum_of(DsviDtype dtype, int64_t size, int64_t i)
{
    double sum = value_of(0, i);
    float sum_f32 = (float)value_of(0, i);
    for (int64_t r = 1; r < size; r++) {
        sum += value_of(r, i);
        sum_f32 += (float)value_of(r, i);
    }
    return dtype == DSVI_F64 ? sum : (double)sum_f32;
}

static void fill(DsviDtype dtype, void *data, int64_t rank, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dsvi_store(dtype, data, i, value_of(rank, i));
}

static uint64_t all_reduce_bytes(int64_t size, int64_t rank, int64_t n, size_t item)
{
    int64_t bound[RANKS + 1];
    if ((size_t)n * item <= 4096)
        return (uint64_t)(size - 1) * (uint64_t)n * item;
    dsvi_comm_even_bounds(n, 16, size, bound);
    int64_t own = bound[rank + 1] - bound[rank];
    return (uint64_t)(n - own + own * (size - 1)) * item;
}

static DsvStatus all_reduce_of(DsviComm *comm, DsviDtype dtype, int64_t n)
{
    DsvStatus status = DSV_OK;
    size_t item = dsvi_dtype_size(dtype);
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    DsviCommSent before = dsvi_comm_sent(comm);
    unsigned char *data = malloc((size_t)n * item + 1);
    data[(size_t)n * item] = 0xa5;
    fill(dtype, data, rank, n);
    WORKS(dsvi_comm_all_reduce(comm, dtype, data, n));
    for (int64_t i = 0; i < n; i++)
        EXPECT(dsvi_load(dtype, data, i) == sum_of(dtype, size, i));
    EXPECT(data[(size_t)n * item] == 0xa5);
    EXPECT(sent_since(comm, before) == all_reduce_bytes(size, rank, n, item));
done:
    free(data);
    return status;
}

static DsvStatus all_reduce(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < LENGTHS; i++) {
        DSVI_TRY(all_reduce_of(comm, DSVI_F32, length[i]));
        DSVI_TRY(all_reduce_of(comm, DSVI_F64, length[i]));
    }
    return DSV_OK;
}

static DsvStatus reduce_scatter_of(DsviComm *comm, int64_t n)
{
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm), bound[RANKS + 1];
    DsviCommSent before = dsvi_comm_sent(comm);
    float *data = malloc((size_t)n * sizeof *data + 1);
    ragged_bounds(n, size, bound);
    fill(DSVI_F32, data, rank, n);
    WORKS(dsvi_comm_reduce_scatter(comm, DSVI_F32, data, bound));
    for (int64_t i = 0; i < n; i++) {
        bool own = bound[rank] <= i && i < bound[rank + 1];
        EXPECT(data[i] == (own ? (float)sum_of(DSVI_F32, size, i) : (float)value_of(rank, i)));
    }
    EXPECT(sent_since(comm, before) == (uint64_t)(n - bound[rank + 1] + bound[rank]) * sizeof *data);
done:
    free(data);
    return status;
}

static DsvStatus reduce_scatter(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < LENGTHS; i++)
        DSVI_TRY(reduce_scatter_of(comm, length[i]));
    return DSV_OK;
}

enum { TO_ALL = -1, TO_ALL_FROM_ELSEWHERE = -2 };

/* Gathers items of 12 bytes on rank `root`, or on all ranks if root is negative. */
static DsvStatus gather_of(DsviComm *comm, int64_t root, int64_t n)
{
    typedef struct Item {
        int32_t rank, place, rest;
    } Item;
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm), bound[RANKS + 1];
    DsviCommSent before = dsvi_comm_sent(comm);
    Item *data = calloc((size_t)n + 1, sizeof *data), *elsewhere = calloc((size_t)n + 1, sizeof *data);
    ragged_bounds(n, size, bound);
    Item *own = root == TO_ALL_FROM_ELSEWHERE ? elsewhere : data + bound[rank];
    for (int64_t i = bound[rank]; i < bound[rank + 1]; i++)
        own[i - bound[rank]] = (Item){(int32_t)rank, (int32_t)i, 7};
    if (root == TO_ALL_FROM_ELSEWHERE)
        WORKS(dsvi_comm_all_gather_from(comm, own, data, sizeof *data, bound));
    else
        WORKS(root == TO_ALL ? dsvi_comm_all_gather(comm, data, sizeof *data, bound)
                             : dsvi_comm_gather(comm, root, data, sizeof *data, bound));
    for (int64_t r = 0; r < size; r++)
        for (int64_t i = bound[r]; i < bound[r + 1]; i++) {
            bool here = root < 0 || rank == root || rank == r;
            EXPECT(data[i].rest == (here ? 7 : 0));
            EXPECT(!here || (data[i].rank == r && data[i].place == i));
        }
    EXPECT(data[n].rest == 0);
    int64_t to = root < 0 ? size - 1 : rank != root;
    EXPECT(sent_since(comm, before) == (uint64_t)(to * (bound[rank + 1] - bound[rank])) * sizeof *data);
done:
    free(elsewhere);
    free(data);
    return status;
}

static DsvStatus gather(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t root = TO_ALL_FROM_ELSEWHERE; root < dsvi_comm_size(comm); root++)
            DSVI_TRY(gather_of(comm, root, length[i]));
    return DSV_OK;
}

static DsvStatus scatter_of(DsviComm *comm, int64_t root, int64_t n)
{
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm), bound[RANKS + 1];
    DsviCommSent before = dsvi_comm_sent(comm);
    int64_t *data = calloc((size_t)n + 1, sizeof *data);
    ragged_bounds(n, size, bound);
    for (int64_t i = 0; i < n && rank == root; i++)
        data[i] = i + 1;
    WORKS(dsvi_comm_scatter(comm, root, data, sizeof *data, bound));
    for (int64_t i = 0; i <= n; i++) {
        bool here = i < n && (rank == root || (i >= bound[rank] && i < bound[rank + 1]));
        EXPECT(data[i] == (here ? i + 1 : 0));
    }
    int64_t sent = rank == root ? n - (bound[rank + 1] - bound[rank]) : 0;
    EXPECT(sent_since(comm, before) == (uint64_t)sent * sizeof *data);
done:
    free(data);
    return status;
}

static DsvStatus scatter(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t root = 0; root < dsvi_comm_size(comm); root++)
            DSVI_TRY(scatter_of(comm, root, length[i]));
    return DSV_OK;
}

static DsvStatus broadcast_of(DsviComm *comm, int64_t root, int64_t n)
{
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm), bound[RANKS + 1];
    DsviCommSent before = dsvi_comm_sent(comm);
    unsigned char *data = malloc((size_t)n + 1);
    for (int64_t i = 0; i <= n; i++)
        data[i] = (unsigned char)(rank == root ? i * 7 % 251 : 0xee);
    data[n] = 0x3c;
    WORKS(dsvi_comm_broadcast(comm, root, data, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        EXPECT(data[i] == i * 7 % 251);
    EXPECT(data[n] == 0x3c);
    dsvi_comm_even_bounds(n, 64, size, bound);
    int64_t own = bound[rank + 1] - bound[rank];
    EXPECT(sent_since(comm, before) == (uint64_t)((rank == root ? n - own : 0) + own * (size - 1)));
done:
    free(data);
    return status;
}

static DsvStatus broadcast(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < LENGTHS; i++)
        for (int64_t root = 0; root < dsvi_comm_size(comm); root++)
            DSVI_TRY(broadcast_of(comm, root, length[i]));
    return DSV_OK;
}

/* Number of ints that rank `from` sends to rank `to`; 0 for some pairs. */
static int64_t traffic(int64_t from, int64_t to)
{
    return (from * 5 + to * 3) % 7 * 1001;
}

static DsvStatus exchange(DsviComm *comm, void *ignored)
{
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    DsviPiece send[RANKS] = {{0}}, receive[RANKS] = {{0}};
    DsviCommSent before = dsvi_comm_sent(comm);
    uint64_t bytes = 0, messages = 0;
    (void)ignored;
    for (int64_t r = 0; r < size; r++) {
        send[r].bytes = (size_t)traffic(rank, r) * sizeof(int32_t);
        receive[r].bytes = (size_t)traffic(r, rank) * sizeof(int32_t);
        send[r].data = malloc(send[r].bytes + 1);
        receive[r].data = malloc(receive[r].bytes + 1);
        for (int64_t i = 0; i < traffic(rank, r); i++)
            ((int32_t *)send[r].data)[i] = (int32_t)(rank * 100 + r + i);
        bytes += r == rank ? 0 : send[r].bytes;
        messages += r != rank && send[r].bytes > 0;
    }
    WORKS(dsvi_comm_exchange(comm, send, receive));
    for (int64_t r = 0; r < size; r++)
        for (int64_t i = 0; i < traffic(r, rank); i++)
            EXPECT(((int32_t *)receive[r].data)[i] == r * 100 + rank + i);
    EXPECT(sent_since(comm, before) == bytes);
    EXPECT(dsvi_comm_sent(comm).messages - before.messages == messages);
done:
    for (int64_t r = 0; r < size; r++) {
        free(send[r].data);
        free(receive[r].data);
    }
    return status;
}

/* Passes data once around the ring, so that every rank ends with its own data. */
static DsvStatus swap(DsviComm *comm, void *ignored)
{
    enum { N = 3001 };
    static const size_t BYTES = N * sizeof(float);
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    float *now = malloc(BYTES), *next = malloc(BYTES);
    (void)ignored;
    fill(DSVI_F32, now, rank, N);
    for (int64_t step = 1; step <= size; step++) {
        WORKS(dsvi_comm_send_receive(comm, (rank + 1) % size, (DsviPiece){now, BYTES},
                                     (rank + size - 1) % size, (DsviPiece){next, BYTES}));
        for (int64_t i = 0; i < N; i++)
            EXPECT(next[i] == (float)value_of((rank + size - step) % size, i));
        float *other = now;
        now = next;
        next = other;
    }
done:
    free(now);
    free(next);
    return status;
}

/* Sums over subgroups and over their subgroups, with calls of the large group between them. */
static DsvStatus split(DsviComm *comm, void *ignored)
{
    DsvStatus status = DSV_OK;
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    DsviComm *half = NULL, *quarter = NULL;
    (void)ignored;
    for (int round = 0; round < 3; round++) {
        double number = (double)rank, expected = 0, all = (double)rank;
        int64_t members = 0;
        WORKS(dsvi_comm_split(comm, rank % 2 + 10, &half));
        for (int64_t r = rank % 2; r < size; r += 2, members++)
            expected += (double)r;
        EXPECT(dsvi_comm_size(half) == members);
        EXPECT(dsvi_comm_rank(half) == rank / 2);
        WORKS(dsvi_comm_all_reduce(half, DSVI_F64, &number, 1));
        EXPECT(number == expected);
        WORKS(dsvi_comm_all_reduce(comm, DSVI_F64, &all, 1));
        EXPECT(all == (double)(size * (size - 1) / 2));
        WORKS(dsvi_comm_split(half, dsvi_comm_rank(half) / 2, &quarter));
        number = 1;
        WORKS(dsvi_comm_all_reduce(quarter, DSVI_F64, &number, 1));
        EXPECT(number == (double)dsvi_comm_size(quarter));
        EXPECT(number <= 2);
        dsvi_comm_close(&quarter);
        dsvi_comm_close(&half);
    }
done:
    dsvi_comm_close(&quarter);
    dsvi_comm_close(&half);
    return status;
}

enum { ROUNDS = 40, SUMMED = 30011 };

/* Repeats sums over a group; each sum has other values. */
static DsvStatus sum_on(DsviComm *comm)
{
    DsvStatus status = DSV_OK;
    double *number = malloc(SUMMED * sizeof *number);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SUMMED; i++)
            number[i] = i + round;
        WORKS(dsvi_comm_all_reduce(comm, DSVI_F64, number, SUMMED));
        for (int i = 0; i < SUMMED; i++)
            EXPECT(number[i] == (double)((i + round) * dsvi_comm_size(comm)));
    }
done:
    free(number);
    return status;
}

typedef struct SecondThread {
    DsviComm *comm;
    DsvStatus status;
} SecondThread;

static void *sum_in_thread(void *context)
{
    SecondThread *other = context;
    other->status = sum_on(other->comm);
    return NULL;
}

/* Two threads of each rank use two groups concurrently. */
static DsvStatus groups_at_once(DsviComm *comm, void *ignored)
{
    DsviComm *pair;
    pthread_t thread;
    SecondThread other = {.comm = comm};
    (void)ignored;
    DSVI_TRY(dsvi_comm_split(comm, dsvi_comm_rank(comm) / 2, &pair));
    bool second = dsvi_comm_is_concurrent(comm) && pthread_create(&thread, NULL, sum_in_thread, &other) == 0;
    DsvStatus status = sum_on(pair);
    if (second)
        pthread_join(thread, NULL);
    dsvi_comm_close(&pair);
    return status == DSV_OK ? other.status : status;
}

static DsvStatus barrier(DsviComm *comm, void *ignored)
{
    (void)ignored;
    for (int i = 0; i < 100; i++)
        DSVI_TRY(dsvi_comm_barrier(comm));
    return DSV_OK;
}

DsvStatus comm_lengths_differ(DsviComm *comm, void *ignored)
{
    unsigned char data[8];
    DsviPiece send[2] = {{data, 3}, {data, 3}}, receive[2] = {{data + 4, 3}, {data + 4, 3}};
    (void)ignored;
    receive[1 - dsvi_comm_rank(comm)].bytes = dsvi_comm_rank(comm) == 0 ? 4 : 3;
    return dsvi_comm_exchange(comm, send, receive);
}

const CommCase comm_cases[] = {
    {"exchange", exchange},
    {"swap", swap},
    {"gather", gather},
    {"scatter", scatter},
    {"broadcast", broadcast},
    {"reduce_scatter", reduce_scatter},
    {"all_reduce", all_reduce},
    {"split", split},
    {"groups_at_once", groups_at_once},
    {"barrier", barrier},
    {NULL, NULL},
};
