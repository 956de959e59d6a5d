/* Where the weights of a transformer that is sampled wait: on the device, or, as many blocks as do not fit
 * there, in host memory (dit_frozen.h).
 *
 * Blocks wait in host memory if the model needs more than the free device memory or than memory_gib, or if
 * offload=weights asks for it: then with memory_gib the fewest that the limit requires, without it all. */
#ifndef DSVI_SAMPLE_ROOM_H
#define DSVI_SAMPLE_ROOM_H

#include "device/host_pool.h"
#include "dsv/events.h"
#include "model/dit/dit_frozen.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_SAMPLE_ROOM_LINE = 256 };

typedef struct DsviSampleRoom {
    const char *path; /* of the model, for messages */
    const DsvConfig *settings;
    DsviDevice *device;
    DsviDitFrozen *weights;
    dsvi_layout_fn *layout; /* takes all device memory, that of `weights` included */
    void *object;           /* of `layout` */

    /* Set by dsvi_sample_room_choose: */
    DsviArena plan;    /* device memory */
    size_t host_bytes; /* host memory of the blocks that wait there */
    size_t free,
        host_free; /* bytes of device and host memory that could be allocated; host_free 0: unknown */
    size_t limit;  /* of device memory: the free memory, or memory_gib if it is less */
} DsviSampleRoom;

/* Chooses how many blocks wait in host memory, and plans both memories. Returns whether they suffice. */
bool dsvi_sample_room_choose(DsviSampleRoom *room);
/* Fails with DSV_E_NO_MEMORY and a sentence that says which memory does not suffice. To be called after
 * dsvi_sample_room_choose has returned false. */
DsvStatus dsvi_sample_room_refuse(const DsviSampleRoom *room);
/* Writes a sentence that says how many blocks wait in host memory, or "" if none does. */
void dsvi_sample_room_line(const DsviSampleRoom *room, char line[DSVI_SAMPLE_ROOM_LINE]);
/* Allocates the host memory of the blocks. Logs if it cannot be page-locked. The caller closes *pool. */
DsvStatus dsvi_sample_room_open(const DsviSampleRoom *room, const DsvEvents *events, DsviHostPool *pool);

#ifdef __cplusplus
}
#endif
#endif
