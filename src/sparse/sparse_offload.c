/* Lists in host memory from a block's forward pass to its backward pass (sparse.offload_lists).
 *
 * The device has room for those of two blocks or so, the host for those of all. Copies have a stream of their
 * own, on which they keep their order; the host waits for none of them:
 *
 *     forward   a block's lists are made at the front of the room, once the lists before them have left it,
 *               and leave while the device attends over them and computes the rest of the block. Those of the
 *               last block stay: its backward pass comes next.
 *     backward  while a block attends, the lists wanted next come to the other end of the room. Where there
 *               is none beside its own they come once the block has attended.
 *
 *     forward    compute  | select 0 | attend 0 | rest of 0 | select 1 | attend 1 | rest of 1 | select 2 ...
 *                copies              |  0 leaves   |                   |  1 leaves   |
 *     backward   compute  | back 2 | rest of 2 | back 1 | rest of 1 | back 0 | rest of 0 |
 *                copies   | 1 comes |          | 0 comes |
 *
 * Blocks that ran dense have no part in it. Offsets stay on the device: one for many runs. */
#include "sparse/sparse_internal.h"

enum { FRONT, END };

bool dsvi_sparse_offloads(const DsvSparse *s)
{
    return s->settings.sparse_offload_lists && s->shape.backward;
}

/* The end of the room where the block's lists lie; -1: they do not. */
static int end_of(const DsvSparse *s, int64_t block)
{
    return s->lying[FRONT] == block ? FRONT : s->lying[END] == block ? END : -1;
}

bool dsvi_sparse_lies(const DsvSparse *s, int64_t block)
{
    return !dsvi_sparse_offloads(s) || end_of(s, block) >= 0;
}

static size_t bytes_of(const DsvSparseBlock *b)
{
    return (size_t)b->kept * sizeof *b->runs;
}

DsvStatus dsvi_sparse_clear_room(DsvSparse *s, int64_t block)
{
    DsvDevice *device = s->backend->device;
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    s->lying[FRONT] = block;
    s->lying[END] = s->coming = -1;
    return device->follow(device->stream, device->copies);
}

DsvStatus dsvi_sparse_send_away(DsvSparse *s, int64_t block)
{
    DsvDevice *device = s->backend->device;
    const DsvSparseBlock *b = &s->block[block];
    if (!dsvi_sparse_offloads(s) || block + 1 == s->shape.blocks)
        return DSV_OK;
    DSVI_ASSERT(s->host_runs);
    return device->download(device->copies, s->host_runs + b->at, b->runs, bytes_of(b));
}

/* Has the block's lists brought to this end of the room, behind what the device has been given: nothing of
 * that will be overwritten before it is used. */
static DsvStatus fetch(DsvSparse *s, int64_t block, int end)
{
    DsvDevice *device = s->backend->device;
    DsvSparseBlock *b = &s->block[block];
    DSVI_ASSERT(s->host_runs);
    dsvi_sparse_point_lists(s, block, end == FRONT ? s->runs : s->runs + s->runs_room - b->kept);
    s->lying[end] = s->coming = block;
    DSVI_TRY(device->follow(device->copies, device->stream));
    return device->upload(device->copies, b->runs, s->host_runs + b->at, bytes_of(b));
}

/* The lists that are wanted next after the block's, of which `used` runs are still wanted, where both find
 * room. */
static DsvStatus fetch_next(DsvSparse *s, int64_t block, int64_t used)
{
    int64_t next = block - 1;
    while (next >= 0 && !s->block[next].over_lists)
        next--;
    if (next < 0 || end_of(s, next) >= 0 || used + s->block[next].kept > s->runs_room)
        return DSV_OK;
    return fetch(s, next, end_of(s, block) == FRONT ? END : FRONT);
}

DsvStatus dsvi_sparse_bring_back(DsvSparse *s, int64_t block)
{
    DsvDevice *device = s->backend->device;
    const DsvSparseBlock *b = &s->block[block];
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    if (b->over_lists && end_of(s, block) < 0) {
        s->lying[END] = -1;
        DSVI_TRY(fetch(s, block, FRONT));
    }
    if (s->coming == block) {
        DSVI_TRY(device->follow(device->stream, device->copies));
        s->coming = -1;
    }
    return fetch_next(s, block, b->over_lists ? b->kept : 0);
}

DsvStatus dsvi_sparse_use_up(DsvSparse *s, int64_t block)
{
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    if (end_of(s, block) >= 0)
        s->lying[end_of(s, block)] = -1;
    return fetch_next(s, block, 0);
}
