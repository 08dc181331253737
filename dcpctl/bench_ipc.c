/*
 * `dcpctl bench ipc`: what the ring costs, beside plain sockets, on this
 * machine and in this run. Needs no daemon: it forks servers of its own over
 * the real dcpd/ipc, and talks to them through libdcpclient.
 *
 * A round trip is one request and its final event: dcp_submit, intake, checks,
 * dcpd_ipc_emit, dcp_next. Sockets carry 64 bytes each way, unchecked. The
 * ways take turns, so that a busy moment of the machine hits all of them.
 */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dcpctl/bench_ipc.h"
#include "dcpd/ipc/ipc.h"

#define ROUNDS 10		/* turns of each way */
#define STREAMS 8		/* requests at once, when streaming */
#define STREAM_TOKENS 4000u	/* per request */
#define SPIN_US "2000"

enum way { RING_SPIN, RING_SLEEP, SEQPACKET, STREAM_EPOLL, N_WAYS };

static const struct {
	const char *key, *text;
} ways[N_WAYS] = {
	[RING_SPIN] = { "ring_spinning", "ring, both sides spin" },
	[RING_SLEEP] = { "ring_sleeping", "ring, both sides sleep" },
	[SEQPACKET] = { "seqpacket", "SEQPACKET socket, blocking" },
	[STREAM_EPOLL] = { "stream_epoll", "stream socket, server in epoll" },
};

struct peer {			/* one way's other side */
	pid_t pid;
	int fd;			/* sockets */
	struct dcp *d;		/* ring */
};

/* --- the ring's server --- */

struct job {
	struct job *next;
	struct dcpd_submit *s;
	uint32_t i;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct job *jobs;
} srv = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

/* A token to the job's client; true at the end. */
static bool
one_token(struct job *j)
{
	struct dcp_event ev = {
		.type = DCP_EV_DELTA, .tokens = &j->i, .n_tokens = 1,
		.text = " tok", .text_len = 4,
	};

	if (++j->i == j->s->p.max_tokens) {
		ev.type = DCP_EV_DONE;
		ev.finish = DCP_FINISH_LENGTH;
	}
	return dcpd_ipc_emit(j->s->client, j->s->id, &ev) < 0 ||
	    ev.type == DCP_EV_DONE;
}

/* What a step thread does: a token for each request, round after round. */
static void *
stepper(void *arg)
{
	struct job *mine = NULL, *j, **p;

	for (;;) {
		pthread_mutex_lock(&srv.lock);
		while (mine == NULL && srv.jobs == NULL)
			pthread_cond_wait(&srv.cond, &srv.lock);
		for (p = &mine; *p != NULL; p = &(*p)->next)
			;
		*p = srv.jobs;
		srv.jobs = NULL;
		pthread_mutex_unlock(&srv.lock);
		for (p = &mine; (j = *p) != NULL; ) {
			if (!one_token(j)) {
				p = &j->next;
				continue;
			}
			*p = j->next;
			dcpd_submit_free(j->s);
			free(j);
		}
	}
	return arg;
}

