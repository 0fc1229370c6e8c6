/* A clock that changes only when a test sets it, preloaded into a server. The file TEST_CLOCK holds the
 * Unix time in milliseconds. libfaketime does not work here: a server built with jemalloc reads the time
 * before libfaketime is ready, and hangs.
 *
 * Monotonic clocks keep running. They are read by a direct system call, which is safe at any time. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *unix_ms;

__attribute__((constructor)) static void open_clock(void) {
    int file = open(getenv("TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *memory = mmap(NULL, sizeof *unix_ms, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) abort();
    close(file);
    unix_ms = memory;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!unix_ms || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) {
        return syscall(SYS_clock_gettime, clock, now);
    }
    long long ms = *unix_ms;
    now->tv_sec = ms / 1000;
    now->tv_nsec = ms % 1000 * 1000000;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    int status = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
