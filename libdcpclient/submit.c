/*
 * Submissions: dcp_submit, dcp_cancel and the doorbell. The arena is a ring
 * of its own: a request's block is free again when the daemon has taken the
 * entry that names it, in order.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libdcpclient/private.h"
#include "libdcpclient/request_check.h"

#define RING_TRIES 10000		/* a millisecond each */

/* A caller's struct, older or newer than ours, into ours. */
static int
copy_request(const struct dcp_request *in, struct dcp_request *out)
{
	const size_t least = offsetof(struct dcp_request, user_data);
	const unsigned char *p = (const void *)in;
	size_t i;

	if (in->size < least || in->size > 4096)
		return dcp_fail(-EINVAL, "dcp_submit: size is %u; set it to "
		    "sizeof(struct dcp_request)", in->size);
	for (i = sizeof *out; i < in->size; i++)
		if (p[i] != 0)
			return dcp_fail(-EINVAL, "dcp_submit: a field is set "
			    "that libdcpclient %s does not know",
			    dcp_version());
	memset(out, 0, sizeof *out);
	memcpy(out, in, in->size < sizeof *out ? in->size : sizeof *out);
	if ((out->data == NULL && out->len > 0) ||
	    (out->stop == NULL && out->n_stop > 0) ||
	    (out->stop_ids == NULL && out->n_stop_ids > 0) ||
	    (out->logit_bias == NULL && out->n_logit_bias > 0))
		return dcp_fail(-EINVAL, "dcp_submit: data, stop, stop_ids or "
		    "logit_bias is NULL but its count is not 0");
	return 0;
}

static void
to_wire(const struct dcp_request *r, struct dcpr_request *w)
{
	*w = (struct dcpr_request){
		.input = r->input, .flags = r->flags,
		.max_tokens = r->max_tokens, .min_tokens = r->min_tokens,
		.temperature = r->temperature, .top_p = r->top_p,
		.min_p = r->min_p, .repetition_penalty = r->repetition_penalty,
		.presence_penalty = r->presence_penalty,
		.frequency_penalty = r->frequency_penalty,
		.top_k = r->top_k, .top_logprobs = r->top_logprobs,
		.priority = r->priority, .deadline_ms = r->deadline_ms,
		.seed = r->seed, .n_stop = r->n_stop,
		.n_stop_ids = r->n_stop_ids, .n_logit_bias = r->n_logit_bias,
	};
}

/* Give s the next len bytes of the block. */
static void
place(struct dcpr_section *s, uint64_t *size, uint64_t len)
{
	s->off = (uint32_t)*size;
	s->len = (uint32_t)len;
	*size += (len + 7) & ~(uint64_t)7;
}

/* Place every section; *size is then the block's. */
static int
measure(const struct dcp *d, const struct dcp_request *r,
    struct dcpr_request *w, uint64_t *size)
{
	uint64_t stop = 0;
	uint32_t i;

	/* Before any sum, so that none can overflow. */
	if (r->len > d->arena_size)
		goto big;
	for (i = 0; i < r->n_stop && i < DCPR_MAX_STOP; i++) {
		if (r->stop[i] == NULL || r->stop[i][0] == '\0')
			return dcp_fail(-EINVAL,
			    "dcp_submit: stop string %u is empty", i);
		stop += strlen(r->stop[i]) + 1;
		if (stop > d->arena_size)
			goto big;
	}
	*size = sizeof *w;
	place(&w->data, size, r->len);
	place(&w->stop, size, stop);
	place(&w->stop_ids, size, (uint64_t)r->n_stop_ids * 4);
	place(&w->logit_bias, size, (uint64_t)r->n_logit_bias * 8);
	place(&w->options, size, r->options ? strlen(r->options) : 0);
	if (*size <= d->arena_size)
		return 0;
big:
	return dcp_fail(-EMSGSIZE, "dcp_submit: the request is larger than "
	    "the %u bytes that the ring's arena holds", d->arena_size);
}

/* Take back the blocks of entries that the daemon has copied. */
static void
reclaim(struct dcp *d)
{
	uint32_t head = load_acquire(&d->s->sq_head);

	if (head - d->sq_done > d->sq_tail - d->sq_done)
		return;			/* not an index of ours */
	for (; d->sq_done != head; d->sq_done++)
		d->a_head = d->a_end[d->sq_done & (d->sq_entries - 1)];
	/* Only then does no entry remember where the arena stood before. */
	if (d->sq_done == d->sq_tail)
		d->a_head = d->a_tail = 0;
}

