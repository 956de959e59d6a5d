/* Makes the stages of encoder and decoder from a configuration, with the names of all tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/vae/vae_parts.h"

enum { COLOURS = 3, PARAMS_PER_STAGE = 8 };

/* A half that is being made, and the names of the part to which new stages belong. */
typedef struct Builder {
    const DsviVaeConfig *config;
    DsviVaeHalf *half;
    const char *side;   /* "encoder" or "decoder" */
    char prefix[2][64]; /* of diffusers, of the Wan repository */
    int64_t next;       /* flat number in the Wan repository's list of blocks */
} Builder;

static DsviVaeStage *build_stage(Builder *b, DsviVaeStageKind kind, int64_t in, int64_t out)
{
    DsviVaeStage *stage = &b->half->stages[b->half->count++];
    *stage = (DsviVaeStage){.kind = kind, .in = in, .out = out, .upscale = 1};
    return stage;
}

static DsviVaeParam *build_param(Builder *b, const char *diffusers, const char *original, const char *ending,
                                 const void **where)
{
    DsviVaeParam *param = &b->half->params[b->half->param_count++];
    const char *const names[2] = {diffusers, original};
    param->where = where;
    for (int i = 0; i < 2; i++)
        snprintf(param->name[i], sizeof param->name[i], "%s%s%s%s", b->prefix[i],
                 b->prefix[i][0] && names[i][0] ? "." : "", names[i], ending);
    return param;
}

/* Adds weight and bias of a convolution. `rank`: dimensions of the stored kernel, 3 with frames, 2 without.
 */
static void build_conv(Builder *b, DsviVaeConv *conv, const char *diffusers, const char *original, int rank)
{
    DsviVaeParam *weight = build_param(b, diffusers, original, ".weight", &conv->weight);
    weight->kernel = true;
    weight->shape[weight->ndim++] = conv->out;
    weight->shape[weight->ndim++] = conv->in;
    for (int i = 3 - rank; i < 3; i++)
        weight->shape[weight->ndim++] = conv->kernel[i];
    DsviVaeParam *bias = build_param(b, diffusers, original, ".bias", &conv->bias);
    bias->shape[bias->ndim++] = conv->out;
}

/* `ones`: dimensions of length 1 that the stored gamma has after its channels. */
static void build_gamma(Builder *b, const void **where, const char *diffusers, const char *original,
                        int64_t channels, int ones)
{
    DsviVaeParam *param = build_param(b, diffusers, original, ".gamma", where);
    param->shape[param->ndim++] = channels;
    while (ones-- > 0)
        param->shape[param->ndim++] = 1;
}

static DsviVaeConv conv_of(int64_t in, int64_t out, int64_t time, int64_t space)
{
    return (DsviVaeConv){.in = in,
                         .out = out,
                         .kernel = {time, space, space},
                         .time_stride = 1,
                         .stride = 1,
                         .pad = space / 2};
}

static void build_residual(Builder *b, int64_t in, int64_t out)
{
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_RESIDUAL, in, out);
    stage->conv[0] = conv_of(in, out, 3, 3);
    stage->conv[1] = conv_of(out, out, 3, 3);
    build_gamma(b, &stage->gamma[0], "norm1", "residual.0", in, 3);
    build_conv(b, &stage->conv[0], "conv1", "residual.2", 3);
    build_gamma(b, &stage->gamma[1], "norm2", "residual.3", out, 3);
    build_conv(b, &stage->conv[1], "conv2", "residual.6", 3);
    if (in == out)
        return;
    stage->conv[2] = conv_of(in, out, 1, 1);
    build_conv(b, &stage->conv[2], "conv_shortcut", "shortcut", 3);
}

static void build_attention(Builder *b, int64_t channels)
{
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_ATTENTION, channels, channels);
    stage->conv[0] = conv_of(channels, 3 * channels, 1, 1);
    stage->conv[1] = conv_of(channels, channels, 1, 1);
    build_gamma(b, &stage->gamma[0], "norm", "norm", channels, 2);
    build_conv(b, &stage->conv[0], "to_qkv", "to_qkv", 2);
    build_conv(b, &stage->conv[1], "proj", "proj", 2);
}

static void build_down(Builder *b, int64_t channels, bool temporal)
{
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_CONV, channels, channels);
    stage->conv[0] = conv_of(channels, channels, 1, 3);
    stage->conv[0].stride = 2;
    stage->conv[0].pad = 0;
    build_conv(b, &stage->conv[0], "resample.1", "resample.1", 2);
    if (!temporal)
        return;
    stage = build_stage(b, DSVI_VAE_TIME_DOWN, channels, channels);
    stage->conv[0] = conv_of(channels, channels, 3, 1);
    stage->conv[0].time_stride = 2;
    build_conv(b, &stage->conv[0], "time_conv", "time_conv", 3);
}

