/* The rules of Python's ftfy.fix_text (version 6) for text that looks right and is encoded unusually. */
#ifndef DSVI_TEXT_FIX_H
#define DSVI_TEXT_FIX_H

#include "text/code_points.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces *text by the fixed text. Line by line, until nothing changes any more:
 *   HTML entities with a semicolon become characters, unless this line or an earlier one has a '<';
 *   text that was decoded with the wrong encoding is repaired (mojibake.h);
 *   C1 control characters become those of windows-1252;
 *   ligatures of Latin letters are split;
 *   full-width and half-width forms become forms of normal width;
 *   curly quotation marks become straight;
 *   all kinds of line ends become \n;
 *   escape sequences of terminals, and control characters without a place on the line, are removed;
 *   characters are composed (Unicode's NFC).
 * DSV_E_FORMAT if the text still changes after more repetitions than any real text needs. */
DsvStatus dsvi_text_fix(DsviCodePoints *text);

/* Replaces *text by its composed form (NFC). */
DsvStatus dsvi_text_compose(DsviCodePoints *text);

#ifdef __cplusplus
}
#endif
#endif
