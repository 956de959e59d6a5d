/* See comm_nccl.h. Pieces go from GPU to GPU (ncclSend, ncclRecv, all of an exchange as one group) on a
 * stream of their own, behind what the device's stream has been given; sums are formed by the backend's
 * `add`, in the order of the ranks, as on any other transport. NCCL's own sums have an order that depends on
 * the machine.
 *
 * A kernel of NCCL waits for the other GPU for ever. So the host waits by asking, and listens meanwhile to
 * the group it has with the same ranks: when one of them has failed or ended, NCCL is told to give up. Where
 * NCCL makes the host wait, when ranks meet, a thread of its own does so. */
#include "cuda/comm_nccl.h"

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
enum { WARM_UP_BYTES = 256 };
/* Seconds of a wait that are spent yielding, before it sleeps: of one that the device waits for too, as long
 * as kernels take; of one beside what the device does, a moment. */
#define YIELD_S 0.25
#define YIELD_BESIDE_S 0.002
enum { PAUSE_US = 50 };
#define LISTEN_EVERY_S 0.005

/* Of nccl.h, of which nothing else is wanted: these have not changed since NCCL 2.7. */
typedef struct ncclComm *NcclHandle;
typedef struct NcclId {
    char bytes[128];
} NcclId;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTES = 0 /* ncclInt8 */ };

/* Functions by name, in the order of NAMES. */
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
    "ncclGetUniqueId", "ncclCommInitRank", "ncclCommDestroy", "ncclCommAbort", "ncclCommGetAsyncError",
    "ncclGetErrorString", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv",
};

/* Made when first wanted. */
typedef struct Events {
    cudaEvent_t *event;
    int64_t count;
} Events;

/* Ranks meeting: by a thread of its own until `over`. */
typedef struct Meeting {
    NcclId id;
    NcclHandle handle;
    unsigned char *memory; /* device memory: what is sent, and what comes of each rank */
    int error;
    atomic_bool over;
} Meeting;

typedef struct NcclComm {
    DsvComm comm;
    DsvComm *host;
    const DsvBackend *backend;
    NcclApi api;
    NcclHandle handle;   /* NULL: given up */
    int gpu;
    DsvStream stream;    /* as the device's, but for the handle, which is of NCCL's own */
    cudaEvent_t before;  /* what the device's stream had been given */
    Events marks;
    Events numbered;     /* of exchanges that were begun */
    Meeting meeting;
    bool left_waiting;   /* NCCL has not come back from it, and still reads what lies here */
} NcclComm;

static DsvStatus load(NcclApi *api)
{
    void *functions[sizeof NAMES / sizeof *NAMES];
    void *library = dlopen(NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "several GPUs want NCCL, which could not be loaded: %s",
                         dlerror());
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        functions[i] = dlsym(library, NAMES[i]);
        if (!functions[i])
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s has no %s: NCCL 2.7 or later is wanted", NCCL_LIBRARY,
                             NAMES[i]);
    }
    _Static_assert(sizeof functions == sizeof *api, "a name for each function");
    memcpy(api, functions, sizeof functions);
    return DSV_OK;
}

static DsvStatus nccl_failed(const NcclComm *n, int error, const char *what)
{
    return DSVI_FAIL(DSV_E_DEVICE, "%s: NCCL says: %s", what, n->api.text(error));
}

static void give_up(NcclComm *n)
{
    if (n->handle)
        n->api.abort(n->handle);
    n->handle = NULL;
}

