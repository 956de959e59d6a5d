/* Implements dsvi_wan_prepare (wan_job.h): the checks before sampling. */
#include <stdlib.h>

#include "base/host.h"
#include "model/vae/vae.h"
#include "pipeline/wan_image.h"
#include "pipeline/wan_image_rows.h"
#include "pipeline/wan_job.h"
#include "pipeline/wan_latents.h"
#include "sample/clip_writer.h"

/* Tokenizes the prompts, and after them the negative prompt if steps are guided. */
static DsvStatus tokenize_prompts(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const char **texts = malloc(((size_t)job->clips + 1) * sizeof *texts);
    if (!texts)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld prompts", (long long)job->clips);
    for (int64_t i = 0; i < job->clips; i++)
        texts[i] = a->prompts[i];
    texts[job->clips] = a->negative ? a->negative : "";
    DsvStatus status = dsvi_wan_texts_tokenize(a->folder->part[DSVI_WAN_TOKENIZER], texts,
                                               job->clips + (job->guided ? 1 : 0), job->clips, NULL,
                                               a->events, &job->texts);
    free(texts);
    return status;
}

/* Reads the states of the texts, or the texts' ids, so that their faults are found before the work begins. */
static DsvStatus read_texts(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    if (!a->text_path)
        return tokenize_prompts(job);
    DSVI_TRY(dsvi_wan_texts_read(a->text_path, job->config.text_dim, &job->texts));
    if (!job->guided || job->texts.count > job->clips)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_NOT_FOUND,
        "%s: tensor negative_encoder_hidden_states is missing, which guidance_scale above 1 needs",
        a->text_path);
}

static DsvStatus check_paths(const DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_wan_path_of_clip(job, a->output_path, 0, path));
    DSVI_TRY(dsvi_clip_check_path(path, a->settings->num_frames));
    if (!a->latents_path)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_path_of_clip(job, a->latents_path, 0, path));
    return dsvi_file_check_writable(path);
}

static DsvStatus check_parts(const DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DSVI_TRY(dsvi_wan_folder_check(a->folder));
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TRANSFORMER));
    if (a->folder->two_experts)
        DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TRANSFORMER_2));
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_VAE));
    if (a->text_path)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TEXT_ENCODER));
    return dsvi_wan_folder_require(a->folder, DSVI_WAN_TOKENIZER);
}

/* Checks arguments that depend on whether the model has two experts. */
static DsvStatus check_experts(const DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    if (!a->folder->two_experts && a->settings->guidance_scale_2 > 0)
        return DSVI_FAIL(DSV_E_USAGE, "guidance_scale_2=%g: %s has one transformer, and no second expert",
                         a->settings->guidance_scale_2, a->folder->path);
    if (a->folder->two_experts && a->sparse_path)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: a sparse state is of one transformer, and %s has two experts: expected none",
                         a->sparse_path, a->folder->path);
    return DSV_OK;
}

/* Says that a LoRA lacks the layers that a transformer has for states of pictures, as all of a text-to-video
 * model do. */
static void report_text_lora(const DsviWanJob *job, const DsviLora *lora)
{
    for (size_t i = 0; i < lora->count; i++)
        if (strstr(lora->layers[i].name, ".add_k_proj") || strstr(lora->layers[i].name, ".add_v_proj"))
            return;
    dsvi_wan_log(
        job,
        "%s has no matrices for the states of pictures, as a LoRA of a text-to-video model: these layers "
        "(k_img, v_img) stay as they are, as in diffusers",
        dsvi_safetensors_path(lora->file));
}

/* Checks that LoRAs fit the transformer. */
static DsvStatus check_loras(const DsviWanJob *job, const DsviLoraSet *loras)
{
    for (size_t i = 0; loras && i < loras->count; i++) {
        DSVI_TRY(dsvi_lora_check(&loras->lora[i], &job->table));
        if (job->config.image_dim > 0)
            report_text_lora(job, &loras->lora[i]);
    }
    return DSV_OK;
}

/* Opens a transformer's files, so that damaged or foreign files are found before the work begins. */
static DsvStatus check_transformer(const DsviWanJob *job, DsviWanPart part)
{
    DsviStoredWeights weights;
    DSVI_TRY(dsvi_weights_open(job->args->folder->part[part], &job->table, &weights));
    dsvi_weights_close(&weights);
    return DSV_OK;
}

/* Opens the VAE, which takes a moment, so that damaged or foreign files are found before the work begins, and
 * finds the memory that decoding will take. */
static DsvStatus check_vae(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVae *vae;
    DsviVaeOptions options = {
        .act = dsvi_dit_act(a->settings), .decode = true, .memory_bytes = dsvi_wan_vae_memory(job)};
    DSVI_TRY(dsvi_vae_open(a->backend, a->folder->part[DSVI_WAN_VAE], &options, &vae));
    int64_t channels = dsvi_vae_config(vae)->z_dim;
    DsvStatus status =
        channels == job->latent.channels
            ? dsvi_vae_plan(vae, true, video.frames, video.height, video.width, &job->vae_bytes)
            : DSVI_FAIL(DSV_E_SHAPE,
                        "%s: a VAE of %lld latent channels, expected %lld, as the transformer has",
                        a->folder->part[DSVI_WAN_VAE], (long long)channels, (long long)job->latent.channels);
    dsvi_vae_close(&vae);
    return status;
}

/* Finds the memory that the text encoder will take. */
static DsvStatus check_text_encoder(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviUmt5Config sizes;
    DsviUmt5Options options;
    if (a->text_path)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_check_text(a->folder, &job->config));
    DSVI_TRY(dsvi_umt5_config_of(a->folder->part[DSVI_WAN_TEXT_ENCODER], &sizes));
    options = dsvi_wan_texts_options(&job->texts, a->settings);
    return dsvi_umt5_fit(a->backend, &sizes, &options, &job->text_streamed, &job->text_bytes);
}

DsvStatus dsvi_wan_prepare(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const DsvConfig *settings = a->settings;
    job->clips = a->prompt_count > 0 ? a->prompt_count : 1;
    job->guided = settings->guidance_scale > 1;
    DSVI_TRY(check_paths(job));
    DSVI_TRY(check_parts(job));
    DSVI_TRY(check_experts(job));
    DSVI_TRY(dsvi_wan_folder_config(a->folder, &job->config));
    DSVI_TRY(dsvi_wan_shape(a->folder, &job->config, &job->shape));
    job->video = (DsviVideoShape){3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY(job->shape.codec.latent_shape(&job->shape.codec, job->video, &job->latent));
    job->elements = job->latent.channels * job->latent.frames * job->latent.height * job->latent.width;
    if (a->noise_path)
        DSVI_TRY(dsvi_wan_latents_read(a->noise_path, "noise", job->latent, &job->noise));
    DSVI_TRY(dsvi_param_table_make(&job->config, &job->table));
    DSVI_TRY(check_loras(job, a->loras));
    DSVI_TRY(check_loras(job, a->loras_2));
    DSVI_TRY(read_texts(job));
    DSVI_TRY(check_transformer(job, DSVI_WAN_TRANSFORMER));
    if (a->folder->two_experts)
        DSVI_TRY(check_transformer(job, DSVI_WAN_TRANSFORMER_2));
    DSVI_TRY(check_text_encoder(job));
    DSVI_TRY(check_vae(job));
    DSVI_TRY(dsvi_wan_image_prepare(job));
    return dsvi_wan_image_rows_prepare(job);
}
