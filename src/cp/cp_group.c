/* The communicators of a cp group and of the head groups and sequence groups inside it: see cp.h. */
#include <stdlib.h>

#include "cp/cp_internal.h"

static bool has_separate_device_comms(const DsviCpGroup *group)
{
    return group->backend->join != NULL;
}

static DsvStatus cp_group_join(const DsviCpGroup *group, DsviComm *host, DsviComm **device)
{
    *device = host;
    if (!has_separate_device_comms(group) || !host)
        return DSV_OK;
    *device = NULL;
    return group->backend->join(group->backend, host, device);
}

/* Sets the communicators of this rank's group of `size` ranks; ranks with equal `colour` form a group. A
 * group of all ranks uses the communicators of the cp group; a group of one rank has none (NULL). */
static DsvStatus cp_make_group(DsviCpGroup *group, int64_t size, int64_t colour, DsviComm **host,
                               DsviComm **device)
{
    if (size == 1)
        return DSV_OK;
    if (size == group->size) {
        *host = group->host;
        *device = group->device;
        return DSV_OK;
    }
    DSVI_TRY(dsvi_comm_split(group->host, colour, host));
    return cp_group_join(group, *host, device);
}

static DsvStatus make_factor(DsviCpGroup *group, int64_t head_ranks)
{
    DsviCpFactor *factor = &group->factor[group->factors++];
    factor->head_ranks = head_ranks;
    factor->sequence_ranks = group->size / head_ranks;
    DSVI_TRY(cp_make_group(group, factor->head_ranks, group->rank / head_ranks, &factor->head_host,
                           &factor->head_device));
    return cp_make_group(group, factor->sequence_ranks, group->rank % head_ranks, &factor->sequence_host,
                         &factor->sequence_device);
}

static DsvStatus make_factors(DsviCpGroup *group, int64_t only_head_ranks)
{
    DSVI_TRY(cp_group_join(group, group->host, &group->device));
    for (int64_t head_ranks = 1; head_ranks <= group->size; head_ranks++)
        if (group->size % head_ranks == 0 && (only_head_ranks == 0 || head_ranks == only_head_ranks))
            DSVI_TRY(make_factor(group, head_ranks));
    return DSV_OK;
}

DsvStatus dsvi_cp_group_create(const DsviBackend *backend, DsviComm *host, int64_t head_ranks,
                               DsviCpGroup **out)
{
    DsviCpGroup *group = calloc(1, sizeof *group);
    int64_t size = dsvi_comm_size(host);
    *out = NULL;
    if (group)
        group->factor = calloc((size_t)size, sizeof *group->factor);
    if (!group || !group->factor) {
        free(group);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a cp group of %lld ranks", (long long)size);
    }
    group->backend = backend;
    group->host = size > 1 ? host : NULL;
    group->rank = dsvi_comm_rank(host);
    group->size = size;
    DsvStatus status = make_factors(group, head_ranks);
    if (status != DSV_OK) {
        dsvi_cp_group_close(&group);
        return status;
    }
    *out = group;
    return DSV_OK;
}

static void close_comm_pair(const DsviCpGroup *group, DsviComm **host, DsviComm **device)
{
    if (has_separate_device_comms(group) && *device != group->device)
        dsvi_comm_close(device);
    if (*host != group->host)
        dsvi_comm_close(host);
}

void dsvi_cp_group_close(DsviCpGroup **out)
{
    DsviCpGroup *group = *out;
    *out = NULL;
    if (!group)
        return;
    for (int64_t i = group->factors - 1; i >= 0; i--) {
        DsviCpFactor *factor = &group->factor[i];
        close_comm_pair(group, &factor->sequence_host, &factor->sequence_device);
        close_comm_pair(group, &factor->head_host, &factor->head_device);
    }
    if (has_separate_device_comms(group))
        dsvi_comm_close(&group->device);
    free(group->factor);
    free(group);
}

int64_t dsvi_cp_group_size(const DsviCpGroup *group)
{
    return group->size;
}

int64_t dsvi_cp_group_rank(const DsviCpGroup *group)
{
    return group->rank;
}

DsviComm *dsvi_cp_group_host(const DsviCpGroup *group)
{
    return group->host;
}

DsviComm *dsvi_cp_group_device(const DsviCpGroup *group)
{
    return group->device;
}

const DsviCpFactor *dsvi_cp_factor(const DsviCpGroup *group, int64_t head_ranks)
{
    for (int64_t i = 0; i < group->factors; i++)
        if (group->factor[i].head_ranks == head_ranks)
            return &group->factor[i];
    return NULL;
}
