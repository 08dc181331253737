/*
 * Does the protocol of peer.cu hold? Two to eight ranks, a GPU each where there
 * are so many; on one GPU two ranks share it, which its product never does but
 * two small kernels on two streams can.
 *
 * Every round each rank writes what follows from (round, rank) into its own
 * buffer, waits a random time before and after, meets, reads all peers'
 * buffers, meets, and poisons its own: a meeting that lets a rank through too
 * early reads poison or an older round. Pushes likewise, into inboxes that the
 * receiver poisons. All of it as plain launches and as a graph that is replayed.
 * Then the kernel that makes decode's queries for all ranks.
 * Last, one rank stays away: the others must say so in time, and name it.
 *
 * peer_test [SEED [short]]: exit 0 when all holds; then the time of a meeting
 * and of an exchange of 64 KB, inside a graph.
 */
#include "kernels/cuda/dcpg.h"
#include "kernels/cuda/peer.cuh"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/queries.h"

#include <algorithm>

namespace dcpg {
int query_init(void);
}

enum { WORDS = 16384, INBOX = 4096 };	/* u32: 64 KB, 16 KB from each */

static int failures;

struct Rank {
	int dev;
	cudaStream_t st;
	cudaEvent_t t0, t1;
	uint32_t *flags, *own, *in, *bad;
	uint64_t *rng;
	dcpg_peer peer;
};

struct Peers {
	uint32_t *p[DCPK_MAX_RANKS];
};

__host__ __device__ static inline uint32_t
word(uint32_t round, uint32_t rank, uint32_t i)
{
	uint32_t x = round * 0x9e3779b9u ^ rank * 0x85ebca6bu ^ i * 0xc2b2ae35u;

	return (x ^ x >> 15) * 0x2c1b3c6du;
}

/* Up to about 20 us, another time each launch, replayed or not. */
__global__ void
wait_a_while(uint64_t *rng)
{
	uint64_t s = *rng, t0, t;

	s ^= s << 13;
	s ^= s >> 7;
	s ^= s << 17;
	*rng = s;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	while (t - t0 < (s >> 20) % 20000);
}

/* round is counted in memory, so that a replay goes on. */
__global__ void
fill(uint32_t *own, uint32_t *round, uint32_t rank)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

	own[i] = word(*round, rank, i);
}

__global__ void
compare(Peers all, const uint32_t *round, uint32_t world, uint32_t *bad)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;

	for (uint32_t r = 0; r < world; r++)
		n += all.p[r][i] != word(*round, r, i);
	if (n != 0)
		atomicAdd(bad, n);
}

/* The same with a meeting inside, held by many blocks. */
__global__ void
meet_and_compare(const __grid_constant__ dcpg_peer peer, Peers all,
    const uint32_t *round, uint32_t world, uint32_t *bad)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;

	dcpg::meet_in(peer, blockIdx.x == 0);
	for (uint32_t r = 0; r < world; r++)
		n += all.p[r][i] != word(*round, r, i);
	if (n != 0)
		atomicAdd(bad, n);
	dcpg::meet_out(peer, gridDim.x);
}

__global__ void
compare_inbox(const uint32_t *in, const uint32_t *round, uint32_t world,
    uint32_t *bad)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;

	for (uint32_t r = 0; r < world; r++)
		n += in[r * INBOX + i] != word(*round, r, i);
	if (n != 0)
		atomicAdd(bad, n);
}

__global__ void
next_round(uint32_t *round)
{
	++*round;
}

static void
push(const std::vector<Rank> &all, uint32_t i, uint32_t bytes)
{
	const Rank &r = all[i];
	dcpg_push a = {};

	a.from = r.own;	/* first is 0 */
	a.n = (uint32_t)all.size();
	for (uint32_t e = 0; e < a.n; e++)
		a.to[e] = all[e].in + i * (bytes / 4);
	a.rows = 1;
	a.bytes = a.from_step = a.to_step = bytes;
	CALL(dcpg_peer_push(&r.peer, &a, r.st));
}

