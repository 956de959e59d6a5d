/* Joins and leaves the other ranks, if a launcher (mpirun, srun, torchrun) has started several. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "verb.h"

/* Joins the other ranks; *ranks becomes NULL if there is only this process. Returns CLI_DONE, or another exit
 * status after it has printed the error. */
int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks);

/* Makes the configuration and joins the other ranks. The configuration is made of the defaults, the file
 * named by flag number `file`, the device named by flag number `device` (-1: the verb has no such flag), and
 * the key=value arguments. Returns CLI_DONE, or
 * another exit status after it has printed the error. */
int cli_launch_config(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks);

/* Called instead of cli_launch_join, after an error has been printed: makes cli_launch_join fail on the other
   ranks, with the message `why`. Returns `outcome`. */
int cli_launch_decline(const CliArgs *args, int outcome, const char *why);

/* Called after work of all ranks (`ranks` NULL: of one process) that ended with `status`. Prints the message
 * of a failure to stderr: on rank 0 only, or on the other ranks if rank 0 has ended or does not react.
 * Returns this process's exit status. */
int cli_launch_outcome(const CliArgs *args, DsvRanks *ranks, DsvStatus status);
/* As cli_launch_outcome, then leaves the ranks. */
int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status);

#endif
