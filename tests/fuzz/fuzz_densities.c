/* Fuzzes the densities of each block's heads, as JSON or as one number. */
#include "plan/densities.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { BLOCKS = 3, HEADS = 2 };
    double density[BLOCKS * HEADS];
    char number[64];
    size_t length = size < sizeof number ? size : sizeof number - 1;
    fuzz_files_clear();
    fuzz_file_put("densities.json", data, size);
    if (dsvi_densities_read(FUZZ_ROOT "/densities.json", BLOCKS, HEADS, density) == DSV_OK) {
        fuzz_accept();
        for (int i = 0; i < BLOCKS * HEADS; i++)
            fuzz_expect(!(density[i] <= 0) && !(density[i] > 1)); /* NaN: a dense block */
    }
    memcpy(number, data, length);
    number[length] = 0;
    (void)dsvi_densities_read(number, BLOCKS, HEADS, density);
    return 0;
}
