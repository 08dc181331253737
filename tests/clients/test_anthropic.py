#!/usr/bin/python3
"""The anthropic client, unchanged, on /v1/messages of a running dcpd."""
import json
import os
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

venv_for.use("clients")
import anthropic  # noqa: E402

import eval_rows  # noqa: E402
from httpd import HttpDaemon  # noqa: E402
from suite import manual, run, until  # noqa: E402

MODEL = "dcp-tiny"
MATH = eval_rows.rows("math")[0]
ADD = next(r for r in eval_rows.rows("tools") if "Add" in r["question"])
TOOLS = [{"name": f["name"], "description": f["description"],
          "input_schema": f["parameters"]}
         for f in (t["function"] for t in eval_rows.TOOLS)]
THINK = {"type": "enabled", "budget_tokens": 1024}


def ask(question):
    return [{"role": "user", "content": question}]


def client(d, **kw):
    return anthropic.Anthropic(base_url=d.url, **{
        "api_key": "none", "max_retries": 0, "timeout": 120, **kw})


def fails(kind, fn, **kw):
    try:
        fn(**kw)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__} from {kw}")


def thinking_and_text_whole_and_streamed(d):
    c = client(d)
    args = dict(model=MODEL, max_tokens=2048, thinking=THINK,
                messages=ask(MATH["question"]), extra_body={"temperature": 0})
    m = c.messages.create(**args)
    assert [b.type for b in m.content] == ["thinking", "text"], m
    assert m.content[1].text.strip() == MATH["answer"]
    assert m.stop_reason == "end_turn" and m.stop_sequence is None
    assert m.usage.output_tokens > 3
    kinds = []
    with c.messages.stream(**args) as s:
        for ev in s:
            kinds.append(ev.type)
        final = s.get_final_message()
    assert [b.model_dump(exclude_none=True) for b in final.content] == \
        [b.model_dump(exclude_none=True) for b in m.content]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == m.usage.output_tokens
    raw = [json.loads(data)["type"] for _, data in d.stream(
        "/v1/messages", {k: v for k, v in args.items() if k != "extra_body"})]
    assert raw[0] == "message_start" and raw[-2:] == ["message_delta",
                                                      "message_stop"], raw
    assert [k for k in raw if k != "content_block_delta"][1:-2] == \
        2 * ["content_block_start", "content_block_stop"]


def the_manuals_lines_run(d):
    exec(manual("from anthropic import", url=d.url), {})


def without_thinking_the_answer_begins_with_text(d):
    m = client(d).messages.create(
        model=MODEL, max_tokens=64, messages=ask(MATH["question"]),
        system=[{"type": "text", "text": "Be brief."}])
    assert [b.type for b in m.content] == ["text"], m
    m = client(d).messages.create(
        model=MODEL, max_tokens=64, messages=ask(MATH["question"]),
        thinking={"type": "disabled"})
    assert [b.type for b in m.content] == ["text"], m


def tools_are_called_and_results_taken(d):
    c = client(d)
    args = dict(model=MODEL, max_tokens=2048, tools=TOOLS, thinking=THINK,
                messages=ask(ADD["question"]), extra_body={"temperature": 0})
    m = c.messages.create(**args)
    use = m.content[-1]
    assert m.stop_reason == "tool_use" and use.type == "tool_use"
    assert (use.name, use.input) == eval_rows.call(ADD)
    assert use.id.startswith("toolu_")
    with c.messages.stream(**args) as s:
        final = s.get_final_message()
    assert (final.content[-1].name, final.content[-1].input) == \
        eval_rows.call(ADD)
    assert final.stop_reason == "tool_use"
    rest = dict(model=MODEL, tools=TOOLS, thinking=THINK, messages=[
        *args["messages"], {"role": "assistant", "content": m.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id,
             "content": [{"type": "text", "text": "1140"}]},
            {"type": "text", "text": "And now?"}]}])
    after = c.messages.create(**rest, max_tokens=16)
    assert after.stop_reason in ("end_turn", "max_tokens", "tool_use")
    # Chat makes the same prompt of the same conversation.
    chat = d.post("/v1/chat/completions", {
        "max_tokens": 1, "tools": eval_rows.TOOLS, "messages": [
            *ask(ADD["question"]),
            {"role": "assistant", "content": "", "reasoning_content":
             m.content[0].thinking, "tool_calls": [
                 {"id": use.id, "type": "function", "function": {
                     "name": use.name, "arguments": json.dumps(use.input)}}]},
            {"role": "tool", "tool_call_id": use.id, "content": "1140"},
            {"role": "user", "content": "And now?"}]})
    n = c.messages.count_tokens(**rest).input_tokens
    assert n == chat["usage"]["prompt_tokens"]
    assert n == after.usage.input_tokens + after.usage.cache_read_input_tokens
    m = c.messages.create(**dict(args, max_tokens=64,
                                 tool_choice={"type": "none"}))
    assert all(b.type != "tool_use" for b in m.content)


