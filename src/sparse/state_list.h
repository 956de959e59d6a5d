/* What of the sparse layer outlives a run: a list of named arrays, wherever they lie, that can be written
 * to one safetensors file, read from it, or copied to another sparse layer of the same model. */
#ifndef DSVI_STATE_LIST_H
#define DSVI_STATE_LIST_H

#include "base/safetensors.h"
#include "device/device.h"
#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvStateItem {
    const char *name;
    DsvDtype dtype;
    int ndim;
    int64_t shape[4];
    bool on_device;
    void *memory;
} DsvStateItem;

enum { DSV_STATE_ITEMS_MAX = 24 };

typedef struct DsvStateList {
    DsvStateItem item[DSV_STATE_ITEMS_MAX];
    bool new_item[DSV_STATE_ITEMS_MAX]; /* files of earlier versions lack it */
    int count;
} DsvStateList;

void dsvi_state_add(DsvStateList *list, DsvStateItem item);
/* An item of host memory that files of earlier versions lack: from such a file it is read as zeros. */
void dsvi_state_add_new(DsvStateList *list, DsvStateItem item);

DsvStatus dsvi_state_write(DsvDevice *device, const DsvStateList *list, const char *path,
                           const char *const (*metadata)[2], size_t metadata_count);
/* Every item but a new one must be in the file, with its dtype and shape. Nothing is written to before all
 * were found. */
DsvStatus dsvi_state_read(DsvDevice *device, const DsvStateList *list, const DsvSafetensors *file);
/* What rank 0 has in its items, to all ranks. */
DsvStatus dsvi_state_spread(DsvDevice *device, DsvComm *comm, const DsvStateList *list);
/* to = from, which has all of its items and perhaps others. */
DsvStatus dsvi_state_copy(DsvDevice *device, const DsvStateList *to, const DsvStateList *from);

#ifdef __cplusplus
}
#endif
#endif
