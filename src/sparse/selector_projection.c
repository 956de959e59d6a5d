/* The projection selector. It projects queries and keys of each head, after norm and RoPE, to `rank`
 * dimensions so that scores are preserved best (projection_solve.h). A proxy (which stands for several
 * queries) is the mean of `chunk` projected queries; a candidate is the mean of `key_chunk` projected keys.
 * The selector needs no gradient descent and works from the first step on.
 *
 * The projection is computed from moments of q and k: second moments and means. The moments are gathered from
 * a block's first forward pass, and from one pass every refresh_every steps, each time from about ROWS rows
 * of a head. The moments are kept as a running mean over these passes, in which all earlier passes together
 * have the weight DECAY. DECAY is small on purpose: q and k change quickly early in training, and a single
 * pass determines the moments well (a projection computed from another clip and noise level gave key lists
 * that held as much of the exact attention). The gathered rows may miss rare keys, and moments give a rare
 * key little weight even if most queries attend to it. For this reason scores of the mean query are always
 * exact (projection_solve.h). Moments are stored in host memory in F64. The moments are summed over the
 * samples or tokens of all ranks. All ranks use one projection, computed by rank 0.
 *
 * Computing the projection of a head takes some milliseconds, for which the device should not wait. Only
 * the first projection of a block is waited for. Later ones are computed in the background during the rest
 * of the step, and are used from the next step on. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "base/work_queue.h"
#include "sparse/projection_solve.h"
#include "sparse/selector.h"

#define DECAY 0.5     /* weight of the old running means of the moments when a new pass is added */
enum { ROWS = 4096 }; /* limit of rows (tokens) of q or k per head from which one pass gathers moments */

/* Buffers in which moments of queries, or of keys, are summed. */
typedef struct Sums {
    float *second, *first;           /* (N, D, D), (N, D) device memory */
    float *host_second, *host_first; /* copies of second and first in host memory */
} Sums;

typedef struct Projection {
    DsviSelector base;
    int64_t dim, rank; /* D, R */
    Sums query, key;
    float *query_matrix, *key_matrix; /* (blocks, N, D, R) device memory */
    float *host_query, *host_key;     /* (blocks, N, D, R) results of the solvers, before the upload */
    DsvStatus *status;                /* (blocks, N) status that solve_head stored for each head */
    int solver_count;
    DsviWorkQueue *solvers;   /* background threads, from setup on; item `block * N + h` is head h */
    unsigned char *workspace; /* dsvi_projection_workspace bytes for each solver */
    bool *pending;            /* (blocks) true while solvers compute the block's projection */

    /* Running means over the passes that gathered moments: means of q q^T, q, k k^T and k. In host memory;
     * checkpoints contain them. */
    double *query_second;   /* (blocks, N, D, D) */
    double *query_mean;     /* (blocks, N, D); zeros after loading a file of version 0.1 */
    double *key_second;     /* (blocks, N, D, D) */
    double *key_mean;       /* (blocks, N, D) */
    int64_t *gathered;      /* (blocks) passes in the running means */
    bool *usable;           /* (blocks) a projection of the block is on the device */
    int64_t *gathered_step; /* (blocks) step of the last pass in the running means */
} Projection;

static void selector_projection_release(DsviSelector *s)
{
    Projection *p = (Projection *)s;
    dsvi_work_queue_free(&p->solvers);
    void *const memory[] = {
        p->query.host_second, p->query.host_first, p->key.host_second, p->key.host_first,
        p->host_query,        p->host_key,         p->status,          p->workspace,
        p->pending,           p->query_second,     p->query_mean,      p->key_second,
        p->key_mean,          p->gathered,         p->usable,          p->gathered_step,
    };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    free(p);
}

