/*
 * The handler of SIGSEGV and its like. It runs on whatever thread crashed, in
 * whatever state that is: no allocation, no stdio, no lock. What it prints is
 * in the stats page, in static memory, or on the stack.
 *
 * Then the signal does what it would have done: core, status, restart.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/admin/crash.h"
#include "dcpd/admin/stats.h"
#include "dcpd/base/thread.h"

#define FRAMES 64
#define MODULES 64
#define OTHER_MS 1000		/* the step thread has so long for its part */
#define WAIT_S 30u		/* other threads that crash, for the report */
#define ASK_SIGNAL SIGRTMIN	/* to it */

static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };

static char dir[3800];		/* "" : to standard error */
static _Atomic int step_tid;	/* 0: none yet */
static _Atomic int reporter;	/* the thread that reports; 0: none has */
static _Atomic bool reported;
static _Atomic bool asked;	/* the step thread has not written its part */
static int report_fd = -1;

static struct {
	uintptr_t from, to, base;
	char name[100];
} module[MODULES];
static unsigned modules;

/* --- writing, with nothing that a signal's handler may not do ------------ */

struct out {
	int fd;
	unsigned n;
	char buf[512];
};

static void
flush(struct out *o)
{
	unsigned off = 0;
	ssize_t w;

	while (off < o->n && (w = write(o->fd, o->buf + off, o->n - off)) > 0)
		off += (unsigned)w;
	o->n = 0;
}

static void
put(struct out *o, const char *s)
{
	for (; *s != '\0'; s++) {
		if (o->n == sizeof o->buf)
			flush(o);
		o->buf[o->n++] = *s;
	}
}

static void
put_n(struct out *o, uint64_t v, unsigned base)
{
	char digits[24], *p = digits + sizeof digits - 1;

	*p = '\0';
	do
		*--p = "0123456789abcdef"[v % base];
	while ((v /= base) != 0);
	put(o, p);
}

static void
put_name(struct out *o, const char *name, uint64_t v)
{
	put(o, name);
	put_n(o, v, 10);
}

/* Seconds since t, to a thousandth. */
static void
put_since(struct out *o, uint64_t t, uint64_t now)
{
	uint64_t ms = t == 0 || t > now ? 0 : (now - t) / 1000000u;

	put_n(o, ms / 1000, 10);
	put(o, ".");
	put_n(o, ms / 100 % 10, 10);
	put_n(o, ms / 10 % 10, 10);
	put_n(o, ms % 10, 10);
	put(o, " s");
}

/* --- the parts of a report ----------------------------------------------- */

static void
put_pass(struct out *o, uint64_t now)
{
	const struct dcps_pass *p = &dcpd_page->pass;

	if (p->step == 0) {
		put(o, "step: none yet\n");
		return;
	}
	put_name(o, "step ", p->step);
	put_name(o, p->prefill ? ": prefill of " : ": decode of ", p->rows);
	put_name(o, " rows, ", p->reqs);
	put_name(o, " requests, ", p->pages);
	put_name(o, " pages, ", p->samples);
	put(o, " samples; began ");
	put_since(o, p->began_ns, now);
	if (p->ended_ns != 0) {
		put(o, " ago, ended ");
		put_since(o, p->ended_ns, now);
		put(o, " ago\n");
	} else {
		put(o, " ago, has not ended\n");
	}
	put_name(o, "ranks: 0 to ", dcpd_page->tp > 0 ? dcpd_page->tp - 1 : 0);
	put_name(o, ", groups of ", dcpd_page->dcp);
	put_name(o, ", in layer ", p->layer);
	put(o, ", ");
	put(o, p->op < DCPD_OP_N ? dcpd_page->op_name[p->op] : "?");
	put(o, "\n");
}

static void
put_head(struct out *o, const char *why, int signo, const void *at)
{
	uint64_t now = dcpd_now_ns();
	char name[17] = "";

	prctl(PR_GET_NAME, name);
	put(o, "dcpd " PACKAGE_VERSION);
	put_name(o, ", process ", (uint64_t)getpid());
	put_name(o, ", at ", (uint64_t)time(NULL));
	put(o, " s of the epoch, up ");
	put_since(o, dcpd_page->started_ns, now);
	put(o, "\nwhy: ");
	put(o, why);
	if (signo != 0) {
		put_name(o, " ", (uint64_t)signo);
		put(o, signo == SIGABRT ? "" : ", address 0x");
		if (signo != SIGABRT)
			put_n(o, (uintptr_t)at, 16);
	}
	put(o, "\nthread: ");
	put(o, name);
	put_name(o, ", ", (uint64_t)syscall(SYS_gettid));
	put(o, "\nstate: ");
	put(o, dcps_state_name(dcpd_page->state));
	put(o, "\n");
	put_pass(o, now);
	put(o, "step thread: ");
	put(o, dcpd_page->step_ns == 0 ? "asleep" : "awake for ");
	if (dcpd_page->step_ns != 0)
		put_since(o, dcpd_page->step_ns, now);
	put(o, "\n\ncounters:\n");
	for (uint32_t i = 0; i < dcpd_page->n_counters; i++) {
		put(o, dcpd_page->counter_name[i]);
		put_name(o, " ", dcpd_page->counter[i]);
		put(o, "\n");
	}
}

