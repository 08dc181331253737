/*
 * kernel_test's part query: dcpg_query against float64 on the CPU, by one rank
 * for itself, and by ranks that share a GPU for all of them.
 */
#include "kernels/cuda/dcpg.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/peers.h"
#include "tests/gpu/queries.h"

static void
say(bool ok, const Shape &s)
{
	char what[100];

	snprintf(what, sizeof what, "query rows=%u heads=%u nope=%u D=%u "
	    "cols=%u", s.rows, s.heads, s.nope, s.D, s.cols);
	verdict(ok, what);
}

static void
alone_case(Shape s, uint64_t salt)
{
	std::shared_lock<std::shared_mutex> shared(gpu);
	Rng g(seed * 86028121 + salt);
	Asker r(s, g);
	struct dcpg_query a = r.args(s);

	a.to[0] = r.q.d;
	CALL(dcpg_query(&a, STREAM));
	CHECK(cudaDeviceSynchronize());
	say(wrong(r, s, 0, 0, r.q.get().data()) == 0, s);
}

static void
sent_case(Shape s, bool words, uint64_t salt)
{
	std::unique_lock<std::shared_mutex> alone(gpu);
	Rng g(seed * 122949823 + salt);
	Peers peers(s.D);
	std::vector<Seat> seat;
	Buf<uint16_t> some(64), other(64);
	size_t bad;

	for (uint32_t d = 0; d < s.D; d++)
		seat.push_back({ 0, peers.stream[d], peers.of(d) });
	/* To load code may have to wait for what runs: all that is launched
	 * behind one that waits for another rank is loaded before. */
	delay(STREAM, 0);
	CHECK(cudaMemcpyAsync(some.d, other.d, 128, cudaMemcpyDefault,
	    STREAM));
	CHECK(cudaMemsetAsync(other.d, 0xff, 128, STREAM));
	for (const Seat &at : seat)
		CALL(dcpg_peer_meet(&at.peer, at.st));
	CHECK(cudaDeviceSynchronize());
	bad = send_all(s, g, seat, words, [&](uint32_t d) {
		delay(peers.stream[d], g.below(3) * 20000);
	});
	if (peers.lost())
		printf("     a rank waited in vain:\n");
	say(bad == 0 && !peers.lost(), s);
}

void
query_tests(void)
{
	uint64_t salt = 0;

	for (uint32_t nope : { 64u, 128u, 192u })
		for (uint32_t rows : { 1u, 8u, 16u, 17u, 33u, 64u, 65u, 130u })
			for (uint32_t cols : { 0u, 64u, 128u })
				if (!brief || rows == 17)
					CASE(alone_case({ rows, 5, nope, 1,
					    cols }, salt));
	if (brief)
		return;
	CASE(alone_case({ 32, 64, 128, 1, 0 }, salt));
	CASE(alone_case({ 32, 32, 192, 1, 0 }, salt));
	for (bool words : { false, true }) {
		CASE(sent_case({ 1, 8, 192, 2, 0 }, words, salt));
		CASE(sent_case({ 8, 16, 128, 2, 0 }, words, salt));
		CASE(sent_case({ 33, 4, 192, 2, 128 }, words, salt));
		CASE(sent_case({ 3, 4, 64, 4, 0 }, words, salt));
	}
}
