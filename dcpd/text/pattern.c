/*
 * The regular expressions of tokenizer.json. They are written for Oniguruma;
 * PCRE2 means the same by nearly all of them. Known differences:
 *
 *  \s	matches U+180E in PCRE2 but not in Oniguruma: spelled out here.
 *  \h	hexadecimal digit there, horizontal space here: refused.
 *  [a&&b], [a[b]]: set operations there, plain characters here: refused.
 *
 * Runs when a tokenizer is opened; the compiled code is immutable.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "dcpd/text/tok.h"

#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}" \
	"\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* One backslash escape at re; its length, or -EINVAL. */
static int
escape(const char *re, size_t left, bool in_class, struct dcpd_buf *out,
    struct dcpd_err *err)
{
	if (left < 2)
		return dcpd_fail(err, -EINVAL, "it ends with a lone backslash");
	switch (re[1]) {
	case 's':
		dcpd_buf_str(out, in_class ? SPACES : "[" SPACES "]");
		return 2;
	case 'S':
		if (in_class)
			return dcpd_fail(err, -EINVAL,
			    "\\S inside [...] is not supported");
		dcpd_buf_str(out, "[^" SPACES "]");
		return 2;
	case 'h':
	case 'H':
	case 'R':
	case 'X':
	case 'K':
	case 'g':
	case 'k':
		return dcpd_fail(err, -EINVAL,
		    "\\%c is not supported", re[1]);
	default:
		dcpd_buf_add(out, re, 2);
		return 2;
	}
}

/* Rewrite Oniguruma to PCRE2. */
static int
translate(const char *re, size_t len, struct dcpd_buf *out,
    struct dcpd_err *err)
{
	bool in_class = false, first = false;	/* first: ']' is literal */
	size_t i = 0;
	int w;

	while (i < len) {
		char c = re[i];

		if (c == '\\') {
			w = escape(re + i, len - i, in_class, out, err);
			if (w < 0)
				return w;
			i += (size_t)w;
			first = false;
			continue;
		}
		if (in_class && (c == '[' ||
		    (c == '&' && i + 1 < len && re[i + 1] == '&')))
			return dcpd_fail(err, -EINVAL,
			    "a set operation (&& or a nested [) at byte %zu "
			    "is not supported", i);
		dcpd_buf_add(out, &c, 1);
		if (!in_class && c == '[') {
			in_class = first = true;
			if (i + 1 < len && re[i + 1] == '^')
				dcpd_buf_add(out, &re[++i], 1);
		} else if (in_class && c == ']' && !first) {
			in_class = false;
		} else {
			first = false;
		}
		i++;
	}
	return 0;
}

int
tok_pattern(const char *regex, size_t len, pcre2_code **out,
    struct dcpd_err *err)
{
	struct dcpd_buf buf = { 0 };
	PCRE2_UCHAR why[160];
	PCRE2_SIZE at;
	pcre2_code *code;
	int rc, e;

	if (len > TOK_MAX_REGEX)
		return dcpd_fail(err, -EINVAL, "longer than %u bytes",
		    TOK_MAX_REGEX);
	rc = translate(regex, len, &buf, err);
	if (rc < 0)
		goto out;
	if (buf.failed) {
		rc = dcpd_fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	code = pcre2_compile((PCRE2_SPTR)(buf.v == NULL ? "" : buf.v), buf.n,
	    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &e, &at, NULL);
	if (code == NULL) {
		pcre2_get_error_message(e, why, sizeof why);
		rc = dcpd_fail(err, -EINVAL, "%s", (const char *)why);
		goto out;
	}
	/* Without JIT (an odd processor) it is slower, not different. */
	(void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	*out = code;
out:
	dcpd_buf_free(&buf);
	return rc;
}