static bool
alloc_block(struct dcp *d, uint64_t size, uint32_t *off)
{
	uint64_t at = d->a_tail & (d->arena_size - 1), skip = 0;

	if (at + size > d->arena_size)
		skip = d->arena_size - at;	/* never wrapped round */
	if (skip + size > d->arena_size - (d->a_tail - d->a_head))
		return false;
	d->a_tail += skip;
	*off = (uint32_t)(d->a_tail & (d->arena_size - 1));
	d->a_tail += size;
	return true;
}

static void
fill_block(uint8_t *b, const struct dcp_request *r,
    const struct dcpr_request *w)
{
	uint8_t *p = b + w->stop.off;
	uint32_t i;

	memcpy(b, w, sizeof *w);
	memcpy(b + w->data.off, r->data, w->data.len);
	for (i = 0; i < r->n_stop; i++) {
		size_t n = strlen(r->stop[i]) + 1;

		memcpy(p, r->stop[i], n);
		p += n;
	}
	if (r->n_stop_ids > 0)
		memcpy(b + w->stop_ids.off, r->stop_ids, w->stop_ids.len);
	if (r->n_logit_bias > 0)	/* dcp_logit_bias is dcpr_pair */
		memcpy(b + w->logit_bias.off, r->logit_bias,
		    w->logit_bias.len);
	if (w->options.len > 0)
		memcpy(b + w->options.off, r->options, w->options.len);
}

/* Ids against the vocabulary, before anything is copied. */
static int
check_tokens(const struct dcp *d, const struct dcp_request *r)
{
	const char *what = "stop_ids";
	const uint32_t *ids = r->stop_ids;
	size_t i, n = r->n_stop_ids;

	i = dcpr_bad_token(ids, n, d->vocab);
	if (i == n && r->input == DCP_INPUT_TOKENS) {
		what = "data";
		ids = r->data;
		n = r->len / 4;
		i = dcpr_bad_token(ids, n, d->vocab);
	}
	if (i < n)
		return dcp_fail(-EINVAL, "dcp_submit: %s[%zu] is %u, but the "
		    "model's token ids are below %u", what, i, ids[i],
		    d->vocab);
	for (i = 0; i < r->n_logit_bias; i++)
		if (r->logit_bias[i].token >= d->vocab ||
		    r->logit_bias[i].bias != r->logit_bias[i].bias)
			return dcp_fail(-EINVAL, "dcp_submit: logit_bias[%zu]:"
			    " token %u, bias %g; ids are below %u", i,
			    r->logit_bias[i].token,
			    (double)r->logit_bias[i].bias, d->vocab);
	return 0;
}

/* Under tx: is there room for one more entry? */
static int
room(struct dcp *d)
{
	reclaim(d);
	if (d->sq_tail - d->sq_done < d->sq_entries)
		return 0;
	if (dcp_peer_gone(d))
		return dcp_fail(-EPIPE, "the daemon is gone");
	return dcp_fail(-EAGAIN, "%u submissions wait for the daemon to take "
	    "them; take events, then try again", d->sq_entries);
}

/*
 * Make the entry at sq_tail visible and wake the daemon if it asked for that.
 * Store and load are both seq_cst, as are the daemon's store of sq_bell and
 * its second look at sq_tail: with acquire and release alone each side could
 * miss the other's word and both would sleep.
 */
static int
publish(struct dcp *d)
{
	uint32_t bell;

	d->a_end[d->sq_tail & (d->sq_entries - 1)] = d->a_tail;
	d->sq_tail++;
	store_sc(&d->c->sq_tail, d->sq_tail);
	bell = load_sc(&d->s->sq_bell);
	if (bell == d->sq_rung)
		return 0;
	d->sq_rung = bell;
	dcp_ring_doorbell(d);
	/* It slept, or it is dead; it wakes while we look. */
	return dcp_peer_gone(d) ? dcp_fail(-EPIPE, "the daemon is gone") : 0;
}

void
dcp_ring_doorbell(struct dcp *d)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	char junk[512];
	unsigned i;

	/*
	 * The daemon never reads it, so every 4096th time it is full. Who
	 * empties it here writes next, so it never stays empty. Any other
	 * failure is want of memory, which passes; to go on without having
	 * rung could leave both sides asleep.
	 */
	for (i = 0; write(d->bell[1], "", 1) < 0 && i < RING_TRIES; i++) {
		if (errno != EAGAIN)
			nanosleep(&ms, NULL);
		else
			while (read(d->bell[0], junk, sizeof junk) > 0)
				;
	}
}

