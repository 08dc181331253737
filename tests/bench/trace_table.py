#!/usr/bin/env python3
"""The tables of doc/measurements.md about an agents' trace, made anew.

    cd build && make && srcdir=.. python3 ../tests/bench/trace_table.py

Two of them, as Markdown: hit rates where TP's pool overflows (the null engine:
whole lengths, exact), and dcp-tiny on the CPU with the same bytes of pool for
each layout: TP, TP with host memory, TP-DCP, CP-DCP. The seed's two settings:
8 conversations at once and 6, of 10 turns. Times want an idle machine; the load
before and after is printed. --only null|tiny makes one of the two.

Standard library only; builddir (default: where it is run) holds the binaries.
"""
import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
TOP = os.path.abspath(os.environ.get("srcdir") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(TOP, "tests/lib"))
from daemon import Daemon  # noqa: E402

TRACE = os.path.join(TOP, "tests/data/trace/agents-16x12.jsonl")
TINY = os.path.join(TOP, "models/dcp-tiny")
SETTINGS = (8, 10), (6, 8)      # at once, conversations of dcp-tiny's runs
PAGES = 12                      # of TP's pool in dcp-tiny's runs
PAGE_BYTES = 64 * (4 * 576 * 2 + 3 * 132)       # bf16 rows, all ranks
SCALE = .06
LAYOUTS = (("tp8", []),
           ("tp8, host memory", ["--host-cache-bytes", 200 * PAGE_BYTES]),
           ("tp8 + dcp8", ["--dcp-size", 8]),
           ("tp8 + cp8 + dcp8", ["--dcp-size", 8, "--attn-cp-size", 8,
                                 "--enable-cp-decode-attn-tp"]))


def load():
    return "load " + " ".join(f"{x:.1f}" for x in os.getloadavg())


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def bench(d, *args):
    o = d.ctl_json("bench", "trace", TRACE, "-T", 10, *args, timeout=600)
    if o["failures"]:
        raise RuntimeError(f"{o['failures']} requests failed: {d.tail()}")
    return o


def null_table():
    """The same bytes: P pages at D = 1 are 8 P at D = 8."""
    head("pages of TP", *(f"-C {c} -T 10: D = {n}" for c, _ in SETTINGS
                          for n in (1, 8)), "ideal")
    for pages in 128, 192, 256, 384, 512, 1024:
        got, ideal = [], set()
        for c, _ in SETTINGS:
            for n in 1, 8:
                with Daemon("--engine", "null", "--tp", 8, "--dcp-size", n,
                            "--null-pages", pages * n) as d:
                    o = bench(d, "-C", c)
                got.append(f"{100 * o['hit_rate']:.2f} %")
                ideal.add(f"{100 * o['ideal_hit_rate']:.2f} %")
        row(pages, *got, ", ".join(sorted(ideal)))


def choices(d, o):
    """What was chosen of the ways of prefill, and where turns lie."""
    c = d.ctl_json("status")["counters"]
    ways = ", ".join(f"{w} {c[f'prefill_way_{w}']} passes, attention "
                     f"{c[f'prefill_{w}_ns'] * 1e-9:.2f} s of predicted "
                     f"{c[f'prefill_{w}_predicted_ns'] * 1e-9:.2f}"
                     for w in ("q", "kv", "a2a") if c[f"prefill_way_{w}"])
    if "break_even" not in o:
        return ways
    return (f"{ways}; break-even {o['break_even']:.1f}, {o['turns_below']} "
            f"turns below, {o['turns_above']} above")


def tiny_table():
    notes = []
    head("", "hit (ideal)", "answered tok/s", "seconds", "first token, first "
         "turns, p50 ms", "later turns", "TPOT p50", "ITL p50", "ITL p99",
         "whole request, p50 ms")
    for c, sessions in SETTINGS:
        for name, flags in LAYOUTS:
            with Daemon("--model", TINY, "--tp", 8, "--kv-cache-dtype", "bf16",
                        "--kv-bytes-per-rank", (PAGES + 1) * PAGE_BYTES,
                        *flags) as d:
                o = bench(d, "-C", c, "--sessions", sessions, "--scale", SCALE)
                if "--dcp-size" in flags:
                    notes.append(f"C {c}: {name}: {choices(d, o)}")
            row(f"C {c}: {name}",
                f"{100 * o['hit_rate']:.2f} % "
                f"({100 * o['ideal_hit_rate']:.2f})",
                f"{o['output_tok_s']:.1f}", f"{o['seconds']:.1f}",
                *(f"{o[k][f'{q}_ms']:.4g}" for k, q in (
                    ("ttft_first", "p50"), ("ttft_later", "p50"),
                    ("tpot", "p50"), ("itl", "p50"), ("itl", "p99"),
                    ("e2e", "p50"))))
    print()
    for n in notes:
        print(f"- {n}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--only", choices=("null", "tiny"))
    only, began = p.parse_args().only, time.monotonic()
    print(f"{time.strftime('%F %H:%M')}, {os.cpu_count()} cores, {load()}\n")
    if only != "tiny":
        null_table()
        print()
    if only != "null":
        tiny_table()
    print(f"\n{time.monotonic() - began:.0f} s, {load()}")


main()
