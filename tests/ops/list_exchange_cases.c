/* Dividing lists and moving their rows against the truth: choices and copies to the byte, sums to a
 * rounding. */
#include "base/rng.h"
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

typedef struct ExchangeShape {
    int64_t batch, heads, queries, keys, group, grain, dim;
    int64_t parts, self;
    double density;
    int64_t odd; /* elements by which rows are off their alignment */
} ExchangeShape;

/* Device memory of one kind, the same on both sides; `host` is the truth's. */
typedef struct Both {
    void *host, *device;
    size_t bytes;
} Both;

enum { GUARD = 64 };

static Both both(const DsvBackend *backend, size_t bytes)
{
    Both memory = {malloc(bytes + GUARD), NULL, bytes + GUARD};
    assert_non_null(memory.host);
    memset(memory.host, 0x5a, memory.bytes);
    assert_ok(backend->device->mem_alloc(backend->device, memory.bytes, &memory.device));
    return memory;
}

/* What the truth's memory holds, to the device. */
static void send(const DsvBackend *backend, const Both *memory)
{
    assert_ok(backend->device->upload(backend->device->stream, memory->device, memory->host, memory->bytes));
    assert_ok(backend->device->sync(backend->device->stream));
}

static void *fetch(const DsvBackend *backend, const Both *memory)
{
    void *found = malloc(memory->bytes);
    assert_non_null(found);
    assert_ok(backend->device->download(backend->device->stream, found, memory->device, memory->bytes));
    assert_ok(backend->device->sync(backend->device->stream));
    return found;
}

static void assert_same(const DsvBackend *backend, const Both *memory)
{
    void *found = fetch(backend, memory);
    assert_memory_equal(found, memory->host, memory->bytes);
    free(found);
}

static void release(const DsvBackend *backend, Both *memory)
{
    backend->device->mem_free(backend->device, memory->device);
    free(memory->host);
}

/* Everything of one case. */
typedef struct Exchange {
    const ExchangeShape *shape;
    DsvLists whole;
    int64_t bound[DSV_RUN_PARTS_MOST + 1];
    Both offsets, runs, near_offsets, near_runs, far_offsets, far_runs, marks, before, first;
} Exchange;

static DsvRuns runs_of(const Exchange *e, bool device)
{
    const ExchangeShape *s = e->shape;
    return (DsvRuns){
        .batch = s->batch, .heads = s->heads, .parts = s->parts, .grain = s->grain, .bound = e->bound,
        .marks = device ? e->marks.device : e->marks.host,
        .before = device ? e->before.device : e->before.host,
        .first = device ? e->first.device : e->first.host,
    };
}

