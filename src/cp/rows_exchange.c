/* Exchanges the keys and values that lists name and other ranks own (rows_exchange.h). */
#include "cp/rows_exchange.h"

#include "cp/cp_internal.h"

/* An exchange is divided into turns, each for some pairs (sample, head). Gradients return to their owners in
 * several turns, so that one turn is packed while another is sent. Keys and values are fetched in one turn,
 * concurrently with attention: packing a second turn would have to wait until attention releases
 * multiprocessors. */
enum { FETCH_TURNS = 1, HOME_TURNS = 4 };

static int64_t spans_before(int64_t key, int64_t grain)
{
    return (key + grain - 1) / grain;
}

DsvStatus dsvi_rows_begin(const DsviBackend *backend, const DsviCpPart *part, const DsviRowsShape *shape,
                          const DsviRowsMemory *memory, DsviRowsExchange *x)
{
    int64_t ranks = part->sequence_ranks, self = part->sequence_index;
    if (ranks > DSVI_SPAN_PARTS_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "lists over %lld sequence-parallel ranks, expected at most %d",
                         (long long)ranks, DSVI_SPAN_PARTS_MAX);
    x->backend = backend;
    x->part = *part;
    x->keys = shape->keys;
    x->batch = shape->batch;
    x->grain = shape->grain;
    x->head_dim = shape->head_dim;
    x->dtype = shape->dtype;
    x->memory = *memory;
    for (int64_t j = 0; j <= ranks; j++)
        x->needs_bound[j] = spans_before(part->bound[j], x->grain);
    for (int64_t j = 0; j <= ranks; j++)
        x->served_bound[j] = j * (x->needs_bound[self + 1] - x->needs_bound[self]);
    x->needs = (DsviSpans){x->batch,
                           part->heads,
                           ranks,
                           x->grain,
                           x->needs_bound,
                           memory->needs_marks,
                           memory->needs_before,
                           memory->needs_first};
    x->wants = (DsviSpans){x->batch,
                           part->heads,
                           ranks,
                           x->grain,
                           x->served_bound,
                           memory->served_marks,
                           memory->served_before,
                           memory->served_first};
    x->width = x->far_keys = 0;
    return DSV_OK;
}

/* Returns the number of elements of needs.first, which is also that of wants.first (counts of marked spans).
 */
static int64_t rows_exchange_firsts(const DsviRowsExchange *x)
{
    return x->part.sequence_ranks * (dsvi_spans_pairs(&x->needs) + 1);
}

static const int64_t *host_needs(const DsviRowsExchange *x)
{
    return x->memory.host_first;
}

static const int64_t *host_wants(const DsviRowsExchange *x)
{
    return x->memory.host_first + rows_exchange_firsts(x);
}

/* Returns the number of marked spans in one part of the keys: those that one rank owns, or that one rank
 * requests. */
static int64_t slots_of(const DsviRowsExchange *x, const int64_t *first, int64_t part)
{
    int64_t pairs = dsvi_spans_pairs(&x->needs);
    return first[part * (pairs + 1) + pairs];
}

static int64_t slots(const DsviRowsExchange *x, const int64_t *first)
{
    int64_t sum = 0;
    for (int64_t j = 0; j < x->part.sequence_ranks; j++)
        sum += slots_of(x, first, j);
    return sum;
}

int64_t dsvi_rows_needed(const DsviRowsExchange *x)
{
    return slots(x, host_needs(x));
}

int64_t dsvi_rows_served(const DsviRowsExchange *x)
{
    return slots(x, host_wants(x));
}

/* ---- marks ---- */

static DsviPiece marks_of(const DsviSpans *spans, int64_t part)
{
    int64_t begin = dsvi_spans_word(spans, part, 0), end = dsvi_spans_word(spans, part + 1, 0);
    return (DsviPiece){spans->marks + begin, (size_t)(end - begin) * sizeof *spans->marks};
}

