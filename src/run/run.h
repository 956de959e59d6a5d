/* A complete training run. */
#ifndef DSVI_RUN_H
#define DSVI_RUN_H

#include "dist/comm.h"
#include "dsv/train.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Implements dsv_train (include/dsv/train.h) on an open backend. `comm` is the group of all ranks, which all
 * make this call; NULL: one rank. Only rank 0 writes files, logs information and fills `summary`. A failure
 * on one rank ends the run on all ranks, and rank 0's error message names the rank. */
DsvStatus dsvi_train_run(const DsvConfig *settings, DsviBackend *backend, DsviComm *comm,
                         const DsvEvents *events, DsvTrainSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
