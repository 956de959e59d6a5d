/* The parameters of a transformer: their names, shapes, and places in one flat array.
 *
 * All parameters are stored in one array, in a fixed order. Gradients, AdamW moments and the moving average
 * have the same layout. Names are those of diffusers; original Wan names are translated when weights are
 * read.
 *
 * The array is divided into buckets, whose gradients a backward pass completes together: one for the
 * parameters before the blocks, one for each block, one for those after the blocks. In a bucket the
 * parameters that are used in F32 come first, then the GEMM weights, which are used in the compute dtype:
 *
 *     | text, time, patch embedding | block 0                      | block 1      | head          |
 *     | F32         | GEMM weights  | F32 | GEMM weights           | F32 | GEMM   | F32 | GEMM    |
 *     begin[0]      gemm[0]         begin[1] gemm[1]               begin[2]  ...                  begin[4]
 * */
#ifndef DSVI_WEIGHTS_H
#define DSVI_WEIGHTS_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/safetensors.h"
#include "model/dit/dit_config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviInit { /* Distributions of a parameter's initial values, as in the original Wan code. */
                        DSVI_INIT_ZERO,
                        DSVI_INIT_ONE,
                        DSVI_INIT_XAVIER,    /* Xavier uniform, with fan-out shape[0] and fan-in the product
                                              * of the other dimensions */
                        DSVI_INIT_NORMAL_02, /* N(0, 0.02) */
                        DSVI_INIT_TABLE,     /* N(0, 1) / sqrt(C) */
                        DSVI_INIT_FAN_IN     /* uniform in +-1 / sqrt(fan-in), as linear layers of PyTorch */
} DsviInit;

typedef struct DsviParam {
    char name[96];     /* diffusers' name */
    char original[96]; /* name in the Wan repository */
    int ndim;
    int64_t shape[DSVI_TENSOR_MAX_DIMS];
    int64_t count;  /* elements */
    int64_t offset; /* place in the flat array: elements from its start, a multiple of 16 */
    DsviInit init;
    bool in_compute_dtype; /* a GEMM weight, of which a copy in the compute dtype exists; false in the time
                            * embedder */
} DsviParam;

typedef struct DsviParamTable {
    DsviParam *params;
    int64_t count;
    int64_t elements;   /* of the flat array, including padding, which is always zero */
    int64_t parameters; /* number of all elements of parameters, without padding */
    int64_t buckets;    /* blocks + 2 */
    int64_t *first;     /* (buckets + 1) index of each bucket's first parameter; the last entry is `count` */
    int64_t *begin;     /* (buckets + 1) place where each bucket begins; the last entry is `elements` */
    int64_t *gemm;      /* (buckets) place where the GEMM weights of each bucket begin */
} DsviParamTable;

/* Makes the table of a model's parameters; to be freed with dsvi_param_table_free. */
DsvStatus dsvi_param_table_make(const DsviDitConfig *config, DsviParamTable *out);
void dsvi_param_table_free(DsviParamTable *table);
/* Returns the index of the parameter with this diffusers name, or -1. */
int64_t dsvi_param_find(const DsviParamTable *table, const char *name);

/* Returns the bucket that contains a place of the flat array. */
int64_t dsvi_param_bucket(const DsviParamTable *table, int64_t place);

/* Fills the host array `flat` (elements) F32 with initial values (DsviInit). The values depend only on
 * seed and table. */
void dsvi_weights_init(const DsviParamTable *table, uint64_t seed, float *flat);
/* The same for the elements of one bucket, begin[bucket] to begin[bucket + 1]. */
void dsvi_weights_init_bucket(const DsviParamTable *table, uint64_t seed, int64_t bucket, float *out);

/* The stored values of a model's parameters, in mapped files. */
typedef struct DsviStoredParam {
    const void *data; /* (count), not necessarily aligned beyond the dtype */
    DsviDtype dtype;  /* F64, F32, BF16, F16 or F8_E4M3 */
    double scale;     /* of F8_E4M3: factor of the stored numbers; otherwise 1 */
} DsviStoredParam;

typedef struct DsviStoredWeights {
    DsviStoredParam *params; /* one for each parameter of the table */
    DsviSafetensors **files;
    size_t file_count;
} DsviStoredWeights;

/* Returns the name of a stored tensor without the prefix that single-file checkpoints add. */
const char *dsvi_weights_plain_name(const char *name);

