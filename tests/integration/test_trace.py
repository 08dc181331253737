#!/usr/bin/env python3
"""`dcpctl bench trace` replays what the file says, and its figures are right.

Counts, lengths and the ideal hit rate are computed here from the ids of the
file, without tokens or hashes: a page is known by the ids of its 64 positions
and by the page before it. Quantiles are computed anew from the CSV. Hits are
compared with the ideal request by request. The null engine: nothing here rests
on a model.
"""
import csv
import fractions
import json
import os
import sys

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
from daemon import Daemon  # noqa: E402

TRACE = os.path.join(srcdir, "tests/data/trace/agents-16x12.jsonl")
PAGE = 64
FIELDS = ["session", "turn", "input_tokens", "cached_tokens", "ideal_tokens",
          "output_tokens", "sent_s", "ttft_ms", "tpot_ms", "e2e_ms", "error"]


def read(path, turns, sessions=None):
    """[[request of a turn]] by session."""
    by = {}
    with open(path) as f:
        for i, line in enumerate(f):
            r = json.loads(line)
            by.setdefault(r.get("session_id", ("line", i)), []).append(r)
    return [s[:turns] for s in list(by.values())[:sessions]]


def scaled(n, scale):
    return max(1, int(n * scale))


class Cache:
    """Every page ever sent, in a tree; names of positions stand for tokens."""

    def __init__(self):
        self.children = {}

    def walk(self, names, add):
        node, hit, known = 0, 0, True
        for at in range(0, len(names) - PAGE + 1, PAGE):
            key = node, tuple(names[at:at + PAGE])
            if key not in self.children:
                known = False
                if not add:
                    break
                self.children[key] = len(self.children) + 1
            node = self.children[key]
            hit += PAGE if known else 0
        return hit

    def ideal(self, names):
        hit = self.walk(names, False)
        self.walk(names, True)
        # One token is left to compute.
        return min(hit, (len(names) - 1) // PAGE * PAGE)


def frozen(sessions, scale, block):
    """Ideal tokens of each (session, turn), sessions in the file's order."""
    cache, ideal = Cache(), {}
    for i, s in enumerate(sessions):
        for k, r in enumerate(s):
            ids = r["hash_ids"]
            names = []
            for p in range(scaled(r["input_length"], scale)):
                b = int(p / scale) // block
                names.append((ids[b], p) if b < len(ids) else (i, k, "own", p))
            ideal[i, k] = cache.ideal(names)
    return ideal


def feedback(sessions, first):
    """All of the turn before but its last token, which has no rows."""
    ideal = {}
    for i, s in enumerate(sessions):
        for k, r in enumerate(s):
            if k == 0:
                ideal[i, 0] = first[i, 0]
                continue
            a = s[k - 1]
            assert r["hash_ids"][:len(a["hash_ids"])] == a["hash_ids"]
            rows = min(a["input_length"] + a["output_length"] - 1,
                       r["input_length"] - 1)
            ideal[i, k] = rows // PAGE * PAGE
    return ideal


def quantile(v, q):
    v = sorted(v)
    return v[int(q * (len(v) - 1) + .5)] if v else 0


def near(a, b, rel=1e-4):
    assert abs(a - b) <= rel * max(abs(a), abs(b)) + 2e-6, (a, b)


def check_spread(o, v):
    assert o["n"] == len(v), (o, len(v))
    near(o["mean_ms"], sum(v) / len(v) if v else 0)
    for q in (50, 90, 99):
        near(o[f"p{q}_ms"], quantile(v, q / 100))


def check_times(o, rows):
    ok = [r for r in rows if not r["error"]]
    ms = lambda r, k: float(r[k])
    check_spread(o["ttft_first"], [ms(r, "ttft_ms") for r in ok
                                   if r["turn"] == "0"])
    check_spread(o["ttft_later"], [ms(r, "ttft_ms") for r in ok
                                   if r["turn"] != "0"])
    check_spread(o["tpot"], [ms(r, "tpot_ms") for r in ok if r["tpot_ms"]])
    check_spread(o["e2e"], [ms(r, "e2e_ms") for r in ok])
    for r in ok:
        n = int(r["output_tokens"])
        assert 0 < ms(r, "ttft_ms") <= ms(r, "e2e_ms")
        assert (r["tpot_ms"] != "") == (n > 1), r
        if n > 1:
            assert ms(r, "ttft_ms") + ms(r, "tpot_ms") * (n - 1) \
                <= ms(r, "e2e_ms") + .001, r
    end = max(ms(r, "sent_s") + ms(r, "e2e_ms") / 1e3 for r in rows)
    near(o["seconds"], end, 1e-3)
    near(o["output_tok_s"], o["output_tokens"] / o["seconds"])
    # An event may hold several tokens; gaps are between events.
    assert o["itl"]["n"] <= o["output_tokens"] - len(ok)
    # ... and one holds 64 at most, however late it is sent.
    assert o["itl"]["n"] > 0 or all(int(r["output_tokens"]) <= 64 for r in ok)


def run(d, path, *args):
    out = os.path.join(d.dir, "out.csv")
    o = d.ctl_json("bench", "trace", path, "--csv", out, *args)
    with open(out, newline="") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == FIELDS, list(rows[0])
    return o, rows


def check(o, rows, sessions, ideal, concurrency, scale=fractions.Fraction(1)):
    want = [(i, k, scaled(r["input_length"], scale),
             scaled(r["output_length"], scale))
            for i, s in enumerate(sessions) for k, r in enumerate(s)]
    got = [tuple(int(r[k]) for k in ("session", "turn", "input_tokens",
                                     "output_tokens")) for r in rows]
    assert got == want, next(p for p in zip(got, want) if p[0] != p[1])
    assert o["failures"] == 0 and not any(r["error"] for r in rows)
    assert o["requests"] == len(want) and o["sessions"] == len(sessions)
    assert o["concurrency"] == min(concurrency, len(sessions))
    prompt = sum(w[2] for w in want)
    assert o["prompt_tokens"] == prompt
    assert o["output_tokens"] == sum(w[3] for w in want)
    near(o["ideal_hit_rate"], sum(ideal.values()) / prompt, 1e-8)
    for r in rows:      # who comes first has no hit: that is a race
        if r["turn"] != "0":
            assert int(r["ideal_tokens"]) == \
                ideal[int(r["session"]), int(r["turn"])], r
    # No more conversations at once than asked for, and each in its order
    marks, last = [], {}
    for r in rows:
        at = float(r["sent_s"])
        end = at + float(r["e2e_ms"]) / 1e3
        assert at >= last.get(r["session"], 0) - 1e-5, r
        last[r["session"]] = end
        marks += [(at + 1e-5, 1), (end - 1e-5, -1)]
    now = most = 0
    for _, step in sorted(marks):
        now += step
        most = max(most, now)
    assert most <= concurrency, most
    check_times(o, rows)


def check_hits(o, rows):
    """The cache's hits against the ideal."""
    cached = [int(r["cached_tokens"]) for r in rows]
    assert o["cached_tokens"] == sum(cached)
    near(o["hit_rate"], sum(cached) / o["prompt_tokens"], 1e-8)
    for r, c in zip(rows, cached):
        limit = int(r["ideal_tokens"])
        # First turns come together: any may hit any other's preamble.
        if r["turn"] == "0" and o["concurrency"] > 1:
            limit = max(limit, PAGE)
        assert c % PAGE == 0 and c <= limit, r
    # Those that begin at the same moment cannot hit each other's preamble.
    late = o["concurrency"] * PAGE
    assert sum(int(r["ideal_tokens"]) for r in rows) - sum(cached) <= late
    assert o["ideal_hit_rate"] - .01 <= o["hit_rate"] <= o["ideal_hit_rate"]


def mooncake(path):
    """Ids of 512 tokens, one for the last, unfull block, too; no sessions."""
    lines = [(1300, 5, [1, 2, 3]), (1400, 7, [1, 2, 4]), (512, 1, [1]),
             (2048, 0, [1, 2, 4, 5]), (100, 2, [9])]
    with open(path, "w") as f:
        for i, (n, out, ids) in enumerate(lines):
            f.write(json.dumps(dict(timestamp=i * 100, input_length=n,
                                    output_length=out, hash_ids=ids)) + "\n")


def replays(args):
    with Daemon("--engine", "null", "--null-pages", 65536, *args) as d:
        for turns, c, n in (10, 8, None), (10, 6, None), (0, 3, 5):
            s = read(TRACE, turns or None, n)
            ideal = frozen(s, 1, 64)
            flags = ["-T", turns, "-C", c, "--sessions", n or 0]
            o, rows = run(d, TRACE, *flags)
            check(o, rows, s, ideal, c)
            check_hits(o, rows)
            o, rows = run(d, TRACE, *flags, "--feedback")
            check(o, rows, s, feedback(s, ideal), c)
            check_hits(o, rows)
        for scale in ("0.3", "1.7"):
            s, x = read(TRACE, 6), fractions.Fraction(scale)
            o, rows = run(d, TRACE, "-T", 6, "-C", 4, "--scale", scale)
            check(o, rows, s, frozen(s, x, 64), 4, x)
            check_hits(o, rows)
        path = os.path.join(d.dir, "mooncake.jsonl")
        mooncake(path)
        o, rows = run(d, path, "-C", 1)
        ideal = frozen(read(path, 1), 1, 512)
        assert list(ideal.values()) == [0, 1024, 448, 1400 // 64 * 64, 0]
        check(o, rows, read(path, 1), ideal, 1)
        check_hits(o, rows)
        assert d.ctl("check").returncode == 0
        text = d.ctl("bench", "trace", path, "-C", 1).stdout
        assert "5 requests of 5 sessions" in text, text
        assert "ideal 52.54 %" in text, text
    print("ok:", *args)


def arrivals():
    """No request before its time; a thousandfold clock is as good."""
    with Daemon("--engine", "null") as d:
        path = os.path.join(d.dir, "mooncake.jsonl")
        mooncake(path)                  # 0, 100 .. 400 ms
        for speed, concurrency in ((.5, None), (1000, 1), (2, 2)):
            o, rows = run(d, path, "--arrivals", speed, *(
                [] if concurrency is None else ["-C", concurrency]))
            assert o["failures"] == 0 and o["requests"] == 5
            assert o["concurrency"] == (concurrency or 5)
            begin = float(rows[0]["sent_s"])
            assert begin == 0
            for i, r in enumerate(rows):
                # The first is sent a little after the clock begins.
                assert float(r["sent_s"]) >= i * .1 / speed - .05, (r, speed)
            assert o["seconds"] >= .4 / speed - .05
        bad = os.path.join(d.dir, "bad.jsonl")
        with open(path) as f, open(bad, "w") as g:
            lines = [json.loads(x) for x in f]
            del lines[2]["timestamp"]
            g.writelines(json.dumps(x) + "\n" for x in lines)
        for args, word in (([bad, "--arrivals", 1], "line 3"),
                           ([path, "--arrivals", 0], "--arrivals"),
                           ([path, "--arrivals", "nan"], "--arrivals")):
            r = d.ctl("bench", "trace", *args)
            assert r.returncode == 2 and word in r.stderr, r.stderr
        lines[2]["timestamp"] = -5
        with open(bad, "w") as g:
            g.writelines(json.dumps(x) + "\n" for x in lines)
        r = d.ctl("bench", "trace", bad)
        assert r.returncode == 1 and "timestamp" in r.stderr, r.stderr
    print("ok: arrivals")


def crossover():
    """The same bytes of pool: D = 8 holds what TP's overflows with."""
    hit = {}
    for dcp in 1, 8:
        with Daemon("--engine", "null", "--tp", 8, "--dcp-size", dcp,
                    "--null-pages", 128 * dcp) as d:
            o, rows = run(d, TRACE, "-C", 8, "-T", 10)
            assert o["failures"] == 0
            hit[dcp] = o["hit_rate"]
            if dcp == 8:
                check_hits(o, rows)
            else:
                assert d.ctl_json("status")["counters"]["evictions"] > 1000
    # 5 to 6 % are found where three of eight conversations have room.
    assert hit[1] < .3 and hit[8] > .8, hit
    print("ok: crossover")


def prefill_choice():
    """Turns on either side of the break-even that the daemon measured; what
    was predicted and taken is counted for the way that was chosen."""
    tiny = os.path.join(srcdir, "models/dcp-tiny")
    with Daemon("--model", tiny, "--tp", 8, "--dcp-size", 8,
                "--kv-bytes-per-rank", "8MiB") as d:
        o, rows = run(d, TRACE, "-C", 2, "-T", 4, "--sessions", 2, "--scale",
                      ".3")
        s = d.ctl_json("status")
        x = s["prefill_break_even"]
        assert o["break_even"] == x >= 0, (o["break_even"], x)
        above = sum(int(r["cached_tokens"]) > x * (int(r["input_tokens"])
                    - int(r["cached_tokens"])) for r in rows)
        assert (o["turns_above"], o["turns_below"]) == \
            (above, len(rows) - above), o
        c, passes = s["counters"], 0
        for way in "q", "kv", "a2a":
            n = c[f"prefill_way_{way}"]
            passes += n
            assert n == s["prefill_ways"][way]["passes"]
            for what in "ns", "predicted_ns":
                assert (c[f"prefill_{way}_{what}"] > 0) == (n > 0), (way, n)
            # Attention alone; the other is the whole pass.
            assert c[f"prefill_{way}_ns"] <= \
                s["prefill_ways"][way]["seconds"] * 1e9 + 1, way
        assert passes == c["prefill_passes"] > 0
    with Daemon("--engine", "null", "--tp", 8, "--dcp-size", 8) as d:
        o, _ = run(d, TRACE, "--sessions", 1)
        assert "break_even" not in o            # it measures nothing
    print("ok: prefill choice")


def failures():
    """What the daemon refuses is counted and said, and the rest goes on."""
    with Daemon("--engine", "null", "--max-context", 2000) as d:
        s = read(TRACE, 10)
        want = sum(r["input_length"] + r["output_length"] > 2000
                   for x in s for r in x)
        out = os.path.join(d.dir, "out.csv")
        r = d.ctl("bench", "trace", TRACE, "-j", "--csv", out)
        o = json.loads(r.stdout)
        with open(out, newline="") as f:
            rows = list(csv.DictReader(f))
        bad = [x for x in rows if x["error"]]
        assert r.returncode == 1 and 0 < want < 160, (r.returncode, want)
        assert o["failures"] == len(bad) == want, (o["failures"], want)
        assert "2000" in bad[0]["error"] and bad[0]["output_tokens"] == "0"
        assert f"{want} of 160 requests failed" in r.stderr, r.stderr
        assert o["prompt_tokens"] == sum(int(x["input_tokens"]) for x in rows
                                         if not x["error"])
        check_times(o, rows)
        for args, word in ((["--scale", "0"], "--scale"),
                           (["--scale", "nan"], "--scale"),
                           (["-C", "0"], "--concurrency"),
                           (["--block", "16"], "--block"),
                           (["--csv", "/nowhere/x"], "/nowhere/x"),
                           ([TRACE], "one file")):
            r = d.ctl("bench", "trace", TRACE, *args)
            assert r.returncode in (1, 2) and word in r.stderr, r.stderr
            assert r.stdout == "" and r.stderr.count("\n") == 1, r.stderr
    print("ok: failures")


arrivals()
crossover()
prefill_choice()
replays(["--tp", 8])
replays(["--tp", 8, "--dcp-size", 8])
failures()
