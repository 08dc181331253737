/*
 * kernel_test's part words: what crosses ranks as words that say themselves
 * that they are there. The sums of norm.cu, by ranks that share a GPU, to the
 * bit against f32 in rank order, what is made of them against float64;
 * dcpg_value while its partials come, piece by piece, to the bit against the
 * same when all was there before. And ranks whose words do not come: who waits
 * for them ends, names them and waits no more.
 */
#include <algorithm>
#include <chrono>
#include <memory>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/peer.cuh"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/peers.h"

/* --- what norm.cu calls of the backend ----------------------------------- */

/* Of who has the GPU alone: how long a sum waits; which rank's words go
 * nowhere, to this place. */
static uint64_t limit_ns;
static uint32_t away = ~0u;
static void *nowhere;

int
dcpg_ok(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return 0;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
	return -EIO;
}

struct dcpg_peer
dcpg_peer_of(dcpk_ctx *c, dcpg_rank *r, uint32_t)
{
	struct dcpg_peer p = {};

	for (uint32_t i = 0; i < c->W; i++)
		p.flags[i] = c->r[i].flags;
	p.world = c->W;
	p.self = r->id;
	p.limit_ns = limit_ns;
	p.stuck = &c->stuck[r->id];
	return p;
}

const void *
dcpg_seen_at(const dcpk_ctx *, const dcpg_rank *r, uint32_t o, const void *p)
{
	return r->id == away && o != away ? nowhere : p;
}

int
dcpg_meet(dcpk_ctx *)
{
	return -ENOSYS;
}

int
dcpg_nccl_sum(dcpk_ctx *, float *const [], size_t)
{
	return -ENOSYS;
}

/* --- sums ---------------------------------------------------------------- */

enum { SUMS = 10, FREELY = SUMS - 2 };

/* A rank: SUMS times its partials, what they are added to and what it gets, and
 * the two places for what others send. */
struct Summer {
	Buf<float> x, y, hf;
	Buf<uint16_t> h;
	Buf<uint32_t> places;	/* [2][W][DCPG_PUSHED][n] */

	Summer(size_t all, size_t places)
	    : x(all), y(all), hf(all), h(all), places(places)
	{
		hf.poison();
		h.poison();
		this->places.poison();	/* ones, as they must be */
	}
};

static uint32_t
bits(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	return u;
}

static float
some(Rng &g)
{
	return ldexpf((float)(int32_t)(g.next() >> 32), -31 + (int)g.below(4));
}

static bool
is_near(double got, double want, double part)
{
	return isnan(want) ? isnan(got) : fabs(got - want) <= part *
	    fabs(want);
}

struct Sums {
	uint32_t rows, W, n;
	size_t one, place;	/* [rows][n]; [W][DCPG_PUSHED][n] */
	Peers peers;
	std::vector<std::unique_ptr<Summer>> r;
	std::vector<float> w, want;	/* [2][n], [SUMS][rows][n] */
	std::vector<double> scale;	/* [SUMS][rows] */
	Buf<float> dw;
	dcpg_layer layer[2] = {};
	std::unique_ptr<dcpk_ctx> c;

