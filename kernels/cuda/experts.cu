/*
 * Products of the routed experts: rows sorted by expert into slots, each slot
 * times its expert's matrix. dcpg.h says what is computed.
 *
 * The weights are the long side of wgmma, the slots of one expert the short
 * one, so that a block reads weights once whatever few rows meet there. A block
 * owns `tile` slots of an expert and 64 rows of gate and of up for each of its
 * warpgroups (or 128 of down). Weights come by tensor copies of 64 rows x 128
 * bytes, rows of x by 16-byte copies of the threads that bring; both stand in
 * shared memory with the 128-byte swizzle. Gate and up of an element end in one
 * thread, which applies SiLU and the product. Where there are too few blocks, a
 * cluster shares the columns and adds up in shared memory, in the same order
 * whoever else is in the batch; in how many parts follows from the number of
 * rows.
 *
 * e4m3: a stage is 128 columns, so one scale for each 64 rows. A thread makes
 * bf16 of 16 adjacent bytes (dcpk_e4m3_at put its elements there) and
 * multiplies from registers: the same products in the same order as with
 * matrices expanded to bf16 before.
 *
 * Bytes that must move: the matrices of the experts that have a slot; for few
 * rows nothing else counts. Operations: 2 n k a slot (twice that for gate and
 * up), which counts from some 200 slots an expert on.
 */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/keep.h"

namespace dcpg {
namespace {

constexpr uint32_t BOX = 64 * 128;	/* bytes of one tensor copy */
constexpr uint32_t MAX_SCALES = 512;	/* k / 128 of an FP8 matrix */

/* --- products ------------------------------------------------------------ */

#define REGS8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGS16 REGS8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGS32 REGS16 ", %16, %17, %18, %19, %20, %21, %22, %23, " \
	"%24, %25, %26, %27, %28, %29, %30, %31"
#define REGS64 REGS32 ", %32, %33, %34, %35, %36, %37, %38, %39, " \
	"%40, %41, %42, %43, %44, %45, %46, %47, " \
	"%48, %49, %50, %51, %52, %53, %54, %55, " \
	"%56, %57, %58, %59, %60, %61, %62, %63"
#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC8(i) ACC4(i), ACC4(i + 4)
#define ACC16(i) ACC8(i), ACC8(i + 8)
#define ACC32(i) ACC16(i), ACC16(i + 16)
#define ACC64(i) ACC32(i), ACC32(i + 32)

/* d[64][N] += a[64][16] * b[N][16]^T of bf16, both in shared memory or a in
 * registers. */
template <int N> struct Wide;

#define WIDE(N, ACC, R, r0, r1, r2, r3, r4)				\
template <> struct Wide<N> {						\
	static __device__ inline void					\
	both(float (&d)[N / 2], uint64_t a, uint64_t b)			\
	{								\
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"	\
		    "wgmma.mma_async.sync.aligned.m64n" #N		\
		    "k16.f32.bf16.bf16 {" R "}, " r0 ", " r1		\
		    ", p, 1, 1, 0, 0;\n}\n"				\
		    : ACC : "l"(a), "l"(b));				\
	}								\
	static __device__ inline void					\
	left(float (&d)[N / 2], const uint32_t *a, uint64_t b)		\
	{								\
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"	\
		    "wgmma.mma_async.sync.aligned.m64n" #N		\
		    "k16.f32.bf16.bf16 {" R "}, {" r0 ", " r1 ", " r2	\
		    ", " r3 "}, " r4 ", p, 1, 1, 0;\n}\n"		\
		    : ACC : "r"(a[0]), "r"(a[1]), "r"(a[2]),		\
		    "r"(a[3]), "l"(b));					\
	}								\
};
WIDE(16, ACC8(0), REGS8, "%8", "%9", "%10", "%11", "%12")
WIDE(32, ACC16(0), REGS16, "%16", "%17", "%18", "%19", "%20")
WIDE(64, ACC32(0), REGS32, "%32", "%33", "%34", "%35", "%36")
WIDE(128, ACC64(0), REGS64, "%64", "%65", "%66", "%67", "%68")
#undef WIDE

