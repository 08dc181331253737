/*
 * The way back: events into a client's completion ring and token stream, by
 * whichever thread calls dcpd_ipc_emit. With space free the ring is written
 * at once; else the entry waits in the client's queue, which the reader
 * (through the doorbell) and later emits move along.
 *
 * Memory is bounded. A reservation, made at admission, charges the uid for
 * all of a request's answer; entries draw on it, and what was drawn is given
 * back when the entry is in the ring.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/ipc/ipc_internal.h"

#define JOIN_BYTES (sizeof(struct outrec) + sizeof(struct joined))
/*
 * Reserved per token. They gather in entries of JOIN_TOKENS, of which half is
 * counted on, as texts are of any length; with logprobs each has an entry.
 */
#define TOKEN_COST (JOIN_BYTES / (JOIN_TOKENS / 2))
#define LOGPROB_COST (sizeof(struct outrec) + sizeof(struct dcpr_record) + \
	sizeof(uint32_t) + sizeof(struct dcpr_logprob) + 24)
#define ERROR_TEXT_MAX 4096u

/* A part of an event: tokens [t0, t0+nt), text [x0, x0+nx). */
struct part {
	const struct dcp_event *ev;
	uint32_t t0, nt, n_top;
	size_t x0, nx;
	bool logprobs, last;
	uint64_t bytes;			/* as a record */
};

/* It will be dropped, by the intake thread. */
static void
fault(struct dcpd_client *c, const char *why)
{
	c->fault = why;
	atomic_store(&c->ipc->fault, true);
	ipc_kick(c->ipc);
}

/* --- the ring --- */

/* The reader's head, checked. false: it lies, and the client has a fault. */
bool
emit_refresh(struct dcpd_client *c)
{
	uint32_t head = word_load(&c->c->cq_head);

	if (head - c->cq_head > c->cq_tail - c->cq_head) {
		fault(c, "cq_head is not between its old value and cq_tail");
		return false;
	}
	if (head != c->cq_head) {
		c->st_head = c->st_end[(head - 1) & (CQ_ENTRIES - 1)];
		c->cq_head = head;
	}
	/* Empty: begin anew, where memory is warm. */
	if (c->cq_head == c->cq_tail)
		c->st_head = c->st_tail = 0;
	return true;
}

/* Where a record of len bytes may go; false: no space. */
static bool
find_space(struct dcpd_client *c, uint64_t len, uint64_t *at)
{
	uint64_t off = c->st_tail & (STREAM_BYTES - 1);

	if (c->cq_tail - c->cq_head == CQ_ENTRIES)
		return false;
	*at = c->st_tail;
	if (off + len > STREAM_BYTES)
		*at += STREAM_BYTES - off;
	return *at + len - c->st_head <= STREAM_BYTES;
}

static bool
have_space(struct dcpd_client *c, uint64_t len, uint64_t *at)
{
	DCPD_ASSERT(len <= RECORD_MAX);
	return find_space(c, len, at) ||
	    (emit_refresh(c) && find_space(c, len, at));
}

/* Put the entry in, its record being written already; not yet visible. */
static void
put(struct dcpd_client *c, struct dcpr_cqe *e, uint64_t at, uint32_t len)
{
	uint32_t i = c->cq_tail & (CQ_ENTRIES - 1);
	struct dcpr_cqe *ring = (void *)(c->srv + DCPR_PAGE);

	if (len > 0) {
		struct dcpr_where w = {
			(uint32_t)(at & (STREAM_BYTES - 1)), len
		};

		memcpy(e->payload, &w, sizeof w);
		c->st_tail = at + ((len + 7ull) & ~7ull);
	}
	c->st_end[i] = c->st_tail;
	ring[i] = *e;
	c->cq_tail++;
}

static uint8_t *
stream_at(struct dcpd_client *c, uint64_t at)
{
	return c->srv + DCPR_PAGE + CQ_ENTRIES * 64u +
	    (at & (STREAM_BYTES - 1));
}

/*
 * Make what was put visible; wake the reader if it asked. Both accesses are
 * seq_cst, as are the reader's: see publish() in libdcpclient/submit.c.
 */
