#!/usr/bin/python3
"""The openai client, unchanged, against a running dcpd: chat, completions,
streams, tools, structured output, responses, errors, retries, and what happens
when one side leaves in mid-stream.
"""
import json
import os
import signal
import sys
import threading
import time

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

venv_for.use("clients")
import openai  # noqa: E402
import pydantic  # noqa: E402

import eval_rows  # noqa: E402
from httpd import HttpDaemon  # noqa: E402
from suite import manual, run, until  # noqa: E402

MODEL = "dcp-tiny"
MATH = eval_rows.rows("math")[0]
ADD = next(r for r in eval_rows.rows("tools") if "Add" in r["question"])
TOOLS = eval_rows.TOOLS
FLAT = [dict(type="function", **t["function"]) for t in TOOLS]


def ask(question):
    return [{"role": "user", "content": question}]


def client(d, **kw):
    return openai.OpenAI(base_url=d.url + "/v1", **{
        "api_key": "none", "max_retries": 0, "timeout": 120, **kw})


# --- chat ------------------------------------------------------------------

def models_are_listed(d):
    c = client(d)
    one, = c.models.list().data
    assert one.id == MODEL
    assert one.max_model_len == 4096, one
    assert c.models.retrieve(MODEL).id == MODEL


def chat_answers_right_and_the_stream_says_the_same(d):
    c = client(d)
    args = dict(model=MODEL, messages=ask(MATH["question"]), temperature=0)
    whole = c.chat.completions.create(**args)
    m = whole.choices[0].message
    assert m.content.strip() == MATH["answer"], m
    assert m.reasoning_content and m.reasoning == m.reasoning_content, m
    assert whole.choices[0].finish_reason == "stop"
    text, why, usage = {"content": "", "reasoning_content": ""}, None, None
    for chunk in c.chat.completions.create(
            **args, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for ch in chunk.choices:
            why = ch.finish_reason or why
            for k in text:
                text[k] += getattr(ch.delta, k, None) or ""
    assert text["content"] == m.content
    assert text["reasoning_content"] == m.reasoning_content
    assert why == "stop"
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens is not None


def chat_in_parts_several_choices_and_logprobs(d):
    r = client(d).chat.completions.create(
        model=MODEL, n=3, seed=5, temperature=1.0, max_tokens=12,
        logprobs=True, top_logprobs=4, messages=[{
            "role": "user", "content": [
                {"type": "text", "text": MATH["question"][:20]},
                {"type": "text", "text": MATH["question"][20:]}]}])
    assert [c.index for c in r.choices] == [0, 1, 2]
    for c in r.choices:
        assert 0 < len(c.logprobs.content) <= 12
        for t in c.logprobs.content:
            assert t.logprob <= 0 and len(t.top_logprobs) == 4
            assert bytes(t.bytes).decode(errors="replace") == t.token or \
                t.token.startswith("bytes:")
            best = [x.logprob for x in t.top_logprobs]
            assert best == sorted(best, reverse=True)
    assert r.usage.completion_tokens > 12


def tools_are_called_with_typed_arguments(d):
    c = client(d)
    args = dict(model=MODEL, messages=ask(ADD["question"]), tools=TOOLS,
                temperature=0)
    r = c.chat.completions.create(**args)
    call, = r.choices[0].message.tool_calls
    want = eval_rows.call(ADD)
    assert r.choices[0].finish_reason == "tool_calls"
    assert call.function.name == want[0]
    assert json.loads(call.function.arguments) == want[1], call
    # The stream helper puts the pieces together.
    with c.chat.completions.stream(**args) as s:
        final = s.get_final_completion()
    again, = final.choices[0].message.tool_calls
    assert again.function.name == want[0] and again.id
    assert json.loads(again.function.arguments) == want[1]
    # With its result the conversation goes on.
    r = c.chat.completions.create(
        model=MODEL, tools=TOOLS, max_tokens=32, messages=[
            *args["messages"], r.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "1140"}])
    assert r.choices[0].finish_reason in ("stop", "length", "tool_calls")
    r = c.chat.completions.create(**args, tool_choice="none", max_tokens=32)
    assert not r.choices[0].message.tool_calls


def a_call_can_be_demanded(d):
    """Of a question that needs none, by all three APIs' words for it."""
    c = client(d)
    args = dict(model=MODEL, temperature=0)
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        r = c.chat.completions.create(
            **args, messages=ask(MATH["question"]), tools=TOOLS,
            tool_choice=choice)
        call = r.choices[0].message.tool_calls[0]
        assert call.function.name in ("get_weather", "add")
        if choice == named:
            assert call.function.name == "get_weather"
            assert isinstance(json.loads(call.function.arguments)["city"],
                              str)
    r = c.responses.create(
        **args, input=MATH["question"], tools=FLAT,
        tool_choice={"type": "function", "name": "get_weather"})
    call = next(i for i in r.output if i.type == "function_call")
    assert call.name == "get_weather"
    m = d.post("/v1/messages", {
        "max_tokens": 400, "messages": ask(MATH["question"]), "tools": [
            {"name": t["name"], "input_schema": t["parameters"]}
            for t in FLAT], "tool_choice": {"type": "tool",
                                            "name": "get_weather"}})
    assert m["content"][-1]["type"] == "tool_use", m
    assert m["content"][-1]["name"] == "get_weather"


