/*
 * Exact top-k over shards against a sort of all (score, position), for scores
 * of every awkward kind. Both ends of the search must be met: the exchange of
 * the few last members, and an interval of which all members win.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/prim.h"
#define RND_SEED 1234567
#include "tests/unit/rnd.h"

#define MAX_L 4097u
#define CASES 10080

struct cand {
	float score;
	uint32_t pos;
};

static float
gauss(void)
{
	float s = 0;
	int i;

	for (i = 0; i < 12; i++)
		s += (float)rnd(1u << 24) / (float)(1u << 24);
	return s - 6;
}

/* The definition: score desc with NaN last and -0 = +0, position asc. */
static int
definition(const void *a, const void *b)
{
	const struct cand *x = a, *y = b;
	bool xn = isnan(x->score), yn = isnan(y->score);

	if (xn != yn)
		return xn ? 1 : -1;
	if (!xn && x->score != y->score)
		return x->score > y->score ? -1 : 1;
	return x->pos < y->pos ? -1 : 1;
}

enum kind {
	GAUSS, FEW_VALUES, ALL_EQUAL, ZEROS, SPECIAL, NEGATIVE, DENORMAL,
	ONE_RANK_TIES, ONE_RANK_WINS, PLATEAU, NARROW, ANY_BITS, HUGE, N_KINDS
};

static float
score(enum kind kind, uint32_t pos, uint32_t D, uint32_t k)
{
	static const float special[] = { 0.0f, -0.0f, NAN, INFINITY, -INFINITY,
	    1, -1, 3e38f, -3e38f, 1e-45f };
	uint32_t u;
	float f;

	switch (kind) {
	case GAUSS:
		return gauss();
	case FEW_VALUES:
		return (float)rnd(5) - 2;
	case ALL_EQUAL:
		return 1.25f;
	case ZEROS:
		return rnd(2) ? 0.0f : -0.0f;
	case SPECIAL:
		return special[rnd(10)];
	case NEGATIVE:
		return -fabsf(gauss()) - 1e-3f;
	case DENORMAL:
		u = rnd(100000) | rnd(2) << 31;
		memcpy(&f, &u, 4);
		return f;
	case ONE_RANK_TIES:
		return pos % D == D / 2 ? 2 : gauss();
	case ONE_RANK_WINS:
		return pos % D == D - 1 ? 100 + gauss() : gauss();
	case PLATEAU:	/* fewer than k above zero, then zeros */
		return rnd(MAX_L) < k / 2 ? 1 + gauss() * 0.1f :
		    rnd(10) ? 0.0f : -1;
	case NARROW:	/* one fp16 digit, many keys */
		return 1 + (float)rnd(1u << 15) * 0x1p-23f;
	case ANY_BITS:
		u = rnd(1u << 16) << 16 | rnd(1u << 16);
		memcpy(&f, &u, 4);
		return f;
	case HUGE:	/* beyond fp16: all clamped to its infinity */
		return (rnd(2) ? 1.0f : -1.0f) * (7e4f + (float)rnd(100000));
	case N_KINDS:
		break;
	}
	return 0;
}

struct buffers {
	float *score[8];
	uint32_t *out[8], n[8], count[8];
	struct cand *all;
	bool *win;
	void *ws;
};

static void
buffers_make(struct buffers *b)
{
	uint32_t r;

	for (r = 0; r < 8; r++) {
		b->score[r] = malloc(MAX_L * 4);
		b->out[r] = malloc((MAX_L + 1) * 4);
	}
	b->all = malloc(MAX_L * sizeof(*b->all));
	b->win = malloc(MAX_L);
	b->ws = malloc(dcpc_topk_ws(8));
}

static void
buffers_free(struct buffers *b)
{
	uint32_t r;

	for (r = 0; r < 8; r++) {
		free(b->score[r]);
		free(b->out[r]);
	}
	free(b->all);
	free(b->win);
	free(b->ws);
}

/* Returns the bytes that the call says it would have exchanged. */
static uint32_t
check_case(struct buffers *b, enum kind kind, uint32_t L, uint32_t k,
    uint32_t D)
{
	uint32_t p, r, j, have, total = 0, bytes, room;
	float s;

	for (p = 0; p < L; p++) {
		s = score(kind, p, D, k);
		b->score[p % D][p / D] = s;
		b->all[p] = (struct cand){ s, p };
	}
	for (r = 0; r < D; r++) {
		b->n[r] = dcpk_shard_len(L, r, D);
		room = k < b->n[r] ? k : b->n[r];
		b->out[r][room] = 0xdeadbeef;
	}
	bytes = dcpc_topk((const float *const *)b->score, b->n, D, k, b->out,
	    b->count, b->ws);
	qsort(b->all, L, sizeof(*b->all), definition);
	memset(b->win, 0, L);
	for (p = 0; p < L && p < k; p++)
		b->win[b->all[p].pos] = true;
	for (r = 0; r < D; r++) {
		for (have = 0, j = 0; j < b->n[r]; j++) {
			if (!b->win[j * D + r])
				continue;
			ck_assert_msg(have < b->count[r] &&
			    b->out[r][have] == j, "kind %d L %u k %u D %u: "
			    "rank %u misses %u", kind, L, k, D, r, j);
			have++;
		}
		ck_assert_msg(have == b->count[r], "kind %d L %u k %u D %u: "
		    "rank %u has %u, not %u", kind, L, k, D, r, b->count[r],
		    have);
		room = k < b->n[r] ? k : b->n[r];
		ck_assert_uint_eq(b->out[r][room], 0xdeadbeef);
		total += have;
	}
	ck_assert_uint_eq(total, k < L ? k : L);
	return bytes;
}

