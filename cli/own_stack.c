/* See own_stack.h. */
#include "own_stack.h"

#include <pthread.h>
#include <stddef.h>

#define STACK_BYTES ((size_t)8 << 20)

typedef struct Call {
    int (*call)(int argc, char **argv);
    int argc;
    char **argv;
    int status;
} Call;

static void *make_call(void *context)
{
    Call *c = context;
    c->status = c->call(c->argc, c->argv);
    return NULL;
}

int cli_on_own_stack(int (*call)(int argc, char **argv), int argc, char **argv)
{
    Call c = {.call = call, .argc = argc, .argv = argv};
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0)
        return call(argc, argv);
    int error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!error)
        error = pthread_create(&thread, &attributes, make_call, &c);
    pthread_attr_destroy(&attributes);
    if (error)
        return call(argc, argv);
    pthread_join(thread, NULL);
    return c.status;
}
