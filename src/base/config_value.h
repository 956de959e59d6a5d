/* The value of one option: parsed from text, checked, and printed. */
#ifndef DSVI_CONFIG_VALUE_H
#define DSVI_CONFIG_VALUE_H

#include <stdio.h>

#include "base/option_table.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Parses `value` into the option's field. DSV_E_USAGE if it has the wrong type, is out of range or is none of
 * the choices; the message names the key, what was found and what is accepted. */
DsvStatus dsvi_config_set_value(DsvConfig *config, const DsviOption *option, const char *value);
/* Fails with the same message as dsvi_config_set_value. `found` describes the refused value: "a mapping". */
DsvStatus dsvi_config_refuse_value(const DsviOption *option, const char *found);
/* Fails with DSV_E_USAGE because no option has this key. The message suggests a key (option_hint.h). */
DsvStatus dsvi_config_refuse_key(const char *key);

/* Prints the value as a YAML scalar. Loading it gives the same bits, for every number and every UTF-8
 * text. */
void dsvi_config_print_value(FILE *to, const DsviOption *option, const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
