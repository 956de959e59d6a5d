/* Blocks whose compute weights wait in host memory from one use to the next, and gradients of blocks that
 * wait there from the backward pass to the update (offload=weights).
 *
 * Passes get lent blocks like frozen ones, from two slots of device memory (model/dit/dit_lent.h). A backward
 * pass computes the gradients of a block in one of three slots, and then sends them to host memory while it
 * computes the next block:
 *
 *     uploads     | weights 2 | weights 1 |
 *     compute     | block 3   | block 2   | block 1   |
 *     downloads               | grads 3   | grads 2   |
 *
 * An update on the device finds the gradients of a block in the same slots, uploaded with the block's state,
 * and writes its new compute weights in a slot from which they are downloaded with the state
 * (zero_offload.c). An update by the CPU reads gradients and writes weights where they wait
 * (zero_host_update.c). The slots for weights are shared by passes and updates, because these do not overlap;
 * if a backward pass updates, both have slots of their own, and gradients do not wait.
 *
 * With weights divided among ranks (zero_stage=3) each rank's shard waits. It is uploaded while the block
 * before the one is computed beside which the shards of all ranks are gathered. With divided gradients a rank
 * sends its shard of the sum over ranks.
 *
 * The sum of squares of a block's gradients is computed before they leave, by the same call as without
 * offload. The same kernels run on the same values, so the bits are the same. */
#include <stdlib.h>

#include "train/zero_internal.h"

/* ---- what waits ---- */

int64_t dsvi_zero_blocks(const DsviZero *z)
{
    return z->table->buckets - 2;
}

static bool is_block(const DsviZero *z, int64_t bucket)
{
    return bucket > 0 && bucket < z->table->buckets - 1;
}

/* Returns the number of a bucket among the lent blocks; -1: it is not lent. */
static int64_t number_of(const DsviZero *z, int64_t bucket)
{
    return z->lent.count > 0 && is_block(z, bucket) ? dsvi_lent_number(&z->lent, bucket - 1) : -1;
}

bool dsvi_zero_weights_wait(const DsviZero *z, int64_t bucket)
{
    return number_of(z, bucket) >= 0;
}

bool dsvi_zero_grads_wait(const DsviZero *z, int64_t bucket)
{
    return z->grads_wait && is_block(z, bucket);
}

bool dsvi_zero_lends(const DsviZero *z)
{
    return z->lent.count > 0 || z->grads_wait;
}

/* Returns (buckets + 1) bytes: where compute weights that this rank keeps would begin if none of them waited;
 * and elements of its gradients. */
static const int64_t *kept_weights(const DsviZero *z)
{
    return z->compute_whole ? z->compute_shard.begin : z->compute_shard.packed;
}

static const int64_t *kept_grads(const DsviZero *z)
{
    return z->grad.flat ? z->shard.begin : z->shard.packed;
}

/* Computes where compute weights and gradients begin that stay on the device. */
static void place_on_device(DsviZero *z)
{
    const int64_t *bytes = kept_weights(z), *elements = kept_grads(z);
    for (int64_t b = 0; b < z->shard.buckets; b++) {
        z->compute_begin[b + 1] = z->compute_begin[b] +
                                  (dsvi_zero_weights_wait(z, b) ? 0 : bytes[b + 1] - bytes[b]);
        bool elsewhere = dsvi_zero_grads_wait(z, b) || z->updates_in_pass;
        z->grad_begin[b + 1] = z->grad_begin[b] + (elsewhere ? 0 : elements[b + 1] - elements[b]);
    }
}

static void lend(DsviZero *z, int64_t blocks, bool grads_wait)
{
    DSVI_ASSERT(blocks >= 0 && blocks <= dsvi_zero_blocks(z));
    z->lent.count = blocks;
    z->grads_wait = grads_wait;
    place_on_device(z);
}

void dsvi_zero_lend_none(DsviZero *z)
{
    lend(z, 0, false);
}

bool dsvi_zero_can_lend(const DsviZero *z)
{
    return z->act != DSVI_F32 && (!z->compute_whole || dsvi_comm_size(z->mesh->all) == 1);
}

void dsvi_zero_lend(DsviZero *z, int64_t blocks)
{
    DSVI_ASSERT(dsvi_zero_can_lend(z));
    dsvi_zero_host_state(z, z->shard.buckets);
    lend(z, blocks, z->grad_elsewhere && !z->updates_in_pass);
}

DsvStatus dsvi_zero_lend_make(DsviZero *z)
{
    size_t count = (size_t)z->shard.buckets + 1;
    z->lent = (DsviDitLent){
        .device = z->backend->device, .turns = true, .blocks = dsvi_zero_blocks(z), .in_slot = {-1, -1}};
    z->compute_begin = calloc(count, sizeof *z->compute_begin);
    z->grad_begin = calloc(count, sizeof *z->grad_begin);
    if (!z->compute_begin || !z->grad_begin)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to place %zu buckets of weights", count - 1);
    place_on_device(z);
    return DSV_OK;
}

void dsvi_zero_lend_free(DsviZero *z)
{
    free(z->compute_begin);
    free(z->grad_begin);
}

/* ---- memory ---- */

unsigned char *dsvi_zero_weight_slot(const DsviZero *z, int64_t bucket)
{
    return z->weight_slot[number_of(z, bucket) % DSVI_STATE_SLOTS];
}

size_t dsvi_zero_weight_bytes(const DsviZero *z, int64_t bucket)
{
    return (size_t)dsvi_shard_count(&z->compute_shard, bucket);
}

