/* Checkpoints: everything a run needs to go on to the bit, in a folder that is either whole or not there.
 *
 *     checkpoint-<step>/
 *         transformer/        a plain diffusers Wan folder: config.json and safetensors, F32
 *         transformer_ema/    the same with the moving average, where there is one
 *         optimizer/          exp_avg.safetensors, exp_avg_sq.safetensors
 *         sparse.safetensors  selectors (the predictor among them), profile and dispatch state
 *         config.yaml         the effective configuration, but not where the run was resumed from
 *         state.json          step, position in the data, seed; which data: number of clips, their hash
 *         manifest.json       every file above with its bytes and checksum; written last
 *     latest                  a file that names the newest checkpoint
 *
 * With several ranks rank 0 writes and reads; the files say nothing of how many there were, and a run may go
 * on with any other number. Every rank makes the calls.
 *
 * Random states need no file: all numbers are functions of seed, purpose and position (base/rng.h). A
 * checkpoint is written under a temporary name, synced and renamed; whatever happens on the way, the
 * checkpoints before it stay whole. Readers trust only what the manifest lists, once checksums agree. */
#ifndef DSVI_CHECKPOINT_H
#define DSVI_CHECKPOINT_H

#include "base/fs.h"
#include "train/superseded.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes checkpoint-<trainer->step> into output_dir and points `latest` at it. `path` receives its name. On
 * failure nothing of it is left. */
DsvStatus dsvi_checkpoint_save(DsvTrainer *trainer, const char *output_dir, char path[DSVI_PATH_MAX]);

/* Removes what killed saves have left unfinished, and moves what later ones have replaced into
 * superseded/. */
DsvStatus dsvi_checkpoint_tidy(const char *output_dir);

/* The same, and removes the oldest checkpoints until `keep` are left up to step `newest`, one of them; keep 0
 * removes none. Checkpoints of later steps, and those in superseded/, stay and do not count: the run went
 * back from there, and they are not its past. One that cannot be removed does not keep the others from it. */
DsvStatus dsvi_checkpoint_prune(const char *output_dir, int64_t keep, int64_t newest);

/* The newest whole checkpoint of a run: the one `latest` names, or if that is damaged the newest before it,
 * said so through `log`. Checkpoints of later steps are no choice: the run went back from there. *found is
 * false when there is none at all; checkpoints that are all damaged are DSV_E_FORMAT. */
DsvStatus dsvi_checkpoint_latest(const char *output_dir, DsvSparseLog *log, void *log_context,
                                 char path[DSVI_PATH_MAX], bool *found);

/* Makes `latest` name checkpoint-<step>, if it does not yet. */
DsvStatus dsvi_checkpoint_point(const char *output_dir, int64_t step);

/* The step in the name of the checkpoint at `path` if that is output_dir/checkpoint-<step>, however the path
 * is written; else -1. */
int64_t dsvi_checkpoint_step_in(const char *output_dir, const char *path);

/* Moves the checkpoints of steps above `after` into `superseded`. */
DsvStatus dsvi_checkpoint_set_aside(const char *output_dir, int64_t after, DsvSuperseded *superseded);

/* Checks every file against the manifest. DSV_E_FORMAT names the first that differs. */
DsvStatus dsvi_checkpoint_verify(const char *path);

/* Verifies, then restores weights, moments, moving average, sparse state, step and data position. A
 * checkpoint of another model shape, codec or seed is an error that names both. */
DsvStatus dsvi_checkpoint_load(DsvTrainer *trainer, const char *path);

/* What state.json tells. */
typedef struct DsvCheckpointState {
    int64_t step, seed;
    uint64_t sample;     /* the position in the data */
    DsvDatasetMark data; /* not known of the checkpoints of old versions */
} DsvCheckpointState;
DsvStatus dsvi_checkpoint_state(const char *path, DsvCheckpointState *state);

#ifdef __cplusplus
}
#endif
#endif
