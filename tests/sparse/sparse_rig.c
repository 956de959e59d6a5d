/* A sparse layer with memory and inputs for every block; see sparse_rig.h. */
#include "sparse/sparse_rig.h"

#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"

DsvConfig rig_settings(void)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    settings.sparse_measure_cost = false;
    settings.sparse_group = 32;
    settings.sparse_chunk = 16;
    settings.sparse_rank = 8;
    snprintf(settings.sparse_order, sizeof settings.sparse_order, "tube");
    snprintf(settings.sparse_tail, sizeof settings.sparse_tail, "none");
    settings.sparse_grain = 1;
    settings.sparse_target_mass = 0.9;
    settings.sparse_target_density = 0;
    settings.sparse_min_keys = 0;
    settings.sparse_dense_finish = 0;
    settings.sparse_min_mass = 0.85;
    settings.seed = 7;
    return settings;
}

DsviSparseShape rig_shape(int64_t blocks, int64_t batch, int64_t heads, int64_t head_dim, int64_t frames,
                          int64_t height, int64_t width, DsviDtype act)
{
    return (DsviSparseShape){
        .blocks = blocks,
        .batch = batch,
        .tokens = frames * height * width,
        .heads = heads,
        .head_dim = head_dim,
        .grid = {frames, height, width},
        .act = act,
        .backward = true,
    };
}

static void keep_log(void *context, const char *line)
{
    Rig *rig = context;
    size_t used = strlen(rig->log);
    snprintf(rig->log + used, sizeof rig->log - used, "%s\n", line);
}

static int64_t rows(const Rig *rig)
{
    return rig->shape.batch * rig->shape.tokens * rig->shape.heads;
}

static void carve(Rig *rig, DsviArena *arena)
{
    for (int64_t i = 0; i < rig->shape.blocks; i++) {
        void **const tensors[] = {
            &rig->block[i].q,      &rig->block[i].k,    &rig->block[i].v,
            &rig->block[i].hidden, &rig->block[i].dout, &rig->block[i].out,
            &rig->block[i].dq,     &rig->block[i].dk,   &rig->block[i].dv,
        };
        for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
            *tensors[t] = dsvi_arena_take(arena, DSVI_MEM_DATA, rig->tensor_bytes);
        rig->block[i].lse = dsvi_arena_take(arena, DSVI_MEM_DATA, rig->lse_bytes);
    }
    dsvi_sparse_carve(rig->sparse, arena);
    dsvi_sparse_carve_call(rig->sparse, arena);
}

DsvStatus rig_host_memory(DsviSparse *sparse, DsviDevice *device, void **memory)
{
    DsviArena arena;
    dsvi_arena_plan(&arena);
    dsvi_sparse_carve_host(sparse, &arena);
    size_t bytes = arena.used;
    DSVI_TRY(device->host_alloc(device, bytes, memory));
    memset(*memory, 0xff, bytes);
    dsvi_arena_bind(&arena, *memory, bytes);
    dsvi_sparse_carve_host(sparse, &arena);
    return DSV_OK;
}

void rig_open(Rig *rig, const char *isa, int threads, const DsvConfig *settings, const DsviSparseShape *shape)
{
    DsviArena arena;
    memset(rig, 0, sizeof *rig);
    rig->settings = *settings;
    rig->shape = *shape;
    rig->tensor_bytes = (size_t)(rows(rig) * shape->head_dim) * dsvi_dtype_size(shape->act);
    rig->lse_bytes = (size_t)rows(rig) * dsvi_dtype_size(shape->act == DSVI_F64 ? DSVI_F64 : DSVI_F32);
    assert_ok(dsvi_cpu_open(isa, threads, &rig->backend));
    DsviDevice *device = rig->backend.device;
    assert_ok(dsvi_sparse_create(&rig->backend, settings, shape, keep_log, rig, &rig->sparse));
    dsvi_arena_plan(&arena);
    carve(rig, &arena);
    size_t bytes = arena.used;
    assert_ok(device->mem_alloc(device, bytes, &rig->memory));
    memset(rig->memory, 0xff, bytes); /* NaN, so that reading what was never written shows */
    dsvi_arena_bind(&arena, rig->memory, bytes);
    carve(rig, &arena);
    assert_int_equal(arena.used, bytes);
    assert_ok(rig_host_memory(rig->sparse, device, &rig->host_memory));
    assert_ok(dsvi_sparse_setup(rig->sparse));
}

void rig_close(Rig *rig)
{
    dsvi_sparse_free(&rig->sparse);
    dsvi_sparse_free(&rig->sparse); /* must accept NULL */
    if (rig->backend.device) {
        rig->backend.device->mem_free(rig->backend.device, rig->memory);
        rig->backend.device->host_free(rig->backend.device, rig->host_memory);
    }
    dsvi_cpu_close(&rig->backend);
}

/* Fills q or k with `focus` clusters of rows. The rows of a cluster have a long common direction and a little
 * noise, so that queries of a cluster attend almost only to keys of the same cluster. */
