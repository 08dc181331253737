/*
 * response_format, under its own name and under those of other engines. Where
 * a field that is passed over would leave the answer freer than was asked, or
 * make it another one, it is done or refused. The event thread's.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/base/bigjson.h"
#include "plugins/http/api.h"

#define ONLY_JSON "answers are held to JSON and JSON schemas alone: give " \
	"response_format"

#define THINKING "give chat_template_kwargs.enable_thinking"
#define APART "reasoning always comes apart from the answer, in " \
	"reasoning_content"
#define ONLY_OURS "of the samplers there are temperature, top_p, top_k, " \
	"min_p and penalties"

/* SET: whatever it is. NOT_0, NOT_1: another number than that, or none. */
enum when { GIVEN, SET, TRUE, FALSE, NOT_0, NOT_1 };

static const struct {
	const char *key;
	enum when when;
	const char *why;
} refused[] = {
	{ "guided_regex", GIVEN, ONLY_JSON },
	{ "guided_choice", GIVEN, ONLY_JSON },
	{ "guided_grammar", GIVEN, ONLY_JSON },
	{ "structural_tag", GIVEN, ONLY_JSON },
	{ "regex", GIVEN, ONLY_JSON },
	{ "ebnf", GIVEN, ONLY_JSON },
	{ "grammar", GIVEN, ONLY_JSON },
	{ "bad_words", GIVEN, "give logit_bias of -100 for their tokens" },
	{ "allowed_token_ids", GIVEN, "give logit_bias" },
	{ "prompt_logprobs", GIVEN, "/v1/completions has them: echo with "
	  "logprobs" },
	{ "truncate_prompt_tokens", GIVEN, "prompts are not cut: send what "
	  "shall be read" },
	{ "prompt_embeds", GIVEN, "want text or token ids" },
	{ "functions", GIVEN, "give tools" },
	{ "max_new_tokens", SET, "give max_tokens" },
	{ "n_predict", SET, "give max_tokens" },
	{ "repeat_penalty", NOT_1, "give repetition_penalty" },
	{ "stop_regex", GIVEN, "give stop, a list of strings" },
	{ "typical_p", NOT_1, ONLY_OURS },
	{ "typical", NOT_1, ONLY_OURS },
	{ "mirostat", NOT_0, ONLY_OURS },
	{ "dry_multiplier", NOT_0, ONLY_OURS },
	{ "xtc_probability", NOT_0, ONLY_OURS },
	{ "samplers", GIVEN, "their order is fixed" },
	{ "thinking_token_budget", SET, "thinking is not cut: max_tokens "
	  "bounds all of the answer, chat_template_kwargs.enable_thinking: "
	  "false leaves it out" },
	{ "lora_path", GIVEN, "there are no adapters" },
	{ "enable_thinking", SET, THINKING },
	{ "reasoning", GIVEN, "give reasoning_effort, or "
	  "chat_template_kwargs.enable_thinking" },
	{ "separate_reasoning", FALSE, APART },
	{ "include_reasoning", FALSE, APART },
	{ "use_beam_search", TRUE, "there is none" },
	{ "include_stop_str_in_output", TRUE, "a stop string is never part of "
	  "the answer" },
	{ "no_stop_trim", TRUE, "a stop string is never part of the answer" },
	{ "continue_final_message", TRUE, "an answer's beginning cannot be "
	  "given; /v1/completions continues any text" },
	{ "add_generation_prompt", FALSE, "the answer's turn is always opened; "
	  "/v1/completions continues any text" },
};

static int
refuse(struct call *call, const char *key, const char *why)
{
	call_error(call, 400, key, "unsupported", "%s is not supported: %s",
	    key, why);
	return -EINVAL;
}

/* NULL as well for what clients send that have nothing to ask. */
static const json_t *
given(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	if (v == NULL || json_is_null(v) || json_is_false(v) ||
	    (json_is_string(v) && json_string_length(v) == 0) ||
	    (json_is_array(v) && json_array_size(v) == 0) ||
	    (json_is_object(v) && json_object_size(v) == 0))
		return NULL;
	return v;
}

/* Would passing it over change the answer? */
static bool
asks(const json_t *body, const char *key, enum when when)
{
	const json_t *v = json_object_get(body, key);

	switch (when) {
	case GIVEN:
		return given(body, key) != NULL;
	case SET:
		return v != NULL && !json_is_null(v);
	case TRUE:
		return json_is_true(v);
	case FALSE:
		return json_is_false(v);
	default:
		return given(body, key) != NULL && (!json_is_number(v) ||
		    json_number_value(v) != (when == NOT_1));
	}
}

