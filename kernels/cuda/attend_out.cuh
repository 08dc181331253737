/*
 * Sparse decode attention: what becomes of a block's sums. attend.cuh makes
 * them; here they are divided by l, made one with those of the other splits of
 * the list, and written.
 *
 * Splits meet in device memory (Args::work), not in each other's shared memory:
 * clusters as large as that would need do not fill the device (of four blocks
 * 30 find room, 120 SMs of 132), and what is sent needs neither copies nor a
 * barrier then. Each block owns some heads of the output. The others write what
 * they have of these straight from their registers, and it is there when it is
 * no longer all ones, which nothing that is sent ever is: sums come from
 * arithmetic, whose NaN is another. Who has read a place sets it to ones again,
 * so that it is ready for the next launch, which waits for the end of this one.
 * (m, l) goes the same way, before the values are multiplied, by the warps that
 * gathered, which have nothing else to do; so the weights of the splits are
 * known when o comes.
 *
 * A block waits for others of its launch, and without a bound, so all of them
 * must have an SM some time. The blocks of a list are neighbours in the grid,
 * whose blocks begin in order: all lists but one at most are complete and leave.
 * Of several ranks that share a GPU each may have one that is not, 14 blocks of
 * 16 at most: of up to eight ranks that leaves SMs to go on with.
 */
#ifndef DCPG_ATTEND_OUT_CUH
#define DCPG_ATTEND_OUT_CUH

#include <math.h>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/peer.cuh"

namespace dcpg {
namespace {

/* Where the outputs of the block's h-th head go. */
template <class S>
struct Dest {
	uint16_t *o;
	float *lse;

	__device__ inline
	Dest(const Args &g, uint32_t h)
	{
		uint32_t head = blockIdx.y * S::nh + h;
		uint32_t in = head & ((1u << g.part_lg) - 1);
		size_t row = blockIdx.z;
		void *to = g.out;

		lse = g.lse;
		if (g.to != NULL) {
			to = g.to[head >> g.part_lg].out;
			lse = g.to[head >> g.part_lg].lse;
			row += (size_t)g.self * gridDim.z;
		}
		row = (row << g.part_lg) + in;
		o = (uint16_t *)to + (row * 512 << g.out_f32);
		lse += row;
	}
};

/*
 * The same for those that write: mostly the NH heads are of one part, so that
 * the first one's place, which who gathered has found in time, tells all; else
 * each head looks for its own.
 */
template <class S>
struct Out {
	uint16_t *o;
	bool one, f32;

	__device__ inline
	Out(const Args &g, uint32_t smem)
	{
		uint2 x = lds64(smem + S::out_off);

		o = (uint16_t *)((uint64_t)x.y << 32 | x.x);
		one = S::nh >> g.part_lg <= 1;
		f32 = g.out_f32;
	}
	/* The block's h-th head; its column `col`. */
	__device__ inline uint16_t *
	head(const Args &g, uint32_t h, uint32_t col) const
	{
		uint16_t *to = o;

		if (one)
			col += h * 512;
		else
			to = Dest<S>(g, h).o;
		return to + (col << f32);
	}
};

/* Words of an output, perhaps for a peer that looks at these alone. */
__device__ inline void
put(void *to, uint4 v)
{
	send_words((uint4 *)to, v);
}

__device__ inline void
put(void *to, uint2 v)
{
	asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};"
	    :: "l"(to), "r"(v.x), "r"(v.y) : "memory");
}

__device__ inline void
put(float *to, float v)
{
	asm volatile("st.relaxed.sys.global.f32 [%0], %1;" :: "l"(to), "f"(v) :
	    "memory");
}

