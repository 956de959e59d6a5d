/* A training run from its settings to its summary. */
#ifndef DSVI_RUN_H
#define DSVI_RUN_H

#include "dist/comm.h"
#include "dsv/train.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What dsv_train promises (include/dsv/train.h), on a backend that is open. `comm`: NULL, or the ranks that
 * train together and all make this call; rank 0 alone writes files, logs and fills the summary. A failure on
 * one rank ends it on all, and rank 0's sentence tells which rank it was. */
DsvStatus dsvi_train_run(const DsvConfig *settings, DsvBackend *backend, DsvComm *comm,
                         const DsvEvents *events, DsvTrainSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