/* Whether anything speaks against waiting on. */
static DsvStatus listen(NcclComm *n, double since)
{
    char sentence[128];
    int error = NCCL_SUCCESS;
    DSVI_TRY(dsvi_comm_listen(n->host));
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

/* Until the stream is done. */
static DsvStatus await(NcclComm *n)
{
    double start = dsvi_clock_seconds(), listened = start;
    double yield = n->comm.behind < 0 ? YIELD_S : YIELD_BESIDE_S;
    for (;;) {
        cudaError_t state = cudaStreamQuery(n->stream.handle);
        if (state == cudaSuccess)
            return DSV_OK;
        if (state != cudaErrorNotReady)
            return dsvi_cuda_fail_at(__FILE__, __LINE__, state, n->comm.call);
        double now = dsvi_clock_seconds();
        if (now - listened > LISTEN_EVERY_S) {
            listened = now;
            DsvStatus status = listen(n, start);
            if (status != DSV_OK) {
                give_up(n);
                return status;
            }
        }
        if (now - start < yield)
            sched_yield();
        else
            usleep(PAUSE_US);
    }
}

/* Enqueues the messages of one exchange; what NCCL says to it. */
static int post(const NcclComm *n, NcclHandle handle, const DsvPiece *send, const DsvPiece *receive)
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

/* Puts event `i` behind what the stream has been given. */
static DsvStatus put_event(Events *events, int64_t i, cudaStream_t stream)
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

static DsvStatus nccl_mark(DsvComm *comm, int64_t mark)
{
    NcclComm *n = (NcclComm *)comm;
    return put_event(&n->marks, mark, n->backend->device->stream->handle);
}

static DsvStatus nccl_number(DsvComm *comm, int64_t number)
{
    NcclComm *n = (NcclComm *)comm;
    return put_event(&n->numbered, number, n->stream.handle);
}

static DsvStatus nccl_follow(DsvComm *comm, int64_t number)
{
    NcclComm *n = (NcclComm *)comm;
    DSVI_CUDA_TRY(cudaStreamWaitEvent(n->backend->device->stream->handle, n->numbered.event[number], 0));
    return DSV_OK;
}

/* NCCL's stream goes on once the device's has done what the call comes behind. */
static DsvStatus come_behind(NcclComm *n)
{
    DSVI_CUDA_TRY(cudaSetDevice(n->gpu)); /* of this thread, which may be another than last time */
    if (n->comm.behind >= 0) {
        DSVI_CUDA_TRY(cudaStreamWaitEvent(n->stream.handle, n->marks.event[n->comm.behind], 0));
        return DSV_OK;
    }
    DSVI_CUDA_TRY(cudaEventRecord(n->before, n->backend->device->stream->handle));
    DSVI_CUDA_TRY(cudaStreamWaitEvent(n->stream.handle, n->before, 0));
    return DSV_OK;
}

static DsvStatus nccl_exchange(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive)
{
    NcclComm *n = (NcclComm *)comm;
    if (!n->handle)
        return DSVI_FAIL(DSV_E_RANK, "NCCL has given up after a failure");
    DSVI_TRY(come_behind(n));
    int error = post(n, n->handle, send, receive);
    if (error != NCCL_SUCCESS)
        return nccl_failed(n, error, comm->call);
    return comm->begun ? DSV_OK : await(n);
}

static DsvStatus nccl_await(DsvComm *comm)
{
    NcclComm *n = (NcclComm *)comm;
    return n->handle ? await(n) : DSVI_FAIL(DSV_E_RANK, "NCCL has given up after a failure");
}

static DsvStatus add(NcclComm *n, DsvDtype dtype, double b, const void *x, void *y, int64_t count)
{
    DsvAddArgs args = {.n = count, .a = 1, .b = b, .x_dtype = dtype, .y_dtype = dtype, .x = x, .y = y};
    return n->backend->ops.add.run(&n->stream, &args);
}

/* What comes may be on its way still: sums are enqueued behind it. The first part gathers the sum: scratch,
 * or `out` itself. */
static DsvStatus nccl_sum(DsvComm *comm, DsvDtype dtype, const DsvPiece *part, void *out, int64_t count)
{
    NcclComm *n = (NcclComm *)comm;
    if (count == 0)
        return await(n);
    for (int64_t r = 1; r < comm->size; r++)
        DSVI_TRY(add(n, dtype, 1, part[r].data, part[0].data, count));
    if (part[0].data != out)
        DSVI_TRY(add(n, dtype, 0, part[0].data, out, count));
    return await(n);
}

static DsvStatus nccl_copy(DsvComm *comm, void *to, const void *from, size_t bytes)
{
    NcclComm *n = (NcclComm *)comm;
    DSVI_TRY(come_behind(n));
    DSVI_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, n->stream.handle));
    return await(n);
}

static void nccl_fail(DsvComm *comm, const char *sentence)
{
    DsvComm *host = ((NcclComm *)comm)->host;
    host->transport->fail(host, sentence);
}

/* What is recorded of a failure stays: a group is closed on the way to telling it. */
static bool is_broken(NcclComm *n)
{
    DsvStatusRecord before = *dsvi_status_record();
    bool broken = n->comm.begun || dsvi_comm_listen(n->host) != DSV_OK;
    *dsvi_status_record() = before;
    return broken;
}

/* In good order ranks leave together: NCCL would wait for one that is gone. */
static void nccl_close(DsvComm *comm)
{
    NcclComm *n = (NcclComm *)comm;
    cudaSetDevice(n->gpu);
    if (is_broken(n))
        give_up(n);
    if (n->handle)
        n->api.destroy(n->handle);
    destroy_events(&n->marks);
    destroy_events(&n->numbered);
    if (n->before)
        cudaEventDestroy(n->before);
    if (n->stream.handle)
        cudaStreamDestroy(n->stream.handle);
    dsvi_comm_release(comm);
}

static const DsvTransport NCCL = {
    .name = "NCCL", .at_once = true, .exchange = nccl_exchange, .fail = nccl_fail,
    .close = nccl_close, .sum = nccl_sum, .copy = nccl_copy, .mark = nccl_mark,
    .await = nccl_await, .number = nccl_number, .follow = nccl_follow,
};

