/* Handling of signals while a verb works.
 *
 * The first SIGINT (Ctrl-C), SIGTERM or SIGHUP (the terminal closed; not where SIGHUP was ignored at the
 * start, as nohup does) asks the work to finish and save. Every later SIGTERM and SIGHUP is ignored, because
 * launchers signal a process and its group, and schedulers repeat themselves. A Ctrl-C more than a second
 * after the first signal ends the program at once; SIGKILL always does. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

/* Installs the handlers and ignores SIGPIPE. `what` names the work that is finished after a signal, for a
 * notice: "this step"; NULL: no notice, because another process prints it. `on_progress_line`: the cursor is
 * at the end of a line that is redrawn in place. */
void cli_interrupt_watch(const char *what, bool on_progress_line);

/* Returns the signal that asked the work to stop; 0 if there was none. */
int cli_interrupt_signal(void);

#endif
