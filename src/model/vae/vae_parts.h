/* The layers of a VAE, and what its files share.
 *
 * A half (encoder or decoder) is a list of stages. The encoder runs its first stages in strips of rows and
 * the rest on whole frames; the decoder runs its first stages on whole frames and the rest in strips.
 *
 *     encoder  conv_in, (residual..., down)...          | residual..., middle, head, quant_conv
 *     decoder  post_quant_conv, conv_in, middle, residual... | (up, residual...)..., head
 *
 * "down" is a convolution of stride 2 and, where the level also halves the frames, a convolution over time.
 * "up" is the reverse: a convolution over time, then the nearest-neighbour enlargement with a convolution.
 *
 * The VAE of Wan 2.2 has a shortcut around each level. A stage "save" at the level's beginning keeps the
 * level's input. In the encoder a stage "mean" at the level's end adds means of this input:
 *
 *     y[t, h, w, o] += mean over k with o = k / (I K / O) of x[t T + a - (T - 1), h S + b, w S + c, i],
 *     k = ((i T + a) S + b) S + c,    K = T S S
 *
 * with T = 2 where the level halves the frames, S = 2 where it halves rows and columns, and 1 elsewhere; the
 * frame before the first is zero. The mean is a convolution with constant weights. In the decoder the
 * convolution that enlarges adds repeated elements of this input:
 *
 *     y[t T + a - (T - 1), 2 h + b, 2 w + c, o] += x[t, h, w, k / (O K / I)],    k = ((o T + a) 2 + b) 2 + c
 *
 * without the frame before the first. */
#ifndef DSVI_VAE_PARTS_H
#define DSVI_VAE_PARTS_H

#include "model/vae/vae.h"
#include "model/weights/tensor_set.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviVaeConv {
    int64_t in, out;   /* channels; out 0: the stage lacks this convolution */
    int64_t kernel[3]; /* frames, rows, columns */
    int64_t time_stride, stride;
    int64_t pad;        /* zeros before the first row and column */
    const void *weight; /* (out, kernel, in) act, device */
    const void *bias;   /* (out) F32, device */
} DsviVaeConv;

typedef enum DsviVaeStageKind {
    DSVI_VAE_CONV,      /* norm and SiLU if there is a gamma; enlargement if upscale is 2; conv[0] */
    DSVI_VAE_RESIDUAL,  /* conv[0] and conv[1], each after norm and SiLU; conv[2]: the shortcut, or none */
    DSVI_VAE_ATTENTION, /* conv[0]: queries, keys, values; conv[1]: projection */
    DSVI_VAE_TIME_DOWN, /* conv[0]; the first frame passes through */
    DSVI_VAE_TIME_UP,   /* conv[0] gives two frames as halves of its channels; the first frame passes
                         * through, and counts as zero for the frames after it */
    DSVI_VAE_SAVE,      /* keeps its input for the stage `shortcut` stages later, and passes it on */
    DSVI_VAE_MEAN       /* conv[0] of the kept input is added to the stage's input */
} DsviVaeStageKind;

typedef struct DsviVaeStage {
    DsviVaeStageKind kind;
    int64_t in, out;  /* channels */
    int64_t upscale;  /* 1 or 2 */
    int64_t shortcut; /* stages between a save and the stage that adds what was saved, in both; 0: none */
    DsviVaeConv conv[3];
    const void *gamma[2]; /* (channels) F32, device; of the norm before conv[0] and conv[1] */
} DsviVaeStage;

/* One tensor of the weights. */
typedef struct DsviVaeParam {
    char name[2][96]; /* of diffusers, of the Wan repository */
    int ndim;
    int64_t shape[5];   /* as stored: (out, in, kernel...), (out), or (channels, 1...) */
    bool kernel;        /* a kernel is stored on the device as (out, kernel..., in) in act, others in F32 */
    bool mean;          /* the constant kernel of a mean, which no file stores */
    const void **where; /* the pointer in a stage */
} DsviVaeParam;

typedef struct DsviVaeHalf {
    DsviVaeStage *stages;
    int64_t count;
    int64_t split; /* first stage of the second part */
    DsviVaeParam *params;
    int64_t param_count;
    void *memory; /* device memory of the weights; NULL: not loaded */
    size_t bytes;
} DsviVaeHalf;

/* Makes the list of stages and params of the encoder or decoder. The caller frees it, also after failure. */
DsvStatus dsvi_vae_half_make(const DsviVaeConfig *config, bool decode, DsviVaeHalf *out);
void dsvi_vae_half_free(DsviDevice *device, DsviVaeHalf *half);
/* Takes the half's tensors from `set`, so that each has been checked. */
DsvStatus dsvi_vae_half_check(const DsviVaeHalf *half, DsviTensorSet *set);
/* Loads the weights of a half onto the device. */
DsvStatus dsvi_vae_half_load(DsviDevice *device, DsviVaeHalf *half, DsviTensorSet *set, DsviDtype act);

/* Derives a configuration from names and shapes of tensors. */
DsvStatus dsvi_vae_config_derive(const DsviTensorSet *set, const char *path, DsviVaeConfig *out);

#ifdef __cplusplus
}
#endif
#endif
