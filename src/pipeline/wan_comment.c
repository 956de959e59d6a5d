/* Implements wan_comment.h. */
#include "pipeline/wan_comment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

/* Adds a text; NULL becomes null. */
static bool add_text(cJSON *object, const char *key, const char *text)
{
    return text ? cJSON_AddStringToObject(object, key, text) != NULL
                : cJSON_AddNullToObject(object, key) != NULL;
}

static bool add_sparse(cJSON *object, const DsviWanComment *comment, const DsvConfig *settings)
{
    const DsviSparseUseMean *sparse = comment->sparse;
    cJSON *out = cJSON_AddObjectToObject(object, "sparse");
    bool ok = out && add_text(out, "selector", settings->sparse_selector) &&
              add_text(out, "state", comment->sparse_state) &&
              cJSON_AddNumberToObject(out, "warmup_steps", (double)settings->sparse_warmup_steps) &&
              cJSON_AddNumberToObject(out, "min_mass", settings->sparse_min_mass) &&
              cJSON_AddNumberToObject(out, "sparse_blocks", (double)sparse->sparse_blocks) &&
              cJSON_AddNumberToObject(out, "density", sparse->density);
    return ok && (isnan(sparse->captured)
                      ? cJSON_AddNullToObject(out, "captured_mass") != NULL
                      : cJSON_AddNumberToObject(out, "captured_mass", sparse->captured) != NULL);
}

static bool add_settings(cJSON *object, const DsviWanComment *comment, const DsvConfig *settings)
{
    bool ok = add_text(object, "model", comment->model) && add_text(object, "prompt", comment->prompt) &&
              add_text(object, "negative_prompt", comment->negative);
    ok = ok && (comment->noise ? add_text(object, "noise", comment->noise)
                               : cJSON_AddNumberToObject(object, "seed", (double)settings->seed) != NULL);
    ok = ok && (!comment->image || add_text(object, "image", comment->image)) &&
         (!comment->last_image || add_text(object, "last_image", comment->last_image));
    return ok && cJSON_AddNumberToObject(object, "height", (double)settings->height) &&
           cJSON_AddNumberToObject(object, "width", (double)settings->width) &&
           cJSON_AddNumberToObject(object, "num_frames", (double)settings->num_frames) &&
           cJSON_AddNumberToObject(object, "fps", settings->fps) &&
           cJSON_AddNumberToObject(object, "num_inference_steps", (double)settings->num_inference_steps) &&
           cJSON_AddNumberToObject(object, "guidance_scale", settings->guidance_scale) &&
           (settings->guidance_scale_2 <= 0 ||
            cJSON_AddNumberToObject(object, "guidance_scale_2", settings->guidance_scale_2)) &&
           cJSON_AddNumberToObject(object, "flow_shift", settings->flow_shift) &&
           add_text(object, "sampler", settings->sampler) &&
           add_text(object, "mixed_precision", settings->mixed_precision) &&
           (!comment->sparse || add_sparse(object, comment, settings)) &&
           add_text(object, "dsv", DSV_VERSION);
}

/* Decodes the UTF-8 character at *at, which is valid, and moves *at behind it. */
static uint32_t next_character(const char **at)
{
    const unsigned char *s = (const unsigned char *)*at;
    int more = s[0] < 0x80 ? 0 : s[0] < 0xe0 ? 1 : s[0] < 0xf0 ? 2 : 3;
    uint32_t value = more ? s[0] & (0x3fu >> more) : s[0];
    for (int i = 1; i <= more && s[i]; i++, ++*at)
        value = value << 6 | (s[i] & 0x3fu);
    ++*at;
    return value;
}

/* Replaces characters outside ASCII by \uXXXX, as a pair of surrogates beyond U+FFFF. */
static char *escape(const char *json)
{
    enum { ESCAPED_BYTES = 12 }; /* of the longest replacement; each stands for at least two bytes */
    char *out = malloc(strlen(json) / 2 * ESCAPED_BYTES + strlen(json) + ESCAPED_BYTES), *to = out;
    while (out && *json) {
        uint32_t value = next_character(&json);
        if (value < 0x80)
            *to++ = (char)value;
        else if (value < 0x10000)
            to += sprintf(to, "\\u%04x", (unsigned)value);
        else
            to += sprintf(to, "\\u%04x\\u%04x", 0xd7c0u + (unsigned)(value >> 10),
                          0xdc00u + (unsigned)(value & 0x3ff));
    }
    if (out)
        *to = 0;
    return out;
}

DsvStatus dsvi_wan_comment(const DsviWanComment *comment, const DsvConfig *settings, char **out)
{
    cJSON *object = cJSON_CreateObject();
    char *text = object && add_settings(object, comment, settings) ? cJSON_PrintUnformatted(object) : NULL;
    *out = text ? escape(text) : NULL;
    cJSON_free(text);
    cJSON_Delete(object);
    return *out ? DSV_OK
                : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the settings that the clip's file holds");
}
