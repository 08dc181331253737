/*
 * Part of kernel_test: index scores of prefill. Nothing may be written behind a
 * row's end; keys and query rows that nobody may read hold NaN.
 */
#include "kernels/cuda/dcpg.h"
#include "tests/gpu/gpu_test.h"

#include <algorithm>

/* Query rows of a prefill: ends that ascend, every q_step-th row of q. */
struct RowsCase {
	uint32_t rows, heads, keys, page_rows;	/* 0: keys stand in order */
	uint32_t q_step, least, chunk;
	bool dense;		/* rows end one key apart, else anywhere */
};

static void
rows_case(const RowsCase &c, uint64_t salt)
{
	Rng g(seed * 86028121 + salt);
	uint32_t P = c.page_rows ? c.page_rows : 1, H = c.heads;
	uint32_t pages = (c.keys + P - 1) / P, pool = c.page_rows ? pages * 2 +
	    3 : pages, stride = (c.keys + 7) & ~3u;
	size_t qrows = (size_t)(c.rows - 1) * c.q_step + 1;
	std::vector<double> q(c.rows * H * 128ull), k(c.keys * 128ull);
	std::vector<uint8_t> q8(qrows * H * 128, 0x7f);		/* NaN */
	std::vector<uint8_t> keys((size_t)pool * P * 128, 0x7f);
	std::vector<float> w(qrows * H, NAN), ks(pool * P, NAN);
	std::vector<uint32_t> table, len, at;

	for (uint32_t i = 0; i < pool; i++)
		table.push_back(i);
	for (uint32_t i = pool - 1; c.page_rows && i > 0; i--)
		std::swap(table[i], table[g.below(i + 1)]);
	for (uint32_t i = 0; i < c.rows; i++)
		len.push_back(!c.dense ? 1 + g.below(c.keys) :
		    c.keys + i + 1 > c.rows ? c.keys + i + 1 - c.rows : 1);
	std::sort(len.begin(), len.end());
	len.back() = c.keys;
	for (uint32_t j = 0; j < c.keys; j++) {
		at.push_back(table[j / P] * P + j % P);
		ks[at[j]] = (float)(exp2(g.normal()) / 448);
		for (int i = 0; i < 128; i++) {
			uint8_t b = to_e4m3(g.normal() * 100);

			keys[(size_t)at[j] * 128 + i] = b;
			k[j * 128ull + i] = from_e4m3(b);
		}
	}
	for (uint32_t i = 0; i < c.rows; i++)
		for (uint32_t h = 0; h < H; h++) {
			size_t row = (size_t)i * c.q_step;

			w[row * H + h] = (float)g.normal() / 448;
			for (int d = 0; d < 128; d++) {
				uint8_t b = to_e4m3(g.normal() * 100);

				q8[row * H * 128 + dcpg_q8_place(H, h, d)] = b;
				q[((size_t)i * H + h) * 128 + d] = from_e4m3(b);
			}
		}
	Buf<uint8_t> dq(q8), dk(keys);
	Buf<float> dw(w), ds(ks), score((size_t)c.rows * stride);
	Buf<uint32_t> dt(table), dl(len), hist(c.rows * DCPG_BINS);
	struct dcpg_index_rows a = {};
	a.q8 = dq.d;
	a.w = dw.d;
	a.keys = dk.d;
	a.kscale = ds.d;
	a.table = c.page_rows ? dt.d : nullptr;
	a.len = dl.d;
	a.score = score.d;
	a.hist = hist.d;
	a.rows = c.rows;
	a.heads = H;
	a.q_step = c.q_step;
	a.stride = stride;
	a.keys_n = c.keys;
	a.page_rows = c.page_rows;
	a.least = c.least;
	a.chunk = c.chunk;
	score.poison();
	hist.poison();
	CALL(dcpg_index_rows(&a, STREAM));
	CALL(dcpg_index_count(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<float> hs = score.get();
	std::vector<uint32_t> hh = hist.get(), ref(hist.n);
	std::vector<double> err(c.rows), norm(c.rows, 1e-300);
	std::vector<uint32_t> stray(c.rows);
	parallel(c.rows, [&](size_t r) {
		uint32_t n = len[r] > c.least ? len[r] : 0, u;

		for (uint32_t j = 0; j < n; j++) {
			double sum = 0, size = 0;

			for (uint32_t h = 0; h < H; h++) {
				const double *x = &q[(r * H + h) * 128];
				double d = 0;

				for (int i = 0; i < 128; i++)
					d += x[i] * k[j * 128ull + i];
				d = fmax(d, 0) * w[r * c.q_step * H + h];
				sum += d;
				size += d * d;
			}
			double e = hs[r * stride + j] - sum * ks[at[j]];
			err[r] += e * e;
			/* of the heads' parts: a sum may be near zero */
			norm[r] += size * ks[at[j]] * ks[at[j]];
			ref[r * DCPG_BINS + digit_of(hs[r * stride + j])]++;
		}
		for (uint32_t j = n; j < stride; j++) {
			memcpy(&u, &hs[r * stride + j], 4);
			stray[r] += u != 0xffffffff;
		}
	});
	double worst = 0;
	uint32_t strays = 0;
	for (uint32_t r = 0; r < c.rows; r++) {
		if (!(sqrt(err[r] / norm[r]) <= worst))
			worst = sqrt(err[r] / norm[r]);
		strays += stray[r];
	}
	char what[200];
	snprintf(what, sizeof what, "index rows=%u H=%u keys=%u page=%u "
	    "q_step=%u least=%u chunk=%u %s: rel %.1e, %u written "
	    "behind an end, histogram %s", c.rows, H, c.keys, c.page_rows,
	    c.q_step, c.least, c.chunk, c.dense ? "dense" : "spread",
	    worst, strays, hh == ref ? "equal" : "DIFFERS");
	verdict(worst < 2e-3 && strays == 0 && hh == ref, what);
}

void
rows_tests(void)
{
	static const uint32_t odd[] = { 1, 2, 63, 64, 65, 255, 383, 384, 385,
	    513, 1300 };
	uint64_t salt = 0;

	for (uint32_t h = 8; h <= 64; h *= 2) {
		RowsCase c = { 37, h, brief ? 400u : 1300u, 64, 1, 0, 16,
		    true };

		CASE(rows_case(c, salt));
		c.page_rows = 8;
		c.q_step = 3;
		c.dense = false;
		c.chunk = 512;
		c.least = 256;
		CASE(rows_case(c, salt));
	}
	for (uint32_t n : odd)
		for (uint32_t h = 16; h <= 64 && !brief; h *= 2) {
			RowsCase c = { n < 100 ? 70u : 9u, h, n, 0, 2, 0, 0,
			    n % 2 == 0 };

			CASE(rows_case(c, salt));
			c.rows = 1;
			c.page_rows = 16;
			CASE(rows_case(c, salt));
		}
	if (!brief) {
		RowsCase wide = { 600, 64, 2500, 1, 1, 2048, 0, true };
		RowsCase deep = { 3, 32, 20000, 64, 8, 0, 0, true };

		CASE(rows_case(wide, salt));
		CASE(rows_case(deep, salt));
	}
}
