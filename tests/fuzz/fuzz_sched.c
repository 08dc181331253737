/*
 * Random operations on a scheduler, its invariant checked after every step,
 * and every answer against what the text alone says it must be.
 *
 * FUZZ_OPS (100000) operations from FUZZ_SEED (1), over many schedulers of
 * random shape: submit, cancel, die, drain, drop the cache, pin and unpin, with
 * pools so small that requests give way to each other and prompts that begin
 * alike. Another
 * thread asks for status, requests and checks meanwhile. Exit 0, or an
 * assertion that names what broke after printing the seed.
 */
#include "config.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/admin/counters.h"
#include "tests/unit/sched_fake.h"

#define VOCAB 300u
#define N_CLIENTS 6u
#define ROUND 1000u		/* operations on one scheduler */

struct sent {
	uint64_t id;
	uint32_t n, prompt, max_tokens, flags;
	uint64_t seed;
	struct dcpd_client *c;
	bool cancelled, deadline, bad, salt;
};

static uint64_t state;
static struct fk F;
static struct dcpd_client *client[N_CLIENTS];
static struct sent sent[ROUND];
static uint32_t n_sent;
static uint64_t pin[64], n_pinned;	/* n_pinned: ever, all rounds */
static uint32_t n_pin;
static _Atomic bool watching;

static uint32_t
rnd(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % n);
}

static void *
watch(void *arg)
{
	struct dcpd_err err;

	while (atomic_load(&watching)) {
		json_decref(dcpd_sched_status(F.s));
		json_decref(dcpd_sched_requests(F.s));
		if (dcpd_sched_check(F.s, &err) != 0) {
			fprintf(stderr, "check: %s\n", err.text);
			abort();
		}
		usleep(2000);
	}
	return NULL;
}

/* A length that is often next to a seam. */
static uint32_t
length(uint32_t max)
{
	uint32_t n = rnd(4) == 0 ? 64 * (1 + rnd(8)) + rnd(3) - 1 :
	    1 + rnd(rnd(8) == 0 ? 600 : 60);

	return n < max ? n : max;
}

static void
op_submit(void)
{
	struct sent *t = &sent[n_sent];
	struct fk_req q = { 0 };
	struct dcpd_err err;
	uint32_t *p;
	int rc;

	memset(t, 0, sizeof *t);
	t->c = client[rnd(N_CLIENTS)];
	t->n = length(1000);
	t->prompt = rnd(8);	/* they begin alike, as long as both are */
	t->max_tokens = 1 + rnd(rnd(5) == 0 ? 300 : 20);
	t->flags = rnd(3) != 0 ? DCP_IGNORE_EOS : 0;
	if (rnd(3) == 0)
		t->flags |= DCP_LOGPROBS;
	if (rnd(8) == 0)
		t->flags |= DCP_ECHO;
	if (rnd(3) == 0) {
		t->flags |= DCP_TEMPERATURE | DCP_SEED;
		t->seed = q.p.seed = rnd(1000);
		q.p.temperature = 1;
	}
	p = fk_prompt(VOCAB, t->n, t->prompt);
	q.ids = p;
	q.n = t->n;
	q.flags = t->flags;
	q.max_tokens = t->max_tokens;
	q.uid = rnd(3);
	q.p.priority = rnd(4) == 0 ? (int32_t)rnd(3) - 1 : 0;
	t->salt = rnd(10) == 0;
	if (t->salt)
		q.options = "{\"cache_salt\":\"x\"}";
	if (rnd(4) == 0)
		q.p.repetition_penalty = 1.1f;
	if (t->flags & DCP_LOGPROBS)
		q.p.top_logprobs = rnd(4);
	if (rnd(20) == 0) {
		q.p.deadline_ms = 1 + rnd(20);
		t->deadline = true;
	}
	if (rnd(25) == 0) {
		q.p.top_p = 2;
		t->bad = true;
	}
	rc = fk_submit(F.s, t->c, &q, &t->id, &err);
	if (rc == 0)
		n_sent++;
	else
		DCPD_ASSERT(rc == -EAGAIN || rc == -ESHUTDOWN);
	free(p);
}

static void
op_cancel(void)
{
	struct sent *t;

	if (n_sent == 0)
		return;
	t = &sent[rnd(4) == 0 ? rnd(n_sent) : n_sent - 1 - rnd(n_sent < 8 ?
	    n_sent : 8)];
	t->cancelled = true;
	if (rnd(2) == 0)
		dcpd_sched_ipc_ops.cancel(F.s, t->c, t->id);
	else
		(void)dcpd_sched_cancel(F.s, t->id);
}

