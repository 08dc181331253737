/*
 * Products of a warpgroup of two operands in shared memory, heads as the long
 * side, M = 64. ptx.cuh has those whose long side is in registers.
 */
#ifndef DCPG_WGMMA_CUH
#define DCPG_WGMMA_CUH

#include "kernels/cuda/ptx.cuh"

namespace dcpg {

/*
 * B in shared memory with N, not K, in neighbouring elements: tiles of 64 of N,
 * 128 bytes, by 64 of K, swizzled as in desc128(), 8192 bytes each. As there,
 * what depends on the place is one word, to which bytes / 16 are added.
 */
__device__ inline uint32_t
desc_mn_base(uint32_t a)
{
	return (a & 0x3ffff) >> 4 | (8192 >> 4) << 16;
}

#define DCPG_D8(i)							\
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]),	\
	"+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define DCPG_D32(i)							\
	DCPG_D8(i), DCPG_D8(i + 8), DCPG_D8(i + 16), DCPG_D8(i + 24)

/* d[64 heads][64] (+)= a[64][16] b[64][16]^T, bf16, both of desc128(); keep = 0
 * forgets the old d. */
__device__ inline void
mma_keys(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
	asm volatile("{\n"
	    ".reg .pred p;\n"
	    "setp.ne.b32 p, %34, 0;\n"
	    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
	    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
	    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
	    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
	    "%32, %33, p, 1, 1, 0, 0;\n"
	    "}\n"
	    : DCPG_D32(0)
	    : "l"(a), "l"(b), "r"(keep));
}

/* d[64 heads][128] += a[64][16] b[16][128], b of desc_mn_base(). */
__device__ inline void
mma_values(float (&d)[64], uint64_t a, uint64_t b)
{
	asm volatile("{\n"
	    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"
	    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
	    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
	    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
	    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
	    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
	    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
	    "%62, %63}, "
	    "%64, %65, 1, 1, 1, 0, 1;\n"
	    "}\n"
	    : DCPG_D32(0), DCPG_D32(32)
	    : "l"(a), "l"(b));
}
#undef DCPG_D32
#undef DCPG_D8

}	/* namespace dcpg */
#endif