	Sums(uint32_t rows, uint32_t W, uint32_t n, Rng &g)
	    : rows(rows), W(W), n(n), one((size_t)rows * n),
	    place((size_t)W * DCPG_PUSHED * n), peers(W), w(2 * n),
	    want(SUMS * one), scale(SUMS * rows), dw(2 * n),
	    c(new dcpk_ctx())
	{
		std::vector<float> x(want.size());

		for (float &v : x)
			v = some(g);
		for (float &v : w)
			v = some(g);
		dw.put(w);
		for (uint32_t d = 0; d < W; d++) {
			std::vector<float> y = partials(d, g);

			for (size_t i = 0; i < y.size(); i++)
				want[i] += y[i];
			r.emplace_back(new Summer(y.size(), 2 * place));
			r[d]->x.put(x);
			r[d]->y.put(y);
		}
		for (size_t i = 0; i < x.size(); i++)
			want[i] = x[i] + want[i];
		for (size_t i = 0; i < scale.size(); i++) {
			double s = 0;

			for (uint32_t j = 0; j < n; j++)
				s += pow(want[i * n + j], 2);
			scale[i] = 1 / sqrt(s / n + 1e-6);
		}
		context();
		/* To load code may have to wait for what runs. */
		CALL(dcpg_norm_init());
		delay(STREAM, 0);
		CHECK(cudaDeviceSynchronize());
	}
	/* Rank d's. Of each fourth row one value is ones, or four at a time, by
	 * turns of another rank. */
	std::vector<float>
	partials(uint32_t d, Rng &g) const
	{
		std::vector<float> y(want.size());

		for (float &v : y)
			v = some(g);
		for (uint32_t i = 0; i < SUMS * rows; i++)
			if ((i / rows + i % rows) % 4 == 3 && i / 2 % W == d)
				memset(&y[(size_t)i * n + g.below(n / 4) * 4],
				    0xff, i % 2 == 0 ? 4 : 16);
		return y;
	}
	void
	context(void)
	{
		struct dcpg_peer p = peers.of(0);

		c->W = W;
		c->rows = rows;
		c->s.comm = DCPK_COMM_PEER;
		c->s.model.hidden = n;
		c->s.model.eps = 1e-6f;
		c->s.model.layers = 2;
		c->s.model.sparse[0] = 1;	/* hf is wanted */
		c->stuck = peers.stuck;
		layer[0].post_norm = dw.d;
		layer[1].in_norm = dw.d + n;
		for (uint32_t d = 0; d < W; d++) {
			c->r[d].id = d;
			c->r[d].st = peers.stream[d];
			c->r[d].flags = p.flags[d];
			c->r[d].layer = layer;
			c->r[d].sums = (float *)r[d]->places.d;
		}
	}
	/* The kth: behind attention and behind the FFN by turns. */
	void
	sum(uint32_t k)
	{
		for (uint32_t d = 0; d < W; d++) {
			dcpg_rank &to = c->r[d];

			to.x = r[d]->x.d + k * one;
			to.ya = to.yf = r[d]->y.d + k * one;
			to.h = (bf16 *)r[d]->h.d + k * one;
			to.hf = r[d]->hf.d + k * one;
		}
		CALL(dcpg_sum_norm(c.get(), k % 2 == 0, 0));
	}
	/* What ranks got of the sums k0 .. k1 - 1 and should not have. */
	size_t
	wrong(uint32_t k0, uint32_t k1) const
	{
		size_t bad = 0;

		for (uint32_t d = 0; d < W; d++) {
			std::vector<float> x = r[d]->x.get();
			std::vector<float> hf = r[d]->hf.get();
			std::vector<uint16_t> h = r[d]->h.get();

			for (size_t i = k0 * one; i < k1 * one; i++) {
				uint32_t k = (uint32_t)(i / one);
				double v = want[i] * scale[i / n] * w[k % 2 *
				    n + i % n];

				bad += isnan(want[i]) ? !isnan(x[i]) :
				    bits(x[i]) != bits(want[i]);
				bad += !is_near(from_bf16(h[i]), v, 0x1.01p-8);
				bad += k % 2 == 0 && !is_near(hf[i], v, 1e-5);
			}
		}
		return bad;
	}
	/* Words of a place that are not this. */
	size_t
	other(uint32_t which, uint32_t word) const
	{
		size_t bad = 0;

		for (uint32_t d = 0; d < W; d++) {
			std::vector<uint32_t> all = r[d]->places.get();

			for (size_t i = 0; i < place; i++)
				bad += all[which * place + i] != word;
		}
		return bad;
	}
	void
	set(uint32_t which, int byte)
	{
		for (uint32_t d = 0; d < W; d++)
			CHECK(cudaMemset(r[d]->places.d + which * place, byte,
			    place * 4));
		CHECK(cudaDeviceSynchronize());
	}
	/* Each rank has counted so many meetings. */
	bool
	begun(uint32_t n) const
	{
		bool ok = true;

		for (uint32_t d = 0; d < W; d++) {
			uint32_t at;

			CHECK(cudaMemcpy(&at, dcpg::peer_word(peers.of(d),
			    dcpg::PEER_BEGUN), 4, cudaMemcpyDeviceToHost));
			ok &= at == n;
		}
		return ok;
	}
};

