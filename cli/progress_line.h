/* A DsvProgress as one line of text. */
#ifndef CLI_PROGRESS_LINE_H
#define CLI_PROGRESS_LINE_H

#include <stddef.h>

#include <dsv/events.h>

enum { CLI_LINE_BYTES = 256, CLI_DURATION_BYTES = 32 };

/* At most `width` columns: what matters least is left out until the rest fits. Columns keep their places from
 * line to line as far as their numbers allow. */
void cli_progress_line(const DsvProgress *progress, size_t width, char line[CLI_LINE_BYTES]);

/* "0:07", "12:34", "1:02:03", "4d 03h". */
void cli_duration(double seconds, char text[CLI_DURATION_BYTES]);

#endif
