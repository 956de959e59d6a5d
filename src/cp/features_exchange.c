/* Exchanges the features from which key lists are selected (features_exchange.h). The message to a rank is
 * packed as (B, heads of the receiver, rows of the sender, R). The receiver copies each message to the
 * sender's rows of every head. */
#include "cp/features_exchange.h"

#include "cp/cp_internal.h"
#include "cp/cp_limits.h"

/* State of one exchange. */
typedef struct Exchange {
    const DsviCp *c;
    const DsviFeaturesExchange *args;
    const DsviCpPlan *plan;
    DsviCpPart part;
    DsviComm *comm;
    int64_t first, ranks; /* the participating ranks of the cp group: `ranks` ranks from `first` on */
    int64_t rows, row;    /* number of this rank's feature rows; index of the first one among the rows of all
                           * participants */
    int64_t rows_all;     /* number of rows of all participants */
} Exchange;

/* Number of feature rows that begin before token `token`. */
static int64_t rows_before(const DsviFeaturesExchange *args, int64_t token)
{
    return (token + args->tokens_each - 1) / args->tokens_each;
}

static Exchange features_exchange_begin(const DsviCp *c, int64_t block, const DsviFeaturesExchange *args)
{
    Exchange x = {.c = c,
                  .args = args,
                  .plan = dsvi_cp_plan(c, block),
                  .part = dsvi_cp_part(c, block),
                  .first = 0,
                  .ranks = c->group->size,
                  .comm = c->group->device};
    if (!args->all_tokens) {
        x.ranks = x.part.head_ranks;
        x.first = x.part.sequence_index * x.ranks;
        x.comm = x.part.head_device;
    }
    int64_t begin = rows_before(args, c->bound[x.first]), own = rows_before(args, dsvi_cp_first(c));
    x.row = own - begin;
    x.rows = rows_before(args, dsvi_cp_first(c) + dsvi_cp_tokens(c)) - own;
    x.rows_all = rows_before(args, c->bound[x.first + x.ranks]) - begin;
    return x;
}

/* The next four functions return for participating rank i: index in plan->placement of its first head,
 * number of its heads, index of its first feature row, number of its feature rows. */
static int64_t first_head_of(const Exchange *x, int64_t i)
{
    return x->plan->bound[(x->first + i) % x->part.head_ranks];
}

static int64_t features_exchange_heads_of(const Exchange *x, int64_t i)
{
    return x->plan->bound[(x->first + i) % x->part.head_ranks + 1] - first_head_of(x, i);
}

static int64_t first_row_of(const Exchange *x, int64_t i)
{
    return rows_before(x->args, x->c->bound[x->first + i]) - rows_before(x->args, x->c->bound[x->first]);
}

static int64_t features_exchange_rows_of(const Exchange *x, int64_t i)
{
    return first_row_of(x, i + 1) - first_row_of(x, i);
}

/* Returns a view of an array (B, heads, rows, R) as a tensor with heads, in which feature rows take the
 * place of tokens. */
static DsviHeads head_by_head(const void *data, int64_t heads, int64_t rows, int64_t features)
{
    return (DsviHeads){(void *)data, heads * rows * features, features, rows * features};
}

static DsvStatus features_exchange_move(const Exchange *x, int64_t heads, int64_t rows,
                                        const int32_t *from_head, DsviHeads from, DsviHeads to)
{
    const DsviBackend *backend = x->c->group->backend;
    DsviHeadsMoveArgs args = {
        .batch = x->args->batch,
        .tokens = rows,
        .heads = heads,
        .head_dim = x->args->features,
        .dtype = DSVI_F32,
        .from_head = from_head,
        .from = from,
        .to = to,
    };
    return rows > 0 ? backend->ops.heads_move.run(backend->device->stream, &args) : DSV_OK;
}

static size_t piece_bytes(const Exchange *x, int64_t heads, int64_t rows)
{
    return (size_t)(x->args->batch * heads * rows * x->args->features) * sizeof(float);
}

/* Lays out the messages in the workspace: all sent ones, then all received ones. The message to this rank
 * itself is not copied. */
static void place_pieces(const Exchange *x)
{
    int64_t self = x->c->group->rank - x->first;
    char *at = x->args->workspace;
    for (int64_t i = 0; i < x->ranks; i++) {
        x->c->send[i] = (DsviPiece){at, piece_bytes(x, features_exchange_heads_of(x, i), x->rows)};
        at += x->c->send[i].bytes;
    }
    for (int64_t i = 0; i < x->ranks; i++) {
        x->c->receive[i] = (DsviPiece){at, piece_bytes(x, x->part.heads, features_exchange_rows_of(x, i))};
        at += i == self ? 0 : x->c->receive[i].bytes;
    }
    x->c->receive[self] = x->c->send[self];
}

DsvStatus dsvi_features_exchange(const DsviCp *c, int64_t block, const DsviFeaturesExchange *args)
{
    Exchange x = features_exchange_begin(c, block, args);
    int64_t features = args->features;
    DsviHeads own = head_by_head(args->own, c->shape.heads, x.rows, features);
    place_pieces(&x);
    for (int64_t i = 0; i < x.ranks; i++) {
        DsviHeads piece = head_by_head(c->send[i].data, features_exchange_heads_of(&x, i), x.rows, features);
        DSVI_TRY(features_exchange_move(&x, features_exchange_heads_of(&x, i), x.rows,
                                        x.plan->placement + first_head_of(&x, i), own, piece));
    }
    DSVI_TRY(dsvi_comm_exchange(x.comm, c->send, c->receive));
    for (int64_t i = 0; i < x.ranks; i++) {
        DsviHeads piece = head_by_head(c->receive[i].data, x.part.heads, features_exchange_rows_of(&x, i),
                                       features);
        DsviHeads all = head_by_head(args->heads + first_row_of(&x, i) * features, x.part.heads, x.rows_all,
                                     features);
        DSVI_TRY(
            features_exchange_move(&x, x.part.heads, features_exchange_rows_of(&x, i), NULL, piece, all));
    }
    return DSV_OK;
}

/* Returns an upper bound: a rank sends the features of all heads of its tokens once to each row of the rank
 * grid, and receives the features of its heads for all tokens. */
size_t dsvi_features_exchange_bytes(const DsviCp *c, int64_t head_ranks, const DsviFeaturesExchange *args)
{
    DsviCpLimits limits;
    int64_t end = dsvi_cp_first(c) + dsvi_cp_tokens(c), rows = 0;
    int64_t own = rows_before(args, end) - rows_before(args, dsvi_cp_first(c));
    for (int64_t i = 0; dsvi_cp_limits(c, i, &limits); i++) {
        int64_t all = limits.sequence_ranks * c->shape.heads * own +
                      limits.heads * rows_before(args, c->shape.tokens);
        rows = limits.head_ranks == head_ranks ? all : rows;
    }
    return (size_t)(args->batch * rows * args->features) * sizeof(float);
}
