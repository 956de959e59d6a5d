/* See report_text.h. */
#include "report/report_text.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

void dsvi_put_text(FILE *to, const char *text)
{
    size_t room = strlen(text);
    while (room > 0) {
        uint32_t code = 0;
        size_t bytes = dsvi_utf8_decode(text, room, &code);
        const char *name = code == '&'    ? "&amp;"
                           : code == '<'  ? "&lt;"
                           : code == '>'  ? "&gt;"
                           : code == '"'  ? "&quot;"
                           : code == '\'' ? "&#39;"
                                          : NULL;
        if (bytes == 0 || (code < 0x20 && code != '\n') || (code >= 0x7f && code < 0xa0))
            name = "\xef\xbf\xbd"; /* U+FFFD, the replacement character */
        bytes = bytes > 0 ? bytes : 1;
        if (name)
            fputs(name, to);
        else
            fwrite(text, 1, bytes, to);
        text += bytes;
        room -= bytes;
    }
}

void dsvi_put_fixed(FILE *to, double value, int decimals)
{
    char text[400];
    if (!isfinite(value)) {
        fputc('-', to);
        return;
    }
    snprintf(text, sizeof text, "%.*f", decimals, value == 0 ? 0 : value);
    for (char *c = text; *c; c++)
        fputc(strchr("+-0123456789", *c) ? *c : '.', to);
}

void dsvi_put_short(FILE *to, double value, int digits)
{
    if (!isfinite(value) || value == 0 || (fabs(value) >= 1e-4 && fabs(value) < 1e7)) {
        int before = value != 0 && isfinite(value) ? (int)floor(log10(fabs(value))) + 1 : 1;
        dsvi_put_fixed(to, value, digits > before ? digits - before : 0);
        return;
    }
    int exponent = (int)floor(log10(fabs(value)));
    dsvi_put_fixed(to, value / pow(10, exponent), digits - 1);
    fprintf(to, "e%d", exponent);
}

void dsvi_put_round(FILE *to, double value, int digits)
{
    int enough = 1;
    for (; enough < digits && value != 0 && isfinite(value); enough++) {
        double unit = pow(10, floor(log10(fabs(value))) + 1 - enough);
        if (fabs(round(value / unit) * unit - value) <= 1e-9 * fabs(value))
            break;
    }
    dsvi_put_short(to, value, enough);
}

void dsvi_put_count(FILE *to, double value)
{
    char text[32];
    if (!(fabs(value) < 1e15)) {
        dsvi_put_short(to, value, 3);
        return;
    }
    int length = snprintf(text, sizeof text, "%.0f", value);
    for (int i = 0; i < length; i++) {
        fputc(text[i], to);
        if (i + 1 < length && (length - i - 1) % 3 == 0 && text[i] != '-')
            fputc(',', to);
    }
}

void dsvi_put_large(FILE *to, double value)
{
    static const struct {
        double size;
        const char *unit;
    } scale[] = {{1e12, " trillion"}, {1e9, " billion"}, {1e6, " million"}, {1e3, " k"}};
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++)
        if (value >= scale[i].size) {
            dsvi_put_short(to, value / scale[i].size, 2);
            fputs(scale[i].unit, to);
            return;
        }
    dsvi_put_short(to, value, 3);
}

void dsvi_put_bytes(FILE *to, double bytes)
{
    double mib = bytes / 1048576;
    if (!isfinite(bytes)) {
        fputc('-', to);
        return;
    }
    dsvi_put_short(to, mib < 2048 ? mib : mib / 1024, 3);
    fputs(mib < 2048 ? " MiB" : " GiB", to);
}

void dsvi_put_duration(FILE *to, double seconds)
{
    double minutes = floor(seconds / 60), hours = floor(minutes / 60);
    if (seconds < 60) {
        dsvi_put_short(to, seconds, 2);
        fputs(" s", to);
        return;
    }
    if (hours > 0) {
        dsvi_put_count(to, hours);
        fputs(" h ", to);
    }
    dsvi_put_fixed(to, minutes - 60 * hours, 0);
    fputs(" min", to);
}

void dsvi_put_ms(FILE *to, double ms)
{
    if (!isfinite(ms)) {
        fputc('-', to);
        return;
    }
    dsvi_put_short(to, ms < 10000 ? ms : ms / 1000, 3);
    fputs(ms < 10000 ? " ms" : " s", to);
}

void dsvi_put_base64(FILE *to, const void *data, size_t bytes)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = data;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        unsigned three = (unsigned)in[i] << 16 | (left > 1 ? (unsigned)in[i + 1] << 8 : 0) |
                         (left > 2 ? in[i + 2] : 0);
        fputc(digit[three >> 18], to);
        fputc(digit[three >> 12 & 63], to);
        fputc(left > 1 ? digit[three >> 6 & 63] : '=', to);
        fputc(left > 2 ? digit[three & 63] : '=', to);
    }
}
