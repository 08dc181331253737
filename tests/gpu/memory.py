#!/usr/bin/python3
"""Is a daemon's device memory what its plan said, whatever the weights are?

    memory.py STAGE [CASE...]           (bf16, fp8, w4afp8, checkpoint, nccl)

STAGE is an install tree. Every rank's lines of the plan must be what was
allocated, byte for byte; graphs and NCCL, of which the plan is a bound, no
more. (And no pass is faster than its floor.) What the device itself lost meanwhile is that and what the driver and
cuBLASLt take by themselves: the cases of one layout must differ by little
there, or something is allocated that nobody counts. dcp-tiny in bf16; V3.2 made
narrow in FP8 and in W4AFP8, random; a checkpoint of W4AFP8. nccl, on two GPUs:
NCCL beside p2p, and without peer access, where NCCL reaches it all the same and
where it does not.
"""
import ctypes
import os
import shutil
import subprocess
import sys
import time

import module_check as mc
import stage

MIB = 1 << 20
BOUNDS = ("graphs", "comm")
SLACK = 64 * MIB        # the driver takes 2 MiB at a time, of many kinds
failed = 0


class Device:
    """Free memory of the GPUs, by the driver."""

    def __init__(self):
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.must(self.cu.cuInit(0))
        n = ctypes.c_int()
        self.must(self.cu.cuDeviceGetCount(ctypes.byref(n)))
        self.ctx = []
        for i in range(n.value):
            ctx = ctypes.c_void_p()
            self.must(self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), i))
            self.ctx.append(ctx)
        self.first = self.free()

    @staticmethod
    def must(rc):
        if rc != 0:
            raise SystemExit(f"libcuda.so.1: error {rc}")

    def free(self):
        out = []
        for ctx in self.ctx:
            a, b = ctypes.c_size_t(), ctypes.c_size_t()
            self.must(self.cu.cuCtxSetCurrent(ctx))
            self.must(self.cu.cuMemGetInfo_v2(ctypes.byref(a),
                                              ctypes.byref(b)))
            out.append(a.value)
        return out

    def idle(self):
        """Free memory, once the driver has back what a process before had."""
        end, now = time.monotonic() + 20, self.free()
        while time.monotonic() < end and \
                any(a < b - SLACK for a, b in zip(now, self.first)):
            time.sleep(0.1)
            now = self.free()
        return now


def folder(config):
    path = config[:-len(".json")]
    os.makedirs(path, exist_ok=True)
    shutil.copy(config, os.path.join(path, "config.json"))
    return path


def model(case):
    """Its folder, flags, and the tokens of a prompt."""
    if case == "bf16":
        return mc.TINY, [], 300
    if case == "checkpoint":
        tar = os.path.join(mc.SRC, "tests/data/fixtures/"
                           "glm-kdims8-w4afp8.tar.xz")
        subprocess.run(["tar", "xf", tar, "-C", mc.WORK], check=True)
        return os.path.join(mc.WORK, "glm-kdims8-w4afp8"), [], 300
    return folder(mc.small_fp8(case)), ["--load-format", "dummy"], 1500


def check(ok, what):
    global failed
    failed += not ok
    print(f"{'ok  ' if ok else 'FAIL'} {what}")
    sys.stdout.flush()


def run(dev, case, flags, per_gpu, env=None):
    """Bytes of each GPU that no rank's line has."""
    from daemon import Daemon
    path, load, tokens = model(case)
    what = f"{case} {' '.join(map(str, flags))}"
    before = dev.idle()
    with Daemon("--model", path, *load, "--device", "cuda",
                "--kv-bytes-per-rank", "128MiB", "--chunked-prefill-size",
                2048, "--max-running-requests", 16, *flags, ready=60,
                env=env) as d:
        # in prefill the largest sums of partials
        r = d.ctl("generate", "--tokens", ",".join(["5"] * tokens),
                  "--max-tokens", "4", "--ignore-eos")
        lost = [a - b for a, b in zip(before, dev.free())]
        for bench in (["prefill", "-L", 2000], ["decode", "-N", 16]):
            d.ctl_json("bench", *bench)         # code is loaded by the first
            x = d.ctl_json("bench", *bench, "-s", 2)["times_floor"]
            check(x >= 1, f"{what}: bench {bench[0]}: {x:.3g} times the floor")
        ranks = d.ctl_json("status")["plan"]["ranks"]
    bad = [f"rank {k['rank']} {x}: planned {k['planned'][x]}, actual "
           f"{k['actual'][x]}" for k in ranks for x in k["planned"]
           if x != "total" and (k["planned"][x] < k["actual"][x] or
                                x not in BOUNDS and
                                k["planned"][x] != k["actual"][x])]
    if r.returncode != 0:
        bad.append(r.stderr)
    kinds = sorted(x for x in ranks[0]["actual"] if ranks[0]["actual"][x])
    check(not bad, f"{what}: {len(ranks)} ranks as planned ({', '.join(kinds)})"
          f"{'; '.join([''] + bad)}")
    rest = []
    for g in range(len(ranks) // per_gpu):
        mine = ranks[g * per_gpu:(g + 1) * per_gpu]
        rest.append(lost[g] - sum(k["actual"]["total"] for k in mine))
    if ranks[0]["planned"]["comm"]:
        print("     NCCL: " + ", ".join(
            f"{k['actual']['comm'] / MIB:.1f} of "
            f"{k['planned']['comm'] / MIB:.1f}" for k in ranks) + " MiB")
    print(f"     beside: {', '.join(f'{x / MIB:.1f}' for x in rest)} MiB of "
          f"a GPU")
    return rest


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    stage.use(sys.argv[1])
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    dev = Device()
    cases = sys.argv[2:] or ["bf16", "fp8", "w4afp8", "checkpoint", "nccl"]
    for flags, per_gpu in (([], 1), (["--tp", 2, "--dcp-size", 2,
                                     "--ranks-per-gpu", 2], 2)):
        least = None
        for case in cases:
            if case == "nccl":
                continue
            rest = run(dev, case, flags, per_gpu)
            least = rest[0] if least is None else min(least, rest[0])
            check(rest[0] < least + SLACK, f"{case}: {rest[0] / MIB:.1f} MiB "
                  f"that nobody counts, the least is {least / MIB:.1f}")
    if "nccl" in cases and len(dev.ctx) < 2:
        print("nccl: not run: needs two GPUs")
    elif "nccl" in cases:
        two = ["--tp", 2, "--dcp-size", 2, "--cuda-graph-max-bs", 0]
        alone = ["--disable-peer-access"]
        p2p = run(dev, "fp8", [*two, "--dcp-comm", "p2p"], 1)
        for flags, env in ((["--dcp-comm", "nccl"], None), (alone, None),
                           (alone, {"NCCL_P2P_DISABLE": "1"})):
            nccl = run(dev, "fp8", [*two, *flags], 1, env)
            more = [b - a for a, b in zip(p2p, nccl)]
            check(max(map(abs, more)) < SLACK, "nccl: what it takes is counted"
                  f", but for {', '.join(f'{x / MIB:.1f}' for x in more)} MiB")
    print(f"memory: {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