static void open_exchange(const DsvBackend *backend, const ExchangeShape *s, Exchange *e)
{
    memset(e, 0, sizeof *e);
    e->shape = s;
    e->whole = (DsvLists){.batch = s->batch, .heads = s->heads, .queries = s->queries, .keys = s->keys,
                          .group = s->group, .grain = s->grain};
    random_lists_create(&e->whole, s->density, 5);
    for (int64_t j = 0; j <= s->parts; j++)
        e->bound[j] = j * dsvi_lists_full(&e->whole) / s->parts;
    int64_t count = dsvi_lists_count(&e->whole), pairs = s->batch * s->heads;
    size_t offsets = (size_t)(count + 1) * sizeof(int64_t);
    size_t runs = (size_t)e->whole.offsets[count] * sizeof(int32_t);
    DsvRuns shape = runs_of(e, false);
    size_t marks = (size_t)dsvi_runs_words(&shape) * sizeof *shape.marks;
    e->offsets = both(backend, offsets);
    e->near_offsets = both(backend, offsets);
    e->far_offsets = both(backend, offsets);
    e->runs = both(backend, runs);
    e->near_runs = both(backend, runs);
    e->far_runs = both(backend, runs);
    e->marks = both(backend, marks);
    e->before = both(backend, marks);
    e->first = both(backend, (size_t)(s->parts * (pairs + 1)) * sizeof(int64_t));
    memcpy(e->offsets.host, e->whole.offsets, offsets);
    memcpy(e->runs.host, e->whole.runs, runs);
    Both *const all[] = {&e->offsets, &e->runs, &e->near_offsets, &e->near_runs, &e->far_offsets,
                         &e->far_runs, &e->marks, &e->before, &e->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        send(backend, all[i]);
}

static void close_exchange(const DsvBackend *backend, Exchange *e)
{
    Both *const all[] = {&e->offsets, &e->runs, &e->near_offsets, &e->near_runs, &e->far_offsets,
                         &e->far_runs, &e->marks, &e->before, &e->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(backend, all[i]);
    random_lists_free(&e->whole);
}

/* Runs of the compact keys: two more than any pair needs. */
static int64_t width_of(const Exchange *e)
{
    DsvRuns runs = runs_of(e, false);
    int64_t pairs = dsvi_runs_pairs(&runs), most = 0;
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t count = 0;
        for (int64_t j = 0; j < runs.parts; j++)
            count += runs.first[j * (pairs + 1) + pair + 1] - runs.first[j * (pairs + 1) + pair];
        most = count > most ? count : most;
    }
    return most + 2;
}

/* divide, number and emit on one side. */
static void list_ops(const DsvOps *ops, DsvStream *stream, const Exchange *e, bool device, int step)
{
    DsvLists whole = e->whole, near = e->whole, far = e->whole;
    DsvRuns runs = runs_of(e, device);
    whole.offsets = device ? e->offsets.device : e->offsets.host;
    whole.runs = device ? e->runs.device : e->runs.host;
    near.offsets = device ? e->near_offsets.device : e->near_offsets.host;
    near.runs = device ? e->near_runs.device : e->near_runs.host;
    far.offsets = device ? e->far_offsets.device : e->far_offsets.host;
    far.runs = device ? e->far_runs.device : e->far_runs.host;
    DsvListDivideArgs args = {&whole, &runs, e->shape->self, &near, &far, 0};
    if (step == 0) {
        assert_ok(ops->lists_divide.run(stream, &args));
    } else if (step == 1) {
        assert_ok(ops->runs_count.run(stream, &runs));
    } else {
        args.width = width_of(e);
        assert_ok(ops->lists_emit.run(stream, &args));
    }
}

static void check_lists(const DsvBackend *backend, const DsvOps *ref, const Exchange *e)
{
    const Both *const written[3][3] = {
        {&e->near_offsets, &e->far_offsets, &e->marks},
        {&e->before, &e->first, &e->marks},
        {&e->near_runs, &e->far_runs, &e->runs},
    };
    for (int step = 0; step < 3; step++) {
        list_ops(ref, NULL, e, false, step);
        list_ops(&backend->ops, backend->device->stream, e, true, step);
        for (int i = 0; i < 3; i++)
            assert_same(backend, written[step][i]);
    }
}

static void fill(DsvDtype dtype, void *rows, int64_t count, uint32_t stream)
{
    DsvRng rng = {9, DSV_RNG_TEST, stream};
    for (int64_t i = 0; i < count; i++)
        dsvi_store(dtype, rows, i, dsvi_rng_normal(rng, (uint64_t)i));
}

/* Slots of all parts. */
static int64_t slots_of(const DsvRuns *runs)
{
    int64_t pairs = dsvi_runs_pairs(runs), slots = 0;
    for (int64_t j = 0; j < runs->parts; j++)
        slots += runs->first[j * (pairs + 1) + pairs];
    return slots;
}

/* k, v and messages, on both sides. */
typedef struct RowsMemory {
    const ExchangeShape *shape;
    DsvDtype dtype;
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

static RowsMemory open_rows(const DsvBackend *backend, const ExchangeShape *s, DsvDtype dtype, int64_t rows,
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

static void close_rows(const DsvBackend *backend, RowsMemory *m)
{
    release(backend, &m->k);
    release(backend, &m->v);
    release(backend, &m->message);
}

/* An op on both sides, on all pairs but the first, then on that. */
static void run_rows(const DsvBackend *backend, const DsvOps *ref, const RowsMemory *m, const Exchange *e,
                     int64_t width, DsvRowsOp op)
{
    send(backend, &m->k);
    send(backend, &m->v);
    send(backend, &m->message);
    for (int device = 0; device < 2; device++) {
        const DsvOps *ops = device ? &backend->ops : ref;
        dsvi_rows_fn *const run[] = {ops->rows_take.run, ops->rows_put.run, ops->rows_add.run};
        DsvStream *stream = device ? backend->device->stream : NULL;
        DsvRuns runs = runs_of(e, device);
        size_t odd = (size_t)m->shape->odd * dsvi_dtype_size(m->dtype);
        int64_t heads = m->shape->heads, pitch = m->pitch;
        char *k = device ? m->k.device : m->k.host, *v = device ? m->v.device : m->v.host;
        char *message = device ? m->message.device : m->message.host;
        DsvRowsArgs args = {
            .runs = &runs, .first_pair = 1, .end_pair = dsvi_runs_pairs(&runs), .width = width,
            .rows = m->rows, .head_dim = m->shape->dim, .dtype = m->dtype,
            .k = {k + odd, m->rows * heads * pitch, heads * pitch, pitch},
            .v = {v + odd, m->rows * heads * pitch, heads * pitch, pitch}, .message = message + odd,
        };
        assert_ok(run[op](stream, &args));
        args.first_pair = 0;
        args.end_pair = 1;
        assert_ok(run[op](stream, &args));
    }
}

/* Taking and putting, of compact keys or of the own keys. */
static void check_rows(const DsvBackend *backend, const DsvOps *ref, const Exchange *e, DsvDtype dtype,
                       bool compact)
{
    const ExchangeShape *s = e->shape;
    DsvRuns here = runs_of(e, false);
    int64_t width = width_of(e), longest = 0;
    for (int64_t j = 0; j < s->parts; j++)
        longest = e->bound[j + 1] - e->bound[j] > longest ? e->bound[j + 1] - e->bound[j] : longest;
    int64_t rows = (compact ? width : longest) * s->grain - (s->grain > 1 ? 1 : 0);
    for (int op = DSV_ROWS_TAKE; op <= (compact ? DSV_ROWS_PUT : DSV_ROWS_TAKE); op++) {
        RowsMemory m = open_rows(backend, s, dtype, rows, slots_of(&here));
        run_rows(backend, ref, &m, e, compact ? width : 0, (DsvRowsOp)op);
        assert_same(backend, &m.k);
        assert_same(backend, &m.v);
        assert_same(backend, &m.message);
        close_rows(backend, &m);
    }
}

static void assert_sums(const DsvBackend *backend, const RowsMemory *m, const Both *memory)
{
    /* Sums of parts + 1 normal deviates, in any order: additions round what is below 5 sqrt(parts + 1). */
    double order = 0x1p-24 * (double)m->shape->parts * 5 * sqrt((double)(m->shape->parts + 1));
    double rounding = m->dtype == DSV_BF16 ? 0x1p-8 : 0;
    void *got = fetch(backend, memory);
    for (int64_t i = 0; i < tensor_elements(m); i++) {
        double truth = dsvi_load(m->dtype, memory->host, i);
        assert_error_below(fabs(dsvi_load(m->dtype, got, i) - truth), rounding * fabs(truth) + order,
                           "sum %d", (int)i);
    }
    free(got);
}

/* Every part wants some of the own runs: those of random marks. */
static void check_add(const DsvBackend *backend, const DsvOps *ref, const ExchangeShape *s, DsvDtype dtype)
{
    Exchange e;
    open_exchange(backend, s, &e);
    int64_t length = e.bound[s->parts] / s->parts;
    for (int64_t j = 0; j <= s->parts; j++)
        e.bound[j] = j * length;
    DsvRuns here = runs_of(&e, false);
    memset(here.marks, 0, (size_t)dsvi_runs_words(&here) * sizeof *here.marks);
    for (int64_t at = 0; at < s->parts * dsvi_runs_pairs(&here) * length; at++) {
        int64_t part = at / length % s->parts, pair = at / length / s->parts, i = at % length;
        if (dsvi_rng_uniform((DsvRng){4, DSV_RNG_TEST, 0}, (uint64_t)at) < 0.4)
            here.marks[dsvi_runs_word(&here, part, pair) + i / 32] |= (uint32_t)1 << i % 32;
    }
    assert_ok(ref->runs_count.run(NULL, &here));
    send(backend, &e.marks);
    send(backend, &e.before);
    send(backend, &e.first);
    RowsMemory m = open_rows(backend, s, dtype, length * s->grain - (s->grain > 1 ? 1 : 0), slots_of(&here));
    run_rows(backend, ref, &m, &e, 0, DSV_ROWS_ADD);
    assert_sums(backend, &m, &m.k);
    assert_sums(backend, &m, &m.v);
    assert_same(backend, &m.message);
    close_rows(backend, &m);
    close_exchange(backend, &e);
}

void check_list_exchange_cases(const DsvBackend *backend)
{
    static const ExchangeShape shapes[] = {
        {1, 1, 1, 2, 1, 1, 32, 2, 0, 1, 0},      {2, 3, 37, 61, 8, 1, 34, 3, 1, 0.3, 1},
        {1, 2, 64, 4100, 32, 1, 64, 2, 1, 0.1, 0}, {1, 2, 50, 333, 16, 16, 128, 4, 0, 0.4, 0},
        {2, 1, 20, 100, 8, 8, 32, 3, 2, 0.5, 1}, {1, 5, 40, 700, 8, 1, 32, 7, 3, -0.2, 0},
        {1, 2, 9, 48, 4, 16, 64, 3, 0, 0, 0},    {1, 1, 9, 400000, 4, 1, 8, 2, 0, 0.02, 0},
        {1, 2, 150, 1000, 2, 1, 8, 3, 1, 0.1, 0},
    };
    DsvOps ref;
    Exchange e;
    dsvi_ops_fill_ref(&ref);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        open_exchange(backend, &shapes[i], &e);
        check_lists(backend, &ref, &e);
        for (int compact = 0; compact < 2; compact++) {
            check_rows(backend, &ref, &e, DSV_F32, compact);
            check_rows(backend, &ref, &e, DSV_BF16, compact);
        }
        close_exchange(backend, &e);
        check_add(backend, &ref, &shapes[i], DSV_F32);
        check_add(backend, &ref, &shapes[i], DSV_BF16);
    }
}