def why_it_stopped(d):
    c = client(d)
    args = dict(model=MODEL, messages=ask(MATH["question"]))
    m = c.messages.create(**args, max_tokens=2, thinking=THINK)
    assert m.stop_reason == "max_tokens"
    # Agents ask for more than any context has.
    m = c.messages.create(**args, max_tokens=32000)
    assert m.stop_reason == "end_turn"
    with HttpDaemon("--max-context", 64) as small:
        m = client(small).messages.create(
            **args, max_tokens=32000, extra_body={"ignore_eos": True})
        assert m.stop_reason == "model_context_window_exceeded", m
    # Ends with what the answer itself has, the second of two strings.
    text = c.messages.create(**args, max_tokens=64, extra_body={
        "temperature": 0}).content[0].text
    stop = text[1:3]
    for how in ("create", "stream"):
        more = dict(max_tokens=64, stop_sequences=["no such text", stop],
                    extra_body={"temperature": 0})
        if how == "create":
            m = c.messages.create(**args, **more)
        else:
            with c.messages.stream(**args, **more) as s:
                m = s.get_final_message()
        assert m.stop_reason == "stop_sequence", m
        assert m.stop_sequence == stop
        assert "".join(b.text for b in m.content) == text.split(stop)[0]


def thinking_of_earlier_turns_is_kept_when_asked(d):
    """So the prefix of a long conversation stays as it was."""
    c = client(d)
    args = dict(model=MODEL, thinking=THINK, messages=[
        *ask("hi"), {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "One two three four five six.",
             "signature": ""}, {"type": "text", "text": "Hello"}]},
        *ask("again")])
    cleared = c.messages.count_tokens(**args).input_tokens
    kept = c.messages.count_tokens(**args, extra_body={
        "context_management": {"edits": [
            {"type": "clear_thinking_20251015", "keep": "all"}]}}).input_tokens
    assert kept >= cleared + 6, (kept, cleared)


def cache_is_counted_apart(d):
    c = client(d)
    args = dict(model=MODEL, max_tokens=1, messages=ask(
        " ".join(r["question"] for r in eval_rows.rows("math")[:12])))
    first = c.messages.create(**args).usage
    again = c.messages.create(**args).usage
    whole = first.input_tokens + first.cache_read_input_tokens
    assert again.cache_read_input_tokens >= 64
    assert again.input_tokens + again.cache_read_input_tokens == whole
    assert c.messages.count_tokens(
        model=MODEL, messages=args["messages"]).input_tokens == whole


def structured_output(d):
    m = client(d).messages.create(
        model=MODEL, max_tokens=400, messages=ask(MATH["question"]),
        output_config={"format": {"type": "json_schema", "schema": {
            "type": "object", "properties": {"n": {"type": "integer"}},
            "required": ["n"], "additionalProperties": False}}})
    if m.stop_reason == "end_turn":
        assert isinstance(json.loads(m.content[-1].text)["n"], int)


def errors_have_the_apis_form(d):
    c = client(d)
    ok = dict(model=MODEL, max_tokens=1, messages=ask("hi"))
    bad = [
        (dict(ok, messages=[]), "messages"),
        (dict(ok, messages=[{"role": "bot", "content": "hi"}]), "role"),
        (dict(ok, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "x"}}]}]),
         "only text"),
        (dict(ok, messages=[*ask("hi"), {"role": "assistant",
                                         "content": "Well,"}]), "last"),
        (dict(ok, tools=[{"type": "web_search_20250305",
                          "name": "web_search"}]), "web_search"),
        (dict(ok, tool_choice={"type": "tool"}), "tool_choice"),
        (dict(ok, thinking={"type": "deeply"}), "thinking"),
        (dict(ok, max_tokens=0), "max_tokens"),
        (dict(ok, messages=ask("word " * 6000)), "context"),
    ]
    for args, word in bad:
        e = fails(anthropic.BadRequestError, c.messages.create, **args)
        assert e.body["type"] == "error", e.body
        assert e.body["error"]["type"] == "invalid_request_error", e.body
        assert word in e.body["error"]["message"], e.body
    del ok["max_tokens"]
    o = d.post("/v1/messages", ok, status=400)
    assert "max_tokens" in o["error"]["message"]


def key_goes_as_x_api_key(d):
    path = d.dir + ".key"
    with open(path, "w") as f:
        f.write("sesame\n")
    os.chmod(path, 0o600)
    try:
        with HttpDaemon("--api-key-file", path) as own:
            ok = dict(model=MODEL, max_tokens=1, messages=ask("hi"))
            e = fails(anthropic.AuthenticationError,
                      client(own).messages.create, **ok)
            assert e.body["error"]["type"] == "authentication_error"
            client(own, api_key="sesame").messages.create(**ok)
    finally:
        os.unlink(path)


def break_in_mid_stream_frees_the_request(d):
    s = client(d).messages.create(
        model=MODEL, max_tokens=3000, messages=ask("hi"), stream=True,
        extra_body={"ignore_eos": True})
    for _, _ in zip(range(4), s):
        pass
    s.close()
    until(lambda: not d.ctl_json("requests"),
          "the request runs on")


if __name__ == "__main__":
    with HttpDaemon("--tp", 4, "--dcp-size", 4, "--max-context", 4096,
                    "--served-model-name", MODEL) as daemon:
        run(daemon, thinking_and_text_whole_and_streamed,
            the_manuals_lines_run,
            without_thinking_the_answer_begins_with_text,
            tools_are_called_and_results_taken, why_it_stopped,
            thinking_of_earlier_turns_is_kept_when_asked,
            cache_is_counted_apart, structured_output,
            errors_have_the_apis_form, key_goes_as_x_api_key,
            break_in_mid_stream_frees_the_request)
