/* The value of one setting: from text, checked, and back to text. */
#ifndef DSVI_CONFIG_VALUE_H
#define DSVI_CONFIG_VALUE_H

#include <stdio.h>

#include "base/option_table.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSV_E_USAGE, naming the key, what was found and what is wanted: wrong type, out of range, not one of the
 * choices. */
DsvStatus dsvi_config_set_value(DsvConfig *config, const DsvOption *option, const char *value);
/* Fails in that way; `found` is a few words for what stands where the value should. */
DsvStatus dsvi_config_refuse_value(const DsvOption *option, const char *found);
/* Fails with DSV_E_USAGE: no option has this key, and which one may be meant (option_hint.h). */
DsvStatus dsvi_config_refuse_key(const char *key);

/* As a YAML scalar that reads back as the same bits, whatever is in a text. */
void dsvi_config_print_value(FILE *to, const DsvOption *option, const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
