/* What Linux's control groups leave a process of its machine: containers, Slurm and Kubernetes set them. */
#ifndef DSVI_CONTROL_GROUP_H
#define DSVI_CONTROL_GROUP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvGroupLimits {
    double cores; /* the time of so many; INFINITY: of all */
    double bytes; /* of memory; INFINITY: all */
} DsvGroupLimits;

/* The least of the groups that a process is in and of those around them. `groups` names them as
 * /proc/self/cgroup does; their files are below `mount`, as below /sys/fs/cgroup: cpu.max and memory.max
 * (version 2), or cpu/cpu.cfs_quota_us, cpu/cpu.cfs_period_us and memory/memory.limit_in_bytes (version 1).
 * What cannot be read limits nothing. */
DsvGroupLimits dsvi_group_limits(const char *groups, const char *mount);

#ifdef __cplusplus
}
#endif
#endif
