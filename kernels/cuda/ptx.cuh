/*
 * The instructions of sm_90a that CUDA C++ has no name for, one function each:
 * barriers in shared memory, bulk copies, clusters, warpgroup products. Nothing
 * here knows what the kernels compute.
 */
#ifndef DCPG_PTX_CUH
#define DCPG_PTX_CUH

#include <stdint.h>

namespace dcpg {

__device__ inline uint32_t
smem_addr(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* What is at a shared address. The compiler would rather find out anew at every
 * access where that is, which takes longer than the access. */
template <class T>
__device__ inline T *
at_shared(uint32_t a)
{
	asm volatile("" : "+r"(a));
	return (T *)__cvta_shared_to_generic(a);
}

/* --- shared memory: explicit widths, so that nothing is split ------------ */

__device__ inline uint32_t
lds32(uint32_t a)
{
	uint32_t v;

	asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(a));
	return v;
}

__device__ inline uint2
lds64(uint32_t a)
{
	uint2 v;

	asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
	    : "=r"(v.x), "=r"(v.y) : "r"(a));
	return v;
}

__device__ inline uint4
lds128(uint32_t a)
{
	uint4 v;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
	    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
	return v;
}

__device__ inline void
sts32(uint32_t a, uint32_t v)
{
	asm volatile("st.shared.b32 [%0], %1;" :: "r"(a), "r"(v) : "memory");
}

__device__ inline void
sts64(uint32_t a, uint32_t x, uint32_t y)
{
	asm volatile("st.shared.v2.b32 [%0], {%1, %2};"
	    :: "r"(a), "r"(x), "r"(y) : "memory");
}

__device__ inline void
sts128(uint32_t a, uint4 v)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(a),
	    "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ inline void
max_s32(uint32_t a, int32_t v)
{
	asm volatile("red.shared.max.s32 [%0], %1;" :: "r"(a), "r"(v)
	    : "memory");
}

__device__ inline float
ldsf(uint32_t a)
{
	return __uint_as_float(lds32(a));
}

/* Four 8x8 tiles of 16-bit elements, rows of 16 bytes; lane l names the row
 * l%8 of tile l/8. */
__device__ inline void
ldmatrix4(uint32_t a, uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
	    "{%0, %1, %2, %3}, [%4];"
	    : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a));
}

__device__ inline void
stmatrix4(uint32_t a, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 "
	    "[%0], {%1, %2, %3, %4};"
	    :: "r"(a), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

/* The same tiles, stored transposed. */
__device__ inline void
stmatrix4_t(uint32_t a, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
	    "[%0], {%1, %2, %3, %4};"
	    :: "r"(a), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

__device__ inline void
stmatrix2_t(uint32_t a, uint32_t r0, uint32_t r1)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 "
	    "[%0], {%1, %2};" :: "r"(a), "r"(r0), "r"(r1) : "memory");
}

/* d += a b^T, 16 x 8 of 16 values, bf16. */
__device__ inline void
mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
    uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	    "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
	    "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0),
	    "r"(b1));
}

/* --- barriers ------------------------------------------------------------ */

__device__ inline void
mbar_init(uint32_t bar, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
	    :: "r"(bar), "r"(count) : "memory");
}

__device__ inline void
mbar_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
	    :: "r"(bar) : "memory");
}

__device__ inline void
mbar_expect(uint32_t bar, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
	    :: "r"(bar), "r"(bytes) : "memory");
}

__device__ inline void
mbar_wait(uint32_t bar, uint32_t parity)
{
	asm volatile("{\n"
	    ".reg .pred p;\n"
	    "again:\n"
	    "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
	    "@!p bra again;\n"
	    "}\n" :: "r"(bar), "r"(parity) : "memory");
}

/* Named barrier of n threads (id 0 is __syncthreads). */
__device__ inline void
bar_sync(uint32_t id, uint32_t n)
{
	asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory");
}

/* One of the n threads, which does not wait. */
__device__ inline void
bar_arrive(uint32_t id, uint32_t n)
{
	asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(n) : "memory");
}

/* bar_sync, and true for all if any thread says true. */
__device__ inline bool
bar_any(uint32_t id, uint32_t n, bool mine)
{
	uint32_t r;

	asm volatile("{\n"
	    ".reg .pred p, q;\n"
	    "setp.ne.u32 p, %3, 0;\n"
	    "bar.red.or.pred q, %1, %2, p;\n"
	    "selp.u32 %0, 1, 0, q;\n"
	    "}\n" : "=r"(r) : "r"(id), "r"(n), "r"((uint32_t)mine) : "memory");
	return r;
}

