/* See host.h. Linux's /proc for what is resident now, sysconf and control groups for what there is. */
#include "base/host.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

enum { LINE_BYTES = 4096, LIMIT_BYTES = LINE_BYTES + 256 };

/* UINT64_MAX where there is no such file, or no number in it. */
static uint64_t read_limit(const char *path)
{
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "r");
    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &limit) != 1)
        limit = UINT64_MAX;
    fclose(file);
    return limit;
}

/* The least of a group and those it is in: of a mount inside a container the outer ones may be missing. */
static uint64_t least_limit(const char *mount, const char *folder, char *group, const char *name)
{
    uint64_t least = UINT64_MAX;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        char path[LIMIT_BYTES];
        *end = 0;
        snprintf(path, sizeof path, "%s%s%s/%s", mount, folder, group, name);
        uint64_t limit = read_limit(path);
        least = limit < least ? limit : least;
    }
    return least;
}

/* A line of version 2 is "0::GROUP", one of version 1 "NUMBER:CONTROLLERS:GROUP". */
static uint64_t limit_of_line(char *line, const char *mount)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *group++ = 0;
    if (controllers[1] == 0)
        return least_limit(mount, "", group, "memory.max");
    bool counts = strstr(controllers, "memory") != NULL;
    return counts ? least_limit(mount, "/memory", group, "memory.limit_in_bytes") : UINT64_MAX;
}

uint64_t dsvi_cgroup_bytes(const char *groups, const char *mount)
{
    char line[LINE_BYTES];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen(groups, "r");
    while (file && fgets(line, sizeof line, file)) {
        uint64_t limit = limit_of_line(line, mount);
        least = limit < least ? limit : least;
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t dsvi_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    uint64_t left = dsvi_cgroup_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    return left < bytes ? left : bytes;
}
