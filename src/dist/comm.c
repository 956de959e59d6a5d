/* Implements comm.h on top of a transport (transport.h): collectives, sums and counting of traffic. */
#include <stdlib.h>
#include <string.h>

#include "dist/transport.h"

/* An all-reduce of at most this size gathers all ranks' data and sums on every rank: one exchange instead of
 * two. */
enum { SMALL_BYTES = 4096 };

/* Bytes that a sum in host memory receives from each rank at a time. */
enum { HOST_CHUNK = 1 << 20 };

static bool on_host(const DsviTransport *transport)
{
    return !transport->sum;
}

DsvStatus dsvi_comm_alloc(const DsviTransport *transport, size_t bytes, int64_t rank, int64_t size,
                          double timeout_s, int64_t *last_number, DsviComm **out)
{
    DsviComm *comm = calloc(1, bytes);
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
        dsvi_comm_free(comm);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for what %lld ranks send", (long long)size);
    }
    *out = comm;
    return DSV_OK;
}

void dsvi_comm_free(DsviComm *comm)
{
    free(comm->send);
    free(comm->receive);
    free(comm->bound);
    if (on_host(comm->transport))
        free(comm->scratch);
    free(comm);
}

int64_t dsvi_comm_rank(const DsviComm *comm)
{
    return comm ? comm->rank : 0;
}

int64_t dsvi_comm_size(const DsviComm *comm)
{
    return comm ? comm->size : 1;
}

bool dsvi_comm_needs_workspace(const DsviComm *comm)
{
    return comm && !on_host(comm->transport);
}

void dsvi_comm_set_workspace(DsviComm *comm, void *workspace, size_t chunk)
{
    if (!dsvi_comm_needs_workspace(comm))
        return;
    DSVI_ASSERT(chunk % SMALL_BYTES == 0);
    comm->scratch = workspace;
    comm->chunk = chunk;
}

DsviCommSent dsvi_comm_sent(const DsviComm *comm)
{
    return comm ? comm->sent : (DsviCommSent){0};
}

static bool is_single_rank(const DsviComm *comm)
{
    return !comm || comm->size == 1;
}

/* ---- hooks ---- */

static _Thread_local const DsviCommWaitHooks *wait_hooks;

void dsvi_comm_set_wait_hooks(const DsviCommWaitHooks *watch)
{
    wait_hooks = watch;
}

DsvStatus dsvi_comm_wait_begins(void)
{
    return wait_hooks ? wait_hooks->before_wait(wait_hooks->context) : DSV_OK;
}

DsvStatus dsvi_comm_wait_ends(void)
{
    return wait_hooks ? wait_hooks->after_wait(wait_hooks->context) : DSV_OK;
}

/* ---- messages ---- */

static DsvStatus copy_local(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
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

/* Exchanges pieces and counts the traffic. Messages of failures name the call `call`. */
static DsvStatus counted_exchange(DsviComm *comm, const char *call, const DsviPiece *send,
                                  const DsviPiece *receive)
{
    comm->call = call;
    DSVI_TRY(dsvi_comm_wait_begins());
    DSVI_TRY(copy_local(comm, &send[comm->rank], &receive[comm->rank]));
    for (int64_t r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        comm->sent.bytes += send[r].bytes;
        comm->sent.messages += send[r].bytes > 0;
    }
    DSVI_TRY(comm->transport->exchange(comm, send, receive));
    return dsvi_comm_wait_ends();
}

/* Exchanges pieces; between dsvi_comm_begin_async and dsvi_comm_wait_async also records the event that
 * dsvi_comm_stream_wait waits for. */
static DsvStatus numbered_exchange(DsviComm *comm, const char *call, const DsviPiece *send,
                                   const DsviPiece *receive)
{
    DSVI_TRY(counted_exchange(comm, call, send, receive));
    if (!comm->begun || !comm->transport->number)
        return DSV_OK;
    return comm->transport->number(comm, ++comm->begun_count);
}

DsvStatus dsvi_comm_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
{
    return is_single_rank(comm) ? copy_local(comm, send, receive)
                                : numbered_exchange(comm, "exchange", send, receive);
}

static void clear_pieces(DsviComm *comm)
{
    memset(comm->send, 0, (size_t)comm->size * sizeof *comm->send);
    memset(comm->receive, 0, (size_t)comm->size * sizeof *comm->receive);
}

DsvStatus dsvi_comm_send_receive(DsviComm *comm, int64_t to, DsviPiece send, int64_t from, DsviPiece receive)
{
    if (is_single_rank(comm))
        return copy_local(comm, &send, &receive);
    clear_pieces(comm);
    comm->send[to] = send;
    comm->receive[from] = receive;
    return numbered_exchange(comm, "swap", comm->send, comm->receive);
}

/* ---- gathering ---- */

void dsvi_comm_even_bounds(int64_t n, int64_t unit, int64_t size, int64_t *bound)
{
    int64_t units = (n + unit - 1) / unit;
    for (int64_t r = 0; r <= size; r++) {
        int64_t at = units / size * r + units % size * r / size;
        bound[r] = at * unit < n ? at * unit : n;
    }
}

static DsviPiece rank_part(void *data, size_t item_bytes, const int64_t *bound, int64_t rank)
{
    return (DsviPiece){(unsigned char *)data + (size_t)bound[rank] * item_bytes,
                       (size_t)(bound[rank + 1] - bound[rank]) * item_bytes};
}

/* Gathers all ranks' items in `data` on every rank. `local` points to this rank's items; NULL: its items are
   in `data` already. */
static DsvStatus all_gather(DsviComm *comm, const char *call, const void *local, void *data,
                            size_t item_bytes, const int64_t *bound)
{
    DsviPiece part = rank_part(data, item_bytes, bound, comm->rank);
    part.data = local ? (void *)local : part.data;
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = part;
        comm->receive[r] = rank_part(data, item_bytes, bound, r);
    }
    return counted_exchange(comm, call, comm->send, comm->receive);
}

