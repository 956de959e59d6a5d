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
 * Embeddings and head keep the compute dtype. Weights that the file has in F8_E4M3 keep their codes. */
#ifndef DSVI_DIT_FROZEN_H
#define DSVI_DIT_FROZEN_H

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
void dsvi_dit_frozen_free(DsviDitFrozen **frozen); /* takes NULL; the device memory is the arena's */
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
