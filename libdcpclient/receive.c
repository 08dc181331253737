/*
 * Completions: dcp_next, dcp_event_release, dcp_fd, dcp_server_info.
 *
 * An entry is copied out of the ring into an event of its own, so that a slow
 * user of events never holds ring space. Who finds nothing asks for a wake-up
 * byte (a new value in cq_bell), looks once more and sleeps on the socket.
 */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "libdcpclient/private.h"

#define INFO_TIMEOUT_MS 10000
#define COARSE_MS 100		/* longer waits may be some ticks late */

bool
dcp_peer_gone(struct dcp *d)
{
	struct pollfd p = { .fd = d->sock, .events = 0 };

	if (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR))
		atomic_store(&d->dead, true);
	return atomic_load(&d->dead);
}

/* --- from the ring to an event --- */

/* Lengths of one entry's parts, and where they lie. */
struct parts {
	uint32_t n_tokens, n_lp, n_top, text_len, call;
	struct dcp_usage usage;
	const uint8_t *p;		/* tokens, logprobs, tops, text */
};

static int
malformed(const char *what)
{
	return dcp_fail(-EPROTO, "the daemon wrote a malformed event: %s",
	    what);
}

static int
split_inline(const struct dcpr_cqe *e, struct parts *q)
{
	size_t used = 0;

	if (e->type != DCP_EV_DELTA && e->type != DCPR_EV_INFO) {
		memcpy(&q->usage, e->payload, sizeof q->usage);
		used = sizeof q->usage;
	}
	q->n_tokens = e->n_tokens;
	q->text_len = e->text_len;
	q->call = e->call;
	q->p = e->payload + used;
	if (used + q->n_tokens * 4u + q->text_len > DCPR_INLINE)
		return malformed("inline payload");
	return 0;
}

static int
split_record(const struct dcp *d, const struct dcpr_cqe *e, struct parts *q)
{
	struct dcpr_where w;
	struct dcpr_record r;

	memcpy(&w, e->payload, sizeof w);
	if (w.off % 8 != 0 || w.off > d->stream_size ||
	    w.len > d->stream_size - w.off || w.len < sizeof r)
		return malformed("record outside the stream");
	memcpy(&r, d->stream + w.off, sizeof r);
	if (sizeof r + r.n_tokens * 4ull +
	    r.n_logprobs * (uint64_t)sizeof(struct dcpr_logprob) +
	    r.n_top * 8ull + r.text_len > w.len)
		return malformed("record too short");
	*q = (struct parts){ r.n_tokens, r.n_logprobs, r.n_top, r.text_len,
	    r.call, { r.prompt_tokens, r.cached_tokens, r.completion_tokens,
	    r.reasoning_tokens }, d->stream + w.off + sizeof r };
	return 0;
}

/* Logprobs of the record into ev; lp and top are parts of ev's own box. */
static int
fill_logprobs(struct dcp_event *ev, const struct parts *q, const uint8_t *p,
    struct dcp_token_logprobs *lp, struct dcp_logprob *top)
{
	const uint8_t *t = p + q->n_lp * sizeof(struct dcpr_logprob);
	uint32_t i, left = q->n_top;

	for (i = 0; i < q->n_lp; i++) {
		struct dcpr_logprob w;

		memcpy(&w, p + i * sizeof w, sizeof w);
		if (w.n_top > left)
			return malformed("logprobs");
		left -= w.n_top;
		lp[i].chosen = (struct dcp_logprob){ w.token, w.logprob };
		lp[i].n_top = w.n_top;
		lp[i].top = top;
		if (w.n_top > 0)
			memcpy(top, t, w.n_top * sizeof *top);
		top += w.n_top;
		t += w.n_top * sizeof *top;
	}
	ev->logprobs = lp;
	ev->n_logprobs = q->n_lp;
	return 0;
}

