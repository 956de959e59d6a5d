/* Where optimizer state that waits in host memory is updated (option offload_update): on the device, to which
 * it travels (zero_offload.c), or where it waits, by the CPU (zero_host_update.c). Both give the same bits,
 * so the faster one may be chosen from predicted times. */
#ifndef DSVI_UPDATE_PLACE_H
#define DSVI_UPDATE_PLACE_H

#include "device/carve.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fails with DSV_E_USAGE or DSV_E_UNSUPPORTED if the option asks for an update by the CPU that this run
 * cannot have. */
DsvStatus dsvi_update_place_check(const DsvConfig *settings);
/* Returns whether the place is left to predicted times, for values of `offload` that name what waits; false
 * on a CPU device. */
bool dsvi_update_place_is_open(const DsvConfig *settings, const DsviDevice *device);
/* Returns whether the update may be on the device, or by the CPU. */
bool dsvi_update_place_may_be(const DsviTrainer *trainer, bool by_cpu);

/* What is known of an update whose seconds are asked for. */
typedef struct DsviUpdateWork {
    bool by_cpu;     /* else on the device */
    int64_t buckets; /* buckets whose state waits in host memory */
    size_t state;    /* bytes of this state */
    size_t grads;    /* bytes of gradients that wait there too */
    double backward; /* seconds of a backward pass */
} DsviUpdateWork;

/* Returns the predicted seconds by which an update lengthens a step, with trainer->speeds. Copies run while
 * the update computes; if the backward pass updates, copies and the CPU also run during this pass. */
double dsvi_update_seconds(const DsviTrainer *trainer, const DsviUpdateWork *work);

/* Chooses how much of what the option names waits, with the device memory that `layout` takes. */
typedef void dsvi_amount_fn(DsviTrainer *trainer, dsvi_layout_fn *layout);
/* Chooses the place for values of `offload` that name what waits, and how much waits, with `amount`: the
 * faster place, unless only the other one keeps to memory_gib. Reports a choice by predicted times to `log`,
 * which may be NULL. */
void dsvi_update_place_choose(DsviTrainer *trainer, dsvi_layout_fn *layout, dsvi_amount_fn *amount,
                              DsviSparseLog *log, void *log_context);

#ifdef __cplusplus
}
#endif
#endif
