/* Advice for a key that no option has. */
#ifndef DSVI_OPTION_HINT_H
#define DSVI_OPTION_HINT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_HINT_BYTES = 512 };

/* Writes the rest of the message "unknown key KEY..." to `text`: dsv's name for an option of another trainer
 * or the reason why dsv has none (dsv_option_hint), the most similar key, keys that contain the last word of
 * KEY, or the command that lists all keys. */
void dsvi_option_advice(const char *key, char text[DSVI_HINT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
