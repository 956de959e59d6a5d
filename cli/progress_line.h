/* Formats a DsvProgress as one line of text. */
#ifndef CLI_PROGRESS_LINE_H
#define CLI_PROGRESS_LINE_H

#include <stddef.h>

#include <dsv/events.h>

enum { CLI_LINE_BYTES = 256, CLI_DURATION_BYTES = 32 };

/* Writes at most `width` columns: the least important numbers are left out until the rest fits. Numbers have
 * fixed widths if they can, so that they stay at the same columns from line to line. */
void cli_progress_line(const DsvProgress *progress, size_t width, char line[CLI_LINE_BYTES]);

/* Writes a duration: "0:07", "12:34", "1:02:03", "4d 03h". */
void cli_duration(double seconds, char text[CLI_DURATION_BYTES]);

#endif
