/* The checker's cases as cmocka groups: every backend runs the same. */
#ifndef DSVI_CASE_GROUPS_H
#define DSVI_CASE_GROUPS_H

#include "ops/ops.h"

/* Number of failures. Dense ops without attention; attention and what sparse attention is made of. */
int run_dense_cases(const DsvBackend *backend);
int run_sparse_cases(const DsvBackend *backend);

#endif