/* A box of 64 rows from (column, row) of expert e. */
__device__ inline void
tensor_load(uint32_t dst, const CUtensorMap *map, uint32_t col, uint32_t row,
    uint32_t e, uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
	    :: "r"(dst), "l"(map), "r"(col), "r"(row), "r"(e), "r"(bar)
	    : "memory");
}

/* 16 bytes, or zeros. */
__device__ inline void
copy16(uint32_t dst, const void *src, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	    :: "r"(dst), "l"(src), "r"(there ? 16 : 0) : "memory");
}

/* All threads of all blocks; what they wrote to shared memory is seen. */
__device__ inline void
cluster_meet(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;\n"
	    "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline float
cluster_ldf(uint32_t a, uint32_t rank)
{
	float v;

	asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v)
	    : "r"(cluster_map(a, rank)) : "memory");
	return v;
}

/* --- shapes -------------------------------------------------------------- */

/*
 * TILE slots, WG warpgroups that multiply, RING stages of U x 128 bytes of a
 * weight's row; BLOCKS are to fit on an SM.
 */
template <int TILE_, int WG_, int U_, int RING_, int BLOCKS_, bool FP8_>
struct Shape {
	static constexpr uint32_t TILE = TILE_, WG = WG_, U = U_, RING = RING_;
	static constexpr uint32_t BLOCKS = BLOCKS_;
	static constexpr bool FP8 = FP8_;
	static constexpr uint32_t COLS = FP8 ? 128 : 64;	/* of a box */
	static constexpr uint32_t K = U * COLS;		/* of a stage */
	static constexpr uint32_t WORK = WG * 128;
	static constexpr uint32_t BRING = WG == 1 ? 32 : 128;
	static constexpr uint32_t THREADS = WORK + BRING;
	/* P boxes of all warpgroups, then Q boxes; for each of U */
	static constexpr uint32_t W = U * 2 * WG * BOX;
	static constexpr uint32_t X1 = TILE * 128;	/* 64 columns of x */
	static constexpr uint32_t X = K / 64 * X1;
	static constexpr uint32_t STAGE = W + X;
	static constexpr uint32_t RED = TILE * 512;	/* of a split */
	static constexpr uint32_t BUF = RING * STAGE > RED ? RING * STAGE : RED;
	static constexpr uint32_t SCALES = FP8 ? 2 * WG * MAX_SCALES * 4 : 0;
	static constexpr uint32_t SHARED = 1024 + BUF + SCALES + RING * 16;
};

struct work {
	const uint8_t *x;	/* bf16, x_ld bytes a row */
	const uint32_t *slot_row, *tile_e, *tile0, *first;
	const float *scale[2];	/* of expert 0 */
	size_t expert_floats;	/* from one's scales to the next's */
	__nv_bfloat16 *y16;
	float *y;
	uint32_t E, n, k, x_ld, scale_ld, n_tiles, split;
	bool early;
};

/* What the block does. */
struct place {
	uint32_t e, n0, m0, cnt;	/* expert, matrix row, slot, slots */
	uint32_t s0, s1;		/* stages */
};

template <class S, bool GLU>
__device__ inline bool
find(const work &a, place &p)
{
	constexpr uint32_t rows = S::WG * (GLU ? 64 : 128), per = 128 / S::COLS;
	uint32_t part = blockIdx.x % a.split, b = blockIdx.x / a.split;
	uint32_t f, t, have, tiles, all = (a.k + 127) / 128;

	p.e = a.tile_e[b / a.n_tiles];
	if (p.e >= a.E)
		return false;
	f = a.first[p.e];
	have = a.first[p.e + 1] - f;
	t = b - a.tile0[p.e] * a.n_tiles;
	tiles = (have + S::TILE - 1) / S::TILE;
	p.m0 = f + t % tiles * S::TILE;
	p.cnt = min(S::TILE, f + have - p.m0);
	p.n0 = t / tiles * rows;
	p.s0 = all * part / a.split * per / S::U;
	p.s1 = all * (part + 1) / a.split * per;
	p.s1 = min((p.s1 + S::U - 1) / S::U, (a.k + S::K - 1) / S::K);
	return true;
}

