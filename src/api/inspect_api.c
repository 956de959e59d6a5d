/* dsv_inspect (include/dsv/inspect.h): describes what a path contains in a few lines, and checks it. */
#include "dsv/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/inspect_parts.h"
#include "api/lora_run.h"
#include "run/model_path.h"
#include "run/pipeline_part.h"
#include "base/safetensors.h"
#include "data/clip.h"
#include "data/dataset.h"
#include "data/dataset_list.h"
#include "data/latent_cache.h"
#include "model/weights/weights.h"
#include "run/checkpoint.h"
#include "run/metrics_read.h"

enum { TENSORS_LISTED_MAX = 40 };
/* Numbers of steps over which DsviMetricsSummary (run/metrics_read.h) averages. */
enum { FIRST_STEPS = 10, LAST_STEPS = 20 };

void dsvi_inspect_print(const DsviInspection *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    to->line(to->context, text);
}

/* Reads the file in pieces, because it is not mapped. */
DsvStatus dsvi_inspect_not_finite(const DsviSafetensors *file, const DsviStoredTensor *tensor, int64_t *bad)
{
    enum { PIECE = 1 << 16 };
    _Alignas(8) unsigned char piece[PIECE];
    if (!dsvi_dtype_is_floating(tensor->dtype))
        return DSV_OK;
    for (size_t from = 0; from < tensor->bytes; from += PIECE) {
        size_t bytes = tensor->bytes - from < PIECE ? tensor->bytes - from : PIECE;
        DSVI_TRY(dsvi_safetensors_read(file, tensor, from, piece, bytes));
        for (size_t i = 0; i < bytes / dsvi_dtype_size(tensor->dtype); i++)
            *bad += !isfinite(dsvi_load(tensor->dtype, piece, (int64_t)i));
    }
    return DSV_OK;
}

static void inspect_shape_text(const DsviStoredTensor *tensor, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < tensor->ndim && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, i ? ", " : "",
                                 tensor->shape[i]);
}

/* Describes a file as `what` it is, and lists its first tensors. */
static DsvStatus inspect_safetensors(const DsviInspection *to, const char *path, const char *what,
                                     size_t listed)
{
    DsvStatus status = DSV_OK;
    DsviSafetensors *file;
    char shape[256];
    int64_t elements = 0, bad = 0;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &file));
    size_t count = dsvi_safetensors_count(file);
    for (size_t i = 0; i < count; i++)
        elements += dsvi_safetensors_at(file, i)->count;
    dsvi_inspect_print(to, "%s: %s, %zu tensors, %" PRId64 " numbers", path, what, count, elements);
    for (size_t i = 0; i < count; i++) {
        const DsviStoredTensor *tensor = dsvi_safetensors_at(file, i);
        int64_t tensor_bad = 0;
        DSVI_TRY_GOTO(status, dsvi_inspect_not_finite(file, tensor, &tensor_bad), done);
        bad += tensor_bad;
        if (i >= listed && tensor_bad == 0)
            continue;
        inspect_shape_text(tensor, shape, sizeof shape);
        dsvi_inspect_print(to, "  %-64s %-4s (%s)%s", tensor->name, dsvi_dtype_name(tensor->dtype), shape,
                           tensor_bad ? "  NOT FINITE" : "");
    }
    if (listed > 0 && count > listed)
        dsvi_inspect_print(to, "  and %zu more", count - listed);
    if (bad)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " numbers are not finite", path, bad);
    else
        dsvi_inspect_print(to, "health: all numbers are finite");
done:
    dsvi_safetensors_close(&file);
    return status;
}

