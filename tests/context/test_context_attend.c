/* Dense attention over the tokens of several ranks against that of one: forward and backward, every way of
 * sharing it out, and as many bytes sent as context.h says.
 *
 * Where there is one sequence rank the bits are the same. Else results of stretches are rounded to act each,
 * and then summed: next to what one rank may be wrong, an element may be wrong by a rounding of each of its
 * parts and of their sum, and by those in acc of as many terms as there are tokens, in another order. */
#include "test.h"

#include "context/context_rig.h"
#include "cpu/cpu.h"

enum { GUARD = 64 };
enum { Q, K, V, DOUT, OUT, DQ, DK, DV, TENSORS };
static const char *const NAME[TENSORS] = {"q", "k", "v", "dout", "out", "dq", "dk", "dv"};

static DsvBackend fast, exact;

#define EXPECT(condition)                                                                    \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            status = DSVI_FAIL(DSV_E_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition); \
            goto done;                                                                       \
        }                                                                                    \
    } while (0)

/* All tensors of one rank's attention over all tokens and heads, in `act`. */
typedef struct Whole {
    DsvDtype act, acc;
    void *data[TENSORS], *lse;
} Whole;

typedef struct Expected {
    Whole one, truth;       /* by the tested backend, and by the scalar truth in F64 */
    double error[TENSORS];  /* the largest of `one` */
    double parts[TENSORS];  /* the largest sum of what an element's parts amount to */
} Expected;

static int64_t elements(const ContextCase *c)
{
    return c->batch * c->tokens * c->heads * c->head_dim;
}

/* Inputs as they are in the tested act. */
static void whole_create(Whole *w, const ContextCase *c, DsvDtype act, DsvDtype acc)
{
    w->act = act;
    w->acc = acc;
    w->lse = calloc((size_t)(c->batch * c->heads * c->tokens), dsvi_dtype_size(acc));
    assert_non_null(w->lse);
    for (int t = 0; t < TENSORS; t++) {
        w->data[t] = calloc((size_t)elements(c), dsvi_dtype_size(act));
        assert_non_null(w->data[t]);
        for (int64_t i = 0; i < elements(c) && t <= DOUT; i++) {
            unsigned char stored[8];
            dsvi_store(c->act, stored, 0, context_value(c, t, i));
            dsvi_store(act, w->data[t], i, dsvi_load(c->act, stored, 0));
        }
    }
}

static void whole_free(Whole *w)
{
    for (int t = 0; t < TENSORS; t++)
        free(w->data[t]);
    free(w->lse);
}

static DsvAttentionArgs whole_args(const ContextCase *c, const Whole *w)
{
    DsvHeads rows[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        rows[t] = dsvi_heads(w->data[t], c->tokens, c->heads, c->head_dim);
    return (DsvAttentionArgs){
        .batch = c->batch, .heads = c->heads, .queries = c->tokens, .keys = c->tokens,
        .head_dim = c->head_dim, .scale = 1 / sqrt((double)c->head_dim), .act = w->act, .acc = w->acc,
        .q = rows[Q], .k = rows[K], .v = rows[V], .out = rows[OUT], .lse = w->lse, .dout = rows[DOUT],
        .dq = rows[DQ], .dk = rows[DK], .dv = rows[DV],
    };
}

/* Forward, then backward. */
static void whole_attend(const ContextCase *c, const DsvBackend *backend, const Whole *w)
{
    const DsvOps *ops = &backend->ops;
    DsvStream *stream = backend->device->stream;
    DsvAttentionArgs args = whole_args(c, w);
    size_t forward = DSVI_OP_WORKSPACE(ops->attention_fwd, stream, &args);
    size_t backward = DSVI_OP_WORKSPACE(ops->attention_bwd, stream, &args);
    args.workspace_bytes = (forward > backward ? forward : backward) + GUARD;
    args.workspace = aligned_alloc(64, args.workspace_bytes / 64 * 64 + 64);
    assert_ok(ops->attention_fwd.run(stream, &args));
    assert_ok(ops->attention_bwd.run(stream, &args));
    free(args.workspace);
}

/* Adds |x|, of `rows` tokens from `first` on, to `sum`, of all tokens. */
static void add_magnitudes(const ContextCase *c, const double *x, int64_t first, int64_t rows, double *sum)
{
    int64_t row = c->heads * c->head_dim;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < rows * row; i++)
            sum[(b * c->tokens + first) * row + i] += fabs(x[b * rows * row + i]);
}

