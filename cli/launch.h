/* How this process was started: alone, or as one of several ranks. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "verb.h"

/* Joins the ranks where there are any; *ranks is NULL where this process is alone. On anything but CLI_DONE
 * the complaint is out. */
int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks);

/* The settings of a call of all ranks: defaults, the file that flag number `file` names, flag number `device`
 * (either -1: the verb has none), key=value arguments. Then joins as above. */
int cli_launch_settings(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks);

/* Leaves the ranks again after a call of all of them, of which rank 0 tells how it ended. The outcome is this
 * process's. */
int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status);

#endif