DsvStatus dsvi_rows_count(DsviRowsExchange *x)
{
    DsviStream *stream = x->backend->device->stream;
    DSVI_TRY(x->backend->ops.spans_count.run(stream, &x->needs));
    return x->backend->ops.spans_count.run(stream, &x->wants);
}

/* The spans that this rank requests are counted while their marks are being sent. */
DsvStatus dsvi_rows_marks(DsviRowsExchange *x)
{
    DsviPiece send[DSVI_SPAN_PARTS_MAX], receive[DSVI_SPAN_PARTS_MAX];
    DsviDevice *device = x->backend->device;
    DsviComm *comm = x->part.sequence_device;
    int64_t self = x->part.sequence_index;
    size_t bytes = (size_t)rows_exchange_firsts(x) * sizeof(int64_t);
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        send[j] = marks_of(&x->needs, j);
        receive[j] = marks_of(&x->wants, j);
    }
    send[self] = receive[self]; /* a rank requests nothing from itself */
    DSVI_TRY(device->clear(device->stream, receive[self].data, receive[self].bytes));
    dsvi_comm_begin_async(comm);
    DSVI_TRY(dsvi_comm_exchange(comm, send, receive));
    DSVI_TRY(x->backend->ops.spans_count.run(device->stream, &x->needs));
    DSVI_TRY(device->download(device->stream, x->memory.host_first, x->needs.first, bytes));
    DSVI_TRY(dsvi_comm_wait_async(comm));
    DSVI_TRY(x->backend->ops.spans_count.run(device->stream, &x->wants));
    return device->download(device->stream, x->memory.host_first + rows_exchange_firsts(x), x->wants.first,
                            bytes);
}

void dsvi_rows_measure(DsviRowsExchange *x)
{
    int64_t ranks = x->part.sequence_ranks, pairs = dsvi_spans_pairs(&x->needs), largest = 0;
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < ranks; j++) {
            const int64_t *first = host_needs(x) + j * (pairs + 1) + pair;
            count += first[1] - first[0];
        }
        largest = count > largest ? count : largest;
    }
    bool ends_far = x->part.bound[x->part.sequence_index + 1] < x->keys;
    int64_t far_spans = x->needs_bound[ranks] - x->served_bound[1], i = 0;
    while (dsvi_rows_width(far_spans, i) < largest)
        i++;
    x->width = dsvi_rows_width(far_spans, i);
    x->far_keys = dsvi_rows_keys(x->width, x->grain, x->keys, ends_far);
}

/* ---- rows ---- */

/* Bytes of a slot: the rows of k and v of one span. */
static size_t slot_bytes(const DsviRowsExchange *x)
{
    return (size_t)(2 * x->grain * x->head_dim) * dsvi_dtype_size(x->dtype);
}

/* Returns the number of turns in which rows are exchanged: turns_max, but at most one per pair (sample,
 * head). */
static int64_t turns_of(const DsviRowsExchange *x, int64_t turns_max)
{
    int64_t pairs = dsvi_spans_pairs(&x->needs);
    return pairs < turns_max ? pairs : turns_max;
}

/* The pairs (sample, head) whose rows are exchanged in one turn: first <= pair < end. */
typedef struct Turn {
    int64_t first, end;
} Turn;

static Turn turn_of(const DsviRowsExchange *x, int64_t turn, int64_t turns)
{
    int64_t pairs = dsvi_spans_pairs(&x->needs);
    return (Turn){pairs * turn / turns, pairs * (turn + 1) / turns};
}

/* Runs `op`, which packs or unpacks messages, for the pairs (sample, head) of one turn. `far` true: k and v
 * are the compact tensors of fetched rows; false: the tensors of this rank's own rows. */
