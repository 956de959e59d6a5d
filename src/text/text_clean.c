/* Implements text_clean.h. */
#include "text/text_clean.h"

#include <stdbool.h>
#include <string.h>

#include "text/html_entities.h"
#include "text/text_fix.h"

static void collapse_space(DsviCodePoints *text)
{
    size_t kept = 0;
    bool between = false;
    for (size_t i = 0; i < text->count; i++) {
        if (dsvi_is_space(text->at[i])) {
            between = kept > 0;
            continue;
        }
        if (between)
            text->at[kept++] = ' ';
        between = false;
        text->at[kept++] = text->at[i];
    }
    text->count = kept;
}

static DsvStatus unescape_twice(DsviCodePoints *text)
{
    for (int i = 0; i < 2; i++) {
        DsviCodePoints plain = {0};
        DSVI_TRY(dsvi_code_points_reserve(&plain, text->count));
        dsvi_html_unescape(text, &plain);
        dsvi_code_points_free(text);
        *text = plain;
    }
    return DSV_OK;
}

DsvStatus dsvi_text_clean(const char *text, char **out)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints codes = {0};
    size_t bytes = strlen(text);
    *out = NULL;
    if (bytes > DSVI_TEXT_BYTES_MAX)
        return DSVI_FAIL(DSV_E_FORMAT, "the text has %zu bytes, expected at most %d", bytes,
                         DSVI_TEXT_BYTES_MAX);
    DSVI_TRY_GOTO(status, dsvi_code_points_read(text, bytes, &codes), done);
    /* The second time differs from the first where the first has made new line ends: a '<' then keeps
     * entities only in its line and in later ones. */
    for (int i = 0; i < 2; i++)
        DSVI_TRY_GOTO(status, dsvi_text_fix(&codes), done);
    DSVI_TRY_GOTO(status, unescape_twice(&codes), done);
    collapse_space(&codes);
    DSVI_TRY_GOTO(status, dsvi_code_points_write(&codes, out), done);
done:
    dsvi_code_points_free(&codes);
    return status;
}
