#!/usr/bin/python3
"""The prefix cache and preemption through the daemon: the same answers.

Real daemons with models/dcp-tiny on the CPU, f32 rows, heads split (TP) and
the context sharded over eight ranks. Expected answers come from
models/dcp-tiny/reference.json, which transformers wrote.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403
import dcpclient as D  # noqa: E402
from daemon import Daemon  # noqa: E402

LAYOUTS = {"tp8": (["--tp", 8], 1),
           "tp8+dcp8": (["--tp", 8, "--dcp-size", 8], 8)}
PAGE_BYTES = 64 * (576 * 4 * 4 + 128 * 4 * 3)   # f32, of all ranks, heads once
GREEDY = dict(temperature=0.0)


def daemon(layout, pages, *flags):
    """A daemon whose pool has so many pages (a page more is the sink)."""
    how, d = LAYOUTS[layout]
    return Daemon("--model", TINY, "--kv-cache-dtype", "f32",
                  "--kv-bytes-per-rank", (pages + 1) * PAGE_BYTES // d,
                  *how, *flags)


def whole(n):
    """What of n tokens may be hit: whole pages, never the last token."""
    return (n - 1) // 64 * 64


class Cache(unittest.TestCase):
    def setUp(self):
        self.ref = {e["name"]: e for e in read_json(TINY, "reference.json")}

    def ask(self, c, name, cached, **more):
        e = self.ref[name]
        a = c.generate(tokens=e["ids"], max_tokens=len(e["greedy"]), **GREEDY,
                       **more)
        self.assertEqual(a.error_text, None)
        self.assertEqual(a.tokens, e["greedy"], name)
        self.assertEqual(a.usage["cached_tokens"], cached, name)

    def counter(self, d, name):
        return d.ctl_json("status")["counters"][name]

    def check(self, d):
        r = d.ctl("check")
        self.assertEqual(r.returncode, 0, r.stderr)
        s = d.ctl_json("cache", "stats")
        self.assertEqual(s["pages_free"] + s["pages_cached"] +
                         s["pages_used"], s["pages_total"])
        for r in d.ctl_json("status")["ranks"]:
            self.assertEqual((r["pages_used"], r["pages_cached"]),
                             (s["pages_used"], s["pages_cached"]))
        return s

    # A hit is a multiple of 64 whatever D is; after eviction, too.
    def test_cold_warm_dropped_and_evicted_give_one_answer(self):
        n = {e["name"]: whole(len(e["ids"])) for e in self.ref.values()}
        for layout in LAYOUTS:
            # 16 pages for the long ones, 4 for the others
            with self.subTest(layout), daemon(layout, 25) as d, \
                    d.client() as c:
                self.ask(c, "recall64-0", 0)
                self.ask(c, "recall64-0", n["recall64-0"])
                self.ask(c, "tools0", 0)
                self.ask(c, "tools0", n["tools0"])
                self.assertEqual(self.counter(d, "evictions"), 0)
                self.check(d)
                self.ask(c, "recall64-1", 0)      # pushes the oldest out
                self.assertGreater(self.counter(d, "evictions"), 0)
                self.ask(c, "tools0", n["tools0"])
                e = self.ref["recall64-0"]
                a = c.generate(tokens=e["ids"], max_tokens=len(e["greedy"]),
                               **GREEDY)
                self.assertEqual(a.tokens, e["greedy"])
                self.assertLess(a.usage["cached_tokens"], n["recall64-0"])
                self.assertEqual(a.usage["cached_tokens"] % 64, 0)
                self.ask(c, "recall64-0", n["recall64-0"])
                s = self.check(d)
                self.assertEqual(d.ctl_json("cache", "drop")["pages"],
                                 s["pages_cached"])
                s = self.check(d)
                self.assertEqual(s["pages_free"], s["pages_total"])
                self.ask(c, "recall64-0", 0)

    def test_the_next_turn_hits_the_answer_before_it(self):
        for layout in LAYOUTS:
            with self.subTest(layout), daemon(layout, 40) as d, \
                    d.client() as c:
                ids, known = self.ref["math0"]["ids"], 0
                for turn in range(4):
                    a = c.generate(tokens=ids, max_tokens=120, **GREEDY,
                                   flags=D.IGNORE_EOS)
                    self.assertEqual(a.usage["cached_tokens"], known)
                    # the answer's last token has no row yet
                    known = (len(ids) + len(a.tokens) - 1) // 64 * 64
                    ids = ids + a.tokens + self.ref["math1"]["ids"]
                warm = c.generate(tokens=ids, max_tokens=24, **GREEDY)
                self.assertEqual(warm.usage["cached_tokens"], known)
                d.ctl_json("cache", "drop")
                cold = c.generate(tokens=ids, max_tokens=24, **GREEDY)
                self.assertEqual(cold.usage["cached_tokens"], 0)
                self.assertEqual(warm.tokens, cold.tokens)

    # Two conversations that both fit do not push each other out.
    def test_alternating_sessions_keep_their_hits(self):
        for layout in LAYOUTS:
            with self.subTest(layout), daemon(layout, 34) as d, \
                    d.client() as c:
                for turn in range(6):
                    for name in ("recall64-0", "recall64-1"):
                        self.ask(c, name, 0 if turn == 0 else
                                 whole(len(self.ref[name]["ids"])))
                self.assertEqual(self.counter(d, "evictions"), 0)

    # What was computed before an abort is there when the prompt comes again.
    def test_aborted_and_sent_again(self):
        e = self.ref["recall64-0"]
        for layout in LAYOUTS:
            with self.subTest(layout), daemon(
                    layout, 20, "--chunked-prefill-size", 128) as d, \
                    d.client() as c:
                n = {"abort": 0, "length": 0}   # if we come too late to it
                while n["abort"] < 40:
                    r = c.submit(tokens=e["ids"], max_tokens=200, **GREEDY,
                                 flags=D.IGNORE_EOS)
                    if n["abort"] % 2:
                        c.next(0.02)
                    c.cancel(r)
                    n[c.wait([r])[0].finish] += 1
                self.check(d)
                a = c.generate(tokens=e["ids"], max_tokens=len(e["greedy"]),
                               **GREEDY)
                self.assertEqual(a.tokens, e["greedy"])
                self.assertEqual(a.usage["cached_tokens"],
                                 whole(len(e["ids"])))

    def test_salts_and_scored_prompts(self):
        with daemon("tp8+dcp8", 40) as d, d.client() as c:
            n = whole(len(self.ref["tools0"]["ids"]))
            self.ask(c, "tools0", 0, options={"cache_salt": "a"})
            self.ask(c, "tools0", 0, options={"cache_salt": "b"})
            self.ask(c, "tools0", 0)
            self.ask(c, "tools0", n, options={"cache_salt": "a"})
            cold = c.generate(tokens=self.ref["tools1"]["ids"], max_tokens=1,
                              flags=D.ECHO | D.LOGPROBS, **GREEDY)
            warm = c.generate(tokens=self.ref["tools1"]["ids"], max_tokens=1,
                              flags=D.ECHO | D.LOGPROBS, **GREEDY)
            self.assertEqual(warm.usage["cached_tokens"], 0)
            self.assertEqual(len(warm.prompt_logprobs),
                             len(self.ref["tools1"]["ids"]))
            for x, y in zip(cold.prompt_logprobs[1:],
                            warm.prompt_logprobs[1:]):
                self.assertEqual(x[0], y[0])
                self.assertLess(abs(x[1] - y[1]), 1e-4)

    # CASES 23
    def test_outgrowing_the_pool_changes_no_answer(self):
        """Eight at once, of which each could fill most of the pool."""
        names = [e["name"] for e in self.ref.values() if "recall64" not in
                 e["name"]][:8]
        asks = [dict(tokens=self.ref[n]["ids"], max_tokens=350, **GREEDY,
                     flags=D.IGNORE_EOS | D.LOGPROBS, top_logprobs=2)
                for n in names]
        base = gaps = None
        for layout in LAYOUTS:
            with self.subTest(layout):
                if base is None:         # one after another, with room
                    with daemon(layout, 100) as d, d.client() as c:
                        base = c.batch(asks, 1)
                        self.assertEqual(self.counter(d, "preemptions"), 0)
                    gaps = [[top[0][1] - top[1][1] for _, _, top in
                             a.logprobs] for a in base]
                    # most of what can be asked comes before a tie
                    asked = [next((i for i, x in enumerate(g) if x <= 1e-3),
                                  350) for g in gaps]
                    self.assertGreater(sum(asked), 8 * 100, asked)
                with daemon(layout, 12) as d, d.client() as c:
                    got = c.batch(asks, 8)
                    self.assertGreater(self.counter(d, "preemptions"), 2)
                    self.check(d)
                for n, a, b, g in zip(names, got, base, gaps):
                    self.assertEqual(a.error_text, None)
                    self.assertEqual(len(a.tokens), 350)
                    want = self.ref[n]["greedy"]
                    self.assertEqual(a.tokens[:len(want)], want, n)
                    self.assertIsNone(first_difference(a.tokens, b.tokens,
                                                       g), n)

    def test_pinned_by_dcpctl(self):
        text = "Ann has 12 pears. Ben gives Ann 13 more. " * 12
        with daemon("tp8+dcp8", 34) as d, d.client() as c:
            ids = c.generate(text=text, flags=D.TOKENIZE).prompt_tokens
            n = len(ids) // 64
            self.assertGreater(n, 2)
            o = d.ctl_json("cache", "pin", "--prompt", text)
            self.assertEqual((o["pages"], o["tokens"]), (n, 64 * n))
            e = self.ref["tools0"]
            t = d.ctl_json("cache", "pin", "--salt", "x", "--tokens",
                           ",".join(map(str, e["ids"])))
            self.assertEqual(t["pages"], len(e["ids"]) // 64)
            s = self.check(d)
            self.assertEqual(s["pages_pinned"], o["pages"] + t["pages"])
            self.assertEqual([p["id"] for p in s["pins"]],
                             [t["id"], o["id"]])
            for name in "recall64-0", "recall64-1":
                self.ask(c, name, 0)
            self.assertGreater(self.counter(d, "evictions"), 0)
            d.ctl("cache", "drop")
            self.ask(c, "tools0", whole(len(e["ids"])),
                     options={"cache_salt": "x"})
            self.ask(c, "tools0", 0)
            a = c.generate(text=text, max_tokens=1, **GREEDY)
            self.assertEqual(a.usage["cached_tokens"], whole(len(ids)))
            r = d.ctl("cache", "unpin", "--id", t["id"])
            self.assertEqual(r.stdout, f"{t['pages']} pages unpinned\n")
            self.assertIn("pages unpinned", d.ctl("cache", "unpin",
                                                  "--all").stdout)
            self.assertEqual(self.check(d)["pins"], [])
            for args in (["pin"], ["unpin"], ["stats", "--all"],
                         ["drop", "--prompt", "x"],
                         ["pin", "--prompt", "x", "--tokens", "1"]):
                self.assertEqual(d.ctl("cache", *args).returncode, 2, args)
            r = d.ctl("cache", "pin", "--tokens", "1,2,3")
            self.assertEqual(r.returncode, 1)
            self.assertIn("3 tokens: only whole pages of 64", r.stderr)
            r = d.ctl("cache", "unpin", "--id", 99)
            self.assertEqual(r.returncode, 1)
            self.assertIn("no pin 99", r.stderr)

    def test_a_daemon_that_has_pins_ends_well(self):
        with daemon("tp8", 20) as d:
            ids = self.ref["tools0"]["ids"]
            d.ctl_json("cache", "pin", "--tokens", ",".join(map(str, ids)))
            self.assertEqual(self.check(d)["pages_pinned"], len(ids) // 64)
            self.assertEqual(d.stop(), 0)

    def test_never_fits_is_refused_with_the_numbers(self):
        with daemon("tp8+dcp8", 20) as d, d.client() as c:
            a = c.generate(tokens=self.ref["recall64-0"]["ids"],
                           max_tokens=400, **GREEDY)
            self.assertEqual(a.error, -90)          # EMSGSIZE
            self.assertIn("1280", a.error_text)

    def test_what_dcpctl_refuses(self):
        with daemon("tp8", 20) as d:
            for args in ((), ("flush",), ("stats", "drop")):
                r = d.ctl("cache", *args)
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertIn("give stats, drop, pin or unpin", r.stderr)
            self.assertIn("pages dropped", d.ctl("cache", "drop").stdout)
            self.assertIn("hit_rate", d.ctl("cache", "stats").stdout)


if __name__ == "__main__":
    main()  # noqa: F405
