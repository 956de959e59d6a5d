/* Finds the text encoder and the tokenizer that a path given by the user names. */
#ifndef DSVI_TEXT_PATH_H
#define DSVI_TEXT_PATH_H

#include "base/fs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviTextPath {
    char encoder[DSVI_PATH_MAX];   /* as dsvi_umt5_open takes it */
    char tokenizer[DSVI_PATH_MAX]; /* as dsvi_tokenizer_open takes it */
} DsviTextPath;

/* `path` may be: a pipeline folder with text_encoder/, a text encoder folder beside which or in which the
 * tokenizer is, a folder of the Wan repository with a safetensors file models_t5..., or a safetensors file
 * that contains both. DSV_E_NOT_FOUND if there is no text encoder; DSV_E_UNSUPPORTED if it is in a pickle. */
DsvStatus dsvi_text_path_find(const char *path, DsviTextPath *out);

#ifdef __cplusplus
}
#endif
#endif