static DsvStatus move_rows(const DsviRowsExchange *x, dsvi_rows_fn *op, Turn turn, bool far, const void *k,
                           const void *v, void *messages)
{
    int64_t rows = far ? x->far_keys
                       : x->part.bound[x->part.sequence_index + 1] - x->part.bound[x->part.sequence_index];
    DsviRowsArgs args = {
        .spans = far ? &x->needs : &x->wants,
        .first_pair = turn.first,
        .end_pair = turn.end,
        .width = far ? x->width : 0,
        .rows = rows,
        .head_dim = x->head_dim,
        .dtype = x->dtype,
        .message = messages,
        .k = dsvi_heads(k, rows, x->part.heads, x->head_dim),
        .v = dsvi_heads(v, rows, x->part.heads, x->head_dim),
    };
    return far && x->width == 0 ? DSV_OK : op(x->backend->device->stream, &args);
}

/* Sets piece[rank] to the part of that rank's message that is exchanged in one turn. The messages of all
 * ranks are contiguous. */
static void rows_exchange_pieces(const DsviRowsExchange *x, const int64_t *first, Turn turn, void *messages,
                                 DsviPiece *piece)
{
    int64_t pairs = dsvi_spans_pairs(&x->needs), before = 0;
    size_t slot = slot_bytes(x);
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        const int64_t *of_part = first + j * (pairs + 1);
        int64_t begin = of_part[turn.first], end = of_part[turn.end];
        piece[j] = (DsviPiece){(char *)messages + (size_t)(before + begin) * slot,
                               (size_t)(end - begin) * slot};
        before += of_part[pairs];
    }
}

/* Packs rows and begins to send them, turn by turn. `far` true: gradients of fetched rows go to the owners
 * of the rows; false: this rank's rows go to the ranks that requested them. */
static DsvStatus send_rows(DsviRowsExchange *x, int64_t turns_max, bool far, const void *k, const void *v,
                           void *packed, void *received)
{
    DsviPiece send[DSVI_SPAN_PARTS_MAX], receive[DSVI_SPAN_PARTS_MAX];
    int64_t turns = turns_of(x, turns_max);
    dsvi_comm_begin_async(x->part.sequence_device);
    for (int64_t i = 0; i < turns; i++) {
        Turn turn = turn_of(x, i, turns);
        rows_exchange_pieces(x, far ? host_needs(x) : host_wants(x), turn, packed, send);
        rows_exchange_pieces(x, far ? host_wants(x) : host_needs(x), turn, received, receive);
        DSVI_TRY(move_rows(x, x->backend->ops.rows_take.run, turn, far, k, v, packed));
        DSVI_TRY(dsvi_comm_exchange(x->part.sequence_device, send, receive));
    }
    return DSV_OK;
}

/* Runs `op`, which unpacks rows, on the received messages of one turn after another. */
static DsvStatus receive_rows(DsviRowsExchange *x, int64_t turns_max, dsvi_rows_fn *op, bool far,
                              const void *k, const void *v, void *received)
{
    int64_t turns = turns_of(x, turns_max);
    for (int64_t i = 0; i < turns; i++) {
        DSVI_TRY(dsvi_comm_stream_wait(x->part.sequence_device, i + 1));
        DSVI_TRY(move_rows(x, op, turn_of(x, i, turns), far, k, v, received));
    }
    return dsvi_comm_wait_async(x->part.sequence_device);
}

DsvStatus dsvi_rows_fetch_begin(DsviRowsExchange *x, const void *k, const void *v)
{
    return send_rows(x, FETCH_TURNS, false, k, v, x->memory.sent, x->memory.received);
}

DsvStatus dsvi_rows_fetch_end(DsviRowsExchange *x, void *far_k, void *far_v)
{
    return receive_rows(x, FETCH_TURNS, x->backend->ops.rows_put.run, true, far_k, far_v, x->memory.received);
}

DsvStatus dsvi_rows_return_begin(DsviRowsExchange *x, const void *far_dk, const void *far_dv, void *packed)
{
    return send_rows(x, HOME_TURNS, true, far_dk, far_dv, packed, x->memory.sent);
}

DsvStatus dsvi_rows_return_end(DsviRowsExchange *x, void *dk, void *dv)
{
    return receive_rows(x, HOME_TURNS, x->backend->ops.rows_add.run, false, dk, dv, x->memory.sent);
}