/* One round of rank i. Its round number is bad[1], its errors bad[0]. */
static void
one_round(const std::vector<Rank> &all, uint32_t i)
{
	const Rank &r = all[i];
	uint32_t *round = r.bad + 1, world = (uint32_t)all.size();
	Peers p = {};

	for (uint32_t e = 0; e < world; e++)
		p.p[e] = all[e].own;
	next_round<<<1, 1, 0, r.st>>>(round);
	wait_a_while<<<1, 1, 0, r.st>>>(r.rng);
	fill<<<WORDS / 256, 256, 0, r.st>>>(r.own, round, i);
	meet_and_compare<<<WORDS / 256, 256, 0, r.st>>>(r.peer, p, round,
	    world, r.bad);
	CALL(dcpg_peer_meet(&r.peer, r.st));
	CHECK(cudaMemsetAsync(r.own, 0xff, WORDS * 4, r.st));
	fill<<<WORDS / 256, 256, 0, r.st>>>(r.own, round, i);
	CALL(dcpg_peer_meet(&r.peer, r.st));
	wait_a_while<<<1, 1, 0, r.st>>>(r.rng);
	compare<<<WORDS / 256, 256, 0, r.st>>>(p, round, world, r.bad);
	/* The inbox is read after this meeting, and poisoned before one. */
	CHECK(cudaMemsetAsync(r.in, 0xff, world * INBOX * 4, r.st));
	CALL(dcpg_peer_meet(&r.peer, r.st));
	wait_a_while<<<1, 1, 0, r.st>>>(r.rng);
	push(all, i, INBOX * 4);
	compare_inbox<<<INBOX / 256, 256, 0, r.st>>>(r.in, round, world,
	    r.bad);
	CHECK(cudaMemsetAsync(r.own, 0xff, WORDS * 4, r.st));
	CHECK(cudaGetLastError());
}

static void
open_ranks(std::vector<Rank> &all, uint32_t world, int gpus, uint64_t seed,
    uint64_t limit_ns, dcpg_stuck *stuck)
{
	all.assign(world, Rank());
	for (uint32_t i = 0; i < world; i++) {
		Rank &r = all[i];
		uint64_t s = seed * 977 + i + 1;

		r.dev = (int)i % gpus;
		CHECK(cudaSetDevice(r.dev));
		CALL(dcpg_peer_init());
		CALL(dcpg::query_init());
		CHECK(cudaStreamCreateWithFlags(&r.st,
		    cudaStreamNonBlocking));
		CHECK(cudaEventCreate(&r.t0));
		CHECK(cudaEventCreate(&r.t1));
		CHECK(cudaMalloc(&r.flags, dcpg_peer_words(world) * 4));
		CHECK(cudaMemset(r.flags, 0, dcpg_peer_words(world) * 4));
		CHECK(cudaMalloc(&r.own, WORDS * 4));
		CHECK(cudaMalloc(&r.in, (size_t)world * WORDS * 4));
		CHECK(cudaMalloc(&r.bad, 8));
		CHECK(cudaMemset(r.bad, 0, 8));
		CHECK(cudaMalloc(&r.rng, 8));
		CHECK(cudaMemcpy(r.rng, &s, 8, cudaMemcpyHostToDevice));
		CHECK(cudaDeviceSynchronize());
	}
	for (uint32_t i = 0; i < world; i++) {
		for (uint32_t e = 0; e < world; e++)
			all[i].peer.flags[e] = all[e].flags;
		all[i].peer.world = world;
		all[i].peer.self = i;
		all[i].peer.limit_ns = limit_ns;
		all[i].peer.stuck = &stuck[i];
		stuck[i] = {};
	}
}

static void
close_ranks(std::vector<Rank> &all)
{
	for (Rank &r : all) {
		CHECK(cudaSetDevice(r.dev));
		CHECK(cudaStreamDestroy(r.st));
		CHECK(cudaEventDestroy(r.t0));
		CHECK(cudaEventDestroy(r.t1));
		CHECK(cudaFree(r.flags));
		CHECK(cudaFree(r.own));
		CHECK(cudaFree(r.in));
		CHECK(cudaFree(r.bad));
		CHECK(cudaFree(r.rng));
	}
}

