/* Implements mojibake.h. A step encodes the text with a single-byte encoding and decodes the bytes as UTF-8,
 * or does so with parts of the text; steps are repeated until nothing changes. */
#include "text/mojibake.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/mojibake_bytes.h"
#include "text/mojibake_table.h"
#include "text/windows_1252.h"

enum {
    LATIN_1 = -1,
    STEPS_MAX = 64, /* each makes the text shorter or nearer to ASCII; real text needs two */
    DEPTH_MAX = 8,  /* of parts within parts */
    REPLACEMENT = 0xfffd,
    SUBSTITUTE = 0x1a,
};

static DsvStatus repair(DsviCodePoints *text, int depth);

/* Encodes a character. Returns the byte, or -1 if the encoding lacks the character. */
static int encode_char(int charmap, uint32_t code)
{
    bool sloppy = charmap >= 0 && charmap < DSVI_CHARMAP_SLOPPY;
    if (sloppy && (code == SUBSTITUTE || code == REPLACEMENT))
        return code == REPLACEMENT ? SUBSTITUTE : -1;
    if (code < 0x80)
        return (int)code;
    if (charmap == LATIN_1)
        return code < 0x100 ? (int)code : -1;
    for (int i = 127; i >= 0; i--)
        if (dsvi_charmaps[charmap][i] == code)
            return 0x80 + i;
    return -1;
}

/* Encodes the text to `bytes` (count). Returns whether the encoding has all its characters. */
static bool encode_text(int charmap, const DsviCodePoints *text, unsigned char *bytes)
{
    for (size_t i = 0; i < text->count; i++) {
        int byte = encode_char(charmap, text->at[i]);
        if (byte < 0)
            return false;
        bytes[i] = (unsigned char)byte;
    }
    return true;
}

/* Decodes UTF-8 to *out, which has room. With `variants`, pairs of surrogates of three bytes each are also
 * accepted, and two bytes for zero. Returns whether all of it is UTF-8. */
static bool decode_bytes(const unsigned char *bytes, size_t count, bool variants, DsviCodePoints *out)
{
    uint32_t code = 0;
    for (size_t i = 0, step; i < count; i += step) {
        step = variants ? dsvi_bytes_variant(bytes + i, count - i, &code) : 0;
        if (step == 0)
            step = dsvi_utf8_decode((const char *)bytes + i, count - i, &code);
        if (step == 0)
            return false;
        dsvi_code_points_push(out, code);
    }
    return true;
}

/* Tries to repair the whole text as UTF-8 that was decoded with an encoding. `room`: memory for twice the
 * bytes of the text and a few more. *possible: whether the encoding has all characters of the text. */
static bool repair_whole(int charmap, const DsviCodePoints *text, unsigned char *room, bool *possible,
                         DsviCodePoints *out)
{
    size_t count = text->count;
    *possible = encode_text(charmap, text, room);
    if (!*possible)
        return false;
    if (charmap != DSVI_CHARMAP_MACROMAN)
        count = dsvi_bytes_restore_a0(room, count);
    if (charmap >= 0 && charmap < DSVI_CHARMAP_SLOPPY)
        count = dsvi_bytes_replace_lossy(room, count);
    bool variants = memchr(room, 0xed, count) || memchr(room, 0xc0, count);
    out->count = 0;
    return decode_bytes(room, count, variants, out);
}

/* Appends a part of the text to *out, repaired if it is bad. */
static DsvStatus repair_part(const DsviCodePoints *text, size_t at, size_t length, int depth,
                             DsviCodePoints *out)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints part = {0};
    DSVI_TRY_GOTO(status, dsvi_code_points_append(&part, text->at + at, length), done);
    if (length < text->count && depth < DEPTH_MAX && dsvi_mojibake_is_bad(part.at, part.count))
        DSVI_TRY_GOTO(status, repair(&part, depth + 1), done);
    DSVI_TRY_GOTO(status, dsvi_code_points_append(out, part.at, part.count), done);
done:
    dsvi_code_points_free(&part);
    return status;
}

/* Repairs the parts that look like UTF-8. */
static DsvStatus repair_parts(const DsviCodePoints *text, int depth, DsviCodePoints *out)
{
    out->count = 0;
    for (size_t i = 0; i < text->count;) {
        size_t length = dsvi_mojibake_span(text->at, text->count, i);
        if (length)
            DSVI_TRY(repair_part(text, i, length, depth, out));
        else
            DSVI_TRY(dsvi_code_points_append(out, text->at + i, 1));
        i += length ? length : 1;
    }
    return DSV_OK;
}

/* Replaces C1 control characters by those of windows-1252. Fails if one of them is none there, unless
 * `sloppy`. */
static bool repair_controls(const DsviCodePoints *text, bool sloppy, DsviCodePoints *out)
{
    out->count = 0;
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        bool control = code >= 0x80 && code <= 0x9f;
        if (control && !sloppy && dsvi_windows_1252(code) == code)
            return false;
        dsvi_code_points_push(out, control ? dsvi_windows_1252(code) : code);
    }
    return true;
}

static bool equal(const DsviCodePoints *a, const DsviCodePoints *b)
{
    return a->count == b->count && (a->count == 0 || memcmp(a->at, b->at, a->count * sizeof *a->at) == 0);
}

/* Makes one step: *out is the text after it, equal to `text` if nothing is to be repaired. */
static DsvStatus repair_step(const DsviCodePoints *text, int depth, unsigned char *room, DsviCodePoints *out)
{
    bool possible, latin_1 = false;
    for (int charmap = LATIN_1; charmap < DSVI_CHARMAP_COUNT; charmap++) {
        if (repair_whole(charmap, text, room, &possible, out))
            return DSV_OK;
        latin_1 = latin_1 || (charmap == LATIN_1 && possible);
    }
    DSVI_TRY(repair_parts(text, depth, out));
    if (!equal(text, out))
        return DSV_OK;
    DSVI_TRY(dsvi_code_points_reserve(out, text->count));
    if (latin_1 && repair_controls(text, false, out) && !equal(text, out))
        return DSV_OK;
    (void)repair_controls(text, true, out);
    return DSV_OK;
}

static bool is_bad_text(const DsviCodePoints *text)
{
    uint32_t all = 0;
    for (size_t i = 0; i < text->count; i++)
        all |= text->at[i];
    return all >= 0x80 && dsvi_mojibake_is_bad(text->at, text->count);
}

static DsvStatus repair(DsviCodePoints *text, int depth)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints out = {0};
    size_t bytes = dsvi_bytes_room(text->count);
    unsigned char *room = malloc(bytes);
    if (!room)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to repair a text of %zu characters", text->count);
    for (int step = 0; step < STEPS_MAX && is_bad_text(text); step++) {
        out.count = 0;
        DSVI_TRY_GOTO(status, dsvi_code_points_reserve(&out, bytes), done);
        DSVI_TRY_GOTO(status, repair_step(text, depth, room, &out), done);
        if (equal(text, &out))
            break;
        DsviCodePoints before = *text;
        *text = out;
        out = before;
    }
done:
    dsvi_code_points_free(&out);
    free(room);
    return status;
}

DsvStatus dsvi_mojibake_repair(DsviCodePoints *text)
{
    return is_bad_text(text) ? repair(text, 0) : DSV_OK;
}
