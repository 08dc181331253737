#!/usr/bin/python3
"""Every layout gives the logits, tokens and selections of the reference.

Five fixture checkpoints (all formats, both model types, YaRN, index sharing),
f32 rows: logits within 1e-3 of the float64 reference, greedy continuations
equal, top-k sets equal wherever the reference's own margin is 1e-5 or more.
DCPD_TEST_LONG=1 runs the whole product of layouts, ways and chunks.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403

TOL = 1e-3


class Reference:
    """Stored outputs of one fixture, and the margins of its selections."""

    def __init__(self, name):
        self.path = fixture(name)
        self.cfg = read_json(self.path, "config.json")
        self.c = R.Cfg(self.cfg)
        j = read_json(self.path, "ref.json")
        self.prompts = j["prompts"]
        self.greedy = {int(k): v for k, v in j["greedy"].items()}
        self.gap = j["min_argmax_gap"]
        self.t = {n: R.to_f32(*v) if v[0] != "I32" else v[1] for n, v in
                  R.load_safetensors(self.path + "/ref.safetensors").items()}
        self.full = [i for i, k in enumerate(self.c.indexer_types)
                     if k == "full"]
        self.margin = self.margins(name, j["min_topk_margin"])

    def margins(self, name, least):
        """[prompt][full layer][T]; all infinite when none is near 1e-5."""
        if least >= 1e-5:
            return [[np.full(len(p), np.inf) for _ in self.full]
                    for p in self.prompts]
        path = os.path.join(WORK, f"margins-{name}.npz")
        if not os.path.exists(path):
            m = reference(self.path)
            out = {}
            for i, p in enumerate(self.prompts):
                for k, row in enumerate(m.forward(p)["margin"]):
                    out[f"{i}.{k}"] = row
            tmp = f"{path}.{os.getpid()}.npz"
            np.savez(tmp, **out)
            os.rename(tmp, path)
        with np.load(path) as z:
            return [[z[f"{i}.{k}"] for k in range(len(self.full))]
                    for i in range(len(self.prompts))]


def corner_layouts(heads):
    """For check: each kind of layout at its largest, each way once."""
    every, keep = layouts(heads), []
    for d in every:
        most = d["tp"] == heads
        if d["tp"] == 1 or (d["cp"] == 1 and d["dcp"] == 1):
            keep.append(d)                              # tp alone
        elif most and d["cp"] == 1 and (d["dcp"] == heads or
                                        d["way"] == "q"):
            keep.append(d)                              # every D, every way
        elif most and d["cp"] == heads and d["dcp"] == heads:
            keep.append(d)                              # CP = D, both ends
        elif most and d["cp"] == 2 and d["dcp"] in (1, 2, heads) and \
                d["way"] == "kv":
            keep.append(d)                              # CP under attention TP
    return keep


class FixtureParity(ParityCase):
    def compare(self, name, ref, d, chunk, batch):
        n_new = 16
        a = self.job(model=ref.path, prompts=ref.prompts, decode=n_new,
                     chunk=chunk, batch=batch, select=True, all_logits=True,
                     check_replicas=True, max_ctx=len(ref.prompts[-1]) + n_new,
                     **d)
        what = f"{name} {label(d)} chunk {chunk} batch {batch}"
        self.assertEqual(a["replicas_differ"], 0,
                         f"{what}: DCP groups hold different bytes")
        worst = self.logits(what, ref, a)
        self.greedy(what, ref, a)
        sets, near = self.selections(what, ref, a)
        return worst, sets, near

    def logits(self, what, ref, a):
        at = {tuple(e): i for i, e in enumerate(a["entries"])}
        worst, n = 0.0, 0
        for i, p in enumerate(ref.prompts):
            last = a["logits"][at[i, len(p) - 1]]
            pairs = [(len(p) - 1, ref.t[f"p{i}.logits_last"], last)]
            if f"p{i}.logits" in ref.t:
                pairs += [(k, ref.t[f"p{i}.logits"][k],
                           a["logits"][at[i, k]]) for k in range(len(p))]
            for pos, want, got in pairs:
                diff = float(np.abs(got - want).max())
                self.assertLess(diff, TOL, f"{what}: prompt {i} position "
                                f"{pos} of {len(p)}")
                worst, n = max(worst, diff), n + 1
        self.assertGreaterEqual(n, len(ref.prompts))
        return worst

    def greedy(self, what, ref, a):
        self.assertGreater(ref.gap, TOL)     # so that every token is certain
        for i, want in ref.greedy.items():
            self.assertEqual(a["tokens"][i], want, f"{what}: prompt {i}")

    def selections(self, what, ref, a):
        sets = near = 0
        for i, p in enumerate(ref.prompts):
            for k, layer in enumerate(ref.full):
                want = ref.t[f"p{i}.topk.{layer}"]
                for pos in range(len(p)):
                    w = want[pos][want[pos] >= 0]
                    g = a["select"][i, pos, layer]
                    self.assertEqual(len(g), len(w), f"{what}: prompt {i} "
                                     f"position {pos} layer {layer}")
                    if ref.margin[i][k][pos] < 1e-5:
                        near += 1
                        continue
                    sets += 1
                    if not np.array_equal(g, np.sort(w)):
                        self.fail(f"{what}: prompt {i} position {pos} layer "
                                  f"{layer}: selected, not wanted "
                                  f"{sorted(set(g) - set(w))}, wanted, not "
                                  f"selected {sorted(set(w) - set(g))}")
        return sets, near

    def run_fixture(self, name):
        ref = Reference(name)
        heads = ref.c.nh
        worst = 0.0
        jobs = layouts(heads) if LONG else corner_layouts(heads)
        for i, d in enumerate(jobs):
            for chunk, batch in ((512, 8), (61, 3), (64, 1)) if LONG else \
                    (((512, 8), (61, 3), (64, 1))[i % 3],):
                with self.subTest(label(d), chunk=chunk, batch=batch):
                    w, sets, near = self.compare(name, ref, d, chunk, batch)
                    worst = max(worst, w)
        print(f"\n  {name}: {len(jobs)} layouts, worst logit difference "
              f"{worst:.2e}, {sets} sets compared, {near} within 1e-5")


for _n in FIXTURES:
    setattr(FixtureParity, "test_" + _n.replace("-", "_"),
            lambda self, n=_n: self.run_fixture(n))

if __name__ == "__main__":
    main()  # noqa: F405
