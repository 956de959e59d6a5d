/* Implements train_data.h. */
#include "api/train_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "data/data_sources.h"
#include "data/latent_cache.h"
#include "dsv/encode.h"
#include "encode/encode_prompts.h"
#include "model/dit/dit.h"
#include "model/folder/wan_folder.h"
#include "model/weights/weights_identity.h"
#include "run/prompt_file.h"

/* ---- Rank 0 encodes, the others wait ---- */

/* What rank 0 tells the others, after each window and at the end. */
typedef enum Word { WORKING, DONE } Word;

typedef struct Encoder {
    DsviComm *comm;
    const DsvEvents *events;
    DsvStatus sent; /* of the messages to the other ranks */
} Encoder;

static DsvStatus tell(DsviComm *comm, Word word)
{
    int32_t message = word;
    return dsvi_comm_broadcast(comm, 0, &message, sizeof message);
}

static void pass_line(void *context, DsvLogLevel level, const char *line)
{
    const Encoder *e = context;
    if (e->events->log)
        e->events->log(e->events->context, level, line);
}

static void pass_progress(void *context, const DsvProgress *progress)
{
    const Encoder *e = context;
    if (e->events->progress)
        e->events->progress(e->events->context, progress);
}

/* Tells the other ranks that encoding goes on, so that none of them waits for longer than rank_timeout. */
static bool pass_stop(void *context)
{
    Encoder *e = context;
    if (e->sent == DSV_OK)
        e->sent = tell(e->comm, WORKING);
    return e->sent != DSV_OK || (e->events->stop && e->events->stop(e->events->context));
}

/* What rank 0 encodes while the others wait: the clips at config->data_path or, if `prompts` is set, the
 * prompts, into the folder `cache`. */
typedef struct EncodeJob {
    const DsvConfig *config;
    const char *cache;
    DsviBackend *backend;
    DsviRunPrompts *prompts; /* or NULL */
} EncodeJob;

static DsvStatus encode_on_first(const EncodeJob *job, DsviComm *comm, const DsvEvents *events)
{
    Encoder encoder = {comm, events, DSV_OK};
    const DsvEvents passed = {
        .context = &encoder, .log = pass_line, .progress = pass_progress, .stop = pass_stop};
    if (job->prompts)
        DSVI_TRY(dsvi_encode_prompts(job->config, job->backend, job->cache, &passed, &job->prompts->list,
                                     &job->prompts->store));
    else
        DSVI_TRY(dsv_encode(job->cache, job->config->model_path, job->config, &passed));
    DSVI_TRY(encoder.sent);
    return tell(comm, DONE);
}

static DsvStatus wait_for_first(DsviComm *comm)
{
    int32_t message = WORKING;
    while (message == WORKING)
        DSVI_TRY(dsvi_comm_broadcast(comm, 0, &message, sizeof message));
    return DSV_OK;
}

static DsvStatus encode_data(const EncodeJob *job, DsviComm *comm, const DsvEvents *events)
{
    if (dsvi_comm_rank(comm) > 0)
        return wait_for_first(comm);
    return encode_on_first(job, comm, events);
}

/* ---- Caches that were given ---- */

static DsvStatus check_identity(const char *key, const char *path, const DsviWanFolder *folder,
                                DsviWanPart part, const DsviHashKey *made_by)
{
    DsviHashKey here;
    if (!folder->part[part][0])
        return DSV_OK;
    DSVI_TRY(dsvi_weights_identity(folder->part[part], &here));
    if (dsvi_hash_key_same(&here, made_by))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s=%s was made by another %s than that of model.path=%s", key, path,
                     dsvi_wan_part_name(part), folder->path);
}

/* Checks that the windows of a cache have a condition if the transformer takes one, and only then. */
static DsvStatus check_condition(const char *key, const char *path, const DsviWanFolder *folder, bool has)
{
    DsviDitConfig config;
    DSVI_TRY(dsvi_wan_folder_config(folder, &config));
    if (dsvi_dit_takes_condition(&config) == has)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s=%s was made for %s models, and model.path=%s is %s model", key, path,
                     has ? "image-to-video" : "text-to-video", folder->path,
                     has ? "a text-to-video" : "an image-to-video");
}