/*
 * Under tx. A daemon that has not taken earlier entries may be dead; one that
 * sleeps is looked at in publish.
 */
static int
alive(struct dcp *d)
{
	if (atomic_load_explicit(&d->dead, memory_order_relaxed) ||
	    (d->sq_tail != d->sq_done && dcp_peer_gone(d)))
		return dcp_fail(-EPIPE, "the daemon is gone");
	return 0;
}

int
dcp_push(struct dcp *d, uint32_t op, uint64_t id)
{
	int rc;

	pthread_mutex_lock(&d->tx);
	rc = room(d);
	if (rc == 0)
		rc = alive(d);
	if (rc == 0) {
		d->sq[d->sq_tail & (d->sq_entries - 1)] =
		    (struct dcpr_sqe){ .op = op, .id = id };
		rc = publish(d);
	}
	pthread_mutex_unlock(&d->tx);
	return rc;
}

/* Under tx: all of dcp_submit but the checks of its arguments. */
static int
submit_locked(struct dcp *d, const struct dcp_request *r,
    const struct dcpr_request *w, uint64_t size, uint64_t *id)
{
	uint32_t off;
	int rc;

	rc = room(d);
	if (rc == 0)
		rc = alive(d);
	if (rc < 0)
		return rc;
	if (d->next_req == UINT32_MAX)
		return dcp_fail(-EOVERFLOW, "4294967295 requests on one "
		    "connection: connect again");
	if (!alloc_block(d, size, &off))
		return dcp_fail(-EAGAIN, "the arena has no %llu bytes free "
		    "until the daemon takes earlier submissions; try again",
		    (unsigned long long)size);
	fill_block(d->arena + off, r, w);
	*id = (uint64_t)d->client << 32 | d->next_req;
	/* Before the daemon can end it. */
	pthread_mutex_lock(&d->ids_lock);
	rc = idset_add(&d->ids, d->next_req);
	pthread_mutex_unlock(&d->ids_lock);
	if (rc < 0) {
		d->a_tail -= size;
		return dcp_fail(rc, "out of memory");
	}
	d->next_req++;
	d->sq[d->sq_tail & (d->sq_entries - 1)] = (struct dcpr_sqe){
		.op = DCPR_OP_SUBMIT, .id = *id, .user_data = r->user_data,
		.off = off, .len = (uint32_t)size,
	};
	/*
	 * From here on the daemon may have taken it and sent events, even if
	 * it is found gone now: a failure would let the caller free what
	 * those events name. dcp_next says -EPIPE after them.
	 */
	(void)publish(d);
	return 0;
}

int
dcp_submit(struct dcp *d, const struct dcp_request *req, uint64_t *id)
{
	struct dcp_request r;
	struct dcpr_request w;
	const char *fault;
	uint64_t size = 0, new_id = 0;
	int rc;

	rc = dcp_enter(d, "dcp_submit");
	if (rc < 0)
		return rc;
	if (req == NULL || id == NULL)
		return dcp_fail(-EINVAL, "dcp_submit: request or id is NULL");
	rc = copy_request(req, &r);
	if (rc < 0)
		return rc;
	to_wire(&r, &w);
	rc = measure(d, &r, &w, &size);
	if (rc < 0)
		return rc;
	fault = dcpr_request_fault(&w, d->vocab);
	if (fault != NULL)
		return dcp_fail(-EINVAL, "dcp_submit: %s", fault);
	rc = check_tokens(d, &r);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&d->tx);
	rc = submit_locked(d, &r, &w, size, &new_id);
	pthread_mutex_unlock(&d->tx);
	if (rc == 0)
		*id = new_id;
	return rc;
}

int
dcp_cancel(struct dcp *d, uint64_t id)
{
	bool live;
	int rc;

	rc = dcp_enter(d, "dcp_cancel");
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&d->ids_lock);
	live = id >> 32 == d->client && idset_has(&d->ids, (uint32_t)id);
	pthread_mutex_unlock(&d->ids_lock);
	if (!live)
		return dcp_fail(-ENOENT, "dcp_cancel: no request %llu is "
		    "running on this connection", (unsigned long long)id);
	return dcp_push(d, DCPR_OP_CANCEL, id);
}
