/*
 * Worker threads for phases of a few microseconds: between phases a worker
 * spins briefly, then sleeps on a futex, so a step pays no wake-ups and an
 * idle daemon burns no CPU.
 *
 * One word, `epoch`, starts a phase.
 * `next` hands out tasks, `left` counts workers that have not yet left the
 * phase. The caller is the only one that starts phases.
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/base/thread.h"
#include "kernels/cpu/workers.h"

#if defined(__x86_64__)
#define relax() __builtin_ia32_pause()
#else
#define relax() ((void)0)
#endif

enum { SPIN_NS = 60000 };

struct seat {			/* for whoever asks about a stuck phase */
	_Alignas(128) _Atomic uint32_t epoch;	/* left the last of these */
	_Atomic uint32_t task;			/* that it took last */
	_Atomic pid_t tid;
};

struct dcpc_workers {
	uint32_t threads;
	pthread_t *tid;
	dcpc_task_fn *fn;
	void *arg;
	uint32_t n;
	bool stop;
	_Alignas(128) _Atomic uint32_t epoch;	/* grows by 1 each phase */
	_Atomic uint32_t sleepers;
	_Alignas(128) _Atomic uint32_t next;
	_Alignas(128) _Atomic uint32_t left;
	struct seat *seat;			/* [threads] */
};

struct start {
	struct dcpc_workers *w;
	uint32_t thread;
};

static uint64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void
take_tasks(struct dcpc_workers *w, uint32_t thread)
{
	uint32_t t;

	for (;;) {
		t = atomic_fetch_add_explicit(&w->next, 1,
		    memory_order_relaxed);
		if (t >= w->n)
			return;
		atomic_store_explicit(&w->seat[thread].task, t,
		    memory_order_relaxed);
		w->fn(w->arg, t, thread);
	}
}

/* Wait until epoch differs from seen. */
static void
wait_epoch(struct dcpc_workers *w, uint32_t seen)
{
	uint64_t end = now_ns() + SPIN_NS;
	unsigned i = 0;

	for (;;) {
		if (atomic_load_explicit(&w->epoch, memory_order_acquire) !=
		    seen)
			return;
		relax();
		if ((++i & 63) == 0 && now_ns() > end)
			break;
	}
	/* seq_cst on both sides: the starter sees us, or we see its epoch. */
	atomic_fetch_add(&w->sleepers, 1);
	while (atomic_load(&w->epoch) == seen)
		syscall(SYS_futex, &w->epoch, FUTEX_WAIT_PRIVATE, seen, NULL,
		    NULL, 0);
	atomic_fetch_sub(&w->sleepers, 1);
}

static void *
worker(void *arg)
{
	struct start s = *(struct start *)arg;
	uint32_t seen = 0;
	char name[16];

	free(arg);
	snprintf(name, sizeof name, "dcpd-cpu-%u", s.thread % 10000);
	pthread_setname_np(pthread_self(), name);
	s.w->seat[s.thread].tid = (pid_t)syscall(SYS_gettid);
	for (;;) {
		wait_epoch(s.w, seen);
		seen++;
		if (s.w->stop)
			return NULL;
		take_tasks(s.w, s.thread);
		atomic_store_explicit(&s.w->seat[s.thread].epoch, seen,
		    memory_order_relaxed);
		atomic_fetch_sub_explicit(&s.w->left, 1, memory_order_release);
	}
}

static void
start_phase(struct dcpc_workers *w)
{
	atomic_fetch_add(&w->epoch, 1);
	if (atomic_load(&w->sleepers) != 0)
		syscall(SYS_futex, &w->epoch, FUTEX_WAKE_PRIVATE, INT_MAX,
		    NULL, NULL, 0);
}

int
dcpc_workers_new(uint32_t threads, struct dcpc_workers **out)
{
	struct dcpc_workers *w;
	struct start *s;
	uint32_t i;
	int rc;

	w = aligned_alloc(128, (sizeof *w + 127) / 128 * 128);
	if (w == NULL)
		return -ENOMEM;
	*w = (struct dcpc_workers){ .threads = 1 };
	w->tid = calloc(threads, sizeof *w->tid);
	w->seat = aligned_alloc(128, threads * sizeof *w->seat);
	if (w->tid == NULL || w->seat == NULL) {
		free(w->seat);
		free(w->tid);
		free(w);
		return -ENOMEM;
	}
	memset(w->seat, 0, threads * sizeof *w->seat);
	for (i = 1; i < threads; i++) {
		s = malloc(sizeof *s);
		if (s == NULL) {
			rc = -ENOMEM;
		} else {
			*s = (struct start){ w, i };
			rc = dcpd_thread_start(&w->tid[i], worker, s);
		}
		if (rc != 0) {
			free(s);
			dcpc_workers_free(w);
			return rc;
		}
		w->threads++;
	}
	*out = w;
	return 0;
}

void
dcpc_workers_free(struct dcpc_workers *w)
{
	uint32_t i;

	if (w == NULL)
		return;
	w->stop = true;
	start_phase(w);
	for (i = 1; i < w->threads; i++)
		pthread_join(w->tid[i], NULL);
	free(w->seat);
	free(w->tid);
	free(w);
}

void
dcpc_workers_waits(const struct dcpc_workers *w, char *buf, size_t cap)
{
	uint32_t epoch = w->epoch, i;

	buf[0] = '\0';
	if (w->left == 0)
		return;
	for (i = 1; i < w->threads; i++) {
		if (w->seat[i].epoch == epoch)
			continue;
		snprintf(buf, cap, "CPU worker %u (thread %d), task %u of %u",
		    i, (int)w->seat[i].tid, w->seat[i].task, w->n);
		return;
	}
}

void
dcpc_workers_run(struct dcpc_workers *w, uint32_t n, dcpc_task_fn *fn,
    void *arg)
{
	uint32_t i, spins = 0;

	if (n == 0)
		return;
	if (n == 1 || w->threads == 1) {
		for (i = 0; i < n; i++)
			fn(arg, i, 0);
		return;
	}
	w->fn = fn;
	w->arg = arg;
	w->n = n;
	atomic_store_explicit(&w->left, w->threads - 1, memory_order_relaxed);
	atomic_store_explicit(&w->next, 0, memory_order_relaxed);
	start_phase(w);
	take_tasks(w, 0);
	while (atomic_load_explicit(&w->left, memory_order_acquire) != 0) {
		relax();
		/* A worker may have lost its core: let it have ours. */
		if (++spins > 20000) {
			sched_yield();
			spins = 19000;
		}
	}
}
