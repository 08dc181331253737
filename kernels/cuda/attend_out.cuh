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
 * A block waits for others of its launch, all of which must have an SM some
 * time: the blocks of a list are neighbours in the grid, whose blocks begin in
 * order, so all lists but one at most are complete and leave.
 */
#ifndef DCPG_ATTEND_OUT_CUH
#define DCPG_ATTEND_OUT_CUH

#include <math.h>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/peer.cuh"

namespace dcpg {
namespace {

/*
 * Where the outputs of this block's heads go. Mostly its NH heads are of one
 * part, whose base is found once; else each head looks for its own. (The
 * table of parts as an argument, looked up by number, took every launch 0.2
 * us.)
 */
template <class S>
struct Out {
	void *o;
	float *l;
	bool one, f32;

	__device__ inline
	Out(const Args &g)
	{
		one = S::nh >> g.part_lg <= 1;
		f32 = g.out_f32;
		find(g, blockIdx.y * S::nh, o, l);
	}

	static __device__ inline void
	find(const Args &g, uint32_t head, void *&o, float *&l)
	{
		uint32_t in = head & ((1u << g.part_lg) - 1);
		size_t row = blockIdx.z;

		o = g.out;
		l = g.lse;
		if (g.to != NULL) {
			o = g.to[head >> g.part_lg].out;
			l = g.to[head >> g.part_lg].lse;
			row += (size_t)g.self * gridDim.z;
		}
		row = (row << g.part_lg) + in;
		o = (uint16_t *)o + (row * 512 << g.out_f32);
		l += row;
	}

	/* The block's h-th head; its column `col`. */
	__device__ inline uint16_t *
	head(const Args &g, uint32_t h, uint32_t col) const
	{
		void *to = o;
		float *unused;

		if (one)
			col += h * 512;
		else
			find(g, blockIdx.y * S::nh + h, to, unused);
		return (uint16_t *)to + (col << f32);
	}

