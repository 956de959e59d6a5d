/* A stand-in for libdsv_cuda.so, compiled once for each case of test_plugin.c. The build defines FAKE_ABI,
 * FAKE_BYTES and FAKE_BACKEND_BYTES, which the plugin claims of itself, and FAKE_SYMBOL, the name of the
 * object that it exports. With FAKE_OPENS the plugin opens a device of which only kind and close are there.
 */
#include <stdio.h>

#include "ops/plugin.h"

#ifdef FAKE_OPENS
static void fake_close(DsviDevice *device)
{
    (void)device;
}

static DsvStatus fake_open(const DsviPluginOpenArgs *args, DsviBackend *backend)
{
    static DsviDevice device = {.kind = DSVI_DEVICE_CUDA, .close = fake_close};
    (void)args;
    backend->device = &device;
    return DSV_OK;
}
#else
/* Opens nothing: fails with a message that repeats the arguments, recorded where the program looks. */
static DsvStatus fake_open(const DsviPluginOpenArgs *args, DsviBackend *backend)
{
    (void)backend;
    snprintf(args->record()->message, DSVI_MESSAGE_BYTES, "fake plugin: %zu bytes, device %lld, %s",
             args->bytes, (long long)args->number, args->deterministic ? "deterministic" : "any order");
    return DSV_E_DEVICE;
}
#endif

extern const DsviPlugin FAKE_SYMBOL;
const DsviPlugin FAKE_SYMBOL = {
    .abi = FAKE_ABI,
    .bytes = FAKE_BYTES,
    .backend_bytes = FAKE_BACKEND_BYTES,
    .open = fake_open,
};
