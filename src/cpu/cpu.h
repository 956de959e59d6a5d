/* The CPU backend: a device, and a table of operations with the best variant for the instruction set. */
#ifndef DSVI_CPU_H
#define DSVI_CPU_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets in ascending order. Each level includes all levels before it. */
typedef enum DsviIsa {
    DSVI_ISA_REF,         /* reference implementations only, in double */
    DSVI_ISA_BASE,        /* plain C compiled for any CPU of the architecture */
    DSVI_ISA_AVX2,        /* x86-64-v3 */
    DSVI_ISA_AVX512,      /* x86-64-v4 */
    DSVI_ISA_AVX512_BF16, /* AVX512-BF16: products of BF16 pairs */
    DSVI_ISA_AMX          /* AMX matrix tiles */
} DsviIsa;

/* Returns the highest instruction set level that CPUID, the operating system and, for AMX, the Linux kernel's
 * permission allow. */
DsviIsa dsvi_isa_best(void);
const char *dsvi_isa_name(DsviIsa isa);

/* Opens the CPU backend. `isa` is a value of option `isa` (include/dsv/options.def): "auto" selects the best
 * level; a level that the machine lacks fails with DSV_E_UNSUPPORTED. `threads` 0 starts one thread per
 * usable core. */
DsvStatus dsvi_cpu_open(const char *isa, int threads, DsviBackend *backend);
/* Fills a table of operations for arrays in host memory, beside another device (DsviBackend.host_ops), with
 * the fastest variants of this CPU. */
void dsvi_cpu_fill_host(DsviOps *ops);
void dsvi_cpu_close(DsviBackend *backend);

#ifdef __cplusplus
}
#endif
#endif