/* Ordinary stores before it are seen by the tensor cores and copy engine. */
__device__ inline void
fence_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* bytes: a multiple of 16, like both addresses. */
__device__ inline void
bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes [%0], [%1], %2, [%3];"
	    :: "r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

/* The line of 128 bytes at p into the L2. */
__device__ inline void
prefetch_l2(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" :: "l"(p) : "memory");
}

/* Of what is not read again soon: first to leave the L2. */
__device__ inline uint64_t
policy_once(void)
{
	uint64_t p;

	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
	return p;
}

__device__ inline void
bulk_load_once(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
	    :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy_once())
	    : "memory");
}

/* The same into the L2 alone. */
__device__ inline void
bulk_prefetch_once(const void *src, uint32_t bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint "
	    "[%0], %1, %2;" :: "l"(src), "r"(bytes), "l"(policy_once())
	    : "memory");
}

/* The same into every block of the cluster that `blocks` has the bit of, at the
 * same place of each; the bytes count on each one's own bar. */
__device__ inline void
bulk_load_all(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar,
    uint16_t blocks)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
	    :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "h"(blocks)
	    : "memory");
}

/* 16 bytes. */
__device__ inline void
copy16(uint32_t dst, const void *src)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
	    :: "r"(dst), "l"(src) : "memory");
}

/* 16 bytes, or zeros. */
__device__ inline void
copy16(uint32_t dst, const void *src, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	    :: "r"(dst), "l"(src), "r"(there ? 16 : 0) : "memory");
}

/* 4 bytes; the thread's copies count as one arrival on bar when they are there
 * (bar was set up to expect it). */
__device__ inline void
copy4(uint32_t dst, const void *src)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
	    :: "r"(dst), "l"(src) : "memory");
}

/* What this thread copied so is there. */
__device__ inline void
copies_wait(void)
{
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The same in groups: all but the last N of them. */
__device__ inline void
copies_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ inline void
copies_wait(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

__device__ inline void
mbar_arrive_copies(uint32_t bar)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
	    :: "r"(bar) : "memory");
}

/* --- clusters ------------------------------------------------------------ */

__device__ inline void
cluster_wait(void)
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address, in block `rank` of the cluster, of what is at `a` here. */
__device__ inline uint32_t
cluster_map(uint32_t a, uint32_t rank)
{
	uint32_t r;

	asm("mapa.shared::cluster.u32 %0, %1, %2;"
	    : "=r"(r) : "r"(a), "r"(rank));
	return r;
}

/* At a barrier of any block of the cluster. */
__device__ inline void
cluster_mbar_arrive(uint32_t bar)
{
	asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
	    :: "r"(bar) : "memory");
}

/* .. and nothing is ordered by it. */
__device__ inline void
cluster_tell(uint32_t bar)
{
	asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, "
	    "[%0];" :: "r"(bar) : "memory");
}

/* Orders nothing but the arrival itself. */
__device__ inline void
cluster_arrive(void)
{
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* Of all threads of the cluster; what they wrote before is seen after. */
__device__ inline void
cluster_sync(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;\n"
	    "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Barriers of this block may be used by whoever then waits for its arrival. */
__device__ inline void
mbar_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Stores into another block of the cluster that count their bytes on a barrier
 * there: whoever waits for the bytes sees them, no fence is needed. */
__device__ inline void
cluster_st64(uint32_t a, float x, float y, uint32_t bar)
{
	asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx"
	    "::bytes.v2.f32 [%0], {%1, %2}, [%3];"
	    :: "r"(a), "f"(x), "f"(y), "r"(bar) : "memory");
}

/* One arrival at the barrier at a, and so many bytes are to come there. */
__device__ inline void
cluster_expect(uint32_t a, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster"
	    ".shared::cluster.b64 _, [%0], %1;" :: "r"(a), "r"(bytes) :
	    "memory");
}

/* The same for a whole range; src is this block's and must outlive the copy. */
__device__ inline void
cluster_copy(uint32_t dst, uint32_t src, uint32_t bytes, uint32_t bar)
{
	asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier"
	    "::complete_tx::bytes [%0], [%1], %2, [%3];"
	    :: "r"(dst), "r"(src), "r"(bytes), "r"(bar) : "memory");
}

/* --- dependent launch ----------------------------------------------------- */