DsvStatus dsvi_comm_all_gather(DsviComm *comm, void *data, size_t item_bytes, const int64_t *bound)
{
    return is_single_rank(comm) ? DSV_OK : all_gather(comm, "all_gather", NULL, data, item_bytes, bound);
}

DsvStatus dsvi_comm_all_gather_from(DsviComm *comm, const void *local, void *data, size_t item_bytes,
                                    const int64_t *bound)
{
    DsviPiece to = rank_part(data, item_bytes, bound, 0), from = {(void *)local, to.bytes};
    return is_single_rank(comm) ? copy_local(comm, &from, &to)
                                : all_gather(comm, "all_gather", local, data, item_bytes, bound);
}

static DsvStatus all_gather_one(DsviComm *comm, const char *call, void *data, size_t item_bytes)
{
    for (int64_t r = 0; r <= comm->size; r++)
        comm->bound[r] = r;
    return all_gather(comm, call, NULL, data, item_bytes, comm->bound);
}

DsvStatus dsvi_comm_all_gather_one(DsviComm *comm, void *data, size_t item_bytes)
{
    return is_single_rank(comm) ? DSV_OK : all_gather_one(comm, "all_gather", data, item_bytes);
}

DsvStatus dsvi_comm_gather(DsviComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound)
{
    if (is_single_rank(comm))
        return DSV_OK;
    clear_pieces(comm);
    comm->send[root] = rank_part(data, item_bytes, bound, comm->rank);
    for (int64_t r = 0; r < comm->size; r++)
        if (comm->rank == root)
            comm->receive[r] = rank_part(data, item_bytes, bound, r);
    if (comm->rank != root) /* counted_exchange requires equal lengths of the local pieces */
        comm->receive[comm->rank] = comm->send[comm->rank];
    return counted_exchange(comm, "gather", comm->send, comm->receive);
}

static DsvStatus scatter(DsviComm *comm, const char *call, int64_t root, void *data, size_t item_bytes,
                         const int64_t *bound)
{
    clear_pieces(comm);
    comm->receive[root] = rank_part(data, item_bytes, bound, comm->rank);
    for (int64_t r = 0; r < comm->size && comm->rank == root; r++)
        comm->send[r] = rank_part(data, item_bytes, bound, r);
    return counted_exchange(comm, call, comm->send, comm->receive);
}

DsvStatus dsvi_comm_scatter(DsviComm *comm, int64_t root, void *data, size_t item_bytes, const int64_t *bound)
{
    return is_single_rank(comm) ? DSV_OK : scatter(comm, "scatter", root, data, item_bytes, bound);
}

DsvStatus dsvi_comm_broadcast(DsviComm *comm, int64_t root, void *data, size_t bytes)
{
    if (is_single_rank(comm))
        return DSV_OK;
    /* A broadcast is a scatter and then an all-gather: the root sends the data about twice in all, instead of
       once to every other rank. */
    int64_t *bound = comm->bound;
    dsvi_comm_even_bounds((int64_t)bytes, 64, comm->size, bound);
    DSVI_TRY(scatter(comm, "broadcast", root, data, 1, bound));
    return all_gather(comm, "broadcast", NULL, data, 1, bound);
}

DsvStatus dsvi_comm_barrier(DsviComm *comm)
{
    unsigned char byte = 0;
    if (is_single_rank(comm))
        return DSV_OK;
    DSVI_ASSERT(on_host(comm->transport));
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsviPiece){&byte, 1};
        comm->receive[r] = (DsviPiece){comm->scratch + r, 1};
    }
    return counted_exchange(comm, "barrier", comm->send, comm->receive);
}

/* ---- sums ---- */

