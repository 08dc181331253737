/*
 * kernel_test's part value: dcpg_value against float64 on the CPU, its codes
 * against what its own bf16 make, to the bit; and where attention sends it what
 * it needs while it waits, to the bit against the two one after the other.
 * Attention whose queries do not come.
 */
#include <memory>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/peers.h"

/* Codes and scales are those of y, to the bit, and what fills up is there. */
static bool
codes_ok(const struct dcpg_value &a, const std::vector<uint16_t> &y,
    const std::vector<uint8_t> &code, const std::vector<float> &scale)
{
	uint32_t k = a.heads * a.values, m4 = (a.rows + 3) / 4 * 4;
	size_t bad = 0;

	for (uint32_t i = 0; i < m4; i++)
		for (uint32_t b = 0; b < k / 128; b++) {
			float v[128], top = 0, s;

			for (uint32_t j = 0; j < 128; j++) {
				v[j] = i < a.rows ? from_bf16(y[(size_t)i * k +
				    b * 128 + j]) : 0;
				top = fmaxf(top, fabsf(v[j]));
			}
			s = top / 448.0f;
			if (a.y8.pow2) {
				int e;
				float m = frexpf(fmaxf(s, 1e-4f / 448), &e);

				s = ldexpf(1, m == 0.5f ? e - 1 : e);
			}
			bad += scale[(size_t)b * m4 + i] != s;
			for (uint32_t j = 0; j < 128; j++)
				bad += code[(size_t)i * k + b * 128 + j] !=
				    __nv_cvt_float_to_fp8(s > 0 ? v[j] / s : 0,
				    __NV_SATFINITE, __NV_E4M3);
		}
	return bad == 0;
}

/* One rank of D. Some ranks saw no key of a row (-inf), one says NaN or +inf,
 * and what such a partial output holds must not be read as a number. */