/* What the kernels before this one wrote is visible from here on. */
__device__ inline void
launch_wait(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel may be set up; it waits for this one's end in launch_wait. */
__device__ inline void
launch_next(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* --- products of a warpgroup --------------------------------------------- */

/*
 * B (or A) in shared memory, K-major, rows of 128 bytes, 128-byte swizzle:
 * 16-byte chunk c of row r stands at r*128 + ((c ^ r%8) * 16); 8 rows are 1024
 * aligned bytes and follow each other.
 */
__device__ inline uint64_t
desc128(uint32_t a)
{
	return (uint64_t)((a & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
	    (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same of many places from a on: what depends on a, made once, then `bytes`
 * further by one addition. Made anew each time, four instructions wait for each
 * other before every product. */
__device__ inline uint32_t
desc128_base(uint32_t a)
{
	return (a & 0x3ffff) >> 4 | 1 << 16;
}

__device__ inline uint64_t
desc128_at(uint32_t base, uint32_t bytes)
{
	uint64_t d;

	asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(base + bytes / 16),
	    "n"(1024 >> 4 | 1 << 30));
	return d;
}

__device__ inline void
wg_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void
wg_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N>
__device__ inline void
wg_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

/* The compiler may not move uses of these registers across this point. */
template <int N>
__device__ inline void
wg_pin(float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i]) :: "memory");
}

/* The A operand is complete here, not later. */
template <int N>
__device__ inline void
wg_ready(uint32_t *a)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(a[i]) :: "memory");
}

/*
 * d[64][N] (+)= a[64][16] * b[N][16]^T, a in registers. The registers of d and
 * a belong to the tensor cores until wg_wait. keep = 0 forgets the old d.
 */
template <int N, bool BF16> struct Mma;

#define DCPG_MMA8(T)							\
	asm volatile("{\n"						\
	    ".reg .pred p;\n"						\
	    "setp.ne.b32 p, %9, 0;\n"					\
	    "wgmma.mma_async.sync.aligned.m64n8k16.f32." T "." T " "	\
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n"	\
	    "}\n"							\
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])		\
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

#define DCPG_MMA16(T)							\
	asm volatile("{\n"						\
	    ".reg .pred p;\n"						\
	    "setp.ne.b32 p, %13, 0;\n"					\
	    "wgmma.mma_async.sync.aligned.m64n16k16.f32." T "." T " "	\
	    "{%0, %1, %2, %3, %4, %5, %6, %7}, "			\
	    "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n"			\
	    "}\n"							\
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),		\
	    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])		\
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

#define DCPG_MMA32(T)							\
	asm volatile("{\n"						\
	    ".reg .pred p;\n"						\
	    "setp.ne.b32 p, %21, 0;\n"					\
	    "wgmma.mma_async.sync.aligned.m64n32k16.f32." T "." T " "	\
	    "{%0, %1, %2, %3, %4, %5, %6, %7, "				\
	    "%8, %9, %10, %11, %12, %13, %14, %15}, "			\
	    "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n"			\
	    "}\n"							\
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),		\
	    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),		\
	    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),		\
	    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])		\
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

#define DCPG_MMA64(T)							\
	asm volatile("{\n"						\
	    ".reg .pred p;\n"						\
	    "setp.ne.b32 p, %37, 0;\n"					\
	    "wgmma.mma_async.sync.aligned.m64n64k16.f32." T "." T " "	\
	    "{%0, %1, %2, %3, %4, %5, %6, %7, "				\
	    "%8, %9, %10, %11, %12, %13, %14, %15, "			\
	    "%16, %17, %18, %19, %20, %21, %22, %23, "			\
	    "%24, %25, %26, %27, %28, %29, %30, %31}, "			\
	    "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"			\
	    "}\n"							\
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),		\
	    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),		\
	    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),		\
	    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),		\
	    "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),		\
	    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),		\
	    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),		\
	    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])		\
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

#define DCPG_MMA(N)							\
template <> struct Mma<N, false> {					\
	static __device__ inline void					\
	run(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep)	\
	{								\
		DCPG_MMA##N("f16");					\
	}								\
};									\
template <> struct Mma<N, true> {					\
	static __device__ inline void					\
	run(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep)	\
	{								\
		DCPG_MMA##N("bf16");					\
	}								\
};
DCPG_MMA(8)
DCPG_MMA(16)
DCPG_MMA(32)
DCPG_MMA(64)
#undef DCPG_MMA

/* d[64][N] (+)= a[64][32] * b[N][32]^T of e4m3, a in registers. */
template <int N> struct Mma8;

