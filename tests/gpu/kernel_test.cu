/*
 * Are the CUDA kernels right? Each is run on fresh random inputs and compared
 * with a reference in double precision, computed here on the CPU from the same
 * bytes. Outputs are poisoned first; rows that no list names hold NaN; what
 * stands behind a list's count would fault if it were read.
 *
 * kernel_test [SEED [short] [PART]]: exit 0 when every case holds. `short` runs
 * few and small cases, for compute-sanitizer; PART is attend, index, rows,
 * experts, int4, value, query or words.
 */
#include "kernels/cuda/dcpg.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/peers.h"

#include <algorithm>
#include <map>
#include <mutex>

uint64_t seed = 1;
static int failures, cases;
static std::vector<std::function<void(void)>> waiting;

void
verdict(bool ok, const char *what)
{
	static std::mutex one;
	std::lock_guard<std::mutex> held(one);

	cases++;
	failures += !ok;
	if (!ok || brief)
		printf("%s %s\n", ok ? "ok  " : "FAIL", what);
}

void
later(std::function<void(void)> one)
{
	waiting.push_back(one);
}

/* The cases of a part, at once; one by one where a tool watches each. */
static void
part(const char *name, const char *wanted, void (*tests)(void))
{
	int before = cases;

	if (*wanted != '\0' && strcmp(wanted, name) != 0)
		return;
	waiting.clear();
	tests();
	if (brief)
		for (auto &one : waiting)
			one();
	else
		parallel(waiting.size(), [&](size_t i) { waiting[i](); });
	printf("kernel_test: %s, %d cases\n", name, cases - before);
}

/* --- attention ----------------------------------------------------------- */

struct Pool {
	std::vector<uint8_t> bytes;
	uint32_t row;
};

/* Row r of the pool: 576 values of the given size, packed by the format. */
static void
make_row(Pool &p, uint32_t r, bool bf16, Rng &g, double size)
{
	uint8_t *at = &p.bytes[(size_t)r * p.row];
	double v[576];

	for (int i = 0; i < 576; i++)
		v[i] = g.normal() * size;
	if (bf16) {
		for (int i = 0; i < 576; i++)
			((uint16_t *)at)[i] = to_bf16(v[i]);
		return;
	}
	for (int t = 0; t < 4; t++) {
		double m = 0;
		float s;

		/* Tiles differ in size; now and then one is all zero. */
		double k = g.below(40) == 0 ? 0.0 : exp2(g.normal());

		for (int i = 0; i < 128; i++) {
			v[128 * t + i] *= k;
			m = fmax(m, fabs(v[128 * t + i]));
		}
		s = (float)(m / 448);
		memcpy(at + 512 + 4 * t, &s, 4);
		for (int i = 0; i < 128; i++)
			at[128 * t + i] = s == 0 ? 0 :
			    to_e4m3(v[128 * t + i] / s);
	}
	for (int i = 0; i < 64; i++)
		((uint16_t *)(at + 528))[i] = to_bf16(v[512 + i]);
}

static double
row_value(const Pool &p, uint32_t r, bool bf16, int i)
{
	const uint8_t *at = &p.bytes[(size_t)r * p.row];
	float s;

	if (bf16)
		return from_bf16(((const uint16_t *)at)[i]);
	if (i >= 512)
		return from_bf16(((const uint16_t *)(at + 528))[i - 512]);
	memcpy(&s, at + 512 + i / 128 * 4, 4);
	return from_e4m3(at[i]) * s;
}

struct AttendCase {
	bool bf16;
	uint32_t heads, rows, max;
	uint32_t shape, splits, team;
	bool out_f32;
	std::vector<uint32_t> counts;	/* cycled over the rows */
	double grow;		/* rows get larger along the list: 1 = not */
	uint32_t expected = 0;	/* of a list; 0: max */
};

static void
attend_reference(const AttendCase &c, const Pool &p,
    const std::vector<uint16_t> &q, const std::vector<uint32_t> &list,
    float scale, std::vector<double> &out, std::vector<double> &lse)
{
	parallel((size_t)c.rows, [&](size_t row) {
		uint32_t n = c.counts[row % c.counts.size()];
		std::vector<double> k((size_t)n * 576), s(n);

		for (uint32_t j = 0; j < n; j++)
			for (int i = 0; i < 576; i++)
				k[(size_t)j * 576 + i] = row_value(p,
				    list[row * c.max + j], c.bf16, i);
		for (uint32_t h = 0; h < c.heads; h++) {
			const uint16_t *x = &q[(row * c.heads + h) * 576];
			double *o = &out[(row * c.heads + h) * 512];
			double qd[576], m = -INFINITY, l = 0;

			for (int i = 0; i < 576; i++)
				qd[i] = from_bf16(x[i]);
			for (uint32_t j = 0; j < n; j++) {
				s[j] = 0;
				for (int i = 0; i < 576; i++)
					s[j] += qd[i] * k[(size_t)j * 576 + i];
				s[j] *= scale;
				m = fmax(m, s[j]);
			}
			for (int i = 0; i < 512; i++)
				o[i] = 0;
			for (uint32_t j = 0; j < n; j++) {
				double w = exp(s[j] - m);

				l += w;
				for (int i = 0; i < 512; i++)
					o[i] += w * k[(size_t)j * 576 + i];
			}
			for (int i = 0; i < 512 && n > 0; i++)
				o[i] /= l;
			lse[row * c.heads + h] = n ? m + log(l) : -INFINITY;
		}
	});
}

