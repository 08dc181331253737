/*
 * One step: what the decode pass and the prefill pass hold, and what becomes of
 * their results. Step thread only.
 *
 * Pages are secured in the order of run[] before a request's rows go into a
 * plan, and only who comes later in that order can lose its pages by it: nobody
 * who is in the plan already.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dcpd/admin/counters.h"
#include "dcpd/admin/stats.h"
#include "dcpd/sched/sched_i.h"

/* --- composing a pass -------------------------------------------------- */

/*
 * Whose output piles up sits out, until the text workers have caught up: so
 * memory is bounded, and few tokens are computed beyond a stop string. So does
 * who is to be masked before its mask is there: the step waits for nobody.
 */
static void
mark_stalled(struct dcpd_sched *s)
{
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->n_run; i++) {
		struct req *r = s->run[i];

		r->skip = r->box.n >= BOX_TOKENS_MAX ||
		    r->box.n_top >= BOX_TOPS_MAX;
		if (r->masked && r->mask_n == r->n_out && r->mask_all)
			r->masked = false;	/* from now on anything goes */
		/* Its mask is being made; whoever does kicks the step. */
		r->skip |= r->masked && r->mask_n != r->n_out;
		r->stalled = r->skip;
	}
	pthread_mutex_unlock(&s->lock);
}

/* The next token after the request's last row of this pass. */
static int
add_sample(struct dcpd_sched *s, struct req *r, uint32_t row)
{
	struct dcpk_adjust *adj;
	struct dcpk_sample *sm, keep;

	sm = dcpd_planb_sample(&s->plan, row, r->adj.n, &adj);
	if (sm == NULL)
		return -ENOMEM;
	keep = *sm;
	*sm = r->params;
	sm->row = keep.row;
	sm->adj0 = keep.adj0;
	sm->adjs = keep.adjs;
	sm->seed = r->seed;
	sm->index = r->n_out;
	s->plan.n_top += sm->n_top;
	if (r->adj.n > 0)
		memcpy(adj, r->adj.v, r->adj.n * sizeof *adj);
	if (!r->masked)
		for (uint32_t i = 0; i < r->adj.n_hush; i++)
			adj[r->adj.hush[i]].bias = -INFINITY;
	/* Where a mask allows nothing else, the sampler has the mask hold. */
	if (r->n_out < r->min_tokens)
		for (uint32_t i = 0; i < r->adj.n_ban; i++)
			adj[r->adj.ban[i]].bias = -INFINITY;
	return r->masked ? dcpd_planb_mask(&s->plan, sm, r->mask,
	    r->mask_words) : 0;
}

/* Row i's logprob of the prompt token that follows it. */
static int
add_score(struct dcpd_sched *s, struct req *r, uint32_t i)
{
	struct dcpk_sample *sm = dcpd_planb_sample(&s->plan, i, 0, NULL);

	if (sm == NULL)
		return -ENOMEM;
	sm->flags = DCPK_S_SCORE;
	sm->given = r->ids.v[r->n_kv + i + 1];
	sm->n_top = r->params.n_top;
	s->plan.n_top += sm->n_top;
	return 0;
}

/* n tokens of r into the pass; it has the pages. */
static int
add_rows(struct dcpd_sched *s, struct req *r, uint32_t n)
{
	int rc;

	s->in_pass[s->plan.n_reqs] = r;
	rc = dcpd_planb_req(&s->plan, r->pages, r->n_kv, r->ids.v + r->n_kv, n);
	if (dcpd_req_scores_prompt(r) && r->state == R_PREFILL)
		for (uint32_t i = 0; i < n && rc == 0 &&
		    r->n_kv + i + 1 < r->n_prompt; i++)
			if (r->n_kv + i + 1 >= r->n_echo)
				rc = add_score(s, r, i);
	if (rc == 0 && r->n_kv + n == r->ids.n)
		rc = add_sample(s, r, n - 1);
	return rc;
}

