/* Prepares the process before a verb, and finishes its output afterwards. */
#ifndef CLI_PROCESS_H
#define CLI_PROCESS_H

/* Called first in main. Opens /dev/null in place of stdin, stdout and stderr if they are closed: otherwise a
 * file that the program opens could get one of these descriptors, and messages would be written into it.
 * Ignores SIGXFSZ, so that writing beyond the limit of file sizes is an error and does not kill the
 * process. */
void cli_process_prepare(void);

/* Called last in main: flushes stdout. Returns `status`, or CLI_FAILED if results could not be written. It is
 * no failure if the reader has ended (`dsv ... | head -1`). */
int cli_process_finish(int status);

#endif
