#!/usr/bin/python3
"""What DCP costs: a decode pass of TP2 beside one of TP2 + DCP2; on four GPUs
TP4 beside TP4 + DCP4, on eight TP8 beside TP8 + DCP4 and TP8 + DCP8.

    price.py FWD LIBDCP_CUDA PART...

PART is block or step, of v32 or glm (block-v32, step-glm, ..), block-fp8 and
step-fp8 (V3.2's, FP8 weights kept), block-glm-fp8, step-glm-fp8, batch-v32,
batch-glm, wire, or quick. Random weights in the shapes of DeepSeek-V3.2 or GLM-5.2, few layers
(FP8 ones are there in a fifth of the time); every request has a context of its
own in a pool of random rows, so that they come from memory. Ranks meet by
flags, passes are graphs. A pass's time is host time around it, the median after
the first six; that of a layer is the difference between a model of more layers
and one of fewer, since the embedding, the head, sampling and the host's own work
come once a pass; of both layouts in turn, the median of three. The first layers
of a pass take longer, where ranks wait for those that start last: both have some.

block   FFN is next to nothing, so that attention is what is left. GLM: layers
        with an index of their own, and with another's (1 in 4 has its own).
step    with an MoE of full width; fewer experts than the model's, eight of them
        a token all the same, so less is read for the FFN and DCP looks dearer.
batch   tokens a second from the same bytes of KV a rank: each side has as many
        contexts at once as these hold; FP8 weights.
wire    --dcp-wire: the same pass with each.

The cells that the project has goals for come first. In the environment DCP=2,4
asks for other sizes, TURNS=1 for one turn, RANKS=8 for so many ranks (on fewer
GPUs they share them, meet by events, and times say nothing of eight).
"""
import os
import statistics
import sys
import threading

import module_check as mc
import numpy as np

PASSES = 26
TURNS = int(os.environ.get("TURNS", 3))
MOST = 256    # requests at once, fwd.h
K = 1024
N = mc.gpus()
W = mc.ranks(N)
SIZES = [int(x) for x in os.environ["DCP"].split(",")] if "DCP" in os.environ \
    else [d for d in (4, 8) if d <= W] or [W]
SPIN = dict(graph_rows=64, **(dict(comm="peer") if W <= N else {}))
TP = mc.share(N, dict(tp=W))
CELLS = [(8 * K, 1), (8 * K, 8), (128 * K, 8), (128 * K, 32), (32 * K, 8),
         (8 * K, 32), (128 * K, 1), (32 * K, 1), (32 * K, 32)]
if W > 2:
    CELLS += [(128 * K, 64), (8 * K, 64), (32 * K, 64)]
# (model, kind, D): at most, DCP's time over TP's; doc/measurements.md
GOALS = {("v32", "block", 2): {(8 * K, 1): 1.15, (8 * K, 8): 1.15,
                               (8 * K, 32): 1.15, (128 * K, 8): 0.90,
                               (128 * K, 32): 0.75},
         ("glm", "block", 2): {(8 * K, 1): 1.15, (8 * K, 8): 1.15,
                               (8 * K, 32): 1.15, (128 * K, 8): 1.0,
                               (128 * K, 32): 0.85},
         ("v32", "step", 2): {(8 * K, 1): 1.06, (8 * K, 8): 1.02,
                              (8 * K, 32): 1.02, (128 * K, 1): 1.04,
                              (128 * K, 8): 0.98},
         ("glm", "step", 2): {(8 * K, 1): 1.06, (8 * K, 8): 1.02,
                              (8 * K, 32): 1.02, (128 * K, 1): 1.04,
                              (128 * K, 8): 1.0},
         ("v32", "step", 8): {(8 * K, 1): 1.10, (8 * K, 8): 1.05,
                              (8 * K, 32): 1.0, (8 * K, 64): 1.0,
                              (128 * K, 8): 0.90, (128 * K, 64): 0.70},
         ("glm", "step", 8): {(8 * K, 1): 1.10, (8 * K, 8): 1.05,
                              (8 * K, 32): 1.0, (8 * K, 64): 1.0,
                              (128 * K, 8): 0.97, (128 * K, 64): 0.85}}
# D: us at most that it adds at batch 1 to a layer with an index of its own and,
# where there is a goal, to one with another's
ADDED = {2: (6,), 8: (7, 5)}
TOKEN = {"v32": (61, 40016 + 8052), "glm": (78, 51168 + 2772)}  # layers, bytes


def dcp(D):
    return mc.share(N, dict(tp=W, dcp=D, way="q"))


