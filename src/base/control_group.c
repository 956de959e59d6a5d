/* See control_group.h. */
#include "base/control_group.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096, PATH_BYTES = LINE_BYTES + 512 };

/* Reads up to two numbers from the start of a file and returns how many there are. The word "max" (no limit)
   does not count as a number. */
static int read_numbers(const char *folder, const char *name, double number[2])
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    int count = fscanf(file, "%lf %lf", &number[0], &number[1]);
    fclose(file);
    return count > 0 ? count : 0;
}

static double limit_of(double quota, double period)
{
    return quota > 0 && period > 0 ? quota / period : INFINITY; /* a quota of -1 means no limit */
}

/* Ignores a negative limit, which no kernel writes. */
static double valid_byte_limit(double limit)
{
    return limit >= 0 ? limit : INFINITY;
}

/* Returns the number in a line "NAME NUMBER" of a file; 0 if it is not there. */
static double read_named(const char *folder, const char *file_name, const char *name)
{
    char path[PATH_BYTES + 64], line[256];
    double number = 0;
    size_t length = strlen(name);
    snprintf(path, sizeof path, "%s/%s", folder, file_name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            number = strtod(line + length, NULL);
    if (file)
        fclose(file);
    return number;
}

/* Applies a group's limit of memory. Files that the kernel caches for the group can be dropped: their bytes
   are the lines inactive_file and active_file of memory.stat, with `prefix` before them. */
static void apply_bytes(const char *folder, const char *limit_name, const char *used_name, const char *prefix,
                        DsviGroupLimits *limits)
{
    static const char *const lists[] = {"inactive_file", "active_file"};
    double limit[2], used[2] = {0, 0};
    if (read_numbers(folder, limit_name, limit) == 0)
        return;
    limits->bytes = fmin(limits->bytes, valid_byte_limit(limit[0]));
    if (read_numbers(folder, used_name, used) == 0)
        used[0] = 0;
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", prefix, lists[i]);
        used[0] -= read_named(folder, "memory.stat", name);
    }
    limits->free_bytes = fmin(limits->free_bytes, fmax(0, valid_byte_limit(limit[0]) - fmax(0, used[0])));
}

static void apply_v2(const char *folder, DsviGroupLimits *limits)
{
    double number[2];
    if (read_numbers(folder, "cpu.max", number) == 2)
        limits->cores = fmin(limits->cores, limit_of(number[0], number[1]));
    apply_bytes(folder, "memory.max", "memory.current", "", limits);
    apply_bytes(folder, "memory.high", "memory.current", "", limits);
}

static void apply_v1_cores(const char *folder, DsviGroupLimits *limits)
{
    double quota[2], period[2];
    if (read_numbers(folder, "cpu.cfs_quota_us", quota) > 0 &&
        read_numbers(folder, "cpu.cfs_period_us", period) > 0)
        limits->cores = fmin(limits->cores, limit_of(quota[0], period[0]));
}

static void apply_v1_bytes(const char *folder, DsviGroupLimits *limits)
{
    apply_bytes(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", limits);
}

/* Applies the limits of a group and of all its parents. Inside a container only the root group may have a
 * folder. */
static void apply_with_parents(void (*apply)(const char *folder, DsviGroupLimits *limits), const char *mount,
                               const char *below, const char *group, DsviGroupLimits *limits)
{
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s%s", mount, below, group);
    size_t root = strlen(mount) + strlen(below);
    if (length < 0 || (size_t)length >= sizeof folder)
        return;
    for (char *end = folder + length; end; end = strrchr(folder + root, '/')) {
        *end = 0;
        apply(folder, limits);
    }
}

/* Returns whether a list that is separated by commas has this entry. */
static bool has_entry(const char *list, const char *entry)
{
    size_t length = strlen(entry);
    for (; list; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, entry, length) == 0 && (list[length] == 0 || list[length] == ','))
            return true;
    }
    return false;
}

/* Parses a line of /proc/self/cgroup: "0::GROUP" in version 2, "NUMBER:CONTROLLERS:GROUP" in version 1. */
static void apply_line(char *line, const char *mount, DsviGroupLimits *limits)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *controllers++ = 0;
    *group++ = 0;
    if (*controllers == 0)
        apply_with_parents(apply_v2, mount, "", group, limits);
    if (has_entry(controllers, "cpu"))
        apply_with_parents(apply_v1_cores, mount, "/cpu", group, limits);
    if (has_entry(controllers, "memory"))
        apply_with_parents(apply_v1_bytes, mount, "/memory", group, limits);
}

DsviGroupLimits dsvi_group_limits(const char *groups, const char *mount)
{
    char line[LINE_BYTES];
    DsviGroupLimits limits = {INFINITY, INFINITY, INFINITY};
    FILE *file = fopen(groups, "r");
    while (file && fgets(line, sizeof line, file))
        apply_line(line, mount, &limits);
    if (file)
        fclose(file);
    return limits;
}
