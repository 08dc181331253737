#!/usr/bin/python3
"""An agents' trace at its true lengths, TP2 beside TP2 + DCP2; on four or eight
GPUs TP4 or TP8 beside TP-DCP and CP-DCP of all of them.

    agents.py STAGE [LAYERS [SESSIONS [CONCURRENCY...]]]

The daemon of an install tree, random weights in DeepSeek-V3.2's shapes with few
layers and experts, fp8 rows, the same bytes of pool for all layouts: as many as
half of eight conversations at once fill. Lengths of tests/data/trace times ten:
times of a token are those of few layers, hit rates are the model's. Where there
are fewer GPUs than ranks (one GPU, or RANKS=8 in the environment) several share
one, so that times say nothing.
"""
import os
import shutil
import sys

import module_check as mc
import stage

TRACE = os.path.join(stage.SRC, "tests/data/trace/agents-16x12.jsonl")
KEYS = (("ttft_first", "p50"), ("ttft_later", "p50"), ("ttft_later", "p99"),
        ("tpot", "p50"), ("itl", "p99"), ("e2e", "p50"))


def model(layers):
    path = os.path.join(mc.WORK, "v32-agents")
    os.makedirs(path, exist_ok=True)
    shutil.copy(mc.v32(layers, layers - 1, 16, fp8=False),
                os.path.join(path, "config.json"))
    return path


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    stage.use(sys.argv[1])
    from daemon import Daemon
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    sessions = sys.argv[3] if len(sys.argv) > 3 else "8"
    pool = 200_000 * layers * (656 + 132)      # tokens of TP's pool
    failed = 0
    w, n = mc.ranks(mc.gpus()), mc.gpus()
    all_ranks = ["--tp", w, "--ranks-per-gpu", -(-w // n)]
    ways = [(f"tp{w}", []), (f"tp{w} + dcp{w}", ["--dcp-size", w])]
    if w > 2:
        ways.append((f"cp{w} + dcp{w}", ["--attn-cp-size", w, "--dcp-size", w]))
    print("hit (ideal) %, answered tok/s, seconds, then ms: " +
          ", ".join(f"{k} {q}" for k, q in KEYS))
    for c in sys.argv[4:] or (8, 6):
        for name, flags in ways:
            with Daemon("--model", model(layers), "--load-format", "dummy",
                        "--device", "cuda", *all_ranks, "--kv-cache-dtype",
                        "fp8_e4m3", "--kv-bytes-per-rank", pool,
                        "--chunked-prefill-size", 4096, *flags,
                        ready=120) as d:
                o = d.ctl_json("bench", "trace", TRACE, "-C", c, "-T", 10,
                               "-S", 10, "--sessions", sessions, timeout=200)
            failed += o["failures"]
            print(f"C {c} {name:11}: {100 * o['hit_rate']:.2f} "
                  f"({100 * o['ideal_hit_rate']:.2f}), "
                  f"{o['output_tok_s']:.0f}, {o['seconds']:.1f}, " +
                  ", ".join(f"{o[k][q + '_ms']:.4g}" for k, q in KEYS))
            sys.stdout.flush()
    print(f"agents: {failed} requests failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
