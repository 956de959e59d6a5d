/* The cases of attention, selection, profile and predictor loss for the checker: every backend runs the same.
 * Cmocka assertions. */
#ifndef DSVI_SPARSE_CASES_H
#define DSVI_SPARSE_CASES_H

#include "ops/check.h"

void check_attention_cases(const DsvBackend *backend);
void check_select_features_cases(const DsvBackend *backend);
void check_select_cases(const DsvBackend *backend);
void check_profile_cases(const DsvBackend *backend);
void check_predictor_loss_cases(const DsvBackend *backend);

/* Memory for an op's workspace where it runs: with a stream on the backend's device, without one on the host.
 * Behind it lies a guard, which the release checks. */
void *check_workspace(const DsvBackend *backend, const DsvStream *stream, size_t bytes);
void check_workspace_release(const DsvBackend *backend, const DsvStream *stream, void *workspace,
                             size_t bytes);

#endif
