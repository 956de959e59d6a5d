/* The tensors of a model that has no flat array of parameters (text encoder, VAE): mapped safetensors files,
 * looked up by name, with a check that no tensor is missing, unknown or of another shape. */
#ifndef DSVI_TENSOR_SET_H
#define DSVI_TENSOR_SET_H

#include "base/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTensorSet DsviTensorSet;

/* Opens the files of `path`: a safetensors file, or a folder with one file or with shards and an index
 * (weights_files.h). DSV_E_FORMAT if two files hold the same tensor. The caller closes *out. */
DsvStatus dsvi_tensor_set_open(const char *path, DsviTensorSet **out);
void dsvi_tensor_set_close(DsviTensorSet **set); /* *set may be NULL and becomes NULL */

/* Returns the tensor with the first of the names that exists, or NULL. `names` ends with NULL. Does not count
 * as use of the tensor. */
const DsviStoredTensor *dsvi_tensor_set_find(const DsviTensorSet *set, const char *const *names);
/* Finds the tensor with the first of the names that exists, which must have this shape (any shape if ndim <
 * 0) and a floating dtype, F8_E4M3 included. It counts as used. DSV_E_NOT_FOUND or DSV_E_SHAPE name file and
 * tensor. The scales of an F8_E4M3 tensor count as used with it; DSV_E_UNSUPPORTED if a scale has several
 * numbers. */
DsvStatus dsvi_tensor_set_take(DsviTensorSet *set, const char *const *names, int ndim, const int64_t *shape,
                               const DsviStoredTensor **out);
/* Counts the tensor of this name as used, of any shape and dtype, if it exists: for what a file contains
 * besides the weights of the model. */
void dsvi_tensor_set_skip(DsviTensorSet *set, const char *name);
/* Fails with DSV_E_SHAPE and a list of names if tensors of the files have not been used. */
DsvStatus dsvi_tensor_set_finish(const DsviTensorSet *set);

/* Converts elements [first, first + count) of a taken tensor to `dtype` (F32 or BF16). An F8_E4M3 tensor is
 * multiplied by its scale, which the file stores as a tensor of one element under the tensor's name with
 * .scale_weight instead of .weight, or with .weight_scale; without such a tensor the scale is 1. */
void dsvi_tensor_set_read(const DsviTensorSet *set, const DsviStoredTensor *tensor, int64_t first,
                          int64_t count, DsviDtype dtype, void *out);

#ifdef __cplusplus
}
#endif
#endif
