/* Threads that share the loops of native.c, made for a machine on which other programs run too.
 *
 * OpenMP gives every thread a fixed share of a loop and spins for milliseconds until all have finished.  If the
 * system suspends one thread, all others wait for it.  Here each thread takes a part of the loop when it is ready for one:
 * - The caller takes parts as well and never waits for a thread that has taken none.
 * - Waiting threads spin for SPIN_NS, counted by the clock, and then sleep.  Workers offer their core to other threads,
 *   such as torch's, after YIELD_NS.
 * - If the caller waits long for a suspended thread, it computes alone for a while: see `judge_wait`.
 * A part's results do not depend on who computes it, so the number of threads never changes a bit.
 */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define MOST_WORKERS 255
#define MOST_PARTS 65535L          /* what 16 bits of a ticket count */
#define SPIN_NS 500000             /* longer than what lies between two loops of a cycle: waking a thread takes longer */
#define YIELD_NS 20000             /* after this, a waiting worker lets torch's threads have the core */
#define STALL_NS 500000            /* longer than any wait on a machine with idle cores */
#define SHORTEST_REST_NS 5000000
#define LONGEST_REST_NS 320000000

/* Computes steps first to last - 1 of a loop. */
typedef void loop_body(const void *loop, long first, long last);

static struct {
    pthread_mutex_t caller;        /* held by the thread whose loop is shared; others compute alone */
    pthread_mutex_t mutex;         /* for the two conditions */
    pthread_cond_t opened, finished;
    _Atomic uint64_t ticket;       /* loop's number, 32 bits | its parts, 16 bits | the next part to take, 16 bits */
    _Atomic(loop_body *) body;
    _Atomic(const void *) loop;
    atomic_long steps, part_steps; /* of the loop, and of one part */
    atomic_long done;              /* parts that are computed */
    atomic_int team;               /* threads that may take parts, caller included */
    atomic_int sleepers, caller_sleeps;
    int workers;                   /* threads started */
    uint64_t number;
    int64_t rest_until, rest;
} pool = {.caller = PTHREAD_MUTEX_INITIALIZER,
          .mutex = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER,
          .finished = PTHREAD_COND_INITIALIZER};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline void relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb" ::: "memory");
#endif
}

static int is_open(int thread) {
    const uint64_t ticket = atomic_load(&pool.ticket);
    return (ticket & 0xffff) < (ticket >> 16 & 0xffff) && thread < atomic_load(&pool.team);
}

/* Takes and computes parts of the open loop: most of a fair share, so that memory is read in order; then fewer, so that
 * all threads end together.
 *
 * Returns 0 if there are none left.  What is read of the loop is the loop's of that ticket, or the exchange fails: a
 * loop is not replaced before all its parts were taken. */
static int compute_parts(int thread) {
    uint64_t ticket = atomic_load(&pool.ticket);
    for (;;) {
        const long next = ticket & 0xffff, parts = ticket >> 16 & 0xffff;
        const int team = atomic_load(&pool.team);
        if (next >= parts || thread >= team) return 0;
        const long fair = 9 * (parts - next) / (10 * team), taken = fair ? fair : 1;
        loop_body *body = atomic_load(&pool.body);
        const void *loop = atomic_load(&pool.loop);
        const long steps = atomic_load(&pool.steps), size = atomic_load(&pool.part_steps);
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + taken)) continue;
        const long last = (next + taken) * size;
        body(loop, next * size, last < steps ? last : steps);
        if (atomic_fetch_add(&pool.done, taken) + taken == parts && atomic_load(&pool.caller_sleeps)) {
            pthread_mutex_lock(&pool.mutex);
            pthread_cond_signal(&pool.finished);
            pthread_mutex_unlock(&pool.mutex);
        }
        return 1;
    }
}