	__device__ inline void
	lse(const Args &g, uint32_t h, float x) const
	{
		float *to = l + h;
		void *unused;

		if (!one)
			find(g, blockIdx.y * S::nh + h, unused, to);
		*to = x;
	}
};

/* N neighbouring outputs of one head. */
template <int N>
__device__ inline void
put(uint16_t *half, bool f32, const float (&v)[N])
{
	if (f32)
#pragma unroll
		for (int i = 0; i < N; i += 4)
			*(float4 *)((float *)half + i) = make_float4(v[i],
			    v[i + 1], v[i + 2], v[i + 3]);
	else if (N == 8)
		*(uint4 *)half = make_uint4(pack_bf16(v[0], v[1]),
		    pack_bf16(v[2], v[3]), pack_bf16(v[4 % N], v[5 % N]),
		    pack_bf16(v[6 % N], v[7 % N]));
	else
		*(uint2 *)half = make_uint2(pack_bf16(v[0], v[1]),
		    pack_bf16(v[2], v[3]));
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

/* Which heads of a block's NH each split owns: `per` neighbouring ones; the
 * last may own fewer, or none. */
struct Owners {
	uint32_t per, magic;

	__device__ inline
	Owners(uint32_t nh) : per((nh + gridDim.x - 1) / gridDim.x),
	    magic(65536 / per + 1)
	{
	}
	__device__ inline uint32_t
	of(uint32_t h) const
	{
		return h * magic >> 16;		/* h / per */
	}
};

/* The place of this row's and these heads' split `to` where split `from` puts
 * its h-th of what `to` owns: (m, l, unit, 0) .. */
template <class S>
__device__ inline uint8_t *
ml_place(const Args &g, uint32_t to, uint32_t from, uint32_t per, uint32_t h)
{
	size_t list = (size_t)blockIdx.z * gridDim.y + blockIdx.y;

	return g.work + (list * gridDim.x + to) * S::in_bytes + (from * per +
	    h) * 16;
}

/* .. and o / l, 512 values in that unit. */
template <class S>
__device__ inline uint8_t *
o_place(const Args &g, uint32_t to, uint32_t from, uint32_t per, uint32_t h)
{
	return ml_place<S>(g, to, 0, per, 0) + S::in_rows * 16 + (from * per +
	    h) * S::in_row;
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

/* Thread t of these has split t / per's (m, l, unit) of head t % per of those
 * that this block owns; then its weight, exp(m_r - m) l_r unit_r / sum_r exp(m_r
 * - m) l_r, is at S::wt_off, [splits][per]; 0 where a split had no keys. */
template <class S>
__device__ inline void
weigh(const Args &g, uint32_t smem, uint32_t count, const uint32_t (&own)[4])
{
	uint32_t t = threadIdx.x % 128, split = blockIdx.x;
	Owners owners(S::nh);
	uint32_t per = owners.per, r = owners.of(t), h = t - r * per;
	uint32_t ml = smem + S::ml_off, first = split * per;
	float m = -INFINITY, l = 0.0f, k;

	if (t < S::nh && r != split && my_part(count).n > 0)
		send<4>(ml_place<S>(g, r, split, per, h), own);
	if (t < S::nh && r == split)
		sts128(ml + (split * per + h) * 16, make_uint4(own[0], own[1],
		    own[2], 0));
	if (r < gridDim.x && r != split && first + h < S::nh) {
		uint32_t v[4] = { __float_as_uint(-INFINITY), 0, 0, 0 };
		uint8_t *at = ml_place<S>(g, split, r, per, h);

		if (part_of(count, r).n > 0) {
			do
				look<4>(v, at);
			while (!is_there(v));
			make_ready<4>(at);
		}
		sts128(ml + t * 16, make_uint4(v[0], v[1], v[2], 0));
	}
	bar_sync(BAR_ML, 128);
	if (r < gridDim.x && first + h < S::nh) {
		for (uint32_t i = 0; i < gridDim.x; i++) {
			uint2 x = lds64(ml + (i * per + h) * 16);

			if (x.y != 0)
				m = fmaxf(m, __uint_as_float(x.x));
		}
		for (uint32_t i = 0; i < gridDim.x; i++) {
			uint2 x = lds64(ml + (i * per + h) * 16);

			if (x.y != 0)
				l += ex2(__uint_as_float(x.x) - m) *
				    __uint_as_float(x.y);
		}
		uint4 x = lds128(ml + t * 16);
		k = x.y == 0 ? 0.0f : ex2(__uint_as_float(x.x) - m) *
		    __uint_as_float(x.y) / l * __uint_as_float(x.z);
		sts32(smem + S::wt_off + t * 4, __float_as_uint(k));
		if (r == 0)
			Out<S>(g).lse(g, first + h, natural(m, l));
	}
	bar_arrive(BAR_WEIGHTS, S::work + 128);
}

/* S::fs_off: what the sums of each head are to be multiplied by, 1 / l or, of
 * a whole list, unit / l; it is 0 where there are no keys. */
template <class S>
__device__ inline void
finish(const Args &g, uint32_t smem)
{
	uint32_t h = threadIdx.x % 128, own[4] = { 0 };
	uint32_t count = min(g.count[blockIdx.z], g.max_count);
	bool whole = S::splits == 1 || gridDim.x == 1;

	bar_sync(BAR_L, S::work + 128);
	if (h < S::nh) {
		float m = unordered(lds32(smem + S::ms_off + h * 4)), l = 0.0f;
		float unit = S::bf16 ? 1.0f : __uint_as_float(lds32(smem +
		    S::unit_off) << 23);

#pragma unroll
		for (int i = 0; i < S::l_parts; i++)
			l += ldsf(smem + S::red_off + h * S::rrow + 4 * i);
		sts32(smem + S::fs_off + h * 4, __float_as_uint(l == 0.0f ?
		    0.0f : __fdividef(whole ? unit : 1.0f, l)));
		if (whole)
			Out<S>(g).lse(g, h, natural(m, l));
		own[0] = __float_as_uint(m);
		own[1] = __float_as_uint(l);
		own[2] = __float_as_uint(unit);
	}
	bar_arrive(BAR_SUMS, S::work + 128);
	if constexpr (S::splits > 1)
		if (!whole)
			weigh<S>(g, smem, count, own);
	if (g.arrive)
		bar_arrive(BAR_OUT, S::work + 128);
}

/* --- the warps that summed ----------------------------------------------- */

/* The block had all keys. */
template <class S>
__device__ inline void
write_all(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	const Out<S> out(g);
	uint16_t *at = (uint16_t *)out.o + first_dim<S>(p);
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
	Owners owners(S::nh);

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c), to = owners.of(h);
		uint32_t x[S::in_words];
		float v[N];

		if (to == blockIdx.x)
			continue;
		column<S>(v, a, j, ldsf(smem + S::fs_off + h * 4));
#pragma unroll
		for (int i = 0; i < S::in_words; i++)
			x[i] = S::bf16 ? __float_as_uint(v[i % N]) :
			    pack_f16(v[2 * i % N], v[(2 * i + 1) % N]);
		send(o_place<S>(g, to, blockIdx.x, owners.per, h - to *
		    owners.per) + first_dim<S>(p) * (S::in_row / 512), x);
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

/* out = sum_r weight_r o_r / l_r of heads h and h + 1, columns j and j + 1, or of
 * the one that the block owns; in split order, but that its own comes first.
 * from: the splits that have sent something. */
template <class S>
__device__ inline void
write_owned(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem,
    const Out<S> &out, const Owners &owners, uint32_t from, int j)
{
	constexpr int B = S::at_once;
	constexpr uint32_t STEP = S::in_row / 512;
	uint32_t h = col_head(j, p.c), split = blockIdx.x, per = owners.per;
	uint32_t wt = smem + S::wt_off, own = h - split * per;
	uint8_t *in = o_place<S>(g, split, 0, per, 0) + first_dim<S>(p) * STEP;
	bool mine[2] = { owners.of(h) == split, owners.of(h + 1) == split };
	float v[2][2 * S::tiles];

	if (!mine[0] && !mine[1])
		return;
#pragma unroll
	for (int u = 0; u < 2; u++)
		column<S>(v[u], a, j + u, mine[u] ? ldsf(smem + S::fs_off +
		    (h + u) * 4) * ldsf(wt + (split * per + own + u) * 4) :
		    0.0f);
	for (uint32_t r0 = 0; from >> r0 != 0; r0 += B) {
		uint32_t x[2][B][S::in_words];
		bool all;

		do {
			all = true;
#pragma unroll
			for (int i = 0; i < 2 * B; i++)
				if (mine[i % 2] && (from >> (r0 + i / 2) & 1))
					look(x[i % 2][i / 2], in + ((r0 + i / 2)
					    * per + own + i % 2) * S::in_row);
#pragma unroll
			for (int i = 0; i < 2 * B; i++)
				if (mine[i % 2] && (from >> (r0 + i / 2) & 1))
					all &= is_there(x[i % 2][i / 2]);
		} while (!all);
#pragma unroll
		for (int i = 0; i < 2 * B; i++)
			if (mine[i % 2] && (from >> (r0 + i / 2) & 1)) {
				uint32_t at = (r0 + i / 2) * per + own + i % 2;
				float k = ldsf(wt + at * 4);

				make_ready<S::in_words>(in + at * S::in_row);
				if (k != 0.0f)
					add_sent<S>(v[i % 2], x[i % 2][i / 2],
					    k);
			}
	}
#pragma unroll
	for (int u = 0; u < 2; u++)
		if (mine[u])
			put(out.head(g, h + u, first_dim<S>(p)), out.f32, v[u]);
}

/* The splits become one. */
template <class S>
__device__ inline void
merge(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	uint32_t count = min(g.count[blockIdx.z], g.max_count), from = 0;
	Owners owners(S::nh);
	const Out<S> out(g);

	if (my_part(count).n > 0)
		send_o<S>(g, a, p, smem);
	for (uint32_t r = 0; r < gridDim.x; r++)
		from |= (uint32_t)(r != blockIdx.x && part_of(count, r).n > 0)
		    << r;
	bar_sync(BAR_WEIGHTS, S::work + 128);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j += 2)
		write_owned<S>(g, a, p, smem, out, owners, from, j);
}

/* The block's share of its heads is where their owners read it. */
template <class S>
__device__ inline void
tell_owners(const Args &g)
{
	uint32_t head = blockIdx.y * S::nh, first = head >> g.part_lg;
	uint32_t n = ((head + S::nh - 1) >> g.part_lg) - first + 1;

	bar_sync(BAR_OUT, S::work + 128);
	for (uint32_t i = threadIdx.x; i < n; i += S::work)
		peer_arrive(g.to[first + i].arrived);
}

}	/* namespace */
}	/* namespace dcpg */
#endif
