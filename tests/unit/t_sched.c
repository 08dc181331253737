/*
 * The scheduler's answers: what a request's client sees, whatever shares its
 * steps. How requests end: t_sched_end.c.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/sched_fake.h"

static struct fk F;

static const struct fk_seen *
one(const struct fk_req *q)
{
	struct dcpd_err err = { 0 };
	uint64_t id;
	int rc = fk_submit(F.s, F.c, q, &id, &err);

	ck_assert_msg(rc == 0, "%s", err.text);
	return fk_wait(id);
}

/* seen's tokens are what the engine says of this prompt. */
static void
expect_tokens(const struct fk_seen *f, const uint32_t *prompt, uint32_t n,
    const uint64_t *seed, uint32_t ban, uint32_t n_out)
{
	uint32_t *want = calloc(n_out + 1, sizeof *want);

	ck_assert_msg(f->error == 0, "%s", f->error_text);
	fk_expect(F.e.e.vocab, prompt, n, seed, ban, want, n_out);
	ck_assert_uint_eq(f->n, n_out);
	for (uint32_t i = 0; i < n_out; i++)
		ck_assert_msg(f->tokens[i] == want[i],
		    "token %u of %u after %u is %u, not %u", i, n_out, n,
		    f->tokens[i], want[i]);
	ck_assert_uint_eq(f->usage.prompt_tokens, n);
	ck_assert_uint_eq(f->usage.completion_tokens, n_out);
	ck_assert_uint_eq(f->after_end, 0);
	free(want);
}

static struct fk_req
tokens(const uint32_t *ids, uint32_t n, uint32_t max)
{
	return (struct fk_req){
		.ids = ids, .n = n, .max_tokens = max,
		.flags = DCP_IGNORE_EOS,
	};
}

START_TEST(tokens_in_tokens_out)
{
	uint32_t *p;
	struct fk_req q;
	const struct fk_seen *f;

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	p = fk_prompt(1000, 100, 1);
	q = tokens(p, 100, 20);
	f = one(&q);
	expect_tokens(f, p, 100, NULL, UINT32_MAX, 20);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_status(&F, "pages_used"), 0);
	ck_assert_int_eq(fk_status(&F, "output_tokens"), 20);
	ck_assert_int_eq(fk_status(&F, "prompt_tokens"), 100);
	ck_assert_int_eq(fk_status(&F, "requests_finished"), 1);
	free(p);
	fk_stop(&F);
}
END_TEST

/* Page and chunk seams, every batch size, arrivals at any time: one answer. */
START_TEST(tokens_do_not_depend_on_batch_chunk_or_arrival)
{
	static const uint32_t chunks[] = { 1, 63, 64, 100, 512 };
	static const uint32_t lens[] = { 1, 2, 63, 64, 65, 127, 128, 129, 700 };
	static const uint32_t batches[] = { 1, 3, 8 };
	enum { N = sizeof lens / sizeof lens[0] };
	uint32_t chunk = chunks[_i % 5], batch = batches[_i / 5];
	uint32_t *p[N];
	uint64_t id[N];
	struct fk_req q;

	fk_start(&F, (struct fk_spec){ .chunk = chunk, .max_running = batch,
	    .dcp = 1u << _i % 4, .pages = 64 }, NULL);
	for (unsigned i = 0; i < N; i++) {
		p[i] = fk_prompt(1000, lens[i], i);
		q = tokens(p[i], lens[i], 1 + i * 17);
		ck_assert_int_eq(fk_submit(F.s, F.c, &q, &id[i], NULL), 0);
		if (i % 3 == 0)
			usleep(300);
	}
	for (unsigned i = 0; i < N; i++) {
		expect_tokens(fk_wait(id[i]), p[i], lens[i], NULL, UINT32_MAX,
		    1 + i * 17);
		free(p[i]);
	}
	ck_assert_int_eq(dcpd_sched_check(F.s, NULL), 0);
	fk_stop(&F);
}
END_TEST

