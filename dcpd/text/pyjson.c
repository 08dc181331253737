/* JSON in Python's hand. Pure functions, any thread. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dcpd/text/pyjson.h"

void
dcpd_pyjson_escape(struct dcpd_buf *out, const char *s, size_t n)
{
	static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
	size_t i, done = 0;
	const char *hit;
	char u[8];

	for (i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		dcpd_buf_add(out, s + done, i - done);
		done = i + 1;
		hit = c == 0 ? NULL : strchr(from, c);
		if (hit != NULL)
			snprintf(u, sizeof u, "\\%c", to[hit - from]);
		else
			snprintf(u, sizeof u, "\\u%04x", c);
		dcpd_buf_str(out, u);
	}
	dcpd_buf_add(out, s + done, n - done);
}

/* repr(float): the shortest digits that read back as the same number. */
static void
put_real(struct dcpd_buf *out, double v)
{
	char d[32], tail[16], *e;
	int prec, exp, n;

	dcpd_buf_str(out, signbit(v) ? "-" : "");
	for (prec = 0; prec < 17; prec++) {
		snprintf(d, sizeof d, "%.*e", prec, fabs(v));
		if (strtod(d, NULL) == fabs(v))
			break;
	}
	/* d.ddde+xx: the digits, and the exponent of the first */
	e = strchr(d, 'e');
	exp = atoi(e + 1);
	*e = '\0';
	if (d[1] == '.')
		memmove(d + 1, d + 2, strlen(d + 2) + 1);
	n = (int)strlen(d);
	if (exp < -4 || exp >= 16) {
		dcpd_buf_add(out, d, 1);
		dcpd_buf_str(out, n > 1 ? "." : "");
		dcpd_buf_str(out, d + 1);
		snprintf(tail, sizeof tail, "e%+03d", exp);
		dcpd_buf_str(out, tail);
	} else if (exp < 0) {
		dcpd_buf_add(out, "0.000", (size_t)(1 - exp));
		dcpd_buf_str(out, d);
	} else if (n <= exp + 1) {
		dcpd_buf_str(out, d);
		dcpd_buf_add(out, "0000000000000000", (size_t)(exp + 1 - n));
		dcpd_buf_str(out, ".0");
	} else {
		dcpd_buf_add(out, d, (size_t)exp + 1);
		dcpd_buf_str(out, ".");
		dcpd_buf_str(out, d + exp + 1);
	}
}

static void
put_string(struct dcpd_buf *out, const char *s, size_t n)
{
	dcpd_buf_str(out, "\"");
	dcpd_pyjson_escape(out, s, n);
	dcpd_buf_str(out, "\"");
}

static void
put_object(struct dcpd_buf *out, const json_t *v)
{
	const char *key, *sep = "";
	json_t *kid;

	dcpd_buf_str(out, "{");
	json_object_foreach((json_t *)v, key, kid) {
		dcpd_buf_str(out, sep);
		put_string(out, key, strlen(key));
		dcpd_buf_str(out, ": ");
		dcpd_pyjson(out, kid);
		sep = ", ";
	}
	dcpd_buf_str(out, "}");
}

void
dcpd_pyjson(struct dcpd_buf *out, const json_t *v)
{
	char num[32];
	size_t i;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		put_object(out, v);
		return;
	case JSON_ARRAY:
		dcpd_buf_str(out, "[");
		for (i = 0; i < json_array_size(v); i++) {
			if (i > 0)
				dcpd_buf_str(out, ", ");
			dcpd_pyjson(out, json_array_get(v, i));
		}
		dcpd_buf_str(out, "]");
		return;
	case JSON_STRING:
		put_string(out, json_string_value(v), json_string_length(v));
		return;
	case JSON_INTEGER:
		snprintf(num, sizeof num, "%lld",
		    (long long)json_integer_value(v));
		dcpd_buf_str(out, num);
		return;
	case JSON_REAL:
		put_real(out, json_real_value(v));
		return;
	case JSON_TRUE:
		dcpd_buf_str(out, "true");
		return;
	case JSON_FALSE:
		dcpd_buf_str(out, "false");
		return;
	case JSON_NULL:
		dcpd_buf_str(out, "null");
		return;
	}
}
