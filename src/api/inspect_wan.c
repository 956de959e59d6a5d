/* dsv_inspect of published Wan models: what each part is, whether it is sound, and what dsv does with it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/inspect_parts.h"
#include "backend/backend.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"
#include "model/vit/vit.h"
#include "model/weights/weights_files.h"
#include "sample/scheduler_config.h"
#include "text/tokenizer.h"

/* Counts over the safetensors files of a part. */
typedef struct Census {
    int64_t files, tensors, numbers, not_finite;
    uint64_t bytes;
    bool has[DSVI_DTYPE_COUNT];
} Census;

/* Adds the tensors of a file; their numbers are read only if `check`. */
static DsvStatus count_file(Census *census, const char *path, bool check)
{
    DsvStatus status = DSV_OK;
    DsviSafetensors *file;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &file));
    for (size_t i = 0; i < dsvi_safetensors_count(file) && status == DSV_OK; i++) {
        const DsviStoredTensor *tensor = dsvi_safetensors_at(file, i);
        census->tensors++;
        census->numbers += tensor->count;
        census->bytes += tensor->bytes;
        census->has[tensor->dtype] = true;
        if (check)
            status = dsvi_inspect_not_finite(file, tensor, &census->not_finite);
    }
    census->files++;
    dsvi_safetensors_close(&file);
    return status;
}

/* Counts tensors. Fails if numbers are not finite, which only `check` finds. */
static DsvStatus print_census(const DsviInspection *to, const char *path, bool check)
{
    DsvStatus status;
    DsviWeightFiles files;
    Census census = {0};
    char dtypes[64] = "";
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(path, &files), done);
    for (size_t i = 0; i < files.count; i++)
        DSVI_TRY_GOTO(status, count_file(&census, files.paths[i], check), done);
    for (int d = 0; d < DSVI_DTYPE_COUNT; d++)
        if (census.has[d])
            snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s", dtypes[0] ? ", " : "",
                     dsvi_dtype_name((DsviDtype)d));
    dsvi_inspect_print(to, "  %" PRId64 " tensors of %s in %" PRId64 " file%s, %" PRId64 " numbers, %.2f GiB",
                       census.tensors, dtypes, census.files, census.files == 1 ? "" : "s", census.numbers,
                       (double)census.bytes / 1073741824.0);
    if (census.not_finite)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRId64 " numbers are not finite", path, census.not_finite);
done:
    dsvi_weight_files_free(&files);
    return status;
}

static DsvStatus inspect_census(const DsviInspection *to, const char *path)
{
    return print_census(to, path, true);
}

static DsvStatus inspect_vae(const DsviInspection *to, DsviBackend *backend, const char *path)
{
    DsviVae *vae;
    DsviVaeOptions options = {.act = DSVI_F32, .encode = true, .decode = true};
    DSVI_TRY(dsvi_vae_open(backend, path, &options, &vae));
    const DsviVaeConfig *config = dsvi_vae_config(vae);
    int64_t temporal, spatial;
    dsvi_vae_factors(config, &temporal, &spatial);
    dsvi_inspect_print(to,
                       "  %s: %" PRId64 " latent channels, 1/%" PRId64 " of the frames and 1/%" PRId64
                       " of height and width, base width %" PRId64 "; used to encode and decode",
                       config->residual ? "Wan 2.2" : "Wan 2.1", config->z_dim, temporal, spatial,
                       config->base_dim);
    dsvi_vae_close(&vae);
    return inspect_census(to, path);
}

/* Opens the encoder with the least memory, which checks names and shapes of its tensors without loading them.
 */
