/* Cases of attention for the checker (check.h), dense, over key lists, and over key lists with a tail:
 * forward, then backward with the forward pass's out and lse. */
#include "ops/random_lists.h"
#include "ops/sparse_cases.h"
#include "test.h"

typedef struct Shape {
    int64_t batch, heads, queries, keys, dim;
    int64_t group, grain; /* group 0: dense */
    double density;       /* as in random_lists.h */
    int64_t gap;          /* elements between heads */
    bool heads_first;     /* tensors are (B, N, S, D) instead of (B, S, N, D) */
} Shape;

typedef struct Problem {
    Shape shape;
    int64_t chunk, run; /* of the tail; chunk 0: no tail */
    const DsviBackend *backend;
    DsviLists lists; /* host memory */
} Problem;

enum { Q, K, V, DOUT, OUT, LSE, DQ, DK, DV, TAIL_LSE };

static DsviHeads heads_of(const CheckCase *c, int which, int64_t tokens)
{
    const Shape *shape = &((const Problem *)c->parameters)->shape;
    int64_t pitch = shape->dim + shape->gap;
    DsviHeads rows = {c->buffer[which].data, tokens * shape->heads * pitch, shape->heads * pitch, pitch};
    if (shape->heads_first) {
        rows.token_stride = pitch;
        rows.head_stride = tokens * pitch;
    }
    return rows;
}

/* Runs an operation with a workspace of the size that it requests. */
static DsvStatus call(const Problem *p, DsviStream *stream, DsviAttentionArgs *args, dsvi_attention_fn *run,
                      dsvi_attention_workspace_fn *ask)
{
    args->workspace_bytes = ask ? ask(stream, args) : 0;
    args->workspace = check_workspace(p->backend, stream, args->workspace_bytes);
    DsvStatus status = run(stream, args);
    check_workspace_release(p->backend, stream, args->workspace, args->workspace_bytes);
    return status;
}

static DsvStatus call_tail(const Problem *p, DsviStream *stream, DsviAttentionTailArgs *args,
                           dsvi_attention_tail_fn *run, dsvi_attention_tail_workspace_fn *ask)
{
    DsviAttentionArgs *attention = &args->attention;
    attention->workspace_bytes = ask ? ask(stream, args) : 0;
    attention->workspace = check_workspace(p->backend, stream, attention->workspace_bytes);
    DsvStatus status = run(stream, args);
    check_workspace_release(p->backend, stream, attention->workspace, attention->workspace_bytes);
    return status;
}

static DsvStatus run_lists(const Problem *p, const DsviOps *ops, DsviStream *stream,
                           DsviAttentionTailArgs *tail)
{
    DsviAttentionArgs *args = &tail->attention;
    DSVI_TRY(call(p, stream, args, ops->attention_list_fwd.run, ops->attention_list_fwd.workspace));
    if (p->chunk > 0)
        DSVI_TRY(call_tail(p, stream, tail, ops->attention_tail_fwd.run, ops->attention_tail_fwd.workspace));
    DSVI_TRY(call(p, stream, args, ops->attention_list_bwd.run, ops->attention_list_bwd.workspace));
    if (p->chunk > 0)
        DSVI_TRY(call_tail(p, stream, tail, ops->attention_tail_bwd.run, ops->attention_tail_bwd.workspace));
    return DSV_OK;
}

static DsviAttentionTailArgs args_of(const CheckCase *c)
{
    const Problem *p = c->parameters;
    const Shape *shape = &p->shape;
    return (DsviAttentionTailArgs){
        .attention =
            {
                .batch = shape->batch,
                .heads = shape->heads,
                .queries = shape->queries,
                .keys = shape->keys,
                .head_dim = shape->dim,
                .scale = 1 / sqrt((double)shape->dim),
                .act = c->act,
                .acc = c->acc,
                .q = heads_of(c, Q, shape->queries),
                .k = heads_of(c, K, shape->keys),
                .v = heads_of(c, V, shape->keys),
                .out = heads_of(c, OUT, shape->queries),
                .lse = c->buffer[LSE].data,
                .dout = heads_of(c, DOUT, shape->queries),
                .dq = heads_of(c, DQ, shape->queries),
                .dk = heads_of(c, DK, shape->keys),
                .dv = heads_of(c, DV, shape->keys),
            },
        .chunk = p->chunk,
        .run = p->run,
        .tail_lse = p->chunk > 0 ? c->buffer[TAIL_LSE].data : NULL,
    };
}