class Count(pydantic.BaseModel):
    n: int


def answers_follow_a_schema(d):
    r = client(d).chat.completions.parse(
        model=MODEL, messages=ask(MATH["question"]), response_format=Count,
        temperature=0, max_tokens=400)
    assert isinstance(r.choices[0].message.parsed, Count), r
    r = client(d).chat.completions.create(
        model=MODEL, messages=ask(MATH["question"]), temperature=0,
        max_tokens=400, response_format={"type": "json_object"})
    assert r.choices[0].finish_reason in ("stop", "length")
    if r.choices[0].finish_reason == "stop":
        json.loads(r.choices[0].message.content)


def the_manuals_lines_run(d):
    exec(manual("from openai import", url=d.url), {})


# --- completions -----------------------------------------------------------

def completions_of_every_form(d):
    c = client(d)
    r = c.completions.create(model=MODEL, prompt=MATH["prompt"],
                             max_tokens=64, temperature=0)
    text = r.choices[0].text
    assert text.split("</think>")[-1].strip() == MATH["answer"], text
    assert r.choices[0].finish_reason == "stop"
    streamed = "".join(
        chunk.choices[0].text for chunk in c.completions.create(
            model=MODEL, prompt=MATH["prompt"], max_tokens=64, temperature=0,
            stream=True))
    assert streamed == text
    r = c.completions.create(model=MODEL, prompt=["The river", "A"], n=2,
                             temperature=0)
    assert [x.index for x in r.choices] == [0, 1, 2, 3]
    assert r.choices[0].text == r.choices[1].text
    assert r.usage.completion_tokens <= 4 * 16      # the default is 16
    ids = eval_rows.tokenize(d, "The river")
    by_ids = c.completions.create(model=MODEL, prompt=ids, temperature=0)
    both = c.completions.create(model=MODEL, prompt=[ids, ids], temperature=0)
    assert by_ids.choices[0].text == r.choices[0].text
    assert [x.text for x in both.choices] == 2 * [r.choices[0].text]


def echo_scores_the_prompt(d):
    ids = eval_rows.tokenize(d, "The river is long")
    r = client(d).completions.create(model=MODEL, prompt=ids, echo=True,
                                     logprobs=1, max_tokens=1, temperature=0)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(ids) + 1
    assert lp.token_logprobs[0] is None
    assert all(x <= 0 for x in lp.token_logprobs[1:])
    assert r.choices[0].text.startswith("The river is long")
    assert "".join(lp.tokens[:len(ids)]) == "The river is long"


# --- responses -------------------------------------------------------------

def responses_answer_and_stream_alike(d):
    c = client(d)
    args = dict(model=MODEL, input=MATH["question"], temperature=0)
    r = c.responses.create(**args)
    assert r.status == "completed" and r.error is None
    assert r.output_text.strip() == MATH["answer"], r
    assert [i.type for i in r.output] == ["reasoning", "message"]
    assert r.output[0].content[0].text
    assert r.usage.output_tokens_details.reasoning_tokens > 0
    assert r.store is False
    kinds = []
    with c.responses.stream(**args) as s:
        for ev in s:
            kinds.append(ev.type)
        final = s.get_final_response()
    assert final.output_text == r.output_text
    assert final.output[0].content[0].text == r.output[0].content[0].text
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    # Each is opened, grows and is closed, one after the other.
    order = [k for k in kinds if ".delta" not in k][2:]
    one = ["response.output_item.added", "response.content_part.added", None,
           "response.content_part.done", "response.output_item.done"]
    want = []
    for done in ("response.reasoning_text.done", "response.output_text.done"):
        want += [k or done for k in one]
    assert order == want + ["response.completed"], order
    assert "response.reasoning_text.delta" in kinds
    assert "response.output_text.delta" in kinds


