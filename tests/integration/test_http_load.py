#!/usr/bin/python3
"""Many at once: streams of which none is lost, beside readers that are slow and
clients that vanish. With DCPD_TEST_LONG=1 there are 1,000 streams for 60 s, 512
slow readers and 100 that vanish, and requests a second beside nginx, which
serves a file as long as our answer (doc/measurements.md).
"""
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import suite  # noqa: E402
from httpconf import NULL, Configured  # noqa: E402
from rawhttp import Raw, request  # noqa: E402

LONG = bool(os.environ.get("DCPD_TEST_LONG"))
COMP = "/v1/completions"
STEP_US = 50000                 # 20 tokens a second and stream


def rss(d):
    with open(f"/proc/{d.p.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


class Stream:
    """One stream's bytes, and what has come of them."""

    def __init__(self, port, body):
        self.raw = Raw(port)
        self.raw.send(request("POST", COMP, dict(body, stream=True)))
        self.raw.s.setblocking(False)
        self.buf, self.chars, self.events = b"", 0, 0
        self.done = self.dead = False
        self.finish = None

    def read(self):
        try:
            data = self.raw.s.recv(262144)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.dead = True
            return
        self.buf += data
        *lines, self.buf = self.buf.split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                self.done = True
                continue
            c = json.loads(line[6:])["choices"][0]
            self.chars += len(c["text"])
            self.events += 1
            self.finish = c["finish_reason"] or self.finish


def drive(streams, until, each=lambda: None):
    """Read them all until that many have ended, or until time is out."""
    sel = selectors.DefaultSelector()
    for s in streams:
        sel.register(s.raw.s, selectors.EVENT_READ, s)
    left, end = len(streams), time.monotonic() + until
    while left and time.monotonic() < end:
        for key, _ in sel.select(0.5):
            s = key.data
            s.read()
            if s.done or s.dead:
                sel.unregister(key.fileobj)
                left -= 1
        each()
    return left


def daemon():
    return Configured({}, *NULL, "--null-step-us", STEP_US, "--null-pages",
                      60000, "--max-running-requests", 2048, "--queue-max",
                      4096, "--max-requests-per-user", 8192,
                      "--max-bytes-per-user", "2GiB")


def no_stream_is_lost(_):
    n, seconds = (1000, 60) if LONG else (100, 3)
    tokens = seconds * 1000000 // STEP_US
    with daemon() as d:
        d.post(COMP, {"prompt": "a", "max_tokens": 1})
        before, top = rss(d), 0

        def watch():
            nonlocal top
            top = max(top, rss(d))

        began = time.monotonic()
        streams = [Stream(d.port, {"prompt": "a" * (1 + i % 7),
                                   "max_tokens": tokens, "ignore_eos": True})
                   for i in range(n)]
        left = drive(streams, 60 + 20 * seconds, watch)
        took = time.monotonic() - began
        assert left == 0, f"{left} of {n} have not ended"
        assert all(s.done and not s.dead for s in streams), "some were lost"
        assert {s.finish for s in streams} == {"length"}
        short = [s.chars for s in streams if s.chars != tokens]
        assert not short, f"{len(short)} lack tokens: {short[:5]}"
        grown = top - before
        print(f"  {n} streams, {n * tokens} tokens in {took:.1f} s, "
              f"{sum(s.events for s in streams)} events; {grown} KiB more at "
              f"most, {grown / n:.0f} a stream")
        assert grown < 200 * n + 65536, grown
        for s in streams:
            s.raw.close()


def the_slow_and_the_vanished_hurt_nobody(_):
    slow_n, gone_n, n = (512, 100, 100) if LONG else (48, 20, 20)
    tokens = 1200 if LONG else 100
    with daemon() as d:
        before, top = rss(d), 0

        def watch():
            nonlocal top
            top = max(top, rss(d))

        body = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True}
        slow = [Raw(d.port, rcvbuf=4096) for _ in range(slow_n)]
        for s in slow:
            s.send(request("POST", COMP, dict(body, stream=True,
                                              logprobs=10)))
        gone = [Raw(d.port) for _ in range(gone_n)]
        for i, s in enumerate(gone):
            s.send(request("POST", COMP, dict(body, stream=i % 2 == 0)))
        streams = [Stream(d.port, dict(body, max_tokens=tokens))
                   for _ in range(n)]
        suite.until(lambda: d.ctl_json("status")["running"] >=
                    slow_n + gone_n, "they do not run")
        for i, s in enumerate(gone):
            (Raw.reset if i % 3 else Raw.close)(s)
        left = drive(streams, 600, watch)
        assert left == 0 and all(s.chars == tokens for s in streams)
        suite.until(lambda: d.ctl_json("status")["running"] <= slow_n,
                    "the vanished run on")
        grown = top - before
        print(f"  beside {slow_n} slow readers and {gone_n} gone {n} streams "
              f"were whole; {grown} KiB more at most")
        assert grown < 1024 * slow_n + 65536, grown
        for s in slow:
            s.close()
        suite.until(lambda: d.ctl_json("status")["running"] == 0,
                    "some run on")
        assert d.ctl("check").returncode == 0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wrk(url, *args, seconds=8):
    r = subprocess.run(["wrk", "-t1", "-c32", f"-d{seconds}s", "--latency",
                        *args, url], capture_output=True, text=True,
                       check=True, timeout=120)
    bad = re.search(r"Non-2xx.*|Socket errors.*", r.stdout)
    assert not bad, r.stdout
    return (float(re.search(r"Requests/sec:\s+([\d.]+)", r.stdout).group(1)),
            re.search(r"99%\s+(\S+)", r.stdout).group(1))


