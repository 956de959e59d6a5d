/* Measures transfers between the ranks of a cp group (link_times.h). */
#include "cp/link_times.h"

#include <math.h>
#include <stdlib.h>

#include "cp/cp_internal.h"

enum { REPEATS = 5, BYTES_MIN = 1 << 16, GROWTH = 8 };

/* Kinds of transfer that are timed. EXCHANGE: all-to-all. SWAP: send to the next rank, receive from the
 * previous one. */
typedef enum Transfer { EXCHANGE, SWAP } Transfer;

typedef struct Bench {
    const DsviCpGroup *group;
    DsviDevice *device;
    char *memory;              /* send buffer, then receive buffer */
    size_t room;               /* bytes of each buffer */
    DsviPiece *send, *receive; /* (ranks) */
    double *seconds;           /* (ranks, REPEATS) */
} Bench;

/* Does one transfer in which every rank of `comm` sends and receives `bytes` bytes in total. */
static DsvStatus link_times_transfer(const Bench *b, Transfer kind, DsviComm *comm, size_t bytes)
{
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    if (kind == SWAP)
        return dsvi_comm_send_receive(comm, (rank + 1) % size, (DsviPiece){b->memory, bytes},
                                      (rank + size - 1) % size, (DsviPiece){b->memory + b->room, bytes});
    size_t piece = bytes / (size_t)(size - 1);
    for (int64_t r = 0; r < size; r++) {
        size_t place = (size_t)(r - (r > rank)) * piece;
        b->send[r] = (DsviPiece){b->memory + place, r == rank ? 0 : piece};
        b->receive[r] = (DsviPiece){b->memory + b->room + place, r == rank ? 0 : piece};
    }
    return dsvi_comm_exchange(comm, b->send, b->receive);
}

static int link_times_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Gathers the measured times from all ranks. Sets *seconds to the median over repeated calls of the slowest
 * rank's time. */
static DsvStatus link_times_agree(const Bench *b, double *seconds)
{
    double slowest[REPEATS] = {0};
    DSVI_TRY(dsvi_comm_all_gather_one(b->group->host, b->seconds, REPEATS * sizeof(double)));
    for (int64_t r = 0; r < b->group->size; r++)
        for (int i = 0; i < REPEATS; i++)
            slowest[i] = fmax(slowest[i], b->seconds[r * REPEATS + i]);
    qsort(slowest, REPEATS, sizeof *slowest, link_times_ascending);
    *seconds = slowest[REPEATS / 2];
    return DSV_OK;
}

static DsvStatus link_times_time_transfer(const Bench *b, Transfer kind, DsviComm *comm, size_t bytes,
                                          double *seconds)
{
    for (int i = -1; i < REPEATS; i++) {
        double begin, end;
        DSVI_TRY(dsvi_comm_barrier(b->group->host));
        DSVI_TRY(b->device->clock(b->device->stream, &begin));
        DSVI_TRY(link_times_transfer(b, kind, comm, bytes));
        DSVI_TRY(b->device->clock(b->device->stream, &end));
        if (i >= 0)
            b->seconds[b->group->rank * REPEATS + i] = end - begin;
    }
    return link_times_agree(b, seconds);
}

/* Times transfers of growing size and appends them to `curve`. If more bytes took less time than fewer
 * bytes, this is noise, and the larger time is used. */
static DsvStatus time_sizes(const Bench *b, Transfer kind, DsviComm *comm, DsviPriceCurve *curve)
{
    double seconds, largest = 0;
    *curve = (DsviPriceCurve){.count = 0};
    for (size_t bytes = BYTES_MIN; bytes <= b->room; bytes *= GROWTH) {
        DSVI_TRY(link_times_time_transfer(b, kind, comm, bytes, &seconds));
        largest = fmax(largest, seconds);
        dsvi_price_add(curve, (double)bytes, largest);
        if (bytes < b->room && bytes * GROWTH > b->room)
            bytes = b->room / GROWTH; /* the last size is b->room */
    }
    return DSV_OK;
}

/* Times transfers in the head groups and in the sequence groups of `ranks` ranks, if the cp group has
 * communicators for these groups. */
