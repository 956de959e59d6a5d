/* See rows_exchange.h. A slot of a message has a run's rows of k, then those of v. */
#include "context/rows_exchange.h"

#include "context/context_internal.h"

static int64_t runs_before(int64_t key, int64_t grain)
{
    return (key + grain - 1) / grain;
}

DsvStatus dsvi_rows_begin(const DsvBackend *backend, const DsvContextPart *part, const DsvRowsShape *shape,
                          const DsvRowsMemory *memory, DsvRowsExchange *x)
{
    int64_t ranks = part->sequence_ranks, self = part->sequence_index;
    if (ranks > DSV_RUN_PARTS_MOST)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "lists over %lld sequence-parallel ranks, wanted at most %d",
                         (long long)ranks, DSV_RUN_PARTS_MOST);
    x->backend = backend;
    x->part = *part;
    x->keys = shape->keys;
    x->batch = shape->batch;
    x->grain = shape->grain;
    x->head_dim = shape->head_dim;
    x->dtype = shape->dtype;
    x->memory = *memory;
    for (int64_t j = 0; j <= ranks; j++)
        x->needs_bound[j] = runs_before(part->bound[j], x->grain);
    for (int64_t j = 0; j <= ranks; j++)
        x->wants_bound[j] = j * (x->needs_bound[self + 1] - x->needs_bound[self]);
    x->needs = (DsvRuns){x->batch, part->heads, ranks, x->grain, x->needs_bound, memory->needs_marks,
                         memory->needs_number, memory->needs_first};
    x->wants = (DsvRuns){x->batch, part->heads, ranks, x->grain, x->wants_bound, memory->wants_marks,
                         memory->wants_number, memory->wants_first};
    x->width = x->far_keys = 0;
    return DSV_OK;
}

/* Numbers of `first` for one of needs and wants. */
static int64_t firsts(const DsvRowsExchange *x)
{
    return x->part.sequence_ranks * (dsvi_runs_pairs(&x->needs) + 1);
}

static const int64_t *host_needs(const DsvRowsExchange *x)
{
    return x->memory.host_first;
}

static const int64_t *host_wants(const DsvRowsExchange *x)
{
    return x->memory.host_first + firsts(x);
}

/* Marked runs of a part. */
static int64_t slots_of(const DsvRowsExchange *x, const int64_t *first, int64_t part)
{
    int64_t pairs = dsvi_runs_pairs(&x->needs);
    return first[part * (pairs + 1) + pairs];
}

static int64_t slots(const DsvRowsExchange *x, const int64_t *first)
{
    int64_t sum = 0;
    for (int64_t j = 0; j < x->part.sequence_ranks; j++)
        sum += slots_of(x, first, j);
    return sum;
}

int64_t dsvi_rows_needed(const DsvRowsExchange *x)
{
    return slots(x, host_needs(x));
}

int64_t dsvi_rows_wanted(const DsvRowsExchange *x)
{
    return slots(x, host_wants(x));
}

/* ---- marks ---- */

static DsvPiece marks_of(const DsvRuns *runs, int64_t part)
{
    int64_t begin = dsvi_runs_at(runs, part, 0, 0), pairs = dsvi_runs_pairs(runs);
    return (DsvPiece){runs->marks + begin, (size_t)(pairs * (runs->bound[part + 1] - runs->bound[part]))};
}

DsvStatus dsvi_rows_number(DsvRowsExchange *x)
{
    DsvStream *stream = x->backend->device->stream;
    DSVI_TRY(x->backend->ops.runs_number.run(stream, &x->needs));
    return x->backend->ops.runs_number.run(stream, &x->wants);
}

DsvStatus dsvi_rows_marks(DsvRowsExchange *x)
{
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    DsvDevice *device = x->backend->device;
    int64_t self = x->part.sequence_index;
    size_t bytes = (size_t)firsts(x) * sizeof(int64_t);
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        send[j] = marks_of(&x->needs, j);
        receive[j] = marks_of(&x->wants, j);
    }
    send[self] = receive[self]; /* a rank wants nothing of its own */
    DSVI_TRY(device->zero(device->stream, receive[self].data, receive[self].bytes));
    DSVI_TRY(dsvi_comm_exchange(x->part.sequence_device, send, receive));
    DSVI_TRY(dsvi_rows_number(x));
    DSVI_TRY(device->download(device->stream, x->memory.host_first, x->needs.first, bytes));
    return device->download(device->stream, x->memory.host_first + firsts(x), x->wants.first, bytes);
}