/* Checks that the image encoder of the model made the states of pictures in a cache, if the model takes them.
 */
static DsvStatus check_image(const char *key, const char *path, const DsviWanFolder *folder,
                             const DsviLatentModel *model)
{
    DsviDitConfig config;
    DSVI_TRY(dsvi_wan_folder_config(folder, &config));
    if (config.image_dim > 0 && !model->image_encoder.hex[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s has no states of pictures, which model.path=%s takes: encode its clips with "
                         "dsv encode --model into another folder",
                         key, path, folder->path);
    if (config.image_dim == 0 && model->image_encoder.hex[0])
        return DSVI_FAIL(DSV_E_USAGE, "%s=%s has states of pictures, and model.path=%s takes none", key, path,
                         folder->path);
    return config.image_dim == 0
               ? DSV_OK
               : check_identity(key, path, folder, DSVI_WAN_IMAGE_ENCODER, &model->image_encoder);
}

/* Checks that the models of model.path made the cache. */
static DsvStatus check_cache(const DsvConfig *config, const char *key, const char *path)
{
    DsvStatus status;
    DsviWanFolder folder;
    DsviLatentCache *cache;
    bool found = false;
    if (config->model_path[0] && dsvi_path_exists(config->model_path))
        DSVI_TRY(dsvi_wan_folder_find(config->model_path, config, &folder, &found));
    if (!found)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_check(&folder));
    DSVI_TRY(dsvi_latent_cache_open(path, config, &cache));
    const DsviLatentModel *model = dsvi_latent_cache_model(cache);
    DSVI_TRY_GOTO(status, check_identity(key, path, &folder, DSVI_WAN_VAE, &model->vae), done);
    DSVI_TRY_GOTO(status, check_condition(key, path, &folder, model->condition), done);
    DSVI_TRY_GOTO(status, check_image(key, path, &folder, model), done);
    DSVI_TRY_GOTO(status, check_identity(key, path, &folder, DSVI_WAN_TEXT_ENCODER, &model->text.encoder),
                  done);
done:
    dsvi_latent_cache_close(&cache);
    return status;
}

/* Checks the latent caches that `data` names. *are becomes false, and nothing is checked, if the first source
 * holds clips. */
static DsvStatus check_caches(const DsvConfig *config, const char *key, const char *data, bool first_rank,
                              bool *are)
{
    DsvStatus status;
    int64_t count;
    DsviDataSource *sources = calloc(DSVI_DATA_SOURCES_MAX, sizeof *sources);
    *are = false;
    if (!sources)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the sources of %s", key);
    DSVI_TRY_GOTO(status, dsvi_data_sources_parse(data, sources, &count), done);
    *are = dsvi_latent_cache_is(sources[0].path);
    for (int64_t i = 0; i < count && *are && first_rank; i++)
        if (dsvi_latent_cache_is(sources[i].path))
            DSVI_TRY_GOTO(status, check_cache(config, key, sources[i].path), done);
done:
    free(sources);
    return status;
}

/* Stores the path of a folder in data.cache in `out`. */
static DsvStatus cache_part(const DsvConfig *config, const char *part, char out[DSVI_PATH_MAX])
{
    char root[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(root, config->output_dir, "cache"));
    return dsvi_path_join(out, config->data_cache[0] ? config->data_cache : root, part);
}

/* Makes a latent cache of the data that option `key` names, and stores its path in `data`. The clips are
 * encoded at the sizes that `config` names. */