/* --- bringing ------------------------------------------------------------ */

template <class S, bool GLU>
__device__ inline void
bring_weights(const CUtensorMap *m0, const CUtensorMap *m1, const place &p,
    uint32_t stage, uint32_t at, uint32_t full)
{
	mbar_expect(full, S::W);
#pragma unroll
	for (uint32_t u = 0; u < S::U; u++)
#pragma unroll
		for (uint32_t q = 0; q < 2; q++)
#pragma unroll
			for (uint32_t w = 0; w < S::WG; w++)
				tensor_load(at + ((u * 2 + q) * S::WG + w) *
				    BOX, GLU && q ? m1 : m0,
				    (stage * S::U + u) * S::COLS, p.n0 +
				    (GLU ? w * 64 : w * 128 + q * 64), p.e,
				    full);
}

template <class S, bool GLU>
__device__ inline void
bring(const CUtensorMap *m0, const CUtensorMap *m1, const work &a,
    const place &p, uint32_t buf, uint32_t bars)
{
	constexpr uint32_t PASS = S::BRING / 8, N = S::TILE / PASS;
	uint32_t tid = threadIdx.x - S::WORK, chunk = tid % 8, r0 = tid / 8;
	uint32_t n = p.s1 - p.s0;
	const uint8_t *row[N];

	if (tid == 0)
		for (uint32_t i = 0; i < n && i < S::RING; i++)
			bring_weights<S, GLU>(m0, m1, p, p.s0 + i, buf + i *
			    S::STAGE, bars + i * 16);
	if (a.early)
		launch_wait();
#pragma unroll
	for (uint32_t i = 0; i < N; i++) {
		uint32_t s = p.m0 + min(r0 + i * PASS, p.cnt - 1);

		row[i] = a.x + (size_t)(a.slot_row ? a.slot_row[s] : s) *
		    a.x_ld + chunk * 16;
	}
	for (uint32_t i = 0, s = 0, turn = 0; i < n; i++) {
		uint32_t at = buf + s * S::STAGE, full = bars + s * 16;
		uint32_t k = (p.s0 + i) * S::K;

		if (turn > 0) {
			mbar_wait(full + 8, (turn - 1) & 1);
			if (tid == 0)
				bring_weights<S, GLU>(m0, m1, p, p.s0 + i, at,
				    full);
		}
#pragma unroll
		for (uint32_t h = 0; h < S::K / 64; h++) {
			bool there = k + h * 64 + chunk * 8 < a.k;

#pragma unroll
			for (uint32_t j = 0; j < N; j++) {
				uint32_t r = r0 + j * PASS;

				if (r < p.cnt)
					copy16(at + S::W + h * S::X1 + r * 128 +
					    ((chunk ^ r % 8) * 16), there ?
					    row[j] + (k + h * 64) * 2 : row[j],
					    there);
			}
		}
		mbar_arrive_copies(full);
		if (++s == S::RING) {
			s = 0;
			turn++;
		}
	}
}

/* --- multiplying --------------------------------------------------------- */

/* Two e4m3 times a scale as two bf16. */
__device__ inline uint32_t
scaled(uint32_t two, float scale)
{
	uint32_t h = e4m3x2_f16x2(two);
	float lo, hi;

	asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\n"
	    "cvt.f32.f16 %1, h;\n}\n" : "=f"(lo), "=f"(hi) : "r"(h));
	return pack_bf16(lo * scale, hi * scale);
}

/* 64 columns of the thread's two rows: fragments of four products. */
__device__ inline void
fragments(uint32_t (&a)[16], uint32_t box, uint32_t half, float scale)
{
	uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	uint32_t at = box + (threadIdx.x / 32 % 4 * 16 + g) * 128 +
	    (((2 * c + half) ^ g) * 16);
	uint4 x = lds128(at), y = lds128(at + 8 * 128);
	uint32_t xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };

#pragma unroll
	for (int s = 0; s < 4; s++) {
		a[4 * s] = scaled(xs[s], scale);
		a[4 * s + 1] = scaled(ys[s], scale);
		a[4 * s + 2] = scaled(xs[s] >> 16, scale);
		a[4 * s + 3] = scaled(ys[s] >> 16, scale);
	}
}