static void fill_focused(const Rig *rig, void *tensor, DsviRng noise, int64_t focus, bool queries)
{
    int64_t dim = rig->shape.head_dim, heads = rig->shape.heads, tokens = rig->shape.tokens;
    DsviRng direction = {noise.seed, DSVI_RNG_TEST, 1000};
    for (int64_t row = 0; row < rows(rig); row++) {
        int64_t s = row / heads % tokens;
        int64_t cluster = queries ? s / rig->settings.sparse_group % focus : s % focus;
        for (int64_t d = 0; d < dim; d++) {
            double long_part = 2 * dsvi_rng_normal(direction, (uint64_t)(cluster * dim + d));
            dsvi_store(rig->shape.act, tensor, row * dim + d,
                       long_part + 0.1 * dsvi_rng_normal(noise, (uint64_t)(row * dim + d)));
        }
    }
}

static void fill_normal(const Rig *rig, void *tensor, DsviRng rng, double size)
{
    for (int64_t i = 0; i < rows(rig) * rig->shape.head_dim; i++)
        dsvi_store(rig->shape.act, tensor, i, size * dsvi_rng_normal(rng, (uint64_t)i));
}

void rig_fill(Rig *rig, uint64_t seed, int64_t focus)
{
    for (int64_t i = 0; i < rig->shape.blocks; i++) {
        uint32_t stream = (uint32_t)(8 * i);
        void *const normal[] = {rig->block[i].v, rig->block[i].hidden, rig->block[i].dout};
        for (uint32_t t = 0; t < 3; t++)
            fill_normal(rig, normal[t], (DsviRng){seed, DSVI_RNG_TEST, stream + t}, 1);
        DsviRng q = {seed, DSVI_RNG_TEST, stream + 3}, k = {seed, DSVI_RNG_TEST, stream + 4};
        if (focus > 0) {
            fill_focused(rig, rig->block[i].q, q, focus, true);
            fill_focused(rig, rig->block[i].k, k, focus, false);
        } else {
            fill_normal(rig, rig->block[i].q, q, focus < 0 ? 0 : 3);
            fill_normal(rig, rig->block[i].k, k, 1);
        }
    }
}

void rig_set(DsvConfig *settings, const char *assignment)
{
    assert_ok(dsv_config_set(settings, assignment));
}

DsviAttentionCall rig_pass(Rig *rig, int64_t block)
{
    return (DsviAttentionCall){
        .scale = 1 / sqrt((double)rig->shape.head_dim),
        .q = rig->block[block].q,
        .k = rig->block[block].k,
        .v = rig->block[block].v,
        .hidden = rig->block[block].hidden,
        .out = rig->block[block].out,
        .lse = rig->block[block].lse,
        .dout = rig->block[block].dout,
        .dq = rig->block[block].dq,
        .dk = rig->block[block].dk,
        .dv = rig->block[block].dv,
    };
}

void rig_run(Rig *rig)
{
    for (int64_t i = 0; i < rig->shape.blocks; i++) {
        DsviAttentionCall pass = rig_pass(rig, i);
        assert_ok(dsvi_sparse_forward(rig->sparse, i, &pass));
    }
    for (int64_t i = rig->shape.blocks - 1; i >= 0; i--) {
        DsviAttentionCall pass = rig_pass(rig, i);
        assert_ok(dsvi_sparse_backward(rig->sparse, i, &pass));
    }
}

void rig_step(Rig *rig, int64_t step, bool train)
{
    assert_ok(dsvi_sparse_step_begin(rig->sparse, step, train));
    rig_run(rig);
    assert_ok(dsvi_sparse_step_end(rig->sparse));
}

double rig_difference(const Rig *a, const Rig *b)
{
    double largest = 0;
    DsviDtype act = a->shape.act, acc = act == DSVI_F64 ? DSVI_F64 : DSVI_F32;
    for (int64_t i = 0; i < a->shape.blocks; i++) {
        const void *const pairs[][2] = {
            {a->block[i].out, b->block[i].out},
            {a->block[i].dq, b->block[i].dq},
            {a->block[i].dk, b->block[i].dk},
            {a->block[i].dv, b->block[i].dv},
        };
        for (size_t t = 0; t < sizeof pairs / sizeof *pairs; t++)
            largest = fmax(largest,
                           relative_l2(act, pairs[t][0], act, pairs[t][1], rows(a) * a->shape.head_dim));
        largest = fmax(largest, relative_l2(acc, a->block[i].lse, acc, b->block[i].lse, rows(a)));
    }
    return largest;
}

bool rig_same(const Rig *a, const Rig *b)
{
    bool same = true;
    for (int64_t i = 0; i < a->shape.blocks; i++)
        same = same && memcmp(a->block[i].out, b->block[i].out, a->tensor_bytes) == 0 &&
               memcmp(a->block[i].dq, b->block[i].dq, a->tensor_bytes) == 0 &&
               memcmp(a->block[i].dk, b->block[i].dk, a->tensor_bytes) == 0 &&
               memcmp(a->block[i].dv, b->block[i].dv, a->tensor_bytes) == 0 &&
               memcmp(a->block[i].lse, b->block[i].lse, a->lse_bytes) == 0;
    return same;
}

static char *saved_state(Rig *rig, size_t *bytes)
{
    char path[] = "/tmp/dsv-sparse-XXXXXX";
    char *state;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_ok(dsvi_sparse_save(rig->sparse, path));
    assert_ok(dsvi_file_read(path, (size_t)1 << 30, &state, bytes));
    unlink(path);
    return state;
}

bool rig_same_state(Rig *a, Rig *b)
{
    size_t a_bytes, b_bytes;
    char *a_state = saved_state(a, &a_bytes), *b_state = saved_state(b, &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(a_state, b_state, a_bytes) == 0;
    free(a_state);
    free(b_state);
    return same;
}
