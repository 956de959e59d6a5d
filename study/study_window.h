/* Lists of the keys nearest to each query. Their captured mass shows how local attention is. */
#ifndef STUDY_WINDOW_H
#define STUDY_WINDOW_H

#include "ops/lists.h"
#include "study_estimator.h"

/* Makes device lists for groups of one query, with tokens in raster order. The queries sample[0 .. samples)
 * list the nearest keys, `density` times the number of all keys; other lists are empty. All heads of `shape`
 * get the same lists. Distances are Euclidean over rows and columns, and over frames if `through_time`.
 * `offsets` and `runs` hold the memory of *lists. */
DsvStatus study_window_lists(DsviDevice *device, const DsviSparseShape *shape, bool through_time,
                             double density, const int32_t *sample, int64_t samples, StudyBuffer *offsets,
                             StudyBuffer *runs, DsviLists *lists);

#endif
