#!/usr/bin/python3
"""dcp-tiny answers as the stored reference does, in every layout.

models/dcp-tiny/reference.json holds greedy tokens of the float32 numpy
reference for twelve prompts; all of their arg-max gaps exceed 1e-3, so every
token must be equal. The five best logits after the prompt must agree too.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403

CHECK = [                      # at least one of each kind; all with --long
    dict(tp=1), dict(tp=8), dict(tp=8, dcp=8, way="q"),
    dict(tp=8, dcp=8, way="kv"), dict(tp=8, dcp=8, way="a2a"),
    dict(tp=8, dcp=2, way="q"), dict(tp=8, dcp=4, way="a2a"),
    dict(tp=8, cp=8, dcp=8, strategy="interleave", way="kv"),
    dict(tp=8, cp=8, dcp=8, strategy="zigzag", way="a2a"),
    dict(tp=8, cp=2, dcp=8, strategy="zigzag", way="q"),
    dict(tp=8, cp=4, dcp=2, strategy="interleave", way="q"),
    dict(tp=4, cp=4, dcp=1, strategy="zigzag"),
]


class TinyParity(ParityCase):
    def setUp(self):
        self.ref = read_json(TINY, "reference.json")
        self.prompts = [e["ids"] for e in self.ref]

    def test_every_gap_is_large_enough_to_ask_for_every_token(self):
        self.assertEqual(len(self.ref), 12)
        self.assertGreater(min(e["min_argmax_gap"] for e in self.ref), 1e-3)

    def test_tokenizer_gives_the_ids_of_the_reference(self):
        ids = self.fwd.encode(TINY, [e["prompt"] for e in self.ref])
        self.assertEqual(ids, self.prompts)

    def test_greedy_tokens_and_best_logits_in_every_layout(self):
        jobs = layouts(8) if LONG else CHECK
        longest = max(len(e["greedy"]) for e in self.ref)
        worst = 0.0
        for d in jobs:
            with self.subTest(label(d)):
                a = self.job(model=TINY, prompts=self.prompts, decode=longest,
                             stop_at_eos=True, chunk=512, batch=8, **d)
                for e, got in zip(self.ref, a["tokens"]):
                    self.assertEqual(got[:len(e["greedy"])], e["greedy"],
                                     f"{e['name']} in {label(d)}")
                worst = max(worst, self.best_logits(a))
        print(f"\n  {len(jobs)} layouts x {len(self.ref)} prompts, worst "
              f"difference of a stored logit {worst:.2e}")

    def best_logits(self, a):
        at = {tuple(e): i for i, e in enumerate(a["entries"])}
        worst = 0.0
        for i, e in enumerate(self.ref):
            row = a["logits"][at[i, len(e["ids"]) - 1]]
            for token, logit in e["top5"]:       # stored with four decimals
                worst = max(worst, abs(float(row[token]) - logit))
        self.assertLess(worst, 1e-3 + 5e-5)
        return worst


if __name__ == "__main__":
    main()  # noqa: F405
