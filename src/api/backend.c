/* See backend.h. */
#include "api/backend.h"

#include <string.h>

#include "cpu/cpu.h"

DsvStatus dsvi_backend_open(const DsvConfig *settings, DsvBackend *backend)
{
    memset(backend, 0, sizeof *backend);
    if (strcmp(settings->device, "cpu") == 0)
        return dsvi_cpu_open(settings->isa, (int)settings->threads, backend);
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=%s: this build of dsv has the CPU backend only",
                     settings->device);
}

void dsvi_backend_close(DsvBackend *backend)
{
    if (backend->device)
        dsvi_cpu_close(backend);
}
