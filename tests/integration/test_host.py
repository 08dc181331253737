#!/usr/bin/python3
"""Cached pages in host memory, through the daemon: what left the pool comes
back, is counted as a hit, and changes no answer; nor does anything else that a
cache and a full pool do to a request.

Real daemons with models/dcp-tiny on the CPU. Expected answers come from
models/dcp-tiny/reference.json, which transformers wrote, and beyond its ends
from requests that ran alone in an empty daemon.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403
import dcpclient as D  # noqa: E402
from daemon import Daemon  # noqa: E402

CP = ["--attn-cp-size", 8, "--enable-cp-decode-attn-tp"]
LAYOUTS = {"tp8": (["--tp", 8], 1),
           "tp8+dcp2": (["--tp", 8, "--dcp-size", 2], 2),
           "tp8+dcp4": (["--tp", 8, "--dcp-size", 4], 4),
           "tp8+dcp8": (["--tp", 8, "--dcp-size", 8], 8),
           "tp8+cp8+dcp8": (["--tp", 8, "--dcp-size", 8, *CP], 8)}
INDEX = {"f32": 128 * 4, "bf16": 132, "fp8_e4m3": 132}
ROW = {"f32": 576 * 4, "bf16": 576 * 2, "fp8_e4m3": 656}
GREEDY = dict(temperature=0.0)


def page_bytes(kv):
    """Of all ranks, heads once: 4 layers, 3 with an index."""
    return 64 * (4 * ROW[kv] + 3 * INDEX[kv])


def daemon(layout, pages, host, *flags, kv="f32"):
    """So many pages (a page more is the sink), so many in host memory."""
    how, d = LAYOUTS[layout]
    return Daemon("--model", TINY, "--kv-cache-dtype", kv,
                  "--kv-bytes-per-rank", (pages + 1) * page_bytes(kv) // d,
                  "--host-cache-bytes", host * page_bytes(kv) + 1000,
                  *how, *flags)


def whole(n):
    return (n - 1) // 64 * 64


class Host(unittest.TestCase):
    def setUp(self):
        self.ref = {e["name"]: e for e in read_json(TINY, "reference.json")}

    def ask(self, c, name, cached=None, **more):
        e = self.ref[name]
        a = c.generate(tokens=e["ids"], max_tokens=len(e["greedy"]), **GREEDY,
                       **more)
        self.assertEqual(a.error_text, None)
        self.assertEqual(a.tokens, e["greedy"], name)
        if cached is not None:
            self.assertEqual(a.usage["cached_tokens"], cached, name)
        return a

    def check(self, d):
        r = d.ctl("check")
        self.assertEqual(r.returncode, 0, r.stderr)
        s = d.ctl_json("cache", "stats")
        self.assertEqual(s["pages_free"] + s["pages_cached"] +
                         s["pages_used"], s["pages_total"])
        return s

    # CASES 19
    def test_evicted_comes_back_and_is_a_hit(self):
        n = {e["name"]: whole(len(e["ids"])) for e in self.ref.values()}
        for layout in ("tp8", "tp8+dcp8", "tp8+cp8+dcp8")[not LONG:]:
            with self.subTest(layout), daemon(layout, 17, 60) as d, \
                    d.client() as c:
                self.ask(c, "recall64-0", 0)
                self.ask(c, "recall64-1", 0)
                self.ask(c, "tools0", 0)
                s = self.check(d)
                self.assertEqual((s["pages_total"], s["host_total"]), (17, 60))
                self.assertGreater(s["host_pages"], 14)
                self.assertEqual(s["host_hit_tokens"], 0)
                for name in "recall64-0", "recall64-1", "tools0":
                    self.ask(c, name, n[name])
                t = self.check(d)
                # What had been pushed out, to the page.
                self.assertEqual(t["host_hit_tokens"],
                                 64 * t["host_pages_in"])
                self.assertGreaterEqual(t["host_hit_tokens"],
                                        n["recall64-0"] + n["recall64-1"])
                self.ask(c, "recall64-0", 0, options={"cache_salt": "x"})
                s = self.check(d)
                self.assertEqual(d.ctl_json("cache", "drop")["pages"],
                                 s["pages_cached"] + s["host_pages"])
                s = self.check(d)
                self.assertEqual((s["pages_free"], s["host_pages"]), (17, 0))
                self.ask(c, "recall64-1", 0)

    # Rows and index keys come back as they were: the very same logprobs.
    def test_restored_is_warm_in_each_format(self):
        ids = self.ref["recall64-0"]["ids"]
        req = dict(tokens=ids, max_tokens=12, flags=D.LOGPROBS | D.IGNORE_EOS,
                   top_logprobs=5, **GREEDY)
        for kv in ROW:
            for layout in ("tp8", "tp8+dcp8")[kv != "bf16" and not LONG:]:
                with self.subTest(layout, kv=kv), \
                        daemon(layout, 17, 40, kv=kv) as d, d.client() as c:
                    c.generate(**req)
                    warm = c.generate(**req)
                    self.ask_other(c)
                    back = c.generate(**req)
                    self.assertEqual(warm.usage["cached_tokens"],
                                     whole(len(ids)))
                    self.assertEqual(back.usage["cached_tokens"],
                                     whole(len(ids)))
                    self.assertGreaterEqual(
                        d.ctl_json("cache", "stats")["host_pages_in"], 14)
                    self.assertEqual(back.tokens, warm.tokens)
                    self.assertEqual(back.logprobs, warm.logprobs)

    def ask_other(self, c):
        c.generate(tokens=self.ref["recall64-1"]["ids"], max_tokens=40,
                   flags=D.IGNORE_EOS, **GREEDY)

    # CASES 23
    def test_one_answer_whatever_happens_to_its_pages(self):
        """Alone; in batches of 8 and 32; cold, restored, preempted and
        resumed: in every layout, D = 1, 2, 4 and 8."""
        texts = [(e["ids"], e["greedy"], len(e["greedy"]))
                 for e in self.ref.values() if "recall64" not in e["name"]]
        # Two that outgrow any page that was kept for them, four times each
        texts += [(self.ref[f"recall64-{i}"]["ids"][:60], [], 200)
                  for i in (0, 1)]
        asks = [(t, s) for s in "abcd" for t in (10, 11)] + \
            [(t, s) for s in "ab" for t in range(10)] + \
            [(t, "c") for t in range(4)]
        self.assertEqual(len(asks), 32)
        reqs = [dict(tokens=texts[t][0], max_tokens=texts[t][2], **GREEDY,
                     flags=D.IGNORE_EOS, options={"cache_salt": s})
                for t, s in asks]
        with daemon("tp8+dcp8", 40, 1) as d, d.client() as c:
            base = c.batch([dict(tokens=ids, max_tokens=n, top_logprobs=2,
                                 flags=D.IGNORE_EOS | D.LOGPROBS, **GREEDY)
                            for ids, _, n in texts], 1)
        gaps = [[top[0][1] - top[1][1] for _, _, top in a.logprobs]
                for a in base]

        def same(got, what, step=1):
            for (t, _), a in zip(asks[::step], got):
                self.assertEqual(a.error_text, None)
                want = texts[t][1]
                self.assertEqual(a.tokens[:len(want)], want, (t, what))
                self.assertEqual(len(a.tokens), texts[t][2])
                self.assertIsNone(first_difference(
                    a.tokens, base[t].tokens, gaps[t]), (t, what))

        for layout in LAYOUTS:
            with self.subTest(layout), daemon(layout, 12, 300) as d, \
                    d.client() as c:
                count = lambda k: d.ctl_json("status")["counters"][k]
                same(c.batch(reqs, 32), "32, cold")
                self.assertGreater(count("preemptions"), 0)
                same(c.batch(reqs[::2], 8), "8, warm or restored", 2)
                self.assertGreater(count("host_hit_tokens"), 500)
                self.check(d)

    def test_sizes_that_are_refused_and_shown(self):
        r = Daemon("--model", TINY, "--host-cache-bytes", 1000)
        with self.assertRaises(RuntimeError) as e:
            with r:
                pass
        self.assertIn("--host-cache-bytes", str(e.exception))
        self.assertIn("a page takes", str(e.exception))
        with daemon("tp8+dcp8", 20, 33) as d:
            self.assertIn("33 pages more", open(d.log).read())


if __name__ == "__main__":
    main()  # noqa: F405
