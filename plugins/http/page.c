/*
 * The page at /: one static file, joined at build of what is in page/. It has
 * no data in it, so it needs no key; what it shows comes from /live, which
 * does. Its policy lets run the style and the script of this very file, known
 * by their hashes, and nothing else. The event thread's.
 */
#include "config.h"

#include "plugins/http/page.h"
#include "plugins/http/page_hash.h"

__asm__(".pushsection .rodata\n"
	".type page_html, @object\n"
	"page_html: .incbin \"" PAGE_HTML "\"\n"
	".type page_html_end, @object\n"
	"page_html_end: .byte 0\n"
	".popsection\n");
extern const char page_html[], page_html_end[];

static const char policy[] = "default-src 'none'; "
    "script-src 'sha256-" PAGE_SCRIPT_HASH "'; "
    "style-src 'sha256-" PAGE_STYLE_HASH "'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

void
page_index(struct call *call)
{
	call_set_header(call, "Content-Security-Policy", policy);
	call_set_header(call, "X-Content-Type-Options", "nosniff");
	call_set_header(call, "Referrer-Policy", "no-referrer");
	call_set_header(call, "Cache-Control", "no-cache");
	call_reply(call, 200, "text/html; charset=utf-8", page_html,
	    (size_t)(page_html_end - page_html));
}
