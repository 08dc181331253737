#!/usr/bin/python3
"""Faults that other engines shipped (doc/cases.md), tried through HTTP: clients
that die, cancelled prefills, the daemon's own end, health that tells the truth.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import suite  # noqa: E402
from httpconf import NULL, Configured  # noqa: E402
from httpd import TINY, events  # noqa: E402
from rawhttp import Closed, Raw, request  # noqa: E402

COMP = "/v1/completions"
FOREVER = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True,
           "stream": True}
SHORT = {"prompt": "hi", "max_tokens": 3}

# A client as a process: argv is the port and a request's JSON; says when its
# stream has begun, and reads on.
CLIENT = """
import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
c.request("POST", "/v1/completions", sys.argv[2])
r = c.getresponse()
print("begun", flush=True)
while r.read(100): pass
"""


def status(d):
    return d.ctl_json("status")


def live(d):
    s = status(d)
    return s["running"] + s["waiting"]


def fds(d):
    return len(os.listdir(f"/proc/{d.p.pid}/fd"))


def health(d):
    code, _, body = d.ask("GET", "/health")
    return code, json.loads(body)["status"]


def killed_clients_leave_nothing(_):
    """CASES 20: in prefill, in decode, queued; kill -9 of 12 processes."""
    with Configured({}, *NULL, "--null-step-us", 1000, "--null-pages", 4000,
                    "--max-running-requests", 8) as d:
        assert d.ask("POST", COMP, SHORT)[0] == 200
        suite.until(lambda: d.ctl_json("plugins")[0]["stats"]
                    ["connections"] == 0, "a connection stays")
        before = fds(d)
        ps = [subprocess.Popen([sys.executable, "-c", CLIENT, str(d.port),
                                json.dumps(dict(FOREVER, prompt="a" * n))],
                               stdout=subprocess.PIPE)
              for n in [1] * 4 + [90000] * 4 + [5] * 4]
        for p in ps[:4] + ps[8:]:
            assert p.stdout.readline() == b"begun\n"
        with Raw(d.port) as other:
            other.send(request("POST", COMP, dict(FOREVER, prompt="zz")))
            other.head()
            for p in ps:
                p.kill()
            for p in ps:
                p.wait()
                p.stdout.close()
            suite.until(lambda: live(d) == 1, "the dead run on")
            other.until(b"data: ")          # nobody else noticed
        suite.until(lambda: live(d) == 0, "it runs on")
        suite.until(lambda: status(d)["ranks"][0]["pages_used"] == 0,
                    "pages stay")
        suite.until(lambda: fds(d) <= before, "descriptors stay")
        assert d.ctl("check").returncode == 0


def a_cancelled_prefill_frees_the_way(_):
    """CASES 21, counted in steps: how long these take is no matter."""
    with Configured({}, *NULL, "--null-step-us", 20000, "--null-pages", 2000,
                    "--chunked-prefill-size", 64, "--max-running-requests",
                    1) as d:
        s = Raw(d.port)
        s.send(request("POST", COMP, {"prompt": [20] * 60000,
                                      "max_tokens": 1}))
        suite.until(lambda: status(d)["counters"]["prefill_rows"] > 640,
                    "no prefill")
        with Raw(d.port) as hi:
            hi.send(request("POST", COMP, SHORT))
            suite.until(lambda: status(d)["waiting"] == 1, "it does not wait")
            s.close()
            suite.until(lambda: status(d)["counters"]["requests_cancelled"],
                        "not cancelled")
            at = status(d)["counters"]["steps"]
            assert hi.answer()[0] == 200
            took = status(d)["counters"]["steps"] - at
        assert took <= 3 + 8, f"{took} steps for 3 tokens behind a dead one"


def sigterm_lets_streams_finish(_):
    """CASES 26. New work is refused meanwhile, and health says why."""
    with Configured({}, *NULL, "--null-step-us", 3000) as d:
        socks = [Raw(d.port) for _ in range(20)]
        for s in socks:
            s.send(request("POST", COMP, dict(FOREVER, max_tokens=600)))
            s.head()
        with Raw(d.port) as more:
            more.send(request("GET", "/health"))
            assert more.answer()[0] == 200
            d.p.send_signal(signal.SIGTERM)
            suite.until(lambda: health(d) == (503, "draining"), "no drain")
            code, headers, body = d.ask("POST", COMP, SHORT)
            assert code == 503 and headers["retry-after"] == "1"
            assert json.loads(body)["error"]["code"] == "draining"
        for s in socks:
            said = events(b"".join(iter(s.chunk, b"")))
            assert said[-1] == (None, "[DONE]")
            end = json.loads(said[-2][1])["choices"][0]
            assert end["finish_reason"] == "length", end
            s.close()
        assert d.p.wait(60) == 0, d.tail()


def who_is_cut_short_hears_why(_):
    """By a second SIGTERM, and by the end of the drain's time."""
    for seconds, signals in ((600, 2), (1, 1)):
        with Configured({}, *NULL, "--null-step-us", 3000, "--drain-timeout",
                        seconds) as d:
            with Raw(d.port) as s, Raw(d.port) as whole:
                whole.send(request("POST", COMP, dict(FOREVER, stream=False)))
                s.send(request("POST", COMP, FOREVER))
                s.head()
                suite.until(lambda: live(d) == 2, "they do not run")
                d.p.send_signal(signal.SIGTERM)
                suite.until(lambda: health(d) == (503, "draining"),
                            "no drain")
                if signals > 1:
                    d.p.send_signal(signal.SIGTERM)
                said = events(b"".join(iter(s.chunk, b"")))
                assert said[-1] == (None, "[DONE]")
                error = json.loads(said[-2][1])["error"]
                assert error["code"] == "draining", error
                code, headers, body = whole.answer()
                assert code == 503 and headers["retry-after"] == "1"
                assert json.loads(body)["error"]["code"] == "draining"
                assert d.p.wait(60) == 0, d.tail()


