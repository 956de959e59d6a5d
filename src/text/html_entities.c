/* Implements html_entities.h. */
#include "text/html_entities.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "text/windows_1252.h"

enum { REPLACEMENT = 0xfffd, LAST_CODE = 0x10ffff, STRICT_LENGTH_MAX = 24, NAME_LENGTH_MIN = 2 };

/* An entity that was read: its characters, and how many code points of the text it takes, & included. */
typedef struct Entity {
    uint32_t code[3];
    int count;
    size_t length; /* 0: no entity */
} Entity;

static bool is_digit(uint32_t code)
{
    return code >= '0' && code <= '9';
}

static bool is_letter(uint32_t code)
{
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

static int digit_value(uint32_t code, int base)
{
    if (is_digit(code))
        return (int)(code - '0');
    code |= 0x20;
    return base == 16 && code >= 'a' && code <= 'f' ? (int)(code - 'a') + 10 : -1;
}

/* Returns whether HTML forbids the number, so that the entity is removed. */
static bool stands_for_nothing(uint32_t code)
{
    bool control = (code < 0x20 && code != '\t' && code != '\n' && code != '\f' && code != '\r') ||
                   code == 0x7f;
    return control || (code >= 0xfdd0 && code <= 0xfdef) || (code & 0xfffe) == 0xfffe;
}

static void set_number(Entity *entity, uint32_t number)
{
    entity->count = 1;
    if (number >= 0x80 && number <= 0x9f)
        entity->code[0] = dsvi_windows_1252(number);
    else if (number == 0 || number > LAST_CODE || (number >= 0xd800 && number <= 0xdfff))
        entity->code[0] = REPLACEMENT;
    else if (stands_for_nothing(number))
        entity->count = 0;
    else
        entity->code[0] = number;
}

/* Reads &#123; or &#x7b; with or without the semicolon. */
static Entity read_number(const uint32_t *at, size_t room)
{
    Entity entity = {0};
    uint32_t number = 0;
    bool hexadecimal = room > 2 && (at[2] | 0x20) == 'x';
    int base = hexadecimal ? 16 : 10;
    size_t first = hexadecimal ? 3 : 2, i = first;
    for (int digit; i < room && (digit = digit_value(at[i], base)) >= 0; i++)
        if (number <= LAST_CODE)
            number = number * (uint32_t)base + (uint32_t)digit;
    if (i == first)
        return entity;
    set_number(&entity, number);
    entity.length = i + (i < room && at[i] == ';');
    return entity;
}

static int compare_name(const void *key, const void *row)
{
    return strcmp(key, ((const DsviHtmlName *)row)->name);
}

static const DsviHtmlName *find_name(const char *name)
{
    return bsearch(name, dsvi_html_names, dsvi_html_name_count, sizeof *dsvi_html_names, compare_name);
}

/* Copies the letters and digits from `at` on to `name`, at most `limit`. Returns how many. */
static size_t copy_name(const uint32_t *at, size_t room, size_t limit, char *name)
{
    size_t length = 0;
    for (; length < limit && length < room && (is_letter(at[length]) || is_digit(at[length])); length++)
        name[length] = (char)at[length];
    name[length] = 0;
    return length;
}

/* Finds the longest name that begins `name`; if a semicolon follows the whole of `name`, `closed` is true.
 * Returns NULL if there is none, and in *length the length of the name. */
static const DsviHtmlName *find_longest(const char *name, size_t *length, bool closed)
{
    char part[DSVI_HTML_NAME_MAX + 1];
    size_t whole = *length;
    memcpy(part, name, whole + 1);
    for (; *length >= NAME_LENGTH_MIN; --*length) {
        part[*length] = 0;
        const DsviHtmlName *found = find_name(part);
        if (found && (found->bare || (closed && *length == whole)))
            return found;
    }
    return NULL;
}

static void set_name(Entity *entity, const DsviHtmlName *found)
{
    entity->code[0] = found->code;
    entity->code[1] = found->then;
    entity->count = found->then ? 2 : 1;
}

static Entity read_entity(const uint32_t *at, size_t room)
{
    Entity entity = {0};
    char name[DSVI_HTML_NAME_MAX + 1];
    if (room > 1 && at[1] == '#')
        return read_number(at, room);
    size_t whole = copy_name(at + 1, room - 1, DSVI_HTML_NAME_MAX, name), length = whole;
    bool closed = whole + 1 < room && at[whole + 1] == ';';
    const DsviHtmlName *found = find_longest(name, &length, closed);
    if (found) {
        set_name(&entity, found);
        entity.length = 1 + length + (closed && length == whole);
    }
    return entity;
}

/* Appends the capital form of a character, as Python's str.upper gives it: some have two or three letters. */
static void add_capital(Entity *entity, uint32_t code)
{
    static const struct {
        uint32_t code;
        uint32_t capital[3];
    } several[] = {{0xdf, {'S', 'S'}},       {0x149, {0x2bc, 'N'}}, {0xfb00, {'F', 'F'}},
                   {0xfb01, {'F', 'I'}},     {0xfb02, {'F', 'L'}},  {0xfb03, {'F', 'F', 'I'}},
                   {0xfb04, {'F', 'F', 'L'}}};
    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        if (several[i].code == code) {
            for (int j = 0; j < 3 && several[i].capital[j]; j++)
                entity->code[entity->count++] = several[i].capital[j];
            return;
        }
    entity->code[entity->count++] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)code);
}

