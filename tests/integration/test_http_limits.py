#!/usr/bin/python3
"""What the HTTP server does to clients that are slow, gone, greedy or wrong:
a test for each row of doc/serving.md's table of traps, and for its limits.
By raw sockets against the daemon.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import suite  # noqa: E402
from daemon import binary  # noqa: E402
from httpconf import NULL, Configured, key_file  # noqa: E402
from httpd import events  # noqa: E402
from rawhttp import Closed, Raw, request  # noqa: E402

FOREVER = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True}
SHORT = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}


def live(d):
    s = d.ctl_json("status")
    return s["running"] + s["waiting"]


def cancelled(d):
    return d.ctl_json("status")["counters"]["requests_cancelled"]


def rss(d):
    """KiB of the daemon's resident memory."""
    with open(f"/proc/{d.p.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def closes(s):
    try:
        while True:
            s.more()
    except Closed:
        return True


# --- the five traps ---------------------------------------------------------

def client_leaves_before_the_first_byte_of_a_stream(d):
    for leave in (Raw.close, Raw.reset):
        s = Raw(d.port)
        s.send(request("POST", "/v1/completions", dict(FOREVER, stream=True)))
        s.head()
        suite.until(lambda: live(d) == 1, "it does not run")
        before = cancelled(d)
        leave(s)
        suite.until(lambda: live(d) == 0, "a dead client's stream runs on")
        assert cancelled(d) == before + 1, "it ran to its end"


def client_leaves_before_an_answer_that_is_no_stream(d):
    for leave in (Raw.close, Raw.reset):
        s = Raw(d.port)
        s.send(request("POST", "/v1/completions", FOREVER))
        suite.until(lambda: live(d) == 1, "it does not run")
        before = cancelled(d)
        leave(s)
        suite.until(lambda: live(d) == 0, "a dead client's request runs on")
        assert cancelled(d) == before + 1, "it ran to its end"


def pipelined_requests_are_answered_in_turn(d):
    """The second trap ended the process."""
    with Raw(d.port) as s:
        for body in (dict(SHORT, stream=True), SHORT):
            s.send(request("POST", "/v1/completions", body) +
                   request("GET", "/health") * 3 +
                   request("POST", "/v1/completions", SHORT))
            status, headers, raw = s.answer()
            assert status == 200
            if "stream" in body:
                assert events(raw)[-1] == (None, "[DONE]")
            for _ in range(3):
                assert s.answer()[2] == b'{"status":"ready"}'
            assert json.loads(s.answer()[2])["object"] == "text_completion"
        # While one is answered, and with more than is read ahead.
        s.send(request("POST", "/v1/completions", dict(
            FOREVER, max_tokens=3000, stream=True)))
        s.head()
        long = dict(SHORT, prompt="a" * 1000000)
        t = threading.Thread(target=s.send, args=(request(
            "POST", "/v1/completions", long) + request("GET", "/health"),))
        t.start()
        assert events(b"".join(iter(s.chunk, b"")))[-1] == (None, "[DONE]")
        assert s.answer()[0] == 400         # too long for the model
        assert s.answer()[2] == b'{"status":"ready"}'
        t.join()
        s.send(request("POST", "/v1/completions", dict(
            FOREVER, max_tokens=3000)))
        suite.until(lambda: live(d) == 1, "it does not run")
        s.send(request("GET", "/health"))
        assert s.answer()[0] == 200
        assert s.answer()[2] == b'{"status":"ready"}'


def a_head_in_drops_is_cut_off(d):
    began = time.monotonic()
    with Raw(d.port) as s, Raw(d.port) as other:
        try:
            s.send(b"GET /health HTTP/1.1\r\nX: ")
            while time.monotonic() - began < 60:
                s.send(b"a")
                time.sleep(0.1)
                other.send(request("GET", "/health"))
                assert other.answer()[0] == 200
        except OSError:
            pass
        took = time.monotonic() - began
        assert took < 60, "a head may take for ever"
        assert took > 0.9, f"cut off after {took:.2f} s, before its time"


def a_connection_at_rest_is_closed(d):
    with Raw(d.port) as s:
        s.send(request("GET", "/health"))
        s.answer()
        assert closes(s)
    with Raw(d.port) as s:          # not a byte
        assert closes(s)
    with Raw(d.port) as s:          # in mid-body
        s.send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        assert closes(s)


def a_reader_that_takes_nothing_is_cut_off(d):
    """And bounded meanwhile: the trap was 58 MB in 6 s."""
    before = rss(d)
    s = Raw(d.port, rcvbuf=4096)
    s.send(request("POST", "/v1/completions", dict(
        FOREVER, stream=True, logprobs=20, n=7)))
    s.head()
    suite.until(lambda: live(d) == 7, "it does not run")
    top = 0
    end = time.monotonic() + 60
    while live(d):
        top = max(top, rss(d) - before)
        assert time.monotonic() < end, "it is kept for ever"
        with Raw(d.port) as other:
            other.send(request("POST", "/v1/completions", SHORT))
            assert other.answer()[0] == 200
        time.sleep(0.05)
    suite.until(lambda: d.ctl_json("plugins")[0]["stats"]["connections"] <= 1,
                "its connection stays")
    print(f"  {top} KiB more at most")
    assert top < 64 * 1024, top
    s.close()


def a_slow_reader_gets_all_of_it(_):
    """All that buffers do not hold piles up in the daemon, and is joined: the
    reader begins when the last token is there, however long that takes."""
    n = 30000           # a socket's buffers hold the events of 12000
    body = dict(SHORT, max_tokens=n)
    with Configured({"stuck_timeout": 600}, *NULL, "--null-step-us", 10,
                    "--null-pages", 1000) as d:
        want = d.post("/v1/completions", body)
        want = want["choices"][0]["text"]
        with Raw(d.port, rcvbuf=4096) as s:
            s.send(request("POST", "/v1/completions", dict(
                body, stream=True, stream_options={"include_usage": True})))
            s.head()
            suite.until(lambda: live(d) == 0, "it runs on", 300)
            raw = b"".join(iter(s.chunk, b""))
    said = [json.loads(t) for _, t in events(raw)[:-1]]
    text = "".join(c["choices"][0]["text"] for c in said if c["choices"])
    assert text == want, "a slow reader's text differs"
    assert said[-1]["usage"]["completion_tokens"] == n, said[-1]
    print(f"  {n} tokens in {len(said)} events")
    assert len(said) < n * 2 // 3, f"{len(said)} events: nothing was joined"


def a_flood_while_streaming_is_not_read(d):
    before = rss(d)
    s = Raw(d.port)
    s.send(request("POST", "/v1/completions", dict(FOREVER, stream=True)))
    s.head()
    sent = 0

    def flood():
        nonlocal sent
        try:
            while True:
                s.s.send(b"x" * 65536)
                sent += 65536
        except OSError:
            pass

    t = threading.Thread(target=flood, daemon=True)
    t.start()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        s.chunk()
    grown = rss(d) - before
    s.s.shutdown(2)
    t.join(30)
    s.close()
    assert sent < 32 << 20, f"{sent} bytes were taken in"
    assert grown < 32 * 1024, f"{grown} KiB more"
    suite.until(lambda: live(d) == 0, "it runs on")


# --- limits -----------------------------------------------------------------

def a_large_head_is_refused(d):
    with Raw(d.port) as s:
        s.send(request("GET", "/health", headers=[("X", "a" * 15000)]))
        assert s.answer()[0] == 200
        s.send(request("GET", "/health", headers=[("X", "a" * 17000)]))
        status, headers, body = s.answer()
        assert status == 400 and "16 KiB" in error(body)["message"]
        assert closes(s)


def error(body):
    o = json.loads(body)["error"]
    assert set(o) == {"message", "type", "param", "code"}, o
    return o


def a_large_body_is_refused(d):
    """Read to its end all the same, or the answer could not be."""
    with Raw(d.port) as s:
        s.send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" %
               (33 << 20))
        for _ in range(33):
            s.send(b"x" * (1 << 20))
        status, _, body = s.answer()
        assert status == 413 and "32 MiB" in error(body)["message"]
        assert closes(s)
    with Raw(d.port) as s:          # who asks first is spared the sending
        s.send(b"POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\n"
               b"Content-Length: 9\r\n\r\n")
        assert s.head()[0] == 100
        s.send(b"[1, 2, 3]")
        assert s.answer()[0] == 400


