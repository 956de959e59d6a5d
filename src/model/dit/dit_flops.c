/* FLOPs of passes. A multiplication with an addition counts as two. */
#include "model/dit/dit.h"

/* Returns the FLOPs of x W^T with x (rows, in) and W (out, in). */
static double linear_flops(int64_t rows, int64_t out, int64_t in)
{
    return 2.0 * (double)rows * (double)out * (double)in;
}

/* GEMMs q k v o of self-attention, q and o of cross-attention, k and v of the text, then two of the
 * feed-forward layer. */
double dsvi_dit_flops_block(const DsviDitConfig *config, const DsviDitShape *shape, double *ffn_in)
{
    int64_t width = dsvi_dit_width(config), image = shape->batch * shape->image_len;
    int64_t rows = shape->batch * dsvi_dit_tokens(config, shape), text = shape->batch * shape->text_len;
    double hidden = linear_flops(rows, config->ffn_dim, width);
    double block = linear_flops(rows, 6 * width, width) + linear_flops(text, 2 * width, width) + 2 * hidden;
    if (config->image_dim > 0)
        block += linear_flops(image, 2 * width, width);
    if (ffn_in)
        *ffn_in = hidden;
    return block;
}

double dsvi_dit_flops_gemm(const DsviDitConfig *config, const DsviDitShape *shape)
{
    int64_t width = dsvi_dit_width(config), patch = config->patch[0] * config->patch[1] * config->patch[2];
    int64_t times = shape->batch * (shape->given_first ? 2 : 1);
    int64_t rows = shape->batch * dsvi_dit_tokens(config, shape), text = shape->batch * shape->text_len;
    double ends = linear_flops(rows, width, config->in_channels * patch) +
                  linear_flops(rows, config->out_channels * patch, width) +
                  linear_flops(text, width, config->text_dim) + linear_flops(text, width, width) +
                  linear_flops(times, width, config->freq_dim) + linear_flops(times, 7 * width, width);
    if (config->image_dim > 0)
        ends += linear_flops(shape->batch * shape->image_len, config->image_dim + width, config->image_dim);
    return ends + (double)config->num_layers * dsvi_dit_flops_block(config, shape, NULL);
}

double dsvi_dit_flops_attention(const DsviDitConfig *config, const DsviDitShape *shape)
{
    double queries = (double)dsvi_dit_tokens(config, shape);
    double keys = queries + (double)(shape->text_len + shape->image_len);
    return 4.0 * (double)(config->num_layers * shape->batch * dsvi_dit_width(config)) * queries * keys;
}

double dsvi_dit_flops_step(const DsviDitConfig *config, const DsviDitShape *shape, bool frozen,
                           double attention)
{
    return (frozen ? 2 : 3) * dsvi_dit_flops_gemm(config, shape) +
           3 * attention * dsvi_dit_flops_attention(config, shape);
}
