/* Fuzzes caption files. A caption that is read is UTF-8 text without blanks at its ends. */
#include "base/utf8.h"
#include "data/caption_files.h"
#include "fuzz.h"

static bool blank(char c)
{
    return strchr(" \t\n\v\f\r", c) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;
    fuzz_files_clear();
    fuzz_file_put("a.txt", data, size);
    if (dsvi_caption_file_read(FUZZ_ROOT "/a.txt", &text) == DSV_OK) {
        size_t length = strlen(text);
        fuzz_accept();
        fuzz_expect(length > 0 && length <= size && dsvi_utf8_valid(text, length));
        fuzz_expect(!blank(text[0]) && !blank(text[length - 1]));
        free(text);
    } else {
        fuzz_expect(!text);
    }
    return 0;
}
