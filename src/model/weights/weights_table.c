/* The table of a transformer's parameters: both names, shapes, places and initial values. Order, initial
 * values and original names are those of the Wan 2.1 code, the other names those of diffusers'
 * WanTransformer3DModel. */
#include "model/weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/threads.h"

enum { PLACE_MULTIPLE = 16 }; /* each parameter begins at a multiple of so many elements */
/* Numbers of parameters: of each block, before the blocks and after the blocks. A model with image rows has
 * IMAGE_PER_BLOCK and IMAGE_BEFORE more, and IMAGE_POSITIONS if it has a table of positions. */
enum { PER_BLOCK = 27, BEFORE = 12, AFTER = 3, IMAGE_PER_BLOCK = 5, IMAGE_BEFORE = 8, IMAGE_POSITIONS = 1 };
enum { INIT_PIECE = 65536 }; /* random values that a thread draws at a time */

typedef struct Builder {
    DsviParamTable *table;
    int64_t before, per_block; /* parameters before the blocks and of each block */
    char prefix[32];           /* "blocks.3." inside a block: the same in both namings */
} Builder;

/* Distribution of initial values, and dtype, of one kind of parameter. */
typedef struct Kind {
    DsviInit init;
    bool in_compute_dtype;
} Kind;

static const Kind GEMM_WEIGHT = {DSVI_INIT_XAVIER, true};
static const Kind TEXT_WEIGHT = {DSVI_INIT_NORMAL_02, true};
static const Kind TIME_WEIGHT = {DSVI_INIT_NORMAL_02, false};
static const Kind TIME_PROJECTION = {DSVI_INIT_XAVIER, false};
static const Kind HEAD_WEIGHT = {DSVI_INIT_ZERO, true}; /* a new model predicts the velocity zero */
static const Kind NORM_WEIGHT = {DSVI_INIT_ONE, false};
static const Kind BIAS = {DSVI_INIT_ZERO, false};
static const Kind MODULATION = {DSVI_INIT_TABLE, false};

/* Appends a parameter to the table. `shape` ends with a zero or after five dimensions. */
static void weights_table_add(Builder *b, const char *name, const char *original, const char *suffix,
                              Kind kind, const int64_t shape[5])
{
    DsviParamTable *table = b->table;
    DsviParam *param = &table->params[table->count++];
    snprintf(param->name, sizeof param->name, "%s%s%s", b->prefix, name, suffix);
    snprintf(param->original, sizeof param->original, "%s%s%s", b->prefix, original, suffix);
    param->init = kind.init;
    param->in_compute_dtype = kind.in_compute_dtype;
    param->count = 1;
    for (int i = 0; i < 5 && shape[i] > 0; i++) {
        param->shape[param->ndim++] = shape[i];
        param->count *= shape[i];
    }
    table->parameters += param->count;
}

static void add_linear(Builder *b, const char *name, const char *original, Kind kind, int64_t out, int64_t in)
{
    weights_table_add(b, name, original, ".weight", kind, (int64_t[5]){out, in});
    weights_table_add(b, name, original, ".bias", BIAS, (int64_t[5]){out});
}

static void weights_table_add_attention(Builder *b, const char *name, const char *original, int64_t width)
{
    static const char *const PART[4][2] = {{"to_q", "q"}, {"to_k", "k"}, {"to_v", "v"}, {"to_out.0", "o"}};
    static const char *const NORM[2] = {"norm_q", "norm_k"};
    char full[48], full_original[48];
    for (int i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "%s.%s", name, PART[i][0]);
        snprintf(full_original, sizeof full_original, "%s.%s", original, PART[i][1]);
        add_linear(b, full, full_original, GEMM_WEIGHT, width, width);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(full, sizeof full, "%s.%s", name, NORM[i]);
        snprintf(full_original, sizeof full_original, "%s.%s", original, NORM[i]);
        weights_table_add(b, full, full_original, ".weight", NORM_WEIGHT, (int64_t[5]){width});
    }
}

static void add_norm(Builder *b, const char *name, const char *original, int64_t width)
{
    weights_table_add(b, name, original, ".weight", NORM_WEIGHT, (int64_t[5]){width});
    weights_table_add(b, name, original, ".bias", BIAS, (int64_t[5]){width});
}

/* Adds the keys and values of image rows in cross-attention. */
static void add_image_attention(Builder *b, int64_t width)
{
    add_linear(b, "attn2.add_k_proj", "cross_attn.k_img", GEMM_WEIGHT, width, width);
    add_linear(b, "attn2.add_v_proj", "cross_attn.v_img", GEMM_WEIGHT, width, width);
    weights_table_add(b, "attn2.norm_added_k", "cross_attn.norm_k_img", ".weight", NORM_WEIGHT,
                      (int64_t[5]){width});
}

