/* Limits of CPU time and memory that Linux control groups (cgroups) set for a process. Containers, Slurm and
 * Kubernetes use them. */
#ifndef DSVI_CONTROL_GROUP_H
#define DSVI_CONTROL_GROUP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviGroupLimits {
    double cores;      /* limit of CPU time, in cores; INFINITY: not limited */
    double bytes;      /* limit of memory in bytes; INFINITY: not limited */
    double free_bytes; /* what the limits of memory still allow; INFINITY: not limited */
} DsviGroupLimits;

/* Returns the lowest limits among the control groups of a process and their parent groups. `groups` is a file
 * in the format of /proc/self/cgroup, `mount` a folder like /sys/fs/cgroup. The limits are read from cpu.max,
 * memory.max and memory.high, above which the kernel slows the group down (cgroup version 2), or from
 * cpu/cpu.cfs_quota_us, cpu/cpu.cfs_period_us and memory/memory.limit_in_bytes (version 1), the memory in use
 * from memory.current or memory/memory.usage_in_bytes. Files that the kernel caches for a group
 * (inactive_file and active_file in its memory.stat) do not count as used. A file that cannot be read sets no
 * limit. */
DsviGroupLimits dsvi_group_limits(const char *groups, const char *mount);

#ifdef __cplusplus
}
#endif
#endif
