"""Answers of tests/grammar/gram_walk, an adversary that takes a random one of
the tokens that a grammar allows, step by step.
"""
import collections
import json
import os
import subprocess

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
PROGRAM = os.path.join(os.environ.get("builddir", "."),
                       "tests/grammar/gram_walk")


def walk(questions, samples, seed, model="models/dcp-tiny", *parser):
    """[[answer]] by question: response formats, or with a parser's name and
    its end token the options of requests with tools."""
    r = subprocess.run([PROGRAM, os.path.join(SRC, model), str(samples),
                        str(seed), *parser],
                       input="".join(json.dumps(q) + "\n" for q in questions),
                       capture_output=True, encoding="utf-8", timeout=3000)
    assert r.returncode == 0, (r.returncode, r.stderr[-2000:])
    out = collections.defaultdict(list)
    # By "\n" alone: JSON's strings may hold U+2028 and others of Unicode's
    # ends of lines as they are.
    for line in r.stdout.split("\n")[:-1]:
        a = json.loads(line)
        out[a["line"]].append(a)
    return [out[i] for i in range(len(questions))]