def a_length_in_doubt_is_refused(d):
    body = b"0\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
    for fields in (b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n",
                   b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n",
                   b"Content-Length: %d\r\nContent-Length: 5\r\n",
                   b"Content-Length: +%d\r\n",
                   b"Content-Length : %d\r\n",
                   b"Transfer-Encoding\t: chunked\r\nX: %d\r\n",
                   b"Transfer-Encoding: gzip, chunked\r\nX: %d\r\n",
                   b"Transfer-Encoding: chunked\r\nX: %d\r\n"
                   b"Transfer-Encoding: chunked\r\n"):
        with Raw(d.port) as s:
            s.send(b"POST /v1/completions HTTP/1.1\r\n" +
                   fields % len(body) + b"\r\n" + body)
            status, _, raw = s.answer()
            assert 400 <= status < 500, (fields, status)
            # For its head, not for a body that is not JSON.
            assert error(raw)["code"].startswith("bad_"), (fields, raw)
            assert closes(s) and s.buf == b"", (fields, s.buf)
    # HEAD: libevent reads no body of it.
    for fields in (b"Content-Length: %d\r\n",
                   b"Transfer-Encoding: chunked\r\nX: %d\r\n"):
        with Raw(d.port) as s:
            s.send(b"HEAD /health HTTP/1.1\r\n" + fields % len(body) +
                   b"\r\n" + body)
            assert s.head()[0] == 400, fields
            assert closes(s) and b"HTTP/1.1" not in s.buf, (fields, s.buf)
    with Raw(d.port) as s:
        s.send(b"HEAD /health HTTP/1.1\r\nContent-Length: 0\r\n\r\n" +
               request("GET", "/health"))
        assert s.head()[0] == 200
        assert s.answer()[0] == 200