/* A stage of bf16: one group of products. */
template <class S, int N>
__device__ inline void
multiply(float (&p)[N / 2], float (&q)[N / 2], uint32_t at, uint32_t wg)
{
	wg_fence();
#pragma unroll
	for (uint32_t u = 0; u < S::U; u++) {
		uint32_t w = at + (u * 2 * S::WG + wg) * BOX;
		uint64_t dp = desc128(w), dq = desc128(w + S::WG * BOX);
		uint64_t dx = desc128(at + S::W + u * S::X1);

#pragma unroll
		for (int s = 0; s < 4; s++) {	/* 32 bytes on */
			Wide<N>::both(p, dp + 2 * s, dx + 2 * s);
			Wide<N>::both(q, dq + 2 * s, dx + 2 * s);
		}
	}
	wg_commit();
}

/*
 * A stage of e4m3: two groups a half. The registers of a group are made again
 * when the group before the last has ended. `before` is called once, when the
 * products of the stage before have.
 */
template <class S, int N, class F>
__device__ inline void
multiply8(float (&p)[N / 2], float (&q)[N / 2], uint32_t (&ap)[16],
    uint32_t (&aq)[16], uint32_t at, uint32_t wg, float sp, float sq, F before)
{
#pragma unroll
	for (uint32_t h = 0; h < 2; h++) {
		uint64_t dx = desc128(at + S::W + h * S::X1);

		wg_wait<1>();
		wg_ready<16>(ap);
		fragments(ap, at + wg * BOX, h, sp);
		wg_fence();
#pragma unroll
		for (int s = 0; s < 4; s++)
			Wide<N>::left(p, ap + 4 * s, dx + 2 * s);
		wg_commit();
		wg_wait<1>();
		wg_ready<16>(aq);
		if (h == 0)
			before();
		fragments(aq, at + (S::WG + wg) * BOX, h, sq);
		wg_fence();
#pragma unroll
		for (int s = 0; s < 4; s++)
			Wide<N>::left(q, aq + 4 * s, dx + 2 * s);
		wg_commit();
	}
}

/* Scales of the block's 64-row runs, P and Q of each warpgroup. */
template <class S, bool GLU>
__device__ inline void
load_scales(const work &a, const place &p, float *sc)
{
	for (uint32_t i = threadIdx.x; i < 2 * S::WG * (p.s1 - p.s0);
	    i += S::WORK) {
		uint32_t s = i / (2 * S::WG), r = i % (2 * S::WG);
		uint32_t q = r % 2, w = r / 2;
		uint32_t n = p.n0 + (GLU ? w * 64 : w * 128 + q * 64);

		sc[r * MAX_SCALES + s] = n < a.n ? a.scale[GLU ? q : 0][
		    p.e * a.expert_floats + (size_t)(n / 128) * a.scale_ld +
		    p.s0 + s] : 0;
	}
	bar_sync(1, S::WORK);
}

/* Sums of the cluster's blocks; each is left with the elements i that it is
 * to write: i % split == its rank. */
template <class S, int N>
__device__ inline void
add_parts(float (&p)[N / 2], float (&q)[N / 2], uint32_t buf, uint32_t split)
{
	uint32_t me = blockIdx.x % split, at = buf + threadIdx.x * 4;

	bar_sync(1, S::WORK);
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		sts32(at + i * 1024, __float_as_uint(p[i]));
		sts32(at + i * 1024 + 512, __float_as_uint(q[i]));
	}
	cluster_meet();
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		if (i % split != me)
			continue;
		p[i] = q[i] = 0;
		for (uint32_t r = 0; r < split; r++) {
			p[i] += cluster_ldf(at + i * 1024, r);
			q[i] += cluster_ldf(at + i * 1024 + 512, r);
		}
	}
}

