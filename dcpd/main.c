/*
 * dcpd: starts, serves in the foreground, ends.
 *
 * Main thread: start-up, then waits for a signal or a failed engine. Signals
 * are blocked everywhere and taken by one thread, so that they also work
 * while the main thread reads weights.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/crash.h"
#include "dcpd/base/thread.h"
#include "dcpd/daemon.h"
#include "dcpd/plugin/plugin.h"
#include "dcpd/reload.h"

#define TICK_MS 100	/* how soon a failed engine or an idle drain is seen */
#define HEAR_S 5.0	/* the clients of what is cut short are told */
#define LARGE_BLOCK (128 << 10)	/* bytes; from here on its own mapping */
#define FORCE_S 10	/* an orderly end may take so long after the drain */

static struct {
	_Atomic unsigned count;		/* SIGTERM and SIGINT so far */
	_Atomic bool serving;
	_Atomic bool hup;		/* SIGHUP came */
	_Atomic int failed;		/* exit status of a start that failed */
	int fd;				/* eventfd: count changed */
	struct dcpd_daemon *daemon;
} sig;

/*
 * For an exit without unwinding: the lock stays taken, so that no more come.
 * Who holds it for longer waits for another process to leave the folder.
 */
static void
remove_files(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 1;
	if (sig.daemon == NULL ||
	    pthread_mutex_timedlock(&sig.daemon->files_lock, &until) != 0)
		return;
	dcpd_listen_unlink(&sig.daemon->client_sock);
	dcpd_listen_unlink(&sig.daemon->admin_sock);
	dcpd_stats_close();
}

static sigset_t
handled_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	return set;
}

/*
 * A reload may be asked for at any moment, by somebody who knows the process
 * and not how far it is: from main on it waits, for serve().
 */
static void
hold_hup(bool hold)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/*
 * While it starts, about every second: ends the process when there is no sign
 * of a phase for longer than it may take. The main thread is in a call of the
 * device's then, and cannot be waited for. Time in which the whole process
 * stood is not the device's.
 */
static void
look_at_start(struct dcpd_run *run)
{
	static double looked, stood;
	static uint32_t signs;
	const char *name = NULL;
	double now = dcpd_now(), most = 0;

	stood = signs != run->phase_signs ? 0 : stood + fmin(now - looked, 2);
	signs = run->phase_signs;
	looked = now;
	if (pthread_rwlock_tryrdlock(&run->lock) != 0)
		return;
	if (run->phase_began > 0 && run->phase_most > 0 &&
	    stood > run->phase_most) {
		name = run->phase[run->phases - 1].name;
		most = run->phase_most;
	}
	pthread_rwlock_unlock(&run->lock);
	if (name == NULL)
		return;
	dcpd_log(LOG_ERR, "stuck: %s has not ended for %.0f s: the device, or "
	    "its driver, does not come back; ending without it", name, most);
	remove_files();
	_exit(EXIT_FAILURE);
}

/* Why the start failed, until that has been logged. */
static const char *_Atomic unsaid;

/* No client has anything to lose yet; a start that failed has. */
static void __attribute__((noreturn))
end_at_once(int s)
{
	const char *name = s == SIGTERM ? "SIGTERM" : "SIGINT";
	const char *why = unsaid;

	if (why != NULL)
		dcpd_log(LOG_ERR, "%s", why);
	dcpd_log(LOG_NOTICE, sig.failed != 0 ? "%s: ending without waiting "
	    "for the rest to close" : "%s while loading: ending", name);
	remove_files();
	_exit(sig.failed);
}

static void *
signal_main(void *arg)
{
	const struct timespec tick = { .tv_sec = 1 };
	sigset_t set = handled_signals();
	uint64_t one = 1;
	int s;

	for (;;) {
		s = sig.serving ? sigwaitinfo(&set, NULL) :
		    sigtimedwait(&set, NULL, &tick);
		if (!sig.serving && sig.failed == 0)
			look_at_start(&sig.daemon->run);
		if (s < 0)
			continue;
		if (s == SIGHUP) {	/* while loading: when it serves */
			sig.hup = true;
			if (write(sig.fd, &one, sizeof one) < 0)
				dcpd_log(LOG_DEBUG, "signal: not woken");
			continue;
		}
		if (!sig.serving)
			end_at_once(s);
		sig.count++;
		if (write(sig.fd, &one, sizeof one) < 0)
			dcpd_log(LOG_DEBUG, "signal: wake-up not sent");
	}
	return NULL;
}