enum { SUM_AT_ONCE = 512 }; /* number of elements that are summed over all ranks at a time */

/* The sum runs on one thread, because the other threads compute while gradients are summed. */
#define ADD_PARTS(type)                                                                    \
    do {                                                                                   \
        type total[SUM_AT_ONCE];                                                           \
        for (int64_t at = 0; at < n; at += SUM_AT_ONCE) {                                  \
            int64_t count = n - at < SUM_AT_ONCE ? n - at : SUM_AT_ONCE;                   \
            memcpy(total, (const type *)part[0].data + at, (size_t)count * sizeof *total); \
            for (int64_t r = 1; r < ranks; r++)                                            \
                for (int64_t i = 0; i < count; i++)                                        \
                    total[i] += ((const type *)part[r].data)[at + i];                      \
            memcpy((type *)out + at, total, (size_t)count * sizeof *total);                \
        }                                                                                  \
    } while (0)

/* out (n) = part[0] + part[1] + ... + part[ranks - 1]. `out` may be one of the parts. */
static void add_parts_on_host(DsviDtype dtype, const DsviPiece *part, int64_t ranks, void *out, int64_t n)
{
    if (dtype == DSVI_F64)
        ADD_PARTS(double);
    else
        ADD_PARTS(float);
}

/* out (n) = sum of comm->receive, in host or device memory. Waits for a device exchange that is still
 * running. */
static DsvStatus add_received(DsviComm *comm, DsviDtype dtype, void *out, int64_t n)
{
    DSVI_TRY(dsvi_comm_wait_begins());
    if (comm->transport->sum)
        DSVI_TRY(comm->transport->sum(comm, dtype, comm->receive, out, n));
    else
        add_parts_on_host(dtype, comm->receive, comm->size, out, n);
    return dsvi_comm_wait_ends();
}

/* Exchanges the parts of a sum. On a device the exchange is only enqueued: the sum is enqueued after it, and
 * the host waits once, in add_received. */
static DsvStatus exchange_parts(DsviComm *comm, const char *call)
{
    bool begun = comm->begun;
    comm->begun = true;
    DSVI_TRY(counted_exchange(comm, call, comm->send, comm->receive));
    comm->begun = begun;
    return DSV_OK;
}

static int64_t longest_part(const DsviComm *comm, const int64_t *bound)
{
    int64_t longest = 0;
    for (int64_t r = 0; r < comm->size; r++)
        longest = bound[r + 1] - bound[r] > longest ? bound[r + 1] - bound[r] : longest;
    return longest;
}

/* Returns the items first to first + chunk - 1 of rank r's part, or as many of them as exist. */
static DsviPiece chunk_of(unsigned char *data, size_t item, const int64_t *bound, int64_t r, int64_t first,
                          int64_t chunk)
{
    int64_t begin = bound[r] + first < bound[r + 1] ? bound[r] + first : bound[r + 1];
    int64_t end = begin + chunk < bound[r + 1] ? begin + chunk : bound[r + 1];
    return (DsviPiece){data + (size_t)begin * item, (size_t)(end - begin) * item};
}

static DsvStatus reduce_scatter(DsviComm *comm, const char *call, DsviDtype dtype, void *data,
                                const int64_t *bound)
{
    size_t item = dsvi_dtype_size(dtype);
    int64_t chunk = (int64_t)(comm->chunk / item), longest = longest_part(comm, bound);
    DSVI_ASSERT(dtype == DSVI_F32 || dtype == DSVI_F64);
    DSVI_ASSERT(comm->scratch && chunk > 0);
    for (int64_t first = 0; first < longest; first += chunk) {
        DsviPiece local = chunk_of(data, item, bound, comm->rank, first, chunk);
        for (int64_t r = 0; r < comm->size; r++) {
            comm->send[r] = chunk_of(data, item, bound, r, first, chunk);
            comm->receive[r] = (DsviPiece){comm->scratch + (size_t)r * comm->chunk, local.bytes};
        }
        comm->receive[comm->rank] = local;
        DSVI_TRY(exchange_parts(comm, call));
        DSVI_TRY(add_received(comm, dtype, local.data, (int64_t)(local.bytes / item)));
    }
    return DSV_OK;
}

DsvStatus dsvi_comm_reduce_scatter(DsviComm *comm, DsviDtype dtype, void *data, const int64_t *bound)
{
    return is_single_rank(comm) ? DSV_OK : reduce_scatter(comm, "reduce_scatter", dtype, data, bound);
}

