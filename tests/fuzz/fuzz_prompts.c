/* Fuzzes files of prompts: each prompt of an accepted file is text of limited length. */
#include "base/utf8.h"
#include "run/prompt_file.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviPromptFile file;
    fuzz_files_clear();
    fuzz_file_put("prompts.txt", data, size);
    if (dsvi_prompt_file_read(FUZZ_ROOT "/prompts.txt", &file) == DSV_OK) {
        fuzz_accept();
        fuzz_expect(file.count > 0);
        for (int64_t i = 0; i < file.count; i++) {
            const size_t bytes = strlen(file.lines[i]);
            fuzz_expect(bytes <= DSVI_PROMPT_BYTES_MAX && dsvi_utf8_valid(file.lines[i], bytes));
            fuzz_expect(!memchr(file.lines[i], '\n', bytes));
        }
    }
    dsvi_prompt_file_free(&file);
    return 0;
}
