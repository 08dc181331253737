#!/usr/bin/python3
"""What a chunk of prefill costs behind a long prefix.

    prefill.py FWD LIBDCP_CUDA [OTHER_LIBDCP_CUDA [PREFIX CHUNK WAYS [KV]]]

Random weights in DeepSeek-V3.2's shapes, two layers whose FFN is next to
nothing: what is left is attention and its indexer. A prompt is prefilled in
chunks (4,096) up to the prefix (32,768) and one chunk more; printed is the last
chunk, host time around the pass, ms a layer. KV is fp8 or bf16. With another module, an older one
say, its figures stand beside. WAYS: how many layouts, the first is one rank. The
others are of two ranks, on four or eight GPUs of as many. On one GPU both share
it, so that a layer takes what both take together.
"""
import sys

import module_check as mc
import numpy as np

LAYERS = 2


def chunk_ms(fwd, model, prefix, chunk, how, kv):
    rng = np.random.default_rng(prefix)
    a = fwd.run(model=model, dummy=True, kv=kv, idx="fp8", decode=1,
                chunk=chunk, batch=1, **how,
                prompts=[rng.integers(2, 4096, prefix + 2 * chunk).tolist()])
    if "error" in a:
        print(f"    {how}: {a['error']}")
        return None
    return a["prefill_ms"][-2][1] / LAYERS


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    exe, modules = sys.argv[1], sys.argv[2:4]
    prefix = int(sys.argv[4]) if len(sys.argv) > 4 else 32768
    chunk = int(sys.argv[5]) if len(sys.argv) > 5 else 4096
    model = mc.v32(LAYERS, 0, 8, inter=256, moe=256, fp8=False)
    fwds = [mc.Fwd(exe, m) for m in modules]
    n = mc.ranks(mc.gpus())
    many = mc.share(mc.gpus(), dict(tp=n))
    ways = [dict(tp=1)] + [dict(many, dcp=n, way=w) for w in
                           ("q", "kv", "a2a")] + [dict(many, cp=n, dcp=n)]
    ways = ways[:int(sys.argv[6]) if len(sys.argv) > 6 else len(ways)]
    kv = sys.argv[7] if len(sys.argv) > 7 else "fp8"
    print(f"{chunk} rows behind {prefix}, {kv} rows: ms a layer")
    for how in ways:
        ms = [chunk_ms(f, model, prefix, chunk, how, kv) for f in fwds]
        if None in ms:
            continue
        print(f"{mc.name(how):28} " + " / ".join(f"{x:8.2f}" for x in ms) +
              (f" = {ms[0] / ms[1]:.3f}" if len(ms) > 1 else ""))
        sys.stdout.flush()
    for f in fwds:
        print(f.said()[-700:])


if __name__ == "__main__":
    main()
