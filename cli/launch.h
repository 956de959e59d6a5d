/* How this process was started: alone, or as one of several ranks. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "verb.h"

/* Joins the ranks where there are any; *ranks is NULL where this process is alone. On anything but CLI_DONE
 * the complaint is out. */
int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks);

/* Leaves the ranks again after a call of all of them, of which rank 0 tells how it ended. The outcome is this
 * process's. */
int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status);

#endif
