/*
 * Sparse decode attention: a few query rows, each with its own list of pool
 * rows, against packed fp8 or bf16 rows. dcpg.h says what is computed,
 * attend.cuh how one block sums.
 *
 * A block owns NH heads of one query row and one split of its key list. The
 * blocks of a cluster share a list and merge their results through each other's
 * shared memory, so one launch does all and no state outlives it. A cluster may
 * hold two blocks of heads of every split, a team, whose rows are fetched once
 * for both. Which NH, how many splits and whether teams is chosen from the
 * shape, by what was measured.
 *
 * Shared memory, NH = 64, fp8: q 72 KB, 3 stages of 41 KB, p 16 KB, the rest
 * 8 KB. After the last key q and the stages become the place where the
 * cluster's blocks put each other's shares of the output.
 *
 * Bytes that must move: rows*count*656 (1152), + rows*heads*(1152 + 1024).
 * Flops: rows*heads*count*2176.
 */
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include <algorithm>

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/attend_roles.cuh"
#include "kernels/cuda/attend_wide.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

/* l of each column over all of the block's keys: first what a warp that scores
 * has of it, then the sum, known to every thread that sums. */
template <class S>
__device__ inline void
share_l(const Acc<S> &a, const Place &p, uint32_t red)
{
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		float x = a.l[j];

#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		if (p.g == 0)
			sts32(red + col_head(j, p.c) * S::rrow +
			    (p.wg * 4 + p.w) * 4, __float_as_uint(x));
	}
	if (S::roles)
		bar_arrive(BAR_L, S::computing);
}

template <class S>
__device__ inline void
sum_l(Acc<S> &a, const Place &p, uint32_t red)
{
	bar_sync(BAR_L, S::computing);
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t y[S::wgs / 2];
		float x;

		lds<S::wgs / 2>(y, red + col_head(j, p.c) * S::rrow +
		    p.g * 2 * S::wgs);
		x = __uint_as_float(y[0]);
		if (S::wgs == 4)
			x += __uint_as_float(y[S::wgs / 2 - 1]);
#pragma unroll
		for (int k = 4; k < 32; k *= 2)
			x += __shfl_xor_sync(~0u, x, k);
		a.l[j] = x;
	}
}

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

/* A thread's outputs of column j, times k; they begin at first_dim(). */
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

/* C: the unit of o. */
template <class S>
__device__ inline float
unit(const Acc<S> &a)
{
	return S::bf16 ? 1.0f : __uint_as_float(a.cexp << 23);
}

__device__ inline float
natural(float m, float l)
{
	return l > 0.0f ? m * 0.6931471805599453f + logf(l) :
	    l == 0.0f ? -INFINITY : l;
}

/* LSE of all heads, by the first warp. fs is not needed any more. */
template <class S>
__device__ inline void
write_lse(const Out<S> &out, const Args &g, const Acc<S> &a, const Place &p,
    uint32_t smem)
{
	if (p.w != 0 || p.wg != 0)
		return;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		if (p.g == 0)
			sts32(smem + S::fs_off + col_head(j, p.c) * 4,
			    __float_as_uint(a.l[j]));
	__syncwarp();
	for (uint32_t h = p.lane; h < S::nh; h += 32)
		out.lse(g, h, natural(unordered(lds32(smem + S::ms_off +
		    h * 4)), ldsf(smem + S::fs_off + h * 4)));
}

/* The block had all keys: straight from registers. */
template <class S>
__device__ inline void
write_all(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	const Out<S> out(g);
	uint16_t *at = (uint16_t *)out.o + first_dim<S>(p);
	float v[2 * S::tiles], k[S::nh / 4];

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		k[j] = a.l[j] == 0.0f ? 0.0f : __fdividef(unit(a), a.l[j]);
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
	write_lse<S>(out, g, a, p, smem);
}

/* Block r of a cluster owns heads r*per .. of the output; the last may own
 * fewer, or none. */
template <class S>
struct Owned {
	uint32_t per, first, n;

	__device__ inline
	Owned(uint32_t r, uint32_t splits)
	{
		per = (S::nh + splits - 1) / splits;
		first = min((uint32_t)S::nh, r * per);
		n = min((uint32_t)S::nh, first + per) - first;
	}
};

