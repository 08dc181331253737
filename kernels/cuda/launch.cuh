/*
 * Launches that may begin before the kernel in front of them on the stream has
 * ended, for which they wait (launch_wait, ptx.cuh).
 */
#ifndef DCPG_LAUNCH_CUH
#define DCPG_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include <utility>

namespace dcpg {

/* Blocks may have shared memory of their own choice, clusters of `cluster`. */
template <class... P, class... A>
static inline cudaError_t
launch_clusters(void (*kernel)(P...), dim3 grid, uint32_t threads,
    uint32_t shared, uint32_t cluster, cudaStream_t st, A &&...args)
{
	cudaLaunchAttribute at[2] = {};
	cudaLaunchConfig_t cfg = {};

	at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	at[0].val.programmaticStreamSerializationAllowed = 1;
	at[1].id = cudaLaunchAttributeClusterDimension;
	at[1].val.clusterDim.x = cluster;
	at[1].val.clusterDim.y = at[1].val.clusterDim.z = 1;
	cfg.gridDim = grid;
	cfg.blockDim = dim3(threads);
	cfg.dynamicSmemBytes = shared;
	cfg.stream = st;
	cfg.attrs = at;
	cfg.numAttrs = cluster > 1 ? 2 : 1;
	return cudaLaunchKernelEx(&cfg, kernel, std::forward<A>(args)...);
}

template <class... P, class... A>
static inline cudaError_t
launch_early(void (*kernel)(P...), dim3 grid, uint32_t threads,
    cudaStream_t st, A &&...args)
{
	return launch_clusters(kernel, grid, threads, 0, 1, st,
	    std::forward<A>(args)...);
}

}	/* namespace dcpg */
#endif
