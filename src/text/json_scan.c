/* Implements json_scan.h. */
#include "text/json_scan.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DsvStatus scan_fail(const DsviJsonScan *scan, const char *expected)
{
    if (scan->at == scan->end)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: the file ends at byte %td, expected %s", scan->path,
                         scan->at - scan->text, expected);
    return DSVI_FAIL(DSV_E_FORMAT, "%s: byte %td is no JSON here, expected %s", scan->path,
                     scan->at - scan->text, expected);
}

static void skip_space(DsviJsonScan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\t' || *scan->at == '\r'))
        scan->at++;
}

bool dsvi_json_accept(DsviJsonScan *scan, char c)
{
    skip_space(scan);
    if (scan->at == scan->end || *scan->at != c)
        return false;
    scan->at++;
    return true;
}

DsvStatus dsvi_json_expect(DsviJsonScan *scan, char c)
{
    const char expected[] = {'\'', c, '\'', 0};
    return dsvi_json_accept(scan, c) ? DSV_OK : scan_fail(scan, expected);
}

/* Reads the four hexadecimal digits of \uXXXX. */
static bool read_hex(const DsviJsonScan *scan, const char *at, uint32_t *code)
{
    *code = 0;
    if (scan->end - at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int c = at[i] | 0x20;
        bool digit = at[i] >= '0' && at[i] <= '9';
        if (!digit && (c < 'a' || c > 'f'))
            return false;
        *code = *code << 4 | (uint32_t)(digit ? at[i] - '0' : c - 'a' + 10);
    }
    return true;
}

static char *put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int follow = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)(~(0x7fu >> follow) | code >> (6 * follow));
    while (follow-- > 0)
        *to++ = (char)(0x80 | (code >> (6 * follow) & 0x3f));
    return to;
}

/* Decodes the escape sequence at scan->at to *to. */
static DsvStatus read_escape(DsviJsonScan *scan, char **to)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    const char *letter = scan->at + 1 < scan->end && scan->at[1] ? strchr(letters, scan->at[1]) : NULL;
    if (letter) {
        *(*to)++ = meanings[letter - letters];
        scan->at += 2;
        return DSV_OK;
    }
    if (scan->at[1] != 'u' || !read_hex(scan, scan->at + 2, &code))
        return scan_fail(scan, "an escape sequence");
    if (code >= 0xd800 && code < 0xe000) {
        const char *next = scan->at + 6;
        if (code >= 0xdc00 || scan->end - next < 6 || next[0] != '\\' || next[1] != 'u' ||
            !read_hex(scan, next + 2, &low) || low < 0xdc00 || low >= 0xe000)
            return scan_fail(scan, "a pair of surrogates");
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
        scan->at += 6;
    }
    scan->at += 6;
    *to = put_utf8(*to, code);
    return DSV_OK;
}

/* Reads a string; stores its decoded text in place if `decode`. */
static DsvStatus read_string(DsviJsonScan *scan, bool decode, char **string, size_t *bytes)
{
    char scratch[4], *to;
    DSVI_TRY(dsvi_json_expect(scan, '"'));
    *string = to = scan->at;
    while (scan->at < scan->end && *scan->at != '"') {
        char *decoded = decode ? to : scratch;
        if ((unsigned char)*scan->at < 0x20)
            return scan_fail(scan, "no control character in a string");
        if (*scan->at == '\\')
            DSVI_TRY(read_escape(scan, &decoded));
        else
            *decoded++ = *scan->at++;
        to = decode ? decoded : to;
    }
    *bytes = (size_t)(to - *string);
    return dsvi_json_expect(scan, '"');
}

DsvStatus dsvi_json_string(DsviJsonScan *scan, char **string, size_t *bytes)
{
    return read_string(scan, true, string, bytes);
}