/* Tell all blocks of the cluster the (m, l) of this block's keys. */
template <class S>
__device__ inline void
push_ml(const Acc<S> &a, const Place &p, uint32_t smem, uint32_t split,
    uint32_t splits, uint32_t rank0)
{
	uint32_t at = smem + S::ml_off + split * S::nh * 8;

	if (p.w != 0 || p.wg != 0)
		return;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t h = col_head(j, p.c);
		float m = unordered(lds32(smem + S::ms_off + h * 4));

		for (uint32_t to = p.g; to < splits; to += 8)
			cluster_st64(cluster_map(at + h * 8, rank0 + to), m,
			    a.l[j], cluster_map(smem + S::ml_bar, rank0 + to));
	}
}

/* o / l of this block's keys, to where it is copied from. */
template <class S>
__device__ inline void
stage_o(const Acc<S> &a, const Place &p, uint32_t out)
{
	constexpr int N = 2 * S::tiles;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++) {
		uint32_t at = out + col_head(j, p.c) * S::xrow;
		float v[N];

		column<S>(v, a, j, a.l[j] == 0.0f ? 0.0f :
		    __fdividef(1.0f, a.l[j]));
		if (first_dim<S>(p) == 0)
			sts32(at + S::xunit, __float_as_uint(unit(a)));
		at += first_dim<S>(p) * (S::xunit / 512);
		if (S::bf16)
#pragma unroll
			for (int i = 0; i < N; i += 4)
				sts128(at + 4 * i, make_uint4(
				    __float_as_uint(v[i]),
				    __float_as_uint(v[i + 1]),
				    __float_as_uint(v[i + 2]),
				    __float_as_uint(v[i + 3])));
		else
#pragma unroll
			for (int i = 0; i < N; i += 4)
				sts64(at + 2 * i, pack_f16(v[i], v[i + 1]),
				    pack_f16(v[i + 2], v[i + 3]));
	}
}

/* Four neighbouring values of such a row. */
template <class S>
__device__ inline void
fetch_o(float (&v)[4], uint32_t row, uint32_t i)
{
	uint32_t x[4];
	uint2 y;

	if (S::bf16) {
		lds<4>(x, row + i * 16);
#pragma unroll
		for (int u = 0; u < 4; u++)
			v[u] = __uint_as_float(x[u]);
		return;
	}
	y = lds64(row + i * 8);
	v[0] = f16_lo(y.x);
	v[1] = f16_hi(y.x);
	v[2] = f16_lo(y.y);
	v[3] = f16_hi(y.y);
}

/*
 * The weights of the splits for the heads that this block owns, exp(m_r - m)
 * l_r / sum_r exp(m_r - m) l_r, to red, [splits][heads]; 0 where a split had no
 * keys.
 */
template <class S>
__device__ inline void
weigh(const Args &g, uint32_t smem, uint32_t split, uint32_t splits)
{
	Owned<S> own(split, splits);
	uint32_t h = threadIdx.x, hb = own.first + h;
	uint32_t ml = smem + S::ml_off + hb * 8, to = smem + S::red_off + h * 4;
	float m = -INFINITY, l = 0.0f, inv;

	if (h >= own.n)
		return;
	for (uint32_t r = 0; r < splits; r++) {
		uint2 x = lds64(ml + r * S::nh * 8);

		if (x.y != 0)
			m = fmaxf(m, __uint_as_float(x.x));
	}
	for (uint32_t r = 0; r < splits; r++) {
		uint2 x = lds64(ml + r * S::nh * 8);

		if (x.y != 0)
			l += ex2(__uint_as_float(x.x) - m) *
			    __uint_as_float(x.y);
	}
	inv = l == 0.0f ? 0.0f : 1.0f / l;
	for (uint32_t r = 0; r < splits; r++) {
		uint2 x = lds64(ml + r * S::nh * 8);
		float k = x.y == 0 ? 0.0f : ex2(__uint_as_float(x.x) - m) *
		    __uint_as_float(x.y) * inv;

		sts32(to + r * own.per * 4, __float_as_uint(k));
	}
	Out<S>(g).lse(g, hb, natural(m, l));
}

