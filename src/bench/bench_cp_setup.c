/* Sets up dsv_bench_context: options, ranks, sparse layer, memory and tensors. */
#include <math.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/memory_limit.h"
#include "bench/bench_cp_parts.h"
#include "bench/ops_timed.h"
#include "device/carve.h"

/* Memory for key lists is planned so that one rank's lists may be UNEVEN_MAX times as long as the mean over
 * ranks. One rank's lists may be longer than the mean if one threshold chooses the lists of all ranks. */
#define UNEVEN_MAX 3

static DsvStatus bench_cp_setup_check(const DsviCpBench *b)
{
    DSVI_TRY(dsvi_bench_lists_check(&b->options.lists, &b->settings));
    if (dsvi_comm_size(b->comm) < 2)
        return DSVI_FAIL(DSV_E_USAGE, "1 rank, expected at least 2 that share a clip");
    return DSV_OK;
}

/* Returns the density for which list memory is planned: that of the densest head, because a plan may give a
 * rank only this head. */
static double densest(const DsviCpBench *b)
{
    double mean = dsvi_sparse_list_density(&b->settings, b->heads.tokens);
    double max = b->options.head_sparsity ? 0 : fmin(1, UNEVEN_MAX * mean);
    for (int64_t h = 0; h < b->heads.heads && b->options.head_sparsity; h++)
        max = fmax(max, b->density[h]);
    return fmax(max, 0.01);
}

/* Number of steps between two measurements of lists, and between two renewals of the selector's projection.
 * The number is so large that only step 0 measures lists or renews the projection. */
#define RARELY "1000000"

static DsvStatus bench_cp_setup_make_settings(DsviCpBench *b)
{
    DsvConfig *s = &b->settings;
    DSVI_TRY(dsvi_bench_lists_set(s, &b->options.lists));
    DSVI_TRY(dsvi_bench_set(s, "sparse.rule=%s", b->options.head_sparsity ? "topk" : "threshold"));
    if (b->options.head_sparsity)
        DSVI_TRY(dsvi_bench_set(s, "sparse.min_keys=0"));
    DSVI_TRY(dsvi_bench_set(s, "sparse.profile_every=" RARELY));
    DSVI_TRY(dsvi_bench_set(s, "sparse.refresh_every=" RARELY));
    return dsvi_bench_set(s, "sparse.max_density=%.17g", densest(b));
}

static DsvStatus bench_cp_setup_make_cp(DsviCpBench *b)
{
    int64_t ranks = dsvi_comm_size(b->comm), rows = b->heads.tokens * b->heads.heads;
    const DsviCpClip shape = {
        .tokens = b->heads.tokens,
        .heads = b->heads.heads,
        .blocks = 1,
        .unit = dsvi_sparse_unit(&b->settings),
        .rows_max = (int64_t)(b->settings.cp_room * (double)rows / (double)ranks),
    };
    DSVI_TRY(dsvi_cp_group_create(&b->backend, b->comm, 0, &b->group));
    return dsvi_cp_create(b->group, &shape, &b->cp);
}

static DsvStatus bench_cp_setup_make_sparse(DsviCpBench *b)
{
    const DsviBenchHeads *h = &b->heads;
    b->shape = (DsviSparseShape){
        .blocks = 1,
        .batch = 1,
        .tokens = h->tokens,
        .heads = h->heads,
        .head_dim = h->head_dim,
        .grid = {h->grid[0], h->grid[1], h->grid[2]},
        .act = b->act,
        .backward = true,
        .cp = b->cp,
    };
    return dsvi_sparse_create(&b->backend, &b->settings, &b->shape, NULL, NULL, &b->sparse);
}

static size_t local_tensor_bytes(const DsviCpBench *b)
{
    return (size_t)(dsvi_cp_tokens(b->cp) * b->heads.heads * b->heads.head_dim) * dsvi_dtype_size(b->act);
}

