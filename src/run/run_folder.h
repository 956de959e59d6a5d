/* The run folder: paths of its files, its lock, and whether a run in it is resumed. */
#ifndef DSVI_RUN_FOLDER_H
#define DSVI_RUN_FOLDER_H

#include <stdbool.h>

#include "base/fs.h"
#include "dsv/config.h"
#include "sparse/sparse.h"
#include "run/superseded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a run begins. */
typedef enum DsviRunStart {
    DSVI_START_FRESH,  /* with initial weights, at step 1 */
    DSVI_START_RESUME, /* from a checkpoint in the run's own folder */
    DSVI_START_BRANCH  /* from a checkpoint in another folder; the run's own folder holds no run yet */
} DsviRunStart;

typedef struct DsviRunFolder {
    char root[DSVI_PATH_MAX];
    char samples[DSVI_PATH_MAX];
    char metrics[DSVI_PATH_MAX];    /* metrics.jsonl */
    char blocks[DSVI_PATH_MAX];     /* blocks.jsonl */
    char decisions[DSVI_PATH_MAX];  /* decisions.jsonl */
    char validation[DSVI_PATH_MAX]; /* validation.jsonl */
    char facts[DSVI_PATH_MAX];      /* run.json */
    char costs[DSVI_PATH_MAX];      /* context_costs.json, if ranks share clips */
    int place;                      /* file descriptor of the folder; -1: not open */
    int lock;                       /* file descriptor of the file `lock`; -1: not locked */
    size_t found;                   /* length of the prefix of `root` that existed before this start */
    bool made_lock;                 /* this start has created the file `lock` */
    bool accepted;                  /* dsvi_run_folder_accept was called */
    DsviRunStart start;
    char checkpoint[DSVI_PATH_MAX]; /* checkpoint to start from; "" for DSVI_START_FRESH */
} DsviRunFolder;

/* Creates settings->output_dir if it does not exist, locks it, and decides whether and from which checkpoint
 * the run resumes. Does not change a run in the folder before dsvi_run_folder_accept. If the folder is closed
 * without this call, it is left as it was, and removed if it was created here.
 *
 * Returns DSV_E_USAGE if the folder holds a run and the options do not ask to resume it, if they name a
 * checkpoint of another run, or if another process uses the folder. The caller must call
 * dsvi_run_folder_close, also after a failure; the folder stays locked until then. `warn` is called if the
 * file system does not support locks, or if unfinished files of a killed run cannot be removed. */
DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsviSparseLog *log, DsviSparseLog *warn,
                               void *log_context, DsviRunFolder *folder);

/* Checks before data is prepared, which can take hours, that settings->output_dir is a folder or a new name
 * and holds no other run, or that it holds the checkpoint that is named, whose options are checked. Changes
 * nothing: locks and permissions are left to dsvi_run_folder_open. Of a checkpoint that `latest` finds only
 * the options are read, whose file is whole: dsvi_run_folder_open checks the other files. */
DsvStatus dsvi_run_folder_check(const DsvConfig *settings);

/* Prepares the folder for a run that has done `step` steps. Call after options, data and checkpoint were
 * checked. Makes `latest` name the checkpoint of `step`, moves checkpoints and sampled clips of later steps
 * and a different config.yaml into `superseded`, and writes `settings` to config.yaml. If the process is
 * killed in between, the same start can be repeated. */
DsvStatus dsvi_run_folder_accept(DsviRunFolder *folder, const DsvConfig *settings, int64_t step,
                                 DsviSuperseded *superseded);

/* Returns whether the paths of the folder and of its lock still lead to the folder and the file that were
 * opened. They do not if somebody removed, moved or replaced them. */
bool dsvi_run_folder_in_place(const DsviRunFolder *folder);

/* Creates and locks the folder again, so that a checkpoint can be saved. Returns DSV_E_USAGE if another run
 * is there now. */
DsvStatus dsvi_run_folder_retake(DsviRunFolder *folder, const DsvConfig *settings,
                                 DsviSuperseded *superseded);

void dsvi_run_folder_close(DsviRunFolder *folder);

#ifdef __cplusplus
}
#endif
#endif