def a_size_without_an_end_is_cut_off(d):
    """libevent has no limit for such a line, and searches all of it."""
    for begin in (b"5;", b"0x5\r\nabcde\r\nz"):
        sent = 0
        with Raw(d.port) as s:
            try:
                s.send(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\n" + begin)
                while sent < 64 << 20:
                    s.send(b"e" * 65536)
                    sent += 65536
            except OSError:
                pass
        assert sent < 64 << 20, "its line may be of any length"
    # One that ends, before a chunk that is long, is told what is wrong.
    with Raw(d.port) as s:
        s.send(b"POST /v1/completions HTTP/1.1\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n" +
               b"%x \r\n" % 100000 + b"e" * 100000 + b"\r\n0\r\n\r\n")
        assert s.answer()[0] == 400
        assert closes(s)


def chunked_bodies_are_read(d):
    raw = json.dumps(SHORT).encode()
    with Raw(d.port) as s:
        s.send(b"POST /v1/completions HTTP/1.1\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n")
        for b in raw:
            s.send(b"1\r\n%c\r\n" % b)
        s.send(b"0\r\n\r\n" + request("GET", "/health"))
        assert s.answer()[0] == 200
        assert s.answer()[0] == 200
    # libevent knows no extensions: refused, and what follows is no request.
    for size in (b"%x;a=b" % len(raw), b"0;a", b"z", b"-1"):
        with Raw(d.port) as s:
            s.send(b"POST /v1/completions HTTP/1.1\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" +
                   raw + b"\r\n0\r\n\r\n" + request("GET", "/health"))
            status, _, body = s.answer()
            assert (status, error(body)["code"]) == (413, "bad_http"), size
            assert closes(s) and s.buf == b"", (size, s.buf)


def chunks_that_are_none_are_refused(d):
    """libevent takes more for a chunk's size than RFC 9112: a proxy that reads
    it in another way passes on a second request unseen."""
    raw = json.dumps(SHORT).encode()
    n, head = len(raw), b"POST /v1/completions HTTP/1.1\r\n" \
        b"Transfer-Encoding: chunked\r\n\r\n"
    last, after = b"0\r\n\r\n", request("GET", "/health")
    for body in (b"0x%x\r\n%s\r\n" % (n, raw), b"+%x\r\n%s\r\n" % (n, raw),
                 b"%x ;a\r\n%s\r\n" % (n, raw), b" %x\r\n%s\r\n" % (n, raw),
                 b"%x 5\r\n%s\r\n" % (n, raw), b"%x\n%s\r\n" % (n, raw),
                 b"%x\r\n%s" % (n, raw), b"%x\r\n%s\r\n\r\n" % (n, raw),
                 b"\r\n%x\r\n%s\r\n" % (n, raw)):
        for pieces in (False, True):
            with Raw(d.port) as s:
                s.send(request("GET", "/health"))
                assert s.answer()[0] == 200
                for part in ([head, body, last, after] if pieces else
                             [head + body + last + after]):
                    s.send(part)
                    time.sleep(0.05 if pieces else 0)
                status, _, got = s.answer()
                assert status == 400 and "chunk" in error(got)["message"], (
                    body, status, got)
                assert closes(s) and s.buf == b"", (body, s.buf)
    for body in (b"%04X\r\n%s\r\n0\r\n\r\n" % (n, raw),
                 b"%x\r\n%s\r\n000\r\nX-Sum: 0x5\r\n\r\n" % (n, raw)):
        with Raw(d.port) as s:
            s.send((head + body + after) * 2)
            for _ in range(4):
                assert s.answer()[0] == 200, body


def an_old_client_gets_a_stream_that_ends(d):
    with Raw(d.port) as s:
        s.send(request("POST", "/v1/completions", dict(SHORT, stream=True),
                       version="1.0", headers=[("Connection", "keep-alive")]))
        status, headers, raw = s.answer()
        assert status == 200 and "transfer-encoding" not in headers
        assert events(raw)[-1] == (None, "[DONE]")


def silence_is_filled(d):
    """A stream whose turn does not come shows that it lives, at once and every
    5 s; what it shows is nothing to any reader of events."""
    hog = Raw(d.port)
    hog.send(request("POST", "/v1/completions", dict(FOREVER, n=8)))
    suite.until(lambda: live(d) == 8, "it does not run")
    with Raw(d.port) as s:
        s.send(request("POST", "/v1/completions", dict(SHORT, stream=True)))
        status, headers = s.head()
        assert status == 200 and headers["cache-control"] == "no-cache"
        for _ in range(2):
            assert s.chunk().strip() == b""
        assert live(d) == 9
        hog.close()
        raw = b"".join(iter(s.chunk, b""))
        assert events(raw)[-1] == (None, "[DONE]")


# --- who may ----------------------------------------------------------------

def tls_is_refused_at_once(_):
    """https:// by mistake: no wait for the end of a head that never comes."""
    with Configured({}, *NULL) as d:
        with Raw(d.port) as s:
            s.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 32)
            began = time.monotonic()
            assert closes(s) and time.monotonic() - began < 5
        assert "speaks TLS" in d.tail()


def keep_alive_holds(d):
    with Raw(d.port) as s:
        for i in range(200):
            s.send(request("GET", "/health"))
            assert s.answer()[0] == 200
        s.send(request("GET", "/health", headers=[("Connection", "close")]))
        assert s.answer()[0] == 200 and closes(s)


def the_request_id_comes_back(d):
    for path, body in (("/v1/completions", dict(SHORT, stream=True)),
                       ("/v1/completions", {}), ("/nowhere", {})):
        _, h, _ = d.ask("POST", path, body, {"x-request-id": "abc-1"})
        assert h["x-request-id"] == "abc-1", path
    _, h, _ = d.ask("POST", "/v1/completions", SHORT)
    assert "x-request-id" not in h


def cors_is_off(d):
    _, h, _ = d.ask("GET", "/health", headers={"Origin": "http://evil"})
    assert not [k for k in h if k.startswith("access-control")]
    status, h, _ = d.ask("OPTIONS", "/v1/completions",
                         headers={"Origin": "http://evil"})
    assert status == 405 and not [k for k in h if k.startswith("access-")]


