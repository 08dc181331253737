#!/usr/bin/env python3
"""`dcpctl bench ipc`: a row for each way and each place of its two sides, in
both forms of output; without a second processor those of one, and a line that
says so. What it measures is not asserted: others use the machine, too.
"""
import json
import os
import re
import subprocess
import sys
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
from daemon import binary  # noqa: E402
from suite import run  # noqa: E402

SLEEPERS = {"ring, defaults": "ring_default",
            "ring, both sides sleep": "ring_sleeping",
            "SEQPACKET socket, blocking": "seqpacket",
            "stream socket, server in epoll": "stream_epoll"}
SPINNER = "ring, both sides spin"
CPUS = sorted(os.sched_getaffinity(0))
ROW = re.compile(r"^(.+?) +(one|two) +([\d.]+) +([\d.]+) +([\d.]+) to "
                 r"([\d.]+)$", re.M)


def bench(*args, cpus=None):
    """Its result, on some processors only if there are cpus."""
    return subprocess.run(
        [binary("dcpctl"), "bench", "ipc", *args], text=True,
        capture_output=True, timeout=300,
        preexec_fn=cpus and (lambda: os.sched_setaffinity(0, cpus)))


def check_figures(o):
    lo, hi = o["turns_p50_us"]
    assert 0 < lo <= o["p50_us"] <= hi, o
    assert o["p50_us"] <= o["p99_us"], o


def check_json(o, cpus, n, tokens):
    places = ["one_cpu", "two_cpus"][:len(cpus)]
    want = set(SLEEPERS.values()) | ({"ring_spinning"} if cpus[1:] else set())
    assert set(o) == want | {"cpus", "round_trips", "stream"}, list(o)
    assert o["cpus"] == cpus and o["round_trips"] == n, o
    for key in want:
        has = [p for p in ("one_cpu", "two_cpus") if p in o[key]]
        assert has == (places if key != "ring_spinning" else places[1:]), o
        for p in has:
            check_figures(o[key][p])
        assert o[key]["p50_us"] == o[key][has[0]]["p50_us"], o[key]
    assert o["stream"]["tokens"] == tokens, o
    assert 0 < o["stream"]["events"] <= tokens, o
    assert o["stream"]["tokens_per_s"] > 0, o


def json_has_each_way_and_place(_):
    r = bench("-j", "-n", "1000", "-t", "20000")
    assert r.returncode == 0, r.stderr
    # Each way has 11 turns of as many trips.
    check_json(json.loads(r.stdout), CPUS[:2], 990, 20000)


def the_table_has_each_way_and_place(_):
    r = bench("-n", "200", "-t", "8000")
    assert r.returncode == 0, r.stderr
    rows = ROW.findall(r.stdout)
    want = {(s, p) for s in SLEEPERS for p in ("one", "two")[:len(CPUS)]}
    if len(CPUS) > 1:
        want |= {(SPINNER, "two")}
        assert f"on processors {CPUS[0]} and {CPUS[1]}\n" in r.stdout, r.stdout
    assert len(rows) == len(want), r.stdout
    assert {(t, p) for t, p, *_ in rows} == want, r.stdout
    for _, _, p50, p99, lo, hi in rows:
        assert float(lo) <= float(p50) <= float(hi), r.stdout
        assert float(p50) <= float(p99), r.stdout
    assert "198 round trips of each in 11 turns" in r.stdout, r.stdout
    assert "(8000 tokens in " in r.stdout, r.stdout


def one_processor_has_the_rows_of_one(_):
    last = {CPUS[-1]}
    r = bench("-j", "-n", "200", "-t", "8000", cpus=last)
    assert r.returncode == 0, r.stderr
    check_json(json.loads(r.stdout), CPUS[-1:], 198, 8000)
    r = bench("-n", "200", "-t", "8000", cpus=last)
    assert r.returncode == 0, r.stderr
    assert {(t, p) for t, p, *_ in ROW.findall(r.stdout)} == \
        {(s, "one") for s in SLEEPERS}, r.stdout
    assert f"on processor {CPUS[-1]}: this process may use no other, so " \
        "the rows for two are left out" in r.stdout, r.stdout


def allowed(pid):
    """The processors of each of its threads."""
    masks = set()
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/status") as f:
            masks |= set(re.findall(r"^Cpus_allowed_list:\s*(\S+)$", f.read(),
                                    re.M))
    return masks


def each_side_is_bound_to_its_processor(_):
    two = len(CPUS) > 1
    want = sorted([CPUS[0]] * 4 + ([CPUS[1]] * 5 if two else []))
    p = subprocess.Popen([binary("dcpctl"), "bench", "ipc", "-n", "2000",
                          "-t", "8000"], stdout=subprocess.DEVNULL)
    seen, client = [], None
    # While it forks a server, it is bound as that server will be.
    while p.poll() is None and (len(seen) < len(want) or
                                client != {str(CPUS[0])}):
        time.sleep(0.01)
        try:
            with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
                seen = [allowed(pid) for pid in f.read().split()]
            client = allowed(p.pid)
        except OSError:         # one of them ended just now
            pass
    assert p.wait(timeout=300) == 0
    assert client == {str(CPUS[0])}, client
    assert sorted(int(*m) for m in seen) == want, (seen, want)


def a_wrong_option_is_refused(_):
    for args in (["-n", "99"], ["-n", "1x"], ["-t", "3999"], ["more"], ["-x"]):
        r = bench(*args)
        assert r.returncode == 2 and r.stdout == "", (args, r)
        assert "usage: dcpctl bench ipc" in r.stderr, (args, r.stderr)


if __name__ == "__main__":
    run(None, json_has_each_way_and_place, the_table_has_each_way_and_place,
        one_processor_has_the_rows_of_one,
        each_side_is_bound_to_its_processor, a_wrong_option_is_refused)
