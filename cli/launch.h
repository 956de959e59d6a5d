/* How this process was started: alone, or as one of several ranks. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "verb.h"

/* Joins the ranks where there are any; *ranks is NULL where this process is alone. On anything but CLI_DONE
 * the complaint is out. */
int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks);

/* The settings of a call of all ranks: defaults, the file that flag number `file` names, flag number
 * `device` (either -1: the verb has none), key=value arguments. Then joins as above. */
int cli_launch_settings(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks);

/* In place of joining, after a complaint that keeps this process from it: the other ranks, if any, fail with
 * `why`. Gives `outcome`. */
int cli_launch_decline(const CliArgs *args, int outcome, const char *why);

/* After a call of all ranks (`ranks` NULL: of this process alone): a failure is reported on stderr, by rank
 * 0, or by every rank where rank 0 has ended or hangs. The outcome is this process's. */
int cli_launch_outcome(const CliArgs *args, DsvRanks *ranks, DsvStatus status);
/* The same, then leaves the ranks. */
int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status);

#endif