static bool selector_projection_allocate(Projection *p, const DsviSparseShape *shape)
{
    size_t blocks = (size_t)shape->blocks, heads = (size_t)shape->heads, dim = (size_t)p->dim;
    size_t rank = (size_t)p->rank;
    p->query.host_second = calloc(heads * dim * dim, sizeof(float));
    p->query.host_first = calloc(heads * dim, sizeof(float));
    p->key.host_second = calloc(heads * dim * dim, sizeof(float));
    p->key.host_first = calloc(heads * dim, sizeof(float));
    p->host_query = calloc(blocks * heads * dim * rank, sizeof(float));
    p->host_key = calloc(blocks * heads * dim * rank, sizeof(float));
    p->status = calloc(blocks * heads, sizeof *p->status);
    p->workspace = calloc((size_t)p->solver_count, dsvi_projection_workspace(p->dim));
    p->pending = calloc(blocks, sizeof(bool));
    p->query_second = calloc(blocks * heads * dim * dim, sizeof(double));
    p->query_mean = calloc(blocks * heads * dim, sizeof(double));
    p->key_second = calloc(blocks * heads * dim * dim, sizeof(double));
    p->key_mean = calloc(blocks * heads * dim, sizeof(double));
    p->gathered = calloc(blocks, sizeof(int64_t));
    p->usable = calloc(blocks, sizeof(bool));
    p->gathered_step = calloc(blocks, sizeof(int64_t));
    return p->query.host_second && p->query.host_first && p->key.host_second && p->key.host_first &&
           p->host_query && p->host_key && p->status && p->workspace && p->pending && p->query_second &&
           p->query_mean && p->key_second && p->key_mean && p->gathered && p->usable && p->gathered_step;
}

/* Computes the projection of one head in a background thread (dsvi_work_queue_fn). */
static void solve_head(void *context, int64_t item, int worker)
{
    Projection *p = context;
    int64_t dim = p->dim, matrix = dim * p->rank;
    const DsviProjectionMoments moments = {
        p->query_second + item * dim * dim,
        p->query_mean + item * dim,
        p->key_second + item * dim * dim,
        p->key_mean + item * dim,
    };
    p->status[item] = dsvi_projection_solve(dim, p->rank, &moments, p->host_query + item * matrix,
                                            p->host_key + item * matrix,
                                            p->workspace + (size_t)worker * dsvi_projection_workspace(dim));
}

static DsvStatus selector_projection_create(const DsvConfig *settings, const DsviSparseShape *shape,
                                            DsviSelector **out)
{
    if (settings->sparse_rank > shape->head_dim)
        return DSVI_FAIL(DSV_E_USAGE, "sparse.rank is %lld, above the head size of %lld",
                         (long long)settings->sparse_rank, (long long)shape->head_dim);
    Projection *p = calloc(1, sizeof *p);
    if (!p)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the projection selector");
    p->dim = shape->head_dim;
    p->rank = settings->sparse_rank;
    p->base.features.chunk = settings->sparse_chunk;
    p->base.features.candidate_keys = settings->sparse_key_chunk;
    p->base.features.features = p->rank;
    p->base.features.coarse = true;
    p->solver_count = shape->heads < dsvi_threads_count() ? (int)shape->heads : dsvi_threads_count();
    if (!selector_projection_allocate(p, shape)) {
        selector_projection_release(&p->base);
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "no memory for the moments of %lld blocks x %lld heads of size "
                         "%lld",
                         (long long)shape->blocks, (long long)shape->heads, (long long)shape->head_dim);
    }
    *out = &p->base;
    return DSV_OK;
}

/* Starts the solver threads. They are not started in `create`, because sparse layers are also created only
 * to plan memory. */
static DsvStatus selector_projection_setup(DsviSelector *s)
{
    Projection *p = (Projection *)s;
    return dsvi_work_queue_create(p->solver_count, s->shape.blocks * s->shape.heads, solve_head, p,
                                  &p->solvers);
}

static size_t matrix_bytes(const Projection *p)
{
    return (size_t)(p->base.shape.heads * p->dim * p->rank) * sizeof(float);
}

static size_t second_bytes(const Projection *p)
{
    return (size_t)(p->base.shape.heads * p->dim * p->dim) * sizeof(float);
}

static size_t first_bytes(const Projection *p)
{
    return (size_t)(p->base.shape.heads * p->dim) * sizeof(float);
}

static void selector_projection_carve(DsviSelector *s, DsviArena *arena)
{
    Projection *p = (Projection *)s;
    size_t blocks = (size_t)s->shape.blocks;
    p->query_matrix = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * matrix_bytes(p));
    p->key_matrix = dsvi_arena_take(arena, DSVI_MEM_SPARSE, blocks * matrix_bytes(p));
    Sums *const sums[2] = {&p->query, &p->key};
    for (int i = 0; i < 2; i++) {
        sums[i]->second = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, second_bytes(p));
        sums[i]->first = dsvi_arena_take(arena, DSVI_MEM_SCRATCH, first_bytes(p));
    }
}

