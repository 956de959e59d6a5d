/* Replaces HTML entities such as &amp; and &#38; by characters, by two sets of rules. */
#ifndef DSVI_HTML_ENTITIES_H
#define DSVI_HTML_ENTITIES_H

#include <stdbool.h>

#include "text/code_points.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A name of HTML 5 and its one or two characters. */
typedef struct DsviHtmlName {
    const char *name;    /* without & and ; */
    uint32_t code, then; /* `then` is 0 if the entity is one character */
    bool bare;           /* whether the name also stands for its character without ; */
} DsviHtmlName;

enum { DSVI_HTML_NAME_MAX = 31 };            /* letters and digits of the longest name */
extern const DsviHtmlName dsvi_html_names[]; /* in the order of strcmp */
extern const size_t dsvi_html_name_count;

/* Both functions append the text with replaced entities to *out, which must have room for as many code points
 * as `text` has.
 *
 * dsvi_html_unescape: the rules of HTML 5, as Python's html.unescape applies them: names and numbers also
 * without ; and names that begin a longer word. Numbers of characters that HTML forbids become no character
 * or U+FFFD. */
void dsvi_html_unescape(const DsviCodePoints *text, DsviCodePoints *out);
/* dsvi_html_unescape_strict: the rules of Python's ftfy. Entities must end with ; and have at most 24 letters
 * and digits. Names that HTML has in small letters only are also accepted in capital letters, and then stand
 * for the capital letter: &EACUTE; is U+00C9. Entities that stand for ; are kept. */
void dsvi_html_unescape_strict(const DsviCodePoints *text, DsviCodePoints *out);

#ifdef __cplusplus
}
#endif
#endif
