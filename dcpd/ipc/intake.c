/*
 * Submissions: an entry is copied out of the ring once, its block out of the
 * arena once, both are checked as copies, and only the copies go on. Intake
 * thread only.
 *
 * A fault here means that the client bypassed libdcpclient, which makes the
 * same checks: it is dropped. What an honest client may run into, a quota or
 * a refusal, is an ERROR event.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "dcpd/ipc/ipc_internal.h"
#include "libdcpclient/request_check.h"

/* A submission and the memory behind its pointers. */
struct held {
	struct dcpd_submit s;
	uint64_t charged;
	uint64_t mem[];
};

void
dcpd_submit_free(struct dcpd_submit *s)
{
	struct held *h = (struct held *)s;

	if (s == NULL)
		return;
	uid_discharge(s->client, h->charged);
	DCPD_COUNT(queue_bytes, -h->charged);
	dcpd_client_unref(s->client);
	free(h);
}

/* Copy from shared memory; nothing is read from there again. */
static void
copy_in(void *to, const void *shared, size_t n)
{
	memcpy(to, shared, n);
	__asm__ volatile("" ::: "memory");
}

/* --- checks on the private copy --- */

static bool
inside(struct dcpr_section s, uint32_t len)
{
	return s.off % 8 == 0 && s.off <= len && s.len <= len - s.off;
}

static const char *
check_sections(const struct dcpr_request *w, uint32_t len)
{
	if (!inside(w->data, len) || !inside(w->stop, len) ||
	    !inside(w->stop_ids, len) || !inside(w->logit_bias, len) ||
	    !inside(w->options, len))
		return "a section is outside its request's block";
	if (w->stop_ids.len != w->n_stop_ids * 4ull ||
	    w->logit_bias.len != w->n_logit_bias * 8ull)
		return "a section's length is not its count's";
	return NULL;
}

/* Bytes of memory for the copies: each section, NULs, the stop pointers. */
static uint64_t
memory_of(const struct dcpr_request *w)
{
	const uint64_t pad = 8;

	return w->data.len + w->stop.len + w->stop_ids.len +
	    w->logit_bias.len + w->options.len + 5 * (pad + 8) +
	    w->n_stop * sizeof(char *);
}

static void *
copy_section(uint8_t **at, const uint8_t *block, struct dcpr_section s)
{
	uint8_t *p = *at;

	copy_in(p, block + s.off, s.len);
	p[s.len] = 0;
	*at += (s.len + 8) & ~(size_t)7;	/* room for the NUL */
	return p;
}

/* Point s->stop into the copied strings. */
static const char *
split_stops(struct dcpd_submit *s, char *p, uint32_t len)
{
	char *end = p + len;
	uint32_t i;

	for (i = 0; i < s->p.n_stop; i++) {
		char *nul = memchr(p, '\0', (size_t)(end - p));

		if (nul == NULL || nul == p)
			return "stop strings are not as many as n_stop";
		s->stop[i] = p;
		p = nul + 1;
	}
	return p == end ? NULL : "stop strings are not as many as n_stop";
}

static const char *
check_tokens(const struct dcpd_submit *s, uint32_t vocab)
{
	uint32_t i;

	if (s->input == DCP_INPUT_TOKENS && dcpr_bad_token((uint32_t *)
	    (void *)s->data, s->len / 4, vocab) < s->len / 4)
		return "a token id is not below the vocabulary";
	if (dcpr_bad_token(s->stop_ids, s->p.n_stop_ids, vocab) <
	    s->p.n_stop_ids)
		return "a stop id is not below the vocabulary";
	for (i = 0; i < s->p.n_logit_bias; i++)
		if (s->bias[i].token >= vocab ||
		    s->bias[i].bias != s->bias[i].bias)
			return "a logit_bias is not below the vocabulary or "
			    "not a number";
	return NULL;
}

/* --- the copy --- */

