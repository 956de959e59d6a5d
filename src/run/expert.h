/* What training does with published models of Wan 2.2: one expert of two, and the first frame of TI2V-5B. */
#ifndef DSVI_EXPERT_H
#define DSVI_EXPERT_H

#include "base/fs.h"
#include "dsv/config.h"
#include "sparse/sparse.h"
#include "train/trainer_experts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks that option model.expert fits the model at model.path, narrows sigma_min and sigma_max to the noise
 * levels of the expert, and logs them with flow_shift. Replaces model.first_frame=auto by what it means for
 * the model. With model.expert=none it only checks. Fails with DSV_E_USAGE if the model has two experts and
 * none is chosen, if it has one transformer and an expert is chosen, or if the run samples clips, which need
 * both experts, and trains all weights. `log` may be NULL. */
DsvStatus dsvi_expert_prepare(DsvConfig *settings, DsviSparseLog *log, void *context);

/* Stores the path of the model that is trained: model.path, or the transformer of model.expert in it. */
DsvStatus dsvi_expert_path(const DsvConfig *settings, char out[DSVI_PATH_MAX]);

/* Finds both experts for the clips that are sampled while one is trained. *lends is false, and *out does not
 * change, if no expert is chosen or no clip is sampled. */
DsvStatus dsvi_expert_lend(const DsvConfig *settings, DsviTrainerExperts *out, bool *lends);

#ifdef __cplusplus
}
#endif
#endif
