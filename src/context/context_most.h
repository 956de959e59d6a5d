/* The most that a rank may have to do with, whatever the plans: memory is planned for it. */
#ifndef DSVI_CONTEXT_MOST_H
#define DSVI_CONTEXT_MOST_H

#include "context/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One way of writing the ranks that plans may have, and a rank's largest part under it. */
typedef struct DsvContextMost {
    int64_t head_ranks, sequence_ranks;
    int64_t first, tokens; /* of its head group: T from `first` on */
    int64_t heads;         /* N_own, at most */
} DsvContextMost;

/* Number i of them; false: there are no more. */
bool dsvi_context_most(const DsvContext *context, int64_t i, DsvContextMost *most);

#ifdef __cplusplus
}
#endif
#endif
