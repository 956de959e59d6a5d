/* Fuzzes tokenizer.json. */
#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return run_tokenizer("tokenizer.json", data, size);
}
