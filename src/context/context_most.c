/* See context_most.h. */
#include "context/context_most.h"

#include "context/context_internal.h"

bool dsvi_context_most(const DsvContext *c, int64_t i, DsvContextMost *most)
{
    for (int64_t n = 0; n < c->group->factors; n++) {
        const Factor *factor = &c->group->factor[n];
        if (!dsvi_context_allows(c, factor) || i-- > 0)
            continue;
        int64_t first = c->group->rank / factor->head_ranks * factor->head_ranks;
        int64_t others = factor->head_ranks - 1; /* have a head each at least */
        int64_t heads = c->shape.rows_most / dsvi_context_longest(c, factor->head_ranks);
        *most = (DsvContextMost){
            .head_ranks = factor->head_ranks, .sequence_ranks = factor->sequence_ranks,
            .first = c->bound[first], .tokens = c->bound[first + factor->head_ranks] - c->bound[first],
            .heads = heads < c->shape.heads - others ? heads : c->shape.heads - others,
        };
        return true;
    }
    return false;
}
