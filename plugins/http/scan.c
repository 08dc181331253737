/* The framing of a request, as its bytes come in: see scan.h. Any thread. */
#include "config.h"

#include <ctype.h>

#include "plugins/http/scan.h"

#define DIGITS_MAX 16u		/* of a size; evhttp's limit is far below */

enum {
	AT_HEAD,
	AT_SIZE,		/* a chunk's; .matched are its digits */
	AT_SIZE_LF,
	AT_DATA, AT_DATA_CR, AT_DATA_LF,
	AT_TRAILER,
	AT_BAD_SIZE, AT_BAD_REST,	/* of a line with one */
	AT_END,			/* or there is nothing to look for */
};

static const char field[] = "transfer-encoding:";
#define FIELD_LEN (sizeof field - 1)

void
scan_begin(struct scan *s)
{
	*s = (struct scan){ .at = AT_HEAD };
}

bool
scan_pass(struct scan *s, size_t n)
{
	if (s->at == AT_DATA && n < s->left) {
		s->left -= n;
		return true;
	}
	return s->at == AT_END && !s->bad;
}

/* A byte of the head or of a trailer; true: that is over with it. */
static bool
line(struct scan *s, char c)
{
	if (c == '\n') {
		if (s->line_empty)
			return true;
		s->line_empty = true;
		s->matched = 0;
		return false;
	}
	if (c != '\r')
		s->line_empty = false;
	if (s->matched >= FIELD_LEN)
		return false;
	if (tolower((unsigned char)c) == field[s->matched])
		s->chunked |= ++s->matched == FIELD_LEN;
	else
		s->matched = FIELD_LEN;
	return false;
}

static int
digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	    c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	    c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int
size_begins(struct scan *s)
{
	s->matched = 0;
	s->left = 0;
	s->len = 0;
	s->line_empty = true;
	return s->bad ? AT_BAD_SIZE : AT_SIZE;
}

/* Behind a size: a chunk, or the trailer. */
static int
size_ends(struct scan *s)
{
	s->line_empty = true;
	s->len = 0;
	return s->left > 0 ? AT_DATA : AT_TRAILER;
}

/* As strtoll() reads a number, and evhttp passes over an empty line. */
static int
bad_size(struct scan *s, char c)
{
	int d = digit(c);

	if (c == '\n')
		return s->line_empty ? size_begins(s) : size_ends(s);
	if (c == '\0')		/* the line ends here for evhttp */
		return AT_BAD_REST;
	s->line_empty &= c == '\r';
	if (d >= 0) {
		s->matched++;
		s->left = s->left << 4 | (unsigned)d;
		return AT_BAD_SIZE;
	}
	if (s->matched == 0 && (isspace((unsigned char)c) || c == '+'))
		return AT_BAD_SIZE;
	if (s->matched == 1 && s->left == 0 && (c == 'x' || c == 'X'))
		return AT_BAD_SIZE;
	return AT_BAD_REST;
}

static int
bad_rest(struct scan *s, char c)
{
	return c != '\n' ? AT_BAD_REST :
	    s->line_empty ? size_begins(s) : size_ends(s);
}

static int
bad(struct scan *s, char c)
{
	s->bad = true;
	return bad_size(s, c);
}

static int
size(struct scan *s, char c)
{
	int d = digit(c);

	if (d >= 0 && s->matched < DIGITS_MAX) {
		s->matched++;
		s->left = s->left << 4 | (unsigned)d;
		return AT_SIZE;
	}
	s->line_empty &= s->matched == 0;
	return c == '\r' && s->matched > 0 ? AT_SIZE_LF : bad(s, c);
}

/* A chunk's bytes are over, and a line that is empty comes. */
static int
data_ends(struct scan *s, char c, char want, int then)
{
	if (c == want)
		return then;
	(void)size_begins(s);
	return bad(s, c);
}

static int
step(struct scan *s, char c)
{
	switch (s->at) {
	case AT_HEAD:
		s->head_over = line(s, c);
		return !s->head_over ? AT_HEAD :
		    s->chunked ? size_begins(s) : AT_END;
	case AT_SIZE:
		return size(s, c);
	case AT_SIZE_LF:
		if (c == '\n')
			return size_ends(s);
		s->bad = true;
		return AT_BAD_REST;
	case AT_DATA_CR:
		return data_ends(s, c, '\r', AT_DATA_LF);
	case AT_DATA_LF:
		return data_ends(s, c, '\n', size_begins(s));
	case AT_BAD_SIZE:
		return bad_size(s, c);
	case AT_BAD_REST:
		return bad_rest(s, c);
	case AT_TRAILER:
		if (!line(s, c))
			return AT_TRAILER;
		s->len = 0;
		return AT_END;
	default:
		return AT_END;
	}
}

void
scan_bytes(struct scan *s, const char *p, size_t n)
{
	const char *end = p + n;

	while (p < end && s->at != AT_END) {
		if (s->at != AT_DATA) {
			s->len++;
			s->at = step(s, *p++);
			s->endless |= s->bad && s->len > SCAN_LINE_MAX;
			continue;
		}
		n = (size_t)(end - p) < s->left ? (size_t)(end - p) :
		    (size_t)s->left;
		p += n;
		s->left -= n;
		if (s->left == 0)
			s->at = s->bad ? size_begins(s) : AT_DATA_CR;
	}
	/* evhttp would have ended, too, if it had read this as we do. */
	s->len += (size_t)(end - p);
	s->endless |= s->bad && s->len > SCAN_LINE_MAX;
}
