/*
 * What the admin socket can do. Admin thread (slow commands: a thread of
 * their own); run->lock is held shared by the caller.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/admin/admin.h"
#include "dcpd/admin/counters.h"
#include "dcpd/model/floor.h"
#include "dcpd/plugin/plugin.h"

static int
need_ready(const struct dcpd_run *run, struct dcpd_err *err)
{
	if (run->sched != NULL)
		return 0;
	return dcpd_fail(err, -EAGAIN, run->state == DCPD_LOADING ?
	    "the daemon is still loading" : "the daemon is ending");
}

const char *
dcpd_admin_state(const struct dcpd_run *run)
{
	return dcps_state_name(dcpd_run_state(run));
}

static json_t *
phases_json(const struct dcpd_run *run)
{
	json_t *a = json_array();
	double s;

	for (uint32_t i = 0; i < run->phases; i++) {
		s = run->phase[i].seconds;
		if (i + 1 == run->phases && run->phase_began > 0)
			s = dcpd_now() - run->phase_began;
		json_array_append_new(a, json_pack("{s:s,s:f}", "name",
		    run->phase[i].name, "seconds", s));
	}
	return a;
}

static json_t *
status(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const char *state = dcpd_admin_state(run);
	json_t *r, *s;

	r = json_pack("{s:s,s:b,s:s,s:i,s:f,s:o}", "state", state, "ready",
	    strcmp(state, "ready") == 0, "version", PACKAGE_VERSION,
	    "pid", (int)getpid(), "uptime_s", dcpd_now() - run->started,
	    "phases", phases_json(run));
	if (run->state == DCPD_LOADING) {
		json_object_set_new(r, "loaded_bytes",
		    json_integer((json_int_t)run->done));
		json_object_set_new(r, "load_bytes",
		    json_integer((json_int_t)run->total));
	}
	if (run->about != NULL)
		json_object_update(r, run->about);
	if (run->sched != NULL) {
		s = dcpd_sched_status(run->sched);
		if (s != NULL)
			json_object_update_missing(r, s);
		json_decref(s);
		json_object_set_new(r, "since_step_s",
		    json_real(dcpd_watch_turn()));
	}
	return r;
}

static json_t *
requests(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	return need_ready(run, err) != 0 ? NULL :
	    dcpd_sched_requests(run->sched);
}

static json_t *
pages(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	return need_ready(run, err) != 0 ? NULL :
	    dcpd_sched_page_map(run->sched);
}

static json_t *
clients(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	char *text;
	json_t *r;

	if (need_ready(run, err) != 0)
		return NULL;
	text = run->ipc == NULL ? NULL : dcpd_ipc_clients_json(run->ipc);
	r = text == NULL ? NULL : json_loads(text, 0, NULL);
	free(text);
	if (r == NULL)
		dcpd_fail(err, -ENOMEM, "out of memory");
	return r;
}

static json_t *
cancel(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const json_t *id = json_object_get(request, "id");
	int rc;

	if (!json_is_integer(id) || json_integer_value(id) < 0) {
		dcpd_fail(err, -EINVAL, "cancel: \"id\": want the number that "
		    "`dcpctl requests` shows");
		return NULL;
	}
	if (need_ready(run, err) != 0)
		return NULL;
	rc = dcpd_sched_cancel(run->sched, (uint64_t)json_integer_value(id));
	if (rc != 0) {
		dcpd_fail(err, rc, rc == -ENOENT ? "cancel: no request %lld; "
		    "see `dcpctl requests`" : "cancel: request %lld failed",
		    (long long)json_integer_value(id));
		return NULL;
	}
	return json_object();
}

static json_t *
set_draining(struct dcpd_run *run, bool on, struct dcpd_err *err)
{
	if (need_ready(run, err) != 0)
		return NULL;
	dcpd_sched_drain(run->sched, on);
	run->draining = on;
	dcpd_log(LOG_NOTICE, on ? "draining: new requests are refused" :
	    "resumed: requests are accepted again");
	return json_pack("{s:b}", "idle", dcpd_sched_idle(run->sched));
}

static json_t *
drain(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	return set_draining(run, true, err);
}

static json_t *
resume(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	if (run->state == DCPD_STOPPING || run->state == DCPD_FAILED) {
		dcpd_fail(err, -EBUSY, "the daemon is ending: it takes no new "
		    "requests; start it again when it has ended");
		return NULL;
	}
	return set_draining(run, false, err);
}

static json_t *
idle(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	return need_ready(run, err) != 0 ? NULL :
	    json_pack("{s:b}", "idle", dcpd_sched_idle(run->sched));
}

static json_t *
check(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	struct dcpd_engine *e;

	if (need_ready(run, err) != 0)
		return NULL;
	/* The scheduler runs it between two steps, the engine's part too. */
	e = run->engine;
	if (dcpd_sched_check(run->sched, err) != 0)
		return NULL;
	return json_pack("{s:s,s:b}", "pages", "free + cached + used = "
	    "all, on each rank", "device", e != NULL && e->check != NULL);
}

