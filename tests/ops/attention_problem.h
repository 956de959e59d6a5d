/* A random attention problem in memory that tells on its users.
 *
 * Every tensor lies in rows with gaps between them, and all memory starts as NaN (all bits set): what is
 * read outside the rows poisons the result, what is not written stays NaN, and gaps must keep their bits. */
#ifndef DSVI_TEST_ATTENTION_PROBLEM_H
#define DSVI_TEST_ATTENTION_PROBLEM_H

#include "ops/attention.h"

typedef struct AttentionShape {
    int64_t batch, heads, queries, keys, head_dim;
    int64_t group, grain; /* group 0: dense */
    double density;       /* as in random_lists.h */
    double logit;         /* standard deviation of the scores; 0: all equal */
} AttentionShape;

typedef struct AttentionProblem {
    DsvAttentionArgs args; /* lists is &own_lists or NULL */
    DsvLists own_lists;
    void *memory[9];
    size_t bytes[9];
} AttentionProblem;

/* The same shape and seed give the same lists and, up to rounding to `act`, the same values. */
void attention_problem_create(AttentionProblem *c, const AttentionShape *shape, DsvDtype act, DsvDtype acc,
                              uint64_t seed);
void attention_problem_free(AttentionProblem *c);

/* Fails the test when anything outside rows was written. */
void attention_problem_check_gaps(const AttentionProblem *c, const char *what);

/* Rows of one tensor as contiguous (B, S, N, D) doubles; free() it. */
double *attention_problem_rows(const AttentionProblem *c, const DsvHeads *rows, int64_t tokens);

#endif
