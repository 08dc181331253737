/*
 * The HTTP plugin as the daemon loads it, for its fuzzers: on a Unix socket, with
 * no engine behind it but the functions of dcpclient.h as defined here, which
 * read all that they are given and answer by its hash: deltas on every channel,
 * errors, full rings. What must hold: each connection ends, each answer is HTTP,
 * each request ends once, nothing stays.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcp_plugin.h"
#include "libdcpclient/dcpclient.h"
#include "tests/fuzz/http_plugin.h"

#define EXPORT __attribute__((visibility("default")))

static uint32_t
rnd(uint64_t *s, uint32_t n)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return (uint32_t)((*s >> 16) % n);
}

/* --- an engine: the plugin's thread alone calls it ---------------------- */

struct sent {
	uint64_t id, user_data, rng;
	uint32_t flags, top, left;
	bool begun, cancelled;
	TAILQ_ENTRY(sent) link;
};

struct dcp {
	int fd;
};

static struct dcp engine;
static TAILQ_HEAD(, sent) running = TAILQ_HEAD_INITIALIZER(running);
static _Atomic uint32_t n_running;
static uint64_t last_id, engine_state = 88172645463325252u;

static void
ring_bell(void)
{
	const uint64_t one = 1;

	DCPD_ASSERT(write(engine.fd, &one, sizeof one) == sizeof one);
}

EXPORT int
dcp_connect(const char *path, int timeout_ms, struct dcp **out)
{
	engine.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	*out = &engine;
	return engine.fd < 0 ? -errno : 0;
}

EXPORT int
dcp_server_info(struct dcp *d, char **json)
{
	*json = strdup("{\"max_context\": 4096, \"vocab\": 1000}");
	return *json != NULL ? 0 : -ENOMEM;
}

EXPORT const char *
dcp_error_text(void)
{
	return "dcp_submit: it is so";
}

EXPORT int
dcp_fd(struct dcp *d)
{
	return d->fd;
}

static uint64_t
hash(uint64_t h, const void *p, size_t n)
{
	const unsigned char *s = p;

	for (size_t i = 0; i < n; i++)
		h = (h ^ s[i]) * 0x100000001b3u;
	return h;
}

/* Read all of it: a sanitizer sees what leads nowhere. */
static uint64_t
read_all(const struct dcp_request *r)
{
	uint64_t h = hash(0xcbf29ce484222325u, r->data, r->len);
	json_t *o;

	for (uint32_t i = 0; i < r->n_stop; i++)
		h = hash(h, r->stop[i], strlen(r->stop[i]));
	h = hash(h, r->stop_ids, r->n_stop_ids * sizeof *r->stop_ids);
	h = hash(h, r->logit_bias, r->n_logit_bias * sizeof *r->logit_bias);
	if (r->options != NULL) {
		o = json_loads(r->options, JSON_ALLOW_NUL, NULL);
		DCPD_ASSERT(json_is_object(o));
		json_decref(o);
		h = hash(h, r->options, strlen(r->options));
	}
	if (r->input == DCP_INPUT_CHAT) {
		o = json_loadb(r->data, r->len, JSON_ALLOW_NUL, NULL);
		DCPD_ASSERT(json_is_array(o));
		json_decref(o);
	} else if (r->input == DCP_INPUT_TOKENS) {
		DCPD_ASSERT(r->len % 4 == 0);
	}
	return h | 1;
}

EXPORT int
dcp_submit(struct dcp *d, const struct dcp_request *r, uint64_t *id)
{
	uint64_t h = read_all(r);
	struct sent *s;

	DCPD_ASSERT(r->size == sizeof *r && r->user_data != 0);
	switch (rnd(&h, 64)) {
	case 0:
		return -EINVAL;
	case 1:
		return -EMSGSIZE;
	case 2:
	case 3:
		if (rnd(&engine_state, 2) == 0)	/* full, but not for ever */
			return -EAGAIN;
	}
	s = calloc(1, sizeof *s);
	DCPD_ASSERT(s != NULL);
	*s = (struct sent){ .id = ++last_id, .user_data = r->user_data,
	    .rng = h, .flags = r->flags, .top = r->top_logprobs,
	    .left = rnd(&h, 24) };
	TAILQ_INSERT_TAIL(&running, s, link);
	n_running++;
	*id = s->id;
	ring_bell();
	return 0;
}

EXPORT int
dcp_cancel(struct dcp *d, uint64_t id)
{
	struct sent *s;

	TAILQ_FOREACH(s, &running, link)
		if (s->id == id)
			s->cancelled = true;
	ring_bell();
	return 0;
}

