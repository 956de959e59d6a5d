/* Averages over ranks what each rank observed on its samples in a step. Only the ranks that used the layer in
 * the step count: with clips of several sizes, each of which has its own layer, ranks may train on different
 * sizes. Measured running means, the guard's
 * decisions and the selectors' state are then equal on all ranks, because they depend only on these averages
 * and on rank 0's measurement of what attention costs. Context-parallel ranks of one sample observe either
 * equal numbers or parts of a sum, so that the same average is right for them. Lists are not averaged: each
 * rank makes the lists of its samples.
 *
 * Layout of DsviSparse.seen, for each block: SCALARS numbers, then five arrays (N) with each head's
 * captured mass (fraction of attention that its lists hold), share90 (smallest fraction of keys that holds
 * 90 % of a query's attention), list density, and the squared lengths of output error and exact output. The
 * relative error of a head is computed from the averages of both. */
#include <string.h>

#include "sparse/sparse_internal.h"

enum {
    DENSITY,
    ESTIMATED_MASS,
    OVERFLOWED,
    OVERFLOW_DENSITY,
    MEASURED_DENSITY,
    MEASURED_MASS,
    UNFIT,
    RAN,            /* 1 if the rank used the layer in the step */
    MEASURED,       /* 1 if the rank has measured the block */
    MEASURED_ERROR, /* 1 if the rank has measured the block's output error */
    SCALARS
};
/* number of arrays (N), one value per head, that each block has in DsviSparse.seen */
enum { HEAD_MEANS = 5 };

size_t dsvi_sparse_seen_count(const DsviSparse *s)
{
    return (size_t)(s->shape.blocks * (SCALARS + HEAD_MEANS * s->shape.heads));
}

static double *seen_of(const DsviSparse *s, int64_t block)
{
    return s->seen + block * (SCALARS + HEAD_MEANS * s->shape.heads);
}

double *dsvi_sparse_seen_captured(const DsviSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS;
}

double *dsvi_sparse_seen_share90(const DsviSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + s->shape.heads;
}

double *dsvi_sparse_seen_listed(const DsviSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + 2 * s->shape.heads;
}

double *dsvi_sparse_seen_error(const DsviSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + 3 * s->shape.heads;
}

double *dsvi_sparse_seen_norm(const DsviSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + 4 * s->shape.heads;
}

static void pack_seen(const DsviSparse *s, int64_t block)
{
    const DsviSparseBlock *b = &s->block[block];
    double *seen = seen_of(s, block);
    seen[DENSITY] = s->record.density[block];
    seen[ESTIMATED_MASS] = s->record.estimated_mass[block];
    seen[OVERFLOWED] = b->overflowed;
    seen[OVERFLOW_DENSITY] = b->overflowed ? b->overflow_density : 0;
    seen[MEASURED_DENSITY] = b->measured_density;
    seen[MEASURED_MASS] = b->measured_mass;
    seen[UNFIT] = b->measured && !b->measured_fit;
    seen[RAN] = 1;
    seen[MEASURED] = b->measured;
    seen[MEASURED_ERROR] = b->measured_error;
}

static void unpack_seen(DsviSparse *s, int64_t block)
{
    DsviSparseBlock *b = &s->block[block];
    double *seen = seen_of(s, block), ranks = seen[RAN];
    s->record.density[block] = seen[DENSITY] / ranks;
    s->record.estimated_mass[block] = seen[ESTIMATED_MASS] / ranks;
    b->overflowed = seen[OVERFLOWED] > 0;
    if (b->overflowed)
        b->overflow_density = seen[OVERFLOW_DENSITY] / seen[OVERFLOWED];
    b->measured_density = seen[MEASURED_DENSITY] / ranks;
    b->measured_mass = seen[MEASURED_MASS] / ranks;
    b->measured = seen[MEASURED] > 0;
    b->measured_error = seen[MEASURED_ERROR] > 0;
    b->measured_fit = b->measured && seen[UNFIT] == 0;
    for (int64_t i = SCALARS; i < SCALARS + HEAD_MEANS * s->shape.heads; i++)
        seen[i] /= ranks;
}

DsvStatus dsvi_sparse_average_seen(DsviSparse *s)
{
    if (dsvi_comm_size(s->comm) == 1)
        return DSV_OK;
    if (!s->ran)
        memset(s->seen, 0, dsvi_sparse_seen_count(s) * sizeof *s->seen);
    for (int64_t block = 0; block < s->shape.blocks && s->ran; block++)
        pack_seen(s, block);
    DSVI_TRY(dsvi_comm_all_reduce(s->comm, DSVI_F64, s->seen, (int64_t)dsvi_sparse_seen_count(s)));
    s->ran = seen_of(s, 0)[RAN] > 0;
    for (int64_t block = 0; block < s->shape.blocks && s->ran; block++)
        unpack_seen(s, block);
    return DSV_OK;
}

void dsvi_sparse_set_comm(DsviSparse *s, DsviComm *comm, DsviComm *device_comm)
{
    s->comm = comm;
    if (!s->selector)
        return;
    s->selector->comm = comm;
    s->selector->device_comm = device_comm;
}