static void
sum_case(uint32_t rows, uint32_t W, uint32_t n, uint64_t salt)
{
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 32452843 + salt);
	Sums s(rows, W, n, g);
	size_t bad, words = 0;

	limit_ns = 2000000000;
	for (uint32_t k = 0; k < FREELY; k++) {
		/* one right behind the other only where all blocks of both have
		 * an SM */
		bool near = rows * W <= 132 && g.below(2) == 0;

		for (uint32_t d = 0; d < W && !near; d++)
			delay(s.peers.stream[d], g.below(3) * 20000);
		s.sum(k);
	}
	CHECK(cudaDeviceSynchronize());
	bad = s.wrong(0, FREELY);
	for (uint32_t which = 0; which < 2; which++)
		words += s.other(which, ~0u);
	/* Each has a place of its own: what stands in the other one, numbers
	 * here, is not read and stays. */
	for (uint32_t k = FREELY; k < SUMS; k++) {
		s.set(1 - k % 2, 0);
		s.sum(k);
		CHECK(cudaDeviceSynchronize());
		bad += s.wrong(k, k + 1);
		words += s.other(1 - k % 2, 0) + s.other(k % 2, ~0u);
		s.set(1 - k % 2, 0xff);
	}
	char what[160];
	snprintf(what, sizeof what, "sum rows=%u W=%u n=%u: %zu values and %zu "
	    "words of places wrong%s%s", rows, W, n, bad, words, s.peers.lost()
	    ? ", one waited in vain" : "", s.begun(SUMS) ? "" :
	    ", meetings not counted");
	verdict(bad + words == 0 && !s.peers.lost() && s.begun(SUMS), what);
}

/* What rank `who` sends comes to nobody. */
static void
sum_away_case(uint32_t W, uint32_t who, uint64_t salt)
{
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 49979693 + salt);
	Sums s(5, W, 640, g);
	Buf<uint32_t> lost(2 * s.place);
	bool ok;

	limit_ns = AWAY_NS;
	away = who;
	nowhere = lost.d;
	ok = waits_once(s.peers.stream[0], [&] {
		for (uint32_t k = 0; k < 5; k++)
			s.sum(k);
	});
	away = ~0u;
	for (uint32_t d = 0; d < W; d++)
		ok &= d == who || s.peers.gave_up(d, who);
	char what[100];
	snprintf(what, sizeof what, "sum of %u ranks of which %u stays away", W,
	    who);
	verdict(ok, what);
}

/* --- values -------------------------------------------------------------- */

/* bf16 of 2^-3 .. 2, either sign. */
static uint16_t
some_bf16(Rng &g)
{
	uint32_t x = (uint32_t)(g.next() >> 32);

	return (uint16_t)(0x3e00 + (x & 0x1ff) + (x >> 16 & 0x8000));
}

/* What a group's ranks have for one of them, on the host and on the device. */
struct Partials {
	uint32_t rows, heads, ranks;
	size_t one;		/* LSEs of a rank */
	uint16_t *hp;		/* pinned: copied by no SM */
	float *hl;
	Buf<uint16_t> p, w, y;
	Buf<float> l;
	cudaStream_t st;	/* that copies */

