/* Quotas of a processor's time, as control groups have them. */
#include "base/host.h"

#include <sched.h>

#include "base/scratch.h"

static void put(const char *group, const char *text)
{
    char file[256];
    snprintf(file, sizeof file, "%s/cpu.max", group);
    assert_ok(dsvi_folder_make(scratch_path(group)));
    assert_ok(dsvi_file_write(scratch_path(file), text, strlen(text)));
}

static void the_least_quota_around_counts(void **state)
{
    (void)state;
    put("a/b/c", "max 100000\n");
    assert_true(dsvi_cpu_quota(scratch_folder, "/a/b/c") == INFINITY);
    assert_true(dsvi_cpu_quota(scratch_folder, "/nowhere") == INFINITY);
    put("a", "250000 100000\n");
    assert_true(dsvi_cpu_quota(scratch_folder, "/a/b/c") == 2.5);
    put("a/b", "50000 100000\n");
    assert_true(dsvi_cpu_quota(scratch_folder, "/a/b/c") == 0.5);
    assert_true(dsvi_cpu_quota(scratch_folder, "/a") == 2.5);
    put("a/b/c", "150000 50000\n");
    assert_true(dsvi_cpu_quota(scratch_folder, "/a/b/c") == 0.5);
    put(".", "10000 100000\n");
    assert_true(dsvi_cpu_quota(scratch_folder, "/a") == 0.1);
    assert_true(dsvi_cpu_quota(scratch_folder, "/") == 0.1);
}

static void cores_are_those_one_may_run_on_at_most(void **state)
{
    cpu_set_t set;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_true(dsvi_usable_cores() >= 1 && dsvi_usable_cores() <= CPU_COUNT(&set));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_quota_around_counts),
        cmocka_unit_test(cores_are_those_one_may_run_on_at_most),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
