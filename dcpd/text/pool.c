/*
 * The text workers: a few threads that run jobs, fairly by uid. A uid with a
 * thousand jobs waiting delays another's single job by at most one job per
 * waiting uid: the queues take turns.
 *
 * Everything is guarded by one mutex, held for a few instructions; jobs run
 * without it. Threads block all signals, which are the main thread's.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/base/thread.h"
#include "dcpd/text/text.h"

#define POOL_MAGIC 0x706f6f6cu
#define MAX_THREADS 256u

/* Jobs of one uid that wait; exists while there are any. */
struct line {
	uint32_t uid;
	struct dcpd_job *head, **tail;
	struct line *next;		/* whose turn is next */
};

struct dcpd_textpool {
	uint32_t magic;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct line *first, **last;	/* lines in the order of their turns */
	struct line *spare;		/* emptied lines, to be used again */
	bool stopping;
	unsigned idle;			/* threads that wait for work */
	unsigned n;
	pthread_t thread[];
};

static struct line *
find_line(struct dcpd_textpool *p, uint32_t uid)
{
	struct line *l, *end = NULL;

	for (l = p->first; l != NULL; l = l->next) {
		if (l->uid == uid)
			return l;
		end = l;
	}
	l = p->spare;
	if (l != NULL)
		p->spare = l->next;
	else if ((l = malloc(sizeof *l)) == NULL)
		/* Out of memory: rather unfair than lost. */
		return end;
	*l = (struct line){ .uid = uid, .tail = &l->head };
	*p->last = l;
	p->last = &l->next;
	return l;
}

/* The next job, the lock held; NULL: there is none. */
static struct dcpd_job *
take(struct dcpd_textpool *p)
{
	struct line *l = p->first;
	struct dcpd_job *job;

	if (l == NULL)
		return NULL;
	p->first = l->next;
	if (p->first == NULL)
		p->last = &p->first;
	job = l->head;
	l->head = job->next;
	l->next = NULL;
	if (l->head != NULL) {		/* to the end of the row */
		*p->last = l;
		p->last = &l->next;
	} else {
		l->next = p->spare;
		p->spare = l;
	}
	return job;
}

static void *
worker(void *arg)
{
	struct dcpd_textpool *p = arg;
	struct dcpd_job *job;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while ((job = take(p)) == NULL && !p->stopping) {
			p->idle++;
			pthread_cond_wait(&p->work, &p->lock);
			p->idle--;
		}
		if (job == NULL)
			break;
		pthread_mutex_unlock(&p->lock);
		job->next = NULL;
		job->run(job);		/* it may be gone after this */
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static int
start_threads(struct dcpd_textpool *p, unsigned threads)
{
	sigset_t set = dcpd_thread_signals(), old;
	int rc = 0;

	pthread_sigmask(SIG_SETMASK, &set, &old);
	while (p->n < threads && rc == 0) {
		rc = dcpd_thread_start(&p->thread[p->n], worker, p);
		if (rc == 0)
			pthread_setname_np(p->thread[p->n++], "dcpd-text");
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

int
dcpd_textpool_start(unsigned threads, struct dcpd_textpool **out,
    struct dcpd_err *err)
{
	struct dcpd_textpool *p;
	int rc;

	if (threads == 0 || threads > MAX_THREADS)
		return dcpd_fail(err, -EINVAL, "%u text threads; between 1 and "
		    "%u can be had", threads, MAX_THREADS);
	p = calloc(1, sizeof *p + threads * sizeof *p->thread);
	if (p == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	p->magic = POOL_MAGIC;
	p->last = &p->first;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	rc = start_threads(p, threads);
	if (rc < 0) {
		dcpd_fail(err, rc, "text thread %u of %u cannot start: %s",
		    p->n + 1, threads, strerror(-rc));
		dcpd_textpool_stop(p);
		return rc;
	}
	*out = p;
	return 0;
}

void
dcpd_textpool_post_all(struct dcpd_textpool *p, struct dcpd_job *job)
{
	struct dcpd_job *next;
	struct line *l;
	unsigned n = 0, wake;

	DCPD_CHECK(p, POOL_MAGIC);
	pthread_mutex_lock(&p->lock);
	for (; job != NULL; job = next, n++) {
		next = job->next;
		job->next = NULL;
		l = find_line(p, job->uid);
		/* Not even one: 32 bytes are missing, nothing else works. */
		DCPD_ASSERT(l != NULL);
		*l->tail = job;
		l->tail = &job->next;
	}
	wake = n < p->idle ? n : p->idle;
	pthread_mutex_unlock(&p->lock);
	/* A thread that is woken wants the lock: so not with it held. */
	while (wake-- > 0)
		pthread_cond_signal(&p->work);
}

void
dcpd_textpool_post(struct dcpd_textpool *p, uint32_t uid, struct dcpd_job *job)
{
	job->uid = uid;
	job->next = NULL;
	dcpd_textpool_post_all(p, job);
}

void
dcpd_textpool_stop(struct dcpd_textpool *p)
{
	struct line *l;
	unsigned i;

	if (p == NULL)
		return;
	DCPD_CHECK(p, POOL_MAGIC);
	pthread_mutex_lock(&p->lock);
	p->stopping = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (i = 0; i < p->n; i++)
		pthread_join(p->thread[i], NULL);
	while ((l = p->spare) != NULL) {
		p->spare = l->next;
		free(l);
	}
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	p->magic = 0;
	free(p);
}
