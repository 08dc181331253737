#!/usr/bin/env python3
"""Countdown faults: the n-th call of a function fails, once, for n = 1.. until
no call is left to fail.

While the daemon starts it then either ends by itself with one clear line, or
starts and works. While it runs it loses at most the request concerned: others
of the same client go on, the next client is served, the pages, descriptors and
mappings are what they were. The front ends are loaded and asked too.

DCPD_TEST_LONG=1: every n up to 500, then every fiftieth part more; otherwise
the first few and then fewer.
"""
import http.client
import json
import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import dcpclient  # noqa: E402
from daemon import BUILD, Daemon, binary  # noqa: E402

LONG = os.environ.get("DCPD_TEST_LONG", "") not in ("", "0")
FUNCS = ["malloc", "mmap", "memfd_create", "recvmsg", "read", "write",
         "accept", "pthread_create", "dlopen", "pipe2", "sendmsg",
         "epoll_ctl"]      # in fault.c's order
ARGS = ["--engine", "null", "--tp", 4, "--dcp-size", 4, "--null-pages", 1024]
MORE = ["--model", os.path.join(srcdir, "models/dcp-tiny"),
        "--plugin-dir", os.path.join(BUILD, "plugins/.libs")]
SLOW = 16           # requests of a client that does not read
SLOW_TOKENS = 300   # of each: more than a ring takes
PATIENCE = 60.      # s; a hang, not a slow machine
# s; what libevent could not watch (it only warns) the front ends' own deadlines
# end, after 60 s at most.
CLOSED = 100.


def numbers(growth):
    """1, 2, 3, ... with growing gaps."""
    n = 1
    while True:
        yield n
        if LONG:
            n = n + 1 if n < 500 else n + n // 50
        else:
            n = max(n + 1, int(n * growth))


def front_ends(tmp):
    return ["--unix", os.path.join(tmp, "u"), "--http",
            "unix:" + os.path.join(tmp, "h")]


class Fault:
    """The file that the preloaded library maps."""
    FORM = "=iiqqq"

    def __init__(self):
        self.f = tempfile.NamedTemporaryFile()
        self.f.write(b"\0" * 4096)
        self.f.flush()
        self.m = mmap.mmap(self.f.fileno(), 4096)
        self.disarm()
        self.env = {
            "LD_PRELOAD": f"{BUILD}/tests/hostile/.libs/libfault.so",
            "DCPD_FAULT": self.f.name,
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
            ":verify_asan_link_order=0:allocator_may_return_null=1"}

    def arm(self, func, n):
        self.disarm()
        struct.pack_into("=qqq", self.m, 8, n, 0, 0)
        struct.pack_into("=i", self.m, 0, FUNCS.index(func))

    def disarm(self):
        struct.pack_into("=i", self.m, 0, -1)

    def hits(self):
        return struct.unpack_from(self.FORM, self.m)[4]


