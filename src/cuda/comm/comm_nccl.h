/* A DsviComm (dist/comm.h) for device memory: NCCL transfers the bytes from GPU to GPU. */
#ifndef DSVI_COMM_NCCL_H
#define DSVI_COMM_NCCL_H

#include "dist/comm.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Implements DsviBackend.join (ops/ops.h): makes a group of the ranks of `host` for the memory of the
 * backend's GPU. All ranks of `host` must call. Loads libnccl.so.2, and returns DSV_E_UNSUPPORTED if there is
 * none. Close *out before `host` and the backend. */
DsvStatus dsvi_comm_nccl_join(const DsviBackend *backend, DsviComm *host, DsviComm **out);

#ifdef __cplusplus
}
#endif
#endif
