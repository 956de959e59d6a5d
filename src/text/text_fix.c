/* Implements text_fix.h: the rules of ftfy, each a function from text to text. */
#include "text/text_fix.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "text/html_entities.h"
#include "text/mojibake.h"
#include "text/windows_1252.h"

enum {
    GROWTH_MAX = 4, /* a rule makes at most this many characters of one */
    REPETITIONS_MAX = 64,
    ESCAPE = 0x1b,
};

/* Appends the changed text to *out, which has room for GROWTH_MAX times the characters of `text`. */
typedef void Rule(const DsviCodePoints *text, DsviCodePoints *out);

static void fix_c1_controls(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        dsvi_code_points_push(out, code >= 0x80 && code <= 0x9f ? dsvi_windows_1252(code) : code);
    }
}

static void split_ligatures(const DsviCodePoints *text, DsviCodePoints *out)
{
    static const struct {
        uint32_t code;
        uint16_t letters[3];
    } ligatures[] = {
        {0x132, {'I', 'J'}},    {0x133, {'i', 'j'}},  {0x149, {0x2bc, 'n'}},     {0x1f1, {'D', 'Z'}},
        {0x1f2, {'D', 'z'}},    {0x1f3, {'d', 'z'}},  {0x1c4, {'D', 0x17d}},     {0x1c5, {'D', 0x17e}},
        {0x1c6, {'d', 0x17e}},  {0x1c7, {'L', 'J'}},  {0x1c8, {'L', 'j'}},       {0x1c9, {'l', 'j'}},
        {0x1ca, {'N', 'J'}},    {0x1cb, {'N', 'j'}},  {0x1cc, {'n', 'j'}},       {0xfb00, {'f', 'f'}},
        {0xfb01, {'f', 'i'}},   {0xfb02, {'f', 'l'}}, {0xfb03, {'f', 'f', 'i'}}, {0xfb04, {'f', 'f', 'l'}},
        {0xfb05, {0x17f, 't'}}, {0xfb06, {'s', 't'}},
    };
    for (size_t i = 0; i < text->count; i++) {
        const uint16_t *letters = NULL;
        for (size_t j = 0; text->at[i] >= 0x132 && !letters && j < sizeof ligatures / sizeof *ligatures; j++)
            if (ligatures[j].code == text->at[i])
                letters = ligatures[j].letters;
        if (!letters)
            dsvi_code_points_push(out, text->at[i]);
        for (int j = 0; letters && j < 3 && letters[j]; j++)
            dsvi_code_points_push(out, letters[j]);
    }
}

/* The half-width and full-width forms are U+FF01 to U+FFEF, and the ideographic space. Their normal forms are
 * those of Unicode's compatible decomposition. */
static void fix_width(const DsviCodePoints *text, DsviCodePoints *out)
{
    utf8proc_int32_t normal[GROWTH_MAX];
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        if (code == 0x3000) {
            dsvi_code_points_push(out, ' ');
        } else if (code >= 0xff01 && code <= 0xffef) {
            utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)code, normal, GROWTH_MAX,
                                                             UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, NULL);
            for (utf8proc_ssize_t j = 0; j < count; j++)
                dsvi_code_points_push(out, (uint32_t)normal[j]);
        } else {
            dsvi_code_points_push(out, code);
        }
    }
}

static void straighten_quotes(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        bool single = code == 0x2bc || (code >= 0x2018 && code <= 0x201b);
        bool twofold = code >= 0x201c && code <= 0x201f;
        dsvi_code_points_push(out, single ? '\'' : twofold ? '"' : code);
    }
}

static void fix_line_ends(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        if (code == '\r' && i + 1 < text->count && text->at[i + 1] == '\n')
            continue;
        bool ends = code == '\r' || code == 0x2028 || code == 0x2029 || code == 0x85;
        dsvi_code_points_push(out, ends ? '\n' : code);
    }
}

/* Returns the length of the escape sequence at `at`: ESC [, digits and semicolons, a letter. 0 if none. */
static size_t escape_length(const uint32_t *at, size_t room)
{
    size_t i = 2;
    if (room < 3 || at[0] != ESCAPE || at[1] != '[')
        return 0;
    while (i < room && (at[i] == ';' || utf8proc_category((utf8proc_int32_t)at[i]) == UTF8PROC_CATEGORY_ND))
        i++;
    uint32_t letter = i < room ? at[i] | 0x20 : 0;
    return letter >= 'a' && letter <= 'z' ? i + 1 : 0;
}

static void remove_escapes(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count;) {
        size_t length = escape_length(text->at + i, text->count - i);
        if (length == 0)
            dsvi_code_points_push(out, text->at[i]);
        i += length ? length : 1;
    }
}

/* Control characters of ASCII but those of white space, deprecated ones of Arabic script, the byte order
 * mark, and the marks of annotations and embedded objects. */
static void remove_controls(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count; i++) {
        uint32_t code = text->at[i];
        bool ascii = code == 0x7f ||
                     (code < 0x20 && code != '\t' && code != '\n' && code != '\f' && code != '\r');
        bool other = (code >= 0x206a && code <= 0x206f) || code == 0xfeff ||
                     (code >= 0xfff9 && code <= 0xfffc);
        if (!ascii && !other)
            dsvi_code_points_push(out, code);
    }
}

