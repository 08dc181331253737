#!/usr/bin/python3
"""/v1/chat/completions, /v1/completions and what stands beside them: a test
for each thing that doc/serving.md, section 4, says of them. The model is
dcp-tiny; the reference is the same request over the ring, or arithmetic.
"""
import json
import math
import os
import re
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import dcpclient as dcp  # noqa: E402
import suite  # noqa: E402
from eval_rows import TOOLS, rows  # noqa: E402
from httpd import HttpDaemon  # noqa: E402

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
ASK = [{"role": "user", "content": "Ann has 12 pears. Ben gives Ann 13 more. "
        "How many pears does Ann have now?"}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens",
         "prompt_tokens_details", "completion_tokens_details"}


def chat(d, messages=None, **fields):
    return d.post(CHAT, {"messages": messages or ASK, **fields})


def message(d, *a, **fields):
    return chat(d, *a, **fields)["choices"][0]["message"]


def chunks(d, path, body):
    """The JSON of a stream's events; it ends with [DONE]."""
    said = d.stream(path, body)
    assert said[-1] == (None, "[DONE]"), said[-1]
    return [json.loads(t) for _, t in said[:-1]]


def join_chat(said, index=0):
    """What a client makes of the pieces."""
    out, calls, finish = {}, [], None
    for c in said:
        for ch in c["choices"]:
            if ch["index"] != index:
                continue
            assert finish is None, "a piece after the end"
            finish = ch["finish_reason"]
            for k, v in ch["delta"].items():
                if k == "tool_calls":
                    for t in v:
                        if t["index"] == len(calls):
                            assert t["id"] and t["type"] == "function"
                            calls.append({"id": t["id"], "name": "",
                                          "arguments": ""})
                        for part in ("name", "arguments"):
                            calls[t["index"]][part] += \
                                t["function"].get(part, "")
                elif k != "role" and v is not None:
                    out[k] = out.get(k, "") + v
    return out, calls, finish


def bad(d, path, body, param=None, status=400, word=""):
    for stream in (False, True):
        e = d.post(path, dict(body, stream=stream), status)["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        assert e["type"] == "invalid_request_error", e
        assert e["param"] == param, (body, e)
        assert word in e["message"] and e["message"].isprintable(), e
    return e


# --- completions -------------------------------------------------------------

def a_prompt_is_text_or_ids_one_or_many(d):
    text = "The river"
    ids = d.post("/tokenize", {"prompt": text})["tokens"]
    one = d.post(COMP, {"prompt": text, "temperature": 0})
    want = one["choices"][0]["text"]
    assert one["object"] == "text_completion" and one["id"][:5] == "cmpl-"
    assert one["usage"]["prompt_tokens"] == len(ids)
    assert one["usage"]["completion_tokens"] == 16, "16 is the default"
    for prompt, n in ((ids, 1), ([text], 1), ([ids], 1), ([text] * 3, 3),
                      ([ids, ids], 2)):
        o = d.post(COMP, {"prompt": prompt, "temperature": 0})
        assert [c["index"] for c in o["choices"]] == list(range(n))
        assert all(c["text"] == want for c in o["choices"]), prompt
        assert o["usage"]["prompt_tokens"] == n * len(ids)
        assert o["usage"]["completion_tokens"] == n * 16
    said = chunks(d, COMP, {"prompt": [ids, ids], "temperature": 0, "n": 2})
    got = [""] * 4
    for c in said:
        got[c["choices"][0]["index"]] += c["choices"][0]["text"]
    assert got == [want] * 4, got
    for prompt in (None, "", [], [[]], [""], 3, {}, ["a", 1], [1, "a"],
                   [[1], "a"], [-1], [1.5], [2 ** 40], [[1, None]], True):
        bad(d, COMP, {"prompt": prompt}, "prompt")
    bad(d, COMP, {"prompt": [10 ** 6]}, "prompt", word="vocabulary")


def echo_and_logprobs_as_harnesses_read_them(d):
    text = "The river is long. \u00e9\U0001f350! It is\u65e5 old."
    ids = d.post("/tokenize", {"prompt": text})["tokens"]
    o = d.post(COMP, {"prompt": ids, "max_tokens": 1, "temperature": 0,
                      "logprobs": 1, "echo": True})
    c = o["choices"][0]
    lp = c["logprobs"]
    assert c["text"].startswith(text), c["text"]
    assert {len(v) for v in lp.values()} == {len(ids) + 1}
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert lp["tokens"][0] == "The" and lp["text_offset"][:2] == [0, 3]
    assert any(t.startswith("bytes:\\xf0") for t in lp["tokens"]), \
        "a token that is part of a character"
    for t, at in zip(lp["tokens"], lp["text_offset"]):
        assert t.startswith("bytes:") or c["text"][at:at + len(t)] == t, (t, at)
    with d.client() as ring:
        r = ring.generate(tokens=ids, max_tokens=1, temperature=0.0,
                          top_logprobs=1, flags=dcp.ECHO | dcp.LOGPROBS)
    want = [p for _, p, _ in r.prompt_logprobs[1:] + r.logprobs]
    got = lp["token_logprobs"][1:]
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(want, got))
    for t, p, top in list(zip(lp["tokens"], lp["token_logprobs"],
                              lp["top_logprobs"]))[1:]:
        assert math.isclose(top[t], p) and max(top.values()) >= p
    # Nothing but the prompt; the ids' text; a stream says the same.
    o = d.post(COMP, {"prompt": text, "max_tokens": 0, "echo": True,
                      "logprobs": 0})
    assert o["choices"][0]["text"] == text
    assert len(o["choices"][0]["logprobs"]["tokens"]) == len(ids)
    assert o["usage"]["completion_tokens"] == 0
    said = chunks(d, COMP, {"prompt": ids, "max_tokens": 1, "temperature": 0,
                            "logprobs": 1, "echo": True})
    assert "".join(s["choices"][0]["text"] for s in said) == c["text"]
    for key in lp:
        got = [x for s in said if s["choices"][0]["logprobs"]
               for x in s["choices"][0]["logprobs"][key]]
        assert got == lp[key], key
    bad(d, COMP, {"prompt": "a", "logprobs": 21}, "logprobs")
    bad(d, COMP, {"prompt": "a", "max_tokens": 0}, "max_tokens")