static void
sync_all(std::vector<Rank> &all)
{
	for (Rank &r : all) {
		CHECK(cudaSetDevice(r.dev));
		CHECK(cudaStreamSynchronize(r.st));
	}
}

static void
verdict(std::vector<Rank> &all, dcpg_stuck *stuck, uint32_t rounds,
    const char *what)
{
	uint32_t errors = 0, got[2];

	sync_all(all);
	for (uint32_t i = 0; i < all.size(); i++) {
		CHECK(cudaMemcpy(got, all[i].bad, 8, cudaMemcpyDefault));
		errors += got[0] + (got[1] != rounds) + stuck[i].set;
	}
	printf("%s %s, %zu ranks, %u rounds: %u errors\n",
	    errors == 0 ? "ok  " : "FAIL", what, all.size(), rounds, errors);
	failures += errors != 0;
}

/* What `enqueue` gives every rank, as a graph of that rank alone. */
template <class F>
static std::vector<cudaGraphExec_t>
capture(std::vector<Rank> &all, F enqueue)
{
	std::vector<cudaGraphExec_t> exec(all.size());

	for (uint32_t i = 0; i < all.size(); i++) {
		cudaGraph_t g;

		CHECK(cudaSetDevice(all[i].dev));
		CHECK(cudaStreamBeginCapture(all[i].st,
		    cudaStreamCaptureModeThreadLocal));
		enqueue(i);
		CHECK(cudaStreamEndCapture(all[i].st, &g));
		CHECK(cudaGraphInstantiate(&exec[i], g, 0));
		CHECK(cudaGraphUpload(exec[i], all[i].st));
		CHECK(cudaGraphDestroy(g));
	}
	sync_all(all);
	return exec;
}

static void
launch(std::vector<Rank> &all, const std::vector<cudaGraphExec_t> &exec)
{
	for (uint32_t i = 0; i < all.size(); i++) {
		CHECK(cudaSetDevice(all[i].dev));
		CHECK(cudaGraphLaunch(exec[i], all[i].st));
	}
}

/* Median of so many replays behind the first, us, by rank 0's clock. The graphs
 * go with it. */
static double
replayed(std::vector<Rank> &all, const std::vector<cudaGraphExec_t> &exec,
    uint32_t times)
{
	std::vector<float> ms(times);

	launch(all, exec);
	sync_all(all);
	for (float &m : ms) {
		CHECK(cudaSetDevice(all[0].dev));
		CHECK(cudaEventRecord(all[0].t0, all[0].st));
		launch(all, exec);
		CHECK(cudaSetDevice(all[0].dev));
		CHECK(cudaEventRecord(all[0].t1, all[0].st));
		sync_all(all);
		CHECK(cudaEventElapsedTime(&m, all[0].t0, all[0].t1));
	}
	for (cudaGraphExec_t e : exec)
		CHECK(cudaGraphExecDestroy(e));
	std::sort(ms.begin(), ms.end());
	return ms[times / 2] * 1e3;
}

static void
rounds_test(uint32_t world, int gpus, uint64_t seed, uint32_t rounds,
    dcpg_stuck *stuck)
{
	std::vector<cudaGraphExec_t> exec;
	std::vector<Rank> all;

	open_ranks(all, world, gpus, seed, 5000000000ull, stuck);
	for (uint32_t n = 0; n < rounds; n++)
		for (uint32_t i = 0; i < world; i++) {
			CHECK(cudaSetDevice(all[i].dev));
			one_round(all, i);
		}
	verdict(all, stuck, rounds, "launches");
	exec = capture(all, [&](uint32_t i) {
		for (int n = 0; n < 10; n++)
			one_round(all, i);
	});
	for (uint32_t n = 0; n < rounds / 10; n++)
		launch(all, exec);
	verdict(all, stuck, rounds + rounds / 10 * 10, "and a graph of 10");
	for (cudaGraphExec_t e : exec)
		CHECK(cudaGraphExecDestroy(e));
	close_ranks(all);
}

