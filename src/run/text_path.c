/* Implements text_path.h. */
#include "run/text_path.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "model/umt5/umt5.h"
#include "run/model_path.h"

static DsvStatus text_path_has(const char *folder, const char *name, bool *has)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder, name));
    *has = dsvi_path_exists(path);
    return DSV_OK;
}

/* The tokenizer is in the text encoder's folder, or in the folder that contains the text encoder's folder. */
static DsvStatus find_tokenizer_of(const char *encoder, char out[DSVI_PATH_MAX])
{
    static const char *const names[] = {"spiece.model", "tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool inside;
        DSVI_TRY(text_path_has(encoder, names[i], &inside));
        if (inside) {
            snprintf(out, DSVI_PATH_MAX, "%s", encoder);
            return DSV_OK;
        }
    }
    return dsvi_path_join(out, encoder, "..");
}

typedef struct WanFile {
    const char *folder;
    char *out; /* (DSVI_PATH_MAX) "" or the path; a safetensors file rather than a pickle */
} WanFile;

static bool text_path_ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static DsvStatus look_at_wan_file(void *context, const char *name)
{
    const WanFile *found = context;
    const bool safetensors = text_path_ends_with(name, ".safetensors");
    if (strncmp(name, "models_t5", strlen("models_t5")) != 0 || (!safetensors && found->out[0]))
        return DSV_OK;
    return dsvi_path_join(found->out, found->folder, name);
}

DsvStatus dsvi_text_path_find(const char *path, DsviTextPath *out)
{
    WanFile wan = {.folder = path, .out = out->encoder};
    bool pipeline;
    memset(out, 0, sizeof *out);
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such folder or file, expected a text encoder", path);
    snprintf(out->tokenizer, sizeof out->tokenizer, "%s", path);
    if (!dsvi_path_is_folder(path)) {
        snprintf(out->encoder, sizeof out->encoder, "%s", path);
        return dsvi_model_refuse_pickle(path);
    }
    DSVI_TRY(text_path_has(path, "text_encoder", &pipeline));
    if (pipeline)
        return dsvi_path_join(out->encoder, path, "text_encoder");
    if (dsvi_umt5_is(path)) {
        snprintf(out->encoder, sizeof out->encoder, "%s", path);
        return find_tokenizer_of(path, out->tokenizer);
    }
    DSVI_TRY(dsvi_folder_list(path, look_at_wan_file, &wan));
    if (out->encoder[0])
        return dsvi_model_refuse_pickle(out->encoder);
    return DSVI_FAIL(DSV_E_NOT_FOUND,
                     "%s: no text encoder, expected text_encoder/, the config.json of a UMT5 model, or a "
                     "safetensors file models_t5...",
                     path);
}