/* N neighbouring outputs of one head. */
template <int N>
__device__ inline void
put(uint16_t *half, bool f32, const float (&v)[N])
{
	if (f32)
#pragma unroll
		for (int i = 0; i < N; i += 4)
			put((float *)half + i, make_uint4(
			    __float_as_uint(v[i]), __float_as_uint(v[i + 1]),
			    __float_as_uint(v[i + 2]),
			    __float_as_uint(v[i + 3])));
	else if (N == 8)
		put(half, make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2],
		    v[3]), pack_bf16(v[4 % N], v[5 % N]), pack_bf16(v[6 % N],
		    v[7 % N])));
	else
		put(half, make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2],
		    v[3])));
}

/* A thread's sums of column j, times k; they begin at first_dim(). */
template <class S>
__device__ inline void
column(float (&v)[2 * S::tiles], const Acc<S> &a, int j, float k)
{
#pragma unroll
	for (int i = 0; i < S::tiles; i++) {
		v[2 * i] = a.o[i][col_acc(j)] * k;
		v[2 * i + 1] = a.o[i][col_acc(j) + 2] * k;
	}
}

template <class S>
__device__ inline uint32_t
first_dim(const Place &p)
{
	return S::tiles * (64 * p.wg + 16 * p.w + 2 * p.g);
}

__device__ inline float
natural(float m, float l)
{
	return l > 0.0f ? m * 0.6931471805599453f + logf(l) :
	    l == 0.0f ? -INFINITY : l;
}

/* --- what splits send each other ----------------------------------------- */

/* Split of the list that owns the block's head h: g.per neighbouring ones each,
 * one or an even number; the last splits may own fewer, or none. */
__device__ inline uint32_t
owner(const Args &g, uint32_t h)
{
	return h * g.per_magic >> 16;		/* h / per */
}

/* What is sent to split `to` of this list: (m, l, unit, 0) of each split and
 * head, [splits][per], then as many rows of o / l. */
template <class S>
__device__ inline uint8_t *
place_of(const Args &g, uint32_t to)
{
	uint32_t list = blockIdx.z * gridDim.y + blockIdx.y;

	return g.work + (size_t)(list * gridDim.x + to) * S::in_bytes;
}

/* N words to another block, which are not ones. */
template <int N>
__device__ inline void
send(uint8_t *to, const uint32_t (&v)[N])
{
	if (N == 2)
		asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};"
		    :: "l"(to), "r"(v[0]), "r"(v[1]) : "memory");
	else
#pragma unroll
		for (int i = 0; i < N; i += 4)
			asm volatile("st.relaxed.gpu.global.v4.b32 [%0], "
			    "{%1, %2, %3, %4};" :: "l"(to + 4 * i), "r"(v[i]),
			    "r"(v[i + 1]), "r"(v[(i + 2) % N]),
			    "r"(v[(i + 3) % N]) : "memory");
}

/* Whatever is at a place now. */
template <int N>
__device__ inline void
look(uint32_t (&v)[N], const uint8_t *at)
{
	if (N == 2)
		asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
		    : "=r"(v[0]), "=r"(v[1]) : "l"(at) : "memory");
	else
#pragma unroll
		for (int i = 0; i < N; i += 4)
			asm volatile("ld.relaxed.gpu.global.v4.b32 "
			    "{%0, %1, %2, %3}, [%4];" : "=r"(v[i]),
			    "=r"(v[i + 1]), "=r"(v[(i + 2) % N]),
			    "=r"(v[(i + 3) % N]) : "l"(at + 4 * i) : "memory");
}

template <int N>
__device__ inline bool
is_there(const uint32_t (&v)[N])
{
	uint32_t all = ~0u;
	bool there = true;

#pragma unroll
	for (int i = 0; i < N; i++)
		there &= v[i] != all;
	return there;
}

template <int N>
__device__ inline void
make_ready(uint8_t *at)
{
	uint32_t v[N];

#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = ~0u;
	send<N>(at, v);
}

/* --- the warps that gathered: l, LSE, weights ---------------------------- */

/* l of head h over all of the block's keys, whose maxima were the last stage's
 * in the end. A warpgroup's part is in units of its own last stage's. */
