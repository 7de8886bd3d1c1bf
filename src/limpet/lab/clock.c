/* A wall clock that is off by LIMPET_CLOCK_SHIFT_S seconds, preloaded into one process.
 * Monotonic clocks, sleeps and timeouts stay true: what waits by them must not notice. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static time_t shift_s;

__attribute__((constructor)) static void read_shift(void)
{
    const char *text = getenv("LIMPET_CLOCK_SHIFT_S");
    shift_s = text ? (time_t)strtoll(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (syscall(SYS_clock_gettime, clock, now) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += shift_s;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec fine;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &fine) != 0)
        return -1;
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec fine;
    if (clock_gettime(CLOCK_REALTIME, &fine) != 0)
        return (time_t)-1;
    if (now)
        *now = fine.tv_sec;
    return fine.tv_sec;
}

/* No time server keeps this clock, whatever keeps the machine's own. */
int adjtimex(struct timex *told)
{
    (void)told;
    return TIME_ERROR;
}
