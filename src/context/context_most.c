/* See context_most.h. */
#include "context/context_most.h"

#include "context/context_internal.h"

static int64_t longest_stretch(const DsvContext *c, int64_t head_ranks)
{
    int64_t most = 0;
    for (int64_t r = 0; r < c->group->size; r += head_ranks) {
        int64_t tokens = c->bound[r + head_ranks] - c->bound[r];
        most = tokens > most ? tokens : most;
    }
    return most;
}

static bool allowed(const DsvContext *c, const Factor *factor)
{
    return factor->head_ranks <= c->shape.heads &&
           (c->shape.head_ranks == 0 || factor->head_ranks == c->shape.head_ranks);
}

bool dsvi_context_most(const DsvContext *c, int64_t i, DsvContextMost *most)
{
    for (int64_t n = 0; n < c->group->factors; n++) {
        const Factor *factor = &c->group->factor[n];
        if (!allowed(c, factor) || i-- > 0)
            continue;
        int64_t first = c->group->rank / factor->head_ranks * factor->head_ranks;
        int64_t others = factor->head_ranks - 1; /* have a head each at least */
        int64_t heads = c->shape.rows_most / longest_stretch(c, factor->head_ranks);
        *most = (DsvContextMost){
            .head_ranks = factor->head_ranks, .sequence_ranks = factor->sequence_ranks,
            .first = c->bound[first], .tokens = c->bound[first + factor->head_ranks] - c->bound[first],
            .heads = heads < c->shape.heads - others ? heads : c->shape.heads - others,
        };
        return true;
    }
    return false;
}
