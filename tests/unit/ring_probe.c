#include "config.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
	atomic_bool stop;
	_Atomic uint64_t worst;		/* ns */
};

static void *
trips(void *arg)
{
	struct probe *p = arg;
	uint32_t one = 1;
	struct dcp_request r = { .size = sizeof r, .data = &one, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 2 };
	const struct dcp_event *ev;
	uint64_t t, id, w;
	uint32_t type;

	while (!atomic_load(&p->stop)) {
		t = dcpd_now_ns();
		DCPD_ASSERT(dcp_submit(p->d, &r, &id) == 0);
		do {
			DCPD_ASSERT(dcp_next(p->d, 20000, &ev) == 0);
			type = ev->type;
			DCPD_ASSERT(type != DCP_EV_ERROR);
			dcp_event_release(p->d, ev);
		} while (type == DCP_EV_DELTA);
		t = dcpd_now_ns() - t;
		w = atomic_load(&p->worst);
		while (t > w &&
		    !atomic_compare_exchange_weak(&p->worst, &w, t))
			;
		usleep(500);
	}
	return NULL;
}

struct probe *
probe_start(const char *path)
{
	struct probe *p = calloc(1, sizeof *p);

	DCPD_ASSERT(dcp_connect(path, 20000, &p->d) == 0);
	DCPD_ASSERT(pthread_create(&p->thread, NULL, trips, p) == 0);
	return p;
}

double
probe_worst(struct probe *p)
{
	return (double)atomic_exchange(&p->worst, 0) * 1e-6;
}

double
probe_bound(struct probe *p)
{
	double quiet;

	probe_worst(p);
	usleep(300000);
	quiet = probe_worst(p);
	return quiet * 3 > BOUND_MS ? quiet * 3 : BOUND_MS;
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
