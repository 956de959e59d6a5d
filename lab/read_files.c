/* Compares two ways to read whole files of a latent cache in a random order: threads that call pread, and one
 * thread that keeps as many reads in flight with io_uring.
 *
 *     read_files FOLDER FILES MIB_PER_FILE IN_FLIGHT
 *
 * Writes the files to FOLDER if they are missing, and reads each once with either way, in turns: from the
 * disk (the page cache drops the files before each pass), then from the page cache. Prints MiB/s and the
 * seconds of CPU time, and removes nothing. Each read has the size of a file, as dsvi_checked_tensor_read
 * has. */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FLIGHT_MAX = 64, PASSES = 5 };

typedef struct Files {
    const char *folder;
    int count, *order; /* order: a permutation, in which the files are read */
    size_t bytes;      /* of each file */
    int flight;        /* reads at the same time */
    char *room;        /* (flight, bytes) */
    atomic_int next;   /* of the threads: the next place of `order` */
} Files;

static void fail(const char *what)
{
    fprintf(stderr, "read_files: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_file(const Files *files, int number, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/file-%d", files->folder, number);
    int file = open(path, flags | O_CLOEXEC, 0644);
    if (file < 0)
        fail(path);
    return file;
}

/* Writes the files, and leaves nothing of them to be written later. */
static void write_files(const Files *files)
{
    for (int i = 0; i < files->count; i++) {
        int file = open_file(files, i, O_RDWR | O_CREAT);
        if (lseek(file, 0, SEEK_END) != (off_t)files->bytes) {
            for (size_t at = 0; at < files->bytes; at++)
                files->room[at] = (char)(rand() >> 8);
            if (pwrite(file, files->room, files->bytes, 0) != (ssize_t)files->bytes || fsync(file) != 0)
                fail("write");
        }
        close(file);
    }
}

static void drop_from_page_cache(const Files *files)
{
    for (int i = 0; i < files->count; i++) {
        int file = open_file(files, i, O_RDONLY);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
}

/* ---- Threads ---- */

static void *read_some(void *context)
{
    Files *files = context;
    char *room = malloc(files->bytes);
    if (!room)
        fail("memory");
    memset(room, 0, files->bytes);
    for (int i; (i = atomic_fetch_add(&files->next, 1)) < files->count;) {
        int file = open_file(files, files->order[i], O_RDONLY);
        for (size_t at = 0; at < files->bytes;) {
            ssize_t got = pread(file, room + at, files->bytes - at, (off_t)at);
            if (got <= 0)
                fail("pread");
            at += (size_t)got;
        }
        close(file);
    }
    free(room);
    return NULL;
}

static void read_with_threads(Files *files)
{
    pthread_t threads[FLIGHT_MAX];
    atomic_store(&files->next, 0);
    for (int i = 0; i < files->flight; i++)
        if (pthread_create(&threads[i], NULL, read_some, files) != 0)
            fail("thread");
    for (int i = 0; i < files->flight; i++)
        pthread_join(threads[i], NULL);
}

/* ---- io_uring ---- */

typedef struct Ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *results;
} Ring;

static Ring open_ring(unsigned entries)
{
    struct io_uring_params p = {0};
    Ring ring = {.fd = (int)syscall(SYS_io_uring_setup, entries, &p)};
    if (ring.fd < 0)
        fail("io_uring_setup");
    size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *s = mmap(NULL, sq, prot, flags, ring.fd, IORING_OFF_SQ_RING);
    char *c = mmap(NULL, cq, prot, flags, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), prot, flags, ring.fd,
                        IORING_OFF_SQES);
    if (s == MAP_FAILED || c == MAP_FAILED || ring.entries == MAP_FAILED)
        fail("mmap");
    ring.sq_tail = (unsigned *)(s + p.sq_off.tail);
    ring.sq_mask = (unsigned *)(s + p.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(s + p.sq_off.array);
    ring.cq_head = (unsigned *)(c + p.cq_off.head);
    ring.cq_tail = (unsigned *)(c + p.cq_off.tail);
    ring.cq_mask = (unsigned *)(c + p.cq_off.ring_mask);
    ring.results = (struct io_uring_cqe *)(c + p.cq_off.cqes);
    return ring;
}