/* Decode's queries, made for all ranks by each. */
static void
query_test(uint32_t world, int gpus, uint64_t seed, uint32_t rows,
    uint32_t nope, bool words, dcpg_stuck *stuck)
{
	Shape s = { rows, 16, nope, world, 0 };
	std::vector<Rank> all;
	std::vector<Seat> seat;
	size_t bad;
	Rng g(seed);

	open_ranks(all, world, gpus, seed, 5000000000ull, stuck);
	for (Rank &r : all)
		seat.push_back({ r.dev, r.st, r.peer });
	bad = send_all(s, g, seat, words, [&](uint32_t d) {
		wait_a_while<<<1, 1, 0, all[d].st>>>(all[d].rng);
	});
	for (uint32_t i = 0; i < world; i++)
		bad += stuck[i].set;
	printf("%s queries for all of %u ranks by %s, %u rows, nope %u: %zu "
	    "errors\n", bad == 0 ? "ok  " : "FAIL", world, words ? "words" :
	    "arrivals", rows, nope, bad);
	failures += bad != 0;
	close_ranks(all);
}

/* Rank world - 1 never comes: all others say so, and later do not wait. */
static void
stuck_test(uint32_t world, int gpus, uint64_t seed, dcpg_stuck *stuck)
{
	std::vector<Rank> all;
	bool ok = true;

	open_ranks(all, world, gpus, seed, 300000000ull, stuck);
	for (uint32_t i = 0; i + 1 < world; i++) {
		CHECK(cudaSetDevice(all[i].dev));
		for (int n = 0; n < 50; n++)
			CALL(dcpg_peer_meet(&all[i].peer, all[i].st));
	}
	sync_all(all);
	for (uint32_t i = 0; i < world; i++)
		ok = ok && (i + 1 == world ? stuck[i].set == 0 :
		    stuck[i].set == 1 && stuck[i].peer == world - 1 &&
		    stuck[i].meeting == 1);
	printf("%s a rank that stays away, of %u\n", ok ? "ok  " : "FAIL",
	    world);
	failures += !ok;
	close_ranks(all);
}

static void
time_it(uint32_t world, int gpus, dcpg_stuck *stuck)
{
	enum { CALLS = 200, TIMES = 11 };
	std::vector<Rank> all;

	open_ranks(all, world, gpus, 1, 5000000000ull, stuck);
	for (int what = 0; what < 3; what++) {
		uint32_t bytes = what == 1 ? 16384 : 65536;
		auto exec = capture(all, [&](uint32_t i) {
			for (int n = 0; n < CALLS; n++)
				if (what == 0)
					CALL(dcpg_peer_meet(&all[i].peer,
					    all[i].st));
				else
					push(all, i, bytes);
		});

		double us = replayed(all, exec, TIMES) / CALLS;
		printf("time: %s of %u KB to each of %u ranks: %.2f us "
		    "(median of %d replays of %d)\n", what == 0 ? "a meeting" :
		    "an exchange", what == 0 ? 0 : bytes / 1024, world,
		    us, TIMES, CALLS);
	}
	close_ranks(all);
}

/* Heads of GLM-5.2 or V3.2, made for all ranks, or copied to them; a meeting
 * after each. */
