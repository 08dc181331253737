/*
 * Start-up and its reverse. Each phase is logged with its seconds and told to
 * systemd; the admin socket shows them too. Main thread.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "dcpd/config/device.h"
#include "dcpd/config/memavail.h"
#include "dcpd/daemon.h"
#include "dcpd/plugin/plugin.h"
#include "dcpd/selftest.h"

#define FRACTION_CPU 0.25
#define FRACTION_CUDA 0.85
#define NULL_VOCAB 1024u
#define NULL_CONTEXT 131072u
#define NULL_PAGE_BYTES 65536u	/* that --host-cache-bytes counts a page */

/*
 * Phases that call the device may take so many times --stuck-after (main.c ends
 * the process then): a driver that does not come back is waited for by no bound
 * of its own. LONG: what wakes the driver, may pin much host memory, run large
 * weights on the CPU, or read them, where it is the time from tensor to tensor.
 */
#define SHORT 2
#define LONG 30

static void
phase(struct dcpd_daemon *d, const char *name, int most)
{
	struct dcpd_run *r = &d->run;

	pthread_rwlock_wrlock(&r->lock);
	DCPD_ASSERT(r->phases < DCPD_MAX_PHASES);
	r->phase[r->phases].name = name;
	r->phase[r->phases++].seconds = 0;
	r->phase_began = dcpd_now();
	r->phase_most = most * d->opt.stuck_after;
	r->phase_signs++;
	pthread_rwlock_unlock(&r->lock);
	sd_notifyf(0, "STATUS=loading: %s\nEXTEND_TIMEOUT_USEC=%.0f", name,
	    fmax(60, most * d->opt.stuck_after + 10) * 1e6);
}

/* Ends the phase under way. What it did goes to the log. */
static void __attribute__((format(printf, 2, 3)))
phase_done(struct dcpd_daemon *d, const char *fmt, ...)
{
	struct dcpd_run *r = &d->run;
	char what[400];
	va_list ap;
	double s;

	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	pthread_rwlock_wrlock(&r->lock);
	s = dcpd_now() - r->phase_began;
	r->phase[r->phases - 1].seconds = s;
	r->phase_began = 0;
	pthread_rwlock_unlock(&r->lock);
	dcpd_log(LOG_INFO, "%-10s %8.3f s  %s", r->phase[r->phases - 1].name,
	    s, what);
}

static void
tell(struct dcpd_daemon *d, const char *key, json_t *value)
{
	pthread_rwlock_wrlock(&d->run.lock);
	json_object_set_new(d->run.about, key, value);
	pthread_rwlock_unlock(&d->run.lock);
}

/* --- config --- */

static int
open_tokenizer(struct dcpd_daemon *d, struct dcpd_err *err)
{
	int rc;

	if (d->opt.model == NULL)
		return 0;
	rc = dcpd_tokenizer_open(d->opt.model, &d->tok, err);
	if (rc == -ENOENT || rc == -ENOTDIR) {
		dcpd_log(LOG_WARNING, "%s: no tokenizer.json: requests of "
		    "token ids only", d->opt.model);
		memset(err, 0, sizeof *err);
		rc = 0;
	}
	return rc;
}

static int
read_config(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	int rc;

	if (o->trust_remote_code)
		dcpd_log(LOG_NOTICE, "--trust-remote-code: no code of a model "
		    "folder is ever run");
	if (o->engine == DCPD_ENGINE_MODEL) {
		rc = dcpd_config_load(o->model,
		    o->latent_norm_eps == DCPD_EPS_CONFIG, &d->config, err);
		if (rc != 0)
			return rc;
		d->have_config = true;
		rc = dcpd_options_quantization(o, &d->config, err);
		if (rc != 0)
			return rc;
		if (o->max_context > d->config.m.max_pos)
			return dcpd_fail(err, -EINVAL, "--max-context %u: the "
			    "model goes to %u (max_position_embeddings)",
			    o->max_context, d->config.m.max_pos);
	}
	return 0;
}

