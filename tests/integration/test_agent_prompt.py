#!/usr/bin/python3
"""What a coding agent sends, in its size: tens of kilobytes of instructions and
two dozen tools before the first word, over /v1/messages, /v1/responses and
/v1/chat/completions. The whole of it is taken, the next turn finds it in the
prefix cache, and the answers stream as the API has them. The engine is the null
one: what is looked at is all that stands around it.
"""
import json
import os
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import suite  # noqa: E402
from httpd import HttpDaemon  # noqa: E402

PARAGRAPH = (
    "You are a coding agent in a terminal. Read before you write; say what you "
    "are about to do in one line; run the tests that a change touches, and "
    "quote what they print. Paths are absolute: /src/app/main.c, not "
    "main.c. <example>`grep -rn \"TODO\" src | head -n {n}`</example> Never "
    "guess an URL. \u2014 Rule {n} of {m}: \u201ckeep it small\u201d.\n")
INSTRUCTIONS = "".join(PARAGRAPH.format(n=i, m=120) for i in range(120))
ENVIRONMENT = "<env>\nPlatform: linux\nDate: 2026-01-{:02}\n</env>"


def schema(i):
    return {"$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object", "additionalProperties": False, "properties": {
                "path": {"type": "string", "description": PARAGRAPH.format(
                    n=i, m=24)},
                "lines": {"type": "array", "items": {
                    "type": "integer", "exclusiveMinimum": 0}},
                "mode": {"enum": ["read", "write", "append"],
                         "default": "read"},
                "edits": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "properties": {
                        "old": {"type": "string"}, "new": {"type": "string"},
                        "all": {"type": "boolean", "default": False}},
                    "required": ["old", "new"]}}},
            "required": ["path"]}


def tools():
    for i in range(24):
        yield f"tool_{i}", 3 * PARAGRAPH.format(n=i, m=24), schema(i)


TASK = "Find where the port is parsed, and refuse 0."
RESULT = "src/settings.c:184: port = strtol(text, &end, 10);\n" * 40
CALL = {"path": "/src/settings.c", "mode": "read"}


def messages(turn):
    said = [{"role": "user", "content": [
        {"type": "text", "text": ENVIRONMENT.format(1)},
        {"type": "text", "text": TASK, "cache_control": {
            "type": "ephemeral"}}]}]
    if turn == 2:
        said += [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look.", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "tool_3",
                 "input": CALL}]},
            {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": "toolu_1",
                "content": RESULT}]}]
    return "/v1/messages?beta=true", {
        "model": "any", "max_tokens": 64, "messages": said,
        "system": [{"type": "text", "text": "You are an agent."},
                   {"type": "text", "text": INSTRUCTIONS,
                    "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": n, "description": d, "input_schema": s}
                  for n, d, s in tools()],
        "metadata": {"user_id": "user_1"}, "thinking": {
            "type": "enabled", "budget_tokens": 1024}}


def responses(turn):
    said = [{"type": "message", "role": "developer", "content": [
        {"type": "input_text", "text": ENVIRONMENT.format(2)}]},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": TASK}]}]
    if turn == 2:
        said += [
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                {"type": "reasoning_text", "text": "Look."}]},
            {"type": "function_call", "call_id": "call_1", "name": "tool_3",
             "arguments": json.dumps(CALL)},
            {"type": "function_call_output", "call_id": "call_1",
             "output": RESULT}]
    return "/v1/responses", {
        "model": "any", "instructions": INSTRUCTIONS, "input": said,
        "tools": [{"type": "function", "name": n, "description": d,
                   "strict": False, "parameters": s} for n, d, s in tools()],
        "tool_choice": "auto", "parallel_tool_calls": False, "store": False,
        "reasoning": {"effort": "high"}, "max_output_tokens": 64,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "1"}


def chat(turn):
    said = [{"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": ENVIRONMENT.format(3) + TASK}]
    if turn == 2:
        said += [
            {"role": "assistant", "content": None, "reasoning_content":
             "Look.", "tool_calls": [{
                 "id": "call_1", "type": "function", "function": {
                     "name": "tool_3", "arguments": json.dumps(CALL)}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": RESULT}]
    return "/v1/chat/completions", {
        "model": "any", "messages": said, "max_tokens": 64, "tools": [
            {"type": "function", "function": {
                "name": n, "description": d, "parameters": s}}
            for n, d, s in tools()],
        "stream_options": {"include_usage": True}}


def counts(api, said):
    """(prompt tokens, of these cached, answer's tokens) of a whole stream."""
    parsed = [json.loads(t) for _, t in said if t != "[DONE]"]
    if api is messages:
        assert [n for n, _ in said][-2:] == ["message_delta", "message_stop"]
        u = parsed[-2]["usage"]
        return (u["input_tokens"] + u["cache_read_input_tokens"],
                u["cache_read_input_tokens"], u["output_tokens"])
    if api is responses:
        assert parsed[-1]["type"] in ("response.completed",
                                      "response.incomplete"), parsed[-1]
        assert [p["sequence_number"] for p in parsed] == list(
            range(len(parsed)))
        u = parsed[-1]["response"]["usage"]
        return (u["input_tokens"], u["input_tokens_details"]
                ["cached_tokens"], u["output_tokens"])
    assert said[-1] == (None, "[DONE]") and parsed[-1]["choices"] == []
    u = parsed[-1]["usage"]
    return (u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"],
            u["completion_tokens"])


def an_agents_turns(d):
    for api in (messages, responses, chat):
        d.post("/flush_cache", {})   # of the API before: it is much the same
        seen = []
        for turn in (1, 2):
            path, body = api(turn)
            assert len(json.dumps(body)) > 75000
            seen.append(counts(api, d.stream(path, body)))
        (first, cold, n), (second, cached, m) = seen
        assert 1 <= n <= 64 and 1 <= m <= 64, seen
        assert first > 10000 and second > first + 100, seen
        assert cold == 0, seen
        assert first - 128 <= cached <= second, seen
        print(f"{path}: {first} and {second} tokens, {cached} cached")


with HttpDaemon("--model", os.path.join(SRC, "models", "dcp-tiny"),
                "--engine", "null", "--max-context", 131072,
                "--null-pages", 8192) as daemon:
    suite.run(daemon, an_agents_turns)
