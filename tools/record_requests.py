#!/usr/bin/python3
"""Record what the clients of the HTTP API really send: tests/data/http/*.json.

    PYTHON tools/record_requests.py CLIENT [SOURCE] > tests/data/http/CLIENT.json

runs the named client, which must be installed for that PYTHON, against a small
server of this program that writes down each request and answers it with
something that the client accepts. CLIENT is one of openai, anthropic, lm_eval,
guidellm, sglang, vllm, curl. SOURCE, for sglang and vllm: the folder that their
wheel was unpacked to, when they are not installed; their request functions run
from there, without the engine.

A request is kept as it came, body and headers to the byte; only the port, the
key and what names this machine are replaced.
"""
import asyncio
import http.server
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import types

MODEL, KEY = "dcp-tiny", "KEY"
QUESTION = "Hugo buys 10 bags with 2 cups in each bag. How many cups is that?"
TOOL_SCHEMA = {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"]}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
recorded = []


def sse(*events, named=False):
    return "".join((f"event: {e['type']}\n" if named else "") +
                   f"data: {json.dumps(e)}\n\n" for e in events)


def usage_chunk(body, head):
    """Only when it is asked for: bench_serving fails on it otherwise."""
    wanted = (body.get("stream_options") or {}).get("include_usage")
    return [dict(head, choices=[], usage=USAGE)] if wanted else []


def chat(body):
    head = {"id": "c", "created": 1, "model": MODEL}
    if not body.get("stream"):
        return dict(head, object="chat.completion", usage=USAGE, choices=[
            {"index": 0, "finish_reason": "stop", "message": {
                "role": "assistant", "content": "{\"n\": 20}"}}])
    head["object"] = "chat.completion.chunk"
    return sse(*[dict(head, choices=[
        {"index": 0, "delta": d, "finish_reason": f}])
        for d, f in (({"role": "assistant", "content": "2"}, None),
                     ({"content": "0"}, "stop"))],
        *usage_chunk(body, head)) + "data: [DONE]\n\n"


def completion(body):
    head = {"id": "c", "created": 1, "model": MODEL,
            "object": "text_completion"}
    prompts = body["prompt"]
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        prompts = [prompts]
    logprobs = None
    if body.get("logprobs") is not None:
        n = 40
        logprobs = {"tokens": ["a"] * n, "token_logprobs": [None] + [-1.0] *
                    (n - 1), "top_logprobs": [None] + [{"a": -1.0}] * (n - 1),
                    "text_offset": list(range(n))}
    choices = [{"index": i, "text": "20", "finish_reason": "stop",
                "logprobs": logprobs} for i in range(len(prompts))]
    if not body.get("stream"):
        return dict(head, choices=choices, usage=USAGE)
    return sse(dict(head, choices=choices),
               *usage_chunk(body, head)) + "data: [DONE]\n\n"


def response(body):
    text = {"type": "output_text", "text": "20", "annotations": []}
    r = {"id": "resp_1", "object": "response", "created_at": 1,
         "status": "completed", "model": MODEL, "output": [
             {"type": "message", "id": "m", "role": "assistant",
              "status": "completed", "content": [text]}],
         "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
         "error": None, "incomplete_details": None, "instructions": None}
    if not body.get("stream"):
        return r
    at = {"item_id": "m", "output_index": 0, "content_index": 0}
    events = [
        dict(type="response.created", response=dict(r, output=[])),
        dict(type="response.output_item.added", output_index=0,
             item=dict(r["output"][0], content=[])),
        dict(type="response.content_part.added",
             part=dict(text, text=""), **at),
        dict(type="response.output_text.delta", delta="20", logprobs=[], **at),
        dict(type="response.output_text.done", text="20", logprobs=[], **at),
        dict(type="response.completed", response=r)]
    return sse(*[dict(e, sequence_number=i) for i, e in enumerate(events)],
               named=True)


def message(body):
    m = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
         "content": [{"type": "text", "text": "20"}],
         "stop_reason": "end_turn", "stop_sequence": None,
         "usage": {"input_tokens": 3, "output_tokens": 2}}
    if not body.get("stream"):
        return m
    return sse(
        {"type": "message_start", "message": dict(m, content=[])},
        {"type": "content_block_start", "index": 0,
         "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "text_delta", "text": "20"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn",
                                            "stop_sequence": None},
         "usage": {"output_tokens": 2}},
        {"type": "message_stop"}, named=True)


