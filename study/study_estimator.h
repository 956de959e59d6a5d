/* A selector of src/sparse without a model: created for one case of the study, with the state that
 * StudyCase.source names. */
#ifndef STUDY_ESTIMATOR_H
#define STUDY_ESTIMATOR_H

#include "study_meter.h"

/* Device memory that grows on demand; released by the owner with device->mem_free. */
typedef struct StudyBuffer {
    void *memory;
    size_t bytes;
} StudyBuffer;

/* Makes the buffer at least `bytes` large. Its contents are lost when it grows. */
DsvStatus study_buffer_reserve(DsviDevice *device, StudyBuffer *buffer, size_t bytes);

typedef struct StudyEstimator StudyEstimator;

DsvStatus study_estimator_open(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                               const StudyCase *of, StudyEstimator **out);
void study_estimator_close(StudyEstimator **estimator);

/* Computes the features of a block's queries and keys, rounded to `format`. *features belongs to the
 * estimator and is valid until the next call. *learnt is true when this call set the selector's state for
 * this block, which happens once per block with STUDY_FIRST. */
DsvStatus study_estimator_look(StudyEstimator *estimator, int64_t block, const DsviAttentionCall *args,
                               StudyFormat format, const DsviFeatures **features, bool *learnt);

#endif