template <> struct Mma8<8> {
	static __device__ inline void
	run(float (&d)[4], const uint32_t *a, uint64_t b, int keep)
	{
		asm volatile("{\n"
		    ".reg .pred p;\n"
		    "setp.ne.b32 p, %9, 0;\n"
		    "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
		    "{%0, %1, %2, %3}, "
		    "{%4, %5, %6, %7}, %8, p, 1, 1;\n"
		    "}\n"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
		    "r"(keep));
	}
};
template <> struct Mma8<16> {
	static __device__ inline void
	run(float (&d)[8], const uint32_t *a, uint64_t b, int keep)
	{
		asm volatile("{\n"
		    ".reg .pred p;\n"
		    "setp.ne.b32 p, %13, 0;\n"
		    "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
		    "{%0, %1, %2, %3, %4, %5, %6, %7}, "
		    "{%8, %9, %10, %11}, %12, p, 1, 1;\n"
		    "}\n"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
		    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
		    "r"(keep));
	}
};
template <> struct Mma8<32> {
	static __device__ inline void
	run(float (&d)[16], const uint32_t *a, uint64_t b, int keep)
	{
		asm volatile("{\n"
		    ".reg .pred p;\n"
		    "setp.ne.b32 p, %21, 0;\n"
		    "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
		    "{%0, %1, %2, %3, %4, %5, %6, %7, "
		    "%8, %9, %10, %11, %12, %13, %14, %15}, "
		    "{%16, %17, %18, %19}, %20, p, 1, 1;\n"
		    "}\n"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
		    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
		    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
		    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
		    "r"(keep));
	}
};
template <> struct Mma8<64> {
	static __device__ inline void
	run(float (&d)[32], const uint32_t *a, uint64_t b, int keep)
	{
		asm volatile("{\n"
		    ".reg .pred p;\n"
		    "setp.ne.b32 p, %37, 0;\n"
		    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
		    "{%0, %1, %2, %3, %4, %5, %6, %7, "
		    "%8, %9, %10, %11, %12, %13, %14, %15, "
		    "%16, %17, %18, %19, %20, %21, %22, %23, "
		    "%24, %25, %26, %27, %28, %29, %30, %31}, "
		    "{%32, %33, %34, %35}, %36, p, 1, 1;\n"
		    "}\n"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
		    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
		    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
		    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
		    "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
		    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
		    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
		    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
		    "r"(keep));
	}
};

/* --- numbers ------------------------------------------------------------- */

/* Integers in the order of the numbers (no NaN), and back. */
__device__ inline int32_t
ordered(float x)
{
	int32_t i = __float_as_int(x);

	return i ^ (i >> 31 & 0x7fffffff);
}

__device__ inline float
unordered(int32_t i)
{
	return __int_as_float(i ^ (i >> 31 & 0x7fffffff));
}

__device__ inline float
ex2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Two e4m3 (low 16 bits of v) to two f16; exact. */
__device__ inline uint32_t
e4m3x2_f16x2(uint32_t v)
{
	uint32_t r;

	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)v));
	return r;
}

/* The high 16 bits of v, without a shift. */
__device__ inline uint32_t
e4m3x2_f16x2_hi(uint32_t v)
{
	uint32_t r;

	asm("{\n"
	    ".reg .b16 lo, hi;\n"
	    "mov.b32 {lo, hi}, %1;\n"
	    "cvt.rn.f16x2.e4m3x2 %0, hi;\n"
	    "}\n" : "=r"(r) : "r"(v));
	return r;
}

__device__ inline uint32_t
pack_f16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

__device__ inline uint32_t
pack_bf16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

__device__ inline uint32_t
mul_f16x2(uint32_t a, uint32_t b)
{
	uint32_t r;

	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}

/* Both halves of a word, bf16, times those of k. */
__device__ inline uint32_t
mul_bf16x2(uint32_t x, uint32_t k)
{
	uint32_t y;

	asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(k));
	return y;
}

__device__ inline float
f16_lo(uint32_t v)
{
	float x;

	asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)v));
	return x;
}

__device__ inline float
f16_hi(uint32_t v)
{
	return f16_lo(v >> 16);
}

__device__ inline float
bf16_lo(uint32_t v)
{
	return __uint_as_float(v << 16);
}

__device__ inline float
bf16_hi(uint32_t v)
{
	return __uint_as_float(v & 0xffff0000u);
}

}	/* namespace dcpg */
#endif