def start_once(fault, func, n, args):
    """Start, serve one request if it starts, end. True: the fault came."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "s")
        if MORE[0] in args:
            args = args + front_ends(tmp)
        fault.arm(func, n)
        p = subprocess.Popen(
            [binary("dcpd"), *map(str, args), "--socket", path],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
            env=dict(os.environ, **fault.env))
        try:
            served = None
            end = time.monotonic() + PATIENCE
            while p.poll() is None and served is None:
                assert time.monotonic() < end, "neither starts nor ends"
                try:
                    with dcpclient.Client(path, timeout=5) as c:
                        fault.disarm()
                        served = c.generate(tokens=[1, 2], max_tokens=3)
                except OSError:
                    time.sleep(0.005)
            fault.disarm()
            if p.poll() is None:
                p.terminate()
            out = p.communicate(timeout=PATIENCE)[0]
        finally:
            p.kill()
            p.wait()
        lines = out.strip().splitlines()
        if served is not None:
            assert served.finish == "length", served.error_text
            assert p.returncode == 0, f"served, ended {p.returncode}: {out}"
        else:
            # No thread is no mistake in the configuration.
            assert p.returncode == 1 or (p.returncode == 78 and
                                         func != "pthread_create"), \
                f"status {p.returncode}: {out}"
            # What and why. Writing that line may be what failed.
            assert func == "write" or (lines and re.search(
                r"memory|descriptor|resource|error|cannot|dlopen|open",
                lines[-1], re.I)), out
        assert "Sanitizer" not in out, out
    return fault.hits() > 0


def starting(fault, func, args, growth):
    """All n for one function; how many starts."""
    starts = 0
    for n in numbers(growth):
        try:
            came = start_once(fault, func, n, args)
        except AssertionError as e:
            # ASan allocates in each new thread before that is ours, and ends
            # the process where it cannot: no fault of the daemon's.
            if "GetThreadStackTopAndBottom" not in str(e):
                raise AssertionError(f"start, {func} number {n}: {e}") from e
            came = True
        starts += 1
        if not came:
            return starts


def settled(d):
    """(clients, (descriptors, mappings)) when they stay the same."""
    was, same = None, 0
    while same < 10:
        now = (d.ctl_json("status")["counters"]["clients"],
               holdings(d.p.pid))
        same = same + 1 if now == was else 0
        was = now
        time.sleep(0.03)
    return was


def holdings(pid):
    with open(f"/proc/{pid}/maps") as f:
        return (len(os.listdir(f"/proc/{pid}/fd")),
                sum("memfd:dcpd-" in line for line in f))


def scenario(d):
    """What a client may do; errors are its own."""
    try:
        with dcpclient.Client(d.socket, timeout=20) as c:
            c.info()
            a = [c.submit(tokens=[i, 2, 3], max_tokens=20, flags=(
                dcpclient.LOGPROBS if i % 2 else 0) | dcpclient.IGNORE_EOS)
                for i in range(6)]
            try:
                c.cancel(a[0])
            except OSError:
                pass
            for r in c.wait(a, timeout=20):
                assert r.error is None or r.error < 0
            a = [c.submit(text="The river", max_tokens=5, stop=["zz"]),
                 c.submit(chat=[{"role": "user", "content": "How many?"}],
                          max_tokens=5)]
            c.wait(a, timeout=20)
    except (OSError, ValueError) as e:
        assert getattr(e, "errno", None) != 110, f"a hang: {e}"


def slow_reader(d):
    """Its answers wait in the daemon. One may fail, the others are whole."""
    try:
        c = dcpclient.Client(d.socket, timeout=20)
    except OSError:
        return
    with c:
        try:
            a = [c.submit(tokens=[i, 1], max_tokens=SLOW_TOKENS,
                          flags=dcpclient.LOGPROBS | dcpclient.IGNORE_EOS)
                 for i in range(SLOW)]
            end = time.monotonic() + PATIENCE
            while d.ctl_json("status")["live"] > 0:
                assert time.monotonic() < end, "requests do not end"
            a = c.wait(a, timeout=20)
        except (OSError, RuntimeError) as e:
            assert getattr(e, "errno", None) != 110, f"a hang: {e}"
            # A wake-up that could not be sent ends a connection.
            assert isinstance(e, RuntimeError) or e.errno in (32, 71, 12), e
            return
    lost = [x.error_text for x in a if x.error is not None]
    whole = [x for x in a if x.error is None]
    assert len(lost) <= 1, lost
    assert all(len(x.tokens) == SLOW_TOKENS for x in whole), \
        [len(x.tokens) for x in whole]


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=CLOSED)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CLOSED)
        self.sock.connect(self.path)


def ask(path, method, url, body=None):
    """The status, or None when the connection broke."""
    c = Unix(path)
    try:
        c.request(method, url, body and json.dumps(body))
        r = c.getresponse()
        r.read()
        return r.status
    except TimeoutError:
        raise AssertionError(f"{url}: no answer")
    except (http.client.HTTPException, OSError):
        return None
    finally:
        c.close()


def web(path):
    """Each may fail, none may hang."""
    chat = {"model": "m", "max_tokens": 4,
            "messages": [{"role": "user", "content": "How many?"}]}
    ask(path, "POST", "/v1/chat/completions", chat)
    ask(path, "POST", "/v1/chat/completions", dict(chat, stream=True))
    ask(path, "POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 4})
    ask(path, "GET", "/metrics")


def lines(path):
    """The same over the Unix front end: each line may be refused."""
    asks = [{"id": 1, "prompt": "The river", "max_tokens": 4},
            {"id": 2, "tokens": [1, 2], "max_tokens": 4, "stream": True},
            {"id": 3, "messages": [{"role": "user", "content": "How many?"}],
             "max_tokens": 4}, {"id": 2, "op": "cancel"}, {"op": "status"}]
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(CLOSED)
        try:
            s.connect(path)
            s.sendall(b"".join(json.dumps(a).encode() + b"\n"
                               for a in asks))
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass
        except TimeoutError:
            raise AssertionError("the Unix front end: no answer")
        except OSError:
            pass


def admin(d):
    for cmd in ["status"], ["requests"], ["clients"], ["check"]:
        d.ctl(*cmd, "-j")


def running(d, fault, func, base, what, growth):
    """All n for one function in a running daemon; how many there were."""
    rounds = 0
    for n in numbers(growth):
        fault.arm(func, n)
        try:
            what()
        except AssertionError as e:
            raise AssertionError(f"running, {func} number {n}: {e}\n"
                                 + d.tail()) from e
        fault.disarm()
        came = fault.hits() > 0
        where = f"running, {func} number {n}"
        assert d.p.poll() is None, f"{where}: status {d.p.returncode}\n" \
            + d.tail(40)
        try:
            with d.client() as c:
                r = c.generate(tokens=[5, 6, 7], max_tokens=8,
                               flags=dcpclient.IGNORE_EOS)
        except OSError as e:
            raise AssertionError(f"{where}: the next client: {e}\n"
                                 + d.tail(40)) from e
        assert r.finish == "length" and len(r.tokens) == 8, \
            f"{where}: the next client got {r.error_text}\n" + d.tail()
        end = time.monotonic() + PATIENCE
        while True:
            s = d.ctl_json("status")
            used = [k["pages_used"] for k in s["ranks"]]
            now = holdings(d.p.pid)
            if (s["counters"]["clients"], now) == base and max(used) == 0:
                break
            assert time.monotonic() < end, \
                f"{where}: pages used {used}, clients, descriptors and " \
                f"mappings {s['counters']['clients']} {now}, at first " \
                f"{base}\n" + d.tail()
            time.sleep(0.01)
        r = d.ctl("check")
        assert r.returncode == 0, f"{where}: {r.stderr}"
        rounds += 1
        if not came:
            return rounds


def main():
    with open(binary("dcpd"), "rb") as f:
        if b"__tsan_init" in f.read():
            print("SKIP: TSan's runtime takes no other allocator before it")
            sys.exit(77)
    fault = Fault()
    for func in FUNCS:
        n = starting(fault, func, ARGS, 2.5)
        print(f"start, {func}: {n} starts", flush=True)
    for func in FUNCS if LONG else ("malloc", "mmap", "read",
                                    "pthread_create", "dlopen"):
        n = starting(fault, func, ARGS + MORE, 6)
        print(f"start with front ends, {func}: {n} starts", flush=True)
    with tempfile.TemporaryDirectory() as tmp, \
            Daemon(*ARGS, *MORE, *front_ends(tmp), env=fault.env) as d:
        h, u = os.path.join(tmp, "h"), os.path.join(tmp, "u")
        parts = [("the ring", lambda: scenario(d), 3),
                 ("a slow reader", lambda: slow_reader(d), 8),
                 ("the admin", lambda: admin(d), 4),
                 ("HTTP", lambda: web(h), 3),
                 ("Unix", lambda: lines(u), 3)]
        for _, what, _ in parts:
            what()
        base = settled(d)
        for func in FUNCS:
            n = [running(d, fault, func, base, what, growth)
                 for _, what, growth in parts]
            print(f"running, {func}: {n} rounds of "
                  f"{[name for name, _, _ in parts]}", flush=True)
        d.p.send_signal(signal.SIGTERM)
        assert d.p.wait(PATIENCE) == 0, d.tail()


if __name__ == "__main__":
    main()
