/* Writes a small VAE. See vae_case.h. */
#include "vae_case.h"

#include "base/fs.h"
#include "base/rng.h"
#include "base/safetensors.h"
#include "model/vae/vae_parts.h"

DsviVaeConfig vae_case_config(int64_t base_dim)
{
    DsviVaeConfig config = {
        .base_dim = base_dim,
        .decoder_base_dim = base_dim,
        .z_dim = 3,
        .levels = 3,
        .dim_mult = {1, 2, 2},
        .num_res_blocks = 1,
        .patch = 1,
        .temporal_downsample = {false, true},
        .mean = {0.5, -0.25, 0},
        .std = {2, 1, 0.5},
    };
    return config;
}

float *vae_case_random(uint32_t stream, int64_t n)
{
    float *out = malloc((size_t)n * sizeof *out);
    assert_non_null(out);
    dsvi_rng_fill_normal((DsviRng){1, DSVI_RNG_TEST, stream}, 0, out, n);
    return out;
}

static void print_list(FILE *file, const char *key, const double *values, int64_t count)
{
    fprintf(file, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s%.17g", i ? ", " : "", values[i]);
    fprintf(file, "]");
}

void vae_case_write_config(const char *folder, const DsviVaeConfig *config)
{
    char path[DSVI_PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"_class_name\": \"AutoencoderKLWan\", \"base_dim\": %lld, \"decoder_base_dim\": %lld",
            (long long)config->base_dim, (long long)config->decoder_base_dim);
    fprintf(file, ", \"z_dim\": %lld, \"num_res_blocks\": %lld", (long long)config->z_dim,
            (long long)config->num_res_blocks);
    double values[DSVI_VAE_LEVELS_MAX];
    int64_t scales = 0;
    for (int64_t i = 0; i < config->levels; i++)
        values[i] = (double)config->dim_mult[i];
    print_list(file, "dim_mult", values, config->levels);
    for (int64_t i = 0; i < config->levels; i++)
        if (config->attention[i])
            values[scales++] = ldexp(1, -(int)i);
    print_list(file, "attn_scales", values, scales);
    print_list(file, "latents_mean", config->mean, config->z_dim);
    print_list(file, "latents_std", config->std, config->z_dim);
    fprintf(file,
            ", \"is_residual\": %s, \"patch_size\": %lld, \"in_channels\": %lld, \"out_channels\": %lld",
            config->residual ? "true" : "false", (long long)config->patch,
            (long long)(3 * config->patch * config->patch), (long long)(3 * config->patch * config->patch));
    fprintf(file, ", \"temperal_downsample\": [");
    for (int64_t i = 0; i < config->levels - 1; i++)
        fprintf(file, "%s%s", i ? ", " : "", config->temporal_downsample[i] ? "true" : "false");
    fprintf(file, "]}\n");
    assert_int_equal(fclose(file), 0);
}

/* Makes the tensor of a parameter: kernels and biases scaled so that activations keep their size. */
static DsviStoredTensor param_tensor(const DsviVaeParam *param, bool original, uint32_t stream)
{
    DsviStoredTensor tensor = {
        .name = param->name[original], .dtype = DSVI_F32, .ndim = param->ndim, .count = 1};
    for (int i = 0; i < param->ndim; i++) {
        tensor.shape[i] = param->shape[i];
        tensor.count *= param->shape[i];
    }
    tensor.bytes = (size_t)tensor.count * sizeof(float);
    bool gamma = strstr(param->name[0], ".gamma") != NULL;
    float scale = gamma || !param->kernel ? 0.2f : 1 / sqrtf((float)(tensor.count / tensor.shape[0]));
    float *data = vae_case_random(stream, tensor.count);
    for (int64_t i = 0; i < tensor.count; i++)
        data[i] = (gamma ? 1 : 0) + scale * data[i];
    tensor.data = data;
    return tensor;
}

void vae_case_write(const char *folder, const DsviVaeConfig *config, bool original)
{
    DsviVaeHalf halves[2];
    char path[DSVI_PATH_MAX];
    size_t count = 0;
    assert_ok(dsvi_folder_make(folder));
    vae_case_write_config(folder, config);
    for (int i = 0; i < 2; i++)
        assert_ok(dsvi_vae_half_make(config, i == 1, &halves[i]));
    DsviStoredTensor *tensors = calloc((size_t)(halves[0].param_count + halves[1].param_count),
                                       sizeof *tensors);
    assert_non_null(tensors);
    for (int i = 0; i < 2; i++)
        for (int64_t p = 0; p < halves[i].param_count; p++)
            if (!halves[i].params[p].mean) {
                tensors[count] = param_tensor(&halves[i].params[p], original, (uint32_t)count);
                count++;
            }
    snprintf(path, sizeof path, "%s/diffusion_pytorch_model.safetensors", folder);
    assert_ok(dsvi_safetensors_write(path, tensors, count, NULL, 0));
    for (size_t t = 0; t < count; t++)
        free((void *)tensors[t].data);
    free(tensors);
    for (int i = 0; i < 2; i++)
        dsvi_vae_half_free(NULL, &halves[i]);
}
