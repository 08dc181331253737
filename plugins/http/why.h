/* Why a call of the host failed: the line that goes back to it. */
#ifndef HTTP_WHY_H
#define HTTP_WHY_H

/* Sets *why (malloc'd) unless it is NULL, and returns code. */
int http_why(char **why, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
