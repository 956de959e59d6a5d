/* Selection from the real queries and keys (after norm and RoPE), projected per head to `rank` dimensions in
 * the way that keeps scores best (projection_solve.h). A proxy is the mean of `chunk` projected queries,
 * every key is a candidate. Nothing is learnt by descent, and it works from the first step on.
 *
 * The projection follows from moments of q and k. They are gathered from the first pass of a block and then
 * from one pass every refresh_every steps, each time from about ROWS rows a head, and kept as running means,
 * in which all that was gathered before a sample has the weight DECAY. Half is a short memory on purpose:
 * early in training q and k drift quickly, while a single sample already determines the moments well (a
 * projection borrowed from another clip and noise level captured as much). A sample misses rare keys, and
 * moments give a rare key little weight even if most queries attend to it. So the mean query's scores are
 * always exact (projection_solve.h). Moments are stored on the host in F64. Several ranks sum what each rank
 * has gathered from its samples, or its tokens of them, and have one projection, which the first rank finds.
 *
 * A head's projection costs some milliseconds: the device shall not wait for them. A block's first serves at
 * once; later ones are made beside the rest of the step and serve from the next step on. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "sparse/beside.h"
#include "sparse/projection_solve.h"
#include "sparse/selector.h"

#define DECAY 0.5 /* weight of what was gathered before */
enum { ROWS = 4096 };

/* Where the moments of one kind of rows (queries or keys) are summed: device memory, then host. */
typedef struct Sums {
    float *second, *first;           /* (N, D, D), (N, D) device memory */
    float *host_second, *host_first; /* the same, host memory */
} Sums;

typedef struct Projection {
    DsvSelector base;
    int64_t dim, rank;               /* D, R */
    Sums query, key;
    float *query_matrix, *key_matrix; /* (blocks, N, D, R) device memory */
    float *host_query, *host_key;    /* (blocks, N, D, R) on their way to the device */
    DsvStatus *status;               /* (blocks, N) of solving */
    int solver_count;
    DsvBeside *solvers;              /* from setup on; item block N + h: head h of a block */
    unsigned char *workspace;        /* of solving, one for each of them */
    bool *pending;                   /* (blocks) being solved */

    /* Running means, host memory; saved. */
    double *query_second;            /* (blocks, N, D, D) */
    double *query_mean;              /* (blocks, N, D); zeros in a state of version 0.1 */
    double *key_second;              /* (blocks, N, D, D) */
    double *key_mean;                /* (blocks, N, D) */
    int64_t *gathered;               /* (blocks) samples in them */
    bool *usable;                    /* (blocks) there is a projection */
    int64_t *gathered_step;          /* (blocks) of the last sample */
} Projection;

static void release(DsvSelector *s)
{
    Projection *p = (Projection *)s;
    dsvi_beside_free(&p->solvers);
    void *const memory[] = {
        p->query.host_second, p->query.host_first, p->key.host_second, p->key.host_first, p->host_query,
        p->host_key, p->status, p->workspace, p->pending, p->query_second, p->query_mean, p->key_second,
        p->key_mean, p->gathered, p->usable, p->gathered_step,
    };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    free(p);
}

static bool allocate(Projection *p, const DsvSparseShape *shape)
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

/* dsvi_beside_fn */
static void solve_head(void *context, int64_t item, int worker)
{
    Projection *p = context;
    int64_t dim = p->dim, matrix = dim * p->rank;
    const DsvProjectionMoments moments = {
        p->query_second + item * dim * dim, p->query_mean + item * dim, p->key_second + item * dim * dim,
        p->key_mean + item * dim,
    };
    p->status[item] = dsvi_projection_solve(dim, p->rank, &moments, p->host_query + item * matrix,
                                            p->host_key + item * matrix,
                                            p->workspace + (size_t)worker * dsvi_projection_workspace(dim));
}

static DsvStatus create(const DsvConfig *settings, const DsvSparseShape *shape, DsvSelector **out)
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
    p->base.features.candidate_keys = 1;
    p->base.features.features = p->rank;
    p->base.features.coarse = true;
    p->solver_count = shape->heads < dsvi_threads_count() ? (int)shape->heads : dsvi_threads_count();
    if (!allocate(p, shape)) {
        release(&p->base);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the moments of %lld blocks x %lld heads of size "
                         "%lld", (long long)shape->blocks, (long long)shape->heads,
                         (long long)shape->head_dim);
    }
    *out = &p->base;
    return DSV_OK;
}

/* Threads are for selectors that will run, not for those that a memory plan is made with. */
static DsvStatus setup(DsvSelector *s)
{
    Projection *p = (Projection *)s;
    return dsvi_beside_create(p->solver_count, s->shape.blocks * s->shape.heads, solve_head, p, &p->solvers);
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

static void carve(DsvSelector *s, DsvArena *arena)
{
    Projection *p = (Projection *)s;
    size_t blocks = (size_t)s->shape.blocks;
    p->query_matrix = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * matrix_bytes(p));
    p->key_matrix = dsvi_arena_take(arena, DSV_MEM_SPARSE, blocks * matrix_bytes(p));
    Sums *const sums[2] = {&p->query, &p->key};
    for (int i = 0; i < 2; i++) {
        sums[i]->second = dsvi_arena_take(arena, DSV_MEM_SCRATCH, second_bytes(p));
        sums[i]->first = dsvi_arena_take(arena, DSV_MEM_SCRATCH, first_bytes(p));
    }
}

