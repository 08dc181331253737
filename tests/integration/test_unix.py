"""The Unix front end: the same answers as over the ring, several requests on a
connection, and clients that die, lie, flood or do not read.
"""
import concurrent.futures
import grp
import http.client
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

SRC = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(SRC, "tests/lib"))
from daemon import BUILD, Daemon, binary  # noqa: E402
import dcpclient as D  # noqa: E402
import eval_rows  # noqa: E402

TINY = SRC + "/models/dcp-tiny"
NULL = ["--engine", "null"]
os.environ.setdefault("DCPD_PLUGIN_DIR", BUILD + "/plugins/.libs")
with open(binary("dcpd"), "rb") as program:
    # Sanitizers keep what is freed, have memory beside the memory, and take
    # minutes for what a model computes.
    SANITIZED = re.search(rb"lib[at]san\.so", program.read()) is not None


class Unix(Daemon):
    """A daemon with the front end; .unix is its socket."""

    def __init__(self, *args, **conf):
        super().__init__(*args)
        self.unix = self.dir + "/unix.sock"
        self.configure(**conf)
        self.args += ["--config", self.dir + "/conf"]

    def configure(self, **conf):
        with open(self.dir + "/conf", "w") as f:
            json.dump({"plugins": {"unix": {"listen": [self.unix], **conf}}},
                      f)

    def open(self):
        return Conn(self.unix)

    def stats(self):
        return self.ctl_json("plugins")[0]["stats"]

    def live(self):
        return self.ctl_json("status")["live"]


class Conn:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(120)
        self.s.connect(path)
        self.f = self.s.makefile("rb")

    def send(self, *lines):
        self.s.sendall(b"".join(json.dumps(o).encode() + b"\n"
                                for o in lines))

    def line(self):
        text = self.f.readline()
        return json.loads(text) if text else None

    def ask(self, **line):
        self.send(line)
        return self.line()

    def lines(self, n):
        """Until n requests have ended: {id: [their lines]}."""
        got, ended = {}, 0
        while ended < n:
            o = self.line()
            assert o is not None, f"closed after {got}"
            got.setdefault(o["id"], []).append(o)
            ended += o["event"] in ("done", "error")
        return got

    def close(self):
        self.f.close()
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def listens(path):
    """Somebody does on that path; it is there a little earlier."""
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(path) == 0


def joined(lines, channel):
    return "".join(o["text"] for o in lines
                   if o["event"] == "delta" and o["channel"] == channel)


# --- answers ----------------------------------------------------------------

