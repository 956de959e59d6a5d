/* The folder a run lives in. */
#ifndef DSVI_RUN_FOLDER_H
#define DSVI_RUN_FOLDER_H

#include <stdbool.h>

#include "base/fs.h"
#include "dsv/config.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvRunFolder {
    char root[DSVI_PATH_MAX];
    char samples[DSVI_PATH_MAX];
    char metrics[DSVI_PATH_MAX];      /* metrics.jsonl */
    char blocks[DSVI_PATH_MAX];       /* blocks.jsonl */
    char decisions[DSVI_PATH_MAX];    /* decisions.jsonl */
    char validation[DSVI_PATH_MAX];   /* validation.jsonl */
    char facts[DSVI_PATH_MAX];        /* run.json */
    char costs[DSVI_PATH_MAX];        /* context_costs.json, where ranks share clips */
    int lock;                         /* descriptor of `lock`, the file; -1: not locked */
    bool resume;
    char checkpoint[DSVI_PATH_MAX];   /* to go on from, when resume */
} DsvRunFolder;

/* Makes settings->output_dir if need be, proves that it can be written, decides whether and from where the
 * run goes on, and stores the effective configuration as config.yaml. A folder that holds a run already is
 * DSV_E_USAGE unless the settings say to resume, and so is one in which another process is at work: it stays
 * locked until it is closed, which is the caller's to do after a failure too. Where the file system has no
 * locks, or what a killed run has left cannot be removed, `warn` hears of it. */
DsvStatus dsvi_run_folder_open(const DsvConfig *settings, DsvSparseLog *log, DsvSparseLog *warn,
                               void *log_context, DsvRunFolder *folder);
void dsvi_run_folder_close(DsvRunFolder *folder);

#ifdef __cplusplus
}
#endif
#endif
