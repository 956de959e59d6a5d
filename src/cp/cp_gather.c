/* Gather of all tokens of this rank's heads from the ranks of its sequence group, and the opposite
 * reduce-scatter (dsvi_cp_gather and dsvi_cp_sum of cp.h). The tokens of one rank and one sample are
 * contiguous in both tensors, but the tokens of several samples are not: hence one call per sample. */
#include "cp/cp_internal.h"
#include "cp/cp_limits.h"

/* Bytes that dsvi_cp_sum on a GPU receives from each rank at a time. */
enum { SUM_CHUNK = 4 << 20 };

size_t dsvi_cp_gathered_bytes(const DsviCp *c, const DsviCpTensor *tensor)
{
    DsviCpLimits limits;
    int64_t heads = 0;
    for (int64_t i = 0; dsvi_cp_limits(c, i, &limits); i++)
        if (limits.sequence_ranks > 1 && limits.heads > heads)
            heads = limits.heads;
    return (size_t)(tensor->batch * c->shape.tokens * heads * tensor->head_dim) *
           dsvi_dtype_size(tensor->dtype);
}

void *dsvi_cp_gathered_address(const DsviCp *c, int64_t block, const void *heads, void *room)
{
    return c->block[block].plan.sequence_ranks == 1 ? (void *)heads : room;
}

static size_t cp_gather_row_bytes(const DsviCpPart *part, const DsviCpTensor *tensor)
{
    return (size_t)(part->heads * tensor->head_dim) * dsvi_dtype_size(tensor->dtype);
}

DsvStatus dsvi_cp_gather(const DsviCp *c, int64_t block, const DsviCpTensor *tensor, const void *heads,
                         void *all)
{
    DsviCpPart part = dsvi_cp_part(c, block);
    size_t row = cp_gather_row_bytes(&part, tensor);
    for (int64_t b = 0; b < tensor->batch && part.sequence_ranks > 1; b++)
        DSVI_TRY(dsvi_comm_all_gather_from(
            part.sequence_device, (const char *)heads + (size_t)(b * part.tokens) * row,
            (char *)all + (size_t)(b * c->shape.tokens) * row, row, part.bound));
    return DSV_OK;
}

size_t dsvi_cp_sum_bytes(const DsviCp *c)
{
    size_t largest = 0;
    for (int64_t i = 0; i < c->group->factors; i++) {
        const DsviCpFactor *factor = &c->group->factor[i];
        bool needs_room = dsvi_cp_allows(c, factor) && dsvi_comm_needs_workspace(factor->sequence_device);
        size_t bytes = needs_room ? dsvi_comm_workspace_bytes(factor->sequence_ranks, SUM_CHUNK) : 0;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

DsvStatus dsvi_cp_sum(const DsviCp *c, int64_t block, const DsviCpTensor *tensor, void *all, void *heads,
                      void *workspace)
{
    const DsviDevice *device = c->group->backend->device;
    DsviCpPart part = dsvi_cp_part(c, block);
    size_t row = cp_gather_row_bytes(&part, tensor);
    if (part.sequence_ranks == 1)
        return DSV_OK;
    dsvi_comm_set_workspace(part.sequence_device, workspace, SUM_CHUNK);
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
