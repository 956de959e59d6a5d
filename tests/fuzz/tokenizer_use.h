/* Shared by the harnesses of tokenizer files: encodes a text and checks the ids. */
#ifndef DSVI_FUZZ_TOKENIZER_USE_H
#define DSVI_FUZZ_TOKENIZER_USE_H

#include "text/tokenizer.h"
#include "fuzz.h"

static inline void use_tokenizer(const DsviTokenizer *tokenizer, const char *text)
{
    enum { LIMIT = 16 };
    int32_t ids[LIMIT], more[2 * LIMIT];
    int64_t count, cut, more_count, more_cut;
    if (dsvi_tokenizer_encode(tokenizer, text, LIMIT, ids, &count, &cut) != DSV_OK)
        return;
    fuzz_expect(count >= 1 && count <= LIMIT && cut >= 0);
    for (int64_t i = 0; i < count; i++)
        fuzz_expect(ids[i] >= 0);
    fuzz_expect(dsvi_tokenizer_encode(tokenizer, text, 2 * LIMIT, more, &more_count, &more_cut) == DSV_OK);
    fuzz_expect(count + cut == more_count + more_cut && ids[count - 1] == more[more_count - 1]);
    fuzz_expect(memcmp(ids, more, (size_t)(count - 1) * sizeof *ids) == 0);
}

/* Makes the input the file `name`, and opens and uses the tokenizer in it. */
static inline int run_tokenizer(const char *name, const uint8_t *data, size_t size)
{
    DsviTokenizer *tokenizer;
    fuzz_files_clear();
    fuzz_file_put(name, data, size);
    if (dsvi_tokenizer_open(FUZZ_ROOT, &tokenizer) != DSV_OK)
        return 0;
    fuzz_accept();
    use_tokenizer(tokenizer, "a aa\xe2\x96\x81 aaaaaaaaaaaaaaaaa </s> \xf0\x9f\x99\x82 b <extra_id_0>a");
    dsvi_tokenizer_close(&tokenizer);
    return 0;
}

#endif