def sigkill_is_seen_at_once(_):
    with Configured({}, *NULL, "--null-step-us", 3000) as d:
        with Raw(d.port) as s:
            s.send(request("POST", COMP, FOREVER))
            s.head()
            d.p.kill()
            d.p.wait()
            try:
                while True:
                    s.more()
            except Closed:
                pass
        assert not [n for n in os.listdir("/dev/shm") if "dcp" in n]


def health_while_it_loads(_):
    """503 from the first moment on, and no request is lost in a connection
    that nobody answers: a start whose reads are slow."""
    tmp = tempfile.mkdtemp()
    with open(tmp + "/slow.c", "w") as f:
        f.write("#define _GNU_SOURCE\n#include <dlfcn.h>\n"
                "#include <unistd.h>\n#include <sys/types.h>\n"
                "ssize_t pread(int fd, void *p, size_t n, off_t o)\n"
                "{ ssize_t (*f)(int, void *, size_t, off_t) =\n"
                "    (ssize_t (*)(int, void *, size_t, off_t))"
                "dlsym(RTLD_NEXT, \"pread\");\n"
                "  usleep(10000); return f(fd, p, n, o); }\n"
                "ssize_t pread64(int fd, void *p, size_t n, off_t o)\n"
                "{ return pread(fd, p, n, o); }\n")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o",
                    tmp + "/slow.so", tmp + "/slow.c", "-ldl"], check=True)
    d = Configured({}, "--model", TINY, "--kv-bytes-per-rank", "64MiB",
                   env={"LD_PRELOAD": tmp + "/slow.so"}, ready=120)
    seen = []

    def watch():
        while not seen or seen[-1][0] != 200:
            if not os.path.exists(d.log):
                continue
            try:
                d.port = d.find_port()
                seen.append(health(d))
                if seen[-1][0] == 503:
                    code, h, body = d.ask("POST", COMP, SHORT)
                    if code != 200:
                        assert code == 503 and h["retry-after"] == "1"
                        seen.append((code, json.loads(body)["error"]["code"]))
            except (AssertionError, OSError):
                pass
            time.sleep(0.01)

    t = threading.Thread(target=watch, daemon=True)
    t.start()
    try:
        with d:
            t.join(60)
            assert d.ask("POST", COMP, SHORT)[0] == 200
    finally:
        shutil.rmtree(tmp)
    assert seen[-1] == (200, "ready"), seen[-5:]
    assert (503, "loading") in seen, seen[:5]
    assert seen.index((200, "ready")) == len(seen) - 1, seen
    print(f"  {len(seen)} answers while it loaded")


def health_in_a_long_prefill(_):
    """Work that advances is health, however long it takes."""
    with Configured({}, *NULL, "--null-step-us", 100000, "--null-pages", 2000,
                    "--chunked-prefill-size", 64, "--stuck-after", 1) as d:
        with Raw(d.port) as s:
            s.send(request("POST", COMP, {"prompt": [20] * 60000,
                                          "max_tokens": 1}))
            suite.until(lambda: live(d) == 1, "it does not run")
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                assert health(d) == (200, "ready")
                time.sleep(0.05)
            assert live(d) == 1


