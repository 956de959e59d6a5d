/** @file
 * Plans that need no run: how ranks that share a clip divide its self-attention, how much time each division
 * takes, and how training fits into little memory. */
#ifndef DSV_PLAN_H
#define DSV_PLAN_H

#include "dsv/bench.h"
#include "dsv/ranks.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What dsv_plan() is asked. Zero-initialise it for the defaults. */
typedef struct DsvPlanQuestion {
    int64_t ranks; /**< ranks that share a clip; 0: as many as the option cp_size */
    /** JSON file with measured costs of attention and of transfers between ranks, as `save` or a run writes
     * it; NULL: the costs are measured. */
    const char *table;
    /** Density of the key lists, that is the fraction of all keys in a list: a number for all lists, or a
     * JSON file with an array that holds, for each block, a density, an array with one density for each head,
     * or null for a block that attends densely. NULL: all blocks attend densely. */
    const char *densities;
    const char *save; /**< the table of costs is written there; NULL: nowhere */
} DsvPlanQuestion;

/** Plans how ranks share a clip, and reports the plan as a table: the tokens of each rank, and for each block
 * of the model the degrees (ranks that divide heads x ranks that divide tokens), the heads of each rank and
 * the expected time of a training step's attention. For comparison it reports the time of three fixed
 * choices: all ranks divide the heads in order; all ranks divide the tokens and exchange only the keys in key
 * lists; all ranks divide the tokens and exchange all keys.
 *
 * Without a table of costs, attention and the links between ranks are measured.
 *
 * @param ranks     the ranks that share the clip, whose links are measured; all of them call, rank 0
 *     reports and writes. NULL: this process measures on the CPU, with threads in place of ranks.
 * @param question  what is to be planned
 * @param config    the model, the length of the clip and the sparse options
 * @param json_path the plan as one JSON object; NULL: nowhere
 * @param line      receives the table line by line; may be NULL
 * @param context   handed to `line`
 * @return DSV_E_USAGE; DSV_E_NOT_FOUND and DSV_E_FORMAT for the files of `question`; DSV_E_RANK; DSV_E_IO */
DsvStatus dsv_plan(DsvRanks *ranks, const DsvPlanQuestion *question, const DsvConfig *config,
                   const char *json_path, DsvLine *line, void *context);

/** A card that plans know by name (DsvMemoryQuestion, dsv_train_preview_card()). */
typedef struct DsvCardInfo {
    const char *name;  /**< such as "rtx4090" */
    const char *title; /**< such as "NVIDIA GeForce RTX 4090" */
    /** GiB that CUDA reports in all, rounded down; the driver keeps the rest of the nominal memory */
    double memory_gib;
    bool measured; /**< the speeds were measured on this card, so that plans give times */
} DsvCardInfo;

/** Describes a card that plans know.
 * @param index counts the cards from 0
 * @return the card, static; NULL past the last one */
const DsvCardInfo *dsv_card_info(size_t index);

/** What dsv_plan_memory() is asked. Zero-initialise it for the defaults. */
typedef struct DsvMemoryQuestion {
    double memory_gib; /**< GiB of device memory that training may use; 0: those of the option memory_gib or
                        * of the table */
    /** JSON file with speeds and memory of the device: an object with the numbers tflops, memory_gbs and
     * link_gbs, and if known host_gbs, update_gbs, memory_gib and host_gib. NULL: speeds of a recent data
     * centre GPU. */
    const char *table;
    /** In place of a table, the name of a card of dsv_card_info(). A wrong name is refused with the list of
     * names. Times are given only for cards whose speeds were measured. NULL: none. */
    const char *card;
} DsvMemoryQuestion;

/** Plans the memory of training on one rank with offload=auto, without the device: reports a table of
 * settings, each with the device memory and host memory that it takes and the predicted time of a step, and
 * which one is chosen. The options device and offload of `config` are not read.
 *
 * @param question what is to be planned
 * @param config   the model, the clips and the options of training
 * @param line     receives the table line by line
 * @param context  handed to `line`
 * @return DSV_E_NO_MEMORY if no setting fits, with the least that would; DSV_E_USAGE; DSV_E_NOT_FOUND and
 *     DSV_E_FORMAT for the table; errors of the model's files */
DsvStatus dsv_plan_memory(const DsvMemoryQuestion *question, const DsvConfig *config, DsvLine *line,
                          void *context);

#ifdef __cplusplus
}
#endif
#endif
