/* Ctrl-C, SIGTERM and a terminal that goes (SIGHUP, unless the program was started to ignore it): the first
 * asks the work to finish up, a second Ctrl-C or SIGTERM ends the program. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on they are caught, and a reader of stdout or stderr that goes ends nothing (SIGPIPE). `what` the
 * work is allowed to finish, "this step"; NULL: nothing is said, for another process speaks.
 * `on_progress_line`: the cursor stands behind a line that is redrawn in place. */
void cli_interrupt_watch(const char *what, bool on_progress_line);

/* The signal that asked the work to stop, 0 while none has. */
int cli_interrupt_signal(void);

#endif