static void
copy_scalars(struct dcpd_submit *s, const struct dcpr_request *w)
{
	s->input = w->input;
	s->flags = w->flags;
	s->len = w->data.len;
	s->p = (struct dcp_request){
		.size = sizeof s->p, .input = w->input, .flags = w->flags,
		.max_tokens = w->max_tokens, .len = w->data.len,
		.temperature = w->temperature, .top_p = w->top_p,
		.min_p = w->min_p, .repetition_penalty = w->repetition_penalty,
		.presence_penalty = w->presence_penalty,
		.frequency_penalty = w->frequency_penalty,
		.top_k = w->top_k, .min_tokens = w->min_tokens,
		.top_logprobs = w->top_logprobs, .priority = w->priority,
		.seed = w->seed, .deadline_ms = w->deadline_ms,
		.n_stop = w->n_stop, .n_stop_ids = w->n_stop_ids,
		.n_logit_bias = w->n_logit_bias,
	};
}

/* Fill h from the block; NULL, or the fault. */
static const char *
copy_request(struct held *h, const uint8_t *block,
    const struct dcpr_request *w, uint32_t vocab)
{
	struct dcpd_submit *s = &h->s;
	uint8_t *at = (uint8_t *)h->mem;
	const char *fault;
	char *stops;

	copy_scalars(s, w);
	s->stop = w->n_stop > 0 ? (char **)at : NULL;
	at += w->n_stop * sizeof(char *);
	s->data = copy_section(&at, block, w->data);
	stops = copy_section(&at, block, w->stop);
	s->stop_ids = copy_section(&at, block, w->stop_ids);
	s->bias = copy_section(&at, block, w->logit_bias);
	s->options = copy_section(&at, block, w->options);
	if (w->n_stop_ids == 0)
		s->stop_ids = NULL;
	if (w->n_logit_bias == 0)
		s->bias = NULL;
	if (w->options.len == 0)
		s->options = NULL;
	fault = split_stops(s, stops, w->stop.len);
	return fault != NULL ? fault : check_tokens(s, vocab);
}

/* --- one submission --- */

/* End a request that never ran. */
static void
refuse(struct dcpd_client *c, uint64_t id, int code, const char *text)
{
	struct dcp_event ev = {
		.type = DCP_EV_ERROR, .error = code,
		.text = text, .text_len = strlen(text),
	};

	dcpd_ipc_emit(c, id, &ev);
}

/* May this uid have one more request of n bytes? 0, or -errno and text. */
static int
admit(struct dcpd_client *c, struct live *r, uint64_t n,
    const struct dcpr_request *w, char *text, size_t cap)
{
	const struct uid_use *use = c->use;
	uint64_t record = sizeof(struct dcpr_record) + 4 +
	    sizeof(struct dcpr_logprob) + w->top_logprobs * 8ull;

	if (record > RECORD_MAX) {
		snprintf(text, cap, "top_logprobs is %u; a ring carries %zu",
		    w->top_logprobs, (RECORD_MAX - sizeof(struct dcpr_record) -
		    4 - sizeof(struct dcpr_logprob)) / 8);
		return -EINVAL;
	}
	/* Else everybody would: a queue with one order for all is shared. */
	if (w->priority > 0 && c->cred.uid != 0 && c->cred.uid != geteuid()) {
		snprintf(text, cap, "priority is %d, but only root and the "
		    "daemon's own user may go above 0", w->priority);
		return -EPERM;
	}
	if (atomic_fetch_add(&c->use->requests, 1) >= use->max_requests) {
		atomic_fetch_sub(&c->use->requests, 1);
		snprintf(text, cap, "uid %u has %u requests running or "
		    "waiting, the most it may have; try again when one ends",
		    c->cred.uid, use->max_requests);
		return -EAGAIN;
	}
	r->counted = true;
	if (n > use->max_bytes) {
		snprintf(text, cap, "the request takes %llu bytes; one user "
		    "may hold %llu: shorten it, or raise "
		    "--max-bytes-per-user", (unsigned long long)n,
		    (unsigned long long)use->max_bytes);
		return -EMSGSIZE;	/* no use in trying again */
	}
	if (!uid_charge(c, n)) {
		snprintf(text, cap, "uid %u holds %llu bytes of requests and "
		    "answers; %llu more would exceed its %llu; take events, "
		    "then try again", c->cred.uid,
		    (unsigned long long)atomic_load(&use->bytes),
		    (unsigned long long)n,
		    (unsigned long long)use->max_bytes);
		return -EAGAIN;
	}
	r->logprobs = w->flags & DCP_LOGPROBS;
	/* The prompt's tokens come back too; text has no more than bytes. */
	if (w->flags & (DCP_ECHO | DCP_TOKENIZE))
		r->echo_bytes = (w->input == DCP_INPUT_TOKENS ?
		    w->data.len / 4 : w->data.len) * (sizeof(uint32_t) + 8 +
		    sizeof(struct dcpr_logprob) + w->top_logprobs * 8ull);
	return 0;
}

