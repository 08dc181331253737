# The HTTP front end: one shared object.
plugin_LTLIBRARIES += plugins/http.la
plugins_http_la_SOURCES = plugins/evlog.h plugins/http/http.c plugins/http/http.h \
	plugins/http/api.h plugins/http/bound.c plugins/http/call.c \
	plugins/http/call.h \
	plugins/http/chat.c plugins/http/completions.c \
	plugins/http/settings.c plugins/http/settings.h \
	plugins/http/engine.c plugins/http/engine.h plugins/http/fields.c \
	plugins/http/format.c \
	plugins/http/gen_text.c plugins/http/generate.c \
	plugins/http/listen.c plugins/http/listen.h plugins/http/models.c \
	plugins/http/convert.c plugins/http/convert.h \
	plugins/http/messages.c plugins/http/messages.h \
	plugins/http/messages_in.c plugins/http/responses.c \
	plugins/http/responses.h plugins/http/responses_in.c \
	plugins/http/responses_tools.c \
	plugins/http/routes.c plugins/http/scan.c plugins/http/scan.h \
	plugins/http/server.c plugins/http/tokenize.c plugins/http/why.h \
	plugins/http/words.c plugins/http/words.h
plugins_http_la_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS)
plugins_http_la_LDFLAGS = $(PLUGIN_LDFLAGS)
plugins_http_la_LIBADD = libdcpclient.la $(LIBEVENT_LIBS) $(JANSSON_LIBS) \
	-lpthread

# The page, its live stream, the metrics. The page is joined to one file that
# is within the object, and its policy names the hashes of its style and script.
plugins_http_la_SOURCES += plugins/http/live.c plugins/http/metrics.c \
	plugins/http/page.c plugins/http/page.h
nodist_plugins_http_la_SOURCES = plugins/http/page_hash.h
PAGE_PARTS = plugins/http/page/index.html plugins/http/page/style.css \
	plugins/http/page/base.js plugins/http/page/server.js \
	plugins/http/page/rates.js plugins/http/page/ranks.js \
	plugins/http/page/requests.js plugins/http/page/live.js \
	plugins/http/page/chat.js plugins/http/page/start.js
plugins_http_la_CPPFLAGS += \
	-DPAGE_HTML='"plugins/http/page.html"'
BUILT_SOURCES += plugins/http/page.html plugins/http/page_hash.h
CLEANFILES += plugins/http/page.html plugins/http/page_hash.h
plugins/http/page.html: $(PAGE_PARTS) plugins/http/page-join
	@$(MKDIR_P) plugins/http
	$(AM_V_GEN)$(SHELL) $(srcdir)/plugins/http/page-join \
		$(srcdir)/plugins/http/page/index.html >$@.new && mv $@.new $@
plugins/http/page_hash.h: plugins/http/page.html plugins/http/page-hash
	$(AM_V_GEN)$(SHELL) $(srcdir)/plugins/http/page-hash \
		plugins/http/page.html >$@.new && mv $@.new $@
HTTP_TESTS = tests/integration/test_http_limits.py \
	tests/integration/test_http_api.py tests/integration/test_http_cases.py \
	tests/integration/test_http_doc.py tests/integration/test_http_load.py \
	tests/integration/test_agent_prompt.py
TESTS += $(HTTP_TESTS)
EXTRA_DIST += $(HTTP_TESTS) tests/lib/httpconf.py tests/lib/rawhttp.py

TESTS += tests/integration/test_metrics.py tests/integration/test_page.py
EXTRA_DIST += $(PAGE_PARTS) plugins/http/page-join plugins/http/page-hash \
	tests/integration/test_metrics.py tests/integration/test_page.py \
	tests/lib/browser.py

check_PROGRAMS += tests/unit/t_http_scan
TESTS += tests/unit/t_http_scan
tests_unit_t_http_scan_SOURCES = tests/unit/t_http_scan.c plugins/http/scan.c \
	plugins/http/scan.h
tests_unit_t_http_scan_LDADD = $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_http_bound
TESTS += tests/unit/t_http_bound
tests_unit_t_http_bound_SOURCES = tests/unit/t_http_bound.c \
	plugins/http/bound.c
tests_unit_t_http_bound_CFLAGS = $(AM_CFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_t_http_bound_LDADD = $(TEST_LIBS)

check_PROGRAMS += tests/unit/t_evlog
TESTS += tests/unit/t_evlog
tests_unit_t_evlog_SOURCES = tests/unit/t_evlog.c plugins/evlog.h
tests_unit_t_evlog_CFLAGS = $(AM_CFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_t_evlog_LDADD = $(TEST_LIBS) $(LIBEVENT_LIBS)

# They define the functions of libdcpclient that the plugin then finds first.
check_PROGRAMS += tests/fuzz/fuzz_http tests/fuzz/fuzz_body
TESTS += tests/fuzz/fuzz_http tests/fuzz/fuzz_body
FUZZ_PLUGIN = tests/fuzz/http_plugin.c tests/fuzz/http_plugin.h
tests_fuzz_fuzz_http_SOURCES = tests/fuzz/fuzz_http.c $(FUZZ_PLUGIN) \
	$(FUZZ_DRIVER) tests/fuzz/http_seeds.h
tests_fuzz_fuzz_http_LDADD = libdcpd.a $(JANSSON_LIBS) -ldl -lpthread
tests_fuzz_fuzz_http_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
tests_fuzz_fuzz_body_SOURCES = tests/fuzz/fuzz_body.c $(FUZZ_PLUGIN) \
	$(FUZZ_DRIVER)
tests_fuzz_fuzz_body_LDADD = libdcpd.a $(JANSSON_LIBS) -ldl -lpthread
tests_fuzz_fuzz_body_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
