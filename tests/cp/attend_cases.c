/* See attend_cases.h. The tensors are in device memory; a test compares copies on the host. */
#include "cp/attend_cases.h"

#include "cpu/cpu.h"
#include "test.h"

enum { GUARD = 64 };
enum { Q, K, V, DOUT, OUT, DQ, DK, DV, TENSORS, LSE = TENSORS, WORKSPACE, AREAS };
static const char *const NAME[TENSORS] = {"q", "k", "v", "dout", "out", "dq", "dk", "dv"};

/* ---- memory ---- */

/* Device memory and its copy on the host. GUARD bytes follow each area; all bytes are 0xff at first. */
typedef struct Area {
    unsigned char *host;
    void *device;
    size_t bytes;
} Area;

typedef struct Memory {
    DsviDevice *device;
    Area area[AREAS];
} Memory;

static DsvStatus take(Memory *m, int which, size_t bytes)
{
    Area *area = &m->area[which];
    free(area->host);
    m->device->mem_free(m->device, area->device);
    *area = (Area){malloc(bytes + GUARD), NULL, bytes};
    if (!area->host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a picture of %zu bytes", bytes);
    memset(area->host, 0xff, bytes + GUARD);
    return m->device->mem_alloc(m->device, bytes + GUARD, &area->device);
}

static DsvStatus upload(Memory *m)
{
    for (int i = 0; i < AREAS; i++)
        if (m->area[i].host)
            DSVI_TRY(m->device->upload(m->device->stream, m->area[i].device, m->area[i].host,
                                       m->area[i].bytes + GUARD));
    return m->device->sync(m->device->stream);
}

/* Also checks that the bytes after each area were not overwritten. */
static DsvStatus download(Memory *m)
{
    DsvStatus status = DSV_OK;
    for (int i = 0; i < AREAS; i++)
        if (m->area[i].host)
            DSVI_TRY(m->device->download(m->device->stream, m->area[i].host, m->area[i].device,
                                         m->area[i].bytes + GUARD));
    DSVI_TRY(m->device->sync(m->device->stream));
    for (int i = 0; i < AREAS; i++)
        for (size_t at = 0; m->area[i].host && at < GUARD; at++)
            EXPECT(m->area[i].host[m->area[i].bytes + at] == 0xff);
done:
    return status;
}

static void release(Memory *m)
{
    for (int i = 0; i < AREAS; i++) {
        free(m->area[i].host);
        if (m->device)
            m->device->mem_free(m->device, m->area[i].device);
    }
    memset(m, 0, sizeof *m);
}

/* ---- expected results ---- */

/* Attention over all tokens and heads, computed on one rank. */
typedef struct Whole {
    DsviDtype act, acc;
    Memory memory;
} Whole;

typedef struct Expected {
    Whole one, reference;  /* by the tested backend, and by the reference implementation in F64 */
    double error[TENSORS]; /* largest error of `one` */
    double parts[TENSORS]; /* largest sum over shards of an element's magnitude */
} Expected;

static int64_t elements(const CpCase *c)
{
    return c->batch * c->tokens * c->heads * c->head_dim;
}

static const void *of(const Whole *w, int which)
{
    return w->memory.area[which].host;
}

/* Fills inputs with values that are rounded to the tested act. */
static void whole_create(Whole *w, const CpCase *c, const DsviBackend *backend, DsviDtype act, DsviDtype acc)
{
    memset(w, 0, sizeof *w);
    w->act = act;
    w->acc = acc;
    w->memory.device = backend->device;
    assert_ok(take(&w->memory, LSE, (size_t)(c->batch * c->heads * c->tokens) * dsvi_dtype_size(acc)));
    for (int t = 0; t < TENSORS; t++) {
        assert_ok(take(&w->memory, t, (size_t)elements(c) * dsvi_dtype_size(act)));
        for (int64_t i = 0; i < elements(c) && t <= DOUT; i++) {
            unsigned char stored[8];
            dsvi_store(c->act, stored, 0, cp_value(c, t, i));
            dsvi_store(act, w->memory.area[t].host, i, dsvi_load(c->act, stored, 0));
        }
    }
}

static DsviAttentionArgs whole_args(const CpCase *c, const Whole *w, bool on_device)
{
    DsviHeads rows[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        rows[t] = dsvi_heads(on_device ? w->memory.area[t].device : of(w, t), c->tokens, c->heads,
                             c->head_dim);
    return (DsviAttentionArgs){
        .batch = c->batch,
        .heads = c->heads,
        .queries = c->tokens,
        .keys = c->tokens,
        .head_dim = c->head_dim,
        .scale = 1 / sqrt((double)c->head_dim),
        .act = w->act,
        .acc = w->acc,
        .q = rows[Q],
        .k = rows[K],
        .v = rows[V],
        .out = rows[OUT],
        .lse = w->memory.area[LSE].device,
        .dout = rows[DOUT],
        .dq = rows[DQ],
        .dk = rows[DK],
        .dv = rows[DV],
    };
}

/* Forward, then backward. */
static void whole_attend(const CpCase *c, const DsviBackend *backend, Whole *w)
{
    const DsviOps *ops = &backend->ops;
    DsviStream *stream = backend->device->stream;
    DsviAttentionArgs args = whole_args(c, w, true);
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args);
    size_t backward = DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args);
    args.workspace_bytes = forward > backward ? forward : backward;
    assert_ok(take(&w->memory, WORKSPACE, args.workspace_bytes));
    args.workspace = w->memory.area[WORKSPACE].device;
    assert_ok(upload(&w->memory));
    assert_ok(ops->attention_fwd.run(stream, &args));
    assert_ok(ops->attention_bwd.run(stream, &args));
    assert_ok(download(&w->memory));
}

