/* dsv_train and dsv_train_ranks: open a backend and train on it (run/run.c). */
#include "dsv/train.h"

#include <string.h>

#include "api/described_device.h"
#include "api/train_data.h"
#include "base/config_abi.h"
#include "backend/backend.h"
#include "dist/ranks.h"
#include "plan/card_table.h"
#include "run/expert.h"
#include "run/preview.h"
#include "run/run.h"
#include "run/run_folder.h"

DsvStatus dsv_train_preview(const DsvConfig *config, void (*line)(void *context, const char *text),
                            void *context)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsvConfig prepared = *config;
    DsviBackend backend;
    DSVI_TRY(dsvi_expert_prepare(&prepared, line, context));
    DSVI_TRY(dsvi_backend_open(config, &backend));
    DsvStatus status = dsvi_preview_report(&prepared, &backend, NULL, line, context);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train_preview_card(const char *card, const DsvConfig *config,
                                 void (*line)(void *context, const char *text), void *context)
{
    DsviDeviceTable table;
    DSVI_TRY(dsvi_config_check_abi(config));
    DSVI_TRY(dsvi_card_find(card, &table));
    return dsvi_described_preview(&table, config, line, context);
}

/* Passes on what rank 0 says about the expert (DsviSparseLog). */
static void log_expert(void *context, const char *line)
{
    const DsvEvents *events = context;
    if (events->log)
        events->log(events->context, DSV_LOG_INFO, line);
}

/* Checks the options before clips are encoded, which can take hours. */
static DsvStatus prepare_data(DsvConfig *config, DsviBackend *backend, DsviComm *comm,
                              const DsvEvents *events, DsviRunPrompts *prompts)
{
    bool first = dsvi_comm_rank(comm) == 0, encodes = strcmp(config->codec_name, "wan") == 0;
    DSVI_TRY(dsvi_expert_prepare(config, first ? log_expert : NULL, (void *)events));
    if (first)
        DSVI_TRY(dsvi_run_folder_check(config));
    if (encodes)
        DSVI_TRY(first ? dsvi_preview_check_clips(config, backend, dsvi_comm_size(comm))
                       : dsvi_preview_check(config, backend));
    return dsvi_train_data_prepare(config, backend, comm, events, prompts);
}

DsvStatus dsv_train_ranks(DsvRanks *ranks, const DsvConfig *config, const DsvEvents *events,
                          DsvTrainSummary *summary)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    DsviComm *comm = ranks ? ranks->comm : NULL;
    DsviBackend backend;
    DsvEvents none = {0};
    DsvTrainSummary ignored;
    DsvConfig prepared = *config;
    DsviRunPrompts prompts = {.list = {0}};
    DsvStatus status = dsvi_backend_open_rank(config, comm, &backend);
    if (status != DSV_OK)
        return dsvi_comm_fail(comm, status);
    if (!events)
        events = &none;
    status = prepare_data(&prepared, &backend, comm, events, &prompts);
    if (status == DSV_OK)
        status = dsvi_train_run(&prepared, &backend, comm, prompts.list.count > 0 ? &prompts : NULL, events,
                                summary ? summary : &ignored);
    else
        status = dsvi_comm_fail(comm, status);
    dsvi_captions_free(&prompts.list);
    dsvi_backend_close(&backend);
    return status;
}

DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary)
{
    return dsv_train_ranks(NULL, config, events, summary);
}