/* out = sum_r weight_r o_r / l_r of the heads that this block owns, in split
 * order. A split of weight 0 has perhaps sent nothing. */
template <class S>
__device__ inline void
write_owned(const Args &g, uint32_t smem, uint32_t out, uint32_t split,
    uint32_t splits)
{
	Owned<S> own(split, splits);
	const Out<S> to(g);

	for (uint32_t i = threadIdx.x; i < own.n * 128; i += S::work) {
		uint32_t h = i / 128, hb = own.first + h;
		float v[4] = { 0 };

#pragma unroll 4
		for (uint32_t r = 0; r < splits; r++) {
			uint32_t at = smem + (r * own.per + h) * S::xrow;
			float y[4], k = ldsf(smem + S::red_off +
			    (r * own.per + h) * 4);
			bool none = k == 0.0f;

			if (r == split)		/* its own never moved */
				at = out + hb * S::xrow;
			fetch_o<S>(y, at, i % 128);
			k *= ldsf(at + S::xunit);
#pragma unroll
			for (int u = 0; u < 4; u++)
				v[u] += none ? 0.0f : k * y[u];
		}
		put(to.head(g, hb, i % 128 * 4), to.f32, v);
	}
}

/*
 * The splits become one. Two barriers count bytes: (m, l) of all splits, which
 * also says that they are done with their q and stages, so that those may be
 * overwritten; then o of the heads that this block owns. Splits that had keys
 * send o of all heads, one copy for each owner. Nobody leaves before all that
 * is sent has arrived.
 */
template <class S>
__device__ inline void
merge(const Args &g, const Acc<S> &a, const Place &p, uint32_t smem)
{
	uint32_t split = blockIdx.x, splits = gridDim.x, full;
	uint32_t me = threadIdx.x, rank0 = blockIdx.y % g.team * splits;
	Owned<S> mine(split, splits), to(me, splits);
	uint32_t out = smem + splits * mine.per * S::xrow;

	if (me == 0)
		mbar_expect(smem + S::ml_bar, splits * S::nh * 8);
	stage_o<S>(a, p, out);
	fence_async();		/* would wait for the pushes, too */
	push_ml<S>(a, p, smem, split, splits, rank0);
	bar_sync(BAR_OUT, S::work);
	mbar_wait(smem + S::ml_bar, 0);
	if (me < splits && me != split && to.n > 0 && a.l[0] != 0.0f)
		cluster_copy(cluster_map(smem + split * to.per * S::xrow,
		    rank0 + me), out + to.first * S::xrow, to.n * S::xrow,
		    cluster_map(smem + S::o_bar, rank0 + me));
	__syncwarp();
	full = __ballot_sync(~0u, p.lane < splits && p.lane != split &&
	    lds32(smem + S::ml_off + p.lane % splits * S::nh * 8 + 4) != 0);
	if (me == 0)
		mbar_expect(smem + S::o_bar, __popc(full) * mine.n * S::xrow);
	weigh<S>(g, smem, split, splits);
	bar_sync(BAR_L, S::work);
	mbar_wait(smem + S::o_bar, 0);
	cluster_arrive();
	write_owned<S>(g, smem, out, split, splits);
}

/* The block's share of its heads is where their owners read it. */
template <class S>
__device__ inline void
tell_owners(const Args &g)
{
	uint32_t head = blockIdx.y * S::nh, first = head >> g.part_lg;
	uint32_t n = ((head + S::nh - 1) >> g.part_lg) - first + 1;

	bar_sync(BAR_OUT, S::work);
	for (uint32_t i = threadIdx.x; i < n; i += S::work)
		peer_arrive(g.to[first + i].arrived);
}

/* What warps do that only score. */
template <class S>
__device__ inline void
compute_scores(const Place &p, uint32_t smem, uint32_t n, bool clustered)
{
	Acc<S> a;

#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		a.l[j] = 0.0f;
	a.cexp = 0;
	score_rounds<S>(a, p, smem, n);
	share_l<S>(a, p, smem + S::red_off);
	__syncwarp();
	if (clustered) {
		cluster_arrive();
		cluster_wait();
	}
}

