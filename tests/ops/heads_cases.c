/* Cases of heads_move and attention_merge for the checker (check.h). */
#include "ops/cases.h"
#include "test.h"

/* ---- heads_move: only copies elements, so that every element must equal the reference ---- */

typedef struct MoveShape {
    int64_t batch, tokens, heads, from_heads, to_heads, dim; /* heads: number of heads to move */
    int64_t gap;                                             /* elements between heads, in `from` and `to` */
    bool pack;        /* from scattered heads to adjacent heads; else from adjacent to scattered heads */
    bool heads_first; /* `from` is (B, N, S, D) */
    bool bytes;       /* move the rows as bytes, without regard to their dtype */
} MoveShape;

enum { FROM, TO };

/* Fills head[0..of) with different numbers below `of`, which must not be a multiple of 5. */
static void choose(int32_t head[257], int64_t of)
{
    for (int64_t i = 0; i < of; i++)
        head[i] = (int32_t)((i * 5 + 2) % of);
}

static DsviHeads rows_of(const CheckCase *c, int which, int64_t heads, bool heads_first)
{
    const MoveShape *shape = c->parameters;
    int64_t unit = shape->bytes ? (int64_t)dsvi_dtype_size(c->act) : 1;
    int64_t pitch = (shape->dim + shape->gap) * unit;
    DsviHeads rows = {c->buffer[which].data, shape->tokens * heads * pitch, heads * pitch, pitch};
    if (heads_first) {
        rows.token_stride = pitch;
        rows.head_stride = shape->tokens * pitch;
    }
    return rows;
}

static DsvStatus run_move(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const MoveShape *shape = c->parameters;
    int32_t head[257];
    choose(head, shape->pack ? shape->from_heads : shape->to_heads);
    DsviHeadsMoveArgs args = {
        .batch = shape->batch,
        .tokens = shape->tokens,
        .heads = shape->heads,
        .head_dim = shape->dim * (shape->bytes ? (int64_t)dsvi_dtype_size(c->act) : 1),
        .dtype = shape->bytes ? DSVI_U8 : c->act,
        .from_head = shape->pack ? head : NULL,
        .to_head = shape->pack ? NULL : head,
        .from = rows_of(c, FROM, shape->from_heads, shape->heads_first),
        .to = rows_of(c, TO, shape->to_heads, false),
    };
    return ops->heads_move.run(stream, &args);
}

static void check_move(const DsviBackend *backend, const MoveShape *shape)
{
    CheckCase c = {.op = "heads_move", .parameters = shape, .run = run_move};
    int64_t pitch = shape->batch * shape->tokens * (shape->dim + shape->gap);
    snprintf(c.shape, sizeof c.shape, "b %lld s %lld heads %lld, %lld to %lld, d %lld gap %lld, %s%s%s",
             (long long)shape->batch, (long long)shape->tokens, (long long)shape->heads,
             (long long)shape->from_heads, (long long)shape->to_heads, (long long)shape->dim,
             (long long)shape->gap, shape->pack ? "pack" : "unpack",
             shape->heads_first ? ", heads first" : "", shape->bytes ? ", bytes" : "");
    check_buffer(&c, "from", CHECK_ACT, CHECK_IN, pitch * shape->from_heads);
    check_buffer(&c, "to", CHECK_ACT, CHECK_IN_OUT, pitch * shape->to_heads);
    assert_case(&c, backend);
}