static DsvStatus inspect_clip(const DsviInspection *to, const char *path)
{
    DsviClipInfo info;
    char remark[1024];
    DSVI_TRY(dsvi_clip_probe(path, &info));
    dsvi_inspect_print(to,
                       "%s: clip, %s in %s, %" PRId64 " x %" PRId64
                       ", %.2f s at %.3f frames/s (about %" PRId64 " frames)",
                       path, info.codec, info.container, info.width, info.height, info.seconds, info.fps,
                       info.frames);
    if (dsvi_clip_oddities_text(path, &info, remark, sizeof remark))
        dsvi_inspect_print(to, "%s", remark);
    return DSV_OK;
}

/* Finds missing tensors, wrong shapes and numbers that are not finite. */
static DsvStatus check_weights(const DsviInspection *to, const char *path, const DsviParamTable *table)
{
    enum { PIECE = 1 << 20 };
    DsvStatus status = DSV_OK;
    int64_t bad = 0;
    DsviStoredWeights weights;
    DSVI_TRY(dsvi_weights_open(path, table, &weights));
    float *values = malloc(PIECE * sizeof *values);
    if (!values)
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", path);
    for (int64_t i = 0; i < table->count && values; i++)
        for (int64_t first = 0, left; (left = table->params[i].count - first) > 0; first += PIECE) {
            int64_t count = left < PIECE ? left : PIECE;
            dsvi_weights_convert(&weights, i, first, count, DSVI_F32, values);
            for (int64_t e = 0; e < count; e++)
                bad += !isfinite(values[e]);
        }
    if (bad)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " weights are not finite", path, bad);
    else if (values)
        dsvi_inspect_print(to, "health: all %" PRId64 " tensors there, all numbers finite", table->count);
    free(values);
    dsvi_weights_close(&weights);
    return status;
}

DsvStatus dsvi_inspect_transformer(const DsviInspection *to, const char *weights, const DsviDitConfig *sizes)
{
    DsviDitConfig config = *sizes;
    DsviParamTable table;
    DSVI_TRY(dsvi_param_table_make(&config, &table));
    dsvi_inspect_print(to, "%s: Wan transformer, %" PRId64 " parameters", weights, table.parameters);
    dsvi_inspect_print(to, "  %" PRId64 " blocks, %" PRId64 " heads x %" PRId64 ", feed-forward %" PRId64,
                       config.num_layers, config.num_attention_heads, config.attention_head_dim,
                       config.ffn_dim);
    dsvi_inspect_print(to,
                       "  latent channels %" PRId64 " in, %" PRId64 " out, patch %" PRId64 " x %" PRId64
                       " x %" PRId64 ", text rows of %" PRId64,
                       config.in_channels, config.out_channels, config.patch[0], config.patch[1],
                       config.patch[2], config.text_dim);
    DsvStatus status = check_weights(to, weights, &table);
    dsvi_param_table_free(&table);
    return status;
}

static DsvStatus inspect_model(const DsviInspection *to, const DsviModelPath *model)
{
    DsviDitConfig config;
    DSVI_TRY(dsvi_model_config(model, &config));
    return dsvi_inspect_transformer(to, model->weights, &config);
}

static DsvStatus inspect_state(const DsviInspection *to, const char *checkpoint)
{
    DsviCheckpointState state;
    DSVI_TRY(dsvi_checkpoint_state(checkpoint, &state));
    dsvi_inspect_print(to, "%s: checkpoint of step %" PRId64 ", %" PRIu64 " samples seen, seed %" PRId64,
                       checkpoint, state.step, state.sample, state.seed);
    DSVI_TRY(dsvi_checkpoint_verify(checkpoint));
    dsvi_inspect_print(to, "health: every file is as the manifest says");
    return DSV_OK;
}

static DsvStatus inspect_checkpoint(const DsviInspection *to, const DsviModelPath *model)
{
    DSVI_TRY(inspect_state(to, model->checkpoint));
    return inspect_model(to, model);
}

