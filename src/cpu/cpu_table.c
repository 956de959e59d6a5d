/* Which variant answers for which op on the CPU: the truth first, then level by level over it. */
#include <string.h>

#include "base/threads.h"
#include "cpu/cpu.h"
#include "cpu/device_cpu.h"
#include "cpu/gemm_onednn.h"
#include "cpu/simd_fill.h"

static DsvStatus isa_of(const char *name, DsvIsa *isa)
{
    DsvIsa best = dsvi_isa_best();
    *isa = best;
    if (strcmp(name, "auto") == 0)
        return DSV_OK;
    for (*isa = DSV_ISA_REF; *isa < DSV_ISA_AMX && strcmp(name, dsvi_isa_name(*isa)) != 0;)
        ++*isa;
    if (strcmp(name, dsvi_isa_name(*isa)) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "isa: no instruction set is called '%s'", name);
    if (*isa > best)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "isa: this machine offers no %s, at best %s", name,
                         dsvi_isa_name(best));
    return DSV_OK;
}

/* What is compiled per level: each level's over those below it. */
#define FILL(name, level) dsvi_fill_##name##_##level(ops);
static void fill_levels(DsvIsa isa, DsvOps *ops)
{
    if (isa >= DSV_ISA_BASE) {
        DSVI_SIMD_FILLS(FILL, base)
    }
#if defined(__x86_64__)
    if (isa >= DSV_ISA_AVX2) {
        DSVI_SIMD_FILLS(FILL, avx2)
    }
    if (isa >= DSV_ISA_AVX512) {
        DSVI_SIMD_FILLS(FILL, avx512)
    }
    if (isa >= DSV_ISA_AVX512_BF16) {
        DSVI_SIMD_PAIR_FILLS(FILL, avx512_bf16)
    }
    if (isa >= DSV_ISA_AMX) {
        DSVI_SIMD_PAIR_FILLS(FILL, amx)
    }
#endif
}

DsvStatus dsvi_cpu_open(const char *isa_name, int threads, DsvBackend *backend)
{
    DsvIsa isa;
    memset(backend, 0, sizeof *backend);
    DSVI_TRY(isa_of(isa_name, &isa));
    dsvi_threads_set(threads);
    DSVI_TRY(dsvi_device_cpu_create(isa, &backend->device));
    dsvi_ops_fill_ref(&backend->ops);
    fill_levels(isa, &backend->ops);
    if (isa >= DSV_ISA_BASE)
        dsvi_gemm_onednn_fill(backend->device->stream->gemm, &backend->ops);
    return DSV_OK;
}

void dsvi_cpu_close(DsvBackend *backend)
{
    if (backend && backend->device)
        backend->device->close(backend->device);
    if (backend)
        memset(backend, 0, sizeof *backend);
}