def another_sites_page_changes_nothing(d):
    """A browser sends what any page wants sent, and says so."""
    host = f"127.0.0.1:{d.port}"
    elsewhere = ({"Origin": "http://evil"}, {"Origin": "null"},
                 {"Sec-Fetch-Site": "cross-site"},
                 {"Sec-Fetch-Site": "same-site", "Origin": f"http://{host}"},
                 {"Origin": f"http://{host}.evil"},
                 {"Origin": f"http://evil/{host}"}, {"Origin": "http://"})
    here = ({}, {"Origin": f"http://{host}"}, {"Origin": f"https://{host}"},
            {"Sec-Fetch-Site": "same-origin", "Origin": "http://proxied"},
            {"Sec-Fetch-Site": "none"})
    simple = {"Content-Type": "text/plain"}
    for path, body in (("/flush_cache", None), ("/abort_request", {
            "rid": "none"}), ("/v1/completions", SHORT),
            ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": [
                {"role": "user", "content": "a"}]})):
        for h in elsewhere:
            status, _, raw = d.ask("POST", path, body, dict(simple, **h))
            assert status == 403, (path, h, status)
            assert b"cors_origin" in raw
        for h in here:
            status = d.ask("POST", path, body, dict(simple, **h))[0]
            assert status == (404 if path == "/abort_request" else 200), h
    # An image's address is enough for a GET, and nothing gives it away.
    status, h, _ = d.ask("GET", "/flush_cache")
    assert status == 405 and h["allow"] == "POST"
    with Configured({"cors_origin": "https://app.example"}, *NULL) as e:
        for origin, want in (("https://app.example", 200),
                             ("http://app.example", 403)):
            assert e.ask("POST", "/v1/completions", SHORT, {
                "Origin": origin, "Sec-Fetch-Site": "cross-site"})[0] == want
    with Configured({"cors_origin": "*"}, *NULL) as e:
        assert e.ask("POST", "/v1/completions", SHORT, {
            "Origin": "null", "Sec-Fetch-Site": "cross-site"})[0] == 200


def names(port):
    near = ("127.0.0.1", "[::1]", "192.168.7.1", "localhost", "LocalHost",
            "gpu1", "gpu1.local", "chat.localhost")
    far = ("evil.example", "127.0.0.1.evil.example", "1.2.3.4.5", "local.evil",
           "notlocalhost.example", "[evil.example]", ".local", "localhost.",
           "a" * 300 + ".local")
    return [(n + port, True) for n in near] + [(n + port, False) for n in far]


def a_strangers_name_for_this_server_opens_nothing(d):
    """DNS rebinding: to the browser this server is the page's own."""
    for port in ("", ":8000"):
        for host, near in names(port):
            for h in ({"Origin": f"http://{host}"},
                      {"Origin": f"https://{host}",
                       "Sec-Fetch-Site": "same-origin"},
                      {"Sec-Fetch-Site": "same-origin"}):
                status, _, raw = d.ask("POST", "/flush_cache", None,
                                       dict(h, Host=host))
                assert status == (200 if near else 403), (host, h, status)
                assert near or b"cors_origin" in raw, raw
            # A program says nothing of pages, and may use any name.
            assert d.ask("POST", "/flush_cache", None,
                         {"Host": host})[0] == 200, host
    page = {"Host": "llm.example", "Origin": "https://llm.example",
            "Sec-Fetch-Site": "same-origin"}
    assert d.ask("POST", "/flush_cache", None, page)[0] == 403
    with Configured({"cors_origin": "https://llm.example"}, *NULL) as e:
        assert e.ask("POST", "/flush_cache", None, page)[0] == 200
        for h in ({"Host": "evil.example", "Origin": "http://evil.example"},
                  {"Host": "llm.example", "Origin": "http://llm.example"}):
            assert e.ask("POST", "/flush_cache", None, h)[0] == 403, h
        # The proxy rewrote Host, and http has no Sec-Fetch-Site.
        assert e.ask("POST", "/flush_cache", None, {
            "Origin": "https://llm.example"})[0] == 200


def a_key_is_no_strangers(_):
    """With keys the name is not looked at; the page's origin still is."""
    tmp = tempfile.mkdtemp()
    try:
        conf = {"api_key_file": key_file(tmp, "secret")}
        with Configured(conf, *NULL) as d:
            page = {"Host": "llm.example", "Origin": "https://llm.example"}
            key = {"Authorization": "Bearer secret"}
            for h, want in ((page, 401), ({**page, **key}, 200),
                            ({**key, "Host": "llm.example",
                              "Origin": "http://evil"}, 403)):
                assert d.ask("POST", "/flush_cache", None, h)[0] == want, h
    finally:
        shutil.rmtree(tmp)


