/*
 * What the server is and how it is: models, health, server_info; and the two
 * handles of an operator, flush_cache and abort_request. The event thread's.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugins/http/api.h"

static json_t *
model_json(const struct http *http)
{
	const struct engine *e = http->engine;

	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:I}",
	    "id", engine_model(e), "object", "model",
	    "created", (json_int_t)http->t_start, "owned_by", "dcpd",
	    "root", engine_model(e), "parent",
	    "max_model_len", (json_int_t)engine_context(e));
}

void
models_list(struct call *call)
{
	struct http *http = call_http(call);

	if (engine_is_ready(http->engine, call))
		call_reply_json(call, 200, json_pack("{s:s, s:[o]}",
		    "object", "list", "data", model_json(http)));
}

void
models_one(struct call *call)
{
	struct http *http = call_http(call);

	if (!engine_is_ready(http->engine, call))
		return;
	if (strcmp(call_rest(call), engine_model(http->engine)) != 0) {
		call_error(call, 404, "model", "model_not_found",
		    "%.200s is not served here; %s is", call_rest(call),
		    engine_model(http->engine));
		return;
	}
	call_reply_json(call, 200, model_json(http));
}

static const char *
state_name(int state)
{
	static const char *const names[] = {
		[DCP_HOST_LOADING] = "loading", [DCP_HOST_READY] = "ready",
		[DCP_HOST_DRAINING] = "draining", [DCP_HOST_STUCK] = "stuck",
		[DCP_HOST_FAILED] = "failed",
	};

	return state >= 0 && state <= DCP_HOST_FAILED ? names[state] : "?";
}

/* Steps advance, or there is nothing to do. */
void
health(struct call *call)
{
	struct http *http = call_http(call);
	int state = http->host->state(http->host->ctx);

	if (state == DCP_HOST_READY && engine_context(http->engine) == 0)
		state = DCP_HOST_LOADING;
	if (state != DCP_HOST_READY)
		call_set_header(call, "Retry-After", "1");
	call_reply_json(call, state == DCP_HOST_READY ? 200 : 503,
	    json_pack("{s:s}", "status", state_name(state)));
}

void
server_info(struct call *call)
{
	struct http *http = call_http(call);
	const json_t *info = engine_info(http->engine);
	json_t *o = info != NULL ? json_deep_copy(info) : json_object();

	json_object_set_new(o, "version", json_string(http->host->version));
	json_object_set_new(o, "state", json_string(state_name(
	    http->host->state(http->host->ctx))));
	if (info != NULL) {
		json_object_set_new(o, "model",
		    json_string(engine_model(http->engine)));
		json_object_set_new(o, "max_model_len",
		    json_integer(engine_context(http->engine)));
	}
	call_reply_json(call, 200, o);
}

/* SGLang's, which its router and benchmarks ask. */
void
model_info(struct call *call)
{
	struct http *http = call_http(call);
	const char *name = engine_model(http->engine);

	if (engine_is_ready(http->engine, call))
		call_reply_json(call, 200, json_pack("{s:s, s:s, s:b}",
		    "model_path", name, "tokenizer_path", name,
		    "is_generation", 1));
}

void
flush_cache(struct call *call)
{
	struct http *http = call_http(call);
	uint64_t pages = 0;

	if (!engine_is_ready(http->engine, call))
		return;
	if (http->host->flush_cache(http->host->ctx, &pages) != 0) {
		call_error(call, 503, NULL, "unavailable",
		    "the cache cannot be flushed now: try again");
		return;
	}
	call_reply_json(call, 200, json_pack("{s:b, s:I}", "success", 1,
	    "pages", (json_int_t)pages));
}

/*
 * {"rid": ID}: the answer's id, its x-request-id, or the rid or request_id of
 * its body. {"abort_all": true}
 */
void
abort_request(struct call *call)
{
	struct engine *e = call_http(call)->engine;
	json_t *body = call_json(call);
	const char *rid = NULL;
	bool all = false;

	if (body == NULL || field_string(call, body, "rid", &rid) < 0 ||
	    field_bool(call, body, "abort_all", &all) < 0)
		return;
	if (!all && (rid == NULL || rid[0] == '\0')) {
		call_error(call, 400, "rid", "missing_field",
		    "rid: want the id of an answer, or its x-request-id; or "
		    "abort_all: true");
		return;
	}
	if (all) {
		gen_abort_all(e);
	} else if (!gen_abort(e, rid)) {
		call_error(call, 404, "rid", "not_running",
		    "no request with the id %.200s is running", rid);
		return;
	}
	call_reply_json(call, 200, json_pack("{s:b}", "success", 1));
}
