/* test_plugin [CASE]: opens device=cuda with the fake libdsv_cuda.so of that case, which ctest puts first on
 * LD_LIBRARY_PATH (CMakeLists.txt of this folder), and checks the handshake of ops/plugin.h. The cases auto_*
 * open device=auto beside a fake driver. */
#include "backend/backend.h"
#include "dsv/config.h"
#include "ops/plugin.h"
#include "test.h"

static const char *test_case = "accepted"; /* name of a fake library in CMakeLists.txt */

/* The message in which device=cuda must fail. */
static void write_expected(char *expected, size_t bytes)
{
    if (strcmp(test_case, "accepted") == 0)
        snprintf(expected, bytes, "fake plugin: %zu bytes, device 0, deterministic",
                 sizeof(DsviPluginOpenArgs));
    else if (strcmp(test_case, "abi") == 0)
        snprintf(expected, bytes, "libdsv_cuda.so has plugin ABI %u, expected %u", DSVI_PLUGIN_ABI + 1,
                 DSVI_PLUGIN_ABI);
    else if (strcmp(test_case, "bytes") == 0)
        snprintf(expected, bytes, "libdsv_cuda.so has a DsviPlugin of %zu bytes, expected %zu",
                 sizeof(DsviPlugin) + 8, sizeof(DsviPlugin));
    else if (strcmp(test_case, "backend_bytes") == 0)
        snprintf(expected, bytes, "libdsv_cuda.so has a DsviBackend of %zu bytes, expected %zu",
                 sizeof(DsviBackend) - 8, sizeof(DsviBackend));
    else if (strcmp(test_case, "symbol") == 0)
        snprintf(expected, bytes, "libdsv_cuda.so is not a backend of dsv: it does not export dsvi_plugin");
    else
        fail_msg("no case %s", test_case);
}

static void test_handshake(void **state)
{
    bool accepted = strcmp(test_case, "accepted") == 0;
    char expected[256];
    DsvConfig config;
    DsviBackend backend;
    (void)state;
    write_expected(expected, sizeof expected);
    dsv_config_defaults(&config);
    assert_ok(dsv_config_set(&config, "device=cuda"));
    assert_ok(dsv_config_set(&config, "deterministic=true"));
    assert_fails(accepted ? DSV_E_DEVICE : DSV_E_UNSUPPORTED, expected, dsvi_backend_open(&config, &backend));
    assert_null(backend.device);
    dsvi_backend_close(&backend);
}

static void test_auto(void **state)
{
    DsvConfig config;
    DsviBackend backend;
    (void)state;
    dsv_config_defaults(&config);
    assert_ok(dsv_config_set(&config, "device=auto"));
    if (strcmp(test_case, "auto_gpu") == 0) {
        assert_fails(DSV_E_DEVICE, "fake plugin", dsvi_backend_open(&config, &backend));
    } else if (strcmp(test_case, "auto_broken_plugin") == 0) {
        assert_fails(DSV_E_UNSUPPORTED, "is not a backend of dsv", dsvi_backend_open(&config, &backend));
    } else { /* without a plugin, or without a GPU */
        assert_ok(dsvi_backend_open(&config, &backend));
        assert_int_equal(backend.device->kind, DSVI_DEVICE_CPU);
    }
    dsvi_backend_close(&backend);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest handshake[] = {cmocka_unit_test(test_handshake)};
    const struct CMUnitTest automatic[] = {cmocka_unit_test(test_auto)};
    if (argc > 1)
        test_case = argv[1];
    return strncmp(test_case, "auto_", 5) == 0 ? cmocka_run_group_tests(automatic, NULL, NULL)
                                               : cmocka_run_group_tests(handshake, NULL, NULL);
}
