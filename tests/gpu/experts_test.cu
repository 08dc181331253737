/*
 * Part of kernel_test: routed experts. The choice, the slots, the products and
 * their sum, each against double precision on the CPU.
 */
#include "kernels/cuda/dcpg.h"
#include "kernels/keep.h"
#include "tests/gpu/gpu_test.h"

#include <algorithm>

/* --- choice -------------------------------------------------------------- */

/* Best ids by v, ties to the smaller; *gap: least distance that decided. */
static std::vector<uint32_t>
best(const std::vector<double> &v, uint32_t n, double *gap)
{
	std::vector<uint32_t> id(v.size());

	for (uint32_t i = 0; i < id.size(); i++)
		id[i] = i;
	std::stable_sort(id.begin(), id.end(), [&](uint32_t a, uint32_t b) {
		return v[a] > v[b];
	});
	for (uint32_t i = 0; i < n && i + 1 < id.size(); i++) {
		double d = v[id[i]] - v[id[i + 1]];

		if (d > 0)	/* equal ones are decided by their ids */
			*gap = fmin(*gap, d);
	}
	id.resize(n);
	return id;
}

static std::vector<uint32_t>
choose_reference(const struct dcpg_route &a, const std::vector<double> &s,
    const std::vector<float> &bias, double *gap)
{
	uint32_t per = a.experts / a.groups;
	std::vector<double> v(a.experts), gs(a.groups);

	for (uint32_t e = 0; e < a.experts; e++)
		v[e] = s[e] + bias[e];
	if (a.kept < a.groups) {
		for (uint32_t g = 0; g < a.groups; g++) {
			std::vector<double> x(v.begin() + g * per,
			    v.begin() + (g + 1) * per);

			std::sort(x.begin(), x.end());
			gs[g] = x[per - 1] + (per > 1 ? x[per - 2] : 0);
		}
		std::vector<uint32_t> kept = best(gs, a.kept, gap);
		for (uint32_t e = 0; e < a.experts; e++)
			if (std::find(kept.begin(), kept.end(), e / per) ==
			    kept.end())
				v[e] = -1e30;
	}
	return best(v, a.each, gap);
}

