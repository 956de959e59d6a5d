/* dsv_train and dsv_train_ranks: open a backend and train on it (run/run.c). */
#include "dsv/train.h"

#include "base/config_abi.h"
#include "backend/backend.h"
#include "dist/ranks.h"
#include "run/preview.h"
#include "run/run.h"

DsvStatus dsv_train_preview(const DsvConfig *config, void (*line)(void *context, const char *text),
                            void *context)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviBackend backend;
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = dsvi_preview_report(config, &backend, line, context);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviComm *comm = ranks ? ranks->comm : NULL;
    DsviBackend backend;
    DsvEvents none = {0};
    DsvTrainSummary ignored;
    DsvStatus status = dsvi_backend_open_rank(config, comm, &backend);
    if (status != DSV_OK)
        return dsvi_comm_fail(comm, status);
    status = dsvi_train_run(config, &backend, comm, events ? events : &none, summary ? summary : &ignored);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary)
{
    return dsv_train_ranks(NULL, config, events, summary);
}
