/*
 * The table of paths, and what every request passes before its handler: the
 * API key, CORS, x-request-id. A path that changes something is POST only.
 */
#include "config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "plugins/http/api.h"
#include "plugins/http/call.h"
#include "plugins/http/messages.h"
#include "plugins/http/page.h"

/* More specific paths go before the prefix that covers them. */
const struct route routes[] = {
	{ "GET", "/", ROUTE_PUBLIC, page_index, NULL },
	{ "GET", "/live", ROUTE_STREAM, live_stream, NULL },
	{ "GET", "/metrics", 0, metrics, NULL },
	{ "GET", "/health", ROUTE_PUBLIC, health, NULL },
	{ "POST", "/v1/chat/completions", 0, chat_completions, NULL },
	{ "POST", "/v1/completions", 0, completions, NULL },
	{ "POST", "/v1/responses", 0, responses, NULL },
	{ "POST", "/v1/messages", 0, messages, messages_error },
	{ "POST", "/v1/messages/count_tokens", 0, messages_count_tokens,
	  messages_error },
	{ "GET", "/v1/models", 0, models_list, NULL },
	{ "GET", "/v1/models/", ROUTE_PREFIX, models_one, NULL },
	{ "POST", "/tokenize", 0, tokenize, NULL },
	{ "POST", "/detokenize", 0, detokenize, NULL },
	{ "GET", "/server_info", 0, server_info, NULL },
	{ "GET", "/get_server_info", 0, server_info, NULL },
	{ "POST", "/flush_cache", 0, flush_cache, NULL },
	{ "POST", "/abort_request", 0, abort_request, NULL },
	/* What llama.cpp, SGLang and vLLM have, and probes and clients ask. */
	{ "GET", "/v1/health", ROUTE_PUBLIC, health, NULL },
	{ "GET", "/health_generate", ROUTE_PUBLIC, health, NULL },
	{ "GET", "/ping", ROUTE_PUBLIC, health, NULL },
	{ "GET", "/version", 0, server_info, NULL },
	{ "GET", "/model_info", 0, model_info, NULL },
	{ "GET", "/get_model_info", 0, model_info, NULL },
	{ "POST", "/v1/tokenize", 0, tokenize, NULL },
	{ "POST", "/v1/detokenize", 0, detokenize, NULL },
	{ "POST", "/reset_prefix_cache", 0, flush_cache, NULL },
	{ NULL, NULL, 0, NULL, NULL },
};

/* What other engines have elsewhere, or for other models. */
#define NO_TEXT "this model answers with text, by /v1/completions and " \
    "/v1/chat/completions"
static const struct {
	const char *path, *instead;
} others[] = {
	{ "/generate", "/v1/completions takes text or token ids, and gives "
	  "logprobs" },
	{ "/completion", "/v1/completions takes text or token ids, and gives "
	  "logprobs" },
	{ "/props", "GET /server_info has the model and its limits" },
	{ "/slots", "GET /metrics has how many requests run and wait, "
	  "`dcpctl requests` lists them" },
	{ "/apply-template", "POST /tokenize takes messages, and /detokenize "
	  "gives the text of its tokens" },
	{ "/load", "GET /metrics has how many requests run and wait" },
	{ "/get_load", "GET /metrics has how many requests run and wait" },
	{ "/v1/embeddings", NO_TEXT },
	{ "/v1/rerank", NO_TEXT },
	{ "/v1/score", NO_TEXT },
	{ "/classify", NO_TEXT },
	{ "/docs", "doc/http.md of dcpd has all paths and fields" },
	{ "/openapi.json", "doc/http.md of dcpd has all paths and fields" },
};

static const char *
instead_of(const char *path)
{
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (strcmp(path, others[i].path) == 0)
			return others[i].instead;
	return strncmp(path, "/v1/", 4) == 0 ? "doc/http.md of dcpd has those "
	    "that there are" : "the API begins at /v1/";
}

static bool
path_matches(const struct route *r, const char *path)
{
	size_t n = strlen(r->path);

	return r->flags & ROUTE_PREFIX ? strncmp(path, r->path, n) == 0 :
	    strcmp(path, r->path) == 0;
}

/* *elsewhere: the path is known with other methods. */
static const struct route *
find(const char *path, const char *method, const struct route **elsewhere)
{
	const struct route *r;

	if (strcmp(method, "HEAD") == 0)
		method = "GET";
	*elsewhere = NULL;
	for (r = routes; r->method != NULL; r++) {
		if (!path_matches(r, path))
			continue;
		if (strcmp(r->method, method) == 0)
			return r;
		*elsewhere = r;
	}
	return NULL;
}

/* Takes as long for every guess of a length. */
static bool
same_key(const char *a, const char *key)
{
	size_t n = strlen(key), m = strlen(a), i;
	volatile unsigned char diff = n != m;

	for (i = 0; i < m; i++)
		diff |= (unsigned char)(a[i] ^ key[i < n ? i : 0]);
	return diff == 0;
}

static bool
is_key(const struct http_config *cfg, const char *a)
{
	bool is = false;

	for (size_t i = 0; i < cfg->n_api_key; i++)
		is |= same_key(a, cfg->api_key[i]);
	return is;
}

