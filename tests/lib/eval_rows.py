"""Questions that dcp-tiny answers right: rows of tests/data/eval."""
import json
import os
import re

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))


def rows(task):
    with open(os.path.join(SRC, "tests/data/eval", task + ".jsonl")) as f:
        return [json.loads(x) for x in f]


def _tools():
    """As they stand in the prompts of tools.jsonl."""
    text = re.search(r"<tools>\n(.*?)\n</tools>", rows("tools")[0]["prompt"],
                     re.S).group(1)
    return [json.loads(x) for x in text.splitlines()]


TOOLS = _tools()


def call(row):
    """(name, arguments) that the row's answer calls, integers as such."""
    name = re.search(r"<tool_call>(.*?)<arg_key>", row["answer"]).group(1)
    args = dict(re.findall(r"<arg_key>(.*?)</arg_key><arg_value>(.*?)"
                           r"</arg_value>", row["answer"]))
    schema = next(t["function"]["parameters"]["properties"] for t in TOOLS
                  if t["function"]["name"] == name)
    return name, {k: int(v) if schema[k]["type"] == "integer" else v
                  for k, v in args.items()}


def tokenize(daemon, text):
    return daemon.post("/tokenize", {"prompt": text})["tokens"]
