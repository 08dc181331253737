#!/usr/bin/env python3
"""Countdown faults: the n-th call of a function fails, once, for n = 1.. until
no call is left to fail.

While the daemon starts it then either ends by itself with one clear line, or
starts and works. While it runs it loses at most the request concerned: the
next client is served, the pages, descriptors and mappings are what they were.

DCPD_TEST_LONG=1: every n; otherwise the first few and then fewer.
"""
import json
import mmap
import os
import re
import signal
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
ARGS = ["--engine", "null", "--tp", 4, "--dcp-size", 4, "--null-pages", 256]
PATIENCE = 60.      # s; a hang, not a slow machine
GROWTH = 1.0 if LONG else 1.6


def numbers():
    """1, 2, 3, ... or with growing gaps."""
    n = 1
    while True:
        yield n
        n = max(n + 1, int(n * GROWTH))


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
            assert p.returncode in (1, 78), f"status {p.returncode}: {out}"
            # What and why. Writing that line may be what failed.
            assert func == "write" or (lines and re.search(
                r"memory|descriptor|resource|error|cannot|dlopen|open", 
                lines[-1], re.I)), out
        assert "Sanitizer" not in out, out
    return fault.hits() > 0


def starting(fault, func, args, limit=10**9):
    """All n for one function; how many starts."""
    starts = 0
    for n in numbers():
        try:
            came = start_once(fault, func, n, args)
        except AssertionError as e:
            raise AssertionError(f"start, {func} number {n}: {e}") from e
        starts += 1
        if not came or starts >= limit:
            return starts


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
    except (dcpclient.DcpError, OSError, ValueError) as e:
        assert getattr(e, "errno", None) != 110, f"a hang: {e}"
    for cmd in ["status"], ["requests"], ["clients"], ["check"]:
        d.ctl(*cmd, "-j")


def running(d, fault, func, base):
    """All n for one function in a running daemon; how many there were."""
    rounds = 0
    for n in numbers():
        fault.arm(func, n)
        scenario(d)
        fault.disarm()
        came = fault.hits() > 0
        where = f"running, {func} number {n}"
        assert d.p.poll() is None, f"{where}: status {d.p.returncode}\n" \
            + d.tail(40)
        with d.client() as c:
            r = c.generate(tokens=[5, 6, 7], max_tokens=8,
                           flags=dcpclient.IGNORE_EOS)
        assert r.finish == "length" and len(r.tokens) == 8, \
            f"{where}: the next client got {r.error_text}\n" + d.tail()
        end = time.monotonic() + PATIENCE
        while True:
            s = d.ctl_json("status")
            used = [k["pages_used"] for k in s["ranks"]]
            now = holdings(d.p.pid)
            if s["counters"]["clients"] == 0 and max(used) == 0 and \
                    now == base:
                break
            assert time.monotonic() < end, \
                f"{where}: pages used {used}, descriptors and mappings " \
                f"{now}, at first {base}\n" + d.tail()
            time.sleep(0.01)
        r = d.ctl("check")
        assert r.returncode == 0, f"{where}: {r.stderr}"
        rounds += 1
        if not came:
            return rounds


def main():
    fault = Fault()
    for func in FUNCS:
        n = starting(fault, func, ARGS)
        print(f"start, {func}: {n} starts", flush=True)
    with Daemon(*ARGS, env=fault.env) as d:
        scenario(d)
        time.sleep(0.1)
        base = holdings(d.p.pid)
        for func in FUNCS:
            n = running(d, fault, func, base)
            print(f"running, {func}: {n} rounds", flush=True)
        d.p.send_signal(signal.SIGTERM)
        assert d.p.wait(PATIENCE) == 0, d.tail()


if __name__ == "__main__":
    main()
