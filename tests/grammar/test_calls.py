#!/usr/bin/python3
"""Forced calls against an adversary: at every step a random one of the tokens
that are allowed, in the markup of GLM and of DeepSeek. What the output parser
makes of it must be calls of the tools that were offered, with arguments that
satisfy the tool's schema, says jsonschema from PyPI. A schema that cannot be
held is refused by the tool's name and the keyword's.
"""
import json
import os
import re
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

venv_for.use("schemas")
import jsonschema  # noqa: E402

import gram_walk  # noqa: E402
import schemas  # noqa: E402
from schemas import I, N, S, arr, obj  # noqa: E402

LONG = os.environ.get("DCPD_TEST_LONG") == "1"
PARSERS = {"glm": ("models/dcp-tiny", "<|endoftext|>"),
           "dsv32": ("tests/data/tok/tok-ds", "<｜end▁of▁sentence｜>")}


def walk(parser, options, samples, seed):
    """[[answer]] by options."""
    model, eos = PARSERS[parser]
    return gram_walk.walk(options, samples, seed, model, parser, eos)


def tool(name, parameters=None):
    f = {"name": name}
    if parameters is not None:
        f["parameters"] = parameters
    return {"type": "function", "function": f}


def options(*tools, choice="required", **kw):
    return dict(kw, tools=list(tools), tool_choice=choice)


def named(name):
    return {"type": "function", "function": {"name": name}}


def as_any_of(s):
    """oneOf is read as anyOf; nothing else of a schema is changed."""
    if isinstance(s, dict):
        return {("anyOf" if k == "oneOf" else k): as_any_of(v)
                for k, v in s.items()}
    return [as_any_of(v) for v in s] if isinstance(s, list) else s


def check_call(opts, name, arguments):
    [t] = [t["function"] for t in opts["tools"]
           if t["function"]["name"] == name]
    try:
        v = json.loads(arguments)
    except ValueError as e:
        raise AssertionError(f"{opts}: {arguments!r}: {e}") from e
    assert isinstance(v, dict), (opts, arguments)
    err = next(jsonschema.Draft202012Validator(as_any_of(
        t.get("parameters") or {})).iter_errors(v), None)
    assert err is None, (opts, arguments, err and err.message)
    return v


def check(opts, a):
    """How often it ended: 0 or 1."""
    assert "error" not in a, (opts, a)
    if not a["done"]:
        return 0
    assert a["calls"] and a["content"] == "", (opts, a)
    one = opts.get("parallel_tool_calls") is False or isinstance(
        opts["tool_choice"], dict)
    assert len(a["calls"]) == 1 or not one, (opts, a)
    for name, arguments in a["calls"]:
        assert one is False or opts["tool_choice"] in (
            "required", named(name)), (opts, name)
        check_call(opts, name, arguments)
    return 1


DEFS = ("$defs", "definitions")


def argument(s):
    """A tool's schema with s as an argument; what $ref names stays above."""
    inner = {k: v for k, v in s.items() if k not in DEFS}
    outer = {k: v for k, v in s.items() if k in DEFS}
    return dict(obj(["a"], a=inner, b=S, c=I), **outer)


def parameters(s):
    """Tools' schemas that hold s as an argument, and as the whole."""
    if not isinstance(s, dict):
        return
    text = json.dumps(s)
    if '"#"' not in text and '"#/properties' not in text:
        yield argument(s)
    if s.get("type") == "object" and "anyOf" not in s and "oneOf" not in s \
            and all(re.fullmatch(r'[^ "<>\x00-\x1f]+', k)
                    for k in s.get("required", [])):
        yield s


DIGITS = {**{k: {"enum": ["9"]} for k in ("a/b", "a b", "a~b")},
          "list": {"anyOf": [{"type": "null"}, {"enum": ["8"]}]},
          **{f"c{i}": {"$ref": f"#/$defs/c{i + 1}"} for i in range(11)},
          "c11": {"enum": ["9"]}}
HAND = [
    None, {}, {"type": "object"}, obj(), obj(a=S),
    obj([], a=S, b=S), obj(["b"], a=S, b=S, c=S),
    # Names that begin each other, and names of the markup.
    obj([], a=S, ab=S, abc=I, a_=N), obj(name=S, string=S, parameter=S),
    obj(**{"a b": S, "a.b/c": I, "é": S, "中文": S}),
    # Names that spell an added token, a special one.
    obj(**{"[MASK]": S, "a[gMASK]b": I, "<｜User｜>"[1:-1]: S}),
    # Those that cannot be written are left out when they may be.
    obj(["a"], a=S, **{'q"': S, " x": S, "<y>": I, "": S}),
    # Strings: bare, and as JSON where they may be something else.
    obj(a={"type": ["string", "null"]}, b={"anyOf": [S, I]}),
    obj(a={"type": "string", "minLength": 3, "maxLength": 5}),
    obj(a={"type": "string", "minLength": 2}),
    obj(a={"type": "string", "maxLength": 0}),
    obj(a={"enum": ["<", "</", "</a>", "a", "ab", "\"", "\\", "\n", ""]}),
    obj(a={"const": "x\ty\"z\\"}, b={"enum": [1, "1", True, None]}),
    obj(a={"type": "string", "pattern": "^<[a-z/]*>$"}),
    obj(a={"type": "string", "pattern": "^[^a]{2,4}$"}),
    obj(a={"type": "string", "pattern": "\"\\\\"}),
    obj(a={"type": "string", "pattern": "^.*x$", "maxLength": 4}),
    obj(a=arr(S, maxItems=3), b=obj(c=S, d=arr(obj(e=S)))),
    obj(a={"allOf": [S, {"maxLength": 3}]}),
    obj(a={"anyOf": [S, {"minimum": 3}]}),
    # Where a reader must know that a string is no integer in quotes.
    *(dict(obj(a={"anyOf": [{"type": "integer", "minimum": 4, "maximum": 5},
                            s]}), **{"$defs": DIGITS})
      for s in ({"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/a%20b"},
                {"$ref": "#/$defs/a~0b"}, {"$ref": "#/$defs/list/anyOf/1"},
                {"$ref": "#/$defs/c0"})),
    obj(a={"anyOf": [{"type": "integer", "maximum": 3, "minimum": 3},
                     {"minLength": 1, "maxLength": 1}]}),
    obj(a={"anyOf": [{"type": "integer", "maximum": 3, "minimum": 3}, {}]}),
    # Other names, with types of their own.
    {"type": "object", "additionalProperties": S},
    {"type": "object", "additionalProperties": I},
    dict(obj(["a"], a=S, b=I), additionalProperties=True),
    dict(obj(["a"], a=S, ab=I), additionalProperties={"type": "boolean"}),
    {"type": "object", "required": ["x"]},
    {"$ref": "#/$defs/p", "$defs": {"p": obj(a=S, b=I)}},
    {"allOf": [obj(a=S), {"type": "object", "properties": {"a": {
        "maxLength": 4}}}]},
    {"properties": {"a": S}, "required": ["a"]},
]