/* What the other computing warps do. */
template <class S>
__device__ inline void
compute(const Args &g, const Place &p, uint32_t smem, uint32_t n,
    const Team &team)
{
	bool clustered = gridDim.x * team.n > 1;
	Acc<S> a;

#pragma unroll
	for (int i = 0; i < S::tiles; i++)
#pragma unroll
		for (int j = 0; j < S::nh / 2; j++)
			a.o[i][j] = 0.0f;
#pragma unroll
	for (int j = 0; j < S::nh / 4; j++)
		a.l[j] = 0.0f;
	a.cexp = 0;
	if constexpr (S::wide) {
		attend_wide<S>(a, p, team, smem, n);
	} else {
		if constexpr (S::roles) {
			sum_rounds<S>(a, p, team, smem, n);
		} else {
			attend<S>(a, p, team, smem, n);
			share_l<S>(a, p, smem + S::red_off);
		}
		sum_l<S>(a, p, smem + S::red_off);
	}
	if (S::splits == 1 || gridDim.x == 1) {
		if (clustered)
			cluster_arrive();
		write_all<S>(g, a, p, smem);
	} else {
		merge<S>(g, a, p, smem);
	}
	if (g.arrive)
		tell_owners<S>(g);
	__syncwarp();
	if (clustered)
		cluster_wait();		/* nobody needs this block any more */
}

/* q to shared memory; how many keys the block has. */
template <class S>
__device__ inline uint32_t
begin(const Args &g, uint8_t *mem, bool clustered)
{
	uint32_t head0 = blockIdx.z * g.heads + blockIdx.y * S::nh;
	uint32_t count = min(g.count[blockIdx.z], g.max_count);

	load_q<S>(g, g.q + (size_t)head0 * 1152, mem);
	fence_async();
	bar_sync(BAR_Q, S::computing);
	if (clustered)
		cluster_wait();		/* everyone's barriers are set up */
	return my_part(count).n;
}

/* grid: (splits, heads / NH, rows), clusters of (splits, team, 1). */
template <class S>
__global__ void __launch_bounds__(S::threads, 1)
attend_kernel(const Args g)
{
	extern __shared__ __align__(1024) uint8_t mem[];
	uint32_t smem = smem_addr(mem), lane = threadIdx.x % 32, n;
	Team team(g.team, gridDim.x);
	Place p = { threadIdx.x / 128, threadIdx.x / 32 % 4, lane, lane / 4,
	    lane % 4 };
	bool clustered = gridDim.x * team.n > 1;

	if (threadIdx.x == 0)
		for (int i = 0; i < S::stages; i++) {
			mbar_init(smem + S::bar_off + i * 8, 1);
			mbar_init(smem + S::bar_off + 64 + i * 8,
			    S::wgs * 4 * team.n);
		}
	if (threadIdx.x == 0) {
		mbar_init(smem + S::ml_bar, 1);
		mbar_init(smem + S::o_bar, 1);
		mbar_publish();
	}
	fence_async();
	if (threadIdx.x < S::nh)
		sts32(smem + S::ms_off + threadIdx.x * 4,
		    ordered(-INFINITY));
	if (threadIdx.x == 0)
		sts32(smem + S::ce_off, 0);
	__syncthreads();
	if (gridDim.x * team.n > 1)
		cluster_arrive();
	launch_wait();
	launch_next();
	if (threadIdx.x >= S::computing) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::
		    "n"(S::spare));
		gather<S>(g, team, smem);
		__syncwarp();
		if (clustered) {
			if (team.n == 1)
				cluster_wait();
			cluster_arrive();
			cluster_wait();
		}
		return;
	}
	n = begin<S>(g, mem, clustered);
	if (threadIdx.x >= S::work) {
		p.wg -= S::wgs;
		if constexpr (S::roles)
			compute_scores<S>(p, smem, n, clustered);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::
		    "n"(S::regs));
		compute<S>(g, p, smem, n, team);
	}
}

/* --- host ---------------------------------------------------------------- */

template <class S>
void
configure(cudaLaunchConfig_t *cfg, cudaLaunchAttribute at[2], dim3 grid,
    uint32_t team)
{
	at[0].id = cudaLaunchAttributeClusterDimension;
	at[0].val.clusterDim.x = grid.x;
	at[0].val.clusterDim.y = team;
	at[0].val.clusterDim.z = 1;
	at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[1].val.programmaticStreamSerializationAllowed = 1;
	*cfg = {};
	cfg->gridDim = grid;
	cfg->blockDim = dim3(S::threads);
	cfg->dynamicSmemBytes = S::bytes;
	cfg->attrs = at;
	cfg->numAttrs = 2;
}