/* Would r's sample make the pass too large beside what is in it? */
static bool
crowded(const struct dcpd_sched *s, const struct req *r)
{
	return s->plan.n_reqs > 0 &&
	    (s->plan.n_top + r->params.n_top > PASS_TOPS_MAX ||
	    s->plan.n_adjusts + r->adj.n > PASS_ADJUSTS_MAX);
}

/* Who finds no page sits out until somebody before it has ended. */
static void
secure_decode(struct dcpd_sched *s)
{
	for (uint32_t i = 0; i < s->n_run; i++)
		if (s->run[i]->state == R_DECODE && !s->run[i]->skip)
			s->run[i]->skip = !dcpd_sched_secure(s, i, 1);
}

/*
 * Every running request's next token. If what they ask for is too much for
 * one pass, some sit out and come first in the next.
 */
static int
compose_decode(struct dcpd_sched *s)
{
	uint32_t first_out = 0, from;
	bool out = false;
	int rc = 0;

	secure_decode(s);
	from = s->turn < s->n_run ? s->turn : 0;
	for (uint32_t k = 0; k < s->n_run && rc == 0; k++) {
		uint32_t i = (from + k) % s->n_run;
		struct req *r = s->run[i];

		if (r->state != R_DECODE || r->skip)
			continue;
		if (crowded(s, r)) {
			if (!out)
				first_out = i;
			out = true;
			continue;
		}
		rc = add_rows(s, r, 1);
	}
	s->turn = first_out;
	return rc;
}

/* How many rows of r the pass may still take for the sake of its samples. */
static uint64_t
rows_by_samples(const struct dcpd_sched *s, const struct req *r)
{
	uint64_t rows;

	if (crowded(s, r))
		return 0;
	if (!dcpd_req_scores_prompt(r) || r->params.n_top == 0)
		return UINT32_MAX;
	rows = (PASS_TOPS_MAX - dcpd_min64(s->plan.n_top, PASS_TOPS_MAX)) /
	    r->params.n_top;
	return rows > 0 ? rows : 1;
}

/*
 * Each prompt's rows of the next chunk. Up to half of it goes to prompts that
 * it finishes, so that a short one does not stand behind a long one; the rest
 * goes to the others, in order.
 */
static void
share_chunk(struct dcpd_sched *s)
{
	uint32_t left = s->c.engine->chunk, half = left / 2;

	for (uint32_t i = 0; i < s->n_run; i++) {
		struct req *r = s->run[i];

		r->share = 0;
		if (r->state != R_PREFILL || r->skip)
			continue;
		dcpd_req_hit_late(r);
		if (!r->restoring && r->ids.n - r->n_kv <= half) {
			r->share = (uint32_t)(r->ids.n - r->n_kv);
			half -= r->share;
			left -= r->share;
		}
	}
	for (uint32_t i = 0; i < s->n_run; i++) {
		struct req *r = s->run[i];

		if (r->state != R_PREFILL || r->skip || r->restoring ||
		    r->share > 0)
			continue;
		r->share = (uint32_t)dcpd_min64(r->ids.n - r->n_kv, left);
		left -= r->share;
	}
}

static int
compose_prefill(struct dcpd_sched *s)
{
	int rc = 0;

	share_chunk(s);
	for (uint32_t i = 0; i < s->n_run && rc == 0; i++) {
		struct req *r = s->run[i];
		uint32_t n = (uint32_t)dcpd_min64(r->share,
		    rows_by_samples(s, r));

		if (n > 0 && dcpd_sched_secure(s, i, n))
			rc = add_rows(s, r, n);
	}
	return rc;
}

/* --- running it -------------------------------------------------------- */

