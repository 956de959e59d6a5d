/* Implements train_data.h. */
#include "api/train_data.h"

#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "data/latent_cache.h"
#include "dsv/encode.h"
#include "model/folder/wan_folder.h"
#include "model/weights/weights_identity.h"

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

static DsvStatus encode_on_first(const DsvConfig *config, DsviComm *comm, const DsvEvents *events,
                                 const char *cache)
{
    Encoder encoder = {comm, events, DSV_OK};
    const DsvEvents passed = {
        .context = &encoder, .log = pass_line, .progress = pass_progress, .stop = pass_stop};
    DSVI_TRY(dsv_encode(cache, config->model_path, config, &passed));
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

static DsvStatus encode_data(const DsvConfig *config, DsviComm *comm, const DsvEvents *events,
                             const char *cache)
{
    if (dsvi_comm_rank(comm) > 0)
        return wait_for_first(comm);
    return encode_on_first(config, comm, events, cache);
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
    DSVI_TRY_GOTO(status, check_identity(key, path, &folder, DSVI_WAN_TEXT_ENCODER, &model->text.encoder),
                  done);
done:
    dsvi_latent_cache_close(&cache);
    return status;
}

/* Makes a latent cache of the data that option `key` names, and stores its path in `data`. The clips are
 * encoded at the sizes that `config` names. */
static DsvStatus prepare_one(const DsvConfig *config, DsviComm *comm, const DsvEvents *events,
                             const char *key, const char *part, char data[DSV_TEXT_MAX])
{
    char root[DSVI_PATH_MAX], cache[DSVI_PATH_MAX];
    DsvConfig encoding = *config;
    if (dsvi_latent_cache_is(data))
        return dsvi_comm_rank(comm) == 0 ? check_cache(config, key, data) : DSV_OK;
    if (!config->model_path[0])
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s holds clips, codec.name is wan and model.path is empty: expected the "
                         "published model whose VAE encodes them, or a latent cache",
                         key, data);
    DSVI_TRY(dsvi_path_join(root, config->output_dir, "cache"));
    DSVI_TRY(dsvi_path_join(cache, config->data_cache[0] ? config->data_cache : root, part));
    if (strlen(cache) >= DSV_TEXT_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "data.cache: the path %s is too long", cache);
    memcpy(encoding.data_path, data, sizeof encoding.data_path);
    DSVI_TRY(encode_data(&encoding, comm, events, cache));
    snprintf(data, DSV_TEXT_MAX, "%s", cache);
    return DSV_OK;
}

/* Refuses published models of Wan 2.2, whose training is not that of one transformer with one time for all
 * tokens. */
static DsvStatus check_model(const DsvConfig *config)
{
    DsviWanFolder folder;
    bool found = false;
    if (config->model_path[0] && dsvi_path_exists(config->model_path))
        DSVI_TRY(dsvi_wan_folder_find(config->model_path, config, &folder, &found));
    if (!found || (!folder.two_experts && !folder.expand_timesteps))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "model.path=%s: dsv samples %s of Wan 2.2 and does not train it yet: expected a "
                     "text-to-video model of Wan 2.1",
                     config->model_path, folder.two_experts ? "the two experts" : "TI2V-5B");
}

DsvStatus dsvi_train_data_prepare(DsvConfig *config, DsviComm *comm, const DsvEvents *events)
{
    DSVI_TRY(check_model(config));
    if (strcmp(config->codec_name, "wan") != 0 || !config->data_path[0])
        return DSV_OK;
    DSVI_TRY(prepare_one(config, comm, events, "data.path", "train", config->data_path));
    if (!config->validation_data[0])
        return DSV_OK;
    DsvConfig one_size = *config; /* held-out windows have the size num_frames x height x width */
    one_size.data_buckets[0] = 0;
    return prepare_one(&one_size, comm, events, "validation.data", "validation", config->validation_data);
}
