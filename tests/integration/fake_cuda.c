/*
 * A module of --device cuda that finds no GPU: the loader and its refusals are
 * tested with it. FAKE_ABI: the ABI that it claims. FAKE_HANG: exit() never
 * ends, as where a driver waits for a kernel that is stuck, or, where it is
 * "open", opening does not, where "memory" not even its size is told. FAKE_LOST:
 * there is a GPU, and it gives an error.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"

static int
fake_bytes(const struct dcpk_setup *s, struct dcpk_bytes *b)
{
	const struct dcpk_model *m = &s->model;
	uint64_t rows = (s->pages + 1ull) * dcpk_page_rows(s->topo.dcp);
	uint32_t full = 0, i;

	for (i = 0; i < m->layers; i++)
		full += m->full[i] != 0;
	memset(b, 0, s->topo.world * sizeof *b);
	for (i = 0; i < s->topo.world; i++) {
		b[i].rows = rows * m->layers *
		    dcpk_row_bytes(s->kv, m->kv_lora, m->rope);
		b[i].index = rows * full *
		    dcpk_index_bytes(s->idx, m->idx_dim);
	}
	return 0;
}

static void
hang(void)
{
	for (;;)
		pause();
}

static int
fake_open(const struct dcpk_setup *s, struct dcpk_ctx **out,
    struct dcpk_err *err)
{
	const char *how = getenv("FAKE_HANG");

	if (how != NULL && strcmp(how, "open") == 0)
		hang();
	if (how != NULL)
		atexit(hang);
	if (getenv("FAKE_LOST") != NULL) {
		snprintf(err->text, sizeof err->text, "GPU 0: fell off");
		return -EIO;
	}
	snprintf(err->text, sizeof err->text, "no GPU here, --tp %u needs %u; "
	    "use --device cpu", s->topo.world, s->topo.world);
	return -ENODEV;
}

static int
fake_memory(const struct dcpk_setup *s, uint64_t *bytes, struct dcpk_err *err)
{
	hang();
	return 0;
}

static struct dcpk_backend fake = {
	.abi = DCPK_ABI, .size = sizeof fake, .name = "cuda",
	.bytes = fake_bytes, .open = fake_open,
};

__attribute__((visibility("default")))
const struct dcpk_backend *dcpk_backend_get(uint32_t abi);

const struct dcpk_backend *
dcpk_backend_get(uint32_t abi)
{
	const char *claim = getenv("FAKE_ABI");

	const char *how = getenv("FAKE_HANG");

	if (claim != NULL)
		fake.abi = (uint32_t)atoi(claim);
	if (how != NULL && strcmp(how, "memory") == 0)
		fake.memory = fake_memory;
	return &fake;
}