template <class S>
__device__ inline float
sum_l(uint32_t smem, uint32_t h, uint32_t stages)
{
	uint32_t at = smem + S::red_off + h * S::rrow;
	float l = 0.0f, k = 1.0f;

#pragma unroll
	for (uint32_t w = 1; w <= S::wgs; w++) {
		uint32_t i = stages - w, told = told_at<S>(smem, i);
		uint4 x;

		if (w > stages)
			break;
		x = lds128(at + i % S::wgs * 16);
		l += k * ((__uint_as_float(x.x) + __uint_as_float(x.y)) +
		    (__uint_as_float(x.z) + __uint_as_float(x.w)));
		if (lds32(told + S::nh * 4) != 0)
			k *= ldsf(told + h * 4);
	}
	return l;
}

/*
 * The weights of all splits for the heads that this block owns. Thread t has
 * split t / per's (m, l, unit) of its t % per-th; then exp(m_r - m) l_r unit_r
 * / sum_r exp(m_r - m) l_r is at S::wt_off, [splits][per]; 0 where a split had
 * no keys. own: this block's of head t.
 */
template <class S>
__device__ inline void
weigh(const Args &g, uint32_t smem, uint32_t busy, const uint32_t (&own)[4])
{
	uint32_t t = threadIdx.x % 128, r = owner(g, t), split = blockIdx.x;
	uint32_t per = g.per, h = t - r * per, first = split * per;
	uint32_t ml = smem + S::ml_off;
	bool mine = r < gridDim.x && first + h < S::nh;
	float m = -INFINITY, l = 0.0f, k;

	if (t < S::nh && r != split && split < busy)
		send<4>(place_of<S>(g, r) + (first + h) * 16, own);
	if (t < S::nh && r == split)
		sts128(ml + t * 16, make_uint4(own[0], own[1], own[2], 0));
	if (mine && r != split) {
		uint32_t v[4] = { __float_as_uint(-INFINITY), 0, 0, 0 };
		uint8_t *at = place_of<S>(g, split) + t * 16;

		if (r < busy) {
			do
				look<4>(v, at);
			while (!is_there(v));
			make_ready<4>(at);
		}
		sts128(ml + t * 16, make_uint4(v[0], v[1], v[2], 0));
	}
	bar_sync(BAR_ML, 128);
	if (mine) {
		uint4 x = lds128(ml + t * 16);

		for (uint32_t i = 0; i < gridDim.x; i++) {
			uint2 y = lds64(ml + (i * per + h) * 16);

			if (y.y != 0)
				m = fmaxf(m, __uint_as_float(y.x));
		}
		for (uint32_t i = 0; i < gridDim.x; i++) {
			uint2 y = lds64(ml + (i * per + h) * 16);

			if (y.y != 0)
				l += ex2(__uint_as_float(y.x) - m) *
				    __uint_as_float(y.y);
		}
		k = x.y == 0 ? 0.0f : __fdividef(ex2(__uint_as_float(x.x) - m) *
		    __uint_as_float(x.y) * __uint_as_float(x.z), l);
		sts32(smem + S::wt_off + t * 4, __float_as_uint(k));
	}
	bar_arrive(BAR_WEIGHTS, S::work + 128);
	if (mine && r == 0)
		put(Dest<S>(g, first + h).lse, natural(m, l));
}

/* How many splits have keys; these are the first. */
__device__ inline uint32_t
busy_splits(const Args &g)
{
	uint32_t count = min(g.count[blockIdx.z], g.max_count);
	uint32_t each = share_of(count, gridDim.x, g.split_magic);

	return each == 0 ? 0 : (count + each - 1) / each;
}

/* S::fs_off: what the sums of each head are to be multiplied by, 1 / l or, of
 * a whole list, unit / l; it is 0 where there are no keys. */
