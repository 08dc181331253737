/* A model on a backend, as an engine of the scheduler. Step thread only. */
#include "config.h"

#include <string.h>

#include "dcpd/model/engine.h"
#include "dcpd/model/floor.h"

int
dcpd_engine_open(struct dcpd_model_engine *e, const struct dcpk_backend *b,
    const struct dcpd_model_config *cfg, const struct dcpk_setup *setup,
    struct dcpd_err *err)
{
	struct dcpk_err ke = { "" };
	int rc;

	memset(e, 0, sizeof *e);
	e->backend = b;
	e->cfg = cfg;
	e->setup = *setup;
	e->setup.model = cfg->m;
	e->setup.model.act_ue8m0 = cfg->ue8m0;
	rc = b->open(&e->setup, &e->ctx, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "%s", ke.text);
	return 0;
}

int
dcpd_engine_load(struct dcpd_model_engine *e, const char *dir,
    const struct dcpd_load_options *o, struct dcpd_err *err)
{
	return dcpd_weights_load(dir, e->cfg, &e->setup.topo, e->backend,
	    e->ctx, o, err);
}

int
dcpd_engine_ready(struct dcpd_model_engine *e, const char *dir,
    struct dcpd_err *err)
{
	struct dcpk_err ke = { "" };
	int rc = e->backend->ready(e->ctx, &ke);

	if (rc != 0)
		return dcpd_fail(err, rc, "%s: %s", dir, ke.text);
	rc = e->backend->measure(e->ctx, &e->speed);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "measuring the device: %s",
	    strerror(-rc));
}

static int
step(void *self, const struct dcpk_plan *p, struct dcpk_result *r,
    struct dcpd_err *err)
{
	struct dcpd_model_engine *e = self;

	return dcpd_forward(e->backend, e->ctx, &e->setup.model, p, r,
	    &e->attend_ns, err);
}

static void
predict(void *self, const struct dcpk_plan *p, double s[3])
{
	struct dcpd_model_engine *e = self;

	dcpd_way_predict(&e->setup.model, &e->setup.topo, e->setup.kv,
	    &e->speed, p, s);
}

static int
move(void *self, const struct dcpk_move *m, uint32_t n, bool out,
    struct dcpd_err *err)
{
	struct dcpd_model_engine *e = self;
	struct dcpk_err ke = { "" };
	int rc = e->backend->move(e->ctx, m, n, out, &ke);

	return rc == 0 ? 0 : dcpd_fail(err, rc, "%s", ke.text);
}

static double
break_even(void *self)
{
	const struct dcpd_model_engine *e = self;

	return dcpd_way_break_even(&e->setup.model, &e->setup.topo,
	    e->setup.kv, &e->speed);
}

static void
pass_floor(void *self, const struct dcpd_pass *p, struct dcpd_floor *out)
{
	const struct dcpd_model_engine *e = self;
	struct dcpd_floor_of of = {
		.cfg = e->cfg, .topo = &e->setup.topo,
		.cpu = e->backend == &dcpk_cpu, .flags = e->setup.flags,
		.kv = e->setup.kv, .idx = e->setup.idx,
	};

	dcpd_floor(&of, &e->speed, p, out);
}

/* An operation of the CPU is over when it returns; a GPU's is not. */
static bool
waits_for_operations(const struct dcpd_model_engine *e)
{
	return e->backend == &dcpk_cpu;
}

static int
check(void *self, struct dcpd_err *err)
{
	struct dcpd_model_engine *e = self;
	struct dcpk_err ke = { "" };
	int rc = e->backend->check(e->ctx, &ke);

	return rc == 0 ? 0 : dcpd_fail(err, rc, "%s", ke.text);
}

static void
waits(void *self, char *buf, size_t cap)
{
	struct dcpd_model_engine *e = self;

	buf[0] = '\0';
	if (e->backend->waits != NULL)
		e->backend->waits(e->ctx, buf, cap);
}

static void
close_engine(void *self)
{
	dcpd_engine_close(self);
}

void
dcpd_engine_make(struct dcpd_model_engine *e, struct dcpd_engine *out)
{
	*out = (struct dcpd_engine){
		.name = e->backend->name,
		.self = e,
		.step = step,
		.predict = predict,
		.attend_ns = waits_for_operations(e) ? &e->attend_ns : NULL,
		.break_even = break_even,
		.floor = pass_floor,
		.check = check,
		.waits = waits,
		.move = move,
		.close = close_engine,
		.vocab = e->setup.model.vocab,
		.max_ctx = e->setup.max_ctx,
		.pages = e->setup.pages,
		.host_pages = e->setup.host_pages,
		.dcp = e->setup.topo.dcp,
		.world = e->setup.topo.world,
		.chunk = e->setup.max_prefill,
		.max_running = e->setup.max_rows,
		.eos = e->cfg->eos,
		.n_eos = e->cfg->n_eos,
	};
}

void
dcpd_engine_close(struct dcpd_model_engine *e)
{
	if (e->ctx != NULL)
		e->backend->close(e->ctx);
	e->ctx = NULL;
}