static DsviVaeStage *build_save(Builder *b, int64_t channels)
{
    return b->config->residual ? build_stage(b, DSVI_VAE_SAVE, channels, channels) : NULL;
}

/* Connects the stage `save` with the last stage; `save` may be NULL. */
static void build_shortcut(Builder *b, DsviVaeStage *save)
{
    DsviVaeStage *last = &b->half->stages[b->half->count - 1];
    if (save)
        save->shortcut = last->shortcut = last - save;
}

/* Adds the mean of what `save` keeps over `time` frames and `space` rows and columns; `save` may be NULL. */
static void build_mean(Builder *b, DsviVaeStage *save, int64_t out, int64_t time, int64_t space)
{
    if (!save)
        return;
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_MEAN, out, out);
    stage->conv[0] = (DsviVaeConv){
        .in = save->in, .out = out, .kernel = {time, space, space}, .time_stride = time, .stride = space};
    DsviVaeParam *param = build_param(b, "mean", "mean", "", &stage->conv[0].weight);
    const int64_t shape[5] = {out, save->in, time, space, space};
    param->kernel = param->mean = true;
    param->ndim = 5;
    memcpy(param->shape, shape, sizeof shape);
    build_shortcut(b, save);
}

static void build_up(Builder *b, int64_t channels, int64_t out, bool temporal)
{
    DsviVaeStage *stage;
    if (temporal) {
        stage = build_stage(b, DSVI_VAE_TIME_UP, channels, channels);
        stage->conv[0] = conv_of(channels, 2 * channels, 3, 1);
        build_conv(b, &stage->conv[0], "time_conv", "time_conv", 3);
    }
    stage = build_stage(b, DSVI_VAE_CONV, channels, out);
    stage->upscale = 2;
    stage->conv[0] = conv_of(channels, out, 1, 3);
    build_conv(b, &stage->conv[0], "resample.1", "resample.1", 2);
}

/* Adds one convolution. The prefixes of the builder are its whole name. */
static void build_single(Builder *b, int64_t in, int64_t out, int64_t size)
{
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_CONV, in, out);
    stage->conv[0] = conv_of(in, out, size, size);
    build_conv(b, &stage->conv[0], "", "", 3);
}

static void build_head(Builder *b, int64_t in, int64_t out)
{
    DsviVaeStage *stage = build_stage(b, DSVI_VAE_CONV, in, out);
    for (int i = 0; i < 2; i++)
        snprintf(b->prefix[i], sizeof b->prefix[i], "%s", b->side);
    stage->conv[0] = conv_of(in, out, 3, 3);
    build_gamma(b, &stage->gamma[0], "norm_out", "head.0", in, 3);
    build_conv(b, &stage->conv[0], "conv_out", "head.2", 3);
}

static void name_part(Builder *b, const char *diffusers, const char *original)
{
    snprintf(b->prefix[0], sizeof b->prefix[0], "%s.%s", b->side, diffusers);
    snprintf(b->prefix[1], sizeof b->prefix[1], "%s.%s", b->side, original);
}

static void name_root(Builder *b, const char *diffusers, const char *original)
{
    snprintf(b->prefix[0], sizeof b->prefix[0], "%s", diffusers);
    snprintf(b->prefix[1], sizeof b->prefix[1], "%s", original);
}

static void build_middle(Builder *b, int64_t channels)
{
    name_part(b, "mid_block.resnets.0", "middle.0");
    build_residual(b, channels, channels);
    name_part(b, "mid_block.attentions.0", "middle.1");
    build_attention(b, channels);
    name_part(b, "mid_block.resnets.1", "middle.2");
    build_residual(b, channels, channels);
}

/* Writes diffusers' name of residual block `i` of a level with `blocks` of them, or of the change of size
 * after the last. */
static void name_level(char out[64], const char *levels, int64_t level, int64_t i, int64_t blocks,
                       const char *size)
{
    if (i < blocks)
        snprintf(out, 64, "%s.%lld.resnets.%lld", levels, (long long)level, (long long)i);
    else
        snprintf(out, 64, "%s.%lld.%s", levels, (long long)level, size);
}

/* Names block `i` of a level, or its change of size for i = num_res_blocks. Wan 2.1 numbers the blocks of the
 * encoder without regard to levels, in both name schemes. */
static void name_down(Builder *b, int64_t level, int64_t i)
{
    if (b->config->residual) {
        name_level(b->prefix[0], "encoder.down_blocks", level, i, b->config->num_res_blocks, "downsampler");
        snprintf(b->prefix[1], sizeof b->prefix[1], "encoder.downsamples.%lld.downsamples.%lld",
                 (long long)level, (long long)i);
        return;
    }
    snprintf(b->prefix[0], sizeof b->prefix[0], "encoder.down_blocks.%lld", (long long)b->next);
    snprintf(b->prefix[1], sizeof b->prefix[1], "encoder.downsamples.%lld", (long long)b->next++);
}