static int
start_signals(struct dcpd_daemon *d, struct dcpd_err *err)
{
	sigset_t set = handled_signals();
	pthread_t t;
	int rc;

	signal(SIGPIPE, SIG_IGN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sig.daemon = d;
	sig.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sig.fd < 0)
		return dcpd_fail(err, -errno, "eventfd: %s", strerror(errno));
	rc = dcpd_thread_start(&t, signal_main, NULL);
	if (rc != 0)
		return dcpd_fail(err, rc, "signal thread: %s", strerror(-rc));
	pthread_detach(t);
	return 0;
}

/*
 * systemd ends a daemon that does not say in time that it lives: not one that
 * has nothing to do, but one whose step does not end.
 */
static void
feed_watchdog(const struct dcpd_run *run)
{
	static double fed, every = 1;	/* s */
	static bool wanted;
	double now = dcpd_now();
	uint64_t us;

	if (fed == 0 && sd_watchdog_enabled(0, &us) > 0) {
		wanted = true;
		every = (double)us * 1e-6 / 3;
	}
	if (fed != 0 && now - fed < every)
		return;
	fed = now;
	/* A plugin that is silent is logged, wanted or not. */
	if (dcpd_plugins_alive(now) && wanted &&
	    dcpd_watch_turn() < run->stuck_after)
		sd_notify(0, "WATCHDOG=1");
}

/* Wait for a signal or a reload, TICK_MS at most; look after the rest. */
static void
turn(struct dcpd_daemon *d)
{
	struct pollfd p = { sig.fd, POLLIN, 0 };
	uint64_t n;

	if (poll(&p, 1, TICK_MS) > 0 && read(sig.fd, &n, sizeof n) < 0)
		dcpd_log(LOG_DEBUG, "signal: nothing to read");
	dcpd_watch(&d->run);
	feed_watchdog(&d->run);
}

static void
set_state(struct dcpd_daemon *d, enum dcpd_state state)
{
	d->run.state = state;
	dcpd_watch(&d->run);
}

static void *
force_main(void *arg)
{
	struct timespec ts = { .tv_sec = FORCE_S };
	const char *why;

	nanosleep(&ts, NULL);
	remove_files();
	why = unsaid;
	if (why != NULL)
		dcpd_log(LOG_ERR, "%s", why);
	dcpd_log(LOG_ERR, "a step, or a device that is lost, did not end "
	    "within %d s: ending without it", FORCE_S);
	_exit((int)(intptr_t)arg);
}

/* A thread that ends the process if an orderly end hangs, the driver's part of
 * exit() included. */
static void
force_the_end(int code)
{
	pthread_t t;

	if (dcpd_thread_start(&t, force_main, (void *)(intptr_t)code) == 0)
		pthread_detach(t);
}

/*
 * Running requests go on until they end, the bound, or a second signal. An
 * engine that fails meanwhile is a failure of the process as before.
 */
static void
drain(struct dcpd_daemon *d, struct dcpd_err *err)
{
	double bound = d->opt.drain_timeout, end = dcpd_now() + bound;

	/* systemd waits for the drain, and for the end after it. */
	sd_notifyf(0, "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%.0f",
	    (bound + FORCE_S + 5) * 1e6);
	dcpd_sched_drain(d->sched, true);
	set_state(d, DCPD_STOPPING);
	dcpd_plugins_drain();
	dcpd_log(LOG_NOTICE, "ending: %llu requests run on, for %g s at most; "
	    "a second signal cancels them", (unsigned long long)
	    (DCPD_COUNTER(requests_running) + DCPD_COUNTER(requests_waiting)),
	    bound);
	while (!dcpd_sched_idle(d->sched) && sig.count < 2 &&
	    dcpd_now() < end && !dcpd_sched_failed(d->sched, NULL))
		turn(d);
	if (!dcpd_sched_failed(d->sched, err) && !dcpd_sched_idle(d->sched)) {
		dcpd_log(LOG_WARNING, "%s: cancelling what still runs",
		    sig.count > 1 ? "second signal" :
		    "--drain-timeout is over");
		dcpd_sched_end(d->sched);
	}
}

/* The text workers tell each client why; then nothing is left to run. */
static void
let_them_hear(struct dcpd_daemon *d)
{
	double end = dcpd_now() + HEAR_S;

	while (!dcpd_sched_idle(d->sched) && dcpd_now() < end)
		turn(d);
}

