/* See config_file.h. CMake defines DSV_DATA_FROM_BIN, the path from the program's folder to its data
 * folder. */
#include "config_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes the folder of the running program, without a slash at the end. Returns false if the system does not
   report the folder. */
static bool program_folder(char folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (length <= 0)
        return false;
    folder[length] = 0;
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

const char *cli_config_find(const char *named)
{
    static char installed[2 * PATH_MAX];
    char folder[PATH_MAX];
    if (access(named, F_OK) == 0 || named[0] == '/' || !program_folder(folder))
        return named;
    snprintf(installed, sizeof installed, "%s/%s/%s", folder, DSV_DATA_FROM_BIN, named);
    return access(installed, F_OK) == 0 ? installed : named;
}

DsvStatus cli_config_load(const char *named, DsvConfig *config)
{
    return dsv_config_load(config, cli_config_find(named));
}
