/* Upper bounds of this rank's part of a block's attention under any plan (cp_limits.h). */
#include "cp/cp_limits.h"

#include "cp/cp_internal.h"

bool dsvi_cp_limits(const DsviCp *c, int64_t i, DsviCpLimits *limits)
{
    for (int64_t n = 0; n < c->group->factors; n++) {
        const DsviCpFactor *factor = &c->group->factor[n];
        if (!dsvi_cp_allows(c, factor) || i-- > 0)
            continue;
        int64_t first = c->group->rank / factor->head_ranks * factor->head_ranks;
        int64_t others = factor->head_ranks - 1; /* each other rank of the head group has at least one head */
        int64_t heads = c->shape.rows_max / dsvi_cp_longest(c, factor->head_ranks);
        *limits = (DsviCpLimits){
            .head_ranks = factor->head_ranks,
            .sequence_ranks = factor->sequence_ranks,
            .first = c->bound[first],
            .tokens = c->bound[first + factor->head_ranks] - c->bound[first],
            .heads = heads < c->shape.heads - others ? heads : c->shape.heads - others,
        };
        return true;
    }
    return false;
}