def good(parser, samples, n):
    all_ = list(HAND)
    for s in schemas.good(3, n):
        all_ += parameters(s)
    opts = [options(tool("f", p)) for p in all_]
    done = 0
    for o, answers in zip(opts, walk(parser, opts, samples, 7)):
        assert len(answers) == samples, o
        done += sum(check(o, a) for a in answers)
    total = len(opts) * samples
    assert done > 0.9 * total, (done, total)
    print(f"{parser}: {len(opts)} tools, {total} answers, {done} ended")


def several(parser, samples):
    """Which of them, how many, and that each of them comes."""
    tools = [tool("get_time", obj()), tool("get_timezone", obj(city=S)),
             tool("get", obj([], a=I)), tool("get_weather", obj(
                 city=S, unit={"enum": ["C", "F"]}))]
    names = {t["function"]["name"] for t in tools}
    many = options(*tools)
    one = options(*tools, parallel_tool_calls=False)
    answers = walk(parser, [many, one] + [options(
        *tools, choice=named(n)) for n in sorted(names)], samples, 11)
    for o, list_ in zip([many, one], answers):
        assert sum(check(o, a) for a in list_) > 0.9 * samples
        assert len({n for a in list_ for n, _ in a["calls"]}) > 1, o
    assert any(len(a["calls"]) > 1 for a in answers[0])
    for n, list_ in zip(sorted(names), answers[2:]):
        for a in list_:
            assert [c[0] for c in a["calls"]] == [n] or not a["done"], (n, a)
            check(options(*tools, choice=named(n)), a)


def named_as_an_added_token(parser, samples):
    """Special tokens are not read, so none may be part of a name."""
    for name in ("[MASK]", "a[gMASK]b", "<|endoftext|>"[1:-1],
                 "｜end▁of▁sentence｜", "｜DSML｜x"):
        o = options(tool(name, obj(["a"], a=I)), choice=named(name))
        [answers] = walk(parser, [o], samples, 17)
        assert sum(check(o, a) for a in answers) > 0.9 * samples, name


def text_of_all_kinds(parser, samples):
    """A string argument is any text, markup's own letters too."""
    [answers] = walk(parser, [options(tool("f", obj(a=S)), choice=named(
        "f"))], samples, 13)
    text = "".join(check_call(options(tool("f", obj(a=S))), *c)["a"]
                   for a in answers if a["done"] for c in a["calls"])
    for c in "<>/\"\\\n{}":
        assert c in text, c
    assert any(ord(c) > 0x7ff for c in text)


def refused(parser):
    bad = [(s, word) for s, word in schemas.BAD if isinstance(s, dict) and
           '"#' not in json.dumps(s)[:20000]]
    opts = [options(tool("fine", obj(a=S)), tool("broken", argument(s)))
            for s, _ in bad]
    for (s, word), [a] in zip(bad, walk(parser, opts, 1, 1)):
        short = json.dumps(s)[:200]
        assert "error" in a, (short, a)
        assert '"broken"' in a["error"] and "#/properties/a" in a["error"] \
            or "more than" in a["error"] or "schema: " in a["error"], a
        assert word.replace("#", "#/properties/a") in a["error"], (
            short, word, a["error"])
    hand = [
        (options(tool("f", S)), "want the schema of an object"),
        (options(tool("f", {"anyOf": [obj(a=S), obj(b=S)]})), "anyOf"),
        (options(tool("f", obj(**{'a"': S}))), "cannot be written"),
        *((options(tool(name, obj())), "no name that can be written")
          for name in ('f"', " f", "f\t", " ", "\rf")),
        (options(tool("f", obj(a={"not": S}))), '"not" is not supported'),
        (options(), "no tools to choose from"),
        (options(tool("f"), choice=named("g")), 'no tool is named "g"'),
    ]
    if parser == "dsv32":
        hand.append((options(tool("f", obj(a={"const": "</｜DSML｜x"}))),
                     "ends an argument"))
    for (o, word), [a] in zip(hand, walk(parser, [o for o, _ in hand], 1, 1)):
        assert word in a.get("error", ""), (word, a)
    print(f"{parser}: {len(bad) + len(hand)} refused")


def main():
    for parser in PARSERS:
        good(parser, 20 if LONG else 3, 600 if LONG else 60)
        several(parser, 200 if LONG else 60)
        named_as_an_added_token(parser, 5)
        text_of_all_kinds(parser, 60)
        refused(parser)


main()
