/*
 * `dcpctl bench ipc`: what the ring costs, beside plain sockets, on this
 * machine and in this run. Needs no daemon: it forks servers of its own over
 * the real dcpd/ipc, and talks to them through libdcpclient.
 *
 * A round trip is one request and its final event: dcp_submit, intake, checks,
 * dcpd_ipc_emit, dcp_next. Sockets carry 64 bytes each way, unchecked.
 *
 * What a sleeper's wake-up costs depends first on where it sleeps: on the
 * waker's processor a switch, on another one that idles the interrupt that
 * fetches it, which in a virtual machine is twenty times as much. The kernel
 * chooses as it likes, and otherwise from run to run; so both sides are bound,
 * and every way is measured in both places. The rows take turns, forwards and
 * backwards, so that a busy moment or a clock that changes hits all of them.
 */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dcpctl/bench_ipc.h"
#include "dcpd/ipc/ipc.h"

#define ROUNDS 11u		/* turns of each row; odd, for a median */
#define STREAMS 8		/* requests at once, when streaming */
#define STREAM_TOKENS 4000u	/* per request */
#define SPIN_US "2000"
#define REST_NS 5000000		/* > SPIN_US: who spun last sleeps */

enum way { RING_SPIN, RING_DEFAULT, RING_SLEEP, SEQPACKET, STREAM_EPOLL };
enum place { ONE_CPU, TWO_CPUS, N_PLACES };

static const char *const places[N_PLACES] = { "one_cpu", "two_cpus" };

/* In this order, so that the ring and the sockets are neighbours in time. */
static const struct row {
	enum way way;
	enum place place;
	const char *key, *text;
} rows[] = {
	{ RING_SPIN, TWO_CPUS, "ring_spinning", "ring, both sides spin" },
	{ RING_DEFAULT, ONE_CPU, "ring_default", "ring, defaults" },
	{ RING_SLEEP, ONE_CPU, "ring_sleeping", "ring, both sides sleep" },
	{ SEQPACKET, ONE_CPU, "seqpacket", "SEQPACKET socket, blocking" },
	{ STREAM_EPOLL, ONE_CPU, "stream_epoll",
	    "stream socket, server in epoll" },
	{ RING_DEFAULT, TWO_CPUS, "ring_default", "ring, defaults" },
	{ RING_SLEEP, TWO_CPUS, "ring_sleeping", "ring, both sides sleep" },
	{ SEQPACKET, TWO_CPUS, "seqpacket", "SEQPACKET socket, blocking" },
	{ STREAM_EPOLL, TWO_CPUS, "stream_epoll",
	    "stream socket, server in epoll" },
};

#define N_ROWS (sizeof rows / sizeof rows[0])
#define ROW_SPIN 0
#define ROW_DEFAULT 1

/* Where the two sides run: the first processors this process may use. */
struct cpus {
	int id[2];			/* the client's, and the other one */
	unsigned n;			/* 1: there is no other one */
};

struct peer {			/* one row's other side */
	pid_t pid;		/* 0: this row is not measured */
	int fd;			/* sockets */
	struct dcp *d;		/* ring */
	double p50[ROUNDS], p99[ROUNDS];	/* us, each turn's */
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

/* By default the daemon sleeps at once, and the client after 50 us. */
static int
start_ring(struct peer *p, const char *path, enum way way)
{
	int fds[2];
	char c;

	if (pipe(fds) < 0)
		return -errno;
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		ring_server(path, way == RING_SPIN, fds[1]);
	}
	close(fds[1]);
	if (p->pid < 0 || read(fds[0], &c, 1) != 1) {
		close(fds[0]);
		return -EIO;
	}
	close(fds[0]);
	if (way == RING_DEFAULT)
		unsetenv("DCP_SPIN_US");
	else
		setenv("DCP_SPIN_US", way == RING_SPIN ? SPIN_US : "0", 1);
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

static int
bind_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof set, &set) < 0 ? -errno : 0;
}

static int
find_cpus(struct cpus *cpus)
{
	cpu_set_t set;
	int i;

	cpus->n = 0;
	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return -errno;
	for (i = 0; i < CPU_SETSIZE && cpus->n < 2; i++)
		if (CPU_ISSET(i, &set))
			cpus->id[cpus->n++] = i;
	return cpus->n > 0 ? 0 : -ENODEV;
}

