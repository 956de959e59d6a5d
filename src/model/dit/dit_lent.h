/* Blocks whose weights wait in host memory ("lent" blocks), and the two slots of device memory in which they
 * take turns.
 *
 * Lent blocks are spread evenly among the blocks that stay on the device. When a pass acquires a lent block,
 * the next lent block starts to travel into the other slot, on the stream of uploads:
 *
 *     uploads  | 2 to A |          | 5 to B |          | 8 to A |
 *     compute  |  0  |  1  | 2 (A) |  3  |  4  | 5 (B) |  6  |  7  | 8 (A) |
 *
 * So an upload has the time of all blocks from one lent block to the next. The host waits for no copy. A pass
 * visits blocks in a cyclic order, or forward and backward in turn, and for both orders the fewest uploads
 * are those of a fixed set of blocks on the device: a block that is in a slot when it is acquired is not
 * uploaded again, and a backward pass begins with the two blocks that are in the slots. */
#ifndef DSVI_DIT_LENT_H
#define DSVI_DIT_LENT_H

#include "device/device.h"
#include "model/dit/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_LENT_SLOTS = 2 };

typedef struct DsviDitLent {
    DsviDevice *device;
    bool turns;                           /* a backward pass follows a forward pass */
    int64_t blocks, count;                /* blocks of the model; lent blocks */
    size_t slot_bytes;                    /* of the largest lent block */
    unsigned char *slot[DSVI_LENT_SLOTS]; /* (slot_bytes) device memory */
    int64_t in_slot[DSVI_LENT_SLOTS];     /* number of the lent block that a slot holds or is about to hold;
                                           * -1: none */
    int latest;                           /* slot that was acquired last */
} DsviDitLent;

/* Returns the number of a block among the lent blocks, or -1 if the block stays on the device. */
int64_t dsvi_lent_number(const DsviDitLent *lent, int64_t block);
/* Returns the block that has this number among the lent blocks. */
int64_t dsvi_lent_block(const DsviDitLent *lent, int64_t number);

/* What is copied of a lent block: `bytes` bytes of the host at `host`. */
typedef struct DsviLentSource {
    const void *host;
    size_t bytes;
} DsviLentSource;

/* Provides a lent block in *where, a slot: work that is enqueued on the compute stream from now on finds the
 * block there, until the next lent block is acquired. `source` returns what is copied. All work that uses the
 * lent block acquired before must have been enqueued. */
DsvStatus dsvi_lent_acquire(DsviDitLent *lent, DsviDitPass pass, int64_t block,
                            DsviLentSource (*source)(const void *owner, int64_t block), const void *owner,
                            unsigned char **where);
/* Forgets what the slots hold, before blocks change in host memory by copies that later uploads wait for. */
void dsvi_lent_forget(DsviDitLent *lent);
/* Waits for all copies and forgets what the slots hold, before blocks change in host memory or memory is
 * freed. */
DsvStatus dsvi_lent_settle(DsviDitLent *lent);

#ifdef __cplusplus
}
#endif
#endif
