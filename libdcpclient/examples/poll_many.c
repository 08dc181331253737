/*
 * poll_many PROMPT...: all prompts at once on one connection, in a poll loop
 * that could watch other descriptors as well. Prints each answer when it is
 * complete.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dcpclient.h>

struct answer {
	char *text;
	size_t len;
};

/* Returns 1 when this was its request's last event. */
static int
take(const struct dcp_event *ev, char **prompt, struct answer *all, int *rc)
{
	struct answer *a = &all[ev->user_data];

	a->text = realloc(a->text, a->len + ev->text_len + 1);
	if (a->text == NULL)
		abort();
	memcpy(a->text + a->len, ev->text, ev->text_len + 1);
	a->len += ev->text_len;
	if (ev->type == DCP_EV_DELTA)
		return 0;
	if (ev->type == DCP_EV_ERROR)
		*rc = 1;
	printf("%s\n  %s%s\n", prompt[ev->user_data],
	    ev->type == DCP_EV_ERROR ? "error: " : "", a->text);
	free(a->text);
	return 1;
}

int
main(int argc, char **argv)
{
	struct dcp_request r = { .size = sizeof r, .input = DCP_INPUT_TEXT };
	struct answer *all = calloc((size_t)argc, sizeof *all);
	int running = argc - 1, i, rc, failed = 0;
	const struct dcp_event *ev;
	struct pollfd p;
	struct dcp *d;
	uint64_t id;

	if (all == NULL || dcp_connect(NULL, 5000, &d) < 0) {
		fprintf(stderr, "poll_many: %s\n", dcp_error_text());
		return 1;
	}
	for (i = 1; i < argc; i++) {
		r.data = argv[i];
		r.len = strlen(argv[i]);
		r.max_tokens = 32;
		r.user_data = (uint64_t)i;
		if (dcp_submit(d, &r, &id) < 0) {
			fprintf(stderr, "poll_many: %s\n", dcp_error_text());
			return 1;
		}
	}
	p.fd = dcp_fd(d);
	p.events = POLLIN;
	while (running > 0 && poll(&p, 1, -1) > 0) {
		while ((rc = dcp_next(d, 0, &ev)) == 0) {
			running -= take(ev, argv, all, &failed);
			dcp_event_release(d, ev);
		}
		if (rc != -EAGAIN) {
			fprintf(stderr, "poll_many: %s\n", dcp_error_text());
			return 1;
		}
	}
	dcp_close(d);
	free(all);
	return failed;
}
