/* The page's section on sampled clips: some of a clip's frames, and the clip itself where it is small. */
#include <stdlib.h>
#include <string.h>

#include "data/clip.h"
#include "data/clip_frames.h"
#include "report/report_page.h"
#include "report/report_text.h"

enum {
    CLIPS_MOST = 4, FRAMES_MAX = 8, FRAME_ROWS_MAX = 96,
    VIDEO_BYTES_MOST = 384 << 10 /* of a clip that goes into the page as it is */
};

/* The newest CLIPS_MOST - 1 clips and the oldest, so that both the state and the way there show. Names
 * come in ascending order, and begin with the step in six digits. */
typedef struct Names {
    char name[CLIPS_MOST][256];
    int64_t count;
} Names;

static DsvStatus take_name(void *context, const char *name)
{
    Names *names = context;
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".mp4") != 0)
        return DSV_OK;
    if (names->count >= CLIPS_MOST)
        memmove(names->name[1], names->name[2], sizeof names->name[1] * (CLIPS_MOST - 2));
    int64_t at = names->count < CLIPS_MOST ? names->count : CLIPS_MOST - 1;
    snprintf(names->name[at], sizeof names->name[at], "%s", name);
    names->count++;
    return DSV_OK;
}

/* Each frame is a picture, so that they flow into as many rows as the screen needs. */
static DsvStatus put_frames(FILE *to, const char *path, const char *name)
{
    DsvStatus status = DSV_OK;
    DsvClipFrames frames;
    DSVI_TRY(dsvi_clip_frames_read(path, FRAMES_MAX, FRAME_ROWS_MAX, &frames));
    fprintf(to, "<div class=\"frames\" role=\"img\" aria-label=\"%lld frames of ", (long long)frames.frames);
    dsvi_put_text(to, name);
    fputs(", in order\">", to);
    for (int64_t f = 0; f < frames.frames && status == DSV_OK; f++) {
        uint8_t *png;
        size_t bytes;
        status = dsvi_clip_frames_png(path, &frames, f, 1, &png, &bytes);
        fputs("<img alt=\"\" src=\"data:image/png;base64,", to);
        dsvi_put_base64(to, png, bytes);
        fputs("\">", to);
        free(png);
    }
    fputs("</div>", to);
    dsvi_clip_frames_free(&frames);
    return status;
}

/* What browsers play, if it is small. The page's script starts it, unless its reader wants less motion. */
static DsvStatus put_video(FILE *to, const char *path, const char *name)
{
    char *bytes;
    uint64_t size;
    size_t count;
    DsvClipInfo info;
    DSVI_TRY(dsvi_clip_probe(path, &info));
    DSVI_TRY(dsvi_file_size(path, &size));
    if (strcmp(info.codec, "h264") != 0 || size > VIDEO_BYTES_MOST)
        return DSV_OK;
    DSVI_TRY(dsvi_file_read(path, VIDEO_BYTES_MOST, &bytes, &count));
    fputs("<video controls loop muted playsinline aria-label=\"", to);
    dsvi_put_text(to, name);
    fputs("\" src=\"data:video/mp4;base64,", to);
    dsvi_put_base64(to, bytes, count);
    fputs("\"></video>", to);
    free(bytes);
    return DSV_OK;
}

DsvStatus dsvi_report_clips(FILE *to, const DsvReportData *data)
{
    char folder[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    Names names = {.count = 0};
    DSVI_TRY(dsvi_path_join(folder, data->folder, "samples"));
    if (dsvi_path_is_folder(folder))
        DSVI_TRY(dsvi_folder_list(folder, take_name, &names));
    int64_t shown = names.count < CLIPS_MOST ? names.count : CLIPS_MOST;
    if (shown == 0)
        dsvi_report_note(to, "No clip has been sampled yet.");
    else if (shown < names.count)
        fprintf(to, "<p>The newest %d of %lld, and the first.</p>\n", CLIPS_MOST - 1, (long long)names.count);
    for (int64_t i = shown - 1; i >= 0; i--) {
        DSVI_TRY(dsvi_path_join(path, folder, names.name[i]));
        fputs("<h3>", to);
        dsvi_put_text(to, names.name[i]);
        fputs("</h3>\n<div class=\"clip\">", to);
        if (put_video(to, path, names.name[i]) != DSV_OK || put_frames(to, path, names.name[i]) != DSV_OK)
            dsvi_report_note(to, dsv_error_message());
        fputs("</div>\n", to);
    }
    return DSV_OK;
}