/* Describes the LoRA of a run or checkpoint. *found is false if `path` is neither or holds no LoRA. */
static DsvStatus inspect_lora(const DsviInspection *to, const char *path, bool *found)
{
    DsviLoraRun run;
    DSVI_TRY(dsvi_lora_run_locate(path, &run, found));
    if (!*found)
        return DSV_OK;
    DSVI_TRY(inspect_state(to, run.checkpoint));
    return inspect_safetensors(to, run.lora, "LoRA", 0);
}

static DsvStatus inspect_run(const DsviInspection *to, const char *path, const char *metrics)
{
    DsviMetricsSummary summary;
    DsviModelPath model;
    bool of_lora;
    DSVI_TRY(dsvi_metrics_summarise(metrics, &summary));
    if (summary.last_step <= FIRST_STEPS)
        dsvi_inspect_print(to, "%s: run, %" PRId64 " step%s; mean loss %.4f", path, summary.last_step,
                           summary.last_step == 1 ? "" : "s", summary.last_loss);
    else
        dsvi_inspect_print(to,
                           "%s: run, %" PRId64
                           " steps; loss %.4f over the first %d, %.4f over the last %" PRId64,
                           path, summary.last_step, summary.first_loss, FIRST_STEPS, summary.last_loss,
                           summary.last_step < LAST_STEPS ? summary.last_step : LAST_STEPS);
    DSVI_TRY(inspect_lora(to, path, &of_lora));
    if (of_lora)
        return DSV_OK;
    DSVI_TRY(dsvi_model_find(path, &model));
    return inspect_checkpoint(to, &model);
}

/* Says which models made the cache. */
static void inspect_cache_models(const DsviInspection *to, const DsviLatentModel *model)
{
    const DsviTextStore *text = &model->text;
    if (model->vae.hex[0])
        dsvi_inspect_print(to, "  latents of the VAE %s, computed in %s", model->vae.hex,
                           dsvi_dtype_name(model->vae_type));
    if (model->image_encoder.hex[0])
        dsvi_inspect_print(to, "  %" PRId64 " states of pictures for each window, of the image encoder %s",
                           model->image.rows, model->image_encoder.hex);
    if (text->folder[0])
        dsvi_inspect_print(to, "  text states of the text encoder %s, rows of %" PRId64 " in %s",
                           text->encoder.hex, text->dim, dsvi_dtype_name(text->dtype));
}

/* Fails if the text states of the empty prompt or of a caption are missing or damaged. */
static DsvStatus inspect_cache_texts(const DsviLatentCache *cache)
{
    const DsviTextStore *text = &dsvi_latent_cache_model(cache)->text;
    const DsviHashKey *checked = &text->empty;
    if (!text->folder[0])
        return DSV_OK;
    if (!dsvi_text_states_has(text, checked))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: the text states of the empty prompt are missing or damaged",
                         text->folder);
    for (int64_t i = 0; i < dsvi_latent_cache_count(cache); i++) {
        const DsviCaptions *captions = dsvi_latent_cache_captions(cache, i);
        for (int64_t k = 0; k < captions->count; k++) {
            const DsviHashKey *key = &captions->at[k].states;
            if (dsvi_hash_key_same(key, checked)) /* windows of one clip follow one another */
                continue;
            if (!dsvi_text_states_has(text, key))
                return DSVI_FAIL(DSV_E_FORMAT,
                                 "%s: the text states of a caption of %s are missing or damaged",
                                 text->folder, dsvi_latent_cache_source(cache, i));
            checked = key;
        }
    }
    return DSV_OK;
}