static int
serve(struct dcpd_daemon *d, struct dcpd_err *err)
{
	struct dcpd_err ignored;

	while (sig.count == 0) {
		if (dcpd_sched_failed(d->sched, err) ||
		    dcpd_plugins_failed(err)) {
			sd_notifyf(0, "STOPPING=1\nSTATUS=failed: %s",
			    err->text);
			set_state(d, DCPD_FAILED);
			dcpd_crash_report(err->text);
			let_them_hear(d);
			break;
		}
		turn(d);
		if (atomic_exchange(&sig.hup, false))
			json_decref(dcpd_reload(d, false, &ignored));
		dcpd_reload_serve(d);
	}
	dcpd_reload_close();
	if (err->code == 0)
		drain(d, err);
	force_the_end(EXIT_FAILURE);
	/* While the plugins are there to pass it on. */
	if (err->code == 0)
		let_them_hear(d);
	return err->code;
}

/* Each client costs a few descriptors. */
static void
raise_fd_limit(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
}

/*
 * Started with 0, 1 or 2 closed, a socket would get that number, and the log
 * would go to whoever is at its other end.
 */
static void
fill_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/*
 * Of a start that failed: what the machine lacks just now, an address that it
 * may get later, or a device that gives errors, is nobody's configuration, and
 * worth another try.
 */
static int
start_status(int rc)
{
	switch (rc) {
	case -ENOMEM:
	case -EMFILE:
	case -ENFILE:
	case -EAGAIN:		/* of pthread_create */
	case -EIO:
	case -EADDRNOTAVAIL:
		return EXIT_FAILURE;
	default:
		return DCPD_EXIT_CONFIG;
	}
}

/* What would give more of it. */
static const char *
lacks(int rc)
{
	return rc == -EAGAIN ? " (threads: ulimit -u, TasksMax=, pids.max)" :
	    rc == -EMFILE ? " (descriptors: ulimit -n, LimitNOFILE=)" : "";
}

static int
run(struct dcpd_daemon *d, int argc, char **argv, struct dcpd_err *err)
{
	int rc, code;

	raise_fd_limit();
	dcpd_daemon_init(d);
	rc = dcpd_crash_init(d->opt.state_dir, err);
	if (rc == 0)
		rc = start_signals(d, err);
	dcpd_reload_init(d, argc, argv, sig.fd);
	if (rc == 0)
		rc = dcpd_daemon_start(d, err);
	if (rc == 0) {
		sig.serving = true;
		dcpd_reload_open();
		code = EXIT_FAILURE;
		/* A start that succeeds may have met failures it could do
		 * without, e.g. no tokenizer.json. */
		err->code = 0;
		rc = serve(d, err);
	} else {
		code = start_status(rc);
		unsaid = err->text;
		sig.failed = code;
		force_the_end(code);
	}
	dcpd_daemon_stop(d);
	unsaid = NULL;
	if (rc == 0) {
		dcpd_log(LOG_NOTICE, "ended");
		return EXIT_SUCCESS;
	}
	dcpd_log(LOG_ERR, "%s%s", err->text, lacks(rc));
	return code;
}

int
main(int argc, char **argv)
{
	static struct dcpd_daemon d = {
		.files_lock = PTHREAD_MUTEX_INITIALIZER,
		.client_sock = DCPD_LISTEN_INIT, .admin_sock = DCPD_LISTEN_INIT,
	};
	struct dcpd_err err = { 0 };
	int code = EXIT_SUCCESS;

	hold_hup(true);
	/*
	 * Left alone, the first large block that is freed has later ones of
	 * its size come from the arenas, where small blocks that stay keep
	 * them from going back: 11 MiB became 20 after 20,000 requests.
	 */
	mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
	fill_standard_fds();
	if (dcpd_options_parse(argc, argv, &d.opt, &err) != 0) {
		dcpd_log(LOG_ERR, "%s", err.text);
		return DCPD_EXIT_CONFIG;
	}
	dcpd_log_level(dcpd_options_log_level(&d.opt));
	if (d.opt.help || d.opt.help_man || d.opt.help_conf || d.opt.version ||
	    d.opt.plan)
		hold_hup(false);	/* no daemon: nothing to reload */
	if (d.opt.help) {
		dcpd_flags_help(stdout);
	} else if (d.opt.help_man) {
		dcpd_flags_man(stdout);
	} else if (d.opt.help_conf) {
		dcpd_flags_conf(stdout);
	} else if (d.opt.version) {
		printf("dcpd %s\n", PACKAGE_VERSION);
	} else if (d.opt.plan) {
		if (dcpd_daemon_plan(&d, &err) != 0) {
			dcpd_daemon_stop(&d);
			dcpd_log(LOG_ERR, "%s", err.text);
			code = DCPD_EXIT_CONFIG;
		}
	} else {
		code = run(&d, argc, argv, &err);
	}
	if (fflush(stdout) != 0 || ferror(stdout)) {
		dcpd_log(LOG_ERR, "standard output: %s", strerror(errno));
		code = EXIT_FAILURE;
	}
	dcpd_options_free(&d.opt);
	return code;
}
