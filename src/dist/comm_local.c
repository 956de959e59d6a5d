/* See comm_local.h. An exchange has two barriers. Each rank publishes the addresses of its pieces and waits
 * until all ranks have done so. Then each rank copies its pieces from the memory of the others, and all wait
 * again, so that no rank changes memory that another still reads.
 *
 * A failure ends the first wait but not the second: every rank that passed the first barrier arrives at the
 * second, and memory that is being read must stay valid until then. */
#include "dist/comm_local.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dist/transport.h"

/* All ranks of the program. */
typedef struct World {
    pthread_mutex_t lock; /* guards World, and all its groups */
    pthread_cond_t news;
    int64_t ranks; /* handles that are not closed */
    bool failed;
    char sentence[DSVI_MESSAGE_BYTES];
} World;

typedef struct Barrier {
    int64_t arrived;
    uint64_t number; /* number of the barrier's current use, which grows when all ranks have arrived */
} Barrier;

typedef struct Group {
    World *world;
    int64_t size, open;     /* open: handles that are not closed */
    Barrier shown, taken;   /* barriers before and after the ranks copy pieces */
    const DsviPiece **send; /* (size) the pieces that each rank sends; NULL: the rank has not arrived */
} Group;

typedef struct LocalComm {
    DsviComm comm;
    Group *group;
    int64_t last_number; /* highest group number so far, to which last_number of the first group's handles
                            points */
} LocalComm;

static void group_free(Group *group)
{
    free(group->send);
    free(group);
}

static DsvStatus group_make(World *world, int64_t size, Group **out)
{
    Group *group = calloc(1, sizeof *group);
    *out = NULL;
    if (!group)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a group of %lld ranks", (long long)size);
    group->world = world;
    group->size = group->open = size;
    group->send = calloc((size_t)size, sizeof *group->send);
    if (!group->send) {
        group_free(group);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a group of %lld ranks", (long long)size);
    }
    *out = group;
    return DSV_OK;
}

static struct timespec deadline_in(double seconds)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t nanoseconds = time.tv_nsec + (int64_t)(seconds * 1e9);
    time.tv_sec += nanoseconds / 1000000000;
    time.tv_nsec = nanoseconds % 1000000000;
    return time;
}

/* Records a failure and keeps the message of the first one. Called while holding the lock world->lock. */
static void local_set_failed(World *world, const char *sentence)
{
    if (!world->failed)
        snprintf(world->sentence, sizeof world->sentence, "%s", sentence);
    world->failed = true;
    pthread_cond_broadcast(&world->news);
}

/* Records the failure of a barrier at which a rank has not arrived in time; the message names the first rank
   that published nothing. */
static void fail_missing_rank(const LocalComm *local)
{
    char sentence[128];
    const Group *group = local->group;
    int64_t lost = 0;
    while (lost < group->size - 1 && group->send[lost])
        lost++;
    snprintf(sentence, sizeof sentence, "rank %lld has not come to %s for %g s", (long long)lost,
             local->comm.call, local->comm.timeout_s);
    local_set_failed(group->world, sentence);
}

/* First barrier: publishes `send` and waits until all ranks have published theirs. Called with the lock. */
static DsvStatus local_publish(LocalComm *local, const DsviPiece *send)
{
    Group *group = local->group;
    World *world = group->world;
    struct timespec deadline = deadline_in(local->comm.timeout_s);
    uint64_t number = group->shown.number;
    group->send[local->comm.rank] = send;
    if (++group->shown.arrived == group->size) {
        group->shown.arrived = 0;
        group->shown.number++;
        pthread_cond_broadcast(&world->news);
        return DSV_OK;
    }
    int waited = 0;
    while (number == group->shown.number && !world->failed && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&world->news, &world->lock, &deadline);
    if (number != group->shown.number)
        return DSV_OK;
    if (!world->failed)
        fail_missing_rank(local);
    group->shown.arrived--;
    group->send[local->comm.rank] = NULL;
    return DSVI_FAIL(DSV_E_RANK, "%s", world->sentence);
}

/* Second barrier: waits until all ranks have copied their pieces. Called with the lock. */
static void local_finish(LocalComm *local)
{
    Group *group = local->group;
    uint64_t number = group->taken.number;
    if (++group->taken.arrived == group->size) {
        group->taken.arrived = 0;
        group->taken.number++;
        pthread_cond_broadcast(&group->world->news);
    }
    while (number == group->taken.number)
        pthread_cond_wait(&group->world->news, &group->world->lock);
    group->send[local->comm.rank] = NULL;
}

