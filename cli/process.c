/* See process.h. */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "terminal.h"
#include "verb.h"

void cli_process_prepare(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        /* open() returns the lowest free descriptor, which is `fd` */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            _exit(CLI_FAILED); /* otherwise messages could be written into a file that the program opens */
    signal(SIGXFSZ, SIG_IGN);
}

static bool reader_gone(int fd)
{
    struct pollfd writer = {.fd = fd, .events = POLLOUT};
    return poll(&writer, 1, 0) == 1 && (writer.revents & (POLLERR | POLLHUP));
}

int cli_process_finish(int status)
{
    errno = 0;
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    int cause = errno;
    if (written || reader_gone(STDOUT_FILENO))
        return status;
    cli_print_error("standard output cannot be written%s%s", cause ? ": " : "", cause ? strerror(cause) : "");
    return CLI_FAILED;
}