static void
attend_case(const AttendCase &c, uint64_t salt)
{
	Rng g(seed * 1000003 + salt);
	uint32_t pool_rows = c.rows * c.max * 2 + 64;
	float scale = 0.1352337f;
	Pool p;

	p.row = c.bf16 ? 1152 : 656;
	p.bytes.assign((size_t)pool_rows * p.row, 0xff);	/* NaN */
	std::vector<uint32_t> order(pool_rows), list, count;
	for (uint32_t i = 0; i < pool_rows; i++)
		order[i] = i;
	for (uint32_t i = pool_rows - 1; i > 0; i--)
		std::swap(order[i], order[g.below(i + 1)]);
	list.assign((size_t)c.rows * c.max, 0xffffffff);
	for (uint32_t r = 0; r < c.rows; r++) {
		uint32_t n = c.counts[r % c.counts.size()];

		count.push_back(n);
		for (uint32_t j = 0; j < n; j++) {
			list[r * c.max + j] = order[r * c.max + j];
			make_row(p, order[r * c.max + j], c.bf16, g,
			    pow(c.grow, (double)j / c.max));
		}
	}
	std::vector<uint16_t> q((size_t)c.rows * c.heads * 576);
	for (size_t i = 0; i < q.size(); i++)
		q[i] = to_bf16(g.normal() * exp2((double)(i / 576 % 7) - 3));

	size_t no = (size_t)c.rows * c.heads;
	/* several places for the outputs: one may have less than a block's */
	uint32_t parts = std::min(1u << g.below(5), c.heads);
	uint32_t each = c.heads / parts, self = g.below(parts);
	size_t one = (size_t)(parts > 1 ? self + 1 : 1) * (no / parts);
	std::vector<double> ref(no * 512), rl(no);
	attend_reference(c, p, q, list, scale, ref, rl);

	Buf<uint8_t> dp(p.bytes);
	Buf<uint32_t> dl(list), dc(count);
	Buf<uint16_t> dq(q);
	Buf<uint8_t> out(parts * one * 512 * (c.out_f32 ? 4 : 2));
	Buf<float> lse(parts * one);
	struct dcpg_attend a = {};
	a.q = dq.d;
	a.pool = dp.d;
	a.list = dl.d;
	a.count = dc.d;
	std::vector<struct dcpg_part> to;
	for (uint32_t e = 0; e < parts; e++)
		to.push_back({ out.d + e * one * 512 * (c.out_f32 ? 4 : 2),
		    lse.d + e * one, NULL });
	Buf<struct dcpg_part> dto(to);
	Buf<uint8_t> work(c.splits == 1 ? 0 : DCPG_ATTEND_WORK);
	work.poison();		/* ones: as it must be, and is left */
	a.work = c.splits == 1 ? NULL : work.d;
	a.out = out.d;
	a.lse = lse.d;
	a.to = parts > 1 ? dto.d : NULL;
	a.parts = parts;
	a.self = self;
	a.rows = c.rows;
	a.heads = c.heads;
	a.list_stride = a.max_count = c.max;
	a.expected = c.expected;
	a.kv = c.bf16 ? DCPK_KV_BF16 : DCPK_KV_FP8;
	a.out_f32 = c.out_f32;
	a.scale = scale;
	a.shape = c.shape;
	a.splits = c.splits;
	a.team = c.team;
	std::vector<uint8_t> ho;
	std::vector<float> hl;
	double err = 0, norm = 0, worst = 0, el = 0;
	bool exact = true;
	{
		/* splits wait for each other: with others there may not be
		 * room for all */
		std::unique_lock<std::shared_mutex> alone(gpu, std::defer_lock);

		if (c.splits != 1)
			alone.lock();
		for (int turn = 0; turn < (c.splits == 1 ? 1 : 3); turn++) {
			std::vector<uint8_t> before = ho;

			out.poison();
			lse.poison();
			CHECK(cudaDeviceSynchronize());
			CALL(dcpg_attend(&a, STREAM));
			CHECK(cudaStreamSynchronize(STREAM));
			ho = out.get();
			hl = lse.get();
			exact &= turn == 0 || ho == before;
		}
		for (uint8_t x : work.get())
			exact &= x == 0xff;
	}
	for (size_t i = 0; i < no; i++) {
		double e2 = 0, n2 = 0;
		uint32_t row = i / c.heads, h = i % c.heads;
		size_t at = h / each * one + (self * c.rows + row) * each +
		    h % each;

		for (int j = 0; j < 512; j++) {
			double v = c.out_f32 ? ((float *)ho.data())[at * 512 + j]
			    : from_bf16(((uint16_t *)ho.data())[at * 512 + j]);
			double d = v - ref[i * 512 + j];

			e2 += d * d;
			n2 += ref[i * 512 + j] * ref[i * 512 + j];
			exact &= count[i / c.heads] > 0 || v == 0;
		}
		err += e2;
		norm += n2;
		if (!(e2 <= 1e30))
			worst = INFINITY;
		else if (n2 > 0)
			worst = fmax(worst, sqrt(e2 / n2));
		if (count[i / c.heads] == 0)
			exact &= hl[at] == -INFINITY;
		else if (!(fabs(hl[at] - rl[i]) - 1e-5 * fabs(rl[i]) <= el))
			el = fabs(hl[at] - rl[i]) - 1e-5 * fabs(rl[i]);
	}
	/* f16 holds 11 bits, bf16 8; the bf16 output adds 2^-9. f32 sums of
	 * large scores round at 1e-7 of their size. */
	double tol = c.bf16 || !c.out_f32 ? 4e-3 : 1e-3;
	double rel = norm > 0 ? sqrt(err / norm) : 0;
	bool ok = rel < tol && worst < 4 * tol && el < 1e-3 && exact;
	char what[200];
	snprintf(what, sizeof what, "attend %s H=%u rows=%u max=%u (%u) "
	    "shape=%u splits=%u team=%u parts=%u %s grow=%g: rel %.2e worst "
	    "head %.2e lse %.1e%s",
	    c.bf16 ? "bf16" : "fp8", c.heads, c.rows, c.max, c.expected,
	    c.shape, c.splits, c.team, parts, c.out_f32 ? "f32" : "bf16",
	    c.grow, rel, worst, el,
	    exact ? "" : " NOT EXACT: an empty row, turns, or splits' place");
	verdict(ok, what);
}

