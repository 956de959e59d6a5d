/* How alike two names are: for the sentence about a name that does not exist. */
#ifndef DSVI_NEAREST_H
#define DSVI_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many single letters must be put in, left out, changed or swapped with their neighbour to turn `a` into
 * `b`. Of longer names the first 64 bytes count. */
size_t dsvi_name_distance(const char *a, const char *b);

/* Whether so many changes may be a slip of the finger in `word`: at most one for every three letters. */
bool dsvi_is_slip(size_t distance, const char *word);

#ifdef __cplusplus
}
#endif
#endif
