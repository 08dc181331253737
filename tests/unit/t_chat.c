/* Chat templates: the prompt is what the model's own template would write. */
#include "config.h"

#include <errno.h>
#include <unistd.h>

#include "dcpd/text/pyjson.h"
#include "tests/unit/text_util.h"

/* The tools that tools/tiny_tasks.py offers, with its key order. */
static const char tiny_tools[] = "[{\"type\": \"function\", \"function\": "
    "{\"name\": \"get_weather\", \"description\": \"Weather of a city\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
    "{\"type\": \"string\"}}, \"required\": [\"city\"]}}}, {\"type\": "
    "\"function\", \"function\": {\"name\": \"add\", \"description\": \"Add "
    "two integers\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}, "
    "\"required\": [\"a\", \"b\"]}}}]";

static const char *const eval_file[] = {
	"math", "recall16", "recall24", "recall32", "recall48", "recall64",
	"recall120", "tools",
};

/* Questions rendered as a chat give the prompts the tiny model learned. */
START_TEST(eval_prompts_byte_for_byte)
{
	char path[1024], rel[128], line[65536];
	json_t *tools = json_loads(tiny_tools, 0, NULL);
	struct dcpd_err err = { 0 };
	json_t *row, *msgs, *opt;
	unsigned n = 0;
	bool thinking;
	char *s;
	FILE *f;

	ck_assert_ptr_nonnull(tools);
	snprintf(rel, sizeof rel, "tests/data/eval/%s.jsonl", eval_file[_i]);
	f = fopen(text_path(rel, path, sizeof path), "r");
	ck_assert_msg(f != NULL, "%s", path);
	while (fgets(line, sizeof line, f) != NULL) {
		row = json_loads(line, 0, NULL);
		ck_assert_ptr_nonnull(row);
		msgs = json_pack("[{s:s, s:O}]", "role", "user", "content",
		    json_object_get(row, "question"));
		opt = strcmp(eval_file[_i], "tools") == 0 ?
		    json_pack("{s:O}", "tools", tools) : json_object();
		thinking = false;
		s = dcpd_chat_render(DCPD_CHAT_GLM47, msgs, opt, &thinking,
		    &err);
		ck_assert_msg(s != NULL, "%s", err.text);
		ck_assert_str_eq(s, json_string_value(json_object_get(row,
		    "prompt")));
		ck_assert(thinking);
		free(s);
		json_decref(opt);
		json_decref(msgs);
		json_decref(row);
		n++;
	}
	fclose(f);
	ck_assert_uint_ge(n, 20);
	json_decref(tools);
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("chat");
	TCase *tc = tcase_create("chat");
	SRunner *r;
	int bad;

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, eval_prompts_byte_for_byte, 0,
	    sizeof eval_file / sizeof *eval_file);
	suite_add_tcase(s, tc);
	r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	bad = srunner_ntests_failed(r);
	srunner_free(r);
	return bad != 0;
}