ANSWERS = {"/v1/chat/completions": chat, "/v1/completions": completion,
           "/v1/responses": response, "/v1/messages": message,
           "/v1/messages/count_tokens": lambda b: {"input_tokens": 3},
           "/v1/models": lambda b: {"object": "list", "data": [
               {"id": MODEL, "object": "model", "created": 1,
                "owned_by": "dcpd"}]},
           "/health": lambda b: {}}


class Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        n = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(n).decode()
        port = str(self.server.server_address[1])
        headers = [[k, v.replace(port, "PORT")] for k, v in
                   self.headers.items()]
        path = self.path.split("?")[0]
        recorded.append({"name": self.server.label, "method": self.command,
                         "path": self.path, "headers": headers, "body": body})
        make = ANSWERS.get(path)
        data = make(json.loads(body) if body else {}) if make else {}
        kind = "text/event-stream" if isinstance(data, str) else \
            "application/json"
        raw = (data if isinstance(data, str) else json.dumps(data)).encode()
        self.send_response(200 if make else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_POST = do_GET

    def log_message(self, *_):
        pass


# --- the clients ---------------------------------------------------------

def openai(label, url):
    import openai as o
    c = o.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    ask = [{"role": "system", "content": "Be brief."},
           {"role": "user", "content": QUESTION}]
    tool = {"type": "function", "function": {
        "name": "add", "description": "Add two integers",
        "parameters": TOOL_SCHEMA}}
    label("models")
    c.models.list()
    label("chat")
    c.chat.completions.create(model=MODEL, messages=ask, temperature=0)
    label("chat, parts")
    c.chat.completions.create(model=MODEL, max_completion_tokens=32, messages=[
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]}])
    label("chat, stream")
    for _ in c.chat.completions.create(
            model=MODEL, messages=ask, stream=True, max_tokens=32,
            stream_options={"include_usage": True}):
        pass
    label("chat, tools")
    c.chat.completions.create(model=MODEL, messages=[
        {"role": "user", "content": "Add 919 and 221 with the tool."}],
        tools=[tool], tool_choice="auto", parallel_tool_calls=True)
    label("chat, tool result")
    c.chat.completions.create(model=MODEL, tools=[tool], messages=[
        {"role": "user", "content": "Add 919 and 221 with the tool."},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {
                "name": "add", "arguments": "{\"a\": 919, \"b\": 221}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1140"}])
    label("chat, logprobs, n, stop, seed")
    c.chat.completions.create(
        model=MODEL, messages=ask, logprobs=True, top_logprobs=3, n=2, seed=7,
        stop=["\n\n"], max_tokens=8, temperature=0.8, top_p=0.9,
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"7": -1},
        user="someone", extra_body={"top_k": 20, "min_p": 0.05})
    label("chat, json schema")
    import pydantic

    class Count(pydantic.BaseModel):
        n: int
    c.chat.completions.parse(model=MODEL, messages=ask, response_format=Count)
    label("completion")
    c.completions.create(model=MODEL, prompt="The river", max_tokens=8)
    label("completion, list, stream")
    for _ in c.completions.create(model=MODEL, prompt=["The", "A"], stream=True,
                                  max_tokens=4):
        pass
    label("completion, tokens, echo")
    c.completions.create(model=MODEL, prompt=[72, 101, 108], max_tokens=1,
                         echo=True, logprobs=2)
    flat = {"type": "function", "name": "add", "parameters": TOOL_SCHEMA,
            "description": "Add two integers", "strict": False}
    label("response")
    c.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.")
    label("response, stream, tools, as an agent asks")
    for _ in c.responses.create(
            model=MODEL, stream=True, store=False, tools=[flat],
            tool_choice="auto", parallel_tool_calls=False,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="session-1",
            reasoning={"effort": "medium", "summary": "auto"},
            instructions="You are an agent.", input=[
                {"type": "message", "role": "developer", "content": [
                    {"type": "input_text", "text": "Use the tools."}]},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text",
                     "text": "Add 919 and 221 with the tool."}]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                    {"type": "reasoning_text", "text": "Add them."}]},
                {"type": "function_call", "call_id": "call_1", "name": "add",
                 "arguments": "{\"a\": 919, \"b\": 221}"},
                {"type": "function_call_output", "call_id": "call_1",
                 "output": "1140"}]):
        pass
    label("response, json schema")
    c.responses.create(model=MODEL, input=QUESTION, max_output_tokens=64,
                       text={"format": {
                           "type": "json_schema", "name": "Count",
                           "strict": True,
                           "schema": Count.model_json_schema()}})


