/* Compares attention with the golden files in folder `attention` (tests/golden/golden_files.h). The golden
 * files hold float64 results of PyTorch for dense attention, for key lists of groups of 8 queries (some lists
 * are empty) and for a mask of 64 x 64 blocks. */
#ifndef DSVI_TEST_ATTENTION_GOLDEN_H
#define DSVI_TEST_ATTENTION_GOLDEN_H

#include "ops/ops.h"

/* Runs every case forward and backward through `ops`, and fails the test unless each result is within a
 * relative L2 error of `bound`. `act` is the dtype of q, k, v, out, lse and the gradients. */
void attention_golden_check(const DsviOps *ops, DsviDtype act, double bound);

#endif
