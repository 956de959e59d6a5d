/* Everything of comm.h that does not depend on how bytes travel: sums, gathering, counting. */
#include <stdlib.h>
#include <string.h>

#include "dist/transport.h"

/* Sums of no more than this are formed on every rank from all ranks' numbers: one round instead of two. */
enum { SMALL_BYTES = 4096 };

/* What a sum takes from each rank at once, in host memory. */
enum { HOST_CHUNK = 1 << 20 };

static bool on_host(const DsvTransport *transport)
{
    return !transport->sum;
}

DsvStatus dsvi_comm_make(const DsvTransport *transport, size_t bytes, int64_t rank, int64_t size,
                         double timeout_s, int64_t *last_number, DsvComm **out)
{
    DsvComm *comm = calloc(1, bytes);
    *out = NULL;
    if (!comm)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for rank %lld of %lld", (long long)rank,
                         (long long)size);
    comm->transport = transport;
    comm->rank = rank;
    comm->size = size;
    comm->timeout_s = timeout_s;
    comm->behind = -1;
    comm->last_number = last_number;
    comm->send = calloc((size_t)size, sizeof *comm->send);
    comm->receive = calloc((size_t)size, sizeof *comm->receive);
    comm->bound = calloc((size_t)size + 1, sizeof *comm->bound);
    comm->chunk = on_host(transport) ? HOST_CHUNK : 0;
    comm->scratch = on_host(transport) ? malloc((size_t)size * comm->chunk) : NULL;
    if (!comm->send || !comm->receive || !comm->bound || (!comm->scratch && on_host(transport))) {
        dsvi_comm_release(comm);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for what %lld ranks send", (long long)size);
    }
    *out = comm;
    return DSV_OK;
}

void dsvi_comm_release(DsvComm *comm)
{
    free(comm->send);
    free(comm->receive);
    free(comm->bound);
    if (on_host(comm->transport))
        free(comm->scratch);
    free(comm);
}

int64_t dsvi_comm_rank(const DsvComm *comm)
{
    return comm ? comm->rank : 0;
}

int64_t dsvi_comm_size(const DsvComm *comm)
{
    return comm ? comm->size : 1;
}

bool dsvi_comm_wants_room(const DsvComm *comm)
{
    return comm && !on_host(comm->transport);
}

void dsvi_comm_lend(DsvComm *comm, void *room, size_t chunk)
{
    if (!dsvi_comm_wants_room(comm))
        return;
    DSVI_ASSERT(chunk % SMALL_BYTES == 0);
    comm->scratch = room;
    comm->chunk = chunk;
}

DsvCommSent dsvi_comm_sent(const DsvComm *comm)
{
    return comm ? comm->sent : (DsvCommSent){0};
}

static bool alone(const DsvComm *comm)
{
    return !comm || comm->size == 1;
}

/* ---- watching ---- */

static _Thread_local const DsvCommWatch *watcher;

void dsvi_comm_watch(const DsvCommWatch *watch)
{
    watcher = watch;
}

DsvStatus dsvi_comm_waits(void)
{
    return watcher ? watcher->waits(watcher->context) : DSV_OK;
}

DsvStatus dsvi_comm_goes_on(void)
{
    return watcher ? watcher->goes_on(watcher->context) : DSV_OK;
}

/* ---- moving ---- */

static DsvStatus copy_own(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive)
{
    if (send->bytes != receive->bytes)
        return DSVI_FAIL(DSV_E_INTERNAL, "a rank sends itself %zu bytes and expects %zu", send->bytes,
                         receive->bytes);
    if (send->bytes == 0 || send->data == receive->data)
        return DSV_OK;
    if (comm && comm->transport->copy)
        return comm->transport->copy(comm, receive->data, send->data, send->bytes);
    memcpy(receive->data, send->data, send->bytes);
    return DSV_OK;
}

/* One exchange in the name of `call`. */
static DsvStatus move(DsvComm *comm, const char *call, const DsvPiece *send, const DsvPiece *receive)
{
    comm->call = call;
    DSVI_TRY(dsvi_comm_waits());
    DSVI_TRY(copy_own(comm, &send[comm->rank], &receive[comm->rank]));
    for (int64_t r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        comm->sent.bytes += send[r].bytes;
        comm->sent.messages += send[r].bytes > 0;
    }
    DSVI_TRY(comm->transport->exchange(comm, send, receive));
    return dsvi_comm_goes_on();
}

/* One that a caller may follow (dsvi_comm_follow). */
static DsvStatus move_numbered(DsvComm *comm, const char *call, const DsvPiece *send, const DsvPiece *receive)
{
    DSVI_TRY(move(comm, call, send, receive));
    if (!comm->begun || !comm->transport->number)
        return DSV_OK;
    return comm->transport->number(comm, ++comm->begun_count);
}

