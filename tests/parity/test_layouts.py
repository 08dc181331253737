#!/usr/bin/python3
"""Layouts, chunk sizes and batch sizes do not change an answer.

Rows of every file of tests/data/eval, greedy, f32: each layout against tp1
(which test_fixtures and test_tiny hold against the reference), token by token
until the first choice whose arg-max gap is 1e-3 or less. Chunks 1, 63, 64,
100, 512 and batches 1, 3, 8 go round: each meets several layouts, at least.
DCPD_TEST_LONG=1 (an hour on one core): the first 20 rows of every file, and
each layout with every chunk for the short ones. -k NAME takes some.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403

CHUNKS = [512, 64, 100, 63, 1]
BATCHES = [8, 3, 1]
ROWS = {"math": 20, "tools": 4, "recall16": 4, "recall24": 2, "recall32": 2,
        "recall48": 1, "recall64": 1, "recall120": 1}
LAYOUTS = [
    dict(tp=8), dict(tp=8, dcp=8, way="q"), dict(tp=8, dcp=8, way="kv"),
    dict(tp=8, dcp=8, way="a2a"), dict(tp=8, dcp=4, way="kv"),
    dict(tp=4, dcp=2, way="q"),
    dict(tp=8, cp=8, dcp=8, strategy="interleave", way="kv"),
    dict(tp=8, cp=8, dcp=8, strategy="zigzag", way="kv"),
    dict(tp=8, cp=2, dcp=8, strategy="interleave", way="a2a"),
    dict(tp=8, cp=4, dcp=4, strategy="zigzag", way="q"),
    dict(tp=4, cp=2, dcp=1, strategy="interleave"),
]
ANSWER = 28         # tokens; the longest answer of the files is shorter


class LayoutsAgree(ParityCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = []
        for kind, n in ROWS.items():
            path = os.path.join(SRC, "tests/data/eval", kind + ".jsonl")
            with open(path) as f:
                lines = [json.loads(x) for x in f]
            cls.rows += [(kind, i, e["prompt"]) for i, e in
                         enumerate(lines[:20 if LONG else n])]
        cls.prompts = cls.fwd.encode(TINY, [p for _, _, p in cls.rows])
        cls.base = cls.fwd.run(model=TINY, prompts=cls.prompts, decode=ANSWER,
                               stop_at_eos=True, chunk=512, batch=8)
        if "error" in cls.base:
            raise AssertionError(cls.base["error"])
        cls.gaps = gaps_of(cls.base, cls.prompts)

    def agree(self, **how):
        prompts = self.pick(how)
        a = self.job(model=TINY, prompts=prompts, decode=ANSWER,
                     stop_at_eos=True, **how)
        for k, i in enumerate(self.picked):
            d = first_difference(a["tokens"][k], self.base["tokens"][i],
                                 self.gaps[i])
            kind, row, _ = self.rows[i]
            self.assertIsNone(d, f"{kind} row {row}, token {d}: "
                              f"{a['tokens'][k]}, tp1 "
                              f"{self.base['tokens'][i]} in {label(how)}")
        return len(self.picked)

    def pick(self, how):
        """Chunk 1 prefills a token at a time: only the short rows."""
        most = how.pop("most", None) or \
            (300 if how.get("chunk") == 1 and not LONG else 1 << 20)
        self.picked = [i for i, p in enumerate(self.prompts)
                       if len(p) <= most]
        if how.get("chunk") == 1 and not LONG:
            self.picked = self.picked[:10] + self.picked[20:22]
        return [self.prompts[i] for i in self.picked]

    def test_tp1_answers_are_worth_comparing(self):
        """Answers end by themselves, differ, and few gaps are small."""
        toks = self.base["tokens"]
        self.assertGreater(len({tuple(t) for t in toks}), len(toks) * 3 // 4)
        gaps = [g for row in self.gaps for g in row]
        small = sum(1 for g in gaps if g is None or g <= 1e-3)
        self.assertLess(small, len(gaps) // 100 + 1)
        self.assertGreater(max(len(p) for p in self.prompts), 1500)

    def test_tp1_chunks_and_batches(self):
        for chunk, batch in ((1, 8), (63, 3), (64, 1), (100, 8)):
            with self.subTest(chunk=chunk, batch=batch):
                self.agree(tp=1, chunk=chunk, batch=batch)


def as_tp1(i, d):
    def test(self):
        chunk, batch = CHUNKS[i * 4 % 5], BATCHES[i * 4 % 3]
        n = self.agree(chunk=chunk, batch=batch, **d)
        for k, c in enumerate(CHUNKS if LONG else []):
            if c != chunk:
                with self.subTest(chunk=c):
                    n += self.agree(chunk=c, batch=BATCHES[(i + k) % 3],
                                    most=300, **d)
        print(f"{n} answers as tp1's ... ", end="", file=sys.stderr)
    return test


for i, d in enumerate(LAYOUTS):
    setattr(LayoutsAgree, "test_" + label(d), as_tp1(i, d))

if __name__ == "__main__":
    main()  # noqa: F405