static void
time_queries(uint32_t world, int gpus, uint32_t heads, uint32_t nope,
    dcpg_stuck *stuck)
{
	enum { CALLS = 100, TIMES = 11, SETS = 10, MOST = 64 };
	std::vector<Rank> all;
	std::vector<uint16_t *> mem(world);
	size_t w = (size_t)heads * 512 * nope, x = MOST * heads * (nope + 64ul);
	size_t q = 2 * MOST * heads * 576ul * world, angles = MOST * 64;

	open_ranks(all, world, gpus, 1, 5000000000ull, stuck);
	for (uint32_t i = 0; i < world; i++) {
		size_t bytes = (w * SETS + x + q + angles * 2) * 2;

		CHECK(cudaSetDevice(all[i].dev));
		CHECK(cudaMalloc(&mem[i], bytes));
		CHECK(cudaMemset(mem[i], 0, bytes));
		CHECK(cudaDeviceSynchronize());
	}
	auto median = [&](auto one) {
		return replayed(all, capture(all, [&](uint32_t i) {
			for (int n = 0; n < CALLS; n++)
				one(i, n);
		}), TIMES) / CALLS;
	};
	for (uint32_t rows : { 1u, 8u, 32u, 64u }) {
		double made[2], sent, one = heads * 576;

		for (int words = 0; words < 2; words++)
			made[words] = median([&](uint32_t i, int n) {
				struct dcpg_query a = {};
				uint16_t *m = mem[i] + w * SETS;

				a.w = mem[i] + n % SETS * w;
				a.x = m;
				a.cos = a.sin = (const float *)(m + x + q);
				for (uint32_t e = 0; e < world; e++)
					a.to[e] = mem[e] + w * SETS + x +
					    n % 2 * q / 2 + i * heads * 576;
				a.rows = rows;
				a.heads = heads;
				a.nope = nope;
				a.step = world * heads * 576;
				a.ranks = world;
				a.peer = all[i].peer;
				a.ones = words && n > 0;
				if (words)
					a.clear = m + x + (n + 1) % 2 * q / 2;
				CALL(dcpg_query(&a, all[i].st));
				CALL(dcpg_peer_meet(&a.peer, all[i].st));
			});
		sent = median([&](uint32_t i, int) {
			dcpg_push a = {};

			a.n = world;
			for (uint32_t e = 0; e < world; e++)
				a.to[e] = mem[e] + w * SETS + x + i * heads *
				    576;
			a.from = a.to[i];
			a.to[i] = nullptr;
			a.rows = rows;
			a.bytes = heads * 576 * 2;
			a.from_step = a.to_step = world * a.bytes;
			CALL(dcpg_peer_push(&all[i].peer, &a, all[i].st));
			CALL(dcpg_peer_meet(&all[i].peer, all[i].st));
		});
		printf("time: queries of %u heads of %u+64, %u rows, %.0f KB, "
		    "for all of %u ranks, and a meeting: %.2f us (arrivals), "
		    "%.2f (words), copied %.2f\n", heads, nope, rows, one *
		    rows / 512, world, made[0], made[1], sent);
	}
	for (uint32_t i = 0; i < world; i++)
		CHECK(cudaFree(mem[i]));
	close_ranks(all);
}

int
main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], nullptr, 0) : 1;
	bool few = argc > 2 && strcmp(argv[2], "short") == 0;
	dcpg_stuck *stuck;
	int gpus = 0, can;

	/*
	 * A kernel that is loaded at its first launch waits for the device, and
	 * so for a rank that spins there until this thread launches its peer.
	 */
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	brief = true;	/* buffers that peers can reach */
	CHECK(cudaGetDeviceCount(&gpus));
	gpus = gpus > 8 ? 8 : gpus;
	for (int a = 0; a < gpus; a++)
		for (int b = 0; b < gpus; b++) {
			CHECK(cudaSetDevice(a));
			if (a != b) {
				CHECK(cudaDeviceCanAccessPeer(&can, a, b));
				if (!can) {
					printf("GPU %d cannot reach GPU %d\n",
					    a, b);
					return 1;
				}
				CHECK(cudaDeviceEnablePeerAccess(b, 0));
			}
		}
	CHECK(cudaHostAlloc(&stuck, DCPK_MAX_RANKS * sizeof *stuck,
	    cudaHostAllocPortable | cudaHostAllocMapped));
	for (uint32_t world = 2; world <= (uint32_t)std::max(2, gpus);
	    world *= 2) {
		rounds_test(world, gpus, seed, few ? 20 : 2000, stuck);
		for (uint32_t rows : { 1u, 8u, 40u })
			for (bool words : { false, true })
				query_test(world, gpus, seed, rows, rows == 8 ?
				    128 : 192, words, stuck);
		stuck_test(world, gpus, seed, stuck);
		if (few)
			continue;
		time_it(world, gpus, stuck);
		time_queries(world, gpus, 32, 192, stuck);
		time_queries(world, gpus, 64, 128, stuck);
	}
	printf("peer_test: %d failed (seed %llu, %d GPUs)\n", failures,
	    (unsigned long long)seed, gpus);
	return failures != 0;
}
