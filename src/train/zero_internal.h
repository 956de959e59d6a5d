/* Shared by zero.c, zero_update.c, zero_host_update.c, zero_offload.c, zero_lend.c and zero_host.c: where a
 * bucket's arrays are, and transfers that an update needs. */
#ifndef DSVI_ZERO_INTERNAL_H
#define DSVI_ZERO_INTERNAL_H

#include "train/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of the first `element` elements of a bucket's compute weights. `zero` is a DsviZero. */
int64_t dsvi_zero_compute_bytes(const void *zero, int64_t bucket, int64_t element);
/* Returns this rank's shard of a bucket's compute weights, on the device; of a lent block, which must have
 * been entered, in its slot. */
unsigned char *dsvi_zero_local_weights(const DsviZero *zero, int64_t bucket);
/* Returns memory for the whole bucket's gradients. After the sum over ranks, with gradients divided among the
 * ranks, its content is not used any more. */
float *dsvi_zero_bucket_grad(const DsviZero *zero, int64_t bucket);
/* Returns this rank's shard of the bucket's gradients, summed over ranks. */
float *dsvi_zero_local_grad(const DsviZero *zero, int64_t bucket);
/* Clears the gradients of frozen parameters in that shard, and computes its sum of squares, in
 * zero->square. */
DsvStatus dsvi_zero_finish_grads(const DsviZero *zero, int64_t bucket);

/* Call when this rank's shard of the bucket's weights has changed. At stages 1 and 2 queues the all-gather;
 * at stage 3 only invalidates the buffer, and the next pass gathers. */
DsvStatus dsvi_zero_publish(DsviZero *zero, int64_t bucket);
/* Gathers the shards of all ranks of what dsvi_zero_bucket_grad returns, and waits until they are there. */
DsvStatus dsvi_zero_gather_directions(DsviZero *zero, int64_t bucket);
DsvStatus dsvi_zero_wait_for_queue(DsviZero *zero);

/* ---- zero_offload.c: the state, on the device or in host memory ---- */

/* One array of the state on this rank. */
typedef struct DsviStateView {
    const DsviShard *shard; /* its division among ranks, in items */
    size_t size;            /* bytes of an item */
    DsviMemClass mem_class;
    unsigned char *device; /* the array, flat or packed; without the shards of buckets before `hosted`; NULL:
                            * the run has no such array, or memory is only planned */
    bool flat;
    unsigned char *host; /* packed shards of buckets before `hosted` */
    int64_t hosted;      /* 0 if all of the array is on the device */
} DsviStateView;

DsviStateView dsvi_zero_state_view(const DsviZero *zero, DsviStateArray array);
/* Returns this rank's shard of a bucket where it is between updates: in host memory if bucket < view->hosted,
 * else on the device. */
unsigned char *dsvi_state_local(const DsviStateView *view, int64_t bucket);

/* Takes the device memory of the slots. */
void dsvi_zero_carve_slots(DsviZero *zero, const DsvConfig *settings, DsviArena *arena);
/* Provides the state of a bucket on the device, for work that the compute stream is given next. Call for all
 * buckets in ascending order, dsvi_zero_state_leave after each and dsvi_zero_state_end after the last. */
DsvStatus dsvi_zero_state_enter(DsviZero *zero, int64_t bucket);
/* Returns the address of this rank's shard of a bucket that has been entered: of the device, or of the host
 * if the CPU updates the bucket. */
void *dsvi_zero_state(const DsviZero *zero, DsviStateArray array, int64_t bucket);
/* Copies the bucket's state back to host memory if `changed`. Its addresses become invalid. */
DsvStatus dsvi_zero_state_leave(DsviZero *zero, int64_t bucket, bool changed);
/* Returns the stream on which state, or the weights that the CPU has updated, are uploaded. */
DsviStream *dsvi_zero_state_uploads(const DsviZero *zero);
/* Returns the bucket that an update, or another visit of all state, enters as number `visit`, from 0: in the
 * order of a backward pass if this pass updates. */
int64_t dsvi_zero_visited(const DsviZero *zero, int64_t visit);
/* Updates a bucket whose gradients are complete, in a backward pass. */
DsvStatus dsvi_zero_update_bucket(DsviZero *zero, int64_t bucket);
/* Starts to upload the state of the first buckets for the next update, after all downloads. */
DsvStatus dsvi_zero_state_end(DsviZero *zero);
/* Waits until no copy of the state is in progress, so that the caller may read host_state. */
DsvStatus dsvi_zero_state_sync(const DsviZero *zero);
/* The same, and discards what has been uploaded in advance, so that the caller may change host_state. */
DsvStatus dsvi_zero_state_discard(DsviZero *zero);
/* Waits until no copy of the state is in progress and ignores failures, before memory is freed. */
void dsvi_zero_settle_state(const DsviZero *zero);