size_t dsvi_zero_grad_bytes(const DsviZero *z, int64_t bucket)
{
    return (size_t)dsvi_shard_count(&z->shard, bucket) * sizeof(float);
}

/* Gradients take turns in as many slots as are in use at once: the first of these is written by the backward
 * pass, the second is downloaded or updated, and the third is for gradients that are uploaded again. */
static int64_t grad_slots(const DsviZero *z)
{
    if (z->updates_in_pass)
        return z->host_update ? 2 : 1;
    return !z->grads_wait ? 0 : z->host_update ? 2 : DSVI_STATE_SLOTS;
}

float *dsvi_zero_grad_slot(const DsviZero *z, int64_t bucket)
{
    return z->grad_slot[bucket % grad_slots(z)];
}

/* Passes read lent blocks in the slots in which updates write them, unless both happen at once, or updates
 * write in host memory. */
void dsvi_zero_carve_lend_slots(DsviZero *z, DsviArena *arena)
{
    bool apart = z->updates_in_pass || z->host_update;
    size_t weights = 0, grads = 0;
    for (int64_t b = 1; b <= dsvi_zero_blocks(z); b++) {
        weights = dsvi_zero_weight_bytes(z, b) > weights ? dsvi_zero_weight_bytes(z, b) : weights;
        grads = dsvi_zero_grad_bytes(z, b) > grads ? dsvi_zero_grad_bytes(z, b) : grads;
    }
    if (z->updates_in_pass)
        grads = (size_t)dsvi_shard_largest_bucket(&z->shard) * sizeof(float);
    for (int i = 0; i < DSVI_STATE_SLOTS && z->lent.count > 0 && !z->host_update; i++)
        z->weight_slot[i] = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, weights);
    for (int i = 0; i < DSVI_LENT_SLOTS && z->lent.count > 0; i++)
        z->lent.slot[i] = apart ? dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, weights) : z->weight_slot[i];
    for (int64_t i = 0; i < grad_slots(z); i++)
        z->grad_slot[i] = dsvi_arena_take(arena, DSVI_MEM_GRADIENTS, grads);
}

void dsvi_zero_carve_lent(DsviZero *z, DsviArena *arena)
{
    int64_t buckets = z->shard.buckets;
    int64_t weights = kept_weights(z)[buckets] - z->compute_begin[buckets];
    int64_t grads = kept_grads(z)[buckets] - z->grad_begin[buckets];
    if (z->lent.count > 0)
        z->host_weights = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, (size_t)weights);
    if (z->grads_wait)
        z->host_grads = dsvi_arena_take(arena, DSVI_MEM_GRADIENTS, (size_t)grads * sizeof(float));
}

unsigned char *dsvi_zero_waiting_weights(const DsviZero *z, int64_t bucket)
{
    return z->host_weights + (kept_weights(z)[bucket] - z->compute_begin[bucket]);
}

float *dsvi_zero_waiting_grads(const DsviZero *z, int64_t bucket)
{
    return z->host_grads + (kept_grads(z)[bucket] - z->grad_begin[bucket]);
}

/* ---- a pass ---- */

/* DsviLentSource */
static DsviLentSource lent_weights(const void *owner, int64_t block)
{
    const DsviZero *z = owner;
    return (DsviLentSource){dsvi_zero_waiting_weights(z, block + 1), dsvi_zero_weight_bytes(z, block + 1)};
}

DsvStatus dsvi_zero_lend_acquire(DsviZero *z, DsviDitPass pass, int64_t bucket, unsigned char **weights)
{
    return dsvi_lent_acquire(&z->lent, pass, bucket - 1, lent_weights, z, weights);
}

/* The first wait lets the next block reuse the slot of an earlier one, whose download had the time of this
 * block. The last wait is for the update, which uploads the gradients again. */
DsvStatus dsvi_zero_send_grads(DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    DSVI_TRY(dsvi_zero_finish_grads(z, bucket));
    DSVI_TRY(device->follow(device->stream, device->downloads));
    DSVI_TRY(device->follow(device->downloads, device->stream));
    z->grads_sent = true;
    DSVI_TRY(device->download(device->downloads, dsvi_zero_waiting_grads(z, bucket),
                              dsvi_zero_local_grad(z, bucket), dsvi_zero_grad_bytes(z, bucket)));
    return bucket == 1 ? device->follow(device->uploads, device->downloads) : DSV_OK;
}

/* ---- an update ---- */

DsvStatus dsvi_zero_upload_grads(const DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    if (!z->grads_sent || !dsvi_zero_grads_wait(z, bucket))
        return DSV_OK;
    return device->upload(device->uploads, dsvi_zero_local_grad(z, bucket),
                          dsvi_zero_waiting_grads(z, bucket), dsvi_zero_grad_bytes(z, bucket));
}

DsvStatus dsvi_zero_download_weights(const DsviZero *z, int64_t bucket)
{
    DsviDevice *device = z->backend->device;
    if (!dsvi_zero_weights_wait(z, bucket))
        return DSV_OK;
    return device->download(device->downloads, dsvi_zero_waiting_weights(z, bucket),
                            dsvi_zero_weight_slot(z, bucket), dsvi_zero_weight_bytes(z, bucket));
}

void dsvi_zero_lend_end(DsviZero *z)
{
    z->grads_sent = false;
    dsvi_lent_forget(&z->lent);
}