static int
result_room(struct dcpd_sched *s)
{
	struct dcpk_result *r = &s->result;
	void *p;

	if (s->plan.n_samples > r->out_cap) {
		p = realloc(r->out, s->plan.n_samples * sizeof *r->out);
		if (p == NULL)
			return -ENOMEM;
		r->out = p;
		r->out_cap = s->plan.n_samples;
	}
	if (s->plan.n_top > r->top_cap) {
		p = realloc(r->top, s->plan.n_top * sizeof *r->top);
		if (p == NULL)
			return -ENOMEM;
		r->top = p;
		r->top_cap = (uint32_t)s->plan.n_top;
	}
	return 0;
}

/* Returns the predicted seconds of the way taken, 0 if nobody predicted. */
static double
choose_way(struct dcpd_sched *s, struct dcpk_plan *plan)
{
	const struct dcpd_engine *e = s->c.engine;
	double sec[3] = { 0 };

	plan->way = DCPK_WAY_KV;
	if (plan->pass != DCPK_PREFILL || e->dcp == 1)
		return 0;
	if (e->predict != NULL)
		e->predict(e->self, plan, sec);
	if (s->c.way >= 0) {
		plan->way = (uint32_t)s->c.way;
	} else if (e->predict != NULL) {
		for (uint32_t w = 0; w < 3; w++)
			if (sec[w] < sec[plan->way])
				plan->way = w;
	}
	return sec[plan->way];
}