def anthropic(label, url):
    import anthropic as a
    c = a.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    ask = [{"role": "user", "content": QUESTION}]
    tool = {"name": "add", "description": "Add two integers",
            "input_schema": TOOL_SCHEMA}
    label("message")
    c.messages.create(model=MODEL, max_tokens=64, messages=ask)
    label("message, stream, system blocks")
    with c.messages.stream(
            model=MODEL, max_tokens=64, stop_sequences=["\n\n"], messages=ask,
            system=[{"type": "text", "text": "Be brief.",
                     "cache_control": {"type": "ephemeral"}}],
            metadata={"user_id": "someone"}) as s:
        s.get_final_message()
    label("message, tools, thinking")
    c.messages.create(
        model=MODEL, max_tokens=2048, tools=[tool],
        tool_choice={"type": "auto"},
        thinking={"type": "enabled", "budget_tokens": 1024}, messages=[
            {"role": "user", "content": "Add 919 and 221 with the tool."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Add them.",
                 "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "add",
                 "input": {"a": 919, "b": 221}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1",
                 "content": [{"type": "text", "text": "1140"}]}]}])
    label("count tokens")
    c.messages.count_tokens(model=MODEL, messages=ask, system="Be brief.",
                            tools=[tool])


def lm_eval(label, url):
    with tempfile.TemporaryDirectory() as d:
        tok = tokenizer_folder(d)
        with open(d + "/rows.jsonl", "w") as f:
            f.write(json.dumps({"q": QUESTION, "a": "20",
                                "choices": [" 20", " 30"]}) + "\n")
        task = {"dataset_path": "json", "test_split": "test",
                "dataset_kwargs": {"data_files": {"test": d + "/rows.jsonl"}},
                "doc_to_text": "{{q}}", "num_fewshot": 0}
        write_yaml(d + "/gen.yaml", dict(
            task, task="gen", output_type="generate_until",
            doc_to_target="{{a}}", generation_kwargs={
                "until": ["\n\n"], "max_gen_toks": 32, "do_sample": False},
            metric_list=[{"metric": "exact_match"}]))
        write_yaml(d + "/mc.yaml", dict(
            task="mc", **task, output_type="multiple_choice",
            doc_to_target=0, doc_to_choice="{{choices}}",
            metric_list=[{"metric": "acc"}]))
        for name, tasks, model, more, flags in (
                ("local-completions", "gen,mc", "local-completions",
                 f",tokenizer_backend=huggingface,tokenizer={tok}", []),
                ("local-chat-completions", "gen", "local-chat-completions",
                 "", ["--apply_chat_template"])):
            label(name)
            path = "/v1/chat/completions" if "chat" in model else \
                "/v1/completions"
            must(sys.executable, "-m", "lm_eval", "run", "--model", model,
                 "--model_args", f"model={MODEL},base_url={url}{path},"
                 f"num_concurrent=1,max_retries=1{more}", "--tasks", tasks,
                 "--include_path", d, *flags)


def guidellm(label, url):
    from guidellm.backends import Backend
    from guidellm.schemas import (GenerationRequest, RequestInfo,
                                  UsageMetrics)
    from guidellm.schemas.backends import OpenAIHTTPBackendArgs

    async def ask(kind):
        b = Backend.create(OpenAIHTTPBackendArgs(
            kind="openai_http", target=url, model=MODEL, api_key=KEY,
            request_format=kind))
        await b.process_startup()
        await b.validate()
        request = GenerationRequest(
            request_id="r", columns={"text_column": [QUESTION]},
            output_metrics=UsageMetrics(text_tokens=16))
        async for _ in b.resolve(request, RequestInfo(request_id="r")):
            pass
        await b.process_shutdown()
    for kind in ("/v1/completions", "/v1/chat/completions"):
        label(kind)
        asyncio.run(ask(kind))


