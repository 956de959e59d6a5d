/* Uploads tensors through pinned memory. See tensor_stager.h. */
#include "model/weights/tensor_stager.h"

#include "base/threads.h"

enum { PIECE_BYTES = 32 << 20, GRAIN = 1 << 16 };

DsvStatus dsvi_tensor_stager_open(DsviDevice *device, DsviTensorStager *out)
{
    *out = (DsviTensorStager){.device = device};
    for (int i = 0; i < 2; i++)
        DSVI_TRY(device->host_alloc(device, PIECE_BYTES, &out->pieces[i]));
    return DSV_OK;
}

void dsvi_tensor_stager_close(DsviTensorStager *stager)
{
    if (!stager->device)
        return;
    (void)stager->device->sync(stager->device->copies);
    for (int i = 0; i < 2; i++)
        stager->device->host_free(stager->device, stager->pieces[i]);
    stager->device = NULL;
}

/* Part of a tensor that is being converted to a piece of pinned memory. */
typedef struct Conversion {
    const DsviTensorSet *set;
    const DsviStoredTensor *tensor;
    int64_t first;
    DsviDtype dtype;
    char *out;
} Conversion;

static void convert_range(void *context, int64_t begin, int64_t end, int worker)
{
    const Conversion *c = context;
    (void)worker;
    dsvi_tensor_set_read(c->set, c->tensor, c->first + begin, end - begin, c->dtype,
                         c->out + (size_t)begin * dsvi_dtype_size(c->dtype));
}

DsvStatus dsvi_tensor_stage(DsviTensorStager *stager, const DsviTensorSet *set,
                            const DsviStoredTensor *tensor, DsviDtype dtype, void *device_dst)
{
    DsviDevice *device = stager->device;
    const int64_t size = (int64_t)dsvi_dtype_size(dtype), room = PIECE_BYTES / size;
    for (int64_t first = 0; first < tensor->count; first += room) {
        const int64_t count = tensor->count - first < room ? tensor->count - first : room;
        void *piece = stager->pieces[stager->uploads % 2];
        Conversion conversion = {.set = set, .tensor = tensor, .first = first, .dtype = dtype, .out = piece};
        dsvi_parallel_for(count, GRAIN, convert_range, &conversion);
        if (stager->uploads > 0) /* the next conversion writes the piece that the last upload reads */
            DSVI_TRY(device->await(device->copies));
        DSVI_TRY(
            device->upload(device->copies, (char *)device_dst + first * size, piece, (size_t)(count * size)));
        DSVI_TRY(device->flag(device->copies));
        stager->uploads++;
    }
    return DSV_OK;
}
