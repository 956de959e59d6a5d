/* Fuzzes the cleaning of prompts, and their division into pieces of a small vocabulary. A cleaned text must
 * be UTF-8 without two spaces in succession or a space at either end. */
#include "base/utf8.h"
#include "text/text_clean.h"
#include "tokenizer_use.h"

static const char VOCABULARY[] =
    "{\"added_tokens\":[{\"id\":1,\"content\":\"</s>\"},{\"id\":6,\"content\":\"<x>\",\"lstrip\":true}],"
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"},"
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"</s>\",0],[\"\\u2581\",-2],"
    "[\"a\",-3],[\"aa\",-5.5],[\"\\u00e9\",-4]]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static DsviTokenizer *tokenizer;
    char *text = malloc(size + 1), *clean;
    if (!tokenizer) {
        fuzz_files_clear();
        fuzz_file_put("tokenizer.json", VOCABULARY, sizeof VOCABULARY - 1);
        fuzz_expect(dsvi_tokenizer_open(FUZZ_ROOT, &tokenizer) == DSV_OK);
    }
    fuzz_expect(text);
    memcpy(text, data, size);
    text[size] = 0;
    if (dsvi_text_clean(text, &clean) == DSV_OK) {
        size_t bytes = strlen(clean);
        fuzz_accept();
        fuzz_expect(dsvi_utf8_valid(clean, bytes) && !strstr(clean, "  "));
        fuzz_expect(bytes == 0 || (clean[0] != ' ' && clean[bytes - 1] != ' '));
        free(clean);
        use_tokenizer(tokenizer, text);
    }
    free(text);
    return 0;
}
