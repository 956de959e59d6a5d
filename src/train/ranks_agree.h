/* Checks that all ranks of a run have the same options, clips and model. Otherwise ranks would wait for each
 * other forever or train on inconsistent data. All ranks must call each function. On a rank that differs from
 * rank 0 the result is DSV_E_USAGE, with a message that gives both values. */
#ifndef DSVI_RANKS_AGREE_H
#define DSVI_RANKS_AGREE_H

#include "data/dataset.h"
#include "dist/comm.h"
#include "model/dit/dit_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compares the options, the clips of `dataset`, and the depth and width of the model. Paths are not compared,
 * nor options that each rank may choose for its own machine, such as `threads`. */
DsvStatus dsvi_ranks_agree(DsviComm *comm, const DsvConfig *settings, const DsviDataset *dataset,
                           const DsviDitConfig *config);
/* Compares the number of clips and the hash of their names and lengths. `key` is the option that names the
 * data, for the message. The paths may differ between ranks. */
DsvStatus dsvi_ranks_agree_on_data(DsviComm *comm, const char *key, const DsviDataset *dataset);

#ifdef __cplusplus
}
#endif
#endif
