#!/usr/bin/env python3
"""`dcpctl top` shows what the daemon says: frames are parsed and held against
its status; on a terminal of some size a frame fits it, and the terminal is left
as it was.
"""
import csv
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
from daemon import Daemon, binary  # noqa: E402
from suite import until  # noqa: E402

TRACE = os.path.join(srcdir, "tests/data/trace/agents-16x12.jsonl")
TINY = os.path.join(srcdir, "models/dcp-tiny")
PAGES = 600     # what the load needs: nothing is preempted
STEP_MS = 4.    # of the null engine
ENTER, LEAVE, HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"


def cells(parts, total, width):
    """The bar that shows parts [(mark, n)] of a total."""
    ends, at = [], 0
    for mark, n in parts:
        at += n
        ends.append((at, mark))
    return "".join(next((m for e, m in ends if (2 * i + 1) * total
                         < 2 * width * e), ".") for i in range(width))


def parse(text):
    """A frame: its numbers by name, ranks, requests."""
    f = dict(re.findall(r"(TTFT|ITL|decode|prefill) ([\d.]+|-) ms", text))
    for n, name in re.findall(r"([\d.]+|-) (running|waiting|finished|cancelled"
                              r"|failed|prefilled/s|generated/s|% of prompts"
                              r"|pages evicted|preemptions)", text):
        f[name] = n
    f["ranks"] = re.findall(r"^ *(\d+) +(\d+) +(\d+) \[([!#=.]+)\] +(\d+) "
                            r"+(\d+) +(\d+) +(\d+)$", text, re.M)
    f["host"] = re.findall(r"^host memory +\[([=.]+)\] +(\d+) +(\d+)$", text,
                           re.M)
    f["requests"] = re.findall(r"^ *(\d+) (\w+) +\[([=#+.]+)\] +(\d+) +(\d+) "
                               r"+(\d+) +(\d+) +([\d.]+)$", text, re.M)
    return f


def frames(text):
    return [parse(t) for t in re.split(r"^(?=dcpd )", text, flags=re.M)[1:]]


def shown(sum_, n):
    """As top prints a mean."""
    if n == 0:
        return "-"
    return f"{sum_ / n:.3g}" if sum_ / n < 100 else f"{sum_ / n:.0f}"


def check_frame(f, ranks, pages):
    assert [int(r[0]) for r in f["ranks"]] == list(range(ranks)), f["ranks"]
    for rank, dcp, tokens, strip, *numbers in f["ranks"]:
        pinned, used, cached, free = map(int, numbers)
        assert pinned + used + cached + free == pages, numbers
        want = cells([("!", pinned), ("#", used), ("=", cached)], pages,
                     len(strip))
        assert strip == want, (strip, want, numbers)
    for id_, state, strip, cached, done, made, left, age in f["requests"]:
        cached, done, made, left = map(int, (cached, done, made, left))
        assert state in ("text", "waiting", "prefill", "decode", "ending")
        if state == "decode":
            want = cells([("=", cached), ("#", done), ("+", made)],
                         cached + done + made + left, len(strip))
            assert strip == want, (strip, want)
        if state == "prefill":
            assert "+" not in strip and left > 0, strip


def no_requests(d):
    until(lambda: not d.ctl_json("requests"),   # one outlives its last event
          "requests are there")


def idle(d, pages):
    """Nothing runs: every number is the status's own."""
    no_requests(d)
    f = frames(d.ctl("top").stdout)
    c = d.ctl_json("status")["counters"]
    assert len(f) == 1
    f = f[0]
    check_frame(f, 4, pages)
    assert f["requests"] == [] and f["running"] == f["waiting"] == "0"
    assert f["finished"] == str(c["requests_finished"])
    assert f["pages evicted"] == str(c["evictions"])
    assert f["preemptions"] == str(c.get("preemptions", 0))
    assert f["TTFT"] == shown(c["ttft_ns"] * 1e-6, c["first_tokens"])
    assert f["ITL"] == shown(c["itl_ns"] * 1e-6, c["later_tokens"])
    assert f["decode"] == shown(c["decode_ns"] * 1e-6, c["decode_steps"])
    assert f["% of prompts"] == shown(c["prefix_hit_tokens"] * 100,
                                      c["prefix_lookup_tokens"])
    assert {r[6] for r in f["ranks"]} == {str(c["pages_cached"])}
    return c


