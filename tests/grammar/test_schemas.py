#!/usr/bin/python3
"""Constrained answers against an adversary: at every step a random one of the
tokens that are allowed. Whatever comes out must be JSON that satisfies the
schema, says jsonschema from PyPI; no mask may be empty; bad schemas are
refused with their place, the huge ones in no time.
"""
import json
import os
import sys
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

venv_for.use("schemas")
import jsonschema  # noqa: E402

import schemas  # noqa: E402
from gram_walk import walk  # noqa: E402

LONG = os.environ.get("DCPD_TEST_LONG") == "1"


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x",
                                                   "schema": schema}}


def check_answer(schema, validator, a):
    assert a["utf8"] or not a["done"], (schema, a)
    if not a["done"]:
        return 0
    try:
        v = json.loads(a["text"])
    except ValueError as e:
        raise AssertionError(f"{schema}: {a['text']!r}: {e}") from e
    assert a["jansson"], (schema, a["text"])
    err = next(validator.iter_errors(v), None)
    assert err is None, (schema, a["text"], err and err.message)
    return 1


def good(samples, seed, n):
    all_ = list(schemas.good(seed, n))
    done = 0
    for s, answers in zip(all_, walk([as_format(s) for s in all_],
                                     samples, seed)):
        assert len(answers) == samples
        validator = jsonschema.Draft202012Validator(for_python(s))
        for a in answers:
            assert "error" not in a, (s, a)
        ended = sum(check_answer(s, validator, a) for a in answers)
        # Chance alone hardly finds the letters that some patterns want.
        assert ended > 0 or "pattern" in s, (
            s, [a["text"][:200] for a in answers])
        done += ended
    # Hardly any walk goes on to its 4000th token.
    total = len(all_) * samples
    assert done > 0.97 * total, (done, total)
    print(f"{len(all_)} schemas, {total} answers, {done} ended, all valid")


def for_python(s):
    """oneOf is read as anyOf. ECMA 262 does not count U+0085 as white space,
    Python does. Nothing else of a schema is changed."""
    if isinstance(s, dict):
        s = {("anyOf" if k == "oneOf" else k): for_python(v)
             for k, v in s.items()}
        if isinstance(s.get("pattern"), str):
            s["pattern"] = s["pattern"].replace("\\S", "[\\S\x85]")
        return s
    return [for_python(v) for v in s] if isinstance(s, list) else s


def json_object(samples):
    [answers] = walk([{"type": "json_object"}], samples, 5)
    done = [a for a in answers if a["done"]]
    assert len(done) > 0.9 * samples
    for a in done:
        assert isinstance(json.loads(a["text"]), dict), a


def bad():
    t = time.monotonic()
    formats = [as_format(s) for s, _ in schemas.BAD]
    for (s, word), answers in zip(schemas.BAD, walk(formats, 1, 1)):
        short = json.dumps(s)[:200]
        assert "error" in answers[0], (short, answers[0])
        assert word in answers[0]["error"], (short, answers[0]["error"])
        assert len(answers[0]["error"]) < 500
    took = time.monotonic() - t
    # Loose: what is refused late has cost minutes in other hands.
    assert took < 120, took
    print(f"{len(schemas.BAD)} refused in {took:.1f} s")
    formats = [
        {"type": "json"}, {}, [], 5, {"type": 7}, {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"schema": None}}]
    for f, answers in zip(formats, walk(formats, 1, 1)):
        assert "error" in answers[0], (f, answers[0])


def main():
    good(60 if LONG else 6, 1, 200)
    if LONG:
        for seed in range(2, 12):
            good(20, seed, 400)
    json_object(200 if LONG else 20)
    bad()


main()
