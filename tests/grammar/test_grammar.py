#!/usr/bin/env python3
"""Constrained decoding through a running daemon: dcp-tiny, over the ring.
Greedy and sampled answers are JSON of the asked shape, after reasoning and
without; calls are forced; a cut is "length"; others are unharmed by schemas
that explode.
"""
import json
import os
import re
import subprocess
import sys
import threading
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
sys.path.insert(0, os.path.join(srcdir, "tests/grammar"))
import dcpclient as dcp  # noqa: E402
import schemas  # noqa: E402
from daemon import Daemon, binary  # noqa: E402

TINY = os.path.join(srcdir, "models/dcp-tiny")
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 20},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]},
             "minItems": 1, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": n, "parameters": p}}
         for n, p in (
    ("get_weather", {"type": "object", "properties": {
        "city": {"type": "string"}}, "required": ["city"]}),
    ("get_time", {"type": "object", "properties": {}}),
    ("get_timezone", {"type": "object", "properties": {}}))]
ARGS = {"get_weather": ["city"], "get_time": [], "get_timezone": []}
ASK = [{"role": "user", "content": "Ann has 12 pears. Ben gives Ann 13 more. "
        "How many pears does Ann have now?"}]


def schema(s):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}


def options(thinking=False, **kw):
    kw["chat_template_kwargs"] = {"enable_thinking": thinking}
    return kw


def person(text):
    v = json.loads(text)
    assert list(v) == ["name", "age", "tags"], v
    assert len(v["name"]) <= 20 and isinstance(v["age"], int), v
    assert 0 <= v["age"] <= 120 and 1 <= len(v["tags"]) <= 3, v
    assert set(v["tags"]) <= {"a", "b", "c"}, v
    return v


def shapes(c):
    """Greedy and sampled, with reasoning and without, all at once."""
    ids, kinds = [], []
    for thinking in (False, True):
        for seed in range(6):
            kw = dict(temperature=1.0, seed=seed) if seed else \
                dict(temperature=0.0)
            ids.append(c.submit(chat=ASK, max_tokens=400, options=options(
                thinking, response_format=schema(PERSON)), **kw))
            kinds.append(thinking)
    for a, thinking in zip(c.wait(ids), kinds):
        assert a.error is None, a.error_text
        assert a.finish == "stop", (a.finish, a.text)
        person(a.text)
        assert (len(a.reasoning) > 0) == thinking, a.reasoning
        assert a.calls == []
    # Any object may be any length.
    for a in c.wait([c.submit(
            chat=ASK, max_tokens=200, temperature=1.5, seed=i, options=options(
                response_format={"type": "json_object"})) for i in range(8)]):
        assert a.text.strip().startswith("{"), a.text
        assert a.finish == "length" or isinstance(json.loads(a.text), dict)
    # Free text and token ids are held to it just as well.
    a = c.generate(text="The data: ", max_tokens=300, temperature=0.0,
                   options={"response_format": schema(PERSON)})
    person(a.text)
    # Without reasoning it cannot be missed by an early end.
    a = c.generate(chat=ASK, max_tokens=400, temperature=0.0, min_tokens=390,
                   options=options(response_format=schema(
                       {"const": {"a": [1, None]}})))
    assert a.finish == "stop" and json.loads(a.text) == {"a": [1, None]}


def repeatable(c):
    """One answer: alone, in a crowd, again."""
    kw = dict(chat=ASK, max_tokens=300, temperature=0.9, seed=11,
              options=options(True, response_format=schema(PERSON)))
    alone = c.generate(**kw)
    crowd = [c.submit(chat=ASK, max_tokens=60, flags=dcp.IGNORE_EOS)
             for _ in range(6)]
    again = c.generate(**kw)
    c.wait(crowd)
    assert alone.tokens == again.tokens and alone.finish == "stop"


def logprobs(c):
    """They are those of the model's own logits: an answer that is forced may
    be unlikely, and what was not allowed is still in the list."""
    a = c.generate(chat=ASK, max_tokens=100, temperature=0.0, top_logprobs=5,
                   flags=dcp.LOGPROBS, options=options(
                       response_format=schema({"const": [7, 7]})))
    assert json.loads(a.text) == [7, 7]
    assert len(a.logprobs) == len(a.tokens)
    for token, p, top in a.logprobs:
        assert p <= 0 and len(top) == 5
        assert top == sorted(top, key=lambda t: -t[1]), top
    assert any(t not in [x for x, _ in top] for t, _, top in a.logprobs)
    # Nothing that was allowed outweighs a bias against it.
    bias = {t: -100.0 for t in a.tokens[:3]}
    b = c.generate(chat=ASK, max_tokens=100, temperature=0.0, logit_bias=bias,
                   options=options(response_format=schema({"const": [7, 7]})))
    assert json.loads(b.text) == [7, 7], b.text


def forced_calls(c):
    for choice, names in (
            ("required", {"get_weather", "get_time", "get_timezone"}),
            ({"type": "function", "function": {"name": "get_time"}},
             {"get_time"}),
            ({"type": "function", "function": {"name": "get_timezone"}},
             {"get_timezone"})):
        for thinking in (False, True):
            for kw in (dict(temperature=0.0), dict(temperature=1.2, seed=4)):
                a = c.generate(chat=[{"role": "user", "content": "Hello."}],
                               max_tokens=300, options=options(
                                   thinking, tools=TOOLS, tool_choice=choice),
                               **kw)
                assert a.error is None, a.error_text
                assert a.calls and a.calls[0][0] in names, (choice, a.calls)
                assert a.text == "" and a.finish in (
                    "tool_calls", "length"), a
                whole = a.calls if a.finish == "tool_calls" else a.calls[:-1]
                for name, args in whole:
                    args = json.loads(args)
                    assert list(args) == ARGS[name], (name, args)
                    assert all(isinstance(v, str) for v in args.values())
                assert len(a.calls) == 1 or choice == "required"
    # Where a call may come, JSON need not.
    a = c.generate(chat=[{"role": "user", "content": "What is the weather in "
                          "Kyoto?"}], max_tokens=300, temperature=0.0,
                   options=options(tools=TOOLS, response_format=schema(
                       PERSON)))
    assert a.finish in ("tool_calls", "stop"), a.finish
    if a.finish == "stop":
        person(a.text)