static void
value_case(uint32_t rows, uint32_t heads, uint32_t D, uint32_t values,
    uint64_t salt)
{
	std::shared_lock<std::shared_mutex> shared(gpu);
	Rng g(seed * 49979687 + salt);
	uint32_t rank = g.below(D);
	size_t all = (size_t)rows * D * heads;
	std::vector<std::vector<uint16_t>> p(D);
	std::vector<std::vector<float>> l(D);
	std::vector<uint16_t> w((size_t)heads * values * 512);
	std::vector<Buf<uint16_t> *> dp;
	std::vector<Buf<float> *> dl;
	struct dcpg_value a = {};

	for (auto &x : w)
		x = to_bf16(g.normal() / 16);
	for (uint32_t e = 0; e < D; e++) {
		for (size_t i = 0; i < all; i++) {
			int none = D == 1 ? 0 : (int)g.below(6);

			l[e].push_back(none == 0 && D > 1 ? -INFINITY :
			    none == 1 && g.below(4) == 0 ? NAN :
			    none == 2 && g.below(4) == 0 ? INFINITY :
			    (float)g.normal() * 3);
			for (int c = 0; c < 512; c++)
				p[e].push_back(l[e][i] < INFINITY &&
				    l[e][i] > -INFINITY ?
				    to_bf16(g.normal()) : 0xffff);
		}
		dp.push_back(new Buf<uint16_t>(p[e]));
		dl.push_back(new Buf<float>(l[e]));
		a.part[e] = dp[e]->d + (size_t)rank * heads * 512;
		a.lse[e] = dl[e]->d + (size_t)rank * heads;
	}
	Buf<uint16_t> dw(w), y((size_t)rows * heads * values);
	uint32_t m4 = (rows + 3) / 4 * 4;
	Buf<uint8_t> code((size_t)m4 * heads * values);
	Buf<float> scale((size_t)m4 * heads * values / 128);
	y.poison();
	code.poison();
	scale.poison();
	if (salt % 3 != 0 && values % 128 == 0) {
		a.y8.code = code.d;
		a.y8.scale = scale.d;
		a.y8.pow2 = salt % 3 == 2;
	}
	a.w = dw.d;
	a.y = y.d;
	a.rows = rows;
	a.heads = heads;
	a.values = values;
	a.row_heads = D * heads;
	a.ranks = D;
	CALL(dcpg_value(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<uint16_t> got = y.get();
	std::vector<double> worst(rows);
	parallel(rows, [&](size_t i) {
		for (uint32_t h = 0; h < heads; h++) {
			size_t at = (i * D + rank) * heads + h;
			std::vector<double> o(512);
			double m = -INFINITY, den = 0, err = 0, size = 0;

			for (uint32_t e = 0; e < D; e++)
				if (l[e][at] < INFINITY)
					m = fmax(m, l[e][at]);
			for (uint32_t e = 0; e < D && m > -INFINITY; e++) {
				double x = l[e][at] < INFINITY &&
				    l[e][at] > -INFINITY ?
				    exp(l[e][at] - m) : 0;

				den += x;
				for (int c = 0; c < 512 && x > 0; c++)
					o[c] += x * from_bf16(p[e][at * 512 +
					    c]);
			}
			for (uint32_t n = 0; n < values; n++) {
				double want = 0, d;

				for (int c = 0; c < 512 && den > 0; c++)
					want += o[c] / den * from_bf16(w[((size_t)
					    h * values + n) * 512 + c]);
				d = from_bf16(got[(i * heads + h) * values +
				    n]) - want;
				err += d * d;
				size += want * want;
			}
			err = size > 0 ? sqrt(err / size) : sqrt(err);
			worst[i] = err >= worst[i] || err != err ? err :
			    worst[i];
		}
	});
	bool ok = a.y8.code == NULL || codes_ok(a, got, code.get(),
	    scale.get());
	for (double e : worst)	/* o and y are rounded to bf16 */
		ok &= e < 6e-3;
	for (auto x : dp)
		delete x;
	for (auto x : dl)
		delete x;
	char what[100];
	snprintf(what, sizeof what, "value rows=%u heads=%u D=%u values=%u%s",
	    rows, heads, D, values, a.y8.code == NULL ? "" : a.y8.pow2 ?
	    " codes 2^n" : " codes");
	verdict(ok, what);
}

/* One of D ranks that share a GPU: its pool, and what the others send it. That
 * what comes while kernels run is what came before they began is all that is
 * tested with it; what they make of it, value_case() and kernel_test's. */
struct Sent {
	Buf<uint8_t> pool;
	Buf<uint16_t> q, po, y, next;
	Buf<uint32_t> list, count;
	Buf<float> lse, next_lse;
	Buf<struct dcpg_part> to;
	Buf<uint8_t> work;
	struct dcpg_attend a = {};
	struct dcpg_value v = {};

	Sent(uint32_t rows, uint32_t heads, uint32_t D, bool fp8, Rng &g)
	    : pool((size_t)KEYS * (fp8 ? 656 : 1152)),
	    q((size_t)rows * D * heads * 576),
	    po((size_t)D * rows * heads * 512), y((size_t)rows * heads * 128),
	    next(po.n), list((size_t)rows * KEYS), count(rows),
	    lse((size_t)D * rows * heads), next_lse(lse.n), to(D),
	    work(DCPG_ATTEND_WORK)
	{
		std::vector<uint8_t> x(pool.n);
		std::vector<uint32_t> l(list.n), n(rows);

		for (uint32_t r = 0; r < KEYS; r++) {
			uint8_t *row = &x[r * (x.size() / KEYS)];
			uint32_t codes = fp8 ? 512 : 0, at = fp8 ? 528 : 0;

			for (uint32_t i = 0; i < codes; i++)
				row[i] = to_e4m3(g.normal() * 100);
			for (uint32_t i = 0; fp8 && i < 4; i++) {
				float f = (float)exp2(g.normal()) / 100;

				memcpy(row + 512 + 4 * i, &f, 4);
			}
			for (; at < x.size() / KEYS; at += 2) {
				uint16_t v = to_bf16(g.normal());

				memcpy(row + at, &v, 2);
			}
		}
		pool.put(x);
		for (uint32_t i = 0; i < l.size(); i++)
			l[i] = g.below(KEYS);
		list.put(l);
		for (auto &p : n)
			p = g.below(4) == 0 ? 0 : g.below(KEYS + 1);
		count.put(n);
		work.poison();	/* ones, as they must be */
		a.q = q.d;
		a.pool = pool.d;
		a.list = list.d;
		a.count = count.d;
		a.to = to.d;
		a.work = work.d;
		a.parts = D;
		a.rows = rows;
		a.heads = D * heads;
		a.list_stride = a.max_count = KEYS;
		a.kv = fp8 ? DCPK_KV_FP8 : DCPK_KV_BF16;
		a.scale = 0.05f;
		a.splits = 2;	/* of all ranks there is room at once */
		a.team = 1;
	}
	static const uint32_t KEYS = 200;
};

/* The group is D of the world's ranks, from `first` on. */
static void
sent_case(uint32_t rows, uint32_t heads, uint32_t D, bool fp8, uint32_t first,
    uint32_t world, uint64_t salt)
{
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 15485863 + salt);
	Peers peers(world);
	std::vector<std::unique_ptr<Sent>> r;
	std::vector<std::vector<uint16_t>> want;
	std::vector<uint16_t> q((size_t)rows * D * heads * 576);
	std::vector<uint16_t> w((size_t)heads * 128 * 512);
	uint32_t wrong = 0, kept = 0;

	for (auto &x : q)
		x = to_bf16(g.normal());
	for (auto &x : w)
		x = to_bf16(g.normal() / 16);
	Buf<uint16_t> dw(w);
	/* q comes by these: what delays it runs before all SMs are full */
	std::vector<cudaStream_t> ask(D);
	uint16_t *hq;	/* copied by no SM */
	for (cudaStream_t &st : ask)
		CHECK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	CHECK(cudaMallocHost(&hq, q.size() * 2));
	memcpy(hq, q.data(), q.size() * 2);
	for (uint32_t d = 0; d < D; d++) {
		r.emplace_back(new Sent(rows, heads, D, fp8, g));
		r[d]->q.put(q);
	}
	for (uint32_t d = 0; d < D; d++) {
		struct dcpg_attend &a = r[d]->a;
		struct dcpg_value &v = r[d]->v;
		struct dcpg_peer p = peers.of(first + d);
		std::vector<struct dcpg_part> to;

		for (uint32_t e = 0; e < D; e++)
			to.push_back({ r[e]->po.d, r[e]->lse.d,
			    dcpg::peer_arrivals(p, first + e, first + d) });
		r[d]->to.put(to);
		a.self = d;
		v.w = dw.d;
		v.y = r[d]->y.d;
		v.rows = rows;
		v.heads = v.row_heads = heads;
		v.values = 128;
		v.ranks = D;
		for (uint32_t e = 0; e < D; e++) {
			v.part[e] = r[d]->po.d + (size_t)e * rows * heads * 512;
			v.lse[e] = r[d]->lse.d + (size_t)e * rows * heads;
		}
		CALL(dcpg_attend(&a, STREAM));
	}
	for (auto &x : r)
		CALL(dcpg_value(&x->v, STREAM));
	CHECK(cudaDeviceSynchronize());
	for (auto &x : r)
		want.push_back(x->y.get());
	for (uint32_t n = 0; n < 20; n++) {
		for (auto &x : r) {
			x->po.poison();
			x->lse.poison();
			x->y.poison();
			if (n % 2 == 1)
				x->q.poison();
			CHECK(cudaMemset(x->next.d, 0, x->next.n * 2));
			CHECK(cudaMemset(x->next_lse.d, 0, x->next_lse.n * 4));
		}
		CHECK(cudaDeviceSynchronize());
		/* .. and q comes while they run. */
		for (uint32_t d = 0; n % 2 == 1 && d < D; d++) {
			delay(ask[d], g.below(3) * 20000);
			CHECK(cudaMemcpyAsync(r[d]->q.d, hq, q.size() * 2,
			    cudaMemcpyHostToDevice, ask[d]));
		}
		for (uint32_t d = 0; d < D; d++) {
			struct dcpg_attend a = r[d]->a;
			struct dcpg_value v = r[d]->v;
			cudaStream_t st = peers.stream[first + d];

			delay(st, g.below(3) * 20000);
			/* poison is ones: their words tell, or arrivals */
			v.ones = n % 2 == 1;
			a.arrive = !v.ones;
			if (a.arrive)
				v.arrivals = dcpg_attend_arrivals(&a);
			v.clear = r[d]->next.d;
			v.clear_lse = r[d]->next_lse.d;
			v.peer = peers.of(first + d);
			v.first = first;
			a.q_ones = v.ones;
			a.peer = v.peer;
			a.first = first;
			CALL(dcpg_attend(&a, st));
			CALL(dcpg_value(&v, st));
		}
		CHECK(cudaDeviceSynchronize());
		for (uint32_t d = 0; d < D; d++) {
			wrong += r[d]->y.get() != want[d];
			for (uint16_t x : r[d]->next.get())
				kept += x != 0xffff;
			for (float x : r[d]->next_lse.get())
				kept += !isnan(x);
		}
	}
	for (cudaStream_t st : ask)
		CHECK(cudaStreamDestroy(st));
	CHECK(cudaFreeHost(hq));
	char what[200];
	snprintf(what, sizeof what, "value of what is sent, %s rows=%u "
	    "heads=%u D=%u from rank %u of %u: %u of %u wrong, %u words not "
	    "cleared%s", fp8 ? "fp8" : "bf16", rows, heads, D, first, world,
	    wrong, 20 * D, kept, peers.lost() ? ", waited in vain" : "");
	verdict(wrong + kept == 0 && !peers.lost(), what);
}

/* Attention whose third owner's queries do not come, of four that begin at rank
 * 4: it ends, names rank 6, and no word of its outputs is ones. */
static void
q_away_case(bool fp8, uint32_t splits, uint64_t salt)
{
	enum { ROWS = 2, HEADS = 8, D = 4, FIRST = 4, AWAY = 2, SELF = 5 };
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 32452867 + salt);
	Peers peers(8);
	Sent r(ROWS, HEADS, D, fp8, g);
	std::vector<uint16_t> q(r.q.n), po;
	std::vector<struct dcpg_part> to;
	size_t one = ROWS * HEADS;	/* each owner's, behind each other */
	bool ok;

	for (size_t i = 0; i < q.size(); i++)
		q[i] = i / (HEADS * 576) % D == AWAY ? 0xffff :
		    to_bf16(g.normal());
	r.q.put(q);
	for (uint32_t e = 0; e < D; e++)
		to.push_back({ r.po.d + e * one * 512, r.lse.d + e * one,
		    NULL });
	r.to.put(to);
	r.a.splits = splits;
	CALL(dcpg_attend(&r.a, STREAM));
	CHECK(cudaDeviceSynchronize());
	r.po.poison();
	r.lse.poison();
	r.a.q_ones = true;
	r.a.first = FIRST;
	r.a.peer = peers.of(SELF, AWAY_NS);
	ok = waits_once(peers.stream[SELF], [&] {
		for (int n = 0; n < 5; n++)
			CALL(dcpg_attend(&r.a, peers.stream[SELF]));
	});
	ok &= peers.gave_up(SELF, FIRST + AWAY);
	po = r.po.get();
	for (size_t i = 0; i < po.size(); i += 2)
		ok &= (po[i] & po[i + 1]) != 0xffff;
	for (float x : r.lse.get()) {
		uint32_t word;

		memcpy(&word, &x, 4);
		ok &= word != ~0u;
	}
	char what[100];
	snprintf(what, sizeof what, "attend %s splits=%u whose queries stay "
	    "away", fp8 ? "fp8" : "bf16", splits);
	verdict(ok, what);
}

