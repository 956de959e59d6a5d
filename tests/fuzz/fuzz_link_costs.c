/* Fuzzes the costs of attention and of transfers between ranks, as JSON. */
#include "cp/cp_costs.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviCpCosts costs, again;
    fuzz_files_clear();
    fuzz_file_put("costs.json", data, size);
    if (dsvi_costs_read(FUZZ_ROOT "/costs.json", &costs) != DSV_OK)
        return 0;
    fuzz_accept();
    for (int64_t i = 0; i < costs.link_count; i++)
        fuzz_expect(dsvi_price_at(&costs.link[i].head_exchange, 1e6) >= 0);
    if (dsvi_costs_write(FUZZ_ROOT "/again.json", &costs) == DSV_OK)
        (void)dsvi_costs_read(FUZZ_ROOT "/again.json", &again);
    return 0;
}
