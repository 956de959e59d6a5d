/* Attention against the golden files of fixtures/attention: float64 results of a PyTorch implementation for
 * dense attention, lists for groups of 8 (some empty) and a map of 64 x 64 blocks. */
#ifndef DSVI_TEST_ATTENTION_GOLDEN_H
#define DSVI_TEST_ATTENTION_GOLDEN_H

#include "ops/ops.h"

/* Runs every case forward and backward through `ops`; all results within `bound` relative L2. `act` is the
 * dtype of q, k, v, out and gradients, also of lse. */
void attention_golden_check(const DsvOps *ops, DsvDtype act, double bound);

#endif