static void
attend_tests(void)
{
	static const uint32_t odd[] = { 0, 1, 15, 16, 17, 63, 64, 65, 127, 200,
	    255, 256, 257, 500, 511, 512 };
	std::vector<uint32_t> counts(odd, odd + 16);
	struct dcpg_attend_shape sh;
	uint64_t salt = 0;
	uint32_t turn = 0;

	for (int b = 0; b < 2; b++) {
		enum dcpk_kv kv = b ? DCPK_KV_BF16 : DCPK_KV_FP8;

		for (uint32_t i = 0; dcpg_attend_shape(kv, i, &sh); i++)
			for (uint32_t x = 0; x < 3 * DCPG_MAX_SPLITS; x++) {
				uint32_t s = x / 3 + 1, team = 1 << x % 3;
				AttendCase c = { b == 1, sh.heads * team,
				    brief ? 3u : 16u, 512, i + 1, s, team, true,
				    counts, 1 };

				if (s > sh.splits || c.heads > 128 ||
				    s > (uint32_t)sh.fit[team])
					continue;
				/* All splits of two teams a row at once; and so
				 * that all counts come to few rows in turn. */
				if (s > 1)
					c.rows = std::min(c.rows, std::max(1u,
					    sh.fit[team] / s / 2));
				std::rotate(c.counts.begin(), c.counts.begin() +
				    turn % counts.size(), c.counts.end());
				turn += c.rows;
				if (brief && (s & (s - 1)) != 0 && s != 3)
					continue;
				if (brief) {
					c.counts = { 0, 33, 130 };
					c.max = 130;
				}
				CASE(attend_case(c, salt));
				/* No split with keys, one, all of them. */
				for (uint32_t n : { 0u, 1u, 17u, 512u })
					if (!brief && s > 1 && team == 2) {
						AttendCase e = c;

						e.rows = 1;
						e.counts = { n };
						CASE(attend_case(e, salt));
					}
				if (team == 1 || c.heads == 128 || (s > 1 &&
				    2 * c.rows * s > (uint32_t)sh.fit[team]))
					continue;
				c.heads *= 2;	/* several teams a row */
				CASE(attend_case(c, salt));
			}
		if (brief)
			continue;
		/* Keys beyond whole rounds, up to a stage and more; maxima that
		 * rise in each stage of a block, and in none but its first. */
		for (uint32_t i = 0; dcpg_attend_shape(kv, i, &sh); i++)
			for (uint32_t x = 0; x < 12; x++) {
				double grow[] = { 1, 1000, 1e-3 };
				uint32_t groups = x % 2 + 1, s = x / 2 % 2 + 1;
				uint32_t team = sh.fit[groups] ? groups : 1;
				AttendCase c = { b == 1, sh.heads * groups, 16,
				    1154, i + 1, s, team, true, { 129, 130, 159,
				    160, 161, 191, 192, 193, 257, 289, 320, 321,
				    385, 577, 898, 1154 }, grow[x / 4] };

				if (s > sh.splits || c.heads > 128)
					continue;
				CASE(attend_case(c, salt));
			}
		/* As many keys as expected, about as many, far more or fewer:
		 * what was read of the list ahead may be another split's. */
		for (uint32_t i = 0; dcpg_attend_shape(kv, i, &sh); i++)
			for (uint32_t x = 0; x < 4; x++) {
				uint32_t team = x % 2 + 1, s = x < 2 ? 2 : 4;
				AttendCase c = { b == 1, sh.heads * team, 12,
				    1300, i + 1, s, team, true, { 1024, 1025,
				    1040, 1088, 1089, 1152, 1153, 1300, 1023,
				    990, 769, 768 }, 1, 1024 };

				if (s > sh.splits || c.heads > 128)
					continue;
				while (c.rows * s > (uint32_t)sh.fit[team])
					c.rows /= 2;
				std::rotate(c.counts.begin(), c.counts.begin() +
				    turn++ % 12, c.counts.end());
				CASE(attend_case(c, salt));
			}
		for (uint32_t h = 8; h <= 128; h *= 2) {
			uint32_t rows[] = { 1, 2, 7, 33 };

			for (int r = 0; r < 4; r++) {
				AttendCase c = { b == 1, h, rows[r], 2048, 0, 0,
				    0, r % 2 == 0, { 2048, 2047, 1, 1500 }, 1 };

				CASE(attend_case(c, salt));
			}
			AttendCase up = { b == 1, h, 3, 1024, 0, 0, 0, true,
			    { 1024, 777, 1000 }, 300 };
			AttendCase down = up;
			down.grow = 1 / 300.0;
			CASE(attend_case(up, salt));
			CASE(attend_case(down, salt));
		}
	}
}