def clients_agree(d):
    """The daemon's TTFT and ITL beside those that a client measures."""
    a = idle(d, PAGES)
    path = os.path.join(d.dir, "out.csv")
    o = d.ctl_json("bench", "trace", TRACE, "-C", 2, "-T", 4, "--sessions", 6,
                   "--csv", path)
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    b = idle(d, PAGES)
    grew = {k: b[k] - a[k] for k in b}
    n, tokens = o["requests"], o["output_tokens"]
    assert n == 24 and o["failures"] == 0
    assert grew["first_tokens"] == n and grew["output_tokens"] == tokens
    assert 0 < grew["later_tokens"] <= tokens - n
    # However busy the machine is: the client's clock starts before the
    # daemon's and sees a token after it left, and a token takes a pass of
    # 4 ms at least.
    ttft = grew["ttft_ns"] * 1e-6
    both = ttft + grew["itl_ns"] * 1e-6
    assert n * STEP_MS <= ttft <= sum(float(r["ttft_ms"]) for r in rows)
    assert tokens * STEP_MS <= both <= sum(float(r["e2e_ms"]) for r in rows)


def same_requests(d, load):
    """What of a request does not change is what `requests` says."""
    seen, deadline = 0, time.monotonic() + 120
    while seen < 5:
        assert load.poll() is None, "the load ended"
        assert time.monotonic() < deadline, seen
        want = {r["id"]: r for r in d.ctl_json("requests") if r["prompt"]}
        for r in frames(d.ctl("top").stdout)[0]["requests"]:
            if int(r[0]) not in want or r[1] != "decode":
                continue
            cached, done, made, left = map(int, r[3:7])
            w = want[int(r[0])]
            assert cached + done == w["prompt"], (r, w)
            assert made + left == w["max_tokens"], (r, w)
            assert made >= w["generated"], (r, w)
            if w["state"] == "decode":
                assert cached == w["cached"], (r, w)
                seen += cached > 0


def busy(d, load):
    same_requests(d, load)
    before = d.ctl_json("status")["counters"]
    two = frames(d.ctl("top", "-n", 2, "-d", .5).stdout)
    after = d.ctl_json("status")["counters"]
    assert len(two) == 2
    for f in two:
        check_frame(f, 4, PAGES)
    assert any(int(f["running"]) > 0 and f["requests"] for f in two)
    # The pause between its looks is half a second or more; what it counted
    # lies between ours.
    made = after["output_tokens"] - before["output_tokens"]
    assert 0 < float(two[1]["generated/s"]) <= made / .5 + 1, (two, made)
    assert float(two[1]["ITL"]) > 0
    t = [json.loads(x) for x in split_objects(d.ctl("top", "-j", "-n", 2,
                                                    "-d", .1).stdout)]
    assert len(t) == 2 and len(t[0]["status"]["ranks"]) == 4
    a, b = (x["status"]["counters"]["steps"] for x in t)
    assert after["steps"] <= a < b
    assert load.poll() is None, "the load ended"


def split_objects(text):
    return [x + "}" for x in text.split("\n}\n")[:-1]]


def long_trace(d, times):
    """TRACE over and over: a load that lasts for longer than any look."""
    path = os.path.join(d.dir, "long.jsonl")
    with open(TRACE) as f:
        lines = [json.loads(x) for x in f]
    with open(path, "w") as f:
        for i in range(times):
            for x in lines:
                f.write(json.dumps(dict(x, session_id=f"{i}-"
                                        f"{x['session_id']}")) + "\n")
    return path


