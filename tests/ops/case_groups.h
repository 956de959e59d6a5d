/* The cases of the checker (check.h) as cmocka groups. All backends run the same cases. */
#ifndef DSVI_CASE_GROUPS_H
#define DSVI_CASE_GROUPS_H

#include "ops/ops.h"

/* Both return the number of failed tests. run_dense_cases: all operations of dense_case_group.c, such as
 * gemm and the norms, but no attention. run_sparse_cases: attention, and the other operations of sparse
 * attention. */
int run_dense_cases(const DsviBackend *backend);
int run_sparse_cases(const DsviBackend *backend);

#endif