/* "0x55.. /usr/sbin/dcpd+0x1234", for addr2line -e FILE 0x1234. */
static void
put_backtrace(struct out *o)
{
	void *frame[FRAMES];
	int n = backtrace(frame, FRAMES);

	for (int i = 0; i < n; i++) {
		uintptr_t a = (uintptr_t)frame[i];

		put(o, "  0x");
		put_n(o, a, 16);
		for (unsigned m = 0; m < modules; m++)
			if (a >= module[m].from && a < module[m].to) {
				put(o, " ");
				put(o, module[m].name);
				put(o, "+0x");
				put_n(o, a - module[m].base, 16);
				break;
			}
		put(o, "\n");
	}
	flush(o);
}

/* Where code is mapped, for what was loaded later. */
static void
put_maps(struct out *o)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char buf[1024];
	ssize_t n;

	if (fd < 0)
		return;
	put(o, "\nmaps:\n");
	flush(o);
	while ((n = read(fd, buf, sizeof buf)) > 0)
		if (write(o->fd, buf, (size_t)n) != n)
			break;
	close(fd);
}

/* --- the step thread's part ---------------------------------------------- */

static void
on_ask(int signo)
{
	struct out o = { 0 };
	int e = errno;

	if (atomic_load(&asked)) {
		o.fd = report_fd;	/* set before `asked` was */
		put(&o, "\nbacktrace of the step thread:\n");
		put_backtrace(&o);
		atomic_store(&asked, false);
	}
	errno = e;
}

static void
ask_step_thread(struct out *o)
{
	struct timespec ms = { .tv_nsec = 1000000 };
	int tid = step_tid;

	flush(o);
	if (tid == 0 || tid == (int)syscall(SYS_gettid))
		return;
	atomic_store(&asked, true);
	if (syscall(SYS_tgkill, getpid(), tid, ASK_SIGNAL) != 0)
		return;
	for (unsigned i = 0; i < OTHER_MS && atomic_load(&asked); i++)
		nanosleep(&ms, NULL);
	if (atomic_exchange(&asked, false)) {
		put(o, "\nthe step thread did not answer\n");
		flush(o);
	}
}

/* --- the report ---------------------------------------------------------- */

static int
open_report(char *path, size_t cap)
{
	struct out o = { .fd = -1 };
	int fd;

	if (dir[0] == '\0')
		return STDERR_FILENO;
	put(&o, dir);
	put(&o, "/crash-");
	put_n(&o, (uint64_t)time(NULL), 10);
	put_name(&o, "-", (uint64_t)getpid());
	put(&o, ".txt");
	if (o.n >= cap)
		return STDERR_FILENO;
	memcpy(path, o.buf, o.n);
	path[o.n] = '\0';
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
	    0640);
	return fd >= 0 ? fd : STDERR_FILENO;
}

static void
report(const char *why, int signo, const void *at)
{
	const struct dcps_pass *p = &dcpd_page->pass;
	char path[sizeof ((struct out *)0)->buf + 1] = "";
	struct out o = { 0 }, err = { .fd = STDERR_FILENO };

	report_fd = o.fd = open_report(path, sizeof path);
	put_head(&o, why, signo, at);
	put(&o, "\nbacktrace:\n");
	put_backtrace(&o);
	ask_step_thread(&o);
	put_maps(&o);
	flush(&o);
	if (o.fd != STDERR_FILENO) {
		fsync(o.fd);
		close(o.fd);
	}
	put(&err, "crash: ");
	put(&err, why);
	if (signo != 0)
		put_name(&err, " ", (uint64_t)signo);
	put_name(&err, ", step ", p->step);
	put(&err, p->ended_ns == 0 && p->step != 0 ? " (under way)" : "");
	put(&err, o.fd != STDERR_FILENO ? "; report: " : "");
	put(&err, o.fd != STDERR_FILENO ? path : "");
	put(&err, "\n");
	flush(&err);
}

/* The first who asks reports. *by: the thread that does, or did. */
static bool
may_report(int *by)
{
	int none = 0;

	*by = (int)syscall(SYS_gettid);
	if (atomic_compare_exchange_strong(&reporter, &none, *by))
		return true;
	*by = none;
	return false;
}

/* Another thread may crash of what this one did: let it write its report to
 * the end, then end the process if it has not. */