class Side:
    """One layout of one model, its device open for all cells."""

    def __init__(self, model, pages=32 * 2050, batch=64, **how):
        self.fwd = mc.Fwd(sys.argv[1], sys.argv[2])
        self.job = dict(model=model, dummy=True, kv="fp8", idx="fp8",
                        chunk=4096, batch=batch, fill=True, keep=True,
                        max_ctx=128 * K + 64, pages=pages, **how)

    def run(self, ctx, batch, passes=PASSES):
        rng = np.random.default_rng(ctx + batch)
        a = self.fwd.run(decode=passes, stretch=ctx, **self.job,
                         prompts=rng.integers(2, 4096, (batch, 64)).tolist())
        if "error" in a:
            say(f"    {self.job}: {a['error']}")
            return None
        return a

    def ms(self, ctx, batch):
        """A pass of `batch` requests of about `ctx` tokens each."""
        a = self.run(ctx, batch)
        if a is None:
            return None
        ms = [m for rows, m in a["decode_ms"] if rows == batch][6:]
        return statistics.median(ms) if ms else None

    def close(self):
        self.fwd.close()


def pages(cells):
    """Enough for the largest of them."""
    return max(b * (c // 64 + 1) for c, b in cells)


def say(*what):
    print(*what)
    sys.stdout.flush()


class Layers:
    """Microseconds of a layer: `of(n)` makes the model of n, two of them run."""

    def __init__(self, of, few, many, pages, **how):
        self.more = many - few
        self.few, self.many = (Side(of(n), pages, **how) for n in (few, many))

    def us(self, ctx, batch):
        a, b = self.few.ms(ctx, batch), self.many.ms(ctx, batch)
        return (b - a) * 1e3 / self.more if a and b else None

    def beside(self, other, ctx, batch):
        """Both, the medians of turns that alternate."""
        t = [(self.us(ctx, batch), other.us(ctx, batch)) for _ in range(TURNS)]
        return [statistics.median(x) if all(x) else None for x in zip(*t)]

    def sides(self):
        return [self.few, self.many]

    def close(self):
        self.few.close(), self.many.close()


def load(sides):
    """Weights of all at the same time, which takes most of the time here."""
    ts = [threading.Thread(target=s.run, args=(64, 1, 1)) for s in sides]
    for t in ts:
        t.start()
    for t in ts:
        t.join()


def room(name, layers, D, cells):
    """Those whose rows and keys fit for both sides into 100 GiB of a GPU."""
    all_layers, token = TOKEN[name]
    each = token / all_layers * layers * (1 + 1 / D) * -(-W // N)
    return [c for c in cells if c[0] * c[1] * each <= 100 * 2**30]


def goals(name, kind, D, cell):
    """What is wanted of a group of all ranks."""
    ratio = GOALS.get((name, kind, D), {}).get(cell)
    out = f"  (goal {ratio})" if ratio and D == W else ""
    if (name, kind, cell[1]) == ("v32", "block", 1) and D == W and D in ADDED:
        out += f"  (at most {ADDED[D][0]} us)"
    return out


def compare(title, name, kind, of, few, many, cells=None, **more):
    """{D: {(context, batch): us of TP, us of DCP}}"""
    asked, out, tp = cells or CELLS, {}, None
    for D in SIZES:
        say(f"{title}: us a layer: TP{W} / TP{W} + DCP{D} = price; added")
        cells = room(name, few + many, D, asked)
        side = Layers(of, few, many, pages(cells), **dcp(D), **SPIN, **more)
        new = side.sides()
        if tp is None:
            most = pages(room(name, few + many, max(SIZES), asked))
            tp = Layers(of, few, many, most, **TP, **SPIN, **more)
            new += tp.sides()
        load(new)
        out[D] = {}
        for ctx, b in set(asked) - set(cells):
            say(f"{ctx // K:4}k b={b:<3} not run: a GPU has no room for it")
        for ctx, b in cells:
            t, d = tp.beside(side, ctx, b)
            if not t or not d:
                continue
            out[D][ctx, b] = (t, d)
            say(f"{ctx // K:4}k b={b:<3} {t:7.1f} / {d:7.1f} = {d / t:5.2f}  "
                f"{d - t:+6.1f}" + goals(name, kind, D, (ctx, b)))
        side.close()
    tp.close()
    return out


def thin_v32(n):
    return mc.v32(n, 0, 8, inter=256, moe=256, fp8=False)


def block_v32():
    compare("block, V3.2", "v32", "block", thin_v32, 6, 14)


def block_glm():
    """As the model mixes them; then what one layer of each kind adds."""
    def mixed(n):
        return mc.glm52(n // 4, n - n // 4, 0, 8, inter=256, moe=256)

    def own(n):
        return mc.glm52(n, 0, 0, 8, inter=256, moe=256)

    a = compare("block, GLM-5.2, a layer in 4 has an index", "glm", "block",
                mixed, 8, 16)
    b = compare("block, GLM-5.2, every layer has", "glm", "block", own, 6, 14,
                [c for c in CELLS if c[1] == 1])
    for D in SIZES:
        most = ADDED.get(D, ()) if D == W else ()
        goal = "  (at most {} and {})".format(*most) if len(most) > 1 else ""
        for c, (t, d) in b[D].items():
            if c not in a[D]:
                continue
            shared = ((a[D][c][1] - a[D][c][0]) * 4 - (d - t)) / 3
            say(f"{c[0] // K:4}k b={c[1]:<3} D={D} us added: {d - t:+.1f} to a "
                f"layer with an index, {shared:+.1f} to one without{goal}")


def block_glm_fp8():
    compare("block, GLM-5.2 in FP8", "glm", "block",
            lambda n: mc.glm52(n // 4, n - n // 4, 0, 8, inter=256, moe=256,
                               fp8=True), 8, 16, fp8_weights=True)


def block_fp8():
    compare("block, V3.2 in FP8", "v32", "block",
            lambda n: mc.v32(n, 0, 8, inter=256, moe=256), 6, 14,
            fp8_weights=True)


def step_fp8():
    compare("step, V3.2 in FP8", "v32", "step",
            lambda n: mc.v32(n, n, 16), 2, 6, fp8_weights=True)


def step_v32():
    compare("step, V3.2", "v32", "step",
            lambda n: mc.v32(n, n, 16, fp8=False), 2, 6)


def step_glm():
    compare("step, GLM-5.2", "glm", "step",
            lambda n: mc.glm52(n // 4, n - n // 4, n, 16), 4, 12)


def step_glm_fp8():
    compare("step, GLM-5.2 in FP8", "glm", "step",
            lambda n: mc.glm52(n // 4, n - n // 4, n, 16, fp8=True), 4, 12,
            fp8_weights=True)


def batch(name, of, few, many, gib=40):
    """KV of `gib` GiB a rank, were all layers there."""
    all_layers, token = TOKEN[name]
    say(f"batch, {name}: {gib} GiB of KV a rank for all {all_layers} layers; "
        "contexts at once, us a layer, tokens a second of all layers alone")
    ways = [(f"TP{W}", TP, 1)] + [(f"TP{W} + DCP{D}", dcp(D), D)
                                  for D in SIZES]
    for ctx in (128 * K, 32 * K):
        rate = {}
        for what, how, D in ways:
            n = min(MOST, gib * 2**30 * D // (token * (ctx + 64)))
            side = Layers(of, few, many, n * (ctx // 64 + 1), batch=n, **how,
                          **dict(SPIN, graph_rows=MOST), fp8_weights=True)
            load(side.sides())
            us = side.us(ctx, n)
            side.close()
            if not us:
                continue
            rate[D] = n / (us * 1e-6 * all_layers)
            say(f"{ctx // K:4}k {what} {n} {us:.1f} us {rate[D]:.0f} tok/s" +
                (f"  {rate[D] / rate[1]:.2f}x" if 1 in rate else ""))


def batch_v32():
    batch("v32", lambda n: mc.v32(n, n, 16), 2, 6)


def batch_glm():
    batch("glm", lambda n: mc.glm52(n // 4, n - n // 4, n, 16, fp8=True),
          4, 12)


def wire():
    cells = [(8 * K, 1), (8 * K, 8), (32 * K, 32), (8 * K, 64)]
    sides = {w: Layers(thin_v32, 2, 6, pages(cells), wire=w, **dcp(max(SIZES)),
                       **SPIN) for w in ("bf16", "fp8")}
    load([x for s in sides.values() for x in s.sides()])
    for ctx, b in cells:
        us = {w: s.us(ctx, b) for w, s in sides.items()}
        if all(us.values()):
            say(f"wire {ctx // K:4}k b={b:<3} us a layer: " + "  ".join(
                f"{w} {u:.1f}" for w, u in us.items()))


def quick():
    compare("block, V3.2", "v32", "block", thin_v32, 2, 6, CELLS[:3])


PARTS = {"block-v32": block_v32, "step-v32": step_v32, "block-fp8": block_fp8,
         "step-fp8": step_fp8, "step-glm-fp8": step_glm_fp8,
         "block-glm": block_glm, "step-glm": step_glm,
         "block-glm-fp8": block_glm_fp8,
         "batch-v32": batch_v32, "batch-glm": batch_glm, "wire": wire,
         "quick": quick}


def main():
    if len(sys.argv) < 4 or not set(sys.argv[3:]) <= set(PARTS):
        raise SystemExit(__doc__)
    for part in sys.argv[3:]:
        PARTS[part]()


if __name__ == "__main__":
    main()