/* --- indexer ------------------------------------------------------------- */

static void
score_case(uint32_t rows, uint32_t heads, uint32_t max, uint32_t D,
    uint64_t salt)
{
	Rng g(seed * 104729 + salt);
	uint32_t P = 64 / D, pages = (max + P - 1) / P, pool = pages * 2 + 3;
	uint32_t stride = (max + 3) & ~3u;
	std::vector<uint8_t> q8((size_t)rows * heads * 128);
	std::vector<uint8_t> keys((size_t)pool * P * 128, 0x7f); /* NaN */
	std::vector<float> w((size_t)rows * heads), ks(pool * P, NAN);
	std::vector<uint32_t> table((size_t)rows * pages), at, len, order;

	for (uint32_t i = 0; i < pool; i++)
		order.push_back(i);
	for (uint32_t r = 0; r < rows; r++) {
		at.push_back(r * pages);
		len.push_back(r == 0 ? max : g.below(max + 1));
		for (uint32_t i = pool - 1; i > 0; i--)
			std::swap(order[i], order[g.below(i + 1)]);
		for (uint32_t i = 0; i < pages; i++)
			table[r * pages + i] = order[i];
		for (uint32_t j = 0; j < len[r]; j++) {
			size_t row = table[r * pages + j / P] * P + j % P;

			ks[row] = (float)(exp2(g.normal()) / 448);
			for (int i = 0; i < 128; i++)
				keys[row * 128 + i] = to_e4m3(g.normal() * 100);
		}
	}
	for (auto &x : q8)
		x = to_e4m3(g.normal() * 100);
	for (auto &x : w)
		x = (float)g.normal() / 448;
	std::shared_lock<std::shared_mutex> shared(gpu);
	Buf<uint8_t> dq(q8), dk(keys);
	Buf<float> dw(w), ds(ks), score((size_t)rows * stride);
	Buf<uint32_t> dt(table), da(at), dl(len), hist(rows * DCPG_BINS);
	struct dcpg_index_score a = { dq.d, dw.d, dk.d, ds.d, dt.d, da.d, dl.d,
	    score.d, hist.d, rows, heads, stride, max, P };
	score.poison();
	CHECK(cudaMemset(hist.d, 0, hist.n * 4));
	CALL(dcpg_index_score(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<float> hs = score.get();
	std::vector<uint32_t> hh = hist.get(), ref(hist.n);
	std::vector<double> err(rows), norm(rows);
	parallel(rows, [&](size_t r) {
		for (uint32_t j = 0; j < len[r]; j++) {
			size_t row = table[r * pages + j / P] * P + j % P;
			double sum = 0, size = 0;

			for (uint32_t h = 0; h < heads; h++) {
				double d = 0;

				for (int i = 0; i < 128; i++)
					d += from_e4m3(q8[(r * heads + h) *
					    128 + i]) *
					    from_e4m3(keys[row * 128 + i]);
				sum += w[r * heads + h] * fmax(d, 0);
				size += fabs(w[r * heads + h] * d);
			}
			sum *= ks[row];
			size *= ks[row];
			double e = hs[r * stride + j] - sum;
			err[r] += e * e;
			norm[r] += size * size;
			ref[r * DCPG_BINS + digit_of(hs[r * stride + j])]++;
		}
	});
	double worst = 0;
	for (uint32_t r = 0; r < rows; r++)
		if (len[r] > 0 && !(sqrt(err[r] / norm[r]) <= worst))
			worst = sqrt(err[r] / norm[r]);
	char what[160];
	snprintf(what, sizeof what, "index score rows=%u H=%u max=%u D=%u: rel "
	    "%.1e, histogram %s", rows, heads, max, D, worst,
	    hh == ref ? "equal" : "DIFFERS");
	verdict(worst < 5e-4 && hh == ref, what);
}

/* The same launch gives the same bits however often: a tile that comes too
 * early changes a few scores of 10^7. */
static void
again_case(uint64_t salt)
{
	const uint32_t ROWS = 128, H = 64, L = 32768, POOL = 2048, TIMES = 200;
	Rng g(seed * 7919 + salt);
	std::vector<uint8_t> q8((size_t)ROWS * H * 128);
	std::vector<uint8_t> keys((size_t)POOL * 64 * 128);
	std::vector<float> w((size_t)ROWS * H), ks(POOL * 64);
	std::vector<uint32_t> table((size_t)ROWS * L / 64), at, len;
	uint32_t other = 0;

	for (auto *v : { &q8, &keys })
		for (size_t i = 0; i < v->size(); i += 8) {
			uint64_t x = g.next() & 0x7777777777777777ull;

			memcpy(v->data() + i, &x, 8);
		}
	for (auto &x : w)
		x = (float)g.normal() / 448;
	for (auto &x : ks)
		x = (float)(1 + g.uniform()) / 448;
	for (auto &x : table)
		x = g.below(POOL);
	for (uint32_t r = 0; r < ROWS; r++) {
		at.push_back(r * (L / 64));
		len.push_back(L);
	}
	std::shared_lock<std::shared_mutex> shared(gpu);
	Buf<uint8_t> dq(q8), dk(keys);
	Buf<float> dw(w), ds(ks), score((size_t)ROWS * L);
	Buf<uint32_t> dt(table), da(at), dl(len), hist(ROWS * DCPG_BINS);
	struct dcpg_index_score a = { dq.d, dw.d, dk.d, ds.d, dt.d, da.d, dl.d,
	    score.d, hist.d, ROWS, H, L, L, 64 };
	std::vector<float> first;
	CHECK(cudaMemset(hist.d, 0, hist.n * 4));
	for (uint32_t i = 0; i < TIMES; i++) {
		score.poison();
		CALL(dcpg_index_score(&a, STREAM));
		CHECK(cudaStreamSynchronize(STREAM));
		std::vector<float> now = score.get();

		if (i == 0)
			first = now;
		other += memcmp(first.data(), now.data(), now.size() * 4) != 0;
	}
	char what[100];
	snprintf(what, sizeof what, "index score, %u launches: %u differ from "
	    "the first", TIMES, other);
	verdict(other == 0, what);
}

/* Scores of different temper; what 'kind' means is in kinds[]. */
static const char *const kinds[] = { "normal", "all equal", "5 values",
    "specials", "negative", "tiny", "huge", "one bin", "ties at zero",
    "winners on one rank" };
enum { KINDS = 10 };

static float
make_score(int kind, uint32_t pos, Rng &g)
{
	static const float special[] = { 0.0f, -0.0f, NAN, INFINITY, -INFINITY,
	    1.0f, -1.0f, 1e-42f, -1e-42f, 3e38f };

	switch (kind) {
	case 1: return 2.5f;
	case 2: return (float)g.below(5) - 2;
	case 3: return g.below(3) ? (float)g.normal() : special[g.below(10)];
	case 4: return (float)-fabs(g.normal());
	case 5: return (float)(g.normal() * 1e-39);
	case 6: return (float)(g.normal() * 1e6);
	case 7: return (float)(1.0 + g.uniform() * 1e-3);
	case 8: return g.below(10) ? 0.0f : (float)g.normal();
	case 9: return (float)(g.normal() + (pos % 2 ? 0 : 5));
	default: return (float)g.normal();
	}
}

/* Better first: score descending, NaN last, then position ascending. */
static bool
better(const std::vector<float> &s, uint32_t a, uint32_t b)
{
	bool na = isnan(s[a]), nb = isnan(s[b]);

	if (na != nb)
		return nb;
	if (!na && s[a] != s[b])
		return s[a] > s[b];
	return a < b;
}

/* Scores and digits come late: until then they are poison and 0. */
__global__ static void
reveal(float *score, uint32_t *hist, const float *scores,
    const uint32_t *hists, uint32_t stride, uint32_t ns)
{
	size_t row = blockIdx.x, at = row * stride;
	uint64_t t0, t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	while (t - t0 < ns);
	for (uint32_t i = threadIdx.x; i < stride; i += blockDim.x)
		score[at + i] = scores[at + i];
	for (uint32_t i = threadIdx.x; i < DCPG_BINS; i += blockDim.x)
		hist[row * DCPG_BINS + i] = hists[row * DCPG_BINS + i];
}

static void
select_case(uint32_t rows, uint32_t L, uint32_t k, uint32_t D, int kind,
    uint32_t cap, uint64_t salt, Peers *peers = nullptr)
{
	Rng g(seed * 15485863 + salt);
	uint32_t P = 64 / D, pages = (L + 63) / 64, max = (L + D - 1) / D;
	uint32_t stride = (max + 3) & ~3u;
	std::vector<std::vector<float>> s(rows);
	std::vector<uint32_t> at, lens(rows), table;
	std::vector<std::vector<uint32_t>> want(rows);
	bool ok = true, spill = false;

	std::vector<uint32_t> index(rows * pages);	/* of a page in table */

	for (uint32_t i = 0; i < rows * pages; i++)
		table.push_back(i);
	for (uint32_t i = rows * pages; i-- > 0; ) {
		std::swap(table[i], table[g.below(i + 1)]);
		index[table[i]] = i;
	}
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t n = r == 0 ? L : 1 + g.below(L);

		lens[r] = n;
		at.push_back(r * pages);
		for (uint32_t i = 0; i < n; i++)
			s[r].push_back(make_score(kind, i, g));
		std::vector<uint32_t> order(n);
		for (uint32_t i = 0; i < n; i++)
			order[i] = i;
		std::nth_element(order.begin(), order.begin() + std::min(n, k)
		    - 1, order.end(), [&](uint32_t a, uint32_t b) {
			return better(s[r], a, b);
		});
		order.resize(std::min(n, k));
		std::sort(order.begin(), order.end());
		want[r] = order;
	}
	std::shared_lock<std::shared_mutex> shared(gpu, std::defer_lock);
	std::unique_lock<std::shared_mutex> alone(gpu, std::defer_lock);
	if (peers)
		alone.lock();
	else
		shared.lock();
	Buf<uint32_t> dt(table), da(at), total(lens);
	/* [at rank][of rank][rows] */
	Buf<uint64_t> offers((size_t)D * D * rows * cap);
	Buf<struct dcpg_window> windows(D * D * rows);
	CHECK(cudaMemset(offers.d, 0xff, offers.n * 8));
	CHECK(cudaMemset(windows.d, 0xff, windows.n * 16));
	if (peers) {	/* about to wrap, too; old words, which look newer */
		static const uint32_t begun[] = { 0, 0xfffffffe, 0x7fffffff };
		uint32_t n = begun[salt / 2 % 3];

		peers->begun(n);
		windows.put(std::vector<struct dcpg_window>(D * D * rows,
		    { DCPG_NO_OFFER, n + 0x70000000, 0 }));
	}
	std::vector<Buf<float> *> scores, later;
	std::vector<Buf<uint32_t> *> dlens, hists, lists, counts, laters;
	struct dcpg_select a = {};
	a.table = dt.d;
	a.table_at = da.d;
	a.rows = rows;
	a.stride = stride;
	a.max_len = max;
	a.list_stride = a.k = k;
	a.page_rows = P;
	a.ranks = D;
	a.cap = cap;
	a.total = total.d;
	for (uint32_t d = 0; d < D; d++) {
		std::vector<float> part((size_t)rows * stride, NAN);
		std::vector<uint32_t> len(rows), hist(rows * DCPG_BINS);

		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t p = d; p < lens[r]; p += D) {
				part[r * stride + len[r]++] = s[r][p];
				hist[r * DCPG_BINS + digit_of(s[r][p])]++;
			}
		scores.push_back(new Buf<float>(part));
		dlens.push_back(new Buf<uint32_t>(len));
		hists.push_back(new Buf<uint32_t>(hist));
		if (peers) {
			later.push_back(new Buf<float>(part));
			laters.push_back(new Buf<uint32_t>(hist));
			scores[d]->poison();
			CHECK(cudaMemset(hists[d]->d, 0, hist.size() * 4));
		}
		lists.push_back(new Buf<uint32_t>((size_t)rows * k));
		counts.push_back(new Buf<uint32_t>(rows));
		a.scores[d] = scores[d]->d;
	}
	/* Rank d's call; by flags its offers go to all, else to itself. */
	auto of = [&](uint32_t d) {
		struct dcpg_select x = a;

		x.rank = d;
		x.score = scores[d]->d;
		x.len = dlens[d]->d;
		x.hist = x.clear = hists[d]->d;
		x.list = lists[d]->d;
		x.count = counts[d]->d;
		for (uint32_t e = 0; D > 1 && e < D; e++) {
			size_t mine = ((size_t)e * D + d) * rows;
			size_t its = ((size_t)(peers ? d : e) * D + e) * rows;

			x.from[e] = offers.d + its * cap;
			x.from_window[e] = windows.d + its;
			if (!peers && e != d)
				continue;
			x.to[e] = offers.d + mine * cap;
			x.to_window[e] = windows.d + mine;
		}
		if (peers)
			x.peer = peers->of(d);
		return x;
	};
	for (uint32_t d = 0; D > 1 && !peers && d < D; d++) {
		struct dcpg_select x = of(d);

		x.clear = nullptr;
		CALL(dcpg_select_offer(&x, STREAM));
	}
	CHECK(cudaDeviceSynchronize());
	std::vector<struct dcpg_window> hw = windows.get();
	std::vector<uint64_t> ho = offers.get();
	for (uint32_t i = 0; D > 1 && !peers && i < D * rows; i++) {
		uint32_t n = 0, d = i / rows;
		size_t where = ((size_t)d * D + d) * rows + i % rows;
		uint32_t told = DCPG_WINDOW_N(hw[where].word);

		for (uint32_t j = 0; j < cap; j++)
			n += ho[where * cap + j] != DCPG_NO_OFFER;

		spill |= told > cap;
		ok &= n == (told > cap ? 0 : told);
	}
	std::vector<std::vector<uint32_t>> first;	/* lists of a call before */

	for (uint32_t d = 0; !peers && d < D; d++) {
		struct dcpg_select x = of(d);

		x.clear = nullptr;
		lists[d]->poison();
		CALL(dcpg_select(&x, STREAM));
		CHECK(cudaStreamSynchronize(STREAM));
		first.push_back(lists[d]->get());
		lists[d]->poison();
	}
	for (uint32_t d = 0; d < D; d++) {
		struct dcpg_select x = of(d);
		cudaStream_t st = peers ? peers->stream[d] : STREAM;

		if (peers)
			reveal<<<rows, 256, 0, st>>>(scores[d]->d, hists[d]->d,
			    later[d]->d, laters[d]->d, stride, g.below(3) *
			    20000);
		CALL(dcpg_select(&x, st));
	}
	CHECK(cudaDeviceSynchronize());
	for (uint32_t d = 0; d < D; d++) {
		std::vector<uint32_t> hl = lists[d]->get();
		std::vector<uint32_t> hc = counts[d]->get();

		ok &= peers || hl == first[d];
		for (uint32_t r = 0; r < rows; r++) {
			std::vector<uint32_t> mine, got;
			uint32_t falls = 0;

			for (uint32_t p : want[r])
				if (p % D == d)
					mine.push_back(p / D);
			ok &= hc[r] == mine.size();
			for (uint32_t i = 0; i < mine.size() && ok; i++) {
				uint32_t x = hl[(size_t)r * k + i];

				ok &= x / P < index.size();
				if (!ok)
					break;
				got.push_back((index[x / P] - r * pages) * P +
				    x % P);
				falls += i > 0 && got[i] < got[i - 1];
			}
			/* over ranks two ascending parts */
			ok &= falls <= (D > 1);
			std::sort(got.begin(), got.end());
			ok &= got == mine;
		}
		for (uint32_t n : hists[d]->get())
			ok &= n == 0;
	}
	for (uint64_t w : offers.get())
		ok &= !peers || w == DCPG_NO_OFFER;
	for (const struct dcpg_window &w : windows.get())
		ok &= !peers || w.word == DCPG_NO_OFFER;
	if (peers)
		ok &= !peers->lost();
	for (auto v : { &dlens, &hists, &lists, &counts, &laters })
		for (auto p : *v)
			delete p;
	for (auto v : { &scores, &later })
		for (auto p : *v)
			delete p;
	char what[160];
	snprintf(what, sizeof what, "select rows=%u L=%u k=%u D=%u %s%s%s",
	    rows, L, k, D, kinds[kind], peers ? " by flags" : "",
	    spill ? " (a row without offers)" : "");
	verdict(ok, what);
}

