/* See thread_start.h. */
#include "base/thread_start.h"

#include <stddef.h>

/* Linux's default. This is address space; only pages that are used take memory. */
#define STACK_BYTES ((size_t)8 << 20)

int dsvi_thread_start(pthread_t *thread, void *(*function)(void *context), void *context)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!error)
        error = pthread_create(thread, &attributes, function, context);
    pthread_attr_destroy(&attributes);
    return error;
}