static int
refuse_all(struct call *call, const json_t *body)
{
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
		if (asks(body, refused[i].key, refused[i].when))
			return refuse(call, refused[i].key, refused[i].why);
	return params_template(call, body);
}

int
params_template(struct call *call, const json_t *body)
{
	static const char *const known[] = {
		"enable_thinking", "thinking", "clear_thinking",
		"reasoning_effort",
	};
	json_t *o = json_object_get(body, "chat_template_kwargs"), *v;
	const char *key;
	size_t i;

	json_object_foreach(o, key, v) {
		for (i = 0; i < sizeof known / sizeof known[0]; i++)
			if (strcmp(key, known[i]) == 0)
				break;
		if (i < sizeof known / sizeof known[0] ||
		    json_is_null(v))
			continue;
		call_error(call, 400, "chat_template_kwargs", "unsupported",
		    "chat_template_kwargs: %.100s is not supported: there are "
		    "enable_thinking, thinking, clear_thinking and "
		    "reasoning_effort", key);
		return -EINVAL;
	}
	return 0;
}

/* What holds the answer so far, or NULL; "text" holds nothing. */
static const json_t *
format_of(const struct params *p)
{
	const json_t *f = json_object_get(p->options, "response_format");
	const char *type = json_string_value(json_object_get(f, "type"));

	return type != NULL && strcmp(type, "text") == 0 ? NULL : f;
}

static int
set_format(struct call *call, struct params *p, const char *key,
    json_t *format)
{
	if (format_of(p) != NULL) {
		json_decref(format);
		call_error(call, 400, key, "invalid_value", "%s: the answer is "
		    "held by another field, too: give one of them", key);
		return -EINVAL;
	}
	if (format == NULL || json_object_set_new(p->options,
	    "response_format", format) != 0)
		return call_no_memory(call);
	return 0;
}

/* A schema, or its text. */
static int
set_schema(struct call *call, struct params *p, const char *key,
    const json_t *v)
{
	json_error_t e;
	json_t *schema = json_is_string(v) ? dcpd_bigjson_loadb(
	    json_string_value(v), json_string_length(v),
	    JSON_DECODE_ANY | JSON_ALLOW_NUL, &e) : json_incref((json_t *)v);

	if (!json_is_object(schema) && !json_is_boolean(schema)) {
		json_decref(schema);
		call_error(call, 400, key, "invalid_type", "%s: want a JSON "
		    "schema, as an object or as its text", key);
		return -EINVAL;
	}
	return set_format(call, p, key, json_pack("{s:s, s:{s:s, s:o}}",
	    "type", "json_schema", "json_schema", "name", "answer",
	    "schema", schema));
}

/* vLLM's: one of several kinds. */
static int
structured(struct call *call, const json_t *o, struct params *p)
{
	static const char *const other[] = {
		"regex", "choice", "grammar", "structural_tag",
	};
	const json_t *v;
	size_t i;

	if (!json_is_object(o)) {
		call_error(call, 400, "structured_outputs", "invalid_type",
		    "structured_outputs: want an object");
		return -EINVAL;
	}
	for (i = 0; i < sizeof other / sizeof other[0]; i++)
		if (given(o, other[i]) != NULL)
			return refuse(call, "structured_outputs", ONLY_JSON);
	v = given(o, "json");
	if (v != NULL)
		return set_schema(call, p, "structured_outputs", v);
	if (given(o, "json_object") != NULL)
		return set_format(call, p, "structured_outputs",
		    json_pack("{s:s}", "type", "json_object"));
	return 0;
}

int
params_format(struct call *call, const json_t *body, struct params *p)
{
	static const char *const schemas[] = { "guided_json", "json_schema" };
	const json_t *f, *v;
	const char *type;
	int rc;

	if (params_option(p, body, "response_format") != 0)
		return call_no_memory(call);
	rc = refuse_all(call, body);
	/* llama.cpp's, and others': a json_object that has a schema. */
	f = json_object_get(p->options, "response_format");
	type = json_string_value(json_object_get(f, "type"));
	v = given(f, "schema");
	if (rc == 0 && v != NULL && type != NULL &&
	    strcmp(type, "json_object") == 0) {
		(void)json_object_del(p->options, "response_format");
		rc = set_schema(call, p, "response_format", v);
	}
	for (size_t i = 0; i < sizeof schemas / sizeof schemas[0] && rc == 0;
	    i++) {
		v = given(body, schemas[i]);
		if (v != NULL)
			rc = set_schema(call, p, schemas[i], v);
	}
	v = given(body, "structured_outputs");
	if (rc == 0 && v != NULL)
		rc = structured(call, v, p);
	return rc;
}
