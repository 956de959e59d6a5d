/* DsvAttention (dsv/attention.h): checks the calls of other programs, and hands them to the sparse layer
 * (sparse/sparse.h). The lists of all blocks of a pass share one buffer, which the next pass fills again.
 * Passes are therefore numbered, and a backward pass must name the last one. */
#include <stdlib.h>
#include <string.h>

#include "api/attention_api.h"
#include "base/arena.h"
#include "base/config_abi.h"
#include "sparse/sparse.h"

struct DsvAttention {
    DsvDevice *device;
    DsvConfig config;
    DsvAttentionShape shape;
    DsviDtype act;
    DsviSparse *sparse;
    size_t state_bytes, workspace_bytes;
    void *own_state;   /* state memory if the library allocated it */
    void *host_memory; /* lists with sparse.offload_lists */
    bool bound, in_step;
    int64_t pass;       /* number of the last forward pass through the model */
    int64_t next_block; /* the block whose forward pass comes next within that pass */
    int64_t *used;      /* (blocks) number of the last pass whose backward pass the block has run */
};

static DsvStatus check_shape(const DsvAttentionShape *shape)
{
    const struct {
        const char *name;
        int64_t size, most;
    } sizes[] = {
        {"blocks", shape->blocks, 1000},   {"batch", shape->batch, 65536},
        {"heads", shape->heads, 1000},     {"frames", shape->grid[0], 1 << 20},
        {"rows", shape->grid[1], 1 << 20}, {"columns", shape->grid[2], 1 << 20},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size < 1 || sizes[i].size > sizes[i].most)
            return DSVI_FAIL(DSV_E_SHAPE, "attention: the number of %s is %lld, expected 1 to %lld",
                             sizes[i].name, (long long)sizes[i].size, (long long)sizes[i].most);
    if (shape->grid[0] * shape->grid[1] > INT32_MAX / shape->grid[2])
        return DSVI_FAIL(DSV_E_SHAPE, "attention: a grid of %lld x %lld x %lld has more than 2^31 - 1 tokens",
                         (long long)shape->grid[0], (long long)shape->grid[1], (long long)shape->grid[2]);
    return DSV_OK;
}

/* Counts the bytes of the object's memory, and allocates host memory for lists that are kept there. */
static DsvStatus plan_memory(DsvAttention *a)
{
    DsviDevice *device = a->device->backend.device;
    DsviArena state, call, host;
    dsvi_arena_plan(&state);
    dsvi_arena_plan(&call);
    dsvi_arena_plan(&host);
    dsvi_sparse_carve(a->sparse, &state);
    dsvi_sparse_carve_call(a->sparse, &call);
    dsvi_sparse_carve_host(a->sparse, &host);
    a->state_bytes = state.used;
    a->workspace_bytes = call.used;
    size_t bytes = host.used;
    DSVI_TRY(device->host_alloc(device, bytes, &a->host_memory));
    dsvi_arena_bind(&host, a->host_memory, bytes);
    dsvi_sparse_carve_host(a->sparse, &host);
    return DSV_OK;
}

static DsvStatus create_locked(DsvAttention *a, DsvAttentionLog *log, void *context)
{
    const DsviSparseShape shape = {
        .blocks = a->shape.blocks,
        .batch = a->shape.batch,
        .tokens = a->shape.grid[0] * a->shape.grid[1] * a->shape.grid[2],
        .heads = a->shape.heads,
        .head_dim = a->shape.head_dim,
        .grid = {a->shape.grid[0], a->shape.grid[1], a->shape.grid[2]},
        .act = a->act,
        .backward = a->shape.backward,
    };
    a->used = calloc((size_t)a->shape.blocks, sizeof *a->used);
    if (!a->used)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an attention object");
    DSVI_TRY(dsvi_sparse_create(&a->device->backend, &a->config, &shape, log, context, &a->sparse));
    return plan_memory(a);
}