START_TEST(end_token_ends_and_min_tokens_delays_it)
{
	uint32_t p[3] = { 1, 2, 0 }, want[200];
	struct fk_req q = { .ids = p, .n = 3, .max_tokens = 200 };
	const struct fk_seen *f;
	uint32_t at = 0;

	fk_start(&F, (struct fk_spec){ .vocab = 40 }, NULL);
	/* A prompt after which the end token comes, but not at once. */
	for (p[2] = 0; at < 10; p[2]++) {
		fk_expect(40, p, 3, NULL, UINT32_MAX, want, 200);
		for (at = 0; at < 150 && want[at] != FK_EOS; at++)
			;
		if (at >= 10 && at < 150)
			break;
		at = 0;
	}
	f = one(&q);
	expect_tokens(f, p, 3, NULL, UINT32_MAX, at + 1);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);

	q.flags = DCP_IGNORE_EOS;
	f = one(&q);
	expect_tokens(f, p, 3, NULL, UINT32_MAX, 200);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);

	/* Banned to the end: exactly min_tokens without it. */
	q.flags = 0;
	q.p.min_tokens = q.max_tokens = at + 5;
	f = one(&q);
	expect_tokens(f, p, 3, NULL, FK_EOS, at + 5);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);

	/* To the very token at which it would come. */
	q.p.min_tokens = q.max_tokens = at + 1;
	expect_tokens(one(&q), p, 3, NULL, FK_EOS, at + 1);

	/* A stop id ends as well, and is banned in the same way. */
	q.flags = DCP_IGNORE_EOS;
	q.p.min_tokens = 0;
	q.max_tokens = 200;
	q.stop_ids[0] = want[4];
	q.n_stop_ids = 1;
	f = one(&q);
	for (at = 0; want[at] != want[4]; at++)
		;
	expect_tokens(f, p, 3, NULL, UINT32_MAX, at + 1);
	ck_assert_uint_eq(f->finish, DCP_FINISH_STOP);
	q.p.min_tokens = 8;
	q.max_tokens = 8;
	f = one(&q);
	expect_tokens(f, p, 3, NULL, want[4], 8);
	ck_assert_uint_eq(f->finish, DCP_FINISH_LENGTH);
	fk_stop(&F);
}
END_TEST

/* The only randomness is (seed, index). */
START_TEST(a_seed_gives_the_same_answer_in_any_batch)
{
	uint32_t *p, *other;
	struct fk_req q, noise;
	uint64_t id[8], seed = 0x1234567890abcdefu;
	const struct fk_seen *a, *b;

	fk_start(&F, (struct fk_spec){ .chunk = 64 }, NULL);
	p = fk_prompt(1000, 90, 1);
	other = fk_prompt(1000, 200, 2);
	q = tokens(p, 90, 40);
	q.flags |= DCP_TEMPERATURE | DCP_SEED;
	q.p.temperature = 0.8f;
	q.p.seed = seed;
	noise = tokens(other, 200, 100);
	noise.flags |= DCP_TEMPERATURE;
	noise.p.temperature = 1;
	expect_tokens(one(&q), p, 90, &seed, UINT32_MAX, 40);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(fk_submit(F.s, F.c, i == 5 ? &q : &noise,
		    &id[i], NULL), 0);
	expect_tokens(fk_wait(id[5]), p, 90, &seed, UINT32_MAX, 40);
	/* Without a seed one is drawn: two answers differ. */
	a = fk_wait(id[0]);
	b = fk_wait(id[1]);
	ck_assert_uint_eq(a->n, 100);
	ck_assert_int_ne(memcmp(a->tokens, b->tokens, 100 * sizeof(uint32_t)),
	    0);
	free(p);
	free(other);
	fk_stop(&F);
}
END_TEST

