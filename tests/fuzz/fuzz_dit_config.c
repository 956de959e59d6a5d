/* Fuzzes a transformer's config.json. The parameters of an accepted shape must not overlap, and their sizes
 * must sum to the total. */
#include "model/dit/dit_config.h"
#include "model/weights/weights.h"
#include "fuzz.h"

static int by_offset(const void *a, const void *b)
{
    const DsviParam *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void check_table(DsviParamTable *table)
{
    __int128 sum = 0;
    int64_t end = 0;
    qsort(table->params, (size_t)table->count, sizeof *table->params, by_offset);
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *p = &table->params[i];
        fuzz_expect(p->offset >= end && p->count > 0 && p->offset % 16 == 0);
        end = p->offset + p->count;
        sum += p->count;
    }
    fuzz_expect(sum == table->parameters && end <= table->elements);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DsviDitConfig config, again;
    DsviParamTable table;
    fuzz_files_clear();
    fuzz_file_put("config.json", data, size);
    if (dsvi_dit_config_read(FUZZ_ROOT "/config.json", &config) != DSV_OK)
        return 0;
    fuzz_accept();
    fuzz_expect(dsvi_dit_config_write(FUZZ_ROOT "/again.json", &config) == DSV_OK);
    fuzz_expect(dsvi_dit_config_read(FUZZ_ROOT "/again.json", &again) == DSV_OK);
    fuzz_expect(dsvi_dit_config_compare(&again, &config, "again") == DSV_OK);
    if (config.num_layers <= 4 && dsvi_param_table_make(&config, &table) == DSV_OK) {
        check_table(&table);
        dsvi_param_table_free(&table);
    }
    return 0;
}
