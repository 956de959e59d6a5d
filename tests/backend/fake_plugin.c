/* A stand-in for libdsv_cuda.so, compiled once for each case of test_plugin.c. The build defines FAKE_ABI,
 * FAKE_BYTES and FAKE_BACKEND_BYTES, which the plugin claims of itself, and FAKE_SYMBOL, the name of the
 * object that it exports. */
#include <stdio.h>

#include "ops/plugin.h"

/* Opens nothing: fails with a message that repeats the arguments, recorded where the program looks. */
static DsvStatus fake_open(const DsviPluginOpenArgs *args, DsviBackend *backend)
{
    (void)backend;
    snprintf(args->record()->message, DSVI_MESSAGE_BYTES, "fake plugin: %zu bytes, device %lld, %s",
             args->bytes, (long long)args->number, args->deterministic ? "deterministic" : "any order");
    return DSV_E_DEVICE;
}

extern const DsviPlugin FAKE_SYMBOL;
const DsviPlugin FAKE_SYMBOL = {
    .abi = FAKE_ABI,
    .bytes = FAKE_BYTES,
    .backend_bytes = FAKE_BACKEND_BYTES,
    .open = fake_open,
};
