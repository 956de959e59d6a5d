/* The CPU device: host memory, and a stream that has done everything by the time it returns. */
#ifndef DSVI_DEVICE_CPU_H
#define DSVI_DEVICE_CPU_H

#include "cpu/cpu.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvGemmOnednn DsvGemmOnednn; /* gemm_onednn.h */

/* What an op of the CPU backend may find behind its stream argument. */
struct DsvStream {
    DsvGemmOnednn *gemm; /* NULL when the table holds the scalar truth alone */
    double *marks;       /* (mark_count) seconds */
    int64_t mark_count;
};

/* The maker's name of the CPU, zero-terminated. */
#define DSVI_CPU_BRAND_BYTES 49
void dsvi_cpu_brand(char brand[DSVI_CPU_BRAND_BYTES]);

/* `isa` bounds what matrix products use; with DSV_ISA_REF there is no stream->gemm. */
DsvStatus dsvi_device_cpu_create(DsvIsa isa, DsvDevice **out);

#ifdef __cplusplus
}
#endif
#endif
