/* Section of the page with sampled clips: some frames of each clip, and the clip itself if it is small. */
#include <stdlib.h>
#include <string.h>

#include "data/clip.h"
#include "data/clip_frames.h"
#include "report/report_page.h"
#include "report/report_text.h"

enum {
    CLIPS_MAX = 4,   /* of one folder */
    PROMPTS_MAX = 8, /* of validation.prompts */
    PROMPT_BYTES = 65536,
    FRAMES_MAX = 8,
    FRAME_ROWS_MAX = 96,
    VIDEO_BYTES_MAX = 384 << 10 /* larger clips are not embedded in the page */
};

/* Names of the oldest clip and of the newest CLIPS_MAX - 1 clips. */
typedef struct Names {
    char name[CLIPS_MAX][256];
    int64_t count; /* number of all clips in the folder */
} Names;

/* Called with the names in ascending order, the order of the steps: names begin with the step in six
 * digits. */
static DsvStatus take_name(void *context, const char *name)
{
    Names *names = context;
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".mp4") != 0)
        return DSV_OK;
    if (names->count >= CLIPS_MAX)
        memmove(names->name[1], names->name[2], sizeof names->name[1] * (CLIPS_MAX - 2));
    int64_t at = names->count < CLIPS_MAX ? names->count : CLIPS_MAX - 1;
    snprintf(names->name[at], sizeof names->name[at], "%s", name);
    names->count++;
    return DSV_OK;
}

/* Writes each frame as a separate image, so that the browser arranges them in as many rows as it needs. */
static DsvStatus put_frames(FILE *to, const char *path, const char *name)
{
    DsvStatus status = DSV_OK;
    DsviClipFrames frames;
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

/* Embeds the clip if browsers can play its codec and it is small. The script of the page starts it, unless
 * the browser is configured for reduced motion. */
static DsvStatus put_video(FILE *to, const char *path, const char *name)
{
    char *bytes;
    uint64_t size;
    size_t count;
    DsviClipInfo info;
    DSVI_TRY(dsvi_clip_probe(path, &info));
    DSVI_TRY(dsvi_file_size(path, &size));
    if (strcmp(info.codec, "h264") != 0 || size > VIDEO_BYTES_MAX)
        return DSV_OK;
    DSVI_TRY(dsvi_file_read(path, VIDEO_BYTES_MAX, &bytes, &count));
    fputs("<video controls loop muted playsinline aria-label=\"", to);
    dsvi_put_text(to, name);
    fputs("\" src=\"data:video/mp4;base64,", to);
    dsvi_put_base64(to, bytes, count);
    fputs("\"></video>", to);
    free(bytes);
    return DSV_OK;
}

/* Shows the clips of a folder, newest first. Sets *shown to their number. */
static DsvStatus put_clips(FILE *to, const char *folder, int64_t *shown)
{
    char path[DSVI_PATH_MAX];
    Names names = {.count = 0};
    *shown = 0;
    if (dsvi_path_is_folder(folder))
        DSVI_TRY(dsvi_folder_list(folder, take_name, &names));
    *shown = names.count < CLIPS_MAX ? names.count : CLIPS_MAX;
    if (*shown < names.count)
        fprintf(to, "<p>The newest %d of %lld, and the first.</p>\n", CLIPS_MAX - 1, (long long)names.count);
    for (int64_t i = *shown - 1; i >= 0; i--) {
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

/* The page while the folders of prompts are listed, in the order of the prompts. */
typedef struct Prompts {
    FILE *to;
    const char *samples;
    int64_t count; /* folders with clips */
    int64_t clips; /* shown */
} Prompts;

static DsvStatus put_prompt(void *context, const char *name)
{
    Prompts *prompts = context;
    char folder[DSVI_PATH_MAX], path[DSVI_PATH_MAX], *text;
    size_t bytes;
    int64_t shown;
    DSVI_TRY(dsvi_path_join(folder, prompts->samples, name));
    if (strncmp(name, "prompt-", 7) != 0 || !dsvi_path_is_folder(folder) || prompts->count++ >= PROMPTS_MAX)
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(path, folder, "prompt.txt"));
    if (dsvi_file_read(path, PROMPT_BYTES, &text, &bytes) == DSV_OK) {
        fputs("<p>Prompt: ", prompts->to);
        dsvi_put_text(prompts->to, text);
        fputs("</p>\n", prompts->to);
        free(text);
    }
    DSVI_TRY(put_clips(prompts->to, folder, &shown));
    prompts->clips += shown;
    return DSV_OK;
}

DsvStatus dsvi_report_clips(FILE *to, const DsviReportData *data)
{
    char folder[DSVI_PATH_MAX];
    int64_t shown;
    DSVI_TRY(dsvi_path_join(folder, data->folder, "samples"));
    Prompts prompts = {.to = to, .samples = folder};
    DSVI_TRY(put_clips(to, folder, &shown));
    if (dsvi_path_is_folder(folder))
        DSVI_TRY(dsvi_folder_list(folder, put_prompt, &prompts));
    if (prompts.count > PROMPTS_MAX)
        fprintf(to, "<p>The first %d of %lld prompts; the clips of all are in samples/.</p>\n", PROMPTS_MAX,
                (long long)prompts.count);
    if (shown + prompts.clips == 0)
        dsvi_report_note(to, "No clip has been sampled yet.");
    return DSV_OK;
}