/* Sums the moments of every stride-th own row of x, and brings them to the host (after a sync). */
static DsvStatus gather(const Projection *p, const void *x, int64_t stride, int64_t offset, const Sums *sums)
{
    const DsvSparseShape *shape = &p->base.shape;
    DsvDevice *device = p->base.backend->device;
    DsvSelectCovarianceArgs args = {
        .batch = shape->batch, .heads = shape->heads, .tokens = p->base.tokens, .head_dim = p->dim,
        .offset = offset, .stride = stride, .act = shape->act,
        .x = dsvi_heads(x, p->base.tokens, shape->heads, p->dim), .second = sums->second,
        .first = sums->first,
    };
    DSVI_TRY(device->zero(device->stream, sums->second, second_bytes(p)));
    DSVI_TRY(device->zero(device->stream, sums->first, first_bytes(p)));
    DSVI_TRY(p->base.backend->ops.select_covariance.run(device->stream, &args));
    DSVI_TRY(device->download(device->stream, sums->host_second, sums->second, second_bytes(p)));
    return device->download(device->stream, sums->host_first, sums->first, first_bytes(p));
}

/* The sums of all ranks. */
static DsvStatus add_ranks(const Projection *p, const Sums *sums)
{
    int64_t vector = p->base.shape.heads * p->dim;
    DSVI_TRY(dsvi_comm_all_reduce(p->base.comm, DSV_F32, sums->host_second, vector * p->dim));
    return dsvi_comm_all_reduce(p->base.comm, DSV_F32, sums->host_first, vector);
}

/* running = (1 - weight) running + weight sum / rows */
static void fold(double *running, const float *sum, int64_t n, double weight, double rows)
{
    double share = weight / rows;
    for (int64_t i = 0; i < n; i++)
        running[i] = (1 - weight) * running[i] + share * (double)sum[i];
}

typedef struct Fold {
    Projection *p;
    int64_t block;
    double weight, rows;
} Fold;

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

/* The distance between gathered tokens of `batch` samples, for at most ROWS rows: the least such distance
 * that has no divisor in common with the number of tokens, and so none with a side of their grid. In any
 * order of the tokens, gathered tokens then come from all frames, rows and columns alike. */
static int64_t stride_of(int64_t tokens, int64_t batch)
{
    int64_t stride = (batch * tokens + ROWS - 1) / ROWS;
    if (stride >= tokens)
        return tokens;
    while (common_divisor(tokens, stride) != 1)
        stride++;
    return stride;
}

/* The running means of `block` with the moments of this pass in them. Each sample begins one token after the
 * sample before, so that the samples of as many refreshes as the stride are of all tokens. */
static DsvStatus update_moments(Projection *p, int64_t block, const DsvSparseAttention *args)
{
    const DsvSparseShape *shape = &p->base.shape;
    DsvDevice *device = p->base.backend->device;
    int64_t batch = shape->batch * dsvi_comm_size(p->base.comm) / p->base.context_ranks;
    int64_t stride = stride_of(shape->tokens, batch);
    int64_t offset = p->gathered[block] % stride, before = p->base.first - offset;
    int64_t own_offset = before <= 0 ? -before : (stride - before % stride) % stride;
    double rows = (double)(batch * ((shape->tokens - offset + stride - 1) / stride));
    DSVI_TRY(gather(p, args->q, stride, own_offset, &p->query));
    DSVI_TRY(gather(p, args->k, stride, own_offset, &p->key));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(add_ranks(p, &p->query));
    DSVI_TRY(add_ranks(p, &p->key));

    Fold gathered = {p, block, p->gathered[block] == 0 ? 1 : 1 - DECAY, rows};
    dsvi_parallel_for(shape->heads, 1, fold_heads, &gathered);
    return DSV_OK;
}

/* One rank for all: where directions count alike another machine's LAPACK may find others, and one rank's
 * queries meet another's keys. */
static bool solves(const Projection *p)
{
    return dsvi_comm_rank(p->base.comm) == 0;
}

/* Fails on all ranks alike. */
static DsvStatus check_solved(Projection *p, int64_t block)
{
    int64_t heads = p->base.shape.heads, first = block * heads;
    DSVI_TRY(dsvi_comm_broadcast(p->base.comm, 0, p->status + first, (size_t)heads * sizeof *p->status));
    for (int64_t item = first; item < first + heads; item++) {
        if (p->status[item] == DSV_OK)
            continue;
        if (solves(p)) /* another thread has the sentence: what failed there fails here as well */
            solve_head(p, item, 0);
        else
            p->status[item] = DSVI_FAIL(p->status[item], "projection: rank 0 found none");
        return dsvi_fail_within(p->status[item], "block %lld, head %lld", (long long)block,
                                (long long)(item - first));
    }
    return DSV_OK;
}

