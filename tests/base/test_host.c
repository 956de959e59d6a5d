/* What control groups leave of the machine's memory. */
#include "base/host.h"

#include "scratch.h"

static void put(const char *folder, const char *name, const char *text)
{
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_folder_make(scratch_path(folder)));
    assert_ok(dsvi_path_join(path, scratch_path(folder), name));
    assert_ok(dsvi_file_write(path, text, strlen(text)));
}

static uint64_t limit_of(const char *groups)
{
    put("", "groups", groups);
    return dsvi_cgroup_bytes(scratch_path("groups"), scratch_path("mount"));
}

static void the_least_of_nested_groups_counts(void **state)
{
    (void)state;
    put("mount", "memory.max", "max\n");
    put("mount/job", "memory.max", "4000\n");
    put("mount/job/step", "memory.max", "5000\n");
    assert_int_equal(limit_of("0::/job/step\n"), 4000);
    put("mount/job/step", "memory.max", "max\n");
    assert_int_equal(limit_of("0::/job/step\n"), 4000);
    put("mount/job/step", "memory.max", "3000\n");
    assert_int_equal(limit_of("0::/job/step\n"), 3000);
    assert_true(limit_of("0::/\n") == UINT64_MAX);
}

static void version_1_and_containers(void **state)
{
    (void)state;
    put("mount/memory", "memory.limit_in_bytes", "7000\n"); /* all that is mounted inside a container */
    assert_int_equal(limit_of("9:name=systemd:/\n4:memory:/docker/abc\n0::/\n"), 7000);
    assert_int_equal(limit_of("4:cpu,memory:/\n"), 7000);
    assert_true(limit_of("4:cpu:/\n") == UINT64_MAX);
    assert_true(limit_of("nonsense\n") == UINT64_MAX);
    assert_true(dsvi_cgroup_bytes(scratch_path("nothing"), scratch_path("mount")) == UINT64_MAX);
    assert_true(dsvi_memory_bytes() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_nested_groups_counts), cmocka_unit_test(version_1_and_containers),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
