/* Implements the functions of DsviDevice (device/device.h) with the CUDA runtime. */
#include "cuda/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/host.h"
#include "cuda/attention/attention_cudnn.h"
#include "cuda/gemm/gemm_cublaslt.h"
#include "device/device_limit.h"

enum { NAME_BYTES = 320 };

typedef struct CudaDevice {
    DsviDevice device; /* must be first: free() gets a DsviDevice * that points to the whole CudaDevice */
    DsviStream stream, copies, uploads, downloads;
    int number;       /* of the GPU, as the CUDA runtime counts */
    cudaStream_t own; /* the compute stream that this device created; NULL once cuda_use_stream replaced it */
    char name[NAME_BYTES];
} CudaDevice;

DsvStatus dsvi_cuda_fail_at(const char *file, int line, cudaError_t error, const char *what)
{
    DsvStatus status = error == cudaErrorMemoryAllocation ? DSV_E_NO_MEMORY : DSV_E_DEVICE;
    return dsvi_fail_at(file, line, status, "CUDA: %s (%s)", cudaGetErrorString(error), what);
}

static DsvStatus cuda_malloc(DsviDevice *device, size_t bytes, void **out)
{
    size_t free_bytes = 0, all = 0;
    *out = NULL;
    cudaError_t error = cudaMalloc(out, bytes > 0 ? bytes : 1);
    if (error == cudaSuccess)
        return DSV_OK;
    if (error != cudaErrorMemoryAllocation)
        return dsvi_cuda_fail_at(__FILE__, __LINE__, error, "cudaMalloc");
    cudaGetLastError(); /* clears CUDA's error, which the next launch would report again */
    cudaMemGetInfo(&free_bytes, &all);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of device memory: the GPU has %zu, of which %zu are free",
                     bytes, device->memory_bytes, free_bytes);
}

static DsvStatus cuda_alloc(DsviDevice *device, size_t bytes, void **out)
{
    return dsvi_device_hold(device, bytes, cuda_malloc, out);
}

static void cuda_free(DsviDevice *device, void *memory)
{
    dsvi_device_release(device, memory);
    cudaFree(memory);
}

/* Allocates page-locked host memory. Refuses more bytes than the machine has, because Linux might kill the
 * process while it locks the pages. */
static DsvStatus cuda_host_alloc(DsviDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (device->host_bytes > 0 && bytes > device->host_bytes)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of page-locked host memory: the machine has %zu",
                         bytes, device->host_bytes);
    cudaError_t error = cudaMallocHost(out, bytes > 0 ? bytes : 1);
    if (error == cudaSuccess)
        return DSV_OK;
    cudaGetLastError();
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of page-locked host memory: %s", bytes,
                     cudaGetErrorString(error));
}

static void cuda_host_free(DsviDevice *device, void *memory)
{
    (void)device;
    cudaFreeHost(memory);
}

static size_t cuda_host_available(DsviDevice *device)
{
    (void)device;
    return (size_t)dsvi_memory_available();
}

static size_t cuda_used(DsviDevice *device)
{
    size_t free_bytes = 0, all = 0;
    (void)device;
    return cudaMemGetInfo(&free_bytes, &all) == cudaSuccess ? all - free_bytes : 0;
}

static DsvStatus cuda_copy(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0)
        DSVI_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream->handle));
    return DSV_OK;
}

static DsvStatus cuda_clear(DsviStream *stream, void *dst, size_t bytes)
{
    if (bytes > 0)
        DSVI_CUDA_TRY(cudaMemsetAsync(dst, 0, bytes, stream->handle));
    return DSV_OK;
}

/* The device's own stream is destroyed when it is replaced: CUDA finishes its work first. */
static DsvStatus cuda_use_stream(DsviDevice *device, void *native)
{
    CudaDevice *cuda = (CudaDevice *)device;
    DsviStream *stream = device->stream;
    DSVI_CUDA_TRY(cudaSetDevice(cuda->number));
    if (!cuda->own && stream->handle == native)
        return DSV_OK;
    DSVI_CUDA_TRY(cudaEventRecord(stream->followed, stream->handle));
    DSVI_CUDA_TRY(cudaStreamWaitEvent(native, stream->followed, 0));
    stream->handle = native;
    if (cuda->own)
        DSVI_CUDA_TRY(cudaStreamDestroy(cuda->own));
    cuda->own = NULL;
    return DSV_OK;
}

