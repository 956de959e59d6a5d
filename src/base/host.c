/* See host.h. Linux's /proc reports resident memory; sysconf, the affinity mask and control groups report how
 * much memory and how many cores exist. */
#include "base/host.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/control_group.h"

double dsvi_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t dsvi_resident_bytes(void)
{
    char text[128];
    unsigned long long total = 0, resident = 0;
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0)
        return 0;
    text[got] = 0;
    if (sscanf(text, "%llu %llu", &total, &resident) != 2)
        return 0;
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static const char groups_file[] = "/proc/self/cgroup", groups_mount[] = "/sys/fs/cgroup";

static DsviGroupLimits limits_of_this_process(void)
{
    return dsvi_group_limits(groups_file, groups_mount);
}

int dsvi_usable_cores(void)
{
    cpu_set_t set;
    /* sched_getaffinity fails on a machine with more cores than cpu_set_t can hold. */
    long count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                             : sysconf(_SC_NPROCESSORS_ONLN);
    double usable = fmin((double)count, ceil(limits_of_this_process().cores));
    return usable < 1 ? 1 : (int)usable;
}

/* Returns MemAvailable of a file like /proc/meminfo in bytes; INFINITY if it is not there. */
static double available_of_machine(const char *meminfo)
{
    char line[128];
    unsigned long long kib = 0;
    double bytes = INFINITY;
    FILE *file = fopen(meminfo, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            bytes = 1024.0 * (double)kib;
    if (file)
        fclose(file);
    return bytes;
}

/* Returns a number of bytes, at least 1 since 0 stands for unknown. */
static uint64_t known_bytes(double bytes)
{
    return isinf(bytes) ? 0 : (uint64_t)fmax(1, bytes);
}

uint64_t dsvi_memory_available_by(const char *meminfo, const char *groups, const char *mount)
{
    return known_bytes(fmin(available_of_machine(meminfo), dsvi_group_limits(groups, mount).free_bytes));
}

uint64_t dsvi_memory_available(void)
{
    return dsvi_memory_available_by("/proc/meminfo", groups_file, groups_mount);
}

uint64_t dsvi_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    double bytes = pages > 0 && size > 0 ? (double)pages * (double)size : INFINITY;
    return known_bytes(fmin(bytes, limits_of_this_process().bytes));
}
