/* Detects which instructions this machine supports.
 *
 * Three sources must agree: CPUID (the CPU supports the instructions), XGETBV (the operating system saves the
 * registers) and, for AMX, the permission of the Linux kernel, which each process must request. Bit
 * positions: Intel Software Developer's Manual, volume 2, CPUID, and volume 1, 13.3; the levels: x86-64
 * psABI, section 3.1.1. */
#include "cpu/cpu.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cpu/device_cpu.h"

static const char *const LEVEL_NAME[] = {
    [DSVI_ISA_REF] = "ref",
    [DSVI_ISA_BASE] = "base",
    [DSVI_ISA_AVX2] = "avx2",
    [DSVI_ISA_AVX512] = "avx512",
    [DSVI_ISA_AVX512_BF16] = "avx512_bf16",
    [DSVI_ISA_AMX] = "amx",
};

const char *dsvi_isa_name(DsviIsa isa)
{
    return LEVEL_NAME[isa];
}

#if defined(__x86_64__) && !defined(DSVI_BASE_ISA)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STATE_YMM = 1 << 1 | 1 << 2,                      /* SSE and AVX registers */
    STATE_ZMM = STATE_YMM | 1 << 5 | 1 << 6 | 1 << 7, /* also AVX-512 masks, upper halves of registers 0 to
                                                       * 15, and registers 16 to 31 */
    STATE_TILE = 1 << 17 | 1 << 18,                   /* AMX tile configuration and data */

    /* bits of CPUID leaf 1, register ecx */
    FMA = 1 << 12,
    MOVBE = 1 << 22,
    OSXSAVE = 1 << 27,
    AVX = 1 << 28,
    F16C = 1 << 29,
    /* leaf 7, ebx */
    BMI1 = 1 << 3,
    AVX2 = 1 << 5,
    BMI2 = 1 << 8,
    AVX512F = 1 << 16,
    AVX512DQ = 1 << 17,
    AVX512CD = 1 << 28,
    AVX512BW = 1 << 30,
    /* bits of CPUID leaf 7, subleaf 1, register eax */
    AVX512_BF16 = 1 << 5,
    /* bits of CPUID leaf 7, register edx */
    AMX_BF16 = 1 << 22,
    AMX_TILE = 1 << 24,
    /* bits of CPUID leaf 0x80000001, register ecx */
    LZCNT = 1 << 5,

    ARCH_REQ_XCOMP_PERM = 0x1023,
    XFEATURE_XTILEDATA = 18
};
static const unsigned AVX512VL = 1u << 31; /* leaf 7, ebx */

/* Returns the register states that the operating system saves, as STATE_ bits. */
static unsigned saved_states(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(unsigned flags, unsigned required)
{
    return (flags & required) == required;
}

static bool tiles_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

DsviIsa dsvi_isa_best(void)
{
    unsigned a, a71, b, c1, d, b7, c7, d7, c_ext;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) ||
        !__get_cpuid(0x80000001u, &a, &b, &c_ext, &d) || !has_all(c1, OSXSAVE))
        return DSVI_ISA_BASE;
    unsigned states = saved_states();
    if (!has_all(states, STATE_YMM) || !has_all(c1, FMA | MOVBE | AVX | F16C) ||
        !has_all(b7, BMI1 | AVX2 | BMI2) || !has_all(c_ext, LZCNT))
        return DSVI_ISA_BASE;
    if (!has_all(states, STATE_ZMM) || !has_all(b7, AVX512F | AVX512DQ | AVX512CD | AVX512BW | AVX512VL))
        return DSVI_ISA_AVX2;
    if (!__get_cpuid_count(7, 1, &a71, &b, &c7, &d) || !has_all(a71, AVX512_BF16))
        return DSVI_ISA_AVX512;
    if (!has_all(states, STATE_TILE) || !has_all(d7, AMX_TILE | AMX_BF16) || !tiles_permitted())
        return DSVI_ISA_AVX512_BF16;
    return DSVI_ISA_AMX;
}

void dsvi_cpu_brand(char brand[DSVI_CPU_BRAND_BYTES])
{
    unsigned words[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    memcpy(brand, words, sizeof words);
    brand[sizeof words] = 0;
    for (size_t end = strlen(brand); end > 0 && brand[end - 1] == ' '; end--)
        brand[end - 1] = 0;
}

#else

DsviIsa dsvi_isa_best(void)
{
    return DSVI_ISA_BASE;
}

void dsvi_cpu_brand(char brand[DSVI_CPU_BRAND_BYTES])
{
    snprintf(brand, DSVI_CPU_BRAND_BYTES, "CPU");
}

#endif