/* Sums the moments of every stride-th row of x (queries or keys of this rank's tokens) from row `offset`
 * on, and begins to download the sums: host_second and host_first are valid after a sync. */
static DsvStatus selector_projection_gather(const Projection *p, DsviHeads x, int64_t stride, int64_t offset,
                                            const Sums *sums)
{
    const DsviSparseShape *shape = &p->base.shape;
    DsviDevice *device = p->base.backend->device;
    DsviSelectCovarianceArgs args = {
        .batch = shape->batch,
        .heads = shape->heads,
        .tokens = p->base.tokens,
        .head_dim = p->dim,
        .offset = offset,
        .stride = stride,
        .act = shape->act,
        .x = x,
        .second = sums->second,
        .first = sums->first,
    };
    DSVI_TRY(device->clear(device->stream, sums->second, second_bytes(p)));
    DSVI_TRY(device->clear(device->stream, sums->first, first_bytes(p)));
    DSVI_TRY(p->base.backend->ops.select_covariance.run(device->stream, &args));
    DSVI_TRY(device->download(device->stream, sums->host_second, sums->second, second_bytes(p)));
    return device->download(device->stream, sums->host_first, sums->first, first_bytes(p));
}

/* Sums the gathered moments of q or k over all ranks. */
static DsvStatus selector_projection_add_ranks(const Projection *p, const Sums *sums)
{
    int64_t vector = p->base.shape.heads * p->dim;
    DSVI_TRY(dsvi_comm_all_reduce(p->base.comm, DSVI_F32, sums->host_second, vector * p->dim));
    return dsvi_comm_all_reduce(p->base.comm, DSVI_F32, sums->host_first, vector);
}

/* Updates n running means with sums over `rows` rows: running = (1 - weight) running + weight sum / rows. */
static void fold(double *running, const float *sum, int64_t n, double weight, double rows)
{
    double factor = weight / rows;
    for (int64_t i = 0; i < n; i++)
        running[i] = (1 - weight) * running[i] + factor * (double)sum[i];
}

/* Arguments of fold_heads. */
typedef struct Fold {
    Projection *p;
    int64_t block;
    double weight, rows;
} Fold;

