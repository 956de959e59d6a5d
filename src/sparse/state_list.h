/* The state of the sparse layer that checkpoints contain: a list of named arrays in host or device memory,
 * which can be written to one safetensors file, read from it, broadcast, or copied to another sparse
 * layer. */
#ifndef DSVI_STATE_LIST_H
#define DSVI_STATE_LIST_H

#include "base/safetensors.h"
#include "device/device.h"
#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviStateItem {
    const char *name; /* name of the tensor in files; the string must outlive the list */
    DsviDtype dtype;
    int ndim;
    int64_t shape[4]; /* (ndim) */
    bool on_device;   /* `memory` is device memory */
    void *memory;     /* contiguous; belongs to the caller and must outlive the list */
} DsviStateItem;

enum { DSVI_STATE_ITEMS_MAX = 24 };

typedef struct DsviStateList {
    DsviStateItem item[DSVI_STATE_ITEMS_MAX];
    bool new_item[DSVI_STATE_ITEMS_MAX]; /* true for an item that was added to the format: files of earlier
                                          * versions of dsv lack it */
    int count;
} DsviStateList;

/* Appends an item to the list. Asserts that the list has fewer than DSVI_STATE_ITEMS_MAX items. */
void dsvi_state_add(DsviStateList *list, DsviStateItem item);
/* Appends an item of host memory that files of earlier versions lack. Reading a file that lacks the item
 * sets the item to zero. */
void dsvi_state_add_new(DsviStateList *list, DsviStateItem item);

/* Writes all items and the metadata, pairs of key and value, to one safetensors file. */
DsvStatus dsvi_state_write(DsviDevice *device, const DsviStateList *list, const char *path,
                           const char *const (*metadata)[2], size_t metadata_count);
/* Reads all items of the list from `file`. Each item must be in the file with its dtype and shape, except
 * that items appended with dsvi_state_add_new may be missing; otherwise the call fails and changes no
 * item. */
DsvStatus dsvi_state_read(DsviDevice *device, const DsviStateList *list, const DsviSafetensors *file);
/* Broadcasts the items of rank 0 to all ranks of `comm`. All ranks call with equal lists. */
DsvStatus dsvi_state_broadcast(DsviDevice *device, DsviComm *comm, const DsviStateList *list);
/* Copies each item of `to` from the item of the same name in `from`; the list `from` may have more items
 * than `to`. */
DsvStatus dsvi_state_copy(DsviDevice *device, const DsviStateList *to, const DsviStateList *from);

#ifdef __cplusplus
}
#endif
#endif
