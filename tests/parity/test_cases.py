#!/usr/bin/python3
"""Faults that other engines shipped, against the forward pass.

Each test names what must hold. Most run a model derived from a fixture, so
that the fault would show, and the numpy reference of that same model.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "lib"))
from parity import *  # noqa: E402,F403
import make_fixture  # noqa: E402

TP8 = [dict(tp=1), dict(tp=8), dict(tp=8, dcp=8, way="q"),
       dict(tp=8, dcp=8, way="kv"), dict(tp=8, dcp=8, way="a2a"),
       dict(tp=8, dcp=4, way="kv"),
       dict(tp=8, cp=8, dcp=8, strategy="interleave", way="kv"),
       dict(tp=8, cp=8, dcp=8, strategy="zigzag", way="kv"),
       dict(tp=8, cp=8, dcp=8, strategy="zigzag", way="q"),
       dict(tp=8, cp=4, dcp=2, strategy="interleave", way="a2a")]


def random_prompts(vocab, lengths, seed=7):
    rng = np.random.Generator(np.random.PCG64(seed))
    return [rng.integers(2, vocab, n).tolist() for n in lengths]


class Kdims(ParityCase):
    """glm-kdims8: the real row and index shapes, eight heads, top-k 128."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = fixture("glm-kdims8")
        cls.cfg = read_json(cls.path, "config.json")
        cls.ref = reference(cls.path)

    def against_reference(self, a, prompts, what, tol=1e-3, refs=None):
        """Every logit the run gave, against the float64 reference."""
        at = {}
        for i, e in enumerate(a["entries"]):
            at.setdefault(e[0], []).append((e[1], i))
        for req, p in enumerate(prompts):
            ids = p + a["tokens"][req]
            want = refs[req] if refs else self.ref.forward(ids)["logits"]
            for pos, i in at[req]:
                diff = np.abs(a["logits"][i] - want[pos]).max()
                self.assertLess(diff, tol, f"{what}: request {req} of length "
                                f"{len(p)}, position {pos}")

    # No pool, the index's least of all, is a page short of what is planned.
    def test_every_page_filled_and_guard_bytes_whole(self):
        prompts = random_prompts(256, [64, 128, 320, 64, 448])
        pages = sum(len(p) // 64 for p in prompts)
        base = None
        for kv in ("f32", "bf16", "fp8"):
            for D in (1, 2, 4, 8):
                with self.subTest(kv=kv, D=D):
                    a = self.job(model=self.path, prompts=prompts, pages=pages,
                                 keep_all_pages=True, tp=8, dcp=D, kv=kv,
                                 batch=5, check_replicas=True)
                    self.assertEqual(a["pages"], pages)
                    self.assertEqual(a["replicas_differ"], 0)
                    if kv == "f32" and base is None:
                        base = a["logits"]
                        self.against_reference(a, prompts, f"D {D}")
                    elif kv == "f32":
                        self.assertLess(np.abs(a["logits"] - base).max(), 1e-3)

    # Offsets of a request count all of the batch, not those of its requests
    # that have tokens on this rank.
    def test_cp_prefill_where_ranks_own_no_token_of_some_request(self):
        prompts = random_prompts(256, [1, 130, 2, 3, 19, 1, 9, 65])
        refs = [self.ref.forward(p)["logits"] for p in prompts]
        for st in ("interleave", "zigzag"):
            for cp, dcp in ((8, 8), (8, 1), (4, 8), (2, 2)):
                for chunk in (512, 67, 5):
                    d = dict(tp=8, cp=cp, dcp=dcp, strategy=st,
                             way=("q", "kv", "a2a")[chunk % 3])
                    with self.subTest(label(d), chunk=chunk):
                        a = self.job(model=self.path, prompts=prompts,
                                     chunk=chunk, all_logits=True,
                                     check_replicas=True, **d)
                        self.assertEqual(a["replicas_differ"], 0)
                        self.against_reference(a, prompts, label(d),
                                               refs=refs)

    # A row is quantised once, for pool and gather buffer alike.
    def test_pool_row_is_the_gathered_row_byte_for_byte(self):
        prompts = random_prompts(256, [200, 77])
        for kv in ("f32", "bf16", "fp8"):
            for d in (dict(tp=8, dcp=8), dict(tp=8, dcp=2),
                      dict(tp=8, cp=8, dcp=8, strategy="interleave"),
                      dict(tp=8, cp=8, dcp=8, strategy="zigzag"),
                      dict(tp=8, cp=2, dcp=4, strategy="zigzag")):
                with self.subTest(label(d), kv=kv):
                    a = self.job(model=self.path, prompts=prompts, chunk=64,
                                 way="kv", batch=1, kv=kv, check_gather=True,
                                 check_replicas=True, **d)
                    self.assertEqual(a["gathered"], 8 * (
                        64 + 128 + 192 + 200 + 64 + 77))
                    self.assertEqual(a["gathered_differ"], 0)
                    self.assertEqual(a["replicas_differ"], 0)

    # Pages, chunks and top-k meet at lengths of their own; the longest are far
    # above top-k, where the selection decides.
    def test_lengths_at_every_seam(self):
        cfg = dict(self.cfg, max_position_embeddings=4224)
        path = write_model(os.path.join(WORK, "kdims-4224"), cfg,
                           weights(self.path))
        lens = [1, 63, 64, 65, 127, 128, 129, 511, 512, 513]
        big = [4095, 4096, 4097, 4223, 4224] if LONG else [4097]
        prompts = random_prompts(256, lens)
        refs = [self.ref.forward(p)["logits"][-1:] for p in prompts]
        top = random_prompts(256, big, seed=8)
        base = None
        for i, d in enumerate(TP8):
            with self.subTest(label(d)):
                a = self.job(model=path, prompts=prompts, chunk=(512, 100)[
                    i % 2], decode=0, **d)
                for req, pos, n in ((e[0], e[1], k) for k, e in
                                    enumerate(a["entries"])):
                    diff = np.abs(a["logits"][n] - refs[req][0]).max()
                    self.assertLess(diff, 1e-3, f"length {lens[req]}")
                if i % 3 and not LONG:
                    continue
                a = self.job(model=path, prompts=top, chunk=512, batch=1,
                             decode=0, **d)
                if base is None:
                    base = a
                self.assertLess(np.abs(a["logits"] - base["logits"]).max(),
                                1e-3)

    # Requests of very different lengths end at different steps; rows that pad
    # a batch give no NaN.
    def test_uneven_batches_never_give_nan(self):
        prompts = random_prompts(256, [1, 300, 7, 64, 129, 33, 2])
        for batch in (7, 5, 3):
            for d in TP8[1::2]:
                with self.subTest(label(d), batch=batch):
                    a = self.job(model=self.path, prompts=prompts, decode=9,
                                 chunk=50, batch=batch, **d)
                    self.assertTrue(np.isfinite(a["logits"]).all())
                    self.against_reference(a, prompts, label(d))

    def test_several_rows_of_a_request_in_one_decode_pass(self):
        """What speculative verification will ask for."""
        prompts = random_prompts(256, [150, 40, 64])
        forced = random_prompts(256, [20, 20, 20], seed=9)
        refs = [self.ref.forward(p + f)["logits"] for p, f in
                zip(prompts, forced)]
        for d in TP8:
            for m in (1, 3, 7):
                with self.subTest(label(d), rows=m):
                    a = self.job(model=self.path, prompts=prompts, decode=20,
                                 forced=forced, decode_rows=m, **d)
                    self.assertEqual(len(a["entries"]), 3 * 20)
                    self.against_reference(a, prompts, label(d), refs=refs)

    def test_threads_do_not_change_a_bit(self):
        prompts = random_prompts(256, [200, 3, 65])
        for d in TP8[1:8:3]:
            with self.subTest(label(d)):
                a, b = (self.job(model=self.path, prompts=prompts, decode=5,
                                 threads=t, **d) for t in (1, 2))
                self.assertTrue(np.array_equal(a["logits"], b["logits"]))


def no_position_in_layer_0(w):
    """Index keys of layer 0 that depend on the token alone."""
    p = "model.layers.0.self_attn.indexer.k_norm."
    for n in (p + "weight", p + "bias"):
        w[n] = w[n].copy()
        w[n][:64] = 0                  # the RoPE part


class Ties(ParityCase):
    """Equal scores at the k-th place; one rank's winners."""

    runs = 25

    def model(self, name, change, **cfg):
        src = fixture("glm-kdims8")
        w = dict(weights(src))
        change(w)
        cfg = dict(read_json(src, "config.json"), **cfg)
        path = write_model(os.path.join(WORK, name), cfg, w)
        return path, R.Model(cfg, w)

    def test_all_scores_zero_selects_the_first_k_positions(self):
        def zero(w):
            for n in w:
                if n.endswith("indexer.weights_proj.weight"):
                    w[n] = np.zeros_like(w[n])
        path, _ = self.model("ties-zero", zero)
        prompts = random_prompts(256, [300])
        for d in TP8:
            with self.subTest(label(d)):
                a = self.job(model=path, prompts=prompts, decode=4,
                             select=True, **d)
                for (_, pos, layer), got in a["select"].items():
                    want = np.arange(min(128, pos + 1))
                    self.assertTrue(np.array_equal(got, want),
                                    f"position {pos} layer {layer}: {got}")

    def test_plateaus_give_the_same_set_for_every_D_in_25_runs(self):
        """Layer 0 keys that depend on the token alone, and few tokens: long
        runs of exactly equal scores, cut by the k-th place. The reference
        rounds its scores, so that float64 noise makes no order."""
        path, ref = self.model("ties-flat", no_position_in_layer_0)
        rng = np.random.Generator(np.random.PCG64(3))
        prompts = [rng.choice([5, 9, 77], 400).tolist(),
                   rng.choice([12, 200], 333).tolist()]
        want = {}
        for i, p in enumerate(prompts):
            sc = np.round(ref.forward(p)["scores"][0], 9)
            for pos in range(len(p)):
                row = sc[pos, :pos + 1]
                want[i, pos] = np.sort(R.topk_stable(row, min(128, pos + 1)))
        cut = sum(1 for (i, pos), s in want.items() if pos > 128)
        self.assertGreater(cut, 400)
        done = 0
        while done < self.runs:
            for d in TP8:
                with self.subTest(label(d), run=done):
                    a = self.job(model=path, prompts=prompts, select=True,
                                 seed=done, chunk=(512, 64, 333)[done % 3],
                                 **d)
                    for key, w in want.items():
                        g = a["select"][key + (0,)]
                        self.assertTrue(np.array_equal(g, w),
                                        f"{key}: {set(g) ^ set(w)}")
                done += 1

    def test_all_winners_on_one_rank(self):
        """Layer 0, k = 24: token A scores above token B for either as the
        query, and A is only at 5 mod 8, so rank 5 of 8 has every winner."""
        path, ref = self.model("one-rank", no_position_in_layer_0,
                               index_topk=24)
        sc = ref.forward(list(range(2, 130)))["scores"][0]
        a, b = next((i, j) for i in range(2, 128) for j in range(2, i)
                    if sc[i, i] > sc[i, j] + 0.1 and
                    ref.forward([i + 2, j + 2])["scores"][0][1, 0] >
                    ref.forward([i + 2, j + 2])["scores"][0][1, 1] + 0.1)
        p = [a + 2 if i % 8 == 5 else b + 2 for i in range(300)]
        out = ref.forward(p)
        want = {pos: set(row[row >= 0].tolist())
                for pos, row in enumerate(out["topk"][0])}
        lone = [pos for pos, w in want.items() if pos >= 24 and
                all(x % 8 == 5 for x in w)]
        self.assertGreater(len(lone), 100)
        for d in TP8:
            with self.subTest(label(d)):
                r = self.job(model=path, prompts=[p], decode=3, select=True,
                             chunk=128, **d)
                for pos in lone:
                    got = r["select"][0, pos, 0].tolist()
                    self.assertEqual(len(got), 24)
                    self.assertTrue(all(x % 8 == 5 for x in got), got)
                last = [e for e in enumerate(r["entries"])
                        if e[1] == [0, 299]][0][0]
                self.assertTrue(np.isfinite(r["logits"]).all())
                self.assertLess(np.abs(r["logits"][last] -
                                       out["logits"][-1]).max(), 1e-3)


class Outliers(ParityCase):
    """NaN in rows nobody selected. On dsv32-yarn: every layer selects."""

    # A NaN row that *is* selected is another matter: the merge takes a shard
    # with NaN for an empty one, so layouts differ there, by design.

    BAD = 7

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        src = fixture("dsv32-yarn")
        w = dict(weights(src))
        e = w["model.embed_tokens.weight"].copy()
        e[cls.BAD] = np.nan
        w["model.embed_tokens.weight"] = e
        cfg = dict(read_json(src, "config.json"), max_position_embeddings=2048)
        cls.path = write_model(os.path.join(WORK, "nan-token"), cfg, w)
        cls.ref = R.Model(cfg, w)

    def prompt(self, n, bad):
        p = random_prompts(512, [n], seed=5)[0]
        p = [t if t != self.BAD else 8 for t in p]
        return [self.BAD if bad(i) else t for i, t in enumerate(p)]

    def compare(self, p, first, **how):
        with np.errstate(invalid="ignore"):
            want = self.ref.forward(p)["logits"]
        for D in (1, 2, 4):
            for d in (dict(tp=4, dcp=D, way="q"), dict(tp=4, dcp=D, way="kv"),
                      dict(tp=4, cp=4, dcp=D, strategy="zigzag", way="a2a")):
                with self.subTest(label(d)):
                    a = self.job(model=self.path, prompts=[p], chunk=64,
                                 all_logits=True, any_number=True, **d, **how)
                    n = 0
                    for (_, pos), got in zip(a["entries"], a["logits"]):
                        if pos < first or p[pos] == self.BAD:
                            continue
                        self.assertTrue(np.isfinite(want[pos]).all())
                        self.assertLess(np.abs(got - want[pos]).max(), 1e-3,
                                        f"position {pos}")
                        n += 1
                    self.assertGreater(n, 20)

    def test_nan_rows_that_nobody_selected_change_nothing(self):
        # From k on there are always k other keys, so no NaN row is needed.
        p = self.prompt(140, lambda i: i > 30 and i % 9 == 4)
        self.compare(p, 0)


class ManyHeads(ParityCase):
    """128 heads over 8 ranks. Under DCP a kernel sees all heads of
    the group, under CP prefill the local ones: each phase its own number."""

    def test_128_heads(self):
        cfg = dict(read_json(fixture("dsv32-yarn"), "config.json"),
                   num_attention_heads=128, num_key_value_heads=128,
                   qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
        w = make_fixture.gen_weights(cfg, 6, "BF16")
        path = write_model(os.path.join(WORK, "heads-128"), cfg, w)
        prompts = random_prompts(512, [90, 5, 31], seed=2)
        m = R.Model(cfg, w)
        refs = [m.forward(p)["logits"] for p in prompts]
        margin = min(x.min() for p in prompts for x in m.forward(p)["margin"])
        self.assertGreater(margin, 1e-7)
        for d in TP8:
            with self.subTest(label(d)):
                a = self.job(model=path, prompts=prompts, decode=0,
                             chunk=40, **d)
                for e, got in zip(a["entries"], a["logits"]):
                    diff = np.abs(got - refs[e[0]][e[1]]).max()
                    self.assertLess(diff, 1e-3, f"{e}")


class BadJobs(ParityCase):
    def test_a_layout_that_does_not_divide_is_refused(self):
        a = self.fwd.run(model=fixture("dsv32-yarn"), prompts=[[3, 4]], tp=8)
        self.assertIn("heads", a.get("error", ""))


class PagesElsewhere(ParityCase):
    """What a step computes does not depend on where pages have been, nor on
    what a mask forbids."""
    PROMPTS = [[5, 9, 33] * 40, [7, 8] * 31, [900]]

    def run_it(self, **how):
        return self.job(model=TINY, prompts=self.PROMPTS, decode=12, chunk=64,
                        batch=3, **how)

    def test_through_host_memory(self):
        for how in (dict(), dict(tp=4, dcp=4), dict(tp=4, cp=2, dcp=2),
                    dict(tp=2, kv="fp8"), dict(tp=2, dcp=2, kv="bf16",
                                               idx="fp8")):
            want, got = self.run_it(**how), self.run_it(rehouse=True, **how)
            self.assertTrue(np.array_equal(want["logits"], got["logits"]),
                            label(how))

    def test_only_what_a_mask_allows(self):
        allowed = [3, 31, 32, 77, 400, 1999]
        for how in (dict(), dict(tp=4, dcp=4)):
            a = self.run_it(allowed=allowed, **how)
            self.assertTrue({t for ts in a["tokens"] for t in ts} <=
                            set(allowed), label(how))
            # the reference: of each position's logits the best allowed
            at = {tuple(e): k for k, e in enumerate(a["entries"])}
            for r, p in enumerate(self.PROMPTS):
                for k, t in enumerate(a["tokens"][r]):
                    row = a["logits"][at[r, len(p) - 1 + k]]
                    best = max(allowed, key=lambda i: (row[i], -i))
                    self.assertEqual(t, best, (label(how), r, k))


if __name__ == "__main__":
    main()  # noqa: F405