def unknown_paths_and_methods(d):
    status, _, body = d.ask("GET", "/v1/nothing")
    assert status == 404 and error(body)["code"] == "unknown_path"
    for path, word in (("/generate", "/v1/completions"),
                       ("/completion", "/v1/completions"),
                       ("/props", "/server_info"), ("/slots", "/metrics"),
                       ("/apply-template", "/tokenize"),
                       ("/load", "/metrics"), ("/get_load", "/metrics"),
                       ("/v1/embeddings", "answers with text"),
                       ("/v1/files", "http.md"), ("/v2/x", "at /v1/"),
                       ("/docs", "http.md"), ("/openapi.json", "http.md")):
        for method in ("GET", "POST"):
            status, _, body = d.ask(method, path)
            e = error(body)
            assert status == 404 and e["code"] == "unknown_path", (path, e)
            assert word in e["message"], (path, e)
    status, h, body = d.ask("GET", "/v1/completions")
    assert status == 405 and h["allow"] == "POST"
    error(body)
    status, h, body = d.ask("PUT", "/health")
    assert status == 405 and "not PUT" in error(body)["message"]
    for path in ("/health%00", "/health%00x", "/%00/health"):
        assert d.ask("GET", path)[0] == 404, path
    with Raw(d.port) as s:
        for path in ("/health", "/v1/models", "/metrics", "/", "/live",
                     "/nowhere"):
            s.send(request("HEAD", path) + request("GET", "/health"))
            status, h, _ = s.answer(no_body=True)
            assert status == (404 if path == "/nowhere" else 200)
            if path != "/live":
                assert int(h["content-length"]) > 0
            assert s.answer()[2] == b'{"status":"ready"}', path
        s.send(request("BREW", "/health"))
        assert s.until(b"\r\n") == b"HTTP/1.1 501 Not Implemented"


# --- with a configuration of their own ----------------------------------------

def keys_guard_all_but_health(_):
    tmp = tempfile.mkdtemp()
    path = key_file(tmp, "first-key", "", "# a comment", "second key")
    try:
        with Configured({"api_key_file": path, "max_connections": 50},
                        *NULL) as d:
            for p in ("/health", "/v1/health", "/health_generate", "/ping"):
                assert d.ask("GET", p)[0] == 200, p
            for method, p in (("GET", "/v1/models"), ("GET", "/nowhere"),
                              ("GET", "/version"), ("GET", "/model_info"),
                              ("POST", "/reset_prefix_cache"),
                              ("POST", "/v1/completions"), ("GET", "/"),
                              ("OPTIONS", "/v1/models"),
                              ("POST", "/flush_cache"), ("GET", "/metrics"),
                              ("GET", "/healthx"), ("GET", "/health/")):
                if p == "/":
                    continue        # the page asks for the key itself
                for head in ({}, {"Authorization": "Bearer first-keys"},
                             {"Authorization": "Bearer "},
                             {"Authorization": "first-key"},
                             {"x-api-key": "First-key"},
                             {"x-api-key": "# a comment"},
                             {"x-api-key": ""}):
                    status, h, body = d.ask(method, p, headers=head)
                    assert status == 401, (method, p, head, status)
                    assert h["www-authenticate"] == "Bearer"
                    if method != "HEAD":
                        assert b"first-key" not in body
            for head in ({"Authorization": "Bearer first-key"},
                         {"authorization": "bearer first-key"},
                         {"x-api-key": "second key"}):
                assert d.ask("GET", "/v1/models", headers=head)[0] == 200
                assert d.ask("GET", "/nowhere", headers=head)[0] == 404
            # A reload takes new keys.
            key_file(tmp, "third")
            d.p.send_signal(1)
            suite.until(lambda: d.ask("GET", "/v1/models", headers={
                "x-api-key": "third"})[0] == 200, "no new key")
            assert d.ask("GET", "/v1/models", headers={
                "x-api-key": "second key"})[0] == 401
            log = open(d.log).read() + json.dumps(d.ctl_json("plugins"))
            for key in ("first-key", "second key", "third"):
                assert key not in log, f"{key} is in the log"
        for conf, word, keys, mode in (
                ({"api_key_file": path}, "others may read it", ["x"], 0o644),
                ({"api_key_file": path}, "has no key", ["", "#"], 0o600),
                ({"api_key_file": tmp + "/none"}, "No such file", [], 0o600),
                ({"api_key": "x"}, "no such key", [], 0o600),
                ({"max_connections": 0}, "max_connections", [], 0o600),
                ({"head_timeout": "soon"}, "head_timeout", [], 0o600)):
            key_file(tmp, *keys, mode=mode)
            try:
                with Configured(conf, *NULL):
                    raise AssertionError(f"{conf} was taken")
            except RuntimeError as e:
                assert word in str(e) and "status 78" in str(e), e
    finally:
        shutil.rmtree(tmp)


def cors_on_request(_):
    with Configured({"cors_origin": "https://app.example"}, *NULL) as d:
        status, h, _ = d.ask("OPTIONS", "/v1/completions")
        assert status == 204 and "POST" in h["access-control-allow-methods"]
        for path in ("/health", "/nowhere"):
            _, h, _ = d.ask("GET", path)
            assert h["access-control-allow-origin"] == "https://app.example"


def connections_are_capped(_):
    with Configured({"max_connections": 8}, *NULL) as d:
        held = [Raw(d.port) for _ in range(8)]
        for s in held:
            s.send(request("GET", "/health"))
            assert s.answer()[0] == 200
        with Raw(d.port) as s:
            s.send(request("GET", "/health"))
            status, headers, body = s.answer()
            assert status == 503 and headers["retry-after"] == "1"
            e = error(body)
            assert e["code"] == "too_many_connections"
            assert e["message"].startswith("8 ") and \
                e["message"].endswith("raise max_connections"), e
            assert closes(s)
        # Hundreds more wait their turn and hurt nobody.
        crowd = [Raw(d.port) for _ in range(200)]
        held[0].send(request("POST", "/v1/completions", SHORT))
        assert held[0].answer()[0] == 200
        for s in crowd + held[1:]:
            s.close()
        with Raw(d.port) as s:
            suite.until(lambda: d.ask("GET", "/health")[0] == 200,
                        "no room again")


