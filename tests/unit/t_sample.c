/*
 * Sampling: which tokens may come (exactly), how often they come (chi-square
 * with fixed seeds), and logprobs against double precision.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"
#define RND_SEED 31337
#include "tests/unit/rnd.h"

#define V 50u
#define DRAWS 20000u

static uint8_t ws[V * 8] __attribute__((aligned(8)));

static struct dcpk_sample
plain(void)
{
	return (struct dcpk_sample){ .temperature = 1, .top_p = 1,
	    .repetition = 1, .seed = 7 };
}

static uint32_t
take(const float *z, const struct dcpk_sample *s,
    const struct dcpk_adjust *adj, const uint32_t *ok, const uint32_t *mask)
{
	struct dcpk_logprob out;

	dcpc_sample(z, V, s, adj, ok, mask, &out, NULL, ws);
	return out.token;
}

/*
 * The distribution by its definition, in double: sort, cut by k, p and min_p,
 * renormalise. p[id] = 0 where a token must not come.
 */
static void
define(double *p, const float *z, const struct dcpk_sample *s)
{
	uint32_t order[V], i, j, t, k = s->top_k ? s->top_k : V;
	double e[V], max = -INFINITY, total = 0, before = 0, kept = 0;

	for (i = 0; i < V; i++) {
		order[i] = i;
		max = fmax(max, z[i]);
	}
	for (i = 1; i < V; i++)		/* insertion keeps ids ascending */
		for (j = i; j > 0 && z[order[j]] > z[order[j - 1]]; j--) {
			t = order[j];
			order[j] = order[j - 1];
			order[j - 1] = t;
		}
	for (i = 0; i < V; i++)
		e[i] = exp((z[i] - max) / s->temperature);
	for (i = 0; i < V && i < k; i++)
		total += e[order[i]];
	for (i = 0; i < V; i++)
		p[i] = 0;
	for (i = 0; i < V && i < k; i++) {
		if (i > 0 && (before >= s->top_p * total ||
		    e[order[i]] < s->min_p))
			break;
		before += e[order[i]];
		p[order[i]] = e[order[i]];
		kept += e[order[i]];
	}
	for (i = 0; i < V; i++)
		p[i] /= kept;
}

/* Draws follow p: nothing outside, chi-square below its 1e-6 quantile. */
static void
check_draws(const float *z, struct dcpk_sample s, const double *p,
    const char *what)
{
	uint32_t count[V] = { 0 }, i, id, df = 0;
	double chi = 0, rest = 0, limit;
	int64_t rest_n = 0;

	for (i = 0; i < DRAWS; i++) {
		s.index = i;
		id = take(z, &s, NULL, NULL, NULL);
		ck_assert_uint_lt(id, V);
		ck_assert_msg(p[id] > 0, "%s: token %u must not come", what,
		    id);
		count[id]++;
	}
	for (i = 0; i < V; i++) {
		if (p[i] * DRAWS < 8) {		/* pooled */
			rest += p[i] * DRAWS;
			rest_n += count[i];
			continue;
		}
		chi += pow(count[i] - p[i] * DRAWS, 2) / (p[i] * DRAWS);
		df++;
	}
	if (rest > 1) {
		chi += pow((double)rest_n - rest, 2) / rest;
		df++;
	}
	/* Wilson-Hilferty; 4.75 is the normal 1e-6 quantile */
	if (df < 2)
		return;
	df--;
	limit = df * pow(1 - 2.0 / (9 * df) + 4.75 * sqrt(2.0 / (9 * df)), 3);
	ck_assert_msg(chi < limit, "%s: chi-square %g of %u, limit %g", what,
	    chi, df, limit);
}