DsvStatus dsv_attention_create(DsvDevice *device, const DsvConfig *config, const DsvAttentionShape *shape,
                               DsvAttentionLog *log, void *context, DsvAttention **out)
{
    DsviDtype act;
    *out = NULL;
    DSVI_TRY(dsvi_config_check_abi(config));
    DSVI_TRY(check_shape(shape));
    DSVI_TRY(dsvi_attention_dtype(device, shape->dtype, &act));
    DsvAttention *a = calloc(1, sizeof *a);
    if (!a)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for an attention object");
    a->device = device;
    a->config = *config;
    a->shape = *shape;
    a->act = act;
    pthread_mutex_lock(&device->lock);
    DsvStatus status = create_locked(a, log, context);
    pthread_mutex_unlock(&device->lock);
    if (status != DSV_OK)
        dsv_attention_free(&a);
    *out = a;
    return status;
}

void dsv_attention_free(DsvAttention **attention)
{
    DsvAttention *a = *attention;
    if (!a)
        return;
    DsviDevice *device = a->device->backend.device;
    pthread_mutex_lock(&a->device->lock);
    if (a->bound)
        device->sync(device->stream);
    dsvi_sparse_free(&a->sparse);
    device->mem_free(device, a->own_state);
    device->host_free(device, a->host_memory);
    pthread_mutex_unlock(&a->device->lock);
    free(a->used);
    free(a);
    *attention = NULL;
}

void dsv_attention_memory(const DsvAttention *a, DsvAttentionMemory *memory)
{
    *memory = (DsvAttentionMemory){.state_bytes = a->state_bytes, .workspace_bytes = a->workspace_bytes};
}

/* Locks the object's device and makes `stream` its stream. The caller unlocks it, also after a failure. */
static DsvStatus enter(DsvAttention *a, void *stream, bool bound)
{
    DsviDevice *device = a->device->backend.device;
    pthread_mutex_lock(&a->device->lock);
    if (bound && !a->bound)
        return DSVI_FAIL(DSV_E_USAGE,
                         "attention: the object has no memory yet: call dsv_attention_bind first");
    return device->use_stream(device, stream);
}

static void leave(DsvAttention *a)
{
    pthread_mutex_unlock(&a->device->lock);
}

static DsvStatus bind_locked(DsvAttention *a, void *state, size_t bytes)
{
    DsviDevice *device = a->device->backend.device;
    DsviArena arena;
    if (a->bound)
        return DSVI_FAIL(DSV_E_USAGE, "attention: the object has memory already");
    if (state && (bytes < a->state_bytes || (uintptr_t)state % 64))
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention: the state memory has %zu bytes, expected %zu, 64-byte aligned", bytes,
                         a->state_bytes);
    if (!state)
        DSVI_TRY(device->mem_alloc(device, a->state_bytes, &a->own_state));
    dsvi_arena_bind(&arena, state ? state : a->own_state, a->state_bytes);
    dsvi_sparse_carve(a->sparse, &arena);
    DSVI_TRY(dsvi_sparse_setup(a->sparse));
    a->bound = true;
    return DSV_OK;
}

DsvStatus dsv_attention_bind(DsvAttention *a, void *state, size_t bytes, void *stream)
{
    DsvStatus status = enter(a, stream, false);
    if (status == DSV_OK)
        status = bind_locked(a, state, bytes);
    leave(a);
    return status;
}

static DsvStatus step_begin_locked(DsvAttention *a, int64_t step, bool train)
{
    if (step < 1)
        return DSVI_FAIL(DSV_E_USAGE, "attention: the step is %lld, expected at least 1", (long long)step);
    if (a->in_step)
        return DSVI_FAIL(DSV_E_USAGE, "attention: a step begins before the last one has ended");
    DSVI_TRY(dsvi_sparse_step_begin(a->sparse, step, train));
    a->in_step = true;
    a->next_block = 0;
    return DSV_OK;
}

