/*
 * dcpg_query's inputs and what must come of them, for kernel_test, whose ranks
 * share a GPU, and peer_test, whose ranks have one each.
 */
#ifndef GPU_TEST_QUERIES_H
#define GPU_TEST_QUERIES_H

#include <algorithm>
#include <memory>

#include "kernels/cuda/dcpg.h"
#include "tests/gpu/gpu_test.h"

/* GAP: what stands behind a row's heads, which nobody is to write. */
enum { LATENT = 512, ROPE = 64, HEAD = LATENT + ROPE, GAP = 24 };

struct Shape {
	uint32_t rows, heads, nope, D, cols;
};

/* One of D ranks, on the current device: what it multiplies, twice, and two
 * places for the queries of all of them. */
struct Asker {
	std::vector<uint16_t> hx, hw;
	std::vector<float> hc, hs;
	Buf<uint16_t> x, w, q;
	Buf<float> cos, sin;

	Asker(const Shape &s, Rng &g)
	    : hx((size_t)2 * s.rows * s.heads * (s.nope + ROPE)),
	    hw((size_t)s.heads * LATENT * s.nope), hc(s.rows * ROPE / 2),
	    hs(hc.size()), x(hx.size()), w(hw.size()),
	    q((size_t)2 * s.rows * (s.D * s.heads * HEAD + GAP)),
	    cos(hc.size()), sin(hc.size())
	{
		for (auto &v : hx)
			v = to_bf16(g.normal());
		for (auto &v : hw)
			v = to_bf16(g.normal() / 16);
		for (size_t i = 0; i < hc.size(); i++) {
			double a = g.uniform() * 7;

			hc[i] = (float)::cos(a);
			hs[i] = (float)::sin(a);
		}
		x.put(hx);
		w.put(hw);
		cos.put(hc);
		sin.put(hs);
		q.poison();
		CHECK(cudaDeviceSynchronize());
	}
	struct dcpg_query
	args(const Shape &s) const
	{
		struct dcpg_query a = {};

		a.x = x.d;
		a.w = w.d;
		a.cos = cos.d;
		a.sin = sin.d;
		a.rows = s.rows;
		a.heads = s.heads;
		a.nope = s.nope;
		a.ranks = s.D;
		a.step = s.D * s.heads * HEAD + GAP;
		a.cols = s.cols;
		return a;
	}
};

/* What value d of row i's head h is to be, of the first rows or the second, and the sum of what
 * it is made of: an f32 sum is off by a share of that. */
inline double
wanted(const Asker &r, const Shape &s, uint32_t which, uint32_t i, uint32_t h,
    uint32_t d, double *of)
{
	const uint16_t *x = &r.hx[((size_t)(which * s.rows + i) * s.heads + h) *
	    (s.nope + ROPE)];
	uint32_t half = ROPE / 2, p = (d - LATENT) % half;
	double y = 0;

	*of = 0;
	if (d >= LATENT) {
		double a = from_bf16(x[s.nope + 2 * p]);
		double b = from_bf16(x[s.nope + 2 * p + 1]);
		double c = r.hc[i * half + p], t = r.hs[i * half + p];

		*of = fabs(a) + fabs(b);
		return d - LATENT < half ? a * c - b * t : b * c + a * t;
	}
	const uint16_t *w = &r.hw[((size_t)h * LATENT + d) * s.nope];
	for (uint32_t n = 0; n < s.nope; n++) {
		double v = from_bf16(x[n]) * from_bf16(w[n]);

		y += v;
		*of += fabs(v);
	}
	return y;
}

/* Of r's queries, the e-th rank's in q: not what they are to be, to half of
 * bf16's last place; and gaps that were written. */
inline size_t
wrong(const Asker &r, const Shape &s, uint32_t which, uint32_t e,
    const uint16_t *q)
{
	std::atomic<size_t> bad(0);

	parallel(s.rows, [&](size_t i) {
		const uint16_t *row = &q[i * (s.D * s.heads * HEAD + GAP)];
		size_t n = 0;

		for (uint32_t h = 0; h < s.heads; h++)
			for (uint32_t d = 0; d < HEAD; d++) {
				double of, want = wanted(r, s, which,
				    (uint32_t)i, h, d, &of);
				double got = from_bf16(row[((size_t)e *
				    s.heads + h) * HEAD + d]);

				n += !(fabs(got - want) <= fabs(want) *
				    0x1.01p-8 + of * 2e-6);
			}
		for (uint32_t d = 0; d < GAP; d++)
			n += row[s.D * s.heads * HEAD + d] != 0xffff;
		bad += n;
	});
	return bad;
}

