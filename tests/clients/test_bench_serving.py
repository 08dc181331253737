#!/usr/bin/python3
"""sglang's bench_serving, whole and unchanged, at concurrency 16: every request
succeeds and is as long as it was asked to be, on completions and on chat, with
the engine's first token late enough that streams open long before it.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

PYTHON = venv_for.install("eval", venv_for.place("eval"))
from httpd import HttpDaemon, tokenizer_folder  # noqa: E402
from suite import run  # noqa: E402

PROMPTS, LENGTH = 40, 24


def bench(d, backend, *args):
    """Its results, from the file that it writes."""
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.jsonl")
        script, = glob.glob(os.path.dirname(os.path.dirname(PYTHON)) +
                            "/lib/python3*/site-packages/sglang"
                            "/bench_serving.py")
        r = subprocess.run(
            [PYTHON, script, "--backend", backend, "--host", "127.0.0.1",
             "--port", str(d.port), "--model", "dcp-tiny", "--tokenizer",
             tokenizer_folder(tmp), "--dataset-name", "random-ids",
             "--num-prompts", str(PROMPTS), "--random-input-len", "64",
             "--random-output-len", str(LENGTH), "--random-range-ratio", "1",
             "--max-concurrency", "16", "--output-file", out,
             "--output-details", *args],
            capture_output=True, text=True, timeout=1200, cwd=tmp,
            env=dict(os.environ, HF_HUB_OFFLINE="1", TQDM_DISABLE="1"))
        assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-3000:]
        with open(out) as f:
            return json.loads(f.read().splitlines()[-1])


def every_request_succeeds(d):
    for backend in ("sglang-oai", "sglang-oai-chat"):
        got = bench(d, backend)
        assert got["completed"] == PROMPTS, [e for e in got["errors"] if e]
        assert got["total_output_tokens"] == PROMPTS * LENGTH, got
        print(f"    {backend}: {got['output_throughput']:.0f} tok/s, "
              f"TTFT {got['mean_ttft_ms']:.0f} ms, "
              f"ITL {got['mean_itl_ms']:.1f} ms")


if __name__ == "__main__":
    with HttpDaemon("--tp", 2, "--dcp-size", 2, "--max-running-requests", 4,
                    "--max-context", 2048, "--served-model-name",
                    "dcp-tiny") as daemon:
        run(daemon, every_request_succeeds)