	Partials(uint32_t rows, uint32_t heads, uint32_t ranks, Rng &g)
	    : rows(rows), heads(heads), ranks(ranks),
	    one((size_t)rows * heads), p(ranks * one * 512),
	    w((size_t)heads * 128 * 512), y(one * 128), l(ranks * one)
	{
		std::vector<uint16_t> hw(w.n);

		CHECK(cudaMallocHost(&hp, p.n * 2));
		CHECK(cudaMallocHost(&hl, l.n * 4));
		CHECK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
		for (auto &x : hw)
			x = some_bf16(g);
		w.put(hw);
		for (size_t i = 0; i < l.n; i++) {
			static const float none[] = { -INFINITY, NAN,
			    INFINITY };
			uint32_t x = g.below(12);

			hl[i] = x < 3 ? none[x] : (float)g.normal() * 3;
			for (int c = 0; c < 512; c++)	/* or NaN, not ones */
				hp[i * 512 + c] = x < 3 ? 0x7fc0 :
				    some_bf16(g);
		}
	}
	Partials(const Partials &) = delete;
	~Partials()
	{
		CHECK(cudaStreamDestroy(st));
		CHECK(cudaFreeHost(hp));
		CHECK(cudaFreeHost(hl));
	}
	struct dcpg_value
	args(void) const
	{
		struct dcpg_value a = {};

		for (uint32_t e = 0; e < ranks; e++) {
			a.part[e] = p.d + e * one * 512;
			a.lse[e] = l.d + e * one;
		}
		a.w = w.d;
		a.y = y.d;
		a.rows = rows;
		a.heads = a.row_heads = heads;
		a.values = 128;
		a.ranks = ranks;
		return a;
	}
	/* There are three pieces of each rank: two of its partials, which meet
	 * inside of what a thread reads at once, and the LSEs. */
	void
	bring(uint32_t piece)
	{
		size_t e = piece / 3, cut = one * 256 + 2;
		size_t at = e * one * 512 + (piece % 3 == 1 ? cut : 0);
		size_t len = piece % 3 == 0 ? cut : one * 512 - cut;

		if (piece % 3 == 2)
			CHECK(cudaMemcpyAsync(l.d + e * one, hl + e * one,
			    one * 4, cudaMemcpyHostToDevice, st));
		else
			CHECK(cudaMemcpyAsync(p.d + at, hp + at, len * 2,
			    cudaMemcpyHostToDevice, st));
	}
	/* y when all is there before. */
	std::vector<uint16_t>
	at_once(void)
	{
		struct dcpg_value a = args();

		for (uint32_t i = 0; i < 3 * ranks; i++)
			bring(i);
		y.poison();
		CHECK(cudaDeviceSynchronize());
		CALL(dcpg_value(&a, STREAM));
		CHECK(cudaDeviceSynchronize());
		return y.get();
	}
};

/* The order of the turn-th time: LSEs last, the last ranks' at the end; first;
 * any. */
static std::vector<uint32_t>
order(uint32_t ranks, uint32_t turn, Rng &g)
{
	std::vector<uint32_t> v;

	for (uint32_t lse = 0; lse < 2; lse++)
		for (uint32_t i = 0; i < 3 * ranks; i++)
			if ((i % 3 == 2) == (lse == 1))
				v.push_back(i);
	if (turn == 1)
		std::reverse(v.begin(), v.end());
	for (size_t i = v.size() - 1; turn > 1 && i > 0; i--)
		std::swap(v[i], v[g.below((uint32_t)i + 1)]);
	return v;
}

static void
value_words_case(uint32_t rows, uint32_t heads, uint32_t ranks, uint32_t first,
    uint32_t world, uint64_t salt)
{
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 67867967 + salt);
	Peers peers(world);
	Partials s(rows, heads, ranks, g);
	std::vector<uint16_t> want = s.at_once();
	struct dcpg_value a = s.args();
	uint32_t self = first + g.below(ranks), early = 0, bad = 0;

	a.ones = true;
	a.first = first;
	a.peer = peers.of(self);
	for (uint32_t turn = 0; turn < 6; turn++) {
		std::vector<uint32_t> pieces = order(ranks, turn, g);

		s.p.poison();
		s.l.poison();
		s.y.poison();
		CHECK(cudaDeviceSynchronize());
		CALL(dcpg_value(&a, peers.stream[self]));
		for (uint32_t i : pieces) {
			CHECK(cudaStreamSynchronize(s.st));
			std::this_thread::sleep_for(
			    std::chrono::microseconds(50));
			early += cudaStreamQuery(peers.stream[self]) !=
			    cudaErrorNotReady;
			s.bring(i);
		}
		CHECK(cudaDeviceSynchronize());
		bad += s.y.get() != want;
	}
	char what[160];
	snprintf(what, sizeof what, "value of words rows=%u heads=%u D=%u from "
	    "rank %u of %u: %u times wrong%s%s", rows, heads, ranks, first,
	    world, bad, early > 0 ? ", did not wait" : "", peers.lost() ?
	    ", waited in vain" : "");
	verdict(bad + early == 0 && !peers.lost(), what);
}

