/* Inside of the way to the engine: engine.c's life, and whom it wakes. */
#ifndef HTTP_ENGINE_H
#define HTTP_ENGINE_H

#include "plugins/http/http.h"

TAILQ_HEAD(gen_list, gen);

int engine_new(struct http *, struct engine **);
bool engine_is_idle(const struct engine *);	/* no request runs */
void engine_tick(struct engine *);	/* once a second */
void engine_free(struct engine *);

struct http *engine_http(const struct engine *);
struct gen_list *engine_gens(struct engine *);	/* what generate.c keeps */
/* A full ring may have room: generate_resume runs soon. */
void engine_wait(struct engine *);

/* generate.c */
void generate_resume(struct engine *);
void generate_tick(struct engine *);
void gen_drop(struct gen *);	/* there is no memory for its answer */

/* gen_text.c */
struct held {
	TAILQ_ENTRY(held) link;
	uint32_t channel, call;
	bool begins;
	struct text text;
	struct gen_tokens tokens;
	size_t tops;		/* bytes of the tokens' .top */
};
/* An event's text, tokens and usage into the choice. */
int choice_take(struct choice *, const struct dcp_event *, bool *call_begins);
/* To be told later; joins what waits if it can. Bytes more, or -ENOMEM. */
int choice_hold(struct choice *, const struct dcp_event *, bool call_begins);
size_t held_size(const struct held *);		/* bytes */
void held_free(struct held *);
size_t choice_probs(const struct choice *);	/* bytes */
void choice_clear(struct choice *);
/* o, which is stolen, as text with the lists of all choices; NULL: no memory.
 * The lists go with it. */
struct evbuffer *gen_dump(struct gen *, json_t *o);
int gen_tokens_add(struct gen_tokens *, const struct dcp_event *);
void gen_tokens_free(struct gen_tokens *);

#endif
