/* The cases of attention, selection, profile, list exchange and predictor loss for the checker (check.h), and
 * device memory for them. All backends run the same cases. A wrong result fails the running cmocka test. */
#ifndef DSVI_SPARSE_CASES_H
#define DSVI_SPARSE_CASES_H

#include "ops/check.h"

void check_attention_cases(const DsviBackend *backend, bool over_lists);
void check_attention_tail_cases(const DsviBackend *backend);
void check_select_features_cases(const DsviBackend *backend);
void check_select_cases(const DsviBackend *backend, bool coarse);
void check_select_part_cases(const DsviBackend *backend);
void check_select_threshold_cases(const DsviBackend *backend);
void check_list_exchange_cases(const DsviBackend *backend);
void check_profile_cases(const DsviBackend *backend);
void check_attention_error_cases(const DsviBackend *backend);
void check_predictor_loss_cases(const DsviBackend *backend);

/* Returns whether to run cases that take too long on a CPU or under tools such as compute-sanitizer. */
bool check_long(const DsviBackend *backend);

/* Copies `host` to memory in which an operation can run. With a stream: new device memory of the backend.
 * Without a stream (reference implementation): check_upload returns `host` itself, and the other functions do
 * nothing. */
void *check_upload(const DsviBackend *backend, const DsviStream *stream, const void *host, size_t bytes);
void check_release(const DsviBackend *backend, const DsviStream *stream, const void *memory);
/* Copies `memory` to `host` and releases `memory`. */
void check_download(const DsviBackend *backend, const DsviStream *stream, void *host, void *memory,
                    size_t bytes);

/* Allocates an operation's workspace, filled with NaN. On a device with test_small() the workspace stays
 * uninitialised, so that initcheck can find reads of it. check_workspace_release fails the test if bytes
 * after the end of the workspace have changed. */
void *check_workspace(const DsviBackend *backend, const DsviStream *stream, size_t bytes);
void check_workspace_release(const DsviBackend *backend, const DsviStream *stream, void *workspace,
                             size_t bytes);

#endif
