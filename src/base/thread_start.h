/* Starts threads with a fixed stack size. All threads of dsv are started here. */
#ifndef DSVI_THREAD_START_H
#define DSVI_THREAD_START_H

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls pthread_create with a stack of 8 MiB instead of the size that the shell's limit (ulimit -s) gives:
 * decoders, codecs and libraries that a thread calls need some hundred kilobytes. Returns 0 or an error
 * number (errno.h). */
int dsvi_thread_start(pthread_t *thread, void *(*function)(void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
