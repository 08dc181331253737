#!/usr/bin/python3
"""What DCP costs: a decode pass of TP2 beside one of TP2 + DCP2.

    price.py FWD LIBDCP_CUDA [quick]

Random weights in DeepSeek-V3.2's shapes. Two tables: `block`, layers whose FFN
is next to nothing, so that attention is what is left; `step`, with an MoE of
full width (fewer experts than the model's, eight of them a token all the same).
A context is a prefill of up to 2,048 tokens a request whose pages are then
repeated, so rows come partly from the L2; the same for both sides. Each figure
is the median of the passes after the first six, host time around the pass.
"""
import statistics
import sys

import module_check as mc
import numpy as np

PASSES = 26
WAYS = {"events": dict(), "graphs": dict(graph_rows=32),
        "peer": dict(comm="peer"),
        "peer, graphs": dict(comm="peer", graph_rows=32)}


def pass_ms(fwd, model, ctx, batch, how):
    own = 2048 if batch == 1 else 256
    rng = np.random.default_rng(ctx + batch)
    a = fwd.run(model=model, dummy=True, kv="fp8", idx="fp8", chunk=own *
                batch, batch=batch, decode=PASSES, stretch=ctx, **how,
                prompts=rng.integers(2, 4096, (batch, own)).tolist())
    if "error" in a:
        print(f"    {how}: {a['error']}")
        return None
    ms = [m for rows, m in a["decode_ms"] if rows == batch][6:]
    return statistics.median(ms) if ms else None


def table(fwd, title, model, layers, cells, ways):
    print(f"{title}: ms a pass of {layers} layers: TP2 / TP2 + DCP2 = price; "
          "us added a layer")
    for way in ways:
        for ctx, batch in cells:
            tp = pass_ms(fwd, model, ctx, batch, dict(tp=2, **WAYS[way]))
            dcp = pass_ms(fwd, model, ctx, batch,
                          dict(tp=2, dcp=2, way="q", **WAYS[way]))
            if tp and dcp:
                print(f"{way:13} {ctx // 1024:4}k b={batch:<3} {tp:8.3f} / "
                      f"{dcp:8.3f} = {dcp / tp:5.2f}  "
                      f"{(dcp - tp) * 1e3 / layers:+7.1f}")
                sys.stdout.flush()


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    fwd = mc.Fwd(sys.argv[1], sys.argv[2])
    quick = len(sys.argv) > 3
    cells = [(c * 1024, b) for c in (8, 32, 128) for b in (1, 8, 32)]
    table(fwd, "block", mc.v32(3, 0, 8, inter=256, moe=256, fp8=False), 3,
          cells[:2] if quick else cells,
          ["events"] if quick else ["peer, graphs", "events", "graphs"])
    if not quick:
        table(fwd, "step", mc.v32(3, 2, 16, fp8=False), 3,
              [(8192, 1), (32768, 8), (131072, 8)], ["peer, graphs", "events"])
    print(fwd.said()[-1500:])


if __name__ == "__main__":
    main()
