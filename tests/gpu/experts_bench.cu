/*
 * Part of kernel_bench: routed experts, gate and up, down, the choice and the
 * sum. Every launch of a graph has its own routing, and the weights of a layer
 * are larger than the L2, so that they come from memory.
 *
 * Floor: bytes of the experts that have a slot over measured bandwidth, or
 * operations over measured rate, whichever is larger.
 */
#include "kernels/cuda/dcpg.h"
#include "kernels/keep.h"
#include "tests/gpu/gpu_test.h"

#include <algorithm>
#include <memory>

static const double HBM = 4.6e12, RATE = 788e12;
enum { SETS = 6, EACH = 8, HIDDEN = 7168 };
enum form { BF16, E4M3, INT4 };
static const char *const names[] = { "bf16", "e4m3", "int4" };

/* bf16 near 1, or e4m3 without NaN, or int4, and scales near 1/300. */
__global__ static void
fill_experts(uint8_t *p, size_t each, size_t E, size_t codes, form f)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	size_t n = each * E / 4;

	for (; i < n; i += (size_t)gridDim.x * blockDim.x) {
		uint32_t x = (uint32_t)(i >> 32) * 77777u ^
		    (uint32_t)i * 2654435761u;

		x ^= x >> 16;
		x *= 0x7feb352d;
		x ^= x >> 15;
		x *= 0x846ca68b;
		x ^= x >> 16;
		if (f == BF16)
			x = (x & 0x81ff81ff) | 0x3c003c00;
		else if (f == E4M3 ? i * 4 % each >= codes :
		    i * 4 % each % DCPK_INT4_TILE < DCPK_INT4_SCALES)
			x = 0x3b000000 | (x & 0x7fffff);
		else if (f == E4M3)
			x &= 0xf7f7f7f7;
		((uint32_t *)p)[i] = x;
	}
}

/* A routing and its slots. */
struct Route {
	Buf<uint32_t> eid, slot, row, first, tile0, tile_e;
	Buf<float> ew;
	uint32_t experts = 0;	/* that have a slot */

	Route(uint32_t rows, uint32_t E, Rng &g) : eid(rows * EACH),
	    slot(eid.n), row(eid.n), first(E + 1), tile0(E + 1),
	    tile_e(eid.n / 16 + E + 1), ew(eid.n)
	{
		std::vector<uint32_t> id, all(E);
		std::vector<bool> seen(E);

		for (uint32_t i = 0; i < E; i++)
			all[i] = i;
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t i = 0; i < EACH; i++) {
				std::swap(all[i], all[i + g.below(E - i)]);
				id.push_back(all[i]);
				experts += !seen[all[i]];
				seen[all[i]] = true;
			}
		eid.put(id);
		ew.put(std::vector<float>(id.size(), 0.3f));
	}

	void
	sort(uint32_t rows, uint32_t E, uint32_t tile, cudaStream_t st)
	{
		struct dcpg_slots a = { eid.d, rows, EACH, E, tile, slot.d,
		    row.d, first.d, tile0.d, tile_e.d, nullptr };

		CALL(dcpg_slots(&a, st));
	}
};

struct ExpertBed {
	uint32_t E, n, most;	/* n: of gate; most rows */
	form f;
	size_t up_bytes, down_bytes;
	Buf<uint8_t> gate, up, down;
	Buf<uint16_t> x, act;
	Buf<float> xs, out, h, router, bias, y, ew;
	Buf<uint32_t> eid;

	static size_t
	bytes(form f, uint32_t n, uint32_t k)
	{
		return f == INT4 ? dcpk_int4_bytes(n, k) : f == E4M3 ?
		    dcpk_fp8_bytes(n, k) : (size_t)n * k * 2;
	}