/* Adds |x| for `rows` tokens from `first` on to `sum`, which has all tokens. */
static void add_magnitudes(const CpCase *c, const double *x, int64_t first, int64_t rows, double *sum)
{
    int64_t row = c->heads * c->head_dim;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < rows * row; i++)
            sum[(b * c->tokens + first) * row + i] += fabs(x[b * rows * row + i]);
}

/* Adds the magnitudes of the gradients between the queries of shard q and the keys of shard k, computed in
 * F64 with lse and out over all keys. */
static void pair_of_shards(const CpCase *c, const Whole *w, const int64_t q[2], const int64_t k[2],
                           double *sum[TENSORS])
{
    DsviAttentionArgs args = whole_args(c, w, false), forward;
    size_t bytes = (size_t)elements(c) * sizeof(double);
    double *dq = malloc(bytes), *dk = malloc(bytes), *dv = malloc(bytes), *out = malloc(bytes);
    double *lse = calloc((size_t)(c->batch * c->heads * c->tokens), sizeof *lse);
    int64_t queries = q[1] - q[0], keys = k[1] - k[0];
    args.q = dsvi_heads_from(&args.q, q[0], sizeof(double));
    args.dout = dsvi_heads_from(&args.dout, q[0], sizeof(double));
    args.out = dsvi_heads_from(&args.out, q[0], sizeof(double));
    args.k = dsvi_heads_from(&args.k, k[0], sizeof(double));
    args.v = dsvi_heads_from(&args.v, k[0], sizeof(double));
    args.queries = queries;
    args.keys = keys;
    for (int64_t row = 0; row < c->batch * c->heads; row++)
        memcpy(lse + row * queries, (const double *)of(w, LSE) + row * c->tokens + q[0],
               (size_t)queries * sizeof *lse);
    args.lse = lse;
    args.dq = dsvi_heads(dq, queries, c->heads, c->head_dim);
    args.dk = dsvi_heads(dk, keys, c->heads, c->head_dim);
    args.dv = dsvi_heads(dv, keys, c->heads, c->head_dim);
    assert_ok(dsvi_attention_bwd_ref(NULL, &args));
    add_magnitudes(c, dq, q[0], queries, sum[DQ]);
    add_magnitudes(c, dk, k[0], keys, sum[DK]);
    add_magnitudes(c, dv, k[0], keys, sum[DV]);
    /* out is a weighted mean of the results over shards, so it does not exceed the largest */
    forward = args;
    forward.out = dsvi_heads(out, queries, c->heads, c->head_dim);
    assert_ok(dsvi_attention_fwd_ref(NULL, &forward));
    add_magnitudes(c, out, q[0], queries, sum[OUT]);
    free(dq);
    free(dk);
    free(dv);
    free(out);
    free(lse);
}

