/* Ctrl-C and SIGTERM: the first asks the work to finish up, the second ends the program. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* From now on both are caught. `what` the work is allowed to finish, "this step"; NULL: nothing is said, for
 * another process speaks. `on_progress_line`: the
 * cursor stands behind a line that is redrawn in place. */
void cli_interrupt_watch(const char *what, bool on_progress_line);

/* The signal that asked the work to stop, 0 while none has. */
int cli_interrupt_signal(void);

#endif