	ExpertBed(uint32_t E_, uint32_t n_, uint32_t most_, form f_) : E(E_),
	    n(n_), most(most_), f(f_), up_bytes(bytes(f, n, HIDDEN)),
	    down_bytes(bytes(f, HIDDEN, n)), gate(up_bytes * E),
	    up(up_bytes * E), down(down_bytes * E), x((size_t)most * HIDDEN),
	    act((size_t)most * EACH * n),
	    xs((size_t)most * EACH * (HIDDEN / 128)),
	    out((size_t)most * EACH * HIDDEN),
	    h((size_t)most * HIDDEN), router((size_t)E * HIDDEN), bias(E),
	    y((size_t)most * HIDDEN), ew(most * EACH), eid(most * EACH)
	{
		std::vector<float> r(router.n), hh(h.n);
		Rng g(5);

		fill_experts<<<2048, 256>>>(gate.d, up_bytes, E,
		    (size_t)n * HIDDEN, f);
		fill_experts<<<2048, 256>>>(up.d, up_bytes, E,
		    (size_t)n * HIDDEN, f);
		fill_experts<<<2048, 256>>>(down.d, down_bytes, E,
		    (size_t)n * HIDDEN, f);
		fill_experts<<<2048, 256>>>((uint8_t *)x.d, x.n * 2, 1, x.n * 2,
		    f == BF16 ? BF16 : E4M3);
		fill_experts<<<2048, 256>>>((uint8_t *)act.d, act.n * 2, 1,
		    act.n * 2, f == BF16 ? BF16 : E4M3);
		xs.put(std::vector<float>(xs.n, 1.0f / 300));
		for (auto &v : r)
			v = (float)(g.uniform() - 0.5) / 40;
		for (auto &v : hh)
			v = (float)(g.uniform() - 0.5) * 2;
		router.put(r);
		h.put(hh);
		bias.put(std::vector<float>(E, 0));
		CHECK(cudaDeviceSynchronize());
	}

	/* of slots; int4 has no shapes */
	uint32_t
	tile(uint32_t rows, uint32_t shape) const
	{
		return f == INT4 ? dcpg_expert_tile4(rows, EACH, E) :
		    dcpg_expert_tile(rows, EACH, E, shape);
	}

	/* y as bf16, as ffn.cu has it */
	bool
	many(uint32_t rows) const
	{
		return rows > 64 && f != INT4;
	}

	void
	product(Route &r, uint32_t rows, bool glu, uint32_t shape,
	    uint32_t split, bool early, cudaStream_t st)
	{
		struct dcpg_experts a = {};

		a.x = glu ? x.d : act.d;
		if (f == E4M3) {
			a.x_scale = xs.d;
			a.x_scale_ld = glu ? rows : rows * EACH;
		}
		a.slot_row = glu ? r.row.d : nullptr;
		a.w = glu ? gate.d : down.d;
		a.w2 = glu ? up.d : nullptr;
		a.first = r.first.d;
		a.tile0 = r.tile0.d;
		a.tile_e = r.tile_e.d;
		a.rows = rows;
		a.each = EACH;
		a.experts = E;
		a.n = glu ? n : HIDDEN;
		a.k = glu ? HIDDEN : n;
		a.fp8 = f == E4M3;
		a.int4 = f == INT4;
		a.tile = tile(rows, 0);
		a.x_unit = a.y_unit = 0.05f;
		a.early = early;
		a.y16 = glu ? (void *)act.d : many(rows) ? out.d : nullptr;
		a.y = glu || many(rows) ? nullptr : out.d;
		a.shape = shape;
		a.split = split;
		CALL(dcpg_experts(&a, st));
	}

	void
	route(uint32_t rows, cudaStream_t st)
	{
		struct dcpg_route a = { h.d, router.d, bias.d, rows, HIDDEN, E,
		    EACH, E == 256 ? 8u : 1u, E == 256 ? 4u : 1u, true, 2.5f,
		    eid.d, ew.d, out.d, out.n };

		CALL(dcpg_route(&a, st));
	}

	void
	combine(Route &r, uint32_t rows, cudaStream_t st)
	{
		struct dcpg_combine a = { r.eid.d, r.slot.d, r.ew.d, out.d,
		    many(rows), rows, EACH, HIDDEN, true, y.d };

		CALL(dcpg_combine(&a, st));
	}
};

