#!/usr/bin/env python3
"""dcpd beside transformers on CPU torch, one after the other in one run.

Decode of one stream and of 32, and a prefill of 4096 tokens, of the same model
with the same threads. Both sides get the same random token ids, decode
greedily and never stop early. Ours is timed from outside, over the ring, so
the scheduler, the sampler and the ring are in it; transformers is timed round
its forward calls alone, with the fastest of its own ways on this machine.
Both in time on the clock and in processor time, which other work on the
machine disturbs less (compare it at --threads 1, where nobody spins).

Needs torch and transformers 5.17 importable (a virtual environment outside the
tree), and a built tree ($builddir) for dcpd and libdcpclient.

  python3 tests/bench/transformers_bench.py [--threads N] [--dtype f32|bf16]
      [--flag=--tp=8 --flag=--dcp-size=8] [--json]
"""
import argparse
import json
import os
import platform
import random
import sys
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import dcpclient as D  # noqa: E402
from daemon import Daemon  # noqa: E402

PROMPT, NEW, LONG = 128, 64, 4096


def prompts(n, length, vocab, seed=1):
    r = random.Random(seed)
    return [[r.randrange(16, vocab) for _ in range(length)]
            for _ in range(n)]


class Clock:
    """Seconds on the clock and of processor time, of this process or pid."""

    def __init__(self, pid=None):
        self.pid, self.t, self.c = pid, time.monotonic(), self.cpu(pid)

    @staticmethod
    def cpu(pid):
        if pid is None:
            return time.process_time()
        with open(f"/proc/{pid}/stat") as f:
            v = f.read().rsplit(")", 1)[1].split()
        return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")

    def read(self):
        return time.monotonic() - self.t, self.cpu(self.pid) - self.c


def figures(name, tokens, clock, steps=None):
    t, c = clock.read()
    out = {f"{name}_tok_s": tokens / t, f"{name}_cpu_ms": c / tokens * 1e3}
    if steps:
        out[f"{name}_step_ms"] = t / steps * 1e3
    return out


def keep_best(best, got, how=None, way=None):
    for k, v in got.items():
        if k not in best or (v > best[k] if k.endswith("tok_s") else
                             v < best[k]):
            best[k] = v
            if how is not None:
                how[k] = way


# --- ours ------------------------------------------------------------------


def ours_decode(d, c, streams, vocab):
    """From every stream's first token to the last one."""
    reqs = [dict(tokens=p, max_tokens=NEW, temperature=0.0,
                 flags=D.IGNORE_EOS) for p in prompts(streams, PROMPT, vocab)]
    ids = [c.submit(**r) for r in reqs]
    seen, live, clock, n = set(), len(ids), None, 0
    while live:
        ev = c.next(300)
        if ev.type != D.EV_DELTA:
            live -= 1
            if ev.type == D.EV_ERROR:
                raise RuntimeError(ev.text)
            continue
        if clock is not None:
            n += len(ev.tokens)
        seen.add(ev.request)
        if clock is None and len(seen) == streams:
            clock = Clock(d.p.pid)
    c.live.clear()
    return figures(f"decode{streams}", n, clock, n / streams)


def ours_prefill(d, c, vocab):
    p = prompts(1, LONG, vocab, seed=random.randrange(1 << 30))[0]
    clock = Clock(d.p.pid)
    c.submit(tokens=p, max_tokens=1, temperature=0.0, flags=D.IGNORE_EOS)
    while c.next(300).type == D.EV_DELTA:
        pass
    c.live.clear()
    return figures("prefill", LONG, clock)


def ours(args, vocab):
    out = {}
    with Daemon("--model", args.model, "--cpu-threads", args.threads,
                "--kv-cache-dtype", args.dtype, "--kv-bytes-per-rank",
                "256MiB", "--max-context", 8192, *args.flag) as d, \
            d.client() as c:
        ours_decode(d, c, 2, vocab)               # warm
        for _ in range(args.repeat):
            keep_best(out, ours_decode(d, c, 1, vocab))
            keep_best(out, ours_decode(d, c, 32, vocab))
            keep_best(out, ours_prefill(d, c, vocab))
    return out


# --- transformers ----------------------------------------------------------


def hf_load(args, attn, experts):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    dt = torch.float32 if args.dtype == "f32" else torch.bfloat16
    m = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=dt, attn_implementation=attn,
        experts_implementation=experts)
    return m.eval()