static int
op_submit(void *arg, struct dcpd_submit *s, struct dcpd_err *err)
{
	struct job *j, one = { .s = s };

	if (s->p.max_tokens == 1) {
		one_token(&one);
		dcpd_submit_free(s);
		return 0;
	}
	j = calloc(1, sizeof *j);
	if (j == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	j->s = s;
	pthread_mutex_lock(&srv.lock);
	j->next = srv.jobs;
	srv.jobs = j;
	pthread_cond_signal(&srv.cond);
	pthread_mutex_unlock(&srv.lock);
	return 0;
}

static void
ring_server(const char *path, bool spin, int ready)
{
	static const struct dcpd_ipc_ops ops = { .submit = op_submit };
	struct dcpd_ipc_config cfg = {
		.path = path, .vocab = 1000,
		.spin_us = spin ? (uint32_t)atoi(SPIN_US) : 0,
	};
	struct dcpd_err err;
	struct dcpd_ipc *ipc;
	pthread_t t;

	if (dcpd_ipc_start(&cfg, &ops, NULL, &ipc, &err) < 0) {
		dcpd_log(LOG_ERR, "%s", err.text);
		_exit(1);
	}
	pthread_create(&t, NULL, stepper, NULL);
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* --- the sockets' servers --- */

static void
seqpacket_server(int fd)
{
	char buf[64];
	ssize_t n;

	while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
		if (send(fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	_exit(0);
}

static void
epoll_server(int fd)
{
	int ep = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN };
	char buf[64];
	ssize_t n;

	epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	while (epoll_wait(ep, &e, 1, -1) == 1) {
		n = read(fd, buf, sizeof buf);
		if (n <= 0 || write(fd, buf, (size_t)n) != n)
			break;
	}
	_exit(0);
}

/* --- set-up --- */

static int
start_ring(struct peer *p, const char *path, bool spin)
{
	int fds[2];
	char c;

	if (pipe(fds) < 0)
		return -errno;
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		ring_server(path, spin, fds[1]);
	}
	close(fds[1]);
	if (p->pid < 0 || read(fds[0], &c, 1) != 1) {
		close(fds[0]);
		return -EIO;
	}
	close(fds[0]);
	setenv("DCP_SPIN_US", spin ? SPIN_US : "0", 1);
	return dcp_connect(path, 5000, &p->d);
}

static int
start_socket(struct peer *p, int type)
{
	int fds[2];

	if (socketpair(AF_UNIX, type, 0, fds) < 0)
		return -errno;
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		if (type == SOCK_SEQPACKET)
			seqpacket_server(fds[1]);
		epoll_server(fds[1]);
	}
	close(fds[1]);
	p->fd = fds[0];
	return p->pid < 0 ? -EAGAIN : 0;
}

static void
stop(struct peer *p)
{
	dcp_close(p->d);
	if (p->fd > 0)
		close(p->fd);
	if (p->pid > 0) {
		kill(p->pid, SIGKILL);
		waitpid(p->pid, NULL, 0);
	}
}

/* --- measuring --- */

static int
trip(const struct peer *p)
{
	static const uint32_t ids[4] = { 1, 2, 3, 4 };
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.data = ids, .len = sizeof ids, .max_tokens = 1,
	};
	const struct dcp_event *ev;
	char buf[64] = { 0 };
	uint64_t id;
	int rc;

	if (p->d == NULL) {
		if (send(p->fd, buf, sizeof buf, MSG_NOSIGNAL) < 0 ||
		    recv(p->fd, buf, sizeof buf, 0) != sizeof buf)
			return -EPIPE;
		return 0;
	}
	rc = dcp_submit(p->d, &r, &id);
	if (rc == 0)
		rc = dcp_next(p->d, 5000, &ev);
	if (rc < 0)
		return rc;
	rc = ev->type == DCP_EV_DONE ? 0 : -EPROTO;
	dcp_event_release(p->d, ev);
	return rc;
}

/* n trips, ns each, after some to warm up */
static int
trips(const struct peer *p, uint32_t *ns, unsigned n)
{
	unsigned i, warm = n / 10 + 1;
	uint64_t t;
	int rc;

	for (i = 0; i < warm; i++)
		if ((rc = trip(p)) < 0)
			return rc;
	for (i = 0; i < n; i++) {
		t = dcpd_now_ns();
		if ((rc = trip(p)) < 0)
			return rc;
		ns[i] = (uint32_t)dcpd_min64(dcpd_now_ns() - t, UINT32_MAX);
	}
	return 0;
}

static int
by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

struct rate {
	unsigned tokens, events;	/* fewer, if tokens had to wait */
	double per_s;			/* tokens */
};

/* One client with STREAMS requests at once. */
static int
stream(struct dcp *d, unsigned total, struct rate *out)
{
	uint32_t id0 = 1;
	struct dcp_request r = {
		.size = sizeof r, .input = DCP_INPUT_TOKENS,
		.data = &id0, .len = 4, .max_tokens = STREAM_TOKENS,
	};
	unsigned left = total / STREAM_TOKENS, live = 0;
	struct rate sum = { 0 };
	const struct dcp_event *ev;
	double t = dcpd_now();
	uint64_t id;
	int rc;

	while (left > 0 || live > 0) {
		while (left > 0 && live < STREAMS) {
			if ((rc = dcp_submit(d, &r, &id)) < 0)
				return rc;
			left--;
			live++;
		}
		if ((rc = dcp_next(d, 5000, &ev)) < 0)
			return rc;
		sum.tokens += ev->n_tokens;
		sum.events++;
		live -= ev->type != DCP_EV_DELTA;
		dcp_event_release(d, ev);
	}
	sum.per_s = sum.tokens / (dcpd_now() - t);
	*out = sum;
	return 0;
}

struct result {
	double p50, p99;		/* us */
};

static int
measure(struct peer *peer, unsigned n, struct result *res)
{
	uint32_t *ns = malloc((size_t)n * N_WAYS * sizeof *ns);
	unsigned each = n / ROUNDS, round, w;
	int rc = 0;

	if (ns == NULL)
		return -ENOMEM;
	for (round = 0; round < ROUNDS && rc == 0; round++)
		for (w = 0; w < N_WAYS && rc == 0; w++)
			rc = trips(&peer[w], ns + w * n + round * each, each);
	for (w = 0; w < N_WAYS && rc == 0; w++) {
		qsort(ns + w * n, n, sizeof *ns, by_value);
		res[w].p50 = ns[w * n + n / 2] * 1e-3;
		res[w].p99 = ns[w * n + n / 100 * 99] * 1e-3;
	}
	free(ns);
	return rc;
}

