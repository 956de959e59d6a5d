/* The records of a run: JSON lines files, TensorBoard events, progress reports and warnings. Used by rank 0
 * only. */
#ifndef DSVI_RUN_RECORD_H
#define DSVI_RUN_RECORD_H

#include "dsv/events.h"
#include "run/run_folder.h"
#include "train/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviRunRecord DsviRunRecord;

/* Opens the records and reads those of the steps up to trainer->step; does not change them. `peak_flops`: the
 * speed of a large matrix product (GEMM), to which the speed of training steps is compared. */
DsvStatus dsvi_run_record_open(const DsviRunFolder *folder, const DsviTrainer *trainer, double peak_flops,
                               const DsvEvents *events, DsviRunRecord **out);

/* Cuts the records after trainer->step, so that later steps can be appended. Lines of later steps are copied
 * into `superseded` first. */
DsvStatus dsvi_run_record_begin(DsviRunRecord *record, const DsviRunFolder *folder,
                                DsviSuperseded *superseded);
void dsvi_run_record_close(DsviRunRecord **record);

/* Returns the last step in metrics.jsonl; 0 if there is none. */
int64_t dsvi_run_record_last_step(const DsviRunRecord *record);

/* Waits until all records written so far are on disk (fsync). If TensorBoard's events cannot be synced,
 * events->log gets a warning and the call succeeds. */
DsvStatus dsvi_run_record_sync(DsviRunRecord *record);

/* Returns whether the paths of all JSON lines files still lead to the open files. */
bool dsvi_run_record_in_place(const DsviRunRecord *record);
/* Writes copies of files that are not in place (dsvi_metrics_restore). */
DsvStatus dsvi_run_record_restore(DsviRunRecord *record, DsviSuperseded *superseded);

/* Records a decision of the sparse layer, made in the current step or at start-up. If the line cannot be
 * written, the next dsvi_run_record_step returns the error. */
void dsvi_run_record_decision(DsviRunRecord *record, const char *reason);

/* Records the held-out loss after `step` steps. */
DsvStatus dsvi_run_record_held_out(DsviRunRecord *record, int64_t step, const DsviHeldOutLoss *loss);
/* Returns whether the last recorded held-out loss is of `step`. It may have been recorded before a resume. */
bool dsvi_run_record_has_held_out(const DsviRunRecord *record, int64_t step);

/* Adds the video file `path`, sampled after `step` steps, to TensorBoard's events, as samples/clip or, if it
 * shows a prompt of validation.prompts (`prompt` is not -1), as samples/prompt-NUMBER. A failure is logged as
 * a warning. */
void dsvi_run_record_clip(DsviRunRecord *record, int64_t step, int64_t prompt, const char *path);

/* Detects steps that spend too much time waiting for data. */
typedef struct DsviWaitWatch {
    double waited_s, taken_s; /* seconds of waiting, and of whole steps, in the steps counted so far */
    int64_t steps;
    bool told; /* dsvi_wait_watch_step has returned true, and never does so again */
} DsviWaitWatch;
/* Adds a step that took `step_s` seconds, of which `wait_s` waiting for data. Steps are judged in groups of
 * DSVI_WAIT_STEPS. Returns true after the first group that waited for more than a tenth of its time, and
 * never again. */
enum { DSVI_WAIT_STEPS = 20 };
bool dsvi_wait_watch_step(DsviWaitWatch *watch, double wait_s, double step_s);

/* Records one finished step and reports progress. After a failure to write TensorBoard's events, events->log
 * gets a warning and no more events are written. */
DsvStatus dsvi_run_record_step(DsviRunRecord *record, const DsviStepResult *result, double step_s);

#ifdef __cplusplus
}
#endif
#endif