static void
route_case(uint32_t rows, uint32_t hidden, uint32_t E, uint32_t each,
    uint32_t groups, uint32_t kept, bool norm, uint32_t shares, uint32_t way,
    uint64_t salt)
{
	Rng g(seed * 15485863 + salt);
	std::vector<float> h((size_t)rows * hidden), w((size_t)E * hidden);
	std::vector<float> bias(E);

	for (auto &x : h)
		x = (float)g.normal();
	for (auto &x : w)
		x = (float)(g.normal() * 2 / sqrt(hidden));
	for (auto &x : bias)
		x = (float)(g.normal() * 0.1);
	for (uint32_t e = 3; e < E; e += 7) {	/* exact ties */
		memcpy(&w[(size_t)e * hidden], &w[(size_t)(e - 3) * hidden],
		    hidden * 4);
		bias[e] = bias[e - 3];
	}
	Buf<float> dh(h), dw(w), db(bias), ew((size_t)rows * each);
	Buf<float> part((size_t)rows * E * shares + (way == 2 ? (size_t)(E +
	    255) / 256 * 256 * (hidden + 1) + 32 : 0));
	Buf<uint32_t> eid((size_t)rows * each);
	struct dcpg_route a = { dh.d, dw.d, db.d, rows, hidden, E, each, groups,
	    kept, norm, 2.5f, eid.d, ew.d, part.d, part.n, way };
	part.poison();
	eid.poison();
	ew.poison();
	CALL(dcpg_route(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<uint32_t> id = eid.get();
	std::vector<float> we = ew.get();
	std::vector<double> off(rows);
	parallel(rows, [&](size_t r) {
		std::vector<double> s(E);
		double sum = 0, gap = 1;

		for (uint32_t e = 0; e < E; e++) {
			double d = 0;

			for (uint32_t k = 0; k < hidden; k++)
				d += (double)h[r * hidden + k] *
				    w[(size_t)e * hidden + k];
			s[e] = 1 / (1 + exp(-d));
		}
		std::vector<uint32_t> ref = choose_reference(a, s, bias, &gap);
		for (uint32_t e : ref)
			sum += s[e];
		for (uint32_t k = 0; k < each; k++) {
			double x = s[ref[k]] * 2.5 / (norm ? sum : 1);

			if (id[r * each + k] != ref[k]) {
				off[r] = gap < 4e-6 ? 0 : INFINITY;
				break;
			}
			if (!(fabs(we[r * each + k] / x - 1) <= off[r]))
				off[r] = fabs(we[r * each + k] / x - 1);
		}
	});
	double worst = *std::max_element(off.begin(), off.end());
	char what[160];
	snprintf(what, sizeof what, "route rows=%u hidden=%u experts=%u "
	    "each=%u groups=%u/%u norm=%d shares=%u way=%u: weights off by "
	    "%.1e", rows, hidden, E, each, kept, groups, norm, shares, way,
	    worst);
	verdict(worst < 2e-5, what);
}

/* --- products ------------------------------------------------------------ */

struct ExpertCase {
	uint32_t shape, split;
	uint32_t rows, each, E, n, k;
	bool fp8, glu, early;
	uint32_t hot;		/* experts that most rows choose; 0: any */
	uint32_t y_ld;		/* a linear layer (each and E are 1), or 0 */
	bool y16;		/* y as bf16 */
	uint32_t tile;		/* int4: of slots; 0: the shape's */

	uint32_t
	slots_tile(void) const
	{
		return tile ? tile : dcpg_expert_tile(rows, each, E, shape);
	}
};

struct Slots {
	Buf<uint32_t> eid, slot, row, first, tile0, tile_e;
	uint32_t tile, tiles;

	Slots(const std::vector<uint32_t> &id, const ExpertCase &c) : eid(id),
	    slot(id.size()), row(id.size()), first(c.E + 1), tile0(c.E + 1),
	    tile_e(dcpg_expert_tiles(c.rows, c.each, c.E, c.slots_tile()))
	{
		tile = c.slots_tile();
		tiles = (uint32_t)tile_e.n;
		struct dcpg_slots a = { eid.d, c.rows, c.each, c.E, tile,
		    slot.d, row.d, first.d, tile0.d, tile_e.d, nullptr };
		for (Buf<uint32_t> *b : { &slot, &row, &first, &tile0,
		    &tile_e })
			b->poison();
		CALL(dcpg_slots(&a, STREAM));
		CHECK(cudaDeviceSynchronize());
	}

	/* Every row once, experts in order, tiles that cover them. */
	bool
	good(uint32_t each, uint32_t E) const
	{
		std::vector<uint32_t> s = slot.get(), r = row.get();
		std::vector<uint32_t> f = first.get(), t0 = tile0.get();
		std::vector<uint32_t> te = tile_e.get(), id = eid.get();
		uint32_t at = 0, t = 0;
		bool ok = true;

		for (size_t i = 0; i < id.size(); i++)
			ok &= s[i] < id.size() && r[s[i]] == i / each &&
			    s[i] >= f[id[i]] && s[i] < f[id[i] + 1];
		std::sort(s.begin(), s.end());
		for (size_t i = 0; i < s.size(); i++)
			ok &= s[i] == i;
		for (uint32_t e = 0; e < E; e++) {
			uint32_t n = (uint32_t)std::count(id.begin(), id.end(),
			    e);

			ok &= f[e] == at && t0[e] == t;
			at += n;
			for (uint32_t m = 0; m < n; m += tile)
				ok &= t < tiles && te[t++] == e;
		}
		ok &= f[E] == at && t0[E] == t && t <= tiles;
		for (; ok && t < tiles; t++)
			ok &= te[t] == E;
		return ok;
	}
};

static std::vector<uint32_t>
draw_experts(const ExpertCase &c, Rng &g)
{
	std::vector<uint32_t> id, all(c.E);

	for (uint32_t r = 0; r < c.rows; r++) {
		uint32_t from = c.hot && g.below(8) ? c.hot : c.E;

		if (from < c.each)
			from = c.E;
		for (uint32_t i = 0; i < c.E; i++)
			all[i] = i;
		for (uint32_t i = 0; i < c.each; i++) {
			std::swap(all[i], all[i + g.below(from - i)]);
			id.push_back(all[i]);
		}
	}
	return id;
}

/* Matrices of all experts: as stored, and their values. */
struct Matrices {
	std::vector<uint8_t> bytes;
	std::vector<float> value;
	size_t each;

	Matrices(const ExpertCase &c, Rng &g) : value((size_t)c.E * c.n * c.k)
	{
		uint32_t ld = dcpk_fp8_scale_ld(c.k);

		each = c.fp8 ? dcpk_fp8_bytes(c.n, c.k) : (size_t)c.n * c.k * 2;
		bytes.assign(each * c.E, 0xff);
		for (uint32_t e = 0; e < c.E; e++) {
			uint8_t *b = &bytes[e * each];
			float *sc = (float *)(b + (size_t)c.n * c.k);

			for (uint32_t i = 0; c.fp8 &&
			    i < (c.n + 127) / 128 * ld; i++)
				sc[i] = (float)(exp2(g.normal()) / 300);
			for (uint32_t i = 0; i < c.n; i++)
				for (uint32_t j = 0; j < c.k; j++)
					one(c, g, b, sc + (size_t)(i / 128) *
					    ld, e, i, j);
		}
	}

	/* Those of a linear layer's, which then has none behind it. */
	std::vector<float>
	scales(const ExpertCase &c)
	{
		size_t codes = (size_t)c.n * c.k;
		std::vector<float> s;

		if (c.y_ld == 0)
			return s;
		s.resize((bytes.size() - codes) / 4);
		memcpy(s.data(), &bytes[codes], s.size() * 4);
		bytes.resize(codes);
		return s;
	}

	void
	one(const ExpertCase &c, Rng &g, uint8_t *b, const float *sc,
	    uint32_t e, uint32_t i, uint32_t j)
	{
		float *to = &value[((size_t)e * c.n + i) * c.k + j];

		if (!c.fp8) {
			uint16_t v = to_bf16(g.normal());

			*to = (float)from_bf16(v);
			memcpy(b + ((size_t)i * c.k + j) * 2, &v, 2);
			return;
		}
		uint8_t x = (uint8_t)g.next();
		if ((x & 0x7f) == 0x7f)
			x = 0;
		b[(size_t)i * c.k + j] = x;
		*to = (float)from_e4m3(x) * sc[j / 128];
	}
};

/* Rows of x: bf16, or e4m3 with a scale for 128 columns; their values. */
struct Rows {
	std::vector<uint8_t> bytes;
	std::vector<float> scale, value;
	uint32_t ld;

	Rows(const ExpertCase &c, size_t n, Rng &g) :
	    bytes(n * c.k * (c.fp8 ? 1 : 2)), value(n * c.k),
	    ld(c.y_ld ? (uint32_t)n / 4 * 4 + 8 : (uint32_t)n + 5)
	{
		if (c.fp8)
			scale.assign((size_t)c.k / 128 * ld, NAN);
		for (size_t i = 0; i < n; i++)
			for (uint32_t j = 0; j < c.k; j++)
				one(c, g, i, j);
	}

	void
	one(const ExpertCase &c, Rng &g, size_t i, uint32_t j)
	{
		size_t at = i * c.k + j;

		if (!c.fp8) {
			uint16_t v = to_bf16(g.normal() / sqrt(c.k));

			memcpy(&bytes[at * 2], &v, 2);
			value[at] = (float)from_bf16(v);
			return;
		}
		float &s = scale[(size_t)(j / 128) * ld + i];
		if (j % 128 == 0)
			s = (float)(exp2(g.normal()) / sqrt(c.k) / 100);
		bytes[at] = (uint8_t)g.next();
		if ((bytes[at] & 0x7f) == 0x7f)
			bytes[at] = 0;
		value[at] = (float)from_e4m3(bytes[at]) * s;
	}
};

static double
dot(const float *x, const float *w, uint32_t k)
{
	double d = 0;

	for (uint32_t i = 0; i < k; i++)
		d += (double)x[i] * w[i];
	return d;
}

static std::vector<uint8_t>
run_experts(struct dcpg_experts a, Buf<uint8_t> &out)
{
	if (a.w2 != nullptr || a.y16 != nullptr)
		a.y16 = out.d;
	else
		a.y = (float *)out.d;
	out.poison();
	CALL(dcpg_experts(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	return out.get();
}

static std::vector<uint8_t>
run_linear(const ExpertCase &c, const struct dcpg_experts &a,
    const float *scale, Buf<uint8_t> &out)
{
	struct dcpg_linear l = { a.x, a.x_scale, a.x_scale_ld, a.w, scale,
	    c.rows, c.n, c.k, c.y16 ? out.d : nullptr, c.y16 ? nullptr :
	    (float *)out.d, c.y_ld, c.early, c.split };

	out.poison();
	CALL(dcpg_linear(&l, STREAM));
	CHECK(cudaDeviceSynchronize());
	return out.get();
}

/* The codes that a launch with y8 writes are those of the bf16 that one with
 * y16 wrote: y. */
static bool
codes_alike(struct dcpg_experts a, const std::vector<uint8_t> &y, bool pow2)
{
	const uint16_t *v = (const uint16_t *)y.data();
	uint32_t slots = a.rows * a.each, m4 = (slots + 3) / 4 * 4;
	Buf<uint8_t> code((size_t)m4 * a.n);
	Buf<float> scale((size_t)a.n / 128 * m4);
	bool ok = true;

	code.poison();
	scale.poison();
	a.y16 = nullptr;
	a.y8 = { code.d, scale.d, pow2 };
	CALL(dcpg_experts(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<uint8_t> got = code.get();
	std::vector<float> sc = scale.get();
	for (size_t i = 0; i < slots; i++)
		for (uint32_t j = 0; j < a.n; j += 128) {
			const uint16_t *x = v + i * a.n + j;
			float top = 0, s = sc[(size_t)(j / 128) * m4 + i];

			for (uint32_t k = 0; k < 128; k++)
				top = fmaxf(top, fabsf((float)from_bf16(x[k])));
			ok &= s == (pow2 ? exp2f(ceilf(log2f(fmaxf(top, 1e-4f) /
			    448.0f))) : top / 448.0f);
			for (uint32_t k = 0; k < 128; k++)
				ok &= got[i * a.n + j + k] == (s > 0 ?
				    to_e4m3((float)from_bf16(x[k]) / s) : 0);
		}
	return ok;
}

static void
experts_case(const ExpertCase &c, uint64_t salt)
{
	Rng g(seed * 32452843 + salt);
	std::vector<uint32_t> id = draw_experts(c, g);
	size_t slots = id.size();
	/* gate and up: x by row; down: x by slot */
	Rows x(c, c.glu ? c.rows : slots, g);
	ExpertCase none = c;
	none.E = 0;
	Matrices m1(c, g), m2(c.glu ? c : none, g);
	Slots s(id, c);
	uint32_t ld = c.y_ld ? c.y_ld : c.n;
	bool y16 = c.glu || c.y16;

	Buf<float> dxs(x.scale), sc1(m1.scales(c));
	Buf<uint8_t> dx(x.bytes), w1(m1.bytes), w2(m2.bytes);
	Buf<uint8_t> out(slots * ld * (y16 ? 2 : 4));
	struct dcpg_experts a = {};
	a.x = dx.d;
	a.x_scale = c.fp8 ? dxs.d : nullptr;
	a.x_scale_ld = x.ld;
	a.slot_row = c.glu ? s.row.d : nullptr;
	a.w = w1.d;
	a.w2 = c.glu ? w2.d : nullptr;
	a.first = s.first.d;
	a.tile0 = s.tile0.d;
	a.tile_e = s.tile_e.d;
	a.y16 = y16 ? out.d : nullptr;
	a.rows = c.rows;
	a.each = c.each;
	a.experts = c.E;
	a.n = c.n;
	a.k = c.k;
	a.fp8 = c.fp8;
	a.early = c.early;
	a.shape = c.shape;
	a.split = c.split;
	std::vector<uint8_t> y = c.y_ld ? run_linear(c, a, sc1.d, out) :
	    run_experts(a, out);
	std::vector<uint32_t> row = s.row.get(), slot = s.slot.get();
	std::vector<double> err(slots), norm(slots);
	parallel(slots, [&](size_t i) {
		size_t at = c.y_ld ? i : slot[i], from = c.glu ? i / c.each : at;

		for (uint32_t j = 0; j < c.n; j++) {
			size_t wr = ((size_t)id[i] * c.n + j) * c.k;
			const float *xi = &x.value[from * c.k];
			double v = dot(xi, &m1.value[wr], c.k), o;

			if (c.glu)
				v = v / (1 + exp(-v)) * dot(xi, &m2.value[wr],
				    c.k);
			o = y16 ? from_bf16(((uint16_t *)y.data())[at * ld +
			    j]) : ((float *)y.data())[at * ld + j];
			err[i] += (o - v) * (o - v);
			norm[i] += v * v;
		}
	});
	/* nothing beside the columns was written */
	bool clean = true;
	size_t el = y16 ? 2 : 4;
	for (size_t i = 0; i < slots; i++)
		for (size_t b = c.n * el; b < ld * el; b++)
			clean &= y[i * ld * el + b] == 0xff;
	double e2 = 0, n2 = 0, worst = 0;
	for (size_t i = 0; i < slots; i++) {
		e2 += err[i];
		n2 += norm[i];
		worst = err[i] <= 1e30 ? fmax(worst, sqrt(err[i] / norm[i])) :
		    INFINITY;
	}
	/* 14 bits of a sum over 128 columns in e4m3; bf16 where y is */
	double tol = y16 ? 4e-3 : c.fp8 ? 4e-4 : 2e-5;
	bool good = s.good(c.each, c.E), codes = true;
	if (c.glu && s.tile == 128 && c.n % 128 == 0)
		codes = codes_alike(a, y, false) && codes_alike(a, y, true);
	char what[240];
	snprintf(what, sizeof what, "experts %s %s rows=%u each=%u experts=%u "
	    "n=%u k=%u shape=%u split=%u early=%d hot=%u ld=%u: rel %.2e worst "
	    "slot %.2e%s%s%s", c.fp8 ? "e4m3" : "bf16", c.glu ? "gate+up" : "down",
	    c.rows, c.each, c.E, c.n, c.k, c.shape, c.split, c.early, c.hot,
	    c.y_ld, sqrt(e2 / n2), worst, good ? "" : " SLOTS WRONG",
	    clean ? "" : " WRITTEN BESIDE", codes ? "" : " CODES DIFFER");
	verdict(sqrt(e2 / n2) < tol && worst < 3 * tol && good && clean &&
	    codes, what);
}

/* --- int4 ---------------------------------------------------------------- */

/* Matrices of all experts as they are kept, and their values. */
struct Int4 {
	std::vector<uint8_t> bytes;
	std::vector<float> value;

	Int4(const ExpertCase &c, Rng &g) : value((size_t)c.E * c.n * c.k)
	{
		size_t each = dcpk_int4_bytes(c.n, c.k);

		bytes.assign(each * c.E, 0);
		for (uint32_t e = 0; e < c.E; e++)
			for (uint32_t i = 0; i < c.n; i++)
				for (uint32_t j = 0; j < c.k; j++)
					one(c, g, &bytes[e * each], e, i, j);
	}

	void
	one(const ExpertCase &c, Rng &g, uint8_t *b, uint32_t e, uint32_t i,
	    uint32_t j)
	{
		uint64_t at = dcpk_int4_at(c.k, i, j);
		uint8_t *sc = b + dcpk_int4_scale_at(c.k, i, j);
		int q = (int)g.below(16) - 8;
		float s = (float)(exp2(g.normal()) / 6);

		if (j % 128 == 0)
			memcpy(sc, &s, 4);
		memcpy(&s, sc, 4);
		b[at / 2] |= (uint8_t)(dcpk_int4_code(q) << at % 2 * 4);
		value[((size_t)e * c.n + i) * c.k + j] = (float)q * s;
	}
};

static double
dot4(const float *x, const float *w, uint32_t k)
{
	double d = 0;

	for (uint32_t i = 0; i < k; i++)
		d += (double)x[i] * (double)w[i];
	return d;
}

/* y_unit 0: bf16 or f32; else gate and up's codes, each within half a step of
 * its value and what the tensor cores' sums are off by. */
static void
int4_case(ExpertCase c, float y_unit, uint64_t salt)
{
	const float unit = 0.03f;
	Rng g(seed * 86028121 + salt);
	std::vector<uint32_t> id = draw_experts(c, g);
	size_t slots = id.size();
	std::vector<uint8_t> x((c.glu ? c.rows : slots) * c.k);
	std::vector<float> xv(x.size());
	ExpertCase none = c;
	none.E = 0;
	Int4 m1(c, g), m2(c.glu ? c : none, g);
	Slots s(id, c);

	for (size_t i = 0; i < x.size(); i++) {
		x[i] = to_e4m3(g.normal() / sqrt(c.k) / unit);
		xv[i] = (float)from_e4m3(x[i]);
	}
	Buf<uint8_t> dx(x), w1(m1.bytes), w2(m2.bytes);
	Buf<uint8_t> out(slots * c.n * (!c.glu ? 4 : y_unit > 0 ? 1 : 2));
	struct dcpg_experts a = {};
	a.x = dx.d;
	a.slot_row = c.glu ? s.row.d : nullptr;
	a.w = w1.d;
	a.w2 = c.glu ? w2.d : nullptr;
	a.first = s.first.d;
	a.tile0 = s.tile0.d;
	a.tile_e = s.tile_e.d;
	a.rows = c.rows;
	a.each = c.each;
	a.experts = c.E;
	a.n = c.n;
	a.k = c.k;
	a.int4 = true;
	a.x_unit = unit;
	a.y_unit = y_unit;
	a.early = c.early;
	a.tile = s.tile;
	a.split = c.split;
	std::vector<uint8_t> y = run_experts(a, out), again;
	again = run_experts(a, out);
	std::vector<uint32_t> slot = s.slot.get();
	std::vector<double> err(slots), norm(slots);
	std::vector<uint32_t> far(slots);
	parallel(slots, [&](size_t i) {
		size_t at = slot[i], from = c.glu ? i / c.each : at;
		const float *xr = &xv[from * c.k];
		std::vector<double> v(c.n), o(c.n);

		for (uint32_t j = 0; j < c.n; j++) {
			size_t wr = ((size_t)id[i] * c.n + j) * c.k;
			size_t to = at * c.n + j;

			v[j] = dot4(xr, &m1.value[wr], c.k) * unit;
			if (c.glu)
				v[j] = v[j] / (1 + exp(-v[j])) * dot4(xr,
				    &m2.value[wr], c.k) * unit;
			if (y_unit > 0)
				v[j] = fmin(fmax(v[j], -448 * y_unit),
				    448 * y_unit);
			o[j] = !c.glu ? ((float *)y.data())[to] : y_unit > 0 ?
			    from_e4m3(y[to]) * y_unit :
			    from_bf16(((uint16_t *)y.data())[to]);
			err[i] += (o[j] - v[j]) * (o[j] - v[j]);
			norm[i] += v[j] * v[j];
		}
		for (uint32_t j = 0; y_unit > 0 && j < c.n; j++) {
			/* 3 bits, 2^-9 at least; and what the sums are off
			 * by, of large values as of others */
			double step = fmax(fabs(v[j]), y_unit / 64) / 16;

			far[i] += !(fabs(o[j] - v[j]) <= step * 1.01 + 2e-3 *
			    (sqrt(norm[i] / c.n) + fabs(v[j])));
		}
	});
	double e2 = 0, n2 = 0, worst = 0;
	uint32_t wrong = 0;
	for (size_t i = 0; i < slots; i++) {
		e2 += err[i];
		n2 += norm[i];
		wrong += far[i];
		worst = err[i] <= 1e30 ? fmax(worst, sqrt(err[i] / norm[i])) :
		    INFINITY;
	}
	double tol = y_unit > 0 ? 0.035 : c.glu ? 4e-3 : 1e-3;
	bool good = s.good(c.each, c.E), same = again == y;
	char what[240];
	snprintf(what, sizeof what, "experts int4 %s rows=%u each=%u "
	    "experts=%u n=%u k=%u tile=%u split=%u early=%d hot=%u unit=%g: "
	    "rel %.2e worst slot %.2e, %u codes far off%s%s", c.glu ?
	    "gate+up" : "down", c.rows, c.each, c.E, c.n, c.k, s.tile,
	    c.split, c.early, c.hot, (double)y_unit, sqrt(e2 / n2), worst,
	    wrong, good ? "" : " SLOTS WRONG", same ? "" : " NOT TWICE ALIKE");
	verdict(sqrt(e2 / n2) < tol && worst < 3 * tol && wrong == 0 && good &&
	    same, what);
}

void
int4_tests(void)
{
	uint64_t salt = 0;

	for (uint32_t tile : { 16u, 64u, 128u })
		for (int i = 0; i < 8; i++) {
			ExpertCase c = { 0, 1u << i % 3, 5, 3, 6, 192, 640,
			    false, i / 2 % 2 == 1, i / 4 == 1, 3, 0, false,
			    tile };
			float unit = i % 2 ? 0.02f : 0;

			if (brief && i % 3 == 0 && i != 3)
				continue;
			CASE(int4_case(c, c.glu ? unit : 0, salt));
			if (brief)
				continue;
			/* more slots than a tile; ragged ends */
			c.rows = 157;
			c.k = 384;
			CASE(int4_case(c, c.glu ? unit : 0, salt));
			c.hot = 0;
			c.E = 60;
			c.rows = 40;
			c.k = 128;
			CASE(int4_case(c, c.glu ? unit : 0, salt));
			/* more items than blocks */
			c.each = 8;
			c.rows = 157;
			c.n = 1024;
			c.k = 256;
			CASE(int4_case(c, c.glu ? unit : 0, salt));
		}
	if (brief)
		return;
	for (int i = 0; i < 4; i++) {
		ExpertCase c = { 0, 0, 1, 8, 16, 64, 7168, false, i / 2 == 1,
		    i % 2 == 1, 0, 0, false, 16 };

		CASE(int4_case(c, 0, salt));	/* V3.2's columns */
		c.rows = 90;
		c.E = 9;
		c.n = 128;
		c.k = 512;
		c.tile = dcpg_expert_tile4(90, 8, 9);
		CASE(int4_case(c, 0, salt));
	}
}

/* --- sum ----------------------------------------------------------------- */

static void
combine_case(uint32_t rows, uint32_t each, uint32_t n, bool add, bool bf16,
    uint64_t salt)
{
	Rng g(seed * 49979687 + salt);
	ExpertCase c = {};
	c.rows = rows;
	c.each = each;
	c.E = 40;
	std::vector<uint32_t> id = draw_experts(c, g), slot(id.size());
	std::vector<float> x(id.size() * n), w(id.size()), y((size_t)rows * n);

	for (uint32_t i = 0; i < slot.size(); i++)
		slot[i] = i;
	for (uint32_t i = (uint32_t)slot.size() - 1; i > 0; i--)
		std::swap(slot[i], slot[g.below(i + 1)]);
	for (auto *v : { &x, &w, &y })
		for (auto &f : *v)
			f = (float)g.normal();
	std::vector<uint16_t> x16(bf16 ? x.size() : 0);
	for (size_t i = 0; i < x16.size(); i++) {
		x16[i] = to_bf16(x[i]);
		x[i] = (float)from_bf16(x16[i]);
	}
	Buf<uint16_t> dx16(x16);
	Buf<uint32_t> di(id), ds(slot);
	Buf<float> dx(x), dw(w), dy(y);
	struct dcpg_combine a = { di.d, ds.d, dw.d, bf16 ? (void *)dx16.d :
	    dx.d, bf16, rows, each, n, add, dy.d };
	if (!add)
		dy.poison();
	CALL(dcpg_combine(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	std::vector<float> got = dy.get();
	double worst = 0;
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t d = 0; d < n; d++) {
			double v = add ? y[(size_t)r * n + d] : 0, e;

			for (uint32_t k = 0; k < each; k++)
				v += (double)w[r * each + k] *
				    x[(size_t)slot[r * each + k] * n + d];
			e = fabs(got[(size_t)r * n + d] - v);
			worst = e <= 1e30 ? fmax(worst, e) : INFINITY;
		}
	char what[120];
	snprintf(what, sizeof what, "combine %s rows=%u each=%u n=%u add=%d: "
	    "off by %.1e", bf16 ? "bf16" : "f32", rows, each, n, add, worst);
	verdict(worst < 1e-5 * each, what);
}

void
experts_tests(void)
{
	uint64_t salt = 0;

	CASE(route_case(3, 256, 8, 2, 1, 1, true, 32, 0, salt));
	CASE(route_case(9, 100, 24, 5, 4, 2, false, 3, 0, salt));
	CASE(route_case(330, 96, 24, 5, 4, 2, false, 32, 2, salt));
	CASE(route_case(131, 256, 130, 3, 1, 1, true, 32, 2, salt));
	CASE(combine_case(3, 3, 37, true, false, salt));
	CASE(combine_case(5, 11, 128, false, false, salt));
	CASE(combine_case(4, 9, 136, true, true, salt));
	for (uint32_t sh = 1; dcpg_expert_tile(1, 1, 1, sh) != 0; sh++)
		for (int i = 0; i < 8; i++) {
			ExpertCase c = { sh, 1u << i % 3, 5, 3, 6, 144, 384,
			    i % 2 == 1, i / 2 % 2 == 1, i / 4 == 1, 3 };

			if (brief && i % 3 == 0 && i != 3)
				continue;
			CASE(experts_case(c, salt));
			if (brief)
				continue;
			/* more slots than a tile; ragged ends */
			c.rows = 157;
			c.n = c.fp8 ? 208 : 201;
			c.k = c.fp8 ? 640 : 456;
			CASE(experts_case(c, salt));
			c.y16 = true;
			CASE(experts_case(c, salt));
			c.n = c.glu ? 256 : 400;	/* codes; whole blocks of rows */
			CASE(experts_case(c, salt));
			c.hot = 0;
			c.E = 60;
			c.rows = 40;
			c.k = 128;
			CASE(experts_case(c, salt));
		}
	/* linear layers */
	for (uint32_t rows : { 1u, 8u, 11u, 16u, 19u, 32u, 37u, 64u })
		for (int i = brief ? 2 : 0; i < 9; i += brief ? 5 : 1) {
			/* i is the split */
			ExpertCase c = { 0, (uint32_t)i, rows, 1, 1,
			    i % 3 ? 208u : 336u, i == 3 ? 128u : 1408, true,
			    false, i % 2 == 1, 0, i % 3 ? 224u : 336u,
			    i % 4 < 2 };

			CASE(experts_case(c, salt));
		}
	if (brief)
		return;
	for (uint32_t rows : { 1u, 8u, 16u, 17u, 33u, 70u, 700u })
		CASE(route_case(rows, 7168, 256, 8, 8, 4, true, rows > 32 ? 1 :
		    32, 0, salt));
	CASE(route_case(4, 6144, 256, 8, 1, 1, true, 32, 0, salt));
	CASE(route_case(2, 512, 1000, 32, 10, 3, true, 32, 0, salt));
	for (uint32_t rows : { 1u, 300u, 2100u })
		CASE(route_case(rows, 7168, 256, 8, 8, 4, true, 32, 2, salt));
	CASE(route_case(260, 6144, 256, 8, 1, 1, true, 32, 2, salt));
	CASE(route_case(400, 7168, 384, 8, 1, 1, true, 32, 2, salt));
	CASE(route_case(260, 512, 1000, 32, 10, 3, true, 32, 2, salt));
	CASE(combine_case(40, 8, 7168, true, false, salt));
	CASE(combine_case(40, 8, 7168, false, true, salt));
	for (int i = 0; i < 4; i++) {
		ExpertCase c = { 0, 0, 1, 8, 16, 64, 7168, i % 2 == 1,
		    i / 2 == 1, false, 0 };

		CASE(experts_case(c, salt));	/* chosen: V3.2's columns */
		c.rows = 90;
		c.E = 9;
		c.n = 130 + 14 * (i % 2);
		c.k = 512;
		CASE(experts_case(c, salt));
	}
}