START_TEST(equals_a_sort)
{
	static const uint32_t edge[] = { 1, 2, 3, 7, 8, 9, 63, 64, 65, 511,
	    512, 2047, 2048, 2049, 4095, 4096, 4097 };
	struct buffers b;
	uint32_t t, L, k, D, bytes, exchanged = 0, whole = 0, most = 0;
	uint32_t rounds[8] = { 0 };

	buffers_make(&b);
	for (t = 0; t < CASES; t++) {
		L = rnd(3) ? 1 + rnd(MAX_L) : edge[rnd(17)];
		k = rnd(3) ? 1 + rnd(2048) : edge[rnd(13)];
		if (t % 2 && k >= L)
			k = 1 + rnd(L);
		D = 1u << t % 4;
		bytes = check_case(&b, (enum kind)(t / 4 % N_KINDS), L, k, D);
		if (D == 1 || k >= L) {
			ck_assert_uint_eq(bytes, 0);
			continue;
		}
		/* Histograms are 4 KB each, pairs less than that. */
		rounds[bytes / 4096]++;
		if (bytes % 4096 != 0)
			exchanged++;
		else
			whole++;
		most = bytes % 4096 > most ? bytes % 4096 : most;
	}
	buffers_free(&b);
	ck_assert_uint_le(most, DCPC_TOPK_CAP * 8);
	ck_assert_uint_gt(most, DCPC_TOPK_CAP * 7);
	ck_assert_uint_gt(exchanged, 500);
	ck_assert_uint_gt(whole, 500);
	ck_assert_uint_gt(rounds[1], 500);
	ck_assert_uint_gt(rounds[2], 100);
	ck_assert_uint_gt(rounds[3], 100);
}
END_TEST

/* More than 65,535 keys on a rank: counts and positions beyond 16 bits. */
START_TEST(long_shards)
{
	const uint32_t n = 300001, k = 2048;
	float *s[2] = { malloc(n * 4), malloc(n * 4) };
	uint32_t out0[2048], out1[2048], *out[2] = { out0, out1 };
	uint32_t len[2] = { n, n - 1 }, count[2], j;
	void *ws = malloc(dcpc_topk_ws(2));

	for (j = 0; j < n; j++)
		s[0][j] = s[1][j] = 0;
	for (j = 0; j < 100; j++)
		s[1][n - 2 - j * 7] = 1;
	ck_assert_uint_gt(dcpc_topk((const float *const *)s, len, 2, k, out,
	    count, ws), 8191);
	/* 100 ones on rank 1, then the first 1948 positions of zeros. */
	ck_assert_uint_eq(count[0], 974);
	ck_assert_uint_eq(count[1], 1074);
	for (j = 0; j < 974; j++) {
		ck_assert_uint_eq(out0[j], j);
		ck_assert_uint_eq(out1[j], j);
	}
	for (j = 0; j < 100; j++)
		ck_assert_uint_eq(out1[974 + j], n - 2 - (99 - j) * 7);
	free(s[0]);
	free(s[1]);
	free(ws);
}
END_TEST

/* For one set of scores the same positions win whatever D is, 25 times. */
START_TEST(same_set_for_every_shard_count)
{
	struct buffers b;
	static float all[MAX_L];
	static bool want[MAX_L], got[MAX_L];
	uint32_t t, p, D, r, j;

	buffers_make(&b);
	for (t = 0; t < 25; t++) {
		for (p = 0; p < MAX_L; p++)
			all[p] = score(t % 2 ? ZEROS : PLATEAU, p, 8, 512);
		for (D = 1; D <= 8; D *= 2) {
			for (p = 0; p < MAX_L; p++)
				b.score[p % D][p / D] = all[p];
			for (r = 0; r < D; r++)
				b.n[r] = dcpk_shard_len(MAX_L, r, D);
			dcpc_topk((const float *const *)b.score, b.n, D, 512,
			    b.out, b.count, b.ws);
			memset(got, 0, sizeof(got));
			for (r = 0; r < D; r++)
				for (j = 0; j < b.count[r]; j++)
					got[b.out[r][j] * D + r] = true;
			if (D == 1)
				memcpy(want, got, sizeof(got));
			ck_assert_mem_eq(want, got, sizeof(got));
		}
	}
	buffers_free(&b);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("topk");
	TCase *t = tcase_create("topk");
	SRunner *sr;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, equals_a_sort);
	tcase_add_test(t, long_shards);
	tcase_add_test(t, same_set_for_every_shard_count);
	suite_add_tcase(s, t);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_ENV);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed != 0;
}