template <class S>
__device__ inline void
finish(const Args &g, uint32_t smem, uint32_t n)
{
	uint32_t h = threadIdx.x % 128, own[4] = { 0 };
	bool whole = S::splits == 1 || gridDim.x == 1;
	uint32_t busy = whole ? 0 : busy_splits(g);
	Dest<S> to(g, min(h, S::nh - 1));
	float m, l, unit;

	if (h == 0) {
		sts64(smem + S::out_off, (uint32_t)(uint64_t)to.o,
		    (uint64_t)to.o >> 32);
		sts32(smem + S::busy_off, busy);
	}
	bar_sync(BAR_L, S::work + 128);
	if (h < S::nh) {
		m = unordered(lds32(smem + S::ms_off + h * 4));
		l = sum_l<S>(smem, h, (n + KEYS - 1) / KEYS);
		unit = S::bf16 ? 1.0f : __uint_as_float(lds32(smem +
		    S::unit_off) << 23);
		own[0] = __float_as_uint(m);
		own[1] = __float_as_uint(l);
		own[2] = __float_as_uint(unit);
		sts32(smem + S::fs_off + h * 4, __float_as_uint(l == 0.0f ?
		    0.0f : __fdividef(whole ? unit : 1.0f, l)));
	}
	bar_arrive(BAR_SUMS, S::work + 128);
	if constexpr (S::splits > 1)
		if (!whole)
			weigh<S>(g, smem, busy, own);
	if (whole && h < S::nh)
		put(to.lse, natural(m, l));
	if (g.arrive)
		bar_arrive(BAR_OUT, S::work + 128);
}

/* --- the warps that summed ----------------------------------------------- */

/* The block had all keys. */
template <class S>
__device__ inline void
write_all(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	const Out<S> out(g, smem);
	uint16_t *at = out.o + first_dim<S>(p);
	float v[2 * S::tiles], k[S::nh / 4];

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		k[j] = ldsf(smem + S::fs_off + col_head(j, p.c) * 4);
	if (out.one && !out.f32) {	/* mostly; in few instructions */
#pragma unroll
		for (int j = 0; j < S::nh / 4; j++) {
			column<S>(v, a, j, k[j]);
			put(at + col_head(j, p.c) * 512, false, v);
		}
	} else {
#pragma unroll
		for (int j = 0; j < S::nh / 4; j++) {
			column<S>(v, a, j, k[j]);
			put(out.head(g, col_head(j, p.c), first_dim<S>(p)),
			    out.f32, v);
		}
	}
}

/* o / l to who owns the heads, f16 or, of bf16 rows, f32. */
template <class S>
__device__ inline void
send_o(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	constexpr int N = 2 * S::tiles;
	uint32_t split = blockIdx.x, per = g.per;
	uint8_t *base = place_of<S>(g, 0) + S::in_rows * 16 + (split * per *
	    512 + first_dim<S>(p)) * (S::in_row / 512);

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c), to = owner(g, h);
		uint32_t x[S::in_words];
		float v[N];

		if (to == split)
			continue;
		column<S>(v, a, j, ldsf(smem + S::fs_off + h * 4));
#pragma unroll
		for (int i = 0; i < S::in_words; i++)
			x[i] = S::bf16 ? __float_as_uint(v[i % N]) :
			    pack_f16(v[2 * i % N], v[(2 * i + 1) % N]);
		send(base + (h * S::in_row + to * (S::in_bytes - per *
		    S::in_row)), x);
	}
}

/* v += k * what was sent. */
template <class S>
__device__ inline void
add_sent(float (&v)[2 * S::tiles], const uint32_t (&x)[S::in_words], float k)
{
#pragma unroll
	for (int i = 0; i < S::in_words; i++)
		if (S::bf16) {
			v[i % (2 * S::tiles)] += k * __uint_as_float(x[i]);
		} else {
			v[2 * i % (2 * S::tiles)] += k * f16_lo(x[i]);
			v[(2 * i + 1) % (2 * S::tiles)] += k * f16_hi(x[i]);
		}
}

