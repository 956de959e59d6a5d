/* Parts of the image encoder: shape and names of its weights. */
#ifndef DSVI_VIT_INTERNAL_H
#define DSVI_VIT_INTERNAL_H

#include "model/vit/vit.h"
#include "model/weights/tensor_set.h"
#include "model/weights/tensor_stager.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Matrices of a layer, and the place of each matrix's bias among the vectors of the layer. Those of Q, K and
 * V follow one another: together they are one matrix. */
typedef enum DsviVitPart {
    DSVI_VIT_Q, /* (hidden, hidden), as K, V and O */
    DSVI_VIT_K,
    DSVI_VIT_V,
    DSVI_VIT_O,
    DSVI_VIT_FFN_IN,  /* (intermediate, hidden) */
    DSVI_VIT_FFN_OUT, /* (hidden, intermediate) */
    DSVI_VIT_MATRICES,
    DSVI_VIT_NORM1 = DSVI_VIT_MATRICES, /* (hidden): weight, and bias */
    DSVI_VIT_NORM2,
    DSVI_VIT_PARTS
} DsviVitPart;

typedef struct DsviVitLayer {
    const DsviStoredTensor *weight[DSVI_VIT_PARTS], *bias[DSVI_VIT_PARTS];
} DsviVitLayer;

typedef struct DsviVitWeights {
    DsviTensorSet *set;
    const DsviStoredTensor *class_embedding; /* (hidden) */
    const DsviStoredTensor *patch;           /* (hidden, channels, patch, patch) */
    const DsviStoredTensor *positions;       /* (rows, hidden) */
    const DsviStoredTensor *norm[2];         /* (hidden) weight and bias of the norm before the layers */
    DsviVitLayer *layers;                    /* (num_hidden_layers); the last one is not used */
} DsviVitWeights;

/* Sets the shape of a part's weight; of a norm it is (hidden, 1). A bias has shape[0] elements. */
void dsvi_vit_part_shape(const DsviVitConfig *config, int part, int64_t shape[2]);
/* Opens the files of the folder `path` and finds all weights. The caller calls dsvi_vit_weights_close, also
 * after a failure. */
DsvStatus dsvi_vit_weights_open(const char *path, DsviVitConfig *config, DsviVitWeights *out);
void dsvi_vit_weights_close(DsviVitWeights *weights);

#ifdef __cplusplus
}
#endif
#endif