static bool
has_key(const struct call *call)
{
	const struct http_config *cfg = &call->http->cfg;
	const char *v = server_header(call, "Authorization");

	if (cfg->n_api_key == 0)
		return true;
	if (v != NULL && strncasecmp(v, "Bearer ", 7) == 0 &&
	    is_key(cfg, v + 7 + strspn(v + 7, " ")))
		return true;
	v = server_header(call, "x-api-key");
	return v != NULL && is_key(cfg, v);
}

/*
 * The host of a Host header cannot be a stranger's name: an address, a name
 * without a dot, or of a domain that no public DNS has. Where a page was loaded
 * from https://NAME/, whoever owns NAME may have pointed it here afterwards;
 * the browser then calls this server the page's own.
 */
static bool
is_near(const char *host)
{
	static const char *const local[] = { ".local", ".localhost" };
	size_t n = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");
	char name[256];
	struct in6_addr a;

	if (n == 0 || n >= sizeof name)
		return false;
	memcpy(name, host, n);
	name[n] = '\0';
	if (name[0] == '[')
		return inet_pton(AF_INET6, name + 1, &a) == 1;
	if (strchr(name, '.') == NULL || inet_pton(AF_INET, name, &a) == 1)
		return true;
	for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
		size_t k = strlen(local[i]);

		if (n > k && strcasecmp(name + n - k, local[i]) == 0)
			return true;
	}
	return false;
}

/* Does the browser call this server the page's own, or no page sent it? */
static bool
is_own(const char *site, const char *origin, const char *host)
{
	const char *name;

	if (site != NULL)
		return strcmp(site, "same-origin") == 0 ||
		    strcmp(site, "none") == 0;
	name = strstr(origin, "://");
	return name != NULL && strcasecmp(name + 3, host) == 0;
}

/*
 * May be from a web page that is not ours. A browser sends a POST for any page,
 * and says whose it was: Sec-Fetch-Site where the connection is one that it
 * trusts, Origin with every POST. Programs send neither. A page of elsewhere
 * has no key of ours: with one, the host's name needs no doubt.
 */
static bool
from_elsewhere(const struct call *call)
{
	const struct http_config *cfg = &call->http->cfg;
	const char *allowed = cfg->cors_origin;
	const char *origin = server_header(call, "Origin");
	const char *site = server_header(call, "Sec-Fetch-Site");
	const char *host = server_header(call, "Host");

	if (allowed != NULL && (strcmp(allowed, "*") == 0 ||
	    (origin != NULL && strcmp(origin, allowed) == 0)))
		return false;
	if (origin == NULL && site == NULL)
		return false;
	if (host == NULL || !is_own(site, origin, host))
		return true;
	return cfg->n_api_key == 0 && !is_near(host);
}

static void
common_headers(struct call *call)
{
	const char *id = server_header(call, "x-request-id");
	const char *origin = call->http->cfg.cors_origin;

	if (id != NULL && strlen(id) <= REQUEST_ID_MAX)
		server_set_header(call, "x-request-id", id);
	if (origin == NULL)
		return;
	server_set_header(call, "Access-Control-Allow-Origin", origin);
	server_set_header(call, "Access-Control-Expose-Headers",
	    "x-request-id, Retry-After");
	if (strcmp(origin, "*") != 0)
		server_set_header(call, "Vary", "Origin");
}

/* A browser asks first; it sends no key with that question. */
static void
preflight(struct call *call)
{
	server_set_header(call, "Access-Control-Allow-Methods",
	    "GET, POST, OPTIONS");
	server_set_header(call, "Access-Control-Allow-Headers",
	    "Authorization, Content-Type, x-api-key, x-request-id, "
	    "anthropic-version");
	server_set_header(call, "Access-Control-Max-Age", "600");
	call_reply(call, 204, NULL, NULL, 0);
}

void
routes_dispatch(struct call *call)
{
	const char *method = server_method(call);
	const struct route *r, *other;

	r = find(call->path, method, &other);
	call->route = r != NULL ? r : other;
	common_headers(call);
	if (call->http->cfg.cors_origin != NULL &&
	    strcmp(method, "OPTIONS") == 0) {
		preflight(call);
		return;
	}
	if (!(r != NULL && r->flags & ROUTE_PUBLIC) && !has_key(call)) {
		server_set_header(call, "WWW-Authenticate", "Bearer");
		call_error(call, 401, NULL, "invalid_api_key", "this server "
		    "asks for an API key: send Authorization: Bearer KEY, or "
		    "x-api-key: KEY");
		return;
	}
	if (strcmp(method, "POST") == 0 && from_elsewhere(call)) {
		call_error(call, 403, NULL, "cross_site", "a web page has "
		    "sent this that may be another site's: to allow that, "
		    "set cors_origin to its origin, as in "
		    "https://chat.example.org");
		return;
	}
	if (r != NULL) {
		call->rest = call->path + strlen(r->path);
		if (r->flags & ROUTE_STREAM && strcmp(method, "HEAD") == 0)
			call_reply(call, 200, "text/event-stream", NULL, 0);
		else
			r->fn(call);
		return;
	}
	if (other != NULL) {
		server_set_header(call, "Allow", other->method);
		call_error(call, 405, NULL, "method_not_allowed",
		    "%.200s wants %s, not %s", call->path, other->method,
		    method);
		return;
	}
	call_error(call, 404, NULL, "unknown_path", "%.200s: there is no such "
	    "path; %s", call->path, instead_of(call->path));
}