/* "tokens" []: malloc'd, *n of them; NULL and *n 0 if there are none. */
static int
tokens_of(const json_t *request, uint32_t **v, uint32_t *n,
    struct dcpd_err *err)
{
	const json_t *a = json_object_get(request, "tokens"), *t;
	size_t i;

	*v = NULL;
	*n = 0;
	if (a == NULL)
		return 0;
	if (!json_is_array(a) || json_array_size(a) == 0)
		return dcpd_fail(err, -EINVAL, "cache: \"tokens\": want an "
		    "array of token ids");
	*v = malloc(json_array_size(a) * sizeof **v);
	if (*v == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	json_array_foreach(a, i, t) {
		if (!json_is_integer(t) || json_integer_value(t) < 0 ||
		    json_integer_value(t) > UINT32_MAX) {
			free(*v);
			return dcpd_fail(err, -EINVAL, "cache: \"tokens\": "
			    "entry %zu is no token id", i);
		}
		(*v)[i] = (uint32_t)json_integer_value(t);
	}
	*n = (uint32_t)json_array_size(a);
	return 0;
}

static json_t *
cache_pin(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const json_t *r = json_object_get(request, "request");
	uint64_t id, live = (uint64_t)json_integer_value(r);
	uint32_t *tokens, n, pages;
	int rc;

	if (tokens_of(request, &tokens, &n, err) != 0)
		return NULL;
	if ((n == 0) == (r == NULL) || (r != NULL && (!json_is_integer(r) ||
	    json_integer_value(r) < 0))) {
		free(tokens);
		dcpd_fail(err, -EINVAL, "cache: pin: want \"tokens\" or the "
		    "number of a \"request\"");
		return NULL;
	}
	rc = dcpd_sched_pin(run->sched, tokens, n, json_string_value(
	    json_object_get(request, "salt")), live, &id, &pages, err);
	free(tokens);
	if (rc != 0)
		return NULL;
	dcpd_log(LOG_NOTICE, "prefix cache: pin %llu holds %u pages",
	    (unsigned long long)id, pages);
	return json_pack("{s:I, s:I, s:I}", "id", (json_int_t)id, "pages",
	    (json_int_t)pages, "tokens", (json_int_t)pages *
	    DCPD_PAGE_TOKENS);
}

static json_t *
cache_unpin(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const json_t *id = json_object_get(request, "id");
	uint32_t pages;

	if (id != NULL && (!json_is_integer(id) ||
	    json_integer_value(id) <= 0)) {
		dcpd_fail(err, -EINVAL, "cache: unpin: \"id\": want the number "
		    "that `dcpctl cache stats -j` shows; without it all go");
		return NULL;
	}
	if (dcpd_sched_unpin(run->sched, (uint64_t)json_integer_value(id),
	    &pages, err) != 0)
		return NULL;
	dcpd_log(LOG_NOTICE, "prefix cache: %u pages unpinned", pages);
	return json_pack("{s:I}", "pages", (json_int_t)pages);
}

static json_t *
cache(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const char *op = json_string_value(json_object_get(request, "op"));
	uint32_t pages;

	if (op == NULL || (strcmp(op, "stats") != 0 && strcmp(op, "drop") != 0
	    && strcmp(op, "pin") != 0 && strcmp(op, "unpin") != 0)) {
		dcpd_fail(err, -EINVAL, "cache: \"op\": want \"stats\", "
		    "\"drop\", \"pin\" or \"unpin\"");
		return NULL;
	}
	if (need_ready(run, err) != 0)
		return NULL;
	if (strcmp(op, "stats") == 0)
		return dcpd_sched_cache(run->sched);
	if (strcmp(op, "pin") == 0)
		return cache_pin(run, request, err);
	if (strcmp(op, "unpin") == 0)
		return cache_unpin(run, request, err);
	if (dcpd_sched_cache_drop(run->sched, &pages, err) != 0)
		return NULL;
	dcpd_log(LOG_NOTICE, "prefix cache: %u pages dropped", pages);
	return json_pack("{s:I}", "pages", (json_int_t)pages);
}

/* A number of a request, or `def` if it is left out; NAN: it is no such one. */
static double
number_of(const json_t *request, const char *key, double least, double def)
{
	const json_t *v = json_object_get(request, key);
	double x = v == NULL ? def : json_is_number(v) ?
	    json_number_value(v) : NAN;

	return x >= least && x <= UINT32_MAX ? x : NAN;
}

/* "context" of a decode pass, or "rows" behind "prefix" of a prefill pass. */
static int
pass_of(const json_t *request, struct dcpd_pass *p, struct dcpd_err *err)
{
	bool decode = json_object_get(request, "context") != NULL;

	p->requests = number_of(request, "streams", 1e-6, 1);
	p->rows = decode ? 1 : number_of(request, "rows", 1, NAN);
	p->prefix = decode ? number_of(request, "context", 1, NAN) - 1 :
	    number_of(request, "prefix", 0, 0);
	if (isnan(p->requests) || isnan(p->rows) || isnan(p->prefix) ||
	    (decode && (json_object_get(request, "rows") != NULL ||
	    json_object_get(request, "prefix") != NULL)))
		return dcpd_fail(err, -EINVAL, "floor: want the mean number "
		    "of \"streams\" in a pass, and tokens of each: "
		    "\"context\", or \"rows\" and the \"prefix\" before "
		    "them");
	return 0;
}

static json_t *
floor_json(const struct dcpd_floor *f)
{
	return json_pack("{s:{s:f,s:f,s:f,s:f}, s:{s:f,s:f,s:f}, s:f, s:f, "
	    "s:f, s:s}", "bytes", "weights", f->weights, "rows", f->rows,
	    "keys", f->keys, "of_one_rank", f->rank, "flops", "products",
	    f->products, "scores", f->scores, "attend", f->attend,
	    "read_bytes_s", f->read_bytes_s, "flops_s", f->flops_s,
	    "seconds", f->seconds, "bound", f->by_flops ? "products" :
	    "memory");
}

static json_t *
floor_of(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	struct dcpd_pass p;
	struct dcpd_floor f;

	if (pass_of(request, &p, err) != 0 || need_ready(run, err) != 0)
		return NULL;
	if (run->engine == NULL || run->engine->floor == NULL) {
		dcpd_fail(err, -ENOTSUP, "floor: this engine has no model: "
		    "nothing is read or multiplied");
		return NULL;
	}
	run->engine->floor(run->engine->self, &p, &f);
	if (f.seconds <= 0) {
		dcpd_fail(err, -ENOTSUP, "floor: the device was not measured");
		return NULL;
	}
	return floor_json(&f);
}

static json_t *
config(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	const char *op = json_string_value(json_object_get(request, "op"));
	bool all = op == NULL || strcmp(op, "show") == 0;
	json_t *r;

	if (all || strcmp(op, "changed") == 0) {
		pthread_mutex_lock(&run->config_lock);
		r = json_incref(all ? run->config : run->changed);
		pthread_mutex_unlock(&run->config_lock);
		return r;
	}
	dcpd_fail(err, -EINVAL, "config: \"op\": want \"show\" or "
	    "\"changed\"");
	return NULL;
}

static json_t *
plugins(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	return dcpd_plugins_json();
}

json_t *
dcpd_admin_reload(struct dcpd_run *run, const json_t *request,
    struct dcpd_err *err)
{
	return run->reload(run, json_is_true(json_object_get(request,
	    "check")), err);
}

static json_t *help(struct dcpd_run *, const json_t *, struct dcpd_err *);

static const struct dcpd_admin_command commands[] = {
	{ "status", "state, counters, occupancy per rank", false, status },
	{ "requests", "requests waiting and running", false, requests },
	{ "pages", "which request holds which page", false, pages },
	{ "clients", "connected clients", false, clients },
	{ "cancel", "end the request \"id\"", false, cancel },
	{ "drain", "refuse new requests, go on with the others", false, drain },
	{ "resume", "accept requests again", false, resume },
	{ "idle", "is no request left?", false, idle },
	{ "check", "invariants of pages and device memory", true, check },
	{ "cache", "the prefix cache: \"op\" stats, drop, pin or unpin", true,
	    cache },
	{ "floor", "what a pass takes at least: \"streams\" of \"context\", or "
	    "\"rows\" behind \"prefix\"", false, floor_of },
	{ "config", "the configuration: \"op\" show or changed", false,
	    config },
	{ "plugins", "front ends: version, state, their own numbers", false,
	    plugins },
	{ "reload", "read the configuration again; \"check\": only say what "
	    "would change", true, dcpd_admin_reload },
	{ "help", "the commands", false, help },
	{ NULL, NULL, false, NULL },
};

static json_t *
help(struct dcpd_run *run, const json_t *request, struct dcpd_err *err)
{
	json_t *r = json_object();

	for (const struct dcpd_admin_command *c = commands; c->name; c++)
		json_object_set_new(r, c->name, json_string(c->help));
	return r;
}

const struct dcpd_admin_command *
dcpd_admin_find(const char *name)
{
	for (const struct dcpd_admin_command *c = commands; c->name; c++)
		if (strcmp(c->name, name) == 0)
			return c;
	return NULL;
}
