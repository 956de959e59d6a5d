/* See backend.h. The CPU backend is part of this library; the CUDA backend is a library of its own beside it,
 * for it wants NVIDIA's, and few machines have those. */
#include "api/backend.h"

#include <dlfcn.h>
#include <string.h>

#include "base/threads.h"
#include "cpu/cpu.h"
#include "dist/peers.h"
#include "ops/plugin.h"

#define CUDA_LIBRARY "libdsv_cuda.so"

/* Once loaded a library stays: NVIDIA's do not bear to be unloaded. */
static DsvStatus load_plugin(const char *library, const DsvPlugin **plugin)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: the CUDA backend could not be loaded: %s",
                         dlerror());
    *plugin = dlsym(handle, DSVI_PLUGIN_SYMBOL);
    if (!*plugin)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: %s is no backend of dsv", library);
    if (strcmp((*plugin)->version, DSV_VERSION) != 0 || (*plugin)->backend_bytes != sizeof(DsvBackend))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: %s belongs to another build of dsv, version %s, "
                         "not %s", library, (*plugin)->version, DSV_VERSION);
    return DSV_OK;
}

static DsvStatus open_number(const DsvConfig *settings, int64_t number, DsvBackend *backend)
{
    const DsvPlugin *plugin = NULL;
    memset(backend, 0, sizeof *backend);
    if (strcmp(settings->device, "cpu") == 0)
        return dsvi_cpu_open(settings->isa, (int)settings->threads, backend);
    dsvi_threads_set((int)settings->threads);
    DSVI_TRY(load_plugin(CUDA_LIBRARY, &plugin));
    return plugin->open(settings, number, dsvi_status_record, backend);
}

DsvStatus dsvi_backend_open(const DsvConfig *settings, DsvBackend *backend)
{
    return open_number(settings, 0, backend);
}

DsvStatus dsvi_backend_open_rank(const DsvConfig *settings, DsvComm *comm, DsvBackend *backend)
{
    DsvPeersHere here;
    memset(backend, 0, sizeof *backend);
    DSVI_TRY(dsvi_peers_here(comm, 0, &here));
    return open_number(settings, here.before, backend);
}

void dsvi_backend_close(DsvBackend *backend)
{
    if (backend->device)
        backend->device->close(backend->device);
    memset(backend, 0, sizeof *backend);
}
