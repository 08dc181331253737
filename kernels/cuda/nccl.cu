/*
 * --dcp-comm nccl: the sums of partial products by NCCL's all-reduce, and
 * everything else where GPUs cannot reach each other's memory (mirror.cu). The
 * library is opened when it is asked for, so nothing is built against it; what
 * is used of it has been the same in every release of NCCL since 2.7. One
 * thread makes the calls of all ranks, as one group. Each rank has a GPU of its
 * own.
 *
 * An all-reduce ends on a rank only after every rank has begun it, so it stands
 * for the meeting of the other ways too.
 */
#include <dlfcn.h>
#include <stdio.h>

#include <new>
#include <vector>

#include "kernels/cuda/device.cuh"

typedef struct ncclComm *comm_t;

enum { NCCL_INT8 = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

struct dcpg_nccl {
	void *lib;
	comm_t comm[DCPK_MAX_RANKS];
	int (*init_all)(comm_t *, int n, const int *devices);
	int (*destroy)(comm_t);
	int (*all_reduce)(const void *, void *, size_t, int type, int op,
	    comm_t, cudaStream_t);
	int (*send)(const void *, size_t, int type, int peer, comm_t,
	    cudaStream_t);
	int (*recv)(void *, size_t, int type, int peer, comm_t, cudaStream_t);
	int (*group_start)(void);
	int (*group_end)(void);
	const char *(*error)(int);
};

static bool
symbol(dcpg_nccl *n, const char *name, void *to)
{
	return (*(void **)to = dlsym(n->lib, name)) != NULL;
}

static bool
symbols(dcpg_nccl *n)
{
	return symbol(n, "ncclCommInitAll", &n->init_all) &&
	    symbol(n, "ncclCommDestroy", &n->destroy) &&
	    symbol(n, "ncclAllReduce", &n->all_reduce) &&
	    symbol(n, "ncclSend", &n->send) &&
	    symbol(n, "ncclRecv", &n->recv) &&
	    symbol(n, "ncclGroupStart", &n->group_start) &&
	    symbol(n, "ncclGroupEnd", &n->group_end) &&
	    symbol(n, "ncclGetErrorString", &n->error);
}

static void
free_bytes(const dcpk_ctx *c, size_t *bytes)
{
	size_t all;

	for (uint32_t i = 0; i < c->W; i++) {
		cudaSetDevice(c->r[i].dev);
		if (cudaMemGetInfo(&bytes[i], &all) != cudaSuccess)
			bytes[i] = 0;
	}
}

/* From every rank to every other. */
static int
first_copies(dcpk_ctx *c)
{
	std::vector<dcpg_copy> v;

	for (uint32_t i = 0; i < c->W; i++)
		for (uint32_t o = 0; o < c->W; o++)
			v.push_back({ i, o, c->r[i].mirror,
			    c->r[o].mirror + (i + 1) * 256, 256 });
	return dcpg_nccl_copy(c, v.data(), v.size());
}

/* More than half of NCCL's memory is taken by the first sum, and more by the
 * first of other exchanges: now, and counted, not beside a request. */
static int
first_sum(dcpk_ctx *c, const size_t *before, dcpk_err *err)
{
	size_t after[DCPK_MAX_RANKS];
	float *y[DCPK_MAX_RANKS];
	int rc;

	for (uint32_t i = 0; i < c->W; i++)
		y[i] = c->r[i].x;
	rc = dcpg_nccl_sum(c, y, 1);
	if (rc == 0 && c->mirrored)
		rc = first_copies(c);
	for (uint32_t i = 0; rc == 0 && i < c->W; i++)
		rc = dcpg_wait_rank(c, &c->r[i], "NCCL's first sum");
	if (rc != 0) {
		snprintf(err->text, sizeof err->text, "cuda: --dcp-comm nccl: "
		    "the first sum or copy failed; NCCL_DEBUG=INFO in the environment "
		    "says more");
		return rc;
	}
	free_bytes(c, after);
	for (uint32_t i = 0; i < c->W; i++)
		c->got[i].comm = before[i] > after[i] ? before[i] - after[i] :
		    0;
	return 0;
}

int
dcpg_nccl_open(dcpk_ctx *c, dcpk_err *err)
{
	size_t before[DCPK_MAX_RANKS];
	int device[DCPK_MAX_RANKS], rc;

	if (c->s.comm != DCPK_COMM_NCCL || c->W == 1)
		return 0;
	c->nccl = new (std::nothrow) dcpg_nccl();
	if (c->nccl == NULL) {
		snprintf(err->text, sizeof err->text, "cuda: out of memory");
		return -ENOMEM;
	}
	c->nccl->lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (c->nccl->lib == NULL || !symbols(c->nccl)) {
		snprintf(err->text, sizeof err->text, "cuda: --dcp-comm nccl: "
		    "%.200s; install NCCL 2, or use --dcp-comm p2p",
		    dlerror());
		return -ELIBBAD;
	}
	for (uint32_t i = 0; i < c->W; i++)
		device[i] = c->r[i].dev;
	free_bytes(c, before);
	rc = c->nccl->init_all(c->nccl->comm, (int)c->W, device);
	if (rc == 0)
		return first_sum(c, before, err);
	snprintf(err->text, sizeof err->text, "cuda: --dcp-comm nccl: %s; "
	    "NCCL_DEBUG=INFO in the environment says more",
	    c->nccl->error(rc));
	return -EIO;
}

void
dcpg_nccl_close(dcpk_ctx *c)
{
	if (c->nccl == NULL)
		return;
	for (uint32_t i = 0; i < c->W; i++)
		if (c->nccl->comm[i] != NULL)
			c->nccl->destroy(c->nccl->comm[i]);
	if (c->nccl->lib != NULL)
		dlclose(c->nccl->lib);
	delete c->nccl;
	c->nccl = NULL;
}

/* In place: n floats of every rank's y become their sum. */
int
dcpg_nccl_sum(dcpk_ctx *c, float *const y[], size_t n)
{
	int rc = c->nccl->group_start();

	for (uint32_t i = 0; rc == 0 && i < c->W; i++)
		rc = c->nccl->all_reduce(y[i], y[i], n, NCCL_FLOAT32,
		    NCCL_SUM, c->nccl->comm[i], c->r[i].st);
	if (rc == 0)
		rc = c->nccl->group_end();
	if (rc == 0)
		return 0;
	fprintf(stderr, "cuda: NCCL: %s\n", c->nccl->error(rc));
	return -EIO;
}

/*
 * Bytes between ranks, each from its rank's stream to the other's. A receive
 * begins when its stream gets there, so what the stream read before may be
 * written; a send is over before its stream goes on.
 */
int
dcpg_nccl_copy(dcpk_ctx *c, const dcpg_copy *v, size_t n)
{
	dcpg_nccl *l = c->nccl;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		if (v[i].from == v[i].to) {
			cudaSetDevice(c->r[v[i].to].dev);
			rc |= dcpg_ok(cudaMemcpyAsync(v[i].dst, v[i].src,
			    v[i].bytes, cudaMemcpyDeviceToDevice,
			    c->r[v[i].to].st), "copy");
		}
	if (rc != 0)
		return rc;
	rc = l->group_start();
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (v[i].from == v[i].to || v[i].bytes == 0)
			continue;
		rc = l->send(v[i].src, v[i].bytes, NCCL_INT8, (int)v[i].to,
		    l->comm[v[i].from], c->r[v[i].from].st);
		if (rc == 0)
			rc = l->recv(v[i].dst, v[i].bytes, NCCL_INT8,
			    (int)v[i].from, l->comm[v[i].to],
			    c->r[v[i].to].st);
	}
	if (rc == 0)
		rc = l->group_end();
	if (rc == 0)
		return 0;
	fprintf(stderr, "cuda: NCCL: %s\n", l->error(rc));
	return -EIO;
}
