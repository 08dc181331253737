/*
 * Ranks that wait for each other by flags in peer memory: a kernel a meeting,
 * or a part of one (peer.cuh), no event, no host. dcpg.h says what a call
 * promises.
 *
 * A rank's words are 128 bytes apart, so that no two writers share a line:
 *   0 .. W-1         the last meeting by flags that rank o has reached, by o
 *   W + PEER_BEGUN   meetings this rank has begun, written by this rank alone
 *   W + PEER_LOST    not 0: a peer did not come; nothing is waited for again
 *   W + PEER_OUT     blocks that are out of the meeting inside their kernel
 *   W + PEER_TAKEN   arrivals from each rank that were waited for
 *   W + PEER_EXTRA + o  arrivals from rank o, added to by its blocks
 * The number of a meeting comes from PEER_BEGUN, in the kernel, so that a graph
 * can be replayed; words only grow and are compared as differences, so they may
 * wrap.
 *
 * Why it is right. What a rank wrote before a meeting is visible to its
 * peers after it: kernels of a stream run one after another, the store of
 * the flag releases at system scope all that came before, the load that sees
 * it acquires, and the reader is a later kernel of that stream. Where the
 * meeting stands inside the reader, each of its blocks acquires for itself,
 * and the flag is stored when all kernels before it have ended (launch_wait,
 * where one is launched early). A rank is at most one meeting ahead of its
 * peers: two would need a flag, or words, that they have not written yet.
 *
 * Arrivals need no meeting: each block of a kernel that writes into a peer's
 * memory adds one to its word there, releasing what the block wrote, and who
 * reads it knows how many blocks there are. That the place is free again, both
 * know by a meeting in between.
 *
 * Words need no arrivals: they come to a place that holds ones, which no number
 * that is sent ever is, and each is looked at until it is not. Nothing else is
 * ordered by a word. Where the sums of all ranks went so (norm.cu), that is a
 * meeting too, but one that only says that a place is free, or holds ones: the
 * kernels that did this had ended, and what they stored had reached their memory,
 * before the kernel began that sent the words. What a peer *wrote* may be read
 * behind flags, arrivals or its own words alone.
 */
#include <errno.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "kernels/cuda/ptx.cuh"

using namespace dcpg;

namespace {

enum { THREADS = 256 };

__global__ void
meet_kernel(const __grid_constant__ struct dcpg_peer p)
{
	meet(p);
}

/*
 * grid: (shares of a row, rows). A thread has U 16-byte pieces of a row under
 * way; each block tells of its own, the first waits for all blocks of the
 * peers.
 */
template <uint32_t U>
__global__ void __launch_bounds__(THREADS)
push_kernel(const __grid_constant__ struct dcpg_peer p,
    const __grid_constant__ struct dcpg_push a)
{
	uint32_t per = (uint32_t)(a.bytes / 16), row = blockIdx.y;
	uint32_t at = blockIdx.x * THREADS * U + threadIdx.x, t = threadIdx.x;
	uint32_t blocks = gridDim.x * gridDim.y;
	const uint4 *from = (const uint4 *)((const char *)a.from +
	    row * a.from_step);
	uint4 v[U];

	launch_wait();
	launch_next();
#pragma unroll
	for (uint32_t u = 0; u < U; u++)
		if (at + u * THREADS < per)
			v[u] = from[at + u * THREADS];
	for (uint32_t e = 0; e < a.n; e++) {
		uint4 *to = (uint4 *)((char *)a.to[e] + row * a.to_step);

		if (a.to[e] == NULL)
			continue;
#pragma unroll
		for (uint32_t u = 0; u < U; u++)
			if (at + u * THREADS < per)
				to[at + u * THREADS] = v[u];
	}
	__syncthreads();
	if (t < a.n)
		peer_arrive(peer_arrivals(p, a.first + t, p.self));
	if (blockIdx.x != 0 || row != 0)
		return;
	arrivals_in(p, a.first, a.n, blocks);
	if (t == 0)
		*(volatile uint32_t *)peer_word(p, PEER_TAKEN) += blocks;
}

}	/* namespace */

/* The kernels are on the device before any of them spins there. */
extern "C" int
dcpg_peer_init(void)
{
	cudaFuncAttributes a;
	bool ok = cudaFuncGetAttributes(&a, meet_kernel) == cudaSuccess;

	for (auto k : { push_kernel<1>, push_kernel<4> })
		ok = ok && cudaFuncGetAttributes(&a, k) == cudaSuccess;
	return ok ? 0 : -EIO;
}

extern "C" size_t
dcpg_peer_words(uint32_t world)
{
	return (2 * world + PEER_EXTRA) * (size_t)PEER_STEP;
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
	uint64_t per = a->bytes / 16, shares = (per + THREADS - 1) / THREADS;
	cudaLaunchAttribute at = {};
	cudaLaunchConfig_t cfg = {};

	if (p->world < 2 || p->world > DCPK_MAX_RANKS || p->self >= p->world ||
	    a->n == 0 || a->n > p->world || a->first > p->world - a->n ||
	    a->rows == 0 || a->rows > 65535 || a->bytes == 0 ||
	    per > 1u << 30 ||
	    (a->bytes | a->from_step | a->to_step) % 16 != 0)
		return -EINVAL;
	at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at.val.programmaticStreamSerializationAllowed = 1;
	cfg.blockDim = dim3(THREADS);
	cfg.stream = (cudaStream_t)stream;
	cfg.attrs = &at;
	cfg.numAttrs = 1;
	/* few blocks: a piece a thread; else all of them at once with four */
	if (shares * a->rows <= 264) {
		cfg.gridDim = dim3((uint32_t)shares, a->rows);
		return cudaLaunchKernelEx(&cfg, push_kernel<1>, *p, *a) ==
		    cudaSuccess ? 0 : -EIO;
	}
	cfg.gridDim = dim3((uint32_t)((shares + 3) / 4), a->rows);
	return cudaLaunchKernelEx(&cfg, push_kernel<4>, *p, *a) ==
	    cudaSuccess ? 0 : -EIO;
}