/* What queries [q0, q0 + queries) and keys [k0, k0 + keys) give each other, in F64, given lse and out of all
 * keys. */
static void pair_of_stretches(const ContextCase *c, const Whole *w, const int64_t q[2], const int64_t k[2],
                              double *sum[TENSORS])
{
    DsvAttentionArgs args = whole_args(c, w), forward;
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
        memcpy(lse + row * queries, (double *)w->lse + row * c->tokens + q[0], (size_t)queries * sizeof *lse);
    args.lse = lse;
    args.dq = dsvi_heads(dq, queries, c->heads, c->head_dim);
    args.dk = dsvi_heads(dk, keys, c->heads, c->head_dim);
    args.dv = dsvi_heads(dv, keys, c->heads, c->head_dim);
    assert_ok(dsvi_attention_bwd_ref(NULL, &args));
    add_magnitudes(c, dq, q[0], queries, sum[DQ]);
    add_magnitudes(c, dk, k[0], keys, sum[DK]);
    add_magnitudes(c, dv, k[0], keys, sum[DV]);
    /* a weighted mean of results of stretches: none exceeds their largest */
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

static void measure_parts(const ContextCase *c, Expected *e)
{
    int64_t bound[RIG_RANKS_MOST + 1], step = c->head_ranks;
    double *sum[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        sum[t] = calloc((size_t)elements(c), sizeof(double));
    dsvi_comm_bounds(c->tokens, c->unit, c->ranks, bound);
    for (int64_t i = 0; i < c->ranks; i += step)
        for (int64_t j = 0; j < c->ranks; j += step)
            pair_of_stretches(c, &e->truth, (int64_t[]){bound[i], bound[i + step]},
                              (int64_t[]){bound[j], bound[j + step]}, sum);
    for (int t = 0; t < TENSORS; t++) {
        e->parts[t] = 0;
        for (int64_t i = 0; i < elements(c); i++)
            e->parts[t] = fmax(e->parts[t], sum[t][i]);
        free(sum[t]);
    }
}

static void expected_create(Expected *e, const ContextCase *c)
{
    whole_create(&e->one, c, c->act, c->acc);
    whole_create(&e->truth, c, DSV_F64, DSV_F64);
    whole_attend(c, c->backend, &e->one);
    whole_attend(c, &exact, &e->truth);
    for (int t = OUT; t < TENSORS; t++) {
        e->error[t] = 0;
        for (int64_t i = 0; i < elements(c); i++)
            e->error[t] = fmax(e->error[t], fabs(dsvi_load(c->act, e->one.data[t], i) -
                                                 dsvi_load(DSV_F64, e->truth.data[t], i)));
    }
    measure_parts(c, e);
}

static double unit_roundoff(DsvDtype dtype)
{
    return dtype == DSV_BF16 ? 0x1p-8 : dtype == DSV_F32 ? 0x1p-24 : 0x1p-53;
}

/* What one rank's tensor has here. */
static DsvStatus check_tensor(const DsvContext *context, const ContextCase *c, const Expected *e, int which,
                              const void *own)
{
    int64_t row = c->heads * c->head_dim, n = dsvi_context_tokens(context) * row;
    int64_t sequence_ranks = c->ranks / c->head_ranks;
    double roundings = 2 * unit_roundoff(c->act) + (double)c->tokens * unit_roundoff(c->acc);
    double allowed = 4 * e->error[which] + roundings * e->parts[which];
    for (int64_t i = 0; i < c->batch * n; i++) {
        int64_t at = (i / n * c->tokens + dsvi_context_first(context)) * row + i % n;
        double got = dsvi_load(c->act, own, i), one = dsvi_load(c->act, e->one.data[which], at);
        double truth = dsvi_load(DSV_F64, e->truth.data[which], at);
        if (sequence_ranks == 1 ? got == one : fabs(got - truth) <= allowed)
            continue;
        return DSVI_FAIL(DSV_E_INTERNAL, "%s[%lld] is %.9g, of one rank %.9g, truth %.9g, allowed %.3g",
                         NAME[which], (long long)i, got, one, truth, allowed);
    }
    return DSV_OK;
}

/* lse is of the order of 1 to 10, and its largest score is wrong by no more than that of one rank. */
static DsvStatus check_lse(const DsvContext *context, const ContextCase *c, const Expected *e,
                           const void *lse)
{
    DsvContextPart part = dsvi_context_part(context, 0);
    for (int64_t i = 0; i < c->batch * part.heads * part.tokens; i++) {
        int64_t s = part.first + i % part.tokens, h = part.head[i / part.tokens % part.heads];
        int64_t at = (i / part.tokens / part.heads * c->heads + h) * c->tokens + s;
        double got = dsvi_load(c->acc, lse, i), one = dsvi_load(c->acc, e->one.lse, at);
        double allowed = part.sequence_ranks == 1 ? 0 : 64 * unit_roundoff(c->acc) * fmax(1, fabs(one));
        if (!(fabs(got - one) <= allowed))
            return DSVI_FAIL(DSV_E_INTERNAL, "lse[%lld] is %.9g, wanted %.9g", (long long)i, got, one);
    }
    return DSV_OK;
}

/* ---- bytes ---- */

static DsvStatus check_sent(const DsvContext *context, const ContextCase *c, bool backward,
                            const DsvCommSent before[2])
{
    DsvContextPart part = dsvi_context_part(context, 0);
    uint64_t act = dsvi_dtype_size(c->act), acc = dsvi_dtype_size(c->acc);
    uint64_t columns = (uint64_t)(c->batch * c->head_dim), own = (uint64_t)dsvi_context_tokens(context);
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

/* ---- a rank ---- */

typedef struct Memory {
    unsigned char *data[TENSORS], *lse, *workspace;
    size_t bytes, lse_bytes, workspace_bytes;
} Memory;

static unsigned char *take(size_t bytes)
{
    unsigned char *memory = aligned_alloc(64, bytes / 64 * 64 + 2 * GUARD);
    return memory ? memset(memory, 0xff, bytes / 64 * 64 + 2 * GUARD) : NULL;
}

static bool untouched(const unsigned char *memory, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++)
        if (memory[i] != 0xff)
            return false;
    return true;
}

static bool intact(const Memory *m)
{
    bool good = untouched(m->lse, m->lse_bytes) && untouched(m->workspace, m->workspace_bytes);
    for (int t = 0; t < TENSORS; t++)
        good = good && untouched(m->data[t], m->bytes);
    return good;
}

static void memory_create(Memory *m, const DsvContext *context, const ContextCase *c)
{
    const DsvContextTensor tensor = {c->batch, c->head_dim, c->act};
    m->bytes = dsvi_context_tokens_bytes(context, &tensor);
    m->lse_bytes = dsvi_context_lse_bytes(context, c->batch, c->acc);
    m->lse = take(m->lse_bytes);
    for (int t = 0; t < TENSORS; t++)
        m->data[t] = take(m->bytes);
    for (int t = Q; t <= DOUT; t++)
        context_fill(context, c, c->act, t, false, m->data[t]);
}

static void memory_free(Memory *m)
{
    for (int t = 0; t < TENSORS; t++)
        free(m->data[t]);
    free(m->lse);
    free(m->workspace);
}

static DsvStatus attend(const DsvContext *context, const ContextCase *c, Memory *m, bool backward)
{
    DsvContextPart part = dsvi_context_part(context, 0);
    const DsvCommSent before[2] = {dsvi_comm_sent(part.head_device), dsvi_comm_sent(part.sequence_device)};
    DsvContextAttention args = {
        .batch = c->batch, .head_dim = c->head_dim, .scale = 1 / sqrt((double)c->head_dim), .act = c->act,
        .acc = c->acc, .q = m->data[Q], .k = m->data[K], .v = m->data[V], .out = m->data[OUT], .lse = m->lse,
        .dout = m->data[DOUT], .dq = m->data[DQ], .dk = m->data[DK], .dv = m->data[DV],
    };
    m->workspace_bytes = args.workspace_bytes = dsvi_context_attend_bytes(context, &args, backward);
    free(m->workspace);
    args.workspace = m->workspace = take(m->workspace_bytes);
    DSVI_TRY((backward ? dsvi_context_attend_bwd : dsvi_context_attend_fwd)(context, 0, &args));
    return check_sent(context, c, backward, before);
}

static DsvStatus on_rank(DsvContext *context, const ContextCase *c, void *shared)
{
    const Expected *e = shared;
    Memory m = {0};
    DsvStatus status;
    memory_create(&m, context, c);
    DSVI_TRY_GOTO(status, attend(context, c, &m, false), done);
    EXPECT(intact(&m));
    DSVI_TRY_GOTO(status, check_tensor(context, c, e, OUT, m.data[OUT]), done);
    DSVI_TRY_GOTO(status, check_lse(context, c, e, m.lse), done);
    DSVI_TRY_GOTO(status, attend(context, c, &m, true), done);
    EXPECT(intact(&m));
    for (int t = DQ; t <= DV; t++)
        DSVI_TRY_GOTO(status, check_tensor(context, c, e, t, m.data[t]), done);
done:
    memory_free(&m);
    return status;
}

static void try_case(const ContextCase *c)
{
    static const struct {
        const DsvBackend *backend;
        DsvDtype act, acc;
    } kinds[] = {{&fast, DSV_F32, DSV_F32}, {&fast, DSV_BF16, DSV_F32}, {&exact, DSV_F64, DSV_F64}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        ContextCase other = *c;
        Expected expected;
        other.backend = kinds[i].backend;
        other.act = kinds[i].act;
        other.acc = kinds[i].acc;
        expected_create(&expected, &other);
        run_context(&other, on_rank, &expected);
        whole_free(&expected.one);
        whole_free(&expected.truth);
    }
}

static void like_one_rank(void **state)
{
    (void)state;
    for_context_cases(&fast, try_case);
}

/* ---- a workspace that is too small ---- */

static DsvStatus too_small(DsvContext *context, const ContextCase *c, void *ignored)
{
    const DsvContextAttention args = {.batch = c->batch, .head_dim = c->head_dim, .act = c->act,
                                      .acc = c->acc};
    (void)ignored;
    if (dsvi_context_attend_fwd(context, 0, &args) == DSV_E_SHAPE &&
        strstr(dsv_error_message(), "workspace has 0 bytes"))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "no workspace is not refused: %s", dsv_error_message());
}

static void refused(void **state)
{
    const ContextCase c = {&fast, 2, 1, 16, 1, 2, 8, 1, DSV_F32, DSV_F32, 1, false};
    (void)state;
    run_context(&c, too_small, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(like_one_rank), cmocka_unit_test(refused)};
    assert_ok(dsvi_cpu_open("auto", 1, &fast));
    assert_ok(dsvi_cpu_open("ref", 1, &exact));
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dsvi_cpu_close(&fast);
    dsvi_cpu_close(&exact);
    return failures;
}
