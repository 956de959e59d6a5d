/* How every thread is started. */
#ifndef DSVI_THREAD_START_H
#define DSVI_THREAD_START_H

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

/* pthread_create with a stack of dsv's own size, whatever the shell's limit (ulimit -s) would make it:
 * decoders, codecs and libraries called from a thread need some hundred kilobytes. Returns 0 or an error
 * number. */
int dsvi_thread_start(pthread_t *thread, void *(*function)(void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