static DsvStatus time_degree(const Bench *b, int64_t ranks, DsviCpCosts *costs)
{
    const DsviCpGroup *group = b->group;
    const DsviCpFactor *heads = dsvi_cp_factor(group, ranks);
    const DsviCpFactor *sequence = dsvi_cp_factor(group, group->size / ranks);
    DsviComm *all = ranks == group->size ? group->device : NULL;
    DsviComm *near = heads ? heads->head_device : all, *apart = sequence ? sequence->sequence_device : all;
    DsviLinkCost *link = &costs->link[costs->link_count];
    if (!near && !apart)
        return DSV_OK;
    costs->link_count++;
    *link = (DsviLinkCost){.ranks = ranks};
    if (near)
        DSVI_TRY(time_sizes(b, EXCHANGE, near, &link->head_exchange));
    if (apart)
        DSVI_TRY(time_sizes(b, EXCHANGE, apart, &link->sequence_exchange));
    return apart ? time_sizes(b, SWAP, apart, &link->sequence_swap) : DSV_OK;
}

/* Times a copy in device memory and sets *touch to the seconds per byte read or written. */
static DsvStatus time_copy(const Bench *b, double *touch)
{
    double seconds;
    for (int i = -1; i < REPEATS; i++) {
        double begin, end;
        DSVI_TRY(b->device->clock(b->device->stream, &begin));
        DSVI_TRY(b->device->copy(b->device->stream, b->memory, b->memory + b->room, b->room));
        DSVI_TRY(b->device->clock(b->device->stream, &end));
        if (i >= 0)
            b->seconds[b->group->rank * REPEATS + i] = end - begin;
    }
    DSVI_TRY(link_times_agree(b, &seconds));
    *touch = seconds / (2 * (double)b->room);
    return DSV_OK;
}

static DsvStatus time_all(Bench *b, DsviCpCosts *costs)
{
    const DsviCpGroup *group = b->group;
    DSVI_TRY(time_copy(b, &costs->touch));
    for (int64_t ranks = 2; ranks <= group->size && costs->link_count < DSVI_DEGREES_MAX; ranks++)
        if (group->size % ranks == 0)
            DSVI_TRY(time_degree(b, ranks, costs));
    return DSV_OK;
}

/* Allocates the send and receive buffers of b->room bytes each. Reduces b->room to what every rank can
 * allocate. */
static DsvStatus allocate_buffers(Bench *b, void **memory)
{
    DsvStatus status = b->device->mem_alloc(b->device, 2 * b->room, memory);
    while (status == DSV_E_NO_MEMORY && b->room > BYTES_MIN) {
        b->room = b->room / 2 / BYTES_MIN * BYTES_MIN;
        status = b->device->mem_alloc(b->device, 2 * b->room, memory);
    }
    DSVI_TRY(status);
    b->seconds[b->group->rank] = (double)b->room;
    DSVI_TRY(dsvi_comm_all_gather_one(b->group->host, b->seconds, sizeof *b->seconds));
    for (int64_t r = 0; r < b->group->size; r++)
        b->room = b->seconds[r] < (double)b->room ? (size_t)b->seconds[r] : b->room;
    return DSV_OK;
}

DsvStatus dsvi_link_times(const DsviCpGroup *group, size_t bytes_max, DsviCpCosts *costs)
{
    DsvStatus status;
    void *memory = NULL;
    size_t ranks = (size_t)group->size;
    Bench b = {.group = group, .device = group->backend->device};
    costs->link_count = 0;
    costs->beside = group->backend->join != NULL; /* device communicators have a separate stream */
    if (ranks == 1)
        return DSV_OK;
    b.room = (bytes_max > BYTES_MIN ? bytes_max : BYTES_MIN) / BYTES_MIN * BYTES_MIN;
    b.send = calloc(ranks, sizeof *b.send);
    b.receive = calloc(ranks, sizeof *b.receive);
    b.seconds = calloc(ranks * REPEATS, sizeof *b.seconds);
    if (!b.send || !b.receive || !b.seconds) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to time links");
        goto done;
    }
    DSVI_TRY_GOTO(status, allocate_buffers(&b, &memory), done);
    DSVI_TRY_GOTO(status, b.device->clear(b.device->stream, memory, 2 * b.room), done);
    b.memory = memory;
    DSVI_TRY_GOTO(status, time_all(&b, costs), done);
done:
    b.device->mem_free(b.device, memory);
    free(b.send);
    free(b.receive);
    free(b.seconds);
    return status;
}