static DsvStatus cuda_sync(DsviStream *stream)
{
    DSVI_CUDA_TRY(cudaStreamSynchronize(stream->handle));
    return DSV_OK;
}

static DsvStatus cuda_flag(DsviStream *stream)
{
    DSVI_CUDA_TRY(cudaEventRecord(stream->flag, stream->handle));
    return DSV_OK;
}

static DsvStatus cuda_await(DsviStream *stream)
{
    DSVI_CUDA_TRY(cudaEventSynchronize(stream->flag));
    return DSV_OK;
}

static DsvStatus cuda_follow(DsviStream *stream, DsviStream *leader)
{
    DSVI_CUDA_TRY(cudaEventRecord(leader->followed, leader->handle));
    DSVI_CUDA_TRY(cudaStreamWaitEvent(stream->handle, leader->followed, 0));
    return DSV_OK;
}

static DsvStatus cuda_clock(DsviStream *stream, double *seconds)
{
    DSVI_TRY(cuda_sync(stream));
    *seconds = dsvi_clock_seconds();
    return DSV_OK;
}

/* Creates CUDA events until stream->marks[mark] exists. */
static DsvStatus grow_marks(DsviStream *stream, int64_t mark)
{
    int64_t count = 2 * mark + 16;
    cudaEvent_t *marks = realloc(stream->marks, (size_t)count * sizeof *marks);
    if (!marks)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld marks", (long long)count);
    stream->marks = marks;
    while (stream->mark_count < count) {
        DSVI_CUDA_TRY(cudaEventCreate(&marks[stream->mark_count]));
        stream->mark_count++;
    }
    return DSV_OK;
}

static DsvStatus cuda_mark(DsviStream *stream, int64_t mark)
{
    if (mark >= stream->mark_count)
        DSVI_TRY(grow_marks(stream, mark));
    DSVI_CUDA_TRY(cudaEventRecord(stream->marks[mark], stream->handle));
    return DSV_OK;
}

static DsvStatus cuda_between(DsviStream *stream, int64_t first, int64_t last, double *seconds)
{
    float milliseconds;
    DSVI_CUDA_TRY(cudaEventSynchronize(stream->marks[last]));
    DSVI_CUDA_TRY(cudaEventElapsedTime(&milliseconds, stream->marks[first], stream->marks[last]));
    *seconds = 1e-3 * milliseconds;
    return DSV_OK;
}

static void close_stream(DsviStream *stream)
{
    if (stream->flag)
        cudaEventDestroy(stream->flag);
    if (stream->followed)
        cudaEventDestroy(stream->followed);
}

static void close_copy_stream(DsviStream *stream)
{
    close_stream(stream);
    if (stream->handle)
        cudaStreamDestroy(stream->handle);
}

static void cuda_close(DsviDevice *device)
{
    CudaDevice *cuda = (CudaDevice *)device;
    DsviStream *stream = device->stream;
    for (int64_t i = 0; i < stream->mark_count; i++)
        cudaEventDestroy(stream->marks[i]);
    free(stream->marks);
    dsvi_gemm_cublaslt_free(&stream->gemm);
    dsvi_attention_cudnn_free(&stream->attention);
    cudaFree(stream->partials);
    close_stream(stream);
    close_copy_stream(device->copies);
    close_copy_stream(device->uploads);
    close_copy_stream(device->downloads);
    if (cuda->own)
        cudaStreamDestroy(cuda->own);
    dsvi_device_forget(device);
    free(cuda);
}

/* Returns a text for an error message that says why no GPU is usable. If no driver is installed, the CUDA
 * runtime reports an "insufficient" driver, but its version number 0 shows that there is none. */
static const char *why_no_gpu(cudaError_t error)
{
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return "no NVIDIA driver found";
    return error != cudaSuccess ? cudaGetErrorString(error) : "none is visible";
}