DsvStatus dsv_attention_step_begin(DsvAttention *a, int64_t step, bool train, void *stream)
{
    DsvStatus status = enter(a, stream, true);
    if (status == DSV_OK)
        status = step_begin_locked(a, step, train);
    leave(a);
    return status;
}

DsvStatus dsv_attention_step_end(DsvAttention *a, void *stream)
{
    DsvStatus status = enter(a, stream, true);
    if (status == DSV_OK && !a->in_step)
        status = DSVI_FAIL(DSV_E_USAGE, "attention: a step ends before it has begun");
    if (status == DSV_OK)
        status = dsvi_sparse_step_end(a->sparse);
    a->in_step = a->in_step && status != DSV_OK;
    leave(a);
    return status;
}

static DsvStatus check_block(const DsvAttention *a, int64_t block)
{
    if (block >= 0 && block < a->shape.blocks)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE, "attention: block %lld does not exist, there are %lld", (long long)block,
                     (long long)a->shape.blocks);
}

/* Checks that the lists of the block's pass `pass` exist still; 0 stands for the last pass. Without sparse
 * attention every pass is dense and can be repeated at any time. */
static DsvStatus check_pass(const DsvAttention *a, int64_t block, int64_t pass, bool again)
{
    bool run = a->pass > 0 && (pass > 0 ? pass <= a->pass : a->pass > 1 || block < a->next_block);
    if (!run)
        return DSVI_FAIL(DSV_E_USAGE, "attention: block %lld has had no forward pass yet", (long long)block);
    if (!a->config.sparse_enabled)
        return DSV_OK;
    if (pass > 0 && pass != a->pass)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "attention: pass %lld of block %lld can run backward no more, because forward pass %lld "
            "replaced its key lists: run each pass backward before the next one runs forward",
            (long long)pass, (long long)block, (long long)a->pass);
    if (block >= a->next_block || (a->used[block] == a->pass && !again))
        return DSVI_FAIL(DSV_E_USAGE,
                         "attention: the key lists of block %lld are used already or replaced: run each pass "
                         "backward before the next one runs forward",
                         (long long)block);
    return DSV_OK;
}

static DsvStatus check_forward(const DsvAttention *a, int64_t block, const DsvAttentionCall *call)
{
    DSVI_TRY(check_block(a, block));
    DSVI_TRY(dsvi_attention_check_call(call, a->act, a->shape.head_dim, DSVI_PASS_FORWARD));
    if (a->config.sparse_enabled && strcmp(a->config.sparse_selector, "predictor") == 0 && !call->hidden)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: tensor hidden is missing, which sparse.selector=predictor "
                                      "reads");
    if (call->recompute)
        return check_pass(a, block, call->pass, false);
    if (!a->in_step)
        return DSVI_FAIL(DSV_E_USAGE, "attention: a forward pass runs outside a step: call "
                                      "dsv_attention_step_begin first");
    if (block != 0 && block != a->next_block)
        return DSVI_FAIL(DSV_E_USAGE,
                         "attention: block %lld runs forward, expected block %lld, or block 0 of a "
                         "new pass",
                         (long long)block, (long long)a->next_block);
    return DSV_OK;
}

static DsviAttentionCall sparse_call(const DsvAttentionCall *call, const DsviAttentionRows *rows)
{
    return (DsviAttentionCall){
        .scale = call->scale,
        .hidden = call->hidden,
        .lse = call->lse,
        .recompute = call->recompute,
        .rows = rows,
    };
}

static DsviAttentionRows all_rows(const DsvAttentionCall *call)
{
    return (DsviAttentionRows){
        .q = dsvi_attention_rows(&call->q),
        .k = dsvi_attention_rows(&call->k),
        .v = dsvi_attention_rows(&call->v),
        .out = dsvi_attention_rows(&call->out),
        .dout = dsvi_attention_rows(&call->dout),
        .dq = dsvi_attention_rows(&call->dq),
        .dk = dsvi_attention_rows(&call->dk),
        .dv = dsvi_attention_rows(&call->dv),
    };
}

