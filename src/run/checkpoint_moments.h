/* The optimizer's state in a checkpoint: the files exp_avg and exp_avg_sq in the folder optimizer/.
 *
 * A file has one tensor for each parameter, such as exp_avg.blocks.0.ffn.net.2.weight, in the dtype of the
 * state (train/moments.h): F32, BF16, or U8 for codes of 8 bits. With codes the F32 tensor
 * exp_avg.scale.<number of the bucket> has the scales of a block's matrices, in the order of the flat array.
 * With Muon exp_avg_sq has no matrices of blocks. All numbers are stored exactly, and do not depend on the
 * number of ranks. */
#ifndef DSVI_CHECKPOINT_MOMENTS_H
#define DSVI_CHECKPOINT_MOMENTS_H

#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank 0 writes the files into `folder`/optimizer, while all other ranks call dsvi_checkpoint_send_moments.
 */
DsvStatus dsvi_checkpoint_write_moments(DsviTrainer *trainer, const char *folder);
DsvStatus dsvi_checkpoint_send_moments(DsviTrainer *trainer);
/* Called by all ranks: rank 0 reads the files. */
DsvStatus dsvi_checkpoint_read_moments(DsviTrainer *trainer, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
