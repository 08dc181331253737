#!/usr/bin/python3
"""A GPU that breaks under the daemon ends it, as doc/design.md 8 says.

    failstop.py STAGE LIBFAULT [CASE...]        (sticky, events, flags, start, driver)

STAGE is an install tree (usr/local/sbin/dcpd and so on). A daemon on dcp-tiny
decodes; then a kernel of libfault.so traps on its GPU (a sticky error), or
holds every SM (a stuck peer; ranks that meet by events, or, on two GPUs, by
flags; one GPU holds both ranks). The process must end by itself, not with
status 0, after a line that says what was lost; a stuck step is told before.
start: it is held while the daemon measures it, before it serves. driver: it is
held before the first product, for whose code the driver waits and never returns.
"""
import os
import re
import subprocess
import sys
import threading
import time

import stage

failed = 0


def check(ok, what, log):
    global failed
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}")
    if not ok:
        # without the memory map of the crash report
        print("\n".join(x for x in log.splitlines()
                        if not re.match(r"[0-9a-f]+-[0-9a-f]+ ", x))[-3000:])
    sys.stdout.flush()


def run(what, fault, args, seconds, lines):
    from daemon import Daemon
    env = dict(LD_PRELOAD=os.path.abspath(sys.argv[2]), GPU_FAULT=fault)
    d = Daemon("--model", os.path.join(stage.SRC, "models/dcp-tiny"), "--device",
               "cuda", "--kv-bytes-per-rank", "64MiB", "--stuck-after", 3,
               *args, env=env, ready=90)
    try:
        d.__enter__()
    except RuntimeError as e:
        check(False, f"{what}: {e}", "")
        return

    def load():
        while d.p.poll() is None:
            try:
                d.ctl("generate", "--prompt", "The river", "--max-tokens",
                      "400", "--ignore-eos", timeout=seconds)
            except subprocess.TimeoutExpired:
                return
    threading.Thread(target=load, daemon=True).start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and d.p.poll() is None:
        time.sleep(0.2)
    rc, log = d.p.poll(), d.tail(1 << 20)
    said = all(x in log for x in lines)
    ok = said and rc not in (None, 0)
    check(ok, f"{what}: status {rc}, said {said}", log)
    if d.p.poll() is None:
        d.p.kill()
    d.stop()


def start(what, product, lines, *args):
    """A daemon that never comes up."""
    from daemon import Daemon
    env = dict(LD_PRELOAD=os.path.abspath(sys.argv[2]),
               GPU_FAULT=f"product 0 {product}")
    d = Daemon("--model", os.path.join(stage.SRC, "models/dcp-tiny"),
               "--device", "cuda", "--kv-bytes-per-rank", "64MiB", *args,
               env=env, ready=60)
    said = ""
    try:
        with d:
            pass
    except RuntimeError as e:
        said = str(e)
    ok = "ended with status" in said and all(x in said for x in lines)
    check(ok, what, said)


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    stage.use(sys.argv[1])
    gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True,
                          text=True).stdout.count("GPU ")
    tp2 = ["--tp", 2, "--dcp-size", 2]
    for case in sys.argv[3:] or ["sticky", "events", "flags", "start",
                                 "driver"]:
        if case == "start":
            start("held at start", 2, ["measuring did not end within 20 s",
                  "rank 0 on GPU 0 does not answer, it is lost"])
        elif case == "driver":
            start("a driver that does not return", 1,
                  ["stuck: measure has not ended for 10 s"],
                  "--stuck-after", 5)
        elif case == "sticky":
            run("sticky error", "trap 0 8", [], 60, ["fault: trap", "cuda: "])
        elif case == "events":
            last = min(gpus, 2) - 1
            run("stuck peer, events", f"hog {last} 8", [*tp2, "--dcp-comm",
                "p2p", "--ranks-per-gpu", 2 // min(gpus, 2)], 60,
                ["stuck: step", f"rank 1 on GPU {last} does not answer",
                 "it is lost"])
        elif gpus < 2:
            print(f"stuck peer, {case}: not run: needs two GPUs")
        else:
            run("stuck peer, flags", "hog 1 8", [*tp2, "--dcp-comm", "peer"],
                60, ["stuck: step", "waited", "it is lost"])
    print(f"failstop: {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