DsvStatus dsvi_comm_all_reduce(DsviComm *comm, DsviDtype dtype, void *data, int64_t n)
{
    size_t item = dsvi_dtype_size(dtype), bytes = (size_t)n * item;
    if (is_single_rank(comm) || n == 0)
        return DSV_OK;
    DSVI_ASSERT(dtype == DSVI_F32 || dtype == DSVI_F64);
    if (bytes > SMALL_BYTES) {
        dsvi_comm_even_bounds(n, 16, comm->size, comm->bound);
        DSVI_TRY(reduce_scatter(comm, "all_reduce", dtype, data, comm->bound));
        return all_gather(comm, "all_reduce", NULL, data, item, comm->bound);
    }
    DSVI_ASSERT(comm->scratch);
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsviPiece){data, bytes};
        comm->receive[r] = (DsviPiece){comm->scratch + r * SMALL_BYTES, bytes};
    }
    comm->receive[comm->rank].data = data;
    DSVI_TRY(exchange_parts(comm, "all_reduce"));
    return add_received(comm, dtype, data, n);
}

/* ---- groups, failure, closing ---- */

/* What ranks exchange to split a group. */
typedef struct SplitRequest {
    int64_t colour, last_number; /* last_number: highest group number so far on this rank, as in DsviComm */
} SplitRequest;

static DsvStatus split(DsviComm *comm, SplitRequest *request, int64_t *member, DsviComm **out)
{
    int64_t count = 0, number = 0, rank = 0;
    DSVI_TRY(all_gather_one(comm, "split", request, sizeof *request));
    for (int64_t r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            rank = count;
        if (request[r].colour == request[comm->rank].colour)
            member[count++] = r;
        number = request[r].last_number > number ? request[r].last_number : number;
    }
    *comm->last_number = number + 1;
    return comm->transport->split(comm, member, count, rank, number + 1, out);
}

DsvStatus dsvi_comm_split(DsviComm *comm, int64_t colour, DsviComm **out)
{
    *out = NULL;
    if (!comm)
        return DSV_OK;
    if (!comm->transport->split)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "ranks over %s cannot be split", comm->transport->name);
    SplitRequest *request = calloc((size_t)comm->size, sizeof *request);
    int64_t *member = calloc((size_t)comm->size, sizeof *member);
    DsvStatus status = DSV_OK;
    if (request && member) {
        request[comm->rank] = (SplitRequest){colour, *comm->last_number};
        status = split(comm, request, member, out);
    } else {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to split %lld ranks", (long long)comm->size);
    }
    free(request);
    free(member);
    return status;
}

bool dsvi_comm_is_concurrent(const DsviComm *comm)
{
    return is_single_rank(comm) || comm->transport->at_once;
}

DsvStatus dsvi_comm_record_mark(DsviComm *comm, int64_t mark)
{
    return is_single_rank(comm) || !comm->transport->mark ? DSV_OK : comm->transport->mark(comm, mark);
}

void dsvi_comm_start_after(DsviComm *comm, int64_t mark)
{
    if (!is_single_rank(comm))
        comm->behind = mark;
}

void dsvi_comm_begin_async(DsviComm *comm)
{
    if (is_single_rank(comm))
        return;
    comm->begun = true;
    comm->begun_count = 0;
}

DsvStatus dsvi_comm_stream_wait(DsviComm *comm, int64_t count)
{
    if (is_single_rank(comm) || !comm->transport->follow || count == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_comm_wait_begins());
    DSVI_TRY(comm->transport->follow(comm, count));
    return dsvi_comm_wait_ends();
}

/* After a failure comm->begun stays set: the transport must not wait for these exchanges when it is
 * closed. */
DsvStatus dsvi_comm_wait_async(DsviComm *comm)
{
    if (is_single_rank(comm))
        return DSV_OK;
    DSVI_TRY(dsvi_comm_wait_begins());
    if (comm->transport->await)
        DSVI_TRY(comm->transport->await(comm));
    comm->begun = false;
    return dsvi_comm_wait_ends();
}

DsvStatus dsvi_comm_check_failure(DsviComm *comm)
{
    return is_single_rank(comm) || !comm->transport->listen ? DSV_OK : comm->transport->listen(comm);
}

DsvStatus dsvi_comm_fail(DsviComm *comm, DsvStatus status)
{
    char sentence[DSVI_MESSAGE_BYTES];
    if (is_single_rank(comm) || status == DSV_E_RANK || status == DSV_OK)
        return status;
    dsvi_fail_prefix(status, "rank %lld", (long long)comm->rank);
    size_t length = strlen(dsv_error_message());
    length = length < sizeof sentence - 1 ? length : sizeof sentence - 1;
    memcpy(sentence, dsv_error_message(), length);
    sentence[length] = 0;
    comm->transport->fail(comm, sentence);
    return status;
}

bool dsvi_comm_await_report(DsviComm *comm)
{
    return is_single_rank(comm) || !comm->transport->told || comm->transport->told(comm);
}

void dsvi_comm_close(DsviComm **comm)
{
    if (*comm)
        (*comm)->transport->close(*comm);
    *comm = NULL;
}
