/*
 * The output parser under tokens that no model would put out: the first byte of
 * an input says how it is set up, the others are tokens, rather often marks,
 * pieces of DSML or parts of a stop string. However the text is cut into tokens,
 * what comes out is the same; a call's arguments are JSON; no stop string shows.
 */
#include "config.h"

#include "dcpd/text/buf.h"
#include "dcpd/text/utf8.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/input.h"
#include "tests/unit/text_util.h"

static struct dcpd_tokenizer *tok[2];
static json_t *tools;

struct output {
	struct dcpd_buf text;	/* all pieces, channel changes marked */
	struct dcpd_buf args;	/* of the current call */
	struct dcpd_buf run;	/* content without a break */
	uint32_t channel, call;
	char *const *stop;
	uint32_t n_stop;
};

static void
check_args(struct output *o)
{
	json_t *v;

	if (memmem(o->args.v, o->args.n, "\\u0000", 6) != NULL)
		return;		/* jansson has no NUL in keys */
	v = json_loadb(o->args.v, o->args.n, JSON_DECODE_INT_AS_REAL, NULL);
	DCPD_ASSERT(json_is_object(v));
	json_decref(v);
}

static void
check_stops(struct output *o)
{
	uint32_t i;

	for (i = 0; i < o->n_stop; i++)
		DCPD_ASSERT(o->run.n == 0 || memmem(o->run.v, o->run.n,
		    o->stop[i], strlen(o->stop[i])) == NULL);
}

static int
take(void *arg, uint32_t channel, uint32_t call, const char *s, size_t n)
{
	struct output *o = arg;
	char mark[32];

	/* Pieces are whole characters of a known channel. */
	DCPD_ASSERT(n > 0 && channel <= DCP_CH_TOOL_ARGS);
	DCPD_ASSERT(dcpd_utf8_valid(s, n) == n);
	if (channel != o->channel || call != o->call) {
		snprintf(mark, sizeof mark, "\n[%u.%u]", channel, call);
		dcpd_buf_str(&o->text, mark);
		check_stops(o);
		o->run.n = 0;
	}
	/* A call that another follows has sent its arguments completely. */
	if (channel == DCP_CH_TOOL_NAME) {
		if (o->args.n > 0)
			check_args(o);
		o->args.n = 0;
	} else if (channel == DCP_CH_TOOL_ARGS) {
		dcpd_buf_add(&o->args, s, n);
	} else if (channel == DCP_CH_CONTENT) {
		dcpd_buf_add(&o->run, s, n);
	}
	o->channel = channel;
	o->call = call;
	dcpd_buf_add(&o->text, s, n);
	return 0;
}

static char *
parse(const struct dcpd_tokenizer *t, const struct dcpd_out_config *c,
    const struct dcpd_ids *ids, size_t *len)
{
	struct output o = { .channel = 99, .stop = c->stop,
		.n_stop = c->n_stop };
	struct dcpd_out *out = NULL;
	int rc = 0;
	size_t i;

	DCPD_ASSERT(dcpd_out_new(t, c, &out) == 0);
	for (i = 0; i < ids->n && rc == 0; i++)
		rc = dcpd_out_push(out, ids->v[i], take, &o);
	DCPD_ASSERT(rc >= 0);
	DCPD_ASSERT(dcpd_out_finish(out, take, &o) == 0);
	check_stops(&o);
	if (rc == 1)
		dcpd_buf_str(&o.text, "[STOP]");
	dcpd_out_free(out);
	dcpd_buf_free(&o.args);
	dcpd_buf_free(&o.run);
	*len = o.text.n;
	return dcpd_buf_take(&o.text);
}

/* A token: rather often a mark, a piece of DSML, or part of a stop string. */
static void
put_token(const struct dcpd_tokenizer *t, struct input *in,
    struct dcpd_ids *ids)
{
	static const char *const piece[] = {
		"<think>", "</think>", "<tool_call>", "</tool_call>",
		"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
		"<\uff5cDSML\uff5cfunction_calls>\n",
		"</\uff5cDSML\uff5cfunction_calls>",
		"<\uff5cDSML\uff5cinvoke name=\"f\">\n",
		"</\uff5cDSML\uff5cinvoke>\n",
		"<\uff5cDSML\uff5cparameter name=\"i\" string=\"false\">",
		"<\uff5cDSML\uff5cparameter name=\"s\" string=\"true\">",
		"</\uff5cDSML\uff5cparameter>", "<", "\uff5cDSML\uff5c", "\n\n",
		"s", "i", "12", "{\"a\": [", "}", "'", "EN", "D", "\"", "\\",
		"f", "\U0001f600", " ",
	};
	const unsigned n = sizeof piece / sizeof *piece;
	unsigned k = next(in);
	struct dcpd_err err;

	if (k < 5 * n)
		DCPD_ASSERT(dcpd_encode(t, piece[k % n], strlen(piece[k % n]),
		    0, SIZE_MAX, ids, &err) == 0);
	else
		dcpd_ids_push(ids, (k << 8 | next(in)) %
		    (dcpd_token_limit(t) + 1));
}

/* However the text is cut into tokens, the output is the same. */
static void
as_output(struct input in)
{
	static char *const stop[] = { "END", "\n\n", "aab" };
	unsigned how = next(&in);
	const struct dcpd_tokenizer *t = tok[how & 1];
	struct dcpd_out_config c = {
		.parser = (enum dcpd_parser)(how / 2 % 3),
		.thinking = how / 8 & 1, .special = (how & 0xf0) == 0xf0,
		.one_call = (how & 0xc0) == 0x40,
		.tools = how & 16 ? tools : NULL,
		.stop = stop, .n_stop = how & 32 ? 3 : 0,
	};
	struct dcpd_ids ids = { 0 }, bytes = { 0 };
	char *a, *b, *plain;
	size_t na, nb, np;

	while (in.n > 0)
		put_token(t, &in, &ids);
	text_into_bytes(t, &ids, &bytes);
	a = parse(t, &c, &ids, &na);
	b = parse(t, &c, &bytes, &nb);
	DCPD_ASSERT(na == nb && memcmp(a, b, na) == 0);
	/* And raw, without stop strings, it is the decoded text. */
	if ((c.parser == DCPD_PARSE_RAW || c.special) && c.n_stop == 0) {
		plain = dcpd_decode(t, ids.v, ids.n, !c.special, &np);
		DCPD_ASSERT(na == (np == 0 ? 0 : np + 6));
		DCPD_ASSERT(np == 0 || memcmp(a + 6, plain, np) == 0);
		free(plain);
	}
	free(a);
	free(b);
	dcpd_ids_free(&ids);
	dcpd_ids_free(&bytes);
}

static void
set_up(void)
{
	static const char schema[] = "[{\"type\":\"function\",\"function\":{"
	    "\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
	    "\"string\"},\"i\":{\"type\":\"integer\"}}}}}]";

	tok[0] = text_tokenizer("tests/data/tok/tok-glm");
	tok[1] = text_tokenizer("tests/data/tok/tok-ds");
	tools = json_loads(schema, 0, NULL);
	DCPD_ASSERT(tools != NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (tools == NULL)
		set_up();
	as_output((struct input){ data, n < 2048 ? n : 2048 });
	return 0;
}

#ifndef LIBFUZZER
int
main(int argc, char **argv)
{
	if (!fuzz_files(argc, argv))
		fuzz_corpus("chat", 3000);
	if (tools != NULL) {
		json_decref(tools);
		dcpd_tokenizer_close(tok[0]);
		dcpd_tokenizer_close(tok[1]);
	}
	return EXIT_SUCCESS;
}
#endif