CHAT = [{"role": "user", "content": "Ann has 12 pears. Ben gives Ann 13 more."
         " How many pears does Ann have now?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]


def same_as_ring():
    """The same bytes over the socket, streaming and not, and the ring."""
    cases = [
        (dict(prompt="The river", max_tokens=24, temperature=0),
         dict(text="The river", max_tokens=24, temperature=0)),
        (dict(prompt="The river", max_tokens=40, temperature=1.5, seed=7),
         dict(text="The river", max_tokens=40, temperature=1.5, seed=7)),
        (dict(tokens=[340, 277, 599], max_tokens=16, temperature=0.8, seed=1,
              top_p=0.9, top_k=50, ignore_eos=True),
         dict(tokens=[340, 277, 599], max_tokens=16, temperature=0.8, seed=1,
              top_p=0.9, top_k=50, flags=D.IGNORE_EOS)),
        (dict(messages=CHAT, temperature=0), dict(chat=CHAT, temperature=0)),
        (dict(messages=CHAT, seed=3, temperature=1, max_tokens=60),
         dict(chat=CHAT, seed=3, temperature=1, max_tokens=60)),
        (dict(messages=[{"role": "user", "content":
                         "What is the weather in Oslo?"}], tools=TOOLS,
              temperature=0, max_tokens=100),
         dict(chat=[{"role": "user", "content":
                     "What is the weather in Oslo?"}],
              options={"tools": TOOLS}, temperature=0, max_tokens=100)),
        (dict(prompt="The river", stop=[" a"], max_tokens=30, temperature=0,
              logit_bias={"616": -50.5}),
         dict(text="The river", stop=[" a"], max_tokens=30, temperature=0,
              logit_bias={616: -50.5})),
    ]
    calls = 0
    with Unix("--model", TINY) as d, d.client() as ring, d.open() as c:
        for ask, same in cases:
            want = ring.generate(**same)
            assert want.error is None, want.error_text
            whole = c.ask(**ask)
            assert whole["text"] == want.text, (ask, whole, want.text)
            assert whole.get("reasoning", "") == want.reasoning
            assert whole["tokens"] == want.tokens
            assert whole["finish_reason"] == want.finish
            got = [[t["name"], t["arguments"]]
                   for t in whole.get("tool_calls", [])]
            assert got == want.calls
            calls += len(got)
            c.send({**ask, "stream": True, "id": "s"})
            lines = c.lines(1)["s"]
            assert joined(lines, "content") == want.text
            assert joined(lines, "reasoning") == want.reasoning
            assert joined(lines, "tool_args") == \
                "".join(a for _, a in want.calls)
            assert sum((o["tokens"] for o in lines[:-1]), []) == want.tokens
            last = lines[-1]
            assert last["usage"]["completion_tokens"] == \
                want.usage["completion_tokens"]
            assert last["finish_reason"] == want.finish
        assert calls > 0, "no case calls a tool"
        assert c.ask(**cases[-1][0])["stop"] == 1
        want = ring.generate(text="The river", max_tokens=5, temperature=0,
                             top_logprobs=2, flags=D.LOGPROBS | D.ECHO)
        got = c.ask(prompt="The river", max_tokens=5, temperature=0,
                    top_logprobs=2, echo=True)["logprobs"]
        same = [(p["token"], p["logprob"],
                 [(t["token"], t["logprob"]) for t in p["top"]]) for p in got]
        all_of = want.prompt_logprobs + want.logprobs
        assert len(same) == 7 and same[0][1] is None, same
        assert math.isnan(all_of[0][1]) and same[0][0] == all_of[0][0]
        assert same[1:] == all_of[1:], (same, all_of)


def one_call():
    """parallel_tool_calls: false ends the answer with its first call, which
    the model, kept from its end, would go on from."""
    ask = dict(messages=[{"role": "user",
                          "content": eval_rows.rows("tools")[0]["question"]}],
               tools=eval_rows.TOOLS, temperature=0, min_tokens=150,
               max_tokens=160)
    with Unix("--model", TINY) as d, d.open() as c:
        for key in ({}, {"parallel_tool_calls": True},
                    {"parallel_tool_calls": None}):
            o = c.ask(**ask, **key)
            assert o["usage"]["completion_tokens"] >= 150, (key, o)
        o = c.ask(**ask, parallel_tool_calls=False)
        assert o["usage"]["completion_tokens"] < 150, o
        assert o["finish_reason"] == "tool_calls", o
        assert len(o["tool_calls"]) == 1, o
        for wrong in (1, "false", []):
            o = c.ask(**ask, parallel_tool_calls=wrong)
            assert o["event"] == "error" and \
                o["error"]["code"] == "EINVAL" and \
                "parallel_tool_calls" in o["error"]["message"], (wrong, o)


class HttpOverUnix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


def three_ways():
    """Both front ends in one daemon: HTTP, Unix socket and ring give the same
    bytes for the same request and seed."""
    d = Unix("--model", TINY)
    web = d.dir + "/http"
    d.args += ["--http", "unix:" + web]
    with d, d.client() as ring, d.open() as c:
        assert [p["name"] for p in d.ctl_json("plugins")] == ["unix", "http"]
        h = HttpOverUnix(web)

        def post(path, **body):
            h.request("POST", path, json.dumps({"model": "dcp-tiny", **body}),
                      {"Content-Type": "application/json"})
            r = h.getresponse()
            text = r.read()
            assert r.status == 200, text
            return json.loads(text)["choices"][0]

        def healthy():
            h.request("GET", "/health")
            r = h.getresponse()
            r.read()
            return r.status == 200

        until(healthy)      # it looks for the engine ten times a second
        for seed in (1, 2, 3):
            same = dict(max_tokens=40, temperature=1.2, seed=seed)
            want = ring.generate(text="The river", **same).text
            assert c.ask(prompt="The river", **same)["text"] == want
            assert post("/v1/completions", prompt="The river",
                        **same)["text"] == want
            want = ring.generate(chat=CHAT, **same)
            got = c.ask(messages=CHAT, **same)
            assert got["text"] == want.text
            assert got.get("reasoning", "") == want.reasoning
            m = post("/v1/chat/completions", messages=CHAT,
                     **same)["message"]
            assert (m["content"] or "") == want.text, (m, want.text)
            assert (m.get("reasoning_content") or "") == want.reasoning
        h.close()


def examples():
    """Those of the manual page run as printed, and answer."""
    with open(f"{SRC}/doc/man/dcpd-unix.7") as f:
        page = f.read()
    with Unix("--model", TINY) as d:
        for kind in ("socat", "python"):
            text = re.search(rf'\.\\" EXAMPLE {kind}\n\.nf\n\.RS\n(.*?)\.RE',
                             page, re.S).group(1)
            text = text.replace(r"\-", "-").replace(r"\en", r"\n").replace(
                "/run/dcpd/unix.sock", d.unix)
            assert kind == "socat" or text.count("\n") == 5
            r = subprocess.run(["sh", "-c", text] if kind == "socat" else
                               [sys.executable, "-c", text], timeout=60,
                               capture_output=True, text=True)
            assert r.returncode == 0 and r.stderr == "", r
            if kind == "socat":
                answer = json.loads(r.stdout)
                assert answer["usage"]["completion_tokens"] == 20, answer
            else:
                assert len(r.stdout) > 1, r


# --- requests ---------------------------------------------------------------

def many_at_once():
    """Requests of one connection run side by side, each line with its id."""
    with Unix(*NULL, "--null-step-us", 3000) as d, d.open() as c:
        ids = ["a", 1, "1", "\u00e9", 9007199254740993]
        c.send(*({"id": i, "tokens": [k + 1], "max_tokens": 30,
                  "stream": True} for k, i in enumerate(ids)))
        order = []
        ended = 0
        got = {}
        while ended < len(ids):
            o = c.line()
            order.append(o["id"])
            got.setdefault(o["id"], []).extend(o.get("tokens", []))
            ended += o["event"] == "done"
        assert set(got) == set(ids)
        # Side by side: each has begun before any has ended.
        firsts = [order.index(i) for i in ids]
        lasts = [len(order) - 1 - order[::-1].index(i) for i in ids]
        assert max(firsts) < min(lasts), order
        with d.client() as ring:
            for k, i in enumerate(ids):
                assert got[i] == ring.generate(tokens=[k + 1],
                                               max_tokens=30).tokens
        # An id is free again when its request has ended.
        assert c.ask(id="a", tokens=[1], max_tokens=1)["event"] == "done"
        c.send({"id": "x", "tokens": [1], "max_tokens": 5000},
               {"id": "x", "tokens": [2], "max_tokens": 1})
        o = c.line()
        assert o["error"]["code"] == "EEXIST" and o["id"] == "x", o
        c.send({"op": "cancel", "id": "x"})
        o = c.line()
        assert o["id"] == "x" and o["finish_reason"] == "abort", o
        o = c.ask(op="cancel", id="x")
        assert o["error"]["code"] == "ENOENT", o
        assert c.ask(op="status")["status"]["state"] == "ready"
        assert d.live() == 0


def mistakes():
    """A line that is wrong gets an error that names it; the connection, and
    what else runs on it, go on."""
    ok = {"tokens": [1], "max_tokens": 1}
    with Unix(*NULL, "--null-step-us", 3000) as d, d.open() as c:
        c.send({"id": "on", "tokens": [3], "max_tokens": 5000})
        for line, word in (
                (b"nonsense", "not JSON"), (b"[1]", "want an object"),
                (b'{"tokens": [1], "tokens": [2]}', "not JSON"),
                (b'{"op": "sumbit"}', "op: want"), (b'{"op": 3}', "op: want"),
                (b'{"id": [1], "tokens": [1]}', "id: want"),
                (b'\xff\xfe', "not JSON"), (b'{"id": 1}', "is missing"),
                (b'{"a": "' + b"[" * 5000, "not JSON"),
                (b"[" * 100000, "not JSON")):
            c.s.sendall(line + b"\n")
            o = c.line()
            assert o["event"] == "error", o
            assert o["error"]["code"] == "EINVAL", o
            assert word in o["error"]["message"], (line[:40], o)
        for key, value, word in (
                ("temprature", 1, "no such key"),
                ("temperature", "1", "number"),
                ("temperature", -1, "temperature"), ("top_p", 7, "top_p"),
                ("max_tokens", 1.5, "whole"), ("max_tokens", -1, "0.."),
                ("max_tokens", 2**32, "0.."), ("max_tokens", 0, "1 or more"),
                ("top_k", 2**31, "32 bits"),
                ("seed", -1, "0 or more"), ("stop", 5, "stop"),
                ("stop", ["a", 1], "stop"), ("logit_bias", [1], "logit_bias"),
                ("logit_bias", {"x": 1}, "logit_bias"),
                ("logit_bias", {"1": "y"}, "logit_bias"),
                ("stop_token_ids", [-1], "stop_token_ids[0]"),
                ("stop_token_ids", "1", "list of token ids"),
                ("tokens", [1, 2**32], "tokens[1]"), ("tokens", "x", "tokens"),
                ("tokens", [], "empty"), ("tokens", [2000], "2000"),
                ("prompt", "x", "want one"), ("stream", 1, "true or false"),
                ("echo", 1, "true or false")):
            o = c.ask(**{**ok, "id": "e", key: value})
            assert o["event"] == "error" and o["id"] == "e", (key, value, o)
            assert word in o["error"]["message"], (key, value, o)
        assert c.ask(**ok, temperature=None, stop=None, id=None,
                     stream=None)["event"] == "done"
        c.s.sendall(b"\n  \r\n" + json.dumps(ok).encode() + b"\r\n")
        assert c.line()["event"] == "done"
        c.send({"op": "cancel", "id": "on"})
        assert c.line()["id"] == "on"


def limits():
    """A connection's requests, a user's connections, all connections; they
    can be changed by a reload, the socket cannot."""
    with Unix(*NULL, "--null-step-us", 3000, max_requests=2,
              max_connections=3, max_connections_user=2) as d:
        with d.open() as c, d.open() as e:
            c.send(*({"id": i, "tokens": [1], "max_tokens": 5000}
                     for i in range(3)))
            o = c.line()
            assert o["id"] == 2 and o["error"]["code"] == "EAGAIN", o
            assert e.ask(tokens=[1], max_tokens=1)["event"] == "done"
            with d.open() as third:
                o = third.line()
                assert "this user" in o["error"]["message"], o
                assert third.line() is None
        until(lambda: d.stats()["connections"] == 0)
        until(lambda: d.live() == 0)
        assert d.stats()["connections_refused"] == 1
    with Unix(*NULL, max_connections=1) as d:
        with d.open() as c:
            assert c.ask(tokens=[1], max_tokens=1)["event"] == "done"
            with d.open() as second:
                o = second.line()
                assert o["error"]["code"] == "EAGAIN", o
                assert "there are as many" in o["error"]["message"], o
            d.configure(max_connections=2, max_requests=1)
            r = d.ctl("reload")
            assert r.returncode == 0, r
            with d.open() as second:
                assert second.ask(tokens=[1], max_tokens=1)["event"] == "done"
                second.send({"id": 1, "tokens": [1], "max_tokens": 5000},
                            {"id": 2, "tokens": [1], "max_tokens": 1})
                o = second.line()
                assert o["id"] == 2 and o["error"]["code"] == "EAGAIN", o
            for conf, word in (({"mode": "0600"}, "restart dcpd"),
                               ({"listen": ["/x"]}, "restart dcpd"),
                               ({"max_requests": -1}, "max_requests: want")):
                d.configure(**conf)
                r = d.ctl("reload")
                assert r.returncode == 1 and word in r.stderr, (conf, r)
            assert c.ask(tokens=[1], max_tokens=1)["event"] == "done"


# --- those that go ----------------------------------------------------------

def death_cancels():
    """A client that goes, in whatever way, takes its requests with it; one
    that only stops sending gets its answers."""
    long = {"id": 1, "tokens": list(range(1, 500)), "max_tokens": 100000,
            "stream": True}
    with Unix(*NULL, "--null-step-us", 3000) as d:
        free = d.ctl_json("status")["counters"]["pages_free"]

        def gone():
            until(lambda: d.live() == 0 and d.stats()["connections"] == 0)
            n = d.ctl_json("status")["counters"]
            assert n["pages_free"] + n["pages_cached"] == free, n

        c = d.open()                    # in mid-stream
        c.send(long)
        for _ in range(3):
            c.line()
        assert d.live() == 1
        c.close()
        gone()
        c = d.open()                    # before the first byte of an answer
        c.send(long, {**long, "id": 2, "stream": False})
        c.close()
        gone()
        c = d.open()                    # half a line
        c.s.sendall(b'{"tokens": [1], "max_')
        c.close()
        gone()
        child = subprocess.Popen(       # killed
            [sys.executable, "-c", "import socket, sys, time\n"
             "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
             "s.sendall(sys.argv[2].encode()); time.sleep(100)", d.unix,
             json.dumps(long) + "\n"])
        until(lambda: d.live() == 1)
        child.kill()
        child.wait()
        gone()
        with d.open() as c:             # no more lines, but still there
            c.send({"id": 1, "tokens": [1], "max_tokens": 20},
                   {"id": 2, "tokens": [2], "max_tokens": 100})
            c.s.shutdown(socket.SHUT_WR)
            got = c.lines(2)
            assert [len(got[i][0]["tokens"]) for i in (1, 2)] == [20, 100]
            assert c.line() is None
        gone()
        c = d.open()                    # the same, and then it goes
        c.send(long)
        c.s.shutdown(socket.SHUT_WR)
        c.line()
        c.close()
        gone()
        with d.open() as c:             # a last line without its end
            c.s.sendall(b'{"tokens": [1]}')
            c.s.shutdown(socket.SHUT_WR)
            assert "no end" in c.line()["error"]["message"]
            assert c.line() is None
        gone()


def while_loading():
    """Requests wait for the model; status does not; SIGTERM twice ends what
    runs with an error."""
    d = Unix(*NULL, "--null-step-us", 1500000)
    with open(d.log, "wb") as f:
        d.p = subprocess.Popen(d.args, stdout=f, stderr=f)
    try:
        until(lambda: listens(d.unix))
        with d.open() as c, d.open() as e:
            assert c.ask(op="status")["status"]["state"] == "loading"
            e.send({"tokens": [1], "max_tokens": 1})
            assert e.line()["event"] == "done", "not answered when ready"
            c.send({"id": "t", "tokens": [1], "max_tokens": 1000})
            until(lambda: d.live() == 1)
            d.p.send_signal(signal.SIGTERM)
            until(lambda: "ending" in d.tail())
            # No line is lost on the way: new ones are told why not.
            o = c.ask(id="late", tokens=[1])
            assert o["id"] == "late" and o["event"] == "error", o
            d.p.send_signal(signal.SIGTERM)
            o = c.line()
            assert o["id"] == "t" and o["error"]["code"] == "ESHUTDOWN", o
            assert c.line() is None
        assert d.p.wait(60) == 0
        assert not os.path.exists(d.unix), "its socket was left"
    finally:
        d.stop()


# --- those that mean ill ----------------------------------------------------

def rss(d):
    with open(f"/proc/{d.p.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) * 1024


def small(d, before, mib):
    """The daemon has grown by less than mib MiB since it had `before`."""
    now = rss(d)
    assert SANITIZED or now < before + (mib << 20), (before, now)


def hostile():
    """Garbage, long lines, a thousand connections: the daemon and another
    client do not notice, and nothing is left of them."""
    with Unix(*NULL) as d, d.open() as good:
        def fine():
            assert good.ask(tokens=[1], max_tokens=3)["event"] == "done"

        fine()
        fds = len(os.listdir(f"/proc/{d.p.pid}/fd"))
        before = rss(d)
        with d.open() as c:             # ten megabytes without an end
            try:
                c.s.sendall(b"x" * 10_000_000)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert c.line()["error"]["code"] == "EMSGSIZE"
        fine()
        with d.open() as c:             # and with one
            try:
                c.s.sendall(b'{"prompt": "' + b"x" * 10_000_000 + b'"}\n')
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert c.line()["error"]["code"] == "EMSGSIZE"
        with d.open() as c:             # as much as is allowed, in pieces
            line = json.dumps({"tokens": [1] * 100000, "max_tokens": 1}) \
                .encode() + b"\n"
            for i in range(0, len(line), 7777):
                c.s.sendall(line[i:i + 7777])
            assert c.line()["usage"]["prompt_tokens"] == 100000
        with d.open() as c:             # random bytes
            noise = os.urandom(200000).replace(b"\n", b"\0") + b"\n"
            c.s.sendall(noise * 5)
            for _ in range(5):
                assert c.line()["error"]["code"] == "EINVAL"
        fine()
        c = d.open()                    # lines without end, answers unread
        c.s.setblocking(False)
        flood, sent, idle = b"x\n" * 50000, 0, 0
        while idle < 20 and sent < 64 << 20:
            try:
                sent += c.s.send(flood)
                idle = 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.05)
        assert sent < 16 << 20, f"{sent} bytes were taken"
        small(d, before, 96)
        fine()
        c.s.settimeout(60)              # now it reads, and all are answered
        c.s.shutdown(socket.SHUT_WR)
        with c:
            n = sum(1 for _ in c.f)
        assert n >= sent // 2, (n, sent)
        many = []                       # a thousand connections
        for i in range(1000):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(60)
            s.connect(d.unix)
            many.append(s)
        fine()
        # 48 of one user, the good one among them.
        until(lambda: d.stats()["connections_refused"] == 1000 - 47)
        refused = sum(bool(select.select([s], [], [], 0)[0]) for s in many)
        assert refused == 1000 - 47, refused
        for s in many:
            s.close()
        until(lambda: d.stats()["connections"] == 1)
        fine()

        def churn(_):
            for _ in range(100):
                c = d.open()
                try:
                    c.send({"tokens": [1, 2, 3], "max_tokens": 50,
                            "stream": True})
                    c.f.read(20)
                except OSError:
                    pass
                c.close()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(churn, range(8)))
        until(lambda: d.stats()["connections"] == 1 and d.live() == 0)
        fine()
        until(lambda: len(os.listdir(f"/proc/{d.p.pid}/fd")) == fds)
        assert d.ctl("check").returncode == 0
        # One line was 8 MiB, and parsed; the allocator keeps some of that.
        small(d, before, 96)


def slow_reader():
    """Who does not read is slowed, costs bounded memory, holds up nobody, and
    is dropped in the end."""
    with Unix(*NULL, stall_s=3) as d, d.open() as good, d.open() as slow:
        before = rss(d)
        slow.send(*({"id": i, "tokens": [i + 1], "max_tokens": 100000,
                     "stream": True, "top_logprobs": 5} for i in range(4)))
        t = time.monotonic()
        while True:
            for _ in range(10):
                assert good.ask(tokens=[1], max_tokens=3)["event"] == "done"
            if d.stats()["connections"] == 1:
                break
            assert time.monotonic() - t < 120, "never dropped"
        print(f"    {(rss(d) - before) >> 20} MiB more for a reader of none")
        small(d, before, 160)
        until(lambda: d.live() == 0)
        assert "nothing read for 3 s" in d.tail(100)
        # What came before it was dropped is whole lines.
        slow.s.settimeout(10)
        data = b""
        try:
            while piece := slow.s.recv(1 << 20):
                data += piece
        except ConnectionResetError:
            pass
        lines = data.split(b"\n")[:-1]
        assert len(data) > 10000 and lines, (len(data), len(lines))
        for text in lines:
            assert json.loads(text)["event"] == "delta"
    # A slow one that does read gets all of it.
    with Unix(*NULL, stall_s=3) as d, d.open() as c:
        c.send({"tokens": [1], "max_tokens": 20000, "stream": True})
        n = 0
        while True:
            o = c.line()
            n += len(o.get("tokens", []))
            if o["event"] != "delta":
                break
            if n % 500 == 0:
                time.sleep(0.02)
        assert n == 20000 and o["finish_reason"] == "length", (n, o)


def who_may():
    """SO_PEERCRED decides beside the mode, if a group is set."""
    if os.geteuid() != 0:
        print("   not root: no other user to be")
        return
    other = next(g for g in grp.getgrall() if g.gr_gid not in (0, 65534))

    def ask_as(path, uid, gid, groups=(), more=""):
        code = ("import os, socket, sys\n"
                f"os.setgroups({list(groups)}); os.setgid({gid})\n"
                f"os.setuid({uid})\n"
                "s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n"
                "s.connect(sys.argv[1])\n"
                "try: s.sendall(b'{\"tokens\": [1], \"max_tokens\": 1"
                f"{more}}}\\n')\n"
                "except BrokenPipeError: pass\n"
                "print(s.makefile().readline())")
        r = subprocess.run([sys.executable, "-c", code, path], timeout=60,
                           capture_output=True, text=True)
        return r.stdout + r.stderr

    with Unix(*NULL, mode="0666", group=other.gr_name) as d:
        os.chmod(d.dir, 0o755)
        st = os.stat(d.unix)
        assert st.st_mode & 0o777 == 0o666 and st.st_gid == other.gr_gid
        said = ask_as(d.unix, 65534, 65534)
        assert "EACCES" in said and "only members" in said, said
        assert '"done"' in ask_as(d.unix, 65534, other.gr_gid)
        assert '"done"' in ask_as(d.unix, 65534, 65534, [other.gr_gid])
        assert '"done"' in ask_as(d.unix, 0, 0)
        # What a client of the ring may not, one of this may not either.
        top = ', \"priority\": 1'
        assert "EPERM" in ask_as(d.unix, 65534, other.gr_gid, more=top)
        assert '"done"' in ask_as(d.unix, 0, 0, more=top)
        assert '"done"' in ask_as(d.unix, 65534, other.gr_gid,
                                  more=', \"priority\": -1')
    with Unix(*NULL) as d:
        os.chmod(d.dir, 0o755)
        assert os.stat(d.unix).st_mode & 0o777 == 0o660
        assert "Permission denied" in ask_as(d.unix, 65534, 65534)


def refused_configuration():
    """Each wrong key or path ends the daemon with its reason."""
    def last(conf, path=None):
        d = Unix(*NULL, **conf)
        try:
            if path:
                path(d)
            r = subprocess.run(d.args, capture_output=True, text=True,
                               timeout=60)
        finally:
            d.stop()
        assert r.returncode == 78, r
        return r.stderr.splitlines()[-1]

    for conf, word in (
            ({"listen": []}, "listen: missing"),
            ({"listen": "x"}, "listen: want a list"),
            ({"listen": ["relative"]}, "begin with /"),
            ({"listen": ["/" + "x" * 120]}, "longer than"),
            ({"listen": ["/nonexistent/u"]}, "No such file"),
            ({"listen": ["systemd"]}, "dcpd-unix"),
            ({"mode": 660}, "mode: want"), ({"mode": "0999"}, "mode: want"),
            ({"group": "no such group"}, "no such group"),
            ({"max_requests": 0}, "max_requests: want 1.."),
            ({"max_conections": 5}, "no such key")):
        said = last(conf)
        assert "plugin unix: " in said and word in said, said

    def plain(d):
        with open(d.unix, "w") as f:
            f.write("precious")

    assert "not a socket" in last({}, plain)

    def taken(d):
        d.s = socket.socket(socket.AF_UNIX)
        d.s.bind(d.unix)
        d.s.listen()

    assert "in use" in last({}, taken)
    with Unix(*NULL) as d:              # a stale one is replaced
        with Unix(*NULL) as e:
            e.p.kill()
            e.p.wait()
            assert os.path.exists(e.unix)
            e.__enter__()
            with e.open() as c:
                assert c.ask(tokens=[1], max_tokens=1)["event"] == "done"
    d = Daemon(*NULL)
    d.args += ["--unix", d.dir + "/a," + d.dir + "/b"]
    with d:                             # by its flag, two sockets
        for path in ("/a", "/b"):
            with Conn(d.dir + path) as c:
                assert c.ask(tokens=[1], max_tokens=1)["event"] == "done"


def outside():
    """The same plugin in a process of its own, and a daemon without it: the
    same answers; it outlives the daemon and goes on with the next."""
    d = Daemon(*NULL, "--null-step-us", 3000)
    d.unix = d.dir + "/u"
    host = None
    try:
        host = subprocess.Popen(
            [BUILD + "/plugins/run_plugin", d.socket,
             BUILD + "/plugins/.libs/unix.so",
             json.dumps({"listen": [d.unix]})],
            stderr=subprocess.PIPE, text=True)
        until(lambda: listens(d.unix))
        with Conn(d.unix) as c:
            # There is no daemon yet: it waits.
            c.send({"tokens": [1, 2], "max_tokens": 50, "seed": 1})
            with d:
                got = c.line()
                with d.client() as ring:
                    want = ring.generate(tokens=[1, 2], max_tokens=50, seed=1)
                assert got["tokens"] == want.tokens, got
                c.send({"id": 9, "tokens": [1], "max_tokens": 100000})
                until(lambda: d.ctl_json("status")["live"] == 1)
                d.p.kill()
                o = c.line()
                assert o["error"]["code"] == "ESHUTDOWN", o
                assert c.line() is None
                d.p.wait()
                d.__enter__()
                until(lambda: Conn(d.unix).ask(
                    tokens=[1, 2], max_tokens=50)["event"] == "done")
                host.send_signal(signal.SIGTERM)
                assert host.wait(60) == 0
                assert not os.path.exists(d.unix)
        r = subprocess.run([BUILD + "/plugins/run_plugin", d.socket,
                            BUILD + "/plugins/.libs/unix.so", "{}"],
                           capture_output=True, text=True, timeout=60)
        assert r.returncode == 1 and "listen: missing" in r.stderr, r
    finally:
        if host is not None and host.poll() is None:
            host.kill()
            host.wait()


CASES = (same_as_ring, one_call, three_ways, examples, many_at_once, mistakes,
         limits, death_cancels, while_loading, hostile, slow_reader, who_may,
         outside, refused_configuration)


def main():
    for case in CASES:
        if len(sys.argv) > 1 and case.__name__ not in sys.argv[1:]:
            continue
        if SANITIZED and case in (same_as_ring, one_call, three_ways,
                                  examples):
            print(f"left out with a sanitizer: {case.__name__}")
            continue
        t = time.monotonic()
        case()
        print(f"ok: {case.__name__} {time.monotonic() - t:.1f} s",
              flush=True)


main()
