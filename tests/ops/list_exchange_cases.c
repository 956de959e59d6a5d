/* Cases of list exchange: operations that divide key lists among ranks and move the listed keys. Divided
 * lists and copied rows must equal those of the reference implementation exactly, sums up to rounding. */
#include "base/rng.h"
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

typedef struct ExchangeShape {
    int64_t batch, heads, queries, keys, group, grain, dim;
    int64_t parts, self;
    double density;
    int64_t odd; /* elements from an aligned address to the first row */
} ExchangeShape;

/* An array with the same contents in host memory, for the reference, and in device memory. */
typedef struct Both {
    void *host, *device;
    size_t bytes;
} Both;

enum { GUARD = 64 };

static Both both(const DsviBackend *backend, size_t bytes)
{
    Both memory = {malloc(bytes + GUARD), NULL, bytes + GUARD};
    assert_non_null(memory.host);
    memset(memory.host, 0x5a, memory.bytes);
    assert_ok(backend->device->mem_alloc(backend->device, memory.bytes, &memory.device));
    return memory;
}

/* Copies the host array to the device array. */
static void send(const DsviBackend *backend, const Both *memory)
{
    assert_ok(backend->device->upload(backend->device->stream, memory->device, memory->host, memory->bytes));
    assert_ok(backend->device->sync(backend->device->stream));
}

static void *fetch(const DsviBackend *backend, const Both *memory)
{
    void *found = malloc(memory->bytes);
    assert_non_null(found);
    assert_ok(backend->device->download(backend->device->stream, found, memory->device, memory->bytes));
    assert_ok(backend->device->sync(backend->device->stream));
    return found;
}

static void assert_same(const DsviBackend *backend, const Both *memory)
{
    void *found = fetch(backend, memory);
    assert_memory_equal(found, memory->host, memory->bytes);
    free(found);
}

static void release(const DsviBackend *backend, Both *memory)
{
    backend->device->mem_free(backend->device, memory->device);
    free(memory->host);
}

/* Lists, divided lists and marks of one case. */
typedef struct Exchange {
    const ExchangeShape *shape;
    DsviLists whole;
    int64_t bound[DSVI_SPAN_PARTS_MAX + 1];
    Both offsets, spans, near_offsets, near_spans, far_offsets, far_spans, marks, before, first;
} Exchange;

static DsviSpans spans_of(const Exchange *e, bool device)
{
    const ExchangeShape *s = e->shape;
    return (DsviSpans){
        .batch = s->batch,
        .heads = s->heads,
        .parts = s->parts,
        .grain = s->grain,
        .bound = e->bound,
        .marks = device ? e->marks.device : e->marks.host,
        .before = device ? e->before.device : e->before.host,
        .first = device ? e->first.device : e->first.host,
    };
}

static void open_exchange(const DsviBackend *backend, const ExchangeShape *s, Exchange *e)
{
    memset(e, 0, sizeof *e);
    e->shape = s;
    e->whole = (DsviLists){.batch = s->batch,
                           .heads = s->heads,
                           .queries = s->queries,
                           .keys = s->keys,
                           .group = s->group,
                           .grain = s->grain};
    random_lists_create(&e->whole, s->density, 5);
    for (int64_t j = 0; j <= s->parts; j++)
        e->bound[j] = j * dsvi_lists_full(&e->whole) / s->parts;
    int64_t count = dsvi_lists_count(&e->whole), pairs = s->batch * s->heads;
    size_t offsets = (size_t)(count + 1) * sizeof(int64_t);
    size_t spans = (size_t)e->whole.offsets[count] * sizeof(int32_t);
    DsviSpans shape = spans_of(e, false);
    size_t marks = (size_t)dsvi_spans_words(&shape) * sizeof *shape.marks;
    e->offsets = both(backend, offsets);
    e->near_offsets = both(backend, offsets);
    e->far_offsets = both(backend, offsets);
    e->spans = both(backend, spans);
    e->near_spans = both(backend, spans);
    e->far_spans = both(backend, spans);
    e->marks = both(backend, marks);
    e->before = both(backend, marks);
    e->first = both(backend, (size_t)(s->parts * (pairs + 1)) * sizeof(int64_t));
    memcpy(e->offsets.host, e->whole.offsets, offsets);
    memcpy(e->spans.host, e->whole.spans, spans);
    Both *const all[] = {&e->offsets,   &e->spans, &e->near_offsets, &e->near_spans, &e->far_offsets,
                         &e->far_spans, &e->marks, &e->before,       &e->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        send(backend, all[i]);
}

static void close_exchange(const DsviBackend *backend, Exchange *e)
{
    Both *const all[] = {&e->offsets,   &e->spans, &e->near_offsets, &e->near_spans, &e->far_offsets,
                         &e->far_spans, &e->marks, &e->before,       &e->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(backend, all[i]);
    random_lists_free(&e->whole);
}

/* Returns the number of spans in the array of compact keys: two more than any (batch, head) pair needs. */
static int64_t width_of(const Exchange *e)
{
    DsviSpans spans = spans_of(e, false);
    int64_t pairs = dsvi_spans_pairs(&spans), largest = 0;
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < spans.parts; j++)
            count += spans.first[j * (pairs + 1) + pair + 1] - spans.first[j * (pairs + 1) + pair];
        largest = count > largest ? count : largest;
    }
    return largest + 2;
}

