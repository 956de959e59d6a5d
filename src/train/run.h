/* A training run from its settings to its summary. */
#ifndef DSVI_RUN_H
#define DSVI_RUN_H

#include "dsv/train.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What dsv_train promises (include/dsv/train.h), on a backend that is open. */
DsvStatus dsvi_train_run(const DsvConfig *settings, DsvBackend *backend, const DsvEvents *events,
                         DsvTrainSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
