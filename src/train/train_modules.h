/* Training of some of the model's parameters (option train_modules). The others, the frozen parameters, keep
 * their bits: their gradients are cleared before the norm of the gradient is computed, so that their moments
 * stay zero, and weight decay leaves them out. The memory is that of training all parameters. */
#ifndef DSVI_TRAIN_MODULES_H
#define DSVI_TRAIN_MODULES_H

#include "train/zero.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *frozen (table->count) to which parameters no pattern of train_modules names, to be freed by the
 * caller; NULL if the option is empty. A pattern stands for the parameters whose name has a part that matches
 * it, in either naming: attn1, blocks.0.attn1, to_q.weight and bias name parts of blocks.0.attn1.to_q.weight
 * or of blocks.0.attn1.to_q.bias. A part begins and ends at a dot or at an end of the name; patterns may
 * contain the wildcards of fnmatch(), which also match dots. DSV_E_USAGE, naming the pattern, if a pattern
 * stands for nothing, or if lora_rank is above 0. */
DsvStatus dsvi_train_modules_make(const DsvConfig *settings, const DsviParamTable *table, bool **frozen);

/* Clears the gradients of a bucket's frozen parameters in this rank's shard, after the sum over ranks. Does
 * nothing if zero->frozen is NULL, like the next function. */
DsvStatus dsvi_train_modules_clear(const DsviZero *zero, int64_t bucket);
/* Multiplies the trained weights of a bucket by 1 - lr * weight_decay, and sets *weight_decay to 0 for the
 * update that follows. `master` is this rank's shard of the bucket's master weights, in the memory
 * on which `ops` work. */
DsvStatus dsvi_train_modules_decay(const DsviZero *zero, const DsviOps *ops, DsviStream *stream,
                                   int64_t bucket, float *master, double lr, double *weight_decay);

#ifdef __cplusplus
}
#endif
#endif
