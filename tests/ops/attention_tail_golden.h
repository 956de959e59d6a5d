/* Compares attention with a tail with golden files of the form of tests/golden/tail_a: one file
 * tail.safetensors, whose tensors fixture.json describes. The sentence in "about" contains the size of the
 * groups as "group of 16 queries". A tensor out.4 is the output for chunks of 4 queries, out.4x3 for chunks
 * of 4 queries and runs of 3 keys. */
#ifndef DSVI_TEST_ATTENTION_TAIL_GOLDEN_H
#define DSVI_TEST_ATTENTION_TAIL_GOLDEN_H

#include "ops/ops.h"

/* Relative L2 errors allowed for files with scores of up to about 100. Rounding a score of 100 to F32 changes
 * its exponential by up to 100 x 2^-24 = 6e-6. The golden files of this repository have smaller scores and
 * closer bounds. */
#define TAIL_F64_BOUND 1e-10
#define TAIL_F32_BOUND 1e-5

/* Runs every tail of the file in `folder` forward and backward through `ops`, and fails the test unless each
 * result is within a relative L2 error of `bound`. `act` is the dtype of all tensors. */
void attention_tail_golden_check(const DsviOps *ops, DsviDtype act, double bound, const char *folder);

#endif
