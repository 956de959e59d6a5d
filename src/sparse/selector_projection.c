/* Selection from the real queries and keys (after norm and RoPE), projected per head to `rank` dimensions in
 * the way that keeps scores best (projection_solve.h). A proxy is the mean of `chunk` projected queries,
 * every key is a candidate. Nothing is learnt by descent, and it works from the first step on.
 *
 * The projection follows from moments of q and k. They are gathered from the first pass of a block and then
 * from one pass every refresh_every steps, each time from at most about ROWS rows a head, and kept as running
 * means: the newest sample counts DECAY less than one. Half is a short memory on purpose: early in training q
 * and k drift quickly, while a single sample already determines the moments well (a projection borrowed
 * from another clip and noise level captured as much). Moments live on the host in F64. Several ranks sum
 * what each has gathered from its samples, or its tokens of them, and so have the same projection. */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
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
    float *host_query, *host_key;    /* (N, D, R) of one block, on their way to the device */
    DsvStatus *status;               /* (N) of solving one block's heads */
    unsigned char *workspace;        /* of solving, one per head */

    /* Running means, host memory; saved. */
    double *query_second;            /* (blocks, N, D, D) */
    double *key_second;              /* (blocks, N, D, D) */
    double *key_mean;                /* (blocks, N, D) */
    int64_t *gathered;               /* (blocks) samples in them */
    bool *usable;                    /* (blocks) there is a projection */
    int64_t *gathered_step;          /* (blocks) of the last sample */
} Projection;

static void release(DsvSelector *s)
{
    Projection *p = (Projection *)s;
    void *const memory[] = {
        p->query.host_second, p->query.host_first, p->key.host_second, p->key.host_first, p->host_query,
        p->host_key, p->status, p->workspace, p->query_second, p->key_second, p->key_mean, p->gathered,
        p->usable, p->gathered_step,
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
    p->host_query = calloc(heads * dim * rank, sizeof(float));
    p->host_key = calloc(heads * dim * rank, sizeof(float));
    p->status = calloc(heads, sizeof *p->status);
    p->workspace = calloc(heads, dsvi_projection_workspace(p->dim));
    p->query_second = calloc(blocks * heads * dim * dim, sizeof(double));
    p->key_second = calloc(blocks * heads * dim * dim, sizeof(double));
    p->key_mean = calloc(blocks * heads * dim, sizeof(double));
    p->gathered = calloc(blocks, sizeof(int64_t));
    p->usable = calloc(blocks, sizeof(bool));
    p->gathered_step = calloc(blocks, sizeof(int64_t));
    return p->query.host_second && p->query.host_first && p->key.host_second && p->key.host_first &&
           p->host_query && p->host_key && p->status && p->workspace && p->query_second && p->key_second &&
           p->key_mean && p->gathered && p->usable && p->gathered_step;
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
    if (!allocate(p, shape)) {
        release(&p->base);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the moments of %lld blocks x %lld heads of size "
                         "%lld", (long long)shape->blocks, (long long)shape->heads,
                         (long long)shape->head_dim);
    }
    *out = &p->base;
    return DSV_OK;
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
    for (int64_t i = 0; i < n; i++)
        running[i] = (1 - weight) * running[i] + weight * (double)sum[i] / rows;
}

