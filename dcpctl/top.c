/*
 * `dcpctl top`: what the daemon does, drawn again and again from two questions
 * to its admin socket. A plain terminal and its escape codes; where standard
 * output is none, frames follow each other as text. One thread.
 *
 * Rates and means are of the time since the frame before; those of the first
 * are since the daemon's start.
 */
#include "config.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "dcpctl/ctl.h"
#include "dcpctl/measure.h"

#define ENTER "\033[?1049h\033[?25l"	/* the other screen, no cursor */
#define LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define REST "\033[K"			/* of the line: clear */
#define BELOW "\033[J"			/* clear */
#define BAR_MIN 10
#define BAR_MAX 64

struct screen {
	bool terminal;
	unsigned columns, rows, row;	/* rows 0: no end */
};

struct frame {
	json_t *status, *requests;
	double at;			/* s */
};

static volatile sig_atomic_t ended;

static void
on_signal(int s)
{
	ended = 1;
}

static long long
integer(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

static const char *
string(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s != NULL ? s : "-";
}

/* --- drawing ------------------------------------------------------------- */

static void line(struct screen *, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Cut at the right edge, so that a line is a line; none below the last. */
static void
line(struct screen *s, const char *fmt, ...)
{
	char text[512], *p;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (s->columns < sizeof text)
		text[s->columns] = '\0';
	for (p = text; s->terminal && *p != '\0'; p++)
		if (*p == '\n' || *p == '\t')
			*p = ' ';
	if (s->rows > 0 && s->row >= s->rows)
		return;
	/* The last row ends without a newline, which would scroll. */
	if (s->terminal && s->row > 0)
		putchar('\n');
	ctl_put(stdout, text, strlen(text));
	fputs(s->terminal ? REST : "\n", stdout);
	s->row++;
}

static bool
full(const struct screen *s, unsigned more)
{
	return s->rows > 0 && s->row + more > s->rows;
}

struct part {
	char mark;
	long long n;
};

/*
 * width cells in brackets; a cell shows the part in which its middle lies.
 * What is left of total after the parts is dots.
 */
static const char *
bar(char *out, unsigned width, const struct part *p, unsigned n_parts,
    long long total)
{
	double at, end;
	unsigned k;

	out[0] = '[';
	for (unsigned i = 0; i < width; i++) {
		at = ((double)i + .5) * (double)total / width;
		end = 0;
		for (k = 0; k < n_parts; k++) {
			end += (double)p[k].n;
			if (at < end)
				break;
		}
		out[i + 1] = k < n_parts ? p[k].mark : '.';
	}
	out[width + 1] = ']';
	out[width + 2] = '\0';
	return out;
}

/* What is left of the line for a bar. */
static unsigned
bar_width(const struct screen *s, unsigned others)
{
	unsigned w = s->columns > others ? s->columns - others : 0;

	return w < BAR_MIN ? BAR_MIN : w > BAR_MAX ? BAR_MAX : w;
}

/* --- the parts of a frame ------------------------------------------------ */

static double
counter(const struct frame *f, const char *name)
{
	return (double)integer(json_object_get(f->status, "counters"), name);
}

/* Growth of a counter since the frame before; then: NULL, since the start. */
static double
grown(const struct frame *now, const struct frame *then, const char *name)
{
	return counter(now, name) - (then != NULL ? counter(then, name) : 0);
}

/* "12.3", or "-" where nothing was counted. */
static const char *
mean(char *buf, size_t cap, double sum, double n)
{
	if (n <= 0)
		snprintf(buf, cap, "-");
	else if (sum / n < 100)
		snprintf(buf, cap, "%.3g", sum / n);
	else
		snprintf(buf, cap, "%.0f", sum / n);
	return buf;
}

static void
head(struct screen *s, const struct frame *now)
{
	const json_t *o = now->status;
	const char *model = json_string_value(json_object_get(o, "model"));
	long long up = (long long)json_number_value(json_object_get(o,
	    "uptime_s"));

	line(s, "dcpd %s  %s  up %lld:%02lld:%02lld  %s  tp %lld  dcp %lld",
	    string(o, "version"), string(o, "state"), up / 3600,
	    up / 60 % 60, up % 60, model != NULL ? model :
	    string(o, "engine"), integer(o, "tp"), integer(o, "dcp"));
	if (json_object_get(o, "answers") != NULL)
		line(s, "it does not answer: %s", string(o, "problem"));
	if (json_object_get(o, "load_bytes") != NULL)
		line(s, "loaded %lld of %lld bytes", integer(o,
		    "loaded_bytes"), integer(o, "load_bytes"));
}

static void
rates(struct screen *s, const struct frame *now, const struct frame *then)
{
	double dt = then != NULL ? now->at - then->at :
	    json_number_value(json_object_get(now->status, "uptime_s"));
	char a[32], b[32], c[32], d[32];

	if (json_object_get(now->status, "counters") == NULL)
		return;
#define GREW(name) grown(now, then, name)
	line(s, "requests  %lld running, %lld waiting; %.0f finished, %.0f "
	    "cancelled, %.0f failed", integer(now->status, "running"),
	    integer(now->status, "waiting"), counter(now,
	    "requests_finished"), counter(now, "requests_cancelled"),
	    counter(now, "requests_failed"));
	line(s, "tokens    %s prefilled/s, %s generated/s; TTFT %s ms, ITL %s "
	    "ms", mean(a, sizeof a, GREW("prompt_tokens"), dt),
	    mean(b, sizeof b, GREW("output_tokens"), dt),
	    mean(c, sizeof c, GREW("ttft_ns") * 1e-6, GREW("first_tokens")),
	    mean(d, sizeof d, GREW("itl_ns") * 1e-6, GREW("later_tokens")));
	line(s, "cache     %s %% of prompts hit, %.0f pages evicted; %.0f "
	    "preemptions", mean(a, sizeof a, GREW("prefix_hit_tokens") * 100,
	    GREW("prefix_lookup_tokens")), counter(now, "evictions"),
	    counter(now, "preemptions"));
	line(s, "passes    decode %s ms, prefill %s ms",
	    mean(a, sizeof a, GREW("decode_ns") * 1e-6, GREW("decode_steps")),
	    mean(b, sizeof b, GREW("prefill_ns") * 1e-6,
	    GREW("prefill_passes")));
#undef GREW
}

/* Of one rank: a page that is pinned is not told again as used. */
static void
rank_line(struct screen *s, const json_t *r, unsigned width)
{
	long long pinned = integer(r, "pages_pinned");
	long long used = integer(r, "pages_used") - pinned;
	long long cached = integer(r, "pages_cached");
	long long total = integer(r, "pages_total");
	char strip[BAR_MAX + 3];

	line(s, "%4lld %3lld %7lld %s %7lld %7lld %7lld %7lld",
	    integer(r, "rank"), integer(r, "dcp_rank"), integer(r, "tokens"),
	    bar(strip, width, (struct part[]){ { '!', pinned }, { '#', used },
	    { '=', cached } }, 3, total), pinned, used, cached,
	    total - pinned - used - cached);
}

static long long
host_total(const struct frame *now)
{
	return integer(json_object_get(now->status, "limits"), "host_pages");
}

/* Pages that left the pool, below the ranks': one copy for all of them. */
static void
host_line(struct screen *s, const struct frame *now, unsigned width)
{
	long long total = host_total(now);
	long long cached = (long long)counter(now, "pages_host");
	char strip[BAR_MAX + 3];

	if (total > 0)
		line(s, "host memory      %s %7s %7s %7lld %7lld",
		    bar(strip, width, (struct part[]){ { '=', cached } }, 1,
		    total), "", "", cached, total - cached);
}

static void
ranks(struct screen *s, const struct frame *now)
{
	const json_t *a = json_object_get(now->status, "ranks"), *r;
	unsigned width = bar_width(s, 51), below = host_total(now) > 0;
	size_t i;

	if (json_array_size(a) == 0)
		return;
	line(s, "%s", "");
	line(s, "rank dcp  tokens %-*s !pinned   #used =cached   .free",
	    (int)width + 2, "pages");
	json_array_foreach(a, i, r) {
		/* Room for a look at the requests, however many ranks. */
		if (full(s, 7 + below) && i + 1 < json_array_size(a)) {
			line(s, "     and %zu ranks more",
			    json_array_size(a) - i);
			break;
		}
		rank_line(s, r, width);
	}
	host_line(s, now, width);
}

static void
requests(struct screen *s, const struct frame *now)
{
	unsigned width = bar_width(s, 65);
	char strip[BAR_MAX + 3];
	const json_t *r;
	size_t i;

	if (json_array_size(now->requests) == 0)
		return;
	line(s, "%s", "");
	line(s, "%10s %-8s %-*s  =cached #prefill    +made    .left  age s",
	    "request", "state", (int)width + 2, "tokens");
	json_array_foreach(now->requests, i, r) {
		long long prompt = integer(r, "prompt");
		long long done = integer(r, "prefilled");
		long long cached = integer(r, "cached");
		long long made = integer(r, "generated");
		long long most = integer(r, "max_tokens");

		/* Its hit stays when its pages were taken from it. */
		cached = cached < done ? cached : done;
		if (full(s, 2) && i + 1 < json_array_size(now->requests)) {
			line(s, "%10s %zu more", "and",
			    json_array_size(now->requests) - i);
			break;
		}
		line(s, "%10lld %-8s %s %8lld %8lld %8lld %8lld %6.1f",
		    integer(r, "id"), string(r, "state"), bar(strip, width,
		    (struct part[]){ { '=', cached }, { '#', done - cached },
		    { '.', prompt - done }, { '+', made } }, 4,
		    prompt + most), cached, done - cached, made,
		    prompt - done + most - made,
		    json_number_value(json_object_get(r, "age_s")));
	}
}

/* --- the loop ------------------------------------------------------------ */

static void
look(struct screen *s)
{
	struct winsize w;

	*s = (struct screen){
		.terminal = isatty(STDOUT_FILENO), .columns = 100,
	};
	if (s->terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 &&
	    w.ws_col > 0 && w.ws_row > 0) {
		s->columns = w.ws_col;
		s->rows = w.ws_row;
	}
}

static void
draw(const struct frame *now, const struct frame *then)
{
	struct screen s;

	look(&s);
	if (s.terminal)
		fputs(HOME, stdout);
	head(&s, now);
	rates(&s, now, then);
	ranks(&s, now);
	requests(&s, now);
	if (s.terminal)
		fputs(BELOW, stdout);
	else
		putchar('\n');
	fflush(stdout);
}

static void
print_frame(const struct frame *f)
{
	ctl_print_json(json_pack("{s:O, s:O}", "status", f->status,
	    "requests", f->requests));
	fflush(stdout);
}

static int
ask_status(bool quiet, json_t **out)
{
	return ctl_ask_status(quiet, out);
}

static int
ask(struct frame *f, bool quiet)
{
	int rc = ask_status(quiet, &f->status);

	f->at = ctl_now();
	if (rc != CTL_OK)
		return rc;
	/* While it loads or ends there are none to be had. */
	if (json_object_get(f->status, "answers") == NULL)
		ctl_admin(json_pack("{s:s}", "cmd", "requests"), true,
		    &f->requests);
	if (f->requests == NULL)
		f->requests = json_array();
	return CTL_OK;
}

static void
drop(struct frame *f)
{
	json_decref(f->status);
	json_decref(f->requests);
	*f = (struct frame){ 0 };
}

/* Until the next frame is due, or a signal. */
static void
rest(double seconds)
{
	struct timespec t = { .tv_sec = (time_t)seconds };

	t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
	nanosleep(&t, NULL);
}

static int
watch(uint32_t count, double delay, bool quiet)
{
	struct frame now = { 0 }, then = { 0 };
	int rc = CTL_OK;

	for (uint32_t n = 0; count == 0 || n < count; n++) {
		if (n > 0)
			rest(delay);
		rc = ended ? CTL_OK : ask(&now, quiet);
		if (ended || rc != CTL_OK)
			break;
		if (ctl.json)
			print_frame(&now);
		else
			draw(&now, n > 0 ? &then : NULL);
		drop(&then);
		then = now;
		now = (struct frame){ 0 };
		if (ferror(stdout))
			break;
	}
	drop(&now);
	drop(&then);
	return ended ? CTL_OK : rc;
}

static int
on_terminal(uint32_t count, double delay)
{
	struct sigaction sa = { .sa_handler = on_signal };
	json_t *again = NULL;
	int rc;

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	fputs(ENTER, stdout);
	rc = watch(count, delay, true);
	fputs(LEAVE, stdout);
	fflush(stdout);
	/* What is said on the other screen is gone with it: once more. */
	if (rc != CTL_OK)
		rc = ask_status(false, &again);
	json_decref(again);
	return rc;
}

int
ctl_top(int argc, char **argv)
{
	bool counted = false, terminal;
	uint32_t count = 0;
	double delay = 1;
	const struct ctl_opt opts[] = {
		{ "count", 'n', CTL_U32, &count, "COUNT",
		  "frames; 0: until ^C [0; no terminal: 1]", &counted },
		{ "delay", 'd', CTL_F64, &delay, "SECONDS",
		  "from frame to frame [1]", NULL },
		{ .name = NULL },
	};
	int rc = ctl_parse(argc, argv, opts, "top [options]", NULL);

	if (rc != 0)
		return rc > 0 ? rc : CTL_OK;
	if (!(delay >= .01 && delay <= 86400))
		return ctl_fail(CTL_USAGE, "--delay: want 0.01 to 86400 "
		    "seconds");
	terminal = isatty(STDOUT_FILENO) && !ctl.json;
	if (!counted && !terminal)
		count = 1;
	return terminal ? on_terminal(count, delay) :
	    watch(count, delay, false);
}
