/* generate PROMPT: one request, its text as it comes. */
#include <stdio.h>
#include <string.h>

#include <dcpclient.h>

int
main(int argc, char **argv)
{
	struct dcp_request r = { .size = sizeof r, .input = DCP_INPUT_TEXT };
	const struct dcp_event *ev;
	uint32_t type = DCP_EV_DELTA;
	struct dcp *d;
	uint64_t id;

	r.data = argc > 1 ? argv[1] : "Hello";
	r.len = strlen(r.data);
	r.max_tokens = 64;
	if (dcp_connect(NULL, 5000, &d) < 0 || dcp_submit(d, &r, &id) < 0) {
		fprintf(stderr, "generate: %s\n", dcp_error_text());
		return 1;
	}
	while (type == DCP_EV_DELTA && dcp_next(d, -1, &ev) == 0) {
		type = ev->type;
		fwrite(ev->text, 1, ev->text_len, stdout);
		fflush(stdout);
		dcp_event_release(d, ev);
	}
	putchar('\n');
	dcp_close(d);
	return type != DCP_EV_DONE;
}
