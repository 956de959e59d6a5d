/* Fuzzes UTF-8 and numbers as text. A number that was read must be equal after printing and reading. */
#include "base/number_text.h"
#include "base/utf8.h"
#include "fuzz.h"

static void check_utf8(const char *text, size_t size)
{
    size_t done = 0;
    uint32_t code = 0;
    while (done < size) {
        size_t step = dsvi_utf8_decode(text + done, size - done, &code);
        fuzz_expect(step <= 4 && step <= size - done && (step == 0 || code <= 0x10ffff));
        if (step == 0)
            break;
        done += step;
    }
    fuzz_expect(dsvi_utf8_valid(text, size) == (done == size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[128], printed[DSVI_NUMBER_BYTES];
    double value, again;
    check_utf8((const char *)data, size);
    size_t length = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, length);
    text[length] = 0;
    if (!dsvi_number_read(text, &value))
        return 0;
    fuzz_accept();
    dsvi_number_text(value, printed);
    fuzz_expect(dsvi_number_read(printed, &again) && memcmp(&value, &again, sizeof value) == 0);
    return 0;
}
