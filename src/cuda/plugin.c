/* The object that libdsv_cuda.so exports as a plugin, whose interface ops/plugin.h describes. */
#include "ops/plugin.h"

#include <string.h>

#include "cuda/common/cuda.h"

static DsvStatus open_cuda_plugin(const DsviPluginOpenArgs *args, DsviBackend *backend)
{
    DsviPluginOpenArgs known = {0};
    memcpy(&known, args, args->bytes < sizeof known ? args->bytes : sizeof known);
    dsvi_status_use_records_of(known.record);
    return dsvi_cuda_open(known.number, known.deterministic, backend);
}

extern const DsviPlugin dsvi_plugin;
const DsviPlugin dsvi_plugin = {
    .abi = DSVI_PLUGIN_ABI,
    .bytes = sizeof(DsviPlugin),
    .backend_bytes = sizeof(DsviBackend),
    .open = open_cuda_plugin,
};