static int
read_text(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const char *type = d->have_config ? d->config.model_type : "";
	int rc;

	if ((rc = open_tokenizer(d, err)) != 0)
		return rc;
	d->run.tok = d->tok;
	if (d->tok != NULL && d->have_config &&
	    dcpd_token_limit(d->tok) > d->config.m.vocab)
		return dcpd_fail(err, -EINVAL, "%s/tokenizer.json: has ids up "
		    "to %u, config.json a vocab_size of %u: the two are of "
		    "different models", d->opt.model,
		    dcpd_token_limit(d->tok) - 1, d->config.m.vocab);
	return dcpd_options_chat(&d->opt, type, d->tok, &d->chat, &d->parser,
	    err);
}

/* Whoever has a GPU and says nothing means it, more often than not. */
static void
notice_gpu(const struct dcpd_options *o)
{
	if (o->engine == DCPD_ENGINE_MODEL && !DCPD_GIVEN(o, device) &&
	    access("/dev/nvidiactl", F_OK) == 0)
		dcpd_log(LOG_NOTICE, "this machine has NVIDIA's driver, and "
		    "the model runs on the CPU: --device cuda was not given");
}

static int
phase_config(struct dcpd_daemon *d, struct dcpd_err *err)
{
	int rc;

	phase(d, "config", 0);
	notice_gpu(&d->opt);
	if ((rc = read_config(d, err)) != 0 || (rc = read_text(d, err)) != 0)
		return rc;
	tell(d, "model", json_string(d->have_config ? d->config.name : "null"));
	if (d->have_config)
		tell(d, "model_type", json_string(d->config.model_type));
	tell(d, "tp", json_integer(d->opt.tp));
	tell(d, "dcp_size", json_integer(d->opt.dcp));
	tell(d, "attn_cp_size", json_integer(d->opt.cp));
	tell(d, "tokenizer", json_boolean(d->tok != NULL));
	phase_done(d, "%s, tokenizer %s", d->have_config ? d->config.name :
	    "null engine", d->tok != NULL ? "yes" : "no");
	return 0;
}

/* --- plan --- */

static int
memory_budget(const struct dcpd_options *o, const struct dcpk_topo *topo,
    struct dcpd_memplan_in *in, struct dcpd_err *err)
{
	uint64_t bytes;
	int rc;

	in->kv_bytes_per_rank = o->kv_bytes;
	in->host_cache_bytes = o->host_cache;
	in->mem_fraction = o->mem_fraction > 0 ? o->mem_fraction :
	    o->device == DCPD_DEVICE_CPU ? FRACTION_CPU : FRACTION_CUDA;
	if (o->device != DCPD_DEVICE_CPU)
		return 0;
	/* All ranks share the machine's memory. */
	if ((rc = dcpd_memory_available(&bytes, err)) != 0)
		return o->kv_bytes != 0 ? 0 : rc;
	in->device_bytes = bytes / topo->world;
	return 0;
}

static int
plan_input(struct dcpd_daemon *d, struct dcpk_topo *topo,
    struct dcpd_memplan_in *in, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	const struct dcpk_model *m = &d->config.m;
	int rc;

	memset(in, 0, sizeof *in);
	in->cfg = &d->config;
	dcpd_options_layout(o, &in->layout);
	in->device = o->device == DCPD_DEVICE_CPU ? "cpu" : "cuda";
	in->chunk = o->chunk;
	in->max_running = o->max_running;
	in->threads = o->cpu_threads;
	in->ranks_per_gpu = o->ranks_per_gpu;
	in->comm = dcpd_options_comm(o);
	in->wire = dcpd_options_wire(o);
	in->graph_rows = dcpd_options_graph_rows(o);
	in->flags = DCPK_GUARD | (o->no_peers ? DCPK_NO_PEERS : 0) |
	    (o->dcp_comm == DCPD_COMM_AUTO ? DCPK_COMM_AUTO : 0) |
	    (o->quantize_activations ? DCPK_QUANT_ACT : 0) |
	    dcpd_options_keeps(o, &d->config);
	in->max_ctx = o->max_context != 0 ? o->max_context : m->max_pos;
	if ((rc = dcpd_topology(&in->layout, m, topo, err)) != 0 ||
	    (rc = dcpd_options_formats(o, m, &in->kv, &in->idx, err)) != 0)
		return rc;
	return memory_budget(o, topo, in, err);
}

