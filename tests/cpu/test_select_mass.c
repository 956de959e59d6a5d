/* Mass of lists whose threshold follows from a sample of the spans (select_mass_cases.h), for the reference
 * implementation and the best CPU variant. */
#include "cpu/cpu.h"
#include "ops/select_mass_cases.h"
#include "test.h"

static DsviBackend cpu;

static int open_cpu(void **state)
{
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 0, &cpu));
    return 0;
}

static int close_cpu(void **state)
{
    (void)state;
    dsvi_cpu_close(&cpu);
    return 0;
}

static void reference_holds_sinks(void **state)
{
    (void)state;
    check_select_sink_cases(NULL, 6, 8192, 4, 64);
    check_select_sink_cases(NULL, 2, 32768, 4, 64);
}

static void variant_holds_sinks(void **state)
{
    (void)state;
    check_select_sink_cases(&cpu, 6, 8192, 16, 16);
    check_select_sink_cases(&cpu, 6, 32768, 8, 64);
    if (!TEST_SANITIZED)
        check_select_sink_cases(&cpu, 2, 131072, 4, 64);
}

static void variant_holds_trained_heads(void **state)
{
    (void)state;
    FILE *file = fopen(shared_path("fixtures/heads/heads.safetensors"), "rb");
    if (!file)
        skip();
    fclose(file);
    check_select_trained_cases(&cpu, 0, 8192, 16);
    if (!TEST_SANITIZED)
        check_select_trained_cases(&cpu, 2, 32768, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_holds_sinks),
        cmocka_unit_test(variant_holds_sinks),
        cmocka_unit_test(variant_holds_trained_heads),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
