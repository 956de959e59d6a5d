/* Sparsities of heads as text: which texts are accepted and which are refused. */
#include "test.h"

#include "bench/bench_cp_parts.h"
#include "base/scratch.h"

enum { HEADS = 4 };

static void check(const char *text, const double wanted[HEADS])
{
    double density[HEADS] = {0};
    assert_ok(dsvi_head_sparsity_read(text, HEADS, density));
    for (int h = 0; h < HEADS; h++)
        assert_error_below(fabs(density[h] - (1 - wanted[h])), 1e-12, "%s, head %d", text, h);
}

static void refuse(const char *text, DsvStatus status, const char *words)
{
    double density[HEADS];
    assert_fails(status, words, dsvi_head_sparsity_read(text, HEADS, density));
}

static const char *write_text(const char *text)
{
    const char *path = scratch_path("sparsity.json");
    assert_ok(dsvi_file_write(path, text, strlen(text)));
    return path;
}

static void test_lists(void **state)
{
    (void)state;
    check("0.9", (const double[]){0.9, 0.9, 0.9, 0.9});
    check("0.1,0.2,0.3,0.4", (const double[]){0.1, 0.2, 0.3, 0.4});
    check("0.8*1,0.9*3", (const double[]){0.8, 0.9, 0.9, 0.9});
    check("0.8..0.95*4", (const double[]){0.8, 0.85, 0.9, 0.95});
    check("0,0.9..0.8*3", (const double[]){0, 0.9, 0.85, 0.8});
    check("0.5..0.6", (const double[]){0.5, 0.5 + 0.1 / 3, 0.5 + 0.2 / 3, 0.6});
}

static void test_refused_lists(void **state)
{
    static const char *const wrong[] = {
        "0.9,0.9",
        "0.9*5",
        "0.9*2",
        "0.9*2,",
        "1",
        "-0.1",
        "0.9..1*4",
        "0.9*0,0.9*4",
        "0.9.",
        "0.9*-4",
        "0.1,0.2,0.3,0.4,0.5",
        "",
        "e",
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse(wrong[i], DSV_E_USAGE, wrong[i]);
}

static void test_files(void **state)
{
    (void)state;
    check(write_text("[0.1, 0.2, 0.3, 0.4]"), (const double[]){0.1, 0.2, 0.3, 0.4});
    refuse(write_text("[0.1, 0.2, 0.3]"), DSV_E_FORMAT,
           "4 sparsities, one for each head, found an "
           "array of 3");
    refuse(write_text("{}"), DSV_E_FORMAT, "found an object");
    refuse(write_text("[0.1, 0.2, 0.3, 1]"), DSV_E_FORMAT,
           "head 3: expected a sparsity from 0 to below 1, "
           "found 1");
    refuse(write_text("[0.1, \"0.2\", 0.3, 0.4]"), DSV_E_FORMAT,
           "head 1: expected a sparsity from 0 to below "
           "1, found a string");
    refuse(write_text("[0.1, 0.2,\n 0.3; 0.4]"), DSV_E_FORMAT, "no JSON from line 2, column 5 on");
    refuse(write_text("[0.1, 0.2, 0.3, 0.4] 0.5"), DSV_E_FORMAT, "no JSON from line 1, column 22 on");
    refuse(write_text(""), DSV_E_FORMAT, "no JSON from line 1, column 1 on");
}

/* Words that strtod accepts as numbers, and names that begin with such a word. */
static void test_names_of_files(void **state)
{
    static const char *const name[] = {
        "no/such/file.json", "info.json", "nan", "inf", "0x1", "0.9.json", "0.9 ", "0.9*4x", "abc",
    };
    (void)state;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        refuse(name[i], DSV_E_NOT_FOUND, name[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refused_lists),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_names_of_files),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
