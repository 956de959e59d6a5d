/* A complete training run. */
#ifndef DSVI_RUN_H
#define DSVI_RUN_H

#include "data/captions.h"
#include "data/text_states.h"
#include "dist/comm.h"
#include "dsv/train.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The prompts whose clips the run samples. */
typedef struct DsviRunPrompts {
    DsviCaptions list;   /* with the keys of their states; other ranks than 0 have keys only */
    DsviTextStore store; /* where their states and those of the empty prompt are */
} DsviRunPrompts;

/* Implements dsv_train (include/dsv/train.h) on an open backend. `comm` is the group of all ranks, which all
 * make this call; NULL: one rank. `prompts`: of sampled clips; NULL: they show captions of the data. Only
 * rank 0 writes files, logs information and fills `summary`. A failure on one rank ends the run on all ranks,
 * and rank 0's error message names the rank. */
DsvStatus dsvi_train_run(const DsvConfig *settings, DsviBackend *backend, DsviComm *comm,
                         const DsviRunPrompts *prompts, const DsvEvents *events, DsvTrainSummary *summary);

#ifdef __cplusplus
}
#endif
#endif
