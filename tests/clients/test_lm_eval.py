#!/usr/bin/python3
"""lm_eval's local-completions, whole and unchanged, on a small task of our own:
its score is that of tools/accuracy on the same rows, its log-likelihoods are
those of the ring. And its local-chat-completions.
"""
import glob
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests", "lib"))
sys.dont_write_bytecode = True
import venv_for  # noqa: E402

PYTHON = venv_for.install("eval", venv_for.place("eval"))
import dcpclient  # noqa: E402
import eval_rows  # noqa: E402
from httpd import HttpDaemon, tokenizer_folder  # noqa: E402
from suite import run  # noqa: E402

N = 16                      # word problems
CHOICES = 4


def accuracy():
    """tools/accuracy as a module: it is what asks and judges there."""
    path = os.path.join(SRC, "tools", "accuracy")
    loader = importlib.machinery.SourceFileLoader("accuracy", path)
    m = importlib.util.module_from_spec(importlib.util.spec_from_loader(
        "accuracy", loader))
    loader.exec_module(m)
    return m


def write_task(folder, name, rows, **task):
    with open(f"{folder}/{name}.jsonl", "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")
    with open(f"{folder}/{name}.yaml", "w") as f:       # JSON is YAML
        json.dump(dict(task=name, dataset_path="json", test_split="test",
                       dataset_kwargs={"data_files": {
                           "test": f"{folder}/{name}.jsonl"}},
                       num_fewshot=0, **task), f)


def last_number(name):
    return [{"name": name, "filter": [
        {"function": "regex", "regex_pattern": "([0-9]+)\\s*$"},
        {"function": "take_first"}]}]


def lm_eval(d, folder, model, path, tasks, *flags, more=""):
    """{task: (metrics, samples)}"""
    out = f"{folder}/out-{model}"
    r = subprocess.run(
        [PYTHON, "-m", "lm_eval", "run", "--model", model, "--model_args",
         f"model=dcp-tiny,base_url={d.url}{path},num_concurrent=8,"
         f"max_retries=1{more}", "--tasks", ",".join(tasks),
         "--include_path", folder, "--output_path", out, "--log_samples",
         *flags], capture_output=True, text=True, timeout=1200, cwd=folder,
        env=dict(os.environ, HF_HUB_OFFLINE="1", OPENAI_API_KEY="none",
                 HF_HOME=f"{folder}/hf", TQDM_DISABLE="1"))
    assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-3000:]
    results, = glob.glob(f"{out}/**/results*.json", recursive=True)
    with open(results) as f:
        metrics = json.load(f)["results"]
    got = {}
    for t in tasks:
        path, = glob.glob(f"{out}/**/samples_{t}_*.jsonl", recursive=True)
        with open(path) as f:
            got[t] = metrics[t], [json.loads(x) for x in f]
    return got


def likelihood(client, prompt, answer):
    """Of the answer after the prompt, from the ring."""
    a = client.generate(text=prompt + answer, max_tokens=1, temperature=0.0,
                        flags=dcpclient.LOGPROBS | dcpclient.ECHO)
    before = client.generate(text=prompt, max_tokens=1, temperature=0.0,
                             flags=dcpclient.ECHO | dcpclient.LOGPROBS)
    n = len(before.prompt_logprobs)
    assert [x[0] for x in a.prompt_logprobs[:n]] == \
        [x[0] for x in before.prompt_logprobs]
    return sum(x[1] for x in a.prompt_logprobs[n:])


def score_is_that_of_the_accuracy_tool(d):
    tool = accuracy()
    math = eval_rows.rows("math")[-N:]
    recall = eval_rows.rows("recall64")[:10]
    choice = [dict(prompt=r["prompt"], choices=[r["answer"],
                                                str(int(r["answer"]) + 7)])
              for r in math[:CHOICES]]
    with tempfile.TemporaryDirectory() as tmp:
        for name, rows in (("dcp_math", math), ("dcp_recall", recall)):
            write_task(tmp, name, rows, output_type="generate_until",
                       doc_to_text="{{prompt}}", doc_to_target="{{answer}}",
                       generation_kwargs={"until": ["<|user|>"],
                                          "max_gen_toks": tool.MAX_TOKENS,
                                          "do_sample": False},
                       filter_list=last_number("last"),
                       metric_list=[{"metric": "exact_match"}])
        write_task(tmp, "dcp_choice", choice, output_type="multiple_choice",
                   doc_to_text="{{prompt}}", doc_to_target=0,
                   doc_to_choice="{{choices}}", target_delimiter="",
                   metric_list=[{"metric": "acc"}])
        got = lm_eval(
            d, tmp, "local-completions", "/v1/completions",
            ["dcp_math", "dcp_recall", "dcp_choice"],
            more=f",tokenizer_backend=huggingface,"
            f"tokenizer={tokenizer_folder(tmp)}")
    with d.client() as c:
        for name, rows in (("dcp_math", math), ("dcp_recall", recall)):
            answers = tool.ask(c, rows, 8)[0]
            right = sum(a["right"] for a in answers)
            score = got[name][0]["exact_match,last"]
            print(f"    {name}: lm_eval {score * len(rows):.0f}, "
                  f"tools/accuracy {right}, of {len(rows)}")
            assert round(score * len(rows)) == right
            assert len(got[name][1]) == len(rows)
        assert 0 < right < len(rows), "no score can differ here"
        for s in got["dcp_choice"][1]:
            row = choice[s["doc_id"]]
            for text, resp in zip(row["choices"], s["resps"]):
                want = likelihood(c, row["prompt"], text)
                have = float(resp[0][0])
                assert abs(have - want) < 1e-3, (row, have, want)


def chat_gives_the_same_answers(d):
    rows = eval_rows.rows("math")[:4]
    with tempfile.TemporaryDirectory() as tmp:
        write_task(tmp, "dcp_chat", rows, output_type="generate_until",
                   doc_to_text="{{question}}", doc_to_target="{{answer}}",
                   generation_kwargs={"until": ["<|user|>"],
                                      "max_gen_toks": 64,
                                      "do_sample": False},
                   filter_list=last_number("last"),
                   metric_list=[{"metric": "exact_match"}])
        got = lm_eval(d, tmp, "local-chat-completions",
                      "/v1/chat/completions", ["dcp_chat"],
                      "--apply_chat_template")
    with d.client() as c:
        right = sum(a["right"] for a in accuracy().ask(c, rows, 8)[0])
    assert round(got["dcp_chat"][0]["exact_match,last"] * len(rows)) == right


if __name__ == "__main__":
    with HttpDaemon("--tp", 2, "--dcp-size", 2, "--kv-cache-dtype", "f32",
                    "--max-context", 4096, "--served-model-name",
                    "dcp-tiny") as daemon:
        run(daemon, score_is_that_of_the_accuracy_tool,
            chat_gives_the_same_answers)
