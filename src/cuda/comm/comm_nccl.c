/* Implements comm_nccl.h. An exchange is one group of ncclSend and ncclRecv on a separate stream, which first
 * waits for the work that the device's stream had at the time of the call. Sums are computed by the backend's
 * `add` op in the order of the ranks, as with any other transport, because the order of NCCL's own sums
 * depends on the machine.
 *
 * A kernel of NCCL waits for the other GPU without end. Therefore the host polls the stream, and meanwhile
 * checks the host's group of the same ranks (dsvi_comm_check_failure): if a rank has failed or ended, the
 * host aborts NCCL. Only connecting the ranks blocks the host, so a separate thread does that. */
#include "cuda/comm/comm_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/thread_start.h"
#include "cuda/device_cuda.h"
#include "dist/transport.h"

#define NCCL_LIBRARY "libnccl.so.2"
#define CONNECT_CALL "ncclCommInitRank" /* names the call in messages while ranks connect */
enum { WARM_UP_BYTES = 256 };
/* Seconds for which a wait yields the processor (sched_yield) before it begins to sleep between polls of the
 * stream. YIELD_S applies if the device waits for the exchange, and is about as long as kernels take;
 * YIELD_OVERLAPPED_S applies if the exchange overlaps with kernels, and is short. */
#define YIELD_S 0.25
#define YIELD_OVERLAPPED_S 0.002
enum { PAUSE_US = 50 };
#define CHECK_EVERY_S 0.005

/* The declarations of nccl.h that are needed here, so that building needs no NCCL. They are unchanged since
 * NCCL 2.7. */
typedef struct ncclComm *NcclHandle;
typedef struct NcclId {
    char bytes[128];
} NcclId;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 0 /* ncclInt8 */ };

/* Functions of libnccl.so.2. The fields have the same order as NAMES. */
typedef struct NcclApi {
    int (*get_id)(NcclId *id);
    int (*init)(NcclHandle *handle, int size, NcclId id, int rank);
    int (*destroy)(NcclHandle handle);
    int (*abort)(NcclHandle handle);
    int (*async_error)(NcclHandle handle, int *error);
    const char *(*text)(int error);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *data, size_t count, int type, int peer, NcclHandle handle, cudaStream_t stream);
    int (*receive)(void *data, size_t count, int type, int peer, NcclHandle handle, cudaStream_t stream);
} NcclApi;

static const char *const NAMES[] = {
    "ncclGetUniqueId",    "ncclCommInitRank", "ncclCommDestroy", "ncclCommAbort", "ncclCommGetAsyncError",
    "ncclGetErrorString", "ncclGroupStart",   "ncclGroupEnd",    "ncclSend",      "ncclRecv",
};

/* An array of events that grows when needed. */
typedef struct Events {
    cudaEvent_t *event;
    int64_t count;
} Events;

/* The state of connecting the ranks. Until `over` is true, only connect_thread uses it. */
typedef struct Connecting {
    NcclId id;         /* NCCL's identifier of the group, the same on all ranks */
    NcclHandle handle; /* the communicator that ncclCommInitRank creates */
    unsigned char
        *memory; /* device memory of the warm-up exchange: one message to send, one from each rank */
    int error;   /* error code of NCCL */
    atomic_bool over;
} Connecting;

typedef struct NcclComm {
    DsviComm comm;
    DsviComm *host;             /* the group of the same ranks for host memory; not owned */
    const DsviBackend *backend; /* not owned */
    NcclApi api;
    NcclHandle handle; /* NCCL's communicator; NULL after an abort */
    int gpu;
    DsviStream stream;  /* a copy of the device's stream with a CUDA stream of its own */
    cudaEvent_t before; /* event recorded on the device's stream when a call begins */
    Events marks;       /* events of DsviTransport.mark, recorded on the device's stream */
    Events numbers;     /* events of DsviTransport.number, recorded on `stream` after exchanges */
    Connecting connecting;
    bool abandoned; /* connect_thread is still inside NCCL and reads this struct, which is never freed */
} NcclComm;