static DsvStatus inspect_text_encoder(const DsviInspection *to, DsviBackend *backend, const char *path)
{
    enum { ROWS = 16, STREAMED_BYTES = INT32_MAX }; /* enough for two layers of the published encoder */
    DsviUmt5 *encoder;
    DsviUmt5Options options = {.act = DSVI_BF16, .rows = ROWS, .memory_bytes = STREAMED_BYTES};
    char file[DSVI_PATH_MAX];
    DsviUmt5Config sizes;
    DSVI_TRY(dsvi_path_join(file, path, "config.json"));
    if (dsvi_path_exists(file)) {
        DSVI_TRY(dsvi_umt5_config_read(file, &sizes));
        options.memory_bytes = dsvi_umt5_plan(&sizes, &options, true);
    }
    DSVI_TRY(dsvi_umt5_open(backend, path, &options, &encoder));
    sizes = *dsvi_umt5_config(encoder);
    dsvi_umt5_close(&encoder);
    dsvi_inspect_print(to,
                       "  UMT5, %" PRId64 " layers, %" PRId64 " heads x %" PRId64 ", rows of %" PRId64
                       ", %" PRId64 " ids; used to encode prompts",
                       sizes.num_layers, sizes.num_heads, sizes.d_kv, sizes.d_model, sizes.vocab_size);
    return inspect_census(to, path);
}

static DsvStatus inspect_image_encoder(const DsviInspection *to, const char *path)
{
    DsviVitConfig sizes;
    DSVI_TRY(dsvi_vit_config_of(path, &sizes));
    dsvi_inspect_print(to,
                       "  CLIP, %" PRId64 " layers, %" PRId64 " heads x %" PRId64 ", %" PRId64
                       " rows of %" PRId64 " for a picture; used to encode pictures",
                       sizes.num_hidden_layers, sizes.num_attention_heads,
                       sizes.hidden_size / sizes.num_attention_heads, dsvi_vit_rows(&sizes),
                       sizes.hidden_size);
    return inspect_census(to, path);
}

static DsvStatus inspect_image_processor(const DsviInspection *to, const char *path)
{
    DsviVitProcessor processor;
    DSVI_TRY(dsvi_vit_processor_read(path, &processor));
    dsvi_inspect_print(to,
                       "  the shorter side becomes %" PRId64 " pixels, of which %" PRId64 " x %" PRId64
                       " remain; used to prepare pictures",
                       processor.shortest_edge, processor.crop, processor.crop);
    return DSV_OK;
}

static DsvStatus inspect_tokenizer(const DsviInspection *to, const char *path)
{
    static const char SAMPLE[] = "a cat";
    int32_t ids[DSVI_TEXT_ROWS];
    int64_t count, cut;
    DsviTokenizer *tokenizer;
    DSVI_TRY(dsvi_tokenizer_open(path, &tokenizer));
    DsvStatus status = dsvi_tokenizer_encode(tokenizer, SAMPLE, DSVI_TEXT_ROWS, ids, &count, &cut);
    dsvi_tokenizer_close(&tokenizer);
    if (status == DSV_OK)
        dsvi_inspect_print(to, "  gives '%s' %" PRId64 " ids; used to encode prompts", SAMPLE, count);
    return status;
}

static DsvStatus inspect_scheduler(const DsviInspection *to, const char *path)
{
    DsviSchedulerConfig config;
    DSVI_TRY(dsvi_scheduler_config_read(path, &config));
    dsvi_inspect_print(to, "  sampler=%s flow_shift=%g; used to sample", config.sampler, config.flow_shift);
    return DSV_OK;
}

static DsvStatus inspect_part(const DsviInspection *to, DsviBackend *backend, const DsviWanFolder *folder,
                              DsviWanPart part)
{
    DsviDitConfig config;
    const char *path = folder->part[part];
    switch (part) {
    case DSVI_WAN_TRANSFORMER:
    case DSVI_WAN_TRANSFORMER_2:
        DSVI_TRY(dsvi_wan_folder_config(folder, &config));
        DSVI_TRY(dsvi_inspect_transformer(to, path, &config));
        return inspect_census(to, path);
    case DSVI_WAN_VAE: return inspect_vae(to, backend, path);
    case DSVI_WAN_TEXT_ENCODER:
        if (folder->part[DSVI_WAN_TRANSFORMER][0] && dsvi_wan_folder_config(folder, &config) == DSV_OK)
            DSVI_TRY(dsvi_wan_folder_check_text(folder, &config));
        return inspect_text_encoder(to, backend, path);
    case DSVI_WAN_TOKENIZER: return inspect_tokenizer(to, path);
    case DSVI_WAN_IMAGE_ENCODER: return inspect_image_encoder(to, path);
    case DSVI_WAN_IMAGE_PROCESSOR: return inspect_image_processor(to, path);
    default: return inspect_scheduler(to, path);
    }
}

