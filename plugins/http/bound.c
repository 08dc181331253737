/*
 * The memory of all answers that are no streams: gathered, or whole and not yet
 * taken by their client. Above max_answers the largest ends. The event
 * thread's.
 */
#include "config.h"

#include "plugins/http/call.h"
#include "plugins/http/engine.h"

/* The largest pays, whoever is the last straw. */
static struct gen *
largest(struct http *http, uint64_t *bytes)
{
	struct gen *g, *most = NULL;

	*bytes = 0;
	TAILQ_FOREACH(g, engine_gens(http->engine), link)
		if (g->gathered > *bytes) {
			*bytes = g->gathered;
			most = g;
		}
	return most;
}

void
gen_bound(struct http *http)
{
	uint64_t gathered, leaving;
	struct conn *c;
	struct gen *g;

	/* An error is an answer, too, and calls us: the loop looks again. */
	if (http->bounding)
		return;
	http->bounding = true;
	while (http->answers > http->cfg.max_answers) {
		g = largest(http, &gathered);
		leaving = server_largest(http->server, &c);
		if (g == NULL && c == NULL)
			break;
		http_log(http, LOG_WARNING, "answers take %llu bytes, more "
		    "than max_answers: the largest is dropped, %llu bytes%s",
		    (unsigned long long)http->answers, (unsigned long long)
		    (leaving > gathered ? leaving : gathered), leaving >
		    gathered ? " that its client has not taken" : "");
		if (leaving > gathered)
			server_cut_off(c);
		else
			gen_drop(g);
	}
	http->bounding = false;
}
