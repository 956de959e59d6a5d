/* The parameter table against lists of tensors: original and diffusers names, shapes and order. The lists
 * were generated from the configurations of the published models by other code, not read from their weight
 * files. */
#include "test.h"

#include "model/weights.h"

/* "1536x16x1x2x2" as a param's shape says it. */
static void shape_text(const DsvParam *param, char text[128])
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
    DsvDitConfig config;
    DsvParamTable table;
    char line[512], original[128], name[128], shape[128], found[128];
    long long count;
    int64_t lines = 0;
    dsv_config_defaults(&settings);
    snprintf(settings.model_preset, sizeof settings.model_preset, "%s", preset);
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_ok(dsvi_param_table_make(&config, &table));
    FILE *file = fopen(shared_path(list), "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* the heading */
    for (; fgets(line, sizeof line, file); lines++) {
        assert_int_equal(sscanf(line, "%127s %127s %127s %lld", original, name, shape, &count), 4);
        assert_true(lines < table.count);
        const DsvParam *param = &table.params[lines];
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
    compare("wan1.3b", "reference/wan21_t2v_1.3b_tensors.tsv");
}

static void table_is_that_of_14b(void **state)
{
    (void)state;
    compare("wan14b", "reference/wan21_t2v_14b_tensors.tsv");
}

int main(void)
{
    skip_without_shared("reference/wan21_t2v_1.3b_tensors.tsv");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_that_of_1_3b),
        cmocka_unit_test(table_is_that_of_14b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
