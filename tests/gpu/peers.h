/*
 * Ranks on one GPU that meet by flags, for tests of kernels that wait for each
 * other.
 */
#ifndef GPU_TEST_PEERS_H
#define GPU_TEST_PEERS_H

#include <shared_mutex>

#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "tests/gpu/gpu_test.h"

/* Of a wait for a peer that does not come, ns. */
static const uint64_t AWAY_NS = 20000000;

/* Held by whoever uses the GPU in this part: alone by those that meet. */
inline std::shared_mutex gpu;

/* Ranks on one GPU that meet by flags: a stream each. What waits for each other
 * must fit on it together, and no other thread's call may come between. */
struct Peers {
	Buf<uint32_t> words;
	struct dcpg_stuck *stuck;
	std::vector<cudaStream_t> stream;

	explicit Peers(uint32_t n)
	    : words((size_t)n * dcpg_peer_words(n)), stream(n)
	{
		CHECK(cudaMemset(words.d, 0, words.n * 4));
		CHECK(cudaHostAlloc(&stuck, n * sizeof *stuck, 0));
		memset(stuck, 0, n * sizeof *stuck);
		for (cudaStream_t &st : stream)
			CHECK(cudaStreamCreateWithFlags(&st,
			    cudaStreamNonBlocking));
	}
	Peers(const Peers &) = delete;
	~Peers()
	{
		for (cudaStream_t st : stream)
			CHECK(cudaStreamDestroy(st));
		CHECK(cudaFreeHost(stuck));
	}
	struct dcpg_peer
	of(uint32_t d, uint64_t limit_ns = 2000000000) const
	{
		struct dcpg_peer p = {};

		p.world = (uint32_t)stream.size();
		p.self = d;
		p.limit_ns = limit_ns;
		p.stuck = &stuck[d];
		for (uint32_t e = 0; e < p.world; e++)
			p.flags[e] = words.d + e * dcpg_peer_words(p.world);
		return p;
	}
	/* How many meetings all have begun. */
	void
	begun(uint32_t n)
	{
		uint32_t world = (uint32_t)stream.size();

		for (uint32_t d = 0; d < world; d++)
			CHECK(cudaMemcpy(dcpg::peer_word(of(d),
			    dcpg::PEER_BEGUN), &n, 4,
			    cudaMemcpyHostToDevice));
	}
	bool
	lost(void) const
	{
		bool any = false;

		for (size_t i = 0; i < stream.size(); i++)
			any |= stuck[i].set != 0;
		return any;
	}
	/* Rank d has lost this one, in the first meeting. */
	bool
	gave_up(uint32_t d, uint32_t who) const
	{
		return stuck[d].set == 1 && stuck[d].peer == who &&
		    stuck[d].meeting == 1;
	}
};

static __global__ void
delay_kernel(uint32_t ns)
{
	uint64_t t0, t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	while (t - t0 < ns);
}

static inline void
delay(cudaStream_t st, uint32_t ns)
{
	delay_kernel<<<1, 1, 0, st>>>(ns);
	CHECK(cudaGetLastError());
}

/* Whether what is enqueued on a stream, several kernels that wait for one that
 * is away, takes the time of one wait. */
template <class F>
bool
waits_once(cudaStream_t st, F enqueue)
{
	cudaEvent_t t0, t1;
	float ms;

	CHECK(cudaEventCreate(&t0));
	CHECK(cudaEventCreate(&t1));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaEventRecord(t0, st));
	enqueue();
	CHECK(cudaEventRecord(t1, st));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaEventElapsedTime(&ms, t0, t1));
	CHECK(cudaEventDestroy(t0));
	CHECK(cudaEventDestroy(t1));
	return ms > AWAY_NS * 0.9e-6 && ms < AWAY_NS * 3e-6;
}

#endif