/* The model's defaults count unless the request sets a temperature. */
START_TEST(sampling_defaults)
{
	struct dcpd_sched_config c = {
		.def_temperature = 0.6f, .def_top_p = 0.95f, .def_top_k = 20,
	};
	uint32_t p[4] = { 9, 8, 7, 6 };
	struct fk_req q = tokens(p, 4, 3);

	fk_start(&F, (struct fk_spec){ 0 }, &c);
	one(&q);
	ck_assert_float_eq(F.e.last.temperature, 0.6f);
	ck_assert_float_eq(F.e.last.top_p, 0.95f);
	ck_assert_uint_eq(F.e.last.top_k, 20);
	ck_assert_uint_eq(F.e.last.flags & DCPK_S_GREEDY, 0);
	ck_assert_uint_eq(F.e.last.index, 2);

	q.flags |= DCP_TEMPERATURE;
	q.p.temperature = 0.3f;
	one(&q);
	ck_assert_float_eq(F.e.last.temperature, 0.3f);
	ck_assert_float_eq(F.e.last.top_p, 1);
	ck_assert_uint_eq(F.e.last.top_k, 0);

	q.p.temperature = 0;
	one(&q);
	ck_assert_uint_eq(F.e.last.flags, DCPK_S_GREEDY);

	q.p.temperature = 1;
	q.p.top_p = 0.5f;
	q.p.top_k = 7;
	q.p.min_p = 0.1f;
	one(&q);
	ck_assert_float_eq(F.e.last.top_p, 0.5f);
	ck_assert_uint_eq(F.e.last.top_k, 7);
	ck_assert_float_eq(F.e.last.min_p, 0.1f);
	ck_assert_float_eq(F.e.last.repetition, 1);
	fk_stop(&F);
}
END_TEST

static const struct dcpk_adjust *
adjust_of(uint32_t token)
{
	const struct dcpk_adjust *found = NULL;

	for (uint32_t i = 0; i < F.e.n_adj; i++)
		if (F.e.adj[i].token == token) {
			ck_assert_ptr_null(found);	/* one entry each */
			found = &F.e.adj[i];
		}
	return found;
}

/* Counts of the prompt and of what was generated, at the last token. */
START_TEST(penalties_count_prompt_and_output)
{
	enum { N = 300, M = 60 };
	uint32_t *p, want[M], in[50] = { 0 }, out[50] = { 0 };
	struct fk_req q;

	fk_start(&F, (struct fk_spec){ .vocab = 50 }, NULL);
	p = fk_prompt(25, N, 3);	/* the prompt uses half of the ids */
	q = tokens(p, N, M);
	q.p.repetition_penalty = 1.1f;
	q.p.presence_penalty = 0.5f;
	q.p.frequency_penalty = 0.25f;
	q.bias[0] = (struct dcp_logit_bias){ 49, 3.5f };
	q.bias[1] = (struct dcp_logit_bias){ 48, -1 };
	q.bias[2] = (struct dcp_logit_bias){ 48, -1 };
	q.n_bias = 3;
	expect_tokens(one(&q), p, N, NULL, UINT32_MAX, M);
	fk_expect(50, p, N, NULL, UINT32_MAX, want, M);
	for (unsigned i = 0; i < N; i++)
		in[p[i]] = 1;
	for (unsigned i = 0; i < M - 1; i++)
		out[want[i]]++;
	for (uint32_t t = 0; t < 50; t++) {
		const struct dcpk_adjust *a = adjust_of(t);

		if (in[t] == 0 && out[t] == 0 && t < 48) {
			ck_assert_ptr_null(a);
			continue;
		}
		ck_assert_ptr_nonnull(a);
		ck_assert_uint_eq(a->out_count, out[t]);
		ck_assert_uint_eq(a->seen, in[t] != 0 || out[t] != 0);
		ck_assert_float_eq(a->bias, t == 49 ? 3.5f : t == 48 ? -2 : 0);
	}
	ck_assert_float_eq(F.e.last.repetition, 1.1f);
	ck_assert_float_eq(F.e.last.presence, 0.5f);
	ck_assert_float_eq(F.e.last.frequency, 0.25f);
	free(p);
	fk_stop(&F);
}
END_TEST

