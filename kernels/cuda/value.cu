/*
 * From attention's outputs to values: the ranks' partial outputs are merged by
 * their LSE, and each head's 512 latent values multiplied by its W_UV. One
 * kernel for the few rows of decode, where either part is latency. dcpg.h has
 * the formula.
 *
 * A block owns 128 values of a head and 8, 16 or 32 rows. Its weights (128 KB)
 * come to shared memory by tensor copies while the kernel before it still runs
 * and while it waits for its peers. Then its rows' partials, across the link
 * where attention has not sent them, are merged in registers, put into shared
 * memory, 1 KB a row, and multiplied: values are the long side of the warpgroup
 * product, a warpgroup has 64. Bytes that must move: the weights once for each
 * N rows, a row's partials of a head once for each 128 values.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

namespace dcpg {
namespace {

typedef __nv_bfloat16 bf16;

constexpr uint32_t C = DCPG_LATENT, VALUES = 128, THREADS = 256;
constexpr uint32_t BOX = VALUES * 128;	/* bytes of one tensor copy */
constexpr uint32_t WEIGHTS = C / 64 * BOX;
constexpr uint32_t SMS = 132;
constexpr uint32_t AT_ONCE = 16;	/* pieces of partials, 16 bytes, that a
					   thread has under way */
constexpr uint32_t MOST_E = 8;		/* ranks at a time */
constexpr uint32_t PITCH = VALUES * 2 + 16;	/* bytes: rows fall on other
						   banks */

/*
 * Shared memory: weights, for each 64 latent values [VALUES][128 bytes]; the
 * merged rows in the same way, [N][128 bytes] (desc128); the values, [N][PITCH];
 * a barrier.
 */
template <uint32_t N>
constexpr uint32_t SHARED = 1024 + WEIGHTS + N * C * 2 + N * PITCH + 16;

/* What a block works on. */
struct Place {
	uint32_t head, r0, rows;	/* rows: that there are, from r0 on */
	uint32_t lane, warp;
	uint32_t row, c;	/* of 8 rows, of 4 times 16 bytes: this lane's */
	uint32_t w, o, y, bar;	/* shared memory */
};

/* --- weights ------------------------------------------------------------- */

/* A box from (latent value, value) on. */
__device__ inline void
load_box(uint32_t dst, const CUtensorMap *map, uint32_t c, uint32_t v,
    uint32_t bar)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier"
	    "::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(dst),
	    "l"(map), "r"(c), "r"(v), "r"(bar) : "memory");
}

/* By one thread. Of the last block of a head whose values are no multiple of
 * 128 half is the next head's. */
__device__ inline void
bring_weights(const struct dcpg_value &g, const CUtensorMap *map,
    const Place &p)
{
	uint32_t v = p.head * g.values + blockIdx.y * VALUES;

	mbar_init(p.bar, 1);
	fence_async();
	mbar_publish();
	mbar_expect(p.bar, WEIGHTS);
#pragma unroll
	for (uint32_t i = 0; i < C / 64; i++)
		load_box(p.w + i * BOX, map, i * 64, v, p.bar);
}

/* --- merging ------------------------------------------------------------- */

/* A partial, word by word past the L1: it comes while this kernel runs. Or
 * zeros. */
__device__ inline uint4
load_part(const void *p, bool there)
{
	uint4 v = make_uint4(0, 0, 0, 0);

	asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
	    "@p ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n" :
	    "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p),
	    "r"((uint32_t)there) : "memory");
	return v;
}

/* Of ranks e0 .. e0 + E, G pieces of this thread from the i0th on. */
template <uint32_t E, uint32_t G>
__device__ inline void
load_parts(const struct dcpg_value &g, const Place &p, uint32_t e0,
    uint32_t i0, uint4 (&x)[G][E])
{
	size_t step = (size_t)8 * g.row_heads * C, at = ((size_t)(p.r0 +
	    p.row) * g.row_heads + p.head) * C + p.warp * 64 + p.c * 8;

#pragma unroll
	for (uint32_t e = 0; e < E; e++) {
		const bf16 *from = (const bf16 *)g.part[e0 + e] + at + i0 / 2 *
		    step;

#pragma unroll
		for (uint32_t j = 0; j < G; j += 2, from += step) {
			bool there = (i0 + j) / 2 * 8 + p.row < p.rows &&
			    e0 + e < g.ranks;

			x[j][e] = load_part(from, there);
			x[j + 1][e] = load_part(from + 32, there);
		}
	}
}

