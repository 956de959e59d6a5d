/* The update of state that waits in host memory, where it waits, by the CPU (offload_update=host).
 *
 * A bucket's gradients are downloaded to a slot of host memory, the calling thread and the pool of compute
 * threads update the state in place, and the new compute weights are uploaded from a second slot. Two of each
 * slot take turns, so that the copies of other buckets run meanwhile:
 *
 *     downloads   | grads 1 | grads 2 | grads 3 |
 *     CPU         | update 0| update 1| update 2|
 *     uploads               |weights 0|weights 1|
 *
 * With offload=weights blocks need no slots: the backward pass has sent their gradients to host memory, and
 * their compute weights wait there.
 *
 * A backward pass that updates (zero.h) gives the device the work of a bucket, then updates the bucket before
 * it in the pass, whose gradients are complete, on the CPU while the device computes:
 *
 *     compute     | bucket 3 | bucket 2 | bucket 1 |
 *     downloads              | grads 3  | grads 2  |
 *     CPU                     | update 3 | update 2|
 *
 * adamw has the same bits on the CPU and on the device (ops/optim.h), so the place of the update changes
 * none.
 */
#include "base/threads.h"
#include "train/zero_internal.h"

void dsvi_zero_update_on_host(DsviZero *z, bool host)
{
    DSVI_ASSERT(!host || dsvi_zero_can_update_on_host(z));
    z->host_update = host;
}

bool dsvi_zero_can_update_on_host(const DsviZero *z)
{
    return z->act != DSVI_F32 && z->moments.optimizer != DSVI_MUON;
}

bool dsvi_zero_on_host(const DsviZero *z, int64_t bucket)
{
    return z->host_update && bucket < z->hosted;
}

/* ---- memory ---- */

void dsvi_zero_carve_host_slots(DsviZero *z, DsviArena *arena)
{
    size_t grads = 0, weights = 0;
    for (int64_t b = 0; b < z->hosted; b++) {
        if (!dsvi_zero_grads_wait(z, b) && dsvi_zero_grad_bytes(z, b) > grads)
            grads = dsvi_zero_grad_bytes(z, b);
        if (!dsvi_zero_weights_wait(z, b) && dsvi_zero_weight_bytes(z, b) > weights)
            weights = dsvi_zero_weight_bytes(z, b);
    }
    for (int i = 0; i < DSVI_HOST_SLOTS && z->host_update; i++) {
        z->host_grad_slot[i] = dsvi_arena_take(arena, DSVI_MEM_GRADIENTS, grads);
        z->host_weight_slot[i] = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, weights);
    }
}

float *dsvi_zero_host_grad(const DsviZero *z, int64_t bucket)
{
    return dsvi_zero_grads_wait(z, bucket) ? dsvi_zero_waiting_grads(z, bucket)
                                           : z->host_grad_slot[bucket % DSVI_HOST_SLOTS];
}

unsigned char *dsvi_zero_host_weights(const DsviZero *z, int64_t bucket)
{
    return dsvi_zero_weights_wait(z, bucket) ? dsvi_zero_waiting_weights(z, bucket)
                                             : z->host_weight_slot[bucket % DSVI_HOST_SLOTS];
}

/* ---- gradients ---- */

/* Records the stream's flag after the download, so that dsvi_zero_await_grads does not wait for later ones.
 */
DsvStatus dsvi_zero_fetch_grads(const DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    if (!z->grads_sent || !dsvi_zero_grads_wait(z, bucket)) {
        DSVI_TRY(device->follow(device->downloads, device->stream));
        DSVI_TRY(device->download(device->downloads, dsvi_zero_host_grad(z, bucket),
                                  dsvi_zero_local_grad(z, bucket), dsvi_zero_grad_bytes(z, bucket)));
    }
    return device->flag(device->downloads);
}

DsvStatus dsvi_zero_await_grads(const DsviZero *z)
{
    return z->backend->device->await(z->backend->device->downloads);
}

/* ---- weights ---- */

/* Waits for the uploads that were enqueued before the last call, which read the slot that the CPU writes
 * next; later uploads read the other slot. New uploads wait for the device, which may still read the old
 * weights. */
DsvStatus dsvi_zero_host_enter(const DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    DsviStream *uploads = dsvi_zero_state_uploads(z);
    DSVI_TRY(device->await(uploads));
    DSVI_TRY(device->flag(uploads));
    return device->follow(uploads, device->stream);
}

/* Without an update in the pass the device has no other work, and ranks may gather the weights next. */
DsvStatus dsvi_zero_host_leave(const DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    DsviStream *uploads = dsvi_zero_state_uploads(z);
    if (dsvi_zero_weights_wait(z, bucket))
        return DSV_OK;
    DSVI_TRY(device->upload(uploads, dsvi_zero_local_weights(z, bucket), dsvi_zero_host_weights(z, bucket),
                            dsvi_zero_weight_bytes(z, bucket)));
    return z->updates_in_pass ? DSV_OK : device->follow(device->stream, uploads);
}

DsvStatus dsvi_zero_host_end(DsviZero *z)
{
    DsviDevice *device = z->backend->device;
    dsvi_zero_lend_end(z);
    return device->follow(device->stream, dsvi_zero_state_uploads(z));
}

/* ---- the moving average ---- */

typedef struct Swap {
    float *a, *b;
} Swap;

static void swap_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Swap *swap = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float a = swap->a[i];
        swap->a[i] = swap->b[i];
        swap->b[i] = a;
    }
}

void dsvi_zero_host_swap(float *a, float *b, int64_t count)
{
    enum { PIECE = 1 << 16 };
    dsvi_parallel_for(count, PIECE, swap_range, &(Swap){a, b});
}
