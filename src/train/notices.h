/* What a user asked for and this version does not do, or does otherwise than it may look: said once at the
 * start. */
#ifndef DSVI_NOTICES_H
#define DSVI_NOTICES_H

#include "data/dataset.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `log`: sizes that change the model's preset. `warn`: captions of `dataset` (NULL: not open), and guidance,
 * which have no effect on training. */
void dsvi_notices(const DsvConfig *settings, const DsvDataset *dataset, DsvSparseLog *log, DsvSparseLog *warn,
                  void *context);

/* Guidance between a sample's text and no text, where there is no text; NULL: none. */
const char *dsvi_notice_of_guidance(const DsvConfig *settings);

#ifdef __cplusplus
}
#endif
#endif
