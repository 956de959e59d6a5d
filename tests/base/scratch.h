/* A temporary folder for files of a test program, removed when the program ends. */
#ifndef DSVI_TEST_SCRATCH_H
#define DSVI_TEST_SCRATCH_H

#include <unistd.h>

#include "base/fs.h"
#include "test.h"

static char scratch_folder[64];

/* Set-up and tear-down functions for a group of cmocka tests. */
static inline int scratch_make(void **state)
{
    (void)state;
    snprintf(scratch_folder, sizeof scratch_folder, "/tmp/dsv-test-XXXXXX");
    return mkdtemp(scratch_folder) ? 0 : 1;
}

static inline int scratch_remove(void **state)
{
    (void)state;
    return dsvi_folder_remove(scratch_folder) == DSV_OK ? 0 : 1;
}

/* Path of a file in the folder. The last four returned paths stay valid. */
static inline const char *scratch_path(const char *name)
{
    static char path[4][DSVI_PATH_MAX];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof path[0], "%s/%s", scratch_folder, name);
    return out;
}

#endif