static int
make_plan(const struct dcpd_options *o, struct dcpd_memplan_in *in,
    struct dcpd_memplan *plan, struct dcpd_err *err)
{
	int rc = dcpd_memplan(in, plan, err);

	if (rc != 0)
		return rc;
	if (plan->tokens == 0)		/* a device whose size is not known */
		return 0;
	if (o->max_context > plan->tokens)
		return dcpd_fail(err, -ENOSPC, "--max-context %u: the pool "
		    "holds %" PRIu64 " tokens; give more by "
		    "--kv-bytes-per-rank or --mem-fraction-static, or a "
		    "smaller --max-context", o->max_context, plan->tokens);
	if (in->max_ctx <= plan->tokens)
		return 0;
	/* No request can be longer than the pool: a smaller workspace. */
	in->max_ctx = (uint32_t)plan->tokens;
	return dcpd_memplan(in, plan, err);
}

int
dcpd_daemon_plan(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	struct dcpd_memplan_in in;
	struct dcpd_memplan plan;
	struct dcpk_topo topo;
	json_t *j;
	char *text;
	int rc;

	if ((rc = read_config(d, err)) != 0 ||
	    (rc = plan_input(d, &topo, &in, err)) != 0)
		return rc;
	rc = make_plan(o, &in, &plan, err);
	if (rc != 0 && !DCPD_GIVEN(o, mem_fraction) && in.device_bytes != 0) {
		/* A plan may be made here for a larger machine. */
		dcpd_log(LOG_WARNING, "not on this machine: %s", err->text);
		in.device_bytes = 0;
		rc = make_plan(o, &in, &plan, err);
	}
	if (rc != 0)
		return rc;
	if (o->json) {
		j = dcpd_memplan_json(&in, &plan, NULL);
		text = json_dumps(j, JSON_INDENT(2));
		json_decref(j);
	} else {
		text = dcpd_memplan_text(&in, &plan, NULL);
	}
	if (text == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	printf("%s%s", text, o->json ? "\n" : "");
	free(text);
	return 0;
}

/* --- engine --- */

/* The null engine with an end, as a device has that is lost. */
static int
failing_step(void *self, const struct dcpk_plan *plan, struct dcpk_result *r,
    struct dcpd_err *err)
{
	struct dcpd_daemon *d = self;

	if (d->null_steps++ >= d->opt.null_fail_after)
		return dcpd_fail(err, -EIO, "null engine: step %u failed, as "
		    "--null-fail-after %u asked", d->null_steps,
		    d->opt.null_fail_after);
	return d->null.step(d->null.self, plan, r, err);
}

static void
failing_close(void *self)
{
	struct dcpd_daemon *d = self;

	d->null.close(d->null.self);
}

/*
 * An end token, for answers that are held to a form (response_format): a mask
 * may ask for it, the engine by itself does not give it.
 */
static void
set_null_end(struct dcpd_daemon *d)
{
	int64_t end = d->tok == NULL ? -1 :
	    dcpd_token_id(d->tok, "<|endoftext|>");

	if (end < 0 || end >= d->engine.vocab || dcpd_null_gives((uint32_t)end))
		return;
	d->null_end = (uint32_t)end;
	d->engine.eos = &d->null_end;
	d->engine.n_eos = 1;
}

static int
start_null(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	uint32_t vocab = o->null_vocab, ctx = o->max_context;
	int rc;

	phase(d, "open", LONG);
	if (d->tok != NULL && vocab == 0)
		vocab = dcpd_token_limit(d->tok);
	if (d->tok != NULL && vocab < dcpd_token_limit(d->tok))
		return dcpd_fail(err, -EINVAL, "--null-vocab %u: the tokenizer "
		    "of --model has %u ids; leave it out", vocab,
		    dcpd_token_limit(d->tok));
	if (vocab == 0)
		vocab = NULL_VOCAB;
	if (ctx == 0)
		ctx = (uint32_t)dcpd_min64(NULL_CONTEXT,
		    (uint64_t)o->null_pages * DCPD_PAGE_TOKENS);
	if (ctx > (uint64_t)o->null_pages * DCPD_PAGE_TOKENS)
		return dcpd_fail(err, -EINVAL, "--max-context %u: more than "
		    "the %u pages of --null-pages hold", ctx, o->null_pages);
	rc = dcpd_null_engine(&d->engine, vocab, ctx, o->null_pages, o->dcp,
	    o->null_step_us);
	if (rc != 0)
		return dcpd_fail(err, rc, "null engine: %s", strerror(-rc));
	d->have_engine = true;
	d->engine.world = o->tp;
	d->engine.chunk = o->chunk;
	d->engine.max_running = o->max_running;
	d->engine.host_pages = (uint32_t)dcpd_min64(o->host_cache /
	    NULL_PAGE_BYTES, UINT32_MAX / 8);
	set_null_end(d);
	if (o->null_fail_after > 0) {
		d->null = d->engine;
		d->engine.self = d;
		d->engine.step = failing_step;
		d->engine.close = failing_close;
	}
	phase_done(d, "null engine, %u pages", o->null_pages);
	return 0;
}

/* Ids that may be sampled: those that the tokenizer knows. malloc'd, or NULL:
 * all. A vocabulary is often padded beyond them. */
static uint32_t *
known_ids(const struct dcpd_daemon *d)
{
	uint32_t vocab = d->config.m.vocab, id, *mask;
	const char *bytes;
	bool special;
	size_t len;

	if (d->tok == NULL)
		return NULL;
	mask = calloc((vocab + 31) / 32, sizeof *mask);
	for (id = 0; mask != NULL && id < vocab; id++)
		if (dcpd_token_bytes(d->tok, id, &bytes, &len, &special) == 0)
			mask[id / 32] |= 1u << id % 32;
	return mask;
}

static int
phase_open(struct dcpd_daemon *d, const struct dcpk_backend *b,
    const struct dcpk_topo *topo, const struct dcpd_memplan_in *in,
    const struct dcpd_memplan *plan, struct dcpd_err *err)
{
	static const char *const comms[] = { "p2p", "peer", "nccl" };
	bool met = d->opt.device == DCPD_DEVICE_CUDA && topo->world > 1;
	uint32_t *ids = known_ids(d);
	struct dcpk_setup s;
	int rc;

	phase(d, "open", LONG);
	dcpd_memplan_setup(in, topo, plan->pages, plan->host_pages, &s);
	s.token_ok = ids;
	rc = dcpd_engine_open(&d->model, b, &d->config, &s, err);
	free(ids);
	if (rc != 0)
		return rc;
	dcpd_engine_make(&d->model, &d->engine);
	d->have_engine = true;
	phase_done(d, "%s, %u ranks%s%s, %u pages of 64 tokens each", b->name,
	    topo->world, met ? ", --dcp-comm " : "", met ? comms[s.comm] : "",
	    plan->pages);
	return 0;
}

/* Bytes read so far: for status, and so that systemd goes on waiting. */
static void
load_tick(void *arg, uint64_t done, uint64_t total)
{
	struct dcpd_daemon *d = arg;
	static double last;
	double now = dcpd_now();

	d->run.done = done;
	d->run.total = total;
	d->run.phase_signs++;
	if (now - last < 1)
		return;
	last = now;
	sd_notifyf(0, "STATUS=loading: weights, %.0f %%\n"
	    "EXTEND_TIMEOUT_USEC=60000000", total == 0 ? 0 :
	    100.0 * (double)done / (double)total);
}

static int
phase_weights(struct dcpd_daemon *d, struct dcpd_err *err)
{
	struct dcpd_load_options lo = {
		.format = d->opt.load_format, .seed = d->opt.random_seed,
		.progress = isatty(STDERR_FILENO), .tick = load_tick,
		.tick_arg = d,
	};
	char text[32];
	int rc;

	phase(d, "weights", LONG);
	rc = dcpd_engine_load(&d->model, d->opt.model, &lo, err);
	if (rc != 0)
		return rc;
	phase_done(d, "%s%s", dcpd_bytes(text, sizeof text, d->run.done),
	    lo.format == DCPD_LOAD_DUMMY ? " of random numbers" : "");
	return 0;
}

static int
phase_measure(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpk_speed *s = &d->model.speed;
	int rc;

	phase(d, "measure", SHORT);
	rc = dcpd_engine_ready(&d->model, d->opt.model, err);
	if (rc != 0)
		return rc;
	phase_done(d, "memory %.4g GB/s, products %.4g Gflop/s",
	    s->read_bytes_s * 1e-9, s->flops_s * 1e-9);
	return 0;
}

/* Before `ready`, whose table says what they took. */
static int
phase_graphs(struct dcpd_daemon *d, struct dcpd_err *err)
{
	uint32_t made;
	int rc;

	if (d->model.setup.graph_rows == 0)
		return 0;
	phase(d, "graphs", LONG);
	rc = dcpd_engine_graphs(&d->model, &made, err);
	if (rc != 0)
		return rc;
	phase_done(d, "%u of up to %u rows", made,
	    d->model.setup.graph_rows);
	return 0;
}

/* What was allocated, beside what was planned. */
static int
phase_ready(struct dcpd_daemon *d, const struct dcpk_backend *b,
    const struct dcpd_memplan_in *in, const struct dcpd_memplan *plan,
    struct dcpd_err *err)
{
	struct dcpk_bytes actual[DCPK_MAX_RANKS];
	char *text, *line, *save;

	phase(d, "ready", SHORT);
	memset(actual, 0, sizeof actual);
	b->actual(d->model.ctx, actual);
	text = dcpd_memplan_text(in, plan, actual);
	if (text == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	for (line = strtok_r(text, "\n", &save); line != NULL;
	    line = strtok_r(NULL, "\n", &save))
		dcpd_log(LOG_INFO, "%s", line);
	free(text);
	tell(d, "plan", dcpd_memplan_json(in, plan, actual));
	phase_done(d, "planned and allocated memory as above");
	return 0;
}

/* What the device itself says that a rank may have. */
static int
device_budget(const struct dcpk_topo *topo, struct dcpd_memplan_in *in,
    struct dcpd_err *err)
{
	struct dcpk_err ke = { "" };
	struct dcpk_setup s;
	int rc;

	dcpd_memplan_setup(in, topo, 1, 0, &s);
	rc = in->backend->memory(&s, &in->device_bytes, &ke);
	return rc == 0 ? 0 : dcpd_fail(err, rc, "%s", ke.text);
}

/* What the device decides of what the flags leave open. */
static int
settle(const struct dcpk_topo *topo, struct dcpd_memplan_in *in,
    struct dcpd_err *err)
{
	struct dcpk_err ke = { "" };
	struct dcpk_setup s;
	int rc;

	if (in->backend->settle == NULL)
		return 0;
	dcpd_memplan_setup(in, topo, 1, 0, &s);
	rc = in->backend->settle(&s, &ke);
	if (rc != 0)
		return dcpd_fail(err, rc, "%s", ke.text);
	if (s.comm != in->comm)
		dcpd_log(LOG_NOTICE, "the GPUs cannot reach each other's "
		    "memory: --dcp-comm nccl, without graphs");
	in->flags = s.flags;
	in->comm = s.comm;
	in->graph_rows = s.graph_rows;
	return 0;
}

static int
start_model(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpk_backend *b = NULL;
	struct dcpd_memplan_in in;
	struct dcpd_memplan plan;
	struct dcpk_topo topo;
	int rc;

	phase(d, "plan", LONG);
	if ((rc = dcpd_device(d->opt.device, &b, err)) != 0 ||
	    (rc = plan_input(d, &topo, &in, err)) != 0)
		return rc;
	in.backend = b;
	if ((rc = settle(&topo, &in, err)) != 0)
		return rc;
	if (b->memory != NULL && (rc = device_budget(&topo, &in, err)) != 0)
		return rc;
	if ((rc = make_plan(&d->opt, &in, &plan, err)) != 0)
		return rc;
	phase_done(d, "%" PRIu64 " tokens of KV, %" PRIu64 " at --dcp-size 1",
	    plan.tokens, plan.tokens_tp);
	if ((rc = phase_open(d, b, &topo, &in, &plan, err)) != 0 ||
	    (rc = phase_weights(d, err)) != 0 ||
	    (rc = phase_measure(d, err)) != 0 ||
	    (rc = phase_graphs(d, err)) != 0)
		return rc;
	return phase_ready(d, b, &in, &plan, err);
}

static int
phase_selftest(struct dcpd_daemon *d, struct dcpd_err *err)
{
	int rc;

	phase(d, "self-test", LONG);
	if ((rc = dcpd_selftest(&d->engine, err)) != 0)
		return rc;
	phase_done(d, "one token");
	return 0;
}

/* --- sockets, scheduler, ring --- */

static int
find_group(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const char *name = d->opt.socket_group;
	const struct group *g;

	if (name == NULL)
		return 0;
	errno = 0;
	g = getgrnam(name);
	if (g == NULL)
		return dcpd_fail(err, errno != 0 ? -errno : -ENOENT,
		    "--socket-group %.60s: %s; create it (groupadd --system), "
		    "or name another", name, errno != 0 ? strerror(errno) :
		    "no such group");
	d->client_group = g->gr_gid;
	return 0;
}

/* systemd's socket has the owner that its unit says. */
static int
open_client_socket(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	int rc;

	rc = dcpd_listen_inherited("dcpd", SOCK_SEQPACKET, &d->client_sock,
	    err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	rc = dcpd_listen_open(o->socket, SOCK_SEQPACKET, o->socket_mode,
	    "--socket", &d->client_sock, err);
	if (rc != 0 || o->socket_group == NULL)
		return rc;
	if (lchown(o->socket, (uid_t)-1, d->client_group) != 0)
		return dcpd_fail(err, -errno, "--socket-group %.60s: %s: %s; "
		    "the daemon's user must be in that group, or root",
		    o->socket_group, o->socket, strerror(errno));
	return 0;
}

/*
 * Beside the clients' socket. The daemon works without it too, where systemd
 * has the socket in a folder that is not the daemon's.
 */
static int
open_stats(struct dcpd_daemon *d, struct dcpd_err *err)
{
	char path[sizeof ((struct sockaddr_un *)0)->sun_path + 8];
	int rc;

	if (dcpd_listen_path(&d->client_sock, path, sizeof path) != 0)
		return 0;	/* systemd's, without a path */
	strcat(path, ".stats");
	rc = dcpd_stats_open(path, err);
	if (rc == 0 || rc == -EADDRINUSE || d->client_sock.path != NULL)
		return rc;
	dcpd_log(LOG_WARNING, "%s: dcpctl will not see a daemon that does not "
	    "answer", err->text);
	return 0;
}

static int
open_sockets(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	char path[200];
	int rc;

	if ((rc = find_group(d, err)) != 0 ||
	    (rc = open_client_socket(d, err)) != 0 ||
	    (rc = open_stats(d, err)) != 0)
		return rc;
	dcpd_page->tp = o->tp;
	dcpd_page->dcp = o->dcp;
	rc = dcpd_listen_inherited("dcpd-admin", SOCK_STREAM, &d->admin_sock,
	    err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	snprintf(path, sizeof path, "%s.admin", o->socket);
	return dcpd_listen_open(o->admin_socket != NULL ? o->admin_socket :
	    path, SOCK_STREAM, 0600, "--admin-socket", &d->admin_sock, err);
}

static int
open_files(struct dcpd_daemon *d, struct dcpd_err *err)
{
	int rc;

	pthread_mutex_lock(&d->files_lock);
	rc = open_sockets(d, err);
	pthread_mutex_unlock(&d->files_lock);
	return rc;
}

static int
start_sched(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	struct dcpd_sched_config c = {
		.engine = &d->engine, .tok = d->tok, .chat = d->chat,
		.parser = d->parser, .way = dcpd_options_way(o),
		.queue_max = o->queue_max,
		.max_requests_uid = o->max_requests_uid,
		.pin_fraction = o->pin_fraction,
		.def_top_p = 1,
	};
	int rc;

	if (d->have_config) {
		c.def_temperature = d->config.def_temperature;
		c.def_top_p = d->config.def_top_p;
		c.def_top_k = d->config.def_top_k;
	}
	rc = dcpd_textpool_start(o->text_threads, &d->pool, err);
	if (rc != 0)
		return rc;
	c.pool = d->pool;
	return dcpd_sched_start(&c, &d->sched, err);
}

static int
phase_listening(struct dcpd_daemon *d, struct dcpd_err *err)
{
	const struct dcpd_options *o = &d->opt;
	struct dcpd_ipc_config c = {
		.max_clients = o->max_clients,
		.max_clients_uid = o->max_clients_uid,
		.max_requests_uid = o->max_requests_uid,
		.max_bytes_uid = o->max_bytes_uid,
		.vocab = d->engine.vocab,
		.check_group = o->socket_group != NULL,
		.group = d->client_group,
	};
	int rc;

	phase(d, "listening", 0);
	if ((rc = start_sched(d, err)) != 0)
		return rc;
	/* ipc closes its own copy when it stops accepting. */
	c.listen_fd = fcntl(d->client_sock.fd, F_DUPFD_CLOEXEC, 0);
	if (c.listen_fd < 0)
		return dcpd_fail(err, -errno, "listening socket: %s",
		    strerror(errno));
	rc = dcpd_ipc_start(&c, &dcpd_sched_ipc_ops, d->sched, &d->ipc, err);
	if (rc != 0)
		return rc;
	phase_done(d, "%s, %u tokens of context", d->client_sock.path != NULL ?
	    d->client_sock.path : "socket from systemd", d->engine.max_ctx);
	return 0;
}

/* Before the model loads: they can say so. */
static int
phase_plugins(struct dcpd_daemon *d, struct dcpd_err *err)
{
	char path[sizeof ((struct sockaddr_un *)0)->sun_path + 1] = "";
	json_t *list;
	int rc;

	if ((rc = dcpd_plugins_config(&d->opt, &list, err)) != 0)
		return rc;
	rc = (int)json_object_size(list);
	json_decref(list);
	if (rc == 0)
		return 0;
	phase(d, "plugins", 0);
	rc = dcpd_listen_path(&d->client_sock, path, sizeof path);
	if (rc != 0)
		return dcpd_fail(err, rc, "the clients' socket from systemd "
		    "has no path, so plugins cannot connect: give "
		    "ListenSequentialPacket= a path");
	if ((rc = dcpd_plugins_start(&d->opt, path, &d->run, err)) != 0)
		return rc;
	phase_done(d, "started");
	return 0;
}

static int
start_run(struct dcpd_daemon *d, struct dcpd_err *err)
{
	struct dcpd_run *r = &d->run;

	r->started = dcpd_now();
	r->stuck_after = d->opt.stuck_after;
	r->about = json_object();
	r->config = dcpd_options_json(&d->opt);
	r->changed = dcpd_options_changed(&d->opt);
	if (r->about == NULL || r->config == NULL || r->changed == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	return 0;
}

void
dcpd_daemon_init(struct dcpd_daemon *d)
{
	pthread_rwlock_init(&d->run.lock, NULL);
	pthread_mutex_init(&d->run.config_lock, NULL);
}

int
dcpd_daemon_start(struct dcpd_daemon *d, struct dcpd_err *err)
{
	int rc;

	dcpd_log(LOG_NOTICE, "dcpd %s, process %d", PACKAGE_VERSION,
	    (int)getpid());
	/* Before any thread: jansson's hash seed is global. */
	json_object_seed(0);
	if ((rc = start_run(d, err)) != 0 ||
	    (rc = phase_config(d, err)) != 0 ||
	    (rc = open_files(d, err)) != 0)
		return rc;
	rc = dcpd_admin_start(d->admin_sock.fd, &d->run, &d->admin, err);
	if (rc != 0 || (rc = phase_plugins(d, err)) != 0)
		return rc;
	if (d->opt.engine == DCPD_ENGINE_NULL)
		rc = start_null(d, err);
	else
		rc = start_model(d, err);
	if (rc != 0 || (rc = phase_selftest(d, err)) != 0 ||
	    (rc = phase_listening(d, err)) != 0)
		return rc;
	pthread_rwlock_wrlock(&d->run.lock);
	d->run.engine = &d->engine;
	d->run.sched = d->sched;
	d->run.ipc = d->ipc;
	d->run.state = DCPD_READY;
	pthread_rwlock_unlock(&d->run.lock);
	dcpd_watch(&d->run);
	dcpd_log(LOG_NOTICE, "ready after %.2f s", dcpd_now() -
	    d->run.started);
	sd_notify(0, "READY=1\nSTATUS=serving");
	return 0;
}

void
dcpd_daemon_stop(struct dcpd_daemon *d)
{
	struct dcpd_run *r = &d->run;
	bool lost = d->sched != NULL && dcpd_sched_failed(d->sched, NULL);

	/* They may ask the scheduler, and their users get an answer. */
	dcpd_plugins_stop();
	if (r->about != NULL) {
		pthread_rwlock_wrlock(&r->lock);
		r->sched = NULL;
		r->ipc = NULL;
		r->engine = NULL;
		pthread_rwlock_unlock(&r->lock);
	}
	/* No new work, then no step, then no text, then no device. */
	if (d->ipc != NULL)
		dcpd_ipc_stop(d->ipc);
	if (d->sched != NULL)
		dcpd_sched_stop(d->sched);
	if (d->pool != NULL)
		dcpd_textpool_stop(d->pool);
	if (d->admin != NULL)
		dcpd_admin_stop(d->admin);
	/*
	 * Everybody has been told. A lost device may never be closed: systemd
	 * need not wait for that.
	 */
	if (lost)
		sd_notify(0, "WATCHDOG=trigger");
	if (d->have_engine && d->engine.close != NULL)
		d->engine.close(d->engine.self);
	pthread_mutex_lock(&d->files_lock);
	dcpd_listen_close(&d->admin_sock);
	dcpd_listen_close(&d->client_sock);
	dcpd_stats_close();
	pthread_mutex_unlock(&d->files_lock);
	if (d->tok != NULL)
		dcpd_tokenizer_close(d->tok);
	if (d->have_config)
		dcpd_config_free(&d->config);
	json_decref(r->about);
	json_decref(r->config);
	json_decref(r->changed);
}