/* Of rank first + who nothing comes, or all but a piece of a row whose first
 * word is there, or all but an LSE. */
enum missing { ALL, PIECE, LSE };

static void
value_away_case(uint32_t ranks, uint32_t first, uint32_t world, uint32_t who,
    enum missing of, uint64_t salt)
{
	static const char *const names[] = { "nothing", "no piece", "no LSE" };
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 86028157 + salt);
	Peers peers(world);
	Partials s(9, 4, ranks, g);
	struct dcpg_value a = s.args();
	uint16_t *part = s.p.d + who * s.one * 512;
	cudaStream_t st = peers.stream[first];
	bool ok;

	s.at_once();	/* and it is loaded */
	if (of == ALL)
		CHECK(cudaMemset(part, 0xff, s.one * 1024));
	if (of == PIECE)
		CHECK(cudaMemset(part + 504, 0xff, 16));
	if (of != PIECE)
		CHECK(cudaMemset(s.l.d + who * s.one, 0xff, of == ALL ?
		    s.one * 4 : 4));
	delay(STREAM, 0);
	a.ones = true;
	a.first = first;
	a.peer = peers.of(first, AWAY_NS);
	ok = waits_once(st, [&] {
		for (int n = 0; n < 5; n++) {
			CALL(dcpg_value(&a, st));
			delay(st, 0);	/* the next begins behind it */
		}
	});
	ok &= peers.gave_up(first, first + who);
	char what[100];
	snprintf(what, sizeof what, "value of %u ranks from %u on, %s of rank "
	    "%u", ranks, first, names[of], first + who);
	verdict(ok, what);
}

void
words_tests(void)
{
	uint64_t salt = 0;

	if (brief)	/* a tool may let no two kernels run at a time */
		return;
	for (uint32_t W : { 2u, 4u, 8u })
		for (uint32_t rows : { 1u, 5u, 33u, 64u })
			if (rows * W <= 256)	/* all at once on one GPU */
				CASE(sum_case(rows, W, 640, salt));
	CASE(sum_case(3, 11, 384, salt));	/* not all ranks at a time */
	CASE(sum_case(5, 4, 7168, salt));
	CASE(sum_away_case(4, 2, salt));
	CASE(sum_away_case(11, 9, salt));
	/* 8, 16 or 32 rows a block, up to 2, 4 or 8 ranks at a time, more; and
	 * groups that do not begin at rank 0 */
	CASE(value_words_case(9, 4, 4, 4, 8, salt));
	CASE(value_words_case(33, 67, 2, 6, 8, salt));
	CASE(value_words_case(3, 4, 8, 0, 8, salt));
	CASE(value_words_case(15, 34, 8, 8, 16, salt));
	CASE(value_words_case(64, 34, 5, 2, 8, salt));
	CASE(value_words_case(3, 4, 9, 0, 9, salt));
	CASE(value_words_case(15, 34, 12, 3, 16, salt));
	CASE(value_words_case(20, 67, 10, 0, 16, salt));
	for (enum missing of : { ALL, PIECE, LSE }) {
		CASE(value_away_case(2, 0, 2, 1, of, salt));
		CASE(value_away_case(4, 4, 8, 2, of, salt));
		CASE(value_away_case(8, 8, 16, 5, of, salt));
		CASE(value_away_case(12, 3, 16, 10, of, salt));
	}
}