def cut(c):
    a = c.generate(chat=ASK, max_tokens=5, temperature=0.0, options=options(
        response_format=schema(PERSON)))
    assert a.finish == "length" and len(a.tokens) == 5, a.finish
    # In reasoning, too.
    a = c.generate(chat=ASK, max_tokens=3, temperature=0.0, options=options(
        True, response_format=schema(PERSON)))
    assert a.finish == "length" and a.text == "", a.text
    a = c.generate(chat=ASK, max_tokens=300, temperature=0.0, stop=["age"],
                   options=options(response_format=schema(PERSON)))
    assert a.finish == "stop" and "age" not in a.text and "name" in a.text


def refused(c):
    def error(**kw):
        a = c.generate(chat=ASK, max_tokens=10, **kw)
        return a.error, a.error_text

    for s, word in schemas.BAD:
        code, text = error(options=options(response_format=schema(s)))
        assert code == -22 and word in text, (s, code, text)
    for o, want in (
            (dict(response_format={"type": "xml"}), -22),
            (dict(response_format="json_object"), -22),
            (dict(tool_choice="required"), -22),
            (dict(parallel_tool_calls=1), -22),
            (dict(tool_choice="required", tools=[
                {"type": "function", "function": {"name": "f", "parameters":
                 {"properties": {"a": {"not": {}}}}}}]), -22),
            (dict(tool_choice="sometimes"), -22),
            (dict(tools=TOOLS, tool_choice={"type": "function"}), -22),
            (dict(tools=TOOLS, tool_choice={
                "type": "function", "function": {"name": "nobody"}}), -22)):
        code, text = error(options=options(**o))
        assert code == want and "options: " in text, (o, code, text)
    code, text = error(flags=dcp.IGNORE_EOS, options=options(
        response_format={"type": "json_object"}))
    assert code == -22 and "DCP_IGNORE_EOS" in text, text
    for o in (dict(response_format={"type": "text"}, tool_choice="auto"),
              dict(response_format=None, tool_choice=None),
              dict(tool_choice="none", tools=TOOLS)):
        assert error(options=options(**o))[0] is None


def hostile(d, c):
    """Schemas that explode, from somebody else, while answers are given."""
    bad = [s for s, word in schemas.BAD if word in (
        "more than", "too many to merge", "#", "too deep", "more than 8192")]
    stop = threading.Event()
    sent = [0]

    def attack():
        with d.client() as e:
            while not stop.is_set():
                for s in bad:
                    a = e.generate(chat=ASK, max_tokens=10, options=options(
                        response_format=schema(s)))
                    assert a.error == -22, a.error
                    sent[0] += 1

    t = threading.Thread(target=attack)
    t.start()
    try:
        until = time.monotonic() + 2
        n = 0
        while time.monotonic() < until or sent[0] < len(bad):
            a = c.generate(chat=ASK, max_tokens=300, seed=n, temperature=1.0,
                           options=options(response_format=schema(PERSON)))
            assert a.finish == "stop", (a.finish, a.error_text)
            person(a.text)
            n += 1
    finally:
        stop.set()
        t.join()
    print(f"{n} answers beside {sent[0]} hostile schemas")


def command(d):
    """dcpctl: --response-format, and calls with ids of their own."""
    r = d.ctl("chat", "--no-think", "--max-tokens", 60, "--response-format",
              json.dumps(schema({"const": [1]})), "Anything.")
    assert json.loads(r.stdout) == [1], r
    r = d.ctl("generate", "-p", "x", "--response-format", "{")
    assert r.returncode == 2 and "not JSON" in r.stderr, r
    path = os.path.join(d.dir, "tools.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(TOOLS, f)
    r = subprocess.run(
        [binary("dcpctl"), "--socket", d.socket, "chat", "-j", "--tools", path,
         "--temperature", "0"], capture_output=True, text=True, timeout=120,
        input="What is the weather in Kyoto?\n" * 2)
    assert r.returncode == 0, r.stderr
    ids = re.findall(r'"id": "(\w+)"', r.stdout)
    assert len(ids) >= 2 and len(set(ids)) == len(ids), r.stdout


def main():
    with Daemon("--model", TINY, "--tp", 4, "--dcp-size", 4,
                "--kv-bytes-per-rank", "8MiB") as d, d.client() as c:
        for part in (shapes, repeatable, logprobs, forced_calls, cut, refused):
            part(c)
        hostile(d, c)
        command(d)
        r = d.ctl("check")
        assert r.returncode == 0, r.stderr
    with Daemon("--model", TINY, "--engine", "null") as d, d.client() as c:
        a = c.generate(text="x", max_tokens=200, options={
            "response_format": schema({"enum": [{"k": [1, 2]}, "x"]})})
        assert json.loads(a.text) in ({"k": [1, 2]}, "x"), a.text
    print("shapes, calls, cuts, refusals, hostile schemas")


main()