/* Runs one step of dividing the lists (0 lists_divide, 1 spans_count, 2 lists_emit) with one table of
 * operations. */
static void list_ops(const DsviOps *ops, DsviStream *stream, const Exchange *e, bool device, int step)
{
    DsviLists whole = e->whole, near = e->whole, far = e->whole;
    DsviSpans spans = spans_of(e, device);
    whole.offsets = device ? e->offsets.device : e->offsets.host;
    whole.spans = device ? e->spans.device : e->spans.host;
    near.offsets = device ? e->near_offsets.device : e->near_offsets.host;
    near.spans = device ? e->near_spans.device : e->near_spans.host;
    far.offsets = device ? e->far_offsets.device : e->far_offsets.host;
    far.spans = device ? e->far_spans.device : e->far_spans.host;
    DsviListDivideArgs args = {&whole, &spans, e->shape->self, &near, &far, 0};
    if (step == 0) {
        assert_ok(ops->lists_divide.run(stream, &args));
    } else if (step == 1) {
        assert_ok(ops->spans_count.run(stream, &spans));
    } else {
        args.width = width_of(e);
        assert_ok(ops->lists_emit.run(stream, &args));
    }
}

static void check_lists(const DsviBackend *backend, const DsviOps *ref, const Exchange *e)
{
    const Both *const written[3][3] = {
        {&e->near_offsets, &e->far_offsets, &e->marks},
        {&e->before, &e->first, &e->marks},
        {&e->near_spans, &e->far_spans, &e->spans},
    };
    for (int step = 0; step < 3; step++) {
        list_ops(ref, NULL, e, false, step);
        list_ops(&backend->ops, backend->device->stream, e, true, step);
        for (int i = 0; i < 3; i++)
            assert_same(backend, written[step][i]);
    }
}

/* Checks lists_part on the part of this rank, on all spans, and on no span. Uses the memory of near lists. */
static void check_part(const DsviBackend *backend, const DsviOps *ref, const Exchange *e)
{
    int64_t full = dsvi_lists_full(&e->whole), self = e->shape->self;
    const int64_t range[][2] = {{e->bound[self], e->bound[self + 1]}, {0, full}, {full / 2, full / 2}};
    for (size_t i = 0; i < sizeof range / sizeof *range; i++) {
        for (int device = 0; device < 2; device++) {
            DsviLists whole = e->whole, part = e->whole;
            DsviListPartArgs args = {&whole, range[i][0], range[i][1], &part};
            whole.offsets = device ? e->offsets.device : e->offsets.host;
            whole.spans = device ? e->spans.device : e->spans.host;
            part.offsets = device ? e->near_offsets.device : e->near_offsets.host;
            part.spans = device ? e->near_spans.device : e->near_spans.host;
            part.keys = dsvi_part_keys(&whole, args.first, args.end);
            assert_ok((device ? &backend->ops : ref)
                          ->lists_part.run(device ? backend->device->stream : NULL, &args));
        }
        assert_same(backend, &e->near_offsets);
        assert_same(backend, &e->near_spans);
    }
}

static void fill(DsviDtype dtype, void *rows, int64_t count, uint32_t stream)
{
    DsviRng rng = {9, DSVI_RNG_TEST, stream};
    for (int64_t i = 0; i < count; i++)
        dsvi_store(dtype, rows, i, dsvi_rng_normal(rng, (uint64_t)i));
}