template <class S, bool GLU, int N>
__device__ inline void
store(const work &a, const place &p, const float (&x)[N / 2],
    const float (&y)[N / 2])
{
	uint32_t lane = threadIdx.x % 32, wg = threadIdx.x / 128;
	uint32_t row = p.n0 + wg * (GLU ? 64 : 128) + threadIdx.x / 32 % 4 *
	    16 + lane / 4, me = blockIdx.x % a.split;

#pragma unroll
	for (uint32_t i = 0; i < N / 2; i++) {
		uint32_t t = i / 4 * 8 + lane % 4 * 2 + i % 2;
		uint32_t n = row + i / 2 % 2 * 8;
		size_t at = (size_t)(p.m0 + t) * a.n + n;

		if (t >= p.cnt || (a.split > 1 && i % a.split != me))
			continue;
		if (GLU) {
			if (n < a.n)
				a.y16[at] = __float2bfloat16(x[i] /
				    (1 + __expf(-x[i])) * y[i]);
		} else {
			if (n < a.n)
				a.y[at] = x[i];
			if (n + 64 < a.n)
				a.y[at + 64] = y[i];
		}
	}
}

template <class S, bool GLU, int N>
__device__ inline void
compute(const work &a, const place &pl, uint32_t buf, uint32_t bars, float *sc)
{
	float p[N / 2], q[N / 2];
	uint32_t ap[16] = {}, aq[16] = {};
	uint32_t wg = threadIdx.x / 128, n = pl.s1 - pl.s0;
	bool one = threadIdx.x % 32 == 0;

#pragma unroll
	for (int i = 0; i < N / 2; i++)
		p[i] = q[i] = 0;
	if (S::FP8)
		load_scales<S, GLU>(a, pl, sc);
	for (uint32_t i = 0, s = 0, odd = 0; i < n; i++) {
		uint32_t full = bars + s * 16, at = buf + s * S::STAGE;
		uint32_t last = bars + (s == 0 ? S::RING - 1 : s - 1) * 16;

		mbar_wait(full, odd);
		fence_async();		/* x came by ordinary copies */
		if (S::FP8) {
			multiply8<S, N>(p, q, ap, aq, at, wg,
			    sc[2 * wg * MAX_SCALES + i],
			    sc[(2 * wg + 1) * MAX_SCALES + i], [&] {
				if (i > 0 && one)
					mbar_arrive(last + 8);
			});
		} else {
			multiply<S, N>(p, q, at, wg);
			wg_wait<1>();
			if (i > 0 && one)
				mbar_arrive(last + 8);
		}
		if (++s == S::RING) {
			s = 0;
			odd ^= 1;
		}
	}
	wg_wait<0>();
	wg_ready<16>(ap);
	wg_ready<16>(aq);
	wg_pin(p);
	wg_pin(q);
	if (a.split > 1)
		add_parts<S, N>(p, q, buf, a.split);
	store<S, GLU, N>(a, pl, p, q);
}

template <class S, bool GLU>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
expert_kernel(const __grid_constant__ CUtensorMap m0,
    const __grid_constant__ CUtensorMap m1, const __grid_constant__ work a)
{
	extern __shared__ uint8_t raw[];
	uint32_t buf = (smem_addr(raw) + 1023) & ~1023u;
	float *sc = (float *)(raw + (buf - smem_addr(raw)) + S::BUF);
	uint32_t bars = buf + S::BUF + S::SCALES;
	place p;

	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < S::RING; i++) {
			mbar_init(bars + i * 16, S::BRING + 1);
			mbar_init(bars + i * 16 + 8, S::WORK / 32);
		}
		fence_async();
		mbar_publish();
	}
	if (!a.early)
		launch_wait();
	launch_next();
	if (!find<S, GLU>(a, p)) {
		if (a.early)
			launch_wait();
		return;
	}
	__syncthreads();
	if (threadIdx.x >= S::WORK) {
		if (S::WG > 1)
			asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
		bring<S, GLU>(&m0, &m1, a, p, buf, bars);
		if (a.split > 1)
			cluster_meet();
	} else {
		if (S::WG > 1)
			asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
		if (a.early)
			launch_wait();
		if (S::TILE == 16 || p.cnt <= 16)
			compute<S, GLU, 16>(a, p, buf, bars, sc);
		else if (S::TILE > 16 && p.cnt <= S::TILE / 2)
			compute<S, GLU, S::TILE == 16 ? 16 :
			    S::TILE / 2>(a, p, buf, bars, sc);
		else
			compute<S, GLU, S::TILE>(a, p, buf, bars, sc);
	}
	if (a.split > 1)	/* others read this block's shared memory */
		cluster_meet();
}

