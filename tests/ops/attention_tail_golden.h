/* Compares attention with a tail with golden files of the form of tests/golden/tail_a: one file
 * tail.safetensors, whose tensors fixture.json describes. The sentence in "about" contains the size of the
 * groups as "group of 16 queries". A tensor out.4 is the output for chunks of 4 queries, out.4x3 for chunks
 * of 4 queries and runs of 3 keys. */
#ifndef DSVI_TEST_ATTENTION_TAIL_GOLDEN_H
#define DSVI_TEST_ATTENTION_TAIL_GOLDEN_H

#include "ops/ops.h"

/* Relative L2 errors that attention with a tail promises if scores are moderate. The golden files of this
 * repository are held to closer bounds, which files with larger scores need not meet. */
#define TAIL_F64_BOUND 1e-10
#define TAIL_F32_BOUND 1e-5

/* Runs every tail of the file in `folder` forward and backward through `ops`, and fails the test unless each
 * result is within a relative L2 error of `bound`. `act` is the dtype of all tensors. */
void attention_tail_golden_check(const DsviOps *ops, DsviDtype act, double bound, const char *folder);

#endif
