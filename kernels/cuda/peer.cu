/*
 * Ranks that wait for each other by flags in peer memory: one kernel a
 * meeting, no event, no host. dcpg.h says what a call promises.
 *
 * A rank's words are 128 bytes apart, so that no two writers share a line:
 *   0 .. W-1   the last meeting that rank o has reached, written by o
 *   W          meetings this rank has begun, written by this rank alone
 *   W + 1      not 0: a peer did not come; nothing is waited for again
 *   W + 2      blocks of a push that are done
 * The number of a meeting comes from word W, in the kernel, so a graph can be
 * replayed; words only grow and are compared as differences, so they may wrap.
 *
 * Why it is right. What a rank wrote before a meeting is visible to its peers
 * after it: kernels of a stream run one after another, the store of the flag
 * releases at system scope all that came before, the load that sees it
 * acquires, and the reader is a later kernel of that stream. A rank is at most
 * one meeting ahead of its peers: two would need a flag that they have not
 * written yet.
 */
#include <errno.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "kernels/cuda/dcpg.h"

namespace {

enum { STEP = 32, THREADS = 256 };	/* STEP: words between flags */

__device__ inline void
release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) :
	    "memory");
}

__device__ inline uint32_t
acquire(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) :
	    "memory");
	return v;
}

__device__ inline uint64_t
now_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* The first wait that ends in vain leaves its record for the host. */
__device__ inline void
give_up(const struct dcpg_peer &p, uint32_t *own, uint32_t who, uint32_t at)
{
	if (atomicExch(&own[(p.world + 1) * STEP], 1) != 0)
		return;
	p.stuck->peer = who;
	p.stuck->meeting = at;
	__threadfence_system();
	*(volatile uint32_t *)&p.stuck->set = 1;
}

/* By the whole of one block of at least `world` threads, once a meeting. */
__device__ inline void
meet(const struct dcpg_peer &p)
{
	uint32_t t = threadIdx.x, *own = p.flags[p.self], at;
	volatile uint32_t *begun = own + p.world * STEP;
	uint64_t t0;

	at = *begun + 1;
	__syncthreads();
	if (t == 0)
		*begun = at;
	if (t >= p.world || t == p.self)
		return;
	release(p.flags[t] + p.self * STEP, at);
	if (((volatile uint32_t *)own)[(p.world + 1) * STEP] != 0)
		return;
	t0 = now_ns();
	while ((int32_t)(acquire(own + t * STEP) - at) < 0)
		if (now_ns() - t0 > p.limit_ns) {
			give_up(p, own, t, at);
			return;
		}
}

__global__ void
meet_kernel(const __grid_constant__ struct dcpg_peer p)
{
	meet(p);
}

/*
 * Blocks take 16-byte pieces in turn; the one that is done last meets. Nobody
 * reads the counter between its last increment and its reset: that is the same
 * block.
 */
__global__ void __launch_bounds__(THREADS)
push_kernel(const __grid_constant__ struct dcpg_peer p,
    const __grid_constant__ struct dcpg_push a)
{
	uint32_t *done = p.flags[p.self] + (p.world + 2) * STEP;
	uint64_t per = a.bytes / 16, n = per * a.rows;
	__shared__ bool last;

	for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < n;
	    i += (uint64_t)gridDim.x * THREADS) {
		uint64_t row = i / per, at = i % per;
		uint4 v = ((const uint4 *)((const char *)a.from +
		    row * a.from_step))[at];

		for (uint32_t e = 0; e < a.n; e++)
			((uint4 *)((char *)a.to[e] + row * a.to_step))[at] = v;
	}
	__syncthreads();	/* thread 0 fences for all that is before it */
	if (threadIdx.x == 0) {
		__threadfence_system();
		last = atomicAdd(done, 1) == gridDim.x - 1;
		if (last) {
			*done = 0;
			__threadfence_system();
		}
	}
	__syncthreads();
	if (last)
		meet(p);
}

}	/* namespace */

/* The kernels are on the device before any of them spins there. */
extern "C" int
dcpg_peer_init(void)
{
	cudaFuncAttributes a;

	return cudaFuncGetAttributes(&a, meet_kernel) == cudaSuccess &&
	    cudaFuncGetAttributes(&a, push_kernel) == cudaSuccess ? 0 : -EIO;
}

extern "C" size_t
dcpg_peer_words(uint32_t world)
{
	return (world + 3) * (size_t)STEP;
}

extern "C" int
dcpg_peer_meet(const struct dcpg_peer *p, void *stream)
{
	if (p->world < 2 || p->world > DCPK_MAX_RANKS || p->self >= p->world)
		return -EINVAL;
	meet_kernel<<<1, 64, 0, (cudaStream_t)stream>>>(*p);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}

extern "C" int
dcpg_peer_push(const struct dcpg_peer *p, const struct dcpg_push *a,
    void *stream)
{
	uint64_t pieces = a->bytes / 16 * a->rows, blocks;

	if (p->world < 2 || p->world > DCPK_MAX_RANKS || p->self >= p->world ||
	    a->n > DCPK_MAX_RANKS || a->rows == 0 || a->bytes == 0 ||
	    (a->bytes | a->from_step | a->to_step) % 16 != 0)
		return -EINVAL;
	/* All of a small push under way at once. */
	blocks = (pieces + THREADS - 1) / THREADS;
	push_kernel<<<(uint32_t)(blocks > 132 ? 132 : blocks), THREADS, 0,
	    (cudaStream_t)stream>>>(*p, *a);
	return cudaGetLastError() == cudaSuccess ? 0 : -EIO;
}