static DsvStatus run_attention(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const Problem *p = c->parameters;
    DsviLists lists = p->lists;
    DsviAttentionTailArgs tail = args_of(c);
    DsviAttentionArgs *args = &tail.attention;
    if (p->shape.group == 0) {
        DSVI_TRY(call(p, stream, args, ops->attention_fwd.run, ops->attention_fwd.workspace));
        return call(p, stream, args, ops->attention_bwd.run, ops->attention_bwd.workspace);
    }
    lists.offsets = check_upload(p->backend, stream, p->lists.offsets,
                                 (size_t)(dsvi_lists_count(&lists) + 1) * sizeof *lists.offsets);
    lists.spans = check_upload(p->backend, stream, p->lists.spans,
                               (size_t)lists.capacity * sizeof *lists.spans);
    args->lists = &lists;
    DsvStatus status = run_lists(p, ops, stream, &tail);
    check_release(p->backend, stream, lists.offsets);
    check_release(p->backend, stream, lists.spans);
    return status;
}

/* dS_ij = P_ij (dP_ij - delta_i) cancels where all values are equal: dP_ij = delta_i = D dout v. The terms of
 * dQ_i = scale sum_j dS_ij K_j then sum to 2 scale D dout v k sum_j P_ij in absolute value, and
 * out_i = v sum_j P_ij. Those of dK_j sum to 2 scale D dout v q sum_i P_ij, and dV_j = dout sum_i P_ij. The
 * gradients of a tail have the same form. With large values no |dP_ij| and no |delta_i| is above D times the
 * largest |dout| and |v|, and the P_ij of a query sum to 1. */
static void note_terms(CheckCase *c, const Shape *shape)
{
    double value = CHECK_EQUAL_VALUE, factor = 2 / sqrt((double)shape->dim) * (double)shape->dim * value;
    c->buffer[DQ].terms_of = OUT;
    c->buffer[DQ].terms_scale = factor * value * c->buffer[K].scale * c->buffer[DOUT].scale;
    c->buffer[DK].terms_of = DV;
    c->buffer[DK].terms_scale = factor * value * c->buffer[Q].scale * c->buffer[V].scale;
    for (int b = DQ; b <= DK; b++) {
        const int bounds[CHECK_BOUNDS] = {DOUT, V, b == DQ ? K : Q};
        memcpy(c->buffer[b].bounds, bounds, sizeof bounds);
        c->buffer[b].bounds_scale = 2 * sqrt((double)shape->dim) * (b == DQ ? 1 : (double)shape->queries);
    }
}

static void check_attention(const DsviBackend *backend, const Shape *shape, int64_t chunk, int64_t run)
{
    Problem p = {.shape = *shape, .chunk = chunk, .run = run, .backend = backend};
    CheckCase c = {.op = chunk > 0 ? "attention with a tail" : "attention",
                   .parameters = &p,
                   .run = run_attention,
                   .ulps = 8};
    int64_t rows = shape->batch * shape->heads, pitch = shape->dim + shape->gap;
    static const char *const name[] = {"q", "k", "v", "dout", "out", "lse", "dq", "dk", "dv"};
    snprintf(c.shape, sizeof c.shape,
             "b %lld h %lld q %lld k %lld d %lld group %lld grain %lld density %g chunk %lld run %lld",
             (long long)shape->batch, (long long)shape->heads, (long long)shape->queries,
             (long long)shape->keys, (long long)shape->dim, (long long)shape->group, (long long)shape->grain,
             shape->density, (long long)chunk, (long long)run);
    for (int i = Q; i <= DV; i++) {
        int64_t tokens = i == K || i == V || i == DK || i == DV ? shape->keys : shape->queries;
        /* CHECK_IN_OUT also for outputs, because elements between rows must not change */
        check_buffer(&c, name[i], i == LSE ? CHECK_ACC : CHECK_ACT, i <= DOUT ? CHECK_IN : CHECK_IN_OUT,
                     i == LSE ? rows * tokens : rows * tokens * pitch);
    }
    if (chunk > 0)
        check_buffer(&c, "tail_lse", CHECK_ACC, CHECK_OUT, rows * dsvi_tail_chunks(shape->queries, chunk));
    c.buffer[Q].scale = 2;
    note_terms(&c, shape);
    if (shape->group > 0) {
        p.lists = (DsviLists){.batch = shape->batch,
                              .heads = shape->heads,
                              .queries = shape->queries,
                              .keys = shape->keys,
                              .group = shape->group,
                              .grain = shape->grain};
        random_lists_create(&p.lists, shape->density, 1);
    }
    assert_case(&c, backend);
    random_lists_free(&p.lists);
}

/* Sizes below and above those at which implementations divide the work: vectors of 4 to 16 lanes, tiles of 64
 * keys and 128 queries, blocks of some hundred keys. Head sizes that are multiples of vectors, and others. */