/* Finds GPU number `gpu_number` modulo the number of visible GPUs; *number is set to this number. Fails if no
 * GPU is visible or if the GPU is older than dsv supports. */
static DsvStatus find_gpu(int64_t gpu_number, int *number, struct cudaDeviceProp *gpu, int *capability)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "device=cuda: no GPU can be used here: %s", why_no_gpu(error));
    *number = (int)(gpu_number % count);
    DSVI_CUDA_TRY(cudaGetDeviceProperties(gpu, *number));
    *capability = 10 * gpu->major + gpu->minor;
    if (*capability < DSVI_CUDA_MIN_CAPABILITY)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "device=cuda: %s has compute capability %d.%d, expected at least "
                         "%d.%d",
                         gpu->name, gpu->major, gpu->minor, DSVI_CUDA_MIN_CAPABILITY / 10,
                         DSVI_CUDA_MIN_CAPABILITY % 10);
    return DSV_OK;
}

static DsvStatus open_stream(DsviStream *stream)
{
    DSVI_CUDA_TRY(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking));
    DSVI_CUDA_TRY(cudaEventCreateWithFlags(&stream->flag, cudaEventDisableTiming));
    DSVI_CUDA_TRY(cudaEventCreateWithFlags(&stream->followed, cudaEventDisableTiming));
    return DSV_OK;
}

static DsvStatus open_streams(int number, const struct cudaDeviceProp *gpu, int capability,
                              bool deterministic, DsviDevice *device)
{
    DsviStream *stream = device->stream;
    stream->capability = capability;
    stream->multiprocessors = gpu->multiProcessorCount;
    stream->shared_bytes = gpu->sharedMemPerBlockOptin;
    stream->deterministic = deterministic;
    DSVI_CUDA_TRY(cudaSetDevice(number));
    DSVI_TRY(open_stream(stream));
    DSVI_TRY(open_stream(device->copies));
    DSVI_TRY(open_stream(device->uploads));
    DSVI_TRY(open_stream(device->downloads));
    DSVI_CUDA_TRY(cudaMalloc(&stream->partials, DSVI_CUDA_PARTIALS));
    return DSV_OK;
}

DsvStatus dsvi_device_cuda_create(int64_t gpu_number, bool deterministic, DsviDevice **out)
{
    struct cudaDeviceProp gpu;
    int capability = 0, number = 0;
    *out = NULL;
    DSVI_TRY(find_gpu(gpu_number, &number, &gpu, &capability));
    CudaDevice *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for the CUDA device", sizeof *cuda);
    cuda->number = number;
    snprintf(cuda->name, sizeof cuda->name, "%s, %d multiprocessors%s", gpu.name, gpu.multiProcessorCount,
             deterministic ? ", deterministic" : "");
    cuda->device = (DsviDevice){
        .kind = DSVI_DEVICE_CUDA,
        .name = cuda->name,
        .memory_bytes = gpu.totalGlobalMem,
        .host_bytes = (size_t)dsvi_memory_bytes(),
        .stream = &cuda->stream,
        .copies = &cuda->copies,
        .uploads = &cuda->uploads,
        .downloads = &cuda->downloads,
        .deterministic = deterministic,
        .mem_alloc = cuda_alloc,
        .mem_free = cuda_free,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .host_available = cuda_host_available,
        .memory_used = cuda_used,
        .upload = cuda_copy,
        .download = cuda_copy,
        .copy = cuda_copy,
        .clear = cuda_clear,
        .use_stream = cuda_use_stream,
        .sync = cuda_sync,
        .flag = cuda_flag,
        .await = cuda_await,
        .follow = cuda_follow,
        .clock = cuda_clock,
        .mark = cuda_mark,
        .between = cuda_between,
        .close = cuda_close,
    };
    DsvStatus status = open_streams(number, &gpu, capability, deterministic, &cuda->device);
    cuda->own = cuda->stream.handle;
    if (status != DSV_OK)
        cuda_close(&cuda->device);
    else
        *out = &cuda->device;
    return status;
}
