/* Keeps lists in host memory from a block's forward pass to its backward pass (sparse.offload_lists).
 *
 * DsviSparse.spans on the device holds the lists of about two blocks, host_spans in host memory the lists of
 * all blocks except the last. Copies run in order on a stream of their own (DsviDevice.copies), and the host
 * waits for none of them:
 *
 *     forward   A block's lists are made at the front of `spans`, once the previous lists have been copied to
 *               the host. They are copied while the device attends over them and computes the rest of the
 *               block. Lists of the last block stay on the device, because its backward pass comes next.
 *     backward  While a block attends, the lists needed next are copied to the other end of `spans`. If both
 *               do not fit, they are copied after the block has attended.
 *
 *     forward    compute  | select 0 | attend 0 | rest of 0 | select 1 | attend 1 | rest of 1 | select 2 ...
 *                copies              | 0 to host  |                    | 1 to host  |
 *     backward   compute  | back 2 | rest of 2 | back 1 | rest of 1 | back 0 | rest of 0 |
 *                copies   | 1 to device |      | 0 to device |
 *
 * Blocks that attended densely are skipped. The offsets at which lists begin stay on the device: a list
 * has one offset, but many spans. */
#include "sparse/sparse_internal.h"

/* The two places for lists in DsviSparse.spans, its front and its end; indices of DsviSparse.resident. */
enum { FRONT, END };

bool dsvi_sparse_offloads(const DsviSparse *s)
{
    return s->settings.sparse_offload_lists && s->shape.backward;
}

/* Returns the end of `spans` at which the block's lists are, or -1 if they are not on the device. */
static int resident_end(const DsviSparse *s, int64_t block)
{
    return s->resident[FRONT] == block ? FRONT : s->resident[END] == block ? END : -1;
}

bool dsvi_sparse_lists_on_device(const DsviSparse *s, int64_t block)
{
    return !dsvi_sparse_offloads(s) || resident_end(s, block) >= 0;
}

static size_t kept_span_bytes(const DsviSparseBlock *b)
{
    return (size_t)b->kept * sizeof *b->spans;
}

DsvStatus dsvi_sparse_reserve_lists(DsviSparse *s, int64_t block)
{
    DsviDevice *device = s->backend->device;
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    s->resident[FRONT] = block;
    s->resident[END] = s->arriving = -1;
    return device->follow(device->stream, device->copies);
}

DsvStatus dsvi_sparse_offload_lists(DsviSparse *s, int64_t block)
{
    DsviDevice *device = s->backend->device;
    const DsviSparseBlock *b = &s->block[block];
    if (!dsvi_sparse_offloads(s) || block + 1 == s->shape.blocks)
        return DSV_OK;
    DSVI_ASSERT(s->host_spans);
    return device->download(device->copies, s->host_spans + b->first_span, b->spans, kept_span_bytes(b));
}

/* Begins to copy the block's lists from host memory to `end` (FRONT or END) of DsviSparse.spans. The copy
 * waits for all work that the compute stream has been given so far, so the copy overwrites no lists that
 * this work still reads. */
static DsvStatus begin_upload(DsviSparse *s, int64_t block, int end)
{
    DsviDevice *device = s->backend->device;
    DsviSparseBlock *b = &s->block[block];
    DSVI_ASSERT(s->host_spans);
    dsvi_sparse_point_lists(s, block, end == FRONT ? s->spans : s->spans + s->spans_room - b->kept);
    s->resident[end] = s->arriving = block;
    DSVI_TRY(device->follow(device->copies, device->stream));
    return device->upload(device->copies, b->spans, s->host_spans + b->first_span, kept_span_bytes(b));
}

/* Begins to copy the lists of the next block of the backward pass, if they are not on the device and fit
 * beside the `used` spans of this block that are still needed. */
static DsvStatus upload_next(DsviSparse *s, int64_t block, int64_t used)
{
    int64_t next = block - 1;
    while (next >= 0 && !s->block[next].over_lists)
        next--;
    if (next < 0 || resident_end(s, next) >= 0 || used + s->block[next].kept > s->spans_room)
        return DSV_OK;
    return begin_upload(s, next, resident_end(s, block) == FRONT ? END : FRONT);
}

DsvStatus dsvi_sparse_restore_lists(DsviSparse *s, int64_t block)
{
    DsviDevice *device = s->backend->device;
    const DsviSparseBlock *b = &s->block[block];
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    if (b->over_lists && resident_end(s, block) < 0) {
        s->resident[END] = -1;
        DSVI_TRY(begin_upload(s, block, FRONT));
    }
    if (s->arriving == block) {
        DSVI_TRY(device->follow(device->stream, device->copies));
        s->arriving = -1;
    }
    return upload_next(s, block, b->over_lists ? b->kept : 0);
}

DsvStatus dsvi_sparse_discard_lists(DsviSparse *s, int64_t block)
{
    if (!dsvi_sparse_offloads(s))
        return DSV_OK;
    if (resident_end(s, block) >= 0)
        s->resident[resident_end(s, block)] = -1;
    return upload_next(s, block, 0);
}
