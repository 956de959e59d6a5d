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

/* Reads the records that the run has of the steps up to trainer->step, and changes nothing. Measures what a
 * large GEMM reaches, the peak that step speeds are shown against. */
DsvStatus dsvi_run_record_open(const DsvRunFolder *folder, const DsvTrainer *trainer,
                               const DsvEvents *events, DsvRunRecord **out);

/* Makes them end after trainer->step, ready for the steps that follow; lines of later steps are copied into
 * `superseded` first. */
DsvStatus dsvi_run_record_begin(DsvRunRecord *record, const DsvRunFolder *folder, DsvSuperseded *superseded);
void dsvi_run_record_close(DsvRunRecord **record);

/* The last step that metrics.jsonl tells of; 0: none. */
int64_t dsvi_run_record_last_step(const DsvRunRecord *record);

/* Returns when everything written so far is on the disk. TensorBoard's events that cannot be synced are a
 * warning to events->log. */
DsvStatus dsvi_run_record_sync(DsvRunRecord *record);

/* Whether every file is still in its place; and what puts copies of those that are not there again
 * (dsvi_metrics_restore). */
bool dsvi_run_record_in_place(const DsvRunRecord *record);
DsvStatus dsvi_run_record_restore(DsvRunRecord *record, DsvSuperseded *superseded);

/* A decision of the sparse layer, taken in the step at work or, before the first, at start-up. A line that
 * cannot be written fails the next step's record. */
void dsvi_run_record_decision(DsvRunRecord *record, const char *reason);

/* The held-out loss after the step that was recorded last; and whether it is on record for `step`, be it from
 * before a resume. */
DsvStatus dsvi_run_record_held_out(DsvRunRecord *record, int64_t step, const DsvHeldOutLoss *loss);
bool dsvi_run_record_has_held_out(const DsvRunRecord *record, int64_t step);

/* Gives TensorBoard the clip in the file `path`, sampled after `step` steps. A failure is logged as a
 * warning. */
void dsvi_run_record_clip(DsvRunRecord *record, int64_t step, const char *path);

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