/* Adds the embedding of image rows. */
static void add_image_embedder(Builder *b, const DsviDitConfig *config)
{
    int64_t width = dsvi_dit_width(config), dim = config->image_dim;
    if (config->pos_embed_seq_len > 0)
        weights_table_add(b, "condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos", "", BIAS,
                          (int64_t[5]){1, config->pos_embed_seq_len, dim});
    add_norm(b, "condition_embedder.image_embedder.norm1", "img_emb.proj.0", dim);
    add_linear(b, "condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1", GEMM_WEIGHT, dim, dim);
    add_linear(b, "condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3", GEMM_WEIGHT, width, dim);
    add_norm(b, "condition_embedder.image_embedder.norm2", "img_emb.proj.4", width);
}

static void weights_table_add_block(Builder *b, const DsviDitConfig *config, int64_t block)
{
    int64_t width = dsvi_dit_width(config), ffn = config->ffn_dim;
    snprintf(b->prefix, sizeof b->prefix, "blocks.%lld.", (long long)block);
    weights_table_add(b, "scale_shift_table", "modulation", "", MODULATION, (int64_t[5]){1, 6, width});
    weights_table_add_attention(b, "attn1", "self_attn", width);
    weights_table_add_attention(b, "attn2", "cross_attn", width);
    if (config->image_dim > 0)
        add_image_attention(b, width);
    /* The affine norm before cross-attention is norm2 in one naming and norm3 in the other. */
    add_norm(b, "norm2", "norm3", width);
    add_linear(b, "ffn.net.0.proj", "ffn.0", GEMM_WEIGHT, ffn, width);
    add_linear(b, "ffn.net.2", "ffn.2", GEMM_WEIGHT, width, ffn);
    b->prefix[0] = 0;
}

static void number_params(const Builder *b)
{
    DsviParamTable *table = b->table;
    table->first[0] = 0;
    for (int64_t s = 1; s < table->buckets; s++)
        table->first[s] = b->before + b->per_block * (s - 1);
    table->first[table->buckets] = table->count;
}

/* Assigns places in the flat array to the parameters of a bucket: to its GEMM weights, or to all others. */
static void weights_table_place(const Builder *b, int64_t bucket, bool gemm)
{
    DsviParamTable *table = b->table;
    for (int64_t i = table->first[bucket]; i < table->first[bucket + 1]; i++) {
        DsviParam *param = &table->params[i];
        if (param->in_compute_dtype != gemm)
            continue;
        param->offset = table->elements;
        table->elements += (param->count + PLACE_MULTIPLE - 1) / PLACE_MULTIPLE * PLACE_MULTIPLE;
    }
}

static void place_all(const Builder *b)
{
    DsviParamTable *table = b->table;
    for (int64_t s = 0; s < table->buckets; s++) {
        table->begin[s] = table->elements;
        weights_table_place(b, s, false);
        table->gemm[s] = table->elements;
        weights_table_place(b, s, true);
    }
    table->begin[table->buckets] = table->elements;
}

DsvStatus dsvi_param_table_make(const DsviDitConfig *config, DsviParamTable *out)
{
    int64_t width = dsvi_dit_width(config);
    const int64_t *patch = config->patch;
    bool image = config->image_dim > 0, positions = config->pos_embed_seq_len > 0;
    Builder b = {
        .table = out,
        .before = BEFORE + (image ? IMAGE_BEFORE : 0) + (positions ? IMAGE_POSITIONS : 0),
        .per_block = PER_BLOCK + (image ? IMAGE_PER_BLOCK : 0),
    };
    int64_t count = b.before + b.per_block * config->num_layers + AFTER;
    memset(out, 0, sizeof *out);
    out->buckets = config->num_layers + 2;
    out->params = calloc((size_t)count, sizeof *out->params);
    out->first = calloc((size_t)out->buckets + 1, sizeof *out->first);
    out->begin = calloc((size_t)out->buckets + 1, sizeof *out->begin);
    out->gemm = calloc((size_t)out->buckets, sizeof *out->gemm);
    if (!out->params || !out->first || !out->begin || !out->gemm) {
        dsvi_param_table_free(out);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the table of a model's parameters");
    }
    weights_table_add(&b, "patch_embedding", "patch_embedding", ".weight", GEMM_WEIGHT,
                      (int64_t[5]){width, config->in_channels, patch[0], patch[1], patch[2]});
    weights_table_add(&b, "patch_embedding", "patch_embedding", ".bias", BIAS, (int64_t[5]){width});
    add_linear(&b, "condition_embedder.text_embedder.linear_1", "text_embedding.0", TEXT_WEIGHT, width,
               config->text_dim);
    add_linear(&b, "condition_embedder.text_embedder.linear_2", "text_embedding.2", TEXT_WEIGHT, width,
               width);
    add_linear(&b, "condition_embedder.time_embedder.linear_1", "time_embedding.0", TIME_WEIGHT, width,
               config->freq_dim);
    add_linear(&b, "condition_embedder.time_embedder.linear_2", "time_embedding.2", TIME_WEIGHT, width,
               width);
    add_linear(&b, "condition_embedder.time_proj", "time_projection.1", TIME_PROJECTION, 6 * width, width);
    if (image)
        add_image_embedder(&b, config);
    for (int64_t i = 0; i < config->num_layers; i++)
        weights_table_add_block(&b, config, i);
    weights_table_add(&b, "scale_shift_table", "head.modulation", "", MODULATION, (int64_t[5]){1, 2, width});
    add_linear(&b, "proj_out", "head.head", HEAD_WEIGHT,
               patch[0] * patch[1] * patch[2] * config->out_channels, width);
    DSVI_ASSERT(out->count == count);
    number_params(&b);
    place_all(&b);
    return DSV_OK;
}