static void *work(void *argument) {
    const int thread = (int)(intptr_t)argument;
    for (;;) {
        while (compute_parts(thread)) {}
        const int64_t began = now_ns();
        for (int64_t now = began; !is_open(thread) && now - began < SPIN_NS; now = now_ns()) {
            if (now - began > YIELD_NS) sched_yield();
            for (int turn = 0; turn < 16 && !is_open(thread); turn++) relax();
        }
        if (is_open(thread)) continue;
        pthread_mutex_lock(&pool.mutex);
        atomic_fetch_add(&pool.sleepers, 1);
        while (!is_open(thread)) pthread_cond_wait(&pool.opened, &pool.mutex);
        atomic_fetch_sub(&pool.sleepers, 1);
        pthread_mutex_unlock(&pool.mutex);
    }
    return NULL;
}

/* After a fork the new process has only the caller's thread. */
static void forget_workers(void) {
    pthread_mutex_init(&pool.caller, NULL);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.opened, NULL);
    pthread_cond_init(&pool.finished, NULL);
    atomic_store(&pool.ticket, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
    pool.workers = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

/* Starts workers until there are `count`; they block all signals, which the program's own threads receive. */
static void start_workers(int count) {
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, watch_forks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.workers < count; pool.workers++) {
        pthread_t started;
        if (pthread_create(&started, NULL, work, (void *)(intptr_t)(pool.workers + 1))) break;
        pthread_detach(started);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Waits until all parts that other threads have taken are computed. */
static void wait_for_others(long parts) {
    const int64_t end = now_ns() + SPIN_NS;
    while (atomic_load(&pool.done) < parts && now_ns() < end)
        for (int turn = 0; turn < 16 && atomic_load(&pool.done) < parts; turn++) relax();
    if (atomic_load(&pool.done) >= parts) return;
    pthread_mutex_lock(&pool.mutex);
    atomic_store(&pool.caller_sleeps, 1);
    while (atomic_load(&pool.done) < parts) pthread_cond_wait(&pool.finished, &pool.mutex);
    atomic_store(&pool.caller_sleeps, 0);
    pthread_mutex_unlock(&pool.mutex);
}

/* After a long wait the caller computes alone for a while: twice as long if the last wait was shortly before. */
static void judge_wait(int64_t began, int64_t waited_from, int64_t ended) {
    const int64_t waited = ended - waited_from;
    if (waited < STALL_NS || waited < waited_from - began) return;
    const int soon = began - pool.rest_until < 4 * pool.rest;
    pool.rest = !soon ? SHORTEST_REST_NS : pool.rest < LONGEST_REST_NS ? 2 * pool.rest : LONGEST_REST_NS;
    pool.rest_until = ended + pool.rest;
}

/* Computes all steps of a loop on up to `threads` threads. */
static void share_loop(loop_body *body, const void *loop, long steps, int threads) {
    if (threads > MOST_WORKERS + 1) threads = MOST_WORKERS + 1;
    if (steps < 2 || threads < 2 || pthread_mutex_trylock(&pool.caller)) {
        body(loop, 0, steps);
        return;
    }
    const int64_t began = now_ns();
    if (began >= pool.rest_until) {
        if (pool.workers < threads - 1) start_workers(threads - 1);
        const long size = (steps + MOST_PARTS - 1) / MOST_PARTS, parts = (steps + size - 1) / size;
        atomic_store(&pool.body, body);
        atomic_store(&pool.loop, loop);
        atomic_store(&pool.steps, steps);
        atomic_store(&pool.part_steps, size);
        atomic_store(&pool.team, threads);
        atomic_store(&pool.done, 0);
        pool.number++;
        atomic_store(&pool.ticket, pool.number << 32 | (uint64_t)parts << 16);
        if (atomic_load(&pool.sleepers) && !pthread_mutex_trylock(&pool.mutex)) {
            pthread_cond_broadcast(&pool.opened);
            pthread_mutex_unlock(&pool.mutex);
        }
        while (compute_parts(0)) {}
        const int64_t waited_from = now_ns();
        wait_for_others(parts);
        judge_wait(began, waited_from, now_ns());
    } else
        body(loop, 0, steps);
    pthread_mutex_unlock(&pool.caller);
}