struct made {			/* an event and all it points to */
	struct dcp_event ev;
	uint32_t tokens[4];
	struct dcp_token_logprobs lp[4];
	struct dcp_logprob top[4][64];
	char text[64];
};

static void
last_event(struct made *m, struct sent *s)
{
	static const int errors[] = { -EINVAL, -EMSGSIZE, -EAGAIN, -EIO,
	    -ESHUTDOWN };

	m->ev.type = DCP_EV_DONE;
	m->ev.finish = s->cancelled ? DCP_FINISH_ABORT :
	    1 + rnd(&s->rng, 3);
	if (!s->cancelled && rnd(&s->rng, 8) == 0) {
		m->ev.type = DCP_EV_ERROR;
		m->ev.error = errors[rnd(&s->rng, 5)];
		strcpy(m->text, "no \"luck\"\n \xc3\xa9");
	}
	m->ev.usage = (struct dcp_usage){ 3, 0, 5, 1 };
	TAILQ_REMOVE(&running, s, link);
	n_running--;
	free(s);
}

static void
delta(struct made *m, struct sent *s)
{
	static const char *const words[] = { "", "a", "{\"a\": 1", "\xc3\xa9",
	    "\"\\\n", "\xf0\x9f\x8d\x90", "<|user|>", "}" };
	bool prompt = s->flags & (DCP_ECHO | DCP_TOKENIZE) && s->left > 12;

	m->ev.type = DCP_EV_DELTA;
	m->ev.channel = prompt ? DCP_CH_PROMPT : rnd(&s->rng, 4);
	m->ev.call = m->ev.channel == DCP_CH_TOOL_NAME ||
	    m->ev.channel == DCP_CH_TOOL_ARGS ? rnd(&s->rng, 3) : 0;
	strcpy(m->text, words[rnd(&s->rng, 8)]);
	m->ev.n_tokens = rnd(&s->rng, 5);
	m->ev.tokens = m->tokens;
	for (uint32_t i = 0; i < m->ev.n_tokens; i++) {
		m->tokens[i] = rnd(&s->rng, 1000);
		m->lp[i] = (struct dcp_token_logprobs){
			{ m->tokens[i], -1.5f }, s->top < 64 ? s->top : 64,
			m->top[i] };
	}
	m->ev.logprobs = m->lp;
	m->ev.n_logprobs = s->flags & DCP_LOGPROBS ? m->ev.n_tokens : 0;
	s->left--;
}

EXPORT int
dcp_next(struct dcp *d, int timeout_ms, const struct dcp_event **ev)
{
	struct sent *s = TAILQ_FIRST(&running);
	uint64_t n;
	struct made *m;

	if (s == NULL) {
		DCPD_ASSERT(read(d->fd, &n, sizeof n) >= 0 ||
		    errno == EAGAIN);
		return -EAGAIN;
	}
	/* In turns, as from an engine that batches. */
	TAILQ_REMOVE(&running, s, link);
	TAILQ_INSERT_TAIL(&running, s, link);
	m = calloc(1, sizeof *m);
	DCPD_ASSERT(m != NULL);
	m->ev = (struct dcp_event){ .size = sizeof m->ev, .request = s->id,
	    .user_data = s->user_data };
	if (!s->begun && !s->cancelled && s->flags & DCP_BEGIN) {
		s->begun = true;
		m->ev.type = DCP_EV_BEGIN;
		m->ev.usage.prompt_tokens = 3;
	} else if (s->left == 0 || s->cancelled) {
		last_event(m, s);
	} else {
		delta(m, s);
	}
	m->ev.text = m->text;
	m->ev.text_len = strlen(m->text);
	*ev = &m->ev;
	return 0;
}

EXPORT void
dcp_event_release(struct dcp *d, const struct dcp_event *ev)
{
	free((void *)ev);
}

EXPORT void
dcp_close(struct dcp *d)
{
	struct sent *s;

	while ((s = TAILQ_FIRST(&running)) != NULL) {
		TAILQ_REMOVE(&running, s, link);
		free(s);
	}
	close(d->fd);
}

/* --- a host ------------------------------------------------------------- */

static void
host_log(void *ctx, int priority, const char *line)
{
	if (priority <= LOG_ERR)
		fprintf(stderr, "%s\n", line);
}

static int
host_state(void *ctx)
{
	return DCP_HOST_READY;
}

static char *
host_object(void *ctx)
{
	return strdup("{\"model\": \"fuzz\", \"ranks\": []}");
}

static char *
host_array(void *ctx)
{
	return strdup("[]");
}

static int
host_flush(void *ctx, uint64_t *pages)
{
	*pages = 1;
	return 0;
}