void dsvi_param_table_free(DsviParamTable *table)
{
    free(table->params);
    free(table->first);
    free(table->begin);
    free(table->gemm);
    memset(table, 0, sizeof *table);
}

/* Returns the index of the parameter with this name in a bucket, or -1. */
static int64_t find_in_bucket(const DsviParamTable *table, int64_t bucket, const char *name)
{
    for (int64_t i = table->first[bucket]; i < table->first[bucket + 1]; i++)
        if (strcmp(table->params[i].name, name) == 0)
            return i;
    return -1;
}

int64_t dsvi_param_find(const DsviParamTable *table, const char *name)
{
    static const char BLOCKS[] = "blocks.";
    if (strncmp(name, BLOCKS, sizeof BLOCKS - 1) == 0) {
        long long block = strtoll(name + sizeof BLOCKS - 1, NULL, 10);
        return block >= 0 && block < table->buckets - 2 ? find_in_bucket(table, block + 1, name) : -1;
    }
    int64_t before = find_in_bucket(table, 0, name);
    return before >= 0 ? before : find_in_bucket(table, table->buckets - 1, name);
}

int64_t dsvi_param_bucket(const DsviParamTable *table, int64_t place)
{
    int64_t low = 0, high = table->buckets;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (place < table->begin[middle])
            high = middle;
        else
            low = middle;
    }
    return low;
}

/* Each parameter has its own random stream, so that its values do not depend on other parameters. Each value
 * has its own index in the stream, so that threads can divide the work. */
typedef struct ParamInit {
    const DsviParam *param;
    DsviRng rng;
    float *values;
} ParamInit;

static void init_values(void *context, int64_t begin, int64_t end, int worker)
{
    const ParamInit *init = context;
    const DsviParam *param = init->param;
    double fan_out = (double)param->shape[0], fan_in = (double)param->count / fan_out;
    double limit = sqrt(6 / (fan_in + fan_out));
    double table_deviation = 1 / sqrt((double)param->shape[param->ndim - 1]);
    DsviRng rng = init->rng;
    float *values = init->values;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        uint64_t index = (uint64_t)i;
        switch (param->init) {
        case DSVI_INIT_ZERO: values[i] = 0; break;
        case DSVI_INIT_ONE: values[i] = 1; break;
        case DSVI_INIT_XAVIER: values[i] = (float)(limit * (2 * dsvi_rng_uniform(rng, index) - 1)); break;
        case DSVI_INIT_NORMAL_02: values[i] = (float)(0.02 * dsvi_rng_normal(rng, index)); break;
        case DSVI_INIT_TABLE: values[i] = (float)(table_deviation * dsvi_rng_normal(rng, index)); break;
        case DSVI_INIT_FAN_IN:
            values[i] = (float)((2 * dsvi_rng_uniform(rng, index) - 1) / sqrt(fan_in));
            break;
        }
    }
}

void dsvi_weights_init_bucket(const DsviParamTable *table, uint64_t seed, int64_t bucket, float *out)
{
    int64_t first = table->begin[bucket], past = table->begin[bucket + 1];
    memset(out, 0, (size_t)(past - first) * sizeof *out);
    for (int64_t i = table->first[bucket]; i < table->first[bucket + 1]; i++) {
        const DsviParam *param = &table->params[i];
        ParamInit init = {param, {seed, DSVI_RNG_INIT, (uint32_t)i}, out + (param->offset - first)};
        dsvi_parallel_for(param->count, INIT_PIECE, init_values, &init);
    }
}

void dsvi_weights_init(const DsviParamTable *table, uint64_t seed, float *flat)
{
    for (int64_t b = 0; b < table->buckets; b++)
        dsvi_weights_init_bucket(table, seed, b, flat + table->begin[b]);
}
