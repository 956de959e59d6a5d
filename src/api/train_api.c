/* dsv_train, alone and on several ranks: a backend, and the run on it (train/run.c). */
#include "dsv/train.h"

#include "api/backend.h"
#include "api/ranks.h"
#include "train/preview.h"
#include "train/run.h"

static DsvStatus train(DsvComm *comm, const DsvConfig *config, const DsvEvents *events,
                       DsvTrainSummary *summary)
{
    DsvBackend backend;
    DsvEvents none = {0};
    DsvTrainSummary ignored;
    DsvStatus status = dsvi_backend_open_rank(config, comm, &backend);
    if (status != DSV_OK)
        return dsvi_comm_fail(comm, status);
    status = dsvi_train_run(config, &backend, comm, events ? events : &none, summary ? summary : &ignored);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train_preview(const DsvConfig *config, void (*line)(void *context, const char *text),
                            void *context)
{
    DsvBackend backend;
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = dsvi_preview_tell(config, &backend, line, context);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary)
{
    return train(NULL, config, events, summary);
}

DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary)
{
    return train(ranks->comm, config, events, summary);
}
