/* What the program does to its own process before and after a verb. */
#ifndef CLI_PROCESS_H
#define CLI_PROCESS_H

/* First of all: opens /dev/null as each of stdin, stdout and stderr that is closed, so that no file of the
 * work gets such a number and what is printed there; and has a write beyond the limit of file sizes fail with
 * an error instead of a signal. */
void cli_process_prepare(void);

/* Last of all: writes out stdout. Returns `status`, or CLI_FAILED where results could not be written. A
 * reader that has gone (`dsv ... | head -1`) is no failure: the work is done and saved. */
int cli_process_finish(int status);

#endif