/* The host waits here until all ranks have come. Connections are made, and kernels loaded, when first wanted,
 * and either may wait for all that the GPU does: a kernel of another group among it, which waits for a rank
 * that in its turn waits for this call. So what calls from a second thread will want is wanted here, where
 * nothing else goes on. */
static void *enter(void *argument)
{
    NcclComm *n = argument;
    DsvComm *comm = &n->comm;
    Meeting *m = &n->meeting;
    for (int64_t r = 0; r < comm->size; r++) {
        comm->send[r] = (DsvPiece){m->memory, WARM_UP_BYTES};
        comm->receive[r] = (DsvPiece){m->memory + (r + 1) * WARM_UP_BYTES, WARM_UP_BYTES};
    }
    cudaSetDevice(n->gpu);
    m->error = n->api.init(&m->handle, (int)comm->size, m->id, (int)comm->rank);
    if (m->error == NCCL_SUCCESS)
        m->error = post(n, m->handle, comm->send, comm->receive);
    atomic_store(&m->over, true);
    return NULL;
}

/* Until all ranks have come, or one is known not to: NCCL cannot be called back then, and what it reads is
 * left to it. */
static DsvStatus meet(NcclComm *n)
{
    pthread_t thread;
    double start = dsvi_clock_seconds(), listened = start;
    n->comm.call = "meeting";
    if (dsvi_thread_start(&thread, enter, n) != 0)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "cannot start a thread to meet other ranks with NCCL");
    while (!atomic_load(&n->meeting.over)) {
        double now = dsvi_clock_seconds();
        DsvStatus status = DSV_OK;
        if (now - listened > LISTEN_EVERY_S) {
            listened = now;
            status = listen(n, start);
        }
        if (status != DSV_OK) {
            n->left_waiting = true;
            pthread_detach(thread);
            return status;
        }
        usleep(PAUSE_US);
    }
    pthread_join(thread, NULL);
    n->handle = n->meeting.handle;
    return n->meeting.error == NCCL_SUCCESS ? await(n) : nccl_failed(n, n->meeting.error, "meeting");
}

/* The sums' kernels too. */
static DsvStatus meet_and_add(NcclComm *n)
{
    float *numbers = (float *)n->meeting.memory;
    DSVI_TRY(meet(n));
    DSVI_TRY(add(n, DSV_F32, 0, numbers, numbers + 4, 1));
    DSVI_TRY(add(n, DSV_F32, 0, numbers + 1, numbers + 4, 1)); /* not aligned */
    return await(n);
}

static DsvStatus meet_in_memory(NcclComm *n)
{
    void *memory = NULL;
    DSVI_CUDA_TRY(cudaMalloc(&memory, (size_t)(n->comm.size + 1) * WARM_UP_BYTES));
    n->meeting.memory = memory;
    DsvStatus status = meet_and_add(n);
    if (!n->left_waiting)
        cudaFree(memory);
    return status;
}

/* A stream of its own, then NCCL, which all ranks enter together. Blocks of a kernel that fills
 * the device are all given out before another stream's, unless that is of a higher priority: what is sent
 * beside such a kernel would be sent after it. */
static DsvStatus open_nccl(NcclComm *n)
{
    int lowest, highest;
    DSVI_CUDA_TRY(cudaGetDevice(&n->gpu));
    n->stream = *n->backend->device->stream;
    n->stream.handle = NULL;
    DSVI_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    DSVI_CUDA_TRY(cudaStreamCreateWithPriority(&n->stream.handle, cudaStreamNonBlocking, highest));
    DSVI_CUDA_TRY(cudaEventCreateWithFlags(&n->before, cudaEventDisableTiming));
    int error = n->comm.rank == 0 ? n->api.get_id(&n->meeting.id) : NCCL_SUCCESS;
    if (error != NCCL_SUCCESS)
        return nccl_failed(n, error, "meeting");
    DSVI_TRY(dsvi_comm_broadcast(n->host, 0, &n->meeting.id, sizeof n->meeting.id));
    return meet_in_memory(n);
}

DsvStatus dsvi_comm_nccl_join(const DsvBackend *backend, DsvComm *host, DsvComm **out)
{
    NcclApi api;
    DsvComm *comm;
    *out = NULL;
    DSVI_TRY(load(&api));
    DSVI_TRY(dsvi_comm_make(&NCCL, sizeof(NcclComm), host->rank, host->size, host->timeout_s, NULL, &comm));
    NcclComm *n = (NcclComm *)comm;
    n->host = host;
    n->backend = backend;
    n->api = api;
    DsvStatus status = open_nccl(n);
    if (status != DSV_OK) {
        if (!n->left_waiting) {
            give_up(n);
            nccl_close(comm);
        }
        return status;
    }
    *out = comm;
    return DSV_OK;
}