/* Returns the sum of the slots of all parts. */
static int64_t slots_of(const DsviSpans *spans)
{
    int64_t pairs = dsvi_spans_pairs(spans), slots = 0;
    for (int64_t j = 0; j < spans->parts; j++)
        slots += spans->first[j * (pairs + 1) + pairs];
    return slots;
}

/* k, v and messages, in host and in device memory. */
typedef struct RowsMemory {
    const ExchangeShape *shape;
    DsviDtype dtype;
    int64_t rows, pitch;
    Both k, v, message;
} RowsMemory;

static int64_t tensor_elements(const RowsMemory *m)
{
    return m->shape->batch * m->rows * m->shape->heads * m->pitch + m->shape->odd;
}

static int64_t message_elements(const RowsMemory *m, int64_t slots)
{
    return slots * 2 * m->shape->grain * m->shape->dim + m->shape->odd;
}

static RowsMemory open_rows(const DsviBackend *backend, const ExchangeShape *s, DsviDtype dtype, int64_t rows,
                            int64_t slots)
{
    RowsMemory m = {.shape = s, .dtype = dtype, .rows = rows, .pitch = s->dim + s->odd};
    size_t size = dsvi_dtype_size(dtype);
    m.k = both(backend, (size_t)tensor_elements(&m) * size);
    m.v = both(backend, (size_t)tensor_elements(&m) * size);
    m.message = both(backend, (size_t)message_elements(&m, slots) * size);
    fill(dtype, m.k.host, tensor_elements(&m), 1);
    fill(dtype, m.v.host, tensor_elements(&m), 2);
    fill(dtype, m.message.host, message_elements(&m, slots), 3);
    return m;
}

static void close_rows(const DsviBackend *backend, RowsMemory *m)
{
    release(backend, &m->k);
    release(backend, &m->v);
    release(backend, &m->message);
}

/* Runs an operation with the reference and with the backend, first on all pairs except pair 0, then on pair
 * 0: a call may process any range of pairs. */
static void run_rows(const DsviBackend *backend, const DsviOps *ref, const RowsMemory *m, const Exchange *e,
                     int64_t width, DsviRowsOp op)
{
    send(backend, &m->k);
    send(backend, &m->v);
    send(backend, &m->message);
    for (int device = 0; device < 2; device++) {
        const DsviOps *ops = device ? &backend->ops : ref;
        dsvi_rows_fn *const run[] = {ops->rows_take.run, ops->rows_put.run, ops->rows_add.run};
        DsviStream *stream = device ? backend->device->stream : NULL;
        DsviSpans spans = spans_of(e, device);
        size_t odd = (size_t)m->shape->odd * dsvi_dtype_size(m->dtype);
        int64_t heads = m->shape->heads, pitch = m->pitch;
        char *k = device ? m->k.device : m->k.host, *v = device ? m->v.device : m->v.host;
        char *message = device ? m->message.device : m->message.host;
        DsviRowsArgs args = {
            .spans = &spans,
            .first_pair = 1,
            .end_pair = dsvi_spans_pairs(&spans),
            .width = width,
            .rows = m->rows,
            .head_dim = m->shape->dim,
            .dtype = m->dtype,
            .k = {k + odd, m->rows * heads * pitch, heads * pitch, pitch},
            .v = {v + odd, m->rows * heads * pitch, heads * pitch, pitch},
            .message = message + odd,
        };
        assert_ok(run[op](stream, &args));
        args.first_pair = 0;
        args.end_pair = 1;
        assert_ok(run[op](stream, &args));
    }
}

/* Checks rows_take and rows_put with compact keys, or rows_take with the keys of the rank itself. */
static void check_rows(const DsviBackend *backend, const DsviOps *ref, const Exchange *e, DsviDtype dtype,
                       bool compact)
{
    const ExchangeShape *s = e->shape;
    DsviSpans here = spans_of(e, false);
    int64_t width = width_of(e), longest = 0;
    for (int64_t j = 0; j < s->parts; j++)
        longest = e->bound[j + 1] - e->bound[j] > longest ? e->bound[j + 1] - e->bound[j] : longest;
    int64_t rows = (compact ? width : longest) * s->grain - (s->grain > 1 ? 1 : 0);
    for (int op = DSVI_ROWS_TAKE; op <= (compact ? DSVI_ROWS_PUT : DSVI_ROWS_TAKE); op++) {
        RowsMemory m = open_rows(backend, s, dtype, rows, slots_of(&here));
        run_rows(backend, ref, &m, e, compact ? width : 0, (DsviRowsOp)op);
        assert_same(backend, &m.k);
        assert_same(backend, &m.v);
        assert_same(backend, &m.message);
        close_rows(backend, &m);
    }
}