static void bench_cp_setup_carve(void *context, DsviArena *arena)
{
    DsviCpBench *b = context;
    DsviAttentionCall *p = &b->pass;
    size_t bytes = local_tensor_bytes(b);
    p->scale = 1 / sqrt((double)b->heads.head_dim);
    p->q = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->k = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->v = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->dout = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->out = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->dq = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->dk = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->dv = dsvi_arena_take(arena, DSVI_MEM_DATA, bytes);
    p->lse = dsvi_arena_take(arena, DSVI_MEM_DATA, dsvi_cp_lse_bytes(b->cp, 1, DSVI_F32));
    dsvi_sparse_carve(b->sparse, arena);
    dsvi_sparse_carve_call(b->sparse, arena);
}

static DsvStatus bench_cp_setup_allocate(DsviCpBench *b)
{
    return dsvi_device_alloc_layout(b->backend.device, bench_cp_setup_carve, b, &b->memory);
}

static DsvStatus bench_cp_setup_fill(DsviCpBench *b)
{
    DsvStatus status = DSV_OK;
    DsviDevice *device = b->backend.device;
    const void *const tensor[] = {b->pass.q, b->pass.k, b->pass.v, b->pass.dout};
    size_t bytes = local_tensor_bytes(b);
    void *host = malloc(bytes);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of queries", bytes);
    for (int i = 0; i < 4; i++) {
        dsvi_bench_heads_fill(&(DsviBenchFill){.heads = &b->heads,
                                               .tensor = (DsviBenchTensor)i,
                                               .seed = (uint64_t)b->settings.seed,
                                               .order = dsvi_sparse_order(b->sparse),
                                               .first = dsvi_cp_first(b->cp),
                                               .count = dsvi_cp_tokens(b->cp),
                                               .act = b->act,
                                               .host = host});
        DSVI_TRY_GOTO(status, device->upload(device->stream, (void *)tensor[i], host, bytes), done);
        DSVI_TRY_GOTO(status, device->sync(device->stream), done);
    }
done:
    free(host);
    return status;
}

DsvStatus dsvi_cp_bench_open(DsviComm *comm, const DsvBenchContext *options, const DsvConfig *given,
                             DsviCpBench *b)
{
    *b = (DsviCpBench){.options = *options, .settings = *given, .comm = comm};
    DSVI_TRY(bench_cp_setup_check(b));
    DSVI_TRY(dsvi_bench_dtype(options->lists.dtype, &b->act));
    DSVI_TRY(dsvi_bench_heads_open(&options->lists, &b->heads));
    b->density = calloc((size_t)b->heads.heads, sizeof *b->density);
    if (!b->density)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld heads", (long long)b->heads.heads);
    if (options->head_sparsity)
        DSVI_TRY(dsvi_head_sparsity_read(options->head_sparsity, b->heads.heads, b->density));
    DSVI_TRY(bench_cp_setup_make_settings(b));
    DSVI_TRY(dsvi_backend_open_rank(&b->settings, comm, &b->backend));
    b->backend.device->limit = (size_t)dsvi_memory_limit(&b->settings);
    dsvi_ops_time_enable(&b->backend);
    DSVI_TRY(bench_cp_setup_make_cp(b));
    DSVI_TRY(bench_cp_setup_make_sparse(b));
    DSVI_TRY(bench_cp_setup_allocate(b));
    DSVI_TRY(dsvi_sparse_setup(b->sparse));
    dsvi_sparse_force(b->sparse, true);
    if (options->head_sparsity)
        dsvi_sparse_prescribe(b->sparse, b->density);
    return bench_cp_setup_fill(b);
}

void dsvi_cp_bench_close(DsviCpBench *b)
{
    DsviDevice *device = b->backend.device;
    dsvi_sparse_free(&b->sparse);
    dsvi_cp_free(&b->cp);
    dsvi_cp_group_close(&b->group);
    if (device) {
        device->mem_free(device, b->memory);
        device->mem_free(device, b->more);
        device->host_free(device, b->listed.host_first);
    }
    dsvi_backend_close(&b->backend);
    dsvi_bench_heads_close(&b->heads);
    free(b->density);
}