/* Finds the stored values of all parameters without reading them. Paths, namings and errors are those of
 * dsvi_weights_read. The caller closes *out; nothing is to be closed after a failure. */
DsvStatus dsvi_weights_open(const char *path, const DsviParamTable *table, DsviStoredWeights *out);
void dsvi_weights_close(DsviStoredWeights *weights);
/* Converts elements [first, first + count) of a parameter to `dtype`, F32 or BF16, on all threads. */
void dsvi_weights_convert(const DsviStoredWeights *weights, int64_t param, int64_t first, int64_t count,
                          DsviDtype dtype, void *out);

/* Converts the parameters of a bucket to F32. `out` has the elements begin[bucket] to begin[bucket + 1]. */
void dsvi_weights_read_bucket(const DsviStoredWeights *weights, const DsviParamTable *table, int64_t bucket,
                              float *out);

/* Reads weights into the host array `flat`. `path` is a transformer folder (a single file, or shards with an
 * index) or one safetensors file. Accepts both namings, known prefixes, fused to_qkv and to_kv, and F64, F32,
 * BF16, F16 or F8_E4M3. An F8 weight is multiplied by the one number of the tensor scale_weight (or
 * weight_scale) beside it, if the file has one, as ComfyUI does; scale_input and input_scale, for products of
 * F8 matrices, are not used. DSV_E_SHAPE lists tensors that are missing, unknown, duplicate, or of another
 * shape. Pickles are DSV_E_UNSUPPORTED. */
DsvStatus dsvi_weights_read(const char *path, const DsviParamTable *table, float *flat);

/* Takes the sizes of a transformer from the shapes of its tensors, for files without config.json. `path` is
 * as for dsvi_weights_read. Heads have the size 128 of all published models; what shapes do not tell is set
 * to the values that the published models agree on. DSV_E_NOT_FOUND if the tensors are not those of a Wan
 * transformer; DSV_E_UNSUPPORTED names an unsupported variant. */
DsvStatus dsvi_weights_config(const char *path, DsviDitConfig *out);

/* Sets config->image_dim and pos_embed_seq_len from the shapes of the tensors, if the model has more input
 * than output channels and its config.json does not say that it takes image rows. `path` is as for
 * dsvi_weights_read; a folder without weights changes nothing. */
DsvStatus dsvi_weights_find_image(const char *path, DsviDitConfig *config);

/* Writes FOLDER/diffusion_pytorch_model.safetensors, or several files with an index if they would exceed
 * shard_bytes. `dtype` is F32 or BF16; `flat` is a host array of F32. Makes the folder if needed. */
DsvStatus dsvi_weights_write(const char *folder, const DsviParamTable *table, const float *flat,
                             DsviDtype dtype, uint64_t shard_bytes);
/* The same bucket by bucket, for weights that are not in memory at once. dsvi_weights_writer_put takes the
 * buckets in ascending order, each an array with the elements begin[bucket] to begin[bucket + 1].
 * dsvi_weights_writer_finish completes the files if `status` of all before is DSV_OK, frees the writer in any
 * case and returns the first failure; *writer, which may be NULL, becomes NULL. Keeps a pointer to the table.
 */
typedef struct DsviWeightsWriter DsviWeightsWriter;
DsvStatus dsvi_weights_writer_open(const char *folder, const DsviParamTable *table, DsviDtype dtype,
                                   uint64_t shard_bytes, DsviWeightsWriter **out);
DsvStatus dsvi_weights_writer_put(DsviWeightsWriter *writer, int64_t bucket, const float *data);
DsvStatus dsvi_weights_writer_finish(DsviWeightsWriter **writer, DsvStatus status);

/* Write a host array of F32 in this layout, such as the optimizer's moment "exp_avg", to one file, and
 * read such a file. Tensors have the name of the array and the parameter:
 * exp_avg.blocks.0.ffn.net.2.weight. Files of version 0.1, which lack the first dot, can be read too. */
DsvStatus dsvi_flat_write(const char *path, const DsviParamTable *table, const char *array,
                          const float *flat);
DsvStatus dsvi_flat_read(const char *path, const DsviParamTable *table, const char *array, float *flat);
/* Opens such a file and finds the tensor of each parameter; tensors (table->count). The caller closes *out,
 * which is NULL after a failure. */
DsvStatus dsvi_flat_open(const char *path, const DsviParamTable *table, const char *array,
                         const DsviStoredTensor **tensors, DsviSafetensors **out);

#ifdef __cplusplus
}
#endif
#endif
