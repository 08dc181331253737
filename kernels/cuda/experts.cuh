/*
 * What the products of routed experts share, whatever their weights are
 * (experts.cu, experts4.cu), and linear layers of few rows (linear.cu).
 */
#ifndef DCPG_EXPERTS_CUH
#define DCPG_EXPERTS_CUH

#include <cuda.h>
#include <stdint.h>

#include "kernels/cuda/ptx.cuh"

namespace dcpg {

/* silu(x) * y */
__device__ inline float
glu(float x, float y)
{
	return x / (1 + __expf(-x)) * y;
}

/* Where a warp is in a ring of N stages. */
template <uint32_t N>
struct ring {
	uint32_t s = 0;		/* the stage */
	uint32_t turn = 0;	/* how often it was round */

	__device__ inline void
	next(void)
	{
		if (++s == N) {
			s = 0;
			turn++;
		}
	}
};

/* Four sums of a thread, a unit: in P and in Q, of two adjacent slots. Its j-th
 * is number j * 128 + thread of the block's; here stand its first slot and its
 * row, of 64. */
__device__ inline void
unit_at(uint32_t u, uint32_t *slot, uint32_t *row)
{
	uint32_t j = u / 128, t = u % 128;

	*slot = j / 2 * 8 + t % 4 * 2;
	*row = t / 32 * 16 + t % 32 / 4 + j % 2 * 8;
}

__device__ inline float4
load_cluster(uint32_t a)
{
	float4 v;

	asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
	    : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a) : "memory");
	return v;
}

/*
 * put(slot, row, unit) for each unit of the block's, of 128 threads that
 * multiply. SPLIT: of the sums over the cluster's blocks, in the order of their
 * columns, each block having an equal share of the units; at buf stand 2 KB for
 * each of a thread's units, and this block's are read until the next
 * cluster_sync. W of a unit are under way at once: one after the other they
 * took 2 us of 32 slots.
 */
template <int N, bool SPLIT, uint32_t W = 8, class PUT>
__device__ inline void
each_unit(const float (&p)[N / 2], const float (&q)[N / 2], uint32_t buf,
    uint32_t split, PUT put)
{
	constexpr uint32_t ALL = N / 4 * 128;
	uint32_t t = threadIdx.x % 128, slot, row;

	if (!SPLIT || split == 1) {
#pragma unroll
		for (int j = 0; j < N / 4; j++) {
			unit_at(j * 128 + t, &slot, &row);
			put(slot, row, make_float4(p[2 * j], p[2 * j + 1],
			    q[2 * j], q[2 * j + 1]));
		}
		return;
	}
	bar_sync(1, 128);	/* nobody multiplies any more */
#pragma unroll
	for (int j = 0; j < N / 4; j++)
		sts128(buf + (j * 128 + t) * 16, make_uint4(
		    __float_as_uint(p[2 * j]), __float_as_uint(p[2 * j + 1]),
		    __float_as_uint(q[2 * j]), __float_as_uint(q[2 * j + 1])));
	cluster_sync();
	uint32_t me = blockIdx.x % split, end = ALL * (me + 1) / split;

#pragma unroll (N > 16 ? 2 : 1)
	for (uint32_t u = ALL * me / split + t; u < end; u += 128) {
		float4 v[W], s = make_float4(0, 0, 0, 0);

		for (uint32_t r0 = 0; r0 < split; r0 += W) {
#pragma unroll
			for (uint32_t r = 0; r < W; r++)
				if (r0 + r < split)
					v[r] = load_cluster(cluster_map(buf +
					    u * 16, r0 + r));
#pragma unroll
			for (uint32_t r = 0; r < W; r++)
				if (r0 + r < split) {
					s.x += v[r].x;
					s.y += v[r].y;
					s.z += v[r].z;
					s.w += v[r].w;
				}
		}
		unit_at(u, &slot, &row);
		put(slot, row, s);
	}
}

/* --- products ------------------------------------------------------------ */

constexpr uint32_t BOX = 64 * 128;	/* bytes of one tensor copy */

#define REGS4 "%0, %1, %2, %3"
#define REGS8 REGS4 ", %4, %5, %6, %7"
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

/* d[64][N] += a[64][16] * b[N][16]^T of bf16, or [32] columns of e4m3, where
 * keep = 0 forgets the old d; both in shared memory. */
template <int N> struct Wide;

#define WIDE(N, ACC, R, r0, r1, r2)					\
template <> struct Wide<N> {						\
	static __device__ inline void					\
	bf16(float (&d)[N / 2], uint64_t a, uint64_t b)			\
	{								\
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"	\
		    "wgmma.mma_async.sync.aligned.m64n" #N		\
		    "k16.f32.bf16.bf16 {" R "}, " r0 ", " r1		\
		    ", p, 1, 1, 0, 0;\n}\n"				\
		    : ACC : "l"(a), "l"(b));				\
	}								\
	static __device__ inline void					\
	e4m3(float (&d)[N / 2], uint64_t a, uint64_t b, int keep)	\
	{								\
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " r2	\
		    ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N	\
		    "k32.f32.e4m3.e4m3 {" R "}, " r0 ", " r1		\
		    ", p, 1, 1;\n}\n"					\
		    : ACC : "l"(a), "l"(b), "r"(keep));			\
	}								\
};
WIDE(8, ACC4(0), REGS4, "%4", "%5", "%6")
WIDE(16, ACC8(0), REGS8, "%8", "%9", "%10")
WIDE(32, ACC16(0), REGS16, "%16", "%17", "%18")
WIDE(64, ACC32(0), REGS32, "%32", "%33", "%34")
WIDE(128, ACC64(0), REGS64, "%64", "%65", "%66")
#undef WIDE
#undef REGS4
#undef REGS8
#undef REGS16
#undef REGS32
#undef REGS64
#undef ACC4
#undef ACC8
#undef ACC16
#undef ACC32
#undef ACC64

/* [count][rows][cols] of bytes or bf16, `each` bytes from one to the next, in
 * boxes of box_rows x 128 bytes; places past its end read as 0. */
int tensor_map(CUtensorMap *, const void *, bool bytes, uint64_t cols,
    uint64_t rows, uint64_t count, uint64_t each, uint32_t box_rows);

/* A box from (column, row) of matrix e. */
__device__ inline void
tensor_load(uint32_t dst, const CUtensorMap *map, uint32_t col, uint32_t row,
    uint32_t e, uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
	    :: "r"(dst), "l"(map), "r"(col), "r"(row), "r"(e), "r"(bar)
	    : "memory");
}

/* The sums of one stage of e4m3. */
template <int N>
__device__ inline void
start8(float (&d)[N / 2], uint32_t w, uint32_t x)
{
	uint64_t dw = desc128(w), dx = desc128(x);

#pragma unroll
	for (int s = 0; s < 4; s++)	/* 32 bytes on */
		Wide<N>::e4m3(d, dw + 2 * s, dx + 2 * s, s > 0);
	wg_commit();
}

}	/* namespace dcpg */
#endif
