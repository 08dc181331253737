/*
 * The stats page (libdcpclient/dcp_stats.h) as a status: what can be said of a
 * daemon that lives but does not answer. One thread.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dcpctl/ctl.h"
#include "libdcpclient/dcp_stats.h"

#define SILENT_S 2	/* a thread that turns many times a second did not */

static uint64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double
since(uint64_t t, uint64_t now)
{
	return t == 0 || t > now ? 0 : (double)(now - t) * 1e-9;
}

/*
 * One is alive if it holds the lock; *out: its page. Read and not mapped: the
 * file is somebody else's, who may cut it short at any moment.
 */
static int
read_page(const char *path, struct dcps_page *out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = -EPROTO;
	struct stat st;

	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
		close(fd);
		return -ESRCH;
	}
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    pread(fd, out, sizeof *out, 0) == (ssize_t)sizeof *out &&
	    out->magic == DCPS_MAGIC && out->version == DCPS_VERSION)
		rc = 0;
	close(fd);
	return rc;
}

/*
 * A name of the page's, of at most n bytes, into to [n + 1]. Whoever wrote it
 * may not steer the terminal that it is shown on: no control characters, nor
 * what others might be made of.
 */
static const char *
name(char *to, const char *from, size_t n)
{
	size_t i;

	for (i = 0; i < n && from[i] != '\0'; i++)
		to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	to[i] = '\0';
	return to;
}

static json_t *
counters(const struct dcps_page *p)
{
	uint32_t n = p->n_counters;
	json_t *o = json_object();
	char s[sizeof p->counter_name[0] + 1];

	for (uint32_t i = 0; i < n && i < DCPS_COUNTERS; i++)
		json_object_set_new(o, name(s, p->counter_name[i],
		    sizeof p->counter_name[i]),
		    json_integer((json_int_t)p->counter[i]));
	return o;
}

static json_t *
pass(const struct dcps_page *p, uint64_t now)
{
	const struct dcps_pass *a = &p->pass;
	char s[sizeof p->op_name[0] + 1] = "";
	uint32_t op = a->op;

	if (op < DCPS_OPS)
		name(s, p->op_name[op], sizeof p->op_name[op]);
	return json_pack("{s:I, s:s, s:I, s:I, s:b, s:f, s:I, s:s}",
	    "step", (json_int_t)a->step,
	    "pass", a->prefill ? "prefill" : "decode",
	    "rows", (json_int_t)a->rows, "requests", (json_int_t)a->reqs,
	    "running", a->step != 0 && a->ended_ns == 0,
	    "began_s", since(a->began_ns, now),
	    "layer", (json_int_t)a->layer,
	    "operation", s);
}

/* Who is silent, in words. */
static void
problem(const struct dcps_page *p, uint64_t now, char *buf, size_t cap)
{
	double main_s = since(p->main_ns, now), step = since(p->step_ns, now);
	double admin_s = since(p->admin_ns, now);

	if (main_s > SILENT_S && admin_s > SILENT_S)
		snprintf(buf, cap, "process %u stands still since %.0f s",
		    p->pid, main_s < admin_s ? main_s : admin_s);
	else if (admin_s > SILENT_S)
		snprintf(buf, cap, "its admin thread stands still since "
		    "%.0f s", admin_s);
	else if (step > SILENT_S)
		snprintf(buf, cap, "its step has not ended for %.0f s", step);
	else
		snprintf(buf, cap, "no answer from its admin socket");
}

int
ctl_stats(bool quiet, json_t **status)
{
	static struct dcps_page page;
	const struct dcps_page *p = &page;
	uint64_t now = now_ns();
	char path[200], why[160], release[sizeof p->release + 1];
	json_t *o;
	int rc;

	snprintf(path, sizeof path, "%s.stats", ctl_socket());
	rc = read_page(path, &page);
	if (rc != 0)
		return quiet ? CTL_NOT_RUNNING : ctl_fail(CTL_NOT_RUNNING,
		    "%s: %s", path, rc == -ESRCH ? "left by a daemon that is "
		    "gone" : strerror(-rc));
	problem(p, now, why, sizeof why);
	o = json_pack("{s:s, s:s, s:b, s:b, s:s, s:s, s:i, s:f, s:i, s:i}",
	    "state", "degraded", "last_state", dcps_state_name(p->state),
	    "ready", 0, "answers", 0, "problem", why, "version", name(release,
	    p->release, sizeof p->release), "pid", (int)p->pid,
	    "uptime_s", since(p->started_ns, now), "tp", (int)p->tp,
	    "dcp", (int)p->dcp);
	if (o == NULL)
		return quiet ? CTL_NOT_RUNNING : ctl_fail(CTL_NOT_RUNNING,
		    "%s: no stats page", path);
	json_object_set_new(o, "since_step_s",
	    json_real(since(p->step_ns, now)));
	json_object_set_new(o, "counters", counters(p));
	/* As `status` names them. */
	json_object_set(o, "running", json_object_get(json_object_get(o,
	    "counters"), "requests_running"));
	json_object_set(o, "waiting", json_object_get(json_object_get(o,
	    "counters"), "requests_waiting"));
	json_object_set_new(o, "pass", pass(p, now));
	*status = o;
	return CTL_OK;
}