class Terminal:
    """dcpctl top on a pseudo terminal."""

    def __init__(self, d, rows, columns, *args):
        self.fd, tty = pty.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ,
                    struct.pack("HHHH", rows, columns, 0, 0))
        self.p = subprocess.Popen(
            [binary("dcpctl"), "--socket", d.socket, "top", *map(str, args)],
            stdin=tty, stdout=tty, stderr=tty)
        os.close(tty)
        self.text = ""

    def read(self, until=None):
        """What it printed, up to `until` or its end."""
        deadline = time.monotonic() + 120
        while until is None or until not in self.text:
            assert time.monotonic() < deadline, self.text
            try:
                more = os.read(self.fd, 4096)
            except OSError:
                break
            if not more:
                break
            self.text += more.decode()
        return self.text

    def end(self):
        self.read()
        os.close(self.fd)
        return self.p.wait(60)


def check_screen(text, rows, columns):
    """Whole frames of a terminal's text; each fits and clears the rest."""
    shown = [f[:f.index("\x1b[J")] for f in text.split(HOME)[1:]
             if "\x1b[J" in f]
    for f in shown:
        lines = f.split("\r\n")
        assert 3 < len(lines) <= rows, (len(lines), rows)
        assert all(x.endswith("\x1b[K") for x in lines), f
        assert all(len(x) - 3 <= columns for x in lines), f
        assert lines[0].startswith("dcpd ")
    return shown


def terminal(d):
    for rows, columns in (14, 80), (50, 120), (5, 30):
        t = Terminal(d, rows, columns, "-n", 3, "-d", .05)
        assert t.end() == 0
        assert t.text.startswith(ENTER) and t.text.endswith(LEAVE), t.text
        s = check_screen(t.text, rows, columns)
        assert len(s) == 3
        if rows == 14:
            assert "and 3 ranks more" in s[0] and " request state" in s[0]
        if rows == 50:
            check_frame(parse(s[2].replace("\x1b[K", "").replace("\r", "")),
                        4, PAGES)
    t = Terminal(d, 24, 80, "-d", 30)
    t.read("\x1b[J")
    t.p.send_signal(signal.SIGINT)      # in the middle of a pause
    assert t.end() == 0 and t.text.endswith(LEAVE)
    for delay in "0", "nan", "x", "1e9":
        r = d.ctl("top", "-d", delay)
        assert r.returncode == 2 and "--delay" in r.stderr, r.stderr


def tiers():
    """Pages that are pinned, and those that host memory holds."""
    pages, room = 20, 30
    page = 64 * 4 * (4 * 576 + 3 * 128)     # f32, of all ranks
    text = [[(97 * i + k) % 90 + 3 for i in range(330)] for k in range(6)]
    with Daemon("--model", TINY, "--kv-cache-dtype", "f32", "--tp", 8,
                "--dcp-size", 8, "--kv-bytes-per-rank", (pages + 1) * page // 8,
                "--host-cache-bytes", room * page) as d:
        assert frames(d.ctl("top").stdout)[0]["host"] == [
            ("." * 49, "0", str(room))]
        d.ctl_json("cache", "pin", "--tokens", ",".join(map(str, text[0])))
        with d.client() as c:
            for ids in text[1:]:
                a = c.generate(tokens=ids, max_tokens=2, temperature=0.)
                assert a.error_text is None, a.error_text
        no_requests(d)
        s = d.ctl_json("cache", "stats")
        f = frames(d.ctl("top").stdout)[0]
        check_frame(f, 8, pages)
        assert s["pages_pinned"] == 5 and s["host_pages"] > 5, s
        for r in f["ranks"]:
            assert r[3].startswith("!"), r
            assert list(map(int, r[4:])) == [5, 0, s["pages_cached"],
                                             s["pages_free"]], r
        (strip, cached, free), = f["host"]
        assert int(cached) == s["host_pages"]
        assert int(cached) + int(free) == s["host_total"] == room
        assert strip == cells([("=", int(cached))], room, len(strip)), strip