/*
 * A rank whose peer does not come: the kernel ends, says so, and writes no more
 * than there is room for. n keys a rank; window: the peer's is there, its keys
 * are not.
 */
static void
select_alone(uint32_t n, uint32_t k, bool window, uint64_t salt)
{
	constexpr uint32_t CAP = 1024, MOST = 16384;
	Rng g(seed * 32452843 + salt);
	Peers two(2);
	std::vector<float> scores(MOST);
	std::vector<uint32_t> hists(DCPG_BINS);

	for (uint32_t i = 0; i < n; i++) {
		scores[i] = (float)g.normal();
		hists[digit_of(scores[i])]++;
	}
	Buf<float> score(scores);
	Buf<uint32_t> hist(hists), len(std::vector<uint32_t>{ n }), list(2 *
	    MOST), count(1), total(std::vector<uint32_t>{ 2 * n });
	Buf<uint64_t> offers(2 * CAP);
	/* of all digits, 500 keys */
	Buf<struct dcpg_window> windows(std::vector<struct dcpg_window>{
	    { DCPG_NO_OFFER, 0, 0 }, { window ? UINT64_C(2048) << 11 |
	    UINT64_C(500) << 37 : DCPG_NO_OFFER, 0, 0 } });
	struct dcpg_select a = {};
	bool ok;

	CHECK(cudaMemset(offers.d, 0xff, offers.n * 8));
	list.poison();
	a.score = a.scores[0] = a.scores[1] = score.d;
	a.hist = a.clear = hist.d;
	a.len = len.d;
	a.list = list.d;
	a.count = count.d;
	a.rows = 1;
	a.stride = MOST;
	a.max_len = n;
	a.list_stride = a.k = k;
	a.page_rows = 32;
	a.ranks = 2;
	a.cap = CAP;
	a.total = total.d;
	for (uint32_t e = 0; e < 2; e++) {
		a.from[e] = offers.d + e * CAP;
		a.from_window[e] = windows.d + e;
	}
	a.to[0] = a.from[0];	/* what goes to the peer is lost */
	a.to_window[0] = a.from_window[0];
	a.peer = two.of(0, 3000000);
	CALL(dcpg_select(&a, two.stream[0]));
	CHECK(cudaDeviceSynchronize());
	ok = two.stuck[0].set != 0 && two.stuck[0].peer == 1;
	std::vector<uint32_t> rows = list.get();
	for (uint32_t i = k; i < rows.size(); i++)
		ok &= rows[i] == ~0u;
	char what[120];
	snprintf(what, sizeof what, "select of %u keys, k=%u, whose peer stays "
	    "away%s, ends and names it", n, k, window ? " behind its window" :
	    "");
	verdict(ok, what);
}

