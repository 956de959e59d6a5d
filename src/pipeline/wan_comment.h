/* The settings of a clip as text, which is stored in the clip's file. */
#ifndef DSVI_WAN_COMMENT_H
#define DSVI_WAN_COMMENT_H

#include "base/status.h"
#include "dsv/config.h"
#include "sample/sparse_use.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviWanComment {
    const char *model;              /* path as the user gave it */
    const char *prompt;             /* NULL: the text came from a file */
    const char *negative;           /* NULL: none was used */
    const char *image, *last_image; /* paths of the pictures with which the clip begins and ends; or NULL */
    const char *noise;        /* path of a file with noise, which was used instead of the seed; or NULL */
    const char *sparse_state; /* file of the sparse state with which the clip began; or NULL */
    const DsviSparseUseMean *sparse; /* how the blocks attended; NULL: densely */
} DsviWanComment;

/* Returns in *out a JSON object in ASCII (other characters as \uXXXX), which the caller frees. */
DsvStatus dsvi_wan_comment(const DsviWanComment *comment, const DsvConfig *settings, char **out);

#ifdef __cplusplus
}
#endif
#endif
