/* A random attention problem in memory that reveals wrong reads and writes.
 *
 * The rows of every tensor have gaps between them, and all memory starts as NaN (all bits set). So a read
 * outside the rows makes the result NaN, an element that is not written stays NaN, and a write into a gap
 * changes its bits, which attention_problem_check_gaps() finds. */
#ifndef DSVI_TEST_ATTENTION_PROBLEM_H
#define DSVI_TEST_ATTENTION_PROBLEM_H

#include "ops/attention.h"

typedef struct AttentionShape {
    int64_t batch, heads, queries, keys, head_dim;
    int64_t group, grain; /* group 0: dense */
    double density;       /* as in random_lists.h */
    double logit;         /* standard deviation of the scores; 0: all scores are equal */
} AttentionShape;

typedef struct AttentionProblem {
    DsviAttentionArgs args; /* lists is &own_lists or NULL */
    DsviLists own_lists;
    void *memory[9];
    size_t bytes[9];
} AttentionProblem;

/* Allocates and fills the problem; attention_problem_free() releases it. The same shape and seed give the
 * same lists and, up to rounding to `act`, the same values. */
void attention_problem_create(AttentionProblem *c, const AttentionShape *shape, DsviDtype act, DsviDtype acc,
                              uint64_t seed);
void attention_problem_free(AttentionProblem *c);

/* Fails the test if any byte between the rows of a tensor has changed. */
void attention_problem_check_gaps(const AttentionProblem *c, const char *what);

/* Returns the rows of one tensor as contiguous doubles, (B, S, N, D). The caller frees them with free(). */
double *attention_problem_rows(const AttentionProblem *c, const DsviHeads *rows, int64_t tokens);

#endif