/*
 * v[u] += sum_r weight_r o_r / l_r of U heads of the other splits that have
 * keys. at, wt: of split 0; `step`: from one's rows to the next's. S::at_once
 * splits are asked for at once.
 */
template <class S, int U>
__device__ inline void
add_others(float (&v)[U][2 * S::tiles], uint8_t *at, uint32_t wt, uint32_t step,
    uint32_t busy)
{
	constexpr uint32_t B = S::at_once;

#pragma unroll 1
	for (uint32_t r0 = 0; r0 < busy; r0 += B) {
		uint32_t x[B][U][S::in_words];
		bool all;

		do {
			all = true;
#pragma unroll
			for (uint32_t i = 0; i < B; i++)
				if (r0 + i < busy && r0 + i != blockIdx.x)
#pragma unroll
					for (int u = 0; u < U; u++)
						look(x[i][u], at + (r0 + i) *
						    step + u * S::in_row);
#pragma unroll
			for (uint32_t i = 0; i < B; i++)
				if (r0 + i < busy && r0 + i != blockIdx.x)
#pragma unroll
					for (int u = 0; u < U; u++)
						all &= is_there(x[i][u]);
		} while (!all);
#pragma unroll
		for (uint32_t i = 0; i < B; i++)
			if (r0 + i < busy && r0 + i != blockIdx.x)
#pragma unroll
				for (int u = 0; u < U; u++) {
					make_ready<S::in_words>(at + (r0 + i) *
					    step + u * S::in_row);
					add_sent<S>(v[u], x[i][u], ldsf(wt +
					    ((r0 + i) * (step / S::in_row) +
					    u) * 4));
				}
	}
}

/* The output of U heads from h on, columns j and j + 1 or one of these. */
template <class S, int U>
__device__ inline void
write_owned(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem,
    int j, uint32_t h)
{
	uint32_t split = blockIdx.x, own = h - split * g.per;
	uint32_t wt = smem + S::wt_off + own * 4;
	const Out<S> out(g, smem);
	float v[U][2 * S::tiles];

#pragma unroll
	for (int u = 0; u < U; u++)
		column<S>(v[u], a, j + u, ldsf(smem + S::fs_off + (h + u) * 4) *
		    ldsf(wt + (split * g.per + u) * 4));
	add_others<S, U>(v, place_of<S>(g, split) + S::in_rows * 16 + (own *
	    512 + first_dim<S>(p)) * (S::in_row / 512), wt, g.per * S::in_row,
	    lds32(smem + S::busy_off));
#pragma unroll
	for (int u = 0; u < U; u++)
		put(out.head(g, h + u, first_dim<S>(p)), out.f32, v[u]);
}

/* The splits become one. n: keys of the block. */
template <class S>
__device__ inline void
merge(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem, uint32_t n)
{
	if (n > 0)
		send_o<S>(g, a, p, smem);
	bar_sync(BAR_WEIGHTS, S::work + 128);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j += 2) {
		uint32_t h = col_head(j, p.c), of = owner(g, h);

		if constexpr (S::nh <= MAX_SPLITS)
			if (g.per == 1) {
				if (of == blockIdx.x)
					write_owned<S, 1>(g, a, p, smem, j, h);
				if (of + 1 == blockIdx.x)
					write_owned<S, 1>(g, a, p, smem, j + 1,
					    h + 1);
				continue;
			}
		if (of == blockIdx.x)
			write_owned<S, 2>(g, a, p, smem, j, h);
	}
}

/* The block's share of its heads is where their owners read it. */
template <class S>
__device__ inline void
tell_owners(const Args &g)
{
	uint32_t head = blockIdx.y * S::nh, first = head >> g.part_lg;
	uint32_t n = ((head + S::nh - 1) >> g.part_lg) - first + 1;

	bar_sync(BAR_OUT, S::telling);
	for (uint32_t i = threadIdx.x; i < n; i += S::work)
		peer_arrive(g.to[first + i].arrived);
}

}	/* namespace */
}	/* namespace dcpg */
#endif