START_TEST(frequencies_follow_the_distribution)
{
	static const struct {
		float temperature, top_p, min_p;
		uint32_t top_k;
		const char *name;
	} set[] = {
		{ 1, 1, 0, 0, "plain" },
		{ 0.5f, 1, 0, 0, "cold" },
		{ 3, 1, 0, 0, "hot" },
		{ 1, 1, 0, 5, "top_k" },
		{ 1, 1, 0, 1, "top_k 1" },
		{ 1, 0.7f, 0, 0, "top_p" },
		{ 1, 1e-9f, 0, 0, "top_p tiny" },
		{ 1, 1, 0.2f, 0, "min_p" },
		{ 0.8f, 0.9f, 0.02f, 20, "all" },
		{ 0.8f, 0.5f, 0, 7, "top_p of top_k" },
	};
	struct dcpk_sample s = plain();
	float z[V];
	double p[V];
	uint32_t i, t;

	for (i = 0; i < V; i++)
		z[i] = rndf() * 3;
	z[10] = z[20];			/* a tie inside */
	for (t = 0; t < sizeof(set) / sizeof(*set); t++) {
		s.temperature = set[t].temperature;
		s.top_p = set[t].top_p;
		s.min_p = set[t].min_p;
		s.top_k = set[t].top_k;
		s.seed = 1000 + t;
		define(p, z, &s);
		check_draws(z, s, p, set[t].name);
	}
}
END_TEST

/* All of the support comes, and ties at its edge go to the lowest ids. */
START_TEST(support_is_exact)
{
	struct dcpk_sample s = plain();
	float z[V];
	bool seen[V];
	uint32_t i, k;

	for (i = 0; i < V; i++)
		z[i] = 1;
	for (k = 1; k <= V; k += 7) {
		s.top_k = k;
		memset(seen, 0, sizeof(seen));
		for (i = 0; i < 2000; i++) {
			s.index = i;
			seen[take(z, &s, NULL, NULL, NULL)] = true;
		}
		for (i = 0; i < V; i++)
			ck_assert_int_eq(seen[i], i < k);
	}
	/* 50 equal ones: 0.5 of the mass is exactly 25 */
	s.top_k = 0;
	s.top_p = 0.5f;
	memset(seen, 0, sizeof(seen));
	for (i = 0; i < 2000; i++) {
		s.index = i;
		seen[take(z, &s, NULL, NULL, NULL)] = true;
	}
	for (i = 0; i < V; i++)
		ck_assert_int_eq(seen[i], i < 25);
	/* min_p: half of the best stays, less goes */
	s.top_p = 1;
	s.min_p = 0.5f;
	for (i = 0; i < V; i++)
		z[i] = i < 30 ? (float)log(0.51) : (float)log(0.49);
	z[49] = 0;
	memset(seen, 0, sizeof(seen));
	for (i = 0; i < 4000; i++) {
		s.index = i;
		seen[take(z, &s, NULL, NULL, NULL)] = true;
	}
	for (i = 0; i < V; i++)
		ck_assert_int_eq(seen[i], i < 30 || i == 49);
}
END_TEST

START_TEST(greedy_takes_the_lowest_of_ties)
{
	struct dcpk_sample s = { .flags = DCPK_S_GREEDY };
	float z[V];
	uint32_t i;

	ck_assert_uint_le(dcpc_sample_ws(V), sizeof(ws));
	for (i = 0; i < V; i++)
		z[i] = i == 17 || i == 33 ? 2 : -(float)i;
	ck_assert_uint_eq(take(z, &s, NULL, NULL, NULL), 17);
	z[5] = NAN;
	ck_assert_uint_eq(take(z, &s, NULL, NULL, NULL), 17);
	z[33] = 2.5f;
	ck_assert_uint_eq(take(z, &s, NULL, NULL, NULL), 33);
	s = plain();
	s.temperature = 0;		/* is greedy too */
	ck_assert_uint_eq(take(z, &s, NULL, NULL, NULL), 33);
}
END_TEST

START_TEST(seed_and_index_alone_decide)
{
	struct dcpk_sample s = plain();
	float z[V], other[V];
	uint32_t i, a[64], same = 0, agree = 0;

	for (i = 0; i < V; i++)
		z[i] = other[i] = rndf();
	for (i = 0; i < 64; i++) {
		s.index = i;
		a[i] = take(z, &s, NULL, NULL, NULL);
		take(other, &s, NULL, NULL, NULL);	/* someone between */
	}
	for (i = 64; i-- > 0;) {	/* in any order */
		s.index = i;
		ck_assert_uint_eq(take(z, &s, NULL, NULL, NULL), a[i]);
	}
	for (i = 0; i < 64; i++) {
		s.seed = 8;
		s.index = i;
		agree += take(z, &s, NULL, NULL, NULL) == a[i];
		same += i > 0 && a[i] == a[0];
	}
	ck_assert_uint_lt(agree, 15);
	ck_assert_uint_lt(same, 15);
}
END_TEST

