/* See link_times.h. */
#include "context/link_times.h"

#include <math.h>
#include <stdlib.h>

#include "context/context_internal.h"

enum { REPEATS = 5, BYTES_LEAST = 1 << 16, GROWTH = 8 };

typedef enum Transfer { EXCHANGE, SWAP } Transfer;

typedef struct Bench {
    const DsvContextGroup *group;
    DsvDevice *device;
    char *memory;             /* room to send, and room to receive */
    size_t room;              /* of each */
    DsvPiece *send, *receive; /* (ranks) */
    double *seconds;          /* (ranks, REPEATS) */
} Bench;

/* Every rank sends and receives so many bytes in all. */
static DsvStatus transfer(const Bench *b, Transfer kind, DsvComm *comm, size_t bytes)
{
    int64_t size = dsvi_comm_size(comm), rank = dsvi_comm_rank(comm);
    if (kind == SWAP)
        return dsvi_comm_swap(comm, (rank + 1) % size, (DsvPiece){b->memory, bytes},
                              (rank + size - 1) % size, (DsvPiece){b->memory + b->room, bytes});
    size_t piece = bytes / (size_t)(size - 1);
    for (int64_t r = 0; r < size; r++) {
        size_t place = (size_t)(r - (r > rank)) * piece;
        b->send[r] = (DsvPiece){b->memory + place, r == rank ? 0 : piece};
        b->receive[r] = (DsvPiece){b->memory + b->room + place, r == rank ? 0 : piece};
    }
    return dsvi_comm_exchange(comm, b->send, b->receive);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the calls of what the slowest rank took, once each rank knows all its own. */
static DsvStatus agree(const Bench *b, double *seconds)
{
    double slowest[REPEATS] = {0};
    DSVI_TRY(dsvi_comm_share(b->group->host, b->seconds, REPEATS * sizeof(double)));
    for (int64_t r = 0; r < b->group->size; r++)
        for (int i = 0; i < REPEATS; i++)
            slowest[i] = fmax(slowest[i], b->seconds[r * REPEATS + i]);
    qsort(slowest, REPEATS, sizeof *slowest, ascending);
    *seconds = slowest[REPEATS / 2];
    return DSV_OK;
}

static DsvStatus time_transfer(const Bench *b, Transfer kind, DsvComm *comm, size_t bytes, double *seconds)
{
    for (int i = -1; i < REPEATS; i++) {
        double begin, end;
        DSVI_TRY(dsvi_comm_barrier(b->group->host));
        DSVI_TRY(b->device->clock(b->device->stream, &begin));
        DSVI_TRY(transfer(b, kind, comm, bytes));
        DSVI_TRY(b->device->clock(b->device->stream, &end));
        if (i >= 0)
            b->seconds[b->group->rank * REPEATS + i] = end - begin;
    }
    return agree(b, seconds);
}

/* More bytes never take less: what seems so is noise. */
static DsvStatus time_sizes(const Bench *b, Transfer kind, DsvComm *comm, DsvPriceCurve *curve)
{
    double seconds, most = 0;
    *curve = (DsvPriceCurve){.count = 0};
    for (size_t bytes = BYTES_LEAST; bytes <= b->room; bytes *= GROWTH) {
        DSVI_TRY(time_transfer(b, kind, comm, bytes, &seconds));
        most = fmax(most, seconds);
        dsvi_price_add(curve, (double)bytes, most);
        if (bytes < b->room && bytes * GROWTH > b->room)
            bytes = b->room / GROWTH; /* the last is the largest of all */
    }
    return DSV_OK;
}

/* As far as there are groups of so many ranks: neighbours, and ranks that are far apart. */
static DsvStatus time_degree(const Bench *b, int64_t ranks, DsvContextCosts *costs)
{
    const DsvContextGroup *group = b->group;
    const Factor *heads = dsvi_context_factor(group, ranks);
    const Factor *sequence = dsvi_context_factor(group, group->size / ranks);
    DsvComm *all = ranks == group->size ? group->device : NULL;
    DsvComm *near = heads ? heads->head_device : all, *apart = sequence ? sequence->sequence_device : all;
    DsvLinkCost *link = &costs->link[costs->link_count];
    if (!near && !apart)
        return DSV_OK;
    costs->link_count++;
    *link = (DsvLinkCost){.ranks = ranks};
    if (near)
        DSVI_TRY(time_sizes(b, EXCHANGE, near, &link->head_exchange));
    if (apart)
        DSVI_TRY(time_sizes(b, EXCHANGE, apart, &link->sequence_exchange));
    return apart ? time_sizes(b, SWAP, apart, &link->sequence_swap) : DSV_OK;
}

/* A copy reads and writes every byte. */
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
    DSVI_TRY(agree(b, &seconds));
    *touch = seconds / (2 * (double)b->room);
    return DSV_OK;
}

static DsvStatus time_all(Bench *b, DsvContextCosts *costs)
{
    const DsvContextGroup *group = b->group;
    DSVI_TRY(time_copy(b, &costs->touch));
    for (int64_t ranks = 2; ranks <= group->size && costs->link_count < DSV_DEGREES_MOST; ranks++)
        if (group->size % ranks == 0)
            DSVI_TRY(time_degree(b, ranks, costs));
    return DSV_OK;
}

/* As much as every rank has left, and no more than b->room: to send, and to receive. */
static DsvStatus take_room(Bench *b, void **memory)
{
    DsvStatus status = b->device->mem_alloc(b->device, 2 * b->room, memory);
    while (status == DSV_E_NO_MEMORY && b->room > BYTES_LEAST) {
        b->room = b->room / 2 / BYTES_LEAST * BYTES_LEAST;
        status = b->device->mem_alloc(b->device, 2 * b->room, memory);
    }
    DSVI_TRY(status);
    b->seconds[b->group->rank] = (double)b->room;
    DSVI_TRY(dsvi_comm_share(b->group->host, b->seconds, sizeof *b->seconds));
    for (int64_t r = 0; r < b->group->size; r++)
        b->room = b->seconds[r] < (double)b->room ? (size_t)b->seconds[r] : b->room;
    return DSV_OK;
}

DsvStatus dsvi_link_times(const DsvContextGroup *group, size_t bytes_most, DsvContextCosts *costs)
{
    DsvStatus status;
    void *memory = NULL;
    size_t ranks = (size_t)group->size;
    Bench b = {.group = group, .device = group->backend->device};
    costs->link_count = 0;
    costs->beside = group->backend->join != NULL; /* transfers of their own, while the stream goes on */
    if (ranks == 1)
        return DSV_OK;
    b.room = (bytes_most > BYTES_LEAST ? bytes_most : BYTES_LEAST) / BYTES_LEAST * BYTES_LEAST;
    b.send = calloc(ranks, sizeof *b.send);
    b.receive = calloc(ranks, sizeof *b.receive);
    b.seconds = calloc(ranks * REPEATS, sizeof *b.seconds);
    if (!b.send || !b.receive || !b.seconds) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to time links");
        goto done;
    }
    DSVI_TRY_GOTO(status, take_room(&b, &memory), done);
    DSVI_TRY_GOTO(status, b.device->zero(b.device->stream, memory, 2 * b.room), done);
    b.memory = memory;
    DSVI_TRY_GOTO(status, time_all(&b, costs), done);
done:
    b.device->mem_free(b.device, memory);
    free(b.send);
    free(b.receive);
    free(b.seconds);
    return status;
}