static void
index_tests(void)
{
	static const uint32_t lens[] = { 1, 2, 63, 64, 65, 300, 2047, 2048,
	    2049, 8192, 20000, 131072 };
	static const uint32_t ks[] = { 1, 5, 256, 2048 };
	std::map<uint32_t, Peers *> peers;	/* to the program's end */
	uint64_t salt = 0;

	for (uint32_t D = 2; D <= 8; D *= 2)
		peers[D] = new Peers(D);

	for (uint32_t h = 8; h <= 64; h *= 2)
		for (uint32_t D = 1; D <= 64; D *= brief ? 8 : 2)
			CASE(score_case(3, h, brief ? 130 : 1300, D, salt));
	if (!brief) {
		CASE(again_case(salt));
		CASE(score_case(1, 64, 131072, 1, salt));
		CASE(score_case(40, 32, 2049, 8, salt));
		/* more rows than a warp looks at together */
		CASE(score_case(133, 16, 700, 1, salt));
		CASE(score_case(700, 8, 130, 4, salt));
	}
	for (uint32_t L : lens)
		for (uint32_t k : ks)
			for (uint32_t D = 1; D <= 8; D *= 2)
				for (int kind = 0; kind < KINDS; kind++) {
					if (brief && (L > 2049 || kind % 4 ||
					    D == 4 || k == 5))
						continue;
					uint32_t n = L > 9000 ? 2 : 5;
					Peers *by = peers[D];

					CASE(select_case(n, L, k, D, kind,
					    4096, salt));
					if (by != nullptr)
						CASE(select_case(n, L, k, D,
						    kind, 4096, salt, by));
				}
	CASE(select_case(3, 4000, 100, 2, 1, 64, salt));
	for (int kind = 0; kind < KINDS; kind++) {
		uint32_t D = kind % 2 ? 2 : 8;

		CASE(select_case(3, 9000, 2048, D, kind, 16, salt));
		CASE(select_case(3, 9000, 2048, D, kind, 16, salt,
		    peers.at(D)));
	}
	CASE(select_case(24, 30000, 2048, 2, 0, 2048, salt, peers.at(2)));
	/* no more than k keys, but more than offers have room for */
	CASE(select_case(3, 7000, 8192, 4, 0, 4096, salt));
	CASE(select_case(3, 7000, 8192, 4, 0, 4096, salt, peers.at(4)));
	if (!brief) {
		CASE(select_case(2, 163905, 2048, 1, 0, 1024, salt));
		CASE(select_case(2, 600001, 2048, 2, 0, 1024, salt));
	}
	/* more keys than are offered while they are read */
	for (int kind = 0; kind < KINDS; kind++)
		for (uint32_t D : { 2u, 8u })
			for (uint32_t cap : { 16u, 4096u }) {
				if (brief && (kind % 4 || D == 8))
					continue;
				CASE(select_case(1, 65600 * D, 2048, D, kind,
				    cap, salt, peers.at(D)));
				CASE(select_case(1, 65600 * D, 2048, D, kind,
				    cap, salt));
			}
	CASE(select_case(130, 3000, 512, 1, 0, 4096, salt));
	for (int kind = 0; kind < KINDS && !brief; kind++) {
		CASE(select_case(32, 8192, 2048, 1, kind, 4096, salt));
		CASE(select_case(70, 8192, 2048, 1, kind, 4096, salt));
		CASE(select_case(132, 8200, 2048, 1, kind, 4096, salt));
		CASE(select_case(600, 4000, 1024, 2, kind, 4096, salt));
		CASE(select_case(600, 10000, 2048, 2, kind, 4096, salt));
	}
	CASE(select_case(40, 40000, 2048, 4, 0, 4096, salt));
	for (uint32_t n : { 1000u, 16384u })
		for (uint32_t k : { 512u, 2048u })
			for (bool window : { false, true })
				CASE(select_alone(n, k, window, salt));
}

int
main(int argc, char **argv)
{
	const char *wanted = "";

	setvbuf(stdout, NULL, _IOLBF, 0);

	if (argc > 1)
		seed = strtoull(argv[1], nullptr, 0);
	brief = argc > 2 && strcmp(argv[2], "short") == 0;
	if (argc > 2 + brief)
		wanted = argv[2 + brief];
	CALL(dcpg_init());
	part("attend", wanted, attend_tests);
	part("index", wanted, index_tests);
	part("rows", wanted, rows_tests);
	part("experts", wanted, experts_tests);
	part("int4", wanted, int4_tests);
	part("value", wanted, value_tests);
	part("query", wanted, query_tests);
	part("words", wanted, words_tests);
	printf("kernel_test: %d cases, %d failed (seed %llu)\n", cases,
	    failures, (unsigned long long)seed);
	return failures ? 1 : 0;
}
