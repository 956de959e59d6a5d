/* Fuzzes spiece.model. */
#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return run_tokenizer("spiece.model", data, size);
}