def a_step_that_hangs_is_said(_):
    """CASES 27: by health, which goes on answering."""
    with Configured({}, *NULL, "--null-step-us", 6000000, "--stuck-after",
                    1) as d:
        with Raw(d.port) as s:
            s.send(request("POST", COMP, SHORT))
            suite.until(lambda: health(d) == (503, "stuck"), "never stuck")
            d.p.kill()


def an_engine_that_fails_in_mid_stream(_):
    with Configured({}, *NULL, "--null-step-us", 1000, "--null-fail-after",
                    300) as d:
        with Raw(d.port) as s:
            s.send(request("POST", COMP, FOREVER))
            s.head()
            said = events(b"".join(iter(s.chunk, b"")))
            assert said[-1] == (None, "[DONE]"), said[-2:]
            e = json.loads(said[-2][1])["error"]
            assert set(e) == {"message", "type", "param", "code"}, e
            assert e["type"] == "server_error", e
        assert d.p.wait(60) != 0, "it goes on with a broken engine"


def aborted_answers_say_so(_):
    with Configured({}, *NULL, "--null-step-us", 2000) as d:
        with Raw(d.port) as s, Raw(d.port) as other:
            other.send(request("POST", COMP, FOREVER))
            other.head()
            s.send(request("POST", COMP, FOREVER,
                           headers=[("x-request-id", "mine")]))
            s.head()
            first = s.until(b"data: ") and s.until(b"\n\n")
            rid = json.loads(first)["id"]
            assert d.ask("POST", "/abort_request", {"rid": "no"})[0] == 404
            assert d.ask("POST", "/abort_request", {})[0] == 400
            assert d.ask("POST", "/abort_request", {"rid": rid})[0] == 200
            s.until(b'"finish_reason":"abort"')
            s.until(b"[DONE]")
            other.until(b"data: ")
            assert live(d) == 1
        suite.until(lambda: live(d) == 0, "it runs on")
        with Raw(d.port) as s:
            s.send(request("POST", COMP, dict(FOREVER, stream=False),
                           headers=[("x-request-id", "mine")]))
            suite.until(lambda: live(d) == 1, "it does not run")
            d.post("/abort_request", {"rid": "mine"})
            o = json.loads(s.answer()[2])
            assert o["choices"][0]["finish_reason"] == "abort"
            # SGLang's and vLLM's field for it.
            for key in ("rid", "request_id"):
                s.send(request("POST", COMP, {
                    **FOREVER, "stream": False, key: "its own"}))
                suite.until(lambda: live(d) == 1, "it does not run")
                d.post("/abort_request", {"rid": "its own"})
                _, h, body = s.answer()
                assert h["x-request-id"] == "its own", h
                o = json.loads(body)
                assert o["choices"][0]["finish_reason"] == "abort"
            s.send(request("POST", COMP, {**FOREVER, "stream": False,
                                          "rid": "in\r\nx: 1"}))
            suite.until(lambda: live(d) == 1, "it does not run")
            d.post("/abort_request", {"rid": "in\r\nx: 1"})
            assert "x-request-id" not in s.answer()[1]
            for key, v in (("rid", 3), ("request_id", "a" * 257)):
                status, _, body = d.ask("POST", COMP, {
                    **FOREVER, "max_tokens": 1, key: v})
                assert status == 400, status
                assert json.loads(body)["error"]["param"] == key, body
            s.send(request("POST", COMP, FOREVER))
            s.head()
            d.post("/abort_request", {"abort_all": True})
            s.until(b'"finish_reason":"abort"')


def abort_and_resend_keeps_the_prefix(_):
    """CASES 22, in small: the same prompt, dropped 100 times, is still hit."""
    with Configured({}, *NULL, "--null-step-us", 200) as d:
        body = dict(FOREVER, prompt=[30 + i % 50 for i in range(1000)])
        for _ in range(100):
            with Raw(d.port) as s:
                s.send(request("POST", COMP, body))
                s.head()
                s.until(b"data: ")
        suite.until(lambda: live(d) == 0, "one runs on")
        o = d.post(COMP, dict(body, stream=False, max_tokens=1))
        n = o["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert n >= 15 * 64, n
        assert d.ctl("check").returncode == 0


suite.run(None, killed_clients_leave_nothing,
          a_cancelled_prefill_frees_the_way, sigterm_lets_streams_finish,
          who_is_cut_short_hears_why, sigkill_is_seen_at_once,
          health_while_it_loads, health_in_a_long_prefill,
          a_step_that_hangs_is_said, an_engine_that_fails_in_mid_stream,
          aborted_answers_say_so, abort_and_resend_keeps_the_prefix)