/* One of a block's two matrices from the rank that has solved for it, to the device. */
static DsvStatus spread_matrix(const Projection *p, float *host, float *matrix)
{
    DsvDevice *device = p->base.backend->device;
    DSVI_TRY(dsvi_comm_broadcast(p->base.comm, 0, host, matrix_bytes(p)));
    return device->upload(device->stream, matrix, host, matrix_bytes(p));
}

/* The projection of `block`, solved by now. */
static DsvStatus spread_matrices(Projection *p, int64_t block)
{
    int64_t at = block * p->base.shape.heads * p->dim * p->rank;
    DSVI_TRY(check_solved(p, block));
    DSVI_TRY(spread_matrix(p, p->host_query + at, p->query_matrix + at));
    return spread_matrix(p, p->host_key + at, p->key_matrix + at);
}

/* Waits for what is being solved. */
static DsvStatus finish(Projection *p)
{
    dsvi_beside_wait(p->solvers);
    for (int64_t block = 0; block < p->base.shape.blocks; block++) {
        if (!p->pending[block])
            continue;
        p->pending[block] = false;
        DSVI_TRY(spread_matrices(p, block));
        p->usable[block] = true;
    }
    return DSV_OK;
}

/* Without training the moments do not count: the next pass of training replaces them. */
static DsvStatus refresh_if_due(Projection *p, int64_t block, const DsvSparseAttention *args)
{
    bool new_step = p->gathered_step[block] != p->base.step;
    bool due = p->base.train && (p->gathered[block] == 0 ||
                                 (new_step && p->base.step % p->base.settings->sparse_refresh_every == 0));
    if (!due && p->usable[block])
        return DSV_OK;
    if (p->pending[block]) /* of a step that came to no end */
        DSVI_TRY(finish(p));
    DSVI_TRY(update_moments(p, block, args));
    p->pending[block] = true;
    if (solves(p))
        dsvi_beside_add(p->solvers, block * p->base.shape.heads, p->base.shape.heads);
    if (p->base.train) {
        p->gathered[block]++;
        p->gathered_step[block] = p->base.step;
    }
    return p->usable[block] ? DSV_OK : finish(p);
}

static DsvStatus step_end(DsvSelector *s, const int32_t *sparse, double *loss)
{
    (void)sparse;
    (void)loss;
    return finish((Projection *)s);
}

static DsvStatus look(DsvSelector *s, int64_t block, const DsvSparseAttention *args, bool estimate)
{
    Projection *p = (Projection *)s;
    const DsvSparseShape *shape = &s->shape;
    int64_t matrix = shape->heads * p->dim * p->rank;
    DsvFeatures *f = &s->features;
    if (!estimate && !s->train)
        return DSV_OK;
    DSVI_TRY(refresh_if_due(p, block, args));
    if (!estimate)
        return DSV_OK;
    f->scale = args->scale;
    DSVI_TRY(dsvi_selector_features(s, shape->act, dsvi_heads(args->q, s->tokens, shape->heads, p->dim),
                                    p->dim, f->chunk, p->query_matrix + block * matrix, f->proxies));
    return dsvi_selector_features(s, shape->act, dsvi_heads(args->k, s->tokens, shape->heads, p->dim),
                                  p->dim, f->candidate_keys, p->key_matrix + block * matrix, f->candidates);
}

static void state(DsvSelector *s, DsvStateList *list)
{
    Projection *p = (Projection *)s;
    int64_t blocks = s->shape.blocks, heads = s->shape.heads, dim = p->dim, rank = p->rank;
    if (p->solvers) /* a step that came to no end left them reading what may now be overwritten */
        dsvi_beside_wait(p->solvers);
    const DsvStateItem items[] = {
        {"projection.query_second", DSV_F64, 4, {blocks, heads, dim, dim}, false, p->query_second},
        {"projection.key_second", DSV_F64, 4, {blocks, heads, dim, dim}, false, p->key_second},
        {"projection.key_mean", DSV_F64, 3, {blocks, heads, dim}, false, p->key_mean},
        {"projection.gathered", DSV_I64, 1, {blocks}, false, p->gathered},
        {"projection.query", DSV_F32, 4, {blocks, heads, dim, rank}, true, p->query_matrix},
        {"projection.key", DSV_F32, 4, {blocks, heads, dim, rank}, true, p->key_matrix},
    };
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        dsvi_state_add(list, items[i]);
    dsvi_state_add_new(list, (DsvStateItem){"projection.query_mean", DSV_F64, 3, {blocks, heads, dim}, false,
                                            p->query_mean});
}

static DsvStatus restored(DsvSelector *s)
{
    Projection *p = (Projection *)s;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        p->usable[block] = p->gathered[block] > 0;
        p->pending[block] = false;
        p->gathered_step[block] = 0;
    }
    return DSV_OK;
}

const DsvSelectorType dsvi_selector_projection = {
    .name = "projection", .create = create, .free = release, .carve = carve, .setup = setup,
    .look = look, .step_end = step_end, .state = state, .restored = restored,
};