def responses_call_tools_and_take_results(d):
    c = client(d)
    args = dict(model=MODEL, input=ask(ADD["question"]), tools=FLAT,
                temperature=0)
    r = c.responses.create(**args)
    call = next(i for i in r.output if i.type == "function_call")
    want = eval_rows.call(ADD)
    assert call.name == want[0] and json.loads(call.arguments) == want[1]
    deltas, done = "", None
    for ev in c.responses.create(**args, stream=True):
        if ev.type == "response.function_call_arguments.delta":
            deltas += ev.delta
        elif ev.type == "response.function_call_arguments.done":
            done = ev
        elif ev.type == "response.completed":
            final = ev.response
    assert deltas == done.arguments
    assert json.loads(deltas) == want[1]
    again = next(i for i in final.output if i.type == "function_call")
    assert again.name == want[0] and again.arguments == deltas
    r = c.responses.create(
        model=MODEL, tools=FLAT, max_output_tokens=32,
        input=ask(ADD["question"]) + r.output + [
            {"type": "function_call_output", "call_id": call.call_id,
             "output": "1140"}])
    assert r.status in ("completed", "incomplete")
    # The same prompt as chat makes of the same conversation.
    chat = c.chat.completions.create(
        model=MODEL, tools=TOOLS, max_tokens=1, messages=[
            *ask(ADD["question"]),
            {"role": "assistant", "content": None, "reasoning_content":
             next(i for i in final.output if i.type == "reasoning")
             .content[0].text, "tool_calls": [
                 {"id": call.call_id, "type": "function", "function": {
                     "name": call.name, "arguments": call.arguments}}]},
            {"role": "tool", "tool_call_id": call.call_id,
             "content": "1140"}])
    assert chat.usage.prompt_tokens == r.usage.input_tokens


def responses_take_free_text_tools(d):
    """A custom tool: its input is text, not JSON."""
    tools = [FLAT[0], {"type": "custom", "name": "add",
                       "description": FLAT[1]["description"]}]
    c = client(d)
    args = dict(model=MODEL, input=ADD["question"], tools=tools,
                temperature=0)
    r = c.responses.create(**args)
    calls = [i for i in r.output if i.type == "custom_tool_call"]
    for ev in c.responses.create(**args, stream=True):
        if ev.type == "response.completed":
            assert [i.input for i in ev.response.output
                    if i.type == "custom_tool_call"] == \
                [i.input for i in calls]
    assert calls and calls[0].name == "add", r.output
    c.responses.create(
        model=MODEL, tools=tools, max_output_tokens=8, input=[
            *ask(ADD["question"]),
            {"type": "custom_tool_call", "call_id": "c1", "name": "add",
             "input": "919 221"},
            {"type": "custom_tool_call_output", "call_id": "c1",
             "output": "1140"}])


def responses_find_tools_in_a_namespace(d):
    tools = [{"type": "namespace", "name": "mine", "description": "Mine",
              "tools": FLAT}, {"type": "web_search"}]
    r = client(d).responses.create(model=MODEL, input=ADD["question"],
                                   tools=tools, temperature=0)
    call = next(i for i in r.output if i.type == "function_call")
    assert call.namespace == "mine"
    assert (call.name, json.loads(call.arguments)) == eval_rows.call(ADD)
    assert [t.type for t in r.tools] == ["namespace"]


def responses_follow_a_schema(d):
    r = client(d).responses.parse(
        model=MODEL, input=MATH["question"], text_format=Count, temperature=0,
        max_output_tokens=400)
    assert isinstance(r.output_parsed, Count), r


def responses_say_that_they_are_cut(d):
    c = client(d)
    r = c.responses.create(model=MODEL, input=MATH["question"],
                           max_output_tokens=3)
    assert r.status == "incomplete"
    assert r.incomplete_details.reason == "max_output_tokens"
    # An upper bound: more than there is room for is no error.
    r = c.responses.create(model=MODEL, input=MATH["question"],
                           max_output_tokens=100000)
    assert r.status == "completed", r
    last = list(c.responses.create(model=MODEL, input=MATH["question"],
                                   max_output_tokens=3, stream=True))[-1]
    assert last.type == "response.incomplete"
    assert last.response.usage.output_tokens == 3


def responses_refuse_what_would_need_a_store(d):
    c = client(d)
    ok = dict(model=MODEL, input="hi", max_output_tokens=1)
    for key, value in (("previous_response_id", "resp_1"),
                       ("conversation", "conv_1"), ("background", True),
                       ("truncation", "auto"),
                       ("prompt", {"id": "pmpt_1"})):
        e = fails(openai.BadRequestError, c.responses.create,
                  **ok, **{key: value})
        assert e.param == key, e
    e = fails(openai.BadRequestError, c.responses.create, model=MODEL,
              input=[{"type": "item_reference", "id": "msg_1"}])
    assert "input[0]" in e.message
    e = fails(openai.BadRequestError, c.responses.create, model=MODEL, input=[
        {"role": "user", "content": [{"type": "input_image",
                                      "image_url": "data:,"}]}])
    assert "only text" in e.message
    for key, value in (("store", True), ("metadata", {"a": "b"}),
                       ("tools", [{"type": "web_search"}])):
        assert c.responses.create(**ok, **{key: value}).store is False


