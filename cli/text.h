/* Prints text safely: escapes control characters, and breaks long lines at spaces. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Writes `text` to `to`. Control characters and bytes that are not UTF-8 are written as \x1b, so that a file
 * name can neither move the cursor nor start a new line. */
void cli_put_text(FILE *to, const char *text);

/* As cli_put_text, broken at spaces into lines of at most `width` columns; longer words are not broken. The
 * cursor is at `column`; further lines begin with `indent` blanks. Writes no newline at the end. */
void cli_put_wrapped(FILE *to, const char *text, size_t column, size_t indent, size_t width);

#endif
