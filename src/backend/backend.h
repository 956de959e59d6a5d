/* Opens the backend that a configuration names: the CPU or a GPU. */
#ifndef DSVI_BACKEND_H
#define DSVI_BACKEND_H

#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the backend that config->device names; reads config->isa, threads and deterministic, too. `auto`
 * opens a GPU if NVIDIA's driver shows one and the CUDA backend is installed, otherwise the CPU; a GPU that
 * is there but fails to open is an error. On success the caller closes *backend with dsvi_backend_close. On
 * failure backend->device is NULL. */
DsvStatus dsvi_backend_open(const DsvConfig *config, DsviBackend *backend);
/* As dsvi_backend_open, with the GPU's number on this machine, modulo the number of GPUs; the CPU backend
 * does not read `number`. */
DsvStatus dsvi_backend_open_number(const DsvConfig *config, int64_t number, DsviBackend *backend);
/* As dsvi_backend_open, for one of several ranks. All ranks of `comm` must call: the ranks on one machine
 * agree on GPU numbers, so that each opens a different GPU if the machine has enough. */
DsvStatus dsvi_backend_open_rank(const DsvConfig *config, DsviComm *comm, DsviBackend *backend);
/* Closes a backend. Does nothing if it was never opened (device NULL). */
void dsvi_backend_close(DsviBackend *backend);

#ifdef __cplusplus
}
#endif
#endif