void dsvi_rows_measure(DsvRowsExchange *x)
{
    int64_t ranks = x->part.sequence_ranks, pairs = dsvi_runs_pairs(&x->needs), most = 0;
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < ranks; j++) {
            const int64_t *first = host_needs(x) + j * (pairs + 1) + pair;
            count += first[1] - first[0];
        }
        most = count > most ? count : most;
    }
    bool ends_far = x->part.bound[x->part.sequence_index + 1] < x->keys;
    int64_t far_runs = x->needs_bound[ranks] - x->wants_bound[1], i = 0;
    while (dsvi_rows_width(far_runs, i) < most)
        i++;
    x->width = dsvi_rows_width(far_runs, i);
    x->far_keys = dsvi_rows_keys(x->width, x->grain, x->keys, ends_far);
}

/* ---- rows ---- */

static int64_t slot_elements(const DsvRowsExchange *x)
{
    return 2 * x->grain * x->head_dim;
}

/* Element `i` of an array of the exchange's dtype. */
static void *element(const DsvRowsExchange *x, void *array, int64_t i)
{
    return (char *)array + (size_t)i * dsvi_dtype_size(x->dtype);
}

/* Rows of k (which 0) or v (1) between a tensor and messages. */
static DsvRowsArgs rows_args(const DsvRowsExchange *x, bool far, int which, const void *tensor, void *message)
{
    int64_t rows = far ? x->far_keys
                       : x->part.bound[x->part.sequence_index + 1] - x->part.bound[x->part.sequence_index];
    return (DsvRowsArgs){
        .runs = far ? &x->needs : &x->wants, .width = far ? x->width : 0, .rows = rows,
        .head_dim = x->head_dim, .dtype = x->dtype,
        .x = dsvi_heads(tensor, rows, x->part.heads, x->head_dim),
        .message = element(x, message, which * x->grain * x->head_dim), .slot_stride = slot_elements(x),
    };
}

/* One op on both tensors. */
static DsvStatus both_rows(const DsvRowsExchange *x, dsvi_rows_fn *op, bool far, const void *k, const void *v,
                           void *message)
{
    DsvStream *stream = x->backend->device->stream;
    DsvRowsArgs of_k = rows_args(x, far, 0, k, message), of_v = rows_args(x, far, 1, v, message);
    if (far && x->width == 0)
        return DSV_OK;
    DSVI_TRY(op(stream, &of_k));
    return op(stream, &of_v);
}

/* The messages of all parts, one behind the other. */
static void pieces(const DsvRowsExchange *x, const int64_t *first, void *messages, DsvPiece *piece)
{
    int64_t at = 0;
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        int64_t elements = slots_of(x, first, j) * slot_elements(x);
        piece[j] = (DsvPiece){element(x, messages, at), (size_t)elements * dsvi_dtype_size(x->dtype)};
        at += elements;
    }
}

DsvStatus dsvi_rows_fetch_begin(DsvRowsExchange *x, const void *k, const void *v)
{
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    DSVI_TRY(both_rows(x, x->backend->ops.rows_take.run, false, k, v, x->memory.sent));
    pieces(x, host_wants(x), x->memory.sent, send);
    pieces(x, host_needs(x), x->memory.received, receive);
    dsvi_comm_begin(x->part.sequence_device);
    return dsvi_comm_exchange(x->part.sequence_device, send, receive);
}

DsvStatus dsvi_rows_fetch_end(DsvRowsExchange *x, void *far_k, void *far_v)
{
    DSVI_TRY(dsvi_comm_await(x->part.sequence_device));
    return both_rows(x, x->backend->ops.rows_put.run, true, far_k, far_v, x->memory.received);
}

DsvStatus dsvi_rows_home_begin(DsvRowsExchange *x, const void *far_dk, const void *far_dv, void *packed)
{
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    DSVI_TRY(both_rows(x, x->backend->ops.rows_take.run, true, far_dk, far_dv, packed));
    pieces(x, host_needs(x), packed, send);
    pieces(x, host_wants(x), x->memory.sent, receive);
    dsvi_comm_begin(x->part.sequence_device);
    return dsvi_comm_exchange(x->part.sequence_device, send, receive);
}

DsvStatus dsvi_rows_home_end(DsvRowsExchange *x, void *dk, void *dv)
{
    DSVI_TRY(dsvi_comm_await(x->part.sequence_device));
    return both_rows(x, x->backend->ops.rows_add.run, false, dk, dv, x->memory.sent);
}