#define COUNT_WAY(way, ns, predicted) do {				\
	DCPD_COUNT(prefill_way_##way, 1);				\
	DCPD_COUNT(prefill_##way##_ns, ns);				\
	DCPD_COUNT(prefill_##way##_predicted_ns, predicted);		\
} while (0)

/* attended: ns of the pass that were attention's, 0 where nobody can say. */
static void
count_way(struct dcpd_sched *s, uint32_t way, double predicted, double actual,
    uint64_t attended)
{
	uint64_t p = attended == 0 ? 0 : (uint64_t)(predicted * 1e9);

	if (way == DCPK_WAY_Q)
		COUNT_WAY(q, attended, p);
	else if (way == DCPK_WAY_KV)
		COUNT_WAY(kv, attended, p);
	else
		COUNT_WAY(a2a, attended, p);
	pthread_mutex_lock(&s->lock);
	s->way[way].passes++;
	s->way[way].predicted += predicted;
	s->way[way].seconds += actual;
	pthread_mutex_unlock(&s->lock);
}

static void
count_pass(struct dcpd_sched *s, const struct dcpk_plan *plan,
    double predicted, uint64_t ns, uint64_t attended)
{
	if (plan->pass == DCPK_DECODE) {
		DCPD_COUNT(decode_steps, 1);
		DCPD_COUNT(decode_rows, plan->n_rows);
		DCPD_COUNT(decode_ns, ns);
		return;
	}
	DCPD_COUNT(prefill_passes, 1);
	DCPD_COUNT(prefill_rows, plan->n_rows);
	DCPD_COUNT(prefill_ns, ns);
	if (s->c.engine->dcp > 1)
		count_way(s, plan->way, predicted, (double)ns * 1e-9,
		    attended);
}

static void
failed(struct dcpd_sched *s, const struct dcpd_err *why, int rc)
{
	struct dcpd_err err;

	dcpd_fail(&err, -EIO, "engine %s failed in step %llu: %s",
	    s->c.engine->name, (unsigned long long)s->step,
	    why->text[0] != '\0' ? why->text : strerror(-rc));
	dcpd_log(LOG_CRIT, "%s", err.text);
	pthread_mutex_lock(&s->lock);
	s->fail = err;
	s->failed = true;	/* the next sweep ends every request */
	pthread_mutex_unlock(&s->lock);
}

/* --- results ----------------------------------------------------------- */

/*
 * Lock held. ECHO: the prompt goes out beside its prefill, up to what has rows
 * now; but for what is scored, which comes with its logprob.
 */
static int
echo_prompt(struct req *r)
{
	struct out_token t = { .flags = OUT_PROMPT };
	uint32_t to = r->n_kv < r->n_prompt ? r->n_kv : r->n_prompt;
	int rc = 0;

	if (!(r->flags & DCP_ECHO))
		return 0;
	if (dcpd_req_scores_prompt(r)) {
		/* Nothing stands before the first token: no logprob. */
		t.flags |= OUT_LOGPROB;
		t.logprob = NAN;
		to = 1;
	}
	if (to > r->n_echo)
		dcpd_req_wake_output(r);
	for (; r->n_echo < to && rc == 0; r->n_echo++) {
		t.token = r->ids.v[r->n_echo];
		rc = dcpd_box_push(&r->box, &t, NULL);
	}
	return rc;
}

static bool
is_in(const uint32_t *v, uint32_t n, uint32_t token)
{
	for (uint32_t i = 0; i < n; i++)
		if (v[i] == token)
			return true;
	return false;
}

/* Lock held. One more token of the answer. */
static int
accept(struct req *r, const struct dcpk_logprob *out,
    const struct dcpk_logprob *top, uint32_t n_top)
{
	const struct dcpd_engine *e = r->s->c.engine;
	struct out_token t = { out->token, 0, out->logprob, n_top };
	bool eos, stop;
	int rc;

	DCPD_ASSERT(r->ids.n < r->ids.cap);
	r->ids.v[r->ids.n++] = out->token;
	r->n_out++;
	r->state = R_DECODE;
	if (r->gram != NULL && out->token == r->think_end) {
		r->masked = true;
		r->adj.n_hush = 0;
	}
	eos = !(r->flags & DCP_IGNORE_EOS) &&
	    is_in(e->eos, e->n_eos, out->token);
	stop = is_in(r->stop_ids, r->n_stop_ids, out->token);
	if (stop && !eos)
		t.flags |= OUT_HIDDEN;
	if (r->flags & DCP_LOGPROBS)
		t.flags |= OUT_LOGPROB;
	rc = dcpd_box_push(&r->box, &t, top);
	if (rc == 0 && r->penalties)
		rc = dcpd_adjusts_count(&r->adj, out->token);
	if (rc != 0)
		return rc;
	if (eos || stop)
		dcpd_req_end(r, DCP_FINISH_STOP, NULL);
	else if (r->n_out == r->max_tokens)
		dcpd_req_end(r, DCP_FINISH_LENGTH, NULL);
	else
		dcpd_req_wake_output(r);
	return 0;
}

/* Lock held. */
static int
take_result(struct dcpd_sched *s, struct req *r, const struct dcpk_sample *sm,
    const struct dcpk_logprob *out, const struct dcpk_logprob *top)
{
	struct out_token t = {
		sm->given, OUT_PROMPT | OUT_LOGPROB, out->logprob, sm->n_top };

	if (!(sm->flags & DCPK_S_SCORE))
		return accept(r, out, top, sm->n_top);
	dcpd_req_wake_output(r);
	r->n_echo++;
	return dcpd_box_push(&r->box, &t, top);
}

/* Rows that are in the cache now; then tokens, which may end requests. */
static void
take_results(struct dcpd_sched *s, const struct dcpk_plan *plan)
{
	const struct dcpd_err nomem = { -ENOMEM, "out of memory" };
	const struct dcpk_sample *sm = DCPK_SAMPLES(plan);
	const struct dcpk_req *q = DCPK_REQS(plan);
	const struct dcpk_row *rows = DCPK_ROWS(plan);
	const struct dcpk_logprob *top = s->result.top;
	int rc;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < plan->n_reqs; i++) {
		struct req *r = s->in_pass[i];

		r->n_kv += q[i].rows;
		dcpd_req_publish(r);
		rc = plan->pass == DCPK_PREFILL ? echo_prompt(r) : 0;
		if (plan->pass == DCPK_PREFILL)
			DCPD_COUNT(prompt_tokens, q[i].rows);
		if (rc != 0)
			dcpd_req_end(r, 0, &nomem);
	}
	for (uint32_t i = 0; i < plan->n_samples; i++) {
		struct req *r = s->in_pass[rows[sm[i].row].req];

		rc = r->state == R_ENDED ? 0 :
		    take_result(s, r, &sm[i], &s->result.out[i], top);
		if (sm[i].n_top > 0)
			top += sm[i].n_top;
		if (rc != 0)
			dcpd_req_end(r, 0, &nomem);
	}
	dcpd_sched_gauges(s);
	pthread_mutex_unlock(&s->lock);
	dcpd_sched_flush_posts(s);
}

/* --- the step ---------------------------------------------------------- */

static void
check_plan(const struct dcpd_sched *s, const struct dcpk_plan *plan)
{
	const struct dcpd_engine *e = s->c.engine;
	const struct dcpd_plan_limits l = {
		.vocab = e->vocab, .max_ctx = e->max_ctx, .pages = e->pages,
		.max_reqs = e->max_running,
		.max_rows = plan->pass == DCPK_DECODE ? e->max_running :
		    e->chunk,
	};
	struct dcpd_err err;

	if (!DCPD_SCHED_DEBUG && !s->c.check_steps)
		return;
	if (dcpd_plan_check(plan, &l, &err) == 0)
		return;
	dcpd_log(LOG_CRIT, "step %llu: %s", (unsigned long long)s->step,
	    err.text);
	DCPD_ASSERT(!"every plan is one that an engine may rely on");
}

/* True: the pass ran, or failed for good. */
static bool
run_pass(struct dcpd_sched *s, enum dcpk_pass pass)
{
	const struct dcpd_engine *e = s->c.engine;
	struct dcpd_err err = { 0 };
	struct dcpk_plan *plan;
	double predicted;
	uint64_t t0, before;
	int rc;

	dcpd_planb_clear(&s->plan);
	rc = pass == DCPK_DECODE ? compose_decode(s) : compose_prefill(s);
	if (rc == 0 && s->plan.n_reqs == 0)
		return false;
	plan = rc == 0 ? dcpd_planb_finish(&s->plan, pass, s->step) : NULL;
	if (plan == NULL || result_room(s) != 0) {
		dcpd_fail(&err, -ENOMEM, "out of memory for a plan");
		failed(s, &err, -ENOMEM);
		return true;
	}
	predicted = choose_way(s, plan);
	check_plan(s, plan);
	rc = dcpd_sched_move(s, &err);
	if (rc != 0) {
		failed(s, &err, rc);
		return true;
	}
	dcpd_stats_pass(plan);
	t0 = dcpd_now_ns();
	before = e->attend_ns != NULL ? *e->attend_ns : 0;
	rc = e->step(e->self, plan, &s->result, &err);
	dcpd_stats_pass_end();
	if (rc != 0) {
		failed(s, &err, rc);
		return true;
	}
	count_pass(s, plan, predicted, dcpd_now_ns() - t0,
	    e->attend_ns != NULL ? *e->attend_ns - before : 0);
	take_results(s, plan);
	return true;
}

/* What no pass took along. */
static bool
move_alone(struct dcpd_sched *s)
{
	struct dcpd_err err = { 0 };
	int rc = dcpd_sched_move(s, &err);

	if (rc != 0)
		failed(s, &err, rc);
	return true;
}

bool
dcpd_sched_step(struct dcpd_sched *s)
{
	bool ran;

	if (s->n_run == 0)
		return false;
	s->step++;
	mark_stalled(s);
	ran = run_pass(s, DCPK_DECODE);
	if (!s->failed)
		ran |= run_pass(s, DCPK_PREFILL);
	/* Whose pages come back in the next step needs this one to end. */
	if (!s->failed && s->n_restored > 0)
		ran |= move_alone(s);
	if (ran)
		DCPD_COUNT(steps, 1);
	return ran;
}