/* The LSE of R rows of those ranks, as they are there now. */
template <uint32_t E, uint32_t R>
__device__ inline void
load_lse(const struct dcpg_value &g, const Place &p, uint32_t e0, uint32_t i0,
    float (&l)[R][E])
{
#pragma unroll
	for (uint32_t e = 0; e < E; e++)
#pragma unroll
		for (uint32_t r = 0; r < R; r++) {
			uint32_t row = (i0 / 2 + r) * 8 + p.row;

			l[r][e] = -INFINITY;
			if (row < p.rows && e0 + e < g.ranks)
				asm volatile("ld.relaxed.sys.global.f32 %0, "
				    "[%1];" : "=f"(l[r][e]) : "l"(g.lse[e0 + e]
				    + (size_t)(p.r0 + row) * g.row_heads +
				    p.head) : "memory");
		}
}

/* NaN and +inf are empty, too. */
template <uint32_t E, uint32_t R>
__device__ inline void
tidy(float (&l)[R][E])
{
#pragma unroll
	for (uint32_t i = 0; i < R * E; i++)
		if (!(l[i / E][i % E] < INFINITY))
			l[i / E][i % E] = -INFINITY;
}

/* Of which rank e is something still ones? E: of none. */
template <uint32_t E, uint32_t R, class T>
__device__ inline uint32_t
missing(const T (&x)[R][E])
{
	uint32_t at = E;

#pragma unroll
	for (uint32_t i = 0; i < R * E; i++)
		if (has_ones(x[i / E][i % E]))
			at = i % E;
	return at;
}

/* Both, when all of it is there. */
template <uint32_t E, uint32_t G>
__device__ inline void
load_sent(const struct dcpg_value &g, const Place &p, uint32_t e0, uint32_t i0,
    uint4 (&x)[G][E], float (&l)[G / 2][E])
{
	uint64_t t0 = 0;
	uint32_t e;

	do {
		load_parts<E, G>(g, p, e0, i0, x);
		if (E > 1)
			load_lse<E, G / 2>(g, p, e0, i0, l);
		if (!g.ones)
			break;
		e = min(missing(x), missing(l));
	} while (e < E && peer_patience(g.peer, g.first + e0 + e, t0));
	tidy<E, G / 2>(l);
}

/* Of each rank the first word of a row of this head: before that, looking at
 * all of it would only be in attention's way. */
__device__ inline void
await_first(const struct dcpg_value &g, const Place &p)
{
	uint32_t e = threadIdx.x, v = 0;
	uint64_t t0 = 0;

	while (e < g.ranks) {
		asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) :
		    "l"((const bf16 *)g.part[e] + ((size_t)(p.r0 + p.rows - 1) *
		    g.row_heads + p.head) * C) : "memory");
		if (v != ~0u || !peer_patience(g.peer, g.first + e, t0))
			break;
	}
	__syncthreads();
}

/* Ones, where this block's rows of the next layer's partials come. */
__device__ inline void
clear(const struct dcpg_value &g, const Place &p)
{
	constexpr uint32_t P = C / 8;	/* pieces of a row */
	size_t rank = (size_t)g.rows * g.row_heads;

	if (blockIdx.y > 0)
		return;
	for (uint32_t i = threadIdx.x; i < g.ranks * p.rows * P; i += THREADS) {
		size_t at = i / P / p.rows * rank + (p.r0 + i / P % p.rows) *
		    g.row_heads + p.head;

		((uint4 *)g.clear)[at * P + i % P] = make_uint4(~0u, ~0u, ~0u,
		    ~0u);
		if (i % P == 0)
			((uint32_t *)g.clear_lse)[at] = ~0u;
	}
}

/* The largest LSE so far. */
template <uint32_t E, uint32_t R>
__device__ inline void
largest(const float (&l)[R][E], float (&top)[R])
{
#pragma unroll
	for (uint32_t i = 0; i < R * E; i++)
		top[i / E] = fmaxf(top[i / E], l[i / E][i % E]);
}

/* What the ranks' weights add up to. */
template <uint32_t E, uint32_t R>
__device__ inline void
add_up(const float (&l)[R][E], const float (&top)[R], float (&den)[R])
{
#pragma unroll
	for (uint32_t i = 0; i < R * E; i++)
		if (l[i / E][i % E] > -INFINITY)
			den[i / E] += __expf(l[i / E][i % E] - top[i / E]);
}