static void
print(const struct result *res, unsigned n, const struct rate *rate, bool json)
{
	json_t *o = json_object();
	unsigned w;

	if (!json)
		printf("%-32s %10s %10s\n", "round trip, us", "p50", "p99");
	for (w = 0; w < N_WAYS; w++) {
		if (!json)
			printf("%-32s %10.2f %10.2f\n", ways[w].text,
			    res[w].p50, res[w].p99);
		json_object_set_new(o, ways[w].key, json_pack("{s:f, s:f}",
		    "p50_us", res[w].p50, "p99_us", res[w].p99));
	}
	if (!json)
		printf("%u round trips of each; one client streams %.0f "
		    "tokens/s (%u tokens in %u events)\n", n, rate->per_s,
		    rate->tokens, rate->events);
	json_object_set_new(o, "round_trips", json_integer(n));
	json_object_set_new(o, "stream", json_pack("{s:f, s:i, s:i}",
	    "tokens_per_s", rate->per_s, "tokens", (int)rate->tokens,
	    "events", (int)rate->events));
	if (json) {
		json_dumpf(o, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
		putchar('\n');
	}
	json_decref(o);
}

static int
run(const char *dir, unsigned n, unsigned tokens, bool json)
{
	struct peer peer[N_WAYS] = { 0 };
	struct result res[N_WAYS];
	char path[2][64];
	struct rate rate = { 0 };
	unsigned w;
	int rc;

	snprintf(path[0], sizeof path[0], "%s/spin", dir);
	snprintf(path[1], sizeof path[1], "%s/sleep", dir);
	rc = start_socket(&peer[SEQPACKET], SOCK_SEQPACKET);
	if (rc == 0)
		rc = start_socket(&peer[STREAM_EPOLL], SOCK_STREAM);
	if (rc == 0)
		rc = start_ring(&peer[RING_SPIN], path[0], true);
	if (rc == 0)
		rc = start_ring(&peer[RING_SLEEP], path[1], false);
	if (rc == 0)
		rc = measure(peer, n, res);
	if (rc == 0)
		rc = stream(peer[RING_SPIN].d, tokens, &rate);
	if (rc == 0)
		print(res, n, &rate, json);
	else
		fprintf(stderr, "bench ipc: %s: %s\n", strerror(-rc),
		    dcp_error_text());
	for (w = 0; w < N_WAYS; w++)
		stop(&peer[w]);
	unlink(path[0]);
	unlink(path[1]);
	return rc < 0 ? 1 : 0;
}

static int
usage(FILE *f)
{
	fputs("usage: bench ipc [-j] [-n ROUND_TRIPS] [-t TOKENS]\n"
	    "  -j  JSON\n"
	    "  -n  round trips of each way, 100 to 10000000 (20000)\n"
	    "  -t  tokens to stream, 4000 to 1000000000 (2000000)\n", f);
	return f == stdout ? 0 : 2;
}

static bool
number(const char *s, unsigned long lo, unsigned long hi, unsigned *out)
{
	char *e;
	unsigned long v = strtoul(s, &e, 10);

	if (*s < '0' || *s > '9' || *e != '\0' || v < lo || v > hi)
		return false;
	*out = (unsigned)v;
	return true;
}

int
bench_ipc_main(int argc, char **argv)
{
	char dir[] = "/tmp/dcp-bench-XXXXXX";
	unsigned n = 20000, tokens = 2000000;
	bool json = false;
	static const struct option longs[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c, rc;

	optind = 1;
	while ((c = getopt_long(argc, argv, "jhn:t:", longs, NULL)) != -1) {
		if (c == 'j')
			json = true;
		else if (c == 'h')
			return usage(stdout);
		else if (!((c == 'n' && number(optarg, 100, 10000000, &n)) ||
		    (c == 't' && number(optarg, 4000, 1000000000, &tokens))))
			return usage(stderr);
	}
	if (optind != argc)
		return usage(stderr);
	n = n / ROUNDS * ROUNDS;
	tokens = tokens / STREAM_TOKENS * STREAM_TOKENS;
	if (mkdtemp(dir) == NULL) {
		fprintf(stderr, "bench ipc: %s: %s\n", dir, strerror(errno));
		return 1;
	}
	rc = run(dir, n, tokens, json);
	rmdir(dir);
	return rc;
}
