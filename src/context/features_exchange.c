/* See features_exchange.h. What goes to one rank is packed head by head, (B, its heads, rows, R), and what
 * comes from one is unpacked into its rows of every head. */
#include "context/features_exchange.h"

#include "context/context_internal.h"
#include "context/context_most.h"

/* One exchange under way. */
typedef struct Exchange {
    const DsvContext *c;
    const DsvFeaturesExchange *args;
    const DsvContextPlan *plan;
    DsvContextPart part;
    DsvComm *comm;
    int64_t first, ranks; /* those that take part, of the context's */
    int64_t rows, row;    /* of this rank; where they begin among those of all that take part */
    int64_t rows_all;
} Exchange;

/* Rows before token `token`. */
static int64_t rows_before(const DsvFeaturesExchange *args, int64_t token)
{
    return (token + args->tokens_each - 1) / args->tokens_each;
}

static Exchange begin(const DsvContext *c, int64_t block, const DsvFeaturesExchange *args)
{
    Exchange x = {.c = c, .args = args, .plan = dsvi_context_plan(c, block),
                  .part = dsvi_context_part(c, block), .first = 0, .ranks = c->group->size,
                  .comm = c->group->device};
    if (!args->all_tokens) {
        x.ranks = x.part.head_ranks;
        x.first = x.part.sequence_index * x.ranks;
        x.comm = x.part.head_device;
    }
    int64_t begin = rows_before(args, c->bound[x.first]), own = rows_before(args, dsvi_context_first(c));
    x.row = own - begin;
    x.rows = rows_before(args, dsvi_context_first(c) + dsvi_context_tokens(c)) - own;
    x.rows_all = rows_before(args, c->bound[x.first + x.ranks]) - begin;
    return x;
}

/* Rank i of those that take part: its heads in the plan's order, its rows. */
static int64_t first_head_of(const Exchange *x, int64_t i)
{
    return x->plan->bound[(x->first + i) % x->part.head_ranks];
}

static int64_t heads_of(const Exchange *x, int64_t i)
{
    return x->plan->bound[(x->first + i) % x->part.head_ranks + 1] - first_head_of(x, i);
}

static int64_t first_row_of(const Exchange *x, int64_t i)
{
    return rows_before(x->args, x->c->bound[x->first + i]) - rows_before(x->args, x->c->bound[x->first]);
}

static int64_t rows_of(const Exchange *x, int64_t i)
{
    return first_row_of(x, i + 1) - first_row_of(x, i);
}

/* (B, heads, rows, R), its rows as those of "tokens". */
static DsvHeads head_by_head(const void *data, int64_t heads, int64_t rows, int64_t features)
{
    return (DsvHeads){(void *)data, heads * rows * features, features, rows * features};
}

static DsvStatus move(const Exchange *x, int64_t heads, int64_t rows, const int32_t *from_head, DsvHeads from,
                      DsvHeads to)
{
    const DsvBackend *backend = x->c->group->backend;
    DsvHeadsMoveArgs args = {
        .batch = x->args->batch, .tokens = rows, .heads = heads, .head_dim = x->args->features,
        .dtype = DSV_F32, .from_head = from_head, .from = from, .to = to,
    };
    return rows > 0 ? backend->ops.heads_move.run(backend->device->stream, &args) : DSV_OK;
}

static size_t piece_bytes(const Exchange *x, int64_t heads, int64_t rows)
{
    return (size_t)(x->args->batch * heads * rows * x->args->features) * sizeof(float);
}

/* Where the pieces lie in the workspace: all that are sent, then all that are received. The own one stays. */
static void place_pieces(const Exchange *x)
{
    int64_t self = x->c->group->rank - x->first;
    char *at = x->args->workspace;
    for (int64_t i = 0; i < x->ranks; i++) {
        x->c->send[i] = (DsvPiece){at, piece_bytes(x, heads_of(x, i), x->rows)};
        at += x->c->send[i].bytes;
    }
    for (int64_t i = 0; i < x->ranks; i++) {
        x->c->receive[i] = (DsvPiece){at, piece_bytes(x, x->part.heads, rows_of(x, i))};
        at += i == self ? 0 : x->c->receive[i].bytes;
    }
    x->c->receive[self] = x->c->send[self];
}

DsvStatus dsvi_features_exchange(const DsvContext *c, int64_t block, const DsvFeaturesExchange *args)
{
    Exchange x = begin(c, block, args);
    int64_t features = args->features;
    DsvHeads own = head_by_head(args->own, c->shape.heads, x.rows, features);
    place_pieces(&x);
    for (int64_t i = 0; i < x.ranks; i++) {
        DsvHeads piece = head_by_head(c->send[i].data, heads_of(&x, i), x.rows, features);
        DSVI_TRY(move(&x, heads_of(&x, i), x.rows, x.plan->placement + first_head_of(&x, i), own, piece));
    }
    DSVI_TRY(dsvi_comm_exchange(x.comm, c->send, c->receive));
    for (int64_t i = 0; i < x.ranks; i++) {
        DsvHeads piece = head_by_head(c->receive[i].data, x.part.heads, rows_of(&x, i), features);
        DsvHeads all = head_by_head(args->heads + first_row_of(&x, i) * features, x.part.heads, x.rows_all,
                                    features);
        DSVI_TRY(move(&x, x.part.heads, rows_of(&x, i), NULL, piece, all));
    }
    return DSV_OK;
}

/* Sent are all heads, once for each sequence rank; received are the own heads of all tokens. */
size_t dsvi_features_exchange_bytes(const DsvContext *c, int64_t head_ranks, const DsvFeaturesExchange *args)
{
    DsvContextMost most;
    int64_t end = dsvi_context_first(c) + dsvi_context_tokens(c), rows = 0;
    int64_t own = rows_before(args, end) - rows_before(args, dsvi_context_first(c));
    for (int64_t i = 0; dsvi_context_most(c, i, &most); i++) {
        int64_t all = most.sequence_ranks * c->shape.heads * own +
                      most.heads * rows_before(args, c->shape.tokens);
        rows = most.head_ranks == head_ranks ? all : rows;
    }
    return (size_t)(args->batch * rows * args->features) * sizeof(float);
}