static void
op_gone(void)
{
	uint32_t i = rnd(N_CLIENTS);

	if (rnd(2) == 0)
		fk_gone(client[i]);	/* emission notices first */
	dcpd_sched_ipc_ops.gone(F.s, client[i]);
	fk_gone(client[i]);
	client[i] = fk_client(100 + i);
	client[i]->quota = rnd(2) == 0 ? 0 : 1500;
}

/* A text that may be there, or what one of the last requests has. */
static void
op_pin(void)
{
	struct dcpd_err err;
	uint32_t pages, n = 64 * (1 + rnd(4)), *p = fk_prompt(VOCAB, n, rnd(8));
	bool by_request = n_sent > 0 && rnd(3) == 0;
	int rc;

	DCPD_ASSERT(n_pin < 64);
	rc = dcpd_sched_pin(F.s, by_request ? NULL : p, by_request ? 0 : n,
	    rnd(10) == 0 ? "x" : NULL,
	    by_request ? sent[n_sent - 1].id : 0, &pin[n_pin], &pages, &err);
	free(p);
	DCPD_ASSERT(rc == 0 ? pages > 0 : rc == -ENOENT || rc == -ENOSPC ||
	    rc == -EBUSY || (by_request && rc == -EINVAL));	/* a short one */
	n_pin += rc == 0;
	n_pinned += rc == 0;
}

static void
unpin_all(void)
{
	struct dcpd_err err;
	uint32_t pages;

	DCPD_ASSERT(dcpd_sched_unpin(F.s, 0, &pages, &err) == 0);
	DCPD_ASSERT((pages > 0) == (n_pin > 0));
	n_pin = 0;
}

/* One of them, or all. */
static void
op_unpin(void)
{
	struct dcpd_err err;
	uint32_t pages, i;

	if (n_pin == 0 || rnd(4) == 0) {
		unpin_all();
		return;
	}
	i = rnd(n_pin);
	DCPD_ASSERT(dcpd_sched_unpin(F.s, pin[i], &pages, &err) == 0);
	DCPD_ASSERT(dcpd_sched_unpin(F.s, pin[i], &pages, &err) == -ENOENT);
	pin[i] = pin[--n_pin];
}

static void
one_op(void)
{
	uint32_t pages;

	switch (rnd(42)) {
	case 0:
		op_gone();
		break;
	case 1:
		fk_block_emit(true);
		usleep(rnd(500));
		fk_block_emit(false);
		break;
	case 2:
		dcpd_sched_drain(F.s, true);
		usleep(rnd(100));
		dcpd_sched_drain(F.s, false);
		break;
	case 3:
		DCPD_ASSERT(dcpd_sched_cache_drop(F.s, &pages, NULL) == 0);
		break;
	case 4: case 5: case 6: case 7: case 8:
		usleep(rnd(300));
		break;
	case 9: case 10: case 11: case 12: case 13: case 14:
		op_cancel();
		break;
	case 15:
		op_pin();
		break;
	case 16:
		op_unpin();
		break;
	default:
		op_submit();
	}
}

/* What came is a beginning of what must come, and the end is told rightly. */
static void
verify(const struct sent *t)
{
	struct fk_seen f = fk_look(t->id);
	uint32_t want[400], *p = fk_prompt(VOCAB, t->n, t->prompt);
	uint32_t len = t->max_tokens;

	fk_expect(VOCAB, p, t->n, t->flags & DCP_SEED ? &t->seed : NULL,
	    UINT32_MAX, want, t->max_tokens);
	for (uint32_t i = 0; !(t->flags & DCP_IGNORE_EOS) && i < len; i++)
		if (want[i] == FK_EOS)
			len = i + 1;
	DCPD_ASSERT(f.n <= len && f.after_end == 0);
	DCPD_ASSERT(f.n == 0 ||
	    memcmp(f.tokens, want, f.n * sizeof *want) == 0);
	DCPD_ASSERT(f.n_prompt <= t->n);
	DCPD_ASSERT(f.n_prompt == 0 ||
	    memcmp(f.prompt, p, f.n_prompt * sizeof *p) == 0);
	free(p);
	if (!f.done) {
		DCPD_ASSERT(t->c->gone);
		return;
	}
	if (f.error != 0) {
		DCPD_ASSERT(f.n == 0 && (t->bad ? f.error == -EINVAL :
		    f.error == -EMSGSIZE));
		return;
	}
	DCPD_ASSERT(!t->bad || f.finish == DCP_FINISH_ABORT);
	DCPD_ASSERT(f.usage.completion_tokens == f.n);
	DCPD_ASSERT(f.usage.cached_tokens % 64 == 0 &&
	    f.usage.cached_tokens < t->n);
	DCPD_ASSERT(f.usage.cached_tokens == 0 ||
	    (t->flags & (DCP_ECHO | DCP_LOGPROBS)) !=
	    (DCP_ECHO | DCP_LOGPROBS));
	if (f.finish == DCP_FINISH_ABORT) {
		DCPD_ASSERT(t->cancelled || t->deadline || t->c->gone);
		return;
	}
	DCPD_ASSERT(f.n == len);
	DCPD_ASSERT(f.finish == (want[len - 1] == FK_EOS &&
	    !(t->flags & DCP_IGNORE_EOS) ? DCP_FINISH_STOP :
	    DCP_FINISH_LENGTH));
	DCPD_ASSERT(!(t->flags & DCP_ECHO) || f.n_prompt == t->n);
}