typedef struct Read {
    int file;
    size_t at; /* bytes that were read */
} Read;

static void submit(Ring *ring, const Files *files, const Read *reads, unsigned slot)
{
    unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
    ring->entries[index] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ,
        .fd = reads[slot].file,
        .addr = (unsigned long)(files->room + slot * files->bytes + reads[slot].at),
        .len = (unsigned)(files->bytes - reads[slot].at),
        .off = reads[slot].at,
        .user_data = slot,
    };
    ring->sq_array[index] = index;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0) != 1)
        fail("io_uring_enter");
}

/* Returns the slot of a read that is done, and what it returned. */
static unsigned await(Ring *ring, int *result)
{
    unsigned head = *ring->cq_head;
    while (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
        if (syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 &&
            errno != EINTR)
            fail("io_uring_enter");
    struct io_uring_cqe done = ring->results[head & *ring->cq_mask];
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    *result = done.res;
    return (unsigned)done.user_data;
}

static void read_with_ring(Files *files)
{
    Ring ring = open_ring(FLIGHT_MAX);
    Read reads[FLIGHT_MAX];
    int next = 0, left = files->count;
    for (unsigned slot = 0; slot < (unsigned)files->flight && next < files->count; slot++) {
        reads[slot] = (Read){open_file(files, files->order[next++], O_RDONLY), 0};
        submit(&ring, files, reads, slot);
    }
    while (left > 0) {
        int result;
        unsigned slot = await(&ring, &result);
        if (result <= 0)
            fail("read");
        reads[slot].at += (size_t)result;
        if (reads[slot].at == files->bytes) {
            close(reads[slot].file);
            left--;
            if (next == files->count)
                continue;
            reads[slot] = (Read){open_file(files, files->order[next++], O_RDONLY), 0};
        }
        submit(&ring, files, reads, slot);
    }
    close(ring.fd);
}

/* ---- Times ---- */

static double clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(Files *files, bool cold)
{
    static void (*const WAYS[])(Files *) = {read_with_threads, read_with_ring};
    static const char *const NAMES[] = {"pread ", "io_uring"};
    double wall[2][PASSES], cpu[2][PASSES];
    for (int pass = 0; pass < PASSES; pass++)
        for (int way = 0; way < 2; way++) {
            if (cold)
                drop_from_page_cache(files);
            double start = clock_s(), used = cpu_s();
            WAYS[way](files);
            wall[way][pass] = clock_s() - start;
            cpu[way][pass] = cpu_s() - used;
        }
    for (int way = 0; way < 2; way++) {
        qsort(wall[way], PASSES, sizeof(double), by_size);
        qsort(cpu[way], PASSES, sizeof(double), by_size);
        double mib = (double)files->count * (double)files->bytes / 1048576;
        printf("%-8s from the %s, %2d in flight: %6.0f MiB/s (%.0f to %.0f), %.2f s of CPU time\n",
               NAMES[way], cold ? "disk" : "page cache", files->flight, mib / wall[way][PASSES / 2],
               mib / wall[way][PASSES - 1], mib / wall[way][0], cpu[way][PASSES / 2]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: read_files FOLDER FILES MIB_PER_FILE IN_FLIGHT\n");
        return 2;
    }
    Files files = {.folder = argv[1],
                   .count = atoi(argv[2]),
                   .bytes = (size_t)(atof(argv[3]) * 1048576),
                   .flight = atoi(argv[4])};
    if (files.count < 1 || files.bytes < 1 || files.flight < 1 || files.flight > FLIGHT_MAX)
        return 2;
    files.room = malloc((size_t)files.flight * files.bytes);
    files.order = malloc((size_t)files.count * sizeof(int));
    if (!files.room || !files.order)
        fail("memory");
    memset(files.room, 0, (size_t)files.flight * files.bytes);
    write_files(&files);
    for (int i = 0; i < files.count; i++) {
        int j = rand() % (i + 1);
        files.order[i] = files.order[j];
        files.order[j] = i;
    }
    compare(&files, true);
    compare(&files, false);
    free(files.room);
    free(files.order);
    return 0;
}