static DsvStatus load_nccl(NcclApi *api)
{
    void *functions[sizeof NAMES / sizeof *NAMES];
    void *library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "several GPUs need NCCL, which could not be loaded: %s",
                         dlerror());
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        functions[i] = dlsym(library, NAMES[i]);
        if (!functions[i])
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s has no function %s: dsv needs NCCL 2.7 or later",
                             NCCL_LIBRARY, NAMES[i]);
    }
    _Static_assert(sizeof functions == sizeof *api, "a name for each function");
    memcpy(api, functions, sizeof functions);
    return DSV_OK;
}

static DsvStatus nccl_failed(const NcclComm *n, int error, const char *what)
{
    return DSVI_FAIL(DSV_E_DEVICE, "%s: NCCL failed: %s", what, n->api.text(error));
}

static void abort_nccl(NcclComm *n)
{
    if (n->handle)
        n->api.abort(n->handle);
    n->handle = NULL;
}

/* Returns DSV_OK if a wait for NCCL that began at clock time `since` may go on. Fails if another rank or
 * NCCL has failed. Also fails if the group's timeout has passed, and then reports this to the other ranks. */
static DsvStatus check_nccl_ranks(NcclComm *n, double since)
{
    char sentence[128];
    int error = NCCL_SUCCESS;
    DSVI_TRY(dsvi_comm_check_failure(n->host));
    int code = n->handle ? n->api.async_error(n->handle, &error) : NCCL_SUCCESS;
    if (code != NCCL_SUCCESS || (error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS))
        return nccl_failed(n, code != NCCL_SUCCESS ? code : error, n->comm.call);
    if (dsvi_clock_seconds() - since <= n->comm.timeout_s)
        return DSV_OK;
    snprintf(sentence, sizeof sentence, "a rank has not come to %s for %g s", n->comm.call,
             n->comm.timeout_s);
    n->host->transport->fail(n->host, sentence);
    return DSVI_FAIL(DSV_E_RANK, "%s", sentence);
}

/* Waits until NCCL's stream has done all its work. If another rank fails meanwhile, aborts NCCL and returns
 * the failure. */
static DsvStatus wait_for_stream(NcclComm *n)
{
    double start = dsvi_clock_seconds(), checked = start;
    double yield = n->comm.behind < 0 ? YIELD_S : YIELD_OVERLAPPED_S;
    for (;;) {
        cudaError_t state = cudaStreamQuery(n->stream.handle);
        if (state == cudaSuccess)
            return DSV_OK;
        if (state != cudaErrorNotReady)
            return dsvi_cuda_fail_at(__FILE__, __LINE__, state, n->comm.call);
        double now = dsvi_clock_seconds();
        if (now - checked > CHECK_EVERY_S) {
            checked = now;
            DsvStatus status = check_nccl_ranks(n, start);
            if (status != DSV_OK) {
                abort_nccl(n);
                return status;
            }
        }
        if (now - start < yield)
            sched_yield();
        else
            usleep(PAUSE_US);
    }
}

/* Enqueues the sends and receives of one exchange with all other ranks as one NCCL group; returns NCCL's
 * error code. */
static int enqueue_messages(const NcclComm *n, NcclHandle handle, const DsviPiece *send,
                            const DsviPiece *receive)
{
    const NcclApi *api = &n->api;
    int error = api->group_start();
    for (int r = 0; r < (int)n->comm.size && error == NCCL_SUCCESS; r++) {
        if (r == (int)n->comm.rank)
            continue;
        if (send[r].bytes > 0)
            error = api->send(send[r].data, send[r].bytes, NCCL_BYTES, r, handle, n->stream.handle);
        if (receive[r].bytes > 0 && error == NCCL_SUCCESS)
            error = api->receive(receive[r].data, receive[r].bytes, NCCL_BYTES, r, handle, n->stream.handle);
    }
    int ended = api->group_end();
    return error == NCCL_SUCCESS ? ended : error;
}

