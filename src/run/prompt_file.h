/* Reads text files with one prompt on each line. */
#ifndef DSVI_PROMPT_FILE_H
#define DSVI_PROMPT_FILE_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PROMPT_BYTES_MAX 65536 /* of one prompt; UMT5 reads at most 512 tokens */

typedef struct DsviPromptFile {
    char *text;   /* owns the prompts */
    char **lines; /* (count) prompts in order; line i + 1 of the file is lines[i] */
    int64_t count;
} DsviPromptFile;

/* Reads the prompts. A newline ends each line, so an empty line is an empty prompt; the last line may lack
 * its newline. A carriage return before a newline does not belong to the prompt. DSV_E_FORMAT names the line
 * that is not UTF-8, has a zero byte or is too long, or the file if it has no line. The caller calls
 * dsvi_prompt_file_free, also after a failure. */
DsvStatus dsvi_prompt_file_read(const char *path, DsviPromptFile *out);
void dsvi_prompt_file_free(DsviPromptFile *file);

#ifdef __cplusplus
}
#endif
#endif