/* Names block `i` of a level of the decoder, or its change of size for i = num_res_blocks + 1. */
static void name_up(Builder *b, int64_t level, int64_t i)
{
    name_level(b->prefix[0], "decoder.up_blocks", level, i, b->config->num_res_blocks + 1,
               b->config->residual ? "upsampler" : "upsamplers.0");
    if (b->config->residual)
        snprintf(b->prefix[1], sizeof b->prefix[1], "decoder.upsamples.%lld.upsamples.%lld", (long long)level,
                 (long long)i);
    else
        snprintf(b->prefix[1], sizeof b->prefix[1], "decoder.upsamples.%lld", (long long)b->next++);
}

static void build_encoder(Builder *b)
{
    const DsviVaeConfig *config = b->config;
    int64_t in = config->base_dim, last_down = 0, attention = -1;
    name_part(b, "conv_in", "conv1");
    build_single(b, COLOURS * config->patch * config->patch, in, 3);
    for (int64_t level = 0; level < config->levels; level++) {
        int64_t out = config->base_dim * config->dim_mult[level];
        DsviVaeStage *save = build_save(b, in);
        for (int64_t i = 0; i < config->num_res_blocks; i++) {
            name_down(b, level, i);
            build_residual(b, in, out);
            in = out;
            if (!config->attention[level])
                continue;
            attention = attention < 0 ? b->half->count : attention;
            name_down(b, level, i);
            build_attention(b, out);
        }
        if (level == config->levels - 1) {
            build_mean(b, save, out, 1, 1);
            break;
        }
        name_down(b, level, config->num_res_blocks);
        build_down(b, out, config->temporal_downsample[level]);
        build_mean(b, save, out, config->temporal_downsample[level] ? 2 : 1, 2);
        last_down = b->half->count - 1;
    }
    b->half->split = attention >= 0 && attention <= last_down ? attention : last_down + 1;
    build_middle(b, in);
    build_head(b, in, 2 * config->z_dim);
    name_root(b, "quant_conv", "conv1");
    build_single(b, 2 * config->z_dim, 2 * config->z_dim, 1);
}

static void build_decoder(Builder *b)
{
    const DsviVaeConfig *config = b->config;
    int64_t levels = config->levels, in = config->decoder_base_dim * config->dim_mult[levels - 1], split = 0;
    name_root(b, "post_quant_conv", "conv2");
    build_single(b, config->z_dim, config->z_dim, 1);
    name_part(b, "conv_in", "conv1");
    build_single(b, config->z_dim, in, 3);
    build_middle(b, in);
    for (int64_t level = 0; level < levels; level++) {
        int64_t out = config->decoder_base_dim * config->dim_mult[levels - 1 - level];
        split = split || !config->residual || levels == 1 ? split : b->half->count;
        DsviVaeStage *save = level < levels - 1 ? build_save(b, in) : NULL;
        for (int64_t i = 0; i <= config->num_res_blocks; i++) {
            name_up(b, level, i);
            build_residual(b, in, out);
            in = out;
        }
        if (level == levels - 1)
            break;
        split = split ? split : b->half->count;
        name_up(b, level, config->num_res_blocks + 1);
        in = config->residual ? out : out / 2;
        build_up(b, out, in, config->temporal_downsample[levels - 2 - level]);
        build_shortcut(b, save);
    }
    b->half->split = split ? split : b->half->count;
    build_head(b, in, COLOURS * config->patch * config->patch);
}

DsvStatus dsvi_vae_half_make(const DsviVaeConfig *config, bool decode, DsviVaeHalf *out)
{
    /* per level: residual blocks with attention, one more residual block, two stages that change the size,
     * two of the shortcut; besides: two single convolutions, three stages of the middle, the head */
    size_t most = (size_t)(config->levels * (2 * config->num_res_blocks + 5) + 6);
    Builder builder = {.config = config, .half = out, .side = decode ? "decoder" : "encoder"};
    *out = (DsviVaeHalf){.stages = calloc(most, sizeof *out->stages),
                         .params = calloc(most * PARAMS_PER_STAGE, sizeof *out->params)};
    if (!out->stages || !out->params)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the %zu layers of a VAE", most);
    if (decode)
        build_decoder(&builder);
    else
        build_encoder(&builder);
    return DSV_OK;
}

void dsvi_vae_half_free(DsviDevice *device, DsviVaeHalf *half)
{
    if (half->memory)
        device->mem_free(device, half->memory);
    free(half->stages);
    free(half->params);
    *half = (DsviVaeHalf){0};
}
