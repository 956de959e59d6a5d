/* Memory on the device that runs an operation under test; see sparse_cases.h. */
#include "ops/sparse_cases.h"

#include "test.h"

enum { GUARD = 64 };

bool check_long(const DsviBackend *backend)
{
    return backend->device->kind == DSVI_DEVICE_CUDA && !test_small();
}

void *check_upload(const DsviBackend *backend, const DsviStream *stream, const void *host, size_t bytes)
{
    void *memory;
    if (!stream)
        return (void *)host;
    assert_ok(backend->device->mem_alloc(backend->device, bytes, &memory));
    assert_ok(backend->device->upload(backend->device->stream, memory, host, bytes));
    return memory;
}

void check_release(const DsviBackend *backend, const DsviStream *stream, const void *memory)
{
    if (stream)
        backend->device->mem_free(backend->device, (void *)memory);
}

void check_download(const DsviBackend *backend, const DsviStream *stream, void *host, void *memory,
                    size_t bytes)
{
    if (!stream)
        return;
    assert_ok(backend->device->download(backend->device->stream, host, memory, bytes));
    assert_ok(backend->device->sync(backend->device->stream));
    check_release(backend, stream, memory);
}

static size_t guarded_bytes(size_t bytes)
{
    return (bytes + GUARD - 1) / GUARD * GUARD + GUARD;
}

void *check_workspace(const DsviBackend *backend, const DsviStream *stream, size_t bytes)
{
    size_t all = guarded_bytes(bytes), first = test_small() ? all - GUARD : 0;
    unsigned char *host = malloc(all);
    void *memory;
    assert_non_null(host);
    memset(host, 0xff, all);
    if (!stream)
        return host;
    assert_ok(backend->device->mem_alloc(backend->device, all, &memory));
    assert_ok(backend->device->upload(backend->device->stream, (unsigned char *)memory + first, host + first,
                                      all - first));
    assert_ok(backend->device->sync(backend->device->stream));
    free(host);
    return memory;
}

void check_workspace_release(const DsviBackend *backend, const DsviStream *stream, void *workspace,
                             size_t bytes)
{
    unsigned char guard[GUARD], *after = (unsigned char *)workspace + guarded_bytes(bytes) - GUARD;
    if (stream) {
        assert_ok(backend->device->download(backend->device->stream, guard, after, GUARD));
        assert_ok(backend->device->sync(backend->device->stream));
        check_release(backend, stream, workspace);
    } else {
        memcpy(guard, after, GUARD);
        free(workspace);
    }
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(guard[i], 0xff);
}
