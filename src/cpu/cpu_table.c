/* Fills the CPU's table of operations: first the reference implementations, then the variants of each
 * instruction set level, in ascending order. */
#include <string.h>

#include "base/threads.h"
#include "cpu/conv_onednn.h"
#include "cpu/cpu.h"
#include "cpu/device_cpu.h"
#include "cpu/gemm_onednn.h"
#include "cpu/simd_fill.h"

static DsvStatus isa_of(const char *name, DsviIsa *isa)
{
    DsviIsa best = dsvi_isa_best();
    *isa = best;
    if (strcmp(name, "auto") == 0)
        return DSV_OK;
    for (*isa = DSVI_ISA_REF; *isa < DSVI_ISA_AMX && strcmp(name, dsvi_isa_name(*isa)) != 0;)
        ++*isa;
    if (strcmp(name, dsvi_isa_name(*isa)) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "isa: no instruction set is called '%s'", name);
    if (*isa > best)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "isa: this machine offers no %s, at best %s", name,
                         dsvi_isa_name(best));
    return DSV_OK;
}

/* Replaces entries of the table by the SIMD variants (simd_fill.h), for each instruction set level up to
 * `isa` in ascending order, so that the variant of the highest level remains. */
#define FILL(name, level) dsvi_fill_##name##_##level(ops);
static void fill_levels(DsviIsa isa, DsviOps *ops)
{
    if (isa >= DSVI_ISA_BASE) {
        DSVI_SIMD_FILLS(FILL, base)
    }
#if defined(__x86_64__) && !defined(DSVI_BASE_ISA)
    if (isa >= DSVI_ISA_AVX2) {
        DSVI_SIMD_FILLS(FILL, avx2)
    }
    if (isa >= DSVI_ISA_AVX512) {
        DSVI_SIMD_FILLS(FILL, avx512)
    }
    if (isa >= DSVI_ISA_AVX512_BF16) {
        DSVI_SIMD_PAIR_FILLS(FILL, avx512_bf16)
    }
    if (isa >= DSVI_ISA_AMX) {
        DSVI_SIMD_PAIR_FILLS(FILL, amx)
    }
#endif
}

DsvStatus dsvi_cpu_open(const char *isa_name, int threads, DsviBackend *backend)
{
    DsviIsa isa;
    memset(backend, 0, sizeof *backend);
    DSVI_TRY(isa_of(isa_name, &isa));
    dsvi_threads_set(threads);
    DSVI_TRY(dsvi_device_cpu_create(isa, &backend->device));
    dsvi_ops_fill_ref(&backend->ops);
    fill_levels(isa, &backend->ops);
    if (isa >= DSVI_ISA_BASE) {
        dsvi_gemm_onednn_fill(backend->device->stream->gemm, &backend->ops);
        dsvi_conv_onednn_fill(&backend->ops);
    }
    backend->host_ops = backend->ops;
    return DSV_OK;
}

void dsvi_cpu_fill_host(DsviOps *ops)
{
    dsvi_ops_fill_ref(ops);
    fill_levels(dsvi_isa_best(), ops);
}

void dsvi_cpu_close(DsviBackend *backend)
{
    if (backend && backend->device)
        backend->device->close(backend->device);
    if (backend)
        memset(backend, 0, sizeof *backend);
}