template <class S>
int
launch(const Args &g, uint32_t rows, uint32_t splits, cudaStream_t stream)
{
	cudaLaunchAttribute at[2];
	cudaLaunchConfig_t cfg;

	configure<S>(&cfg, at, dim3(splits, g.heads / S::nh, rows), g.team);
	cfg.stream = stream;
	return cudaLaunchKernelEx(&cfg, attend_kernel<S>, g) == cudaSuccess ?
	    0 : -EIO;
}

/* fit[n]: how many clusters of n blocks run at once; above 8 blocks a device
 * may have none. */
template <class S>
cudaError_t
prepare(int fit[MAX_SPLITS + 1])
{
	cudaError_t e = cudaFuncSetAttribute(attend_kernel<S>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes);

	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(attend_kernel<S>,
		    cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
	for (int n = 1; n <= MAX_SPLITS && e == cudaSuccess; n++) {
		cudaLaunchAttribute at[2];
		cudaLaunchConfig_t cfg;

		fit[n] = 0;
		configure<S>(&cfg, at, dim3(n, 1, 1), 1);
		cfg.numAttrs = 1;
		e = cudaOccupancyMaxActiveClusters(&fit[n], attend_kernel<S>,
		    &cfg);
		if (e != cudaSuccess && n > 8) {
			fit[n] = 0;
			e = cudaSuccess;
			cudaGetLastError();
		}
	}
	return e;
}

/*
 * One compiled shape. The three figures predict a launch: every wave of blocks
 * costs `fixed`, plus `stage` per 64 keys of a block (a tenth less where rows
 * are fetched together), plus `merge` when keys are split; us, fitted to what
 * an H200 took (doc/cuda.md). They only choose; any choice is right.
 */
struct Entry {
	struct dcpg_attend_shape shape;
	int (*launch)(const Args &, uint32_t, uint32_t, cudaStream_t);
	cudaError_t (*prepare)(int [MAX_SPLITS + 1]);
	double fixed, stage, merge;
	uint32_t splits;	/* at most */
	int fit[MAX_SPLITS + 1];
};

#define ENTRY(bf16, nh, w, fixed, stage, merge) {			\
	{ nh, w }, launch<Shape<bf16, nh, w>>, prepare<Shape<bf16, nh, w>>, \
	fixed, stage, merge, Shape<bf16, nh, w>::splits < nh ?		\
	Shape<bf16, nh, w>::splits : nh, { 0 } }

Entry fp8_entries[] = {
	ENTRY(false, 64, 2, 11, 2.6, 0), ENTRY(false, 32, 2, 6.6, 1.81, 4.0),
	ENTRY(false, 16, 4, 5.6, 1.6, 2.2), ENTRY(false, 8, 4, 4.6, 1.65, 1.4),
};
Entry bf16_entries[] = {
	ENTRY(true, 32, 2, 6.6, 2.2, 4.0), ENTRY(true, 16, 2, 5.6, 1.7, 2.2),
	ENTRY(true, 8, 2, 4.6, 1.65, 1.4), ENTRY(true, 64, 2, 11.7, 3.17, 0),
};

template <class T, size_t N>
constexpr uint32_t
len(const T (&)[N])
{
	return N;
}

Entry *
entries(enum dcpk_kv kv, uint32_t *n)
{
	*n = kv == DCPK_KV_BF16 ? len(bf16_entries) : len(fp8_entries);
	return kv == DCPK_KV_BF16 ? bf16_entries : fp8_entries;
}

struct Choice {
	const Entry *e;
	uint32_t splits, team;
};

uint32_t
expected(const struct dcpg_attend *a)
{
	return a->expected > 0 && a->expected < a->max_count ? a->expected :
	    a->max_count;
}

