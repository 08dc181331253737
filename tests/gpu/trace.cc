/*
 * What ran on the GPUs of a process, kernel by kernel, those of graphs too:
 *   CUDA_INJECTION64_PATH=libtrace.so TRACE_OUT=FILE program ...
 * The driver loads this library and calls InitializeInjection. One line a
 * kernel goes to FILE when the process ends, or when its buffers are full:
 *   device stream start_ns duration_ns graph_node name
 * tests/gpu/where.py makes a table of them. CUPTI's threads call complete().
 */
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>

#include <mutex>

#include <cupti.h>

enum { BUFFER = 8 << 20 };

static FILE *out;
static std::mutex lock;

static void CUPTIAPI
request(uint8_t **buf, size_t *size, size_t *records)
{
	*buf = (uint8_t *)aligned_alloc(8, BUFFER);
	*size = *buf != NULL ? BUFFER : 0;
	*records = 0;
}

static void CUPTIAPI
complete(CUcontext, uint32_t, uint8_t *buf, size_t, size_t valid)
{
	std::lock_guard<std::mutex> hold(lock);
	CUpti_Activity *a = NULL;

	while (cuptiActivityGetNextRecord(buf, valid, &a) == CUPTI_SUCCESS) {
		const CUpti_ActivityKernel10 *k =
		    (const CUpti_ActivityKernel10 *)a;

		char *name;
		int rc;

		if (a->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
			continue;
		name = abi::__cxa_demangle(k->name, NULL, NULL, &rc);
		fprintf(out, "%u %u %llu %llu %llu %s\n", k->deviceId,
		    k->streamId, (unsigned long long)k->start,
		    (unsigned long long)(k->end - k->start),
		    (unsigned long long)k->graphNodeId,
		    name != NULL ? name : k->name);
		free(name);
	}
	free(buf);
}

static void
finish(void)
{
	cuptiActivityFlushAll(1);
	fflush(out);
}

extern "C" int
InitializeInjection(void)
{
	const char *path = getenv("TRACE_OUT");

	out = path != NULL ? fopen(path, "w") : NULL;
	if (out == NULL) {
		fprintf(stderr, "trace: TRACE_OUT names no file to write\n");
		return 0;
	}
	if (cuptiActivityRegisterCallbacks(request, complete) !=
	    CUPTI_SUCCESS ||
	    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) !=
	    CUPTI_SUCCESS) {
		fprintf(stderr, "trace: CUPTI does not start\n");
		return 0;
	}
	atexit(finish);
	return 1;
}
