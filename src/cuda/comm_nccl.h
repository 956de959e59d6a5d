/* A group of ranks over the memory of their GPUs: NCCL moves the bytes. */
#ifndef DSVI_COMM_NCCL_H
#define DSVI_COMM_NCCL_H

#include "dist/comm.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DsvBackend.join. NCCL is loaded here (libnccl.so.2): DSV_E_UNSUPPORTED where there is none. */
DsvStatus dsvi_comm_nccl_join(const DsvBackend *backend, DsvComm *host, DsvComm **out);

#ifdef __cplusplus
}
#endif
#endif
