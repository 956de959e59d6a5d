/* What a run leaves for people: metrics, TensorBoard events, the progress line, log lines. */
#ifndef DSVI_RUN_RECORD_H
#define DSVI_RUN_RECORD_H

#include "dsv/events.h"
#include "train/run_folder.h"
#include "train/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvRunRecord DsvRunRecord;

/* Opens the files of the run for steps after trainer->step: later lines of an earlier attempt are dropped.
 * Measures what a large GEMM reaches, the peak that step speeds are shown against. */
DsvStatus dsvi_run_record_open(const DsvRunFolder *folder, const DsvTrainer *trainer,
                               const DsvEvents *events, DsvRunRecord **out);
void dsvi_run_record_close(DsvRunRecord **record);

/* A decision of the sparse layer, taken in the step at work or, before the first, at start-up. A line that
 * cannot be written fails the next step's record. */
void dsvi_run_record_decision(DsvRunRecord *record, const char *reason);

/* The held-out loss after the step that was recorded last; and whether it is on record for `step`, be it from
 * before a resume. */
DsvStatus dsvi_run_record_held_out(DsvRunRecord *record, int64_t step, const DsvHeldOutLoss *loss);
bool dsvi_run_record_has_held_out(const DsvRunRecord *record, int64_t step);

/* Steps in a row whose time went into waiting for data. */
typedef struct DsvWaitWatch {
    double waited_s, taken_s;
    int64_t steps;
    bool told;
} DsvWaitWatch;
/* A step that took `step_s`, `wait_s` of it for data. True once: after the first DSVI_WAIT_STEPS that waited
 * for more than a tenth of their time. */
enum { DSVI_WAIT_STEPS = 20 };
bool dsvi_wait_watch_step(DsvWaitWatch *watch, double wait_s, double step_s);

/* One finished step. TensorBoard's events that cannot be written end there with a warning to events->log. */
DsvStatus dsvi_run_record_step(DsvRunRecord *record, const DsvStepResult *result, double step_s);

#ifdef __cplusplus
}
#endif
#endif