/* Describes one part. Returns whether it is sound; a scheduler may be missing, except from the layout of
 * diffusers. */
static bool part_is_sound(const DsviInspection *to, DsviBackend *backend, const DsviWanFolder *folder,
                          DsviWanPart part)
{
    const char *name = dsvi_wan_part_name(part);
    if (part == DSVI_WAN_SCHEDULER && !folder->part[part][0] && strcmp(folder->layout, "diffusers") != 0) {
        dsvi_inspect_print(to, "scheduler: none; sampler=unipc flow_shift=5 are used");
        return true;
    }
    DsvStatus status = dsvi_wan_folder_require(folder, part);
    if (status == DSV_OK) {
        dsvi_inspect_print(to, "%s: %s", name, folder->part[part]);
        status = inspect_part(to, backend, folder, part);
    }
    dsvi_inspect_print(to, "%s %s%s", name, status == DSV_OK ? "is sound" : "is NOT usable: ",
                       status == DSV_OK ? "" : dsv_error_message());
    return status == DSV_OK;
}

/* Opens a small backend, on which parts are opened to check their tensors. */
static DsvStatus open_checking_backend(DsviBackend *backend)
{
    DsvConfig settings;
    dsv_config_defaults(&settings);
    return dsvi_backend_open(&settings, backend);
}

/* Lists what there is of a model of a variant that dsv does not support. Faults of its parts are no faults
 * here. */
static void list_refused(const DsviInspection *to, const DsviWanFolder *folder)
{
    static const char *const OTHERS[] = {"transformer_2", "high_noise_model", "low_noise_model"};
    char path[DSVI_PATH_MAX];
    for (int part = 0; part < DSVI_WAN_PARTS; part++) {
        if (!folder->part[part][0] || !dsvi_path_exists(folder->part[part]))
            continue;
        dsvi_inspect_print(to, "%s: %s", dsvi_wan_part_name((DsviWanPart)part), folder->part[part]);
        if (part <= DSVI_WAN_TEXT_ENCODER || part == DSVI_WAN_IMAGE_ENCODER)
            (void)print_census(to, folder->part[part], false);
    }
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        if (dsvi_path_join(path, folder->path, OTHERS[i]) != DSV_OK || !dsvi_path_is_folder(path))
            continue;
        dsvi_inspect_print(to, "%s: %s", OTHERS[i], path);
        (void)print_census(to, path, false);
    }
}

/* A published model, told by its sizes. */
typedef struct PublishedModel {
    const char *name;
    int64_t layers, heads, ffn, in, image_dim, positions;
    bool experts, expands; /* two experts; a time for each token */
} PublishedModel;

/* Returns the name of the published model that has these sizes, or NULL. */
static const char *published_name(const DsviWanFolder *folder, const DsviDitConfig *c)
{
    static const PublishedModel MODELS[] = {
        {"Wan2.1-T2V-1.3B", 30, 12, 8960, 16, 0, 0, false, false},
        {"Wan2.1-T2V-14B", 40, 40, 13824, 16, 0, 0, false, false},
        {"Wan2.1-I2V-14B (480P and 720P)", 40, 40, 13824, 36, 1280, 0, false, false},
        {"Wan2.1-FLF2V-14B", 40, 40, 13824, 36, 1280, 514, false, false},
        {"Wan2.2-T2V-A14B", 40, 40, 13824, 16, 0, 0, true, false},
        {"Wan2.2-I2V-A14B", 40, 40, 13824, 36, 0, 0, true, false},
        {"Wan2.2-TI2V-5B", 30, 24, 14336, 48, 0, 0, false, true},
    };
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        const PublishedModel *m = &MODELS[i];
        if (m->layers == c->num_layers && m->heads == c->num_attention_heads && m->ffn == c->ffn_dim &&
            m->in == c->in_channels && m->image_dim == c->image_dim && m->positions == c->pos_embed_seq_len &&
            m->experts == folder->two_experts && m->expands == folder->expand_timesteps)
            return m->name;
    }
    return NULL;
}

