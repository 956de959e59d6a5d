/* Fuzzes the limits of control groups, which Linux provides as small files. */
#include <math.h>

#include "base/control_group.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"cgroup",
                                        "a/cpu.max",
                                        "a/memory.max",
                                        "cpu/a/cpu.cfs_quota_us",
                                        "cpu/a/cpu.cfs_period_us",
                                        "memory/a/memory.limit_in_bytes"};
    fuzz_files_put_parts(names, 6, data, size);
    DsviGroupLimits limits = dsvi_group_limits(FUZZ_ROOT "/cgroup", FUZZ_ROOT);
    fuzz_expect(limits.cores >= 0 && limits.bytes >= 0);
    if (isfinite(limits.cores) && isfinite(limits.bytes))
        fuzz_accept();
    return 0;
}
