/* heads_move for the checker: nothing but copies, so that every element has to be the truth's. */
#include "ops/cases.h"
#include "test.h"

typedef struct MoveShape {
    int64_t batch, tokens, heads, from_heads, to_heads, dim; /* heads: that move */
    int64_t gap;                                             /* elements between heads, on both sides */
    bool pack;       /* the heads are apart in `from`, and together in `to`; else the other way */
    bool heads_first; /* `from` is (B, N, S, D) */
    bool bytes;      /* moved as so many bytes */
} MoveShape;

enum { FROM, TO };

/* All different: 5 and 257 have no factor in common. */
static void choose(int32_t head[257], int64_t of)
{
    for (int64_t i = 0; i < of; i++)
        head[i] = (int32_t)((i * 5 + 2) % of);
}

static DsvHeads rows_of(const CheckCase *c, int which, int64_t heads, bool heads_first)
{
    const MoveShape *shape = c->parameters;
    int64_t unit = shape->bytes ? (int64_t)dsvi_dtype_size(c->act) : 1;
    int64_t pitch = (shape->dim + shape->gap) * unit;
    DsvHeads rows = {c->buffer[which].data, shape->tokens * heads * pitch, heads * pitch, pitch};
    if (heads_first) {
        rows.token_stride = pitch;
        rows.head_stride = shape->tokens * pitch;
    }
    return rows;
}

static DsvStatus run_move(const CheckCase *c, const DsvOps *ops, DsvStream *stream)
{
    const MoveShape *shape = c->parameters;
    int32_t head[257];
    choose(head, shape->pack ? shape->from_heads : shape->to_heads);
    DsvHeadsMoveArgs args = {
        .batch = shape->batch, .tokens = shape->tokens, .heads = shape->heads,
        .head_dim = shape->dim * (shape->bytes ? (int64_t)dsvi_dtype_size(c->act) : 1),
        .dtype = shape->bytes ? DSV_U8 : c->act, .from_head = shape->pack ? head : NULL,
        .to_head = shape->pack ? NULL : head, .from = rows_of(c, FROM, shape->from_heads, shape->heads_first),
        .to = rows_of(c, TO, shape->to_heads, false),
    };
    return ops->heads_move.run(stream, &args);
}

static void check_move(const DsvBackend *backend, const MoveShape *shape)
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

void check_heads_move_cases(const DsvBackend *backend)
{
    static const MoveShape shapes[] = {
        {1, 1, 1, 1, 1, 2, 0, true, false, false},
        {2, 3, 2, 4, 2, 32, 0, true, false, false},
        {2, 3, 2, 2, 4, 32, 0, false, false, false},
        {1, 130, 3, 12, 3, 128, 0, true, false, false},
        {3, 33, 5, 5, 11, 64, 8, false, true, false},
        {2, 7, 4, 6, 4, 34, 3, true, true, false},
        {1, 9, 3, 3, 4, 250, 0, false, false, false},
        {1, 2, 257, 257, 257, 4, 0, true, false, false},
        {2, 5, 3, 7, 3, 10, 1, true, false, true},
        {1, 4, 2, 4, 2, 5, 0, true, false, true},
        {0, 4, 2, 2, 2, 8, 0, true, false, false},
        {1, 0, 2, 2, 2, 8, 0, true, false, false},
        {1, 4, 0, 2, 2, 8, 0, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_move(backend, &shapes[i]);
}