/* Seeds and indexes that differ by one must be unrelated: uniform pairs. */
START_TEST(neighbouring_seeds_are_independent)
{
	struct dcpk_sample s = plain();
	uint32_t cell[64] = { 0 }, i, a, b;
	float z[V];
	double chi = 0, want = DRAWS / 64.0;

	for (i = 0; i < V; i++)
		z[i] = i < 8 ? 0 : -INFINITY;
	for (i = 0; i < DRAWS; i++) {
		s.seed = i;
		s.index = 0;
		a = take(z, &s, NULL, NULL, NULL);
		s.seed = i % 2 ? i + 1 : i;
		s.index = i % 2 ? 0 : 1;
		b = take(z, &s, NULL, NULL, NULL);
		cell[a * 8 + b]++;
	}
	/* (seed, index + 1) is not (seed + 1, index): one in eight agrees */
	for (a = 0, i = 0; i < 4000; i++) {
		s.seed = i;
		s.index = 5;
		b = take(z, &s, NULL, NULL, NULL);
		s.seed = i + 1;
		s.index = 4;
		a += take(z, &s, NULL, NULL, NULL) == b;
	}
	ck_assert_uint_lt(a, 650);
	for (i = 0; i < 64; i++)
		chi += pow(cell[i] - want, 2) / want;
	ck_assert_msg(chi < 130, "chi-square %g of 63", chi);
}
END_TEST

START_TEST(penalties_bias_and_bans)
{
	struct dcpk_sample s = { .flags = DCPK_S_GREEDY, .repetition = 2,
	    .presence = 0.5f, .frequency = 0.25f, .adjs = 1 };
	struct dcpk_adjust a = { .token = 3, .seen = 1 };
	uint32_t ok[2] = { ~0u, ~0u }, mask[2] = { 0, 0 };
	float z[V] = { 0 };

	z[3] = 4;
	z[4] = 2.1f;
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 4);	/* 4 / 2 */
	s.repetition = 1.8f;
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 3);	/* 2.22 */
	a.out_count = 1;		/* - 0.25 - 0.5 */
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 4);
	a.bias = 1.4f;			/* before: 5.4 / 1.8 - 0.75 = 2.25 */
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 3);
	a.out_count = 2;		/* 3 - 0.5 - 0.5 = 2.0 */
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 4);
	a.out_count = 0;
	a.bias = -INFINITY;
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 4);
	/* negative logits are multiplied */
	memset(z, 0xc1, sizeof(z));	/* about -24 */
	z[3] = -1;
	z[4] = -1.7f;
	a.bias = 0;
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 4);
	s.repetition = 1.6f;
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 3);
	s.repetition = 0;		/* unset is off */
	ck_assert_uint_eq(take(z, &s, &a, NULL, NULL), 3);
	s.adjs = 0;
	ok[0] = ~(1u << 3);
	ck_assert_uint_eq(take(z, &s, NULL, ok, NULL), 4);
	mask[1] = 1u << (40 - 32);
	ck_assert_uint_eq(take(z, &s, NULL, ok, mask), 40);
	/* a mask holds whatever is banned, and where nothing is a number */
	a = (struct dcpk_adjust){ .token = 40, .bias = -INFINITY };
	s.adjs = 1;
	ck_assert_uint_eq(take(z, &s, &a, ok, mask), 40);
	z[40] = NAN;
	ck_assert_uint_eq(take(z, &s, &a, ok, mask), 40);
	s.flags = 0;
	s.temperature = 1;
	ck_assert_uint_eq(take(z, &s, &a, ok, mask), 40);
	s.flags = DCPK_S_GREEDY;
	s.adjs = 0;
	/* nothing allowed: the best that token_ok has */
	mask[1] = 0;
	ck_assert_uint_eq(take(z, &s, NULL, ok, mask), 4);
}
END_TEST

