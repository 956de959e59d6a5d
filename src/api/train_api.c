/* dsv_train: a backend, and the run on it (train/run.c). */
#include "dsv/train.h"

#include "api/backend.h"
#include "train/run.h"

DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary)
{
    DsvBackend backend;
    DsvEvents none = {0};
    DsvTrainSummary ignored;
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = dsvi_train_run(config, &backend, events ? events : &none,
                                      summary ? summary : &ignored);
    dsvi_backend_close(&backend);
    return status;
}
