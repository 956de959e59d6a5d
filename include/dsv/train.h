/* Training. */
#ifndef DSV_TRAIN_H
#define DSV_TRAIN_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvTrainSummary {
    int64_t first_step, last_step;   /* steps done by this call: first_step < step <= last_step */
    double first_loss, last_loss;    /* means over the first 10 and last 20 steps of the run's metrics */
    double seconds;
    int64_t sparse_blocks, blocks;
    double captured_mass;
    char checkpoint[DSV_TEXT_MAX];   /* the newest, or "" */
    char sample[DSV_TEXT_MAX];       /* the newest sampled clip, or "" */
} DsvTrainSummary;

/* Trains as `config` says, in and into config->output_dir. On DSV_E_INTERRUPTED a checkpoint was written
 * and the same call with resume_from_checkpoint = latest goes on from it. `summary` may be NULL; it is
 * filled on success and on interruption. */
DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary);

/* Checks the settings against each other and tells, line by line, what a run on one rank would be and take:
 * exactly the memory plan of dsv_train on config->device, which must be there. Reads no clip, writes no file.
 * DSV_E_NO_MEMORY, with settings that would fit, where the device has too little memory free. */
DsvStatus dsv_train_preview(const DsvConfig *config, void (*line)(void *context, const char *text),
                            void *context);

#ifdef __cplusplus
}
#endif
#endif