START_TEST(logprobs_and_top)
{
	uint32_t *p, text[120];
	struct fk_req q;
	const struct fk_seen *f;

	fk_start(&F, (struct fk_spec){ .vocab = 200 }, NULL);
	p = fk_prompt(200, 70, 4);
	q = tokens(p, 70, 30);
	f = one(&q);
	for (unsigned i = 0; i < 30; i++)
		ck_assert_float_eq(f->lps[i], 1);	/* none came */
	q.flags |= DCP_LOGPROBS;
	q.p.top_logprobs = 200;			/* the whole vocabulary */
	f = one(&q);
	expect_tokens(f, p, 70, NULL, UINT32_MAX, 30);
	ck_assert_uint_eq(f->n_top, 30 * 200);
	memcpy(text, p, 70 * sizeof *p);
	memcpy(text + 70, f->tokens, 30 * sizeof *p);
	for (uint32_t i = 0; i < 30; i++) {
		ck_assert_float_eq(f->lps[i],
		    fk_logprob(200, text, 70 + i, text[70 + i]));
		for (uint32_t k = 0; k < 200; k++)
			ck_assert_uint_eq(f->top[i * 200 + k].token,
			    (text[70 + i] + k) % 200);
	}
	free(p);
	fk_stop(&F);
}
END_TEST

/* DCP_ECHO: each prompt token once, in order, scored after those before it. */
START_TEST(echo_scores_the_prompt)
{
	static const uint32_t chunks[] = { 1, 7, 64, 512 };
	struct fk_req q;
	const struct fk_seen *f;
	uint32_t *p;

	fk_start(&F, (struct fk_spec){ .chunk = chunks[_i] }, NULL);
	p = fk_prompt(1000, 150, 5);
	q = tokens(p, 150, 4);
	q.flags |= DCP_ECHO | DCP_LOGPROBS;
	q.p.top_logprobs = 3;
	f = one(&q);
	expect_tokens(f, p, 150, NULL, UINT32_MAX, 4);
	ck_assert_uint_eq(f->n_prompt, 150);
	ck_assert_mem_eq(f->prompt, p, 150 * sizeof *p);
	ck_assert_uint_eq(f->n_prompt_top, 149 * 3);
	ck_assert_uint_eq(f->n_top, 4 * 3);
	ck_assert(isnan(f->prompt_lps[0]));
	for (uint32_t i = 1; i < 150; i++)
		ck_assert_float_eq(f->prompt_lps[i],
		    fk_logprob(1000, p, i, p[i]));
	/* Without logprobs: the tokens alone. */
	q.flags &= ~(uint32_t)DCP_LOGPROBS;
	q.p.top_logprobs = 0;
	f = one(&q);
	ck_assert_uint_eq(f->n_prompt, 150);
	ck_assert_mem_eq(f->prompt, p, 150 * sizeof *p);
	ck_assert_float_eq(f->prompt_lps[7], 1);
	expect_tokens(f, p, 150, NULL, UINT32_MAX, 4);
	free(p);
	fk_stop(&F);
}
END_TEST

/* --- what cannot be served is refused, with numbers --------------------- */

static void
refused(const struct fk_req *q, int code, const char *part)
{
	const struct fk_seen *f = one(q);

	ck_assert_int_eq(f->error, code);
	ck_assert_msg(strstr(f->error_text, part) != NULL,
	    "\"%s\" does not say \"%s\"", f->error_text, part);
	ck_assert_uint_eq(f->n, 0);
	ck_assert_uint_eq(f->events, 1);
}

