/* Implements pipeline_part.h: recognises folders of diffusers pipelines. */
#include "run/pipeline_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

typedef struct Part {
    const char *file; /* a file that such a folder contains */
    const char *word; /* part of the class name in this file; "": any class */
    const char *name; /* description for messages */
} Part;

static const Part PARTS[] = {
    {"config.json", "Autoencoder", "the VAE"},      {"config.json", "T5", "the text encoder"},
    {"config.json", "CLIP", "the image encoder"},   {"scheduler_config.json", "", "the scheduler"},
    {"tokenizer_config.json", "", "the tokenizer"}, {"preprocessor_config.json", "", "the image processor"},
};

/* Reads the class name in a configuration file, from the key of diffusers or of transformers; "" if none. */
static void read_class(const char *folder, const char *file, char name[64])
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    name[0] = 0;
    if (dsvi_path_join(path, folder, file) != DSV_OK || !dsvi_path_exists(path) ||
        dsvi_file_read(path, CONFIG_BYTES_MAX, &text, &bytes) != DSV_OK)
        return;
    cJSON *object = cJSON_ParseWithLength(text, bytes);
    const cJSON *architectures = cJSON_GetObjectItemCaseSensitive(object, "architectures");
    const char *class_name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
    if (!class_name)
        class_name = cJSON_GetStringValue(cJSON_GetArrayItem(architectures, 0));
    if (!class_name)
        class_name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "model_type"));
    snprintf(name, 64, "%s", class_name ? class_name : "");
    cJSON_Delete(object);
    free(text);
}

static bool pipeline_part_has(const char *folder, const char *file)
{
    char path[DSVI_PATH_MAX];
    return dsvi_path_join(path, folder, file) == DSV_OK && dsvi_path_exists(path);
}

const char *dsvi_pipeline_part(const char *folder)
{
    static _Thread_local char text[128];
    char class_name[64];
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        const Part *part = &PARTS[i];
        if (!pipeline_part_has(folder, part->file))
            continue;
        read_class(folder, part->file, class_name);
        if (part->word[0] && !strcasestr(class_name, part->word))
            continue;
        snprintf(text, sizeof text, class_name[0] ? "%s (%s)" : "%s", part->name, class_name);
        return text;
    }
    return NULL;
}