static void assert_sums(const DsviBackend *backend, const RowsMemory *m, const Both *memory)
{
    /* A sum of parts + 1 normal numbers is below 5 sqrt(parts + 1); each addition rounds it, in any order. */
    double order = 0x1p-24 * (double)m->shape->parts * 5 * sqrt((double)(m->shape->parts + 1));
    double rounding = m->dtype == DSVI_BF16 ? 0x1p-8 : 0;
    void *got = fetch(backend, memory);
    for (int64_t i = 0; i < tensor_elements(m); i++) {
        double reference = dsvi_load(m->dtype, memory->host, i);
        assert_error_below(fabs(dsvi_load(m->dtype, got, i) - reference), rounding * fabs(reference) + order,
                           "sum %d", (int)i);
    }
    free(got);
}

/* Checks rows_add: every part requests some spans of this rank, which random marks choose. */
static void check_add(const DsviBackend *backend, const DsviOps *ref, const ExchangeShape *s, DsviDtype dtype)
{
    Exchange e;
    open_exchange(backend, s, &e);
    int64_t length = e.bound[s->parts] / s->parts;
    for (int64_t j = 0; j <= s->parts; j++)
        e.bound[j] = j * length;
    DsviSpans here = spans_of(&e, false);
    memset(here.marks, 0, (size_t)dsvi_spans_words(&here) * sizeof *here.marks);
    for (int64_t at = 0; at < s->parts * dsvi_spans_pairs(&here) * length; at++) {
        int64_t part = at / length % s->parts, pair = at / length / s->parts, i = at % length;
        if (dsvi_rng_uniform((DsviRng){4, DSVI_RNG_TEST, 0}, (uint64_t)at) < 0.4)
            here.marks[dsvi_spans_word(&here, part, pair) + i / 32] |= (uint32_t)1 << i % 32;
    }
    assert_ok(ref->spans_count.run(NULL, &here));
    send(backend, &e.marks);
    send(backend, &e.before);
    send(backend, &e.first);
    RowsMemory m = open_rows(backend, s, dtype, length * s->grain - (s->grain > 1 ? 1 : 0), slots_of(&here));
    run_rows(backend, ref, &m, &e, 0, DSVI_ROWS_ADD);
    assert_sums(backend, &m, &m.k);
    assert_sums(backend, &m, &m.v);
    assert_same(backend, &m.message);
    close_rows(backend, &m);
    close_exchange(backend, &e);
}

void check_list_exchange_cases(const DsviBackend *backend)
{
    static const ExchangeShape shapes[] = {
        {1, 1, 1, 2, 1, 1, 32, 2, 0, 1, 0},        {2, 3, 37, 61, 8, 1, 34, 3, 1, 0.3, 1},
        {1, 2, 64, 4100, 32, 1, 64, 2, 1, 0.1, 0}, {1, 2, 50, 333, 16, 16, 128, 4, 0, 0.4, 0},
        {2, 1, 20, 100, 8, 8, 32, 3, 2, 0.5, 1},   {1, 5, 40, 700, 8, 1, 32, 7, 3, -0.2, 0},
        {1, 2, 9, 48, 4, 16, 64, 3, 0, 0, 0},      {1, 1, 9, 400000, 4, 1, 8, 2, 0, 0.02, 0},
        {1, 2, 150, 1000, 2, 1, 8, 3, 1, 0.1, 0},
    };
    DsviOps ref;
    Exchange e;
    dsvi_ops_fill_ref(&ref);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        open_exchange(backend, &shapes[i], &e);
        check_lists(backend, &ref, &e);
        check_part(backend, &ref, &e);
        for (int compact = 0; compact < 2; compact++) {
            check_rows(backend, &ref, &e, DSVI_F32, compact);
            check_rows(backend, &ref, &e, DSVI_BF16, compact);
        }
        close_exchange(backend, &e);
        check_add(backend, &ref, &shapes[i], DSVI_F32);
        check_add(backend, &ref, &shapes[i], DSVI_BF16);
    }
}
