/* A backend in a shared library of its own, loaded when its device is asked for.
 *
 * The library exports one object, DSVI_PLUGIN_SYMBOL. It holds its own copy of what it needs of dsv's lower
 * layers; `open` makes it record failures where the loading library does. */
#ifndef DSVI_PLUGIN_H
#define DSVI_PLUGIN_H

#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PLUGIN_SYMBOL "dsvi_plugin"

typedef struct DsvPlugin {
    const char *version;  /* DSV_VERSION it was built with */
    size_t backend_bytes; /* sizeof(DsvBackend) there: a mark of headers that agree */
    /* The device of this number among those there are, beginning again behind the last. Closed by
     * backend->device->close. */
    DsvStatus (*open)(const DsvConfig *settings, int64_t number, DsvStatusRecordOfThread *record,
                      DsvBackend *backend);
} DsvPlugin;

#ifdef __cplusplus
}
#endif
#endif
