/* The interface between libdsv.so and a backend in a shared library of its own (a plugin), such as
 * libdsv_cuda.so, which is loaded only when a configuration asks for its device.
 *
 * The plugin exports one object, DSVI_PLUGIN_SYMBOL, of type DsviPlugin. It contains its own copy of the
 * lower layers of dsv (base, device, ops, dist).
 *
 * DSVI_PLUGIN_ABI is the version of everything that both sides must lay out alike. Raise it by one in
 * every change of
 *   - DsviPlugin or DsviPluginOpenArgs, except a new field at the end of DsviPluginOpenArgs,
 *   - DsviBackend (ops/ops.h), DsviDevice (device/device.h), DsviComm (dist/comm.h) or DsviStatusRecord
 *     (base/status.h),
 *   - the arguments of an op: any struct of a header in src/ops that an op of DsviOps receives,
 *   - a number that both sides exchange, such as the values of DsviDtype and DsvStatus,
 *   - the meaning of any of these, even if the layout remains.
 * New options do not change the ABI: a plugin never sees a DsvConfig. */
#ifndef DSVI_PLUGIN_H
#define DSVI_PLUGIN_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PLUGIN_SYMBOL "dsvi_plugin"
#define DSVI_PLUGIN_ABI 7u

/* The arguments that the program passes to DsviPlugin.open. New fields are added only at the end. A plugin
 * that knows more fields than the first `bytes` bytes hold treats the others as zero. */
typedef struct DsviPluginOpenArgs {
    size_t bytes;   /* sizeof(DsviPluginOpenArgs) in the program */
    int64_t number; /* index of the device, from 0; the plugin takes it modulo the number of its devices */
    bool deterministic;               /* the same calls must give the same bits */
    DsviStatusRecordOfThread *record; /* returns the calling thread's record, where the plugin must record its
                                       * failures: the plugin's own records are invisible to the program */
} DsviPluginOpenArgs;

typedef struct DsviPlugin {
    uint32_t abi;         /* DSVI_PLUGIN_ABI of the headers that the plugin was compiled with */
    uint32_t bytes;       /* sizeof(DsviPlugin) when the plugin was compiled */
    size_t backend_bytes; /* sizeof(DsviBackend) when the plugin was compiled: detects a new op that was added
                           * without raising DSVI_PLUGIN_ABI */
    /* Opens a device and fills *backend, which the caller has cleared. The caller closes the backend with
     * backend->device->close. On failure backend->device is NULL. */
    DsvStatus (*open)(const DsviPluginOpenArgs *args, DsviBackend *backend);
} DsviPlugin;

#ifdef __cplusplus
}
#endif
#endif