/* However it comes to that: greedy or drawn, the largest logit that is left. */
START_TEST(every_token_banned)
{
	struct dcpk_sample s = plain();
	struct dcpk_adjust a[V];
	uint32_t ok[2] = { ~1u, ~0u }, mask[2] = { 0, 7u << 8 };
	float z[V], none[V];

	for (uint32_t i = 0; i < V; i++) {
		a[i] = (struct dcpk_adjust){ .token = i, .bias = -INFINITY };
		z[i] = -(float)i;
		none[i] = NAN;
	}
	s.adjs = V;
	for (s.seed = 0; s.seed < 50; s.seed++) {
		ck_assert_uint_eq(take(z, &s, a, NULL, NULL), 0);
		ck_assert_uint_eq(take(z, &s, a, ok, NULL), 1);
		ck_assert_uint_eq(take(z, &s, a, ok, mask), 40);
		ck_assert_uint_eq(take(none, &s, a, ok, mask), 40);
		ck_assert_uint_eq(take(none, &s, a, ok, NULL), 0);
	}
}
END_TEST

START_TEST(logprobs_are_of_the_raw_logits)
{
	struct dcpk_sample s = plain();
	struct dcpk_logprob out, top[V + 2];
	struct dcpk_adjust a = { .token = 1, .bias = -INFINITY };
	double lse, sum;
	float z[V];
	uint32_t t, i, j;

	for (t = 0; t < 200; t++) {
		for (sum = 0, i = 0; i < V; i++) {
			z[i] = rndf() * (t % 2 ? 3 : 80);
			if (t % 3 == 0)
				z[i] = roundf(z[i]);	/* ties */
			sum += exp(z[i]);
		}
		lse = log(sum);
		s.index = t;
		s.temperature = 0.3f;
		s.top_k = 3;
		s.n_top = t % 20 ? t % 20 : V + 2;
		s.adjs = 1;
		s.flags = t % 5 ? 0 : DCPK_S_SCORE;
		s.given = t % V;
		dcpc_sample(z, V, &s, &a, NULL, NULL, &out, top, ws);
		if (t % 5 == 0)
			ck_assert_uint_eq(out.token, t % V);
		else
			ck_assert_uint_ne(out.token, 1);
		ck_assert_double_eq_tol(out.logprob, z[out.token] - lse,
		    1e-5);
		for (i = 0; i < s.n_top; i++) {
			if (i >= V) {
				ck_assert_uint_eq(top[i].token, DCPK_NOPOS);
				continue;
			}
			/* exactly i tokens are better */
			for (sum = 0, j = 0; j < V; j++)
				sum += z[j] > z[top[i].token] ||
				    (z[j] == z[top[i].token] &&
				    j < top[i].token);
			ck_assert_double_eq(sum, i);
			ck_assert_double_eq_tol(top[i].logprob,
			    z[top[i].token] - lse, 1e-5);
		}
	}
}
END_TEST

/* Logits that exp of which is no number by itself. */
START_TEST(large_logits)
{
	struct dcpk_sample s = plain();
	struct dcpk_logprob out;
	float z[V];
	uint32_t i;

	for (i = 0; i < V; i++)
		z[i] = 1e4f;
	z[9] = -1e4f;
	dcpc_sample(z, V, &s, NULL, NULL, NULL, &out, NULL, ws);
	ck_assert_uint_ne(out.token, 9);
	ck_assert_double_eq_tol(out.logprob, -log(49), 1e-3);
	for (i = 0; i < V; i++)
		z[i] = -INFINITY;
	z[4] = -3e38f;
	dcpc_sample(z, V, &s, NULL, NULL, NULL, &out, NULL, ws);
	ck_assert_uint_eq(out.token, 4);
	ck_assert_float_eq(out.logprob, 0);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("sample");
	TCase *t = tcase_create("sample");
	SRunner *sr;
	int failed;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, frequencies_follow_the_distribution);
	tcase_add_test(t, support_is_exact);
	tcase_add_test(t, greedy_takes_the_lowest_of_ties);
	tcase_add_test(t, seed_and_index_alone_decide);
	tcase_add_test(t, neighbouring_seeds_are_independent);
	tcase_add_test(t, penalties_bias_and_bans);
	tcase_add_test(t, every_token_banned);
	tcase_add_test(t, logprobs_are_of_the_raw_logits);
	tcase_add_test(t, large_logits);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
