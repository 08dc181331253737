/*
 * JSON of clients, who may write integers beyond 64 bits: such a bound in a
 * tool's schema, or a number that the model made up, is legal JSON and refuses
 * nothing by itself. jansson has no such integers: they become reals, rounded;
 * every other integer stays one. Inline and without the daemon, so that front
 * ends, which link nothing of it, use it too.
 */
#ifndef DCPD_BIGJSON_H
#define DCPD_BIGJSON_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

/*
 * An integer of n characters with a sign or without, as a real of the same
 * length, so that an error's position stays right: 17 digits at least are left
 * of it, as many as a double tells apart.
 */
static inline void
dcpd_bigjson_mark(char *s, size_t n)
{
	char next = s[n];

	if (n < 19)
		return;
	s[n] = '\0';
	errno = 0;
	(void)strtoll(s, NULL, 10);
	s[n] = next;
	if (errno == ERANGE)
		memcpy(s + n - 2, "e2", 2);
}

static inline json_t *
dcpd_bigjson_loadb(const char *s, size_t n, size_t flags, json_error_t *e)
{
	json_t *v = json_loadb(s, n, flags, e);
	char *copy;
	size_t i = 0, len;

	if (v != NULL || json_error_code(e) != json_error_numeric_overflow)
		return v;
	copy = malloc(n + 1);
	if (copy == NULL)
		return NULL;
	memcpy(copy, s, n);
	copy[n] = '\0';
	while (i < n) {
		if (copy[i] == '"') {
			for (i++; i < n && copy[i] != '"'; i++)
				i += copy[i] == '\\';
			i++;
			continue;
		}
		len = strspn(copy + i, "+-.0123456789eE");
		if (len > 0 && strcspn(copy + i, ".eE") >= len)
			dcpd_bigjson_mark(copy + i, len);
		i += len > 0 ? len : 1;
	}
	v = json_loadb(copy, n, flags, e);
	free(copy);
	return v;
}

#endif
