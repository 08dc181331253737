/*
 * Ring descriptors that nobody wrote: a client without the library writes
 * entries, request blocks and indices into shared memory, valid ones with some
 * of their words replaced, against the real dcpd/ipc in this process (so that a
 * sanitizer sees its side). It must be served or dropped; an honest client is
 * served meanwhile, and at the end the server holds nothing.
 *
 * FUZZ_OPS (1500; 100000 when DCPD_TEST_LONG is set) submissions from FUZZ_SEED
 * (1) with the table of words below; before them the corpus and mutations of it
 * (driver.h), as script() reads them.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/base/base.h"
#include "libdcpclient/dcpclient.h"
#include "tests/fuzz/driver.h"
#include "tests/hostile/raw.h"
#include "tests/unit/ring_server.h"

#define VOCAB 1000u
#define HONEST_EVERY 50u

static uint64_t state;
static const char *path;
static struct dcp *honest;

static uint32_t
rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

/* Words that are at the edge of something. */
static uint32_t
word(void)
{
	static const uint32_t edge[] = { 0, 1, 2, 3, 4, 7, 8, 63, 64, 120, 128,
		255, 256, 257, 999, 1000, 1001, 4095, 4096, 65535, 65536,
		1u << 20, 8u << 20, (8u << 20) + 1, 0x7fffffff, 0x80000000,
		0xfffffff8, 0xffffffff, 0x7fc00000 /* NaN */,
		0x7f800000 /* inf */, 0x3f800000 /* 1 */, 0xbf800000 };

	return rnd(4) == 0 ? (uint32_t)(state >> 16) :
	    edge[rnd(sizeof edge / sizeof *edge)];
}

/* --- what is written --------------------------------------------------- */

/* A valid request with tokens, stops, ids, biases and options, at off. */
static uint32_t
full_request(struct raw *r, uint32_t off)
{
	static const char stops[] = "stop\0x", options[] = "{\"tools\":[]}";
	struct dcpr_request *q = (void *)(r->arena + off);
	uint8_t *at = (uint8_t *)(q + 1);
	uint32_t n = 1 + rnd(8), i, token;

#define SECTION(s, bytes) do { \
	q->s.off = (uint32_t)(at - (uint8_t *)q); \
	q->s.len = (bytes); \
	at += ((bytes) + 7u) & ~7u; \
} while (0)
	memset(q, 0, 512);
	q->input = rnd(8) == 0 ? 1 + rnd(2) : DCP_INPUT_TOKENS;
	q->flags = rnd(2) ? 0 : rnd(256);
	q->max_tokens = 1 + rnd(4);
	for (i = 0; i < n; i++) {
		token = rnd(VOCAB);
		memcpy(at + 4 * i, &token, 4);
	}
	SECTION(data, 4 * n);
	if (rnd(2)) {
		memcpy(at, stops, sizeof stops);
		q->n_stop = 2;
		SECTION(stop, (uint32_t)sizeof stops);
	}
	if (rnd(2)) {
		q->n_stop_ids = 2;
		SECTION(stop_ids, 8);
	}
	if (rnd(2)) {
		q->n_logit_bias = 1;
		SECTION(logit_bias, 8);
	}
	if (rnd(2)) {
		memcpy(at, options, sizeof options - 1);
		SECTION(options, (uint32_t)sizeof options - 1);
	}
#undef SECTION
	return (uint32_t)(at - (uint8_t *)q);
}

static void
spoil_words(void *p, size_t bytes, uint32_t n)
{
	for (; n > 0; n--) {
		uint32_t w = word();

		memcpy((uint8_t *)p + 4 * rnd((uint32_t)bytes / 4), &w, 4);
	}
}

/* One submission, or several at once, of which some words are spoilt. */
static void
submissions(struct raw *r)
{
	uint32_t n = rnd(8) == 0 ? 1 + rnd(32) : 1, tail = r->c->sq_tail;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t off = 512 * rnd(1024), len = full_request(r, off);
		struct dcpr_sqe e = { .op = DCPR_OP_SUBMIT, .off = off,
		    .len = len, .id = (uint64_t)r->w.client << 32 | r->next++,
		    .user_data = rnd(100) };

		if (rnd(3) == 0)
			spoil_words(r->arena + off, sizeof(struct dcpr_request),
			    1 + rnd(3));
		if (rnd(8) == 0) {
			e.op = rnd(5);
			r->next -= e.op != DCPR_OP_SUBMIT;
		}
		if (rnd(12) == 0)
			spoil_words(&e, sizeof e, 1 + rnd(2));
		r->sq[(tail + i) % r->s->sq_entries] = e;
	}
	if (rnd(30) == 0)
		r->c->cq_head = rnd(2) ? word() : r->s->cq_tail;
	if (rnd(30) == 0)
		r->c->cq_bell = word();
	raw_publish(r, rnd(40) == 0 ? word() : tail + n);
	/* While it is read: the block of the last one changes. */
	if (rnd(4) == 0)
		spoil_words(r->arena + 512 * rnd(1024),
		    sizeof(struct dcpr_request), 2);
}

/* Take what was answered, mostly. */
static void
consume(struct raw *r)
{
	if (rnd(4) > 0)
		r->c->cq_head = __atomic_load_n(&r->s->cq_tail,
		    __ATOMIC_ACQUIRE);
	raw_ring(r);
}