def requests_a_second_beside_nginx(_):
    """One token from an engine of no weight, and nginx with a file of the
    answer's length: what the way in and out costs."""
    if not LONG:
        print("  not run: DCPD_TEST_LONG is not set")
        return
    with tempfile.TemporaryDirectory() as tmp, Configured({}, *NULL) as d:
        body = {"prompt": "a", "max_tokens": 1}
        _, head, raw = d.ask("POST", COMP, body)
        os.chmod(tmp, 0o755)
        with open(tmp + "/file.json", "wb") as f:
            f.write(raw)
        port = free_port()
        with open(tmp + "/conf", "w") as f:
            f.write(f"daemon off; pid {tmp}/pid; worker_processes 1;\n"
                    f"error_log {tmp}/err; events {{}}\nhttp {{ access_log "
                    f"off; keepalive_requests 100000000; server {{ listen "
                    f"127.0.0.1:{port}; root {tmp}; }} }}\n")
        with open(tmp + "/post.lua", "w") as f:
            f.write('wrk.method = "POST"\nwrk.body = [[' + json.dumps(body) +
                    ']]\nwrk.headers["Content-Type"] = "application/json"\n')
        nginx = subprocess.Popen(["nginx", "-e", tmp + "/err", "-c",
                                  tmp + "/conf"])
        try:
            url = f"http://127.0.0.1:{port}/file.json"
            suite.until(lambda: subprocess.run(
                ["curl", "-sf", "-m", "5", url],
                capture_output=True).stdout == raw, "nginx does not serve")
            out = []
            for _ in range(3):          # in turns: the machine is not ours
                out.append((wrk(url), wrk(d.url + "/health"),
                            wrk(d.url + COMP, "-s", tmp + "/post.lua")))
        finally:
            nginx.terminate()
            nginx.wait(30)
        print(f"  answers of {len(raw)} bytes; requests/s (p99)")
        for n, h, c in out:
            print(f"  nginx {n[0]:.0f} ({n[1]}), /health {h[0]:.0f} "
                  f"({h[1]}), {COMP} {c[0]:.0f} ({c[1]})")


suite.run(None, no_stream_is_lost, the_slow_and_the_vanished_hurt_nobody,
          requests_a_second_beside_nginx)
