#!/usr/bin/python3
"""--dcp-wire rounds what crosses ranks, and that alone.

The numpy reference computes each shard's partial output, rounds the heads that
the computing rank does not own (bf16; e4m3 in tiles of 128 with scale
amax/448), and merges. dcpd must come to the same logits, in prefill by q and
in decode; with one rank to a context, and where whole rows are gathered, there
is nothing to round and no bit may change.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403


def e4m3(x):
    """Tiles of 128 of the last axis, rounded to e4m3 by amax/448."""
    t = x.reshape(*x.shape[:-1], -1, min(128, x.shape[-1]))
    s = (np.abs(t).max(-1, keepdims=True) / 448).astype(np.float32)
    s = s.astype(np.float64)
    q = np.divide(t, s, out=np.zeros_like(t), where=s > 0)
    q = R._E4[R.f32_to_e4m3(q.astype(np.float32))].astype(np.float64)
    return (q * s).reshape(x.shape)


ROUND = {"f32": lambda x: x, "fp8": e4m3,
         "bf16": lambda x: R.round_bf16(x).astype(np.float64)}


class Wired(R.Model):
    """The reference with D shards of every context, one rank each."""

    def __init__(self, cfg, w, wire, D):
        super().__init__(cfg, w)
        self.round, self.D = ROUND[wire], D

    def attn_expanded(self, p, qn, qp, ckv, kp, idx, q0):
        c, D, out = self.c, self.D, []
        uk, uv = self.absorb(p)
        own = np.arange(c.nh) // (c.nh // D)    # whose head it is
        for s in range(len(qn)):
            ql = np.einsum("hd,hdc->hc", qn[s], uk)
            sel = idx[s][(idx[s] >= 0) & (idx[s] <= q0 + s)]
            parts = []
            for r in range(D):
                at = sel[sel % D == r]
                o, lse = R.latent_partial(ql, qp[s], ckv[at], kp[at],
                                          c.scaling)
                o = np.where((own == r)[:, None], o, self.round(o))
                parts.append((o, lse))
            o, _ = R.dcp_merge(parts)
            out.append(np.einsum("hc,hvc->hv", o, uv).reshape(-1))
        return np.stack(out) @ self.w[p + "o_proj.weight"].T


class Wire(ParityCase):
    def model(self, name):
        path = fixture(name)
        return path, read_json(path, "config.json"), weights(path)

    def logits(self, path, prompts, **how):
        a = self.job(model=path, prompts=prompts, kv="f32", all_logits=True,
                     chunk=50, **how)
        out = [np.zeros((len(p), a["vocab"])) for p in prompts]
        seen = set()
        for (r, pos), row in zip(a["entries"], a["logits"]):
            if pos < len(prompts[r]):
                out[r][pos] = row
                seen.add((r, pos))
        self.assertEqual(len(seen), sum(map(len, prompts)))
        return out

    def test_what_crosses_is_rounded(self):
        rng = np.random.Generator(np.random.PCG64(5))
        for name in ("glm-kdims8", "glm-tiny"):
            path, cfg, w = self.model(name)
            top = cfg["index_topk"]     # all keys are selected up to it
            prompts = [rng.integers(2, 256, n).tolist()
                       for n in (1, 3, min(top, 100))]
            plain = [R.Model(cfg, w).forward(p)["logits"] for p in prompts]
            for D in (2, 4):
                for wire in ("f32", "bf16", "fp8"):
                    m = Wired(cfg, w, wire, D)
                    want = [m.forward(p)["logits"] for p in prompts]
                    effect = self.apart(want, plain)
                    for way in ("q", "decode"):
                        got = self.ask(path, prompts, D, wire, way)
                        off = self.apart(got, want)
                        with self.subTest(name, D=D, wire=wire, way=way):
                            if wire == "f32":
                                self.assertLess(off, 1e-3)
                            else:
                                self.assertGreater(effect, 1e-4)
                                self.assertLess(off, effect / 4)
                    print(f"\n  {name} D={D} wire {wire}: logits move by "
                          f"{effect:.1e} rms; dcpd is off by {off:.1e}")

    def ask(self, path, prompts, D, wire, way):
        """Logits of every position: by prefill, or all but the first token
        by decode."""
        how = dict(tp=D, dcp=D, wire=wire, way="q")
        if way == "q":
            return self.logits(path, prompts, **how)
        n = max(map(len, prompts))
        a = self.job(model=path, kv="f32", all_logits=True, decode=n,
                     prompts=[p[:1] for p in prompts],
                     forced=[p[1:] for p in prompts], **how)
        out = [np.zeros((len(p), a["vocab"])) for p in prompts]
        for (r, pos), row in zip(a["entries"], a["logits"]):
            if pos < len(prompts[r]):
                out[r][pos] = row
        return out

    @staticmethod
    def apart(a, b):
        d = np.concatenate([x - y for x, y in zip(a, b)])
        return float(np.sqrt((d ** 2).mean()))

    def test_nothing_else_is(self):
        path, cfg, w = self.model("glm-kdims8")
        p = [list(range(2, 90))]
        for how in (dict(tp=2), dict(tp=2, dcp=2, way="kv"),
                    dict(tp=2, dcp=2, way="a2a"),
                    dict(tp=2, cp=2, dcp=2, way="kv")):
            a, b = (self.logits(path, p, wire=wire, **how)[0]
                    for wire in ("f32", "fp8"))
            with self.subTest(label(how)):
                self.assertTrue(np.array_equal(a, b))

    def test_greedy_tokens_hold_on_the_trained_model(self):
        texts = []
        for kind, n in (("math", 4), ("recall16", 4), ("recall48", 2)):
            with open(os.path.join(SRC, "tests/data/eval",
                                   kind + ".jsonl")) as f:
                texts += [json.loads(x)["prompt"] for x in f][:n]
        p = self.fwd.encode(TINY, texts)
        job = dict(model=TINY, prompts=p, decode=16, kv="f32", way="q",
                   tp=8, dcp=8, chunk=512)
        want = self.job(**job)
        gaps = gaps_of(want, p)
        for wire, gap in (("bf16", 0.1), ("fp8", 0.5)):
            got = self.job(wire=wire, **job)
            first = got["logits"][0] - want["logits"][0]
            for r in range(len(p)):
                with self.subTest(wire=wire, request=r):
                    self.assertIsNone(first_difference(
                        got["tokens"][r], want["tokens"][r], gaps[r], gap))
            print(f"\n  dcp-tiny, wire {wire}: the first logits move by "
                  f"{np.sqrt((first ** 2).mean()):.1e} rms")


if __name__ == "__main__":
    main()  # noqa: F405