/* Updates the running means of the moments of heads begin to end - 1; called by dsvi_parallel_for. */
static void fold_heads(void *context, int64_t begin, int64_t end, int worker)
{
    const Fold *f = context;
    Projection *p = f->p;
    int64_t first = f->block * p->base.shape.heads + begin, count = end - begin, square = p->dim * p->dim;
    (void)worker;
    fold(p->query_second + first * square, p->query.host_second + begin * square, count * square, f->weight,
         f->rows);
    fold(p->query_mean + first * p->dim, p->query.host_first + begin * p->dim, count * p->dim, f->weight,
         f->rows);
    fold(p->key_second + first * square, p->key.host_second + begin * square, count * square, f->weight,
         f->rows);
    fold(p->key_mean + first * p->dim, p->key.host_first + begin * p->dim, count * p->dim, f->weight,
         f->rows);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Returns the distance in tokens between the rows from which moments are gathered, for a batch of `batch`
 * clips: the smallest distance that gathers at most ROWS rows and has no common divisor with the number of
 * tokens, hence none with a side of the token grid. Gathered tokens then come equally from all frames,
 * rows and columns, whatever the token order. */
static int64_t stride_of(int64_t tokens, int64_t batch)
{
    int64_t stride = (batch * tokens + ROWS - 1) / ROWS;
    if (stride >= tokens)
        return tokens;
    while (common_divisor(tokens, stride) != 1)
        stride++;
    return stride;
}

/* Adds the means and second moments of q and k, taken at every stride-th token of this pass, to the running
 * means of the block. The first token moves on by one from update to update, so `stride` updates together
 * cover all tokens. */
static DsvStatus update_moments(Projection *p, int64_t block, const DsviAttentionCall *args)
{
    const DsviSparseShape *shape = &p->base.shape;
    DsviDevice *device = p->base.backend->device;
    int64_t batch = shape->batch * dsvi_comm_size(p->base.comm) / p->base.cp_ranks;
    int64_t stride = stride_of(shape->tokens, batch);
    int64_t offset = p->gathered[block] % stride, before = p->base.first - offset;
    int64_t own_offset = before <= 0 ? -before : (stride - before % stride) % stride;
    double rows = (double)(batch * ((shape->tokens - offset + stride - 1) / stride));
    DsviHeads q = dsvi_call_q(args, p->base.tokens, shape->heads, p->dim);
    DsviHeads k = dsvi_call_k(args, p->base.tokens, shape->heads, p->dim);
    if (p->base.cp_ranks == 1) { /* ranks may have clips of different sizes: each counts its own rows */
        rows = (double)(shape->batch * ((shape->tokens - offset + stride - 1) / stride));
        DSVI_TRY(dsvi_comm_all_reduce(p->base.comm, DSVI_F64, &rows, 1));
    }
    DSVI_TRY(selector_projection_gather(p, q, stride, own_offset, &p->query));
    DSVI_TRY(selector_projection_gather(p, k, stride, own_offset, &p->key));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(selector_projection_add_ranks(p, &p->query));
    DSVI_TRY(selector_projection_add_ranks(p, &p->key));

    Fold gathered = {p, block, p->gathered[block] == 0 ? 1 : 1 - DECAY, rows};
    dsvi_parallel_for(shape->heads, 1, fold_heads, &gathered);
    return DSV_OK;
}

/* Returns whether this rank computes projections: rank 0 computes those of all ranks. If eigenvalues are
 * equal, LAPACK on another machine may find other eigenvectors, and queries of one rank would not match
 * keys of another. */
static bool solves_projections(const Projection *p)
{
    return dsvi_comm_rank(p->base.comm) == 0;
}

/* Fails on all ranks if rank 0 could not compute the projection of one of the block's heads. */
static DsvStatus check_solved(Projection *p, int64_t block)
{
    int64_t heads = p->base.shape.heads, first = block * heads;
    DSVI_TRY(dsvi_comm_broadcast(p->base.comm, 0, p->status + first, (size_t)heads * sizeof *p->status));
    for (int64_t item = first; item < first + heads; item++) {
        if (p->status[item] == DSV_OK)
            continue;
        if (solves_projections(p)) /* the error message is stored in the background thread: solve again in
                                    * this thread, to get the message here */
            solve_head(p, item, 0);
        else
            p->status[item] = DSVI_FAIL(p->status[item], "projection: rank 0 found none");
        return dsvi_fail_prefix(p->status[item], "block %lld, head %lld", (long long)block,
                                (long long)(item - first));
    }
    return DSV_OK;
}

/* Broadcasts one of a block's two projection matrices from rank 0, and uploads it to the device. */
static DsvStatus broadcast_matrix(const Projection *p, float *host, float *matrix)
{
    DsviDevice *device = p->base.backend->device;
    DSVI_TRY(dsvi_comm_broadcast(p->base.comm, 0, host, matrix_bytes(p)));
    return device->upload(device->stream, matrix, host, matrix_bytes(p));
}

/* Broadcasts and uploads the block's projection, which rank 0 has computed. */
static DsvStatus broadcast_projection(Projection *p, int64_t block)
{
    int64_t at = block * p->base.shape.heads * p->dim * p->rank;
    DSVI_TRY(check_solved(p, block));
    DSVI_TRY(broadcast_matrix(p, p->host_query + at, p->query_matrix + at));
    return broadcast_matrix(p, p->host_key + at, p->key_matrix + at);
}

/* Waits for all projections that background threads are computing, and makes them usable. */
static DsvStatus selector_projection_finish(Projection *p)
{
    dsvi_work_queue_wait(p->solvers);
    for (int64_t block = 0; block < p->base.shape.blocks; block++) {
        if (!p->pending[block])
            continue;
        p->pending[block] = false;
        DSVI_TRY(broadcast_projection(p, block));
        p->usable[block] = true;
    }
    return DSV_OK;
}

/* If the block's projection is due for an update, gathers moments of q and k and starts to compute the
 * projection. Outside training a block without a projection gets one, but the moments gathered for it do
 * not count: the next training pass replaces them. */
static DsvStatus refresh_if_due(Projection *p, int64_t block, const DsviAttentionCall *args)
{
    bool new_step = p->gathered_step[block] != p->base.step;
    bool due = p->base.train && (p->gathered[block] == 0 ||
                                 (new_step && p->base.step % p->base.settings->sparse_refresh_every == 0));
    if (!due && p->usable[block])
        return DSV_OK;
    if (p->pending[block]) /* a projection is still pending from a step that failed before its end */
        DSVI_TRY(selector_projection_finish(p));
    DSVI_TRY(update_moments(p, block, args));
    p->pending[block] = true;
    if (solves_projections(p))
        dsvi_work_queue_add(p->solvers, block * p->base.shape.heads, p->base.shape.heads);
    if (p->base.train) {
        p->gathered[block]++;
        p->gathered_step[block] = p->base.step;
    }
    return p->usable[block] ? DSV_OK : selector_projection_finish(p);
}

static DsvStatus selector_projection_step_end(DsviSelector *s, const int32_t *sparse, double *loss)
{
    (void)sparse;
    (void)loss;
    return selector_projection_finish((Projection *)s);
}

static DsvStatus selector_projection_observe(DsviSelector *s, int64_t block, const DsviAttentionCall *args,
                                             bool estimate)
{
    Projection *p = (Projection *)s;
    const DsviSparseShape *shape = &s->shape;
    int64_t matrix = shape->heads * p->dim * p->rank;
    DsviFeatures *f = &s->features;
    if (!estimate && !s->train)
        return DSV_OK;
    DSVI_TRY(refresh_if_due(p, block, args));
    if (!estimate)
        return DSV_OK;
    f->scale = args->scale;
    DSVI_TRY(dsvi_selector_features(s, shape->act, dsvi_call_q(args, s->tokens, shape->heads, p->dim), p->dim,
                                    f->chunk, p->query_matrix + block * matrix, f->proxies));
    return dsvi_selector_features(s, shape->act, dsvi_call_k(args, s->tokens, shape->heads, p->dim), p->dim,
                                  f->candidate_keys, p->key_matrix + block * matrix, f->candidates);
}

static void selector_projection_state(DsviSelector *s, DsviStateList *list)
{
    Projection *p = (Projection *)s;
    int64_t blocks = s->shape.blocks, heads = s->shape.heads, dim = p->dim, rank = p->rank;
    if (p->solvers) /* after a failed step the solver threads may still read the moments that are overwritten
                     * next */
        dsvi_work_queue_wait(p->solvers);
    const DsviStateItem items[] = {
        {"projection.query_second", DSVI_F64, 4, {blocks, heads, dim, dim}, false, p->query_second},
        {"projection.key_second", DSVI_F64, 4, {blocks, heads, dim, dim}, false, p->key_second},
        {"projection.key_mean", DSVI_F64, 3, {blocks, heads, dim}, false, p->key_mean},
        {"projection.gathered", DSVI_I64, 1, {blocks}, false, p->gathered},
        {"projection.query", DSVI_F32, 4, {blocks, heads, dim, rank}, true, p->query_matrix},
        {"projection.key", DSVI_F32, 4, {blocks, heads, dim, rank}, true, p->key_matrix},
    };
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        dsvi_state_add(list, items[i]);
    dsvi_state_add_new(
        list,
        (DsviStateItem){"projection.query_mean", DSVI_F64, 3, {blocks, heads, dim}, false, p->query_mean});
}

static DsvStatus selector_projection_restored(DsviSelector *s)
{
    Projection *p = (Projection *)s;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        p->usable[block] = p->gathered[block] > 0;
        p->pending[block] = false;
        p->gathered_step[block] = 0;
    }
    return DSV_OK;
}

/* Moments need not be cleared: the first pass that is gathered replaces them. */
static void selector_projection_forget(DsviSelector *s)
{
    Projection *p = (Projection *)s;
    if (p->solvers)
        dsvi_work_queue_wait(p->solvers);
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        p->usable[block] = p->pending[block] = false;
        p->gathered[block] = p->gathered_step[block] = 0;
    }
}

const DsviSelectorType dsvi_selector_projection = {
    .name = "projection",
    .shared = true,
    .create = selector_projection_create,
    .free = selector_projection_release,
    .carve = selector_projection_carve,
    .setup = selector_projection_setup,
    .observe = selector_projection_observe,
    .step_end = selector_projection_step_end,
    .state = selector_projection_state,
    .restored = selector_projection_restored,
    .forget = selector_projection_forget,
};