/* Records event `i` of `events` on the stream, after the work that the stream has so far. Creates the event
 * if it does not exist yet. */
static DsvStatus record_event(Events *events, int64_t i, cudaStream_t stream)
{
    if (i >= events->count) {
        cudaEvent_t *event = realloc(events->event, (size_t)(i + 1) * sizeof *event);
        if (!event)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld events", (long long)i + 1);
        events->event = event;
        while (events->count <= i) {
            DSVI_CUDA_TRY(cudaEventCreateWithFlags(&event[events->count], cudaEventDisableTiming));
            events->count++;
        }
    }
    DSVI_CUDA_TRY(cudaEventRecord(events->event[i], stream));
    return DSV_OK;
}

static void destroy_events(Events *events)
{
    for (int64_t i = 0; i < events->count; i++)
        cudaEventDestroy(events->event[i]);
    free(events->event);
}

static DsvStatus nccl_mark(DsviComm *comm, int64_t mark)
{
    NcclComm *n = (NcclComm *)comm;
    return record_event(&n->marks, mark, n->backend->device->stream->handle);
}

static DsvStatus nccl_number(DsviComm *comm, int64_t number)
{
    NcclComm *n = (NcclComm *)comm;
    return record_event(&n->numbers, number, n->stream.handle);
}

static DsvStatus nccl_follow(DsviComm *comm, int64_t number)
{
    NcclComm *n = (NcclComm *)comm;
    DSVI_CUDA_TRY(cudaStreamWaitEvent(n->backend->device->stream->handle, n->numbers.event[number], 0));
    return DSV_OK;
}

/* Makes NCCL's stream wait for the device's stream: up to the mark that dsvi_comm_start_after has set, or
 * else for all work that the device's stream has so far. */
static DsvStatus order_after_device(NcclComm *n)
{
    DSVI_CUDA_TRY(cudaSetDevice(n->gpu)); /* each thread has its own current GPU */
    if (n->comm.behind >= 0) {
        DSVI_CUDA_TRY(cudaStreamWaitEvent(n->stream.handle, n->marks.event[n->comm.behind], 0));
        return DSV_OK;
    }
    DSVI_CUDA_TRY(cudaEventRecord(n->before, n->backend->device->stream->handle));
    DSVI_CUDA_TRY(cudaStreamWaitEvent(n->stream.handle, n->before, 0));
    return DSV_OK;
}

static DsvStatus nccl_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
{
    NcclComm *n = (NcclComm *)comm;
    if (!n->handle)
        return DSVI_FAIL(DSV_E_RANK, "NCCL has given up after a failure");
    DSVI_TRY(order_after_device(n));
    int error = enqueue_messages(n, n->handle, send, receive);
    if (error != NCCL_SUCCESS)
        return nccl_failed(n, error, comm->call);
    return comm->begun ? DSV_OK : wait_for_stream(n);
}

static DsvStatus nccl_await(DsviComm *comm)
{
    NcclComm *n = (NcclComm *)comm;
    return n->handle ? wait_for_stream(n) : DSVI_FAIL(DSV_E_RANK, "NCCL has given up after a failure");
}

static DsvStatus add_on_device(NcclComm *n, DsviDtype dtype, double b, const void *x, void *y, int64_t count)
{
    DsviAddArgs args = {.n = count, .a = 1, .b = b, .x_dtype = dtype, .y_dtype = dtype, .x = x, .y = y};
    return n->backend->ops.add.run(&n->stream, &args);
}

/* Adds up one array from each rank into `out`, in the order of the ranks. The arrays, `part`, may still be
 * arriving when this is called: the additions are enqueued on the stream of the exchange, after it. The sum
 * is accumulated in part[0], which is scratch or `out` itself. */
