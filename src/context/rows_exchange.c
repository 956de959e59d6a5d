/* See rows_exchange.h. */
#include "context/rows_exchange.h"

#include "context/context_internal.h"

/* Rows go home in turns, so that some are packed while others travel. They are fetched at once, beside
 * attention, which would keep the multiprocessors that another turn wants. */
enum { TURNS_OF_FETCH = 1, TURNS_HOME = 4 };

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
                         memory->needs_before, memory->needs_first};
    x->wants = (DsvRuns){x->batch, part->heads, ranks, x->grain, x->wants_bound, memory->wants_marks,
                         memory->wants_before, memory->wants_first};
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
    int64_t begin = dsvi_runs_word(runs, part, 0), end = dsvi_runs_word(runs, part + 1, 0);
    return (DsvPiece){runs->marks + begin, (size_t)(end - begin) * sizeof *runs->marks};
}

DsvStatus dsvi_rows_count(DsvRowsExchange *x)
{
    DsvStream *stream = x->backend->device->stream;
    DSVI_TRY(x->backend->ops.runs_count.run(stream, &x->needs));
    return x->backend->ops.runs_count.run(stream, &x->wants);
}

/* While marks travel the own ones are counted. */
DsvStatus dsvi_rows_marks(DsvRowsExchange *x)
{
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    DsvDevice *device = x->backend->device;
    DsvComm *comm = x->part.sequence_device;
    int64_t self = x->part.sequence_index;
    size_t bytes = (size_t)firsts(x) * sizeof(int64_t);
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        send[j] = marks_of(&x->needs, j);
        receive[j] = marks_of(&x->wants, j);
    }
    send[self] = receive[self]; /* a rank wants nothing of its own */
    DSVI_TRY(device->zero(device->stream, receive[self].data, receive[self].bytes));
    dsvi_comm_begin(comm);
    DSVI_TRY(dsvi_comm_exchange(comm, send, receive));
    DSVI_TRY(x->backend->ops.runs_count.run(device->stream, &x->needs));
    DSVI_TRY(device->download(device->stream, x->memory.host_first, x->needs.first, bytes));
    DSVI_TRY(dsvi_comm_await(comm));
    DSVI_TRY(x->backend->ops.runs_count.run(device->stream, &x->wants));
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

/* Bytes of a slot. */
static size_t slot_bytes(const DsvRowsExchange *x)
{
    return (size_t)(2 * x->grain * x->head_dim) * dsvi_dtype_size(x->dtype);
}

/* There are no more turns than pairs. */
static int64_t turns_of(const DsvRowsExchange *x, int64_t most)
{
    int64_t pairs = dsvi_runs_pairs(&x->needs);
    return pairs < most ? pairs : most;
}

/* The pairs whose rows travel in one of `turns`. */
typedef struct Turn {
    int64_t first, end;
} Turn;

static Turn turn_of(const DsvRowsExchange *x, int64_t turn, int64_t turns)
{
    int64_t pairs = dsvi_runs_pairs(&x->needs);
    return (Turn){pairs * turn / turns, pairs * (turn + 1) / turns};
}

/* An op on the rows of a turn, of compact keys or of the own ones, and messages. */
static DsvStatus move_rows(const DsvRowsExchange *x, dsvi_rows_fn *op, Turn turn, bool far, const void *k,
                           const void *v, void *messages)
{
    int64_t rows = far ? x->far_keys
                       : x->part.bound[x->part.sequence_index + 1] - x->part.bound[x->part.sequence_index];
    DsvRowsArgs args = {
        .runs = far ? &x->needs : &x->wants, .first_pair = turn.first, .end_pair = turn.end,
        .width = far ? x->width : 0, .rows = rows, .head_dim = x->head_dim, .dtype = x->dtype,
        .message = messages,
        .k = dsvi_heads(k, rows, x->part.heads, x->head_dim),
        .v = dsvi_heads(v, rows, x->part.heads, x->head_dim),
    };
    return far && x->width == 0 ? DSV_OK : op(x->backend->device->stream, &args);
}

/* Of the messages of all parts, one behind the other, what goes in a turn. */
static void pieces(const DsvRowsExchange *x, const int64_t *first, Turn turn, void *messages,
                   DsvPiece *piece)
{
    int64_t pairs = dsvi_runs_pairs(&x->needs), before = 0;
    size_t slot = slot_bytes(x);
    for (int64_t j = 0; j < x->part.sequence_ranks; j++) {
        const int64_t *of_part = first + j * (pairs + 1);
        int64_t begin = of_part[turn.first], end = of_part[turn.end];
        piece[j] = (DsvPiece){(char *)messages + (size_t)(before + begin) * slot,
                              (size_t)(end - begin) * slot};
        before += of_part[pairs];
    }
}

/* Begins all turns: rows of compact keys go home, or own ones to those who want them. */
static DsvStatus send_rows(DsvRowsExchange *x, int64_t most_turns, bool far, const void *k, const void *v,
                           void *packed, void *received)
{
    DsvPiece send[DSV_RUN_PARTS_MOST], receive[DSV_RUN_PARTS_MOST];
    int64_t turns = turns_of(x, most_turns);
    dsvi_comm_begin(x->part.sequence_device);
    for (int64_t i = 0; i < turns; i++) {
        Turn turn = turn_of(x, i, turns);
        pieces(x, far ? host_needs(x) : host_wants(x), turn, packed, send);
        pieces(x, far ? host_wants(x) : host_needs(x), turn, received, receive);
        DSVI_TRY(move_rows(x, x->backend->ops.rows_take.run, turn, far, k, v, packed));
        DSVI_TRY(dsvi_comm_exchange(x->part.sequence_device, send, receive));
    }
    return DSV_OK;
}

/* Does `op` with what has come, turn by turn. */
static DsvStatus receive_rows(DsvRowsExchange *x, int64_t most_turns, dsvi_rows_fn *op, bool far,
                              const void *k, const void *v, void *received)
{
    int64_t turns = turns_of(x, most_turns);
    for (int64_t i = 0; i < turns; i++) {
        DSVI_TRY(dsvi_comm_follow(x->part.sequence_device, i + 1));
        DSVI_TRY(move_rows(x, op, turn_of(x, i, turns), far, k, v, received));
    }
    return dsvi_comm_await(x->part.sequence_device);
}

DsvStatus dsvi_rows_fetch_begin(DsvRowsExchange *x, const void *k, const void *v)
{
    return send_rows(x, TURNS_OF_FETCH, false, k, v, x->memory.sent, x->memory.received);
}

DsvStatus dsvi_rows_fetch_end(DsvRowsExchange *x, void *far_k, void *far_v)
{
    return receive_rows(x, TURNS_OF_FETCH, x->backend->ops.rows_put.run, true, far_k, far_v,
                        x->memory.received);
}

DsvStatus dsvi_rows_home_begin(DsvRowsExchange *x, const void *far_dk, const void *far_dv, void *packed)
{
    return send_rows(x, TURNS_HOME, true, far_dk, far_dv, packed, x->memory.sent);
}

DsvStatus dsvi_rows_home_end(DsvRowsExchange *x, void *dk, void *dv)
{
    return receive_rows(x, TURNS_HOME, x->backend->ops.rows_add.run, false, dk, dv, x->memory.sent);
}