/* One box for the event and all it points to. */
static int
make_box(const struct dcpr_cqe *e, const struct parts *q, struct box **out)
{
	size_t lp = q->n_lp * sizeof(struct dcp_token_logprobs);
	size_t top = q->n_top * sizeof(struct dcp_logprob);
	const uint8_t *p = q->p;
	struct box *b;
	uint8_t *at;
	int rc;

	b = malloc(sizeof *b + lp + top + q->n_tokens * 4ul + q->text_len + 1);
	if (b == NULL)
		return dcp_fail(-ENOMEM, "out of memory");
	b->next = NULL;
	b->ev = (struct dcp_event){
		.size = sizeof b->ev, .type = e->type, .request = e->id,
		.user_data = e->user_data, .seq = e->seq,
		.channel = e->channel, .call = q->call, .finish = e->finish,
		.error = e->error, .usage = q->usage,
		.n_tokens = q->n_tokens, .text_len = q->text_len,
	};
	at = (uint8_t *)b->storage + lp + top;
	b->ev.tokens = (const uint32_t *)at;
	if (q->n_tokens > 0)
		memcpy(at, p, q->n_tokens * 4ul);
	p += q->n_tokens * 4ul;
	at += q->n_tokens * 4ul;
	if (q->n_lp > 0) {
		rc = fill_logprobs(&b->ev, q, p, (void *)b->storage,
		    (void *)((uint8_t *)b->storage + lp));
		if (rc < 0) {
			free(b);
			return rc;
		}
	}
	p += q->n_lp * sizeof(struct dcpr_logprob) + q->n_top * 8ul;
	if (q->text_len > 0)
		memcpy(at, p, q->text_len);
	at[q->text_len] = '\0';
	b->ev.text = (const char *)at;
	*out = b;
	return 0;
}

/* A piece of the answer to one dcp_server_info. */
static void
take_info(struct dcp *d, const struct dcpr_cqe *e, const struct parts *q)
{
	struct info_wait *w;
	char *p;

	for (w = d->infos; w != NULL && w->id != e->id; w = w->next)
		;
	if (w == NULL)
		return;			/* it timed out */
	p = realloc(w->json, w->len + q->text_len + 1);
	if (p == NULL) {
		w->rc = -ENOMEM;
	} else {
		memcpy(p + w->len, q->p, q->text_len);
		w->json = p;
		w->len += q->text_len;
		p[w->len] = '\0';
	}
	w->done = !(e->flags & DCPR_CQE_MORE);
}

static bool
ring_empty(const struct dcp *d)
{
	return load_acquire(&d->s->cq_tail) ==
	    __atomic_load_n(&d->cq_head, __ATOMIC_RELAXED);
}

/* Give the entry back; ring the daemon if it waits for space. */
static void
advance(struct dcp *d, uint32_t tail)
{
	uint32_t bell;

	/* Relaxed beside the leader, who reads it without the lock. */
	__atomic_store_n(&d->cq_head, d->cq_head + 1, __ATOMIC_RELAXED);
	store_sc(&d->c->cq_head, d->cq_head);
	bell = load_sc(&d->s->space_bell);
	if (bell != d->space_rung && tail - d->cq_head <= d->cq_entries / 2) {
		d->space_rung = bell;
		dcp_ring_doorbell(d);
	}
}

/*
 * Under rx: the next event off the ring. 1: in *out; 0: none. Answers to
 * dcp_server_info are delivered on the way.
 */
static int
take_ring(struct dcp *d, struct box **out)
{
	uint32_t tail;
	struct dcpr_cqe e;
	int rc;

	while ((tail = load_acquire(&d->s->cq_tail)) != d->cq_head) {
		struct parts q = { 0 };

		e = d->cq[d->cq_head & (d->cq_entries - 1)];
		rc = e.flags & DCPR_CQE_STREAM ? split_record(d, &e, &q) :
		    split_inline(&e, &q);
		if (rc == 0 && e.type != DCPR_EV_INFO)
			rc = make_box(&e, &q, out);
		if (rc < 0)
			return rc;
		if (e.type == DCPR_EV_INFO)
			take_info(d, &e, &q);
		advance(d, tail);
		if (e.type == DCPR_EV_INFO) {
			if (d->followers > 0)
				pthread_cond_broadcast(&d->rx_cond);
			continue;
		}
		if (!(e.flags & DCPR_CQE_MORE)) {
			pthread_mutex_lock(&d->ids_lock);
			idset_del(&d->ids, (uint32_t)e.id);
			pthread_mutex_unlock(&d->ids_lock);
		}
		return 1;
	}
	return 0;
}

/* --- waiting --- */

/* Make dcp_fd() readable though no byte waits on the socket. */
static void
set_kick(struct dcp *d)
{
	uint64_t one = 1;

	if (d->polled && !d->kick_set &&
	    write(d->kick, &one, sizeof one) == sizeof one)
		d->kick_set = true;
}

