# The HTTP front end: one shared object.
plugin_LTLIBRARIES += plugins/http.la
plugins_http_la_SOURCES = plugins/http/http.c plugins/http/http.h \
	plugins/http/api.h plugins/http/call.c plugins/http/call.h \
	plugins/http/chat.c plugins/http/completions.c \
	plugins/http/settings.c plugins/http/settings.h \
	plugins/http/engine.c plugins/http/engine.h plugins/http/fields.c \
	plugins/http/gen_text.c plugins/http/generate.c \
	plugins/http/listen.c plugins/http/listen.h plugins/http/models.c \
	plugins/http/convert.c plugins/http/convert.h \
	plugins/http/messages.c plugins/http/messages.h \
	plugins/http/messages_in.c plugins/http/responses.c \
	plugins/http/responses.h plugins/http/responses_in.c \
	plugins/http/routes.c plugins/http/server.c plugins/http/tokenize.c \
	plugins/http/why.h
plugins_http_la_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS)
plugins_http_la_LDFLAGS = $(PLUGIN_LDFLAGS)
plugins_http_la_LIBADD = libdcpclient.la $(LIBEVENT_LIBS) $(JANSSON_LIBS) \
	-lpthread
