/* Implements prompt_file.h. */
#include "run/prompt_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/utf8.h"

enum { FILE_BYTES_MAX = 1 << 28 };

static DsvStatus check_prompt(const char *path, int64_t line, const char *text, size_t bytes)
{
    if (bytes > DSVI_PROMPT_BYTES_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: line %lld has %zu bytes, expected a prompt of at most %d", path,
                         (long long)line, bytes, DSVI_PROMPT_BYTES_MAX);
    if (!dsvi_utf8_valid(text, bytes))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: line %lld is not UTF-8, expected a prompt", path,
                         (long long)line);
    if (memchr(text, 0, bytes))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: line %lld has a zero byte in it, expected a prompt", path,
                         (long long)line);
    return DSV_OK;
}

/* Divides the text into lines, which end with a zero byte then. */
static DsvStatus divide_lines(const char *path, size_t bytes, DsviPromptFile *out)
{
    char *end = out->text + bytes;
    for (char *line = out->text; line < end; out->count++) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        char *next = newline ? newline + 1 : end, *stop = newline ? newline : end;
        if (newline && stop > line && stop[-1] == '\r')
            stop--;
        DSVI_TRY(check_prompt(path, out->count + 1, line, (size_t)(stop - line)));
        *stop = 0;
        out->lines[out->count] = line;
        line = next;
    }
    return DSV_OK;
}

DsvStatus dsvi_prompt_file_read(const char *path, DsviPromptFile *out)
{
    size_t bytes, room = 1;
    memset(out, 0, sizeof *out);
    DSVI_TRY(dsvi_file_read(path, FILE_BYTES_MAX, &out->text, &bytes));
    if (bytes == 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: an empty file, expected one prompt on each line", path);
    for (size_t i = 0; i < bytes; i++)
        room += out->text[i] == '\n';
    out->lines = calloc(room, sizeof *out->lines);
    if (!out->lines)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %zu prompts", path, room);
    return divide_lines(path, bytes, out);
}

void dsvi_prompt_file_free(DsviPromptFile *file)
{
    free(file->text);
    free(file->lines);
    memset(file, 0, sizeof *file);
}