START_TEST(sizes_to_the_last_token)
{
	struct fk_req q;
	uint32_t *p = fk_prompt(1000, 5000, 6);

	/* The pool (6 pages, 384 rows) is smaller than the context. */
	fk_start(&F, (struct fk_spec){ .pages = 6, .max_ctx = 500 }, NULL);
	q = tokens(p, 384, 1);
	expect_tokens(one(&q), p, 384, NULL, UINT32_MAX, 1);
	q = tokens(p, 1, 384);
	expect_tokens(one(&q), p, 1, NULL, UINT32_MAX, 384);
	q = tokens(p, 300, 0);		/* to the end of what there is */
	expect_tokens(one(&q), p, 300, NULL, UINT32_MAX, 85);
	q = tokens(p, 385, 1);
	refused(&q, -EMSGSIZE, "the KV pool holds 384");
	q = tokens(p, 385, 0);
	refused(&q, -EMSGSIZE, "the KV pool holds 384");
	q = tokens(p, 380, 6);
	refused(&q, -EMSGSIZE, "lower max_tokens to 5 ");
	q.flags |= DCP_FIT;		/* then it is an upper bound */
	expect_tokens(one(&q), p, 380, NULL, UINT32_MAX, 5);
	q = tokens(p, 380, 4);
	q.flags |= DCP_FIT;
	expect_tokens(one(&q), p, 380, NULL, UINT32_MAX, 4);
	q = tokens(p, 500, 1);
	refused(&q, -EMSGSIZE, "500 tokens: the context is 500");
	q = tokens(p, 499, 1);
	refused(&q, -EMSGSIZE, "the KV pool holds 384");
	fk_stop(&F);

	fk_start(&F, (struct fk_spec){ .pages = 100, .max_ctx = 500 }, NULL);
	q = tokens(p, 499, 1);
	expect_tokens(one(&q), p, 499, NULL, UINT32_MAX, 1);
	q = tokens(p, 400, 0);
	expect_tokens(one(&q), p, 400, NULL, UINT32_MAX, 100);
	q = tokens(p, 499, 2);
	refused(&q, -EMSGSIZE, "lower max_tokens to 1");
	q.flags |= DCP_FIT;
	expect_tokens(one(&q), p, 499, NULL, UINT32_MAX, 1);
	q = tokens(p, 5000, 2);
	refused(&q, -EMSGSIZE, "shorten it by 4501");
	q = tokens(p, 0, 2);
	refused(&q, -EINVAL, "empty");
	ck_assert_int_eq(fk_status(&F, "requests_refused"), 8);
	ck_assert_int_eq(fk_status(&F, "requests_failed"), 0);
	free(p);
	fk_stop(&F);
}
END_TEST

#define WITH(...) { .ids = ids, .n = 2, .max_tokens = 4, __VA_ARGS__ }

START_TEST(bad_requests_are_refused_by_name)
{
	static const uint32_t ids[2] = { 1, 2 }, high[2] = { 1, 1000 };
	static const struct {
		struct fk_req q;
		int code;
		const char *part;
	} bad[] = {
		{ WITH(.flags = DCP_TEMPERATURE, .p.temperature = -1),
		    -EINVAL, "temperature is -1" },
		{ WITH(.flags = DCP_TEMPERATURE, .p.temperature = NAN),
		    -EINVAL, "temperature" },
		{ WITH(.p.top_p = 1.5f), -EINVAL, "top_p is 1.5" },
		{ WITH(.p.top_p = NAN), -EINVAL, "top_p" },
		{ WITH(.p.min_p = -0.5f), -EINVAL, "min_p is -0.5" },
		{ WITH(.p.top_k = -2), -EINVAL, "top_k is -2" },
		{ WITH(.p.repetition_penalty = -1), -EINVAL,
		    "repetition_penalty is -1" },
		{ WITH(.p.presence_penalty = INFINITY), -EINVAL,
		    "presence_penalty" },
		{ WITH(.p.frequency_penalty = NAN), -EINVAL, "frequency" },
		{ WITH(.p.min_tokens = 5), -EINVAL,
		    "min_tokens 5 is more than max_tokens 4" },
		{ WITH(.p.top_logprobs = 5), -EINVAL, "DCP_LOGPROBS" },
		{ WITH(.flags = DCP_LOGPROBS, .p.top_logprobs = 1001),
		    -EINVAL, "vocabulary has 1000" },
		{ WITH(.stop_ids = { 1000 }, .n_stop_ids = 1), -EINVAL,
		    "stop id 0 is 1000" },
		{ WITH(.bias = { { 1000, 1 } }, .n_bias = 1), -EINVAL,
		    "logit_bias 0" },
		{ WITH(.bias = { { 1, NAN } }, .n_bias = 1), -EINVAL,
		    "logit_bias 0" },
		{ WITH(.bias = { { 1, INFINITY }, { 1, -INFINITY } },
		    .n_bias = 2), -EINVAL, "logit_bias 1: id 1 has +inf" },
		{ WITH(.stop = { "x" }), -ENOTSUP, "no tokenizer.json" },
		{ WITH(.options = "{"), -EINVAL, "not JSON" },
		{ WITH(.options = "[]"), -EINVAL, "not a JSON object" },
		{ WITH(.options =
		    "{\"response_format\":{\"type\":\"json_object\"}}"),
		    -ENOTSUP, "response_format" },
		{ WITH(.options = "{\"tool_choice\":\"required\"}"),
		    -ENOTSUP, "tool_choice" },
		{ { .ids = high, .n = 2, .max_tokens = 1 }, -EINVAL,
		    "id 1 is 1000" },
		{ { .text = "hi", .max_tokens = 1 }, -ENOTSUP,
		    "send token ids" },
		{ { .text = "[]", .chat = true, .max_tokens = 1 }, -ENOTSUP,
		    "send token ids" },
	};

	fk_start(&F, (struct fk_spec){ 0 }, NULL);
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
		refused(&bad[i].q, bad[i].code, bad[i].part);
	ck_assert_int_eq(fk_idle(&F), 0);
	ck_assert_int_eq(fk_passes(&F.e), 0);
	fk_stop(&F);
}
END_TEST

