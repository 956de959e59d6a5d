/* Lists of the keys nearest to each query, whatever their attention: how local attention is. */
#ifndef STUDY_WINDOW_H
#define STUDY_WINDOW_H

#include "ops/lists.h"
#include "study_estimator.h"

/* Lists of single queries on the device, the same for all heads of `shape`, for tokens in raster order: the
 * share `density` of all keys nearest to each of the queries sample[0 .. samples); the other queries' are
 * empty. Distance counts rows, columns and, if `through_time`, frames. */
DsvStatus study_window_lists(DsvDevice *device, const DsvSparseShape *shape, bool through_time,
                             double density, const int32_t *sample, int64_t samples,
                             StudyBuffer *offsets, StudyBuffer *runs, DsvLists *lists);

#endif