def hf_decode(m, streams, vocab):
    import torch
    ids = torch.tensor(prompts(streams, PROMPT, vocab))
    o = m(input_ids=ids, use_cache=True, logits_to_keep=1)
    tok = o.logits[:, -1].argmax(-1, keepdim=True)
    clock = Clock()
    for _ in range(NEW - 1):
        o = m(input_ids=tok, past_key_values=o.past_key_values,
              use_cache=True)
        tok = o.logits[:, -1].argmax(-1, keepdim=True)
    return figures(f"decode{streams}", streams * (NEW - 1), clock, NEW - 1)


def hf_prefill(m, vocab):
    import torch
    ids = torch.tensor(prompts(1, LONG, vocab))
    clock = Clock()
    m(input_ids=ids, use_cache=True, logits_to_keep=1)
    return figures("prefill", LONG, clock)


def theirs(args, vocab):
    """The best of its attention and expert ways, each figure for itself."""
    import torch
    torch.set_num_threads(args.threads)
    best, how = {}, {}
    ways = [("eager", "eager"), ("eager", "grouped_mm"),
            ("sdpa", "grouped_mm")]
    with torch.inference_mode():
        for attn, experts in ways:
            try:
                m = hf_load(args, attn, experts)
                hf_decode(m, 1, vocab)                # warm
                got = {}
                for _ in range(args.repeat):
                    keep_best(got, hf_decode(m, 1, vocab))
                    keep_best(got, hf_decode(m, 32, vocab))
                    keep_best(got, hf_prefill(m, vocab))
            except Exception as e:  # noqa: BLE001  (a way it does not have)
                print(f"transformers {attn}, {experts}: {e!r:.160}",
                      file=sys.stderr)
                continue
            keep_best(best, got, how, f"{attn}, {experts}")
    if not best:
        raise RuntimeError("transformers ran in no way")
    return best, how


def same_answers(args, vocab):
    """Greedy tokens of both sides, f32: how many of 2 x 32 are equal."""
    import torch
    ps = prompts(2, PROMPT, vocab, seed=3)
    m = hf_load(argparse.Namespace(model=args.model, dtype="f32"), "eager",
                "eager")
    want = []
    with torch.inference_mode():
        for p in ps:
            o = m(input_ids=torch.tensor([p]), use_cache=True)
            seq = []
            for _ in range(32):
                seq.append(int(o.logits[0, -1].argmax()))
                o = m(input_ids=torch.tensor([seq[-1:]]),
                      past_key_values=o.past_key_values, use_cache=True)
            want.append(seq)
    with Daemon("--model", args.model, "--kv-cache-dtype", "f32",
                "--kv-bytes-per-rank", "64MiB", *args.flag) as d, \
            d.client() as c:
        got = [a.tokens for a in c.batch(
            [dict(tokens=p, max_tokens=32, temperature=0.0,
                  flags=D.IGNORE_EOS) for p in ps], 2)]
    return sum(a == b for g, w in zip(got, want) for a, b in zip(g, w)), 64


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", default=os.path.join(SRC, "models/dcp-tiny"))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--flag", action="append", default=[],
                   help="one more flag of dcpd; may be repeated")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    with open(os.path.join(args.model, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    equal, of = same_answers(args, vocab)
    a = ours(args, vocab)
    b, how = theirs(args, vocab)
    if args.json:
        print(json.dumps(dict(dtype=args.dtype, threads=args.threads, ours=a,
                              transformers=b, ways=how, equal=[equal, of])))
        return
    import torch
    import transformers
    print(f"{platform.processor() or platform.machine()}, {args.threads} "
          f"threads, {args.dtype}; torch {torch.__version__}, transformers "
          f"{transformers.__version__}; {equal} of {of} greedy tokens equal")
    print("| | dcpd | transformers | ratio | its best way |")
    print("|---|---|---|---|---|")
    for k, label in (("decode1", "decode, 1 stream"),
                     ("decode32", "decode, 32 streams"),
                     ("prefill", "prefill of 4096")):
        t, c = k + "_tok_s", k + "_cpu_ms"
        print(f"| {label}, tok/s | {a[t]:.0f} | {b[t]:.0f} | "
              f"{a[t] / b[t]:.1f} | {how[t]} |")
        print(f"| {label}, processor ms a token | {a[c]:.3f} | {b[c]:.3f} | "
              f"{b[c] / a[c]:.1f} | {how[c]} |")
    print(f"steps: {a['decode1_step_ms']:.3f} ms (1 stream), "
          f"{a['decode32_step_ms']:.3f} ms (32 streams)")


if __name__ == "__main__":
    main()
