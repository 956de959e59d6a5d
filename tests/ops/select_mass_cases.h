/* Cases that check that lists hold the mass for which their threshold was computed, although the histogram
 * counts only a sample of the spans. All backends run the same cases; `backend` NULL tests the reference
 * implementation. A wrong result fails the running cmocka test. */
#ifndef DSVI_SELECT_MASS_CASES_H
#define DSVI_SELECT_MASS_CASES_H

#include "ops/ops.h"

/* Synthetic heads (at most 6). Each head has one to ten keys to which all queries attend, and each head has
 * these keys at other positions. */
void check_select_sink_cases(const DsviBackend *backend, int64_t heads, int64_t tokens, int64_t features,
                             int64_t chunk);
/* Heads of a trained model: head `first_head` of 3 and those after it, with tokens repeated up to `tokens`.
 * The file is fixtures/heads/heads.safetensors in folder DSV_SHARED_DIR. */
void check_select_trained_cases(const DsviBackend *backend, int64_t first_head, int64_t tokens,
                                int64_t chunk);

#endif