DsvStatus dsvi_inspect_wan(const DsviInspection *to, const DsviWanFolder *folder)
{
    DsviBackend backend = {0};
    DsviDitConfig config;
    int unsound = 0, parts = 0;
    dsvi_inspect_print(to, "%s: a published Wan model, laid out as %s", folder->path,
                       folder->layout ? folder->layout : "Wan repository");
    if (folder->refused)
        list_refused(to, folder);
    DSVI_TRY(dsvi_wan_folder_check(folder));
    DSVI_TRY(open_checking_backend(&backend));
    if (folder->two_experts)
        dsvi_inspect_print(to,
                           "two experts (Wan 2.2 A14B): transformer from timestep %g on, transformer_2 below",
                           1000 * folder->boundary_ratio);
    bool read = dsvi_wan_folder_config(folder, &config) == DSV_OK;
    const char *name = read ? published_name(folder, &config) : NULL;
    if (name)
        dsvi_inspect_print(to, "the sizes are those of %s", name);
    if (read && config.in_channels > config.out_channels)
        dsvi_inspect_print(to, "an image-to-video model: dsv sample needs --image%s",
                           config.pos_embed_seq_len > 0 ? " and --last-image"
                           : config.image_dim > 0       ? ""
                                                        : ", and takes --last-image");
    if (folder->expand_timesteps)
        dsvi_inspect_print(to, "TI2V-5B of Wan 2.2: dsv sample takes --image, the first frame of the clip");
    for (int part = 0; part < DSVI_WAN_PARTS; part++) {
        bool of_pictures = part == DSVI_WAN_IMAGE_ENCODER || part == DSVI_WAN_IMAGE_PROCESSOR;
        if ((part == DSVI_WAN_TRANSFORMER_2 && !folder->two_experts) ||
            (of_pictures && !(read && config.image_dim > 0)))
            continue;
        parts++;
        unsound += !part_is_sound(to, &backend, folder, (DsviWanPart)part);
    }
    dsvi_backend_close(&backend);
    if (unsound)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %d of its %d parts cannot be used", folder->path, unsound, parts);
    dsvi_inspect_print(to, "health: all parts are sound; dsv sample makes clips with this model");
    return DSV_OK;
}

/* Returns the part that the folder's files are of. */
static DsviWanPart part_of_folder(const char *path)
{
    char file[DSVI_PATH_MAX];
    if (dsvi_path_join(file, path, "scheduler_config.json") == DSV_OK && dsvi_path_exists(file))
        return DSVI_WAN_SCHEDULER;
    if (dsvi_path_join(file, path, "tokenizer_config.json") == DSV_OK && dsvi_path_exists(file))
        return DSVI_WAN_TOKENIZER;
    if (dsvi_path_join(file, path, "preprocessor_config.json") == DSV_OK && dsvi_path_exists(file))
        return DSVI_WAN_IMAGE_PROCESSOR;
    return dsvi_umt5_is(path)  ? DSVI_WAN_TEXT_ENCODER
           : dsvi_vit_is(path) ? DSVI_WAN_IMAGE_ENCODER
                               : DSVI_WAN_VAE;
}

DsvStatus dsvi_inspect_wan_part(const DsviInspection *to, const char *path)
{
    DsviWanFolder folder;
    DsviBackend backend = {0};
    DsviWanPart part = part_of_folder(path);
    memset(&folder, 0, sizeof folder);
    snprintf(folder.path, sizeof folder.path, "%s", path);
    if (part == DSVI_WAN_SCHEDULER)
        DSVI_TRY(dsvi_path_join(folder.part[part], path, "scheduler_config.json"));
    else if (part == DSVI_WAN_IMAGE_PROCESSOR)
        DSVI_TRY(dsvi_path_join(folder.part[part], path, "preprocessor_config.json"));
    else
        snprintf(folder.part[part], sizeof folder.part[part], "%s", path);
    DSVI_TRY(open_checking_backend(&backend));
    DsvStatus status = inspect_part(to, &backend, &folder, part);
    dsvi_backend_close(&backend);
    if (status == DSV_OK)
        dsvi_inspect_print(to, "health: this part is sound");
    return status;
}