/* --- the null engine --------------------------------------------------- */

static const struct fk_seen *
null_run(uint32_t chunk, uint32_t batch, uint32_t flags, const uint32_t *p,
    uint32_t n)
{
	struct dcpd_sched_config c = { .queue_max = 100, .way = -1 };
	struct fk_req q = tokens(p, n, 50);
	struct dcpd_engine e;
	uint64_t id[4];

	ck_assert_int_eq(dcpd_null_engine(&e, 2048, 4096, 64, 4, 0), 0);
	e.chunk = chunk;
	e.max_running = batch;
	c.engine = &e;
	ck_assert_int_eq(dcpd_textpool_start(1, &c.pool, NULL), 0);
	ck_assert_int_eq(dcpd_sched_start(&c, &F.s, NULL), 0);
	F.c = fk_client(1);
	q.flags |= DCP_LOGPROBS | flags;
	q.p.top_logprobs = 5;
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(fk_submit(F.s, F.c, &q, &id[i], NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		fk_wait(id[i]);
	dcpd_sched_stop(F.s);
	dcpd_textpool_stop(c.pool);
	e.close(e.self);
	return fk_wait(id[3]);
}

START_TEST(null_engine_is_deterministic_and_prints)
{
	uint32_t *p = fk_prompt(2048, 130, 1);
	const struct fk_seen *a = null_run(512, 8, 0, p, 130);
	const struct fk_seen *b = null_run(7, 2, DCP_ECHO, p, 130);

	ck_assert_uint_eq(a->n, 50);
	ck_assert_uint_eq(b->n, 50);
	ck_assert_mem_eq(a->tokens, b->tokens, 50 * sizeof *a->tokens);
	for (unsigned i = 0; i < 50; i++) {
		const struct dcp_logprob *top = a->top + 5 * i;

		ck_assert_uint_ge(a->tokens[i], 19);
		ck_assert_uint_le(a->tokens[i], 93);
		ck_assert_uint_eq(top[0].token, a->tokens[i]);
		ck_assert_float_eq(top[0].logprob, a->lps[i]);
		for (unsigned k = 1; k < 5; k++) {
			ck_assert_float_lt(top[k].logprob, top[k - 1].logprob);
			ck_assert_uint_ne(top[k].token, top[0].token);
		}
	}
	/* Not one token over and over. */
	for (unsigned i = 1, same = 0; i < 50; i++) {
		same += a->tokens[i] == a->tokens[i - 1];
		ck_assert_uint_lt(same, 10);
	}
	fk_forget();
	free(p);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sched");
	TCase *t = tcase_create("answers");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 300);
	tcase_add_test(t, tokens_in_tokens_out);
	tcase_add_loop_test(t, tokens_do_not_depend_on_batch_chunk_or_arrival,
	    0, 15);
	tcase_add_test(t, end_token_ends_and_min_tokens_delays_it);
	tcase_add_test(t, a_seed_gives_the_same_answer_in_any_batch);
	tcase_add_test(t, sampling_defaults);
	tcase_add_test(t, penalties_count_prompt_and_output);
	tcase_add_test(t, logprobs_and_top);
	tcase_add_loop_test(t, echo_scores_the_prompt, 0, 4);
	tcase_add_test(t, sizes_to_the_last_token);
	tcase_add_test(t, bad_requests_are_refused_by_name);
	tcase_add_test(t, null_engine_is_deterministic_and_prints);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
