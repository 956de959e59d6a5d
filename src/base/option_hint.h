/* What to say about a key that no option has. */
#ifndef DSVI_OPTION_HINT_H
#define DSVI_OPTION_HINT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_HINT_BYTES = 512 };

/* The rest of the sentence "unknown key KEY...", into `text`: what dsv calls an option of another trainer or
 * why there is none (dsv_option_hint), the key that was mistyped, keys that contain its last word, or where
 * all keys are listed. */
void dsvi_option_advise(const char *key, char text[DSVI_HINT_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