class FewDescriptors(Configured):
    def __init__(self, n, *args):
        super().__init__({}, *args)
        self.args = ["prlimit", f"--nofile={n}:{n}", *self.args]


def connections_leave_descriptors_to_others(_):
    """dcpctl and the ring are served however many HTTP's clients are."""
    with FewDescriptors(256, *NULL) as d:
        assert "max_connections is 4096, but" in d.tail(99)
        crowd, status = [], 200
        while status == 200:
            crowd.append(Raw(d.port))
            crowd[-1].send(request("GET", "/health"))
            status, _, body = crowd[-1].answer()
        e = error(body)["message"]
        assert e.startswith(f"{len(crowd) - 1} ") and "ulimit -n" in e, e
        crowd += [Raw(d.port) for _ in range(400 - len(crowd))]
        suite.until(lambda: len(os.listdir(f"/proc/{d.p.pid}/fd")) > 100,
                    "they do not come in")
        assert d.ctl("status").returncode == 0, d.tail()
        said = d.ctl("generate", "--prompt", "a", "--max-tokens", 2)
        assert said.returncode == 0, said.stderr
        for s in crowd:
            s.close()
        suite.until(lambda: d.ask("GET", "/health")[0] == 200,
                    "no room again")
        assert len(re.findall(" accept: ", d.tail(999))) <= 1, d.tail(40)


def bodies_are_bounded_in_all(_):
    """Whoever has no key may send a body, but not many at once."""
    with Configured({"max_input": 64 << 20}, *NULL) as d:
        before = rss(d)
        socks = []
        for _ in range(8):
            s = Raw(d.port)
            socks.append(s)
            try:
                s.send(b"POST /v1/completions HTTP/1.1\r\n"
                       b"Content-Length: %d\r\n\r\n" % (32 << 20))
                for _ in range(30):
                    s.send(b"x" * (1 << 20))
            except OSError:
                pass                # dropped: this one, or one before it
        grown = rss(d) - before
        suite.until(lambda: d.ctl_json("plugins")[0]["stats"]
                    ["connections"] <= 2, "more than two are kept")
        assert grown < 96 << 10, grown
        for s in socks:
            s.close()
        suite.until(lambda: d.ask("POST", "/v1/completions", SHORT)[0] == 200,
                    "it serves nobody any more")
        # What was served is not counted for ever.
        big = json.dumps(dict(SHORT, pad="x" * (24 << 20)))
        for _ in range(3):
            assert d.ask("POST", "/v1/completions", big)[0] == 200


def bodies_that_are_gone_take_no_memory(_):
    with Configured({}, *NULL) as d:
        assert d.ask("POST", "/v1/completions", SHORT)[0] == 200
        before = rss(d)
        socks = [Raw(d.port) for _ in range(6)]
        for s in socks:
            s.send(b"POST /v1/completions HTTP/1.1\r\n"
                   b"Content-Length: %d\r\n\r\n" % (32 << 20))
            for _ in range(30):
                s.send(b"x" * (1 << 20))
        suite.until(lambda: rss(d) - before > 150 << 10, "they are not held")
        for s in socks:
            s.close()
        suite.until(lambda: rss(d) - before < 24 << 10, "memory stays")


def the_largest_body_pays_for_it(_):
    """Not whoever happens to send the byte that is too much."""
    with Configured({"max_input": 64 << 20}, *NULL) as d:
        big = []
        for size in (30 << 20, 31 << 20):
            big.append(Raw(d.port))
            big[-1].send(b"POST /v1/completions HTTP/1.1\r\n"
                         b"Content-Length: %d\r\n\r\n" % (32 << 20))
            for _ in range(size >> 20):
                big[-1].send(b"x" * (1 << 20))
        pad = json.dumps(dict(SHORT, pad="x" * (6 << 20)))
        for _ in range(3):
            assert d.ask("POST", "/v1/completions", pad)[0] == 200
        assert closes(big[1])
        # The smaller of the two was left alone: it comes to its answer.
        big[0].send(b"x" * (2 << 20))
        assert big[0].answer()[0] == 400
        for s in big:
            s.close()


def so_are_those_that_are_kept(_):
    """A body that its answer needs is counted until that is out, no other."""
    pad = {"pad": "x" * (24 << 20), "stream": True}
    chat = {"model": "m", "max_tokens": 100000, "messages": [
        {"role": "user", "content": "a"}], **pad}
    with Configured({"max_input": 64 << 20}, *NULL,
                    "--null-step-us", 20000) as d:
        socks = []
        for _ in range(3):
            socks.append(Raw(d.port))
            socks[-1].send(request("POST", "/v1/completions",
                                   dict(FOREVER, **pad)))
            assert socks[-1].head()[0] == 200
        for _ in range(2):
            socks.append(Raw(d.port))
            socks[-1].send(request("POST", "/v1/messages", chat))
            assert socks[-1].head()[0] == 200
        suite.until(lambda: live(d) == 5, "not all of them run")
        with Raw(d.port) as s:
            try:
                s.send(request("POST", "/v1/messages", chat))
                s.head()
                raise AssertionError("a third one is kept")
            except (Closed, OSError):
                pass
        for s in socks:
            s.close()
        suite.until(lambda: live(d) == 0, "they run on")
        with Raw(d.port) as s:
            s.send(request("POST", "/v1/messages", chat))
            assert s.head()[0] == 200