/* Hand a checked request on. */
static void
hand_over(struct dcpd_client *c, struct held *h)
{
	struct dcpd_ipc *ipc = c->ipc;
	uint64_t id = h->s.id;
	struct dcpd_err err = { 0 };
	int rc;

	rc = ipc->ops.submit(ipc->arg, &h->s, &err);
	if (rc == 0)
		return;
	refuse(c, id, rc, err.text[0] != '\0' ? err.text : "refused");
	dcpd_submit_free(&h->s);
}

/*
 * The entry and its block are copied: they are the client's again. Before
 * anybody can answer, so that who has the answer can reuse the space.
 */
static void
taken(struct dcpd_client *c)
{
	c->sq_head++;
	__atomic_store_n(&c->s->sq_head, c->sq_head, __ATOMIC_RELEASE);
}

/*
 * Copy, check, admit. NULL, or the fault for which the client goes. *out
 * stays NULL when the request is refused: *rc and text then say why.
 */
static const char *
copy_submission(struct dcpd_client *c, const struct dcpr_sqe *e,
    struct held **out, int *rc, char *text, size_t cap)
{
	const uint8_t *block = c->cli + DCPR_PAGE + SQ_ENTRIES * 64u + e->off;
	const uint32_t vocab = c->ipc->cfg.vocab;
	struct dcpr_request w;
	const char *fault;
	struct held *h;
	struct live *r;
	uint64_t n;

	copy_in(&w, block, sizeof w);
	fault = check_sections(&w, e->len);
	if (fault == NULL)
		fault = dcpr_request_fault(&w, vocab);
	if (fault != NULL)
		return fault;
	pthread_mutex_lock(&c->lock);
	r = live_add(c, e->id, e->user_data);
	pthread_mutex_unlock(&c->lock);
	if (r == NULL) {
		*rc = -ENOMEM;
		snprintf(text, cap, "no memory for the request");
		return NULL;
	}
	n = sizeof *h + memory_of(&w);
	*rc = admit(c, r, n, &w, text, cap);
	if (*rc < 0)
		return NULL;
	h = malloc(n);
	if (h == NULL) {
		uid_discharge(c, n);
		*rc = -ENOMEM;
		snprintf(text, cap, "no memory for the request");
		return NULL;
	}
	h->s = (struct dcpd_submit){
		.client = dcpd_client_ref(c), .id = e->id, .uid = c->cred.uid,
		.own = c->use->own,
	};
	h->charged = n;
	DCPD_COUNT(queue_bytes, n);
	fault = copy_request(h, block, &w, vocab);
	if (fault != NULL)
		dcpd_submit_free(&h->s);
	else
		*out = h;
	return fault;
}