DsvStatus dsvi_comm_exchange(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive)
{
    return alone(comm) ? copy_own(comm, send, receive) : move_numbered(comm, "exchange", send, receive);
}

static void clear_pieces(DsvComm *comm)
{
    memset(comm->send, 0, (size_t)comm->size * sizeof *comm->send);
    memset(comm->receive, 0, (size_t)comm->size * sizeof *comm->receive);
}

DsvStatus dsvi_comm_swap(DsvComm *comm, int64_t to, DsvPiece send, int64_t from, DsvPiece receive)
{
    if (alone(comm))
        return copy_own(comm, &send, &receive);
    clear_pieces(comm);
    comm->send[to] = send;
    comm->receive[from] = receive;
    return move_numbered(comm, "swap", comm->send, comm->receive);
}

/* ---- gathering ---- */

void dsvi_comm_bounds(int64_t n, int64_t unit, int64_t size, int64_t *bound)
{
    int64_t units = (n + unit - 1) / unit;
    for (int64_t r = 0; r <= size; r++) {
        int64_t at = units / size * r + units % size * r / size;
        bound[r] = at * unit < n ? at * unit : n;
    }
}

static DsvPiece part_of(void *data, size_t item_bytes, const int64_t *bound, int64_t rank)
{
    return (DsvPiece){(unsigned char *)data + (size_t)bound[rank] * item_bytes,
                      (size_t)(bound[rank + 1] - bound[rank]) * item_bytes};
}

/* `own`: the own items; or NULL: they are in their place. */
static DsvStatus all_gather(DsvComm *comm, const char *call, const void *own, void *data, size_t item_bytes,
                            const int64_t *bound)
{
    DsvPiece part = part_of(data, item_bytes, bound, comm->rank);
    part.data = own ? (void *)own : part.data;
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = part;
        comm->receive[r] = part_of(data, item_bytes, bound, r);
    }
    return move(comm, call, comm->send, comm->receive);
}

DsvStatus dsvi_comm_all_gather(DsvComm *comm, void *data, size_t item_bytes, const int64_t *bound)
{
    return alone(comm) ? DSV_OK : all_gather(comm, "all_gather", NULL, data, item_bytes, bound);
}

DsvStatus dsvi_comm_all_gather_from(DsvComm *comm, const void *own, void *data, size_t item_bytes,
                                    const int64_t *bound)
{
    DsvPiece to = part_of(data, item_bytes, bound, 0), from = {(void *)own, to.bytes};
    return alone(comm) ? copy_own(comm, &from, &to)
                       : all_gather(comm, "all_gather", own, data, item_bytes, bound);
}

static DsvStatus share(DsvComm *comm, const char *call, void *data, size_t item_bytes)
{
    for (int64_t r = 0; r <= comm->size; r++)
        comm->bound[r] = r;
    return all_gather(comm, call, NULL, data, item_bytes, comm->bound);
}

DsvStatus dsvi_comm_share(DsvComm *comm, void *data, size_t item_bytes)
{
    return alone(comm) ? DSV_OK : share(comm, "share", data, item_bytes);
}

DsvStatus dsvi_comm_gather(DsvComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound)
{
    if (alone(comm))
        return DSV_OK;
    clear_pieces(comm);
    comm->send[root] = part_of(data, item_bytes, bound, comm->rank);
    for (int64_t r = 0; r < comm->size; r++)
        if (comm->rank == root)
            comm->receive[r] = part_of(data, item_bytes, bound, r);
    if (comm->rank != root) /* the own piece goes to the root alone */
        comm->receive[comm->rank] = comm->send[comm->rank];
    return move(comm, "gather", comm->send, comm->receive);
}

/* The own items come from the root, which sends all ranks theirs. */
static DsvStatus scatter(DsvComm *comm, const char *call, int64_t root, void *data, size_t item_bytes,
                         const int64_t *bound)
{
    clear_pieces(comm);
    comm->receive[root] = part_of(data, item_bytes, bound, comm->rank);
    for (int64_t r = 0; r < comm->size && comm->rank == root; r++)
        comm->send[r] = part_of(data, item_bytes, bound, r);
    return move(comm, call, comm->send, comm->receive);
}

DsvStatus dsvi_comm_scatter(DsvComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound)
{
    return alone(comm) ? DSV_OK : scatter(comm, "scatter", root, data, item_bytes, bound);
}

DsvStatus dsvi_comm_broadcast(DsvComm *comm, int64_t root, void *data, size_t bytes)
{
    if (alone(comm))
        return DSV_OK;
    /* Each rank gets a part from the root and all parts then go round: the root sends the data twice, not
     * once for every other rank. */
    int64_t *bound = comm->bound;
    dsvi_comm_bounds((int64_t)bytes, 64, comm->size, bound);
    DSVI_TRY(scatter(comm, "broadcast", root, data, 1, bound));
    return all_gather(comm, "broadcast", NULL, data, 1, bound);
}

