#!/usr/bin/env python3
"""A client is killed, closes, is stopped or becomes another program in each of
seven states, under TP and under TP-DCP, again and again: the daemon gets back
every request, page, descriptor and mapping, and an honest client beside it is
served all the while.

DCPD_TEST_LONG=1: 10,000 rounds; otherwise as many as fit some seconds.
"""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
from daemon import BUILD, Daemon  # noqa: E402

LONG = os.environ.get("DCPD_TEST_LONG", "") not in ("", "0")
STATES = ["hello", "submit", "queued", "prefill", "decode", "full", "forked"]
ENDS = ["kill", "close", "stop", "exec"]
LAYOUTS = [["--tp", 8], ["--tp", 8, "--dcp-size", 8]]
# A parent that becomes another program is not told from one that lives on, as
# long as its child holds the socket.
CASES = [(s, e) for s in STATES for e in ENDS if (s, e) != ("forked", "exec")]
EACH = -(-10000 // (len(CASES) * len(LAYOUTS))) if LONG else 4
BOUND_S = 20.       # for all to be given back; a busy machine's
STALL_MS = 3000.    # for a round trip of the honest client, likewise


class Admin:
    """A connection to the admin socket, kept."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(60)
        self.s.connect(path + ".admin")
        self.f = self.s.makefile("r")

    def ask(self, **request):
        self.s.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(self.f.readline())

    def close(self):
        self.f.close()
        self.s.close()


def holdings(pid):
    """Descriptors and mappings of clients."""
    with open(f"/proc/{pid}/maps") as f:
        return (len(os.listdir(f"/proc/{pid}/fd")),
                sum("memfd:dcpd-" in line for line in f))


def settled(pid):
    """holdings when they stay: those of a set-up are given away at its end."""
    was, same = None, 0
    while same < 20:
        now = holdings(pid)
        same = same + 1 if now == was else 0
        was = now
        time.sleep(0.01)
    return was


class Matrix:
    def __init__(self, d):
        self.d, self.pid = d, d.p.pid
        self.admin = Admin(d.socket)
        self.witness = subprocess.Popen(
            [f"{BUILD}/tests/hostile/witness", d.socket, str(self.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self.seen() == 0:             # until it is served
            time.sleep(0.01)
        self.rounds, self.worst, self.slowest = 0, 0., 0.
        self.base = settled(self.pid)

    def end(self):
        self.admin.close()
        self.witness.stdin.close()
        assert self.witness.wait(60) == 0, "the honest client failed"

    def seen(self):
        """Round trips of the honest client since it was last asked."""
        self.witness.stdin.write("\n")
        self.witness.stdin.flush()
        trips, ms = self.witness.stdout.readline().split()
        self.last_ms = float(ms)
        return int(trips)

    def left_over(self):
        """What the daemon holds beyond the honest client's, or None."""
        s = self.admin.ask(cmd="status")
        s = s.get("result", s)
        c = s["counters"]
        used = [r["pages_used"] for r in s["ranks"]]
        now = holdings(self.pid)
        if c["clients"] == 1 and max(used) <= 1 and now == self.base and \
                c["requests_waiting"] + c["requests_running"] <= 1:
            return None
        return (f"clients {c['clients']}, pages used {used}, waiting "
                f"{c['requests_waiting']}, running {c['requests_running']}, "
                f"descriptors and mappings {now}, at first {self.base}")

    def wait_clean(self):
        t = time.monotonic()
        while True:
            left = self.left_over()
            now = time.monotonic() - t
            if left is None:
                self.slowest = max(self.slowest, now)
                return
            assert now < BOUND_S, left
            time.sleep(0.002)

    def round(self, state, end):
        v = subprocess.Popen(
            [f"{BUILD}/tests/hostile/victim", self.d.socket, state],
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert v.stdout.readline() == "ready\n", f"no client in {state}"
            time.sleep(random.random() * 0.004)
            if end == "close":
                v.terminate()
                assert v.stdout.readline() == "closed\n"
                self.wait_clean()           # though it lives on
            elif end == "exec":
                v.send_signal(signal.SIGUSR1)
                self.wait_clean()           # the same process
                assert v.poll() is None
            elif end == "stop":
                v.send_signal(signal.SIGSTOP)
                self.seen()
                t, trips = time.monotonic(), 0
                while trips < 3:
                    assert time.monotonic() - t < BOUND_S, \
                        "nobody else is served"
                    time.sleep(0.005)
                    trips += self.seen()
            v.kill()
            v.wait()
            self.wait_clean()
        finally:
            try:                            # a child of it too
                os.killpg(v.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            v.wait()
            v.stdout.close()
        self.seen()
        self.worst = max(self.worst, self.last_ms)
        self.rounds += 1


def main():
    rounds = 0
    for layout in LAYOUTS:
        # A prefill of 60,000 tokens takes 60 steps, 20 ms or more.
        with Daemon("--engine", "null", *layout, "--null-step-us", 300,
                    "--max-running-requests", 64) as d:
            m = Matrix(d)
            for state, end in CASES * EACH:
                try:
                    m.round(state, end)
                except AssertionError as e:
                    raise AssertionError(f"{layout}, {state}, {end}: {e}\n"
                                         + d.tail()) from e
            m.end()
            d.ctl_json("check")
            dropped = d.ctl_json("status")["counters"]["clients_dropped"]
            assert dropped == 0, d.tail()   # none of them lied
        print(f"{' '.join(map(str, layout))}: {m.rounds} rounds, all given "
              f"back within {m.slowest * 1e3:.0f} ms; the honest client "
              f"waited {m.worst:.1f} ms at most", flush=True)
        assert m.worst < STALL_MS
        rounds += m.rounds
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
