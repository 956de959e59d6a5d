/* Flags that name LoRA files, such as --lora-high with --lora-high-scale. */
#ifndef CLI_LORA_FLAGS_H
#define CLI_LORA_FLAGS_H

#include "verb.h"

enum { CLI_LORAS_MAX = 16, CLI_LORA_FLAGS_MAX = 3 };

/* The text of one flag, divided at its commas. */
typedef struct CliLoraText {
    char paths[4096], scales[1024];
} CliLoraText;

/* The LoRAs of a command line. The paths point into `text` or at the command line. */
typedef struct CliLoras {
    CliLoraText text[CLI_LORA_FLAGS_MAX];
    int flags; /* that were read */
    const char *path[CLI_LORAS_MAX];
    double scale[CLI_LORAS_MAX];
    DsvExpert expert[CLI_LORAS_MAX];
    size_t count;
} CliLoras;

/* Appends the LoRAs of flag number `flag`, whose factors are the value of the next flag. Returns CLI_DONE, or
 * another exit status after it has printed the error. */
int cli_lora_flag(const CliArgs *args, int flag, DsvExpert expert, CliLoras *out);

#endif