static void
wait_for_report(void)
{
	const struct timespec nap = { .tv_nsec = 10000000 };
	uint64_t end = dcpd_now_ns() + WAIT_S * 1000000000ull;

	while (!atomic_load(&reported) && dcpd_now_ns() < end)
		nanosleep(&nap, NULL);
}

static void
on_fatal(int signo, siginfo_t *info, void *context)
{
	struct out err = { .fd = STDERR_FILENO };
	int by;

	if (may_report(&by)) {
		report("signal", signo, info->si_addr);
		atomic_store(&reported, true);
	} else if (by != (int)syscall(SYS_gettid)) {
		wait_for_report();
	} else if (!atomic_load(&reported)) {
		signal(signo, SIG_DFL);		/* a third time ends it */
		put_name(&err, "crash: signal ", (uint64_t)signo);
		put(&err, " while its report was written, which is cut off\n");
		flush(&err);
	}
	signal(signo, SIG_DFL);
	raise(signo);
}

void
dcpd_crash_report(const char *why)
{
	int by;

	if (!may_report(&by))
		return;
	report(why, 0, NULL);
	atomic_store(&reported, true);
}

/* --- start --------------------------------------------------------------- */

static int
note_module(struct dl_phdr_info *i, size_t size, void *arg)
{
	for (unsigned k = 0; k < i->dlpi_phnum && modules < MODULES; k++) {
		const ElfW(Phdr) *h = &i->dlpi_phdr[k];

		if (h->p_type != PT_LOAD || !(h->p_flags & PF_X))
			continue;
		module[modules].base = i->dlpi_addr;
		module[modules].from = i->dlpi_addr + h->p_vaddr;
		module[modules].to = module[modules].from + h->p_memsz;
		snprintf(module[modules].name, sizeof module[modules].name,
		    "%s", i->dlpi_name[0] != '\0' ? i->dlpi_name : "dcpd");
		modules++;
	}
	return 0;
}

static int
is_report(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return strncmp(e->d_name, "crash-", 6) == 0 && n > 4 &&
	    strcmp(e->d_name + n - 4, ".txt") == 0;
}

/* Their names begin with the time. */
static void
prune(void)
{
	struct dirent **v = NULL;
	int n = scandir(dir, &v, is_report, alphasort), fd;

	if (n <= 0)
		return;
	dcpd_log(LOG_NOTICE, "%s has reports of %d crashes, the last %s", dir,
	    n, v[n - 1]->d_name);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; fd >= 0 && i < n - DCPD_CRASH_KEEP; i++)
		unlinkat(fd, v[i]->d_name, 0);
	if (fd >= 0)
		close(fd);
	for (int i = 0; i < n; i++)
		free(v[i]);
	free(v);
}

static int
find_dir(const char *given, struct dcpd_err *err)
{
	const char *env = getenv("STATE_DIRECTORY");
	const char *d = given != NULL ? given : env;
	size_t n;

	if (d == NULL || *d == '\0')
		return 0;
	n = given != NULL ? strlen(d) : strcspn(d, ":");
	if (n > sizeof ((struct out *)0)->buf - 64)
		return dcpd_fail(err, -ENAMETOOLONG, "--state-dir %.60s...: "
		    "too long", d);
	snprintf(dir, sizeof dir, "%.*s", (int)n, d);
	if (access(dir, W_OK | X_OK) != 0) {
		int rc = dcpd_fail(err, -errno, "%s %s: %s; create it, or name "
		    "a folder of the daemon's user", given != NULL ?
		    "--state-dir" : "$STATE_DIRECTORY", dir, strerror(errno));

		dir[0] = '\0';
		return rc;
	}
	prune();
	return 0;
}

int
dcpd_crash_init(const char *given, struct dcpd_err *err)
{
	static char stack[DCPD_SIGNAL_STACK];
	const stack_t ss = { .ss_sp = stack, .ss_size = sizeof stack };
	struct sigaction sa = { .sa_sigaction = on_fatal, .sa_flags =
	    SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
	struct sigaction ask = { .sa_handler = on_ask, .sa_flags =
	    SA_RESTART };
	void *frame[4];
	int rc = find_dir(given, err);

	if (rc != 0)
		return rc;
	/* The first call loads the unwinder, which allocates. */
	backtrace(frame, 4);
	dl_iterate_phdr(note_module, NULL);
	/* A stack that ran over is told on another: the main thread's; the
	 * others have theirs from dcpd_thread_start. */
	sigaltstack(&ss, NULL);
	sigaction(ASK_SIGNAL, &ask, NULL);
	for (unsigned i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
#ifdef DCPD_DEBUG
		/* The sanitizers' own handlers say more. */
		if (fatal[i] != SIGABRT)
			continue;
#endif
		sigaction(fatal[i], &sa, NULL);
	}
	return 0;
}

void
dcpd_crash_step_thread(void)
{
	step_tid = (int)syscall(SYS_gettid);
}
