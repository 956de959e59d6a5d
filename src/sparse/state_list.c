/* Lists of named state arrays, written to and read from safetensors files: see state_list.h. */
#include "sparse/state_list.h"

#include <stdlib.h>
#include <string.h>

static int64_t item_count(const DsviStateItem *item)
{
    int64_t count = 1;
    for (int i = 0; i < item->ndim; i++)
        count *= item->shape[i];
    return count;
}

static size_t item_bytes(const DsviStateItem *item)
{
    return (size_t)item_count(item) * dsvi_dtype_size(item->dtype);
}

void dsvi_state_add(DsviStateList *list, DsviStateItem item)
{
    DSVI_ASSERT(list->count < DSVI_STATE_ITEMS_MAX);
    list->new_item[list->count] = false;
    list->item[list->count++] = item;
}

void dsvi_state_add_new(DsviStateList *list, DsviStateItem item)
{
    DSVI_ASSERT(!item.on_device);
    dsvi_state_add(list, item);
    list->new_item[list->count - 1] = true;
}

/* Returns the bytes of all items in device memory. */
static size_t device_bytes(const DsviStateList *list)
{
    size_t bytes = 0;
    for (int i = 0; i < list->count; i++)
        bytes += list->item[i].on_device ? item_bytes(&list->item[i]) : 0;
    return bytes;
}

/* Fills `tensors` with the items. Items in device memory are downloaded to `staging`, device_bytes long. */
static DsvStatus state_list_gather(DsviDevice *device, const DsviStateList *list, unsigned char *staging,
                                   DsviStoredTensor *tensors)
{
    for (int i = 0; i < list->count; i++) {
        const DsviStateItem *item = &list->item[i];
        DsviStoredTensor *tensor = &tensors[i];
        tensor->name = item->name;
        tensor->dtype = item->dtype;
        tensor->ndim = item->ndim;
        memcpy(tensor->shape, item->shape, sizeof item->shape);
        tensor->count = item_count(item);
        tensor->bytes = item_bytes(item);
        tensor->data = item->memory;
        if (item->on_device) {
            DSVI_TRY(device->download(device->stream, staging, item->memory, tensor->bytes));
            tensor->data = staging;
            staging += tensor->bytes;
        }
    }
    return device->sync(device->stream);
}

DsvStatus dsvi_state_write(DsviDevice *device, const DsviStateList *list, const char *path,
                           const char *const (*metadata)[2], size_t metadata_count)
{
    DsvStatus status;
    DsviStoredTensor tensors[DSVI_STATE_ITEMS_MAX];
    size_t bytes = device_bytes(list);
    unsigned char *staging = malloc(bytes + 1);
    if (!staging)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %zu bytes of sparse state", path, bytes);
    memset(tensors, 0, sizeof tensors);
    DSVI_TRY_GOTO(status, state_list_gather(device, list, staging, tensors), done);
    status = dsvi_safetensors_write(path, tensors, (size_t)list->count, metadata, metadata_count);
done:
    free(staging);
    return status;
}

static DsvStatus find_stored(const DsviSafetensors *file, const DsviStateItem *item,
                             const DsviStoredTensor **tensor)
{
    DSVI_TRY(dsvi_safetensors_require(file, item->name, item->ndim, item->shape, tensor));
    if ((*tensor)->dtype != item->dtype)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: tensor %s is %s, expected %s", dsvi_safetensors_path(file),
                         item->name, dsvi_dtype_name((*tensor)->dtype), dsvi_dtype_name(item->dtype));
    return DSV_OK;
}

DsvStatus dsvi_state_read(DsviDevice *device, const DsviStateList *list, const DsviSafetensors *file)
{
    const DsviStoredTensor *tensor[DSVI_STATE_ITEMS_MAX];
    for (int i = 0; i < list->count; i++) {
        tensor[i] = NULL;
        if (!list->new_item[i] || dsvi_safetensors_find(file, list->item[i].name))
            DSVI_TRY(find_stored(file, &list->item[i], &tensor[i]));
    }
    for (int i = 0; i < list->count; i++) {
        const DsviStateItem *item = &list->item[i];
        if (!tensor[i])
            memset(item->memory, 0, item_bytes(item));
        else if (item->on_device)
            DSVI_TRY(device->upload(device->stream, item->memory, tensor[i]->data, tensor[i]->bytes));
        else
            memcpy(item->memory, tensor[i]->data, tensor[i]->bytes);
    }
    return device->sync(device->stream);
}

/* Broadcasts an item in device memory from rank 0, through `staging` in host memory. */
static DsvStatus broadcast_item(DsviDevice *device, DsviComm *comm, const DsviStateItem *item, void *staging)
{
    size_t bytes = item_bytes(item);
    DSVI_TRY(device->download(device->stream, staging, item->memory, bytes));
    DSVI_TRY(device->sync(device->stream));
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, staging, bytes));
    DSVI_TRY(device->upload(device->stream, item->memory, staging, bytes));
    return device->sync(device->stream);
}

DsvStatus dsvi_state_broadcast(DsviDevice *device, DsviComm *comm, const DsviStateList *list)
{
    DsvStatus status = DSV_OK;
    void *staging = malloc(device_bytes(list) + 1); /* large enough for each device item; never 0 bytes */
    if (!staging)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %zu bytes of sparse state", device_bytes(list));
    for (int i = 0; i < list->count && status == DSV_OK; i++) {
        const DsviStateItem *item = &list->item[i];
        status = item->on_device ? broadcast_item(device, comm, item, staging)
                                 : dsvi_comm_broadcast(comm, 0, item->memory, item_bytes(item));
    }
    free(staging);
    return status;
}

static const DsviStateItem *item_named(const DsviStateList *list, const char *name)
{
    int i = 0;
    while (i < list->count && strcmp(list->item[i].name, name) != 0)
        i++;
    DSVI_ASSERT(i < list->count);
    return &list->item[i];
}

DsvStatus dsvi_state_copy(DsviDevice *device, const DsviStateList *to, const DsviStateList *from)
{
    for (int i = 0; i < to->count; i++) {
        const DsviStateItem *target = &to->item[i], *source = item_named(from, target->name);
        DSVI_ASSERT(item_bytes(target) == item_bytes(source) && target->on_device == source->on_device);
        if (target->on_device)
            DSVI_TRY(device->copy(device->stream, target->memory, source->memory, item_bytes(source)));
        else
            memcpy(target->memory, source->memory, item_bytes(source));
    }
    return DSV_OK;
}
