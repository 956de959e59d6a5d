/* The state of a training run, shared by the files that make one up:
 *     run.c       opens the run, runs all steps, and sums them up
 *     run_log.c   lines for the user
 *     run_data.c  clips, sizes, text states, held-out windows, and the threads that read samples
 *     run_save.c  loads and saves checkpoints
 * Other files include run.h. */
#ifndef DSVI_RUN_INTERNAL_H
#define DSVI_RUN_INTERNAL_H

#include "data/prefetch.h"
#include "run/model_path.h"
#include "run/run.h"
#include "run/run_folder.h"
#include "run/run_record.h"
#include "run/run_sizes.h"
#include "run/sampled_clips.h"
#include "train/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum number of lines about measured costs: one of attention, one of transfers between ranks. */
enum { DSVI_RUN_COSTS = 12 };

typedef struct DsviRun {
    const DsvConfig *settings;
    DsviBackend *backend;
    DsviComm *comm; /* all ranks of the run; NULL: one rank */
    const DsvEvents *events;
    DsvTrainSummary *summary;
    DsviRunFolder folder;
    DsviDataset *dataset;
    DsviCodec *codec;
    DsviModelPath model; /* initial weights, if model.path is set and the run starts afresh */
    DsviDitConfig config;
    DsviTrainerExperts experts; /* with model.expert, if clips are sampled */
    DsviTrainer *trainer;
    DsviRunSizes sizes;
    DsviRunNumbers numbers; /* of the samples of this rank */
    int64_t size_elements[DSVI_CLIP_SIZES_MAX];
    DsviPrefetch *prefetch;
    DsviRunRecord *record;          /* on rank 0 */
    double peak_flops;              /* on rank 0: FLOP/s of a large matrix product */
    uint64_t resident_before;       /* resident bytes before the run allocates memory: code and libraries */
    char cost[DSVI_RUN_COSTS][256]; /* decisions logged before `record` was open: measured costs, the
                                     * plan of memory */
    int costs;
    const DsviRunPrompts *prompts; /* of sampled clips; NULL: they show captions of the data */
    DsviSampledTexts sampled;
    DsviSampledPictures pictures; /* of sampled clips */
    double start;                 /* dsvi_clock_seconds at the start */
    int64_t saved_step;           /* step of the newest checkpoint, or -1 */
    int64_t sampled_step;         /* step of the newest validation clip, or -1 */
} DsviRun;

/* ---- run_log.c ---- */

/* Returns whether this is rank 0. */
bool dsvi_run_is_first(const DsviRun *run);
/* Logs a line. Information is logged by rank 0 only, warnings by every rank. */
DSVI_PRINTF(3, 4)
void dsvi_run_log(const DsviRun *run, DsvLogLevel level, const char *format, ...);
/* Callbacks of lower layers, with the run as context: information, decisions about attention, a line of any
 * level, and warnings. Decisions are also recorded. The first decisions, measured costs and the plan of
 * memory, come before the
 * record is open and are kept in run->cost. */
void dsvi_run_log_line(void *run, const char *line);
void dsvi_run_decision_line(void *run, const char *line);
void dsvi_run_event_line(void *run, DsvLogLevel level, const char *line);
void dsvi_run_warn_line(void *run, const char *line);

/* ---- run_data.c ---- */

/* Opens the codec, and checks that it can decode the clips that the run samples. */
DsvStatus dsvi_run_open_codec(DsviRun *run);
/* Opens the clips or the latent cache at data.path, and logs what is left out. */
DsvStatus dsvi_run_open_data(DsviRun *run);
/* Returns whether the model is trained with text: the data has text states. */
bool dsvi_run_has_text(const DsviRun *run);
/* Checks that the text states fit the model, assigns the clips to sizes, and logs which clips fit none.
 * run->config must be set. */
DsvStatus dsvi_run_assign_sizes(DsviRun *run);
/* Writes the list of inputs, inputs.csv, into the run folder. */
DsvStatus dsvi_run_list_inputs(const DsviRun *run);
/* Writes the prompts of sampled clips into the run folder, each to samples/prompt-NUMBER/prompt.txt. */
DsvStatus dsvi_run_list_prompts(const DsviRun *run);
/* Reads and encodes the held-out windows, which have the size of the settings. */
DsvStatus dsvi_run_open_held_out(const DsviRun *run);
/* Reads what sampled clips show. Texts: the states of the prompts or, without prompts, from the latent cache,
 * where each cp group takes the first caption of another item; all steer away from the empty prompt.
 * Pictures, if the model makes clips of them: of windows of validation.data or, without it, of data.path. */
DsvStatus dsvi_run_open_sampled(DsviRun *run);
/* Starts the threads that read the samples of this rank. */
DsvStatus dsvi_run_start_prefetch(DsviRun *run);
/* Logs how many samples of all ranks took the place of unreadable ones, if any. Called by all ranks. */
DsvStatus dsvi_run_report_replaced(const DsviRun *run);
/* Returns the source of samples for training steps; the prefetch must be started. */
DsviSampleSource dsvi_run_source(const DsviRun *run);

/* ---- run_save.c ---- */

/* Initialises the trainer from a checkpoint, from the weights at model.path, or with random weights. */
DsvStatus dsvi_run_load_state(DsviRun *run);
/* Saves a checkpoint of the current step, unless there is one, and removes the oldest above
 * checkpoints_total_limit. Fails after it has saved if the run folder was removed or replaced. */
DsvStatus dsvi_run_save(DsviRun *run);

#ifdef __cplusplus
}
#endif
#endif
