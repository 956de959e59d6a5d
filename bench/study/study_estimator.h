/* A selector of src/sparse on its own: opened for one case of the study, with the state the case asks for. */
#ifndef STUDY_ESTIMATOR_H
#define STUDY_ESTIMATOR_H

#include "study_meter.h"

/* Device memory that grows with what is asked of it. */
typedef struct StudyBuffer {
    void *memory;
    size_t bytes;
} StudyBuffer;

DsvStatus study_buffer_want(DsvDevice *device, StudyBuffer *buffer, size_t bytes);

typedef struct StudyEstimator StudyEstimator;

DsvStatus study_estimator_open(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               const StudyCase *of, StudyEstimator **out);
void study_estimator_close(StudyEstimator **estimator);

/* Features of a block, rounded to `format`. *learnt: this look decided the state for later ones. */
DsvStatus study_estimator_look(StudyEstimator *estimator, int64_t block, const DsvSparseAttention *args,
                               StudyFormat format, const DsvFeatures **features, bool *learnt);

#endif