static void measure_parts(const CpCase *c, Expected *e)
{
    int64_t bound[RIG_RANKS_MAX + 1], step = c->head_ranks;
    double *sum[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        sum[t] = calloc((size_t)elements(c), sizeof(double));
    dsvi_comm_even_bounds(c->tokens, c->unit, c->ranks, bound);
    for (int64_t i = 0; i < c->ranks; i += step)
        for (int64_t j = 0; j < c->ranks; j += step)
            pair_of_shards(c, &e->reference, (int64_t[]){bound[i], bound[i + step]},
                           (int64_t[]){bound[j], bound[j + step]}, sum);
    for (int t = 0; t < TENSORS; t++) {
        e->parts[t] = 0;
        for (int64_t i = 0; i < elements(c); i++)
            e->parts[t] = fmax(e->parts[t], sum[t][i]);
        free(sum[t]);
    }
}

static void expected_create(Expected *e, const CpCase *c, const DsviBackend *exact)
{
    whole_create(&e->one, c, c->backend, c->act, c->acc);
    whole_create(&e->reference, c, exact, DSVI_F64, DSVI_F64);
    whole_attend(c, c->backend, &e->one);
    whole_attend(c, exact, &e->reference);
    for (int t = OUT; t < TENSORS; t++) {
        e->error[t] = 0;
        for (int64_t i = 0; i < elements(c); i++)
            e->error[t] = fmax(e->error[t], fabs(dsvi_load(c->act, of(&e->one, t), i) -
                                                 dsvi_load(DSVI_F64, of(&e->reference, t), i)));
    }
    measure_parts(c, e);
}

static double unit_roundoff(DsviDtype dtype)
{
    return dtype == DSVI_BF16 ? 0x1p-8 : dtype == DSVI_F32 ? 0x1p-24 : 0x1p-53;
}

/* Compares the tokens of one rank with the expected tensor. */
static DsvStatus check_tensor(const DsviCp *cp, const CpCase *c, const Expected *e, int which,
                              const void *own)
{
    int64_t row = c->heads * c->head_dim, n = dsvi_cp_tokens(cp) * row;
    bool same_bits = c->same_bits && c->ranks == c->head_ranks;
    double roundings = 2 * unit_roundoff(c->act) + (double)c->tokens * unit_roundoff(c->acc);
    double allowed = 4 * e->error[which] + roundings * e->parts[which];
    for (int64_t i = 0; i < c->batch * n; i++) {
        int64_t at = (i / n * c->tokens + dsvi_cp_first(cp)) * row + i % n;
        double got = dsvi_load(c->act, own, i), one = dsvi_load(c->act, of(&e->one, which), at);
        double reference = dsvi_load(DSVI_F64, of(&e->reference, which), at);
        if (same_bits ? got == one : fabs(got - reference) <= allowed)
            continue;
        return DSVI_FAIL(DSV_E_INTERNAL, "%s[%lld] is %.9g, of one rank %.9g, truth %.9g, allowed %.3g",
                         NAME[which], (long long)i, got, one, reference, allowed);
    }
    return DSV_OK;
}

/* lse has a magnitude of 1 to 10, and the error of its largest score is not larger than on one rank. */
static DsvStatus check_lse(const DsviCp *cp, const CpCase *c, const Expected *e, const void *lse)
{
    DsviCpPart part = dsvi_cp_part(cp, 0);
    for (int64_t i = 0; i < c->batch * part.heads * part.tokens; i++) {
        int64_t s = part.first + i % part.tokens, h = part.head[i / part.tokens % part.heads];
        int64_t at = (i / part.tokens / part.heads * c->heads + h) * c->tokens + s;
        double got = dsvi_load(c->acc, lse, i), one = dsvi_load(c->acc, of(&e->one, LSE), at);
        double allowed = 64 * unit_roundoff(c->acc) * fmax(1, fabs(one));
        if (c->same_bits && part.sequence_ranks == 1)
            allowed = 0;
        if (!(fabs(got - one) <= allowed))
            return DSVI_FAIL(DSV_E_INTERNAL, "lse[%lld] is %.9g, expected %.9g", (long long)i, got, one);
    }
    return DSV_OK;
}

/* ---- bytes ---- */

static DsvStatus check_sent(const DsviCp *cp, const CpCase *c, bool backward, const DsviCommSent before[2])
{
    DsviCpPart part = dsvi_cp_part(cp, 0);
    uint64_t act = dsvi_dtype_size(c->act), acc = dsvi_dtype_size(c->acc);
    uint64_t columns = (uint64_t)(c->batch * c->head_dim), own = (uint64_t)dsvi_cp_tokens(cp);
    uint64_t to_heads = columns * own * (uint64_t)(c->heads - part.heads) * act;
    uint64_t to_tokens = columns * ((uint64_t)part.tokens - own) * (uint64_t)part.heads * act;
    int64_t i = part.sequence_index, next = (i + 1) % part.sequence_ranks;
    uint64_t rows = 2 * columns * (uint64_t)part.heads;
    uint64_t keys = rows * (uint64_t)(c->tokens - (part.bound[next + 1] - part.bound[next])) * act;
    uint64_t sums = rows * (uint64_t)(c->tokens - part.tokens) * acc;
    uint64_t by_heads = dsvi_comm_sent(part.head_device).bytes - before[0].bytes;
    uint64_t round = dsvi_comm_sent(part.sequence_device).bytes - before[1].bytes;
    DsvStatus status = DSV_OK;
    EXPECT(by_heads == (backward ? 5 * to_heads + 3 * to_tokens : 3 * to_heads + to_tokens));
    EXPECT(round == (part.sequence_ranks == 1 ? 0 : backward ? keys + sums : keys));
done:
    return status;
}

/* ---- one rank ---- */

static DsvStatus memory_create(Memory *m, const DsviCp *cp, const CpCase *c)
{
    const DsviCpTensor tensor = {c->batch, c->head_dim, c->act};
    m->device = c->backend->device;
    DSVI_TRY(take(m, LSE, dsvi_cp_lse_bytes(cp, c->batch, c->acc)));
    for (int t = 0; t < TENSORS; t++) {
        DSVI_TRY(take(m, t, dsvi_cp_tokens_bytes(cp, &tensor)));
        if (t <= DOUT)
            cp_fill(cp, c, c->act, t, false, m->area[t].host);
    }
    return DSV_OK;
}

static DsvStatus attend(const DsviCp *cp, const CpCase *c, Memory *m, bool backward)
{
    DsviCpPart part = dsvi_cp_part(cp, 0);
    const DsviCommSent before[2] = {dsvi_comm_sent(part.head_device), dsvi_comm_sent(part.sequence_device)};
    const Area *area = m->area;
    DsviCpAttention args = {
        .batch = c->batch,
        .head_dim = c->head_dim,
        .scale = 1 / sqrt((double)c->head_dim),
        .act = c->act,
        .acc = c->acc,
        .q = area[Q].device,
        .k = area[K].device,
        .v = area[V].device,
        .out = area[OUT].device,
        .lse = area[LSE].device,
        .dout = area[DOUT].device,
        .dq = area[DQ].device,
        .dk = area[DK].device,
        .dv = area[DV].device,
    };
    args.workspace_bytes = dsvi_cp_attend_bytes(cp, &args, backward);
    DSVI_TRY(take(m, WORKSPACE, args.workspace_bytes));
    args.workspace = area[WORKSPACE].device;
    DSVI_TRY(upload(m));
    DSVI_TRY((backward ? dsvi_cp_attend_bwd : dsvi_cp_attend_fwd)(cp, 0, &args));
    DSVI_TRY(download(m));
    return check_sent(cp, c, backward, before);
}

static DsvStatus on_rank(DsviCp *cp, const CpCase *c, void *shared)
{
    const Expected *e = shared;
    Memory m = {0};
    DsvStatus status;
    DSVI_TRY_GOTO(status, memory_create(&m, cp, c), done);
    DSVI_TRY_GOTO(status, attend(cp, c, &m, false), done);
    DSVI_TRY_GOTO(status, check_tensor(cp, c, e, OUT, m.area[OUT].host), done);
    DSVI_TRY_GOTO(status, check_lse(cp, c, e, m.area[LSE].host), done);
    DSVI_TRY_GOTO(status, attend(cp, c, &m, true), done);
    for (int t = DQ; t <= DV; t++)
        DSVI_TRY_GOTO(status, check_tensor(cp, c, e, t, m.area[t].host), done);
done:
    release(&m);
    return status;
}

void check_attend_case(const CpCase *c)
{
    Expected expected;
    DsviBackend exact;
    assert_ok(dsvi_cpu_open("ref", 1, &exact));
    expected_create(&expected, c, &exact);
    run_cp(c, on_rank, &expected);
    release(&expected.one.memory);
    release(&expected.reference.memory);
    dsvi_cpu_close(&exact);
}
