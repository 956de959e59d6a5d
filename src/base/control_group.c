/* See control_group.h. */
#include "base/control_group.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 4096, PATH_BYTES = LINE_BYTES + 512 };

/* The numbers at the start of a file: how many of at most two there are. "max" is none. */
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
    return quota > 0 && period > 0 ? quota / period : INFINITY; /* -1: none */
}

/* A limit below zero is none: no kernel writes one. */
static double bytes_of(double limit)
{
    return limit >= 0 ? limit : INFINITY;
}

static void take_new(const char *folder, DsvGroupLimits *limits)
{
    double number[2];
    if (read_numbers(folder, "cpu.max", number) == 2)
        limits->cores = fmin(limits->cores, limit_of(number[0], number[1]));
    if (read_numbers(folder, "memory.max", number) > 0)
        limits->bytes = fmin(limits->bytes, bytes_of(number[0]));
}

static void take_old_cores(const char *folder, DsvGroupLimits *limits)
{
    double quota[2], period[2];
    if (read_numbers(folder, "cpu.cfs_quota_us", quota) > 0 &&
        read_numbers(folder, "cpu.cfs_period_us", period) > 0)
        limits->cores = fmin(limits->cores, limit_of(quota[0], period[0]));
}

static void take_old_bytes(const char *folder, DsvGroupLimits *limits)
{
    double number[2];
    if (read_numbers(folder, "memory.limit_in_bytes", number) > 0)
        limits->bytes = fmin(limits->bytes, bytes_of(number[0]));
}

/* Of a group and of those around it: inside a container only the outermost may be there. */
static void take_groups(void (*take)(const char *folder, DsvGroupLimits *limits), const char *mount,
                        const char *below, const char *group, DsvGroupLimits *limits)
{
    char folder[PATH_BYTES];
    int length = snprintf(folder, sizeof folder, "%s%s%s", mount, below, group);
    size_t least = strlen(mount) + strlen(below);
    if (length < 0 || (size_t)length >= sizeof folder)
        return;
    for (char *end = folder + length; end; end = strrchr(folder + least, '/')) {
        *end = 0;
        take(folder, limits);
    }
}

/* Whether a list divided by commas has this entry. */
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

/* A line of version 2 is "0::GROUP", one of version 1 "NUMBER:CONTROLLERS:GROUP". */
static void take_line(char *line, const char *mount, DsvGroupLimits *limits)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *controllers++ = 0;
    *group++ = 0;
    if (*controllers == 0)
        take_groups(take_new, mount, "", group, limits);
    if (has_entry(controllers, "cpu"))
        take_groups(take_old_cores, mount, "/cpu", group, limits);
    if (has_entry(controllers, "memory"))
        take_groups(take_old_bytes, mount, "/memory", group, limits);
}

DsvGroupLimits dsvi_group_limits(const char *groups, const char *mount)
{
    char line[LINE_BYTES];
    DsvGroupLimits limits = {INFINITY, INFINITY};
    FILE *file = fopen(groups, "r");
    while (file && fgets(line, sizeof line, file))
        take_line(line, mount, &limits);
    if (file)
        fclose(file);
    return limits;
}
