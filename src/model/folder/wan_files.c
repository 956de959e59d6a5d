/* Recognises safetensors files by the names of their tensors (wan_parts.h). */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/safetensors.h"
#include "model/folder/wan_parts.h"
#include "model/weights/weights.h"

enum { NAMES_LISTED = 256 };

/* A part is recognised by one tensor, whose name is that of diffusers, of transformers or of the Wan
 * repository. */
static const char *const SIGNS[DSVI_WAN_PARTS][2] = {
    [DSVI_WAN_TRANSFORMER] = {"patch_embedding.weight", "patch_embedding.weight"},
    [DSVI_WAN_VAE] = {"decoder.conv_in.weight", "decoder.middle.0.residual.0.gamma"},
    [DSVI_WAN_TEXT_ENCODER] = {"encoder.block.0.layer.0.SelfAttention.q.weight", "token_embedding.weight"},
};

bool dsvi_wan_file_holds(const char *path, DsviWanPart part)
{
    DsviSafetensors *file;
    bool found = false;
    if (!SIGNS[part][0] || dsvi_safetensors_open_unmapped(path, &file) != DSV_OK)
        return false;
    for (size_t i = 0; i < dsvi_safetensors_count(file) && !found; i++) {
        const char *name = dsvi_weights_plain_name(dsvi_safetensors_at(file, i)->name);
        found = strcmp(name, SIGNS[part][0]) == 0 || strcmp(name, SIGNS[part][1]) == 0;
    }
    dsvi_safetensors_close(&file);
    return found;
}

static bool wan_name_ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), end = strlen(ending);
    return length >= end && strcasecmp(name + length - end, ending) == 0;
}

bool dsvi_wan_is_pickle(const char *name)
{
    static const char *const ENDINGS[] = {".pth", ".pt", ".bin", ".ckpt", ".pkl"};
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (wan_name_ends_with(name, ENDINGS[i]))
            return true;
    return false;
}

/* State of a search through the files of one folder. */
typedef struct Sweep {
    DsviWanFolder *out;
    const char *folder;
    const DsviWanSearch *search;
    int count, preferred;     /* files that hold the part, and those of them with the preferred name */
    char file[DSVI_PATH_MAX]; /* one of them, with the preferred name if there is any */
    char names[NAMES_LISTED]; /* of all of them, for an error message */
} Sweep;

static DsvStatus sweep_name(void *context, const char *name)
{
    Sweep *s = context;
    char path[DSVI_PATH_MAX];
    DsviWanPart part = s->search->part;
    DSVI_TRY(dsvi_path_join(path, s->folder, name));
    if (dsvi_wan_is_pickle(name) && strcasestr(name, s->search->pickle) && !s->out->pickle[part][0])
        snprintf(s->out->pickle[part], sizeof s->out->pickle[part], "%s", path);
    if (!wan_name_ends_with(name, ".safetensors") || !dsvi_wan_file_holds(path, part))
        return DSV_OK;
    bool preferred = strcasestr(name, s->search->preferred);
    if (s->count == 0 || (preferred && s->preferred == 0))
        snprintf(s->file, sizeof s->file, "%s", path);
    s->count++;
    s->preferred += preferred;
    size_t used = strlen(s->names);
    snprintf(s->names + used, sizeof s->names - used, "%s%s", used ? ", " : "", name);
    return DSV_OK;
}

DsvStatus dsvi_wan_files_search(DsviWanFolder *out, const char *folder, const DsviWanSearch *search)
{
    Sweep s = {.out = out, .folder = folder, .search = search};
    static const char *const WAYS[DSVI_WAN_PARTS] = {
        [DSVI_WAN_TRANSFORMER] = "name one of these files as the model",
        [DSVI_WAN_VAE] = "name one with model.vae=FILE",
        [DSVI_WAN_TEXT_ENCODER] = "name one with model.text_encoder=FILE",
    };
    if (out->part[search->part][0] || !dsvi_path_is_folder(folder))
        return DSV_OK;
    DSVI_TRY(dsvi_folder_list(folder, sweep_name, &s));
    if (s.count > 1 && s.preferred != 1)
        return DSVI_FAIL(DSV_E_USAGE, "%s: %d files could be the %s (%s): %s", folder, s.count,
                         dsvi_wan_part_name(search->part), s.names, WAYS[search->part]);
    snprintf(out->part[search->part], sizeof out->part[search->part], "%s", s.file);
    return DSV_OK;
}
