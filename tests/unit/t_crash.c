/*
 * Crashes that a running daemon cannot be made to have from outside: a thread
 * whose stack ran over, several threads at once, a report that crashes itself.
 * Each in a child, whose report and last words are read.
 */
#include "config.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dcpd/admin/crash.h"
#include "dcpd/admin/stats.h"
#include "dcpd/base/thread.h"
#include "kernels/cpu/workers.h"

#define THREADS 8

static char dir[] = "/tmp/dcpd-crash.XXXXXX";
static char words[1 << 16], text[1 << 18];

static void
read_all(int fd, char *to, size_t cap)
{
	ssize_t n, at = 0;

	while ((n = read(fd, to + at, cap - 1 - (size_t)at)) > 0)
		at += n;
	to[at] = '\0';
}

/* The report, if there is one, into text; the file goes. */
static void
take_report(void)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int fd;

	text[0] = '\0';
	ck_assert(d != NULL);
	while ((e = readdir(d)) != NULL) {
		if (strncmp(e->d_name, "crash-", 6) != 0)
			continue;
		ck_assert_msg(text[0] == '\0', "two reports");
		fd = openat(dirfd(d), e->d_name, O_RDONLY);
		ck_assert(fd >= 0);
		read_all(fd, text, sizeof text);
		close(fd);
		unlinkat(dirfd(d), e->d_name, 0);
	}
	closedir(d);
}

/* what() in a child; the signal that ended it. */
static int
crash(void (*what)(void))
{
	struct rlimit none = { 0, 0 };
	int p[2], status;
	pid_t pid;

	ck_assert(pipe(p) == 0);
	pid = fork();
	ck_assert(pid >= 0);
	if (pid == 0) {
		alarm(60);
		setrlimit(RLIMIT_CORE, &none);
		dup2(p[1], STDERR_FILENO);
		if (dcpd_crash_init(dir, NULL) == 0)
			what();
		_exit(1);
	}
	close(p[1]);
	read_all(p[0], words, sizeof words);
	close(p[0]);
	ck_assert(waitpid(pid, &status, 0) == pid);
	ck_assert_msg(WIFSIGNALED(status), "status %x: %s", status, words);
	take_report();
	return WTERMSIG(status);
}

static void
has(const char *in, const char *want)
{
	ck_assert_msg(strstr(in, want) != NULL, "no \"%s\" in: %s", want, in);
}

/* --- a stack that runs over ---------------------------------------------- */

static volatile long depth = 1 << 30;	/* frames */

static int
deeper(volatile char *above)
{
	volatile char frame[4096];

	frame[0] = above == NULL ? 0 : *above;
	return --depth > 0 ? deeper(frame) + frame[0] : 0;
}

static void *
run_over(void *arg)
{
	prctl(PR_SET_NAME, "too-deep");
	return deeper(NULL) == 0 ? arg : NULL;
}

static void
in_a_thread(void)
{
	pthread_t t;

	if (dcpd_thread_start(&t, run_over, NULL) == 0)
		pthread_join(t, NULL);
}

START_TEST(a_threads_stack_that_runs_over_leaves_a_report)
{
	ck_assert_int_eq(crash(in_a_thread), SIGSEGV);
	has(text, "why: signal 11");
	has(text, "thread: too-deep");
	has(text, "\nmaps:\n");
	has(words, "report: ");
}
END_TEST

/* The caller waits in its task, so that the worker takes another. */
static void
run_over_in_a_worker(void *arg, uint32_t task, uint32_t thread)
{
	(void)task;
	if (thread == 0)
		pause();
	else
		run_over(arg);
}

static void
in_a_worker(void)
{
	struct dcpc_workers *w;

	if (dcpc_workers_new(2, &w) == 0)
		dcpc_workers_run(w, 2, run_over_in_a_worker, NULL);
}

START_TEST(so_does_that_of_a_cpu_worker)
{
	ck_assert_int_eq(crash(in_a_worker), SIGSEGV);
	has(text, "why: signal 11");
	has(text, "thread: too-deep");
	has(words, "report: ");
}
END_TEST

/* --- several at once ----------------------------------------------------- */

static pthread_barrier_t together;

static void *
fault(void *arg)
{
	volatile int *p = arg;

	pthread_barrier_wait(&together);
	*p = 1;
	return NULL;
}

static void
all_at_once(void)
{
	static pthread_t t[THREADS];
	void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
	    -1, 0);

	pthread_barrier_init(&together, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		if (dcpd_thread_start(&t[i], fault, page) != 0)
			_exit(1);
	pthread_join(t[0], NULL);
}

START_TEST(threads_that_crash_together_leave_one_whole_report)
{
	for (unsigned i = 0; i < 5; i++) {
		ck_assert_int_eq(crash(all_at_once), SIGSEGV);
		has(text, "why: signal 11");
		has(text, "\nbacktrace:\n");
		/* The end of the maps, which are its end. */
		has(text, "[stack]");
		has(words, "report: ");
	}
}
END_TEST

/* --- a report that crashes ----------------------------------------------- */

static void
without_a_page(void)
{
	dcpd_page = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE |
	    MAP_ANONYMOUS, -1, 0);
	raise(SIGBUS);
}

START_TEST(a_report_that_crashes_says_so_and_ends)
{
	ck_assert_int_eq(crash(without_a_page), SIGSEGV);
	has(words, "crash: signal 11 while its report was written");
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("crash");
	TCase *t = tcase_create("crash");
	SRunner *r = srunner_create(s);
	int failed;

#ifdef DCPD_DEBUG
	puts("SKIP: the sanitizers take these signals");
	return 77;
#endif
	if (mkdtemp(dir) == NULL)
		return 1;
	tcase_set_timeout(t, 180);
	tcase_add_test(t, a_threads_stack_that_runs_over_leaves_a_report);
	tcase_add_test(t, so_does_that_of_a_cpu_worker);
	tcase_add_test(t, threads_that_crash_together_leave_one_whole_report);
	tcase_add_test(t, a_report_that_crashes_says_so_and_ends);
	suite_add_tcase(s, t);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	rmdir(dir);
	return failed == 0 ? 0 : 1;
}
