#!/usr/bin/python3
"""`dcpctl bench` beside the floor: what is printed follows from the daemon's
answer and its own times, and no pass is faster than what it must do."""
import json
import os
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from daemon import Daemon  # noqa: E402
import suite  # noqa: E402

TINY = os.path.join(os.environ.get("srcdir", "."), "models/dcp-tiny")
# tests/unit/t_floor.c has the sum of dcp-tiny's weights.
WEIGHTS, ROWS, KEY = 12577376, 4 * 256 * 1152, 3 * 132


def near(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def admin(d, **request):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(60)
        s.connect(d.socket + ".admin")
        s.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(s.makefile().readline())


def holds_together(r, pass_ms):
    f = r["floor"]
    bytes_s = sum(v for k, v in f["bytes"].items() if k != "of_one_rank") \
        / f["read_bytes_s"]
    flops_s = sum(f["flops"].values()) / f["flops_s"]
    assert near(f["seconds"], max(bytes_s, flops_s)), r
    assert f["bound"] == ("products" if flops_s > bytes_s else "memory"), r
    assert r["floor_bound"] == f["bound"], r
    assert near(r["floor_ms"], f["seconds"] * 1e3), r
    assert near(r["times_floor"], r[pass_ms] / r["floor_ms"]), r
    assert r["times_floor"] > 1, r


def decode_is_put_beside_its_floor(d):
    r = d.ctl_json("bench", "decode", "-L", 400, "-n", 41)
    holds_together(r, "decode_pass_ms")
    b = r["floor"]["bytes"]
    # One stream in each pass, at 400 to 441 tokens.
    assert near(b["weights"], WEIGHTS), b
    assert near(b["rows"], ROWS) and near(b["keys"], KEY * 420.5), b


def more_streams_read_more_experts_and_rows(d):
    r = d.ctl_json("bench", "decode", "-L", 400, "-n", 40, "-N", 3)
    holds_together(r, "decode_pass_ms")
    b = r["floor"]["bytes"]
    assert WEIGHTS < b["weights"] < WEIGHTS + 3 * 6 * 196608 + 3 * 512, b
    # The first may have begun before the last.
    assert 1 < b["rows"] / ROWS < 3 + 1e-6, b


def prefill_is_put_beside_its_floor(d):
    r = d.ctl_json("bench", "prefill", "-L", 700)
    holds_together(r, "prefill_pass_ms")
    f = r["floor"]["flops"]
    # All passes of 256 rows together: each key below topk, then topk.
    passes = 3
    assert near(f["attend"] * passes,
                2 * 8 * 1088 * 4 * (256 * 257 / 2 + 444 * 256)), f
    assert near(f["scores"] * passes,
                2 * 8 * 128 * 3 * (700 * 701 - 256 * 257) / 2), f


def the_text_says_it_too(d):
    r = d.ctl("bench", "decode", "-L", 300, "-n", 20)
    assert r.returncode == 0, r.stderr
    said = dict(line.split(None, 1) for line in r.stdout.splitlines())
    assert float(said["times_floor"]) > 1, r.stdout
    ratio = float(said["decode_pass_ms"]) / float(said["floor_ms"])
    assert abs(ratio / float(said["times_floor"]) - 1) < 1e-4, r.stdout
    assert said["floor_bound"] in ("memory", "products"), r.stdout


def a_bad_question_is_told_what_is_wanted(d):
    for bad in ({}, {"context": 0}, {"context": "7"}, {"context": 1e300},
                {"rows": 0.5}, {"rows": 5, "prefix": -1},
                {"rows": 5, "streams": 0}, {"context": 5, "rows": 5},
                {"context": 5, "prefix": 5}):
        a = admin(d, cmd="floor", **bad)
        assert not a["ok"] and "floor: want" in a["error"], (bad, a)
    a = admin(d, cmd="floor", context=420.5)
    assert a["ok"] and near(a["result"]["bytes"]["weights"], WEIGHTS), a
    both = [admin(d, cmd="floor", rows=1, prefix=419.5), a]
    assert both[0] == both[1], both


def the_null_engine_has_no_floor(_):
    with Daemon("--engine", "null") as d:
        r = d.ctl_json("bench", "decode", "-n", 5)
        assert "decode_pass_ms" in r and "floor_ms" not in r, r
        a = admin(d, cmd="floor", context=5)
        assert not a["ok"] and "no model" in a["error"], a


if __name__ == "__main__":
    # Plain loops are far from the floor, however busy the machine is.
    with Daemon("--model", TINY, "--tp", 8, "--dcp-size", 8,
                "--kv-bytes-per-rank", "8M", "--chunked-prefill-size", 256,
                env={"DCPD_CPU_ISA": "portable"}) as daemon:
        suite.run(daemon, decode_is_put_beside_its_floor,
                  more_streams_read_more_experts_and_rows,
                  prefill_is_put_beside_its_floor, the_text_says_it_too,
                  a_bad_question_is_told_what_is_wanted,
                  the_null_engine_has_no_floor)
