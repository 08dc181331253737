/*
 * Trace files: one request a line, as tools/gen_agent_trace.py writes them
 * (session_id groups lines into conversations) or as Mooncake published them
 * (no sessions, ids of 512 tokens).
 */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "dcpctl/trace.h"

struct reader {
	const char *path;
	size_t line;			/* being read, from 1 */
	uint32_t max_sessions, max_turns;
	json_t *index;			/* session_id as text -> its number */
	struct trace *t;
	struct trace_error *err;
};

static int wrong(struct reader *, size_t line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int
wrong(struct reader *r, size_t line, const char *fmt, ...)
{
	size_t cap = sizeof r->err->text;
	va_list ap;
	int n;

	n = snprintf(r->err->text, cap, "%.200s:%zu: ", r->path, line);
	va_start(ap, fmt);
	vsnprintf(r->err->text + n, cap - (size_t)n, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

static int
no_memory(struct reader *r)
{
	snprintf(r->err->text, sizeof r->err->text, "out of memory");
	return -ENOMEM;
}

/* Room for one more of an array that doubles. */
static void *
room(void *v, uint32_t n, uint32_t *cap, size_t size)
{
	uint32_t want = *cap == 0 ? 8 : *cap * 2;

	if (n < *cap)
		return v;
	v = realloc(v, want * size);
	if (v != NULL)
		*cap = want;
	return v;
}

static int
take_length(struct reader *r, const json_t *o, const char *key, uint32_t min,
    uint32_t *out)
{
	const json_t *v = json_object_get(o, key);
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < min || n > TRACE_MAX_LEN)
		return wrong(r, r->line, "\"%s\": want a whole number from %u "
		    "to %u", key, min, TRACE_MAX_LEN);
	*out = (uint32_t)n;
	return 0;
}

/* Milliseconds, as Mooncake has them. */
static int
take_arrival(struct reader *r, const json_t *o, double *out)
{
	const json_t *v = json_object_get(o, "timestamp");

	*out = v == NULL ? -1 : json_number_value(v) * 1e-3;
	if (v != NULL && (!json_is_number(v) || !(*out >= 0) || *out > 1e9))
		return wrong(r, r->line, "\"timestamp\": want milliseconds "
		    "from the beginning, a number from 0 to 1e12");
	return 0;
}

static int
take_ids(struct reader *r, const json_t *o, struct trace_turn *t)
{
	const json_t *a = json_object_get(o, "hash_ids"), *v;
	size_t i, n = json_array_size(a);

	if (!json_is_array(a))
		return wrong(r, r->line, "\"hash_ids\": want an array");
	if (n > t->input)
		return wrong(r, r->line, "\"hash_ids\": %zu of them for %u "
		    "tokens", n, t->input);
	t->ids = malloc((n + 1) * sizeof *t->ids);
	if (t->ids == NULL)
		return no_memory(r);
	json_array_foreach(a, i, v) {
		if (!json_is_integer(v)) {
			free(t->ids);
			return wrong(r, r->line, "\"hash_ids\"[%zu]: want a "
			    "whole number", i);
		}
		t->ids[i] = json_integer_value(v);
	}
	t->n_ids = (uint32_t)n;
	return 0;
}

/* The line's session; *out -1: it is one session too many. */
static int
take_session(struct reader *r, const json_t *o, int64_t *out)
{
	json_t *id = json_object_get(o, "session_id"), *known = NULL;
	struct trace_session *more;
	char *key = NULL;

	if (id != NULL && !json_is_integer(id) && !json_is_string(id))
		return wrong(r, r->line, "\"session_id\": want a number or a "
		    "string");
	if (id != NULL) {
		key = json_dumps(id, JSON_ENCODE_ANY);
		if (key == NULL)
			return no_memory(r);
		known = json_object_get(r->index, key);
	}
	*out = known != NULL ? json_integer_value(known) : -1;
	if (known != NULL || (r->max_sessions > 0 &&
	    r->t->n_sessions == r->max_sessions)) {
		free(key);
		return 0;
	}
	more = room(r->t->session, r->t->n_sessions, &r->t->cap, sizeof *more);
	if (more == NULL) {
		free(key);
		return no_memory(r);
	}
	r->t->session = more;
	more[r->t->n_sessions] = (struct trace_session){ 0 };
	*out = r->t->n_sessions++;
	if (key != NULL)
		json_object_set_new(r->index, key, json_integer(*out));
	free(key);
	return 0;
}

static int
take_line(struct reader *r, const json_t *o)
{
	struct trace_turn turn = { .line = r->line }, *more;
	struct trace_session *s;
	int64_t session = -1;
	int rc;

	if (!json_is_object(o))
		return wrong(r, r->line, "want a JSON object");
	rc = take_session(r, o, &session);
	if (rc != 0 || session < 0)
		return rc;
	s = &r->t->session[session];
	if (r->max_turns > 0 && s->n_turns == r->max_turns)
		return 0;
	rc = take_length(r, o, "input_length", 1, &turn.input);
	if (rc == 0)
		rc = take_length(r, o, "output_length", 0, &turn.output);
	if (rc == 0)
		rc = take_arrival(r, o, &turn.arrival);
	if (rc == 0)
		rc = take_ids(r, o, &turn);
	if (rc != 0)
		return rc;
	more = room(s->turn, s->n_turns, &s->cap, sizeof *more);
	if (more == NULL) {
		free(turn.ids);
		return no_memory(r);
	}
	s->turn = more;
	s->turn[s->n_turns++] = turn;
	r->t->n_turns++;
	return 0;
}

static int
read_lines(struct reader *r, FILE *f)
{
	json_error_t je;
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	json_t *o;
	int rc = 0;

	while (rc == 0 && (n = getline(&line, &cap, f)) > 0) {
		r->line++;
		if (line[strspn(line, " \t\r\n")] == '\0')
			continue;
		o = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, &je);
		rc = o == NULL ? wrong(r, r->line, "%s, at byte %d", je.text,
		    je.position) : take_line(r, o);
		json_decref(o);
	}
	free(line);
	if (rc == 0 && ferror(f)) {
		rc = -errno;
		snprintf(r->err->text, sizeof r->err->text, "%.200s: %s",
		    r->path, strerror(errno));
	}
	return rc;
}

/* --- what an id stands for ----------------------------------------------- */

/* The last block of a prompt, if it is not full, may have an id or none. */
static bool
fits(const struct trace_turn *t, uint32_t block)
{
	return t->n_ids == t->input / block ||
	    t->n_ids == (t->input + block - 1) / block;
}

/* NULL: every line fits; else the first that does not. */
static const struct trace_turn *
first_misfit(const struct trace *t, uint32_t block)
{
	for (uint32_t i = 0; i < t->n_sessions; i++)
		for (uint32_t k = 0; k < t->session[i].n_turns; k++)
			if (!fits(&t->session[i].turn[k], block))
				return &t->session[i].turn[k];
	return NULL;
}

static int
find_block(struct reader *r, uint32_t given)
{
	/* The generator's, Mooncake's, then what others use */
	static const uint32_t usual[] = { 64, 512, 16, 32, 128, 256, 1024 };
	uint32_t b = given > 0 ? given : usual[0];
	const struct trace_turn *t = first_misfit(r->t, b);

	for (size_t i = 1; given == 0 && t != NULL &&
	    i < sizeof usual / sizeof *usual; i++) {
		b = usual[i];
		if (first_misfit(r->t, b) == NULL)
			t = NULL;
	}
	if (t != NULL && given > 0)
		return wrong(r, t->line, "%u hash_ids for %u tokens are not of "
		    "%u tokens each, as --block says", t->n_ids, t->input, b);
	if (t != NULL)
		return wrong(r, t->line, "%u hash_ids for %u tokens: of how "
		    "many tokens an id is cannot be told; give --block",
		    t->n_ids, t->input);
	r->t->block = b;
	return 0;
}

/* Which turns continue the one before: all of its whole blocks come again. */
static void
find_followers(struct trace *t)
{
	for (uint32_t i = 0; i < t->n_sessions; i++)
		for (uint32_t k = 1; k < t->session[i].n_turns; k++) {
			struct trace_turn *b = &t->session[i].turn[k];
			const struct trace_turn *a = b - 1;
			uint32_t n = a->input / t->block;

			b->follows = b->input > a->input && n <= b->n_ids &&
			    memcmp(a->ids, b->ids, n * sizeof *a->ids) == 0;
		}
}

int
trace_load(const char *path, uint32_t sessions, uint32_t turns,
    uint32_t block, struct trace *out, struct trace_error *err)
{
	struct trace t = { 0 };
	struct reader r = {
		.path = path, .max_sessions = sessions, .max_turns = turns,
		.index = json_object(), .t = &t, .err = err,
	};
	FILE *f = fopen(path, "re");
	int rc;

	if (f == NULL) {
		rc = -errno;
		snprintf(err->text, sizeof err->text, "%.200s: %s", path,
		    strerror(errno));
	} else {
		rc = read_lines(&r, f);
		fclose(f);
	}
	if (rc == 0 && t.n_turns == 0)
		rc = wrong(&r, r.line, "no request in the file");
	if (rc == 0)
		rc = find_block(&r, block);
	if (rc == 0)
		find_followers(&t);
	json_decref(r.index);
	if (rc != 0)
		trace_free(&t);
	else
		*out = t;
	return rc;
}

void
trace_free(struct trace *t)
{
	for (uint32_t i = 0; i < t->n_sessions; i++) {
		for (uint32_t k = 0; k < t->session[i].n_turns; k++)
			free(t->session[i].turn[k].ids);
		free(t->session[i].turn);
	}
	free(t->session);
	*t = (struct trace){ 0 };
}
