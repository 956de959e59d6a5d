/* A stack for the program that does not depend on the shell's limit. */
#ifndef CLI_OWN_STACK_H
#define CLI_OWN_STACK_H

/* Returns call(argc, argv), called on a thread with a stack of 8 MiB. The first thread has what `ulimit -s`
 * says, and the library computes on the thread that calls it, where kernels need some hundred kilobytes.
 * Where no such thread can be had the call is made on this one. */
int cli_on_own_stack(int (*call)(int argc, char **argv), int argc, char **argv);

#endif
