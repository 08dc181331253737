#!/usr/bin/python3
"""Where the microseconds of a decode pass go.

    where.py FWD LIBDCP_CUDA LIBTRACE [MODEL] [CONTEXTxBATCH...]

MODEL is block-v32 (the default), step-v32, or block-glm, step-glm: there the
layer is one with another's index; see price.py.

Runs TP2 and TP2 + DCP2 (one GPU: TP1; four and eight GPUs: TP of all and every
D) under tests/gpu/trace.cc and prints, for GPU 0, the length of a pass and of
its layers, and of one layer in the middle each kernel in order of its start:
microseconds after the layer's first, how long it ran, and its name; one of
another stream is marked. With the index: from the last score to the list. Every figure is a median over the last passes. Tracing
itself adds some 0.5 us between kernels, so that a layer is longer here than in
price.py. Without cells: 8k and 128k, batch 1, 8 and 32.
"""
import os
import re
import statistics
import sys

import module_check as mc
import price


def kernels(path):
    """[(start, duration, name, stream)] of GPU 0 in order of start."""
    out = []
    with open(path, errors="replace") as f:
        for x in f:
            p = x.rstrip("\n").split(" ", 5)
            if len(p) == 6 and p[0] == "0":
                out.append((int(p[2]), int(p[3]), short(p[5]), p[1]))
    return sorted(out)


def short(name):
    """The function's own name, template arguments and all."""
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    return name.split("(")[0][:48]


def passes(ks):
    """A pass begins with embed_rows."""
    out = []
    for k in ks:
        if k[2] == "embed_rows":
            out.append([])
        if out:
            out[-1].append(k)
    return out


def layers(one):
    """Kernel ranges between the norms before attention, which are the first
    and every second sum_norm."""
    at = [i for i, k in enumerate(one) if k[2] == "sum_norm"][::2]
    return [one[a:b] for a, b in zip(at, at[1:])]


def span(ks):
    return ks[-1][0] + ks[-1][1] - ks[0][0]


def table(title, cell, which):
    cell = [p for p in cell[-12:] if len(layers(p)) > which]
    if not cell:
        print(f"{title}: no layer was seen")
        return
    print(f"{title}: a pass {statistics.median(map(span, cell)) / 1e3:.1f} us,"
          " layers from start to start: " + " ".join(
              f"{statistics.median(x) / 1e3:.1f}" for x in zip(
                  *[[b[0][0] - a[0][0] for a, b in
                     zip(layers(p), layers(p)[1:])] for p in cell])))
    mid = [layers(p)[which] for p in cell]
    m = statistics.mode(tuple(k[2] for k in x) for x in mid)
    mid = [x for x in mid if tuple(k[2] for k in x) == m]
    print(f"layer {which}: {len(mid)} passes, {len(m)} kernels, "
          f"{statistics.median(map(span, mid)) / 1e3:.1f} us")
    for i, name in enumerate(m):
        start = statistics.median(x[i][0] - x[0][0] for x in mid) / 1e3
        dur = statistics.median(x[i][1] for x in mid) / 1e3
        side = "" if mid[0][i][3] == mid[0][0][3] else "  (beside)"
        print(f"  {start:8.1f} {dur:7.1f}  {name}{side}")
    ends = [[max((k[0] + k[1] for k in x if k[2].startswith(name)), default=0)
             for name in ("score_kernel", "select_kernel")] for x in mid]
    if all(a and b for a, b in ends):
        print(f"  from the last score to the list "
              f"{statistics.median(b - a for a, b in ends) / 1e3:.1f} us")
    sys.stdout.flush()


MODELS = {"block-v32": lambda: price.thin_v32(3),
          "block-glm": lambda: mc.glm52(2, 6, 0, 8, inter=256, moe=256),
          "step-v32": lambda: mc.v32(3, 3, 16, fp8=False),
          "step-glm": lambda: mc.glm52(2, 4, 6, 16)}


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    lib, more = sys.argv[3], sys.argv[4:]
    name = more.pop(0) if more and more[0] in MODELS else "block-v32"
    model = MODELS[name]()
    cells = [tuple(int(n) for n in c.split("x")) for c in more] or \
        [(c << 10, b) for c in (8, 128) for b in (1, 8, 32)]
    if mc.gpus() > 1:
        w = price.W
        ways = [(f"TP{w}", price.TP)] + [
            (f"TP{w} + DCP{1 << i}", price.dcp(1 << i))
            for i in range(1, w.bit_length())]
    else:
        ways = [("TP1", dict(tp=1))]
    os.environ["CUDA_INJECTION64_PATH"] = os.path.abspath(lib)
    for title, how in ways:
        os.environ["TRACE_OUT"] = os.path.join(mc.WORK, "trace")
        side = price.Side(model, price.pages(cells),
                          **dict(price.SPIN, graph_rows=32), **how)
        ran = [side.run(*c) for c in cells]
        side.close()
        all_passes = passes(kernels(os.environ["TRACE_OUT"]))
        # what is before the first cell's passes is of captures
        n = [len(a["prefill_ms"]) + len(a["decode_ms"]) if a else 0
             for a in ran]
        first = len(all_passes) - sum(n)
        for (ctx, batch), k, a in zip(cells, n, ran):
            if a:
                table(f"{title}, {ctx >> 10}k b={batch}",
                      all_passes[first:first + k],
                      3 if name.endswith("glm") else 1)
            first += k


if __name__ == "__main__":
    main()
