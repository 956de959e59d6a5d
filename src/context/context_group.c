/* The ranks of a context group, and the groups inside it: see context.h. */
#include <stdlib.h>

#include "context/context_internal.h"

static bool has_own_device_comms(const DsvContextGroup *group)
{
    return group->backend->join != NULL;
}

static DsvStatus join(const DsvContextGroup *group, DsvComm *host, DsvComm **device)
{
    *device = host;
    if (!has_own_device_comms(group) || !host)
        return DSV_OK;
    *device = NULL;
    return group->backend->join(group->backend, host, device);
}

/* Groups of all ranks and of one are not made anew. */
static DsvStatus make_group(DsvContextGroup *group, int64_t size, int64_t colour, DsvComm **host,
                            DsvComm **device)
{
    if (size == 1)
        return DSV_OK;
    if (size == group->size) {
        *host = group->host;
        *device = group->device;
        return DSV_OK;
    }
    DSVI_TRY(dsvi_comm_split(group->host, colour, host));
    return join(group, *host, device);
}

static DsvStatus make_factor(DsvContextGroup *group, int64_t head_ranks)
{
    Factor *factor = &group->factor[group->factors++];
    factor->head_ranks = head_ranks;
    factor->sequence_ranks = group->size / head_ranks;
    DSVI_TRY(make_group(group, factor->head_ranks, group->rank / head_ranks, &factor->head_host,
                        &factor->head_device));
    return make_group(group, factor->sequence_ranks, group->rank % head_ranks, &factor->sequence_host,
                      &factor->sequence_device);
}

static DsvStatus make_factors(DsvContextGroup *group, int64_t wanted)
{
    DSVI_TRY(join(group, group->host, &group->device));
    for (int64_t head_ranks = 1; head_ranks <= group->size; head_ranks++)
        if (group->size % head_ranks == 0 && (wanted == 0 || head_ranks == wanted))
            DSVI_TRY(make_factor(group, head_ranks));
    return DSV_OK;
}

DsvStatus dsvi_context_group_create(const DsvBackend *backend, DsvComm *host, int64_t head_ranks,
                                    DsvContextGroup **out)
{
    DsvContextGroup *group = calloc(1, sizeof *group);
    int64_t size = dsvi_comm_size(host);
    *out = NULL;
    if (group)
        group->factor = calloc((size_t)size, sizeof *group->factor);
    if (!group || !group->factor) {
        free(group);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a context group of %lld ranks", (long long)size);
    }
    group->backend = backend;
    group->host = size > 1 ? host : NULL;
    group->rank = dsvi_comm_rank(host);
    group->size = size;
    DsvStatus status = make_factors(group, head_ranks);
    if (status != DSV_OK) {
        dsvi_context_group_close(&group);
        return status;
    }
    *out = group;
    return DSV_OK;
}

static void close_made(const DsvContextGroup *group, DsvComm **host, DsvComm **device)
{
    if (has_own_device_comms(group) && *device != group->device)
        dsvi_comm_close(device);
    if (*host != group->host)
        dsvi_comm_close(host);
}

void dsvi_context_group_close(DsvContextGroup **out)
{
    DsvContextGroup *group = *out;
    *out = NULL;
    if (!group)
        return;
    for (int64_t i = group->factors - 1; i >= 0; i--) {
        Factor *factor = &group->factor[i];
        close_made(group, &factor->sequence_host, &factor->sequence_device);
        close_made(group, &factor->head_host, &factor->head_device);
    }
    if (has_own_device_comms(group))
        dsvi_comm_close(&group->device);
    free(group->factor);
    free(group);
}

int64_t dsvi_context_group_size(const DsvContextGroup *group)
{
    return group->size;
}

int64_t dsvi_context_group_rank(const DsvContextGroup *group)
{
    return group->rank;
}

DsvComm *dsvi_context_group_host(const DsvContextGroup *group)
{
    return group->host;
}

DsvComm *dsvi_context_group_device(const DsvContextGroup *group)
{
    return group->device;
}

const Factor *dsvi_context_factor(const DsvContextGroup *group, int64_t head_ranks)
{
    for (int64_t i = 0; i < group->factors; i++)
        if (group->factor[i].head_ranks == head_ranks)
            return &group->factor[i];
    return NULL;
}
