/* Similarity of two names, for suggestions in messages about unknown names. */
#ifndef DSVI_NEAREST_H
#define DSVI_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the edit distance (optimal string alignment): how many single letters must be inserted, deleted,
 * replaced or swapped with their neighbour to turn `a` into `b`. Only the first 64 bytes of each name
 * count. */
size_t dsvi_edit_distance(const char *a, const char *b);

/* Returns whether a word that differs from `word` by `distance` edits may be a typing error: at most one edit
 * for every three letters. */
bool dsvi_is_typo(size_t distance, const char *word);

#ifdef __cplusplus
}
#endif
#endif