static void
bench_rows(ExpertBed &b, uint32_t rows, bool sweep)
{
	std::vector<std::unique_ptr<Route>> r;
	double experts = 0, slots = (double)rows * EACH;
	Rng g(rows + 11);

	for (int i = 0; i < SETS; i++) {
		r.emplace_back(new Route(rows, b.E, g));
		experts += (double)r[i]->experts / SETS;
		r[i]->sort(rows, b.E, b.tile(rows, 0), nullptr);
	}
	CHECK(cudaDeviceSynchronize());
	for (int glu = 1; glu >= 0; glu--) {
		double bytes = experts * (glu ? 2 * b.up_bytes : b.down_bytes);
		double flops = slots * (glu ? 4.0 : 2.0) * b.n * HIDDEN;
		double f = std::max(bytes / HBM, flops / RATE) * 1e6, t;

		t = replay(SETS, [&](int i, cudaStream_t st) {
			b.product(*r[i], rows, glu, 0, 0, false, st);
		});
		printf("%s E=%-3u n=%-4u b=%-4u %-7s %8.2f floor %8.2f "
		    "(%.2fx)", names[b.f], b.E, b.n, rows,
		    glu ? "gate+up" : "down", t, f, t / f);
		for (uint32_t sh = 1; sweep && b.f != INT4 &&
		    dcpg_expert_tile(1, 1, 1, sh) != 0; sh++)
			for (uint32_t sp = 1; sp <= 4; sp *= 2) {
				uint32_t tile = dcpg_expert_tile(rows, EACH,
				    b.E, sh);

				if ((tile == 128) != (rows > 64) ||
				    (rows <= 16 && tile != 16) ||
				    (sp > 1 && (rows > 8 || !glu)))
					continue;
				for (auto &x : r)
					x->sort(rows, b.E, b.tile(rows, sh),
					    nullptr);
				t = replay(SETS, [&](int i, cudaStream_t st) {
					b.product(*r[i], rows, glu, sh, sp,
					    false, st);
				});
				printf(" %u/%u:%.2f", sh, sp, t);
			}
		printf("\n");
		for (auto &x : r)
			x->sort(rows, b.E, b.tile(rows, 0), nullptr);
	}
	double route = replay(SETS, [&](int, cudaStream_t st) {
		b.route(rows, st);
	});
	double sort = replay(SETS, [&](int i, cudaStream_t st) {
		r[i]->sort(rows, b.E, b.tile(rows, 0), st);
	});
	double sum = replay(SETS, [&](int i, cudaStream_t st) {
		b.combine(*r[i], rows, st);
	});
	double all[2];
	for (int early = 0; early < 2; early++)
		all[early] = replay(SETS, [&](int i, cudaStream_t st) {
			b.route(rows, st);
			r[i]->sort(rows, b.E, b.tile(rows, 0), st);
			b.product(*r[i], rows, true, 0, 0, false, st);
			b.product(*r[i], rows, false, 0, 0, early, st);
			b.combine(*r[i], rows, st);
		});
	double f = std::max(experts * (2 * b.up_bytes + b.down_bytes) / HBM,
	    slots * 6.0 * b.n * HIDDEN / RATE) * 1e6;
	printf("%s E=%-3u n=%-4u b=%-4u route %.2f slots %.2f combine %.2f; "
	    "all %.2f, down early %.2f floor %.2f (%.2fx)\n", names[b.f], b.E,
	    b.n, rows, route, sort, sum, all[0], all[1], f, all[1] / f);
	fflush(stdout);
}

/* Linear layers of few rows in FP8: V3.2's on one and on two ranks. */
void
bench_linear(bool sweep)
{
	static const struct {
		const char *what;
		uint32_t n, k;
	} layers[] = {
		{ "q_a, index key, kv_a", 2240, 7168 },
		{ "q_b", 24576, 1536 }, { "q_b/2", 12288, 1536 },
		{ "index q_b", 8192, 1536 },
		{ "o", 7168, 16384 }, { "o/2", 7168, 8192 },
		{ "shared gate, up", 4096, 7168 },
		{ "shared gate, up/2", 2048, 7168 },
		{ "shared down", 7168, 2048 },
		{ "shared down/2", 7168, 1024 },
	};
	const uint32_t ROWS = 64;

	for (auto &l : layers) {
		size_t bytes = dcpk_fp8_bytes(l.n, l.k);
		size_t sets = std::max((size_t)2, (400u << 20) / bytes + 1);
		Buf<uint8_t> w(bytes * sets), x((size_t)ROWS * l.k);
		Buf<float> xs((size_t)ROWS * (l.k / 128));
		Buf<float> y((size_t)ROWS * l.n);

		fill_experts<<<2048, 256>>>(w.d, bytes, sets,
		    (size_t)l.n * l.k, E4M3);
		fill_experts<<<2048, 256>>>(x.d, x.n, 1, x.n, E4M3);
		xs.put(std::vector<float>(xs.n, 1.0f / 300));
		CHECK(cudaDeviceSynchronize());
		for (uint32_t m : { 1u, 8u, 16u, 32u, 64u }) {
			struct dcpg_linear a = {};
			double t, f = bytes / HBM * 1e6;

			a.x = x.d;
			a.x_scale = xs.d;
			a.x_scale_ld = (m + 3) / 4 * 4;
			a.rows = m;
			a.n = l.n;
			a.k = l.k;
			auto one = [&](int i, cudaStream_t st) {
				uint8_t *at = w.d + (size_t)i % sets * bytes;

				a.w = at;
				a.scale = (float *)(at + (size_t)l.n * l.k);
				a.y = y.d;
				CALL(dcpg_linear(&a, st));
			};
			t = replay((int)sets, one);
			printf("linear e4m3 %-20s m=%-3u %7.2f floor %6.2f "
			    "(%.2fx)", l.what, m, t, f, t / f);
			for (uint32_t sp = 1; sweep && sp <= 8; sp++) {
				a.split = sp;
				printf(" /%u:%.2f", sp,
				    replay((int)sets, one));
			}
			a.split = 0;
			printf("\n");
			fflush(stdout);
		}
	}
}