/* Under rx: eat the bytes of earlier wake-ups, so that dcp_fd() is quiet. */
static void
drain(struct dcp *d)
{
	uint64_t n;
	char junk[16];
	ssize_t r;

	while ((r = recv(d->sock, junk, sizeof junk, MSG_DONTWAIT)) > 0)
		;
	if (r == 0 || (errno != EAGAIN && errno != EINTR))
		atomic_store(&d->dead, true);
	if (d->kick_set && read(d->kick, &n, sizeof n) == sizeof n)
		d->kick_set = false;
}

static inline void
relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* The leader, without rx: look for spin_ns or until end. */
static void
spin(const struct dcp *d, uint64_t end)
{
	uint64_t stop = dcp_now_ns() + d->spin_ns;
	unsigned i;

	if (stop > end)
		stop = end;
	do {
		for (i = 0; i < 64; i++) {
			if (!ring_empty(d))
				return;
			relax();
		}
	} while (dcp_now_ns() < stop);
}

/*
 * With no dcp_fd() to keep readable the byte may be eaten while waiting for
 * it: one system call instead of two. The socket's own timeout is in ticks of
 * the kernel, too coarse for a short wait.
 */
static bool
sleeps_in_recv(uint64_t end, bool polled)
{
	return !polled && (end == UINT64_MAX ||
	    end > dcp_now_ns() + COARSE_MS * 1000000ull);
}

/* The leader: a byte, end of file, or end. */
static void
sleep_in_recv(struct dcp *d, uint64_t end)
{
	uint64_t ms = end == UINT64_MAX ? 0 :
	    (end - dcp_now_ns() + 999999) / 1000000;
	struct timeval tv = { .tv_sec = (time_t)(ms / 1000),
	    .tv_usec = (suseconds_t)(ms % 1000 * 1000) };
	char junk[16];
	ssize_t r;

	/* Most waits have the same timeout as the one before. */
	if (ms != d->recv_ms) {
		if (setsockopt(d->sock, SOL_SOCKET, SO_RCVTIMEO, &tv,
		    sizeof tv) < 0)
			return;
		d->recv_ms = ms;
	}
	r = recv(d->sock, junk, sizeof junk, 0);
	if (r == 0 || (r < 0 && errno != EINTR && errno != EAGAIN))
		atomic_store(&d->dead, true);
}

/* The leader, without rx: sleep until a byte, end of file, or end. */
static void
sleep_on_socket(struct dcp *d, uint64_t end, bool polled)
{
	struct pollfd p = { .fd = d->sock, .events = POLLIN };
	struct timespec ts;
	uint64_t now;

	if (sleeps_in_recv(end, polled)) {
		sleep_in_recv(d, end);
		return;
	}
	now = dcp_now_ns();
	if (now >= end)
		return;
	ts.tv_sec = (time_t)((end - now) / 1000000000u);
	ts.tv_nsec = (long)((end - now) % 1000000000u);
	ppoll(&p, 1, end == UINT64_MAX ? NULL : &ts, NULL);
}

static void
follow(struct dcp *d, uint64_t end)
{
	struct timespec ts = {
		.tv_sec = (time_t)(end / 1000000000u),
		.tv_nsec = (long)(end % 1000000000u),
	};

	d->followers++;
	if (end == UINT64_MAX)
		pthread_cond_wait(&d->rx_cond, &d->rx);
	else
		pthread_cond_timedwait(&d->rx_cond, &d->rx, &ts);
	d->followers--;
}

/*
 * Under rx: what is wanted, if it is here. For dcp_next an event; for
 * dcp_server_info (info != NULL) its answer, events on the way being queued.
 */
static int
take(struct dcp *d, const struct info_wait *info, struct box **out)
{
	struct box *b;
	int rc;

	if (info == NULL) {
		if ((b = d->queue) == NULL)
			return take_ring(d, out);
		d->queue = b->next;
		if (d->queue == NULL)
			d->queue_end = &d->queue;
		*out = b;
		return 1;
	}
	while (!info->done && (rc = take_ring(d, &b)) != 0) {
		if (rc < 0)
			return rc;
		b->next = NULL;
		*d->queue_end = b;
		d->queue_end = &b->next;
		set_kick(d);
		if (d->followers > 0)
			pthread_cond_broadcast(&d->rx_cond);
	}
	return info->done;
}

/*
 * Under rx: lead, that is spin or sleep without the lock. A waiting thread
 * needs the lead only while there is nothing to take.
 */