def what_completions_do_not_do(d):
    for ok in ({"best_of": 1}, {"suffix": ""}, {"suffix": None},
               {"best_of": 2, "n": 2}):
        d.post(COMP, {"prompt": "a", "max_tokens": 1, **ok})
    bad(d, COMP, {"prompt": "a", "best_of": 3}, "best_of")
    bad(d, COMP, {"prompt": "a", "suffix": "b"}, "suffix")


# --- chat --------------------------------------------------------------------

def a_stream_is_the_whole_in_pieces(d):
    o = chat(d, temperature=0)
    assert o["object"] == "chat.completion" and o["id"][:9] == "chatcmpl-"
    whole = o["choices"][0]
    assert whole["message"]["role"] == "assistant"
    assert set(o["usage"]) == USAGE
    assert o["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert o["usage"]["total_tokens"] == o["usage"]["prompt_tokens"] + \
        o["usage"]["completion_tokens"]
    said = chunks(d, CHAT, {"messages": ASK, "temperature": 0})
    assert {c["object"] for c in said} == {"chat.completion.chunk"}
    assert len({c["id"] for c in said}) == 1
    assert said[0]["choices"][0]["delta"]["role"] == "assistant"
    out, _, finish = join_chat(said)
    for k in ("content", "reasoning", "reasoning_content"):
        assert out.get(k, "") == (whole["message"].get(k) or ""), k
    assert finish == whole["finish_reason"] == "stop"
    assert "25" in whole["message"]["content"], whole


def usage_only_when_asked(d):
    body = {"messages": ASK, "temperature": 0, "max_tokens": 5}
    for path, b in ((CHAT, body), (COMP, {"prompt": "a", "max_tokens": 5})):
        said = chunks(d, path, b)
        assert all(c["choices"] and "usage" not in c for c in said)
        said = chunks(d, path, dict(b, stream_options={
            "include_usage": True}))
        assert said[-1]["choices"] == [] and set(said[-1]["usage"]) == USAGE
        assert said[-1]["usage"]["completion_tokens"] == 5
        assert all("usage" not in c for c in said[:-1])
        said = chunks(d, path, dict(b, stream_options={
            "include_usage": True, "continuous_usage_stats": True}))
        seen = [c["usage"]["completion_tokens"] for c in said]
        assert seen == sorted(seen) and seen[-1] == 5, seen
        assert len({c["usage"]["prompt_tokens"] for c in said}) == 1, said


def reasoning_has_two_names_out_and_in(d):
    m = message(d, temperature=0)
    assert m["reasoning"] == m["reasoning_content"] != ""
    # Back in, either name is the same prompt; another text is not.
    tokens = []
    for extra in ({"reasoning": "so"}, {"reasoning_content": "so"},
                  {"reasoning": "other"}):
        tokens.append(d.post("/tokenize", {"messages": [
            *ASK, {"role": "assistant", "content": "25", **extra,
                   "tool_calls": [{"id": "1", "type": "function", "function":
                                   {"name": "add", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "x"}]})["tokens"])
    assert tokens[0] == tokens[1] != tokens[2]


def an_answer_without_its_thinking(d):
    """CASES 31: cut off in its reasoning, content is null; asked not to think,
    nothing of it is reasoning."""
    o = chat(d, max_tokens=3, temperature=0)["choices"][0]
    assert o["finish_reason"] == "length" and o["message"]["content"] is None
    assert o["message"]["reasoning_content"]
    m = message(d, temperature=0, max_tokens=20, **NO_THINKING)
    assert "reasoning" not in m and m["content"]


def tools_are_called(d):
    """CASES 30, with a model that calls: split anywhere, typed by schema."""
    seen = set()
    for row in list(rows("tools"))[:6]:
        body = {"messages": [{"role": "user", "content": row["question"]}],
                "tools": TOOLS, "temperature": 0}
        whole = d.post(CHAT, body)["choices"][0]
        said, calls, finish = join_chat(chunks(d, CHAT, body))
        assert finish == whole["finish_reason"], (finish, whole)
        want = whole["message"].get("tool_calls", [])
        assert [(c["name"], c["arguments"]) for c in calls] == [
            (c["function"]["name"], c["function"]["arguments"])
            for c in want]
        if not want:
            continue
        assert finish == "tool_calls" and whole["message"]["content"] is None
        assert want[0]["type"] == "function"
        assert want[0]["id"].startswith("call_") and want[0]["id"] != \
            d.post(CHAT, body)["choices"][0]["message"]["tool_calls"][0]["id"]
        args = json.loads(want[0]["function"]["arguments"])
        seen.add(want[0]["function"]["name"])
        types = {type(v) for v in args.values()}
        assert types == ({int} if "a" in args else {str}), args
    assert seen == {"add", "get_weather"}, seen
    # Told not to, or cut in the middle of one.
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "none",
            "temperature": 0, "max_tokens": 40}
    assert not d.post(CHAT, body)["choices"][0]["message"].get("tool_calls")
    # One that wants to call, as this does without any tool, is kept from it.
    ask = [{"role": "user", "content": "Is it cold in Oslo today?"}]
    body = {"messages": ask, "temperature": 0, "max_tokens": 60}
    assert d.post(CHAT, body)["choices"][0]["finish_reason"] == "tool_calls"
    for tools in ({}, {"tools": TOOLS}):
        o = d.post(CHAT, {**body, **tools, "tool_choice": "none"})
        o = o["choices"][0]
        assert "tool_calls" not in o["message"], o
        assert o["finish_reason"] != "tool_calls", o


BOUND = {"type": "object", "properties": {
    "unit": {"enum": ["C", "F"]}, "days": {
        "type": "integer", "minimum": 1, "maximum": 7},
    "city": {"type": "string", "maxLength": 12}},
    "required": ["unit", "days", "city"]}


def function(name, parameters):
    return {"name": name, "parameters": parameters}


def forced_by_all(d, seed, choice, one):
    """What comes, per API: [(name, arguments)], and whether it was whole."""
    functions = [function("forecast", BOUND), function("now", {
        "type": "object", "properties": {}})]
    # The model would stop after one by itself.
    [again] = d.post("/tokenize", {"prompt": "<tool_call>"})["tokens"]
    hot = {"temperature": 1.5, "seed": seed, "logit_bias": {again: 100}}
    o = chat(d, tools=[{"type": "function", "function": f}
                       for f in functions], tool_choice=choice and {
        "type": "function", "function": {"name": choice}} or "required",
        parallel_tool_calls=not one, max_tokens=200, **hot, **NO_THINKING)
    yield [(t["function"]["name"], t["function"]["arguments"]) for t in
           o["choices"][0]["message"]["tool_calls"]], \
        o["choices"][0]["finish_reason"] == "tool_calls"
    o = d.post("/v1/responses", {
        "input": ASK, "tools": [{"type": "function", **f} for f in functions],
        "tool_choice": choice and {"type": "function", "name": choice} or
        "required", "parallel_tool_calls": not one, "max_output_tokens": 200,
        **hot, **NO_THINKING})
    assert o["parallel_tool_calls"] is not one, o
    yield [(t["name"], t["arguments"]) for t in o["output"]
           if t["type"] == "function_call"], o["status"] == "completed"
    o = d.post("/v1/messages", {
        "model": "dcp-tiny", "messages": ASK, "max_tokens": 200, "tools": [
            {"name": f["name"], "input_schema": f["parameters"]}
            for f in functions], "tool_choice": dict(
                choice and {"type": "tool", "name": choice} or
                {"type": "any"}, disable_parallel_tool_use=one),
        **dict(hot, temperature=1.0), "thinking": {"type": "disabled"}})
    yield [(t["name"], json.dumps(t["input"])) for t in o["content"]
           if t["type"] == "tool_use"], o["stop_reason"] == "tool_use"


def a_call_is_forced(d):
    """The whole of it, by its schema, however hot the sampling."""
    n_whole = 0
    for seed in range(8):
        for choice in ("forecast", None):
            for calls, whole in forced_by_all(d, seed, choice, seed % 2 == 0):
                assert calls, "no call came"
                n_whole += whole
                many = seed % 2 == 1 and choice is None
                assert (len(calls) > 1) == many, (calls, many)
                for name, arguments in calls if whole else calls[:-1]:
                    assert name == "forecast" or not choice, name
                    v = json.loads(arguments)
                    assert list(v) == (["unit", "days", "city"] if
                                       name == "forecast" else []), v
                    assert not v or (
                        v["unit"] in ("C", "F") and 1 <= v["days"] <= 7 and
                        len(v["city"]) <= 12), v
    assert n_whole > 24, n_whole
    # Not forced, and kept from its end: one call is the end all the same.
    ask = [{"role": "user", "content": next(iter(rows("tools")))["question"]}]
    for many in (True, False):
        o = chat(d, ask, tools=TOOLS, min_tokens=150, max_tokens=160,
                 parallel_tool_calls=many, temperature=0)
        assert (o["usage"]["completion_tokens"] < 150) is not many, o
        assert many or o["choices"][0]["finish_reason"] == "tool_calls", o
        assert many or len(o["choices"][0]["message"]["tool_calls"]) == 1, o
    tools = [{"type": "function", "function": function("f", {
        "type": "object", "properties": {"a": {"not": {}}}})}]
    for choice in ("required", {"type": "function", "function": {
            "name": "f"}}):
        bad(d, CHAT, {"messages": ASK, "tool_choice": choice, "tools": tools},
            "tools",
            word='"f": parameters: schema at #/properties/a: "not"')
    bad(d, CHAT, {"messages": ASK, "tool_choice": {"type": "function",
                  "function": {"name": "none"}}, "tools": TOOLS},
        "tool_choice")
    bad(d, CHAT, {"messages": ASK, "parallel_tool_calls": 1},
        "parallel_tool_calls")
    d.post("/v1/messages", {
        "model": "x", "messages": ASK, "max_tokens": 5, "tool_choice": {
            "type": "auto", "disable_parallel_tool_use": 1}}, 400)
    for kind in ({}, {"type": "text"}, {"type": 1}):
        e = d.post("/v1/messages", {
            "model": "x", "messages": ASK, "max_tokens": 5, "output_config": {
                "format": {**kind, "schema": {"type": "string"}}}}, 400)
        assert "json_schema" in e["error"]["message"], e


BIG = 18446744073709551615


def integers_beyond_64_bits(d):
    """They are JSON, as are those of calls that were answered so."""
    def tools(**a):
        return [{"type": "function", "function": function("f", {
            "type": "object", "properties": {"a": a}, "required": ["a"]})}]

    forced = {"tool_choice": "required", "max_tokens": 60, **NO_THINKING}
    short = {"max_tokens": 2, **NO_THINKING}
    # Other integers of the body stay what they are: those that follow, too.
    for big in (BIG, -10 ** 30, 2 ** 63):
        ask = dict(short, tools=tools(type="integer", maximum=big), n=1)
        assert chat(d, **ask)["usage"]["completion_tokens"] == 2
        bad(d, CHAT, dict(ask, messages=ASK, tool_choice="required"),
            "tools", word="bounds of an integer above 2^53 are not supported")
    for key in ("enum", "const"):
        v = [1, {"x": BIG}] if key == "enum" else BIG
        chat(d, **short, tools=tools(**{key: v}))
        bad(d, CHAT, dict(forced, messages=ASK, tools=tools(**{key: v})),
            "tools", word="2^63 or above")
    digits = {"type": "integer", "enum": [7]}
    o = chat(d, tools=tools(anyOf=[digits], description=f"\\\" {BIG}",
                            default=BIG), **forced)
    [call] = o["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 7}, call
    for path in (CHAT, COMP):
        for key in ("max_tokens", "n", "top_logprobs", "seed"):
            if (path, key) != (COMP, "top_logprobs"):
                bad(d, path, {
                    "messages": ASK, "prompt": "a", key: BIG}, key, word=key)
    bad(d, COMP, {"prompt": [20, BIG]}, "prompt")
    e = d.ask("POST", COMP, b'{"n": %d, "prompt": x}' % BIG)[2]
    assert "byte 39" in json.loads(e)["error"]["message"], e
    # A model's own, in a call that comes back: as text or as an object.
    for args in ('{"a": %d}' % BIG, '{"a": [-%d, 3]}' % 10 ** 40, {"a": BIG}):
        chat(d, ASK + [
            {"role": "assistant", "content": None, "tool_calls": [{
                "id": "c", "type": "function", "function": {
                    "name": "f", "arguments": args}}]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"}], **short)
    d.post("/v1/messages", {"model": "x", "max_tokens": 2, "messages": ASK + [
        {"role": "assistant", "content": [{
            "type": "tool_use", "id": "c", "name": "f", "input": {
                "a": BIG}}]},
        {"role": "user", "content": [{"type": "tool_result",
                                      "tool_use_id": "c",
                                      "content": "ok"}]}]})


def nul_in_texts_only(d):
    def tools(name="f", describe="what", enum="x"):
        return [{"type": "function", "function": {
            "name": name, "description": describe, "parameters": {
                "type": "object", "properties": {"a": {
                    "enum": [enum], "description": describe}}}}}]

    short = {"max_tokens": 2, **NO_THINKING}
    o, plain = (chat(d, tools=tools(describe=s), **short)["usage"]
                for s in ("a\0b", "ab"))
    assert o["prompt_tokens"] > plain["prompt_tokens"], "it is shown"
    for kw, key in (({"name": "a\0b"}, "name"), ({"enum": "a\0"}, "enum")):
        bad(d, CHAT, {"messages": ASK, "tools": tools(**kw)},
            word=f"{key}: a string holds U+0000")
    bad(d, CHAT, {"messages": ASK, "cache_salt": "a\0b"},
        "cache_salt", word="cache_salt: a string holds U+0000")
    for kw, key in (({"role": "user\0", "content": "x"}, "role"),
                    ({"role": "assistant", "tool_calls": [{"function": {
                        "name": "f\0g", "arguments": "{}"}}]},
                     "function.name")):
        bad(d, CHAT, {"messages": [*ASK, kw]}, "messages",
            word=f"{key} is a string with U+0000")
    e = d.post("/v1/messages", {"max_tokens": 2, "messages": [
        {"role": "user\0", "content": "x"}]}, 400)["error"]
    assert "role must be without U+0000" in e["message"], e
    # What counts a prompt takes what a completion takes.
    for text in ("a\0b", "\0"):
        n = d.post("/tokenize", {"prompt": text})["count"]
        assert n == d.post("/v1/completions", {"prompt": text, "max_tokens":
                                               1})["usage"]["prompt_tokens"]


def answers_follow_a_schema(d):
    schema = {"type": "object", "properties": {
        "n": {"type": "integer"}, "unit": {"enum": ["pears", "apples"]}},
        "required": ["n", "unit"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {
        "name": "x", "schema": schema, "strict": True}}
    for path, body in ((CHAT, {"messages": ASK, **NO_THINKING}),
                       (COMP, {"prompt": "The river"})):
        o = d.post(path, {**body, "temperature": 0, "max_tokens": 60,
                          "response_format": form})["choices"][0]
        text = o["text"] if path == COMP else o["message"]["content"]
        if o["finish_reason"] == "stop":
            got = json.loads(text)
            assert set(got) == {"n", "unit"} and type(got["n"]) is int
            assert got["unit"] in ("pears", "apples")
        else:
            assert text.lstrip().startswith("{"), text
        form2 = json.loads(json.dumps(form))
        form2["json_schema"]["schema"]["properties"]["n"]["type"] = "strong"
        bad(d, path, {**body, "response_format": form2}, "response_format")
        bad(d, path, {**body, "response_format": {"type": "poem"}},
            "response_format")


def what_other_engines_call_a_schema(d):
    """Passed over, it would leave the answer free."""
    schema = {"type": "object", "properties": {"unit": {"enum": [
        "pears", "apples"]}}, "required": ["unit"],
        "additionalProperties": False}
    names = [{"guided_json": schema}, {"guided_json": json.dumps(schema)},
             {"json_schema": schema}, {"structured_outputs": {"json": schema}},
             {"response_format": {"type": "json_object", "schema": schema}},
             {"response_format": {"type": "text"}, "guided_json": schema}]
    for path, body in ((CHAT, {"messages": ASK, **NO_THINKING}),
                       (COMP, {"prompt": "The river"})):
        body = {**body, "temperature": 0, "max_tokens": 40}
        for fields in names + [{"structured_outputs": {"json_object": True}}]:
            o = d.post(path, {**body, **fields})["choices"][0]
            text = o["text"] if path == COMP else o["message"]["content"]
            assert text.lstrip().startswith("{"), text
            if fields in names and o["finish_reason"] == "stop":
                assert json.loads(text)["unit"] in ("pears", "apples"), text
            elif fields in names:
                assert re.match(r'\s*\{\s*("unit"|$)', text), text
        bad(d, path, {**body, **names[0], **names[4]}, "guided_json",
            word="one of them")
        for key, values in {
                "guided_json": [3, "{", "3"], "structured_outputs": [
                    3, {"regex": "a+"}, {"choice": ["a"]}, {"grammar": "x"}],
                "guided_regex": ["a+"], "guided_choice": [["a", "b"]],
                "guided_grammar": ["x"], "regex": ["a+"], "ebnf": ["x"],
                "grammar": ["x"], "functions": [[{"name": "f"}]],
                "bad_words": [["a"]], "continue_final_message": [True],
                "add_generation_prompt": [False], "use_beam_search": [True],
                "prompt_logprobs": [0, 1],
                "max_new_tokens": [5], "n_predict": [5, 0, -1],
                "repeat_penalty": [1.1, 0], "stop_regex": ["a+"],
                "typical_p": [.9], "typical": [.9], "mirostat": [2],
                "dry_multiplier": [.8], "xtc_probability": [.5],
                "samplers": [["top_k"]], "thinking_token_budget": [0, 9],
                "lora_path": ["x"], "enable_thinking": [True, False],
                "reasoning": [{"enabled": False}, {"effort": "low"}],
                "separate_reasoning": [False], "include_reasoning": [False],
                "chat_template_kwargs": [{"enable_thinkin": False}]
                }.items():
            for v in values:
                bad(d, path, {**body, key: v}, key)
    # What asks for nothing is no reason.
    chat(d, max_tokens=2, guided_json=None, guided_choice=[], regex="",
         structured_outputs={}, continue_final_message=False, functions=[],
         add_generation_prompt=True, use_beam_search=False,
         max_new_tokens=None, repeat_penalty=1.0, typical_p=1, mirostat=0,
         dry_multiplier=0.0, xtc_probability=0, samplers=[], lora_path=None,
         enable_thinking=None, reasoning={}, separate_reasoning=True,
         include_reasoning=True, stop_regex=[], thinking_token_budget=None,
         chat_template_kwargs={"thinking": False, "enable_thinking": False,
                               "clear_thinking": True, "reasoning_effort":
                               "low", "preserve": None})
    # Everywhere that takes them.
    for path, body in (("/tokenize", {"messages": ASK}),
                       ("/v1/responses", {"input": "a"}),
                       ("/v1/messages", {"messages": ASK, "max_tokens": 2})):
        body["chat_template_kwargs"] = {"enable_thinkin": False}
        o = d.post(path, body, 400)["error"]
        assert "enable_thinkin is not" in o["message"], (path, o)


def content_is_text_or_parts(d):
    q = ASK[0]["content"]
    parts = [{"type": "text", "text": q[:9]}, {"type": "text", "text": q[9:]}]
    want = message(d, temperature=0)
    assert message(d, [{"role": "user", "content": parts}],
                   temperature=0) == want
    for part in ({"type": "image_url", "image_url": {"url": "data:,"}},
                 {"type": "input_audio", "input_audio": {}}, {"text": "a"}):
        bad(d, CHAT, {"messages": [{"role": "user", "content": [part]}]},
            "messages", word="content")
    for messages in (None, [], "hi", [3], [{"role": "king", "content": ""}],
                     [{"content": "a"}], {}):
        bad(d, CHAT, {"messages": messages}, "messages")


def logprobs_of_a_chat(d):
    o = chat(d, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
    content = o["choices"][0]["logprobs"]["content"]
    assert len(content) == 4
    for t in content:
        assert len(t["top_logprobs"]) == 3
        assert t["top_logprobs"][0]["token"] == t["token"], "greedy"
        assert bytes(t["bytes"]).decode("utf-8", "replace")
        p = [x["logprob"] for x in t["top_logprobs"]]
        assert p == sorted(p, reverse=True) and p[0] <= 0
    said = chunks(d, CHAT, {"messages": ASK, "max_tokens": 4, "logprobs": True,
                            "top_logprobs": 3, "temperature": 0})
    got = [t for c in said if c["choices"][0]["logprobs"]
           for t in c["choices"][0]["logprobs"]["content"]]
    assert [t["token"] for t in got] == [t["token"] for t in content]
    assert chat(d, max_tokens=1)["choices"][0]["logprobs"] is None
    bad(d, CHAT, {"messages": ASK, "logprobs": True, "top_logprobs": 21},
        "top_logprobs")
    bad(d, CHAT, {"messages": ASK, "top_logprobs": 2}, "top_logprobs")


# --- fields ------------------------------------------------------------------

SAMPLING = [
    {"temperature": 0}, {"temperature": 1.3}, {"temperature": 1, "top_p": .5},
    {"temperature": 1, "top_k": 3}, {"temperature": 1, "min_p": .2},
    {"temperature": 0, "repetition_penalty": 1.7},
    {"temperature": 0, "presence_penalty": 1.5},
    {"temperature": 0, "frequency_penalty": 1.5},
    {"temperature": 0, "logit_bias": {"40": 50, "50": -100}},
    {"temperature": 1, "top_p": 0}, {"temperature": 0, "min_tokens": 12},
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0, "stop": ["a", "th"]}, {"temperature": 0, "stop": "e"},
    {"temperature": 0, "stop_token_ids": [40, 41, 42, 43]},
    {"temperature": 0, "skip_special_tokens": False, "ignore_eos": True}]


def the_same_bytes_over_the_ring(d):
    """Each sampling field acts as it does for dcpclient.h's user."""
    flags = {"ignore_eos": dcp.IGNORE_EOS,
             "skip_special_tokens": dcp.SPECIAL_TOKENS}
    with d.client() as ring:
        for s in SAMPLING:
            for seed in (7, 8):
                kw = dict(s, max_tokens=24, seed=seed)
                h = d.post(COMP, {"prompt": "Ann has 12", **kw})
                h = h["choices"][0]
                kw["flags"] = 0
                for k, bit in flags.items():
                    v = kw.pop(k, None)
                    if v is not None and v == (k == "ignore_eos"):
                        kw["flags"] |= bit
                if kw.get("top_p") == 0:
                    kw["top_p"] = 1.2e-38
                stop = kw.pop("stop", ())
                bias = kw.pop("logit_bias", None)
                r = ring.generate(
                    text="Ann has 12", stop_ids=kw.pop("stop_token_ids", ()),
                    stop=[stop] if isinstance(stop, str) else stop,
                    logit_bias=bias and {int(k): v for k, v in bias.items()},
                    **{k: float(v) if k in ("temperature", "top_p", "min_p")
                       else v for k, v in kw.items()})
                assert h["text"] == r.text, (s, seed, h["text"], r.text)
                assert h["finish_reason"] == r.finish, (s, h, r.finish)
        m = message(d, temperature=1, seed=3, max_tokens=80)
        r = ring.generate(chat=ASK, temperature=1.0, seed=3, max_tokens=80)
        assert m.get("reasoning", "") == r.reasoning
        assert (m["content"] or "") == r.text


def n_answers_differ_by_their_seed(d):
    body = {"messages": ASK, "temperature": 1.5, "seed": 5, "max_tokens": 12}
    o = d.post(CHAT, dict(body, n=3))["choices"]
    one = [d.post(CHAT, dict(body, seed=5 + i))["choices"][0]["message"]
           for i in range(3)]
    assert [c["message"] for c in o] == one
    assert len({c["message"]["reasoning"] for c in o}) > 1
    said = chunks(d, CHAT, dict(body, n=3))
    for i in range(3):
        assert join_chat(said, i)[0]["reasoning"] == one[i]["reasoning"]


def minus_one_is_none(d):
    """A seed of -1 draws another answer each time; so many max_tokens are as
    many as fit."""
    limit = d.post("/tokenize", {"prompt": "a"})["max_model_len"]
    for seed, n in ((-1, 4), (-2, 1)):
        said = {d.post(COMP, {"prompt": "a", "temperature": 9, "seed": seed,
                              "max_tokens": 30})["choices"][0]["text"]
                for _ in range(4)}
        assert len(said) == n, (seed, said)
    for path, body in ((CHAT, {"messages": ASK}), (COMP, {"prompt": "a"})):
        u = d.post(path, {**body, "max_tokens": -1, "ignore_eos": True})
        assert u["usage"]["total_tokens"] == limit, u["usage"]


def stop_strings_are_for_the_answer(d):
    """Not for the reasoning; never leaked, never over-held."""
    m = message(d, temperature=0)
    word = m["reasoning"][3:8]
    assert message(d, temperature=0, stop=[word])["reasoning"] == \
        m["reasoning"]
    text = d.post(COMP, {"prompt": "The river", "temperature": 0,
                         "max_tokens": 40})["choices"][0]["text"]
    for n in (1, 2, 5, 9):                  # may span tokens
        at = len(text) // 2
        stop = text[at:at + n]
        body = {"prompt": "The river", "temperature": 0, "max_tokens": 40,
                "stop": ["\u00fc never", stop]}
        got = d.post(COMP, body)["choices"][0]
        assert got["text"] == text[:text.index(stop)], (stop, got)
        assert got["finish_reason"] == "stop"
        said = chunks(d, COMP, body)
        assert "".join(c["choices"][0]["text"] for c in said) == got["text"]


def characters_are_never_halved(d):
    """CASES 29: the bytes of an emoji are four tokens of dcp-tiny."""
    ids = d.post("/tokenize", {"prompt": "\U0001f350"})["tokens"]
    assert len(ids) > 1
    body = {"prompt": "a", "temperature": 0, "max_tokens": 9 * len(ids),
            "logit_bias": {}, "ignore_eos": True}
    said = chunks(d, COMP, {**body, "prompt": "pears \U0001f350 " * 8})
    for c in said:                          # json.loads took it: it is UTF-8
        assert "\ufffd" not in c["choices"][0]["text"]
    # Forced to begin a character and cut there: nothing of it comes out.
    force = {"logit_bias": {str(ids[0]): 100000}, "max_tokens": 1}
    for stream in (False, True):
        b = {"prompt": "a", "temperature": 0, **force}
        if stream:
            text = "".join(c["choices"][0]["text"]
                           for c in chunks(d, COMP, b))
        else:
            text = d.post(COMP, b)["choices"][0]["text"]
        assert text in ("", "\ufffd"), ascii(text)


NULLS = ("temperature top_p top_k min_p repetition_penalty presence_penalty "
         "frequency_penalty logit_bias seed n stop stop_token_ids min_tokens "
         "ignore_eos max_tokens max_completion_tokens logprobs top_logprobs "
         "echo stream stream_options tools tool_choice response_format "
         "best_of suffix user priority skip_special_tokens cache_salt "
         "reasoning_effort chat_template_kwargs").split()


def nulls_and_unknown_fields_are_accepted(d):
    extra = {k: None for k in NULLS}
    extra.update(model="gpt-oss", user="me", store=False, metadata={"a": 1},
                 parallel_tool_calls=True, no_such_field=[1])
    d.post(CHAT, {**extra, "messages": ASK, "max_completion_tokens": 2})
    d.post(COMP, {**extra, "prompt": "a"})


def wrong_types_and_ranges_are_named(d):
    for key, values in {
            "temperature": ["hot", -1, [], 1e9, 101],
            "top_p": [2, -.1, "x"],
            "top_k": [-2, 1.5, "3"], "min_p": [2, True],
            "repetition_penalty": [0, "x", 101],
            "presence_penalty": ["x", -101, 101],
            "frequency_penalty": [{}, -101, 101], "n": [0, 129, "2", 1.5],
            "seed": ["x", 1.5], "max_tokens": [-2, "x", 1.5, 2 ** 40],
            "min_tokens": [-1, "x"], "ignore_eos": [1, "yes"],
            "stop": [3, [3], [""], "", ["a"] * 300],
            "stop_token_ids": ["x", [-1], ["x"], [1.5], [1, 99999]],
            "logit_bias": [[], {"x": 1}, {"1": "x"}, {"-1": 2},
                           {"99999": 1}],
            "cache_salt": [5, "x" * 257],
            "response_format": ["json", {"type": "poem"}],
            "stream_options": ["x", 3], "priority": ["x", 2 ** 40, 1],
            "skip_special_tokens": ["x"]}.items():
        for v in values:
            for path, body in ((CHAT, {"messages": ASK}),
                               (COMP, {"prompt": "a"})):
                bad(d, path, {**body, key: v}, key)
    for key, values in {
            "tools": [3, [{}]], "tool_choice": ["x", "required"],
            "parallel_tool_calls": ["x"], "reasoning_effort": ["x"],
            "thinking": ["x"], "min_tokens": [20],
            "chat_template_kwargs": [3, {"enable_thinking": "x"}]}.items():
        for v in values:
            bad(d, CHAT, {"messages": ASK, "max_tokens": 9, key: v}, key)
    for v in ([{"role": "x"}], [{"role": "user", "content": 3}], [3]):
        bad(d, CHAT, {"messages": v}, "messages")
    for path in (CHAT, COMP):
        e = d.post(path, {"stream": "yes"}, 400)["error"]
        assert e["code"] in ("invalid_type", "missing_field"), e
        for raw in ("", "{", "[1]", "3", '"a"', "\xff", "{\"a\":\"\ud800\"}"
                    .encode("utf-8", "surrogatepass"), "[" * 100000):
            status, _, body = d.ask("POST", path, raw if isinstance(
                raw, bytes) else raw.encode("latin-1"))
            assert status == 400, (raw[:20], status)
            assert json.loads(body)["error"]["code"] == "invalid_json"


def a_prompt_too_long_is_400_before_the_stream(d):
    limit = d.post("/tokenize", {"prompt": "a"})["max_model_len"]
    long = [20] * (limit + 1)
    for body in ({"prompt": long}, {"prompt": [[20], long]},
                 {"prompt": [20], "max_tokens": limit}):
        e = bad(d, COMP, body)
        assert e["code"] == "context_length_exceeded", e
        assert str(limit) in e["message"], e
    e = bad(d, CHAT, {"messages": [{"role": "user", "content":
                                    "pear " * limit}]})
    assert e["code"] == "context_length_exceeded", e


def sixteen_tokens_are_fewer_where_fewer_fit(d):
    """What nobody asked for is no reason to refuse."""
    limit = d.post("/tokenize", {"prompt": "a"})["max_model_len"]
    for room in (1, 5):
        o = d.post(COMP, {"prompt": [20] * (limit - room),
                          "ignore_eos": True})
        assert o["usage"]["completion_tokens"] == room, o["usage"]
    bad(d, COMP, {"prompt": [20] * (limit - 5), "max_tokens": 6})


def chat_goes_to_the_end_of_the_context(d):
    limit = d.post("/tokenize", {"prompt": "a"})["max_model_len"]
    n = d.post("/tokenize", {"messages": ASK})["count"]
    o = chat(d, temperature=0, ignore_eos=True)
    assert o["choices"][0]["finish_reason"] == "length"
    assert o["usage"]["completion_tokens"] == limit - n, o["usage"]
    assert o["usage"]["prompt_tokens"] == n


def a_repeated_prompt_is_cached(d):
    text = "The river is long. " * 40
    first = d.post(COMP, {"prompt": text, "cache_salt": "http",
                          "max_tokens": 1})["usage"]
    again = d.post(COMP, {"prompt": text, "cache_salt": "http",
                          "max_tokens": 1})["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    n = again["prompt_tokens_details"]["cached_tokens"]
    assert n > 0 and n % 64 == 0 and n <= again["prompt_tokens"], again
    o = d.post("/flush_cache", {})
    assert o["success"] and o["pages"] >= n // 64
    cold = d.post(COMP, {"prompt": text, "cache_salt": "http",
                         "max_tokens": 1})["usage"]
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0


# --- beside ------------------------------------------------------------------

def models(d):
    status, _, raw = d.ask("GET", "/v1/models")
    o = json.loads(raw)
    assert status == 200 and o["object"] == "list" and len(o["data"]) == 1
    m = o["data"][0]
    assert m["object"] == "model" and m["max_model_len"] > 0
    with d.client() as ring:
        assert m["max_model_len"] == ring.info()["max_context"]
    status, _, raw = d.ask("GET", f"/v1/models/{m['id']}")
    assert status == 200 and json.loads(raw) == m
    status, _, raw = d.ask("GET", "/v1/models/gpt-5")
    assert status == 404
    assert json.loads(raw)["error"]["code"] == "model_not_found"
    assert chat(d, max_tokens=1)["model"] == m["id"]
    for path in ("/model_info", "/get_model_info"):
        o = json.loads(d.ask("GET", path)[2])
        assert o["model_path"] == m["id"] and o["is_generation"] is True, o
    for path in ("/server_info", "/get_server_info", "/version"):
        o = json.loads(d.ask("GET", path)[2])
        assert o["model"] == m["id"] and o["state"] == "ready", o
        assert o["max_model_len"] == m["max_model_len"] and o["version"]


def names_that_others_have(d):
    for path in ("/v1/health", "/health_generate", "/ping"):
        status, _, raw = d.ask("GET", path)
        assert status == 200 and json.loads(raw) == {"status": "ready"}
    ids = d.post("/tokenize", {"prompt": "The river"})
    assert d.post("/v1/tokenize", {"prompt": "The river"}) == ids
    assert d.post("/v1/detokenize", {"tokens": ids["tokens"]})["text"] == \
        "The river"
    assert d.post("/reset_prefix_cache", {})["success"] is True


def tokens_there_and_back(d):
    text = "Ann has 12 pears \U0001f350 <|user|>"
    a = d.post("/tokenize", {"prompt": text})
    assert a == d.post("/tokenize", {"content": text})
    assert a["count"] == len(a["tokens"])
    with d.client() as ring:
        r = ring.generate(text=text, flags=dcp.TOKENIZE)
        assert r.prompt_tokens == a["tokens"]
        r = ring.generate(chat=ASK, flags=dcp.TOKENIZE)
        assert d.post("/tokenize", {"messages": ASK})["tokens"] == \
            r.prompt_tokens
    b = d.post("/detokenize", {"tokens": a["tokens"]})
    assert b == {"prompt": text, "text": text, "content": text}, b
    b = d.post("/detokenize", {"tokens": a["tokens"],
                               "skip_special_tokens": True})
    assert b["text"] == text.replace("<|user|>", "")
    assert d.post("/detokenize", {"tokens": []})["text"] == ""
    assert d.post("/tokenize", {"prompt": ""})["tokens"] == []
    assert d.post("/tokenize", {"prompt": "pear " * 400})["count"] > 400
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 3}),
                       ("/detokenize", {}), ("/detokenize", {"tokens": "a"}),
                       ("/detokenize", {"tokens": [-1]}),
                       ("/detokenize", {"tokens": [10 ** 7]})):
        e = d.post(path, body, 400)["error"]
        assert e["type"] == "invalid_request_error", e


def user_text_stays_text_or_not(d):
    """CASES 32: what `<|user|>` in a prompt becomes is the ring's option; over
    HTTP it is the token, as the model's own tokenizer has it."""
    one = d.post("/tokenize", {"prompt": "<|user|>"})["tokens"]
    assert len(one) == 1


with HttpDaemon("--max-context", 600) as daemon:
    suite.run(
        daemon, a_prompt_is_text_or_ids_one_or_many,
        echo_and_logprobs_as_harnesses_read_them, what_completions_do_not_do,
        a_stream_is_the_whole_in_pieces, usage_only_when_asked,
        reasoning_has_two_names_out_and_in, an_answer_without_its_thinking,
        tools_are_called, a_call_is_forced, integers_beyond_64_bits,
        nul_in_texts_only, answers_follow_a_schema,
        what_other_engines_call_a_schema,
        content_is_text_or_parts, logprobs_of_a_chat,
        the_same_bytes_over_the_ring, n_answers_differ_by_their_seed,
        minus_one_is_none, stop_strings_are_for_the_answer,
        characters_are_never_halved,
        nulls_and_unknown_fields_are_accepted,
        wrong_types_and_ranges_are_named,
        a_prompt_too_long_is_400_before_the_stream,
        sixteen_tokens_are_fewer_where_fewer_fit,
        chat_goes_to_the_end_of_the_context, a_repeated_prompt_is_cached,
        models, names_that_others_have, tokens_there_and_back, user_text_stays_text_or_not)