/* Of more than E ranks: all are read twice before they are merged. */
template <uint32_t E, uint32_t R>
__device__ inline void
normalise(const struct dcpg_value &g, const Place &p, uint32_t i0,
    float (&top)[R], float (&den)[R])
{
	float l[R][E];

#pragma unroll 1
	for (uint32_t e = 0; e < g.ranks; e += E) {
		uint64_t t0 = 0;
		uint32_t lost;

		do {
			load_lse<E, R>(g, p, e, i0, l);
			lost = missing(l);
		} while (g.ones && lost < E && peer_patience(g.peer,
		    g.first + e + lost, t0));
		tidy<E, R>(l);
		largest<E, R>(l, top);
	}
#pragma unroll 1
	for (uint32_t e = 0; e < g.ranks; e += E) {
		load_lse<E, R>(g, p, e, i0, l);
		tidy<E, R>(l);
		add_up<E, R>(l, top, den);
	}
}

/* v += w x, where w = 0 forgets whatever x is. */
__device__ inline void
add(float (&v)[8], uint4 x, float w)
{
	uint32_t u[4] = { x.x, x.y, x.z, x.w };
	uint32_t hi = w == 0 ? 0 : 0xffff0000, lo = w == 0 ? 0x4444 : 0x1044;

#pragma unroll
	for (uint32_t i = 0; i < 4; i++) {
		v[2 * i] += w * __uint_as_float(__byte_perm(u[i], 0, lo));
		v[2 * i + 1] += w * __uint_as_float(u[i] & hi);
	}
}

/* The rows of this head become what is multiplied: a warp has 64 latent values
 * of all, a lane 16 bytes of each 32 of them. */
template <uint32_t N, uint32_t E>
__device__ inline void
merge(const struct dcpg_value &g, const Place &p)
{
	constexpr uint32_t ALL = N / 4;		/* pieces of a thread */
	constexpr uint32_t G = ALL * E < AT_ONCE ? ALL : AT_ONCE / E;
	constexpr uint32_t R = G / 2;		/* their rows */

#pragma unroll
	for (uint32_t i0 = 0; i0 < ALL; i0 += G) {
		float v[G][8] = {}, top[R], den[R] = {}, l[R][E];
		uint32_t e0 = 0;
		uint4 x[G][E];

#pragma unroll
		for (uint32_t r = 0; r < R; r++)
			top[r] = -INFINITY;
		do {
			load_sent<E, G>(g, p, e0, i0, x, l);
			if (E == MOST_E && g.ranks > E && e0 == 0) {
				normalise<E, R>(g, p, i0, top, den);
			} else if (E > 1 && e0 == 0) {
				largest<E, R>(l, top);
				add_up<E, R>(l, top, den);
			}
#pragma unroll
			for (uint32_t j = 0; E > 1 && j < R * E; j++) {
				uint32_t r = j / E, e = j % E;
				float k = l[r][e] > -INFINITY ? __fdividef(
				    __expf(l[r][e] - top[r]), den[r]) : 0;

				add(v[2 * r], x[2 * r][e], k);
				add(v[2 * r + 1], x[2 * r + 1][e], k);
			}
			e0 += E;
		} while (E == MOST_E && e0 < g.ranks);
#pragma unroll
		for (uint32_t j = 0; j < G; j++) {
			uint32_t i = i0 + j, row = i / 2 * 8 + p.row;

			if (E > 1)
				x[j][0] = make_uint4(pack_bf16(v[j][0],
				    v[j][1]), pack_bf16(v[j][2], v[j][3]),
				    pack_bf16(v[j][4], v[j][5]),
				    pack_bf16(v[j][6], v[j][7]));
			sts128(p.o + p.warp * N * 128 + row * 128 +
			    ((i % 2 * 4 + p.c ^ p.row) << 4), x[j][0]);
		}
	}
}

/* --- values -------------------------------------------------------------- */

/* d[64][N] += a[64][16] * b[N][16]^T, both in shared memory. */
template <uint32_t N> struct Step;

#define REGS4 "%0, %1, %2, %3"
#define REGS8 REGS4 ", %4, %5, %6, %7"
#define REGS16 REGS8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC8(i) ACC4(i), ACC4(i + 4)
#define ACC16(i) ACC8(i), ACC8(i + 8)