static void
lead(struct dcp *d, uint64_t end, bool sleep)
{
	bool polled = d->polled;

	d->leader = true;
	pthread_mutex_unlock(&d->rx);
	if (sleep)
		sleep_on_socket(d, end, polled);
	else
		spin(d, end);
	pthread_mutex_lock(&d->rx);
	d->leader = false;
	if (d->followers > 0)
		pthread_cond_broadcast(&d->rx_cond);
}

/*
 * Under rx: wait until take() finds something. 0, -EAGAIN at end, -EPIPE.
 *
 * The invariant behind dcp_fd(): when no thread is in here, either nothing
 * waits and the daemon has been asked for a byte, or the fd is readable.
 */
static int
wait_for(struct dcp *d, const struct info_wait *info, uint64_t end,
    struct box **out)
{
	bool spun = end == 0 || d->spin_ns == 0, armed = false, ate = false;
	int rc;

	while ((rc = take(d, info, out)) == 0) {
		if (armed && atomic_load(&d->dead))
			return dcp_fail(-EPIPE, "the daemon is gone");
		if (d->leader) {
			if (end == 0 || dcp_now_ns() >= end)
				return -EAGAIN;
			follow(d, end);
		} else if (!spun) {
			lead(d, end, false);
			spun = true;
		} else if (!armed) {
			if (!sleeps_in_recv(end, d->polled))
				drain(d);
			armed = ate = true;
			if (d->polled || end != 0) {
				/* seq_cst here and in the next look, for the
				 * reason that publish() gives. */
				store_sc(&d->c->cq_bell, ++d->cq_bell);
				(void)load_sc(&d->s->cq_tail);
			}
		} else if (end == 0 || dcp_now_ns() >= end) {
			return -EAGAIN;
		} else {
			lead(d, end, true);
			armed = atomic_load(&d->dead);
		}
	}
	if (rc < 0)
		return rc;
	if (ate)
		set_kick(d);
	if (d->followers > 0 && (d->queue != NULL || !ring_empty(d)))
		pthread_cond_broadcast(&d->rx_cond);
	return 0;
}

static uint64_t
deadline(int timeout_ms)
{
	if (timeout_ms < 0)
		return UINT64_MAX;
	if (timeout_ms == 0)
		return 0;
	return dcp_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

int
dcp_next(struct dcp *d, int timeout_ms, const struct dcp_event **ev)
{
	struct box *b;
	int rc;

	rc = dcp_enter(d, "dcp_next");
	if (rc < 0)
		return rc;
	if (ev == NULL)
		return dcp_fail(-EINVAL, "dcp_next: ev is NULL");
	pthread_mutex_lock(&d->rx);
	rc = wait_for(d, NULL, deadline(timeout_ms), &b);
	pthread_mutex_unlock(&d->rx);
	if (rc == 0)
		*ev = &b->ev;
	return rc;
}

void
dcp_event_release(struct dcp *d, const struct dcp_event *ev)
{
	if (ev != NULL)
		free((char *)ev - offsetof(struct box, ev));
}

int
dcp_fd(struct dcp *d)
{
	int rc = dcp_enter(d, "dcp_fd");

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&d->rx);
	if (!d->polled) {
		/* Readable until the first look finds nothing. */
		d->polled = true;
		set_kick(d);
	}
	pthread_mutex_unlock(&d->rx);
	return d->epfd;
}

int
dcp_server_info(struct dcp *d, char **json)
{
	struct info_wait w = { 0 }, **p;
	struct box *b;
	int rc;

	rc = dcp_enter(d, "dcp_server_info");
	if (rc < 0)
		return rc;
	if (json == NULL)
		return dcp_fail(-EINVAL, "dcp_server_info: json is NULL");
	pthread_mutex_lock(&d->rx);
	w.id = d->next_info++;
	w.next = d->infos;
	d->infos = &w;
	pthread_mutex_unlock(&d->rx);

	rc = dcp_push(d, DCPR_OP_INFO, w.id);

	pthread_mutex_lock(&d->rx);
	if (rc == 0)
		rc = wait_for(d, &w, deadline(INFO_TIMEOUT_MS), &b);
	if (rc == -EAGAIN)
		rc = dcp_fail(-ETIMEDOUT, "no answer in %d s",
		    INFO_TIMEOUT_MS / 1000);
	if (rc == 0 && w.rc < 0)
		rc = dcp_fail(w.rc, "out of memory");
	for (p = &d->infos; *p != &w; p = &(*p)->next)
		;
	*p = w.next;
	pthread_mutex_unlock(&d->rx);
	if (rc < 0)
		free(w.json);
	else
		*json = w.json;
	return rc;
}