static bool is_digit_at(const DsviJsonScan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

/* The digits of a number as an integer, and the power of ten by which it is multiplied. */
typedef struct Decimal {
    uint64_t digits;
    long exponent;
} Decimal;

/* Reads digits to `decimal`. Digits that do not fit 64 bits are dropped; in a fraction they count for
 * nothing, otherwise for a power of ten. */
static DsvStatus read_digits(DsviJsonScan *scan, bool fraction, Decimal *decimal)
{
    bool full = false;
    if (!is_digit_at(scan))
        return scan_fail(scan, "a digit");
    for (; is_digit_at(scan); scan->at++) {
        unsigned digit = (unsigned)(*scan->at - '0');
        full = full || decimal->digits > (UINT64_MAX - digit) / 10;
        if (!full)
            decimal->digits = 10 * decimal->digits + digit;
        decimal->exponent += full == fraction ? 0 : fraction ? -1 : 1;
    }
    return DSV_OK;
}

static DsvStatus read_exponent(DsviJsonScan *scan, Decimal *decimal)
{
    Decimal power = {0};
    scan->at++;
    bool negative = scan->at < scan->end && *scan->at == '-';
    if (scan->at < scan->end && (*scan->at == '-' || *scan->at == '+'))
        scan->at++;
    DSVI_TRY(read_digits(scan, false, &power));
    long value = power.exponent || power.digits > 100000 ? 100000 : (long)power.digits;
    decimal->exponent += negative ? -value : value;
    return DSV_OK;
}

/* Returns 10^exponent, 0 <= exponent <= 308, rounded to the nearest double. */
static double power_of_ten(long exponent)
{
    static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char text[32];
    if (exponent < (long)(sizeof exact / sizeof *exact))
        return exact[exponent];
    snprintf(text, sizeof text, "1e%ld", exponent);
    return strtod(text, NULL);
}

static double decimal_value(Decimal decimal)
{
    double value = (double)decimal.digits;
    if (value == 0)
        return 0;
    for (; decimal.exponent < -308 && value > 0; decimal.exponent += 308)
        value /= 1e308;
    if (decimal.exponent > 308)
        return INFINITY;
    if (value == 0)
        return 0;
    return decimal.exponent < 0 ? value / power_of_ten(-decimal.exponent)
                                : value * power_of_ten(decimal.exponent);
}

DsvStatus dsvi_json_number(DsviJsonScan *scan, double *number)
{
    Decimal decimal = {0};
    bool negative = dsvi_json_accept(scan, '-');
    bool zero = scan->at < scan->end && *scan->at == '0';
    const char *first = scan->at;
    DSVI_TRY(read_digits(scan, false, &decimal));
    if (zero && scan->at > first + 1)
        return scan_fail(scan, "no digit after a leading 0");
    if (scan->at < scan->end && *scan->at == '.') {
        scan->at++;
        DSVI_TRY(read_digits(scan, true, &decimal));
    }
    if (scan->at < scan->end && (*scan->at | 0x20) == 'e')
        DSVI_TRY(read_exponent(scan, &decimal));
    double value = decimal_value(decimal);
    if (!isfinite(value))
        return scan_fail(scan, "a number below 1e308 before this byte");
    *number = negative ? -value : value;
    return DSV_OK;
}

static DsvStatus skip_value(DsviJsonScan *scan, int depth);

/* Skips the rest of an array or object, the opening bracket of which was read. */
static DsvStatus skip_members(DsviJsonScan *scan, bool object, int depth)
{
    char *string, close = object ? '}' : ']';
    size_t bytes;
    if (depth == DSVI_JSON_DEPTH_MAX)
        return scan_fail(scan, "values that are nested less deep");
    if (dsvi_json_accept(scan, close))
        return DSV_OK;
    do {
        if (object) {
            DSVI_TRY(read_string(scan, false, &string, &bytes));
            DSVI_TRY(dsvi_json_expect(scan, ':'));
        }
        DSVI_TRY(skip_value(scan, depth + 1));
    } while (dsvi_json_accept(scan, ','));
    return dsvi_json_expect(scan, close);
}

static DsvStatus skip_value(DsviJsonScan *scan, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    char *string;
    size_t bytes;
    double number;
    skip_space(scan);
    char c = scan->at < scan->end ? *scan->at : 0;
    if (c == '"')
        return read_string(scan, false, &string, &bytes);
    if (c == '-' || (c >= '0' && c <= '9'))
        return dsvi_json_number(scan, &number);
    if (dsvi_json_accept(scan, '{'))
        return skip_members(scan, true, depth);
    if (dsvi_json_accept(scan, '['))
        return skip_members(scan, false, depth);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(scan->end - scan->at) >= length && memcmp(scan->at, words[i], length) == 0) {
            scan->at += length;
            return DSV_OK;
        }
    }
    return scan_fail(scan, "a value");
}

DsvStatus dsvi_json_skip(DsviJsonScan *scan)
{
    return skip_value(scan, 0);
}

static DsviJsonMember *find_member(DsviJsonMember *members, int count, const char *name, size_t bytes)
{
    for (int i = 0; i < count; i++)
        if (strlen(members[i].name) == bytes && memcmp(members[i].name, name, bytes) == 0)
            return &members[i];
    return NULL;
}

DsvStatus dsvi_json_members(DsviJsonScan *scan, DsviJsonMember *members, int count)
{
    char *name;
    size_t bytes;
    DSVI_TRY(dsvi_json_expect(scan, '{'));
    if (dsvi_json_accept(scan, '}'))
        return DSV_OK;
    do {
        DSVI_TRY(dsvi_json_string(scan, &name, &bytes));
        DsviJsonMember *member = find_member(members, count, name, bytes);
        if (member && member->begin)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s exists twice", scan->path, member->name);
        DSVI_TRY(dsvi_json_expect(scan, ':'));
        skip_space(scan);
        char *begin = scan->at;
        DSVI_TRY(dsvi_json_skip(scan));
        if (member) {
            member->begin = begin;
            member->end = scan->at;
        }
    } while (dsvi_json_accept(scan, ','));
    return dsvi_json_expect(scan, '}');
}