void check_heads_move_cases(const DsviBackend *backend)
{
    static const MoveShape shapes[] = {
        {1, 1, 1, 1, 1, 2, 0, true, false, false},    {2, 3, 2, 4, 2, 32, 0, true, false, false},
        {2, 3, 2, 2, 4, 32, 0, false, false, false},  {1, 130, 3, 12, 3, 128, 0, true, false, false},
        {3, 33, 5, 5, 11, 64, 8, false, true, false}, {2, 7, 4, 6, 4, 34, 3, true, true, false},
        {1, 9, 3, 3, 4, 250, 0, false, false, false}, {1, 2, 257, 257, 257, 4, 0, true, false, false},
        {2, 5, 3, 7, 3, 10, 1, true, false, true},    {1, 4, 2, 4, 2, 5, 0, true, false, true},
        {0, 4, 2, 2, 2, 8, 0, true, false, false},    {1, 0, 2, 2, 2, 8, 0, true, false, false},
        {1, 4, 0, 2, 2, 8, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_move(backend, &shapes[i]);
}

/* ---- attention_merge ---- */

typedef struct MergeShape {
    int64_t batch, heads, queries, dim, gap;
    bool heads_first;      /* (B, N, S, D) */
    bool from_acc, to_acc; /* dtype acc instead of act */
    bool in_place;         /* requires that both have the same dtype */
    /* Every `from_infinite`-th (`part_infinite`-th) row has no keys, so lse is -inf; 0: no such rows. With
     * one head, such rows also hold values that would show in the result if they were used. */
    int64_t from_infinite, part_infinite;
} MergeShape;

enum { MERGE_FROM, MERGE_PART, MERGE_TO, MERGE_LSE, MERGE_PART_LSE };

static DsviHeads merge_rows(const CheckCase *c, int which)
{
    const MergeShape *shape = c->parameters;
    int64_t pitch = shape->dim + shape->gap, queries = shape->queries, heads = shape->heads;
    DsviHeads rows = {c->buffer[which].data, queries * heads * pitch, heads * pitch, pitch};
    if (shape->heads_first) {
        rows.token_stride = pitch;
        rows.head_stride = queries * pitch;
    }
    return rows;
}

static DsvStatus run_merge(const CheckCase *c, const DsviOps *ops, DsviStream *stream)
{
    const MergeShape *shape = c->parameters;
    DsviAttentionMergeArgs args = {
        .batch = shape->batch,
        .heads = shape->heads,
        .queries = shape->queries,
        .head_dim = shape->dim,
        .act = c->act,
        .acc = c->acc,
        .from_dtype = shape->from_acc ? c->acc : c->act,
        .to_dtype = shape->to_acc ? c->acc : c->act,
        .from = merge_rows(c, MERGE_FROM),
        .part = merge_rows(c, MERGE_PART),
        .to = merge_rows(c, MERGE_TO),
        .lse = c->buffer[MERGE_LSE].data,
        .part_lse = c->buffer[MERGE_PART_LSE].data,
    };
    return ops->attention_merge.run(stream, &args);
}

static void check_merge(const DsviBackend *backend, const MergeShape *shape)
{
    CheckCase c = {.op = "attention_merge", .parameters = shape, .run = run_merge, .ulps = 8};
    int64_t rows = shape->batch * shape->heads * shape->queries, pitch = shape->dim + shape->gap;
    int64_t n = rows * pitch, traps = shape->heads == 1 ? pitch : 0;
    snprintf(c.shape, sizeof c.shape, "b %lld h %lld q %lld d %lld gap %lld, %s to %s%s%s",
             (long long)shape->batch, (long long)shape->heads, (long long)shape->queries,
             (long long)shape->dim, (long long)shape->gap, shape->from_acc ? "acc" : "act",
             shape->to_acc ? "acc" : "act", shape->heads_first ? ", heads first" : "",
             shape->in_place ? ", in place" : "");
    CheckKind from = shape->from_acc ? CHECK_ACC : CHECK_ACT;
    check_buffer(&c, "from", from, CHECK_IN, n)->infinite = traps * shape->from_infinite;
    check_buffer(&c, "part", CHECK_ACT, CHECK_IN, n)->infinite = traps * shape->part_infinite;
    /* CHECK_IN_OUT because elements between rows must not change */
    CheckBuffer *to = check_buffer(&c, "to", shape->to_acc ? CHECK_ACC : CHECK_ACT, CHECK_IN_OUT, n);
    to->alias = shape->in_place ? 1 + MERGE_FROM : 0;
    check_buffer(&c, "lse", CHECK_ACC, CHECK_IN_OUT, rows)->infinite = shape->from_infinite;
    check_buffer(&c, "part_lse", CHECK_ACC, CHECK_IN, rows)->infinite = shape->part_infinite;
    assert_case(&c, backend);
}

void check_attention_merge_cases(const DsviBackend *backend)
{
    static const MergeShape shapes[] = {
        {1, 1, 1, 2, 0, false, false, false, false, 0, 0},
        {2, 3, 5, 32, 0, false, false, false, true, 0, 0},
        {2, 3, 130, 128, 0, false, false, true, false, 0, 0},
        {1, 2, 33, 64, 0, false, true, true, true, 0, 0},
        {1, 5, 17, 128, 8, false, true, false, false, 3, 2},
        {2, 2, 19, 96, 0, true, true, true, false, 1, 2},
        {1, 3, 9, 256, 0, false, false, false, false, 4, 1},
        {3, 2, 7, 34, 3, true, false, true, false, 2, 2},
        {1, 2, 21, 250, 0, false, true, false, false, 1, 1},
        {2, 1, 37, 64, 0, false, false, true, false, 2, 3},
        {1, 1, 41, 34, 0, false, true, false, false, 3, 2},
        {1, 2, 0, 32, 0, false, false, false, false, 0, 0},
        {0, 2, 4, 32, 0, false, false, false, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_merge(backend, &shapes[i]);
}