static DsvStatus local_copy_pieces(const LocalComm *local, const DsviPiece *receive)
{
    int64_t rank = local->comm.rank;
    for (int64_t r = 0; r < local->comm.size; r++) {
        const DsviPiece *sent = &local->group->send[r][rank];
        if (r == rank)
            continue;
        if (sent->bytes != receive[r].bytes)
            return DSVI_FAIL(DSV_E_INTERNAL, "%s: rank %lld sends %zu bytes, rank %lld expects %zu",
                             local->comm.call, (long long)r, sent->bytes, (long long)rank, receive[r].bytes);
        if (sent->bytes > 0)
            memcpy(receive[r].data, sent->data, sent->bytes);
    }
    return DSV_OK;
}

static DsvStatus local_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
{
    LocalComm *local = (LocalComm *)comm;
    World *world = local->group->world;
    pthread_mutex_lock(&world->lock);
    DsvStatus status = local_publish(local, send);
    pthread_mutex_unlock(&world->lock);
    DSVI_TRY(status);
    status = local_copy_pieces(local, receive);
    pthread_mutex_lock(&world->lock);
    local_finish(local);
    pthread_mutex_unlock(&world->lock);
    return status;
}

static void local_fail(DsviComm *comm, const char *sentence)
{
    LocalComm *local = (LocalComm *)comm;
    World *world = local->group->world;
    pthread_mutex_lock(&world->lock);
    local_set_failed(world, sentence);
    pthread_mutex_unlock(&world->lock);
}

static DsvStatus local_listen(DsviComm *comm)
{
    World *world = ((LocalComm *)comm)->group->world;
    pthread_mutex_lock(&world->lock);
    bool failed = world->failed;
    pthread_mutex_unlock(&world->lock);
    return failed ? DSVI_FAIL(DSV_E_RANK, "%s", world->sentence) : DSV_OK;
}

static void world_free(World *world)
{
    pthread_mutex_destroy(&world->lock);
    pthread_cond_destroy(&world->news);
    free(world);
}

static void local_close(DsviComm *comm)
{
    LocalComm *local = (LocalComm *)comm;
    Group *group = local->group;
    World *world = group->world;
    pthread_mutex_lock(&world->lock);
    bool last_of_group = --group->open == 0, last = --world->ranks == 0;
    pthread_mutex_unlock(&world->lock);
    if (last_of_group)
        group_free(group);
    if (last)
        world_free(world);
    dsvi_comm_free(comm);
}

static DsvStatus local_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank,
                             int64_t number, DsviComm **out);

static const DsviTransport LOCAL = {
    .name = "threads",
    .at_once = true,
    .exchange = local_exchange,
    .split = local_split,
    .listen = local_listen,
    .fail = local_fail,
    .close = local_close,
};

/* The first member allocates the group and sends its address to the others. */
static DsvStatus local_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank,
                             int64_t number, DsviComm **out)
{
    LocalComm *local = (LocalComm *)comm;
    World *world = local->group->world;
    Group *group = NULL, **made = calloc((size_t)comm->size, sizeof(Group *));
    (void)number;
    DsvStatus status = made ? DSV_OK : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a group of ranks");
    if (status == DSV_OK && rank == 0)
        status = group_make(world, count, &group);
    if (status != DSV_OK) {
        dsvi_comm_fail(comm, status);
        free(made);
        return status;
    }
    made[comm->rank] = group;
    status = dsvi_comm_all_gather_one(comm, made, sizeof *made);
    group = made[member[0]];
    free(made);
    DSVI_TRY(status);
    DSVI_TRY(dsvi_comm_alloc(&LOCAL, sizeof *local, rank, count, comm->timeout_s, comm->last_number, out));
    ((LocalComm *)*out)->group = group;
    pthread_mutex_lock(&world->lock);
    world->ranks++;
    pthread_mutex_unlock(&world->lock);
    return DSV_OK;
}

static DsvStatus world_make(World **out)
{
    pthread_condattr_t monotonic;
    World *world = calloc(1, sizeof *world);
    *out = world;
    if (!world)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for ranks");
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&world->lock, NULL);
    pthread_cond_init(&world->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return DSV_OK;
}

DsvStatus dsvi_comm_local_create(int64_t size, double timeout_s, DsviComm **comm)
{
    World *world;
    Group *group;
    DSVI_ASSERT(size > 0);
    DSVI_TRY(world_make(&world));
    DsvStatus status = group_make(world, size, &group);
    if (status != DSV_OK) {
        world_free(world);
        return status;
    }
    for (int64_t r = 0; r < size; r++) {
        LocalComm *local;
        status = dsvi_comm_alloc(&LOCAL, sizeof *local, r, size, timeout_s, NULL, &comm[r]);
        if (status != DSV_OK)
            break;
        world->ranks++;
        local = (LocalComm *)comm[r];
        local->group = group;
        local->comm.last_number = &local->last_number;
    }
    if (status == DSV_OK)
        return DSV_OK;
    for (int64_t r = 0; r < world->ranks; r++)
        dsvi_comm_free(comm[r]);
    group_free(group);
    world_free(world);
    return status;
}
