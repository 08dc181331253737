#!/usr/bin/python3
"""Who knows SGLang starts dcpd with the flags of their command line, and points
the openai client at it.
"""
import json
import os
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
import venv_for  # noqa: E402

venv_for.use("clients")
import openai  # noqa: E402

import eval_rows  # noqa: E402
from httpd import TINY, HttpDaemon  # noqa: E402
from suite import run  # noqa: E402

FLAGS = ("--tp 8 --attn-cp-size 8 --cp-strategy interleave --dcp-size 8 "
         "--kv-cache-dtype fp8_e4m3 --reasoning-parser glm45 "
         "--tool-call-parser glm47 --chunked-prefill-size 8192 "
         "--max-running-requests 64 --page-size 64 "
         "--mem-fraction-static 0.70").split()


def the_flags_act(d):
    s = d.ctl_json("status")
    for key, want in (("tp", 8), ("attn_cp_size", 8), ("dcp_size", 8)):
        assert s[key] == want, (key, s)
    c = d.ctl_json("config", "show")
    for key, want in (("kv-cache-dtype", "fp8_e4m3"),
                      ("cp-strategy", "interleave"),
                      ("reasoning-parser", "glm45"),
                      ("tool-call-parser", "glm47"),
                      ("chunked-prefill-size", 8192),
                      ("max-running-requests", 64),
                      ("mem-fraction-static", 0.7)):
        assert str(c[key]) == str(want), (key, c[key])


def questions_and_tools(d):
    c = openai.OpenAI(base_url=d.url + "/v1", api_key="none", timeout=120)
    model = c.models.list().data[0].id
    rows = eval_rows.rows("math")[:4]
    right = 0
    for r in rows:
        m = c.chat.completions.create(
            model=model, temperature=0, messages=[
                {"role": "user", "content": r["question"]}]).choices[0].message
        assert m.reasoning_content
        right += m.content.strip() == r["answer"]
    assert right >= 3, f"{right} of {len(rows)}"
    row = next(r for r in eval_rows.rows("tools") if "Add" in r["question"])
    r = c.chat.completions.create(
        model=model, temperature=0, tools=eval_rows.TOOLS, messages=[
            {"role": "user", "content": row["question"]}])
    call, = r.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == \
        eval_rows.call(row)


if __name__ == "__main__":
    with HttpDaemon("--model-path", TINY, *FLAGS, ready=180) as daemon:
        run(daemon, the_flags_act, questions_and_tools)
