/* Fuzzes lists of clips as CSV. */
#include "list_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return read_rows("a.csv", data, size);
}