#define STEP(N, ACC, R, a, b)						\
template <> struct Step<N> {						\
	static __device__ inline void					\
	run(float (&d)[N / 2], uint64_t w, uint64_t o)			\
	{								\
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"	\
		    "wgmma.mma_async.sync.aligned.m64n" #N		\
		    "k16.f32.bf16.bf16 {" R "}, " a ", " b		\
		    ", p, 1, 1, 0, 0;\n}\n" : ACC : "l"(w), "l"(o));	\
	}								\
};
STEP(8, ACC4(0), REGS4, "%4", "%5")
STEP(16, ACC8(0), REGS8, "%8", "%9")
STEP(32, ACC16(0), REGS16, "%16", "%17")
#undef STEP

/* d[values][rows], 64 of this warpgroup. */
template <uint32_t N>
__device__ inline void
product(const Place &p, float (&d)[N / 2])
{
	uint64_t w = desc128(p.w + p.warp / 4 * BOX / 2), o = desc128(p.o);

	wg_pin(d);
	wg_fence();
#pragma unroll
	for (uint32_t i = 0; i < C / 16; i++)
		Step<N>::run(d, w + (i / 4 * BOX + i % 4 * 32) / 16,
		    o + (i / 4 * N * 128 + i % 4 * 32) / 16);
	wg_commit();
	wg_wait<0>();
	wg_pin(d);
}

/* .. into shared memory as bf16, [rows][values]. */
template <uint32_t N>
__device__ inline void
turn(const Place &p, const float (&d)[N / 2])
{
	uint32_t at = p.y + (p.lane % 8 + p.lane / 16 * 8) * PITCH +
	    (p.warp * 16 + p.lane / 8 % 2 * 8) * 2;

	if constexpr (N == 8) {
		stmatrix2_t(at, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]));
	} else {
#pragma unroll
		for (uint32_t j = 0; j < N / 2; j += 8)
			stmatrix4_t(at + j * 2 * PITCH, pack_bf16(d[j],
			    d[j + 1]), pack_bf16(d[j + 2], d[j + 3]),
			    pack_bf16(d[j + 4], d[j + 5]),
			    pack_bf16(d[j + 6], d[j + 7]));
	}
}

/* The largest of 16 neighbouring lanes. */
__device__ inline float
max16(float v)
{
#pragma unroll
	for (uint32_t i = 1; i < 16; i *= 2)
		v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
	return v;
}

/* Values eight at a time to memory, and their codes: 16 lanes have a row. What
 * fills up the rows is 0 here. */
template <uint32_t N>
__device__ inline void
write(const struct dcpg_value &g, const Place &p)
{
	uint32_t c = threadIdx.x % 16, n = blockIdx.y * VALUES + c * 8;
	uint32_t m4 = dcpg_rows4(g.rows);
	size_t k = (size_t)g.heads * g.values, at = p.head * g.values + n;

#pragma unroll
	for (uint32_t r = threadIdx.x / 16; r < N; r += THREADS / 16) {
		uint4 x = lds128(p.y + r * PITCH + c * 16);
		uint32_t row = p.r0 + r, u[4] = { x.x, x.y, x.z, x.w };
		uint2 z = make_uint2(0, 0);
		float f[8], top = 0, s;

		if (r < p.rows && n < g.values)
			*(uint4 *)((bf16 *)g.y + row * k + at) = x;
		if (g.y8.code == NULL)
			continue;
#pragma unroll
		for (uint32_t i = 0; i < 8; i++) {
			f[i] = i % 2 ? bf16_hi(u[i / 2]) : bf16_lo(u[i / 2]);
			top = fmaxf(top, fabsf(f[i]));
		}
		top = max16(top);
		s = code_scale(top, g.y8.pow2);
		if (row >= m4)
			continue;
		if (top > 0)
			z = make_uint2(codes4(make_float4(f[0], f[1], f[2],
			    f[3]), s), codes4(make_float4(f[4], f[5], f[6],
			    f[7]), s));
		*(uint2 *)(g.y8.code + row * k + at) = z;
		if (c == 0)
			g.y8.scale[at / 128 * m4 + row] = s;
	}
}

/* grid: (heads, 128 values, N rows). */
template <uint32_t N, uint32_t E>
__global__ void __launch_bounds__(THREADS, 1)
value_kernel(const __grid_constant__ CUtensorMap map,
    const __grid_constant__ struct dcpg_value g)
{
	extern __shared__ uint8_t mem[];
	uint32_t blocks = gridDim.x * gridDim.y * gridDim.z;
	float d[N / 2] = {};
	Place p;

	p.w = (smem_addr(mem) + 1023) & ~1023u;
	p.o = p.w + WEIGHTS;
	p.y = p.o + N * C * 2;
	p.bar = p.y + N * PITCH;
	p.head = blockIdx.x;
	if (threadIdx.x == 0)
		bring_weights(g, &map, p);
	p.r0 = blockIdx.z * N;
	p.rows = min(N, g.rows - p.r0);
	p.lane = threadIdx.x % 32;
	p.warp = threadIdx.x / 32;
	p.row = p.lane % 8;
	p.c = p.lane / 8;
	if (g.clear != NULL)
		clear(g, p);
	if (g.ones) {		/* all of it before attention has ended */
		await_first(g, p);
	} else if (g.arrivals > 0) {
		arrivals_in(g.peer, g.first, g.ranks, g.arrivals);
	} else {
		launch_wait();
		meet_in(g.peer, blockIdx.x + blockIdx.y + blockIdx.z == 0);
	}
	/* The next kernel asks for all its weights at once, and what is read
	 * then comes late: of more rows the partials are to be here first. */
	if (N == 8)
		launch_next();
	merge<N, E>(g, p);
	fence_async();
	__syncthreads();
	if (N > 8)
		launch_next();
	mbar_wait(p.bar, 0);
	product<N>(p, d);
	turn<N>(p, d);
	__syncthreads();
	write<N>(g, p);
	if (g.ones || g.arrivals > 0) {
		if (!g.ones)
			arrivals_out(g.peer, g.arrivals, blocks);
		launch_wait();	/* who comes next waits for this kernel alone */
	} else {
		meet_out(g.peer, blocks);
	}
}