def sglang(label, url, source=None):
    """bench_serving's request functions, without the package around them."""
    root = source or next(iter(importlib.util.find_spec(
        "sglang").submodule_search_locations))
    bench = load("bench_serving", os.path.join(root, "bench_serving.py"))
    bench.args = types.SimpleNamespace(
        disable_stream=False, disable_ignore_eos=False, return_logprob=False,
        top_logprobs_num=0, header=None, cache_report=False,
        print_requests=False, plot_throughput=False)
    for backend, path in (("sglang-oai", "/v1/completions"),
                          ("sglang-oai-chat", "/v1/chat/completions")):
        label(backend)
        out = asyncio.run(bench.ASYNC_REQUEST_FUNCS[backend](
            bench.RequestFuncInput(
                prompt=QUESTION, api_url=url + path, prompt_len=20,
                output_len=16, model=MODEL, lora_name="", image_data=None,
                extra_request_body={})))
        assert out.success, out.error


def vllm(label, url, source):
    lib = load("endpoint_request_func", os.path.join(
        source, "vllm/benchmarks/lib/endpoint_request_func.py"))
    import aiohttp

    async def ask(backend, path):
        async with aiohttp.ClientSession() as s:
            out = await lib.ASYNC_REQUEST_FUNCS[backend](lib.RequestFuncInput(
                prompt=QUESTION, api_url=url + path, prompt_len=20,
                output_len=16, model=MODEL, ignore_eos=True,
                request_id="bench-0", extra_body={"temperature": 0.0}), s)
            assert out.success, out.error
    for backend, path in (("openai", "/v1/completions"),
                          ("openai-chat", "/v1/chat/completions")):
        label(backend)
        asyncio.run(ask(backend, path))


def curl(label, url):
    label("chat")
    must("curl", "-s", url + "/v1/chat/completions", "-H",
         "Content-Type: application/json", "-d", json.dumps({
             "model": MODEL, "messages": [
                 {"role": "user", "content": QUESTION}]}))
    label("completion, no content type of its own")
    must("curl", "-s", url + "/v1/completions", "-d",
         json.dumps({"prompt": "The river", "max_tokens": 8}))
    label("long body, Expect: 100-continue")
    must("curl", "-s", url + "/v1/completions", "-d", json.dumps(
        {"prompt": "a " * 600, "max_tokens": 1}), "-H",
        "Expect: 100-continue")
    label("health")
    must("curl", "-s", url + "/health")


# --- helpers -------------------------------------------------------------

def must(*command):
    r = subprocess.run(command, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True,
                       env=dict(os.environ, OPENAI_API_KEY=KEY,
                                HF_HUB_OFFLINE="1", TQDM_DISABLE="1"))
    if r.returncode != 0:
        sys.exit(f"{command}: {r.stdout[-3000:]}")
    return r.stdout


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[name] = m
    spec.loader.exec_module(m)
    return m


def write_yaml(path, obj):
    with open(path, "w") as f:
        json.dump(obj, f)               # JSON is YAML


def tokenizer_folder(d):
    """dcp-tiny's tokenizer, in a folder that transformers can read."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(d, "tokenizer")
    os.mkdir(path)
    os.symlink(os.path.join(here, "models/dcp-tiny/tokenizer.json"),
               path + "/tokenizer.json")
    with open(path + "/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast",
                   "eos_token": "<|endoftext|>"}, f)
    return path


def version(client, source):
    if client == "curl":
        return must("curl", "--version").split()[1]
    if source:
        meta = [n for n in os.listdir(source) if n.endswith(".dist-info")]
        return meta[0].removesuffix(".dist-info").split("-")[1]
    return importlib.metadata.version(client)


def main():
    client = sys.argv[1]
    source = sys.argv[2:] or []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    server.daemon_threads = True
    server.label = ""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(OPENAI_API_KEY=KEY, HF_HUB_OFFLINE="1")

    def label(text):
        server.label = text
    globals()[client](label, f"http://127.0.0.1:{server.server_address[1]}",
                      *source)
    print(json.dumps({"client": client,
                      "version": version(client, *(source or [None])),
                      "requests": recorded}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