void
value_tests(void)
{
	uint64_t salt = 0;

	for (uint32_t rows : { 1u, 3u, 16u, 17u, 64u })
		for (uint32_t D : { 1u, 2u, 4u, 5u, 8u })
			if (!brief || rows * D < 20)
				CASE(value_case(rows, D == 8 ? 2 : 8, D,
				    rows == 3 ? 256 : 128, salt));
	if (!brief) {
		/* 8, 16 or 32 rows a block, 1, 2, 4 or 8 ranks at a time */
		for (uint32_t D : { 1u, 2u, 3u, 8u }) {
			CASE(value_case(7, 34, D, 128, salt));
			CASE(value_case(15, 34, D, 128, salt));
			CASE(value_case(32, 67, D, 128, salt));
			CASE(value_case(41, 45, D, 128, salt));
		}
		CASE(value_case(19, 3, 1, 64, salt));
		CASE(value_case(9, 3, 2, 192, salt));
		CASE(value_case(5, 1, DCPK_MAX_RANKS, 128, salt));
		CASE(value_case(33, 1, 17, 128, salt));
		for (bool fp8 : { false, true }) {
			CASE(sent_case(2, 16, 2, fp8, 0, 2, salt));
			CASE(sent_case(1, 64, 2, fp8, 0, 2, salt));
			CASE(sent_case(9, 16, 2, fp8, 0, 2, salt));
			CASE(sent_case(33, 16, 2, fp8, 0, 2, salt));
			/* blocks of several owners */
			CASE(sent_case(2, 4, 4, fp8, 0, 4, salt));
			CASE(sent_case(33, 4, 4, fp8, 0, 4, salt));
			CASE(sent_case(3, 4, 8, fp8, 0, 8, salt));
			CASE(sent_case(9, 4, 8, fp8, 0, 8, salt));
			/* groups that do not begin at rank 0 */
			CASE(sent_case(9, 4, 4, fp8, 4, 8, salt));
			CASE(sent_case(3, 8, 2, fp8, 5, 8, salt));
		}
		for (bool fp8 : { false, true })
			for (uint32_t splits : { 1u, 2u })
				CASE(q_away_case(fp8, splits, salt));
	}
}
