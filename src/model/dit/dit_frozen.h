/* Weights of a transformer that do not change, on the device: for forward passes, and for training a LoRA
 * beside them.
 *
 * Training holds every weight in F32 and the GEMM weights also in the compute dtype. Here a GEMM weight
 * exists only in the compute dtype, and all other parameters (biases, norms, modulation tables, time
 * embedder) only in F32. Weights go from the mapped files through a small staging buffer to the device, so
 * the host never holds them all.
 *
 * With dsvi_dit_frozen_use_f8 the GEMM weights of the blocks are stored in 8 bits (ops/quant.h), with a scale
 * for each 128 elements, and are decoded into one buffer of the compute dtype when a pass acquires a block.
 * Embeddings and head keep the compute dtype. Weights that the file has in F8_E4M3 keep their codes.
 *
 * With dsvi_dit_frozen_lend the weights of some blocks wait in host memory, in the form in which the device
 * uses them, and are copied to two slots of device memory while other blocks compute (dit_lent.h). Kernels
 * and values are those without, so the bits are the same. */
#ifndef DSVI_DIT_FROZEN_H
#define DSVI_DIT_FROZEN_H

#include "device/carve.h"
#include "model/dit/dit.h"
#include "model/lora/lora_set.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDitFrozen DsviDitFrozen;

/* Creates the weights, still without memory. `act`: compute dtype, F32 or BF16. The table must outlive *out,
 * which the caller frees. */
DsvStatus dsvi_dit_frozen_create(const DsviParamTable *table, DsviDtype act, DsviDitFrozen **out);
/* Stores the matrices of the blocks in 8 bits. Call before the first dsvi_dit_frozen_carve. `backend` must
 * outlive the weights. Of several passes that use the weights only one may be under way. */
DsvStatus dsvi_dit_frozen_use_f8(DsviDitFrozen *frozen, DsviBackend *backend);
/* Frees the weights, after waiting for their copies; takes NULL. The memory is the arenas' and must be freed
 * afterwards. */
void dsvi_dit_frozen_free(DsviDitFrozen **frozen);
/* Lets the weights of `blocks` blocks wait in host memory, spread evenly among the others. `turns`: backward
 * passes follow forward passes; false: a forward pass follows another one. May be called again until memory
 * is bound. Of several passes that use the weights only one may be under way. `device` must outlive the
 * weights. */
void dsvi_dit_frozen_lend(DsviDitFrozen *frozen, DsviDevice *device, int64_t blocks, bool turns);
/* Lets the fewest blocks wait with which the device memory that `layout` takes is at most `limit` bytes, or
 * if no number of blocks suffices the fewest with which it is least. `layout` must call
 * dsvi_dit_frozen_carve. */
void dsvi_dit_frozen_choose_lent(DsviDitFrozen *frozen, DsviDevice *device, bool turns, size_t limit,
                                 dsvi_layout_fn *layout, void *object);
/* Returns the number of blocks that wait in host memory. */
int64_t dsvi_dit_frozen_lent(const DsviDitFrozen *frozen);
/* Takes the host memory of the blocks that wait there, from an arena that is bound to page-locked memory. */
void dsvi_dit_frozen_carve_host(DsviDitFrozen *frozen, DsviArena *arena);
/* Takes the device memory, once for planning and once bound (base/arena.h). */
void dsvi_dit_frozen_carve(DsviDitFrozen *frozen, DsviArena *arena);
/* Reads the weights from `path` (dsvi_weights_read) to the device memory, and waits until they are there.
 * `loras` (may be NULL) are added in F32, before weights are rounded to the compute dtype; fails as
 * dsvi_lora_check if one does not fit. */
DsvStatus dsvi_dit_frozen_load(DsviDitFrozen *frozen, DsviDevice *device, const char *path,
                               const DsviLoraSet *loras);
/* Returns the weights for dsvi_dit_setup. Valid while `frozen` is. dsvi_dit_refresh_compute must not be
 * called. */
DsviDitWeights dsvi_dit_frozen_weights(DsviDitFrozen *frozen);

#ifdef __cplusplus
}
#endif
#endif
