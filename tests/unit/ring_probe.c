/*
 * Watches a daemon's descriptors and mappings, and another client's progress,
 * while something else is done to it. See ring_probe.h.
 */
#include "config.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcpclient.h"
#include "tests/unit/ring_probe.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BOUND_MS 1000.0
#else
#define BOUND_MS 50.0
#endif

struct probe {
	pthread_t thread;
	struct dcp *d;
	pid_t server;
	atomic_bool stop;
	_Atomic uint64_t worst;		/* ns, waits for a core taken off */
	_Atomic unsigned trips;
};

/* Time that a task was ready and had no core, ns; 0 where it is not told. */
static uint64_t
waited(const char *schedstat)
{
	unsigned long long ran, wait = 0;
	FILE *f = fopen(schedstat, "r");

	if (f == NULL)
		return 0;
	if (fscanf(f, "%llu %llu", &ran, &wait) != 2)
		wait = 0;
	fclose(f);
	return wait;
}

/* The same for all that a round trip needs: the server's threads and ours. */
static uint64_t
all_waited(const struct probe *p)
{
	uint64_t sum = waited("/proc/thread-self/schedstat");
	char path[300];
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", p->server);
	dir = opendir(path);
	while (dir != NULL && (e = readdir(dir)) != NULL) {
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat",
		    p->server, e->d_name);
		sum += waited(path);
	}
	if (dir != NULL)
		closedir(dir);
	return sum;
}

static void
trip(struct probe *p)
{
	uint32_t one = 1;
	struct dcp_request r = { .size = sizeof r, .data = &one, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 2 };
	const struct dcp_event *ev;
	uint64_t id;
	uint32_t type;

	DCPD_ASSERT(dcp_submit(p->d, &r, &id) == 0);
	do {
		DCPD_ASSERT(dcp_next(p->d, 20000, &ev) == 0);
		type = ev->type;
		if (type == DCP_EV_ERROR)
			fprintf(stderr, "the probe's request: %.*s\n",
			    (int)ev->text_len, ev->text);
		DCPD_ASSERT(type != DCP_EV_ERROR);
		dcp_event_release(p->d, ev);
	} while (type == DCP_EV_DELTA);
}

static void *
trips(void *arg)
{
	struct probe *p = arg;
	uint64_t before, t, w, wait;

	while (!atomic_load(&p->stop)) {
		before = all_waited(p);
		t = dcpd_now_ns();
		trip(p);
		t = dcpd_now_ns() - t;
		wait = all_waited(p) - before;
		t = t > wait ? t - wait : 0;
		w = atomic_load(&p->worst);
		while (t > w &&
		    !atomic_compare_exchange_weak(&p->worst, &w, t))
			;
		atomic_fetch_add(&p->trips, 1);
		usleep(500);
	}
	return NULL;
}

struct probe *
probe_start(const char *path, pid_t server)
{
	struct probe *p = calloc(1, sizeof *p);

	p->server = server;
	DCPD_ASSERT(dcp_connect(path, 20000, &p->d) == 0);
	DCPD_ASSERT(pthread_create(&p->thread, NULL, trips, p) == 0);
	return p;
}

void
probe_reset(struct probe *p)
{
	atomic_store(&p->worst, 0);
	atomic_store(&p->trips, 0);
}

unsigned
probe_trips(struct probe *p)
{
	return atomic_load(&p->trips);
}

double
probe_worst_ms(struct probe *p)
{
	return (double)atomic_load(&p->worst) * 1e-6;
}

bool
probe_fine(struct probe *p)
{
	double worst = probe_worst_ms(p);

	if (worst < BOUND_MS)
		return true;
	fprintf(stderr, "an honest client waited %.1f ms\n", worst);
	return false;
}

void
probe_stop(struct probe *p)
{
	atomic_store(&p->stop, true);
	pthread_join(p->thread, NULL);
	dcp_close(p->d);
	free(p);
}

struct holdings
holdings_of(pid_t pid)
{
	struct holdings h = { 0, 0 };
	char path[64], line[512];
	struct dirent *e;
	DIR *dir;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	dir = opendir(path);
	DCPD_ASSERT(dir != NULL);
	while ((e = readdir(dir)) != NULL)
		h.fds += e->d_name[0] != '.';
	closedir(dir);
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	f = fopen(path, "r");
	DCPD_ASSERT(f != NULL);
	while (fgets(line, sizeof line, f) != NULL)
		h.maps += strstr(line, "memfd:dcpd-") != NULL;
	fclose(f);
	return h;
}

bool
holdings_back(pid_t pid, struct holdings base)
{
	struct holdings h = { 0, 0 };
	int i;

	for (i = 0; i < 1000; i++) {
		h = holdings_of(pid);
		if (h.fds <= base.fds && h.maps <= base.maps)
			return true;
		usleep(1000);
	}
	fprintf(stderr, "the server holds %d fds (%d before), %d maps (%d)\n",
	    h.fds, base.fds, h.maps, base.maps);
	return false;
}

const char *
log_make(void)
{
	static char path[32];
	int fd = memfd_create("log", 0);

	DCPD_ASSERT(fd >= 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return path;
}

int
log_count(const char *log, const char *text)
{
	char line[1024];
	FILE *f = fopen(log, "r");
	int n = 0;

	if (f == NULL)
		return 0;
	while (fgets(line, sizeof line, f) != NULL)
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}