DsvStatus dsvi_comm_barrier(DsvComm *comm)
{
    unsigned char mark = 0;
    if (alone(comm))
        return DSV_OK;
    DSVI_ASSERT(on_host(comm->transport));
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsvPiece){&mark, 1};
        comm->receive[r] = (DsvPiece){comm->scratch + r, 1};
    }
    return move(comm, "barrier", comm->send, comm->receive);
}

/* ---- sums ---- */

enum { SUM_AT_ONCE = 512 };

/* By one thread: while gradients are summed the others compute. */
#define ADD_PARTS(type)                                                                       \
    do {                                                                                      \
        type total[SUM_AT_ONCE];                                                              \
        for (int64_t at = 0; at < n; at += SUM_AT_ONCE) {                                     \
            int64_t count = n - at < SUM_AT_ONCE ? n - at : SUM_AT_ONCE;                      \
            memcpy(total, (const type *)part[0].data + at, (size_t)count * sizeof *total);    \
            for (int64_t r = 1; r < ranks; r++)                                               \
                for (int64_t i = 0; i < count; i++)                                           \
                    total[i] += ((const type *)part[r].data)[at + i];                         \
            memcpy((type *)out + at, total, (size_t)count * sizeof *total);                   \
        }                                                                                     \
    } while (0)

/* out (n) = part[0] + part[1] + ..., of which it may be one. */
static void add_parts(DsvDtype dtype, const DsvPiece *part, int64_t ranks, void *out, int64_t n)
{
    if (dtype == DSV_F64)
        ADD_PARTS(double);
    else
        ADD_PARTS(float);
}

/* The same of what has been received, or is on its way, in whatever memory it lies. */
static DsvStatus add_received(DsvComm *comm, DsvDtype dtype, void *out, int64_t n)
{
    DSVI_TRY(dsvi_comm_waits());
    if (comm->transport->sum)
        DSVI_TRY(comm->transport->sum(comm, dtype, comm->receive, out, n));
    else
        add_parts(dtype, comm->receive, comm->size, out, n);
    return dsvi_comm_goes_on();
}

/* Receives what is to be added next: a device's memory waits for it there, and the host for the sum alone. */
static DsvStatus move_parts(DsvComm *comm, const char *call)
{
    bool begun = comm->begun;
    comm->begun = true;
    DSVI_TRY(move(comm, call, comm->send, comm->receive));
    comm->begun = begun;
    return DSV_OK;
}

static int64_t longest_part(const DsvComm *comm, const int64_t *bound)
{
    int64_t longest = 0;
    for (int64_t r = 0; r < comm->size; r++)
        longest = bound[r + 1] - bound[r] > longest ? bound[r + 1] - bound[r] : longest;
    return longest;
}

/* Of rank r's part, the `chunk` items from `first` on, as far as there are. */
static DsvPiece chunk_of(unsigned char *data, size_t item, const int64_t *bound, int64_t r, int64_t first,
                         int64_t chunk)
{
    int64_t begin = bound[r] + first < bound[r + 1] ? bound[r] + first : bound[r + 1];
    int64_t end = begin + chunk < bound[r + 1] ? begin + chunk : bound[r + 1];
    return (DsvPiece){data + (size_t)begin * item, (size_t)(end - begin) * item};
}

static DsvStatus reduce_scatter(DsvComm *comm, const char *call, DsvDtype dtype, void *data,
                                const int64_t *bound)
{
    size_t item = dsvi_dtype_size(dtype);
    int64_t chunk = (int64_t)(comm->chunk / item), longest = longest_part(comm, bound);
    DSVI_ASSERT(dtype == DSV_F32 || dtype == DSV_F64);
    DSVI_ASSERT(comm->scratch && chunk > 0);
    for (int64_t first = 0; first < longest; first += chunk) {
        DsvPiece own = chunk_of(data, item, bound, comm->rank, first, chunk);
        for (int64_t r = 0; r < comm->size; r++) {
            comm->send[r] = chunk_of(data, item, bound, r, first, chunk);
            comm->receive[r] = (DsvPiece){comm->scratch + (size_t)r * comm->chunk, own.bytes};
        }
        comm->receive[comm->rank] = own;
        DSVI_TRY(move_parts(comm, call));
        DSVI_TRY(add_received(comm, dtype, own.data, (int64_t)(own.bytes / item)));
    }
    return DSV_OK;
}

DsvStatus dsvi_comm_reduce_scatter(DsvComm *comm, DsvDtype dtype, void *data, const int64_t *bound)
{
    return alone(comm) ? DSV_OK : reduce_scatter(comm, "reduce_scatter", dtype, data, bound);
}

