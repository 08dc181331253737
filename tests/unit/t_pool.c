/* The text workers: every job once, in turns by uid, none lost at the end. */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/text/text.h"

struct item {
	struct dcpd_job job;		/* first: the two are cast */
	char mark;
	atomic_uint ran;
};

static struct dcpd_textpool *pool;
static char order[256];
static unsigned n_order;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void
note(struct dcpd_job *job)
{
	struct item *it = (struct item *)job;

	order[n_order++] = it->mark;	/* one worker only */
}

static void
wait_gate(struct dcpd_job *job)
{
	(void)job;
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

static void
start(unsigned threads)
{
	struct dcpd_err err = { 0 };

	ck_assert_msg(dcpd_textpool_start(threads, &pool, &err) == 0, "%s",
	    err.text);
}

/* One thread, held at a gate while the queue is filled. */
START_TEST(uids_take_turns)
{
	static struct item a[6], b[2], c[1];
	struct dcpd_job first = { .run = wait_gate };
	unsigned i;

	start(1);
	pthread_mutex_lock(&gate);
	dcpd_textpool_post(pool, 9, &first);
	for (i = 0; i < 6; i++) {
		a[i].job.run = note;
		a[i].mark = (char)('a' + i);
		dcpd_textpool_post(pool, 1, &a[i].job);
	}
	for (i = 0; i < 2; i++) {
		b[i].job.run = note;
		b[i].mark = (char)('A' + i);
		dcpd_textpool_post(pool, 2, &b[i].job);
	}
	c[0] = (struct item){ .job.run = note, .mark = '1' };
	dcpd_textpool_post(pool, 3, &c[0].job);
	pthread_mutex_unlock(&gate);
	dcpd_textpool_stop(pool);	/* runs what is queued */
	ck_assert_str_eq(order, "aA1bBcdef");
}
END_TEST

/* As one list, posted at once; what was posted before comes before it. */
START_TEST(a_list_is_as_one_after_another)
{
	static const uint32_t uid[] = { 1, 1, 2, 1, 3, 2 };
	static struct item it[6], before;
	struct dcpd_job first = { .run = wait_gate };

	n_order = 0;
	memset(order, 0, sizeof order);
	start(1);
	pthread_mutex_lock(&gate);
	dcpd_textpool_post(pool, 9, &first);
	before = (struct item){ .job.run = note, .mark = '0' };
	dcpd_textpool_post(pool, 2, &before.job);
	for (unsigned i = 0; i < 6; i++)
		it[i] = (struct item){ .mark = (char)('a' + i), .job = {
		    .run = note, .uid = uid[i],
		    .next = i < 5 ? &it[i + 1].job : NULL } };
	dcpd_textpool_post_all(pool, &it[0].job);
	pthread_mutex_unlock(&gate);
	dcpd_textpool_stop(pool);
	ck_assert_str_eq(order, "0aecbfd");
}
END_TEST

static void
count(struct dcpd_job *job)
{
	atomic_fetch_add(&((struct item *)job)->ran, 1);
}

#define POSTERS 4
#define JOBS 2000
static struct item many[POSTERS][JOBS];

static void *
poster(void *arg)
{
	struct item *it = arg;
	unsigned i;

	for (i = 0; i < JOBS / 2; i++) {
		it[i].job.run = count;
		dcpd_textpool_post(pool, i % 7, &it[i].job);
	}
	/* The other half in lists of 10: idle threads are woken for each. */
	for (; i < JOBS; i++) {
		it[i].job = (struct dcpd_job){ .run = count, .uid = i % 7,
		    .next = i % 10 < 9 ? &it[i + 1].job : NULL };
		if (i % 10 == 9)
			dcpd_textpool_post_all(pool, &it[i - 9].job);
	}
	return NULL;
}

START_TEST(every_job_runs_once)
{
	pthread_t t[POSTERS];
	unsigned i, k;

	start(3);
	for (i = 0; i < POSTERS; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, poster, many[i]),
		    0);
	for (i = 0; i < POSTERS; i++)
		pthread_join(t[i], NULL);
	dcpd_textpool_stop(pool);
	for (i = 0; i < POSTERS; i++)
		for (k = 0; k < JOBS; k++)
			ck_assert_uint_eq(atomic_load(&many[i][k].ran), 1);
}
END_TEST

static struct item follow;
static atomic_uint freed;

static void
post_more(struct dcpd_job *job)
{
	free(job);			/* a job may end its own life */
	atomic_fetch_add(&freed, 1);
	follow.job.run = count;
	dcpd_textpool_post(pool, 5, &follow.job);
}

START_TEST(jobs_may_post_jobs_even_while_stopping)
{
	struct dcpd_job *job = calloc(1, sizeof *job);

	job->run = post_more;
	start(2);
	dcpd_textpool_post(pool, 1, job);
	dcpd_textpool_stop(pool);
	ck_assert_uint_eq(atomic_load(&freed), 1);
	ck_assert_uint_eq(atomic_load(&follow.ran), 1);
}
END_TEST

static atomic_bool blocked, crash_blocked;

static void
look_at_mask(struct dcpd_job *job)
{
	sigset_t set;

	(void)job;
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	atomic_store(&blocked, sigismember(&set, SIGTERM) == 1);
	atomic_store(&crash_blocked, sigismember(&set, SIGSEGV) == 1 ||
	    sigismember(&set, SIGABRT) == 1);
}

START_TEST(signals_stay_with_the_main_thread)
{
	struct dcpd_job job = { .run = look_at_mask };
	sigset_t set;

	start(1);
	dcpd_textpool_post(pool, 1, &job);
	dcpd_textpool_stop(pool);
	ck_assert(atomic_load(&blocked));
	ck_assert(!atomic_load(&crash_blocked));
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	ck_assert_int_eq(sigismember(&set, SIGTERM), 0);
}
END_TEST

START_TEST(bad_thread_counts_are_refused)
{
	struct dcpd_textpool *p = NULL;
	struct dcpd_err err = { 0 };

	ck_assert_int_eq(dcpd_textpool_start(0, &p, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "between 1 and"));
	ck_assert_int_eq(dcpd_textpool_start(100000, &p, &err), -EINVAL);
	ck_assert_ptr_null(p);
	dcpd_textpool_stop(NULL);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("pool");
	TCase *tc = tcase_create("pool");
	SRunner *r;
	int bad;

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, uids_take_turns);
	tcase_add_test(tc, a_list_is_as_one_after_another);
	tcase_add_test(tc, every_job_runs_once);
	tcase_add_test(tc, jobs_may_post_jobs_even_while_stopping);
	tcase_add_test(tc, signals_stay_with_the_main_thread);
	tcase_add_test(tc, bad_thread_counts_are_refused);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
