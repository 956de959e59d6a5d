/* dsv_text (include/dsv/text.h): ids and hidden states of the prompts in a file. */
#include "dsv/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/fs.h"
#include "base/safetensors.h"
#include "model/folder/wan_folder.h"
#include "pipeline/wan_texts.h"
#include "run/prompt_file.h"

enum { NAME_BYTES = 40, TENSORS_PER_PROMPT = 2 };

static DsvStatus text_write(const DsviWanTexts *texts, const char *path)
{
    const size_t count = (size_t)texts->count * TENSORS_PER_PROMPT;
    DsviStoredTensor *tensors = calloc(count, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(count, sizeof *names);
    DsvStatus status = tensors && names
                           ? DSV_OK
                           : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu tensors", count);
    for (int64_t i = 0; i < texts->count && status == DSV_OK; i++) {
        const int64_t row = texts->first[i], n = texts->first[i + 1] - row, at = TENSORS_PER_PROMPT * i;
        snprintf(names[at], NAME_BYTES, "input_ids.%lld", (long long)i);
        snprintf(names[at + 1], NAME_BYTES, "hidden.%lld", (long long)i);
        tensors[at] = (DsviStoredTensor){.dtype = DSVI_I32, .ndim = 1, .shape = {n}, .count = n};
        tensors[at + 1] = (DsviStoredTensor){
            .dtype = DSVI_F32, .ndim = 2, .shape = {n, texts->dim}, .count = n * texts->dim};
        tensors[at].data = texts->ids + row;
        tensors[at + 1].data = texts->states + row * texts->dim;
        for (int64_t t = at; t < at + TENSORS_PER_PROMPT; t++) {
            tensors[t].name = names[t];
            tensors[t].bytes = (size_t)tensors[t].count * dsvi_dtype_size(tensors[t].dtype);
        }
    }
    if (status == DSV_OK)
        status = dsvi_safetensors_replace(path, tensors, count, NULL, 0);
    free(tensors);
    free(names);
    return status;
}

DsvStatus dsv_text(const char *model_path, const char *prompts_path, const char *out_path,
                   const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    const DsvEvents none = {0};
    DsviWanFolder folder;
    DsviPromptFile prompts = {0};
    DsviWanTexts texts = {0};
    DsviBackend backend = {0};
    events = events ? events : &none;
    DSVI_TRY(dsvi_config_check_abi(settings));
    DSVI_TRY(dsvi_file_check_writable(out_path));
    DSVI_TRY_GOTO(status, dsvi_prompt_file_read(prompts_path, &prompts), done);
    DSVI_TRY_GOTO(status, dsvi_wan_folder_find_text(model_path, settings, &folder), done);
    DSVI_TRY_GOTO(status,
                  dsvi_wan_texts_tokenize(folder.part[DSVI_WAN_TOKENIZER], (const char *const *)prompts.lines,
                                          prompts.count, -1, prompts_path, events, &texts),
                  done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &backend), done);
    DSVI_TRY_GOTO(
        status, dsvi_wan_texts_encode(&backend, settings, folder.part[DSVI_WAN_TEXT_ENCODER], events, &texts),
        done);
    DSVI_TRY_GOTO(status, text_write(&texts, out_path), done);
done:
    dsvi_backend_close(&backend);
    dsvi_wan_texts_free(&texts);
    dsvi_prompt_file_free(&prompts);
    return status;
}
