/* UTF-8. Pure functions, any thread. */
#include "config.h"

#include "dcpd/text/utf8.h"

int
dcpd_utf8_step(const char *str, size_t n)
{
	const unsigned char *s = (const unsigned char *)str;
	unsigned char lo = 0x80, hi = 0xbf;
	int need, i;

	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return -1;
	need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	/* The second byte rules out overlong forms, surrogates, > U+10FFFF. */
	if (s[0] == 0xe0)
		lo = 0xa0;
	else if (s[0] == 0xed)
		hi = 0x9f;
	else if (s[0] == 0xf0)
		lo = 0x90;
	else if (s[0] == 0xf4)
		hi = 0x8f;
	for (i = 1; i < need; i++) {
		if ((size_t)i == n)
			return 0;
		if (s[i] < lo || s[i] > hi)
			return -i;
		lo = 0x80;
		hi = 0xbf;
	}
	return need;
}

size_t
dcpd_utf8_valid(const char *s, size_t n)
{
	size_t at = 0;
	int w;

	while (at < n) {
		w = dcpd_utf8_step(s + at, n - at);
		if (w <= 0)
			break;
		at += (size_t)w;
	}
	return at;
}

uint32_t
dcpd_utf8_char(const char *str, unsigned *len)
{
	const unsigned char *s = (const unsigned char *)str;

	if (s[0] < 0x80) {
		*len = 1;
		return s[0];
	}
	if (s[0] < 0xe0) {
		*len = 2;
		return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
	}
	if (s[0] < 0xf0) {
		*len = 3;
		return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 |
		    (s[2] & 0x3fu);
	}
	*len = 4;
	return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 |
	    (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

bool
dcpd_utf8_space(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 ||
	    c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	    c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
	    c == 0x3000;
}