static void
one_round(uint32_t ops)
{
	static const uint32_t chunk[] = { 1, 7, 64, 100, 512 };
	struct dcpd_err err;
	pthread_t watcher;
	bool clean;

	n_sent = n_pin = 0;
	fk_start(&F, (struct fk_spec){
	    .vocab = VOCAB, .max_ctx = 900, .pages = 12 + rnd(40),
	    .dcp = 1u << rnd(4), .chunk = chunk[rnd(5)],
	    .host_pages = rnd(2) == 0 ? 0 : 1 + rnd(60),
	    .max_running = 1 + rnd(12), .queue_max = 5 + rnd(60),
	    .max_requests_uid = rnd(2) == 0 ? 0 : 20, .way = -1 }, NULL);
	F.e.step_us = rnd(2) == 0 ? 0 : rnd(80);
	for (uint32_t i = 0; i < N_CLIENTS; i++) {
		client[i] = fk_client(2 + i);
		client[i]->quota = i % 2 == 0 ? 0 : 1500;
	}
	atomic_store(&watching, true);
	DCPD_ASSERT(pthread_create(&watcher, NULL, watch, NULL) == 0);
	for (uint32_t i = 0; i < ops; i++)
		one_op();
	clean = rnd(4) != 0;
	if (clean) {
		DCPD_ASSERT(fk_idle(&F) == 0);
		DCPD_ASSERT((fk_status(&F, "pages_used") > 0) == (n_pin > 0));
		unpin_all();
		DCPD_ASSERT(fk_status(&F, "pages_used") == 0);
	}
	atomic_store(&watching, false);
	pthread_join(watcher, NULL);
	if (clean) {
		DCPD_ASSERT(dcpd_sched_check(F.s, &err) == 0);
		for (uint32_t i = 0; i < n_sent; i++)
			verify(&sent[i]);
	}
	fk_stop(&F);		/* or in the middle of everything */
}

static uint64_t
from_env(const char *name, uint64_t other)
{
	const char *s = getenv(name);

	return s == NULL ? other : strtoull(s, NULL, 10);
}

int
main(void)
{
	uint64_t ops = from_env("FUZZ_OPS", 100000), all = ops;
	uint64_t seed = from_env("FUZZ_SEED", 1), total = 0;

	fprintf(stderr, "fuzz_sched: %llu operations, FUZZ_SEED=%llu\n",
	    (unsigned long long)ops, (unsigned long long)seed);
	state = seed * 0x9e3779b97f4a7c15u + 1;
	while (ops > 0) {
		uint32_t n = (uint32_t)dcpd_min64(ops, ROUND);

		one_round(n);
		total += n_sent;
		ops -= n;
	}
	fprintf(stderr, "fuzz_sched: %llu requests, %llu of %llu prompt tokens "
	    "hit, %llu of them from host memory, %llu evictions, "
	    "%llu preemptions, %llu pins\n",
	    (unsigned long long)total,
	    (unsigned long long)DCPD_COUNTER(prefix_hit_tokens),
	    (unsigned long long)DCPD_COUNTER(prefix_lookup_tokens),
	    (unsigned long long)DCPD_COUNTER(host_hit_tokens),
	    (unsigned long long)DCPD_COUNTER(evictions),
	    (unsigned long long)DCPD_COUNTER(preemptions),
	    (unsigned long long)n_pinned);
	/* It did what it is for. */
	return total > 0 && (all < 20000 ||
	    (DCPD_COUNTER(prefix_hit_tokens) > all / 4 &&
	    DCPD_COUNTER(host_hit_tokens) > all / 100 &&
	    DCPD_COUNTER(evictions) > all / 100 &&
	    DCPD_COUNTER(preemptions) > all / 1000 &&
	    n_pinned > all / 5000)) ?
	    EXIT_SUCCESS : EXIT_FAILURE;
}
