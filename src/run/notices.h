/* Messages at the start of a run about options or data that have no effect, or another effect than
 * expected. */
#ifndef DSVI_NOTICES_H
#define DSVI_NOTICES_H

#include "data/dataset.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logs through `log` which model sizes differ from model.preset. Warns through `warn` if `dataset` (may
 * be NULL) has captions, guidance_scale is set, or bounds on captured mass are set beside a tail, where they
 * have no effect. `context` is passed to both callbacks. */
void dsvi_notices(const DsvConfig *settings, const DsviDataset *dataset, DsviSparseLog *log,
                  DsviSparseLog *warn, void *context);

/* Returns a warning if guidance_scale is set, which has no effect for samples without text; otherwise
 * NULL. */
const char *dsvi_notice_of_guidance(const DsvConfig *settings);

#ifdef __cplusplus
}
#endif
#endif