/* ---- zero_host_update.c: the update in host memory ---- */

/* Returns whether the CPU updates the bucket. */
bool dsvi_zero_on_host(const DsviZero *zero, int64_t bucket);
/* Takes the host memory of the slots. */
void dsvi_zero_carve_host_slots(DsviZero *zero, DsviArena *arena);
/* Return the host memory in which the CPU reads this rank's shard of the bucket's gradients, and in which it
 * writes that of its compute weights. */
float *dsvi_zero_host_grad(const DsviZero *zero, int64_t bucket);
unsigned char *dsvi_zero_host_weights(const DsviZero *zero, int64_t bucket);
/* Starts to download the bucket's gradients, unless the pass has sent them. */
DsvStatus dsvi_zero_fetch_grads(const DsviZero *zero, int64_t bucket);
/* Waits until the gradients that were fetched last are in host memory. */
DsvStatus dsvi_zero_await_grads(const DsviZero *zero);
/* Parts of dsvi_zero_state_enter, _leave and _end for such buckets: wait until the CPU may write a bucket's
 * new compute weights, upload them, and make the compute stream wait for all of them. */
DsvStatus dsvi_zero_host_enter(const DsviZero *zero);
DsvStatus dsvi_zero_host_leave(const DsviZero *zero, int64_t bucket);
DsvStatus dsvi_zero_host_end(DsviZero *zero);
/* Exchanges `count` elements of two arrays in host memory. */
void dsvi_zero_host_swap(float *a, float *b, int64_t count);

/* ---- zero_lend.c: blocks in host memory ---- */

/* Makes zero->compute_begin and grad_begin, with nothing in host memory. */
DsvStatus dsvi_zero_lend_make(DsviZero *zero);
void dsvi_zero_lend_free(DsviZero *zero);
/* Lends no block any more. */
void dsvi_zero_lend_none(DsviZero *zero);
/* Returns whether anything of the blocks but state waits in host memory. */
bool dsvi_zero_lends(const DsviZero *zero);
/* Returns whether compute weights, or gradients, of the bucket wait in host memory. */
bool dsvi_zero_weights_wait(const DsviZero *zero, int64_t bucket);
/* Bytes of this rank's shard of a bucket: of its F32 gradients, and of its compute weights. */
size_t dsvi_zero_grad_bytes(const DsviZero *zero, int64_t bucket);
size_t dsvi_zero_weight_bytes(const DsviZero *zero, int64_t bucket);
bool dsvi_zero_grads_wait(const DsviZero *zero, int64_t bucket);
/* Return where compute weights, and gradients, of a bucket wait. */
unsigned char *dsvi_zero_waiting_weights(const DsviZero *zero, int64_t bucket);
float *dsvi_zero_waiting_grads(const DsviZero *zero, int64_t bucket);
/* Returns the slot in which a backward pass writes the bucket's gradients, and an update on the device finds
 * them. */
float *dsvi_zero_grad_slot(const DsviZero *zero, int64_t bucket);
/* Returns the slot in which an update on the device writes the compute weights of a lent block. */
unsigned char *dsvi_zero_weight_slot(const DsviZero *zero, int64_t bucket);
/* Take the device memory of the slots, and the host memory. */
void dsvi_zero_carve_lend_slots(DsviZero *zero, DsviArena *arena);
void dsvi_zero_carve_lent(DsviZero *zero, DsviArena *arena);
/* In a pass: provides the compute weights of a lent block, and sends the complete gradients of a block to
 * host memory, after everything that needs them on the device. */
DsvStatus dsvi_zero_lend_acquire(DsviZero *zero, DsviDitPass pass, int64_t bucket, unsigned char **weights);
DsvStatus dsvi_zero_send_grads(DsviZero *zero, int64_t bucket);
/* In an update, as a part of dsvi_zero_state_enter and _leave: starts to upload the bucket's gradients, if
 * they wait, and to download its new compute weights, if it is lent. */
DsvStatus dsvi_zero_upload_grads(const DsviZero *zero, int64_t bucket);
DsvStatus dsvi_zero_download_weights(const DsviZero *zero, int64_t bucket);
/* At the end of an update: the slots do not hold valid weights any more, and gradients are used up. */
void dsvi_zero_lend_end(DsviZero *zero);

#ifdef __cplusplus
}
#endif
#endif