static void
publish(struct dcpd_client *c)
{
	uint32_t bell;

	word_store(&c->s->cq_tail, c->cq_tail);
	bell = word_load(&c->c->cq_bell);
	if (bell == c->cq_woken)
		return;
	c->cq_woken = bell;
	/* Full: then bytes enough lie there to wake it. Shut: it is gone. */
	if (send(c->sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
	    (errno == ENOBUFS || errno == ENOMEM))
		fault(c, "no memory to wake it");
}

/* --- from an event to an entry --- */

/* At most n bytes of text, cut between characters if it must be cut. */
static size_t
cut_text(const char *text, size_t len, size_t n)
{
	unsigned i;

	if (len <= n)
		return len;
	for (i = 0; i < 3 && n > 1 && ((uint8_t)text[n] & 0xc0) == 0x80; i++)
		n--;
	return n;
}

/*
 * The next part of ev after p. An event is one part unless its record would
 * be larger than the ring takes; then its tokens, and its text in whole
 * characters, go out in several.
 */
static void
next_part(struct part *p)
{
	const struct dcp_event *ev = p->ev;
	uint64_t room = RECORD_MAX - sizeof(struct dcpr_record);
	size_t left;

	p->t0 += p->nt;
	p->x0 += p->nx;
	p->nt = p->n_top = 0;
	for (; p->t0 + p->nt < ev->n_tokens; p->nt++) {
		const struct dcp_token_logprobs *l = p->logprobs ?
		    &ev->logprobs[p->t0 + p->nt] : NULL;
		uint64_t need = 4 + (l == NULL ? 0 :
		    sizeof(struct dcpr_logprob) + l->n_top * 8ull);

		if (need > room)
			break;
		room -= need;
		p->n_top += l == NULL ? 0 : l->n_top;
	}
	left = ev->text_len - p->x0;
	p->nx = left == 0 ? 0 : cut_text(ev->text + p->x0, left, room);
	p->last = p->t0 + p->nt == ev->n_tokens && p->nx == left;
	p->bytes = sizeof(struct dcpr_record) + p->nt * 4ull + p->nx +
	    p->n_top * 8ull +
	    (p->logprobs ? p->nt * sizeof(struct dcpr_logprob) : 0);
}

static bool
is_final(const struct dcp_event *ev)
{
	return ev->type == DCP_EV_DONE || ev->type == DCP_EV_ERROR;
}

static struct dcpr_cqe
make_entry(const struct part *p, struct live *r)
{
	const struct dcp_event *ev = p->ev;
	bool more = !p->last || !is_final(ev);

	return (struct dcpr_cqe){
		.id = r->id, .user_data = r->user_data, .seq = r->seq++,
		.type = (uint8_t)(p->last ? ev->type : DCP_EV_DELTA),
		.channel = (uint8_t)ev->channel,
		.finish = (uint8_t)(p->last ? ev->finish : 0),
		.flags = more ? DCPR_CQE_MORE : 0,
		.error = p->last ? ev->error : 0,
	};
}

/* Into the entry itself, if it fits: most single tokens do. */
static bool
write_inline(const struct part *p, struct dcpr_cqe *e)
{
	const struct dcp_event *ev = p->ev;
	size_t used = e->type == DCP_EV_DELTA ? 0 : sizeof ev->usage;

	if (p->logprobs || ev->call > UINT16_MAX ||
	    used + p->nt * 4ull + p->nx > DCPR_INLINE)
		return false;
	if (used > 0)
		memcpy(e->payload, &ev->usage, used);
	if (p->nt > 0)
		memcpy(e->payload + used, ev->tokens + p->t0, p->nt * 4);
	if (p->nx > 0)
		memcpy(e->payload + used + p->nt * 4, ev->text + p->x0, p->nx);
	e->call = (uint16_t)ev->call;
	e->n_tokens = (uint8_t)p->nt;
	e->text_len = (uint8_t)p->nx;
	return true;
}

static void
write_record(const struct part *p, uint8_t *to)
{
	const struct dcp_event *ev = p->ev;
	struct dcpr_record r = {
		.n_tokens = p->nt, .n_logprobs = p->logprobs ? p->nt : 0,
		.n_top = p->n_top, .text_len = (uint32_t)p->nx,
		.call = ev->call,
		.prompt_tokens = ev->usage.prompt_tokens,
		.cached_tokens = ev->usage.cached_tokens,
		.completion_tokens = ev->usage.completion_tokens,
		.reasoning_tokens = ev->usage.reasoning_tokens,
	};
	uint32_t i;

	memcpy(to, &r, sizeof r);
	to += sizeof r;
	if (p->nt > 0)
		memcpy(to, ev->tokens + p->t0, p->nt * 4ul);
	to += p->nt * 4ul;
	for (i = 0; i < r.n_logprobs; i++) {
		const struct dcp_token_logprobs *l = &ev->logprobs[p->t0 + i];
		struct dcpr_logprob w = {
			l->chosen.token, l->chosen.logprob, l->n_top
		};

		memcpy(to, &w, sizeof w);
		to += sizeof w;
	}
	for (i = 0; i < r.n_logprobs; i++) {	/* dcp_logprob is dcpr_pair */
		const struct dcp_token_logprobs *l = &ev->logprobs[p->t0 + i];

		if (l->n_top > 0)
			memcpy(to, l->top, l->n_top * 8ul);
		to += l->n_top * 8ul;
	}
	if (p->nx > 0)
		memcpy(to, ev->text + p->x0, p->nx);
}

/* --- the queue --- */

static uint64_t
cost(const struct outrec *o)
{
	return o->joining ? JOIN_BYTES : sizeof *o + o->len;
}

static void
pop(struct dcpd_client *c)
{
	struct outrec *o = c->out;
	struct live *r = o->joining ? live_find(c, o->e.id) : NULL;

	if (r != NULL && r->last == o)
		r->last = NULL;
	c->out = o->next;
	if (c->out == NULL)
		c->out_end = &c->out;
	c->out_bytes -= cost(o);
	if (o->loose)
		c->loose_bytes -= cost(o);
	uid_discharge(c, cost(o));
	DCPD_COUNT(queue_bytes, -cost(o));
	free(o);
}

/* Gathered tokens into the ring; false: no space. */
static bool
move_joined(struct dcpd_client *c, struct outrec *o)
{
	const struct joined *j = (void *)o->payload;
	struct dcp_event ev = {
		.type = DCP_EV_DELTA, .call = o->call, .text = j->text,
		.text_len = o->text_len, .tokens = j->tokens,
		.n_tokens = o->n_tokens,
	};
	struct part p = { .ev = &ev, .nt = o->n_tokens, .nx = o->text_len };
	uint32_t len = 0;
	uint64_t at;

	if (!write_inline(&p, &o->e)) {
		o->e.flags |= DCPR_CQE_STREAM;
		len = sizeof(struct dcpr_record) + p.nt * 4 + o->text_len;
	}
	if (!have_space(c, len, &at))
		return false;
	if (len > 0)
		write_record(&p, stream_at(c, at));
	put(c, &o->e, at, len);
	return true;
}

static bool
move_one(struct dcpd_client *c, struct outrec *o)
{
	uint64_t at;

	if (o->joining)
		return move_joined(c, o);
	if (!have_space(c, o->len, &at))
		return false;
	if (o->len > 0)
		memcpy(stream_at(c, at), o->payload, o->len);
	put(c, &o->e, at, o->len);
	return true;
}

/* Move what fits; ask the reader to ring once if something stays. */
bool
emit_pump(struct dcpd_client *c)
{
	bool moved = false;

	for (;;) {
		while (c->out != NULL && c->fault == NULL &&
		    move_one(c, c->out)) {
			pop(c);
			moved = true;
		}
		if (c->out == NULL || c->space_asked || c->fault != NULL)
			break;
		/* Ask, then look again: the reader may just have moved. */
		c->space_asked = true;
		word_store(&c->s->space_bell, ++c->space_bell);
	}
	if (moved)
		publish(c);
	return moved;
}

void
emit_free_queue(struct dcpd_client *c)
{
	while (c->out != NULL)
		pop(c);
}

/* Append o, drawing its bytes from r's reservation; r may be NULL. */
static void
append(struct dcpd_client *c, struct live *r, struct outrec *o)
{
	uint64_t take = r == NULL ? 0 : dcpd_min64(r->reserved, cost(o));

	if (r != NULL)
		r->reserved -= take;
	o->loose = take < cost(o);
	if (o->loose)
		c->loose_bytes += cost(o);
	/* What was reserved is charged already. */
	atomic_fetch_add(&c->use->bytes, cost(o) - take);
	c->out_bytes += cost(o);
	DCPD_COUNT(queue_bytes, cost(o));
	o->next = NULL;
	*c->out_end = o;
	c->out_end = &o->next;
}

/* May p's tokens join those of o, which waits? */
static bool
can_join(const struct outrec *o, const struct dcpr_cqe *e,
    const struct part *p)
{
	return o != NULL && o->e.channel == e->channel &&
	    o->call == p->ev->call && o->n_tokens + p->nt <= JOIN_TOKENS &&
	    o->text_len + p->nx <= JOIN_TEXT;
}

/* Queue tokens, with those that wait already if they may join them. */
static int
join(struct dcpd_client *c, struct live *r, const struct dcpr_cqe *e,
    const struct part *p)
{
	struct outrec *o = r->last;
	struct joined *j;

	if (can_join(o, e, p)) {
		r->seq--;		/* one event less */
	} else {
		o = calloc(1, JOIN_BYTES);
		if (o == NULL)
			return -ENOMEM;
		o->joining = true;
		o->call = p->ev->call;
		o->e = *e;
		append(c, r, o);
		r->last = o;
	}
	j = (void *)o->payload;
	if (p->nt > 0)
		memcpy(j->tokens + o->n_tokens, p->ev->tokens + p->t0,
		    p->nt * sizeof j->tokens[0]);
	if (p->nx > 0)
		memcpy(j->text + o->text_len, p->ev->text + p->x0, p->nx);
	o->n_tokens += p->nt;
	o->text_len += (uint32_t)p->nx;
	return 0;
}

/* Queue one entry with len bytes of record, 0 if all is in e. */
static int
enqueue(struct dcpd_client *c, struct live *r, const struct dcpr_cqe *e,
    const struct part *p, uint32_t len)
{
	struct outrec *o;

	if (r != NULL && e->type == DCP_EV_DELTA && !p->logprobs &&
	    p->nt <= JOIN_TOKENS && p->nx <= JOIN_TEXT) {
		struct dcpr_cqe plain = *e;

		plain.flags &= (uint8_t)~DCPR_CQE_STREAM;
		return join(c, r, &plain, p);
	}
	o = calloc(1, sizeof *o + ((len + 7ul) & ~7ul));
	if (o == NULL)
		return -ENOMEM;
	o->len = len;
	o->e = *e;
	if (len > 0)
		write_record(p, (uint8_t *)o->payload);
	if (r != NULL)
		r->last = NULL;		/* what comes later stays behind it */
	append(c, r, o);
	return 0;
}

/* One part out: to the ring if it is its turn and there is space. */
static int
send_part(struct dcpd_client *c, struct live *r, const struct part *p,
    struct dcpr_cqe *e)
{
	uint32_t len = 0;
	uint64_t at = 0, take;

	if (!write_inline(p, e)) {
		e->flags |= DCPR_CQE_STREAM;
		len = (uint32_t)p->bytes;
	}
	if (c->out != NULL || !have_space(c, len, &at))
		return c->fault != NULL ? -EPIPE : enqueue(c, r, e, p, len);
	if (len > 0)
		write_record(p, stream_at(c, at));
	put(c, e, at, len);
	if (r != NULL) {
		take = dcpd_min64(r->reserved, r->logprobs ?
		    sizeof(struct outrec) + len : p->nt * TOKEN_COST);
		r->reserved -= take;
		uid_discharge(c, take);
	}
	return 0;
}

/* Fits into an entry. */
static const struct dcp_event no_memory = { .type = DCP_EV_ERROR,
	.error = -ENOMEM, .text = "out of memory", .text_len = 13 };

/*
 * A stream with a hole would be worse than none: a request whose event finds
 * no memory ends here, with the entry that it was given at its beginning.
 */
static void
last_words(struct dcpd_client *c, struct live *r)
{
	struct part p = { .ev = &no_memory };
	struct outrec *o = r->last_words;
	bool fits;

	r->last_words = NULL;
	next_part(&p);
	o->e = make_entry(&p, r);
	fits = write_inline(&p, &o->e);
	DCPD_ASSERT(fits);
	append(c, r, o);
}

int
emit_locked(struct dcpd_client *c, struct live *r, const struct dcp_event *in)
{
	struct dcp_event ev = *in;
	struct part p = { .ev = &ev, .logprobs = in->n_logprobs > 0 };
	bool final = is_final(in);
	int rc = 0;

	DCPD_ASSERT(ev.type >= DCP_EV_DELTA && ev.type <= DCP_EV_BEGIN);
	DCPD_ASSERT(ev.n_logprobs == 0 || ev.n_logprobs == ev.n_tokens);
	if (ev.type == DCP_EV_ERROR)
		ev.text_len = cut_text(ev.text, ev.text_len, ERROR_TEXT_MAX);
	if (c->out != NULL)
		emit_pump(c);
	do {
		struct dcpr_cqe e;

		next_part(&p);
		/* One token always fits: top_logprobs is at most vocab. */
		DCPD_ASSERT(p.nt > 0 || p.nx > 0 || p.last);
		e = make_entry(&p, r);
		rc = send_part(c, r, &p, &e);
	} while (rc == 0 && !p.last);
	if (rc == -ENOMEM) {
		last_words(c, r);
		final = true;
		rc = -ENOENT;
	}
	if (final)
		live_del(c, r->id);
	publish(c);
	if (c->out != NULL)
		emit_pump(c);
	return rc;
}

void
emit_no_memory(struct dcpd_client *c, uint64_t id, uint64_t user_data)
{
	struct live none = { .id = id, .user_data = user_data }, *r;
	struct part p = { .ev = &no_memory };
	struct dcpr_cqe e;

	if (c->fault != NULL)
		return;
	r = live_find(c, id);
	if (r != NULL) {
		emit_locked(c, r, &no_memory);
		return;
	}
	next_part(&p);
	e = make_entry(&p, &none);
	if (send_part(c, NULL, &p, &e) == -ENOMEM)
		fault(c, "no memory to refuse its requests");
	publish(c);
}

void
emit_info(struct dcpd_client *c, uint64_t id, const char *json)
{
	struct dcp_event ev = {
		.type = DCP_EV_DELTA, .text = json, .text_len = strlen(json),
	};
	struct part p = { .ev = &ev };
	struct live r = { .id = id };
	int rc;

	do {
		struct dcpr_cqe e;

		next_part(&p);
		e = make_entry(&p, &r);
		/* INFO's payload has no usage, like a DELTA's. */
		e.type = DCP_EV_DELTA;
		rc = write_inline(&p, &e) ? 0 : 1;
		e.type = DCPR_EV_INFO;
		e.flags = (uint8_t)((p.last ? 0 : DCPR_CQE_MORE) |
		    (rc ? DCPR_CQE_STREAM : 0));
		rc = enqueue(c, NULL, &e, &p, rc ? (uint32_t)p.bytes : 0);
	} while (rc == 0 && !p.last);
	if (rc != 0)
		fault(c, "no memory for its answers");	/* it would wait */
	emit_pump(c);
}

/* --- for the daemon --- */

int
dcpd_ipc_emit(struct dcpd_client *c, uint64_t id, const struct dcp_event *ev)
{
	struct live *r;
	int rc;

	DCPD_CHECK(c, CLIENT_MAGIC);
	pthread_mutex_lock(&c->lock);
	if (c->gone || c->fault != NULL) {
		rc = -EPIPE;
	} else {
		r = live_find(c, id);
		rc = r == NULL ? -ENOENT : emit_locked(c, r, ev);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int
dcpd_ipc_reserve(struct dcpd_client *c, uint64_t id, uint32_t max_tokens,
    uint32_t top_logprobs)
{
	uint64_t per, bytes;
	struct live *r;
	int rc = 0;

	DCPD_CHECK(c, CLIENT_MAGIC);
	pthread_mutex_lock(&c->lock);
	if (c->gone || c->fault != NULL) {
		rc = -EPIPE;
	} else if ((r = live_find(c, id)) == NULL) {
		rc = -ENOENT;
	} else {
		per = r->logprobs ? LOGPROB_COST + top_logprobs * 8ull :
		    TOKEN_COST;
		/* Two more entries: the last tokens', and the end's. */
		bytes = max_tokens * per + 2 * JOIN_BYTES + r->echo_bytes;
		if (bytes > c->use->max_bytes)
			rc = -EMSGSIZE;
		else if (uid_charge(c, bytes))
			r->reserved += bytes;
		else
			rc = -EDQUOT;
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}