/* --- launching ----------------------------------------------------------- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t,
    void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_fn encode;	/* the driver's; set by experts_init */

/* [E][n][k] in boxes of 64 rows x 128 bytes; places past n or k read as 0. */
int
make_map(CUtensorMap *map, const struct dcpg_experts *g, const void *w)
{
	uint64_t el = g->fp8 ? 1 : 2, row = g->k * el;
	uint64_t each = g->fp8 ? dcpk_fp8_bytes(g->n, g->k) : g->n * row;
	cuuint64_t dim[3] = { g->k, g->n, g->experts };
	cuuint64_t step[2] = { row, each };
	cuuint32_t box[3] = { (cuuint32_t)(128 / el), 64, 1 };
	cuuint32_t one[3] = { 1, 1, 1 };

	return encode(map, g->fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 :
	    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)w, dim, step, box,
	    one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
	    CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS ? 0 : -EIO;
}

/* Blocks to be had of the experts that meet `rows` rows: at most. */
uint32_t
tiles_of(const struct dcpg_experts *g, uint32_t tile)
{
	return dcpg_expert_tiles(g->rows, g->each, g->experts, tile);
}

template <class S, bool GLU>
int
launch(const struct dcpg_experts *g, cudaStream_t st)
{
	constexpr uint32_t rows = S::WG * (GLU ? 64 : 128);
	cudaLaunchAttribute at[2] = {};
	cudaLaunchConfig_t cfg = {};
	CUtensorMap m[2];
	work a = {};

	if (make_map(&m[0], g, g->w) != 0 ||
	    make_map(&m[1], g, GLU ? g->w2 : g->w) != 0)
		return -EIO;
	a.x = (const uint8_t *)g->x;
	a.slot_row = g->slot_row;
	a.tile_e = g->tile_e;
	a.tile0 = g->tile0;
	a.first = g->first;
	a.E = g->experts;
	a.n = g->n;
	a.k = g->k;
	a.x_ld = g->k * 2;
	a.scale_ld = dcpk_fp8_scale_ld(g->k);
	a.expert_floats = dcpk_fp8_bytes(g->n, g->k) / 4;
	for (int i = 0; i < 2; i++)
		a.scale[i] = (const float *)((const uint8_t *)(GLU && i ?
		    g->w2 : g->w) + (size_t)g->n * g->k);
	a.y16 = (__nv_bfloat16 *)g->y16;
	a.y = g->y;
	a.n_tiles = (g->n + rows - 1) / rows;
	a.early = g->early;
	a.split = S::WG > 1 ? 1 : g->split;
	if (a.split == 0) {	/* enough blocks for every SM */
		uint32_t b = tiles_of(g, S::TILE) * a.n_tiles;

		for (a.split = 1; a.split < 4 && b * a.split * 2 <= 136;)
			a.split *= 2;
	}
	while (a.split > (g->k + 127) / 128)
		a.split /= 2;
	cfg.gridDim = dim3(tiles_of(g, S::TILE) * a.n_tiles * a.split);
	cfg.blockDim = dim3(S::THREADS);
	cfg.dynamicSmemBytes = S::SHARED;
	cfg.stream = st;
	at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[0].val.programmaticStreamSerializationAllowed = 1;
	at[1].id = cudaLaunchAttributeClusterDimension;
	at[1].val.clusterDim.x = a.split;
	at[1].val.clusterDim.y = at[1].val.clusterDim.z = 1;
	cfg.attrs = at;
	cfg.numAttrs = a.split > 1 ? 2 : 1;
	return cudaLaunchKernelEx(&cfg, expert_kernel<S, GLU>, m[0], m[1], a) ==
	    cudaSuccess ? 0 : -EIO;
}

