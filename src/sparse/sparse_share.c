/* What several ranks have seen of their own samples, made into what all of them go by. Ranks that share
 * samples count as one: they have the same numbers, or each its part of a sum. With it the profile, the
 * guard's decisions and the selectors' state are the same on every rank: they are functions of sums over
 * ranks, and of rank 0's measurement of what attention costs. Lists are each rank's own, of its samples. */
#include <string.h>

#include "sparse/sparse_internal.h"

enum { DENSITY, ESTIMATED_MASS, OVERFLOWED, OVERFLOW_DENSITY, MEASURED_DENSITY, MEASURED_MASS, UNFIT,
       SCALARS };
enum { HEAD_MEANS = 3 };

size_t dsvi_sparse_seen_count(const DsvSparse *s)
{
    return (size_t)(s->shape.blocks * (SCALARS + HEAD_MEANS * s->shape.heads));
}

static double *seen_of(const DsvSparse *s, int64_t block)
{
    return s->seen + block * (SCALARS + HEAD_MEANS * s->shape.heads);
}

double *dsvi_sparse_seen_captured(const DsvSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS;
}

double *dsvi_sparse_seen_share90(const DsvSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + s->shape.heads;
}

double *dsvi_sparse_seen_listed(const DsvSparse *s, int64_t block)
{
    return seen_of(s, block) + SCALARS + 2 * s->shape.heads;
}

static void put_in(const DsvSparse *s, int64_t block)
{
    const DsvSparseBlock *b = &s->block[block];
    double *seen = seen_of(s, block);
    seen[DENSITY] = s->record.density[block];
    seen[ESTIMATED_MASS] = s->record.estimated_mass[block];
    seen[OVERFLOWED] = b->overflowed;
    seen[OVERFLOW_DENSITY] = b->overflowed ? b->overflow_density : 0;
    seen[MEASURED_DENSITY] = b->measured_density;
    seen[MEASURED_MASS] = b->measured_mass;
    seen[UNFIT] = b->measured && !b->measured_fit;
}

static void take_out(DsvSparse *s, int64_t block)
{
    DsvSparseBlock *b = &s->block[block];
    double *seen = seen_of(s, block), ranks = (double)dsvi_comm_size(s->comm);
    s->record.density[block] = seen[DENSITY] / ranks;
    s->record.estimated_mass[block] = seen[ESTIMATED_MASS] / ranks;
    b->overflowed = seen[OVERFLOWED] > 0;
    if (b->overflowed)
        b->overflow_density = seen[OVERFLOW_DENSITY] / seen[OVERFLOWED];
    b->measured_density = seen[MEASURED_DENSITY] / ranks;
    b->measured_mass = seen[MEASURED_MASS] / ranks;
    b->measured_fit = b->measured && seen[UNFIT] == 0;
    for (int64_t i = SCALARS; i < SCALARS + HEAD_MEANS * s->shape.heads; i++)
        seen[i] /= ranks;
}

DsvStatus dsvi_sparse_agree(DsvSparse *s)
{
    if (dsvi_comm_size(s->comm) == 1)
        return DSV_OK;
    for (int64_t block = 0; block < s->shape.blocks; block++)
        put_in(s, block);
    DSVI_TRY(dsvi_comm_all_reduce(s->comm, DSV_F64, s->seen, (int64_t)dsvi_sparse_seen_count(s)));
    for (int64_t block = 0; block < s->shape.blocks; block++)
        take_out(s, block);
    return DSV_OK;
}

void dsvi_sparse_share(DsvSparse *s, DsvComm *comm, DsvComm *device_comm)
{
    s->comm = comm;
    if (!s->selector)
        return;
    s->selector->comm = comm;
    s->selector->device_comm = device_comm;
}
