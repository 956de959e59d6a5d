/* Devices of the public attention interface (dsv/attention.h), and the checks that all its passes make. */
#include <stdlib.h>
#include <string.h>

#include "api/attention_api.h"
#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/threads.h"
#include "sparse/order.h"

/* The pool of compute threads belongs to the process, and workspaces have parts for each thread. Its number
 * of threads must therefore not change while a device is open. */
static struct {
    pthread_mutex_t lock;
    int64_t count; /* open devices */
} opened = {.lock = PTHREAD_MUTEX_INITIALIZER};

static DsvStatus open_backend(DsvConfig *config, int64_t number, DsviBackend *backend)
{
    int64_t threads = dsvi_threads_count();
    if (opened.count > 0 && config->threads > 0 && config->threads != threads)
        return DSVI_FAIL(DSV_E_USAGE, "threads is %lld, but this process computes with %lld threads already",
                         (long long)config->threads, (long long)threads);
    if (opened.count > 0)
        config->threads = threads;
    DSVI_TRY(dsvi_backend_open_number(config, number, backend));
    opened.count++;
    return DSV_OK;
}

DsvStatus dsv_device_open(const DsvConfig *config, int64_t number, DsvDevice **out)
{
    *out = NULL;
    DSVI_TRY(dsvi_config_check_abi(config));
    if (number < 0)
        return DSVI_FAIL(DSV_E_USAGE, "the number of the device is %lld, expected at least 0",
                         (long long)number);
    DsvDevice *device = calloc(1, sizeof *device);
    if (!device)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for a device", sizeof *device);
    DsvConfig settings = *config;
    pthread_mutex_lock(&opened.lock);
    DsvStatus status = open_backend(&settings, number, &device->backend);
    pthread_mutex_unlock(&opened.lock);
    if (status != DSV_OK) {
        free(device);
        return status;
    }
    pthread_mutex_init(&device->lock, NULL);
    device->has_f64 = device->backend.device->kind == DSVI_DEVICE_CPU && strcmp(config->isa, "ref") == 0;
    *out = device;
    return DSV_OK;
}

void dsv_device_close(DsvDevice **device)
{
    DsvDevice *d = *device;
    if (!d)
        return;
    d->backend.device->sync(d->backend.device->stream);
    d->backend.device->mem_free(d->backend.device, d->workspace);
    dsvi_backend_close(&d->backend);
    pthread_mutex_lock(&opened.lock);
    opened.count--;
    pthread_mutex_unlock(&opened.lock);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *device = NULL;
}

const char *dsv_device_name(const DsvDevice *device)
{
    return device->backend.device->name;
}

DsvStatus dsv_token_order(const DsvConfig *config, const int64_t grid[3], int32_t *order, int64_t count)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    int64_t tokens = 1;
    for (int i = 0; i < 3; i++) {
        if (grid[i] < 1 || grid[i] > INT32_MAX / tokens)
            return DSVI_FAIL(
                DSV_E_SHAPE,
                "a grid of %lld x %lld x %lld tokens: expected sizes from 1 and at most 2^31 - 1 "
                "tokens",
                (long long)grid[0], (long long)grid[1], (long long)grid[2]);
        tokens *= grid[i];
    }
    if (tokens != count)
        return DSVI_FAIL(DSV_E_SHAPE, "the order has %lld entries, a grid of %lld x %lld x %lld needs %lld",
                         (long long)count, (long long)grid[0], (long long)grid[1], (long long)grid[2],
                         (long long)tokens);
    return dsvi_order_make(config->sparse_order, grid, order);
}

DsvStatus dsvi_attention_dtype(const DsvDevice *device, DsvDtype dtype, DsviDtype *act)
{
    switch (dtype) {
    case DSV_F32: *act = DSVI_F32; return DSV_OK;
    case DSV_BF16: *act = DSVI_BF16; return DSV_OK;
    case DSV_F64: *act = DSVI_F64; break;
    default: return DSVI_FAIL(DSV_E_SHAPE, "attention: dtype number %d does not exist", (int)dtype);
    }
    if (!device->has_f64)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "attention: dtype is F64, which needs device=cpu and isa=ref");
    return DSV_OK;
}

DsviHeads dsvi_attention_rows(const DsvRows *rows)
{
    return (DsviHeads){rows->data, rows->batch_stride, rows->token_stride, rows->head_stride};
}

static DsvStatus check_memory(const char *name, const void *data, size_t size)
{
    if (!data)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: tensor %s is missing", name);
    if ((uintptr_t)data % size)
        return DSVI_FAIL(DSV_E_SHAPE, "attention: tensor %s is not aligned to its elements of %zu bytes",
                         name, size);
    return DSV_OK;
}

static DsvStatus check_rows(const char *name, const DsvRows *rows, size_t size, int64_t least)
{
    DSVI_TRY(check_memory(name, rows->data, size));
    if (rows->batch_stride < least || rows->token_stride < least || rows->head_stride < least)
        return DSVI_FAIL(
            DSV_E_SHAPE,
            "attention: tensor %s has strides of %lld, %lld and %lld elements for batch, token and "
            "head, expected at least %lld",
            name, (long long)rows->batch_stride, (long long)rows->token_stride, (long long)rows->head_stride,
            (long long)least);
    return DSV_OK;
}

DsvStatus dsvi_attention_check_call(const DsvAttentionCall *call, DsviDtype act, int64_t head_dim,
                                    DsviPassKind kind)
{
    bool backward = kind == DSVI_PASS_BACKWARD;
    const struct {
        const char *name;
        const DsvRows *rows;
        int64_t least; /* smallest stride: rows that are written must not overlap */
    } tensors[] = {
        {"q", &call->q, 0},          {"k", &call->k, 0},
        {"v", &call->v, 0},          {"out", &call->out, backward ? 0 : head_dim},
        {"dout", &call->dout, 0},    {"dq", &call->dq, head_dim},
        {"dk", &call->dk, head_dim}, {"dv", &call->dv, head_dim},
    };
    size_t count = backward ? sizeof tensors / sizeof *tensors : 4;
    if (!(call->scale > 0))
        return DSVI_FAIL(DSV_E_SHAPE, "attention: scale is %g, expected a positive number", call->scale);
    for (size_t i = 0; i < count; i++)
        DSVI_TRY(check_rows(tensors[i].name, tensors[i].rows, dsvi_dtype_size(act), tensors[i].least));
    return check_memory("lse", call->lse, dsvi_dtype_size(act == DSVI_F64 ? DSVI_F64 : DSVI_F32));
}

DsvStatus dsvi_attention_workspace(DsvDevice *device, const DsvAttentionCall *call, size_t bytes,
                                   void **workspace)
{
    DsviDevice *memory = device->backend.device;
    *workspace = call->workspace;
    if (call->workspace && (call->workspace_bytes < bytes || (uintptr_t)call->workspace % 64))
        return DSVI_FAIL(DSV_E_SHAPE, "attention: the workspace has %zu bytes, expected %zu, 64-byte aligned",
                         call->workspace_bytes, bytes);
    if (call->workspace)
        return DSV_OK;
    if (device->workspace_bytes < bytes) {
        DSVI_TRY(memory->sync(memory->stream)); /* work that uses the smaller memory */
        memory->mem_free(memory, device->workspace);
        device->workspace = NULL;
        device->workspace_bytes = 0;
        DSVI_TRY(memory->mem_alloc(memory, bytes, &device->workspace));
        device->workspace_bytes = bytes;
    }
    *workspace = device->workspace;
    return DSV_OK;
}