/* The running means of `block` with the moments of this pass in them. */
static DsvStatus update_moments(Projection *p, int64_t block, const DsvSparseAttention *args)
{
    const DsvSparseShape *shape = &p->base.shape;
    DsvDevice *device = p->base.backend->device;
    int64_t batch = shape->batch * dsvi_comm_size(p->base.comm) / p->base.context_ranks;
    int64_t all = batch * shape->tokens, stride = all > ROWS ? all / ROWS : 1;
    if (stride > shape->tokens)
        stride = shape->tokens;
    int64_t offset = p->base.step % stride, before = p->base.first - offset;
    int64_t own_offset = before <= 0 ? -before : (stride - before % stride) % stride;
    double rows = (double)(batch * ((shape->tokens - offset + stride - 1) / stride));
    DSVI_TRY(gather(p, args->q, stride, own_offset, &p->query));
    DSVI_TRY(gather(p, args->k, stride, own_offset, &p->key));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(add_ranks(p, &p->query));
    DSVI_TRY(add_ranks(p, &p->key));

    int64_t vector = shape->heads * p->dim, matrix = vector * p->dim;
    double weight = p->gathered[block] == 0 ? 1 : 1 - DECAY;
    fold(p->query_second + block * matrix, p->query.host_second, matrix, weight, rows);
    fold(p->key_second + block * matrix, p->key.host_second, matrix, weight, rows);
    fold(p->key_mean + block * vector, p->key.host_first, vector, weight, rows);
    return DSV_OK;
}

typedef struct Solve {
    Projection *p;
    int64_t block;
} Solve;

static DsvStatus solve_head(const Solve *solve, int64_t h)
{
    Projection *p = solve->p;
    int64_t head = solve->block * p->base.shape.heads + h, dim = p->dim;
    return dsvi_projection_solve(dim, p->rank, p->query_second + head * dim * dim,
                                 p->key_second + head * dim * dim, p->key_mean + head * dim,
                                 p->host_query + h * dim * p->rank, p->host_key + h * dim * p->rank,
                                 p->workspace + (size_t)h * dsvi_projection_workspace(dim));
}

static void solve_heads(void *context, int64_t begin, int64_t end, int worker)
{
    const Solve *solve = context;
    (void)worker;
    for (int64_t h = begin; h < end; h++)
        solve->p->status[h] = solve_head(solve, h);
}

/* The projection of `block` from its moments, to the device. */
static DsvStatus update_matrices(Projection *p, int64_t block)
{
    DsvDevice *device = p->base.backend->device;
    Solve solve = {p, block};
    size_t bytes = matrix_bytes(p);
    dsvi_parallel_for(p->base.shape.heads, 1, solve_heads, &solve);
    for (int64_t h = 0; h < p->base.shape.heads; h++) {
        if (p->status[h] == DSV_OK)
            continue;
        /* Another thread may have the sentence: what failed there fails here as well. */
        DsvStatus status = solve_head(&solve, h);
        return dsvi_fail_within(status, "block %lld, head %lld", (long long)block, (long long)h);
    }
    DSVI_TRY(device->upload(device->stream, (unsigned char *)p->query_matrix + (size_t)block * bytes,
                            p->host_query, bytes));
    DSVI_TRY(device->upload(device->stream, (unsigned char *)p->key_matrix + (size_t)block * bytes,
                            p->host_key, bytes));
    return device->sync(device->stream);
}

/* Without training the moments do not count: the next pass of training replaces them. */
static DsvStatus refresh_if_due(Projection *p, int64_t block, const DsvSparseAttention *args)
{
    bool new_step = p->gathered_step[block] != p->base.step;
    bool due = p->base.train && (p->gathered[block] == 0 ||
                                 (new_step && p->base.step % p->base.settings->sparse_refresh_every == 0));
    if (!due && p->usable[block])
        return DSV_OK;
    DSVI_TRY(update_moments(p, block, args));
    DSVI_TRY(update_matrices(p, block));
    p->usable[block] = true;
    if (p->base.train) {
        p->gathered[block]++;
        p->gathered_step[block] = p->base.step;
    }
    return DSV_OK;
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
}

static DsvStatus restored(DsvSelector *s)
{
    Projection *p = (Projection *)s;
    for (int64_t block = 0; block < s->shape.blocks; block++) {
        p->usable[block] = p->gathered[block] > 0;
        p->gathered_step[block] = 0;
    }
    return DSV_OK;
}

const DsvSelectorType dsvi_selector_projection = {
    .name = "projection", .create = create, .free = release, .carve = carve, .look = look, .state = state,
    .restored = restored,
};
