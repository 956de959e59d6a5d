/* What libdsv_cuda.so exports: see ops/plugin.h. */
#include "ops/plugin.h"

#include "cuda/cuda.h"

static DsvStatus open_backend(const DsvConfig *settings, int64_t number, DsvStatusRecordOfThread *record,
                              DsvBackend *backend)
{
    dsvi_status_share(record);
    return dsvi_cuda_open(number, settings->deterministic, backend);
}

extern const DsvPlugin dsvi_plugin;
const DsvPlugin dsvi_plugin = {
    .version = DSV_VERSION, .backend_bytes = sizeof(DsvBackend), .open = open_backend,
};
