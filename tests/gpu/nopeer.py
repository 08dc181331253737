#!/usr/bin/python3
"""The daemon on GPUs that may not reach each other's memory.

    nopeer.py STAGE [RANKS]

STAGE is an install tree. A daemon on dcp-tiny on RANKS GPUs (2, 4 or 8, as there
are), TP and DCP, as it comes: ranks meet by flags and passes are graphs; then
with --disable-peer-access, and NCCL kept from peer access too. That one has to
say nccl, make no graphs, take the memory that it planned on every rank, and give
the same right answers. --dcp-comm p2p is refused then.
"""
import json
import os
import subprocess
import sys

import module_check as mc
import stage

ROWS = 20
NEVER = {"NCCL_P2P_DISABLE": "1"}
failed = 0


def check(ok, what):
    global failed
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}")
    sys.stdout.flush()


def rows(kind):
    with open(os.path.join(stage.SRC, "tests/data/eval", kind + ".jsonl")) as f:
        return [json.loads(x) for x in f][:ROWS]


def answers(d):
    """What follows </think>, of each question: [right], [text]."""
    import dcpclient
    asked = rows("math") + rows("recall24")
    with d.client() as c:
        got = c.batch([dict(text=r["prompt"], max_tokens=64, temperature=0.0,
                            flags=dcpclient.SPECIAL_TOKENS) for r in asked], 8)
    texts = [a.text.split("<|user|>")[0].split("<|endoftext|>")[0]
             for a in got]
    return [t.split("</think>")[-1].strip() == r["answer"]
            for r, t in zip(asked, texts)], texts


def as_planned(planned, actual):
    """{what: (planned, actual)} that differ; of graphs and NCCL it is what the
    GPU has less, whoever took it, and memory.py's business."""
    return {k: (n, actual[k]) for k, n in planned.items()
            if k not in ("graphs", "comm", "total") and actual[k] != n}


def one(flags, comm, graphs, env=None):
    from daemon import Daemon
    with Daemon(*flags, env=env, ready=90) as d:
        log, status = d.tail(1000), d.ctl_json("status")
        said = [x for x in log.splitlines() if "--dcp-comm" in x]
        check(any(f"--dcp-comm {comm}," in x for x in said),
              f"{comm}: {said}")
        made = [p["name"] for p in status["phases"]].count("graphs")
        check(made == graphs, f"{comm}: {made} phases of graphs")
        for r in status["plan"]["ranks"]:
            taken = as_planned(r["planned"], r["actual"])
            check(not taken and r["actual"]["workspace"] > 0,
                  f"{comm}: rank {r['rank']} has {r['actual']['total']} bytes"
                  f", not as planned: {taken}")
        right, texts = answers(d)
        check(sum(right) >= len(right) - 1,
              f"{comm}: {sum(right)} of {len(right)} answers are right")
        return texts, status["plan"]


def refused(flags):
    r = subprocess.run([os.environ["DCPD"], *map(str, flags), "--socket",
                        f"/tmp/dcpd-nopeer-{os.getpid()}"], timeout=60,
                       capture_output=True, text=True)
    said = [x for x in r.stderr.splitlines() if "error:" in x]
    check(r.returncode == 78 and len(said) == 1 and "--dcp-comm p2p" in said[0]
          and "use nccl" in said[0], f"status {r.returncode}: {said}")


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    stage.use(sys.argv[1])
    n = sys.argv[2] if len(sys.argv) > 2 else mc.ranks(mc.gpus())
    flags = ["--model", os.path.join(stage.SRC, "models/dcp-tiny"), "--device",
             "cuda", "--tp", n, "--dcp-size", n, "--kv-bytes-per-rank", "64MiB"]
    refused([*flags, "--disable-peer-access", "--dcp-comm", "p2p"])
    want, with_peers = one(flags, "peer", 1)
    got, without = one([*flags, "--disable-peer-access"], "nccl", 0, NEVER)
    same = sum(a == b for a, b in zip(got, want))
    check(same >= len(want) - 1,
          f"{same} of {len(want)} answers are the same without peer access")
    more = [b["planned"]["workspace"] - a["planned"]["workspace"] for a, b in
            zip(with_peers["ranks"], without["ranks"])]
    check(min(more) > 0, f"bytes of workspace more, by rank: {more}")
    print(f"nopeer: {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