static DsvStatus nccl_sum(DsviComm *comm, DsviDtype dtype, const DsviPiece *part, void *out, int64_t count)
{
    NcclComm *n = (NcclComm *)comm;
    if (count == 0)
        return wait_for_stream(n);
    for (int64_t r = 1; r < comm->size; r++)
        DSVI_TRY(add_on_device(n, dtype, 1, part[r].data, part[0].data, count));
    if (part[0].data != out)
        DSVI_TRY(add_on_device(n, dtype, 0, part[0].data, out, count));
    return wait_for_stream(n);
}

static DsvStatus nccl_copy(DsviComm *comm, void *to, const void *from, size_t bytes)
{
    NcclComm *n = (NcclComm *)comm;
    DSVI_TRY(order_after_device(n));
    DSVI_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, n->stream.handle));
    return wait_for_stream(n);
}

static void nccl_fail(DsviComm *comm, const char *sentence)
{
    DsviComm *host = ((NcclComm *)comm)->host;
    host->transport->fail(host, sentence);
}

/* Returns whether the NCCL communicator must be aborted, because an exchange is unfinished or another rank
 * has failed. Does not change the thread's error message, because the group may be closed after a failure
 * whose message is reported only later. */
static bool is_broken(NcclComm *n)
{
    DsviStatusRecord before = *dsvi_status_record();
    bool broken = n->comm.begun || dsvi_comm_check_failure(n->host) != DSV_OK;
    *dsvi_status_record() = before;
    return broken;
}

/* Closes the group. Destroys the NCCL communicator, or aborts it if is_broken, because ncclCommDestroy would
 * wait forever for a rank that has ended. */
static void nccl_close(DsviComm *comm)
{
    NcclComm *n = (NcclComm *)comm;
    cudaSetDevice(n->gpu);
    if (is_broken(n))
        abort_nccl(n);
    if (n->handle)
        n->api.destroy(n->handle);
    destroy_events(&n->marks);
    destroy_events(&n->numbers);
    if (n->before)
        cudaEventDestroy(n->before);
    if (n->stream.handle)
        cudaStreamDestroy(n->stream.handle);
    dsvi_comm_free(comm);
}

static const DsviTransport NCCL = {
    .name = "NCCL",
    .at_once = true,
    .exchange = nccl_exchange,
    .fail = nccl_fail,
    .close = nccl_close,
    .sum = nccl_sum,
    .copy = nccl_copy,
    .mark = nccl_mark,
    .await = nccl_await,
    .number = nccl_number,
    .follow = nccl_follow,
};

/* A thread that connects the ranks (ncclCommInitRank blocks until all ranks have called it) and then
 * exchanges one small message with each rank. NCCL makes connections and CUDA loads kernels at first use, and
 * both may wait until the GPU is idle. During training this could deadlock: the GPU may run a kernel of
 * another group that waits for a rank which waits for this call. The message is exchanged here because, while
 * the ranks connect, the GPU runs nothing else. */
static void *connect_thread(void *argument)
{
    NcclComm *n = argument;
    DsviComm *comm = &n->comm;
    Connecting *m = &n->connecting;
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsviPiece){m->memory, WARM_UP_BYTES};
        comm->receive[r] = (DsviPiece){m->memory + (r + 1) * WARM_UP_BYTES, WARM_UP_BYTES};
    }
    cudaSetDevice(n->gpu);
    m->error = n->api.init(&m->handle, (int)comm->size, m->id, (int)comm->rank);
    if (m->error == NCCL_SUCCESS)
        m->error = enqueue_messages(n, m->handle, comm->send, comm->receive);
    atomic_store(&m->over, true);
    return NULL;
}

/* Waits until all ranks are connected, or until a rank is known to have failed. After a failure
 * connect_thread cannot be stopped: it is detached, and the memory that it uses is never freed. */