void check_attention_cases(const DsviBackend *backend, bool over_lists)
{
    static const Shape shapes[] = {
        /* dense */
        {1, 1, 1, 1, 2, 0, 0, 0, 0, false},
        {2, 3, 5, 3, 32, 0, 0, 0, 0, false},
        {1, 2, 17, 65, 34, 0, 0, 0, 3, false},
        {1, 1, 129, 33, 64, 0, 0, 0, 0, true},
        {1, 1, 17, 130, 100, 0, 0, 0, 0, false},
        {1, 1, 10, 31, 256, 0, 0, 0, 2, true},
        {1, 1, 7, 1000, 32, 0, 0, 0, 0, false},
        {1, 2, 3, 0, 32, 0, 0, 0, 0, false},
        {1, 2, 0, 3, 32, 0, 0, 0, 0, false},
        /* over lists: full, empty, some empty, spans of several keys, a short last span, groups of several
         * tiles */
        {1, 2, 40, 50, 64, 16, 1, 1, 0, false},
        {1, 2, 20, 30, 32, 8, 1, 0, 0, false},
        {2, 2, 37, 53, 32, 8, 1, -0.5, 3, false},
        {1, 2, 50, 203, 48, 16, 8, 0.3, 0, true},
        {1, 1, 150, 90, 34, 130, 1, 0.4, 0, false},
        {1, 1, 133, 131, 50, 64, 64, 0.6, 0, false},
        {1, 1, 9, 1900, 32, 8, 1, 0.5, 0, false},
        {1, 1, 9, 1200, 32, 4, 128, 0.8, 0, false},
        /* over lists, rows that are multiples of 16 bytes: tiles of 64 and 128 queries and keys */
        {1, 2, 70, 193, 128, 32, 1, 0.5, 8, false},
        {1, 2, 150, 260, 128, 100, 3, 0.6, 0, true},
        {1, 1, 260, 300, 64, 256, 16, 0.5, 0, false},
        {1, 1, 5, 330, 128, 1, 128, 0.7, 0, false},
        {2, 1, 130, 150, 96, 64, 64, -0.7, 0, false},
        {1, 1, 140, 65, 128, 128, 1, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (over_lists == (shapes[i].group > 0))
            check_attention(backend, &shapes[i], 0, 0);
}

/* Query tails, key tails and both; short last groups, chunks and runs; lists that are full, empty, ragged and
 * of spans; chunks and runs that are fewer or more than the vectors and tiles of implementations. The
 * reference implementation takes time in proportion to chunks x runs x (members of a chunk and a run). */
void check_attention_tail_cases(const DsviBackend *backend)
{
    static const struct {
        Shape shape;
        int64_t chunk, run;
    } tails[] = {
        {{1, 1, 1, 1, 2, 1, 1, 0, 0, false}, 1, 1},
        {{2, 2, 69, 53, 32, 8, 1, -0.5, 3, false}, 4, 1},
        {{1, 2, 40, 50, 64, 16, 1, 1, 0, false}, 8, 3},
        {{1, 2, 20, 30, 32, 8, 1, 0, 0, false}, 8, 1},
        {{1, 2, 20, 30, 32, 8, 1, 0, 0, false}, 2, 7},
        {{1, 2, 23, 34, 34, 6, 1, 0.4, 0, true}, 1, 1},
        {{1, 2, 50, 203, 48, 16, 8, 0.3, 0, true}, 4, 5},
        {{1, 1, 150, 90, 34, 130, 1, 0.4, 0, false}, 65, 1},
        {{1, 1, 133, 131, 50, 64, 64, 0.6, 0, false}, 1, 16},
        {{2, 1, 22, 1100, 32, 4, 1, 0.2, 0, false}, 4, 1},
        {{1, 1, 260, 70, 32, 2, 1, -0.5, 8, false}, 2, 1},
        {{1, 1, 200, 150, 64, 64, 3, 0.1, 0, true}, 64, 1},
        {{1, 1, 260, 130, 64, 256, 16, 0.5, 0, false}, 64, 1},
        {{1, 1, 130, 300, 32, 64, 1, 0.05, 0, false}, 1, 64},
        {{2, 2, 300, 150, 34, 32, 1, 0.3, 0, true}, 1, 20},
        {{1, 1, 150, 300, 128, 64, 1, 0.1, 0, false}, 16, 16},
        {{1, 1, 10, 31, 256, 5, 1, 0.3, 2, true}, 5, 2},
        {{1, 2, 3, 0, 32, 3, 1, 0, 0, false}, 3, 1},
        {{1, 2, 0, 3, 32, 4, 1, 0, 0, false}, 2, 2},
    };
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++)
        check_attention(backend, &tails[i].shape, tails[i].chunk, tails[i].run);
}
