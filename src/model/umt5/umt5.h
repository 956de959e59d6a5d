/* The UMT5 text encoder: hidden states of prompts. It computes what the UMT5EncoderModel of the package
 * transformers computes.
 *
 * Prompts are processed together without padding: their ids follow one another. The residual stream is F32;
 * matrix products and attention use `act`. Weights are read from the mapped file: the rows of the embedding
 * that the prompts need, and the layers one after another. If the layers do not fit into the memory limit,
 * they are uploaded for each batch, one layer while the layer before it computes. */
#ifndef DSVI_UMT5_H
#define DSVI_UMT5_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviUmt5Config {
    int64_t vocab_size, d_model, num_heads, d_kv, d_ff, num_layers;
    int64_t buckets, max_distance; /* of the relative position bias */
    double eps;
} DsviUmt5Config;

/* Returns whether `path` is a folder with the config.json of a UMT5 model, or a safetensors file with the
 * token embedding of one. */
bool dsvi_umt5_is(const char *path);
/* Reads config.json of a text encoder. DSV_E_UNSUPPORTED names the key of an unsupported variant. */
DsvStatus dsvi_umt5_config_read(const char *path, DsviUmt5Config *out);

/* Reads the sizes of the text encoder at `path`, as dsvi_umt5_open does, and checks that all weights are
 * there. Loads none. */
DsvStatus dsvi_umt5_config_of(const char *path, DsviUmt5Config *out);

typedef struct DsviUmt5 DsviUmt5;

typedef struct DsviUmt5Options {
    DsviDtype act;         /* F32 or BF16 */
    int64_t rows;          /* largest number of rows of a batch */
    uint64_t memory_bytes; /* limit of the device memory of weights and activations; 0: three quarters of the
                            * memory that is free on the device */
} DsviUmt5Options;

/* Returns a number of rows for batches of prompts that have `total` rows together and `longest` in one
 * prompt: enough for matrix products to reach their full speed. */
int64_t dsvi_umt5_rows(int64_t total, int64_t longest);

/* Opens a text encoder: a folder with config.json and weights, or a safetensors file, whose sizes are taken
 * from the shapes of its tensors. Allocates all device memory, and uploads the layers if they fit into the
 * limit. DSV_E_NO_MEMORY if not even two layers fit. The backend must outlive the encoder. */
DsvStatus dsvi_umt5_open(DsviBackend *backend, const char *path, const DsviUmt5Options *options,
                         DsviUmt5 **out);
void dsvi_umt5_close(DsviUmt5 **encoder); /* frees all memory */
const DsviUmt5Config *dsvi_umt5_config(const DsviUmt5 *encoder);
/* Returns the bytes of device memory that the encoder holds. */
uint64_t dsvi_umt5_bytes(const DsviUmt5 *encoder);
/* Returns the bytes of device memory that an encoder of these sizes needs with all layers on the device, or,
 * if `streamed`, with two of them. Reads only act and rows of the options. */
uint64_t dsvi_umt5_plan(const DsviUmt5Config *config, const DsviUmt5Options *options, bool streamed);

/* Decides as dsvi_umt5_open does whether the layers of an encoder of these sizes are streamed, and returns
 * the bytes that it will hold. DSV_E_NO_MEMORY if not even two layers fit. Allocates nothing. */
DsvStatus dsvi_umt5_fit(DsviBackend *backend, const DsviUmt5Config *config, const DsviUmt5Options *options,
                        bool *streamed, uint64_t *bytes);

/* Computes the hidden states of `count` prompts. ids: host array, the ids of all prompts one after another;
 * lengths: host (count). hidden: host array (sum of lengths, d_model) F32, written. Batches of at most
 * options.rows rows are made inside. Fails with DSV_E_SHAPE if a prompt has more rows than options.rows or an
 * id is outside the vocabulary. */
DsvStatus dsvi_umt5_encode(DsviUmt5 *encoder, int64_t count, const int64_t *lengths, const int32_t *ids,
                           float *hidden);

#ifdef __cplusplus
}
#endif
#endif
