/* Parts of the text encoder: shape and names of its weights. */
#ifndef DSVI_UMT5_INTERNAL_H
#define DSVI_UMT5_INTERNAL_H

#include <stdbool.h>

#include "model/umt5/umt5.h"
#include "model/weights/tensor_set.h"
#include "model/weights/tensor_stager.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_UMT5_EPS 1e-6         /* of the norms, where no config.json says otherwise */
#define DSVI_UMT5_MAX_DISTANCE 128 /* of the relative position bias, likewise */

extern const char *const dsvi_umt5_embedding[]; /* names of the token embedding; ends with NULL */

/* Weights of a layer. */
typedef enum DsviUmt5Part {
    DSVI_UMT5_Q,       /* (heads d_kv, d_model) */
    DSVI_UMT5_K,       /* as Q */
    DSVI_UMT5_V,       /* as Q */
    DSVI_UMT5_O,       /* (d_model, heads d_kv) */
    DSVI_UMT5_GATE,    /* (d_ff, d_model); its product goes through the GELU */
    DSVI_UMT5_LINEAR,  /* as GATE */
    DSVI_UMT5_FFN_OUT, /* (d_model, d_ff) */
    DSVI_UMT5_MATRICES,
    DSVI_UMT5_NORM_ATTENTION = DSVI_UMT5_MATRICES, /* (d_model) */
    DSVI_UMT5_NORM_FFN,                            /* (d_model) */
    DSVI_UMT5_BUCKETS,                             /* (buckets, heads) */
    DSVI_UMT5_PARTS
} DsviUmt5Part;

typedef struct DsviUmt5Weights {
    DsviTensorSet *set;
    const DsviStoredTensor *embedding;                  /* (vocab_size, d_model) */
    const DsviStoredTensor *final_norm;                 /* (d_model) */
    const DsviStoredTensor *(*layers)[DSVI_UMT5_PARTS]; /* (num_layers) */
} DsviUmt5Weights;

/* Fails with DSV_E_UNSUPPORTED if a size is outside the range that dsv can compute with; `where` is the file.
 */
DsvStatus dsvi_umt5_config_check(const DsviUmt5Config *config, const char *where);

/* Returns the number of elements of a matrix of a layer. */
int64_t dsvi_umt5_part_elements(const DsviUmt5Config *config, DsviUmt5Part part);

/* Opens the files of `path` and finds all weights. Reads the sizes from config.json if `path` is a folder
 * that has one, otherwise from the shapes of the tensors. The caller calls dsvi_umt5_weights_close, also
 * after a failure. */
DsvStatus dsvi_umt5_weights_open(const char *path, DsviUmt5Config *config, DsviUmt5Weights *out);
void dsvi_umt5_weights_close(DsviUmt5Weights *weights);

/* Returns the bucket of the relative position bias for keys that are `distance` rows after the query. */
int64_t dsvi_umt5_bucket(const DsviUmt5Config *config, int64_t distance);
/* Fills `bias`, host (heads, 2 reach + 1) F32: the bias of layer `layer` for distances from -reach to reach.
 */
void dsvi_umt5_bias(const DsviUmt5Weights *weights, const DsviUmt5Config *config, int64_t layer,
                    int64_t reach, float *bias);

#ifdef __cplusplus
}
#endif
#endif