/* A server runs where its parent ran when it forked. */
static int
start(struct peer *p, const struct row *row, const struct cpus *cpus,
    const char *path)
{
	int rc = bind_to(cpus->id[row->place]), back;

	if (rc < 0)
		return rc;
	if (row->way <= RING_SLEEP)
		rc = start_ring(p, path, row->way);
	else
		rc = start_socket(p, row->way == SEQPACKET ?
		    SOCK_SEQPACKET : SOCK_STREAM);
	back = bind_to(cpus->id[ONE_CPU]);
	return rc < 0 ? rc : back;
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

static int
by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

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

/* One turn: n trips of one row. Each begins with both sides asleep. */
static int
turn(struct peer *p, unsigned round, uint32_t *ns, unsigned n)
{
	static const struct timespec rest = { .tv_nsec = REST_NS };
	int rc;

	nanosleep(&rest, NULL);
	rc = trips(p, ns, n);
	if (rc < 0)
		return rc;
	qsort(ns, n, sizeof *ns, by_value);
	p->p50[round] = ns[n / 2] * 1e-3;
	p->p99[round] = ns[n * 99ull / 100] * 1e-3;
	return 0;
}

/* each: trips a turn */
static int
measure(struct peer *peer, unsigned each)
{
	uint32_t *ns = malloc(each * sizeof *ns);
	unsigned round, i, w;
	int rc = 0;

	if (ns == NULL)
		return -ENOMEM;
	for (round = 0; round < ROUNDS && rc == 0; round++) {
		for (i = 0; i < N_ROWS && rc == 0; i++) {
			w = round % 2 == 0 ? i : N_ROWS - 1 - i;
			if (peer[w].pid > 0)
				rc = turn(&peer[w], round, ns, each);
		}
	}
	for (w = 0; w < N_ROWS && rc == 0; w++) {
		qsort(peer[w].p50, ROUNDS, sizeof(double), by_double);
		qsort(peer[w].p99, ROUNDS, sizeof(double), by_double);
	}
	free(ns);
	return rc;
}

static json_t *
figures(const struct peer *p)
{
	return json_pack("{s:f, s:f, s:[f, f]}",
	    "p50_us", p->p50[ROUNDS / 2], "p99_us", p->p99[ROUNDS / 2],
	    "turns_p50_us", p->p50[0], p->p50[ROUNDS - 1]);
}

/* By way, then by place; a way's own figures are those of its first place. */
static void
print_json(const struct peer *peer, const struct cpus *cpus, unsigned n,
    const struct rate *rate)
{
	json_t *o = json_object(), *ids = json_array(), *way;
	unsigned i;

	for (i = 0; i < N_ROWS; i++) {
		if (peer[i].pid == 0)
			continue;
		way = json_object_get(o, rows[i].key);
		if (way == NULL) {
			way = figures(&peer[i]);
			json_object_set_new(o, rows[i].key, way);
		}
		json_object_set_new(way, places[rows[i].place],
		    figures(&peer[i]));
	}
	for (i = 0; i < cpus->n; i++)
		json_array_append_new(ids, json_integer(cpus->id[i]));
	json_object_set_new(o, "cpus", ids);
	json_object_set_new(o, "round_trips", json_integer(n));
	json_object_set_new(o, "stream", json_pack("{s:f, s:i, s:i}",
	    "tokens_per_s", rate->per_s, "tokens", (int)rate->tokens,
	    "events", (int)rate->events));
	json_dumpf(o, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	putchar('\n');
	json_decref(o);
}

static void
print_table(const struct peer *peer, const struct cpus *cpus, unsigned n,
    const struct rate *rate)
{
	unsigned i;

	printf("%-31s %-10s %8s %8s   %s\n", "round trip, us", "processors",
	    "p50", "p99", "p50 of a turn");
	for (i = 0; i < N_ROWS; i++) {
		const struct peer *p = &peer[i];

		if (p->pid == 0)
			continue;
		printf("%-31s %-10s %8.2f %8.2f   %.2f to %.2f\n",
		    rows[i].text, rows[i].place == ONE_CPU ? "one" : "two",
		    p->p50[ROUNDS / 2], p->p99[ROUNDS / 2], p->p50[0],
		    p->p50[ROUNDS - 1]);
	}
	printf("%u round trips of each in %u turns, ", n, ROUNDS);
	if (cpus->n > 1)
		printf("on processors %d and %d\n", cpus->id[0], cpus->id[1]);
	else
		printf("on processor %d: this process may use no other, so "
		    "the rows for two are left out\n", cpus->id[0]);
	printf("one client streams %.0f tokens/s (%u tokens in %u events)\n",
	    rate->per_s, rate->tokens, rate->events);
}

/* Each row's other side, if there is a processor for it. */
static int
start_all(struct peer *peer, const struct cpus *cpus, const char *dir)
{
	char path[64];
	unsigned i;
	int rc = 0;

	for (i = 0; i < N_ROWS && rc == 0; i++) {
		if ((unsigned)rows[i].place >= cpus->n)
			continue;
		snprintf(path, sizeof path, "%s/%u", dir, i);
		rc = start(&peer[i], &rows[i], cpus, path);
		unlink(path);		/* a connection needs no name */
	}
	return rc;
}

static int
run(const char *dir, unsigned n, unsigned tokens, bool json)
{
	struct peer peer[N_ROWS] = { 0 };
	struct rate rate = { 0 };
	struct cpus cpus;
	unsigned i;
	int rc = find_cpus(&cpus);

	if (rc == 0)
		rc = start_all(peer, &cpus, dir);
	if (rc == 0)
		rc = measure(peer, n / ROUNDS);
	if (rc == 0)
		rc = stream(peer[cpus.n > 1 ? ROW_SPIN : ROW_DEFAULT].d,
		    tokens, &rate);
	if (rc < 0)
		fprintf(stderr, "bench ipc: %s: %s\n", strerror(-rc),
		    dcp_error_text());
	else if (json)
		print_json(peer, &cpus, n, &rate);
	else
		print_table(peer, &cpus, n, &rate);
	for (i = 0; i < N_ROWS; i++)
		stop(&peer[i]);
	return rc < 0 ? 1 : 0;
}

static int
usage(FILE *f)
{
	fputs("usage: dcpctl bench ipc [-j] [-n ROUND_TRIPS] [-t TOKENS]\n"
	    "  -j  JSON\n"
	    "  -n  round trips of each way, 100 to 10000000 (22000)\n"
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
	unsigned n = 22000, tokens = 2000000;
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
