/* offload=auto: chooses what waits in host memory, and what each block keeps of its activations, so that the
 * predicted step is the fastest that fits.
 *
 * What waits beside activations is, in whole blocks, the optimizer's state; or beside a LoRA the frozen
 * weights; or, without a LoRA, all state, all gradients of blocks, and the weights of some blocks. State that
 * waits is updated on the device or by the CPU (train/update_place.h). For each place and each number of such
 * blocks the layout function says how much device memory is left for a pass, and train/size_plans.h which
 * choices of activations are the fastest in it. Memory is exact; times are predicted from FLOPs and copied
 * bytes with DsviTrainer.speeds. */
#ifndef DSVI_MEMORY_PLAN_H
#define DSVI_MEMORY_PLAN_H

#include "device/carve.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the option offload leaves the choice to this planner. */
bool dsvi_memory_plans(const DsvConfig *settings);

/* Chooses for a trainer whose memory is not allocated yet. `layout` takes its device memory;
 * `host_beside` bytes of host memory are taken whatever is chosen. `log` (may be
 * NULL) receives a table of the settings that were compared, line by line. If none fits into memory_gib, or
 * into the device's free memory without it, chooses the one that needs the least. */
DsvStatus dsvi_memory_plan_choose(DsviTrainer *trainer, dsvi_layout_fn *layout, size_t host_beside,
                                  DsviSparseLog *log, void *log_context);

#ifdef __cplusplus
}
#endif
#endif