static DsvStatus forward_locked(DsvAttention *a, int64_t block, DsvAttentionCall *call)
{
    void *workspace;
    DSVI_TRY(check_forward(a, block, call));
    DSVI_TRY(dsvi_attention_workspace(a->device, call, a->workspace_bytes, &workspace));
    dsvi_sparse_set_workspace(a->sparse, workspace);
    const DsviAttentionRows rows = all_rows(call);
    const DsviAttentionCall pass = sparse_call(call, &rows);
    if (!call->recompute) {
        a->pass += block == 0;
        a->next_block = block + 1;
    }
    DSVI_TRY(dsvi_sparse_forward(a->sparse, block, &pass));
    call->pass = a->config.sparse_enabled ? a->pass : 0;
    return DSV_OK;
}

DsvStatus dsv_attention_forward(DsvAttention *a, int64_t block, DsvAttentionCall *call)
{
    DsvStatus status = enter(a, call->stream, true);
    if (status == DSV_OK)
        status = forward_locked(a, block, call);
    leave(a);
    return status;
}

static DsvStatus backward_locked(DsvAttention *a, int64_t block, const DsvAttentionCall *call)
{
    void *workspace;
    DSVI_TRY(check_block(a, block));
    if (!a->shape.backward)
        return DSVI_FAIL(DSV_E_USAGE, "attention: the object was created without backward pass");
    DSVI_TRY(dsvi_attention_check_call(call, a->act, a->shape.head_dim, DSVI_PASS_BACKWARD));
    DSVI_TRY(check_pass(a, block, call->pass, !a->config.sparse_offload_lists));
    DSVI_TRY(dsvi_attention_workspace(a->device, call, a->workspace_bytes, &workspace));
    dsvi_sparse_set_workspace(a->sparse, workspace);
    const DsviAttentionRows rows = all_rows(call);
    const DsviAttentionCall pass = sparse_call(call, &rows);
    DSVI_TRY(dsvi_sparse_backward(a->sparse, block, &pass));
    a->used[block] = a->pass;
    return DSV_OK;
}

DsvStatus dsv_attention_backward(DsvAttention *a, int64_t block, const DsvAttentionCall *call)
{
    DsvStatus status = enter(a, call->stream, true);
    if (status == DSV_OK)
        status = backward_locked(a, block, call);
    leave(a);
    return status;
}

static DsvStatus need_lists(const DsvAttention *a)
{
    if (a->config.sparse_enabled)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "attention: sparse.enabled is false, so there are no lists to attend over");
}

DsvStatus dsv_attention_force(DsvAttention *a, bool everywhere)
{
    DSVI_TRY(need_lists(a));
    pthread_mutex_lock(&a->device->lock);
    dsvi_sparse_force(a->sparse, everywhere);
    leave(a);
    return DSV_OK;
}

DsvStatus dsv_attention_prescribe(DsvAttention *a, double density)
{
    DSVI_TRY(need_lists(a));
    if (!(density > 0 && density <= 1))
        return DSVI_FAIL(DSV_E_USAGE, "attention: density is %g, expected above 0 and at most 1", density);
    size_t count = (size_t)(a->shape.blocks * a->shape.heads);
    double *all = malloc(count * sizeof *all);
    if (!all)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu densities", count);
    for (size_t i = 0; i < count; i++)
        all[i] = density;
    pthread_mutex_lock(&a->device->lock);
    dsvi_sparse_prescribe(a->sparse, all);
    leave(a);
    free(all);
    return DSV_OK;
}

void dsv_attention_report(DsvAttention *a, DsvAttentionReport *report)
{
    DsviSparseReport all;
    pthread_mutex_lock(&a->device->lock);
    dsvi_sparse_report(a->sparse, &all);
    *report = (DsvAttentionReport){
        .blocks = all.blocks,
        .sparse_blocks = all.sparse_blocks,
        .density = all.density,
        .captured_mass = all.captured_mass,
        .measured = dsvi_sparse_measured(a->sparse),
        .output_error = all.output_error,
    };
    leave(a);
}