static DsvStatus connect_ranks(NcclComm *n)
{
    pthread_t thread;
    double start = dsvi_clock_seconds(), checked = start;
    n->comm.call = CONNECT_CALL;
    if (dsvi_thread_start(&thread, connect_thread, n) != 0)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start the thread that connects the ranks with NCCL");
    while (!atomic_load(&n->connecting.over)) {
        double now = dsvi_clock_seconds();
        DsvStatus status = DSV_OK;
        if (now - checked > CHECK_EVERY_S) {
            checked = now;
            status = check_nccl_ranks(n, start);
        }
        if (status != DSV_OK) {
            n->abandoned = true;
            pthread_detach(thread);
            return status;
        }
        usleep(PAUSE_US);
    }
    pthread_join(thread, NULL);
    n->handle = n->connecting.handle;
    return n->connecting.error == NCCL_SUCCESS ? wait_for_stream(n)
                                               : nccl_failed(n, n->connecting.error, CONNECT_CALL);
}

/* Connects the ranks, then runs both variants of the add kernel (for aligned and for unaligned tensors), so
 * that CUDA loads these kernels now instead of at first use. */
static DsvStatus connect_and_warm_up(NcclComm *n)
{
    float *numbers = (float *)n->connecting.memory;
    DSVI_TRY(connect_ranks(n));
    DSVI_TRY(add_on_device(n, DSVI_F32, 0, numbers, numbers + 4, 1));
    DSVI_TRY(add_on_device(n, DSVI_F32, 0, numbers + 1, numbers + 4, 1));
    return wait_for_stream(n);
}

static DsvStatus connect_with_memory(NcclComm *n)
{
    void *memory = NULL;
    DSVI_CUDA_TRY(cudaMalloc(&memory, (size_t)(n->comm.size + 1) * WARM_UP_BYTES));
    n->connecting.memory = memory;
    DsvStatus status = connect_and_warm_up(n);
    if (!n->abandoned)
        cudaFree(memory);
    return status;
}

/* Creates the CUDA stream for NCCL, with the highest priority, and connects the ranks. Without priority the
 * thread blocks of a transfer would be scheduled only after all blocks of a kernel that fills the GPU, and
 * the transfer would not overlap with the kernel. */
static DsvStatus open_nccl(NcclComm *n)
{
    int lowest, highest;
    DSVI_CUDA_TRY(cudaGetDevice(&n->gpu));
    n->stream = *n->backend->device->stream;
    n->stream.handle = NULL;
    DSVI_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    DSVI_CUDA_TRY(cudaStreamCreateWithPriority(&n->stream.handle, cudaStreamNonBlocking, highest));
    DSVI_CUDA_TRY(cudaEventCreateWithFlags(&n->before, cudaEventDisableTiming));
    int error = n->comm.rank == 0 ? n->api.get_id(&n->connecting.id) : NCCL_SUCCESS;
    if (error != NCCL_SUCCESS)
        return nccl_failed(n, error, CONNECT_CALL);
    DSVI_TRY(dsvi_comm_broadcast(n->host, 0, &n->connecting.id, sizeof n->connecting.id));
    return connect_with_memory(n);
}

DsvStatus dsvi_comm_nccl_join(const DsviBackend *backend, DsviComm *host, DsviComm **out)
{
    NcclApi api;
    DsviComm *comm;
    *out = NULL;
    DSVI_TRY(load_nccl(&api));
    DSVI_TRY(dsvi_comm_alloc(&NCCL, sizeof(NcclComm), host->rank, host->size, host->timeout_s, NULL, &comm));
    NcclComm *n = (NcclComm *)comm;
    n->host = host;
    n->backend = backend;
    n->api = api;
    DsvStatus status = open_nccl(n);
    if (status != DSV_OK) {
        if (!n->abandoned) {
            abort_nccl(n);
            nccl_close(comm);
        }
        return status;
    }
    *out = comm;
    return DSV_OK;
}
