/* Implements backend.h: opens the CPU or a GPU. The CPU backend is part of this library. The CUDA backend
 * is a separate shared library, because it needs NVIDIA's libraries, which few machines have. */
#include "backend/backend.h"

#include <dlfcn.h>
#include <string.h>

#include "base/threads.h"
#include "cpu/cpu.h"
#include "dist/comm.h"
#include "dist/peers.h"
#include "ops/plugin.h"

#define CUDA_LIBRARY "libdsv_cuda.so"
#define DRIVER_LIBRARY "libcuda.so.1"

/* Refuses a plugin whose structs differ from those of this program. Only `abi` and `bytes`, the first
 * fields in every version of DsviPlugin, may be read before both are known to agree. */
static DsvStatus check_plugin(const char *device, const char *library, const DsviPlugin *plugin)
{
    if (plugin->abi != DSVI_PLUGIN_ABI)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "device=%s: %s has plugin ABI %u, expected %u: install the "
                         "library of this build of dsv",
                         device, library, plugin->abi, DSVI_PLUGIN_ABI);
    if (plugin->bytes != sizeof *plugin)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "device=%s: %s has a DsviPlugin of %u bytes, expected %zu: "
                         "install the library of this build of dsv",
                         device, library, plugin->bytes, sizeof *plugin);
    if (plugin->backend_bytes != sizeof(DsviBackend))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "device=%s: %s has a DsviBackend of %zu bytes, expected %zu: "
                         "install the library of this build of dsv",
                         device, library, plugin->backend_bytes, sizeof(DsviBackend));
    return DSV_OK;
}

/* Returns the number of GPUs that NVIDIA's driver shows to this process; 0 without a driver. cuInit and
 * cuDeviceGetCount are functions of the driver API that return 0 on success. */
static int visible_gpus(void)
{
    void *driver = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = NULL;
    int (*get_count)(int *) = NULL;
    int count = 0;
    if (driver) {
        *(void **)&init = dlsym(driver, "cuInit");
        *(void **)&get_count = dlsym(driver, "cuDeviceGetCount");
    }
    return init && get_count && init(0) == 0 && get_count(&count) == 0 ? count : 0;
}

/* Whether a message of dlopen says that the CUDA backend is not installed, and not that it is broken: glibc's
 * message begins with the library that is missing, which may be one that the backend needs. */
static bool not_installed(const char *message)
{
    static const char missing[] = CUDA_LIBRARY ": cannot open shared object file";
    return strncmp(message, missing, sizeof missing - 1) == 0;
}

/* Loads the CUDA backend. If it is `optional` and not installed, succeeds with *plugin NULL. A loaded library
 * is never unloaded: NVIDIA's libraries do not survive dlclose. */
static DsvStatus load_plugin(const char *device, const char *library, bool optional,
                             const DsviPlugin **plugin)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const char *error = handle ? NULL : dlerror();
    *plugin = NULL;
    if (!handle && optional && not_installed(error))
        return DSV_OK;
    if (!handle)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=%s: the CUDA backend could not be loaded: %s", device,
                         error);
    *plugin = dlsym(handle, DSVI_PLUGIN_SYMBOL);
    if (!*plugin)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=%s: %s is not a backend of dsv: it does not export %s",
                         device, library, DSVI_PLUGIN_SYMBOL);
    return check_plugin(device, library, *plugin);
}

DsvStatus dsvi_backend_open_number(const DsvConfig *config, int64_t number, DsviBackend *backend)
{
    bool automatic = strcmp(config->device, "auto") == 0;
    const DsviPlugin *plugin = NULL;
    memset(backend, 0, sizeof *backend);
    if (strcmp(config->device, "cuda") == 0 || (automatic && visible_gpus() > 0))
        DSVI_TRY(load_plugin(config->device, CUDA_LIBRARY, automatic, &plugin));
    if (!plugin)
        return dsvi_cpu_open(config->isa, (int)config->threads, backend);
    dsvi_threads_set((int)config->threads);
    const DsviPluginOpenArgs args = {
        .bytes = sizeof args,
        .number = number,
        .deterministic = config->deterministic,
        .record = dsvi_status_record,
    };
    DSVI_TRY(plugin->open(&args, backend));
    dsvi_cpu_fill_host(&backend->host_ops);
    return DSV_OK;
}

DsvStatus dsvi_backend_open(const DsvConfig *config, DsviBackend *backend)
{
    return dsvi_backend_open_number(config, 0, backend);
}

/* Fails if device=auto found a GPU for some ranks of a job only. All ranks must call. */
static DsvStatus check_kind(const DsvConfig *config, DsviComm *comm, DsviDeviceKind kind)
{
    static const char *const NAMES[] = {[DSVI_DEVICE_CPU] = "the CPU", [DSVI_DEVICE_CUDA] = "a GPU"};
    DsviDeviceKind first = kind;
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, &first, sizeof first));
    return first == kind
               ? DSV_OK
               : DSVI_FAIL(DSV_E_USAGE,
                           "device=%s: this rank would compute on %s and rank 0 on %s, expected one "
                           "kind of device for all ranks: set device=cpu or device=cuda",
                           config->device, NAMES[kind], NAMES[first]);
}

DsvStatus dsvi_backend_open_rank(const DsvConfig *config, DsviComm *comm, DsviBackend *backend)
{
    DsviPeersOnMachine here;
    memset(backend, 0, sizeof *backend);
    DSVI_TRY(dsvi_peers_on_machine(comm, 0, &here));
    DSVI_TRY(dsvi_backend_open_number(config, here.before, backend));
    DsvStatus status = check_kind(config, comm, backend->device->kind);
    if (status != DSV_OK)
        dsvi_backend_close(backend);
    return status;
}

void dsvi_backend_close(DsviBackend *backend)
{
    if (backend->device)
        backend->device->close(backend->device);
    memset(backend, 0, sizeof *backend);
}
