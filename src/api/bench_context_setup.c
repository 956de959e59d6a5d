/* What dsv_bench_context measures on: settings, layers, memory, tensors. */
#include <math.h>
#include <stdlib.h>

#include "api/backend.h"
#include "api/bench_context_parts.h"
#include "api/ops_timed.h"
#include "device/carve.h"

/* Of the lists of one rank, over the mean: where they are chosen by a threshold. */
#define UNEVEN_MOST 3

static DsvStatus check(const DsvContextBench *b)
{
    DSVI_TRY(dsvi_bench_lists_check(&b->wanted.lists, &b->settings));
    if (dsvi_comm_size(b->comm) < 2)
        return DSVI_FAIL(DSV_E_USAGE, "1 rank, wanted at least 2 that share a clip");
    return DSV_OK;
}

/* The density that memory for lists is planned for: the densest head's, for a rank may have no other. */
static double densest(const DsvContextBench *b)
{
    double most = b->wanted.head_sparsity ? 0 : fmin(1, UNEVEN_MOST * b->wanted.lists.density);
    for (int64_t h = 0; h < b->heads.heads && b->wanted.head_sparsity; h++)
        most = fmax(most, b->density[h]);
    return fmax(most, 0.01);
}

/* Steps of training measure, and renew the projection, now and then: here the first does, and no other. */
#define RARELY "1000000"

static DsvStatus make_settings(DsvContextBench *b)
{
    DsvConfig *s = &b->settings;
    DSVI_TRY(dsvi_bench_lists_set(s, &b->wanted.lists));
    DSVI_TRY(dsvi_bench_set(s, "sparse.rule=%s", b->wanted.head_sparsity ? "topk" : "threshold"));
    DSVI_TRY(dsvi_bench_set(s, "sparse.profile_every=" RARELY));
    DSVI_TRY(dsvi_bench_set(s, "sparse.refresh_every=" RARELY));
    return dsvi_bench_set(s, "sparse.max_density=%.17g", densest(b));
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t multiple = a;
    while (multiple % b)
        multiple += a;
    return multiple;
}

static DsvStatus make_context(DsvContextBench *b)
{
    int64_t ranks = dsvi_comm_size(b->comm), rows = b->heads.tokens * b->heads.heads;
    const DsvContextShape shape = {
        .tokens = b->heads.tokens, .heads = b->heads.heads, .blocks = 1,
        .unit = common_multiple(b->settings.sparse_group, b->settings.sparse_grain),
        .rows_most = (int64_t)(b->settings.cp_room * (double)rows / (double)ranks),
    };
    DSVI_TRY(dsvi_context_group_create(&b->backend, b->comm, 0, &b->group));
    return dsvi_context_create(b->group, &shape, &b->context);
}

static DsvStatus make_sparse(DsvContextBench *b)
{
    const DsvBenchHeads *h = &b->heads;
    b->shape = (DsvSparseShape){
        .blocks = 1, .batch = 1, .tokens = h->tokens, .heads = h->heads, .head_dim = h->head_dim,
        .grid = {h->grid[0], h->grid[1], h->grid[2]}, .act = b->act, .backward = true, .context = b->context,
    };
    return dsvi_sparse_create(&b->backend, &b->settings, &b->shape, NULL, NULL, &b->sparse);
}

static size_t own_bytes(const DsvContextBench *b)
{
    return (size_t)(dsvi_context_tokens(b->context) * b->heads.heads * b->heads.head_dim) *
           dsvi_dtype_size(b->act);
}

static void carve(void *of, DsvArena *arena)
{
    DsvContextBench *b = of;
    DsvSparseAttention *p = &b->pass;
    size_t bytes = own_bytes(b);
    p->scale = 1 / sqrt((double)b->heads.head_dim);
    p->q = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->k = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->v = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->dout = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->out = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->dq = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->dk = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->dv = dsvi_arena_take(arena, DSV_MEM_DATA, bytes);
    p->lse = dsvi_arena_take(arena, DSV_MEM_DATA, dsvi_context_lse_bytes(b->context, 1, DSV_F32));
    dsvi_sparse_carve(b->sparse, arena);
    dsvi_sparse_carve_call(b->sparse, arena);
}

static DsvStatus allocate(DsvContextBench *b)
{
    return dsvi_device_carve(b->backend.device, carve, b, &b->memory);
}

static DsvStatus fill(DsvContextBench *b)
{
    DsvStatus status = DSV_OK;
    DsvDevice *device = b->backend.device;
    const void *const tensor[] = {b->pass.q, b->pass.k, b->pass.v, b->pass.dout};
    size_t bytes = own_bytes(b);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of queries", bytes);
    for (int i = 0; i < 4; i++) {
        dsvi_bench_heads_fill(&b->heads, (DsvBenchTensor)i, (uint64_t)b->settings.seed,
                              dsvi_sparse_order(b->sparse), dsvi_context_first(b->context),
                              dsvi_context_tokens(b->context), b->act, host);
        DSVI_TRY_GOTO(status, device->upload(device->stream, (void *)tensor[i], host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
done:
    free(host);
    return status;
}

DsvStatus dsvi_context_bench_open(DsvComm *comm, const DsvBenchContext *wanted, const DsvConfig *given,
                                  DsvContextBench *b)
{
    *b = (DsvContextBench){.wanted = *wanted, .settings = *given, .comm = comm};
    DSVI_TRY(check(b));
    DSVI_TRY(dsvi_bench_dtype(wanted->lists.dtype, &b->act));
    DSVI_TRY(dsvi_bench_heads_open(&wanted->lists, &b->heads));
    b->density = calloc((size_t)b->heads.heads, sizeof *b->density);
    if (!b->density)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld heads", (long long)b->heads.heads);
    if (wanted->head_sparsity)
        DSVI_TRY(dsvi_head_sparsity_read(wanted->head_sparsity, b->heads.heads, b->density));
    DSVI_TRY(make_settings(b));
    DSVI_TRY(dsvi_backend_open_rank(&b->settings, comm, &b->backend));
    dsvi_ops_time(&b->backend);
    DSVI_TRY(make_context(b));
    DSVI_TRY(make_sparse(b));
    DSVI_TRY(allocate(b));
    DSVI_TRY(dsvi_sparse_setup(b->sparse));
    dsvi_sparse_force(b->sparse, true);
    if (wanted->head_sparsity)
        dsvi_sparse_prescribe(b->sparse, b->density);
    return fill(b);
}

void dsvi_context_bench_close(DsvContextBench *b)
{
    DsvDevice *device = b->backend.device;
    dsvi_sparse_free(&b->sparse);
    dsvi_context_free(&b->context);
    dsvi_context_group_close(&b->group);
    if (device) {
        device->mem_free(device, b->memory);
        device->mem_free(device, b->more);
        device->host_free(device, b->listed.host_first);
    }
    dsvi_backend_close(&b->backend);
    dsvi_bench_heads_close(&b->heads);
    free(b->density);
}
