/* The CPU device of device/device.h. */
#include "cpu/device_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/host.h"
#include "base/threads.h"
#include "cpu/conv_onednn.h"
#include "cpu/gemm_onednn.h"
#include "cpu/onednn_engine.h"
#include "device/device_limit.h"

enum { ALIGNMENT = 64, NAME_BYTES = 128 };
/* Size of a huge page of x86-64, and of the memory that asks for such pages. */
#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE (4 * HUGE_PAGE)

typedef struct CpuDevice {
    DsviDevice device; /* must be the first member: cpu_close frees the CpuDevice through this pointer */
    DsviStream stream;
    char name[NAME_BYTES];
} CpuDevice;

static size_t free_bytes(void)
{
    long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0;
}

/* Returns memory for `bytes`, or NULL. Large memory asks Linux for huge pages: attention over lists reads
 * rows from everywhere, and the processor caches the addresses of few pages only. Without huge pages the
 * request has no effect. */
static void *allocate(size_t bytes)
{
    size_t alignment = bytes < LARGE ? ALIGNMENT : HUGE_PAGE;
    void *memory = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (memory && alignment == HUGE_PAGE)
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

/* Requests for more memory than the machine has fail here: Linux would grant them and kill the process
 * when it touches the pages. */
static DsvStatus cpu_host_alloc(DsviDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes <= device->memory_bytes)
        *out = allocate(bytes);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY,
                         "no %zu bytes of memory: the machine has %zu, of which %zu are free", bytes,
                         device->memory_bytes, free_bytes());
    return DSV_OK;
}

static void cpu_host_free(DsviDevice *device, void *memory)
{
    (void)device;
    free(memory);
}

static DsvStatus cpu_alloc(DsviDevice *device, size_t bytes, void **out)
{
    return dsvi_device_hold(device, bytes, cpu_host_alloc, out);
}

static void cpu_free(DsviDevice *device, void *memory)
{
    dsvi_device_release(device, memory);
    free(memory);
}

static size_t cpu_host_available(DsviDevice *device)
{
    (void)device;
    return (size_t)dsvi_memory_available();
}

static size_t cpu_used(DsviDevice *device)
{
    (void)device;
    return (size_t)dsvi_resident_bytes();
}

static DsvStatus cpu_copy(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    (void)stream;
    if (bytes > 0)
        memmove(dst, src, bytes);
    return DSV_OK;
}

static DsvStatus cpu_clear(DsviStream *stream, void *dst, size_t bytes)
{
    (void)stream;
    if (bytes > 0)
        memset(dst, 0, bytes);
    return DSV_OK;
}

static DsvStatus cpu_use_stream(DsviDevice *device, void *native)
{
    (void)device;
    (void)native;
    return DSV_OK;
}

static DsvStatus cpu_sync(DsviStream *stream)
{
    (void)stream;
    return DSV_OK;
}

static DsvStatus cpu_follow(DsviStream *stream, DsviStream *leader)
{
    (void)stream;
    (void)leader;
    return DSV_OK;
}

static DsvStatus cpu_clock(DsviStream *stream, double *seconds)
{
    (void)stream;
    *seconds = dsvi_clock_seconds();
    return DSV_OK;
}

static DsvStatus cpu_mark(DsviStream *stream, int64_t mark)
{
    if (mark >= stream->mark_count) {
        int64_t count = 2 * mark + 16;
        double *marks = realloc(stream->marks, (size_t)count * sizeof *marks);
        if (!marks)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld marks", (long long)count);
        stream->marks = marks;
        stream->mark_count = count;
    }
    stream->marks[mark] = dsvi_clock_seconds();
    return DSV_OK;
}

static DsvStatus cpu_between(DsviStream *stream, int64_t first, int64_t last, double *seconds)
{
    *seconds = stream->marks[last] - stream->marks[first];
    return DSV_OK;
}

static void cpu_close(DsviDevice *device)
{
    dsvi_gemm_onednn_free(&device->stream->gemm);
    dsvi_conv_onednn_free(&device->stream->conv);
    free(device->stream->marks);
    dsvi_device_forget(device);
    free(device);
}

DsvStatus dsvi_device_cpu_create(DsviIsa isa, DsviDevice **out)
{
    char brand[DSVI_CPU_BRAND_BYTES];
    DsvStatus status;
    *out = NULL;
    CpuDevice *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes for the CPU device", sizeof *cpu);
    dsvi_cpu_brand(brand);
    int threads = dsvi_threads_count();
    snprintf(cpu->name, sizeof cpu->name, "%s, %s, %d thread%s", brand, dsvi_isa_name(isa), threads,
             threads == 1 ? "" : "s");
    cpu->device = (DsviDevice){
        .kind = DSVI_DEVICE_CPU,
        .name = cpu->name,
        .memory_bytes = (size_t)dsvi_memory_bytes(),
        .host_bytes = (size_t)dsvi_memory_bytes(),
        .stream = &cpu->stream,
        .copies = &cpu->stream,
        .uploads = &cpu->stream,
        .downloads = &cpu->stream,
        .deterministic = true,
        .mem_alloc = cpu_alloc,
        .mem_free = cpu_free,
        .host_alloc = cpu_host_alloc,
        .host_free = cpu_host_free,
        .host_available = cpu_host_available,
        .memory_used = cpu_used,
        .upload = cpu_copy,
        .download = cpu_copy,
        .copy = cpu_copy,
        .clear = cpu_clear,
        .use_stream = cpu_use_stream,
        .sync = cpu_sync,
        .flag = cpu_sync,
        .await = cpu_sync,
        .follow = cpu_follow,
        .clock = cpu_clock,
        .mark = cpu_mark,
        .between = cpu_between,
        .close = cpu_close,
    };
    if (isa < dsvi_isa_best())
        dsvi_onednn_limit(isa);
    if (isa > DSVI_ISA_REF) {
        DSVI_TRY_GOTO(status, dsvi_gemm_onednn_create(&cpu->stream.gemm), fail);
        DSVI_TRY_GOTO(status, dsvi_conv_onednn_create(isa, &cpu->stream.conv), fail);
    }
    *out = &cpu->device;
    return DSV_OK;
fail:
    cpu_close(&cpu->device);
    return status;
}
