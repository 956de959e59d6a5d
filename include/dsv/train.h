/** @file
 * Training a model in one process. */
#ifndef DSV_TRAIN_H
#define DSV_TRAIN_H

#include <stdbool.h>

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a call of dsv_train() has done. */
typedef struct DsvTrainSummary {
    int64_t first_step;    /**< steps done before this call: 0, or the step of the checkpoint it resumed */
    int64_t last_step;     /**< the last step done; this call did first_step < step <= last_step */
    double first_loss;     /**< mean loss over the first 10 steps of the run; NaN if there are none */
    double last_loss;      /**< mean loss over the last 20 steps of the run; NaN if there are none */
    double seconds;        /**< wall time of the call */
    int64_t sparse_blocks; /**< transformer blocks with sparse attention (over key lists) at the end */
    int64_t blocks;        /**< transformer blocks of the model */
    double captured_mass;  /**< fraction of the exact attention weights on listed keys, mean over sparse
                              blocks; NaN if none */
    double output_error; /**< with a tail: relative error of attention's output over lists and tail, mean over
                            sparse blocks; NaN if none; 0 without a tail */
    bool dense_finish;   /**< the run ended in its dense finish, in which all blocks attend densely */
    char checkpoint[DSV_TEXT_MAX]; /**< path of the newest checkpoint, or "" */
    char sample[DSV_TEXT_MAX];     /**< path of the newest sampled clip, or "" */
} DsvTrainSummary;

/** Trains as `config` says and writes everything into `config->output_dir`, which docs/run_folder.md
 * describes.
 *
 * A folder that holds a run is resumed or refused, never overwritten. After DSV_E_INTERRUPTED a checkpoint
 * has been written, and the same call with resume_from_checkpoint = latest continues from it.
 *
 * @param config  is not kept
 * @param events  may be NULL
 * @param summary filled on success and after DSV_E_INTERRUPTED; may be NULL
 * @return DSV_E_USAGE for options that contradict each other or a folder that must not be changed;
 *     DSV_E_NOT_FOUND if there are no clips; DSV_E_NO_MEMORY, with a message that names options
 *     with which the run would fit; DSV_E_DIVERGED; DSV_E_INTERRUPTED; DSV_E_IO; DSV_E_DEVICE. The message
 *     of a failure names the newest checkpoint that is whole, if there is one. */
DsvStatus dsv_train(const DsvConfig *config, const DsvEvents *events, DsvTrainSummary *summary);

/** Checks the options against each other and describes, line by line, what a run on one rank would be and
 * need. The memory it reports is exactly the memory plan of dsv_train() on `config->device`, which must be
 * present. Opens no clip and writes no file.
 * @param config  the options of the run
 * @param line    called for each line, without a newline; must not be NULL
 * @param context handed to `line`
 * @return DSV_E_USAGE; DSV_E_NO_MEMORY if the device has too little free memory, with a message that
 *     names options with which the run would fit */
DsvStatus dsv_train_preview(const DsvConfig *config, void (*line)(void *context, const char *text),
                            void *context);

/** As dsv_train_preview(), for a card that need not be there; the option device is not read. The working
 * memory of GPU kernels is not counted. Times are given only for cards whose speeds were measured.
 * @param card    a name of dsv_card_info(); a wrong one is refused with the list of names
 * @param config  the options of the run
 * @param line    called for each line, without a newline; must not be NULL
 * @param context handed to `line`
 * @return as dsv_train_preview() */
DsvStatus dsv_train_preview_card(const char *card, const DsvConfig *config,
                                 void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