/* Both products of many rows: V3.2's experts on eight ranks, an eighth of them
 * on one. */
void
bench_many(void)
{
	for (form f : { BF16, E4M3 })
		for (uint32_t E : { 256u, 32u }) {
			uint32_t n = E == 256 ? 256 : 2048;
			ExpertBed b(E, n, 4096, f);

			for (uint32_t rows : { 1024u, 2048u, 4096u }) {
				Rng g(rows + 11);
				Route r(rows, E, g);
				double flops = rows * EACH * 2.0 * n * HIDDEN;

				r.sort(rows, E, b.tile(rows, 0), nullptr);
				CHECK(cudaDeviceSynchronize());
				printf("many rows %s E=%-3u n=%-4u b=%u:",
				    names[f], E, n, rows);
				for (int glu = 1; glu >= 0; glu--) {
					double t = replay(2, [&](int,
					    cudaStream_t st) {
						b.product(r, rows, glu, 0, 0,
						    false, st);
					});

					printf(" %s %.1f (%.0f TFLOP/s)",
					    glu ? "gate+up" : "down", t,
					    flops * (glu + 1) / t * 1e-6);
				}
				printf("\n");
				fflush(stdout);
			}
		}
}

/* Router and choice: chosen, and by each way. Floor: h once. */
void
bench_route(void)
{
	const uint32_t MOST = 8192, E = 256;
	Buf<float> h((size_t)MOST * HIDDEN), w((size_t)E * HIDDEN), bias(E);
	Buf<float> part((size_t)MOST * E * 32 + (size_t)E * (HIDDEN + 1) + 32);
	Buf<float> ew(MOST * EACH);
	Buf<uint32_t> eid(MOST * EACH);
	std::vector<float> hv(h.n), wv(w.n);
	Rng g(5);

	for (auto &v : hv)
		v = (float)(g.uniform() - 0.5) * 2;
	for (auto &v : wv)
		v = (float)(g.uniform() - 0.5) / 40;
	h.put(hv);
	w.put(wv);
	bias.put(std::vector<float>(E, 0));
	for (uint32_t rows : { 64u, 128u, 256u, 512u, 1024u, 2048u, 4096u,
	    8192u }) {
		printf("router, %u experts, %u rows, groups %u of %u:", E, rows,
		    4u, 8u);
		for (uint32_t way = 0; way < 3; way++) {
			struct dcpg_route a = { h.d, w.d, bias.d, rows, HIDDEN,
			    E, EACH, 8, 4, true, 2.5f, eid.d, ew.d, part.d,
			    part.n, way };
			double t = replay(SETS, [&](int, cudaStream_t st) {
				CALL(dcpg_route(&a, st));
			});

			printf(" %s %.2f", way == 0 ? "chosen" : way == 1 ?
			    "few" : "many", t);
		}
		printf(" floor %.2f\n", rows * (HIDDEN * 4.0) / HBM * 1e6);
		fflush(stdout);
	}
}

void
bench_experts(bool sweep)
{
	printf("routed experts, hidden 7168, 8 a row, us (x floor)\n");
	for (form f : { BF16, E4M3, INT4 }) {
		{
			ExpertBed b(16, 1024, 64, f);

			for (uint32_t rows : { 1, 2, 8, 32, 64 })
				bench_rows(b, rows, sweep);
		}
		ExpertBed b(256, 256, 8192, f);

		for (uint32_t rows : { 1, 2, 4, 8, 32, 64, 2048, 8192 })
			bench_rows(b, rows, sweep);
	}
}
