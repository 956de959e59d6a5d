/* See host.h. Linux's /proc for what is resident now, getrusage for the most. */
#include "base/host.h"

#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_ROOM = 4096 };

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

/* A quota and its period, each in microseconds, from one file or from two. */
static double read_quota(const char *folder, int folder_length, const char *quota_file,
                         const char *period_file)
{
    const char *const name[2] = {quota_file, period_file};
    char path[PATH_ROOM], text[64] = "", *end = text;
    size_t used = 0;
    for (int i = 0; i < 2 && name[i]; i++) {
        snprintf(path, sizeof path, "%.*s/%s", folder_length, folder, name[i]);
        FILE *file = fopen(path, "r");
        if (!file)
            return INFINITY;
        used += fread(text + used, 1, sizeof text - 1 - used, file);
        fclose(file);
    }
    text[used] = 0;
    double quota = strtod(text, &end), period = strtod(end, NULL);
    return end > text && quota > 0 && period > 0 ? quota / period : INFINITY; /* "max", or -1 */
}

double dsvi_cpu_quota(const char *root, const char *group)
{
    char folder[PATH_ROOM];
    double least = INFINITY;
    int length = snprintf(folder, sizeof folder, "%s%s", root, group), root_length = (int)strlen(root);
    while (length < (int)sizeof folder && length >= root_length) {
        least = fmin(least, read_quota(folder, length, "cpu.max", NULL));
        do
            length--;
        while (length > root_length && folder[length] != '/');
    }
    return least;
}

/* Of the first version of control groups: that of the group which is this process's root. */
static double old_quota(void)
{
    static const char root[] = "/sys/fs/cgroup/cpu";
    return read_quota(root, (int)strlen(root), "cpu.cfs_quota_us", "cpu.cfs_period_us");
}

/* Of the second, whose line in the list of a process's groups begins with 0. */
static double new_quota(void)
{
    char line[PATH_ROOM] = "";
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (!file)
        return INFINITY;
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, "0::", 3) == 0;
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    return found ? dsvi_cpu_quota("/sys/fs/cgroup", line + 3) : INFINITY;
}

int dsvi_usable_cores(void)
{
    cpu_set_t set;
    /* A machine of more cores than the set has room for says so by failing. */
    long count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                             : sysconf(_SC_NPROCESSORS_ONLN);
    double quota = fmin(new_quota(), old_quota());
    if (quota < (double)count)
        count = (long)ceil(quota);
    return count < 1 ? 1 : (int)count;
}

uint64_t dsvi_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}
