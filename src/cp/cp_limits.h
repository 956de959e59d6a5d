/* Upper bounds of this rank's part of a block under any plan, from which memory is planned. */
#ifndef DSVI_CP_LIMITS_H
#define DSVI_CP_LIMITS_H

#include "cp/cp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A factorisation of the ranks that plans may use, and the largest part that this rank can get under it. */
typedef struct DsviCpLimits {
    int64_t head_ranks, sequence_ranks;
    int64_t first, tokens; /* the head group has the T = `tokens` tokens from `first` on */
    int64_t heads;         /* upper bound of N_own */
} DsviCpLimits;

/* Writes the limits of factorisation number i of the ranks, i = 0, 1, ...; returns false if there is no
 * factorisation number i. */
bool dsvi_cp_limits(const DsviCp *cp, int64_t i, DsviCpLimits *limits);

#ifdef __cplusplus
}
#endif
#endif
