/* The CPU backend: a device and an op table filled upward from the scalar truth. */
#ifndef DSVI_CPU_H
#define DSVI_CPU_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From the least to the best; each includes those before it. */
typedef enum DsvIsa {
    DSV_ISA_REF,    /* the scalar truth, in double */
    DSV_ISA_BASE,   /* what the compiler makes of plain C for any CPU of this architecture */
    DSV_ISA_AVX2,   /* x86-64-v3 */
    DSV_ISA_AVX512, /* x86-64-v4 */
    DSV_ISA_AVX512_BF16, /* products of bf16 pairs */
    DSV_ISA_AMX     /* tiles */
} DsvIsa;

/* The best this machine offers: CPUID, operating system support, and for AMX the kernel's permission. */
DsvIsa dsvi_isa_best(void);
const char *dsvi_isa_name(DsvIsa isa);

/* `isa` as in options.def: "auto" is the best; one the machine lacks is DSV_E_UNSUPPORTED. `threads` 0: one
 * per usable core. */
DsvStatus dsvi_cpu_open(const char *isa, int threads, DsvBackend *backend);
void dsvi_cpu_close(DsvBackend *backend);

#ifdef __cplusplus
}
#endif
#endif
