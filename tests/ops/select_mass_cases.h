/* Whether lists hold the mass that their threshold promised, where the histogram counts a sample of the
 * runs: every backend runs the same. `backend` NULL: the reference. Cmocka assertions. */
#ifndef DSVI_SELECT_MASS_CASES_H
#define DSVI_SELECT_MASS_CASES_H

#include "ops/ops.h"

/* At most 6 heads, with one to ten keys that all queries attend to, at places that differ. */
void check_select_sink_cases(const DsvBackend *backend, int64_t heads, int64_t tokens, int64_t features,
                             int64_t chunk);
/* Heads of a trained model from number `first_head` of 3 on, repeated until there are so many tokens. The
 * file is fixtures/heads/heads.safetensors of the shared folder. */
void check_select_trained_cases(const DsvBackend *backend, int64_t first_head, int64_t tokens, int64_t chunk);

#endif