static DsvStatus prepare_one(const DsvConfig *config, DsviComm *comm, const DsvEvents *events,
                             const char *key, const char *part, char data[DSV_TEXT_MAX])
{
    char cache[DSVI_PATH_MAX];
    DsvConfig encoding = *config;
    const EncodeJob job = {.config = &encoding, .cache = cache};
    bool cached;
    DSVI_TRY(check_caches(config, key, data, dsvi_comm_rank(comm) == 0, &cached));
    if (cached)
        return DSV_OK;
    if (!config->model_path[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s holds clips, codec.name is wan and model.path is empty: expected the "
                         "published model whose VAE encodes them, or a latent cache",
                         key, data);
    DSVI_TRY(cache_part(config, part, cache));
    if (strlen(cache) >= DSV_TEXT_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "data.cache: the path %s is too long", cache);
    memcpy(encoding.data_path, data, sizeof encoding.data_path);
    DSVI_TRY(encode_data(&job, comm, events));
    snprintf(data, DSV_TEXT_MAX, "%s", cache);
    return DSV_OK;
}

/* ---- Prompts of sampled clips ---- */

/* Checks that the options with which validation.prompts has an effect are set. */
static DsvStatus check_prompts(const DsvConfig *config)
{
    if (strcmp(config->codec_name, "wan") != 0 || !config->model_path[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "validation.prompts=%s: expected codec.name=wan and the folder of a published model "
                         "as model.path, whose text encoder reads the prompts",
                         config->validation_prompts);
    if (config->validation_steps == 0 && !config->validation_at_end)
        return DSVI_FAIL(DSV_E_USAGE,
                         "validation.prompts=%s: no clip is sampled with validation_steps=0 and "
                         "validation_at_end=false, expected one of them to be set",
                         config->validation_prompts);
    return DSV_OK;
}

/* Reads the file of prompts. */
static DsvStatus list_prompts(const DsvConfig *config, DsviCaptions *list)
{
    DsviPromptFile file = {0};
    DsvStatus status = dsvi_prompt_file_read(config->validation_prompts, &file);
    for (int64_t i = 0; i < file.count && status == DSV_OK; i++)
        status = dsvi_captions_add(list, file.lines[i]);
    dsvi_prompt_file_free(&file);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "validation.prompts");
}

/* Sends the keys of the prompts' states to the other ranks. */
static DsvStatus share_prompts(DsviComm *comm, DsviRunPrompts *prompts)
{
    DsviCaptions *list = &prompts->list;
    bool first = dsvi_comm_rank(comm) == 0;
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, &prompts->store, sizeof prompts->store));
    DSVI_TRY(dsvi_comm_broadcast(comm, 0, &list->count, sizeof list->count));
    if (!first)
        list->at = calloc((size_t)list->count, sizeof *list->at);
    if (!list->at) {
        list->count = 0;
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the list of prompts");
    }
    for (int64_t i = 0; i < list->count; i++)
        DSVI_TRY(dsvi_comm_broadcast(comm, 0, &list->at[i].states, sizeof list->at[i].states));
    return DSV_OK;
}

static DsvStatus prepare_prompts(const DsvConfig *config, DsviBackend *backend, DsviComm *comm,
                                 const DsvEvents *events, DsviRunPrompts *prompts)
{
    char cache[DSVI_PATH_MAX];
    const EncodeJob job = {.config = config, .cache = cache, .backend = backend, .prompts = prompts};
    if (!config->validation_prompts[0])
        return DSV_OK;
    DSVI_TRY(check_prompts(config));
    if (dsvi_comm_rank(comm) == 0)
        DSVI_TRY(list_prompts(config, &prompts->list));
    DSVI_TRY(cache_part(config, "prompts", cache));
    DSVI_TRY(encode_data(&job, comm, events));
    return share_prompts(comm, prompts);
}

DsvStatus dsvi_train_data_prepare(DsvConfig *config, DsviBackend *backend, DsviComm *comm,
                                  const DsvEvents *events, DsviRunPrompts *prompts)
{
    DSVI_TRY(prepare_prompts(config, backend, comm, events, prompts));
    if (strcmp(config->codec_name, "wan") != 0 || !config->data_path[0])
        return DSV_OK;
    DSVI_TRY(prepare_one(config, comm, events, "data.path", "train", config->data_path));
    if (!config->validation_data[0])
        return DSV_OK;
    DsvConfig one_size = *config; /* held-out windows have the size num_frames x height x width */
    one_size.data_buckets[0] = 0;
    return prepare_one(&one_size, comm, events, "validation.data", "validation", config->validation_data);
}