/* Reads a name in capital letters that HTML has in small letters only. */
static Entity read_capitals(const char *name, size_t length)
{
    Entity entity = {0};
    char small[DSVI_HTML_NAME_MAX + 1] = {0};
    size_t longest = length;
    for (size_t i = 0; i < length; i++) {
        if (name[i] >= 'a' && name[i] <= 'z')
            return entity;
        small[i] = (char)(is_letter((unsigned char)name[i]) ? name[i] | 0x20 : name[i]);
    }
    const DsviHtmlName *found = find_name(small);
    if (!found || find_longest(name, &longest, true))
        return entity;
    add_capital(&entity, found->code);
    if (found->then)
        add_capital(&entity, found->then);
    entity.length = length + 2;
    return entity;
}

static Entity read_strict(const uint32_t *at, size_t room)
{
    Entity entity = {0};
    char name[STRICT_LENGTH_MAX + 1];
    size_t number = room > 1 && at[1] == '#', length;
    length = copy_name(at + 1 + number, room - 1 - number, STRICT_LENGTH_MAX, name);
    size_t taken = 1 + number + length;
    if (length == 0 || taken == room || at[taken] != ';')
        return entity;
    if (number) {
        entity = read_number(at, room);
        bool kept = entity.length != taken + 1 || (entity.count == 1 && entity.code[0] == ';');
        return kept ? (Entity){0} : entity;
    }
    const DsviHtmlName *found = find_name(name);
    if (!found)
        return read_capitals(name, length);
    set_name(&entity, found);
    entity.length = taken + 1;
    return entity;
}

static void replace_entities(Entity (*read)(const uint32_t *at, size_t room), const DsviCodePoints *text,
                             DsviCodePoints *out)
{
    for (size_t i = 0; i < text->count;) {
        Entity entity = {0};
        if (text->at[i] == '&')
            entity = read(text->at + i, text->count - i);
        for (int j = 0; j < entity.count; j++)
            dsvi_code_points_push(out, entity.code[j]);
        if (entity.length == 0)
            dsvi_code_points_push(out, text->at[i]);
        i += entity.length ? entity.length : 1;
    }
}

void dsvi_html_unescape(const DsviCodePoints *text, DsviCodePoints *out)
{
    replace_entities(read_entity, text, out);
}

void dsvi_html_unescape_strict(const DsviCodePoints *text, DsviCodePoints *out)
{
    replace_entities(read_strict, text, out);
}