static unsigned combining_class(uint32_t code)
{
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
}

/* Sorts `count` combining marks by their class, and keeps the order of marks of one class. utf8proc's own
 * sorting takes time that grows with the square of the count. `scratch` has room for the marks. */
static void sort_marks(uint32_t *marks, size_t count, uint32_t *scratch)
{
    size_t first[257] = {0};
    for (size_t i = 0; i < count; i++)
        first[combining_class(marks[i]) + 1]++;
    for (int class = 1; class < 257; class ++)
        first[class] += first[class - 1];
    for (size_t i = 0; i < count; i++)
        scratch[first[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch, count * sizeof *marks);
}

static void decompose(const DsviCodePoints *text, DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count; i++) {
        utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)text->at[i],
                                                         (utf8proc_int32_t *)out->at + out->count, GROWTH_MAX,
                                                         UTF8PROC_DECOMPOSE, NULL);
        if (count < 1 || count > GROWTH_MAX)
            dsvi_code_points_push(out, text->at[i]);
        else
            out->count += (size_t)count;
    }
}

static bool is_ascii(const DsviCodePoints *text)
{
    uint32_t all = 0;
    for (size_t i = 0; i < text->count; i++)
        all |= text->at[i];
    return all < 0x80;
}

DsvStatus dsvi_text_compose(DsviCodePoints *text)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints apart = {0};
    if (is_ascii(text))
        return DSV_OK;
    DSVI_TRY_GOTO(status, dsvi_code_points_reserve(&apart, GROWTH_MAX * text->count), done);
    decompose(text, &apart);
    text->count = 0;
    DSVI_TRY_GOTO(status, dsvi_code_points_reserve(text, apart.count), done);
    for (size_t i = 0, from = 0; i <= apart.count; i++)
        if (i == apart.count || combining_class(apart.at[i]) == 0) {
            if (i > from + 1)
                sort_marks(apart.at + from, i - from, text->at);
            from = i + 1;
        }
    utf8proc_ssize_t count = utf8proc_normalize_utf32(
        (utf8proc_int32_t *)apart.at, (utf8proc_ssize_t)apart.count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    memcpy(text->at, apart.at, (size_t)count * sizeof *text->at);
    text->count = (size_t)count;
done:
    dsvi_code_points_free(&apart);
    return status;
}

/* Applies a rule to *text. *spare is memory for the result and is exchanged with *text. */
static DsvStatus apply_rule(Rule *rule, DsviCodePoints *text, DsviCodePoints *spare)
{
    spare->count = 0;
    DSVI_TRY(dsvi_code_points_reserve(spare, GROWTH_MAX * text->count));
    rule(text, spare);
    DsviCodePoints changed = *spare;
    *spare = *text;
    *text = changed;
    return DSV_OK;
}

static DsvStatus fix_once(bool entities, DsviCodePoints *text, DsviCodePoints *spare)
{
    static Rule *const rules[] = {fix_c1_controls, split_ligatures, fix_width,      straighten_quotes,
                                  fix_line_ends,   remove_escapes,  remove_controls};
    if (entities)
        DSVI_TRY(apply_rule(dsvi_html_unescape_strict, text, spare));
    DSVI_TRY(dsvi_mojibake_repair(text));
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        DSVI_TRY(apply_rule(rules[i], text, spare));
    return dsvi_text_compose(text);
}

static DsvStatus fix_line(bool entities, DsviCodePoints *line)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints before = {0}, spare = {0};
    bool changed = true;
    for (int i = 0; changed; i++) {
        if (i == REPETITIONS_MAX) {
            status = DSVI_FAIL(DSV_E_FORMAT, "the text has HTML entities nested %d deep, expected fewer", i);
            goto done;
        }
        before.count = 0;
        DSVI_TRY_GOTO(status, dsvi_code_points_append(&before, line->at, line->count), done);
        DSVI_TRY_GOTO(status, fix_once(entities, line, &spare), done);
        changed = line->count != before.count ||
                  (line->count && memcmp(line->at, before.at, line->count * sizeof *line->at) != 0);
    }
done:
    dsvi_code_points_free(&before);
    dsvi_code_points_free(&spare);
    return status;
}

DsvStatus dsvi_text_fix(DsviCodePoints *text)
{
    DsvStatus status = DSV_OK;
    DsviCodePoints fixed = {0}, line = {0};
    bool entities = true;
    for (size_t i = 0, next; i < text->count; i = next) {
        for (next = i; next < text->count && text->at[next] != '\n'; next++)
            entities = entities && text->at[next] != '<';
        next += next < text->count;
        line.count = 0;
        DSVI_TRY_GOTO(status, dsvi_code_points_append(&line, text->at + i, next - i), done);
        DSVI_TRY_GOTO(status, fix_line(entities, &line), done);
        DSVI_TRY_GOTO(status, dsvi_code_points_append(&fixed, line.at, line.count), done);
    }
    dsvi_code_points_free(text);
    *text = fixed;
    fixed = (DsviCodePoints){0};
done:
    dsvi_code_points_free(&fixed);
    dsvi_code_points_free(&line);
    return status;
}
