/* What must be one and the same on all ranks of a run. Ranks that were started with different settings, or
 * see different clips, would wait for each other for ever or train on nonsense. Called by all ranks;
 * DSV_E_USAGE on those that differ from rank 0, with both values. */
#ifndef DSVI_RANKS_AGREE_H
#define DSVI_RANKS_AGREE_H

#include "data/dataset.h"
#include "dist/comm.h"
#include "model/dit_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Settings but for paths and what a rank may decide for its own machine, the clips, and the model's shape. */
DsvStatus dsvi_ranks_agree(DsvComm *comm, const DsvConfig *settings, const DsvDataset *dataset,
                           const DsvDitConfig *config);
/* Paths may differ from rank to rank; the clips that lie there, which `key` names, may not. */
DsvStatus dsvi_ranks_agree_on_data(DsvComm *comm, const char *key, const DsvDataset *dataset);

#ifdef __cplusplus
}
#endif
#endif
