/* The trigger word: a word before each caption, to which a LoRA's subject or style is tied. */
#ifndef DSVI_TRIGGER_WORD_H
#define DSVI_TRIGGER_WORD_H

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Puts `word` and a blank before each caption of clips that does not contain the word; a clip without caption
 * gets the word as its caption. The captions of a latent cache are not changed, because their text states
 * are computed: DSV_E_USAGE names the first that does not contain the word. "": does nothing. */
DsvStatus dsvi_trigger_word_apply(DsviDataset *dataset, const char *word);

#ifdef __cplusplus
}
#endif
#endif
