#!/usr/bin/env python3
"""dcpd beside transformers on CPU torch, one after the other in one run.

Decode of one stream and of 32, and a prefill of 4096 tokens, of the same model
with the same threads. Both sides get the same random token ids, decode
greedily and never stop early. Ours is timed from outside, over the ring, so
the scheduler, the sampler and the ring are in it; transformers is timed round
its forward calls alone, with the fastest of its own ways on this machine.

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


# --- ours ------------------------------------------------------------------


def ours_decode(c, streams, vocab):
    """Tokens a second between every stream's first token and the last."""
    reqs = [dict(tokens=p, max_tokens=NEW, temperature=0.0,
                 flags=D.IGNORE_EOS) for p in prompts(streams, PROMPT, vocab)]
    ids = [c.submit(**r) for r in reqs]
    seen, live, t0, n = set(), len(ids), None, 0
    while live:
        ev = c.next(300)
        if ev.type != D.EV_DELTA:
            live -= 1
            if ev.type == D.EV_ERROR:
                raise RuntimeError(ev.text)
            continue
        if len(seen) == streams:
            n += len(ev.tokens)
        seen.add(ev.request)
        if t0 is None and len(seen) == streams:
            t0 = time.monotonic()
    t = time.monotonic() - t0
    c.live.clear()
    return n / t, t / n * streams * 1e3


def ours_prefill(c, vocab):
    p = prompts(1, LONG, vocab, seed=random.randrange(1 << 30))[0]
    t = time.monotonic()
    c.submit(tokens=p, max_tokens=1, temperature=0.0, flags=D.IGNORE_EOS)
    while c.next(300).type == D.EV_DELTA:
        pass
    c.live.clear()
    return LONG / (time.monotonic() - t)


def ours(args, vocab):
    kv = {"f32": "f32", "bf16": "bf16"}[args.dtype]
    with Daemon("--model", args.model, "--cpu-threads", args.threads,
                "--kv-cache-dtype", kv, "--kv-bytes-per-rank", "256MiB",
                "--max-context", 8192, *args.flag) as d, d.client() as c:
        ours_decode(c, 2, vocab)                  # warm
        out = {}
        for streams in (1, 32):
            runs = [ours_decode(c, streams, vocab)
                    for _ in range(args.repeat)]
            best = max(runs)
            out[f"decode{streams}_tok_s"] = best[0]
            out[f"decode{streams}_step_ms"] = best[1]
        out["prefill_tok_s"] = max(ours_prefill(c, vocab)
                                   for _ in range(args.repeat))
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
    t = time.monotonic()
    for _ in range(NEW - 1):
        o = m(input_ids=tok, past_key_values=o.past_key_values,
              use_cache=True)
        tok = o.logits[:, -1].argmax(-1, keepdim=True)
    t = time.monotonic() - t
    return streams * (NEW - 1) / t, t / (NEW - 1) * 1e3


def hf_prefill(m, vocab):
    import torch
    ids = torch.tensor(prompts(1, LONG, vocab))
    t = time.monotonic()
    m(input_ids=ids, use_cache=True, logits_to_keep=1)
    return LONG / (time.monotonic() - t)


def theirs(args, vocab):
    """The best of its attention and expert ways, each figure for itself."""
    import torch
    torch.set_num_threads(args.threads)
    best, how = {}, {}
    ways = [("eager", "eager"), ("eager", "grouped_mm"),
            ("sdpa", "grouped_mm"), ("sdpa", "batched_mm")]
    with torch.inference_mode():
        for attn, experts in ways:
            try:
                m = hf_load(args, attn, experts)
                hf_decode(m, 1, vocab)                # warm
                got = {}
                for streams in (1, 32):
                    r = max(hf_decode(m, streams, vocab)
                            for _ in range(args.repeat))
                    got[f"decode{streams}_tok_s"] = r[0]
                    got[f"decode{streams}_step_ms"] = r[1]
                got["prefill_tok_s"] = max(hf_prefill(m, vocab)
                                           for _ in range(args.repeat))
            except Exception as e:  # noqa: BLE001  (a way it does not have)
                print(f"transformers {attn}, {experts}: {e!r:.160}",
                      file=sys.stderr)
                continue
            for k, v in got.items():
                better = v < best.get(k, v + 1) if k.endswith("ms") else \
                    v > best.get(k, -1)
                if better:
                    best[k], how[k] = v, f"{attn}, {experts}"
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
    print("| | dcpd | transformers | ratio | its fastest way |")
    print("|---|---|---|---|---|")
    for k, label in (("decode1_tok_s", "decode, 1 stream, tok/s"),
                     ("decode32_tok_s", "decode, 32 streams, tok/s"),
                     ("prefill_tok_s", "prefill of 4096, tok/s")):
        print(f"| {label} | {a[k]:.0f} | {b[k]:.0f} | {a[k] / b[k]:.1f} | "
              f"{how[k]} |")
    print(f"steps: {a['decode1_step_ms']:.3f} ms (1 stream), "
          f"{a['decode32_step_ms']:.3f} ms (32 streams)")


if __name__ == "__main__":
    main()