/* --- who watches ------------------------------------------------------- */

/* The server of these tests answers with ids that count upwards. */
static void
honest_request(void)
{
	uint32_t first = rnd(VOCAB), n = 0, bad = 0;
	struct dcp_request q = { .size = sizeof q, .data = &first, .len = 4,
	    .input = DCP_INPUT_TOKENS, .max_tokens = 5 };
	const struct dcp_event *ev;
	bool done = false;
	uint64_t id;

	DCPD_ASSERT(dcp_submit(honest, &q, &id) == 0);
	while (!done) {
		DCPD_ASSERT(dcp_next(honest, 60000, &ev) == 0);
		DCPD_ASSERT(ev->request == id && ev->type != DCP_EV_ERROR);
		for (uint32_t i = 0; i < ev->n_tokens; i++, n++)
			bad += ev->tokens[i] != (first + n) % VOCAB;
		done = ev->type == DCP_EV_DONE;
		dcp_event_release(honest, ev);
	}
	DCPD_ASSERT(n == 5 && bad == 0);
}

static struct ring_server *server;
static struct raw r;

static void
set_up(void)
{
	struct ring_server_config cfg = { .reserve = true, .ipc = {
	    .vocab = VOCAB, .max_clients_uid = 40 } };

	dcpd_log_level(LOG_ERR);	/* each drop is a line otherwise */
	cfg.ipc.path = path = ring_temp_path("sock");
	server = ring_server_start(&cfg);
	DCPD_ASSERT(server != NULL);
	DCPD_ASSERT(dcp_connect(path, 60000, &honest) == 0);
	raw_join(&r, path);
}

/*
 * Submissions as an input says: records of six bytes, what, where and a word.
 * What: 0 a word of the request, 1 of its entry, 2 of the arena behind, 3 the
 * completions' head, 4 publish up to the word, 5 publish this one.
 */
static void
script(const uint8_t *p, size_t n)
{
	struct dcpr_sqe e;
	uint32_t len, w, off = 512 * rnd(1024);

	len = full_request(&r, off);
	e = (struct dcpr_sqe){ .op = DCPR_OP_SUBMIT, .off = off, .len = len,
	    .id = (uint64_t)r.w.client << 32 | r.next, .user_data = 1 };
	for (; n >= 6; p += 6, n -= 6) {
		memcpy(&w, p + 2, 4);
		switch (p[0] % 6) {
		case 0:
			memcpy(r.arena + off + 4 * (p[1] % (sizeof(struct
			    dcpr_request) / 4)), &w, 4);
			break;
		case 1:
			memcpy((uint8_t *)&e + 4 * (p[1] % (sizeof e / 4)),
			    &w, 4);
			break;
		case 2:
			memcpy(r.arena + off + 4 * (p[1] % 128), &w, 4);
			break;
		case 3:
			r.c->cq_head = w;
			break;
		case 4:
			raw_publish(&r, w);
			break;
		case 5:
			r.sq[r.c->sq_tail % r.s->sq_entries] = e;
			r.next++;
			e.id++;
			raw_publish(&r, r.c->sq_tail + 1);
			break;
		}
	}
	r.c->cq_head = __atomic_load_n(&r.s->cq_tail, __ATOMIC_ACQUIRE);
	raw_ring(&r);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static unsigned inputs;

	if (server == NULL)
		set_up();
	state = 1;			/* the same input, the same request */
	script(data, n < 600 ? n : 600);
	if (++inputs % HONEST_EVERY == 0)
		honest_request();
	if (raw_dropped(&r, 1)) {
		raw_close(&r);
		raw_join(&r, path);
	}
	return 0;
}

#ifndef LIBFUZZER
static uint64_t
from_env(const char *name, uint64_t other)
{
	const char *s = getenv(name);

	return s == NULL ? other : strtoull(s, NULL, 10);
}

int
main(int argc, char **argv)
{
	uint64_t ops = from_env("FUZZ_OPS",
	    getenv("DCPD_TEST_LONG") != NULL ? 100000 : 1500);
	uint64_t seed = from_env("FUZZ_SEED", 1), dropped = 0;

	set_up();
	if (fuzz_files(argc, argv))
		ops = 0;
	else
		fuzz_corpus("ring", 1000);
	state = seed * 0x9e3779b97f4a7c15u + 1;
	for (uint64_t i = 0; i < ops; i++) {
		submissions(&r);
		if (rnd(3) == 0)
			consume(&r);
		if (i % HONEST_EVERY == 0)
			honest_request();
		if (raw_dropped(&r, rnd(8) == 0 ? 2 : 0) || rnd(200) == 0) {
			dropped++;
			raw_close(&r);
			raw_join(&r, path);
		}
	}
	raw_close(&r);
	honest_request();
	/* Nothing is left of those that were dropped. */
	for (int i = 0; ring_server_jobs(server) > 0; i++) {
		DCPD_ASSERT(i < 60000);
		usleep(1000);
	}
	dcp_close(honest);
	ring_server_stop(server);
	printf("fuzz_ring: %llu submissions, FUZZ_SEED=%llu, %llu "
	    "connections\n", (unsigned long long)ops, (unsigned long long)seed,
	    (unsigned long long)dropped + 1);
	DCPD_ASSERT(ops < 1000 || dropped > ops / 100);
	return EXIT_SUCCESS;
}
#endif