def hostile():
    """What whoever holds the socket says steers no terminal."""
    bad = "a\x1b]0;x\x07b\x9b2J\x7fc\nd"
    status = {"version": bad, "state": bad, "model": bad, "ready": True,
              bad: bad, "answers": False, "problem": bad,
              "counters": {bad: 1}, "phases": [{"name": bad, "seconds": 1}]}
    change = {bad: {"from": bad, "to": bad, "value": bad, "default": bad}}
    results = {
        "status": status,
        "plugins": [{"name": bad, "version": bad, "state": bad,
                     "stats": {bad: bad}}],
        "requests": [{"id": 1, "state": bad}],
        "reload": {"changed": change, "restart": change},
        "config": change,
    }

    def serve():
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            with s, s.makefile() as f:
                cmd = json.loads(f.readline())["cmd"]
                s.sendall(json.dumps(
                    {"ok": True, "result": results[cmd]},
                    ensure_ascii=False).encode() + b"\n")

    def shown(*args):
        fd, tty = pty.openpty()
        p = subprocess.Popen([binary("dcpctl"), "--socket", path, *args],
                             stdout=tty, stderr=tty)
        os.close(tty)
        text = b""
        try:
            while more := os.read(fd, 65536):
                text += more
        except OSError:
            pass                            # it has ended
        os.close(fd)
        assert p.wait(60) in (0, 4), (args, text)
        return text.decode()

    with tempfile.TemporaryDirectory() as tmp, \
            socket.socket(socket.AF_UNIX) as listener:
        path = tmp + "/s"
        listener.bind(path + ".admin")
        listener.listen(16)
        threading.Thread(target=serve, daemon=True).start()
        for args in (["status"], ["plugins"], ["requests"], ["reload"],
                     ["config"], ["config", "changed"], ["version"],
                     ["top", "-n", "1"]):
            for json_too in ([], ["-j"]):
                text = shown(*args, *json_too)
                assert "]0;x" in text or args == ["config"], (args, text)
                for own in (ENTER, LEAVE, HOME, "\x1b[K", "\x1b[J"):
                    text = text.replace(own, "")
                for c in "\x1b\x07\x9b\x7f":
                    assert c not in text, (args, json_too, text)
                if json_too:
                    assert bad in strings(json.loads(text)), text
        listener.shutdown(socket.SHUT_RDWR)


def strings(o):
    """All that are in o."""
    if isinstance(o, str):
        return [o]
    of = [*o, *o.values()] if isinstance(o, dict) else \
        o if isinstance(o, list) else []
    return [s for v in of for s in strings(v)]


def main():
    hostile()
    tiers()
    with Daemon("--engine", "null", "--null-pages", PAGES, "--null-step-us",
                int(STEP_MS * 1000), "--tp", 4, "--dcp-size", 2,
                "--chunked-prefill-size", 256) as d:
        clients_agree(d)
        load = subprocess.Popen(
            [binary("dcpctl"), "--socket", d.socket, "bench", "trace",
             long_trace(d, 60), "-C", "4", "-T", "12", "--scale", "0.9"],
            stdout=subprocess.DEVNULL)
        try:
            while not d.ctl_json("requests"):
                assert load.poll() is None, "the load ended"
                time.sleep(.02)
            busy(d, load)
            terminal(d)
        finally:
            load.kill()
            load.wait()
        t = Terminal(d, 24, 80, "-d", .05)
        t.read("\x1b[J")
        d.p.send_signal(signal.SIGKILL)     # it never says goodbye
        d.p.wait()
        assert t.end() == 3
        after = t.text[t.text.rindex(LEAVE):]
        assert "not running" in after, t.text[-300:]
    print("ok")


main()
