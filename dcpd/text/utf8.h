/* UTF-8: check it, step through it, find where a broken part ends. */
#ifndef DCPD_TEXT_UTF8_H
#define DCPD_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* U+FFFD, the replacement character */
#define DCPD_UTF8_BAD "\xef\xbf\xbd"

/*
 * What stands at s (n > 0 bytes left): > 0, the length of a whole character;
 * 0, the beginning of one, cut off by the end of the text; < 0, a broken part
 * of -result bytes, for which one U+FFFD stands (the Unicode standard's
 * "maximal subpart", as Rust, Python and browsers count them).
 */
int dcpd_utf8_step(const char *s, size_t n);

/* Bytes before the first that is not UTF-8; n if all of it is. */
size_t dcpd_utf8_valid(const char *s, size_t n);

/* The character at s, which is known to be whole; *len is its bytes. */
uint32_t dcpd_utf8_char(const char *s, unsigned *len);

/* White space as Unicode says (and Rust and Python's str.strip nearly do). */
bool dcpd_utf8_space(uint32_t c);

#endif