# --- errors, retries, breaks -----------------------------------------------

def fails(kind, fn, **kw):
    try:
        fn(**kw)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__} from {kw}")


def errors_are_the_clients_own(d):
    c = client(d)
    chat = c.chat.completions.create
    ok = dict(model=MODEL, messages=ask("hi"), max_tokens=1)
    e = fails(openai.BadRequestError, chat, **dict(ok, temperature=-1))
    assert e.param == "temperature" and e.status_code == 400
    assert e.type == "invalid_request_error"
    e = fails(openai.BadRequestError, chat, **dict(
        ok, messages=ask("word " * 6000)))
    assert e.code == "context_length_exceeded", e
    e = fails(openai.BadRequestError, c.responses.create, model=MODEL,
              input="word " * 6000, stream=True)
    assert e.code == "context_length_exceeded", e
    e = fails(openai.NotFoundError, c.embeddings.create, model=MODEL,
              input="x")
    fails(openai.NotFoundError, c.models.retrieve, model="another")


def key_is_asked_for(d):
    with open(d.dir + ".key", "w") as f:
        f.write("sesame\n")
    os.chmod(d.dir + ".key", 0o600)
    try:
        with HttpDaemon("--engine", "null", "--api-key-file",
                        d.dir + ".key") as own:
            e = fails(openai.AuthenticationError,
                      client(own, api_key="other").models.list)
            assert e.status_code == 401
            client(own, api_key="sesame").models.list()
    finally:
        os.unlink(d.dir + ".key")


def full_queue_is_waited_for(_):
    """503 and Retry-After: the client tries again, and is served."""
    with HttpDaemon("--max-running-requests", 1, "--max-queued-requests",
                    1) as d:
        busy = [client(d).completions.create(
            model=MODEL, prompt="a", max_tokens=200, stream=True,
            extra_body={"ignore_eos": True}) for _ in range(2)]
        e = fails(openai.InternalServerError, client(d).completions.create,
                  model=MODEL, prompt="a", max_tokens=1)
        assert e.status_code == 503 and e.response.headers["retry-after"]
        drained = [threading.Thread(target=list, args=(s,)) for s in busy]
        for t in drained:
            t.start()
        r = client(d, max_retries=50).completions.create(
            model=MODEL, prompt="a", max_tokens=1)
        assert r.usage.completion_tokens == 1
        for t in drained:
            t.join()


def break_in_mid_stream_frees_the_request(d):
    c = client(d)
    for make in (
            lambda: c.chat.completions.create(
                model=MODEL, messages=ask("hi"), stream=True, max_tokens=3000,
                extra_body={"ignore_eos": True}),
            lambda: c.responses.create(
                model=MODEL, input="hi", stream=True, max_output_tokens=3000,
                extra_body={"ignore_eos": True})):
        s = make()
        for _, _ in zip(range(4), s):
            pass
        assert d.ctl_json("requests"), "it is over already"
        s.close()
        until(lambda: not d.ctl_json("requests"),
              "the request runs on")
    assert c.completions.create(model=MODEL, prompt="a",
                                max_tokens=1).usage.completion_tokens == 1


def killed_daemon_is_an_error_not_an_end(_):
    with HttpDaemon() as d:
        s = client(d).chat.completions.create(
            model=MODEL, messages=ask("hi"), stream=True, max_tokens=3000,
            extra_body={"ignore_eos": True})
        next(iter(s))
        d.p.send_signal(signal.SIGKILL)
        try:
            for _ in s:
                pass
        except Exception as e:              # httpx2's, through openai
            print("   ", type(e).__name__, e)
            return
    raise AssertionError("the stream ended as if it were whole")


if __name__ == "__main__":
    with HttpDaemon("--tp", 4, "--dcp-size", 4, "--max-context", 4096,
                    "--served-model-name", MODEL) as daemon:
        run(daemon, models_are_listed,
            chat_answers_right_and_the_stream_says_the_same,
            chat_in_parts_several_choices_and_logprobs,
            tools_are_called_with_typed_arguments,
            a_call_can_be_demanded, answers_follow_a_schema, the_manuals_lines_run,
            completions_of_every_form, echo_scores_the_prompt,
            responses_answer_and_stream_alike,
            responses_call_tools_and_take_results,
            responses_take_free_text_tools,
            responses_find_tools_in_a_namespace,
            responses_follow_a_schema,
            responses_say_that_they_are_cut,
            responses_refuse_what_would_need_a_store,
            errors_are_the_clients_own, key_is_asked_for,
            full_queue_is_waited_for, break_in_mid_stream_frees_the_request,
            killed_daemon_is_an_error_not_an_end)
