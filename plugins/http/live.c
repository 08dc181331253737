/*
 * /live: what the page at / shows, as server-sent events. One sampler for all
 * who look, and none while nobody does: a frame is drawn up every half second,
 * once, and goes to each of them. A viewer that has not taken its last frames
 * gets no new ones until it has. The event thread's.
 *
 * A frame is one event, {"status": ..., "requests": [...], "n_requests": N,
 * "pages": {...}}: parts of what the admin commands of these names answer.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>

#include "plugins/http/page.h"

#define PERIOD_US 500000
#define VIEWERS_MAX 64u
#define UNREAD_MAX (64u << 10)	/* bytes: a viewer that far behind waits */
#define REQUESTS_MAX 100u	/* oldest first */

struct viewer {
	struct live *live;
	struct call *call;
	LIST_ENTRY(viewer) link;
};

struct live {
	struct http *http;
	struct event *timer;		/* pending while there are viewers */
	LIST_HEAD(, viewer) viewers;
	uint32_t n;
	bool ended;
	_Atomic uint32_t viewers_now;	/* for live_stats: any thread */
	_Atomic uint64_t frames, dropped;
};

/* --- a frame ----------------------------------------------------------- */

/* Of status: the plan, phases and limits do not change from frame to frame. */
static const char *const shown[] = {
	"state", "version", "uptime_s", "model", "tp", "dcp_size", "running",
	"waiting", "counters", "ranks", "loaded_bytes", "load_bytes",
};

static json_t *
parsed(char *text)
{
	json_t *o = text != NULL ? json_loads(text, 0, NULL) : NULL;

	free(text);
	return o;
}

static json_t *
status_part(const struct dcp_host *host)
{
	json_t *all = parsed(host->status(host->ctx)), *part, *v;

	if (all == NULL)
		return NULL;
	part = json_object();
	for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
		v = json_object_get(all, shown[i]);
		if (v != NULL)
			json_object_set(part, shown[i], v);
	}
	json_decref(all);
	return part;
}

/* The text of one event; NULL: no memory, or nothing to say. */
static char *
frame(const struct dcp_host *host)
{
	json_t *status = status_part(host), *requests, *o;
	size_t n;
	char *text;

	if (status == NULL)
		return NULL;
	requests = parsed(host->requests(host->ctx));
	n = json_array_size(requests);
	for (size_t i = n; i > REQUESTS_MAX; i--)
		json_array_remove(requests, i - 1);
	o = json_pack("{s:o, s:o*, s:I, s:o*}", "status", status, "requests",
	    requests, "n_requests", (json_int_t)n, "pages",
	    parsed(host->pages != NULL ? host->pages(host->ctx) : NULL));
	text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
	json_decref(o);
	return text;
}

/* --- viewers ----------------------------------------------------------- */

static void
leave(struct viewer *v)
{
	struct live *l = v->live;

	LIST_REMOVE(v, link);
	l->viewers_now = --l->n;
	if (l->n == 0)
		event_del(l->timer);
	call_sse_end(v->call);
	free(v);
}

static void
on_gone(void *arg)
{
	leave(arg);
}

static const struct call_ops ops = { .gone = on_gone };

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct live *l = arg;
	struct viewer *v, *next;
	char *text = frame(l->http->host);

	if (text == NULL)
		return;		/* the next one may do */
	l->frames++;
	for (v = LIST_FIRST(&l->viewers); v != NULL; v = next) {
		next = LIST_NEXT(v, link);	/* v may leave */
		if (call_unread(v->call) > UNREAD_MAX)
			l->dropped++;
		else
			call_sse_text(v->call, text);
	}
	free(text);
}

void
live_stream(struct call *call)
{
	static const struct timeval period = { 0, PERIOD_US };
	struct live *l = call_http(call)->live;
	struct viewer *v;

	if (l->ended || l->n >= VIEWERS_MAX) {
		call_error(call, 503, NULL, "too_many_viewers", l->ended ?
		    "the server is ending" : "%u others look already",
		    VIEWERS_MAX);
		return;
	}
	v = calloc(1, sizeof *v);
	if (v == NULL) {
		call_no_memory(call);
		return;
	}
	v->live = l;
	v->call = call;
	call_watch(call, &ops, v);
	call_sse_begin(call);
	LIST_INSERT_HEAD(&l->viewers, v, link);
	l->viewers_now = ++l->n;
	if (l->n == 1) {
		event_add(l->timer, &period);
		on_tick(-1, 0, l);	/* the first at once */
	}
}

/* --- life -------------------------------------------------------------- */

int
live_new(struct http *http, struct live **out)
{
	struct live *l = calloc(1, sizeof *l);

	if (l == NULL)
		return -ENOMEM;
	l->http = http;
	LIST_INIT(&l->viewers);
	l->timer = event_new(http->base, -1, EV_PERSIST, on_tick, l);
	if (l->timer == NULL) {
		free(l);
		return -ENOMEM;
	}
	*out = l;
	return 0;
}

void
live_end(struct live *l)
{
	struct viewer *v;

	l->ended = true;
	while ((v = LIST_FIRST(&l->viewers)) != NULL)
		leave(v);
}

void
live_free(struct live *l)
{
	if (l == NULL)
		return;
	live_end(l);
	event_free(l->timer);
	free(l);
}

json_t *
live_stats(const struct live *l)
{
	return json_pack("{s:I, s:I, s:I}",
	    "viewers", (json_int_t)l->viewers_now,
	    "frames", (json_int_t)l->frames,
	    "dropped", (json_int_t)l->dropped);
}