/* --- launching ----------------------------------------------------------- */

typedef void (*kernel)(CUtensorMap, struct dcpg_value);

struct Entry {
	uint32_t rows, ranks;	/* of a block; at a time */
	uint32_t shared;
	kernel run;
};

template <uint32_t N, uint32_t E>
constexpr Entry
entry(void)
{
	return { N, E, SHARED<N>, value_kernel<N, E> };
}

/* The last of those that fit is taken. */
const Entry entries[] = {
	entry<8, 8>(), entry<8, 4>(), entry<8, 2>(), entry<8, 1>(),
	entry<16, 8>(), entry<16, 4>(), entry<16, 2>(), entry<16, 1>(),
	entry<32, 8>(), entry<32, 4>(), entry<32, 2>(), entry<32, 1>(),
};

PFN_cuTensorMapEncodeTiled_v12000 encode;	/* the driver's */

/* [heads * values][512] in boxes of 128 x 128 bytes; places past the last read as
 * 0. */
int
make_map(CUtensorMap *map, const struct dcpg_value *a)
{
	cuuint64_t dim[2] = { C, (cuuint64_t)a->heads * a->values };
	cuuint64_t step[1] = { C * 2 };
	cuuint32_t box[2] = { 64, VALUES }, one[2] = { 1, 1 };

	return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)a->w,
	    dim, step, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
	    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS ? 0 : -EIO;
}

/* Rows of a block: fewer where half of the SMs would have no block, or, of 32,
 * where each can have one. */
uint32_t
rows_of(uint32_t rows, uint32_t blocks)
{
	uint32_t n = rows <= 8 ? 8 : rows <= 16 ? 16 : 32;

	while (n > 8 && blocks * ((rows + n / 2 - 1) / (n / 2)) <= (n == 32 ?
	    SMS : SMS / 2))
		n /= 2;
	return n;
}

}	/* namespace */

int
value_init(void)
{
	cudaDriverEntryPointQueryResult r;

	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
	    (void **)&encode, 12000, cudaEnableDefault, &r) != cudaSuccess ||
	    encode == NULL)
		return -EIO;
	for (const Entry &e : entries)
		if (cudaFuncSetAttribute(e.run,
		    cudaFuncAttributeMaxDynamicSharedMemorySize, e.shared) !=
		    cudaSuccess)
			return -EIO;
	return 0;
}

}	/* namespace dcpg */

using namespace dcpg;

extern "C" int
dcpg_value(const struct dcpg_value *a, void *stream)
{
	const Entry *e = NULL;
	uint32_t blocks, n;
	CUtensorMap map;

	if (a->rows == 0 || a->heads == 0 || a->values == 0 ||
	    a->values % 64 != 0 || a->values / 64 > 65535 || a->ranks == 0 ||
	    a->ranks > DCPK_MAX_RANKS || a->row_heads < a->heads ||
	    ((a->arrivals > 0 || a->ones) && (a->peer.world < a->ranks ||
	    a->first > a->peer.world - a->ranks)) ||
	    (a->clear == NULL) != (a->clear_lse == NULL) ||
	    (a->y8.code != NULL && a->values % 128 != 0))
		return -EINVAL;
	if (make_map(&map, a) != 0)
		return -EIO;
	blocks = a->heads * ((a->values + VALUES - 1) / VALUES);
	n = rows_of(a->rows, blocks);
	for (const Entry &x : entries)
		if (x.rows == n && (x.ranks >= a->ranks || x.ranks == MOST_E))
			e = &x;
	return launch_clusters(e->run, dim3(a->heads, (a->values + VALUES - 1) /
	    VALUES, (a->rows + n - 1) / n), THREADS, e->shared, 1,
	    (cudaStream_t)stream, map, *a) == cudaSuccess ? 0 : -EIO;
}