struct entry {
	uint32_t tile;
	int (*init)(void);
	int (*run)(const struct dcpg_experts *, cudaStream_t);
};

template <class S>
int
shape_init(void)
{
	cudaError_t e = cudaFuncSetAttribute(expert_kernel<S, true>,
	    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);

	if (e == cudaSuccess)
		e = cudaFuncSetAttribute(expert_kernel<S, false>,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
	return e == cudaSuccess ? 0 : -EIO;
}

template <class S>
int
shape_run(const struct dcpg_experts *g, cudaStream_t st)
{
	return g->w2 != NULL ? launch<S, true>(g, st) :
	    launch<S, false>(g, st);
}

template <class S>
constexpr entry
shape(void)
{
	static_assert(S::K <= 128, "a split begins at 128 columns");
	return { S::TILE, shape_init<S>, shape_run<S> };
}

/* TILE, WG, U, RING, BLOCKS. Two blocks an SM, no more: with room for three,
 * some SMs get three and others one. The fourth is for e4m3 down, where columns
 * are few and many warps hide that they make bf16. */
const entry shapes[][2] = {
	{ shape<Shape<16, 1, 2, 3, 2, false>>(),
	    shape<Shape<16, 1, 1, 5, 2, true>>() },
	{ shape<Shape<64, 1, 1, 4, 2, false>>(),
	    shape<Shape<64, 1, 1, 3, 2, true>>() },
	{ shape<Shape<128, 2, 1, 4, 1, false>>(),
	    shape<Shape<128, 2, 1, 3, 1, true>>() },
	{ shape<Shape<16, 1, 1, 4, 3, false>>(),
	    shape<Shape<16, 1, 1, 3, 3, true>>() },
};
constexpr uint32_t SHAPES = sizeof shapes / sizeof shapes[0];

uint32_t
choose(uint32_t rows, uint32_t each, uint32_t experts)
{
	if (rows <= 16)
		return 0;
	return (uint64_t)rows * each <= 32ull * experts || rows <= 64 ? 1 : 2;
}

}	/* namespace */

int
experts_init(void)
{
	cudaDriverEntryPointQueryResult r;
	void *f = NULL;
	int rc = 0;

	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f,
	    12000, cudaEnableDefault, &r) != cudaSuccess || f == NULL)
		return -EIO;
	encode = (encode_fn)f;
	for (uint32_t i = 0; i < SHAPES && rc == 0; i++)
		for (int q = 0; q < 2 && rc == 0; q++)
			rc = shapes[i][q].init();
	return rc;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" uint32_t
dcpg_expert_tile(uint32_t rows, uint32_t each, uint32_t experts, uint32_t shape)
{
	if (shape > SHAPES)
		return 0;
	return shapes[shape ? shape - 1 : choose(rows, each, experts)][0].tile;
}

extern "C" uint32_t
dcpg_expert_tiles(uint32_t rows, uint32_t each, uint32_t experts,
    uint32_t tile)
{
	uint32_t slots = rows * each, one = slots < experts ? slots : experts;

	/* an expert meets a row once: one tile each while rows fit in it */
	return rows <= tile ? one : slots / tile + one;
}

extern "C" bool
dcpg_experts_fit(uint32_t n, uint32_t k, bool fp8)
{
	return n != 0 && k != 0 && (fp8 ? k % 128 == 0 && n % 16 == 0 &&
	    k / 128 <= MAX_SCALES : k % 8 == 0);
}

extern "C" int
dcpg_experts(const struct dcpg_experts *g, void *stream)
{
	uint32_t i = g->shape ? g->shape - 1 : choose(g->rows, g->each,
	    g->experts);

	if (g->shape == 0 && i == 0 && g->fp8 && g->w2 == NULL)
		i = 3;

	if (!dcpg_experts_fit(g->n, g->k, g->fp8) || i >= SHAPES ||
	    g->rows == 0 || (g->w2 != NULL) != (g->y16 != NULL) ||
	    (g->y != NULL) == (g->y16 != NULL) || g->split > 8)
		return -EINVAL;
	return shapes[i][g->fp8].run(g, (cudaStream_t)stream);
}