static DsvStatus inspect_cache(const DsviInspection *to, const char *path)
{
    DsvStatus status = DSV_OK;
    DsviLatentCache *cache;
    DSVI_TRY(dsvi_latent_cache_open(path, NULL, &cache));
    int64_t count = dsvi_latent_cache_count(cache);
    dsvi_inspect_print(to, "%s: latent cache, %" PRId64 " window%s", path, count, count == 1 ? "" : "s");
    for (int64_t i = 0; i < count && i < 3; i++)
        dsvi_inspect_print(to, "  %s", dsvi_latent_cache_file(cache, i));
    if (count > 3)
        dsvi_inspect_print(to, "  and %" PRId64 " more", count - 3);
    inspect_cache_models(to, dsvi_latent_cache_model(cache));
    for (int64_t i = 0; i < count && status == DSV_OK; i++)
        status = dsvi_latent_cache_check(cache, i);
    if (status == DSV_OK)
        status = inspect_cache_texts(cache);
    if (status == DSV_OK)
        dsvi_inspect_print(to, "health: every window is as the index says");
    dsvi_latent_cache_close(&cache);
    return status;
}

/* Describes a folder of clips or a file that lists clips. */
static DsvStatus inspect_clips(const DsviInspection *to, const char *path)
{
    DsviDataset *dataset;
    DsvConfig settings;
    double seconds = 0;
    int64_t captions = 0;
    dsv_config_defaults(&settings);
    DSVI_TRY(dsvi_dataset_open(path, &settings, &dataset));
    for (int64_t i = 0; i < dataset->count; i++) {
        seconds += dataset->items[i].info.seconds;
        captions += dataset->items[i].captions.count > 0;
    }
    dsvi_inspect_print(to,
                       "%s: %" PRId64 " clip%s, %.1f s in all, %" PRId64
                       " with a caption: data for dsv train, encode",
                       path, dataset->count, dataset->count == 1 ? "" : "s", seconds, captions);
    for (int64_t i = 0; i < dataset->left_out_count; i++)
        dsvi_inspect_print(to, "  left out: %s", dataset->left_out[i].reason);
    for (int64_t i = 0; i < dataset->remark_count; i++)
        dsvi_inspect_print(to, "  %s", dataset->remarks[i]);
    dsvi_dataset_close(&dataset);
    return DSV_OK;
}

static DsvStatus inspect_folder(const DsviInspection *to, const char *path)
{
    char metrics[DSVI_PATH_MAX];
    const char *part;
    DsviModelPath model;
    DsviWanFolder folder;
    bool published, of_lora;
    if (dsvi_latent_cache_is(path))
        return inspect_cache(to, path);
    DSVI_TRY(dsvi_path_join(metrics, path, "metrics.jsonl"));
    if (dsvi_path_exists(metrics))
        return inspect_run(to, path, metrics);
    DSVI_TRY(inspect_lora(to, path, &of_lora));
    if (of_lora)
        return DSV_OK;
    if ((part = dsvi_pipeline_part(path))) {
        dsvi_inspect_print(to, "%s: %s of a published pipeline", path, part);
        return dsvi_inspect_wan_part(to, path);
    }
    DSVI_TRY(dsvi_wan_folder_find(path, NULL, &folder, &published));
    if (published)
        return dsvi_inspect_wan(to, &folder);
    DsvStatus status = dsvi_model_find(path, &model);
    if (status == DSV_E_NOT_FOUND && inspect_clips(to, path) == DSV_OK)
        return DSV_OK;
    if (status == DSV_E_NOT_FOUND)
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: neither a run, a checkpoint, a model, a latent cache nor a "
                         "folder of clips",
                         path);
    DSVI_TRY(status);
    return model.checkpoint[0] ? inspect_checkpoint(to, &model) : inspect_model(to, &model);
}

DsvStatus dsv_inspect(const char *path, void (*line)(void *context, const char *text), void *context)
{
    DsviInspection to = {line, context};
    const char *dot = strrchr(path, '.');
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such file or folder", path);
    if (dsvi_path_is_folder(path))
        return inspect_folder(&to, path);
    if (dot && strcmp(dot, ".safetensors") == 0)
        return inspect_safetensors(&to, path, "safetensors", TENSORS_LISTED_MAX);
    if (dsvi_list_is(path))
        return inspect_clips(&to, path);
    DSVI_TRY(dsvi_model_refuse_pickle(path));
    return inspect_clip(&to, path);
}
