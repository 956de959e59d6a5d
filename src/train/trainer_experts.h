/* A run that trains the LoRA of one expert of two, and samples clips with both: the other expert is lent from
 * its files. It takes the place of the trainer's frozen weights for its steps, without the LoRA. */
#ifndef DSVI_TRAINER_EXPERTS_H
#define DSVI_TRAINER_EXPERTS_H

#include "base/fs.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTrainer DsviTrainer;

typedef struct DsviTrainerExperts {
    char path[2][DSVI_PATH_MAX]; /* weights for high and for low noise */
    int trained;                 /* index in `path` */
    double boundary;             /* timestep, 0 to 1000, from which on the expert for high noise computes */
} DsviTrainerExperts;

/* Opens the files of the expert that is not trained, and fails if they do not hold the trainer's parameters.
 * Reads no values. */
DsvStatus dsvi_trainer_check_lent(const DsviTrainer *trainer);

/* Makes expert 0 or 1 the one with which `trainer` (a DsviTrainer) computes. The LoRA belongs to the trained
 * one. Attention of sampled clips is dense with the other. Called by all ranks, between steps; after a
 * failure neither expert is whole and the run must end. */
DsvStatus dsvi_trainer_use_expert(void *trainer, int expert);

#ifdef __cplusplus
}
#endif
#endif
