/* Implements lora_flags.h. */
#include "lora_flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Divides `list` at its commas. Returns the number of parts, CLI_LORAS_MAX + 1 if there are more. */
static size_t split_commas(char *list, char *part[CLI_LORAS_MAX])
{
    size_t count = 0;
    for (char *word; (word = strsep(&list, ",")) != NULL; count++) {
        if (count == CLI_LORAS_MAX)
            return CLI_LORAS_MAX + 1;
        part[count] = word;
    }
    return count;
}

int cli_lora_flag(const CliArgs *args, int flag, DsvExpert expert, CliLoras *out)
{
    const char *paths = args->flag[flag], *scales = args->flag[flag + 1];
    const char *name = args->verb->flags[flag].name, *scale_name = args->verb->flags[flag + 1].name;
    CliLoraText *copy = &out->text[out->flags++];
    char *part[CLI_LORAS_MAX], *end;
    size_t count = 0, factors = 0;
    if (scales && !paths)
        return cli_misused(args->verb, "%s %s: expected %s with it", scale_name, scales, name);
    if (paths && snprintf(copy->paths, sizeof copy->paths, "%s", paths) < (int)sizeof copy->paths)
        count = split_commas(copy->paths, part);
    if (paths && (count == 0 || count > CLI_LORAS_MAX || count + out->count > CLI_LORAS_MAX))
        return cli_misused(args->verb, "%s: expected at most %d files in all, separated by commas", name,
                           CLI_LORAS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (!part[i][0])
            return cli_misused(args->verb, "%s %s: expected a file before and after each comma", name, paths);
        out->path[out->count + i] = part[i];
        out->scale[out->count + i] = 1;
        out->expert[out->count + i] = expert;
    }
    if (scales && snprintf(copy->scales, sizeof copy->scales, "%s", scales) < (int)sizeof copy->scales)
        factors = split_commas(copy->scales, part);
    if (scales && factors != count)
        return cli_misused(args->verb, "%s %s: expected a number for each file of %s", scale_name, scales,
                           name);
    for (size_t i = 0; i < factors; i++) {
        double *scale = &out->scale[out->count + i];
        *scale = strtod(part[i], &end);
        if (end == part[i] || *end || !isfinite(*scale))
            return cli_misused(args->verb, "%s %s: expected a number", scale_name, part[i]);
    }
    out->count += count;
    return CLI_DONE;
}
