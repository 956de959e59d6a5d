/* DsvConfig: defaults, "key=value" assignments, and saving as YAML. include/dsv/options.def defines the
 * options, config_value.c parses and prints their values, config_yaml.c reads YAML files. */
#include "dsv/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_abi.h"
#include "base/config_value.h"
#include "base/fs.h"

/* Every default text must fit its field. */
#define DSV_TEXT(key, field, initial, help) \
    _Static_assert(sizeof initial <= DSV_TEXT_MAX, "default of " key " is too long");
#define DSV_CHOICE(key, field, initial, choices, help) \
    _Static_assert(sizeof initial <= DSV_CHOICE_MAX, "default of " key " is too long");
#include "dsv/options.def"

void dsv_config_defaults_sized(DsvConfig *config, size_t bytes)
{
    config->bytes = bytes;
    if (bytes != sizeof *config)
        return; /* writing more could overrun the caller's struct */
    memset(config, 0, sizeof *config);
    config->bytes = bytes;
#define DSV_INT(key, field, initial, min, max, unit, help) config->field = initial;
#define DSV_FLOAT(key, field, initial, min, max, unit, help) config->field = initial;
#define DSV_BOOL(key, field, initial, help) config->field = initial;
#define DSV_TEXT(key, field, initial, help) strcpy(config->field, initial);
#define DSV_CHOICE(key, field, initial, choices, help) strcpy(config->field, initial);
#include "dsv/options.def"
}

DsvStatus dsv_config_set(DsvConfig *config, const char *assignment)
{
    char key[DSVI_KEY_BYTES];
    const char *equals = strchr(assignment, '=');
    DSVI_TRY(dsvi_config_check_abi(config));
    if (!equals || equals == assignment)
        return DSVI_FAIL(DSV_E_USAGE, "%.100s: expected key=value", assignment);
    size_t length = (size_t)(equals - assignment);
    length = length < sizeof key ? length : sizeof key - 1; /* a truncated key matches no option */
    memcpy(key, assignment, length);
    key[length] = 0;
    const DsviOption *option = dsvi_option_find(key);
    return option ? dsvi_config_set_value(config, option, equals + 1) : dsvi_config_refuse_key(key);
}

static bool is_assigned(const char *key, const char *const *assignments, size_t count)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < count; i++)
        if (strncmp(assignments[i], key, length) == 0 && assignments[i][length] == '=')
            return true;
    return false;
}

/* Fails if the arguments change model.preset but not a size of the model (model.num_layers, ...) that the
 * file had set: the file's author chose this size for another preset. `before` is the configuration of the
 * file. */
static DsvStatus refuse_mixed_preset(const DsvConfig *before, const DsvConfig *config,
                                     const char *const *assignments, size_t count)
{
    static const char GROUP[] = "model.";
    const DsviOption *options = dsvi_options();
    char kept[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < DSVI_OPTION_COUNT && used < sizeof kept; i++) {
        const DsviOption *option = &options[i];
        int64_t value = 0;
        if (option->kind != DSVI_OPTION_INT || strncmp(option->info.key, GROUP, sizeof GROUP - 1) != 0)
            continue;
        memcpy(&value, (const char *)before + option->offset, sizeof value);
        if (value != 0 && !is_assigned(option->info.key, assignments, count))
            used += (size_t)snprintf(kept + used, sizeof kept - used, "%s%s=%lld", used ? ", " : "",
                                     option->info.key, (long long)value);
    }
    if (!used || strcmp(before->model_preset, config->model_preset) == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "model.preset=%s: the file sets %s, which was meant for its preset %s: "
                     "set these keys too; 0 takes the size of the new preset",
                     config->model_preset, kept, before->model_preset);
}

/* Fails if the arguments take the LoRA out of a configuration for one: the file's learning rate and its other
 * values were chosen for a LoRA, and would then train all weights. */
static DsvStatus refuse_no_lora(const DsvConfig *before, const DsvConfig *config)
{
    if (before->lora_rank == 0 || config->lora_rank > 0)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_USAGE,
        "lora_rank=0: the file sets lora_rank=%lld and is for a LoRA, expected 1 or more; to train "
        "all weights, use a file without lora_rank, such as configs/wan_full.yaml",
        (long long)before->lora_rank);
}

DsvStatus dsv_config_set_all(DsvConfig *config, const char *const *assignments, size_t count)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    const DsvConfig before = *config;
    for (size_t i = 0; i < count; i++)
        DSVI_TRY(dsv_config_set(config, assignments[i]));
    DSVI_TRY(refuse_no_lora(&before, config));
    return refuse_mixed_preset(&before, config, assignments, count);
}

static void print_config(FILE *to, const DsvConfig *config)
{
    const DsviOption *options = dsvi_options();
    const char *section = "";
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++) {
        if (options[i].info.section != section) {
            section = options[i].info.section;
            fprintf(to, "%s# %s\n", i ? "\n" : "", section);
        }
        fprintf(to, "%s: ", options[i].info.key);
        dsvi_config_print_value(to, &options[i], config);
        fputc('\n', to);
    }
}

size_t dsv_config_size(void)
{
    return sizeof(DsvConfig);
}

DsvStatus dsv_config_save(const DsvConfig *config, const char *path)
{
    DSVI_TRY(dsvi_config_check_abi(config));
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!to)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the configuration", path);
    print_config(to, config);
    DsvStatus status = ferror(to) ? DSV_E_NO_MEMORY : DSV_OK;
    if (fclose(to) != 0 || status != DSV_OK)
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the configuration", path);
    else
        status = dsvi_file_replace(path, text, bytes);
    free(text);
    return status;
}
