#!/usr/bin/env python3
"""Golden prompts for tests/unit/t_chat.c, written by the models' own templates.

    make_chat_golden.py glm45=DIR/chat_template.jinja glm47=... glm52=... \\
        glm53=... deepseek_v32=DIR/encoding/encoding_dsv32.py > golden.json

Templates come from the checkpoints; they are run as transformers runs them
(jinja2 with trim_blocks and lstrip_blocks, tojson as json.dumps). DeepSeek has
no template but an encoder in Python. A conversation that a format refuses has
no golden for it.
"""
import copy
import importlib.util
import json
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city, \"now\"",
        "strict": True,
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Stadt, 城市 \u00e9\n"},
            "days": {"type": "integer", "default": 3},
            "scale": {"type": "number", "minimum": 0.5, "maximum": 1e-07},
            "big": {"enum": [1e16, 123456789.125, -0.0, 1e22, 100.0]}},
            "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {
        "name": "ping", "parameters": {"type": "object", "properties": {}},
        "defer_loading": True}},
]


def call(name, args):
    return {"id": "c1", "type": "function",
            "function": {"name": name, "arguments": args}}


U1 = {"role": "user", "content": "Hi there"}
U2 = {"role": "user", "content": "And  now?\n"}
SYS = {"role": "system", "content": "Be brief. \u2028 <|user|>"}
A1 = {"role": "assistant", "content": "  Hello!\n", "reasoning_content": " a\nthought "}
A2 = {"role": "assistant", "content": "\n<think>\ninner\n</think>\n\nHello!"}
A3 = {"role": "assistant", "content": "x", "reasoning_content": ""}
AC = {"role": "assistant", "content": "", "reasoning_content": "Call it.",
      "tool_calls": [call("get_weather", {
          "city": "Z\u00fcrich \"x\"", "days": 2, "scale": 0.5, "flag": True,
          "none": None, "list": [1, "two", {"k": 3.0}], "obj": {}})]}
AC2 = {"role": "assistant", "content": "Two.", "reasoning_content": "both",
       "tool_calls": [call("ping", {}), call("get_weather", {"city": "Oslo"})]}
T1 = {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 5}"}
T2 = {"role": "tool", "tool_call_id": "c2", "content": "rain\n"}
PARTS = {"role": "user", "content": [
    {"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}

CHATS = {
    "user": [U1],
    "system": [SYS, U1],
    "parts": [PARTS],
    "turns": [SYS, U1, A1, U2],
    "thought_in_content": [U1, A2, U2],
    "thought_after_user": [U1, A2, T1],
    "spaces": [U1, {"role": "assistant", "reasoning_content": "\n\x1c a \u3000",
                    "content": "\x1f\u2003 x \x85\x1c"}, T1],
    "empty_thought": [U1, A3, U2],
    "call": [U1, AC, T1],
    "two_calls": [U1, AC2, T1, T2],
    "call_then_user": [SYS, U1, AC, T1, A1, U2],
    "calls_in_a_row": [U1, AC, T1, AC2, T1, T2],
    "no_thought_after_user": [U1, {"role": "assistant", "content": "c",
                                   "tool_calls": [call("ping", {})]}, T1],
    "developer": [{"role": "developer", "content": "Do it."}],
    "two_users": [U1, U2],
    "nothink_suffix": [{"role": "user", "content": "go /nothink"}],
}
OPTIONS = [
    {}, {"enable_thinking": False}, {"enable_thinking": True},
    {"clear_thinking": False}, {"clear_thinking": True},
    {"reasoning_effort": "high"}, {"reasoning_effort": "low"},
]


def jinja_render(path):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False: json.dumps(
        x, ensure_ascii=ensure_ascii)
    tpl = env.from_string(open(path).read())

    def render(messages, tools, kw):
        return tpl.render(messages=messages, tools=tools,
                          add_generation_prompt=True, **kw)
    return render


def dsv32_render(path):
    spec = importlib.util.spec_from_file_location("enc", path)
    enc = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(enc)

    def render(messages, tools, kw):
        messages = copy.deepcopy(messages)
        for m in messages:
            if isinstance(m["content"], list):
                m["content"] = "".join(p["text"] for p in m["content"])
            for c in m.get("tool_calls", []):
                c["function"]["arguments"] = json.dumps(
                    c["function"]["arguments"])
        if tools:
            if messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": ""})
            messages[0]["tools"] = tools
        mode = "thinking" if kw.get("enable_thinking") else "chat"
        return enc.encode_messages(messages, mode)
    return render


def main():
    cases = []
    for arg in sys.argv[1:]:
        kind, path = arg.split("=", 1)
        render = (dsv32_render if path.endswith(".py") else jinja_render)(path)
        for name, messages in CHATS.items():
            for tools in ([], TOOLS):
                for kw in OPTIONS:
                    if kind == "glm53" and kw.get("enable_thinking") is False:
                        continue  # refused: it cannot be turned off
                    if name == "developer" and kind != "deepseek_v32":
                        continue  # GLM's templates know no such role
                    try:
                        text = render(messages, tools, kw)
                    except (AssertionError, jinja2.TemplateError):
                        continue
                    cases.append({"chat": kind, "name": name,
                                  "tools": bool(tools), "options": kw,
                                  "prompt": text})
    # Prompts repeat: many options change nothing. Each text is kept once.
    texts = sorted({c["prompt"] for c in cases})
    for c in cases:
        c["prompt"] = texts.index(c["prompt"])
    json.dump({"messages": CHATS, "tools": TOOLS, "prompts": texts,
               "cases": cases}, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
