/* A random attention problem in memory that tells on its users.
 *
 * Every tensor lies in rows with gaps between them, and all memory starts as NaN (all bits set): what is
 * read outside the rows poisons the result, what is not written stays NaN, and gaps must keep their bits. */
#ifndef DSVI_TEST_ATTENTION_CASE_H
#define DSVI_TEST_ATTENTION_CASE_H

#include "ops/attention.h"

typedef enum AttentionLists {
    DENSE,
    RANDOM_LISTS, /* each run with probability `density` */
    EMPTY_LISTS,  /* every other list is empty, the others as RANDOM_LISTS */
    FULL_LISTS
} AttentionLists;

typedef struct AttentionShape {
    int64_t batch, heads, queries, keys, head_dim;
    AttentionLists lists;
    int64_t group, grain;
    double density;
    double logit; /* standard deviation of the scores; 0: all equal */
} AttentionShape;

typedef struct AttentionCase {
    DsvAttentionArgs args; /* lists is &own_lists or NULL */
    DsvLists own_lists;
    void *memory[10];
    size_t bytes[10];
} AttentionCase;

/* The same shape and seed give the same lists and, up to rounding to `act`, the same values. */
void attention_case_create(AttentionCase *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc,
                           uint64_t seed);
/* As `from`, exactly, in other dtypes that hold its values. */
void attention_case_convert(AttentionCase *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc,
                            const AttentionCase *from);
void attention_case_free(AttentionCase *c);

/* Workspace for a variant, with a NaN guard behind it. */
void attention_case_workspace(AttentionCase *c, size_t bytes);
/* Fails the test when anything outside rows was written. */
void attention_case_check_gaps(const AttentionCase *c, const char *what);

/* Rows of one tensor as contiguous (B, S, N, D) doubles; free() it. */
double *attention_case_rows(const AttentionCase *c, const DsvHeads *rows, int64_t tokens);
/* Relative L2 error of one tensor against that of another case of the same shape. */
double attention_case_error(const AttentionCase *c, const DsvHeads *rows, const AttentionCase *truth,
                            const DsvHeads *truth_rows, int64_t tokens);

#endif