/* NULL, or the fault. */
static const char *
submit(struct dcpd_client *c, const struct dcpr_sqe *e)
{
	struct held *h = NULL;
	const char *fault;
	char text[256];
	int rc = 0;

	if (e->id != (c->id << 32 | c->next_req))
		return "a request id is not the next one";
	if (e->off % 8 != 0 || e->off > ARENA_BYTES ||
	    e->len > ARENA_BYTES - e->off ||
	    e->len < sizeof(struct dcpr_request))
		return "a request's offset and length are outside the arena";
	c->next_req++;
	fault = copy_submission(c, e, &h, &rc, text, sizeof text);
	if (fault != NULL)
		return fault;
	taken(c);
	if (h != NULL) {
		hand_over(c, h);
		return NULL;
	}
	DCPD_COUNT(requests_refused, 1);
	if (rc == -ENOMEM) {
		pthread_mutex_lock(&c->lock);
		emit_no_memory(c, e->id, e->user_data);
		pthread_mutex_unlock(&c->lock);
	} else {
		refuse(c, e->id, rc, text);
	}
	return NULL;
}

static void
info(struct dcpd_client *c, uint64_t id)
{
	struct dcpd_ipc *ipc = c->ipc;
	char *json = ipc->ops.info != NULL ? ipc->ops.info(ipc->arg) : NULL;

	pthread_mutex_lock(&c->lock);
	emit_info(c, id, json != NULL ? json : "{}");
	pthread_mutex_unlock(&c->lock);
	free(json);
}

/* One submission, which this takes off the ring. NULL, or the fault. */
static const char *
entry(struct dcpd_client *c, const struct dcpr_sqe *e)
{
	static const uint64_t none[4];
	struct dcpd_ipc *ipc = c->ipc;
	bool live;

	if (e->flags != 0 || memcmp(e->reserved, none, sizeof none) != 0)
		return "a submission's reserved fields are set";
	switch (e->op) {
	case DCPR_OP_SUBMIT:
		return submit(c, e);
	case DCPR_OP_CANCEL:
		if (e->id >> 32 != c->id)
			return "it cancelled another client's request";
		taken(c);
		pthread_mutex_lock(&c->lock);
		live = live_find(c, e->id) != NULL;
		pthread_mutex_unlock(&c->lock);
		/* Not live: it ended while the word was on its way. */
		if (live && ipc->ops.cancel != NULL)
			ipc->ops.cancel(ipc->arg, c, e->id);
		return NULL;
	case DCPR_OP_INFO:
		taken(c);
		info(c, e->id);
		return NULL;
	}
	return "a submission's op is unknown";
}

/* --- turns --- */

/* Too many answers unread: its submissions wait, those of others do not. */
static bool
stalled(struct dcpd_client *c)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = c->loose_bytes > LOOSE_MAX;
	pthread_mutex_unlock(&c->lock);
	return yes;
}

/* sq_tail, checked against what was seen before. false: dropped. */
static bool
look(struct dcpd_client *c)
{
	uint32_t tail = word_load(&c->c->sq_tail);

	if (tail - c->sq_head > SQ_ENTRIES) {
		client_drop(c, "sq_tail is further ahead than the ring has "
		    "entries");
		return false;
	}
	if (tail - c->sq_head < c->sq_seen - c->sq_head) {
		client_drop(c, "sq_tail went back");
		return false;
	}
	c->sq_seen = tail;
	return true;
}

bool
intake_turn(struct dcpd_client *c)
{
	const struct dcpr_sqe *sq = (void *)(c->cli + DCPR_PAGE);
	const char *fault = NULL;
	struct dcpr_sqe e;
	uint32_t n;

	if (!look(c))
		return false;
	for (n = 0; n < INTAKE_BATCH && c->sq_head != c->sq_seen; n++) {
		if (stalled(c))
			break;
		copy_in(&e, &sq[c->sq_head & (SQ_ENTRIES - 1)], sizeof e);
		fault = entry(c, &e);
		if (fault != NULL)
			break;
	}
	if (fault != NULL)
		client_drop(c, fault);
	return n > 0 && fault == NULL;
}

/*
 * Ask for one ring of the doorbell, then look once more: seq_cst on both
 * words, as in the client's publish(). A stalled client rings when it reads.
 */
bool
intake_arm(struct dcpd_client *c)
{
	word_store(&c->s->sq_bell, ++c->sq_bell);
	return word_load(&c->c->sq_tail) == c->sq_seen || stalled(c);
}
