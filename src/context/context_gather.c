/* All tokens of the own heads, from the ranks of a sequence group, and sums over these ranks back to where
 * the tokens are. A rank's stretch of a sample is one piece of memory in both: hence a call for each sample.
 */
#include "context/context_internal.h"
#include "context/context_most.h"

/* Bytes that a sum on a GPU takes from each rank at once. */
enum { SUM_CHUNK = 4 << 20 };

size_t dsvi_context_all_room_bytes(const DsvContext *c, const DsvContextTensor *tensor)
{
    DsvContextMost most;
    int64_t heads = 0;
    for (int64_t i = 0; dsvi_context_most(c, i, &most); i++)
        if (most.sequence_ranks > 1 && most.heads > heads)
            heads = most.heads;
    return (size_t)(tensor->batch * c->shape.tokens * heads * tensor->head_dim) *
           dsvi_dtype_size(tensor->dtype);
}

void *dsvi_context_all_place(const DsvContext *c, int64_t block, const void *heads, void *room)
{
    return c->block[block].plan.sequence_ranks == 1 ? (void *)heads : room;
}

static size_t row_bytes(const DsvContextPart *part, const DsvContextTensor *tensor)
{
    return (size_t)(part->heads * tensor->head_dim) * dsvi_dtype_size(tensor->dtype);
}

DsvStatus dsvi_context_gather(const DsvContext *c, int64_t block, const DsvContextTensor *tensor,
                              const void *heads, void *all)
{
    DsvContextPart part = dsvi_context_part(c, block);
    size_t row = row_bytes(&part, tensor);
    for (int64_t b = 0; b < tensor->batch && part.sequence_ranks > 1; b++)
        DSVI_TRY(dsvi_comm_all_gather_from(part.sequence_device,
                                           (const char *)heads + (size_t)(b * part.tokens) * row,
                                           (char *)all + (size_t)(b * c->shape.tokens) * row, row,
                                           part.bound));
    return DSV_OK;
}

size_t dsvi_context_sum_bytes(const DsvContext *c)
{
    size_t most = 0;
    for (int64_t i = 0; i < c->group->factors; i++) {
        const Factor *factor = &c->group->factor[i];
        bool wanted = dsvi_context_allows(c, factor) && dsvi_comm_wants_room(factor->sequence_device);
        size_t bytes = wanted ? dsvi_comm_room_bytes(factor->sequence_ranks, SUM_CHUNK) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

DsvStatus dsvi_context_sum(const DsvContext *c, int64_t block, const DsvContextTensor *tensor, void *all,
                           void *heads, void *workspace)
{
    const DsvDevice *device = c->group->backend->device;
    DsvContextPart part = dsvi_context_part(c, block);
    size_t row = row_bytes(&part, tensor);
    if (part.sequence_ranks == 1)
        return DSV_OK;
    dsvi_comm_lend(part.sequence_device, workspace, SUM_CHUNK);
    for (int64_t i = 0; i <= part.sequence_ranks; i++)
        c->elements[i] = part.bound[i] * part.heads * tensor->head_dim;
    for (int64_t b = 0; b < tensor->batch; b++) {
        char *sample = (char *)all + (size_t)(b * c->shape.tokens) * row;
        DSVI_TRY(dsvi_comm_reduce_scatter(part.sequence_device, tensor->dtype, sample, c->elements));
        DSVI_TRY(device->copy(device->stream, (char *)heads + (size_t)(b * part.tokens) * row,
                              sample + (size_t)part.first * row, (size_t)part.tokens * row));
    }
    return DSV_OK;
}
