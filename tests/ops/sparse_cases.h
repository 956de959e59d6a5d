/* The cases of attention, selection, profile and predictor loss for the checker: every backend runs the same.
 * Cmocka assertions. */
#ifndef DSVI_SPARSE_CASES_H
#define DSVI_SPARSE_CASES_H

#include "ops/check.h"

void check_attention_cases(const DsvBackend *backend, bool over_lists);
void check_select_features_cases(const DsvBackend *backend);
void check_select_cases(const DsvBackend *backend, bool coarse);
void check_select_part_cases(const DsvBackend *backend);
void check_select_threshold_cases(const DsvBackend *backend);
void check_list_exchange_cases(const DsvBackend *backend);
void check_profile_cases(const DsvBackend *backend);
void check_predictor_loss_cases(const DsvBackend *backend);

/* Whether cases are wanted that are long for a CPU, and for tools that look on. */
bool check_long(const DsvBackend *backend);

/* Memory where an op runs: with a stream on the backend's device, without one (the truth) on the host, where
 * check_upload is `host` itself and the others have nothing to do. */
void *check_upload(const DsvBackend *backend, const DsvStream *stream, const void *host, size_t bytes);
void check_release(const DsvBackend *backend, const DsvStream *stream, const void *memory);
/* Also releases `memory`. */
void check_download(const DsvBackend *backend, const DsvStream *stream, void *host, void *memory,
                    size_t bytes);

/* An op's workspace, likewise, full of NaN (on a device with test_small never written, for tools that see who
 * reads it so); the release checks a guard behind it. */
void *check_workspace(const DsvBackend *backend, const DsvStream *stream, size_t bytes);
void check_workspace_release(const DsvBackend *backend, const DsvStream *stream, void *workspace,
                             size_t bytes);

#endif