DsvStatus dsv_attention_block_report(DsvAttention *a, int64_t block, DsvAttentionBlockReport *report,
                                     float *head_captured)
{
    DsviSparseBlockReport of_block;
    DSVI_TRY(check_block(a, block));
    pthread_mutex_lock(&a->device->lock);
    dsvi_sparse_block_report(a->sparse, block, &of_block);
    *report = (DsvAttentionBlockReport){
        .sparse = of_block.sparse,
        .over_lists = of_block.over_lists,
        .captured_mass = of_block.captured_mass,
        .density = of_block.density,
        .estimated_mass = of_block.estimated_mass,
        .share90 = of_block.share90,
        .changes = of_block.changes,
        .output_error = of_block.output_error,
    };
    if (head_captured)
        memcpy(head_captured, of_block.head_captured, (size_t)a->shape.heads * sizeof *head_captured);
    leave(a);
    return DSV_OK;
}

DsvStatus dsv_attention_save(DsvAttention *a, const char *path, void *stream)
{
    DsvStatus status = enter(a, stream, true);
    if (status == DSV_OK)
        status = dsvi_sparse_save(a->sparse, path);
    leave(a);
    return status;
}

DsvStatus dsv_attention_load(DsvAttention *a, const char *path, void *stream)
{
    DsvStatus status = enter(a, stream, true);
    if (status == DSV_OK)
        status = dsvi_sparse_load(a->sparse, path);
    leave(a);
    return status;
}

static DsvStatus check_same_model(const DsvAttention *to, const DsvAttention *from)
{
    const DsvAttentionShape *a = &to->shape, *b = &from->shape;
    if (to->device != from->device)
        return DSVI_FAIL(DSV_E_USAGE, "attention: state is copied between objects of different devices");
    if (!from->bound || !to->bound)
        return DSVI_FAIL(DSV_E_USAGE,
                         "attention: state is copied between objects of which one has no memory yet");
    if (a->blocks != b->blocks || a->heads != b->heads || a->head_dim != b->head_dim)
        return DSVI_FAIL(
            DSV_E_SHAPE,
            "attention: state of %lld blocks, %lld heads of size %lld is copied to %lld blocks, %lld "
            "heads of size %lld",
            (long long)b->blocks, (long long)b->heads, (long long)b->head_dim, (long long)a->blocks,
            (long long)a->heads, (long long)a->head_dim);
    if (strcmp(to->config.sparse_selector, from->config.sparse_selector) != 0 ||
        to->config.sparse_enabled != from->config.sparse_enabled ||
        to->config.sparse_rank != from->config.sparse_rank)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention: state is copied between objects of different sparse.enabled, "
                         "sparse.selector or sparse.rank");
    return DSV_OK;
}

DsvStatus dsv_attention_copy(DsvAttention *to, DsvAttention *from, void *stream)
{
    if (to == from)
        return DSV_OK;
    DsvStatus status = enter(to, stream, true);
    if (status == DSV_OK)
        status = check_same_model(to, from);
    if (status == DSV_OK)
        status = dsvi_sparse_copy(to->sparse, from->sparse);
    leave(to);
    return status;
}

DsvStatus dsv_attention_lists(DsvAttention *a, int64_t block, DsvLists *lists)
{
    DSVI_TRY(check_block(a, block));
    pthread_mutex_lock(&a->device->lock);
    const DsviLists *found = a->bound ? dsvi_sparse_lists(a->sparse, block) : NULL;
    if (found)
        *lists = (DsvLists){
            .batch = found->batch,
            .heads = found->heads,
            .queries = found->queries,
            .keys = found->keys,
            .group = found->group,
            .grain = found->grain,
            .capacity = found->capacity,
            .offsets = found->offsets,
            .spans = found->spans,
        };
    leave(a);
    if (!found)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "attention: block %lld has no lists on the device",
                         (long long)block);
    return DSV_OK;
}
