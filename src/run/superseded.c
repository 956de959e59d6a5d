/* Implements superseded.h: moves replaced files of a run into superseded/. */
#include "run/superseded.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Creates a folder with the first unused number. A folder left by a killed start is not reused. */
static DsvStatus make_numbered(const char *parent, char folder[DSVI_PATH_MAX])
{
    char name[32];
    for (int n = 1;; n++) {
        snprintf(name, sizeof name, "%d", n);
        DSVI_TRY(dsvi_path_join(folder, parent, name));
        if (dsvi_path_exists(folder))
            continue;
        if (mkdir(folder, 0777) == 0)
            return dsvi_folder_sync(parent);
        if (errno != EEXIST)
            return DSVI_FAIL(DSV_E_IO, "%s: cannot make the folder: %s", folder, strerror(errno));
    }
}

DsvStatus dsvi_superseded_place(DsviSuperseded *s, const char *name, char path[DSVI_PATH_MAX])
{
    char parent[DSVI_PATH_MAX], folder[DSVI_PATH_MAX];
    if (!s->folder[0]) {
        DSVI_TRY(dsvi_path_join(parent, s->root, "superseded"));
        DSVI_TRY(dsvi_folder_make(parent));
        DSVI_TRY(dsvi_folder_sync(s->root));
        DSVI_TRY(make_numbered(parent, folder));
        snprintf(s->folder, sizeof s->folder, "%s", folder);
    }
    return dsvi_path_join(path, s->folder, name);
}

DsvStatus dsvi_superseded_move(DsviSuperseded *s, const char *from, const char *name)
{
    char path[DSVI_PATH_MAX], place[DSVI_PATH_MAX], parent[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, s->root, from));
    DSVI_TRY(dsvi_superseded_place(s, name, place));
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(place, '/') - place), place);
    DSVI_TRY(dsvi_folder_make(parent));
    DSVI_TRY(dsvi_path_move(path, place));
    return dsvi_folder_sync(s->root);
}