def answers_are_bounded_in_all(_):
    """Logprobs take a hundred times what they tell; the largest pays."""
    with Configured({"max_answers": 32 << 20}, *NULL, "--null-pages", 20000,
                    "--chunked-prefill-size", 8192) as d:
        many = {"prompt": [[20] * 4000] * 40, "max_tokens": 0, "echo": True,
                "logprobs": 20}
        few = dict(many, prompt=[20] * 4000)
        for _ in range(3):
            status, _, body = d.ask("POST", "/v1/completions", few)
            assert status == 200, body
            before = rss(d)
            status, h, body = d.ask("POST", "/v1/completions", many)
            assert status == 503 and h["retry-after"] == "1", status
            assert error(body)["code"] == "out_of_memory"
            assert rss(d) < before + (64 << 10), (before, rss(d))
        suite.until(lambda: live(d) == 0, "they run on")
        # What is streamed, or is short, is not concerned.
        with Raw(d.port) as s:
            s.send(request("POST", "/v1/completions",
                           dict(many, stream=True)))
            assert s.answer()[0] == 200
        assert "max_answers" in d.tail(99)


def so_are_answers_that_nobody_takes(_):
    """Whole, and in the buffers of clients that read too slowly to be stuck:
    the largest loses its connection, not whoever comes last."""
    def ask(tokens):
        s = Raw(d.port, rcvbuf=4096)
        s.send(request("POST", "/v1/completions", {
            "prompt": [20] * tokens, "max_tokens": 0, "echo": True,
            "logprobs": 20}))
        status, headers = s.head()
        return s, status, int(headers["content-length"])

    def comes(s, size):
        s.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        try:
            return len(s.take(size)) == size
        except Closed:
            return False

    with Configured({"max_answers": 64 << 20, "stuck_timeout": 300}, *NULL, "--null-pages", 20000,
                    "--chunked-prefill-size", 8192) as d:
        before = rss(d)
        large = [ask(60000) for _ in range(3)]
        for _, status, size in large:
            assert status == 200 and 12 << 20 < size < 16 << 20, (status, size)
        small = [ask(24000) for _ in range(12)]
        for _, status, size in small:
            assert status == 200 and 5 << 20 < size < 7 << 20, (status, size)
        assert "has not taken" in d.tail(99)
        assert rss(d) < before + (100 << 10), (before, rss(d))
        assert sum(comes(s, size) for s, _, size in large) < 3
        assert all(comes(s, size) for s, _, size in small)
        for s, *_ in large + small:
            s.close()
        # What they took is there again.
        for _ in range(3):
            s, status, size = ask(60000)
            assert status == 200 and comes(s, size)
            s.close()


def a_large_answer_holds_up_nobody(d):
    """Megabytes of logprobs: a reader of something else waits for a small part
    of the time that they take."""
    n, worst, done = 40000, 0, threading.Event()

    def ask():
        status, _, body = d.ask("POST", "/v1/completions", {
            "prompt": [20] * n, "max_tokens": 0, "echo": True, "logprobs": 20})
        said.append((status, body))
        done.set()

    said, begun = [], time.monotonic()
    t = threading.Thread(target=ask)
    t.start()
    while not done.is_set():
        s = time.monotonic()
        assert d.ask("GET", "/health")[0] == 200
        worst = max(worst, time.monotonic() - s)
    t.join()
    took = time.monotonic() - begun
    status, body = said[0]
    assert status == 200, body[:200]
    lists = json.loads(body)["choices"][0]["logprobs"]
    assert all(len(x) == n for x in lists.values()), {
        k: len(x) for k, x in lists.items()}
    assert lists["text_offset"] == [
        i * len(lists["tokens"][0]) for i in range(n)]
    assert len(lists["top_logprobs"][n - 1]) >= 20
    assert worst < took / 4, (worst, took)
    return f"{len(body) >> 20} MiB in {took:.2f} s, others {worst:.3f} s"


def a_turn_of_many_parts_is_read_at_once(d):
    """Else one request would hold up all others, and the watchdog."""
    def count(content, *more):
        status, _, body = d.ask("POST", "/v1/messages/count_tokens", {
            "model": "m", "messages": [
                {"role": "assistant", "content": content}, *more]})
        return status, json.loads(body)

    part, user = {"type": "text", "text": "so "}, {"role": "user",
                                                   "content": "a"}
    assert count([part] * 2000, user) == count("so " * 2000, user)
    status, said = count([part] * 600000)
    assert status == 400 and "the last message is" in said["error"]["message"]


def a_full_queue_is_503(_):
    """CASES 24: ten times too much is refused at once; who is in, is served."""
    with Configured({}, *NULL, "--max-running-requests", 2, "--queue-max", 4,
                    "--null-step-us", 2000) as d:
        body = dict(FOREVER, max_tokens=60)
        socks = [Raw(d.port) for _ in range(60)]
        for i, s in enumerate(socks):
            s.send(request("POST", "/v1/completions",
                           dict(body, stream=i % 2 == 0)))
        served = refused = 0
        for s in socks:
            status, headers, raw = s.answer()
            if status == 200:
                served += 1
                continue
            assert status == 503 and headers["retry-after"] == "1", status
            assert error(raw)["code"] == "queue_full"
            refused += 1
        # As many as run and wait at least, but for those between the two.
        assert served >= 4 and refused >= 30, (served, refused)
        print(f"  {served} served, {refused} refused")


