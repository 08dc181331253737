#!/usr/bin/python3
"""Where the microseconds of a decode pass go.

    where.py FWD LIBDCP_CUDA LIBTRACE [CONTEXT BATCH [MODEL]]

Runs TP2 and TP2 + DCP2 (one GPU: TP1) under tests/gpu/trace.cc and prints, for
GPU 0 and one layer in the middle of the pass, each kernel in order of its start:
microseconds after the layer's first, how long it ran, and its name. Every
figure is a median over the last passes. Tracing itself adds some 0.5 us between
kernels, so that a layer is longer here than in price.py.
"""
import os
import re
import statistics
import sys

import module_check as mc
import price


def kernels(path):
    """[(device, start, duration, name)] in order of start."""
    out = []
    with open(path, errors="replace") as f:
        for x in f:
            p = x.rstrip("\n").split(" ", 5)
            if len(p) == 6:
                out.append((int(p[0]), int(p[2]), int(p[3]), short(p[5])))
    return sorted(out, key=lambda k: k[1])


def short(name):
    """The function's own name, template arguments and all."""
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    return name.split("(")[0][:48]


def passes(ks, device):
    """A pass begins with embed_rows."""
    out, now = [], None
    for d, start, dur, name in ks:
        if d != device:
            continue
        if name == "embed_rows":
            now = []
            out.append(now)
        if now is not None:
            now.append((start, dur, name))
    return out


def layers(one):
    """Kernel ranges between the norms before attention, which are the first
    and every second sum_norm."""
    at = [i for i, k in enumerate(one) if k[2] == "sum_norm"][::2]
    return [one[a:b] for a, b in zip(at, at[1:])]


def table(title, path):
    all_passes = passes(kernels(path), 0)
    if not all_passes:
        print(f"{title}: no pass was seen")
        return
    n = statistics.mode(len(p) for p in all_passes)
    same = [p for p in all_passes if len(p) == n][-12:]
    mid = [layers(p)[1] for p in same if len(layers(p)) > 1]
    m = statistics.mode(tuple(k[2] for k in x) for x in mid)
    mid = [x for x in mid if tuple(k[2] for k in x) == m]
    span = statistics.median(x[-1][0] + x[-1][1] - x[0][0] for x in mid)
    busy = statistics.median(sum(k[1] for k in x) for x in mid)
    print(f"{title}: {len(mid)} passes, {len(m)} kernels a layer, "
          f"{span / 1e3:.1f} us, busy {busy / 1e3:.1f} us")
    for i, name in enumerate(m):
        start = statistics.median(x[i][0] - x[0][0] for x in mid) / 1e3
        dur = statistics.median(x[i][1] for x in mid) / 1e3
        print(f"  {start:8.1f} {dur:7.1f}  {name}")
    sys.stdout.flush()


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    lib = sys.argv[3]
    ctx = int(sys.argv[4]) if len(sys.argv) > 4 else 32768
    batch = int(sys.argv[5]) if len(sys.argv) > 5 else 8
    model = mc.v32(3, 2, 16, fp8=False)
    pages = price.pages([(ctx, batch)])
    graphs = dict(graph_rows=32)
    if mc.gpus() > 1:
        peer = dict(tp=2, comm="peer", **graphs)
        ways = [("TP2", peer), ("TP2 + DCP2", dict(dcp=2, way="q", **peer))]
    else:
        ways = [("TP1", dict(tp=1, **graphs))]
    os.environ["CUDA_INJECTION64_PATH"] = os.path.abspath(lib)
    for title, how in ways:
        os.environ["TRACE_OUT"] = os.path.join(mc.WORK, "trace")
        side = price.Side(model, pages, **how)
        ms = side.ms(ctx, batch)
        side.close()
        if ms is None:
            continue
        print(f"{ctx // 1024}k b={batch}, a pass under the trace {ms:.3f} ms")
        table(title, os.environ["TRACE_OUT"])


if __name__ == "__main__":
    main()
