/* Good requests for fuzz_http.c to damage, and what it damages them with. */
#ifndef HTTP_SEEDS_H
#define HTTP_SEEDS_H

static const struct seed {
	const char *method, *path, *body;
} seeds[] = {
	{ "GET", "/health", "" },
	{ "GET", "/v1/models", "" },
	{ "GET", "/v1/models/fuzz", "" },
	{ "GET", "/server_info?x=%41&y", "" },
	{ "GET", "/metrics", "" },
	{ "GET", "/", "" },
	{ "POST", "/flush_cache", "{}" },
	{ "POST", "/abort_request", "{\"rid\": \"a\", \"abort_all\": true}" },
	{ "POST", "/tokenize", "{\"prompt\": \"a\"}" },
	{ "POST", "/tokenize", "{\"messages\": [{\"role\": \"user\", "
	    "\"content\": \"a\"}], \"tools\": []}" },
	{ "POST", "/detokenize", "{\"tokens\": [1, 2, 3]}" },
	{ "POST", "/v1/completions", "{\"prompt\": \"The river\", "
	    "\"max_tokens\": 5, \"stream\": true, \"n\": 3, \"echo\": true, "
	    "\"logprobs\": 2, \"stream_options\": {\"include_usage\": true, "
	    "\"continuous_usage_stats\": true}}" },
	{ "POST", "/v1/completions", "{\"prompt\": [[1, 2], [3, 4]], "
	    "\"stop\": [\"a\", \"\\u00e9\"], \"stop_token_ids\": [1, 2], "
	    "\"logit_bias\": {\"5\": -100, \"6\": 2.5}, \"seed\": -3, "
	    "\"temperature\": 0.5, \"top_p\": 0, \"min_p\": 0.1, \"top_k\": 5, "
	    "\"suffix\": null, \"best_of\": 1, \"max_tokens\": 0, \"echo\": "
	    "true, \"logprobs\": 20}" },
	{ "POST", "/v1/chat/completions", "{\"messages\": [{\"role\": "
	    "\"system\", \"content\": \"s\"}, {\"role\": \"user\", "
	    "\"content\": [{\"type\": \"text\", \"text\": \"a\"}]}], "
	    "\"stream\": true, \"tools\": [{\"type\": \"function\", "
	    "\"function\": {\"name\": \"f\", \"parameters\": {}}}], "
	    "\"tool_choice\": \"auto\", \"response_format\": {\"type\": "
	    "\"json_object\"}, \"logprobs\": true, \"top_logprobs\": 3}" },
	{ "POST", "/v1/chat/completions", "{\"messages\": [{\"role\": "
	    "\"user\", \"content\": \"a\"}], \"n\": 2, \"max_tokens\": 3, "
	    "\"chat_template_kwargs\": {\"enable_thinking\": false}}" },
	{ "POST", "/v1/responses", "{\"input\": [{\"type\": \"message\", "
	    "\"role\": \"user\", \"content\": [{\"type\": \"input_text\", "
	    "\"text\": \"a\"}]}, {\"type\": \"function_call\", \"call_id\": "
	    "\"c\", \"name\": \"f\", \"arguments\": \"{}\"}, {\"type\": "
	    "\"function_call_output\", \"call_id\": \"c\", \"output\": "
	    "\"x\"}], \"stream\": true, \"instructions\": \"i\", \"tools\": "
	    "[{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}], "
	    "\"text\": {\"format\": {\"type\": \"text\"}}}" },
	{ "POST", "/v1/responses", "{\"input\": \"a\", "
	    "\"max_output_tokens\": 9, \"reasoning\": {\"effort\": "
	    "\"high\"}}" },
	{ "POST", "/v1/messages", "{\"max_tokens\": 9, \"system\": [{\"type\":"
	    " \"text\", \"text\": \"s\"}], \"messages\": [{\"role\": \"user\","
	    " \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
	    "[{\"type\": \"tool_use\", \"id\": \"t\", \"name\": \"f\", "
	    "\"input\": {}}]}, {\"role\": \"user\", \"content\": [{\"type\": "
	    "\"tool_result\", \"tool_use_id\": \"t\", \"content\": \"x\"}]}], "
	    "\"stream\": true, \"thinking\": {\"type\": \"enabled\", "
	    "\"budget_tokens\": 1024}, \"stop_sequences\": [\"a\"]}" },
	{ "POST", "/v1/messages", "{\"max_tokens\": 9, \"messages\": "
	    "[{\"role\": \"user\", \"content\": \"a\"}]}" },
	{ "POST", "/v1/messages/count_tokens", "{\"messages\": [{\"role\": "
	    "\"user\", \"content\": \"a\"}]}" },
};
#define N_SEEDS ((uint32_t)(sizeof seeds / sizeof seeds[0]))

static const char *const words[] = {
	"null", "true", "false", "0", "-1", "1e308", "1e999", "99999999999",
	"0.5", "\"\"", "\"a\"", "[]", "{}", "[", "]", "{", "}", ",", ":", "\"",
	"\\u0000", "\\ud800", "\xc3\xa9", "\xf0\x9f\x8d\x90", "\xff",
	"[[1],[2]]", "[1, \"a\"]", "\"stream\": true", "\"n\": 128",
	"\"prompt\": ", "\"messages\": ", "\"type\": \"image_url\"",
	"\"role\": \"tool\"", "{\"type\": \"json_schema\"}", "\r\n\r\n",
	"GET /health HTTP/1.1\r\n\r\n", "[[[[[[[[[[[[[[[[[[[[[[",
};
#define N_WORDS ((uint32_t)(sizeof words / sizeof words[0]))

#endif
