/* From settings to an open backend. */
#ifndef DSVI_BACKEND_H
#define DSVI_BACKEND_H

#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* settings->device, isa and threads. On success the backend is closed with dsvi_backend_close. */
DsvStatus dsvi_backend_open(const DsvConfig *settings, DsvBackend *backend);
/* The same for one of several ranks: ranks of one machine each open a GPU of their own. All ranks call. */
DsvStatus dsvi_backend_open_rank(const DsvConfig *settings, DsvComm *comm, DsvBackend *backend);
void dsvi_backend_close(DsvBackend *backend); /* takes one that never opened: device NULL */

#ifdef __cplusplus
}
#endif
#endif