def listens_on_a_unix_socket_too(_):
    tmp = tempfile.mkdtemp()
    path = tmp + "/http.sock"
    try:
        for _ in range(2):
            with Configured({"listen": [f"unix:{path}", "127.0.0.1:0"]},
                            *NULL, http=False) as d:
                assert os.stat(path).st_mode & 0o777 == 0o660
                with Raw(None, path=path) as s:
                    s.send(request("POST", "/v1/completions", SHORT))
                    assert s.answer()[0] == 200
                # A second daemon does not take it away.
                try:
                    with Configured({"listen": f"unix:{path}"}, *NULL,
                                    http=False):
                        raise AssertionError("taken away")
                except RuntimeError as e:
                    assert "another process listens" in str(e), e
            assert not os.path.exists(path)
        open(path, "w").close()
        try:
            with Configured({"listen": f"unix:{path}"}, *NULL, http=False):
                raise AssertionError("a file was replaced")
        except RuntimeError as e:
            assert "is no socket" in str(e), e
    finally:
        shutil.rmtree(tmp)


# What systemd does: a socket that listens, as descriptor 3, by its unit's name.
ACTIVATE = """
import os, socket, sys
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1",
                  LISTEN_FDNAMES="dcpd-http")
os.execv(sys.argv[1], sys.argv[1:])
"""


def takes_its_socket_from_systemd(_):
    d = Configured({}, *NULL, "--http", "systemd")
    d.args = [sys.executable, "-c", ACTIVATE, *d.args]
    with d:
        with Raw(d.port) as s:
            for _ in range(3):
                s.send(request("POST", "/v1/completions", SHORT))
                assert s.answer()[0] == 200
        with open(os.path.join(SRC, "systemd/dcpd-http.socket")) as f:
            assert "FileDescriptorName=dcpd-http\n" in f.read()


def few_descriptors_end_the_start_with_a_line(_):
    """However few: libevent would call exit()."""
    last = []
    for n in range(8, 64):
        d = Configured({}, *NULL)
        d.args += ["--unix", os.path.join(d.dir, "u")]
        with open(d.log, "wb") as log:
            p = subprocess.Popen(
                ["sh", "-c", f"ulimit -n {n}; exec \"$@\"", "sh", *d.args],
                stderr=log, env=dict(os.environ, **d.env))
        suite.until(lambda: p.poll() is not None or "ready after" in d.tail(),
                    "it neither starts nor ends")
        served = p.poll() is None
        p.terminate()
        rc = p.wait(60)
        last.append(d.tail(1).strip())
        d.stop()
        if served:
            break
        assert rc == 1 and " error: " in last[-1] and \
            "Too many open files" in last[-1], (n, rc, last[-1])
    assert any("event loop" in line for line in last), last


def a_port_in_use_ends_the_start(_):
    with Configured({}, *NULL) as d:
        for where, word in ((f"127.0.0.1:{d.port}", "in use"),
                            ("nowhere", "want HOST:PORT"),
                            ("192.0.2.1:80", "has no such address"),
                            ("a b:80", "a name of this machine"),
                            ("unix:/none/here", "in a folder where"),
                            ("127.0.0.1:99999", "want HOST:PORT"),
                            ("::1:80", "brackets"),
                            ("systemd", "passed no socket")):
            try:
                with Configured({"listen": where}, *NULL, http=False):
                    raise AssertionError(f"{where} was taken")
            except RuntimeError as e:
                assert word in str(e), e
        # An interface may get it after boot: worth another try.
        r = subprocess.run(
            [binary("dcpd"), *NULL, "--socket", os.path.join(d.dir, "other"),
             "--http", "192.0.2.1:80"], env=dict(os.environ, **d.env),
            capture_output=True, text=True, timeout=60)
        assert r.returncode == 1 and "no such address" in r.stderr, r


with Configured({"head_timeout": 1, "idle_timeout": 2, "stuck_timeout": 4},
                *NULL, "--max-running-requests", 8, "--null-step-us", 100,
                "--null-pages", 20000) as daemon:
    suite.run(
        daemon,
        client_leaves_before_the_first_byte_of_a_stream,
        client_leaves_before_an_answer_that_is_no_stream,
        pipelined_requests_are_answered_in_turn, a_head_in_drops_is_cut_off,
        a_connection_at_rest_is_closed, a_reader_that_takes_nothing_is_cut_off,
        a_slow_reader_gets_all_of_it, a_flood_while_streaming_is_not_read,
        a_large_head_is_refused, a_large_body_is_refused,
        a_length_in_doubt_is_refused, a_size_without_an_end_is_cut_off,
        chunked_bodies_are_read,
        chunks_that_are_none_are_refused,
        an_old_client_gets_a_stream_that_ends, silence_is_filled,
        tls_is_refused_at_once, keep_alive_holds, the_request_id_comes_back,
        cors_is_off,
        another_sites_page_changes_nothing,
        a_strangers_name_for_this_server_opens_nothing, a_key_is_no_strangers,
        unknown_paths_and_methods, keys_guard_all_but_health, cors_on_request,
        connections_are_capped, connections_leave_descriptors_to_others,
        bodies_are_bounded_in_all,
        bodies_that_are_gone_take_no_memory,
        the_largest_body_pays_for_it,
        so_are_those_that_are_kept, answers_are_bounded_in_all,
        so_are_answers_that_nobody_takes,
        a_large_answer_holds_up_nobody,
        a_turn_of_many_parts_is_read_at_once, a_full_queue_is_503,
        listens_on_a_unix_socket_too, takes_its_socket_from_systemd,
        few_descriptors_end_the_start_with_a_line,
        a_port_in_use_ends_the_start)
