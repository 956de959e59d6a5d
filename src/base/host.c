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

static DsviGroupLimits limits_of_this_process(void)
{
    return dsvi_group_limits("/proc/self/cgroup", "/sys/fs/cgroup");
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

/* Returns MemAvailable of /proc/meminfo in bytes; 0 if it is not there. */
static double available_of_machine(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return 1024.0 * (double)kib;
}

uint64_t dsvi_memory_available(void)
{
    return (uint64_t)fmin(available_of_machine(), limits_of_this_process().free_bytes);
}

uint64_t dsvi_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    double bytes = pages > 0 && size > 0 ? (double)pages * (double)size : 0;
    return (uint64_t)fmin(bytes, limits_of_this_process().bytes);
}
