/* The folder a run lives in. */
#ifndef DSVI_RUN_FOLDER_H
#define DSVI_RUN_FOLDER_H

#include <stdbool.h>

#include "base/fs.h"
#include "dsv/config.h"
#include "sparse/sparse.h"
#include "train/superseded.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a run begins. */
typedef enum DsvRunStart {
    DSV_START_FRESH,  /* at the first step */
    DSV_START_RESUME, /* after a checkpoint of its own folder */
    DSV_START_BRANCH  /* after a checkpoint from elsewhere, in a folder that holds no run yet */
} DsvRunStart;

typedef struct DsvRunFolder {
    char root[DSVI_PATH_MAX];
    char samples[DSVI_PATH_MAX];
    char metrics[DSVI_PATH_MAX];      /* metrics.jsonl */
    char blocks[DSVI_PATH_MAX];       /* blocks.jsonl */
    char decisions[DSVI_PATH_MAX];    /* decisions.jsonl */
    char validation[DSVI_PATH_MAX];   /* validation.jsonl */
    char facts[DSVI_PATH_MAX];        /* run.json */
    char costs[DSVI_PATH_MAX];        /* context_costs.json, where ranks share clips */
    int place;                        /* descriptor of the folder itself; -1: not open */
    int lock;                         /* descriptor of `lock`, the file; -1: not locked */
    size_t found;                     /* bytes of `root` that led to a folder before this start */
    bool made_lock, accepted;
    DsvRunStart start;
    char checkpoint[DSVI_PATH_MAX];   /* to go on from; "": start is DSV_START_FRESH */
} DsvRunFolder;

/* Makes settings->output_dir if need be, locks it, which shows that it can be written, and decides whether
 * and from where the run goes on. Nothing of a run that the folder holds is changed before
 * dsvi_run_folder_accept; a folder closed without it is left as it was found, and one that was made is
 * removed.
 *
 * DSV_E_USAGE: the folder holds a run and the settings do not say to resume, or name a checkpoint that is not
 * one of the folder's own; or another process is at work in it. The folder stays locked until it is closed,
 * which is the caller's to do after a failure too. Where the file system has no locks, or what a killed run
 * has left cannot be removed, `warn` hears of it. */
DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsvSparseLog *log, DsvSparseLog *warn,
                               void *log_context, DsvRunFolder *folder);

/* Once the settings, the data and the checkpoint have been found to fit: makes the folder that of a run which
 * has done `step` steps. `latest` names its checkpoint; checkpoints and sampled clips of later steps, and a
 * config.yaml that says something else than `settings`, go into `superseded`; config.yaml holds `settings`.
 * Killed at any point, the same start can be made again. */
DsvStatus dsvi_run_folder_accept(DsvRunFolder *folder, const DsvConfig *settings, int64_t step,
                                 DsvSuperseded *superseded);

/* Whether `root` and its lock are still the folder and the file that were opened: not once they were removed,
 * moved or replaced. */
bool dsvi_run_folder_in_place(const DsvRunFolder *folder);

/* Makes and locks them again, so that work can be saved. DSV_E_USAGE when another run has the place. */
DsvStatus dsvi_run_folder_retake(DsvRunFolder *folder, const DsvConfig *settings, DsvSuperseded *superseded);

void dsvi_run_folder_close(DsvRunFolder *folder);

#ifdef __cplusplus
}
#endif
#endif
