/* The memory and processors that control groups allow a process, read from files like Linux's. */
#include "base/control_group.h"

#include <sched.h>

#include "base/host.h"
#include "base/scratch.h"

static void put(const char *folder, const char *name, const char *text)
{
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_folder_make(scratch_path(folder)));
    assert_ok(dsvi_path_join(path, scratch_path(folder), name));
    assert_ok(dsvi_file_write(path, text, strlen(text)));
}

static DsviGroupLimits limits_of(const char *groups)
{
    put("", "groups", groups);
    return dsvi_group_limits(scratch_path("groups"), scratch_path("mount"));
}

static void the_least_of_nested_groups_counts(void **state)
{
    (void)state;
    put("mount/job/step", "memory.max", "max\n");
    put("mount/job/step", "cpu.max", "max 100000\n");
    assert_true(limits_of("0::/job/step\n").bytes == INFINITY);
    assert_true(limits_of("0::/job/step\n").cores == INFINITY);
    put("mount/job", "memory.max", "4000\n");
    put("mount/job", "cpu.max", "250000 100000\n");
    assert_true(limits_of("0::/job/step\n").bytes == 4000 && limits_of("0::/job/step\n").cores == 2.5);
    put("mount/job/step", "memory.max", "5000\n");
    put("mount/job/step", "cpu.max", "150000 50000\n");
    assert_true(limits_of("0::/job/step\n").bytes == 4000 && limits_of("0::/job/step\n").cores == 2.5);
    put("mount/job/step", "memory.max", "3000\n");
    put("mount/job/step", "cpu.max", "50000 100000\n");
    assert_true(limits_of("0::/job/step\n").bytes == 3000 && limits_of("0::/job/step\n").cores == 0.5);
    put("mount/job/step", "memory.max", "-5\n"); /* not written by any kernel: not a limit */
    assert_true(limits_of("0::/job/step\n").bytes == 4000);
    assert_true(limits_of("0::/job\n").bytes == 4000 && limits_of("0::/elsewhere\n").bytes == INFINITY);
    put("mount", "cpu.max", "10000 100000\n");
    assert_true(limits_of("0::/elsewhere\n").cores == 0.1 && limits_of("0::/\n").cores == 0.1);
}

static void version_1_and_containers(void **state)
{
    DsviGroupLimits limits;
    (void)state;
    put("mount/memory", "memory.limit_in_bytes", "7000\n"); /* the only mount inside a container */
    put("mount/cpu", "cpu.cfs_quota_us", "300000\n");
    put("mount/cpu", "cpu.cfs_period_us", "100000\n");
    limits = limits_of("9:name=systemd:/\n5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n");
    assert_true(limits.bytes == 7000 && limits.cores == 3);
    limits = limits_of("4:cpuset:/\n5:name=memory:/\n");
    assert_true(limits.bytes == INFINITY && limits.cores == INFINITY);
    put("mount/cpu/job", "cpu.cfs_quota_us", "-1\n");
    put("mount/cpu/job", "cpu.cfs_period_us", "100000\n");
    assert_true(limits_of("5:cpu:/job\n").cores == 3);
    assert_true(limits_of("nonsense\n").bytes == INFINITY);
    assert_true(dsvi_group_limits(scratch_path("nothing"), scratch_path("mount")).bytes == INFINITY);
}

static void caches_of_files_are_free(void **state)
{
    (void)state;
    put("mount/fit/step", "memory.current", "3600\n");
    put("mount/fit/step", "memory.stat", "anon 600\ninactive_file 2000\nactive_file 500\nactive_files 9\n");
    put("mount/fit/step", "memory.max", "max\n");
    assert_true(limits_of("0::/fit/step\n").free_bytes == INFINITY);
    put("mount/fit/step", "memory.max", "5000\n");
    assert_true(limits_of("0::/fit/step\n").free_bytes == 3900);
    put("mount/fit", "memory.max", "4000\n"); /* the parent's own files count, not the step's */
    put("mount/fit", "memory.current", "3800\n");
    assert_true(limits_of("0::/fit/step\n").free_bytes == 200 && limits_of("0::/fit/step\n").bytes == 4000);
    put("mount/fit/step", "memory.high", "1200\n");
    assert_true(limits_of("0::/fit/step\n").free_bytes == 100 && limits_of("0::/fit/step\n").bytes == 1200);
    put("mount/fit/step", "memory.current", "9000\n");
    assert_true(limits_of("0::/fit/step\n").free_bytes == 0);
    put("mount/fit/step", "memory.current", "1\n"); /* read before the cache grew: not more than the limit */
    assert_true(limits_of("0::/fit/step\n").free_bytes == 200);
    put("mount/memory/old", "memory.limit_in_bytes", "6000\n");
    put("mount/memory/old", "memory.usage_in_bytes", "5000\n");
    put("mount/memory/old", "memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 1500\ntotal_active_file 700\n");
    assert_true(limits_of("4:memory:/old\n").free_bytes == 3200);
}

static uint64_t available_with(const char *meminfo, const char *groups)
{
    put("", "meminfo", meminfo);
    put("", "groups", groups);
    return dsvi_memory_available_by(scratch_path("meminfo"), scratch_path("groups"), scratch_path("mount"));
}

static void available_is_the_least_of_machine_and_groups(void **state)
{
    (void)state;
    put("mount/room", "memory.max", "5000\n");
    put("mount/room", "memory.current", "1000\n");
    const char *machine = "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: 3 kB\n";
    assert_int_equal(available_with(machine, "0::/room\n"), 3072);
    assert_int_equal(available_with("MemAvailable: 7 kB\n", "0::/room\n"), 4000);
    assert_int_equal(available_with(machine, "0::/without\n"), 3072);
    assert_int_equal(available_with("MemTotal: 9 kB\n", "0::/room\n"), 4000);
    assert_int_equal(available_with("MemTotal: 9 kB\n", "0::/without\n"), 0);
    put("mount/room", "memory.current", "5000\n");
    assert_int_equal(available_with(machine, "0::/room\n"), 1);
}

static void of_this_process(void **state)
{
    cpu_set_t set;
    (void)state;
    assert_true(dsvi_memory_bytes() > 0);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_true(dsvi_usable_cores() >= 1 && dsvi_usable_cores() <= CPU_COUNT(&set));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_nested_groups_counts),
        cmocka_unit_test(version_1_and_containers),
        cmocka_unit_test(caches_of_files_are_free),
        cmocka_unit_test(available_is_the_least_of_machine_and_groups),
        cmocka_unit_test(of_this_process),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