/* us; INFINITY where the device cannot run it. */
double
predict(const struct dcpg_attend *a, const Choice &c)
{
	uint32_t groups = a->heads / c.e->shape.heads, waves, stages;
	uint32_t clusters = a->rows * groups / c.team, fit;
	double t = c.e->fixed;

	if (c.splits > c.e->splits || c.splits * c.team > MAX_SPLITS ||
	    groups % c.team != 0 || c.e->fit[c.splits * c.team] == 0)
		return INFINITY;
	fit = c.e->fit[c.splits * c.team];
	waves = (clusters + fit - 1) / fit;
	stages = ((expected(a) + c.splits - 1) / c.splits + KEYS - 1) / KEYS;
	t += c.e->stage * stages * (c.team > 1 ? 0.9 : 1);
	if (c.splits > 1)
		t += c.e->merge;
	if (c.splits > 8)	/* start late */
		t += 2.4;
	return waves * t;
}

/* What the caller forces stays; the rest is the fastest by prediction. Teams of
 * four gain nothing over two and only run when forced. */
Choice
choose(const struct dcpg_attend *a)
{
	uint32_t n;
	const Entry *e = entries(a->kv, &n);
	Choice best = {};
	double t = INFINITY;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t x = 0; x < 3 * MAX_SPLITS; x++) {
			Choice c = { &e[i], x / 3 + 1, 1u << x % 3 };
			double y;

			if (c.e->shape.heads > a->heads ||
			    (a->shape > 0 && a->shape != i + 1) ||
			    (a->splits > 0 && a->splits != c.splits) ||
			    (a->team > 0 ? a->team != c.team : c.team > 2))
				continue;
			y = predict(a, c);
			if (y < t) {
				t = y;
				best = c;
			}
		}
	return best;
}

}	/* namespace */

int
attend_init(void)
{
	for (int b = 0; b < 2; b++) {
		uint32_t n;
		Entry *e = entries(b ? DCPK_KV_BF16 : DCPK_KV_FP8, &n);

		for (uint32_t i = 0; i < n; i++)
			if (e[i].prepare(e[i].fit) != cudaSuccess)
				return -EIO;
	}
	return 0;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" bool
dcpg_attend_shape(enum dcpk_kv kv, uint32_t i, struct dcpg_attend_shape *out)
{
	uint32_t n;
	const Entry *e = entries(kv, &n);

	if (i >= n)
		return false;
	*out = e[i].shape;
	for (int s = 1; s <= MAX_SPLITS; s++)
		out->fit[s] = e[i].fit[s];
	out->splits = e[i].splits;
	return true;
}

extern "C" int
dcpg_attend(const struct dcpg_attend *a, void *stream)
{
	uint32_t parts = a->to != NULL ? a->parts : 1;
	Choice c;
	Args g;

	if ((a->kv != DCPK_KV_FP8 && a->kv != DCPK_KV_BF16) || a->rows == 0 ||
	    a->rows > 65535 || a->heads < 8 || a->heads > 128 ||
	    (a->heads & (a->heads - 1)) != 0 || a->list_stride < a->max_count ||
	    parts == 0 || a->heads % parts != 0 || (parts & (parts - 1)) != 0)
		return -EINVAL;
	c = choose(a);
	if (c.e == NULL)
		return -EINVAL;
	g.team = c.team;
	g.q = (const uint8_t *)a->q;
	g.pool = (const uint8_t *)a->pool;
	g.list = a->list;
	g.count = a->count;
	g.out = a->out;
	g.lse = a->lse;
	g.to = a->to;
	g.self = a->self;
	g.part_lg = (uint32_t)__builtin_ctz(a->heads / parts);
	g.heads = a->heads;
	g.list_stride = a->list_stride;
	g.max_count = a->max_count;
	g.expected = expected(a);
	g.scale_log2 = a->scale * 1.4426950408889634f;
	g.out_f32 = a->out_f32;
	g.arrive = a->arrive && a->to != NULL;
	return c.e->launch(g, a->rows, c.splits, (cudaStream_t)stream);
}

extern "C" uint32_t
dcpg_attend_arrivals(const struct dcpg_attend *a)
{
	Choice c = choose(a);
	uint32_t each = a->heads / (a->to != NULL ? a->parts : 1);

	return c.e == NULL ? 0 : a->rows * c.splits * std::max(1u, each /
	    c.e->shape.heads);
}