DsvStatus dsvi_comm_all_reduce(DsvComm *comm, DsvDtype dtype, void *data, int64_t n)
{
    size_t item = dsvi_dtype_size(dtype), bytes = (size_t)n * item;
    if (alone(comm) || n == 0)
        return DSV_OK;
    DSVI_ASSERT(dtype == DSV_F32 || dtype == DSV_F64);
    if (bytes > SMALL_BYTES) {
        dsvi_comm_bounds(n, 16, comm->size, comm->bound);
        DSVI_TRY(reduce_scatter(comm, "all_reduce", dtype, data, comm->bound));
        return all_gather(comm, "all_reduce", NULL, data, item, comm->bound);
    }
    DSVI_ASSERT(comm->scratch);
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsvPiece){data, bytes};
        comm->receive[r] = (DsvPiece){comm->scratch + r * SMALL_BYTES, bytes};
    }
    comm->receive[comm->rank].data = data;
    DSVI_TRY(move_parts(comm, "all_reduce"));
    return add_received(comm, dtype, data, n);
}

/* ---- groups, failure, end ---- */

typedef struct Wish {
    int64_t colour, last_number;
} Wish;

static DsvStatus split(DsvComm *comm, Wish *wish, int64_t *member, DsvComm **out)
{
    int64_t count = 0, number = 0, rank = 0;
    DSVI_TRY(share(comm, "split", wish, sizeof *wish));
    for (int64_t r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            rank = count;
        if (wish[r].colour == wish[comm->rank].colour)
            member[count++] = r;
        number = wish[r].last_number > number ? wish[r].last_number : number;
    }
    *comm->last_number = number + 1;
    return comm->transport->split(comm, member, count, rank, number + 1, out);
}

DsvStatus dsvi_comm_split(DsvComm *comm, int64_t colour, DsvComm **out)
{
    *out = NULL;
    if (!comm)
        return DSV_OK;
    if (!comm->transport->split)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "ranks over %s cannot be split", comm->transport->name);
    Wish *wish = calloc((size_t)comm->size, sizeof *wish);
    int64_t *member = calloc((size_t)comm->size, sizeof *member);
    DsvStatus status = DSV_OK;
    if (wish && member) {
        wish[comm->rank] = (Wish){colour, *comm->last_number};
        status = split(comm, wish, member, out);
    } else {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to split %lld ranks", (long long)comm->size);
    }
    free(wish);
    free(member);
    return status;
}

bool dsvi_comm_at_once(const DsvComm *comm)
{
    return alone(comm) || comm->transport->at_once;
}

DsvStatus dsvi_comm_mark(DsvComm *comm, int64_t mark)
{
    return alone(comm) || !comm->transport->mark ? DSV_OK : comm->transport->mark(comm, mark);
}

void dsvi_comm_behind(DsvComm *comm, int64_t mark)
{
    if (!alone(comm))
        comm->behind = mark;
}

void dsvi_comm_begin(DsvComm *comm)
{
    if (alone(comm))
        return;
    comm->begun = true;
    comm->begun_count = 0;
}

DsvStatus dsvi_comm_follow(DsvComm *comm, int64_t count)
{
    if (alone(comm) || !comm->transport->follow || count == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_comm_waits());
    DSVI_TRY(comm->transport->follow(comm, count));
    return dsvi_comm_goes_on();
}

/* After a failure what was begun stays so: the transport is not to wait for it when it closes. */
DsvStatus dsvi_comm_await(DsvComm *comm)
{
    if (alone(comm))
        return DSV_OK;
    DSVI_TRY(dsvi_comm_waits());
    if (comm->transport->await)
        DSVI_TRY(comm->transport->await(comm));
    comm->begun = false;
    return dsvi_comm_goes_on();
}

DsvStatus dsvi_comm_listen(DsvComm *comm)
{
    return alone(comm) || !comm->transport->listen ? DSV_OK : comm->transport->listen(comm);
}

DsvStatus dsvi_comm_fail(DsvComm *comm, DsvStatus status)
{
    char sentence[DSVI_MESSAGE_BYTES];
    if (alone(comm) || status == DSV_E_RANK || status == DSV_OK)
        return status;
    dsvi_fail_within(status, "rank %lld", (long long)comm->rank);
    size_t length = strlen(dsv_error_message());
    length = length < sizeof sentence - 1 ? length : sizeof sentence - 1;
    memcpy(sentence, dsv_error_message(), length);
    sentence[length] = 0;
    comm->transport->fail(comm, sentence);
    return status;
}

bool dsvi_comm_told(DsvComm *comm)
{
    return alone(comm) || !comm->transport->told || comm->transport->told(comm);
}

void dsvi_comm_close(DsvComm **comm)
{
    if (*comm)
        (*comm)->transport->close(*comm);
    *comm = NULL;
}
