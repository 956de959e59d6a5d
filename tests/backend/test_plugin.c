/* test_plugin [CASE]: opens device=cuda with the fake libdsv_cuda.so of that case, which ctest puts first on
 * LD_LIBRARY_PATH (CMakeLists.txt of this folder), and checks the handshake of ops/plugin.h. The cases auto_*
 * open device=auto beside a fake driver. With the plugin `opens`, one rank of three opens another kind of
 * device. */
#include "backend/backend.h"
#include "dist/local_ranks.h"
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

/* Opens the CPU on rank 1 and the plugin's GPU on the others. */
static DsvStatus open_unlike(DsviComm *comm, void *context)
{
    DsvConfig config;
    DsviBackend backend;
    (void)context;
    dsv_config_defaults(&config);
    DSVI_TRY(dsv_config_set(&config, dsvi_comm_rank(comm) == 1 ? "device=cpu" : "device=cuda"));
    DSVI_TRY(dsvi_backend_open_rank(&config, comm, &backend));
    dsvi_backend_close(&backend);
    return DSV_OK;
}

/* Ranks of one job must open the same kind of device. */
static void test_unlike_ranks(void **state)
{
    RankOutcome outcome[3];
    (void)state;
    run_ranks(3, 30, open_unlike, NULL, outcome);
    assert_int_equal(outcome[0].status, DSV_OK);
    assert_int_equal(outcome[1].status, DSV_E_USAGE);
    assert_int_equal(outcome[2].status, DSV_OK);
    assert_non_null(strstr(outcome[1].sentence, "device=cpu: this rank would compute on the CPU and rank 0 "
                                                "on a GPU, expected one kind of device for all ranks"));
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
    const struct CMUnitTest unlike[] = {cmocka_unit_test(test_unlike_ranks)};
    if (argc > 1)
        test_case = argv[1];
    if (strcmp(test_case, "opens") == 0)
        return cmocka_run_group_tests(unlike, NULL, NULL);
    return strncmp(test_case, "auto_", 5) == 0 ? cmocka_run_group_tests(automatic, NULL, NULL)
                                               : cmocka_run_group_tests(handshake, NULL, NULL);
}