/* As attention does: waits until no word of q is ones, or 5 s. words: of a row,
 * those behind it of a gap. */
__global__ void
await_q(const uint32_t *q, uint32_t rows, uint32_t words, uint32_t step)
{
	uint64_t t0 = dcpg::now_ns();

	for (uint32_t i = threadIdx.x; i < rows * words; i += blockDim.x) {
		const volatile uint32_t *at = q + (size_t)(i / words) * step +
		    i % words;

		while (*at == ~0u && dcpg::now_ns() - t0 < 5000000000ull)
			;
	}
}

struct Seat {
	int dev;
	cudaStream_t st;
	struct dcpg_peer peer;
};

/*
 * All ranks send, again and again, `late(d)` before rank d does; what is there
 * behind each launch is copied away before they meet. Errors. By arrivals: it is
 * poisoned then. By words, but for the first time: the kernel does that for the
 * next, elsewhere; what comes twice to a place is not the same.
 */
inline size_t
send_all(const Shape &s, Rng &g, const std::vector<Seat> &seat, bool words,
    const std::function<void(uint32_t)> &late)
{
	enum { TIMES = 24 };
	std::vector<std::unique_ptr<Asker>> r;
	std::vector<std::unique_ptr<Buf<uint16_t>>> had;
	size_t bad = 0, n = (size_t)s.rows * (s.D * s.heads * HEAD + GAP);

	for (const Seat &at : seat) {
		CHECK(cudaSetDevice(at.dev));
		r.emplace_back(new Asker(s, g));
		had.emplace_back(new Buf<uint16_t>(n * TIMES));
	}
	for (uint32_t t = 0; t < TIMES; t++)
		for (uint32_t d = 0; d < s.D; d++) {
			struct dcpg_query a = r[d]->args(s);
			cudaStream_t st = seat[d].st;
			uint16_t *q = r[d]->q.d + t % 2 * n;

			CHECK(cudaSetDevice(seat[d].dev));
			a.x = r[d]->x.d + t / 2 % 2 * (r[d]->x.n / 2);
			a.peer = seat[d].peer;
			if (words) {
				a.ones = t > 0;
				a.clear = r[d]->q.d + (t + 1) % 2 * n;
			}
			for (uint32_t e = 0; e < s.D; e++)
				a.to[e] = r[e]->q.d + t % 2 * n + (size_t)d *
				    s.heads * HEAD;
			late(d);
			CALL(dcpg_query(&a, st));
			if (a.ones)
				await_q<<<1, 512, 0, st>>>((uint32_t *)q,
				    s.rows, s.D * s.heads * HEAD / 2,
				    (s.D * s.heads * HEAD + GAP) / 2);
			CHECK(cudaMemcpyAsync(had[d]->d + t * n, q, n * 2,
			    cudaMemcpyDefault, st));
			if (!words)
				CHECK(cudaMemsetAsync(q, 0xff, n * 2, st));
			CALL(dcpg_peer_meet(&a.peer, st));
		}
	for (uint32_t d = 0; d < s.D; d++) {
		CHECK(cudaSetDevice(seat[d].dev));
		CHECK(cudaStreamSynchronize(seat[d].st));
		std::vector<uint16_t> all = had[d]->get();

		for (uint32_t t = 0; t < TIMES; t++)
			for (uint32_t e = 0; t < 3 && e < s.D; e++)
				bad += wrong(*r[e], s, t / 2 % 2, e,
				    &all[t * n]);
		for (uint32_t t = 4; t < TIMES; t++)
			bad += !std::equal(&all[t * n], &all[t * n + n],
			    &all[t % 4 * n]);
		for (uint32_t t : { 1u, 3u })
			bad += !std::equal(&all[t * n], &all[t * n + n],
			    &all[(t - 1) * n]);
	}
	return bad;
}

#endif
