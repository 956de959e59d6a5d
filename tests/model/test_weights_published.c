/* The parameter table against lists of published tensors: original and diffusers names, shapes and order. The
 * lists come from diffusers' model and name conversion (tests/golden/make_names.py), not from the weight
 * files of the published models. */
#include "test.h"

#include "golden/golden_files.h"
#include "model/weights/weights.h"

/* Writes the shape of a parameter as text, such as "1536x16x1x2x2". */
static void shape_text(const DsviParam *param, char text[128])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < param->ndim; i++) {
        snprintf(text + used, 128 - used, i ? "x%lld" : "%lld", (long long)param->shape[i]);
        used = strlen(text);
    }
}

static void compare(const char *preset, const char *list)
{
    DsvConfig settings;
    DsviDitConfig config;
    DsviParamTable table;
    char line[512], original[128], name[128], shape[128], found[128];
    long long count;
    int64_t lines = 0;
    dsv_config_defaults(&settings);
    snprintf(settings.model_preset, sizeof settings.model_preset, "%s", preset);
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_ok(dsvi_param_table_make(&config, &table));
    FILE *file = fopen(golden_path(list), "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* skip the header line */
    for (; fgets(line, sizeof line, file); lines++) {
        assert_int_equal(sscanf(line, "%127s %127s %127s %lld", original, name, shape, &count), 4);
        assert_true(lines < table.count);
        const DsviParam *param = &table.params[lines];
        assert_string_equal(param->original, original);
        assert_string_equal(param->name, name);
        shape_text(param, found);
        assert_string_equal(found, shape);
        assert_int_equal(param->count, count);
    }
    assert_int_equal(lines, table.count);
    fclose(file);
    dsvi_param_table_free(&table);
}

static void table_is_that_of_1_3b(void **state)
{
    (void)state;
    compare("wan1.3b", "published/wan21_t2v_1.3b.txt");
}

static void table_is_that_of_14b(void **state)
{
    (void)state;
    compare("wan14b", "published/wan21_t2v_14b.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_that_of_1_3b),
        cmocka_unit_test(table_is_that_of_14b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