static int
host_listen(void *ctx, const char *name)
{
	return -ENOENT;
}

static void
host_tick(void *ctx)
{
}

static void
host_failed(void *ctx, const char *why)
{
	fprintf(stderr, "the plugin failed: %s\n", why);
	abort();
}

static int
host_token(void *ctx, uint32_t id, const char **bytes, size_t *len)
{
	*bytes = id % 3 == 0 ? "\xf0\x9f" : "ab";
	*len = 2;
	return id < 990 ? 0 : -ENOENT;
}

static const struct dcp_host host = {
	.size = sizeof host, .abi = DCP_PLUGIN_ABI, .socket = "none",
	.version = "fuzz", .log = host_log, .state = host_state,
	.status = host_object, .requests = host_array, .counters = host_array,
	.flush_cache = host_flush, .listen_fd = host_listen,
	.tick = host_tick, .failed = host_failed, .token_bytes = host_token,
};

static const struct dcp_plugin *plugin;
static void *self;
static struct sockaddr_un where = { .sun_family = AF_UNIX };

static void
load(void)
{
	static char dir[] = "/tmp/fuzz_http.XXXXXX";
	const struct dcp_plugin *(*get)(uint32_t);
	const char *path = getenv("DCPD_PLUGIN_DIR");
	char file[4096], config[300], exe[3000], *why = NULL;
	ssize_t n;
	void *so;

	signal(SIGPIPE, SIG_IGN);
	DCPD_ASSERT(mkdtemp(dir) != NULL);
	snprintf(where.sun_path, sizeof where.sun_path, "%s/s", dir);
	/* In the build tree it is two folders above this program. */
	n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	exe[n > 0 ? n : 0] = '\0';
	for (int i = 0; i < 3 && strrchr(exe, '/') != NULL; i++)
		*strrchr(exe, '/') = '\0';
	snprintf(file, sizeof file, "%s%s/http.so", path != NULL ? path : exe,
	    path != NULL ? "" : "/plugins/.libs");
	so = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (so == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	*(void **)&get = dlsym(so, "dcp_plugin_get");
	plugin = get(DCP_PLUGIN_ABI);
	snprintf(config, sizeof config, "{\"listen\": \"unix:%s\", "
	    "\"head_timeout\": 3, \"idle_timeout\": 3}", where.sun_path);
	if (plugin->create(&host, config, &self, &why) != 0 ||
	    plugin->start(self, &why) != 0) {
		fprintf(stderr, "%s\n", why);
		exit(1);
	}
	free(why);
}

/* --- one connection ------------------------------------------------------ */

static int
dial(void)
{
	int fd;

	for (int i = 0; i < 600; i++) {
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (fd >= 0 && connect(fd, (struct sockaddr *)&where,
		    sizeof where) == 0)
			return fd;
		close(fd);
		usleep(100000);
	}
	fprintf(stderr, "nobody accepts any more\n");
	abort();
}

/* What came must be the beginning of an HTTP answer; leave after `patience`. */
void
http_talk(const uint8_t *data, size_t n, int patience)
{
	struct pollfd p = { .events = POLLIN };
	char buf[65536];
	size_t got = 0, off = 0;
	ssize_t k;

	if (plugin == NULL)
		load();
	p.fd = dial();
	while (off < n && (k = send(p.fd, data + off, n - off,
	    MSG_NOSIGNAL | MSG_DONTWAIT)) > 0)
		off += (size_t)k;
	while (poll(&p, 1, patience) > 0 &&
	    (k = recv(p.fd, buf + (got < 16 ? got : 16),
	    sizeof buf - 16, 0)) > 0)
		got += (size_t)k;
	/* evhttp answers in the version that it was asked in, even 0.1. */
	if (got >= 9)
		DCPD_ASSERT(strncmp(buf, "HTTP/", 5) == 0);
	close(p.fd);
}

/* Nothing runs on when everybody has left. */
static void
settled(void)
{
	char *text;
	json_t *o;
	json_int_t n;

	for (int i = 0; i < 600; i++) {
		text = plugin->stats(self);
		o = json_loads(text, 0, NULL);
		n = json_integer_value(json_object_get(o, "connections"));
		json_decref(o);
		free(text);
		if (n == 0 && n_running == 0)
			return;
		usleep(100000);
	}
	fprintf(stderr, "connections or %u requests stay\n", n_running);
	abort();
}

void
http_end(void)
{
	if (plugin == NULL)
		return;
	settled();
	plugin->stop(self);
	plugin->destroy(self);
	unlink(where.sun_path);
	*strrchr(where.sun_path, '/') = '\0';
	rmdir(where.sun_path);
}
