/* The CPU device: host memory, and a synchronous stream whose calls return when the work is done. */
#ifndef DSVI_DEVICE_CPU_H
#define DSVI_DEVICE_CPU_H

#include "cpu/cpu.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGemmOnednn DsviGemmOnednn; /* defined in gemm_onednn.c */
typedef struct DsviConvOnednn DsviConvOnednn; /* defined in conv_onednn.c */

/* The stream of the CPU device. Ops of the CPU backend may use its fields. */
struct DsviStream {
    DsviGemmOnednn *gemm; /* NULL if the table has only reference implementations */
    DsviConvOnednn *conv; /* likewise */
    double *marks;        /* (mark_count) time of each timing mark, in seconds */
    int64_t mark_count;
};

/* Stores the CPU's brand string, zero-terminated. */
#define DSVI_CPU_BRAND_BYTES 49
void dsvi_cpu_brand(char brand[DSVI_CPU_BRAND_BYTES]);

/* Creates the CPU device. `isa` limits the instructions that oneDNN uses; with DSVI_ISA_REF, stream->gemm and
 * stream->conv are NULL. */
DsvStatus dsvi_device_cpu_create(DsviIsa isa, DsviDevice **out);

#ifdef __cplusplus
}
#endif
#endif
