#!/usr/bin/python3
"""bf16 and fp8 rows and index keys are what the formats say.

The numpy reference with its rows and keys rounded as the pool rounds them:
bf16; fp8 rows (e4m3 in tiles of 128 with scale amax/448, RoPE part bf16); fp8
keys (e4m3 per key by amax/448, the query likewise, Hadamard-rotated first for
deepseek_v32). Prompts up to top-k select everything, so logits can be compared
tightly; above it the first layer's selections are compared, whose inputs no
earlier rounding has touched.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403
import make_fixture  # noqa: E402


def e4m3(x):
    """Each last-axis vector rounded to e4m3 by amax/448, and its scale."""
    s = (np.abs(x).max(-1, keepdims=True) / 448).astype(np.float32)
    s = s.astype(np.float64)
    q = np.divide(x, s, out=np.zeros_like(x), where=s > 0)
    return R._E4[R.f32_to_e4m3(q.astype(np.float32))].astype(np.float64), s


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


class Rounded(R.Model):
    """The reference with pool formats kv and idx."""

    def __init__(self, cfg, w, kv, idx):
        super().__init__(cfg, w)
        self.kv, self.idx = kv, idx

    def qkv(self, *a):
        qr, qn, qp, ckv, kp = super().qkv(*a)
        if self.kv == "bf16":
            ckv = R.round_bf16(ckv).astype(np.float64)
        elif self.kv == "fp8":
            q, s = e4m3(ckv.reshape(len(ckv), -1, 128))
            ckv = (q * s).reshape(ckv.shape)
        if self.kv != "f32":
            kp = R.round_bf16(kp).astype(np.float64)
        return qr, qn, qp, ckv, kp

    def indexer_qkw(self, *a):
        q, k, hw = super().indexer_qkw(*a)
        if self.idx == "bf16":
            k = R.round_bf16(k).astype(np.float64)
        elif self.idx == "fp8":
            if self.c.model_type == "deepseek_v32":
                h = hadamard(k.shape[-1])
                q, k = q @ h, k @ h
            (q, qs), (k, ks) = e4m3(q), e4m3(k)
            q, k = q * qs, k * ks
        return q, k, hw


def models():
    """glm-kdims8, and the same shapes as a deepseek_v32 model."""
    path = fixture("glm-kdims8")
    cfg, w = read_json(path, "config.json"), weights(path)
    ds = {k: v for k, v in cfg.items() if not k.startswith("index") or k in
          ("index_n_heads", "index_head_dim", "index_topk")}
    ds.update(model_type="deepseek_v32", rms_norm_eps=1e-6,
              architectures=["DeepseekV32ForCausalLM"])
    dw = make_fixture.gen_weights(ds, 4, "BF16")
    dpath = write_model(os.path.join(WORK, "ds-kdims8"), ds, dw)
    return [("glm", path, cfg, w), ("deepseek", dpath, ds, dw)]


LAYOUTS = [dict(tp=1), dict(tp=8, dcp=8, way="q"),
           dict(tp=8, dcp=8, way="a2a"),
           dict(tp=8, cp=8, dcp=8, strategy="zigzag", way="kv")]


def prompts_of(lengths):
    rng = np.random.Generator(np.random.PCG64(11))
    return [rng.integers(2, 256, n).tolist() for n in lengths]


class Formats(ParityCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = models()

    def test_rows_rounded_as_the_format_says(self):
        prompts = prompts_of([1, 64, 127])
        for name, path, cfg, w in self.models:
            plain = [R.Model(cfg, w).forward(p)["logits"] for p in prompts]
            for kv, tol in (("bf16", 4e-3), ("fp8", 2e-2)):
                m = Rounded(cfg, w, kv, kv)
                want = [m.forward(p)["logits"] for p in prompts]
                effect = max(np.sqrt(((a - b) ** 2).mean()) for a, b in
                             zip(want, plain))
                for d in LAYOUTS:
                    with self.subTest(name, kv=kv, layout=label(d)):
                        rms, worst = self.distance(path, prompts, want, kv, d)
                        self.assertLess(worst, tol)
                        self.assertLess(rms, effect / 4)
                print(f"\n  {name} rows {kv}: rounding moves logits by "
                      f"{effect:.1e} rms; off by {rms:.1e}, worst {worst:.1e}")

    def distance(self, path, prompts, want, kv, d):
        a = self.job(model=path, prompts=prompts, kv=kv, all_logits=True,
                     chunk=50, **d)
        diff = np.concatenate([a["logits"][i] - want[e[0]][e[1]]
                               for i, e in enumerate(a["entries"])])
        return np.sqrt((diff ** 2).mean()), np.abs(diff).max()

    def test_keys_rounded_as_the_format_says(self):
        p = prompts_of([700])[0]
        for name, path, cfg, w in self.models:
            exact = R.Model(cfg, w).forward(p)["topk"][0]
            for idx in ("bf16", "fp8"):
                want = Rounded(cfg, w, "f32", idx).forward(p)["topk"][0]
                moved = self.apart(want, exact)
                for d in LAYOUTS:
                    with self.subTest(name, idx=idx, layout=label(d)):
                        a = self.job(model=path, prompts=[p], kv="f32",
                                     idx=idx, select=True, **d)
                        got = [a["select"][0, i, 0] for i in range(len(p))]
                        off = self.apart(want, got)
                        self.assertLess(off, moved / 8)
                print(f"\n  {name} keys {idx}: rounding moves {moved} "
                      f"selected positions; {off} differ")

    @staticmethod
    def apart(want, got):
        """How many selected positions differ, over all rows above k."""
        return sum(len(set(w[w >= 0].tolist()) ^
                       set(x for x in g.tolist() if x >= 0))
                   for w, g in list(zip(want, got))[128:])


if __name__ == "__main__":
    main()  # noqa: F405
