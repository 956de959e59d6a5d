/* Memory of tests on the device that an op runs on. */
#include "ops/sparse_cases.h"

#include "test.h"

enum { GUARD = 64 };

bool check_long(const DsvBackend *backend)
{
    return backend->device->kind == DSV_DEVICE_CUDA && !test_small();
}

void *check_upload(const DsvBackend *backend, const DsvStream *stream, const void *host, size_t bytes)
{
    void *memory;
    if (!stream)
        return (void *)host;
    assert_ok(backend->device->mem_alloc(backend->device, bytes, &memory));
    assert_ok(backend->device->upload(backend->device->stream, memory, host, bytes));
    return memory;
}

void check_release(const DsvBackend *backend, const DsvStream *stream, const void *memory)
{
    if (stream)
        backend->device->mem_free(backend->device, (void *)memory);
}

void check_download(const DsvBackend *backend, const DsvStream *stream, void *host, void *memory,
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

void *check_workspace(const DsvBackend *backend, const DsvStream *stream, size_t bytes)
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

void check_workspace_release(const DsvBackend *backend, const DsvStream *stream, void *workspace,
                             size_t bytes)
{
    unsigned char guard[GUARD], *behind = (unsigned char *)workspace + guarded_bytes(bytes) - GUARD;
    if (stream) {
        assert_ok(backend->device->download(backend->device->stream, guard, behind, GUARD));
        assert_ok(backend->device->sync(backend->device->stream));
        check_release(backend, stream, workspace);
    } else {
        memcpy(guard, behind, GUARD);
        free(workspace);
    }
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(guard[i], 0xff);
}
