/* Checkpoints: everything that a run needs to resume with identical bits. A checkpoint is a folder that
 * becomes visible only when it is complete.
 *
 *     checkpoint-<step>/
 *         transformer/        a plain diffusers Wan folder: config.json and safetensors, F32
 *         transformer_ema/    the same with the moving average of the weights, if there is one
 *         lora.safetensors    with a LoRA instead of both folders (dsvi_checkpoint_lora_name)
 *         optimizer/          exp_avg.safetensors, exp_avg_sq.safetensors
 *         sparse.safetensors  state of selectors (including the predictor), profile and guard
 *         config.yaml         the effective configuration, without resume_from_checkpoint
 *         state.json          step, position in the data, seed, number of clips and a hash of the clip list
 *         manifest.json       size and checksum of every file above; written last
 *     latest                  a file that contains the name of the newest checkpoint
 *
 * With several ranks, rank 0 writes and reads the files. They do not depend on the number of ranks, so a run
 * may be resumed with another number. dsvi_checkpoint_save and dsvi_checkpoint_load are called by all ranks.
 *
 * The state of random generators needs no file, because all random numbers are functions of seed, purpose and
 * position (base/rng.h). A checkpoint is written under a temporary name, synced and renamed. A failure at any
 * time leaves earlier checkpoints complete. Readers use only files that the manifest lists, after checking
 * their checksums. */
#ifndef DSVI_CHECKPOINT_H
#define DSVI_CHECKPOINT_H

#include "base/fs.h"
#include "run/superseded.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names the file of a LoRA in a checkpoint for other programs, by the option model.expert: lora.safetensors,
 * lora_high_noise.safetensors or lora_low_noise.safetensors, with _ema before the dot for the moving average.
 */
enum { DSVI_LORA_FILE_BYTES = 48 };
void dsvi_checkpoint_lora_name(const char *expert, bool average, char name[DSVI_LORA_FILE_BYTES]);

/* Writes output_dir/checkpoint-<step>, where <step> is trainer->step, and makes `latest` name it. On rank 0
 * `path` receives its path, on other ranks "". On failure, the unfinished folder is removed. */
DsvStatus dsvi_checkpoint_save(DsviTrainer *trainer, const char *output_dir, char path[DSVI_PATH_MAX]);

/* Removes unfinished checkpoints of killed processes, and moves checkpoints that a later save of the same
 * step has replaced into superseded/. */
DsvStatus dsvi_checkpoint_tidy(const char *output_dir);

/* Calls dsvi_checkpoint_tidy, then removes the oldest checkpoints so that `keep` checkpoints of steps up to
 * `newest` remain; keep 0 removes none. Checkpoints of later steps, and those in superseded/, are neither
 * counted nor removed. If a checkpoint cannot be removed, the others are still removed and the failure is
 * returned. */
DsvStatus dsvi_checkpoint_prune(const char *output_dir, int64_t keep, int64_t newest);

/* Finds the newest undamaged checkpoint of a run: the one that `latest` names or, if it is damaged, the
 * newest earlier one. Each damaged one is reported to `log` (may be NULL). Checkpoints of later steps than
 * `latest` are not considered, because the run has gone back to an earlier step. If there is no checkpoint,
 * *found is false. If all are damaged, returns DSV_E_FORMAT. */
DsvStatus dsvi_checkpoint_latest(const char *output_dir, DsviSparseLog *log, void *log_context,
                                 char path[DSVI_PATH_MAX], bool *found);

/* Finds, like dsvi_checkpoint_latest, the newest checkpoint in which the file `part`, a path relative to it,
 * is undamaged. Reads no other file, which takes little time. *found is false if there is none. */
DsvStatus dsvi_checkpoint_latest_part(const char *output_dir, const char *part, char path[DSVI_PATH_MAX],
                                      bool *found);

/* Makes `latest` name checkpoint-<step>. */
DsvStatus dsvi_checkpoint_point(const char *output_dir, int64_t step);

/* Returns <step> if `path` is output_dir/checkpoint-<step>, possibly written in another way (relative,
 * through links); otherwise returns -1. */
int64_t dsvi_checkpoint_step_in(const char *output_dir, const char *path);

/* Moves the checkpoints of steps above `after` into `superseded`. */
DsvStatus dsvi_checkpoint_set_aside(const char *output_dir, int64_t after, DsviSuperseded *superseded);

/* Checks every file against the manifest. Returns DSV_E_FORMAT with the name of the first file that
 * differs. */
DsvStatus dsvi_checkpoint_verify(const char *path);

/* Checks that what the checkpoint was trained with lets the run `ours` continue: LoRA or all weights, expert,
 * optimizer and codec. DSV_E_USAGE names the option with both values. */
DsvStatus dsvi_checkpoint_check_options(const DsvConfig *ours, const char *path);

/* Verifies the checkpoint and restores weights, Adam moments, moving average, sparse state, step and position
 * in the data. A checkpoint with another model shape, codec or seed is an error whose message gives both
 * values. */
DsvStatus dsvi_checkpoint_load(DsviTrainer *trainer, const char *path);

/* Contents of state.json. */
typedef struct DsviCheckpointState {
    int64_t step, seed;
    uint64_t sample;             /* samples used so far: the position in the data */
    DsviDatasetFingerprint data; /* identifies the clips; zero in checkpoints of old versions */
} DsviCheckpointState;
DsvStatus dsvi_checkpoint_state(const char *path, DsviCheckpointState *state);

#ifdef __cplusplus
}
#endif
#endif
