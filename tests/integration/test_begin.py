#!/usr/bin/env python3
"""DCP_BEGIN: a request says that it is good before it has its turn, and a bad
one says so instead."""
import os
import sys

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import dcpclient as dcp  # noqa: E402
from daemon import Daemon  # noqa: E402
from suite import until  # noqa: E402


def first(c, rid):
    while True:
        ev = c.next(60)
        assert ev is not None, "no event in 60 s"
        if ev.request == rid:
            return ev
        c.live[ev.request].add(ev)


def main():
    with Daemon("--engine", "null", "--max-running-requests", 1,
                "--null-step-us", 2000) as d, d.client() as c:
        hog = c.submit(tokens=[1], max_tokens=100000, flags=dcp.IGNORE_EOS)
        # It waits behind the other, and its prompt is counted all the same.
        rid = c.submit(tokens=[2, 3, 4], max_tokens=2, flags=dcp.BEGIN)
        ev = first(c, rid)
        assert ev.type == dcp.EV_BEGIN and ev.seq == 0, (ev.type, ev.seq)
        assert ev.usage["prompt_tokens"] == 3, ev.usage
        until(lambda: d.ctl_json("status")["waiting"] == 1,
              "it does not wait")       # its beginning comes before
        # Refused: no beginning.
        info = c.info()
        bad = c.submit(tokens=[1] * (info["max_context"] + 5),
                       flags=dcp.BEGIN)
        ev = first(c, bad)
        assert ev.type == dcp.EV_ERROR and ev.error == -90, ev.error
        # Not asked for: none.
        plain = c.submit(tokens=[5], max_tokens=1)
        c.cancel(hog)
        while True:
            ev = first(c, plain)
            assert ev.type != dcp.EV_BEGIN
            if ev.type == dcp.EV_DONE:
                break
        # Many whose reader is late: each begins once, and first.
        ids = [c.submit(tokens=[9] * (n + 1), max_tokens=50,
                        flags=dcp.BEGIN | dcp.IGNORE_EOS) for n in range(60)]
        begun, ended = {}, set()
        while len(ended) < len(ids):
            ev = c.next(60)
            if ev.request not in ids:
                continue
            if ev.type == dcp.EV_BEGIN:
                assert ev.request not in begun and ev.seq == 0
                begun[ev.request] = ev.usage["prompt_tokens"]
            else:
                assert ev.request in begun, "an answer before its beginning"
                if ev.type == dcp.EV_DONE:
                    ended.add(ev.request)
        assert [begun[i] for i in ids] == list(range(1, 61))
    print("begun before its turn, refused without, 60 at once")


main()
